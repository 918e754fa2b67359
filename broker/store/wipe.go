package store

import (
	"context"

	"github.com/google/uuid"
)

var wipeTenant = statement(`SELECT what, removed, done FROM queen.wipe_tenant($1, $2)`)

// wipeStep is how many rows one step of a wipe removes at most, but for the cursors of its partitions.
const wipeStep = 2000

// Wiped is what one step of a wipe removed.
type Wiped struct {
	What string // redrives, dead letters, partitions, queues, log, registrations, traces, history, ledger, tenant
	Rows int64
	Done bool // nothing of the tenant is left
}

// WipeTenant takes one step of the removal of a tenant and all that any table holds of it: queues, messages, cursors,
// registrations, dead letters, redrives, traces, history, retained bytes. Call it until Done; a caller that stopped half
// way, or another one, goes on by calling again. Each step is one commit of a bounded number of rows and touches no row of
// another tenant. Consumers see the messages go with the step that removes their partition.
//
// A step without Done may remove nothing while another session is at the same rows; call again after a moment.
//
// The tenant should be closed before: what it writes meanwhile is stored as that of a new tenant, and brokers that saw it
// active write down their last minute of it afterwards, so a second wipe some minutes later finds what came late. Caches
// of other brokers learn of the deletions as of any other.
func (s *Store) WipeTenant(ctx context.Context, tenant uuid.UUID) (w Wiped, err error) {
	err = s.commit(ctx, "wipe tenant", wipeTenant, []any{tenant, wipeStep}, []any{&w.What, &w.Rows, &w.Done})
	return w, err
}
