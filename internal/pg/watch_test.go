package pg_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/wire"
)

// quiet is what the tests take for silence.
const quiet = 500 * time.Millisecond

// watched returns a pool with its watch, and counts what they dial.
func watched(t *testing.T, server *pgtest.Server) (*pgxpool.Pool, *pg.Watch, *atomic.Int64) {
	t.Helper()
	watch, dialled := new(pg.Watch), new(atomic.Int64)
	pc, err := pg.Parse(pg.Config{DSN: server.DSN(), MaxConn: 2, Watch: watch})
	if err != nil {
		t.Fatal(err)
	}
	dial := pc.ConnConfig.DialFunc
	pc.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled.Add(1)
		return dial(ctx, network, address)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	t.Cleanup(watch.Close)
	return pool, watch, dialled
}

// ask puts a question to the server, as a broker does that wonders.
func ask(t *testing.T, watch *pg.Watch, limit time.Duration) (asked time.Time, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return time.Now(), watch.Ping(ctx)
}

// sleeping sends a statement and returns when the server has it.
func sleeping(t *testing.T, server *pgtest.Server, pool *pgxpool.Pool) <-chan error {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT pg_sleep(600)")
		conn.Release()
		done <- err
	}()
	for server.Ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "0" {
	}
	return done
}

// Its statements end at once and with an unknown outcome, their places in the pool are free, and the server is not dialled
// to be asked for anything.
func TestStatementsOfAServerThatStandsStillAreGivenUp(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, nil)
	pool, watch, dialled := watched(t, server)
	done := sleeping(t, server, pool)
	idle, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, watch, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	server.Freeze()
	before := dialled.Load()
	asked, err := ask(t, watch, 2*quiet)
	if err == nil {
		t.Fatal("a frozen server answers")
	}
	if n, still := watch.Cut(asked, quiet); n != 1 || !still {
		t.Errorf("%d sessions were cut, want the one that waits", n)
	}
	if err := <-done; pg.Outcome(err) != wire.OutcomeUnknown || !pg.Unavailable(err) {
		t.Errorf("the statement that waited: got %v (%v), want an unknown outcome", err, pg.Outcome(err))
	}
	eventually(t, "the place in the pool to be free", func() bool { return pool.Stat().TotalConns() == 1 })
	if n := dialled.Load() - before; n != 0 {
		t.Errorf("the frozen server was dialled %d times", n)
	}
	server.Thaw()
	if _, err := ask(t, watch, 20*time.Second); err != nil {
		t.Errorf("after the thaw: %v", err)
	}
	if _, err := idle.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("the session that did not wait: %v", err)
	}
	idle.Release()
}

// However long its statements take, and whatever the reason that a question had no answer.
func TestStatementsOfAServerThatIsSlowAreLeftAlone(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, nil)
	pool, watch, _ := watched(t, server)
	began := time.Now()
	done := sleeping(t, server, pool)
	eventually(t, "the statement to take its time", func() bool { return time.Since(began) > 2*quiet })
	asked, err := ask(t, watch, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if n, still := watch.Cut(began, quiet); n != 0 || still {
		t.Errorf("%d sessions were cut although the server has just answered", n)
	}
	if n, still := watch.Cut(asked, time.Hour); n != 0 || still {
		t.Errorf("%d sessions were cut although the server owes no answer for so long", n)
	}
	select {
	case err := <-done:
		t.Errorf("the statement ended with %v", err)
	default:
	}
	server.Exec("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
	if err := <-done; pg.State(err) != "57014" {
		t.Errorf("the statement ended with %v", err)
	}
}

// A full pool says nothing about the database, and a session of the watch that has ended is replaced.
func TestTheWatchAsksBesideThePool(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, nil)
	pool, watch, _ := watched(t, server)
	for range 2 {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	for range 2 {
		if _, err := ask(t, watch, 20*time.Second); err != nil {
			t.Error(err)
		}
		server.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
	}
	server.Stop()
	if _, err := ask(t, watch, 20*time.Second); err == nil {
		t.Error("a server that is stopped answers")
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(12 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited for %s", what)
		}
	}
}
