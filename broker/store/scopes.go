package store

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/wire"
)

// Scope is the queues of a tenant that have a namespace, a task or both. Values are matched exactly; "" was not given
// and matches any, and at least one is given.
type Scope struct {
	Tenant          uuid.UUID
	Namespace, Task string
}

// maxScopeRegistrations bounds the scopes that the groups of a tenant may be registered for.
const maxScopeRegistrations = 10_000

var (
	sqlRegisterScope = statement(`SELECT outcome, coalesce(conflating, false) FROM queen.register_scope($1, $2, $3, $4, $5, $6, $7, $8, $9)`)
	sqlScopeQueues   = statement(`SELECT scope, queue_id, queue FROM queen.scope_queues($1, $2, $3)`)
)

// RegisterScope is Register for all queues of a scope, in one commit. Call it again when a queue has joined: it is read
// from the time at which the group was first registered for the scope. A registration that the group has on a queue
// already stays as it is. Of the cursors it makes 5,000 at most, as Register does.
//
// Errors: wire.QuotaExceeded when the groups of the tenant are registered for 10,000 scopes already.
func (s *Store) RegisterScope(ctx context.Context, scope Scope, group string, seed Seed) (conflates bool, err error) {
	if group == wire.QueueModeGroup {
		return false, nil
	}
	mode, from := seed.columns()
	var outcome string
	if err := s.commit(ctx, "register scope", sqlRegisterScope,
		[]any{scope.Tenant, group, scope.Namespace, scope.Task, mode, from, seed.Conflation, maxScopeRegistrations, seedWhole},
		[]any{&outcome, &conflates}); err != nil {
		return false, err
	}
	if outcome == "full" {
		e := wire.Errorf(wire.QuotaExceeded, "consumer groups are registered for %d pairs of namespace and task", maxScopeRegistrations)
		e.Limit = &wire.Limit{Name: "registrations", Limit: maxScopeRegistrations, Used: maxScopeRegistrations, Unit: "groups"}
		return false, e
	}
	return conflates, nil
}

// Member is a queue of a scope.
type Member struct {
	QueueID int64
	Name    string
}

// ScopeQueues returns the queues of each scope, in no particular order; element i answers scopes[i].
func (s *Store) ScopeQueues(ctx context.Context, scopes []Scope) ([][]Member, error) {
	tenants := make([]uuid.UUID, len(scopes))
	namespaces, tasks := make([]string, len(scopes)), make([]string, len(scopes))
	for i, sc := range scopes {
		tenants[i], namespaces[i], tasks[i] = sc.Tenant, sc.Namespace, sc.Task
	}
	out := make([][]Member, len(scopes))
	err := s.query(ctx, "queues of scopes", sqlScopeQueues, []any{tenants, namespaces, tasks}, func(rows pgx.Rows) error {
		var n int64
		var m Member
		if err := rows.Scan(&n, &m.QueueID, &m.Name); err != nil {
			return err
		}
		out[n-1] = append(out[n-1], m)
		return nil
	})
	return out, err
}
