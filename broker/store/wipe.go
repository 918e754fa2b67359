package store

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

var closeTenant = statement(`SELECT queen.close_tenant($1)`)

// stateClosed is how queen.provision refuses a tenant that was removed.
const stateClosed = "QG002"

// errClosed is for a tenant that was removed. Nothing of it is stored, now or later.
var errClosed = &wire.Error{Code: wire.ClusterSuspended, Detail: "the tenant was removed"}

// Closed reports whether err says that the tenant was removed.
func Closed(err error) bool {
	var e *wire.Error
	return errors.As(err, &e) && e.Code == wire.ClusterSuspended
}

var wipeTenant = statement(`SELECT what, removed, done FROM queen.wipe_tenant($1, $2)`)

// wipeStep is how many rows one step of a wipe removes at most, but for the cursors of its partitions.
const wipeStep = 2000

// Wiped is what one step of a wipe removed.
type Wiped struct {
	What string // redrives, dead letters, partitions, queues, log, registrations, traces, history, ledger, tenant
	Rows int64
	Done bool // nothing of the tenant is left
}

// CloseTenant has a tenant create nothing any more, for good, so that a wipe of it comes to an end and nothing that a
// spool still holds makes it anew: Provision refuses it. What it has already goes on as it is until it is wiped. Doing it
// twice is fine; there is no way back.
func (s *Store) CloseTenant(ctx context.Context, tenant uuid.UUID) error {
	var void any // the function returns nothing
	return s.commit(ctx, "close tenant", closeTenant, []any{tenant}, []any{&void})
}

// WipeTenant takes one step of the removal of a tenant and all that any table holds of it: queues, messages, cursors,
// registrations, dead letters, redrives, traces, history, retained bytes. Call it until Done; a caller that stopped half
// way, or another one, goes on by calling again. Each step is one commit of a bounded number of rows and touches no row of
// another tenant. Consumers see the messages go with the step that removes their partition.
//
// A step without Done may remove nothing while another session is at the same rows; call again after a moment.
//
// The tenant should be closed before (CloseTenant): what one that is not writes meanwhile is stored as that of a new tenant.
// Brokers that saw it active write down their last minute of it afterwards, so a second wipe some minutes later finds what
// came late. Caches of other brokers learn of the deletions as of any other.
func (s *Store) WipeTenant(ctx context.Context, tenant uuid.UUID) (w Wiped, err error) {
	err = s.commit(ctx, "wipe tenant", wipeTenant, []any{tenant, wipeStep}, []any{&w.What, &w.Rows, &w.Done})
	return w, err
}
