package store

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// No lock: one snapshot sees the folded number and the ledger rows that are not in it. Indexes: tenants_pkey; the
// ledger is read whole, a fold keeps it short.
var usage = statement(`SELECT w.tenant_id, (coalesce(t.retained_bytes, 0) + coalesce(l.bytes, 0))::bigint,
    coalesce(t.queue_count, 0), clock_timestamp()
FROM unnest($1::uuid[]) WITH ORDINALITY AS w (tenant_id, ordinal)
LEFT JOIN queen.tenants t USING (tenant_id)
LEFT JOIN (
    SELECT r.tenant_id, sum(r.bytes) AS bytes FROM queen.retained_ledger r
    WHERE r.tenant_id = ANY ($1::uuid[]) GROUP BY r.tenant_id
) l USING (tenant_id)
ORDER BY w.ordinal`)

var usageOfAll = statement(`SELECT t.tenant_id, (t.retained_bytes + coalesce(l.bytes, 0))::bigint, t.queue_count, clock_timestamp()
FROM queen.tenants t
LEFT JOIN (SELECT r.tenant_id, sum(r.bytes) AS bytes FROM queen.retained_ledger r GROUP BY r.tenant_id) l USING (tenant_id)
ORDER BY t.tenant_id`)

var foldUsage = statement(`SELECT queen.fold_usage()`)

// Usage returns what each of the tenants occupies, in input order; nil means every tenant there is. RetainedBytes is
// exact: the payload bytes of all pushes committed before the call that no retention or deletion has freed since. An
// unknown tenant occupies nothing. One read, no lock.
func (s *Store) Usage(ctx context.Context, tenants []uuid.UUID) ([]Usage, error) {
	sql, args := usageOfAll, []any(nil)
	if tenants != nil {
		sql, args = usage, []any{tenants}
	}
	used := make([]Usage, 0, len(tenants))
	err := s.query(ctx, "usage", sql, args, func(rows pgx.Rows) error {
		var u Usage
		if err := rows.Scan(&u.Tenant, &u.RetainedBytes, &u.Queues, &u.ComputedAt); err != nil {
			return err
		}
		used = append(used, u)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return used, nil
}

// FoldUsage moves the ledger of retained bytes into the tenant rows and returns the number of ledger rows moved. It
// changes no answer of Usage, only what that answer costs. A second or so between folds is right; folds may run at the
// same time.
func (s *Store) FoldUsage(ctx context.Context) (moved int64, err error) {
	err = s.commit(ctx, "fold usage", foldUsage, nil, []any{&moved})
	return moved, err
}
