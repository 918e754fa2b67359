package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
)

// Index: log_dlq_queue.
var deadLettersByQueue = statement(`SELECT d.queue, count(*) FROM queen.log_dlq d WHERE d.tenant_id = $1 GROUP BY d.queue`)

// DeadLetterCounts returns the number of dead letters per queue of the tenant.
func (s *Store) DeadLetterCounts(ctx context.Context, tenant uuid.UUID) (map[string]int64, error) {
	counts := map[string]int64{}
	err := s.query(ctx, "count dead letters", deadLettersByQueue, []any{tenant}, func(rows pgx.Rows) error {
		var queue string
		var n int64
		err := rows.Scan(&queue, &n)
		counts[queue] = n
		return err
	})
	return counts, err
}

// DeadLetterSummary is what a tenant's dead letters come from.
type DeadLetterSummary struct {
	Total, Partitions int64
	TopErrors         []ErrorCount // the most frequent ones, at most ten
}

// ErrorCount is an error text with the number of dead letters that have it.
type ErrorCount struct {
	Error string
	Count int64
}

var deadLetterSummary = statement(`SELECT coalesce(sum(e.n), 0)::bigint,
    (SELECT count(DISTINCT d.partition_id) FROM queen.log_dlq d WHERE d.tenant_id = $1),
    coalesce((array_agg(e.error ORDER BY e.n DESC, e.error))[1:10], '{}'), coalesce((array_agg(e.n ORDER BY e.n DESC, e.error))[1:10], '{}')
FROM (SELECT left(d.error, 500) AS error, count(*) AS n FROM queen.log_dlq d WHERE d.tenant_id = $1 GROUP BY 1) e`)

// DeadLetters sums up the dead letters of the tenant.
func (s *Store) DeadLetters(ctx context.Context, tenant uuid.UUID) (d DeadLetterSummary, err error) {
	var texts []string
	var counts []int64
	if err := s.pool.QueryRow(ctx, deadLetterSummary, tenant).Scan(&d.Total, &d.Partitions, &texts, &counts); err != nil {
		return d, pg.Error("dead letter summary", err)
	}
	for i := range texts {
		d.TopErrors = append(d.TopErrors, ErrorCount{texts[i], counts[i]})
	}
	return d, nil
}

// Leases is what a tenant's consumers hold and have done.
type Leases struct {
	Active     int64 // live leases
	Partitions int64 // with one
	Batch      int64 // messages out under them
	Consumed   int64 // messages every cursor has crossed since it was made
}

// Indexes: queues (tenant_id, name), log_partitions (queue_id, name), log_consumers_pkey.
var leases = statement(`SELECT q.name, count(*) FILTER (WHERE k.lease_expires_at > now()),
    count(DISTINCT k.partition_id) FILTER (WHERE k.lease_expires_at > now()),
    coalesce(sum(k.batch_end - k.committed) FILTER (WHERE k.lease_expires_at > now()), 0)::bigint, coalesce(sum(k.total_consumed), 0)::bigint
FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id JOIN queen.log_consumers k ON k.partition_id = p.id
WHERE q.tenant_id = $1 GROUP BY q.id`)

// Leases sums up the cursors of the tenant, in all and how much was consumed of each queue. Its cost follows the
// tenant's cursors.
func (s *Store) Leases(ctx context.Context, tenant uuid.UUID) (all Leases, consumed map[string]int64, err error) {
	consumed = map[string]int64{}
	err = s.query(ctx, "leases", leases, []any{tenant}, func(rows pgx.Rows) error {
		var queue string
		var l Leases
		err := rows.Scan(&queue, &l.Active, &l.Partitions, &l.Batch, &l.Consumed)
		consumed[queue] = l.Consumed
		all.Active += l.Active
		all.Partitions += l.Partitions
		all.Batch += l.Batch
		all.Consumed += l.Consumed
		return err
	})
	return all, consumed, err
}

// PartitionActivity is what happened last on a partition.
type PartitionActivity struct {
	Consumed  int64     // messages that the cursors of all groups have crossed
	LastWrite time.Time // within a second; zero before the first write
}

// Indexes: log_partitions (queue_id, name), log_consumers_pkey.
var partitionActivity = statement(`SELECT p.id, p.last_write_at, (SELECT coalesce(sum(k.total_consumed), 0)::bigint FROM queen.log_consumers k WHERE k.partition_id = p.id)
FROM queen.log_partitions p WHERE p.queue_id = $1`)

// QueueActivity returns what happened last on the partitions of a queue, by their id.
func (s *Store) QueueActivity(ctx context.Context, q *Queue) (map[int64]PartitionActivity, error) {
	all := map[int64]PartitionActivity{}
	_, err := s.queryIn(ctx, q.Life, "queue activity", partitionActivity, []any{q.ID}, func(rows pgx.Rows) error {
		var id int64
		var a PartitionActivity
		var at *time.Time
		err := rows.Scan(&id, &at, &a.Consumed)
		if at != nil {
			a.LastWrite = *at
		}
		all[id] = a
		return err
	})
	return all, err
}

// Growth is how many partitions of a queue, or with Queue "" of all, were created in a bucket.
type Growth struct {
	Bucket  time.Time
	Queue   string
	Created int64
}

// Index: queues (tenant_id, name), log_partitions (queue_id, name). The first row of a queue, without a bucket, counts
// what is older than the span.
var partitionGrowth = statement(`SELECT CASE WHEN p.created_at >= $2
        THEN date_bin($1::bigint * interval '1 microsecond', p.created_at, timestamptz '2000-01-01 00:00:00+00') END, q.name, count(*)
FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id
WHERE q.tenant_id = $4 AND p.created_at < $3 AND ($5 = '' OR q.name = $5)
GROUP BY 1, 2 ORDER BY 1 NULLS FIRST, 2`)

// PartitionGrowth returns when the partitions that the tenant has now were created: before the span under the zero
// time, then by bucket.
func (s *Store) PartitionGrowth(ctx context.Context, tenant uuid.UUID, queue string, span Span) (all []Growth, err error) {
	args := []any{span.Width.Microseconds(), span.From, span.To, tenant, queue}
	err = s.query(ctx, "partition growth", partitionGrowth, args, func(rows pgx.Rows) error {
		var g Growth
		var at *time.Time
		err := rows.Scan(&at, &g.Queue, &g.Created)
		if at != nil {
			g.Bucket = *at
		}
		all = append(all, g)
		return err
	})
	return all, err
}

// CellCounts are the sizes of a cell.
type CellCounts struct{ Tenants, Queues, Partitions, RetainedBytes int64 }

// The ledger is read whole; a fold keeps it short.
var cellCounts = statement(`SELECT (SELECT count(*) FROM queen.tenants), count(*),
    (SELECT count(*) FROM queen.log_partitions),
    ((SELECT coalesce(sum(t.retained_bytes), 0) FROM queen.tenants t) + (SELECT coalesce(sum(l.bytes), 0) FROM queen.retained_ledger l))::bigint
FROM queen.queues`)

// CellCounts reads the sizes of the cell.
func (s *Store) CellCounts(ctx context.Context) (c CellCounts, err error) {
	err = s.pool.QueryRow(ctx, cellCounts).Scan(&c.Tenants, &c.Queues, &c.Partitions, &c.RetainedBytes)
	return c, pg.Error("cell counts", err)
}

// Postgres is what the database says about itself.
type Postgres struct {
	Version           string
	Database          string
	Bytes             int64
	Connections, Max  int64
	ActiveConnections int64
	WaitingOnLocks    int64
	IdleInTransaction int64
	CacheHitRatio     float64 // 0…1
	Commits, Rolls    int64
	Deadlocks         int64
	TempBytes         int64
	StatsReset        time.Time
	Started           time.Time
	Tables            []Table // of our schema, the largest first
}

// Table is one relation with its indexes and its out-of-line storage.
type Table struct {
	Name                            string
	Bytes, IndexBytes               int64
	Live, Dead                      int64 // estimates
	Inserted, Updated, Hot, Deleted int64
	LastAutovacuum, LastAutoanalyze time.Time
	SequentialScans, IndexScans     int64
}

var (
	postgresStats = statement(`SELECT current_setting('server_version'), d.datname::text, pg_database_size(d.datname),
    (SELECT count(*) FROM pg_stat_activity a WHERE a.datname = d.datname),
    current_setting('max_connections')::bigint,
    (SELECT count(*) FROM pg_stat_activity a WHERE a.datname = d.datname AND a.state = 'active'),
    (SELECT count(*) FROM pg_stat_activity a WHERE a.datname = d.datname AND a.wait_event_type = 'Lock'),
    (SELECT count(*) FROM pg_stat_activity a WHERE a.datname = d.datname AND a.state LIKE 'idle in transaction%'),
    coalesce(d.blks_hit::double precision / nullif(d.blks_hit + d.blks_read, 0), 0),
    d.xact_commit, d.xact_rollback, d.deadlocks, d.temp_bytes, d.stats_reset, pg_postmaster_start_time()
FROM pg_stat_database d WHERE d.datname = current_database()`)
	tableStats = statement(`SELECT t.relname::text, pg_total_relation_size(t.relid), pg_indexes_size(t.relid), t.n_live_tup, t.n_dead_tup,
    t.n_tup_ins, t.n_tup_upd, t.n_tup_hot_upd, t.n_tup_del, t.last_autovacuum, t.last_autoanalyze, t.seq_scan, coalesce(t.idx_scan, 0)
FROM pg_stat_user_tables t WHERE t.schemaname = 'queen' ORDER BY 2 DESC, 1`)
)

// Postgres reads what the database says about itself and about our tables.
func (s *Store) Postgres(ctx context.Context) (p Postgres, err error) {
	var reset *time.Time
	err = s.pool.QueryRow(ctx, postgresStats).Scan(&p.Version, &p.Database, &p.Bytes, &p.Connections, &p.Max, &p.ActiveConnections,
		&p.WaitingOnLocks, &p.IdleInTransaction, &p.CacheHitRatio, &p.Commits, &p.Rolls, &p.Deadlocks, &p.TempBytes, &reset, &p.Started)
	if err != nil {
		return p, pg.Error("database statistics", err)
	}
	if reset != nil {
		p.StatsReset = *reset
	}
	err = s.query(ctx, "table statistics", tableStats, nil, func(rows pgx.Rows) error {
		var t Table
		var vacuumed, analyzed *time.Time
		err := rows.Scan(&t.Name, &t.Bytes, &t.IndexBytes, &t.Live, &t.Dead, &t.Inserted, &t.Updated, &t.Hot, &t.Deleted,
			&vacuumed, &analyzed, &t.SequentialScans, &t.IndexScans)
		if vacuumed != nil {
			t.LastAutovacuum = *vacuumed
		}
		if analyzed != nil {
			t.LastAutoanalyze = *analyzed
		}
		p.Tables = append(p.Tables, t)
		return err
	})
	return p, err
}

// PoolStats are the sessions of this process.
type PoolStats struct{ Size, Idle, Active, Max int }

// Pool returns the state of the pool; it asks nobody.
func (s *Store) Pool() PoolStats {
	if s.pool == nil {
		return PoolStats{}
	}
	st := s.pool.Stat()
	return PoolStats{Size: int(st.TotalConns()), Idle: int(st.IdleConns()), Active: int(st.AcquiredConns()), Max: int(st.MaxConns())}
}
