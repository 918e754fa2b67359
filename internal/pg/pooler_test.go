package pg_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/wire"
)

func TestAPoolerMustGiveItsSessionsToUsAlone(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, nil)
	for rule, tc := range map[string]struct {
		settings []string
		busy     int // idle sessions of others
		want     error
	}{
		"by session":                          {[]string{"pool_mode = session"}, 0, nil},
		"by session, others are idle":         {[]string{"pool_mode = session"}, 3, nil},
		"by session, in turns":                {[]string{"pool_mode = session", "server_round_robin = 1"}, 2, nil},
		"by session, with one for all of us":  {[]string{"pool_mode = session", "default_pool_size = 1"}, 0, nil},
		"by transaction, nobody else":         {[]string{"pool_mode = transaction"}, 0, pg.ErrPooled},
		"by transaction, one for all":         {[]string{"pool_mode = transaction", "default_pool_size = 1"}, 0, pg.ErrPooled},
		"by transaction, others were here":    {[]string{"pool_mode = transaction"}, 3, pg.ErrPooled},
		"by transaction, in turns of two":     {[]string{"pool_mode = transaction", "server_round_robin = 1"}, 2, pg.ErrPooled},
		"by transaction, in turns of three":   {[]string{"pool_mode = transaction", "server_round_robin = 1"}, 3, pg.ErrPooled},
		"by transaction, sessions are minted": {[]string{"pool_mode = transaction", "min_pool_size = 5"}, 0, pg.ErrPooled},
		"by statement":                        {[]string{"pool_mode = statement"}, 0, pg.ErrPooled},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			pooler := pgtest.NewPooler(t, server, tc.settings...)
			if tc.busy > 0 {
				pooler.Busy(t, tc.busy)
			}
			pool := open(t, pg.Config{DSN: pooler.DSN(), MaxConn: 1, AppName: "queengate-broker"})
			err := pool.Ping(t.Context())
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if err != nil {
				if pg.Outcome(err) != wire.OutcomeNone {
					t.Errorf("got %v, want no outcome", pg.Outcome(err))
				}
				return
			}
			settled(t, pool)
		})
	}
}

// settled checks that a session behind a pooler is set up as one with the server is, and lives in a life.
func settled(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	var lock, messages string
	if err := pool.QueryRow(t.Context(), "SELECT current_setting('lock_timeout'), current_setting('client_min_messages')").Scan(&lock, &messages); err != nil ||
		lock != "5s" || messages != "warning" {
		t.Errorf("got lock_timeout %q, client_min_messages %q, %v", lock, messages, err)
	}
	if got := lifeOf(t, pool); got != 1 {
		t.Errorf("got life %d, want 1", got)
	}
}

// What another client set for itself under a shared session is undone by nobody, so a refused session sets nothing.
func TestARefusedPoolerIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, nil)
	pooler := pgtest.NewPooler(t, server, "pool_mode = transaction", "default_pool_size = 1")
	pool := open(t, pg.Config{DSN: pooler.DSN(), MaxConn: 1})
	if err := pool.Ping(t.Context()); !errors.Is(err, pg.ErrPooled) {
		t.Fatalf("got %v, want %v", err, pg.ErrPooled)
	}
	if got := pooler.Ask(t, "SHOW lock_timeout"); got != "0" {
		t.Errorf("lock_timeout = %s in the pooler's only session, want 0", got)
	}
}
