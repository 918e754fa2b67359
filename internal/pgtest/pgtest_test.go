package pgtest

import (
	"context"
	"testing"

	"github.com/queengate/queengate/migrations"
)

func TestEachDatabaseIsMigratedAndItsOwn(t *testing.T) {
	t.Parallel()
	a, b := New(t, migrations.Broker, migrations.Gateway), New(t, migrations.Broker, migrations.Gateway)
	ctx := context.Background()
	if _, err := a.Exec(ctx, "CREATE TABLE queen.mine (n int)"); err != nil {
		t.Fatal(err)
	}
	var there bool
	if err := b.QueryRow(ctx, "SELECT to_regclass('queen.mine') IS NOT NULL").Scan(&there); err != nil {
		t.Fatal(err)
	}
	if there {
		t.Error("a table made in one test's database is seen in another's")
	}
}
