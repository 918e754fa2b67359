package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/wire"
)

// ResourceFilter narrows a listing; the zero value of a field narrows nothing.
type ResourceFilter struct {
	Queue, Partition, Namespace, Task string
	wire.Page                         // Limit 0: all
}

// inScope tests alias q against $2 and $3, a namespace and a task or NULL.
const inScope = `($2::text IS NULL OR q.namespace = $2) AND ($3::text IS NULL OR q.task = $3)`

// No lock. Indexes: queues (tenant_id, name), log_partitions (queue_id, name), log_consumers_pkey, log_dlq_tenant,
// log_segments_pkey for what lags, queue_metrics_pkey.
var overview = statement(`WITH lane AS (
    SELECT c.total, c.pending, c.processing,
           CASE WHEN c.pending > 0 THEN greatest(extract(epoch FROM clock_timestamp() - queen.pending_since(p.id, p.last_offset - c.pending)), 0)::float8 END AS lag
      FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id` + partitionCounts + `
     WHERE q.tenant_id = $1
), behind AS (
    SELECT coalesce(avg(lag), 0) AS lag_avg, coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY lag), 0) AS lag_median,
           coalesce(min(lag), 0) AS lag_min, coalesce(max(lag), 0) AS lag_max,
           coalesce(avg(pending), 0)::float8 AS off_avg, coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY pending), 0) AS off_median,
           coalesce(min(pending), 0)::float8 AS off_min, coalesce(max(pending), 0)::float8 AS off_max
      FROM lane WHERE pending > 0
), rate AS (
    -- The last minute that brokers have written down.
    SELECT sum(m.push_messages) / 60.0 AS pushed, sum(m.ack_success) / 60.0 AS acked
      FROM queen.queue_metrics m
     WHERE m.tenant_id = $1 AND m.bucket = (
           SELECT max(x.bucket) FROM queen.queue_metrics x
            WHERE x.tenant_id = $1 AND x.bucket > now() - interval '3 minutes' AND x.bucket <= now() - interval '1 minute')
)
SELECT clock_timestamp(),
    (SELECT count(*) FROM queen.queues q WHERE q.tenant_id = $1),
    (SELECT count(DISTINCT q.namespace) FROM queen.queues q WHERE q.tenant_id = $1 AND q.namespace <> ''),
    (SELECT count(DISTINCT q.task) FROM queen.queues q WHERE q.tenant_id = $1 AND q.task <> ''),
    (SELECT count(*) FROM lane),
    coalesce((SELECT sum(l.total) FROM lane l), 0)::bigint, coalesce((SELECT sum(l.pending) FROM lane l), 0)::bigint,
    coalesce((SELECT sum(l.processing) FROM lane l), 0)::bigint,
    (SELECT count(*) FROM queen.log_dlq d WHERE d.tenant_id = $1),
    b.lag_avg, b.lag_median, b.lag_min, b.lag_max, b.off_avg, b.off_median, b.off_min, b.off_max,
    coalesce(r.pushed, 0)::float8, coalesce(r.acked, 0)::float8
FROM behind b CROSS JOIN rate r`)

// Spread describes a set of numbers; all zero for the empty one.
type Spread struct{ Avg, Median, Min, Max float64 }

// Overview is what a tenant has, as the slowest readers of its queues see it.
type Overview struct {
	At                                    time.Time
	Queues, Namespaces, Tasks             int64
	Partitions                            int64
	Counts                                        // of all partitions
	LagSeconds, LagMessages               Spread  // over the partitions with something pending
	IngestedPerSecond, ProcessedPerSecond float64 // in the last minute on record
}

// Overview returns the totals of a tenant. One read, no lock; its cost follows the tenant's partitions.
func (s *Store) Overview(ctx context.Context, tenant uuid.UUID) (o Overview, err error) {
	t, m := &o.LagSeconds, &o.LagMessages
	err = s.query(ctx, "overview", overview, []any{tenant}, func(rows pgx.Rows) error {
		return rows.Scan(&o.At, &o.Queues, &o.Namespaces, &o.Tasks, &o.Partitions, &o.Total, &o.Pending, &o.Processing, &o.DeadLetter,
			&t.Avg, &t.Median, &t.Min, &t.Max, &m.Avg, &m.Median, &m.Min, &m.Max, &o.IngestedPerSecond, &o.ProcessedPerSecond)
	})
	return o, err
}

// scopes lists namespaces or tasks: the column to group by and the one to count beside it.
func scopes(by, other string) string {
	return `SELECT q.` + by + `, count(*), count(DISTINCT q.` + other + `) FILTER (WHERE q.` + other + ` <> ''),
    sum(s.partitions)::bigint, sum(s.total)::bigint, sum(s.pending)::bigint, sum(s.processing)::bigint
FROM queen.queues q
CROSS JOIN LATERAL (
    SELECT count(*) AS partitions, coalesce(sum(c.total), 0) AS total, coalesce(sum(c.pending), 0) AS pending, coalesce(sum(c.processing), 0) AS processing
      FROM queen.log_partitions p` + partitionCounts + `
     WHERE p.queue_id = q.id) s
WHERE q.tenant_id = $1 AND q.` + by + ` <> '' GROUP BY 1 ORDER BY 1`
}

// No lock. Indexes: queues (tenant_id, name), log_partitions (queue_id, name), log_consumers_pkey.
var (
	listNamespaces = statement(scopes("namespace", "task"))
	listTasks      = statement(scopes("task", "namespace"))
)

// ScopeSummary is a namespace or a task.
type ScopeSummary struct {
	Name       string
	Queues     int64
	Others     int64 // tasks of a namespace, namespaces of a task
	Partitions int64
	Counts
}

// Namespaces returns the namespaces of the tenant's queues, by name, with what they hold.
func (s *Store) Namespaces(ctx context.Context, tenant uuid.UUID) ([]ScopeSummary, error) {
	return s.scopes(ctx, "list namespaces", listNamespaces, tenant)
}

// Tasks returns the tasks of the tenant's queues, by name, with what they hold.
func (s *Store) Tasks(ctx context.Context, tenant uuid.UUID) ([]ScopeSummary, error) {
	return s.scopes(ctx, "list tasks", listTasks, tenant)
}

func (s *Store) scopes(ctx context.Context, op, sql string, tenant uuid.UUID) ([]ScopeSummary, error) {
	var all []ScopeSummary
	err := s.query(ctx, op, sql, []any{tenant}, func(rows pgx.Rows) error {
		var c ScopeSummary
		err := rows.Scan(&c.Name, &c.Queues, &c.Others, &c.Partitions, &c.Total, &c.Pending, &c.Processing)
		all = append(all, c)
		return err
	})
	return all, err
}

// No lock. The page is cut before anything is looked up for its partitions, but for the number of all of them. Indexes:
// queues (tenant_id, name), log_partitions (queue_id, name), log_consumers_pkey, log_dlq_partition.
var listPartitions = statement(`WITH page AS MATERIALIZED (
    SELECT q.name AS queue, q.namespace, q.task, p.*, count(*) OVER () AS matching
      FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id
     WHERE q.tenant_id = $1 AND ` + inScope + ` AND ($4::text IS NULL OR q.name = $4) AND ($5::text IS NULL OR p.name = $5)
     ORDER BY q.name, p.name LIMIT $6 OFFSET $7
)
SELECT p.matching, p.queue, p.namespace, p.task, ` + partitionColumns + ` FROM page p` + partitionCounts + ` ORDER BY p.queue, p.name`)

// Partition of a listing over queues.
type PartitionSummary struct {
	Queue, Namespace, Task string
	PartitionDetail
}

// Partitions returns a page of the tenant's partitions by queue and name, and how many match in all (0 for a page
// behind the last one). One read, no lock.
func (s *Store) Partitions(ctx context.Context, tenant uuid.UUID, f ResourceFilter) (page []PartitionSummary, matching int64, err error) {
	args := []any{tenant, orNull(f.Namespace), orNull(f.Task), orNull(f.Queue), orNull(f.Partition), f.limit(), f.Offset}
	err = s.query(ctx, "list partitions", listPartitions, args, func(rows pgx.Rows) error {
		var p PartitionSummary
		err := p.scan(rows, &matching, &p.Queue, &p.Namespace, &p.Task)
		page = append(page, p)
		return err
	})
	return page, matching, err
}

// limit is NULL for all.
func (f *ResourceFilter) limit() *int {
	if f.Limit <= 0 {
		return nil
	}
	return &f.Limit
}
