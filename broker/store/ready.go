package store

import (
	"bytes"
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The common claim and the common acknowledgement have short routines of their own (routines/ready.sql). What those
// leave undecided goes on to the general ones, so that only one place says what is wrong with a call.

var claimReadyCall = hotStatement("claim ready", `SELECT candidate, uid, name, after, through, attempt, until, last_offset,
  base_offset, end_offset, created_at, blob
FROM queen.claim_ready($1, $2, $3, $4, $5, $6, $7, $8)`, true)

// Columns of queen.claim_ready.
const (
	readyCandidate = iota
	readyUID
	readyName
	readyAfter
	readyThrough
	readyAttempt
	readyUntil
	readyLast
	readyBase
	readyEnd
	readyCreated
	readyBlob
)

// claimReady takes, for the pops that want one partition of a queue that defers nothing, the first candidate. Pops that
// got nothing stay as they were.
func (s *Store) claimReady(ctx context.Context, conn *pgx.Conn, b *claimBundle) error {
	pops := make([]int, 0, len(b.claims))
	for i := range b.claims {
		p := &b.claims[i]
		if len(p.Candidates) == 0 || !b.open[i][0] || p.AutoAck || p.Conflate || p.MaxPartitions != 1 {
			continue
		}
		if g := p.gate(0); g.Delay > 0 || g.Window > 0 {
			continue
		}
		key := claimKey{p.Candidates[0], p.Group}
		if _, twice := b.keys[key]; twice {
			continue
		}
		b.keys[key] = slot{i, 0}
		pops = append(pops, i)
	}
	clear(b.keys)
	if len(pops) == 0 {
		return nil
	}
	c := newCall()
	defer c.release()
	n, pop := len(pops), func(i int) *Claim { return &b.claims[pops[i]] }
	c.texts(n, func(i int) string { return pop(i).Group })
	c.uuids(n, func(i int) uuid.UUID { return pop(i).Worker })
	c.int8s(n, func(i int) int64 { return pop(i).gate(0).Lease.Milliseconds() })
	c.int8s(n, func(i int) int64 { return int64(max(pop(i).Budget, 1)) })
	c.int8s(n, func(i int) int64 { return pop(i).bytes() })
	c.int8s(n, func(i int) int64 { return pop(i).Candidates[0] })
	c.bool(s.leaseAsync)
	c.int8s(n, func(i int) int64 { return pop(i).gate(0).Of.Queue })
	return runOn(ctx, conn, claimReadyCall, c, func(r [][]byte) {
		i := pops[asInt8(r[readyCandidate])-1]
		out := &b.results[i][0]
		if out.Status != ClaimTook {
			b.took[i], b.open[i][0] = true, false
			*out = Claimed{
				PartitionID: out.PartitionID, Status: ClaimTook, UID: uuid.UUID(r[readyUID]), Name: string(r[readyName]),
				After: asInt8(r[readyAfter]), Through: asInt8(r[readyThrough]), LastOffset: asInt8(r[readyLast]),
				Attempt: int(asInt4(r[readyAttempt])), Expires: asTime(r[readyUntil]),
			}
		}
		out.Segments = append(out.Segments, StoredSegment{
			Base: asInt8(r[readyBase]), End: asInt8(r[readyEnd]), CreatedAt: asTime(r[readyCreated]), Blob: bytes.Clone(r[readyBlob]), Life: b.life,
		})
	})
}

var ackCompletedCall = hotStatement("ack completed", `SELECT ordinal, outcome, partition_id, queue_id, queue, before, committed,
  last_offset, act, signal, released, offsets, skipped
FROM queen.ack_completed($1, $2, $3, $4, $5, $6)`, true)

// ackCompleted decides the jobs that only complete, under a lease they name, at offsets they know. The others, and
// those whose lease is not what they think, stay as they were.
func (s *Store) ackCompleted(ctx context.Context, b *ackBundle) error {
	jobs := make([]*ackJob, 0, len(b.jobs))
	for i := range b.jobs {
		j := &b.jobs[i]
		g := &b.groups[j.members[0]]
		key := ackKey{g.Partition, g.Group}
		if _, earlier := b.used[key]; earlier {
			continue // decided after the one before it
		}
		b.used[key] = struct{}{}
		if !j.hashed && j.readable && j.sig < 0 && j.top >= 0 {
			jobs = append(jobs, j)
		}
	}
	clear(b.used)
	if len(jobs) == 0 {
		return nil
	}
	c := newCall()
	defer c.release()
	n, group := len(jobs), func(i int) *AckGroup { return &b.groups[jobs[i].members[0]] }
	c.uuids(n, func(i int) uuid.UUID { return group(i).Tenant })
	c.uuids(n, func(i int) uuid.UUID { return group(i).Partition })
	c.texts(n, func(i int) string { return group(i).Group })
	c.uuids(n, func(i int) uuid.UUID { return jobs[i].lease })
	c.int8s(n, func(i int) int64 { return jobs[i].low })
	c.int8s(n, func(i int) int64 { return jobs[i].top })
	return s.run(ctx, ackCompletedCall, c, func(r [][]byte) { b.absorb(jobs[asInt8(r[ackOrdinal])-1], r) })
}
