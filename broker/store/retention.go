package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

var (
	retentionFirm      = statement(`SELECT queen.retention_firm($1)`)
	retentionSoft      = statement(`SELECT ids, seen, last_queue, last_at, last_id FROM queen.retention_soft($1, $2, $3, $4)`)
	sidecarDue         = statement(`SELECT queen.sidecar_due($1)`)
	trimPartitions     = statement(`SELECT segments, txns, raw_bytes, by_age, by_completion, by_wait, moved, busy FROM queen.trim_partitions($1, $2, $3, $4, $5, $6)`)
	sweepTrimmed       = statement(`SELECT queen.sweep_trimmed($1, $2, $3, $4)`)
	idlePartitions     = statement(`SELECT tenant_id, partition_id FROM queen.idle_partitions($1, $2)`)
	reclaimPartitions  = statement(`SELECT queen.reclaim_partitions($1, $2, $3, $4, $5, $6)`)
	foldRetentionStory = statement(`SELECT queen.fold_retention_history($1, $2, $3, $4, $5, $6)`)
	purgeWrites        = statement(`SELECT queen.purge_writes($1, $2, $3, $4)`)
)

// SoftPosition is where a round over the partitions whose groups decide has come to; the zero value is the beginning.
type SoftPosition struct {
	queue, id int64
	at        time.Time
}

// Trimmed is what one step of retention did. Messages are counted by the rule that let them go.
type Trimmed struct {
	Segments, Txns, RawBytes    int64
	ByAge, ByCompletion, ByWait int64
	Moved                       []int64 // partitions whose watermarks moved
	Busy                        []int64 // partitions that others held: nothing was done to them
}

// Messages returns the number of messages removed.
func (t *Trimmed) Messages() int64 { return t.ByAge + t.ByCompletion + t.ByWait }

// RetentionFirm returns at most limit partitions whose oldest segment goes whatever any group has done: it is past
// retentionSeconds or maxWaitTimeSeconds. A Trim of them makes progress unless others hold them. One read, no lock.
func (s *Store) RetentionFirm(ctx context.Context, limit int) ([]int64, error) {
	return s.partitions(ctx, "retention list", retentionFirm, limit)
}

// RetentionSoft looks at limit partitions after a position whose oldest segment goes if the groups let it, and returns
// those where they may, with the position to go on from; the zero position when the round is complete. One read, no lock.
func (s *Store) RetentionSoft(ctx context.Context, after SoftPosition, limit int) (ids []int64, next SoftPosition, err error) {
	args := []any{nil, nil, nil, limit}
	if after != (SoftPosition{}) {
		args = []any{after.queue, after.at, after.id, limit}
	}
	var seen int64
	var queue, id *int64
	var at *time.Time
	err = s.query(ctx, "retention round", retentionSoft, args, func(rows pgx.Rows) error {
		return rows.Scan(&ids, &seen, &queue, &at, &id)
	})
	if err != nil {
		return nil, SoftPosition{}, err
	}
	if seen < int64(limit) {
		return ids, SoftPosition{}, nil
	}
	return ids, SoftPosition{*queue, *id, *at}, nil
}

// SidecarDue returns at most limit partitions whose oldest hash row is past its age. One read, no lock.
func (s *Store) SidecarDue(ctx context.Context, limit int) ([]int64, error) {
	return s.partitions(ctx, "sidecar list", sidecarDue, limit)
}

func (s *Store) partitions(ctx context.Context, op, sql string, limit int) (ids []int64, err error) {
	err = s.query(ctx, op, sql, []any{limit}, func(rows pgx.Rows) error {
		var id int64
		err := rows.Scan(&id)
		ids = append(ids, id)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ids, nil
}

// Trim is one step of retention on some partitions: under TaskRetention it removes at most batch whole segments of each
// from the front, under TaskSidecar at most batch hash rows, by the rules of their queues, in one commit with the counters, the tenants' retained bytes and the
// history. The rows themselves stay until SweepTrimmed; no reader looks at them any more.
//
// It skips partitions that a push holds, and holds none for longer than an update by key. With wait it waits up to 250 ms
// for one that was busy too often. Errors: ErrFenced, then nothing was written.
func (s *Store) Trim(ctx context.Context, l TaskLease, partitions []int64, batch int, wait bool) (Trimmed, error) {
	var t Trimmed
	var segments, txns, raw, age, completion, waited *int64
	args := []any{l.Task, l.Holder, l.Fence, partitions, batch, wait}
	dest := []any{&segments, &txns, &raw, &age, &completion, &waited, &t.Moved, &t.Busy}
	if err := s.commit(ctx, "trim partitions", trimPartitions, args, dest); err != nil {
		return Trimmed{}, err
	}
	if segments == nil {
		return Trimmed{}, ErrFenced
	}
	t.Segments, t.Txns, t.RawBytes = *segments, *txns, *raw
	t.ByAge, t.ByCompletion, t.ByWait = *age, *completion, *waited
	return t, nil
}

// SweepTrimmed deletes about limit rows of the log that steps of retention have removed, in a commit of its own and
// without the lock of any partition, and returns how many; 0 means that nothing is left. Errors: ErrFenced.
func (s *Store) SweepTrimmed(ctx context.Context, l TaskLease, limit int) (rows int64, err error) {
	return s.fenced(ctx, "sweep trimmed", sweepTrimmed, l, limit)
}

// ReclaimPartitions deletes at most limit partitions that are empty and to which nobody has come for idle, oldest first,
// and returns how many. Dead letters, a live lease and a group that was active within idle are vetoes; all is decided
// again under the partition's lock. Each tenant's are deleted in one commit, by the routine of DeletePartitions, and a
// push that meets it finds its partition missing and makes it anew. Errors: ErrFenced.
func (s *Store) ReclaimPartitions(ctx context.Context, l TaskLease, idle time.Duration, limit int) (deleted int64, err error) {
	var tenants []uuid.UUID
	byTenant := map[uuid.UUID][]int64{}
	err = s.query(ctx, "idle partitions", idlePartitions, []any{idle, limit}, func(rows pgx.Rows) error {
		var tenant uuid.UUID
		var id int64
		if err := rows.Scan(&tenant, &id); err != nil {
			return err
		}
		if byTenant[tenant] == nil {
			tenants = append(tenants, tenant)
		}
		byTenant[tenant] = append(byTenant[tenant], id)
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, tenant := range tenants {
		n, err := s.fenced(ctx, "reclaim partitions", reclaimPartitions, l, tenant, byTenant[tenant], idle)
		if err != nil {
			return deleted, err
		}
		deleted += n
	}
	return deleted, nil
}

// FoldRetentionHistory makes one row per hour, queue and kind of history that is older than fold, at most limit rows in a
// commit, drops what is older than keep, and returns the number of rows it took. Errors: ErrFenced.
func (s *Store) FoldRetentionHistory(ctx context.Context, l TaskLease, fold, keep time.Duration, limit int) (rows int64, err error) {
	return s.fenced(ctx, "fold retention history", foldRetentionStory, l, fold, keep, limit)
}

// PurgeWrites deletes at most limit rows of the log of writes that no feed looks back to any more, in a commit that no one
// waits for, and returns how many; 0 means that nothing is left. Errors: ErrFenced.
func (s *Store) PurgeWrites(ctx context.Context, l TaskLease, limit int) (rows int64, err error) {
	return s.fenced(ctx, "purge writes", purgeWrites, l, limit)
}

// RetentionPoint is what retention removed from a queue in a bucket of time. Queue is "" for all queues together.
type RetentionPoint struct {
	At                          time.Time
	Queue                       string
	ByAge, ByCompletion, ByWait int64 // messages
	Events                      int64 // steps that removed messages
	PartitionsDeleted           int64
}

// Index: retention_history (tenant_id, at). The bucket is in microseconds.
const retentionBuckets = `
SELECT date_bin($4::bigint * interval '1 microsecond', h.at, timestamptz '2000-01-01 00:00:00+00'), `

const retentionSums = `
       coalesce(sum(h.messages) FILTER (WHERE h.kind = 'retention'), 0)::bigint,
       coalesce(sum(h.messages) FILTER (WHERE h.kind = 'completed_retention'), 0)::bigint,
       coalesce(sum(h.messages) FILTER (WHERE h.kind = 'eviction'), 0)::bigint,
       coalesce(sum(h.events) FILTER (WHERE h.kind <> 'partition_deleted'), 0)::bigint,
       coalesce(sum(h.events) FILTER (WHERE h.kind = 'partition_deleted'), 0)::bigint
  FROM queen.retention_history h
 WHERE h.tenant_id = $1 AND h.at >= $2 AND h.at < $3 AND ($5 = '' OR h.queue = $5)
 GROUP BY 1, 2 ORDER BY 1, 2`

var (
	retentionOfTenant = statement(retentionBuckets + `''::text,` + retentionSums)
	retentionByQueue  = statement(retentionBuckets + `h.queue,` + retentionSums)
)

// RetentionHistory returns what retention did for a tenant in the buckets of a span, ascending, of one queue or of all
// ("") together or, byQueue, apart. What is older than a day is known by the hour. One read, no lock.
func (s *Store) RetentionHistory(ctx context.Context, tenant uuid.UUID, queue string, span Span, byQueue bool) ([]RetentionPoint, error) {
	sql := retentionOfTenant
	if byQueue {
		sql = retentionByQueue
	}
	points := []RetentionPoint{}
	err := s.query(ctx, "retention history", sql, []any{tenant, span.From, span.To, span.Width.Microseconds(), queue}, func(rows pgx.Rows) error {
		var p RetentionPoint
		err := rows.Scan(&p.At, &p.Queue, &p.ByAge, &p.ByCompletion, &p.ByWait, &p.Events, &p.PartitionsDeleted)
		points = append(points, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	return points, nil
}
