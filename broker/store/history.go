package store

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
)

// Activity is what happened on a queue in some time. The zero value is nothing.
type Activity struct {
	PushRequests int64
	PushMessages int64 // stored: duplicates are not among them
	PopRequests  int64 // that delivered
	PopMessages  int64
	PopEmpty     int64
	AckRequests  int64
	AckSuccess   int64
	AckFailed    int64
	DeadLetters  int64
	Transactions int64
	LagMs        int64 // sum over PopMessages of their age when they were delivered
	LagMaxMs     int64
}

// Add adds o to a.
func (a *Activity) Add(o *Activity) {
	a.PushRequests += o.PushRequests
	a.PushMessages += o.PushMessages
	a.PopRequests += o.PopRequests
	a.PopMessages += o.PopMessages
	a.PopEmpty += o.PopEmpty
	a.AckRequests += o.AckRequests
	a.AckSuccess += o.AckSuccess
	a.AckFailed += o.AckFailed
	a.DeadLetters += o.DeadLetters
	a.Transactions += o.Transactions
	a.LagMs += o.LagMs
	a.LagMaxMs = max(a.LagMaxMs, o.LagMaxMs)
}

// AvgLagMs returns the mean age of a message when it was delivered.
func (a *Activity) AvgLagMs() float64 {
	if a.PopMessages == 0 {
		return 0
	}
	return float64(a.LagMs) / float64(a.PopMessages)
}

// fields are the numbers of a in the order of the columns of queue_metrics.
func (a *Activity) fields() []any {
	return []any{
		&a.PushRequests, &a.PushMessages, &a.PopRequests, &a.PopMessages, &a.PopEmpty, &a.AckRequests,
		&a.AckSuccess, &a.AckFailed, &a.DeadLetters, &a.Transactions, &a.LagMs, &a.LagMaxMs,
	}
}

// activitySums aggregates alias m in the order of fields.
const activitySums = `coalesce(sum(m.push_requests), 0)::bigint, coalesce(sum(m.push_messages), 0)::bigint, coalesce(sum(m.pop_requests), 0)::bigint,
    coalesce(sum(m.pop_messages), 0)::bigint, coalesce(sum(m.pop_empty), 0)::bigint, coalesce(sum(m.ack_requests), 0)::bigint,
    coalesce(sum(m.ack_success), 0)::bigint, coalesce(sum(m.ack_failed), 0)::bigint, coalesce(sum(m.dead_letters), 0)::bigint,
    coalesce(sum(m.transactions), 0)::bigint, coalesce(sum(m.lag_ms), 0)::bigint, coalesce(max(m.lag_max_ms), 0)::bigint`

// Broker identifies a process in the history.
type Broker struct {
	ID       uuid.UUID
	Hostname string
	Port     int
	Started  time.Time
	Seen     time.Time // when it last wrote; not used by WriteMinute
}

// Process is what a broker was like in a minute, or on average in several.
type Process struct {
	Requests, Messages, DBErrors   int64
	CPUUserPct, CPUSysPct          float64 // of one processor
	RSSBytes, HeapBytes            float64
	Goroutines, Parked             float64
	PoolSize, PoolIdle, PoolActive float64
	SchedLagMs, SchedLagMaxMs      float64 // how long a goroutine waited for a processor
}

// QueueMinute is a row of one queue in a minute.
type QueueMinute struct {
	Tenant uuid.UUID
	Queue  string
	Activity
	Parked int // waiting pops at the end of the minute; -1: as before
}

// Minute is all that a broker has to say about a minute.
type Minute struct {
	Bucket  time.Time
	Queues  []QueueMinute
	Process Process
}

var (
	writeMinute = statement(`SELECT queen.write_history($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`)
	purge       = statement(`SELECT queen.purge_history(clock_timestamp() - $1::bigint * interval '1 second', $2)`)
)

// WriteMinute stores a minute in one statement and one commit. A minute that is stored already stays as it is, so a
// call whose outcome is unknown may be repeated.
func (s *Store) WriteMinute(ctx context.Context, b Broker, m *Minute) error {
	n := len(m.Queues)
	tenants, queues, parked := make([]uuid.UUID, n), make([]string, n), make([]int32, n)
	counts := make([]int64, 0, 12*n)
	for i := range m.Queues {
		q := &m.Queues[i]
		tenants[i], queues[i], parked[i] = q.Tenant, q.Queue, int32(q.Parked)
		for _, f := range q.fields() {
			counts = append(counts, *f.(*int64))
		}
	}
	p := &m.Process
	return s.commit(ctx, "write history", writeMinute, []any{
		b.ID, b.Hostname, b.Port, b.Started, m.Bucket, tenants, queues, counts, parked, p.Requests, p.Messages, p.DBErrors,
		[]float64{
			p.CPUUserPct, p.CPUSysPct, p.RSSBytes, p.HeapBytes, p.Goroutines, p.Parked, p.PoolSize, p.PoolIdle, p.PoolActive,
			p.SchedLagMs, p.SchedLagMaxMs,
		},
	}, []any{new(int32)})
}

// purgeStep is how many rows of a kind one purge deletes at most.
const purgeStep = 5000

// PurgeHistory deletes a bounded number of minutes that are older than keep, in a commit of its own, and returns how
// many; 0 means that nothing is left to do. Sessions may purge at the same time.
func (s *Store) PurgeHistory(ctx context.Context, keep time.Duration) (removed int64, err error) {
	err = s.commit(ctx, "purge history", purge, []any{int64(keep.Seconds()), purgeStep}, []any{&removed})
	return removed, err
}

// Span is the part of the history that a reader wants, in buckets of a width. Buckets are aligned to the width.
type Span struct {
	From, To time.Time // To is exclusive
	Width    time.Duration
}

// binned is the bucket of alias m; the width is parameter 1 in microseconds.
const binned = `date_bin($1::bigint * interval '1 microsecond', m.bucket, timestamptz '2000-01-01 00:00:00+00')`

// Point is the activity of a bucket. Queue is "" when the point is of all queues.
type Point struct {
	Bucket time.Time
	Queue  string
	Activity
}

// Indexes: queue_metrics_pkey with a tenant, queue_metrics_bucket without.
var (
	historyOfQueues = statement(`SELECT ` + binned + `, m.queue, ` + activitySums + `
FROM queen.queue_metrics m
WHERE m.tenant_id = $4 AND m.bucket >= $2 AND m.bucket < $3 AND ($5 = '' OR m.queue = $5)
GROUP BY 1, 2 ORDER BY 1, 2`)
	historyOfTenant = statement(`SELECT ` + binned + `, '', ` + activitySums + `
FROM queen.queue_metrics m WHERE m.tenant_id = $4 AND m.bucket >= $2 AND m.bucket < $3 GROUP BY 1 ORDER BY 1`)
	historyOfCell = statement(`SELECT ` + binned + `, '', ` + activitySums + `
FROM queen.queue_metrics m WHERE m.bucket >= $2 AND m.bucket < $3 GROUP BY 1 ORDER BY 1`)
	workloadOfTenant = statement(`SELECT m.tenant_id, m.queue, ` + activitySums + `
FROM queen.queue_metrics m WHERE m.tenant_id = $1 AND m.bucket >= $2 AND m.bucket < $3 GROUP BY 1, 2
ORDER BY sum(m.push_messages + m.pop_messages) DESC, m.queue LIMIT $4`)
	workloadOfCell = statement(`SELECT m.tenant_id, m.queue, ` + activitySums + `
FROM queen.queue_metrics m WHERE m.bucket >= $1 AND m.bucket < $2 GROUP BY 1, 2
ORDER BY sum(m.push_messages + m.pop_messages) DESC, m.tenant_id, m.queue LIMIT $3`)
)

func (s *Store) points(ctx context.Context, sql string, span Span, args ...any) (all []Point, err error) {
	args = append([]any{span.Width.Microseconds(), span.From, span.To}, args...)
	err = s.query(ctx, "history", sql, args, func(rows pgx.Rows) error {
		var p Point
		err := rows.Scan(append([]any{&p.Bucket, &p.Queue}, p.fields()...)...)
		all = append(all, p)
		return err
	})
	return all, err
}

// QueueHistory returns the buckets of each queue of the tenant with activity, by time and name; queue "" means all.
func (s *Store) QueueHistory(ctx context.Context, tenant uuid.UUID, queue string, span Span) ([]Point, error) {
	return s.points(ctx, historyOfQueues, span, tenant, queue)
}

// TenantHistory returns the buckets of all queues of the tenant together, by time.
func (s *Store) TenantHistory(ctx context.Context, tenant uuid.UUID, span Span) ([]Point, error) {
	return s.points(ctx, historyOfTenant, span, tenant)
}

// CellHistory returns the buckets of all tenants together, by time.
func (s *Store) CellHistory(ctx context.Context, span Span) ([]Point, error) {
	return s.points(ctx, historyOfCell, span)
}

// QueueLoad is the activity of a queue in a span.
type QueueLoad struct {
	Tenant uuid.UUID
	Queue  string
	Activity
}

// Workload returns the busiest queues of the span, at most limit; uuid.Nil means those of all tenants.
func (s *Store) Workload(ctx context.Context, tenant uuid.UUID, span Span, limit int) (all []QueueLoad, err error) {
	sql, args := workloadOfTenant, []any{tenant, span.From, span.To, limit}
	if tenant == uuid.Nil {
		sql, args = workloadOfCell, args[1:]
	}
	err = s.query(ctx, "workload", sql, args, func(rows pgx.Rows) error {
		var q QueueLoad
		err := rows.Scan(append([]any{&q.Tenant, &q.Queue}, q.fields()...)...)
		all = append(all, q)
		return err
	})
	return all, err
}

// ParkedChange says that from At on so many pops waited on a queue at a broker.
type ParkedChange struct {
	At     time.Time
	Queue  string
	Broker uuid.UUID
	Parked int
}

// The last word of each broker before the span counts too. Index: queue_metrics_pkey.
var parkedChanges = statement(`SELECT m.bucket, m.queue, m.broker_id, m.parked
FROM queen.queue_metrics m
WHERE m.tenant_id = $1 AND m.bucket >= $2 AND m.bucket < $3 AND m.parked IS NOT NULL AND ($4 = '' OR m.queue = $4)
UNION ALL
(SELECT DISTINCT ON (m.queue, m.broker_id) m.bucket, m.queue, m.broker_id, m.parked
 FROM queen.queue_metrics m JOIN queen.brokers b ON b.id = m.broker_id
 WHERE m.tenant_id = $1 AND m.bucket < $2 AND m.bucket >= b.started_at - interval '1 minute' AND b.seen_at >= $2
   AND m.parked IS NOT NULL AND ($4 = '' OR m.queue = $4)
 ORDER BY m.queue, m.broker_id, m.bucket DESC)
ORDER BY 1, 2, 3`)

// Parked returns how the number of waiting pops changed within the span and what it was before, by time.
func (s *Store) Parked(ctx context.Context, tenant uuid.UUID, queue string, span Span) (all []ParkedChange, err error) {
	err = s.query(ctx, "parked pops", parkedChanges, []any{tenant, span.From, span.To, queue}, func(rows pgx.Rows) error {
		var c ParkedChange
		err := rows.Scan(&c.At, &c.Queue, &c.Broker, &c.Parked)
		all = append(all, c)
		return err
	})
	return all, err
}

var brokersSince = statement(`SELECT b.id, b.hostname, b.port, b.started_at, b.seen_at
FROM queen.brokers b WHERE b.seen_at >= $1 ORDER BY b.started_at, b.id`)

// Brokers returns the processes that have written since, in the order of their start.
func (s *Store) Brokers(ctx context.Context, since time.Time) (all []Broker, err error) {
	err = s.query(ctx, "brokers", brokersSince, []any{since}, func(rows pgx.Rows) error {
		var b Broker
		err := rows.Scan(&b.ID, &b.Hostname, &b.Port, &b.Started, &b.Seen)
		all = append(all, b)
		return err
	})
	return all, err
}

// ProcessPoint is a bucket of a broker.
type ProcessPoint struct {
	Bucket  time.Time
	Broker  uuid.UUID
	Samples int
	Process
}

// Index: broker_metrics_pkey.
var processHistory = statement(`SELECT ` + binned + `, m.broker_id, count(*), sum(m.requests)::bigint, sum(m.messages)::bigint,
    sum(m.db_errors)::bigint, avg(m.cpu_user_pct), avg(m.cpu_sys_pct), avg(m.rss_bytes)::double precision, avg(m.heap_bytes)::double precision,
    avg(m.goroutines)::double precision, avg(m.parked)::double precision, avg(m.pool_size)::double precision, avg(m.pool_idle)::double precision,
    avg(m.pool_active)::double precision, avg(m.sched_lag_ms), max(m.sched_lag_max_ms)
FROM queen.broker_metrics m WHERE m.bucket >= $2 AND m.bucket < $3 GROUP BY 1, 2 ORDER BY 2, 1`)

// ProcessHistory returns the buckets of every broker, those of one broker together and by time.
func (s *Store) ProcessHistory(ctx context.Context, span Span) (all []ProcessPoint, err error) {
	args := []any{span.Width.Microseconds(), span.From, span.To}
	err = s.query(ctx, "process history", processHistory, args, func(rows pgx.Rows) error {
		var p ProcessPoint
		err := rows.Scan(&p.Bucket, &p.Broker, &p.Samples, &p.Requests, &p.Messages, &p.DBErrors, &p.CPUUserPct, &p.CPUSysPct,
			&p.RSSBytes, &p.HeapBytes, &p.Goroutines, &p.Parked, &p.PoolSize, &p.PoolIdle, &p.PoolActive, &p.SchedLagMs, &p.SchedLagMaxMs)
		all = append(all, p)
		return err
	})
	return all, err
}

// Totals are the numbers of a cell since it was made, but for the minute that is not written yet.
type Totals struct {
	Activity
	DBErrors int64
}

var cellTotals = statement(`SELECT t.push_requests, t.push_messages, t.pop_requests, t.pop_messages, t.pop_empty, t.ack_requests,
    t.ack_success, t.ack_failed, t.dead_letters, t.transactions, 0::bigint, 0::bigint, t.db_errors
FROM queen.cell_totals t`)

// CellTotals reads the totals of the cell: one row.
func (s *Store) CellTotals(ctx context.Context) (t Totals, err error) {
	err = s.pool.QueryRow(ctx, cellTotals).Scan(append(t.fields(), &t.DBErrors)...)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return t, pg.Error("cell totals", err)
}
