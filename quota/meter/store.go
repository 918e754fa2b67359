package meter

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pg"
)

// Count is all that one gateway has counted of a cluster's month.
type Count struct {
	Cluster  uuid.UUID
	Month    Month
	Messages int64
}

// Warning says that a month has passed a mark of its allowance.
type Warning struct {
	Cluster   uuid.UUID
	Month     Month
	Percent   int // of the allowance
	Messages  int64
	Allowance int64
}

// Store keeps months in the control database, and who decides without Redis (alone.go). Its writes take no lock that writers of the catalogue want.
type Store struct{ pool *pgxpool.Pool }

// NewStore returns the store of a control database. It does no I/O.
func NewStore(pool *pgxpool.Pool) *Store { return &Store{pool} }

// The statements of the store. Index: the primary key of usage_months.
const (
	sqlLoad = `SELECT gateway, messages FROM queengate.usage_months WHERE cluster_id = $1 AND month = $2`
	sqlSave = `SELECT queengate.save_months($1, $2, $3, $4)`
	sqlWarn = `SELECT queengate.warn_month($1, $2, $3, $4, $5)`
	sqlFold = `SELECT queengate.fold_months($1, $2)`
)

// Load returns what each gateway has counted of a month, by its name; none when nobody has. One read.
func (s *Store) Load(ctx context.Context, cluster uuid.UUID, m Month) (map[string]int64, error) {
	rows, err := s.pool.Query(ctx, sqlLoad, cluster, m.first())
	if err != nil {
		return nil, pg.Error("load month", err)
	}
	counted := map[string]int64{}
	var gateway string
	var messages int64
	if _, err := pgx.ForEachRow(rows, []any{&gateway, &messages}, func() error {
		counted[gateway] = messages
		return nil
	}); err != nil {
		return nil, pg.Error("load month", err)
	}
	return counted, nil
}

// Save notes what a gateway has counted so far, and returns what all gateways have, in input order; 0 for a cluster that
// is gone. A count never falls, so that a batch may be repeated. One commit.
func (s *Store) Save(ctx context.Context, gateway string, counts []Count) (totals []int64, err error) {
	if len(counts) == 0 {
		return nil, nil
	}
	clusters, months, messages := make([]uuid.UUID, len(counts)), make([]time.Time, len(counts)), make([]int64, len(counts))
	for i, c := range counts {
		clusters[i], months[i], messages[i] = c.Cluster, c.Month.first(), c.Messages
	}
	rows, err := s.pool.Query(ctx, sqlSave, gateway, clusters, months, messages)
	if err != nil {
		return nil, pg.Error("save months", err)
	}
	totals, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, pg.Error("save months", err)
	}
	if len(totals) != len(counts) {
		return nil, fmt.Errorf("save months: %d totals of %d counts", len(totals), len(counts))
	}
	return totals, nil
}

// Warn notes a warning, with a row in the outbox for whoever tells the tenant. It reports whether it is the first of its
// cluster, month and percentage: of all gateways that say the same, one is told so.
func (s *Store) Warn(ctx context.Context, w Warning) (first bool, err error) {
	err = s.pool.QueryRow(ctx, sqlWarn, w.Cluster, w.Month.first(), w.Percent, w.Messages, w.Allowance).Scan(&first)
	return first, pg.Error("warn of a month", err)
}

// Fold makes one row of all gateways' rows of each month before m, at most limit of them, and returns how many went.
// Nobody may count into those months any more.
func (s *Store) Fold(ctx context.Context, before Month, limit int) (folded int64, err error) {
	err = s.pool.QueryRow(ctx, sqlFold, before.first(), limit).Scan(&folded)
	return folded, pg.Error("fold months", err)
}
