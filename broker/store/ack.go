package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/queengate/queengate/wire"
)

// Error texts of an acknowledgement, as clients read them. A malformed, an unknown and a foreign partition id all get
// NotOwned, so that nobody can learn which ids exist.
const (
	AckNotOwned     = "partition not owned by tenant"
	AckNoConsumer   = "consumer not found"
	AckStaleLease   = "invalid or expired lease (invalid_lease)"
	AckPassed       = "already committed: the cursor moved past this message before this ack"
	AckUnresolvable = "unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers"
	AckUndecided    = "ack flush failed; lease will expire and redeliver"
)

const (
	// ackRounds bounds how often a group is asked about: it may have to be resolved by hash, then run alone, then have
	// its dead letter read, and the last again when another ack moves the decision to another message.
	ackRounds = 8
	// ackWidth is how many hashes a group may make a shared bundle read: some ten milliseconds of work.
	ackWidth      = 1 << 16
	ackWidthAlone = math.MaxInt64 / 2
	// ackLookBehind bounds what the groups of a shared bundle wait for each other's late items; a lone group may take
	// as long as a statement may.
	ackLookBehind = 250 * time.Millisecond
)

var ackCall = hotStatement("ack", `SELECT ordinal, outcome, partition_id, queue_id, queue, before, committed, last_offset,
  act, signal, released, offsets, skipped
FROM queen.ack_bundle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)`, true)

// Columns, outcomes and acts of queen.ack_bundle.
const (
	ackOrdinal = iota
	ackOutcome
	ackPartition
	ackQueueID
	ackQueue
	ackBefore
	ackCommitted
	ackLast
	ackAct
	ackSignal
	ackReleased
	ackOffsets
	ackSkipped
)

const (
	outcomeDecided = iota
	outcomeNotOwned
	outcomeNoConsumer
	outcomeStaleLease
	outcomeResolve
	outcomeWide
	outcomeFrame
)

const actFiled = 3

// AckBundle decides many groups in one statement and one commit, verdicts in input order. The decision table is in
// docs/design/ack.md. Dead letters are filed in the statement that moves the cursor past them.
//
// Groups of one (partition, consumer group) that only complete under one lease are decided as one; any other that
// meets its like is decided after it, in a commit of its own. Three cases cost another round trip, for their groups
// only: offsets that the lease named does not cover are resolved by hash; a dead letter's payload is read and offered
// with a second call, which decides afresh; a group that must search far more of the sidecar than its batch runs alone.
//
// A nil error means that every verdict stands. A group that failed after others of its bundle were committed has
// AckUndecided in its items, and if it may have been decided all the same, says so in Err. An error is about the whole
// bundle, and its Outcome says none or unknown; repeating an ack is harmless. ctx bounds waits for a connection only. It may wait for row locks of other acks of the same groups.
func (s *Store) AckBundle(ctx context.Context, groups []AckGroup) ([]AckVerdict, error) {
	b := newAckBundle(groups)
	if err := s.foresee(ctx, b); err != nil {
		return nil, untouched(err)
	}
	if err := s.ackCompleted(ctx, b); err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		round, alone := b.next()
		if len(round) == 0 {
			break
		}
		known := len(b.missed)
		err := s.ackRound(ctx, b, round, alone)
		switch {
		case err != nil && first:
			return nil, err
		case err != nil: // what earlier rounds committed stands, what this one said may not
			b.missed = b.missed[:known]
			b.failAll(round, AckUndecided)
			b.blame(round, err)
		default:
			if wanting := b.wanting(round); s.readFrames(ctx, b, wanting) != nil {
				b.failAll(wanting, AckUndecided)
			}
		}
	}
	s.lookBehind(ctx, b)
	return b.verdicts, nil
}

// untouched is err about a call that has asked for nothing that writes.
func untouched(err error) error {
	if we, ok := errors.AsType[*wire.Error](err); ok {
		we.Outcome = wire.OutcomeNone
	}
	return err
}

// foresee reads the messages that are sure to be asked for: explicit dead letters whose offset is known. A failed
// message usually has retries left, so its payload is read only when the decision asks for it.
func (s *Store) foresee(ctx context.Context, b *ackBundle) error {
	var jobs []*ackJob
	for i := range b.jobs {
		if j := &b.jobs[i]; !j.hashed && j.sig >= 0 && j.kind == wire.AckDLQ {
			jobs = append(jobs, j)
		}
	}
	return s.readFrames(ctx, b, jobs)
}

// readFrames reads the message at each job's signal, words its reason and lays it ready for the next round.
func (s *Store) readFrames(ctx context.Context, b *ackBundle, jobs []*ackJob) error {
	if len(jobs) == 0 {
		return nil
	}
	at := make([]frameAddress, len(jobs))
	for i, j := range jobs {
		g := &b.groups[j.members[0]]
		at[i] = frameAddress{g.Tenant, g.Partition, j.sig}
	}
	frames, err := s.frames(ctx, at)
	if err != nil {
		return err
	}
	for i, j := range jobs {
		j.frame, j.wants = frames[i], false
		b.wordReason(j)
	}
	return nil
}

// ackRound decides jobs in one statement. Those that need more come back undecided and say what they need.
func (s *Store) ackRound(ctx context.Context, b *ackBundle, jobs []*ackJob, alone bool) error {
	width := int64(ackWidth)
	if alone {
		width = ackWidthAlone
		if err := s.enterWide(ctx); err != nil {
			return err
		}
		defer s.leaveWide()
	}
	c := newCall()
	defer c.release()
	b.write(c, jobs, width)
	answered := 0
	err := s.run(ctx, ackCall, c, func(r [][]byte) {
		answered++
		b.absorb(jobs[asInt8(r[ackOrdinal])-1], r)
	})
	if err == nil && answered != len(jobs) {
		// The routine answers every ordinal or raises.
		e := wire.Wrap(wire.Internal, fmt.Errorf("ack: %d verdicts for %d groups", answered, len(jobs)))
		e.Outcome = wire.OutcomeUnknown
		return e
	}
	return err
}

// enterWide waits for a slot for a search of the sidecar that is far wider than a batch.
func (s *Store) enterWide(ctx context.Context) error {
	select {
	case s.wide <- struct{}{}:
		return nil
	case <-ctx.Done():
		return wire.Wrap(wire.BrokerOverloaded, ctx.Err())
	}
}

func (s *Store) leaveWide() { <-s.wide }

var passedCall = hotStatement("passed", `SELECT queen.passed_hash($1, $2, $3)`, false)

// lookBehind answers the items whose message the span did not hold: a completion that the cursor had passed already
// is done, a signal came too late, and a hash that is nowhere is unresolvable. Nothing depends on it but these
// answers, so it runs after the commit and without locks. Where it fails or runs out of time the answer is
// unresolvable, and the message redelivers if it was still out.
func (s *Store) lookBehind(ctx context.Context, b *ackBundle) {
	if len(b.groups) > 1 && len(b.missed) > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ackLookBehind)
		defer cancel()
	}
	for len(b.missed) > 0 {
		first := b.missed[0]
		n := slices.IndexFunc(b.missed, func(m missed) bool { return m.group != first.group })
		if n < 0 {
			n = len(b.missed)
		}
		run := b.missed[:n]
		b.missed = b.missed[n:]
		g := &b.groups[first.group]
		passed, err := s.passed(ctx, b.verdicts[first.group].PartitionID, first.before, run, g)
		for i, m := range run {
			it, v := &g.Items[m.item], &b.verdicts[m.group].Items[m.item]
			switch {
			case err != nil || !passed[i]:
				v.Error = AckUnresolvable
			case it.Status == wire.AckCompleted:
				v.Success, v.Noop = true, true
			default:
				v.Error = AckPassed
			}
		}
	}
}

// passed reports for each item of run whether its message lies at or below upto.
func (s *Store) passed(ctx context.Context, partition, upto int64, run []missed, g *AckGroup) ([]bool, error) {
	if err := s.enterWide(ctx); err != nil {
		return nil, err
	}
	defer s.leaveWide()
	found := make([]bool, len(run))
	c := newCall()
	defer c.release()
	c.int8(partition)
	c.int8(upto)
	c.byteas(len(run), func(i int) []byte { return g.Items[run[i].item].Hash[:] })
	err := s.run(ctx, passedCall, c, func(r [][]byte) { found[asInt8(r[0])-1] = true })
	return found, err
}
