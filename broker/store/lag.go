package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/wire"
)

// laneRows is what a group has to read: one row per partition, by arithmetic on its cursor. A partition that the group has
// not read yet counts from where its registration would start it; without one, only queue mode reads it. Queues that do
// not exist give a row without a partition. $1 is the tenant, $2 a group or NULL for all.
//
// No lock. Indexes: group_registrations_pkey, queues (tenant_id, name), log_partitions (queue_id, name),
// log_consumers_pkey, and for what lags log_segments_pkey.
const laneRows = `WITH pair AS (
    SELECT r.queue, r.consumer_group FROM queen.group_registrations r
     WHERE r.tenant_id = $1 AND ($2::text IS NULL OR r.consumer_group = $2)
    UNION
    SELECT q.name, k.consumer_group
      FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id JOIN queen.log_consumers k ON k.partition_id = p.id
     WHERE q.tenant_id = $1 AND ($2::text IS NULL OR k.consumer_group = $2)
), lane AS (
    SELECT g.queue, g.consumer_group, r.mode, r.seed_from, r.created_at AS registered_at, coalesce(r.conflation, false) AS conflation,
           r.seeded_to IS NOT NULL AS seeding,
           p.uid, p.name AS partition, k.committed IS NOT NULL AS has_cursor, coalesce(k.total_consumed, 0) AS consumed,
           CASE WHEN k.lease_expires_at > now() THEN k.worker_id END AS worker,
           CASE WHEN k.lease_expires_at > now() THEN k.lease_acquired_at END AS acquired_at,
           coalesce(n.pending, 0) AS pending,
           CASE WHEN n.pending > 0 THEN queen.pending_since(p.id, p.last_offset - n.pending) END AS since
      FROM pair g
      LEFT JOIN queen.group_registrations r ON r.tenant_id = $1 AND r.queue = g.queue AND r.consumer_group = g.consumer_group
      LEFT JOIN (queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id) ON q.tenant_id = $1 AND q.name = g.queue
      LEFT JOIN queen.log_consumers k ON k.partition_id = p.id AND k.consumer_group = g.consumer_group
     CROSS JOIN LATERAL (
           SELECT CASE WHEN k.committed IS NOT NULL OR r.mode IS NOT NULL OR g.consumer_group = '` + wire.QueueModeGroup + `' THEN
                      greatest(p.last_offset - greatest(coalesce(k.committed,
                          queen.start_offset(r.mode, r.seed_from, r.last_partition, p)), p.log_start - 1), 0) END AS pending) n
), aged AS (
    SELECT l.*, coalesce(greatest(floor(extract(epoch FROM clock_timestamp() - l.since)), 0), 0)::bigint AS lag_seconds FROM lane l
)
`

var (
	listGroups = statement(laneRows + `SELECT l.queue, l.consumer_group, coalesce(l.mode, ''), l.seed_from, l.registered_at, l.conflation,
    count(DISTINCT l.worker), count(*) FILTER (WHERE l.has_cursor), count(*) FILTER (WHERE l.pending > 0),
    sum(l.pending)::bigint, max(l.lag_seconds), bool_or(l.seeding)
FROM aged l GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY l.consumer_group, l.queue`)
	laggingLanes = statement(laneRows + `SELECT ` + groupLaneColumns + ` FROM aged l
WHERE l.pending > 0 AND l.lag_seconds >= $3 ORDER BY l.lag_seconds DESC, l.consumer_group, l.queue, l.partition`)
	groupLanes = statement(laneRows + `SELECT ` + groupLaneColumns + ` FROM aged l
WHERE l.uid IS NOT NULL ORDER BY l.queue, l.partition`)
)

const groupLaneColumns = `l.queue, l.consumer_group, l.conflation, l.uid, l.partition, l.has_cursor, l.consumed, l.worker, l.acquired_at,
l.pending, l.since, l.lag_seconds`

// Group is a consumer group on one queue.
type Group struct {
	Queue, Name string
	Mode        string    // all, new or timestamp; "" when the group has not registered
	From        time.Time // of the registration: what it starts at, or zero
	Registered  time.Time // or zero
	Conflation  bool
	Workers     int64 // live leases, each counted once
	Cursors     int64
	Lagging     int64 // partitions with something pending
	Pending     int64
	LagSeconds  int64 // age of the oldest pending message
	Seeding     bool  // more cursors are being made; what is pending does not depend on it
}

// Lane is a partition as one group sees it.
type Lane struct {
	Queue, Group string
	Conflation   bool
	PartitionID  uuid.UUID
	Partition    string
	HasCursor    bool
	Consumed     int64
	Worker       uuid.UUID // holder of the live lease, or uuid.Nil
	Acquired     time.Time // of that lease, or zero
	Pending      int64
	Since        time.Time // created_at of the oldest pending message, or zero
	LagSeconds   int64     // its age
}

// Groups returns the consumer groups of the tenant, one entry per (group, queue), by group and queue. One read, no
// lock; its cost follows the tenant's cursors.
func (s *Store) Groups(ctx context.Context, tenant uuid.UUID) ([]Group, error) {
	var all []Group
	err := s.query(ctx, "list groups", listGroups, []any{tenant, nil}, func(rows pgx.Rows) error {
		var g Group
		var from, registered *time.Time
		err := rows.Scan(&g.Queue, &g.Name, &g.Mode, &from, &registered, &g.Conflation, &g.Workers, &g.Cursors, &g.Lagging, &g.Pending, &g.LagSeconds, &g.Seeding)
		g.From, g.Registered = orZero(from), orZero(registered)
		all = append(all, g)
		return err
	})
	return all, err
}

// LaggingLanes returns where groups have something pending for at least that long, the oldest first.
func (s *Store) LaggingLanes(ctx context.Context, tenant uuid.UUID, least time.Duration) ([]Lane, error) {
	return s.lanes(ctx, "list lagging groups", laggingLanes, tenant, nil, int64(least/time.Second))
}

// GroupLanes returns the partitions of a group by queue and partition; none when there is no such group.
func (s *Store) GroupLanes(ctx context.Context, tenant uuid.UUID, group string) ([]Lane, error) {
	return s.lanes(ctx, "read group", groupLanes, tenant, group)
}

func (s *Store) lanes(ctx context.Context, op, sql string, args ...any) ([]Lane, error) {
	var all []Lane
	err := s.query(ctx, op, sql, args, func(rows pgx.Rows) error {
		var l Lane
		var worker *uuid.UUID
		var acquired, since *time.Time
		err := rows.Scan(&l.Queue, &l.Group, &l.Conflation, &l.PartitionID, &l.Partition, &l.HasCursor, &l.Consumed,
			&worker, &acquired, &l.Pending, &since, &l.LagSeconds)
		if worker != nil {
			l.Worker = *worker
		}
		l.Acquired, l.Since = orZero(acquired), orZero(since)
		all = append(all, l)
		return err
	})
	return all, err
}

// Depth of a group on the partitions of a queue: what is pending is what the group has not acknowledged, also where it
// has no cursor yet. A group that nobody knows has acknowledged nothing. The first row is there without partitions, too.
var queueDepth = statement(`SELECT coalesce(r.conflation, false), p.name, n.pending, least(coalesce(k.leased, 0), n.pending)
FROM (SELECT $1::uuid AS tenant_id, $2::bigint AS queue_id, $3::text COLLATE "C" AS queue, $4::text COLLATE "C" AS consumer_group) g
LEFT JOIN queen.group_registrations r ON r.tenant_id = g.tenant_id AND r.queue = g.queue AND r.consumer_group = g.consumer_group
LEFT JOIN queen.log_partitions p ON p.queue_id = g.queue_id
LEFT JOIN LATERAL (
    SELECT c.committed, CASE WHEN c.lease_expires_at > now() THEN c.batch_end - c.committed END AS leased
      FROM queen.log_consumers c WHERE c.partition_id = p.id AND c.consumer_group = g.consumer_group) k ON true
CROSS JOIN LATERAL (
    SELECT greatest(p.last_offset - greatest(coalesce(k.committed,
        queen.start_offset(r.mode, r.seed_from, r.last_partition, p)), p.log_start - 1), 0) AS pending) n
ORDER BY p.name`)

// PartitionDepth is what a group has to read in a partition.
type PartitionDepth struct {
	Partition  string
	Pending    int64
	Processing int64 // leased now, at most Pending
}

// Depth is what a group has to read in a queue.
type Depth struct {
	Conflation bool // the group gets only the newest message of a partition
	Partitions []PartitionDepth
}

// QueueDepth returns what a group has to read in a queue, by name of the partition. One read, no lock.
func (s *Store) QueueDepth(ctx context.Context, q *Queue, group string) (d Depth, err error) {
	_, err = s.queryIn(ctx, q.Life, "queue depth", queueDepth, []any{q.Tenant, q.ID, q.Name, group}, func(rows pgx.Rows) error {
		var name *string
		var pending, leased *int64
		if err := rows.Scan(&d.Conflation, &name, &pending, &leased); err != nil || name == nil {
			return err
		}
		d.Partitions = append(d.Partitions, PartitionDepth{Partition: *name, Pending: *pending, Processing: *leased})
		return nil
	})
	return d, err
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
