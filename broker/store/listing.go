package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/wire"
)

// Counts are the messages of a partition or a queue as its slowest reader sees them. They are differences of
// watermarks: nothing is counted row by row but dead letters.
type Counts struct {
	Total      int64 // retained
	Pending    int64 // behind the slowest named group, or behind queue mode when no group is named
	Processing int64 // leased now, at most Pending
	DeadLetter int64 // filed; 0 in a Summary
}

// Completed returns what is neither pending nor dead.
func (c Counts) Completed() int64 { return max(0, c.Total-c.Pending-c.DeadLetter) }

// Summary is one queue of a listing.
type Summary struct {
	Queue
	Partitions    int64
	RetainedBytes int64
	Segments      int64
	Counts
}

// PartitionDetail is one partition of a queue.
type PartitionDetail struct {
	ID            int64
	UID           uuid.UUID
	Name          string
	Created       time.Time
	RetainedBytes int64
	Segments      int64
	Oldest        time.Time // created_at of the first live segment; zero when there is none
	Newest        time.Time // of the last one
	Counts
}

// partitionCounts joins alias p with its watermarks as alias c. Index: log_consumers (partition_id, consumer_group).
const partitionCounts = `
CROSS JOIN LATERAL (
    SELECT min(k.committed) FILTER (WHERE k.consumer_group <> '` + wire.QueueModeGroup + `') AS named,
           min(k.committed) AS any_group,
           coalesce(sum(k.batch_end - k.committed) FILTER (WHERE k.lease_expires_at > now()), 0) AS leased
      FROM queen.log_consumers k WHERE k.partition_id = p.id
) k
CROSS JOIN LATERAL (
    SELECT greatest(p.last_offset - p.log_start + 1, 0) AS total,
           greatest(p.last_offset - greatest(coalesce(k.named, k.any_group, p.log_start - 1), p.log_start - 1), 0) AS pending
) n
CROSS JOIN LATERAL (SELECT n.total, n.pending, least(k.leased, n.pending)::bigint AS processing) c`

// No lock. Indexes: queues (tenant_id, name), log_partitions (queue_id, name), log_consumers_pkey.
var listQueues = statement(`SELECT ` + queueColumns + `, s.*
FROM queen.queues q
CROSS JOIN LATERAL (
    SELECT count(*), coalesce(sum(p.retained_bytes), 0)::bigint, coalesce(sum(p.segments), 0)::bigint,
           coalesce(sum(c.total), 0)::bigint, coalesce(sum(c.pending), 0)::bigint, coalesce(sum(c.processing), 0)::bigint
      FROM queen.log_partitions p` + partitionCounts + `
     WHERE p.queue_id = q.id
) s
WHERE q.tenant_id = $1 AND ` + inScope + ` ORDER BY q.name LIMIT $4 OFFSET $5`)

// No lock. Indexes: log_partitions (queue_id, name), log_consumers_pkey, log_dlq_partition.
var queuePartitions = statement(`SELECT ` + partitionColumns + ` FROM queen.log_partitions p` + partitionCounts + `
WHERE p.queue_id = $1 ORDER BY p.name`)

// partitionColumns are the columns of alias p, with its counts, that PartitionDetail.scan reads.
const partitionColumns = `p.id, p.uid, p.name, p.created_at, p.retained_bytes, p.segments,
    p.oldest_live_at, CASE WHEN p.last_offset >= p.log_start THEN p.last_created_at END,
    c.total, c.pending, c.processing,
    (SELECT count(*) FROM queen.log_dlq d WHERE d.partition_id = p.id)`

func (p *PartitionDetail) scan(rows pgx.Rows, before ...any) error {
	var oldest, newest *time.Time
	err := rows.Scan(append(before, &p.ID, &p.UID, &p.Name, &p.Created, &p.RetainedBytes, &p.Segments, &oldest, &newest,
		&p.Total, &p.Pending, &p.Processing, &p.DeadLetter)...)
	p.Oldest, p.Newest = orZero(oldest), orZero(newest)
	return err
}

// Queues returns the queues of the tenant that f lets pass, by namespace and task only, in bytewise order of their names.
// One read, no lock; its cost follows the tenant's partitions and cursors.
func (s *Store) Queues(ctx context.Context, tenant uuid.UUID, f ResourceFilter) ([]Summary, error) {
	var all []Summary
	args := []any{tenant, orNull(f.Namespace), orNull(f.Task), f.limit(), f.Offset}
	err := s.query(ctx, "list queues", listQueues, args, func(rows pgx.Rows) error {
		var q Summary
		err := rows.Scan(append(q.fields(), &q.Partitions, &q.RetainedBytes, &q.Segments, &q.Total, &q.Pending, &q.Processing)...)
		all = append(all, q)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// QueuePartitions returns the partitions of a queue in bytewise order of their names. One read, no lock.
func (s *Store) QueuePartitions(ctx context.Context, q *Queue) ([]PartitionDetail, error) {
	var all []PartitionDetail
	_, err := s.queryIn(ctx, q.Life, "list partitions", queuePartitions, []any{q.ID}, func(rows pgx.Rows) error {
		var p PartitionDetail
		err := p.scan(rows)
		all = append(all, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
