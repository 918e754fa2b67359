package wipe

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// store is the SQL of a Wiper: calls of migrations/gateway/routines/80_life_cycle.sql.
type store struct {
	pool   *pgxpool.Pool
	holder string // this process, for the lease
}

// task is the name of the lease.
const task = "wipe"

// dying is a cluster whose data is to be removed.
type dying struct {
	cluster   plans.Cluster // what a cell is asked with; it has no limits
	begun     bool
	confirmed bool          // nothing is left but what the control database knows
	wait      time.Duration // until the next step is due
}

const (
	sqlDyingClusters = `SELECT cluster_id, slug, tenant_id, tenant, broker_tenant, cell, begun, confirmed, wait FROM queengate.dying_clusters($1)`
	sqlDyingTenants  = `SELECT tenant_id, slug FROM queengate.dying_tenants()`
)

// dying returns the clusters to be removed, and the tenants that have none any more: of these only the names are set. One
// round trip, no lock.
func (s *store) dying(ctx context.Context, settle time.Duration) (clusters []dying, tenants []plans.Cluster, err error) {
	var b pgx.Batch
	b.Queue(sqlDyingClusters, settle).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var d dying
			c := &d.cluster
			if err := rows.Scan(&c.ID, &c.Slug, &c.TenantID, &c.Tenant, &c.BrokerTenant, &c.Cell, &d.begun, &d.confirmed, &d.wait); err != nil {
				return err
			}
			c.Status = plans.Deleting
			clusters = append(clusters, d)
		}
		return rows.Err()
	})
	b.Queue(sqlDyingTenants).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var t plans.Cluster
			if err := rows.Scan(&t.TenantID, &t.Tenant); err != nil {
				return err
			}
			tenants = append(tenants, t)
		}
		return rows.Err()
	})
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, nil, fmt.Errorf("read what is deleting: %w", err)
	}
	return clusters, tenants, nil
}

// take takes or renews the lease and returns its fence, 0 while another process has it.
func (s *store) take(ctx context.Context, d time.Duration) (fence int64, err error) {
	var got *int64
	if err := s.pool.QueryRow(ctx, `SELECT queengate.take_lease($1, $2, $3)`, task, s.holder, d).Scan(&got); err != nil {
		return 0, fmt.Errorf("take the lease on %s: %w", task, err)
	}
	if got == nil {
		return 0, nil
	}
	return *got, nil
}

// release ends the lease.
func (s *store) release(ctx context.Context) error {
	return s.exec(ctx, "release the lease", `SELECT queengate.release_lease($1, $2)`, task, s.holder)
}

// begin notes that a wipe begins; bytes is what there is, nil when that is not known.
func (s *store) begin(ctx context.Context, fence int64, cluster uuid.UUID, bytes *int64) error {
	return s.exec(ctx, "begin a wipe", `SELECT queengate.begin_wipe($1, $2, $3)`, fence, cluster, bytes)
}

// note adds what a step has removed, and reports whether the wipe is over.
func (s *store) note(ctx context.Context, fence int64, cluster uuid.UUID, a *wire.WipeAnswer, settle time.Duration) (ended bool, err error) {
	err = s.pool.QueryRow(ctx, `SELECT queengate.note_wipe($1, $2, $3, $4, $5, $6, $7, $8)`,
		fence, cluster, a.Rows, a.Done, a.What, a.RetainedBytes, a.Queues, settle).Scan(&ended)
	if err != nil {
		return false, fmt.Errorf("note a step: %w", err)
	}
	return ended, nil
}

// fail notes why a step did not work.
func (s *store) fail(ctx context.Context, fence int64, cluster uuid.UUID, cause error) error {
	return s.exec(ctx, "note a failure", `SELECT queengate.fail_wipe($1, $2, $3)`, fence, cluster, cause.Error())
}

// deleteCluster forgets a cluster whose wipe is over.
func (s *store) deleteCluster(ctx context.Context, fence int64, cluster uuid.UUID) error {
	return s.exec(ctx, "delete the cluster", `SELECT queengate.delete_cluster($1, $2)`, fence, cluster)
}

// deleteTenant forgets a tenant without clusters.
func (s *store) deleteTenant(ctx context.Context, tenant uuid.UUID) error {
	return s.exec(ctx, "delete the tenant", `SELECT queengate.delete_tenant($1)`, tenant)
}

func (s *store) exec(ctx context.Context, what, sql string, args ...any) error {
	if _, err := s.pool.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
