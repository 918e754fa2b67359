package meter

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
)

// The statements about gateways without Redis. A table of as many rows; what was said counts for four seconds, since it is
// said each second.
const (
	sqlSayAlone = `SELECT queengate.say_alone($1)`
	sqlAlone    = `SELECT gateway FROM queengate.gateways_alone WHERE said_at > now() - interval '4 s'`
)

// SayAlone notes that a gateway decides without Redis now. One commit.
func (s *Store) SayAlone(ctx context.Context, gateway string) error {
	_, err := s.pool.Exec(ctx, sqlSayAlone, gateway)
	return pg.Error("say that this gateway is alone", err)
}

// Alone returns the gateways that said so within four seconds of the database's clock. One read.
func (s *Store) Alone(ctx context.Context) ([]string, error) {
	rows, err := s.pool.Query(ctx, sqlAlone)
	if err != nil {
		return nil, pg.Error("gateways that are alone", err)
	}
	gateways, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return gateways, pg.Error("gateways that are alone", err)
}
