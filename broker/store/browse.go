package store

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

// BrowseFilter chooses messages of a tenant. Empty names choose all; From and Before bound when they were stored.
type BrowseFilter struct {
	Queue, Partition, Namespace, Task string
	From, Before                      time.Time
}

// BrowseLane is a partition with messages in a time window, and who has read how far.
type BrowseLane struct {
	ID        int64
	UID       uuid.UUID
	Name      string
	Queue     Queue
	Low, High int64 // offsets within the window and the log, inclusive; Low > High: none
	LogStart  int64
	Cursors   []BrowseCursor
	Life      Life // in which ID is the partition's
}

// BrowseCursor is how far a group is on a partition.
type BrowseCursor struct {
	Group     string
	Committed int64
	BatchEnd  int64     // (Committed, BatchEnd] is leased while Expires is not zero
	Expires   time.Time // of a live lease
}

// laneColumns and laneCursors read a BrowseLane of aliases p and q. Index: log_consumers_pkey.
const (
	laneColumns = queueColumns + `, p.id, p.uid, p.name, p.log_start, p.last_offset, k.names, k.committed, k.ends, k.expires`
	laneCursors = `
CROSS JOIN LATERAL (
    SELECT array_agg(k.consumer_group ORDER BY k.consumer_group) AS names, array_agg(k.committed ORDER BY k.consumer_group) AS committed,
        array_agg(coalesce(k.batch_end, -1) ORDER BY k.consumer_group) AS ends,
        array_agg(CASE WHEN k.lease_expires_at > clock_timestamp() THEN k.lease_expires_at END ORDER BY k.consumer_group) AS expires
    FROM queen.log_consumers k WHERE k.partition_id = p.id
) k`
)

var (
	// The partitions written last come first: the newest messages are among them. Offsets of the window are found by
	// halving, so old ones cost no walk. Indexes: queues (tenant_id, name), log_partitions (queue_id, name).
	browseLanes = statement(`SELECT ` + laneColumns + `,
    CASE WHEN p.oldest_live_at < $6 THEN queen.offset_before(p.id, $6) + 1 ELSE p.log_start END,
    CASE WHEN p.last_created_at >= $7 THEN queen.offset_before(p.id, $7) ELSE p.last_offset END
FROM (
    SELECT p.* FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id
    WHERE q.tenant_id = $1 AND ($2::text IS NULL OR q.name = $2) AND ($3::text IS NULL OR p.name = $3)
      AND ($4::text IS NULL OR q.namespace = $4) AND ($5::text IS NULL OR q.task = $5)
      AND p.last_offset >= p.log_start AND p.last_created_at >= $6 AND p.oldest_live_at < $7
    ORDER BY p.last_created_at DESC, p.id DESC LIMIT $8
) p
JOIN queen.queues q ON q.id = p.queue_id AND q.tenant_id = $1` + laneCursors + `
ORDER BY p.last_created_at DESC, p.id DESC`)

	laneByUID = statement(`SELECT ` + laneColumns + `, p.log_start, p.last_offset
FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id` + laneCursors + `
WHERE p.uid = $2 AND q.tenant_id = $1`)

	// Heads of segments, newest first; no blob is touched. Index: log_segments_pkey.
	segmentHeads = statement(`SELECT w.n, g.base_offset, g.end_offset, g.created_at, g.raw_bytes
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS w (id, low, high, most, n)
CROSS JOIN LATERAL (
    SELECT g.base_offset, g.end_offset, g.created_at, g.raw_bytes FROM queen.log_segments g
    WHERE g.partition_id = w.id AND g.base_offset <= w.high
      AND g.base_offset >= coalesce((
          SELECT c.base_offset FROM queen.log_segments c
          WHERE c.partition_id = w.id AND c.base_offset <= w.low ORDER BY c.base_offset DESC LIMIT 1), w.low)
    ORDER BY g.base_offset DESC LIMIT w.most
) g
WHERE g.end_offset >= w.low ORDER BY w.n, g.base_offset DESC`)

	segmentBlobs = statement(`SELECT w.n, g.end_offset, g.created_at, g.blob
FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS w (id, base, n)
JOIN queen.log_segments g ON g.partition_id = w.id AND g.base_offset = w.base`)

	// Index: log_dlq_offset.
	deadOffsets = statement(`SELECT DISTINCT ON (w.n, d.offset_) w.n, d.offset_, d.error, d.retry_count
FROM unnest($2::bigint[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS w (id, low, high, n)
JOIN queen.log_dlq d ON d.partition_id = w.id AND d.offset_ BETWEEN w.low AND w.high AND d.tenant_id = $1
ORDER BY w.n, d.offset_, d.failed_at DESC`)

	// The first live message with a hash. A match across two hashes is as good as impossible, and looked at closely.
	// Index: log_txns_pkey from the row that covers the start of the log.
	messageByHash = statement(`SELECT f.at, g.base_offset, g.end_offset, g.created_at, g.blob
FROM (
    SELECT t.base_offset + CASE WHEN h.pos % 16 = 1 THEN (h.pos - 1) / 16 ELSE (
        SELECT min(i) FROM generate_series(0, octet_length(h.hashes) / 16 - 1) AS i
        WHERE substring(h.hashes FROM 16 * i + 1 FOR 16) = $3) END AS at
    FROM queen.log_txns t
    CROSS JOIN LATERAL (SELECT t.hashes, position($3::bytea in t.hashes) AS pos OFFSET 0) h
    WHERE t.partition_id = $1 AND h.pos > 0 AND t.end_offset >= $2 AND t.base_offset >= coalesce((
        SELECT c.base_offset FROM queen.log_txns c
        WHERE c.partition_id = $1 AND c.base_offset <= $2 ORDER BY c.base_offset DESC LIMIT 1), 0)
    ORDER BY t.base_offset LIMIT 1
) f
CROSS JOIN LATERAL (
    SELECT g.base_offset, g.end_offset, g.created_at, g.blob FROM queen.log_segments g
    WHERE g.partition_id = $1 AND g.base_offset <= f.at ORDER BY g.base_offset DESC LIMIT 1
) g
WHERE g.end_offset >= f.at`)
)

func scanLane(row pgx.Row) (*BrowseLane, error) {
	l := new(BrowseLane)
	var last int64
	var groups []string
	var committed, ends []int64
	var expires []*time.Time
	if err := row.Scan(append(l.Queue.fields(), &l.ID, &l.UID, &l.Name, &l.LogStart, &last, &groups, &committed, &ends, &expires,
		&l.Low, &l.High)...); err != nil {
		return nil, err
	}
	l.Low, l.High = max(l.Low, l.LogStart), min(l.High, last)
	for i, g := range groups {
		c := BrowseCursor{Group: g, Committed: committed[i], BatchEnd: ends[i]}
		if expires[i] != nil {
			c.Expires = *expires[i]
		}
		l.Cursors = append(l.Cursors, c)
	}
	return l, nil
}

// BrowseLanes returns the partitions that have messages in the window, the one written last first, at most so many.
// One read, no lock; its cost follows the partitions that the names choose.
func (s *Store) BrowseLanes(ctx context.Context, tenant uuid.UUID, f BrowseFilter, most int) ([]*BrowseLane, error) {
	var all []*BrowseLane
	life, err := s.queryIn(ctx, 0, "browse partitions", browseLanes, []any{
		tenant, optional(f.Queue), optional(f.Partition), optional(f.Namespace), optional(f.Task), f.From, f.Before, most,
	}, func(rows pgx.Rows) error {
		l, err := scanLane(rows)
		all = append(all, l)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		l.Life = life
	}
	return all, nil
}

// Lane returns a partition of the tenant with its cursors, nil when there is none.
func (s *Store) Lane(ctx context.Context, tenant, uid uuid.UUID) (*BrowseLane, error) {
	var l *BrowseLane
	life, err := s.queryIn(ctx, 0, "read partition", laneByUID, []any{tenant, uid}, func(rows pgx.Rows) (err error) {
		l, err = scanLane(rows)
		return err
	})
	if l != nil {
		l.Life = life
	}
	return l, err
}

// OffsetRange asks for at most Most segments of a partition with offsets in [Low, High], the newest first.
type OffsetRange struct {
	Partition, Low, High int64
	Most                 int64
}

// SegmentHead is where a segment lies, without its messages.
type SegmentHead struct {
	Base, End int64
	CreatedAt time.Time
	RawBytes  int64
}

// SegmentHeads returns, for each range, the heads of its segments, the newest first. One read, no lock.
func (s *Store) SegmentHeads(ctx context.Context, ranges []OffsetRange) ([][]SegmentHead, error) {
	ids, lows, highs := splitRanges(ranges)
	most := make([]int64, len(ranges))
	for i := range ranges {
		most[i] = ranges[i].Most
	}
	out := make([][]SegmentHead, len(ranges))
	err := s.query(ctx, "browse segments", segmentHeads, []any{ids, lows, highs, most}, func(rows pgx.Rows) error {
		var n int64
		var h SegmentHead
		err := rows.Scan(&n, &h.Base, &h.End, &h.CreatedAt, &h.RawBytes)
		if err == nil {
			out[n-1] = append(out[n-1], h)
		}
		return err
	})
	return out, err
}

func splitRanges(ranges []OffsetRange) (ids, lows, highs []int64) {
	for i := range ranges {
		ids, lows, highs = append(ids, ranges[i].Partition), append(lows, ranges[i].Low), append(highs, ranges[i].High)
	}
	return ids, lows, highs
}

// SegmentAddress names a segment by its partition and its first offset.
type SegmentAddress struct{ Partition, Base int64 }

// Segments returns the segments at the addresses, in their order; one that retention has removed has no blob.
func (s *Store) Segments(ctx context.Context, known Life, at []SegmentAddress) ([]StoredSegment, error) {
	ids, bases := make([]int64, len(at)), make([]int64, len(at))
	out := make([]StoredSegment, len(at))
	for i, a := range at {
		ids[i], bases[i] = a.Partition, a.Base
		out[i].Base = a.Base
	}
	life, err := s.queryIn(ctx, known, "read segments", segmentBlobs, []any{ids, bases}, func(rows pgx.Rows) error {
		var n int64
		var g StoredSegment
		err := rows.Scan(&n, &g.End, &g.CreatedAt, &g.Blob)
		if err == nil {
			g.Base = out[n-1].Base
			out[n-1] = g
		}
		return err
	})
	for i := range out {
		out[i].Life = life
	}
	return out, err
}

// DeadOffset is an offset that some group has given up on, with what its newest letter says.
type DeadOffset struct {
	Offset     int64
	Error      string
	RetryCount int
}

// DeadOffsets returns, for each range, the offsets with a dead letter. One read, no lock.
func (s *Store) DeadOffsets(ctx context.Context, tenant uuid.UUID, ranges []OffsetRange) ([][]DeadOffset, error) {
	ids, lows, highs := splitRanges(ranges)
	out := make([][]DeadOffset, len(ranges))
	err := s.query(ctx, "browse dead letters", deadOffsets, []any{tenant, ids, lows, highs}, func(rows pgx.Rows) error {
		var n int64
		var d DeadOffset
		err := rows.Scan(&n, &d.Offset, &d.Error, &d.RetryCount)
		if err == nil {
			out[n-1] = append(out[n-1], d)
		}
		return err
	})
	return out, err
}

// StoredMessage is a message in the log.
type StoredMessage struct {
	PartitionID  int64
	PartitionUID uuid.UUID
	Offset       int64
	Base         int64 // of its segment
	CreatedAt    time.Time
	Frame        segment.Frame
}

// Message returns the first message of the lane in the log that has the transaction id, nil when there is none. It
// looks at the sidecar, which may forget earlier than retention does.
func (s *Store) Message(ctx context.Context, l *BrowseLane, transactionID string) (*StoredMessage, error) {
	hash := segment.HashID(transactionID)
	var m *StoredMessage
	_, err := s.queryIn(ctx, l.Life, "find message", messageByHash, []any{l.ID, l.LogStart, hash[:]}, func(rows pgx.Rows) error {
		found := StoredMessage{PartitionID: l.ID, PartitionUID: l.UID}
		var end int64
		var blob []byte
		if err := rows.Scan(&found.Offset, &found.Base, &end, &found.CreatedAt, &blob); err != nil {
			return err
		}
		r, err := segment.Open(bytes.Clone(blob))
		if err == nil && int64(r.Len()) != end-found.Base+1 {
			err = segment.ErrCorrupt
		}
		if err != nil {
			return pg.Error("find message", wire.Wrap(wire.Internal, fmt.Errorf("segment %d of partition %d: %w", found.Base, l.ID, err)))
		}
		found.Frame = r.Frame(int(found.Offset - found.Base))
		if found.Frame.TransactionID == transactionID {
			m = &found
		}
		return nil
	})
	return m, err
}
