package pg_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/wire"
)

// lifeOf returns the life of the session that the pool gives next.
func lifeOf(t *testing.T, pool *pgxpool.Pool) pg.Life {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	return pg.LifeOf(conn.Conn())
}

func refused(t *testing.T, pool *pgxpool.Pool, want string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), "SELECT 1")
	if err == nil || !strings.Contains(err.Error(), want) || pg.Outcome(err) != wire.OutcomeNone || !pg.Unavailable(err) {
		t.Errorf("got %v (%v), want %q and no outcome", err, pg.Outcome(err), want)
	}
}

func TestAPromotionIsAnotherLifeAndThePrimaryItReplacedIsNotWrittenToAgain(t *testing.T) {
	t.Parallel()
	old := pgtest.NewServer(t, nil)
	next := old.Standby()
	hosts := fmt.Sprintf("host=%s,%s port=%d,%d user=postgres dbname=postgres", old.Host, next.Host, old.Port, next.Port)
	pool := open(t, pg.Config{DSN: hosts, MaxConn: 2})
	onlyNext := open(t, pg.Config{DSN: next.DSN(), MaxConn: 1})

	refused(t, onlyNext, "is a standby")
	if got := lifeOf(t, pool); got != 1 {
		t.Fatalf("the first life: got %d, want 1", got)
	}
	// One session of the old life stays open in the pool.
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next.Promote()
	if got := lifeOf(t, onlyNext); got != 1 {
		t.Errorf("the promoted server, to who knows no other: got %d, want 1", got)
	}
	old.Stop()
	if got := lifeOf(t, pool); got != 2 {
		t.Errorf("after the promotion: got %d, want 2", got)
	}
	conn.Release()
	// The old primary comes back, on its old timeline and first in the address.
	old.Start()
	pool.Reset()
	for range 3 {
		if got := lifeOf(t, pool); got != 2 {
			t.Errorf("with the old primary back: got life %d, want 2", got)
		}
	}
	next.Stop()
	pool.Reset()
	refused(t, pool, "was replaced by one on timeline 2")
}

// The session below was made while its server was the primary, and the pool learns of the promotion by another one.
func TestASessionOfAReplacedPrimaryLeavesThePool(t *testing.T) {
	t.Parallel()
	old := pgtest.NewServer(t, nil)
	next := old.Standby()
	pc, err := pg.Parse(pg.Config{DSN: old.DSN(), MaxConn: 2})
	if err != nil {
		t.Fatal(err)
	}
	pc.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { // new sessions go to the other server
		if pc.ConnConfig.RuntimeParams["application_name"] != "" {
			c.Host, c.Port = next.Host, uint16(next.Port)
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	stays, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next.Promote()
	pc.ConnConfig.RuntimeParams["application_name"] = "next"
	if got := lifeOf(t, pool); got != 2 {
		t.Fatalf("got life %d, want 2", got)
	}
	stays.Release() // the old primary still runs and would take writes
	for range 4 {
		if got := lifeOf(t, pool); got != 2 {
			t.Errorf("a session with the old primary was given out: life %d", got)
		}
	}
}

func TestARestartIsAnotherLifeOnTheSameTimeline(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, nil)
	pool := open(t, pg.Config{DSN: server.DSN(), MaxConn: 1})
	if got := []pg.Life{lifeOf(t, pool), lifeOf(t, pool)}; got[0] != 1 || got[1] != 1 {
		t.Errorf("got %v, want life 1 twice", got)
	}
	server.Stop()
	server.Start()
	pool.Reset()
	if got := lifeOf(t, pool); got != 2 {
		t.Errorf("after a restart: got %d, want 2", got)
	}
}

// A standby that nobody runs guards the commits, so each waits until somebody cancels the wait.
func TestACommitThatTheStandbyDidNotConfirmIsUnknown(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, nil, "lc_messages=C")
	server.Exec("CREATE TABLE t (v int)")
	server.Exec("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	server.Exec("SELECT pg_reload_conf()")
	// Sessions may hide warnings by default: ours do not.
	pool := open(t, pg.Config{DSN: server.DSN() + " client_min_messages=error", MaxConn: 1})
	witness, err := pgx.Connect(t.Context(), server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer witness.Close(context.Background())
	if _, err := witness.Exec(t.Context(), "SET synchronous_commit = local"); err != nil {
		t.Fatal(err)
	}
	release := func(how string) {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for range tick.C { // the only sign of the wait is what the server shows
			var n int
			err := witness.QueryRow(t.Context(), "SELECT count("+how+"(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").Scan(&n)
			if err != nil {
				t.Error(err)
				return
			}
			if n > 0 {
				return
			}
		}
	}
	for rule, tc := range map[string]struct {
		commit func(ctx context.Context) error
		how    string
	}{
		"one statement, its wait cancelled": {func(ctx context.Context) error {
			conn, err := pool.Acquire(ctx)
			if err != nil {
				return err
			}
			defer conn.Release()
			_, err = conn.Exec(ctx, "INSERT INTO t VALUES (1)")
			if err != nil {
				t.Errorf("PostgreSQL calls it a success: %v", err)
			}
			return pg.Confirmed(conn.Conn(), err)
		}, "pg_cancel_backend"},
		"a transaction, its wait cancelled": {func(ctx context.Context) error {
			return pg.Tx(ctx, pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO t VALUES (1)")
				return err
			})
		}, "pg_cancel_backend"},
		"a transaction, its session ended": {func(ctx context.Context) error {
			return pg.Tx(ctx, pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO t VALUES (1)")
				return err
			})
		}, "pg_terminate_backend"},
	} {
		done := make(chan error, 1)
		go func() { done <- tc.commit(context.Background()) }()
		release(tc.how)
		err := <-done
		if err == nil || pg.Outcome(err) != wire.OutcomeUnknown || pg.Retryable(err) {
			t.Errorf("%s: got %v (%v), want an unknown outcome", rule, err, pg.Outcome(err))
		}
		if we := wire.AsError(pg.Error("commit", err)); we.Code != wire.DatabaseUnavailable || we.Outcome != wire.OutcomeUnknown {
			t.Errorf("%s: got %s %v, want %s unknown", rule, we.Code, we.Outcome, wire.DatabaseUnavailable)
		}
	}
	// The word of one commit is not taken for another's.
	server.Exec("ALTER SYSTEM RESET synchronous_standby_names")
	server.Exec("SELECT pg_reload_conf()")
	if err := pg.Tx(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SET LOCAL synchronous_commit = local; INSERT INTO t VALUES (2)")
		return err
	}); err != nil {
		t.Errorf("the commit after it: %v", err)
	}
	var n int
	if err := witness.QueryRow(t.Context(), "SELECT count(*) FROM t").Scan(&n); err != nil || n != 4 {
		t.Errorf("got %d rows, %v: all of them were committed", n, err)
	}
}

// The server dies while a COMMIT waits for its answer. pgx reports a connection that was closed before it was used.
func TestALostAnswerToACommitIsUnknown(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := pgtest.NewServer(t, nil)
	server.Exec("CREATE TABLE t (v int)")
	server.Set("synchronous_standby_names", "nobody")
	for rule, commit := range map[string]func(context.Context, *pgxpool.Pool) error{
		"of a transaction": func(ctx context.Context, pool *pgxpool.Pool) error {
			return pg.Tx(ctx, pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO t VALUES (1)")
				return err
			})
		},
		"of a statement": func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, "INSERT INTO t VALUES ($1)", 1)
			return err
		},
		"of a statement without parameters": func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, "INSERT INTO t VALUES (1)")
			return err
		},
	} {
		pool := open(t, pg.Config{DSN: server.DSN(), MaxConn: 1})
		done := make(chan error, 1)
		go func() { done <- commit(ctx, pool) }()
		for server.Ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "0" {
		}
		server.Kill()
		if err := <-done; err == nil || pg.Outcome(err) != wire.OutcomeUnknown || !pg.Unavailable(err) || pg.Retryable(err) {
			t.Errorf("%s: got %v (%v), want an unknown outcome", rule, err, pg.Outcome(err))
		}
		server.Start()
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	state := func(code string) error { return fmt.Errorf("x: %w", &pgconn.PgError{Code: code}) }
	for rule, tc := range map[string]struct {
		err  error
		want wire.Outcome
	}{
		"the server refused it":                 {state("23505"), wire.OutcomeNone},
		"rolled back because of others":         {state("40001"), wire.OutcomeNone},
		"over its time":                         {state("57014"), wire.OutcomeNone},
		"not there yet":                         {state("57P03"), wire.OutcomeNone},
		"ended by an administrator":             {state("57P01"), wire.OutcomeUnknown},
		"another session crashed the server":    {state("57P02"), wire.OutcomeUnknown},
		"the pooler lost the server":            {state("08P01"), wire.OutcomeUnknown},
		"the server lost the connection":        {state("08006"), wire.OutcomeUnknown},
		"completion unknown":                    {state("40003"), wire.OutcomeUnknown},
		"nothing but a broken pipe":             {errors.New("broken pipe"), wire.OutcomeUnknown},
		"not confirmed":                         {pg.ErrUnconfirmed, wire.OutcomeUnknown},
		"not confirmed, and an error behind it": {errors.Join(pg.ErrUnconfirmed, state("40001")), wire.OutcomeUnknown},
	} {
		if got := pg.Outcome(tc.err); got != tc.want {
			t.Errorf("%s: got %v, want %v", rule, got, tc.want)
		}
	}
}
