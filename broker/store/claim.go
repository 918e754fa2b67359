package store

import (
	"bytes"
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
)

var claimBundleCall = hotStatement("claim", `SELECT candidate, state, uid, name, after, through, attempt, until, visible_at,
  last_offset, base_offset, end_offset, created_at, blob, skipped
FROM queen.claim_bundle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`, true)

// Columns and states of queen.claim_bundle.
const (
	claimCandidate = iota
	claimState
	claimUID
	claimName
	claimAfter
	claimThrough
	claimAttempt
	claimUntil
	claimVisible
	claimLast
	claimBase
	claimEnd
	claimCreated
	claimBlob
	claimSkipped
)

const (
	stateTook = iota
	stateEmpty
	stateLeased
	stateSkipped
	stateMissing
	stateUnseeded
	stateChosen // chosen by the snapshot; without rows of stateTook the lock was lost
)

// claimRounds bounds how often one call asks again for a pop that got nothing: a first contact costs a second round,
// and a row that moved under the claim another.
const claimRounds = 4

// ClaimBundle claims for many pops in one statement and one commit. Result i answers claims[i], one Claimed per
// candidate in order. Missing cursors are seeded by the group's registration in a short statement of their own; a named
// group without one, since it was deleted, is told to register.
//
// A pop takes its candidates in order until its budget, of messages or bytes, or its cap on partitions is spent; each
// batch is contiguous from the group's cursor, a gap that retention left is stepped over. A partition that another pop of the bundle
// took is leased for the later one. A pop that took nothing while it could have (a cursor was missing, a row moved) is
// asked again, at most three times, each in a commit of its own.
//
// Under a lease nothing but the lease changes: expiry redelivers from the cursor and charges nothing. Under AutoAck
// the cursor moves in the same commit, except on partitions that may hold encrypted messages: the caller gets a lease
// there, to be acknowledged once they are opened. Times are the database's. Never waits for a lock or for messages. The blobs
// are the caller's. An error after the first round may leave leases behind; they expire.
//
// A candidate whose Origin was looked up in another life of the database than it is in now is ClaimStale.
func (s *Store) ClaimBundle(ctx context.Context, claims []Claim) ([][]Claimed, error) {
	// One session for all rounds, and before the first: what the ids are worth depends on the life of the database.
	conn, err := s.acquire(ctx, claimBundleCall.op)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	b := newClaimBundle(claims, pg.LifeOf(conn.Conn()))
	if err := s.claimReady(ctx, conn.Conn(), b); err != nil {
		return nil, err
	}
	for range claimRounds {
		if !b.next() {
			break
		}
		if err := s.claimRound(ctx, conn.Conn(), b); err != nil {
			return nil, err
		}
		if len(b.unseededPartitions) > 0 {
			if err := seedOn(ctx, conn.Conn(), b.unseededPartitions, b.unseededGroups); err != nil {
				return nil, err
			}
		}
	}
	b.finish()
	return b.results, nil
}

func (s *Store) claimRound(ctx context.Context, conn *pgx.Conn, b *claimBundle) error {
	c := newCall()
	defer c.release()
	b.write(c, s.leaseAsync)
	if err := runOn(ctx, conn, claimBundleCall, c, b.absorb); err != nil {
		return err
	}
	b.settle()
	return nil
}

type claimKey struct {
	partition int64
	group     string
}

// slot is a candidate of the bundle: where its verdict goes.
type slot struct{ claim, candidate int }

// claimBundle is the state of one ClaimBundle call over its rounds.
type claimBundle struct {
	claims  []Claim
	results [][]Claimed
	open    [][]bool // by claim and candidate: no final verdict yet
	took    []bool   // by claim: something is taken, so it is not asked again
	life    pg.Life  // of the session that is asked

	// The round: the pops that ask, and their candidates, each with the 1-based number of its pop.
	pops  []int
	slots []slot
	wish  []int32

	shadows            []shadow
	keys               map[claimKey]slot
	unseededPartitions []int64
	unseededGroups     []string
}

// shadow is a candidate left out of a round because an earlier pop of the bundle wants the same cursor.
type shadow struct{ of, by slot }

func newClaimBundle(claims []Claim, life pg.Life) *claimBundle {
	total := 0
	for i := range claims {
		total += len(claims[i].Candidates)
	}
	b := &claimBundle{
		claims: claims, results: make([][]Claimed, len(claims)), open: make([][]bool, len(claims)), took: make([]bool, len(claims)),
		keys: make(map[claimKey]slot, total), life: life,
	}
	all, open := make([]Claimed, total), make([]bool, total)
	for i := range claims {
		n := len(claims[i].Candidates)
		b.results[i], all = all[:n:n], all[n:]
		b.open[i], open = open[:n:n], open[n:]
		for j, id := range claims[i].Candidates {
			b.results[i][j] = Claimed{PartitionID: id, Status: ClaimSkipped}
			b.open[i][j] = true
			switch of := claims[i].gate(j).Of; {
			case of.Queue < 0:
				b.results[i][j].Status, b.open[i][j] = ClaimMissing, false
			case of != (Origin{}) && of.Life != life:
				b.results[i][j].Status, b.open[i][j] = ClaimStale, false
			}
		}
	}
	return b
}

// next chooses what the round asks for and reports whether there is anything.
func (b *claimBundle) next() bool {
	b.pops, b.slots, b.wish, b.shadows = b.pops[:0], b.slots[:0], b.wish[:0], b.shadows[:0]
	b.unseededPartitions, b.unseededGroups = nil, nil
	clear(b.keys)
	for i := range b.claims {
		if b.took[i] {
			continue
		}
		before := len(b.slots)
		for j, id := range b.claims[i].Candidates {
			if !b.open[i][j] {
				continue
			}
			at, key := slot{i, j}, claimKey{id, b.claims[i].Group}
			if by, taken := b.keys[key]; taken {
				b.shadows = append(b.shadows, shadow{of: at, by: by})
				continue
			}
			b.keys[key] = at
			b.slots = append(b.slots, at)
			b.wish = append(b.wish, int32(len(b.pops)+1))
		}
		if len(b.slots) > before {
			b.pops = append(b.pops, i)
		}
	}
	return len(b.slots) > 0
}

// finish gives candidates that were not asked for again their verdict.
func (b *claimBundle) finish() {
	for i := range b.results {
		for j := range b.results[i] {
			if out := &b.results[i][j]; b.open[i][j] && out.Status == ClaimUnregistered {
				out.Status = ClaimSkipped
			}
		}
	}
}

// write puts the round into c. A bundle that moves no cursor may commit without waiting for the disk.
func (b *claimBundle) write(c *call, leaseAsync bool) {
	n, pop := len(b.pops), func(i int) *Claim { return &b.claims[b.pops[i]] }
	c.texts(n, func(i int) string { return pop(i).Group })
	c.uuids(n, func(i int) uuid.UUID { return pop(i).Worker })
	c.int8s(n, func(i int) int64 { return int64(max(pop(i).Budget, 1)) })
	c.int8s(n, func(i int) int64 { return pop(i).bytes() })
	c.int8s(n, func(i int) int64 { return int64(pop(i).MaxPartitions) })
	c.bools(n, func(i int) bool { return pop(i).AutoAck })
	c.bools(n, func(i int) bool { return pop(i).Conflate })
	m, gate := len(b.slots), func(i int) Gate { return b.claims[b.slots[i].claim].gate(b.slots[i].candidate) }
	c.int4s(m, func(i int) int32 { return b.wish[i] })
	c.int8s(m, func(i int) int64 { return b.claims[b.slots[i].claim].Candidates[b.slots[i].candidate] })
	c.int8s(m, func(i int) int64 { return gate(i).Lease.Milliseconds() })
	c.int8s(m, func(i int) int64 { return gate(i).Delay.Milliseconds() })
	c.int8s(m, func(i int) int64 { return gate(i).Window.Milliseconds() })
	c.int8s(m, func(i int) int64 { return int64(b.claims[b.slots[i].claim].WindowFull) })
	c.bool(leaseAsync && !slices.ContainsFunc(b.pops, func(i int) bool { return b.claims[i].AutoAck }))
	c.int8s(m, func(i int) int64 { return gate(i).Of.Queue })
}

// absorb takes one row of a round.
func (b *claimBundle) absorb(r [][]byte) {
	at := b.slots[asInt8(r[claimCandidate])-1]
	out, open := &b.results[at.claim][at.candidate], &b.open[at.claim][at.candidate]
	switch state := asInt4(r[claimState]); state {
	case stateTook:
		if out.Status != ClaimTook {
			b.took[at.claim], *open = true, false
			*out = Claimed{
				PartitionID: out.PartitionID, Status: ClaimTook, UID: uuid.UUID(r[claimUID]), Name: string(r[claimName]),
				After: asInt8(r[claimAfter]), Through: asInt8(r[claimThrough]), LastOffset: asInt8(r[claimLast]),
				Attempt: int(asInt4(r[claimAttempt])), Expires: asTimeOrZero(r[claimUntil]), Skipped: asInt8(r[claimSkipped]),
			}
		}
		out.Segments = append(out.Segments, StoredSegment{
			Base: asInt8(r[claimBase]), End: asInt8(r[claimEnd]), CreatedAt: asTime(r[claimCreated]), Blob: bytes.Clone(r[claimBlob]), Life: b.life,
		})
	case stateEmpty:
		*open, out.Status = false, ClaimEmpty
		out.LastOffset, out.VisibleAt, out.UID = asInt8(r[claimLast]), asTimeOrZero(r[claimVisible]), uuid.UUID(r[claimUID])
		out.After = asInt8(r[claimAfter])
	case stateLeased:
		*open, out.Status = false, ClaimLeased
		out.Until, out.UID = asTime(r[claimUntil]), uuid.UUID(r[claimUID])
	case stateMissing:
		*open, out.Status = false, ClaimMissing
	case stateSkipped:
		out.Status = ClaimSkipped
	case stateUnseeded:
		if out.Status == ClaimUnregistered {
			*open = false // asked again after the seeding, and still without a cursor
			return
		}
		out.Status = ClaimUnregistered
		b.unseededPartitions = append(b.unseededPartitions, out.PartitionID)
		b.unseededGroups = append(b.unseededGroups, b.claims[at.claim].Group)
	case stateChosen:
		if out.Status != ClaimTook {
			out.Status, out.Until, out.UID = ClaimLeased, asTime(r[claimUntil]), uuid.UUID(r[claimUID])
		}
	}
}

// settle gives the shadows of a round their verdict where the earlier pop's says it; the others stay open.
func (b *claimBundle) settle() {
	for _, sh := range b.shadows {
		first := &b.results[sh.by.claim][sh.by.candidate]
		out, open := &b.results[sh.of.claim][sh.of.candidate], &b.open[sh.of.claim][sh.of.candidate]
		switch {
		case first.Status == ClaimTook && !first.Expires.IsZero():
			*out = Claimed{PartitionID: out.PartitionID, Status: ClaimLeased, UID: first.UID, Until: first.Expires}
			*open = false
		case first.Status == ClaimTook || b.open[sh.by.claim][sh.by.candidate]:
			// Committed and free again, or undecided: the next round asks, unless this pop took something else.
		default:
			*out, *open = *first, false
		}
	}
}
