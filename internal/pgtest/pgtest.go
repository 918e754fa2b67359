// Package pgtest gives each test a database of its own, cloned from a migrated template.
package pgtest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/migrations"
)

// Env names the variable with the address of the test server (make test sets it).
const Env = "QUEENGATE_TEST_POSTGRES"

var serial atomic.Int64

// New returns a pool on a fresh database with the sets applied. The database is dropped when the test ends. Without a
// server the test fails.
func New(t testing.TB, sets ...migrations.Set) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(context.Background(), pg.Config{DSN: DSN(t, sets...), MaxConn: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// DSN is New for tests that open their own connections.
func DSN(t testing.TB, sets ...migrations.Set) string {
	t.Helper()
	admin := os.Getenv(Env)
	if admin == "" {
		t.Fatalf("%s is not set: run the tests with `make test`", Env)
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		t.Fatalf("test server: %v", err)
	}
	defer conn.Close(ctx)
	template := ensureTemplate(t, ctx, conn, sets)
	name := fmt.Sprintf("t_%d_%d_%d", os.Getpid(), time.Now().UnixNano()%1e9, serial.Add(1))
	if err := exclusively(ctx, conn, func() error {
		_, err := conn.Exec(ctx, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, template))
		return err
	}); err != nil {
		t.Fatalf("clone template: %v", err)
	}
	t.Cleanup(func() {
		conn, err := pgx.Connect(ctx, admin)
		if err != nil {
			return // the server is gone, and the database with it
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Logf("drop %s: %v", name, err)
		}
	})
	return withDatabase(t, admin, name)
}

// ensureTemplate makes the template of these sets once per server; its name carries their fingerprint.
func ensureTemplate(t testing.TB, ctx context.Context, conn *pgx.Conn, sets []migrations.Set) string {
	name := "tpl"
	for _, s := range sets {
		name += "_" + migrations.Fingerprint(s)
	}
	err := exclusively(ctx, conn, func() error {
		var exists bool
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil || exists {
			return err
		}
		building := name + "_building"
		for _, q := range []string{"DROP DATABASE IF EXISTS " + building + " WITH (FORCE)", "CREATE DATABASE " + building} {
			if _, err := conn.Exec(ctx, q); err != nil {
				return err
			}
		}
		cfg, err := pgx.ParseConfig(withDatabase(t, os.Getenv(Env), building))
		if err != nil {
			return err
		}
		for _, s := range sets {
			if err := migrations.Apply(ctx, cfg, s); err != nil {
				return err
			}
		}
		_, err = conn.Exec(ctx, fmt.Sprintf("ALTER DATABASE %s RENAME TO %s", building, name))
		return err
	})
	if err != nil {
		t.Fatalf("template: %v", err)
	}
	return name
}

// exclusively serialises template work over all test processes of the server: a template cannot be cloned twice at once.
func exclusively(ctx context.Context, conn *pgx.Conn, f func() error) error {
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(1)"); err != nil {
		return err
	}
	defer conn.Exec(ctx, "SELECT pg_advisory_unlock(1)")
	return f()
}

func withDatabase(t testing.TB, dsn, name string) string {
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		t.Fatalf("%s must be in key=value form", Env)
	}
	return dsn + " dbname=" + name + " connect_timeout=30" // a machine that is busy with tests
}
