package store

import (
	"bytes"
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

var (
	sqlFetchRanges = statement(`SELECT entry, known, partition_id, log_start, last_offset, base_offset, end_offset, created_at, share
FROM queen.fetch_ranges($1, $2, $3, $4, $5, $6, $7)`)
	sqlSafeTime = statement(`SELECT at, degraded, clock_timestamp() FROM queen.safe_time()`)
	sqlChanged  = statement(`SELECT name, last_offset, log_start, last_write_at FROM queen.changed_partitions($1, $2, $3, $4, $5)`)
)

// blobsCall reads the bytes of segments by their keys. Index: log_segments_pkey.
var blobsCall = hotStatement("segments", `SELECT i.n, g.base_offset, g.end_offset, g.created_at, g.blob
FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS i(partition_id, base, n)
JOIN queen.log_segments g ON g.partition_id = i.partition_id AND g.base_offset = i.base`, false)

// Range is what a reader gets of one entry, before the bytes of its segments are read.
type Range struct {
	Found       bool  // the queue exists
	PartitionID int64 // 0 when the partition does not exist: its log is empty
	Life        Life  // in which PartitionID is the partition's
	LogStart    int64
	LastOffset  int64
	Segments    []StoredSegment // without their bytes; from the offset asked for, empty when it is not in the log
	Bytes       int64           // of payload in them, from that offset on
}

// FetchRanges finds, for each entry, the segments from its offset on, up to the one in which its bytes or records
// messages are complete; once total bytes are reached, later entries get none.
func (s *Store) FetchRanges(ctx context.Context, tenant uuid.UUID, entries []wire.FetchEntry, records, total int64) ([]Range, error) {
	n := len(entries)
	queues, partitions := make([]string, n), make([]string, n)
	offsets, sizes := make([]int64, n), make([]int64, n)
	for i := range entries {
		e := &entries[i]
		queues[i], partitions[i], offsets[i], sizes[i] = e.Queue, e.Partition, e.Offset, e.MaxBytes
	}
	out := make([]Range, n)
	life, err := s.queryIn(ctx, 0, "fetch", sqlFetchRanges, []any{tenant, queues, partitions, offsets, sizes, records, total}, func(rows pgx.Rows) error {
		var entry int
		var r Range
		var id, base, end, share *int64
		var at *time.Time
		if err := rows.Scan(&entry, &r.Found, &id, &r.LogStart, &r.LastOffset, &base, &end, &at, &share); err != nil {
			return err
		}
		o := &out[entry-1]
		o.Found, o.LogStart, o.LastOffset = r.Found, r.LogStart, r.LastOffset
		if id != nil {
			o.PartitionID = *id
		}
		if base != nil {
			o.Segments = append(o.Segments, StoredSegment{Base: *base, End: *end, CreatedAt: at.UTC()})
			o.Bytes += *share
		}
		return nil
	})
	for i := range out {
		out[i].Life = life
	}
	return out, err
}

// SegmentKey names a segment.
type SegmentKey struct{ Partition, Base int64 }

// Blobs reads the bytes of segments that were found in that life of the database, in another one it is an error; element
// i answers keys[i] and has no bytes when retention has removed the segment.
func (s *Store) Blobs(ctx context.Context, life Life, keys []SegmentKey) ([]StoredSegment, error) {
	out := make([]StoredSegment, len(keys))
	conn, err := s.acquire(ctx, blobsCall.op)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	if life != pg.LifeOf(conn.Conn()) {
		return nil, errOtherLife(blobsCall.op)
	}
	c := newCall()
	defer c.release()
	c.int8s(len(keys), func(i int) int64 { return keys[i].Partition })
	c.int8s(len(keys), func(i int) int64 { return keys[i].Base })
	err = runOn(ctx, conn.Conn(), blobsCall, c, func(r [][]byte) {
		out[asInt8(r[0])-1] = StoredSegment{Base: asInt8(r[1]), End: asInt8(r[2]), CreatedAt: asTime(r[3]), Blob: bytes.Clone(r[4]), Life: life}
	})
	return out, err
}

// degradedAfter is how far the safe time may lag before it is called degraded.
const degradedAfter = 10 * time.Second

// SafeTime returns a time before which everything stored is committed and visible to calls that begin afterwards.
// degraded says that it lags far behind, since a transaction has been open for long, or is a guess.
func (s *Store) SafeTime(ctx context.Context) (at time.Time, degraded bool, err error) {
	err = s.query(ctx, "safe time", sqlSafeTime, nil, func(rows pgx.Rows) error {
		var now time.Time
		if err := rows.Scan(&at, &degraded, &now); err != nil {
			return err
		}
		at, degraded = at.UTC(), degraded || now.Sub(at) > degradedAfter
		return nil
	})
	return at, degraded, err
}

// Changed returns up to limit partitions of a queue with a name above after that were written at since or later, in the
// order of their names; a partition may be among them that was written up to a second earlier. exists is false when
// there is no such queue.
func (s *Store) Changed(ctx context.Context, tenant uuid.UUID, queue string, since time.Time, after string, limit int) (page []wire.ChangedPartition, exists bool, err error) {
	exists = true
	var from *time.Time
	if !since.IsZero() {
		from = &since
	}
	err = s.query(ctx, "changed partitions", sqlChanged, []any{tenant, queue, from, after, limit}, func(rows pgx.Rows) error {
		var name *string
		var last, start *int64
		var at *time.Time
		if err := rows.Scan(&name, &last, &start, &at); err != nil {
			return err
		}
		if name == nil {
			exists = false
			return nil
		}
		page = append(page, wire.ChangedPartition{Name: *name, LastOffset: *last, LogStart: *start, LastWriteAt: at.UTC()})
		return nil
	})
	return page, exists, err
}

// What a tenant's partitions are doing, by arithmetic on their rows. No lock. Indexes: queues (tenant_id, name), then
// log_partitions (queue_id, name): every partition of the tenant, or of the queue, is read once.
const livePartitions = `FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id
WHERE q.tenant_id = $1 AND ($2 = '' OR q.name = $2)`

var (
	sqlLivenessTotals = statement(`SELECT count(*),
    count(*) FILTER (WHERE p.last_write_at >= clock_timestamp() - interval '1 minute'),
    count(*) FILTER (WHERE p.last_write_at >= clock_timestamp() - interval '1 hour'),
    count(*) FILTER (WHERE p.segments = 0) ` + livePartitions)
	sqlLiveness = statement(`SELECT q.name, p.name, p.uid, p.last_write_at, coalesce(greatest(extract(epoch FROM clock_timestamp() - p.last_write_at), 0), 0)::bigint,
    p.last_offset, p.log_start, p.retained_bytes, p.segments ` + livePartitions + ` ORDER BY p.last_write_at DESC NULLS LAST, q.name, p.name LIMIT $3`)
)

// Liveness is how alive the partitions of a tenant are.
type Liveness struct {
	Total, LastMinute, LastHour int64 // partitions; and those written within the time, to the second
	Empty                       int64 // that retain nothing
	Partitions                  []LivePartition
}

// LivePartition is one of the partitions written last.
type LivePartition struct {
	Queue, Name         string
	UID                 uuid.UUID
	LastWrite           time.Time // to the second; zero when nothing was ever written
	IdleSeconds         int64
	LastOffset, LogHead int64
	RetainedBytes       int64
	Segments            int64
}

// Liveness counts the partitions of a tenant, or of one of its queues, and returns the limit that were written last.
func (s *Store) Liveness(ctx context.Context, tenant uuid.UUID, queue string, limit int) (l Liveness, err error) {
	err = s.query(ctx, "partition liveness", sqlLivenessTotals, []any{tenant, queue}, func(rows pgx.Rows) error {
		return rows.Scan(&l.Total, &l.LastMinute, &l.LastHour, &l.Empty)
	})
	if err != nil {
		return l, err
	}
	err = s.query(ctx, "partition liveness", sqlLiveness, []any{tenant, queue, limit}, func(rows pgx.Rows) error {
		var p LivePartition
		var at *time.Time
		if err := rows.Scan(&p.Queue, &p.Name, &p.UID, &at, &p.IdleSeconds, &p.LastOffset, &p.LogHead, &p.RetainedBytes, &p.Segments); err != nil {
			return err
		}
		if at != nil {
			p.LastWrite = at.UTC()
		}
		l.Partitions = append(l.Partitions, p)
		return nil
	})
	return l, err
}
