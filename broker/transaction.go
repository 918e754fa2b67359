package broker

import (
	"context"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/wire"
)

const (
	// maxTransactions bounds those in the database at a time: each holds row locks, and beyond a few more of them only
	// wait for each other. It leaves sessions to pushes, pops and acks.
	maxTransactions = 8
	// maxVisitors bounds those that wait for their turn, shared by fair.Budget's rule.
	maxVisitors = 1 << 14
	// transactionRepeats is how often a transaction is offered again whose partition was deleted, or its queue's
	// encryption switched on, before the write.
	transactionRepeats = 3
)

// transaction answers 200 whether it was committed or rolled back: the body says which, and why. What could not be
// read is 400 in the same envelope; a refusal over a cap or a database that is away are errors like any other.
//
// The queues and partitions it pushes to are resolved or created before, outside of it, as a push does.
func (b *Broker) transaction(x *exchange) error {
	req, err := wire.ScanTransaction(x.ctx.PostBody())
	if err != nil {
		return err
	}
	if len(req.Pushes) > 0 {
		if err := b.pushesOpen(x.begin); err != nil {
			return err
		}
	}
	t := newTransaction(b, x, &req)
	if t.rejected == nil {
		if err := t.run(); err != nil {
			return err
		}
	}
	id := httpkit.NewUUID()
	if t.rejected != nil {
		x.ctx.Response.Header.Set(wire.HeaderStored, "0")
		x.reply(fasthttp.StatusOK, func(dst []byte) []byte {
			return wire.AppendTransactionFailure(dst, id, t.rejected.reason, t.rejected.text, t.rejected.index)
		})
		return nil
	}
	results, stored := t.results()
	b.metrics.pushed(len(req.Pushes))
	b.metrics.acked(len(req.Acks))
	x.ctx.Response.Header.Set(wire.HeaderStored, strconv.Itoa(stored))
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte { return wire.AppendTransactionResults(dst, id, results) })
	return nil
}

// rejection is why a transaction was rolled back. index is that of the element at fault, -1 for none.
type rejection struct {
	reason wire.Reason
	text   string
	index  int
}

// transactionCall is one transaction on its way.
type transactionCall struct {
	b       *Broker
	who     *identity
	req     *wire.Transaction
	batch   *pushBatch
	in      store.Transaction
	places  []ackPlace // of the acks
	verdict store.TransactionVerdict

	rejected *rejection
}

// ackPlace says where the verdict of an ack stands.
type ackPlace struct{ group, item int }

func newTransaction(b *Broker, x *exchange, req *wire.Transaction) *transactionCall {
	who := &x.who
	t := &transactionCall{b: b, who: who, req: req, batch: &pushBatch{b: b, who: who, span: x.span}}
	for i := range req.Pushes {
		p := &req.Pushes[i]
		t.batch.add(p.PushItem)
		if at := t.batch.items[i]; !at.follower {
			at.group.frames[at.frame].TraceID = p.TraceID
		}
	}
	t.in = store.Transaction{Tenant: who.tenant, Fenced: req.Fenced()}
	known := map[string]struct{}{}
	name := func(lease string) {
		if _, ok := known[lease]; !ok && lease != "" {
			known[lease] = struct{}{}
			t.in.Leases = append(t.in.Leases, lease)
		}
	}
	for _, lease := range req.Leases {
		name(lease)
	}
	t.groupAcks(name)
	return t
}

// groupAcks sorts the acks by (partition, group), each to be decided at once. All that name a lease must name the same:
// a partition has one holder.
func (t *transactionCall) groupAcks(name func(lease string)) {
	type address struct {
		partition uuid.UUID
		group     string
	}
	index := map[address]int{}
	for i := range t.req.Acks {
		a := &t.req.Acks[i]
		uid, err := uuid.Parse(a.PartitionID)
		if err != nil || len(a.PartitionID) != 36 {
			t.reject(i, store.AckNotOwned)
			return
		}
		at := address{uid, a.Group}
		g, ok := index[at]
		if !ok {
			g = len(t.in.Acks)
			index[at] = g
			t.in.Acks = append(t.in.Acks, store.AckGroup{Tenant: t.who.tenant, Partition: uid, Group: a.Group})
		}
		group := &t.in.Acks[g]
		switch {
		case a.LeaseID == "":
		case group.Lease == "":
			group.Lease = a.LeaseID
			name(a.LeaseID)
		case group.Lease != a.LeaseID:
			t.reject(i, store.AckStaleLease)
			return
		}
		t.places = append(t.places, ackPlace{g, len(group.Items)})
		group.Items = append(group.Items, store.AckItem{
			Hash: segment.HashID(a.TransactionID), Status: a.Status, Reason: a.Error, Offset: -1, TransactionID: a.TransactionID,
		})
	}
	t.b.locate(t.in.Acks)
}

// reject notes that the ack i is why the transaction cannot be carried out.
func (t *transactionCall) reject(i int, why string) {
	t.rejected = &rejection{wire.ReasonAckRejected, wire.RejectedText(t.req.Acks[i].TransactionID, why), len(t.req.Pushes) + i}
}

// run carries the transaction out, or notes why it was rolled back.
func (t *transactionCall) run() error {
	if !t.b.transactions.Enter(t.who.tenant, 0, databaseWait, nil) {
		return &wire.Error{Code: wire.BrokerOverloaded, Detail: "too many transactions are waiting", RetryAfter: time.Second, Outcome: wire.OutcomeNone}
	}
	defer t.b.transactions.Leave()
	for range 1 + transactionRepeats {
		if err := t.batch.resolve(t.batch.groups); err != nil {
			return err
		}
		if err := t.attempt(); err != nil {
			return err
		}
		if t.verdict.Status != store.TransactionMissing {
			t.judge()
			return nil
		}
		for i := range t.verdict.Pushes {
			if s := t.verdict.Pushes[i].Status; s == store.PushMissing || s == store.PushPlain {
				t.b.names.forget(t.who.tenant, t.batch.groups[i].pair.Queue)
			}
		}
	}
	return errQueueChanging
}

// attempt asks the database once, while the fuser keeps away from the partitions: so the watermarks of its dedup cache
// serve here too, and no push finds their rows taken.
func (t *transactionCall) attempt() error {
	groups := t.batch.groups
	parts := make([]store.Partition, len(groups))
	for i, g := range groups {
		parts[i] = g.partition
	}
	held := t.b.fuser.Hold(parts)
	defer held.Release()
	t.in.Pushes = make([]store.Segment, len(groups))
	for i, g := range groups {
		sg, err := t.b.segment(g, t.who.tenant)
		if err != nil {
			return err
		}
		sg.Verified = held.Vouched(sg.PartitionID, sg.Hashes)
		t.in.Pushes[i] = sg
	}
	// A committing statement heeds its context only until it has a session; the reads between two tries have the same
	// bound.
	ctx, cancel := context.WithTimeout(context.Background(), databaseWait)
	defer cancel()
	span := t.batch.span.Child("transaction", tracing.Client)
	var err error
	t.verdict, err = t.b.db.Transact(ctx, &t.in)
	endTrip(span, tracing.Cargo{Requests: 1, Items: len(t.req.Pushes) + len(t.req.Acks), Lanes: len(groups)}, err)
	if err != nil || t.verdict.Status != store.TransactionCommitted {
		return err
	}
	landed := make([]fuse.Landed, 0, len(groups))
	for i, g := range groups {
		v, sg := &t.verdict.Pushes[i], &t.in.Pushes[i]
		held.Stored(sg.PartitionID, sg.Hashes, v)
		t.b.history.pushed(sg.Tenant, g.pair.Queue, sg.Count)
		landed = append(landed, fuse.Landed{
			Partition: sg.PartitionID, QueueID: g.partition.QueueID, Tenant: sg.Tenant, Queue: g.pair.Queue,
			LastOffset: v.LastOffset, Count: sg.Count,
		})
	}
	switch {
	case len(groups) > 0:
		t.b.history.transacted(t.who.tenant, groups[0].pair.Queue)
	case len(t.verdict.Acks) > 0:
		t.b.history.transacted(t.who.tenant, t.verdict.Acks[0].Queue)
	}
	if len(landed) > 0 {
		t.b.landed(landed)
	}
	for i := range t.in.Acks {
		t.settled(&t.in.Acks[i], &t.verdict.Acks[i])
		t.b.history.acked(&t.in.Acks[i], &t.verdict.Acks[i])
	}
	return nil
}

// settled tells the rings of an acknowledged group, and forgets what was delivered under its lease. A group that names
// none is covered by one of the required leases.
func (t *transactionCall) settled(g *store.AckGroup, v *store.AckVerdict) {
	t.b.settled(g, v)
	if g.Lease != "" || !v.LeaseReleased {
		return
	}
	for _, lease := range t.in.Leases {
		if key, parts := t.b.leases.held(lease, g.Tenant); parts != nil && key.Group == g.Group {
			t.b.leases.released(lease, v.PartitionID)
		}
	}
}

// segment encodes the frames of a group, not yet offered to anybody.
func (b *Broker) segment(g *pushGroup, tenant uuid.UUID) (store.Segment, error) {
	frames, err := b.sealed(&g.partition, g.frames)
	if err != nil {
		return store.Segment{}, err
	}
	var raw, size int64
	for i := range frames {
		f := &frames[i]
		raw += int64(f.SentBytes())
		size += int64(len(f.Payload) + len(f.TransactionID) + len(f.ProducerSub) + len(f.TraceID))
	}
	if size > segment.MaxBody/2 {
		return store.Segment{}, wire.Errorf(wire.PayloadTooLarge, "the messages for one partition are larger than %d bytes", segment.MaxBody/2)
	}
	return store.Segment{
		PartitionID: g.partition.ID, Known: g.partition.Life, Tenant: tenant, Count: len(g.frames), RawBytes: raw,
		DedupWindow: g.partition.DedupWindow, Sealed: g.partition.Encrypted,
		Blob: segment.Encode(nil, frames), Hashes: segment.AppendHashes(nil, frames),
	}, nil
}

// judge words the verdict of a transaction that was rolled back.
func (t *transactionCall) judge() {
	v := &t.verdict
	switch v.Status {
	case store.TransactionDuplicate:
		type frame struct {
			group *pushGroup
			index int
		}
		seen := map[frame]struct{}{}
		for i, g := range t.batch.groups {
			for _, d := range v.Pushes[i].Dups {
				seen[frame{g, d.Frame}] = struct{}{}
			}
		}
		for i, at := range t.batch.items {
			if _, ok := seen[frame{at.group, at.frame}]; ok {
				txn := at.group.frames[at.frame].TransactionID
				t.rejected = &rejection{wire.ReasonDuplicate, wire.DuplicateText(txn, at.group.pair.Queue), i}
				return
			}
		}
	case store.TransactionRejected:
		if v.StaleLease >= 0 {
			t.rejected = &rejection{wire.ReasonAckRejected, wire.LeaseText(t.in.Leases[v.StaleLease], store.AckStaleLease), -1}
			return
		}
		for i, at := range t.places {
			if e := v.Acks[at.group].Items[at.item].Error; e != "" {
				t.reject(i, e)
				return
			}
		}
	}
}

// results renders a committed transaction: one result per push, then one per ack. stored counts the messages.
func (t *transactionCall) results() (results []wire.TransactionResult, stored int) {
	results = make([]wire.TransactionResult, 0, len(t.batch.items)+len(t.places))
	place := make(map[*pushGroup]int, len(t.batch.groups))
	for i, g := range t.batch.groups {
		place[g] = i
		stored += len(g.frames)
	}
	for _, at := range t.batch.items {
		g := at.group
		v := &t.verdict.Pushes[place[g]]
		results = append(results, wire.TransactionResult{
			Push: true, TransactionID: g.frames[at.frame].TransactionID, Queue: g.pair.Queue, PartitionID: g.partition.UID,
			MessageID: segment.MessageID(v.CreatedAt, v.Base+int64(at.frame), g.partition.ID), Duplicate: at.follower,
		})
	}
	for i, at := range t.places {
		v := t.verdict.Acks[at.group].Items[at.item]
		results = append(results, wire.TransactionResult{TransactionID: t.req.Acks[i].TransactionID, DLQ: v.DLQ, Noop: v.Noop})
	}
	return results, stored
}
