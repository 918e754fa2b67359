package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// Bounds of a migration. Brokers work on while it runs, so it must not stand in the queue of a table for long: every
// statement of theirs would stand behind it. It gives way instead, and comes again.
const (
	turnWait  = 5 * time.Minute // for another process that migrates
	tableWait = 3 * time.Second // for a table that others use
	pauseWait = 2 * time.Second // before it comes again
	tries     = 20
)

// ErrBusy says that another process has been migrating all the time.
var ErrBusy = errors.New("another process has been migrating the database for " + turnWait.String())

// Apply brings the database to the newest schema of the set. It waits for another process that is doing the same (up to
// five minutes, then ErrBusy) and gives way to long transactions, up to twenty times. Statements have no bound of their
// own. A schema that a newer program has made is left as it is.
func Apply(ctx context.Context, cfg *pgx.ConnConfig, set Set) error {
	if err := apply(ctx, cfg, set, turnWait); err != nil {
		return fmt.Errorf("migrate %s: %w", set, err)
	}
	return nil
}

func apply(ctx context.Context, cfg *pgx.ConnConfig, set Set, turn time.Duration) error {
	db := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(unbounded))
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := takeTurn(ctx, conn, turn); err != nil {
		return err
	}
	defer conn.ExecContext(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", lockID)

	sub, err := fs.Sub(files, string(set))
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, sub, goose.WithTableName(set.table()), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	if err := givingWay(ctx, func() error { _, err := p.Up(ctx); return err }); err != nil {
		return err
	}
	return applyRoutines(ctx, conn, set)
}

// unbounded replaces the bounds of a session: a migration may take its time, but not wait for others.
func unbounded(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, fmt.Sprintf("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET lock_timeout = %d", tableWait.Milliseconds()))
	return err
}

// takeTurn waits for the advisory lock, which holds until conn ends.
func takeTurn(ctx context.Context, conn *sql.Conn, turn time.Duration) error {
	wait := func(d time.Duration) error {
		_, err := conn.ExecContext(ctx, "SELECT set_config('lock_timeout', $1, false)", strconv.FormatInt(d.Milliseconds(), 10))
		return err
	}
	if err := wait(turn); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1)", lockID); lockedOut(err) {
		return ErrBusy
	} else if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return wait(tableWait)
}

// givingWay runs step until it is not kept waiting for a table. A step is one or more transactions, each undone then.
func givingWay(ctx context.Context, step func() error) error {
	for n := 1; ; n++ {
		err := step()
		if n == tries || !lockedOut(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pauseWait):
		}
	}
}

// lockedOut reports that a lock_timeout ran out.
func lockedOut(err error) bool {
	return state(err) == "55P03"
}

// applyRoutines runs every routine file whose text is not the one last applied, unless a newer program was here.
func applyRoutines(ctx context.Context, conn *sql.Conn, set Set) error {
	if _, err := conn.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS public.queengate_routines (
		name text PRIMARY KEY, hash text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())`); err != nil {
		return fmt.Errorf("routines: %w", err)
	}
	have := func(name string) (hash string, err error) {
		err = conn.QueryRowContext(ctx, "SELECT hash FROM public.queengate_routines WHERE name = $1", name).Scan(&hash)
		if errors.Is(err, sql.ErrNoRows) {
			err = nil
		}
		return hash, err
	}
	note := func(name, hash string) error {
		_, err := conn.ExecContext(ctx, `INSERT INTO public.queengate_routines (name, hash) VALUES ($1, $2)
			ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, applied_at = now()`, name, hash)
		return err
	}
	found, err := have(set.generation())
	if err != nil {
		return fmt.Errorf("routines: %w", err)
	}
	generation, err := generationOf(found)
	if err != nil || generation > generations[set] {
		return err
	}
	for _, r := range set.routines() {
		hash, err := have(r.name)
		if err != nil {
			return fmt.Errorf("routines: %w", err)
		}
		if hash == r.hash {
			continue
		}
		err = givingWay(ctx, func() error {
			return conn.Raw(func(dc any) error {
				// The simple protocol takes a whole file of statements in one implicit transaction.
				_, err := dc.(*stdlib.Conn).Conn().PgConn().Exec(ctx, r.text).ReadAll()
				return err
			})
		})
		if err == nil {
			err = note(r.name, r.hash)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	if generation == generations[set] {
		return nil
	}
	return note(set.generation(), strconv.Itoa(generations[set]))
}

// generationOf reads a generation as it is stored; "" is 0, before there were any.
func generationOf(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("routines: the generation is %q, which is no number", text)
	}
	return n, nil
}
