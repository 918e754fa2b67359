package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// The lease is looked for among the tenant's own cursors only, so another tenant's lease is not found rather than
// refused. OFFSET 0 keeps the planner from reading the cursors of the whole cell instead. Row locks are taken in key
// order, as acks take them, and the lease is tested again under them, in the statement that renews it. Indexes:
// queues (tenant_id, name), log_partitions (queue_id, name) or its key, log_consumers_pkey.
const sqlExtendFind = `
WITH found AS MATERIALIZED (
    SELECT k.partition_id, k.consumer_group, q.lease_time
      FROM queen.queues q
     CROSS JOIN LATERAL (SELECT p.id FROM queen.log_partitions p WHERE p.queue_id = q.id OFFSET 0) p
     CROSS JOIN LATERAL (
           SELECT k.partition_id, k.consumer_group FROM queen.log_consumers k
            WHERE k.partition_id = p.id AND k.worker_id = $2 OFFSET 0) k
     WHERE q.tenant_id = $1
)`

const sqlExtendFindKnown = `
WITH found AS MATERIALIZED (
    SELECT k.partition_id, k.consumer_group, q.lease_time
      FROM queen.log_partitions p
      JOIN queen.queues q ON q.id = p.queue_id
      JOIN queen.log_consumers k ON k.partition_id = p.id
     WHERE p.id = ANY ($4::bigint[]) AND q.tenant_id = $1 AND k.worker_id = $2
)`

const sqlExtendRenew = `, held AS MATERIALIZED (
    SELECT k.partition_id, k.consumer_group, f.lease_time
      FROM found f
      JOIN queen.log_consumers k ON k.partition_id = f.partition_id AND k.consumer_group = f.consumer_group
     WHERE k.worker_id = $2 AND k.lease_expires_at > clock_timestamp()
     ORDER BY k.partition_id, k.consumer_group
       FOR NO KEY UPDATE OF k
), renewed AS (
    UPDATE queen.log_consumers k
       SET lease_expires_at = greatest(k.lease_expires_at, clock_timestamp() + make_interval(
               secs => CASE WHEN $3::integer > 0 THEN $3 ELSE greatest(60, h.lease_time) END))
      FROM held h
     WHERE k.partition_id = h.partition_id AND k.consumer_group = h.consumer_group
    RETURNING k.lease_expires_at
)
SELECT count(*), min(lease_expires_at) FROM renewed`

var (
	sqlExtend      = statement(sqlExtendFind + sqlExtendRenew)
	sqlExtendKnown = statement(sqlExtendFindKnown + sqlExtendRenew)
)

// Extend renews every live lease with that id held by the tenant, never shortens, never revives; seconds 0 means
// the larger of 60 s and the queue's lease time. expires is the earliest new expiry, zero when nothing was renewed: an
// unknown, foreign, expired or malformed lease renews nothing and is no error.
//
// It reads all cursors of the tenant, since a lease does not say which partitions it holds. A broker that granted the
// lease knows them: ExtendKnown.
func (s *Store) Extend(ctx context.Context, tenant uuid.UUID, lease string, seconds int) (renewed int, expires time.Time, err error) {
	return s.extend(ctx, tenant, lease, seconds, sqlExtend)
}

// ExtendKnown is Extend for a caller that knows all partitions the lease was granted on: it reads no others.
func (s *Store) ExtendKnown(ctx context.Context, tenant uuid.UUID, lease string, seconds int, partitions []int64) (renewed int, expires time.Time, err error) {
	return s.extend(ctx, tenant, lease, seconds, sqlExtendKnown, partitions)
}

func (s *Store) extend(ctx context.Context, tenant uuid.UUID, lease string, seconds int, sql string, known ...any) (renewed int, expires time.Time, err error) {
	worker, ok := parseLease(lease)
	if !ok {
		return 0, time.Time{}, nil
	}
	args := append([]any{tenant, worker, int32(min(max(seconds, 0), maxExtendSeconds))}, known...)
	var earliest *time.Time
	if err := s.commit(ctx, "extend lease", sql, args, []any{&renewed, &earliest}); err != nil || earliest == nil {
		return 0, time.Time{}, err
	}
	return renewed, earliest.UTC(), nil
}

// maxExtendSeconds keeps the sum inside PostgreSQL's calendar.
const maxExtendSeconds = 1 << 30

// parseLease accepts exactly the spelling a claim's lease id has on the wire, in any case of letters.
func parseLease(text string) (uuid.UUID, bool) {
	const canonical = 36
	if len(text) != canonical {
		return uuid.Nil, false
	}
	id, err := uuid.Parse(text)
	return id, err == nil
}
