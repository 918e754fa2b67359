package broker

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/seal"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// open turns claimed segments into the answer of a pop, and into what the lease registry remembers of it.
//
// Of a partition with a message that cannot be decrypted only what comes before it is delivered: the verdict then ends
// there. The rest stays leased until the lease ends, so that the other partitions of the queue have their turn before it
// is tried again, and nothing of it is passed over. The error is about such a message when nothing else is left.
func (b *Broker) open(got *claimed, key park.Key, autoAck bool) (*wire.PopAnswer, []delivered, error) {
	a := &wire.PopAnswer{Group: key.Group, Queue: got.queue, Messages: make([]wire.Message, 0, count(got.verdicts))}
	leased := make([]delivered, 0, len(got.verdicts))
	var unread error
	for i := range got.verdicts {
		v := &got.verdicts[i]
		d := delivered{partition: v.PartitionID, uid: v.UID, after: v.After}
		before := len(a.Messages)
		at := seal.Place{Tenant: key.Tenant, Queue: got.queues[i], Partition: v.PartitionID}
		known := &d
		if autoAck {
			known = nil
		}
		sealed, err := b.openBatch(a, known, v, &at)
		if err != nil {
			return nil, nil, err
		}
		if sealed != nil {
			unread = sealed
			b.log.Error("a message cannot be decrypted", "tenant", at.Tenant, "queue", at.Queue, "partition", v.Name,
				"offset", v.Through+1, "group", key.Group, "err", sealed)
		}
		if len(a.Messages) == before {
			continue
		}
		if a.PartitionsClaimed++; a.PartitionsClaimed == 1 {
			a.Partition, a.PartitionID = v.Name, v.UID
		}
		if !autoAck && (a.LeaseExpiresAt.IsZero() || v.Expires.Before(a.LeaseExpiresAt)) {
			a.LeaseExpiresAt = v.Expires
		}
		leased = append(leased, d)
	}
	if len(a.Messages) == 0 && unread != nil {
		return nil, nil, unread
	}
	if !autoAck {
		a.LeaseID = got.worker.String()
	}
	return a, leased, nil
}

// openBatch appends the messages of one partition, and to d, unless it is nil, what the lease registry remembers of them,
// up to a message that cannot be decrypted: sealed says why.
func (b *Broker) openBatch(a *wire.PopAnswer, d *delivered, v *store.Claimed, at *seal.Place) (sealed, err error) {
	for j := range v.Segments {
		s := &v.Segments[j]
		r, err := b.segments.open(v.PartitionID, s)
		if err != nil {
			return nil, fmt.Errorf("segment %d of partition %d: %w", s.Base, v.PartitionID, err)
		}
		if int64(r.Len()) != s.End-s.Base+1 {
			return nil, fmt.Errorf("segment %d of partition %d has %d messages, its row says %d",
				s.Base, v.PartitionID, r.Len(), s.End-s.Base+1)
		}
		for offset := max(s.Base, v.After+1); offset <= min(s.End, v.Through); offset++ {
			f := r.Frame(int(offset - s.Base))
			data, err := b.payload(at, &f)
			if err != nil {
				v.Through = offset - 1
				return err, nil
			}
			a.Messages = append(a.Messages, wire.Message{
				ID: segment.MessageID(s.CreatedAt, offset, v.PartitionID), TransactionID: f.TransactionID, TraceID: f.TraceID,
				Data: data, ProducerSub: f.ProducerSub, CreatedAt: s.CreatedAt, PartitionID: v.UID, Partition: v.Name,
				Queue: at.Queue, Offset: offset, DeliveryAttempt: v.Attempt,
			})
			if d != nil {
				d.add(offset, segment.HashID(f.TransactionID))
			}
		}
	}
	return nil, nil
}

// settleSealed acknowledges what a pop under autoAck was given under a lease, since it might not have been possible to
// decrypt it, and takes back from the answer what could not be acknowledged: it comes again.
func (p *popping) settleSealed(got *claimed, a *wire.PopAnswer) error {
	var groups []store.AckGroup
	for i := range a.Messages {
		if m := &a.Messages[i]; got.leases(m.PartitionID) && (i+1 == len(a.Messages) || a.Messages[i+1].PartitionID != m.PartitionID) {
			groups = append(groups, store.AckGroup{
				Tenant: p.key.Tenant, Partition: m.PartitionID, Group: p.key.Group, Lease: got.worker.String(),
				Items: []store.AckItem{{Hash: segment.HashID(m.TransactionID), Status: wire.AckCompleted, Offset: m.Offset}},
			})
		}
	}
	if len(groups) == 0 {
		return nil
	}
	var failed error
	for _, c := range p.b.acks.doFor(p.x.span, p.key.Tenant, groups...) {
		switch err := cmp.Or(c.err, c.out.Err); {
		case err != nil:
			failed = err
		case !c.out.Items[0].Success:
			failed = fmt.Errorf("the lease of a pop under autoAck: %s", c.out.Items[0].Error)
		default:
			p.b.settled(&c.in, &c.out)
			continue
		}
		a.Messages = slices.DeleteFunc(a.Messages, func(m wire.Message) bool { return m.PartitionID == c.in.Partition })
		a.PartitionsClaimed--
	}
	if len(a.Messages) == 0 {
		return failed
	}
	a.Partition, a.PartitionID = a.Messages[0].Partition, a.Messages[0].PartitionID
	return nil
}

// leases reports whether the partition of the claim is leased.
func (c *claimed) leases(partition uuid.UUID) bool {
	return slices.ContainsFunc(c.verdicts, func(v store.Claimed) bool { return v.UID == partition && !v.Expires.IsZero() })
}

func count(vs []store.Claimed) (n int64) {
	for i := range vs {
		n += vs[i].Through - vs[i].After
	}
	return n
}

// deliver answers with what was claimed. If the client has gone meanwhile, the leases are released without a charge,
// so that nothing stays leased to nobody; under autoAck what is not leased is consumed, as the client chose.
func (p *popping) deliver(got *claimed) error {
	if p.hungUp() {
		p.release(got)
		return p.end(park.Gone)
	}
	answer, delivered, err := p.b.open(got, p.key, p.q.AutoAck)
	if err != nil {
		return p.unread(got, err)
	}
	if p.q.AutoAck {
		if err := p.settleSealed(got, answer); err != nil {
			return err
		}
	}
	p.advise(len(answer.Messages))
	answer.Conflation, answer.Conflict, answer.Autopilot = p.q.Conflation || p.conflate, p.conflict, p.pilot
	if !p.q.AutoAck {
		p.b.leases.grant(got.worker, p.key, got.lease, delivered)
	}
	p.b.metrics.popped(len(answer.Messages))
	p.b.history.popped(p.key.Tenant, answer, p.b.clock.database(time.Now()))
	p.x.reply(200, func(dst []byte) []byte { return wire.AppendPopAnswer(dst, answer) })
	p.x.ctx.Response.Header.Set(wire.HeaderDelivered, strconv.Itoa(firstDeliveries(answer)))
	return nil
}

// othersTurn is when a pop may ask again that met a partition without a key: what it met is leased and out of its way.
const othersTurn = time.Second

// unread says when to ask again after a pop that had nothing it could decrypt. One of a single partition gets nothing
// before the lease on what it met ends; any other may have the next partition's messages at once, and a client that
// waited for the lease would leave those lying.
func (p *popping) unread(got *claimed, err error) error {
	e := wire.AsError(err)
	if e.Code != wire.EncryptionKeyMissing {
		return err
	}
	told := *e
	told.RetryAfter = othersTurn
	if p.pinned {
		told.RetryAfter = max(othersTurn, got.verdicts[0].Expires.Sub(p.b.clock.database(time.Now())))
	}
	return &told
}

// firstDeliveries counts what a plan is charged for: a message that comes again is the service's trouble.
func firstDeliveries(a *wire.PopAnswer) (n int) {
	for i := range a.Messages {
		if a.Messages[i].DeliveryAttempt <= 1 {
			n++
		}
	}
	return n
}

// release ends the leases of a claim that nobody will work on. A failure costs the lease time and no message.
func (p *popping) release(got *claimed) {
	groups := make([]store.AckGroup, 0, len(got.verdicts))
	for i := range got.verdicts {
		v := &got.verdicts[i]
		if v.Expires.IsZero() {
			continue
		}
		groups = append(groups, store.AckGroup{
			Tenant: p.key.Tenant, Partition: v.UID, Group: p.key.Group, Lease: got.worker.String(),
			Items: []store.AckItem{{Hash: p.b.firstHash(v), Status: wire.AckRetry, Offset: v.After + 1}},
		})
	}
	for _, c := range p.b.acks.doFor(p.x.span, p.key.Tenant, groups...) {
		if c.err != nil {
			p.b.log.Warn("a lease could not be released", "request_id", p.x.requestID, "err", c.err)
			continue
		}
		p.b.settled(&c.in, &c.out)
	}
}

// firstHash returns the identity of the first message a claim delivered, zero when its segment cannot be read.
func (b *Broker) firstHash(v *store.Claimed) store.Hash {
	s := &v.Segments[0]
	r, err := segment.Open(s.Blob)
	if err != nil {
		return store.Hash{}
	}
	first := max(v.After+1, s.Base)
	if i := int(first - s.Base); i < r.Len() {
		return segment.HashID(r.Frame(i).TransactionID)
	}
	return store.Hash{}
}
