package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// What a group has not consumed yet, and since when it may have it. The head of a partition is looked up only under a
// delay. Indexes: log_partitions (queue_id, name) or its key, group_registrations_pkey, log_consumers_pkey,
// log_segments_pkey. No lock.
const sqlPendingColumns = `
SELECT p.id, p.last_offset, coalesce(k.committed, -1),
       CASE WHEN k.lease_expires_at > clock_timestamp() THEN k.lease_expires_at END,
       CASE WHEN h.created_at + d.delay > clock_timestamp() THEN h.created_at + d.delay END,
       d.consumer_group`

const sqlPendingJoins = `
  LEFT JOIN queen.log_consumers k ON k.partition_id = p.id AND k.consumer_group = d.consumer_group
  LEFT JOIN LATERAL (
        SELECT g.created_at FROM queen.log_segments g
         WHERE d.delay > interval '0' AND g.partition_id = p.id
           AND g.base_offset >= coalesce((
                SELECT f.base_offset FROM queen.log_segments f
                 WHERE f.partition_id = p.id AND f.base_offset <= coalesce(k.committed + 1, p.log_start)
                 ORDER BY f.base_offset DESC LIMIT 1), 0)
           AND g.end_offset > coalesce(k.committed, p.log_start - 1)
         ORDER BY g.base_offset LIMIT 1) h ON true
 WHERE coalesce(p.last_offset > k.committed, queen.starts_within(d.mode, d.seed_from, d.last_partition, p))`

// sqlPendingRegistration joins alias r, by which a group starts where it has no cursor, with aliases q and w.
const sqlPendingRegistration = `
          LEFT JOIN queen.group_registrations r
                 ON r.tenant_id = q.tenant_id AND r.queue = q.name AND r.consumer_group = w.consumer_group`

var (
	sqlPending = statement(sqlPendingColumns + `
  FROM (SELECT q.id AS queue_id, w.consumer_group, $3::bigint * interval '1 ms' AS delay, r.mode, r.seed_from, r.last_partition
          FROM (SELECT $2::text COLLATE "C" AS consumer_group) w
          JOIN queen.queues q ON q.id = $1` + sqlPendingRegistration + `) d
  JOIN queen.log_partitions p ON p.queue_id = d.queue_id` + sqlPendingJoins + ` ORDER BY p.id`)
	sqlPendingIn = statement(sqlPendingColumns + `, d.queue
  FROM (SELECT q.id AS queue_id, q.name AS queue, w.consumer_group, q.delayed_processing * interval '1 s' AS delay,
               r.mode, r.seed_from, r.last_partition
          FROM (SELECT $2::text COLLATE "C" AS consumer_group) w
          JOIN queen.queues q ON q.id = ANY ($1::bigint[])` + sqlPendingRegistration + `) d
  JOIN queen.log_partitions p ON p.queue_id = d.queue_id` + sqlPendingJoins + ` ORDER BY p.id`)
	sqlPendingOf = statement(sqlPendingColumns + `
  FROM (SELECT w.n, w.id, w.consumer_group, w.delay * interval '1 ms' AS delay, r.mode, r.seed_from, r.last_partition
          FROM (SELECT n, id, consumer_group COLLATE "C" AS consumer_group, delay
                  FROM unnest($1::bigint[], $2::text[], $3::bigint[]) WITH ORDINALITY AS u(id, consumer_group, delay, n)) w
          JOIN queen.log_partitions o ON o.id = w.id
          JOIN queen.queues q ON q.id = o.queue_id` + sqlPendingRegistration + `) d
  JOIN queen.log_partitions p ON p.id = d.id` + sqlPendingJoins + ` ORDER BY d.n`)
)

// Pending returns the partitions of the queue with messages behind the group's cursor, in id order: the seed of a
// ready ring. A partition without a cursor counts as pending while its registration may start the group before its end;
// one that retention emptied counts until a claim seals it. So it may say too much, never too little.
func (s *Store) Pending(ctx context.Context, queueID int64, group string, delay time.Duration) ([]Pending, error) {
	return s.pending(ctx, sqlPending, queueID, group, delay.Milliseconds())
}

// PendingOf is Pending for some (partition, group) pairs, given as parallel slices: the one set-based probe per second
// for partitions behind foreign leases. Pairs without pending messages are not in the result, the others stand in the order given.
func (s *Store) PendingOf(ctx context.Context, partitions []int64, groups []string, delay []time.Duration) ([]Pending, error) {
	ms := make([]int64, len(delay))
	for i, d := range delay {
		ms[i] = d.Milliseconds()
	}
	return s.pending(ctx, sqlPendingOf, partitions, groups, ms)
}

// PendingIn is Pending for several queues, each with its own delay.
func (s *Store) PendingIn(ctx context.Context, queues []int64, group string) ([]Pending, error) {
	return s.pending(ctx, sqlPendingIn, queues, group)
}

func (s *Store) pending(ctx context.Context, sql string, args ...any) ([]Pending, error) {
	var out []Pending
	err := s.query(ctx, "pending partitions", sql, args, func(rows pgx.Rows) error {
		var p Pending
		var leased, visible *time.Time
		into := []any{&p.PartitionID, &p.LastOffset, &p.Committed, &leased, &visible, &p.Group, &p.Queue}
		if err := rows.Scan(into[:len(rows.FieldDescriptions())]...); err != nil {
			return err
		}
		if leased != nil {
			p.LeasedUntil = leased.UTC()
		}
		if visible != nil {
			p.VisibleAt = visible.UTC()
		}
		out = append(out, p)
		return nil
	})
	return out, err
}
