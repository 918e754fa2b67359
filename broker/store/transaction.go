package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

// Transaction is segments and acknowledgements that take effect together or not at all.
type Transaction struct {
	Tenant uuid.UUID
	Pushes []Segment  // at most one per partition
	Acks   []AckGroup // at most one per (partition, consumer group), all of the tenant
	// Fenced says that a lease was named somewhere: by a group, or in Leases. Then every group must be covered by a lease
	// of Leases that is live: the one it names, else the one that holds it; and every one of Leases must be held.
	Fenced bool
	Leases []string // all leases named anywhere, each once
}

// TransactionStatus is what became of a transaction.
type TransactionStatus uint8

const (
	TransactionCommitted TransactionStatus = iota
	TransactionDuplicate                   // Pushes with PushDuplicate name the frames seen before
	TransactionRejected                    // an item of Acks without Success, else StaleLease, says why
	TransactionMissing                     // Pushes with PushMissing or PushPlain: what was known of their partition is out of date; look up and repeat
)

// TransactionVerdict answers a transaction. Unless it was committed, nothing was written, and what it says is why.
type TransactionVerdict struct {
	Status     TransactionStatus
	Pushes     []PushVerdict // in the order of Transaction.Pushes
	Acks       []AckVerdict  // in the order of Transaction.Acks
	StaleLease int           // of Transaction.Leases: a lease that is not held; -1 when no lease as such is at fault
}

var transactCall = hotStatement("transaction", `SELECT kind, segment, status, frame, at_offset, end_offset, created_at,
  ordinal, outcome, partition_id, queue_id, queue, before, committed, last_offset, act, signal, released, offsets, skipped
FROM queen.transact($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
  $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36)`, true)

// Columns and kinds of queen.transact; the columns of queen.ack_bundle begin at transactAck.
const (
	transactKind = iota
	transactSegment
	transactStatus
	transactFrame
	transactOffset
	transactLast
	transactCreated
	transactAck
)

const (
	kindSegment = iota
	kindAcks
	kindLease
	kindApplied
)

const (
	// transactRounds bounds how often a transaction is asked for: its acks may have to be resolved by hash, be looked for
	// behind the cursor, and have their dead letters read, each of which says so by refusing.
	transactRounds = 12
	// transactRepeats bounds repeats after a rollback that only others have caused.
	transactRepeats = 5
)

// Transact carries out t in one statement and one commit, or not at all. Acknowledgements obey the decision table of
// AckBundle, except that one that is not a success refuses everything; a completion that the cursor has passed already
// is a success. Dead letters are filed in the same commit.
//
// It waits for the partition rows and then for the cursors, within the session's lock_timeout. A rollback that the
// server made because of others is repeated here. An error means that nothing is known to have happened; its Outcome
// says none or unknown. ctx bounds waits for a connection, and the reads that a refusal asks for.
func (s *Store) Transact(ctx context.Context, t *Transaction) (TransactionVerdict, error) {
	order, err := byPartition(t.Pushes)
	if err != nil {
		return TransactionVerdict{}, err
	}
	x := &transact{
		store: s, in: t, order: order, bundle: newAckBundle(t.Acks), passed: make([][]bool, len(t.Acks)),
		leases: make([]uuid.UUID, len(t.Leases)), stale: -1,
	}
	for i := range t.Acks {
		x.passed[i] = make([]bool, len(t.Acks[i].Items))
	}
	for i, text := range t.Leases {
		lease, ok := parseLease(text)
		if !ok {
			return TransactionVerdict{Status: TransactionRejected, Acks: x.bundle.verdicts, StaleLease: i}, nil
		}
		x.leases[i] = lease
	}
	if x.refused() {
		return x.verdict(TransactionRejected), nil
	}
	if err := s.foresee(ctx, x.bundle); err != nil {
		return TransactionVerdict{}, untouched(err)
	}
	for range transactRounds {
		status, done, err := x.round(ctx)
		if err != nil {
			return TransactionVerdict{}, err
		}
		if done {
			return x.verdict(status), nil
		}
	}
	e := wire.Wrap(wire.BrokerOverloaded, errors.New("transaction: its messages moved in every round"))
	e.RetryAfter = time.Second
	return TransactionVerdict{}, e
}

// transact is a transaction on its way.
type transact struct {
	store  *Store
	in     *Transaction
	order  []int // of the segments, ascending by partition
	bundle *ackBundle
	leases []uuid.UUID
	passed [][]bool // items of each group that the cursor has passed
	pushes []PushVerdict
	stale  int     // index of a lease that is not held; -1
	life   pg.Life // of the session that is asked
}

func (x *transact) verdict(s TransactionStatus) TransactionVerdict {
	return TransactionVerdict{Status: s, Pushes: x.pushes, Acks: x.bundle.verdicts, StaleLease: x.stale}
}

// refused reports whether some item has failed for good.
func (x *transact) refused() bool {
	for i := range x.bundle.verdicts {
		for k := range x.bundle.verdicts[i].Items {
			if x.bundle.verdicts[i].Items[k].Error != "" {
				return true
			}
		}
	}
	return false
}

// round asks once. done is false when the answer was a question that has been looked into meanwhile.
func (x *transact) round(ctx context.Context) (status TransactionStatus, done bool, err error) {
	applied, err := x.ask(ctx)
	if err != nil {
		return 0, false, err
	}
	if applied {
		return TransactionCommitted, true, x.settle()
	}
	for i := range x.pushes {
		switch x.pushes[i].Status {
		case PushDuplicate:
			return TransactionDuplicate, true, nil
		case PushMissing, PushPlain:
			return TransactionMissing, true, nil
		}
	}
	if x.stale >= 0 || x.refused() {
		return TransactionRejected, true, nil
	}
	if err := x.lookBehind(ctx); err != nil {
		return 0, false, untouched(err)
	}
	if x.refused() {
		return TransactionRejected, true, nil
	}
	var wanting []*ackJob
	for i := range x.bundle.jobs {
		if j := &x.bundle.jobs[i]; j.wants {
			wanting = append(wanting, j)
		}
	}
	if err := x.store.readFrames(ctx, x.bundle, wanting); err != nil {
		return 0, false, untouched(err)
	}
	return 0, false, nil
}

// settle turns what was not found in a span into the answer for it: the cursor had passed it.
func (x *transact) settle() error {
	for _, m := range x.bundle.missed {
		if !x.passed[m.group][m.item] {
			// The routine refuses what it cannot find.
			e := wire.Wrap(wire.Internal, errors.New("transaction: committed with an unresolved acknowledgement"))
			e.Outcome = wire.OutcomeUnknown
			return e
		}
		x.bundle.verdicts[m.group].Items[m.item] = AckItemVerdict{Success: true, Noop: true}
	}
	return nil
}

// lookBehind sorts what the spans did not hold, without locks: a completion that the cursor has passed stays so, and
// everything else refuses the transaction.
func (x *transact) lookBehind(ctx context.Context) error {
	b := x.bundle
	for i := 0; i < len(b.missed); {
		first := b.missed[i]
		n := i
		for n < len(b.missed) && b.missed[n].group == first.group {
			n++
		}
		run := b.missed[i:n]
		i = n
		found, err := x.store.passed(ctx, b.verdicts[first.group].PartitionID, first.before, run, &b.groups[first.group])
		if err != nil {
			return err
		}
		for k, m := range run {
			v := &b.verdicts[m.group].Items[m.item]
			switch {
			case x.passed[m.group][m.item]:
			case !found[k]:
				v.Error = AckUnresolvable
			case b.groups[m.group].Items[m.item].Status == wire.AckCompleted:
				x.passed[m.group][m.item] = true
			default:
				v.Error = AckPassed
			}
		}
	}
	return nil
}

// ask runs the statement, again while others cause it to be rolled back.
func (x *transact) ask(ctx context.Context) (applied bool, err error) {
	width := int64(ackWidth)
	for i := range x.bundle.jobs {
		if x.bundle.jobs[i].alone {
			width = ackWidthAlone
		}
	}
	if width == ackWidthAlone {
		if err := x.store.enterWide(ctx); err != nil {
			return false, err
		}
		defer x.store.leaveWide()
	}
	// The session comes first: what ids and watermarks are worth depends on the life of the database it began in.
	conn, err := x.store.acquire(ctx, transactCall.op)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	c := newCall()
	defer c.release()
	x.life = pg.LifeOf(conn.Conn())
	x.reset()
	outdated := false
	for i := range x.in.Pushes {
		if known := x.in.Pushes[i].Known; known != 0 && known != x.life {
			x.pushes[i], outdated = PushVerdict{Status: PushMissing, Life: x.life}, true
		}
	}
	if outdated {
		return false, nil
	}
	x.write(c, width)
	for range transactRepeats {
		x.reset()
		err = runOn(ctx, conn.Conn(), transactCall, c, func(r [][]byte) { applied = x.absorb(r) || applied })
		if !pg.Retryable(err) {
			break
		}
		applied = false
	}
	switch pg.State(err) {
	case lockNotAvailable, queryCanceled:
		e := wire.Wrap(wire.DatabaseUnavailable, err)
		e.Detail, e.RetryAfter, e.Outcome = "the database could not carry this out within its own bounds", time.Second, wire.OutcomeNone
		return false, e
	}
	if err != nil {
		return false, err
	}
	return applied, nil
}

// queryCanceled is the SQLSTATE of a statement_timeout that ran out.
const queryCanceled = "57014"

// reset forgets what an earlier attempt said.
func (x *transact) reset() {
	b := x.bundle
	b.missed, x.stale = b.missed[:0], -1
	x.pushes = make([]PushVerdict, len(x.in.Pushes))
	for i := range b.verdicts {
		items := b.verdicts[i].Items
		clear(items)
		b.verdicts[i] = AckVerdict{Items: items}
	}
	for i := range b.jobs {
		b.jobs[i].done = false
	}
}

func (x *transact) write(c *call, width int64) {
	segs, order, n := x.in.Pushes, x.order, len(x.order)
	c.uuid(x.in.Tenant)
	c.bool(x.in.Fenced)
	c.uuids(len(x.leases), func(i int) uuid.UUID { return x.leases[i] })
	c.int8s(n, func(i int) int64 { return segs[order[i]].PartitionID })
	c.int4s(n, func(i int) int32 { return int32(segs[order[i]].Count) })
	c.int8s(n, func(i int) int64 { return segs[order[i]].RawBytes })
	c.int8s(n, func(i int) int64 { return segs[order[i]].Verified.in(x.life) })
	c.int8s(n, func(i int) int64 { return segs[order[i]].DedupWindow.Microseconds() })
	c.uuids(n, func(i int) uuid.UUID { return segs[order[i]].Tenant })
	c.byteas(n, func(i int) []byte { return segs[order[i]].Blob })
	c.byteas(n, func(i int) []byte { return segs[order[i]].Hashes })

	jobs := make([]*ackJob, len(x.bundle.jobs))
	var passed []bool // of the items in the order in which the bundle writes their hashes
	for i := range x.bundle.jobs {
		j := &x.bundle.jobs[i]
		jobs[i] = j
		if j.hashed {
			x.bundle.items(j, func(group, item int, _ *AckItem, _ int64) { passed = append(passed, x.passed[group][item]) })
		}
	}
	c.bools(len(passed), func(i int) bool { return passed[i] })
	x.bundle.write(c, jobs, width)
	c.bools(n, func(i int) bool { return segs[order[i]].Sealed })
}

// absorb takes one row. It reports whether the row says that the transaction was carried out.
func (x *transact) absorb(r [][]byte) (applied bool) {
	switch asInt4(r[transactKind]) {
	case kindSegment:
		v := &x.pushes[x.order[asInt4(r[transactSegment])-1]]
		v.Life = x.life
		switch v.Status = PushStatus(asInt2(r[transactStatus])); v.Status {
		case PushStored:
			v.Base, v.LastOffset, v.CreatedAt = asInt8(r[transactOffset]), asInt8(r[transactLast]), asTime(r[transactCreated])
		case PushDuplicate:
			v.LastOffset = asInt8(r[transactLast])
			v.Dups = append(v.Dups, Dup{Frame: int(asInt4(r[transactFrame])), Offset: asInt8(r[transactOffset]), CreatedAt: asTime(r[transactCreated])})
		}
	case kindAcks:
		acks := r[transactAck:]
		x.bundle.absorb(&x.bundle.jobs[asInt8(acks[ackOrdinal])-1], acks)
	case kindLease:
		if x.stale < 0 {
			x.stale = int(asInt8(r[transactAck+ackOrdinal])) - 1
		}
	case kindApplied:
		return true
	default:
		panic(fmt.Sprintf("transaction: a row of kind %d", asInt4(r[transactKind])))
	}
	return false
}
