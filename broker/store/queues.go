package store

import (
	"context"
	"errors"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

// queueColumns are the columns of alias q that scanQueue reads.
const queueColumns = `q.id, q.uid, q.tenant_id, q.name, q.created_at, q.namespace, q.task, q.lease_time, q.retry_limit,
q.retry_delay, q.priority, q.max_size, q.ttl, q.dead_letter_queue, q.dlq_after_max_retries, q.delayed_processing,
q.window_buffer, q.retention_enabled, q.retention_seconds, q.completed_retention_seconds, q.max_wait_time_seconds,
q.min_pop_wait_time, q.encryption_enabled, q.dedup_window_seconds, q.retention_sink_hold, q.retention_sink_hold_max_seconds`

// fields are the destinations of queueColumns.
func (q *Queue) fields() []any {
	o := &q.Options
	return []any{
		&q.ID, &q.UID, &q.Tenant, &q.Name, &q.Created, &o.Namespace, &o.Task, &o.LeaseTime, &o.RetryLimit,
		&o.RetryDelay, &o.Priority, &o.MaxSize, &o.TTL, &o.DeadLetterQueue, &o.DLQAfterMaxRetries, &o.DelayedProcessing,
		&o.WindowBuffer, &o.RetentionEnabled, &o.RetentionSeconds, &o.CompletedRetentionSeconds, &o.MaxWaitTimeSeconds,
		&o.MinPopWaitTime, &o.EncryptionEnabled, &o.DedupWindowSeconds, &o.RetentionSinkHold, &o.RetentionSinkHoldMaxSeconds,
	}
}

// Index: queues (tenant_id, name).
var queueByName = statement(`SELECT ` + queueColumns + ` FROM queen.queues q WHERE q.tenant_id = $1 AND q.name = $2`)

// The row lock follows the tenant's, which provisionOn took.
var queueForUpdate = statement(`SELECT ` + queueColumns + ` FROM queen.queues q
WHERE q.tenant_id = $1 AND q.name = $2 FOR NO KEY UPDATE`)

var rewriteQueue = statement(`UPDATE queen.queues SET
    namespace = $2, task = $3, lease_time = $4, retry_limit = $5, retry_delay = $6, priority = $7, max_size = $8, ttl = $9,
    dead_letter_queue = $10, dlq_after_max_retries = $11, delayed_processing = $12, window_buffer = $13,
    retention_enabled = $14, retention_seconds = $15, completed_retention_seconds = $16, max_wait_time_seconds = $17,
    min_pop_wait_time = $18, encryption_enabled = $19, dedup_window_seconds = $20, retention_sink_hold = $21,
    retention_sink_hold_max_seconds = $22
WHERE id = $1`)

var (
	setEncryption = statement(`SELECT queen.set_encryption($1, $2)`)
	bumpConfig    = statement(`SELECT queen.bump_config()`)
	deleteQueue   = statement(`SELECT existed, partitions FROM queen.delete_queue($1, $2)`)
	deleteParts   = statement(`SELECT queen.delete_partitions($1, $2)`)
	sweepDropped  = statement(`SELECT queen.sweep_dropped($1)`)
)

// LookupQueue returns the queue, or nil when there is none. One read, no lock.
func (s *Store) LookupQueue(ctx context.Context, tenant uuid.UUID, queue string) (*Queue, error) {
	const op = "look up queue"
	conn, err := s.acquire(ctx, op)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	q := &Queue{Life: pg.LifeOf(conn.Conn())}
	err = conn.QueryRow(ctx, queueByName, tenant, queue).Scan(q.fields()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, pg.Error(op, err)
	}
	return q, nil
}

// Configure creates the queue with its Default partition, or rewrites its options, and returns the result. absent is
// what a request without a mode means; a new queue starts from the defaults of configure in both modes. What comes out
// without retention is the business of caps.Unbounded. Errors: wire.QuotaExceeded with Limit queues or retention,
// wire.InvalidRequest for a number no queue can hold; nothing changed then.
//
// Once it returns with EncryptionEnabled set, no plaintext is stored in the queue any more, whatever other brokers
// believe: it waits for the pushes under way on each partition.
func (s *Store) Configure(ctx context.Context, tenant uuid.UUID, req *wire.ConfigureRequest, absent wire.ConfigureMode, caps Caps) (*Queue, error) {
	var q *Queue
	counts := caps
	counts.Unbounded = Unbounded{} // judged below, with the options that the request gives
	// The transaction commits, so it is not cancelled half-way (design.md 5.10).
	ctx = context.WithoutCancel(ctx)
	err := pg.Tx(ctx, s.pool, func(tx pgx.Tx) error {
		created, err := provisionOn(ctx, tx, tenant, []Pair{{req.Queue, wire.DefaultPartition}}, counts)
		if err != nil {
			return err
		}
		q = &Queue{Life: pg.LifeOf(tx.Conn())}
		if err := tx.QueryRow(ctx, queueForUpdate, tenant, req.Queue).Scan(q.fields()...); err != nil {
			return err
		}
		stored := q.Options
		if created > 0 {
			stored = wire.DefaultOptions()
		}
		q.Options = req.Apply(stored, wire.DefaultOptions(), absent)
		if err := caps.Unbounded.apply(q.Name, &q.Options); err != nil {
			return err
		}
		if err := checkRange(&q.Options); err != nil {
			return err
		}
		// Beyond the identity, fields are the options in the order of the statement's parameters.
		args := append([]any{q.ID}, q.fields()[5:]...)
		if _, err := tx.Exec(ctx, rewriteQueue, args...); err != nil {
			return err
		}
		if stored.EncryptionEnabled != q.Options.EncryptionEnabled {
			if _, err := tx.Exec(ctx, setEncryption, q.ID, q.Options.EncryptionEnabled); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, bumpConfig)
		return err
	})
	if err != nil {
		return nil, pg.Error("configure", err)
	}
	return q, nil
}

// checkRange refuses numbers that the columns cannot hold.
func checkRange(o *wire.QueueOptions) error {
	for _, f := range []struct {
		name string
		n    int
	}{
		{"leaseTime", o.LeaseTime},
		{"retryLimit", o.RetryLimit},
		{"retryDelay", o.RetryDelay},
		{"priority", o.Priority},
		{"maxSize", o.MaxSize},
		{"ttl", o.TTL},
		{"delayedProcessing", o.DelayedProcessing},
		{"windowBuffer", o.WindowBuffer},
		{"retentionSeconds", o.RetentionSeconds},
		{"completedRetentionSeconds", o.CompletedRetentionSeconds},
		{"maxWaitTimeSeconds", o.MaxWaitTimeSeconds},
		{"minPopWaitTime", o.MinPopWaitTime},
		{"dedupWindowSeconds", o.DedupWindowSeconds},
		{"retentionSinkHoldMaxSeconds", o.RetentionSinkHoldMaxSeconds},
	} {
		if f.n < math.MinInt32 || f.n > math.MaxInt32 {
			return wire.Errorf(wire.InvalidRequest, "%s = %d: want at most %d", f.name, f.n, math.MaxInt32)
		}
	}
	return nil
}

// sweepStep is how many segments and sidecar rows one sweep statement deletes at most: a few tens of milliseconds.
const sweepStep = 2000

// DeleteQueue removes the queue with its messages, cursors, registrations, dead letters and dedup keys, and gives its
// retained bytes back. partitions are the ids that caches must forget.
//
// The queue is gone for everybody, and its bytes are freed in the ledger, when the first statement commits; that
// statement waits for pushes in flight. The rows of its log, which nobody can reach any more, are then deleted in
// bounded steps: a small log before DeleteQueue returns, the rest by whoever calls SweepDropped.
func (s *Store) DeleteQueue(ctx context.Context, tenant uuid.UUID, queue string) (existed bool, partitions []int64, err error) {
	if err := s.commit(ctx, "delete queue", deleteQueue, []any{tenant, queue}, []any{&existed, &partitions}); err != nil {
		return false, nil, err
	}
	if len(partitions) > 0 {
		// The deletion stands whatever becomes of this step: what it leaves is swept later.
		_, _ = s.SweepDropped(ctx)
	}
	return existed, partitions, nil
}

// DeletePartitions removes those of the partitions that belong to the tenant, as DeleteQueue does, and returns their
// ids. Their queue stays.
func (s *Store) DeletePartitions(ctx context.Context, tenant uuid.UUID, partitions []int64) (deleted []int64, err error) {
	err = s.commit(ctx, "delete partitions", deleteParts, []any{tenant, partitions}, []any{&deleted})
	return deleted, err
}

// SweepDropped deletes a bounded number of log rows of deleted queues and partitions, in a commit of its own, and
// returns how many; 0 means that nothing is left to do. Sessions may sweep at the same time.
func (s *Store) SweepDropped(ctx context.Context) (removed int64, err error) {
	err = s.commit(ctx, "sweep", sweepDropped, []any{sweepStep}, []any{&removed})
	return removed, err
}
