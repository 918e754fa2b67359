package broker

import (
	"fmt"
	"strconv"
	"time"

	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// open turns claimed segments into the answer of a pop, and into what the lease registry remembers of it.
func (b *Broker) open(got *claimed, key park.Key, autoAck bool) (*wire.PopAnswer, []delivered, error) {
	first := &got.verdicts[0]
	a := &wire.PopAnswer{
		Queue: got.queue, Partition: first.Name, PartitionID: first.UID, Group: key.Group,
		PartitionsClaimed: len(got.verdicts), Messages: make([]wire.Message, 0, count(got.verdicts)),
	}
	if !autoAck {
		a.LeaseID = got.worker.String()
		a.LeaseExpiresAt = first.Expires
	}
	leased := make([]delivered, 0, len(got.verdicts))
	for i := range got.verdicts {
		v := &got.verdicts[i]
		if !autoAck && v.Expires.Before(a.LeaseExpiresAt) {
			a.LeaseExpiresAt = v.Expires
		}
		d := delivered{partition: v.PartitionID, uid: v.UID, after: v.After}
		for j := range v.Segments {
			s := &v.Segments[j]
			r, err := b.segments.open(v.PartitionID, s)
			if err != nil {
				return nil, nil, fmt.Errorf("segment %d of partition %d: %w", s.Base, v.PartitionID, err)
			}
			if int64(r.Len()) != s.End-s.Base+1 {
				return nil, nil, fmt.Errorf("segment %d of partition %d has %d messages, its row says %d",
					s.Base, v.PartitionID, r.Len(), s.End-s.Base+1)
			}
			for offset := max(s.Base, v.After+1); offset <= min(s.End, v.Through); offset++ {
				f := r.Frame(int(offset - s.Base))
				a.Messages = append(a.Messages, wire.Message{
					ID: segment.MessageID(s.CreatedAt, offset, v.PartitionID), TransactionID: f.TransactionID, TraceID: f.TraceID,
					Data: f.Payload, ProducerSub: f.ProducerSub, CreatedAt: s.CreatedAt, PartitionID: v.UID, Partition: v.Name,
					Queue: got.queues[i], Offset: offset, DeliveryAttempt: v.Attempt,
				})
				if !autoAck {
					d.add(offset, segment.HashID(f.TransactionID))
				}
			}
		}
		leased = append(leased, d)
	}
	return a, leased, nil
}

func count(vs []store.Claimed) (n int64) {
	for i := range vs {
		n += vs[i].Through - vs[i].After
	}
	return n
}

// deliver answers with what was claimed. If the client has gone meanwhile, the leases are released without a charge,
// so that nothing stays leased to nobody; under autoAck the messages are consumed, as the client chose.
func (p *popping) deliver(got *claimed) error {
	if p.watch != nil {
		select {
		case <-p.watch.Gone():
			if !p.q.AutoAck {
				p.release(got)
			}
			return p.end(park.Gone)
		default:
		}
	}
	answer, delivered, err := p.b.open(got, p.key, p.q.AutoAck)
	if err != nil {
		return err
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
	groups := make([]store.AckGroup, len(got.verdicts))
	for i := range got.verdicts {
		v := &got.verdicts[i]
		groups[i] = store.AckGroup{
			Tenant: p.key.Tenant, Partition: v.UID, Group: p.key.Group, Lease: got.worker.String(),
			Items: []store.AckItem{{Hash: p.b.firstHash(v), Status: wire.AckRetry, Offset: v.After + 1}},
		}
	}
	for _, c := range p.b.acks.do(p.key.Tenant, groups...) {
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
