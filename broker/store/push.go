package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

var pushBundle = hotStatement("push", `SELECT ordinal, status, frame, at_offset, last_offset, created_at
FROM queen.push_bundle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`, true)

// PushBundle stores many segments in one statement and one commit. Verdicts are in input order; each segment stands
// for itself, so one that is busy, missing, plaintext or holds a duplicate leaves the others stored.
//
// It never waits for a partition: a row that another session holds is PushBusy. The caller offers it again with the
// next bundle and, after a few skips, alone through PushBundleWait.
//
// A segment with any duplicate wrote nothing. Pushing the rest again with Verified at LastOffset makes the second probe
// read only what came in between.
//
// An error means that the outcome of the whole bundle is what its Outcome says: none, or unknown when the answer was
// lost. ctx bounds the wait for a connection; the statement itself is not cancelled. The segments are not kept.
func (s *Store) PushBundle(ctx context.Context, segs []Segment) ([]PushVerdict, error) {
	return s.push(ctx, segs, false)
}

// PushBundleWait is PushBundle for segments that keep finding their partition busy: it waits for the row locks, in
// ascending order of partition, up to the session's lock_timeout, and answers PushBusy for all when that runs out.
// While it waits it holds a connection and the rows it already has, so it is for a lone segment.
func (s *Store) PushBundleWait(ctx context.Context, segs []Segment) ([]PushVerdict, error) {
	return s.push(ctx, segs, true)
}

func (s *Store) push(ctx context.Context, segs []Segment, wait bool) ([]PushVerdict, error) {
	if len(segs) == 0 {
		return nil, nil
	}
	order, err := byPartition(segs)
	if err != nil {
		return nil, err
	}
	// The session comes first: what ids and watermarks are worth depends on the life of the database it began in.
	conn, err := s.acquire(ctx, pushBundle.op)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	life := pg.LifeOf(conn.Conn())
	verdicts := make([]PushVerdict, len(segs))
	order = slices.DeleteFunc(order, func(i int) bool {
		if segs[i].Known == 0 || segs[i].Known == life {
			return false
		}
		verdicts[i] = PushVerdict{Status: PushMissing, Life: life}
		return true
	})
	n := len(order)
	if n == 0 {
		return verdicts, nil
	}
	c := newCall()
	defer c.release()
	c.bool(wait)
	c.int8s(n, func(i int) int64 { return segs[order[i]].PartitionID })
	c.int4s(n, func(i int) int32 { return int32(segs[order[i]].Count) })
	c.int8s(n, func(i int) int64 { return segs[order[i]].RawBytes })
	c.int8s(n, func(i int) int64 { return segs[order[i]].Verified.in(life) })
	c.int8s(n, func(i int) int64 { return segs[order[i]].DedupWindow.Microseconds() })
	c.uuids(n, func(i int) uuid.UUID { return segs[order[i]].Tenant })
	c.byteas(n, func(i int) []byte { return segs[order[i]].Blob })
	c.byteas(n, func(i int) []byte { return segs[order[i]].Hashes })
	c.bools(n, func(i int) bool { return segs[order[i]].Sealed })

	answered := 0
	err = runOn(ctx, conn.Conn(), pushBundle, c, func(row [][]byte) {
		v := &verdicts[order[asInt4(row[0])-1]]
		v.Life = life
		v.Status = PushStatus(asInt2(row[1]))
		switch v.Status {
		case PushStored:
			v.Base, v.LastOffset, v.CreatedAt = asInt8(row[3]), asInt8(row[4]), asTime(row[5])
		case PushDuplicate:
			v.LastOffset = asInt8(row[4])
			v.Dups = append(v.Dups, Dup{Frame: int(asInt4(row[2])), Offset: asInt8(row[3]), CreatedAt: asTime(row[5])})
			if len(v.Dups) > 1 {
				return // the segment is counted
			}
		}
		answered++
	})
	if wait && pg.State(err) == lockNotAvailable {
		for i := range verdicts {
			verdicts[i] = PushVerdict{Status: PushBusy}
		}
		return verdicts, nil
	}
	if err != nil {
		s.strays.note(conn)
		return nil, err
	}
	if answered != n {
		// The routine answers every ordinal or raises.
		e := wire.Wrap(wire.Internal, fmt.Errorf("push: %d verdicts for %d segments", answered, n))
		e.Outcome = wire.OutcomeUnknown
		return nil, e
	}
	return verdicts, nil
}

// lockNotAvailable is the SQLSTATE of a lock_timeout that ran out.
const lockNotAvailable = "55P03"

// byPartition returns the indexes of segs in ascending order of partition, the order in which rows are locked and
// indexes are walked. It refuses what the routine could not answer segment by segment.
func byPartition(segs []Segment) ([]int, error) {
	order := make([]int, len(segs))
	for i := range segs {
		if sg := &segs[i]; sg.Count < 1 || len(sg.Hashes) != 16*sg.Count {
			return nil, wire.Wrap(wire.Internal, fmt.Errorf("push: segment %d has %d frames and %d hash bytes", i, sg.Count, len(sg.Hashes)))
		}
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Compare(segs[a].PartitionID, segs[b].PartitionID)
	})
	for i := 1; i < len(order); i++ {
		if segs[order[i]].PartitionID == segs[order[i-1]].PartitionID {
			return nil, wire.Wrap(wire.Internal, fmt.Errorf("push: partition %d occurs twice in a bundle", segs[order[i]].PartitionID))
		}
	}
	return order, nil
}
