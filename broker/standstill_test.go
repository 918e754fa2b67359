package broker

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/internal/spool"
	"github.com/queengate/queengate/migrations"
)

// unprobed are the deps of a broker that reads no change feed: nobody but the test asks whether the database answers.
func unprobed(s *store.Store) Deps { return Deps{Store: s, Mesh: deaf{}} }

// beside is a broker with a spool on a database of its own, which can be stopped. sent counts what its sessions have written.
func beside(t *testing.T, maxConn int32, on func(*store.Store) Deps) (w *world, server *pgtest.Server, sent *atomic.Int64) {
	t.Helper()
	server, sent = pgtest.NewServer(t, nil), new(atomic.Int64)
	at, err := pgx.ParseConfig(server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), at, migrations.Broker); err != nil {
		t.Fatal(err)
	}
	watch := new(pg.Watch)
	cfg, err := pg.Parse(pg.Config{DSN: server.DSN(), MaxConn: maxConn, Watch: watch})
	if err != nil {
		t.Fatal(err)
	}
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &metered{conn, sent}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	t.Cleanup(watch.Close)
	deps := on(store.New(pool))
	deps.Ping, deps.Cut, deps.Spool = watch.Ping, watch.Cut, openSpool(t, spool.Config{Dir: t.TempDir()})
	w = serveWith(t, pool, deps, nil)
	w.client.Timeout = 4 * patience
	return w, server, sent
}

// metered counts the writes of a connection.
type metered struct {
	net.Conn
	writes *atomic.Int64
}

func (c *metered) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.writes.Add(1)
	return n, err
}

// What the database has been sent and has not answered when it is found to stand still ends then, and says what is true: a
// push is in the spool, with or without a dedup window, and is stored once; what a pop may have consumed is not denied; an
// ack may have been carried out. A poll goes on. Without it all would wait until the database goes on, which here it does not
// before they have ended.
func TestWhatIsInFlightEndsWhenTheDatabaseStandsStill(t *testing.T) {
	t.Parallel()
	w, server, sent := beside(t, 8, unprobed)
	w.do("POST", "/api/v1/configure", `{"queue":"plain","options":{"dedupWindowSeconds":0}}`).want(t, 200)
	w.push(items(item("plain", "a", "1"), item("q", "a", "1"), item("acked", "a", "1"), item("taken", "a", "1"), item("awaited", "a", "1")))
	leased := w.pop("acked?wait=true&timeout=20000")
	for _, queue := range []string{"taken?autoAck=true", "awaited?autoAck=true"} { // rings are prepared
		if got := w.pop(queue + "&wait=true&timeout=20000"); len(got.Messages) != 1 {
			t.Fatalf("%s: %+v", queue, got)
		}
	}
	w.push(items(item("taken", "a", "2"), item("awaited", "a", "2")))
	w.until("nobody asks the database", func() bool { return w.pool.Stat().AcquiredConns() == 0 })

	server.Freeze()
	send := func(method, path, body string) <-chan answer {
		before := sent.Load()
		c := make(chan answer, 1)
		go func() {
			a, err := w.try(method, path, body)
			if err != nil {
				t.Error(err)
			}
			c <- a
		}()
		w.until(path+" is in flight", func() bool { return sent.Load() > before })
		return c
	}
	push := send("POST", "/api/v1/push", items(item("plain", "a", "2"), item("q", "a", "2")))
	ack := send("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"1","partitionId":%q,"leaseId":%q}`, leased.Messages[0].PartitionID, leased.LeaseID))
	taken := send("GET", "/api/v1/pop/queue/taken?autoAck=true&wait=true&timeout=90000", "")
	awaited := send("GET", "/api/v1/pop/queue/awaited?wait=true&timeout=90000", "")
	w.until("the broker to know", func() bool { return w.do("GET", "/readyz", "").status == 503 })

	for _, r := range decode[[]pushed](t, (<-push).want(t, 201)) {
		if r.Status != "buffered" {
			t.Errorf("the push in flight: %+v, want buffered", r)
		}
	}
	for name, c := range map[string]<-chan answer{"ack": ack, "pop that acknowledges by itself": taken} {
		if a := <-c; a.status != 503 || !strings.Contains(a.body, `"outcome":"unknown"`) || a.header.Get("Retry-After") == "" {
			t.Errorf("%s in flight: %d %s, want 503 with outcome unknown", name, a.status, a.body)
		}
	}
	// From now on nobody is kept waiting, and what was not asked has not happened.
	for name, a := range map[string]answer{
		"ack": w.do("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"1","partitionId":%q,"leaseId":%q}`, leased.Messages[0].PartitionID, leased.LeaseID)),
		"pop": w.do("GET", "/api/v1/pop/queue/q?autoAck=true", ""),
	} {
		if a.status != 503 || !strings.Contains(a.body, `"outcome":"none"`) {
			t.Errorf("%s of later: %d %s, want 503 with outcome none", name, a.status, a.body)
		}
	}
	w.buffered(items(item("plain", "a", "3"), item("q", "a", "3")))

	server.Thaw()
	w.until("the database is back", func() bool { return w.do("GET", "/readyz", "").status == 200 })
	w.drained()
	for _, queue := range []string{"plain", "q"} {
		if d := cmp.Diff([]string{"1", "2", "3"}, w.all(queue, "a")); d != "" {
			t.Errorf("%s: %s", queue, d)
		}
	}
	w.push(items(item("awaited", "b", "3"))) // a claim that nobody heard of may have leased what was there
	if got := decode[popped](t, (<-awaited).want(t, 200)); len(got.Messages) == 0 {
		t.Error("the poll came back with nothing")
	}
}

// A broker finds out by itself, whatever statement of its own waits.
func TestABrokerThatNobodyProbesGivesUpWhatIsInFlight(t *testing.T) {
	t.Parallel()
	w, server, _ := beside(t, 8, func(s *store.Store) Deps { return Deps{Store: s} })
	w.one("q", "1")
	server.Freeze()
	if r := w.one("q", "2"); r.Status != "buffered" {
		t.Errorf("the push in flight: %+v, want buffered", r)
	}
	server.Thaw()
	w.drained()
	if d := cmp.Diff([]string{"1", "2"}, w.all("q", "Default")); d != "" {
		t.Error(d)
	}
}

// lookout tells how often lost sessions were found to linger.
type lookout struct {
	Store
	found atomic.Int64
}

func (s *lookout) Lingering(ctx context.Context) (int, error) {
	n, err := s.Store.Lingering(ctx)
	if n > 0 {
		s.found.Add(1)
	}
	return n, err
}

// The server may read a push when its session is long lost here. Without a dedup window nothing would keep it from storing
// what the drain has stored meanwhile.
func TestTheDrainWaitsForALostSessionThatMayStillStore(t *testing.T) {
	t.Parallel()
	db := new(lookout)
	w, server, sent := beside(t, 1, func(s *store.Store) Deps {
		db.Store = s
		return Deps{Store: db, Mesh: deaf{}}
	})
	w.do("POST", "/api/v1/configure", `{"queue":"q","options":{"dedupWindowSeconds":0}}`).want(t, 200)
	w.push(items(item("q", "a", "1")))
	w.push(items(item("q", "a", "2"))) // the statement is prepared: a push is one message now

	var pid int
	var line net.Conn
	if err := w.pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
		pid, line = int(c.Conn().PgConn().PID()), c.Conn().PgConn().Conn()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	stop := func(sig syscall.Signal) {
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	stop(syscall.SIGSTOP)
	before := sent.Load()
	lost := make(chan []pushed, 1)
	go func() { lost <- w.push(items(item("q", "a", "3"))) }()
	w.until("the push is in flight", func() bool { return sent.Load() > before })
	if err := line.Close(); err != nil {
		t.Fatal(err)
	}
	if r := <-lost; r[0].Status != "buffered" {
		t.Errorf("the push whose answer was lost: %+v, want buffered", r)
	}
	w.until("the drain to have seen that the session lingers, or to have passed it", func() bool {
		return db.found.Load() > 1 || w.b.spooled.disk.Empty()
	})
	stop(syscall.SIGCONT)
	w.until("the session to end", func() bool {
		return server.Ask("SELECT count(*)::text FROM pg_stat_activity WHERE pid = "+strconv.Itoa(pid)) == "0"
	})
	w.drained()
	if d := cmp.Diff([]string{"1", "2", "3"}, w.all("q", "a")); d != "" {
		t.Error(d)
	}
}
