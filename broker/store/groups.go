package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

// maxAbsentRegistrations bounds what a tenant may register for queues that do not exist. Callers that race may pass
// it by their number: it guards the table, not a plan.
const maxAbsentRegistrations = 10_000

var (
	sqlRegister = statement(`SELECT outcome, coalesce(conflating, false) FROM queen.register_group($1, $2, $3, $4, $5, $6, $7, $8)`)
	sqlSeed     = statement(`SELECT queen.seed_cursors($1, $2)`)
	sqlSeedNext = statement(`SELECT queen.seed_registered($1, $2, $3, $4)`)
)

// seedWhole is how many cursors a registration makes in its own commit: some 0.2 s of work at most.
const seedWhole = 5_000

// Register records the group on the queue at its first pop; later calls change nothing, whatever their seed. The queue
// need not exist. It is one commit, and a short one whatever the queue: cursors of the existing partitions are made along
// with it up to 5,000 of them, else by SeedRegistered and by the first claim of each. What the group gets is the same.
//
// SeedNew starts existing partitions at their end; partitions created later deliver everything. SeedTimestamp starts
// each partition at the first segment stamped at or after seed.From, and at its end when there is none. The group
// wire.QueueModeGroup has no registration and always starts with the log: for it Register does nothing.
//
// It answers whether the group conflates, which its first registration has decided whatever seed says now.
//
// Errors: wire.QuotaExceeded when the queue does not exist and the tenant has 10,000 such registrations already.
func (s *Store) Register(ctx context.Context, tenant uuid.UUID, group, queue string, seed Seed) (conflates bool, err error) {
	if group == wire.QueueModeGroup {
		return false, nil
	}
	mode, from := seed.columns()
	var outcome string
	if err := s.commit(ctx, "register group", sqlRegister,
		[]any{tenant, group, queue, mode, from, seed.Conflation, maxAbsentRegistrations, seedWhole}, []any{&outcome, &conflates}); err != nil {
		return false, err
	}
	if outcome == "full" {
		e := wire.Errorf(wire.QuotaExceeded, "%d consumer groups are registered on queues that do not exist; create the queues first", maxAbsentRegistrations)
		e.Limit = &wire.Limit{Name: "registrations", Limit: maxAbsentRegistrations, Used: maxAbsentRegistrations, Unit: "groups"}
		return false, e
	}
	return conflates, nil
}

// SeedRegistered makes cursors that registrations on large queues still owe, of at most limit partitions, in one commit. It
// returns how many partitions it looked at, at least 1, and 0 when nothing is owed but by tenants that others have locked.
// Meanwhile such a tenant's queues and partitions are not created or deleted, and its groups not moved; messages flow.
// Errors: ErrFenced.
func (s *Store) SeedRegistered(ctx context.Context, l TaskLease, limit int) (partitions int64, err error) {
	return s.fenced(ctx, "seed registered", sqlSeedNext, l, limit)
}

// columns returns the seed as a registration holds it; a nil time is the time of registration.
func (s Seed) columns() (mode string, from *time.Time) {
	switch s.Mode {
	case wire.SeedNew:
		return "new", nil
	case wire.SeedTimestamp:
		return "timestamp", &s.From
	}
	return "all", nil
}

// seedCursors creates missing cursors by the registrations of their groups. It is a statement of its own, without
// another lock held, so that first contacts cannot wait for each other in a circle.
func (s *Store) seedCursors(ctx context.Context, partitions []int64, groups []string) error {
	conn, err := s.acquire(ctx, seedOp)
	if err != nil {
		return err
	}
	defer conn.Release()
	return seedOn(ctx, conn.Conn(), partitions, groups)
}

const seedOp = "seed cursors"

// seedOn is seedCursors on a session that the caller holds.
func seedOn(ctx context.Context, conn *pgx.Conn, partitions []int64, groups []string) error {
	err := conn.QueryRow(context.WithoutCancel(ctx), sqlSeed, partitions, groups).Scan(new(int64))
	return pg.Error(seedOp, pg.Confirmed(conn, err))
}
