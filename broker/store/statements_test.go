package store

import (
	"fmt"
	"testing"

	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

// Every statement of the package parses and plans against the migrated schema.
func TestStatementsPrepare(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if len(statements) < 15 {
		t.Fatalf("only %d statements are registered", len(statements))
	}
	for i, sql := range statements {
		if _, err := conn.Conn().PgConn().Prepare(t.Context(), fmt.Sprint("s", i), sql, nil); err != nil {
			t.Errorf("%v\n%s", err, sql)
		}
	}
}
