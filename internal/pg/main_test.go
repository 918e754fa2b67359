package pg_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pg"
)

func open(t *testing.T, c pg.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
