// Package migrations holds the schema of the two databases and brings a database to it.
//
// A set is a folder: NNNNN_subject.sql files that goose applies once, in order and forward only, and routines/*.sql,
// which are applied again whenever their text changes, so that a review shows a diff of a function and not a copy.
// Both happen under one advisory lock, so any number of processes may start at once.
package migrations

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"sort"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed broker gateway
var files embed.FS

// Set names one of the two schemas.
type Set string

const (
	Broker  Set = "broker"  // schema queen: queues, segments, cursors
	Gateway Set = "gateway" // schema queengate: tenants, plans, keys
)

// lockID guards the application of any set. Brokers of the existing system use the same number for their schema.
const lockID = 778120010

// Fingerprint changes whenever any file of the set does: it names test templates.
func Fingerprint(set Set) string {
	h := sha256.New()
	// Walking an embedded tree cannot fail: it is part of the binary.
	must(fs.WalkDir(files, string(set), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := files.ReadFile(p)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d\n", p, len(b))
		h.Write(b)
		return nil
	}))
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Apply brings the database to the newest schema of the set. It waits for another process that is doing the same.
func Apply(ctx context.Context, cfg *pgx.ConnConfig, set Set) error {
	db := stdlib.OpenDB(*cfg)
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("migrate %s: %w", set, err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1)", lockID); err != nil {
		return fmt.Errorf("migrate %s: lock: %w", set, err)
	}
	defer conn.ExecContext(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", lockID)

	sub, err := fs.Sub(files, string(set))
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, sub, goose.WithTableName("public.queengate_"+string(set)+"_version"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("migrate %s: %w", set, err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate %s: %w", set, err)
	}
	return applyRoutines(ctx, conn, set)
}

// applyRoutines runs every routine file whose text is not the one last applied.
func applyRoutines(ctx context.Context, conn *sql.Conn, set Set) error {
	if _, err := conn.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS public.queengate_routines (
		name text PRIMARY KEY, hash text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())`); err != nil {
		return fmt.Errorf("migrate %s: routines: %w", set, err)
	}
	names, err := fs.Glob(files, path.Join(string(set), "routines", "*.sql"))
	if err != nil {
		return err
	}
	sort.Strings(names)
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		hash := hex.EncodeToString(sum[:])
		var have string
		err = conn.QueryRowContext(ctx, "SELECT hash FROM public.queengate_routines WHERE name = $1", name).Scan(&have)
		if err != nil && err != sql.ErrNoRows {
			return fmt.Errorf("migrate %s: routines: %w", set, err)
		}
		if have == hash {
			continue
		}
		err = conn.Raw(func(dc any) error {
			// The simple protocol takes a whole file of statements in one implicit transaction.
			_, err := dc.(*stdlib.Conn).Conn().PgConn().Exec(ctx, string(text)).ReadAll()
			return err
		})
		if err != nil {
			return fmt.Errorf("migrate %s: %s: %w", set, name, err)
		}
		if _, err := conn.ExecContext(ctx, `INSERT INTO public.queengate_routines (name, hash) VALUES ($1, $2)
			ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, applied_at = now()`, name, hash); err != nil {
			return fmt.Errorf("migrate %s: routines: %w", set, err)
		}
	}
	return nil
}
