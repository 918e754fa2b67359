package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// No lock. Index: log_partitions (last_write_at) alone, so the cost follows the partitions written in the window and
// nothing else. One snapshot for both: a change that the version does not count yet is not among the rows either.
var changes = statement(`SELECT v.version, p.id, p.queue_id, q.tenant_id, q.name, p.last_offset
FROM (SELECT sum(c.version)::bigint AS version FROM queen.config_version c) v
LEFT JOIN (queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id)
  ON p.last_write_at >= now() - $1::bigint * interval '1 microsecond'`)

// Index: queues (tenant_id, name), then log_partitions (queue_id, name).
var names = statement(`SELECT q.name, coalesce(p.name, 'Default')
FROM queen.queues q LEFT JOIN queen.log_partitions p ON p.queue_id = q.id
WHERE q.tenant_id = $1 AND q.name >= $2 AND ($4 OR q.name > $2 OR p.name > $3)
ORDER BY q.name, p.name LIMIT $5`)

// Changes returns the partitions written within the last window, and the configuration version, which is another
// number after every change of queues and of what they hold. It is the one query by which a broker learns what others
// did: every ring of it is fed at once.
//
// last_write_at moves at most once a second and is stamped before its commit: the window must cover that second plus
// the longest push, so ask for 3 s every second and for 60 s every 20 s. Repeats are normal; LastOffset tells them.
func (s *Store) Changes(ctx context.Context, window time.Duration) (written []Change, configVersion int64, err error) {
	err = s.query(ctx, "change feed", changes, []any{window.Microseconds()}, func(rows pgx.Rows) error {
		var id, queueID, last *int64
		var tenant *uuid.UUID
		var queue *string
		if err := rows.Scan(&configVersion, &id, &queueID, &tenant, &queue, &last); err != nil {
			return err
		}
		if id != nil {
			written = append(written, Change{PartitionID: *id, QueueID: *queueID, Tenant: *tenant, Queue: *queue, LastOffset: *last})
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return written, configVersion, nil
}

// Names returns the tenant's pairs in (queue, partition) order, bytewise, after the given pair, at most limit; the
// zero Pair starts at the beginning. A queue without partitions appears with Default, which counts against nothing.
// Fewer than limit means the end. limit is at least 2.
func (s *Store) Names(ctx context.Context, tenant uuid.UUID, after Pair, limit int) ([]Pair, error) {
	page := make([]Pair, 0, min(limit, 1024))
	args := []any{tenant, after.Queue, after.Partition, after == Pair{}, limit}
	err := s.query(ctx, "names", names, args, func(rows pgx.Rows) error {
		var p Pair
		if err := rows.Scan(&p.Queue, &p.Partition); err != nil {
			return err
		}
		page = append(page, p)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}
