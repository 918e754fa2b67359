package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/mesh"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

// insist pushes one message until the broker has a verdict: the first tries after a failover find dead sessions.
func (w *world) insist(txn string) pushed {
	w.t.Helper()
	return w.insistOn(fmt.Sprintf(`{"items":[{"queue":"q","transactionId":%q,"payload":1}]}`, txn))
}

func (w *world) insistOn(body string) pushed {
	w.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 2000 {
		if a := w.do("POST", "/api/v1/push", body); a.status == 201 {
			if p := decode[[]pushed](w.t, a)[0]; p.Status == "queued" || p.Status == "duplicate" {
				return p
			}
		}
		<-tick.C // no event says when a pool has got rid of the last dead session
	}
	w.t.Fatalf("%s is not taken", body)
	return pushed{}
}

func (w *world) ids(query string) (ids []string) {
	w.t.Helper()
	for _, m := range w.pop(query).Messages {
		ids = append(ids, m.TransactionID)
	}
	return ids
}

// failover is a primary with the schema and a standby that follows it.
type failover struct {
	t         *testing.T
	old, next *pgtest.Server
}

func newFailover(t *testing.T) *failover {
	t.Helper()
	f := &failover{t: t, old: pgtest.NewServer(t, nil)}
	pc, err := pg.Parse(pg.Config{DSN: f.old.DSN()})
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), pc.ConnConfig, migrations.Broker); err != nil {
		t.Fatal(err)
	}
	f.next = f.old.Standby()
	return f
}

// both is the address of whichever is the primary.
func (f *failover) both() string {
	return fmt.Sprintf("host=%s,%s port=%d,%d user=postgres dbname=postgres target_session_attrs=read-write", f.old.Host, f.next.Host, f.old.Port, f.next.Port)
}

func (f *failover) open(dsn string) *pgxpool.Pool {
	f.t.Helper()
	pool, err := pg.Open(context.Background(), pg.Config{DSN: dsn, MaxConn: 8})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(pool.Close)
	return pool
}

// fork cuts the link: what the old primary commits from here on, the next one lacks.
func (f *failover) fork() {
	f.t.Helper()
	f.next.AwaitReplay(f.old)
	f.next.Detach()
}

// fail ends the old primary and promotes the next one.
func (f *failover) fail() {
	f.t.Helper()
	f.old.Kill()
	f.next.Promote()
}

// A standby that lacks the last two messages is promoted, and another broker writes two others at their offsets. Who
// trusted what it knew of the old primary would take a repeat of one of them for new, and show the lost ones.
func TestNothingKnownOfAReplacedPrimaryIsTrusted(t *testing.T) {
	t.Parallel()
	f := newFailover(t)
	a := serve(t, f.open(f.both()), nil)
	a.one("q", "kept")
	f.fork()
	a.one("q", "lost-1")
	a.one("q", "lost-2")
	if got := a.ids("q?consumerGroup=before&subscriptionMode=all"); len(got) != 3 {
		t.Fatalf("before: got %v", got)
	}

	f.fail()
	b := serve(t, f.open(f.next.DSN()), nil)
	b.one("q", "new-1")
	b.one("q", "new-2")

	if got := a.insist("new-2"); got.Status != "duplicate" {
		t.Errorf("what the other broker has stored: got %+v, want a duplicate", got)
	}
	if got := a.insist("lost-1"); got.Status != "queued" {
		t.Errorf("what the failover has lost: got %+v, want it queued", got)
	}
	want := []string{"kept", "new-1", "new-2", "lost-1"}
	if d := cmp.Diff(want, a.ids("q?consumerGroup=after&subscriptionMode=all")); d != "" {
		t.Errorf("the log (-want +got):\n%s", d)
	}
}

// asleep serves a broker whose change feed is not read: it is never told of a failover.
func asleep(t *testing.T, pool *pgxpool.Pool) *world {
	t.Helper()
	return serveWith(t, pool, Deps{Store: store.New(pool), Mesh: deaf{}}, nil)
}

// deaf is a mesh of nobody.
type deaf struct{}

func (deaf) Run(ctx context.Context, _ mesh.Handler) error { <-ctx.Done(); return nil }
func (deaf) Broadcast(mesh.Kind, []byte)                   {}
func (deaf) Stats() mesh.Stats                             { return mesh.Stats{} }

// The numbers of queues and partitions that a failover lost are given to others, of another tenant for all a broker
// knows. One that has not noticed must not write into them, nor deliver them, nor show what stood at lost offsets.
func TestIdsThatAFailoverGaveToOthersAreNotUsed(t *testing.T) {
	t.Parallel()
	f := newFailover(t)
	a := asleep(t, f.open(f.both()))
	a.one("log", "kept")
	f.fork()
	// Sequences jump by 32 over a failover, so that it takes more for a number to come again.
	const many = 70
	name := func(kind string, i int) string { return fmt.Sprintf("%s-%d", kind, i) }
	push := func(w *world, kind string) {
		t.Helper()
		var items []string
		for i := range many {
			items = append(items, fmt.Sprintf(`{"queue":%q,"transactionId":"%s","payload":%q}`, name(kind, i), name(kind, i), kind))
		}
		if got := w.do("POST", "/api/v1/push", `{"items":[`+strings.Join(items, ",")+`]}`); got.status != 201 || strings.Contains(got.body, "failed") {
			t.Fatalf("push: %d %s", got.status, got.body)
		}
	}
	push(a, "lost")
	a.one("log", "lost")
	fetched := func() string {
		t.Helper()
		return a.do("POST", "/api/v1/fetch", `{"entries":[{"queue":"log","partition":"Default","offset":0}]}`).body
	}
	if got := fetched(); !strings.Contains(got, `"kept"`) || !strings.Contains(got, `"lost"`) {
		t.Fatalf("before: %s", got)
	}
	// Its rings know the queues too.
	if got := a.ids(name("lost", 40) + "?consumerGroup=g&subscriptionMode=all&leaseSeconds=1"); len(got) != 1 {
		t.Fatalf("before: got %v", got)
	}
	f.fail()
	b := serve(t, f.open(f.next.DSN()), nil)
	push(b, "theirs")
	b.one("log", "new")
	var again int
	if err := b.pool.QueryRow(t.Context(), "SELECT count(*) FROM queen.log_partitions WHERE id = ANY ($1)", idsOf(a, many, name)).Scan(&again); err != nil || again == 0 {
		t.Fatalf("no number came again: %v", err)
	}

	for i := range many {
		body := fmt.Sprintf(`{"items":[{"queue":%q,"transactionId":"mine","payload":"mine"}]}`, name("lost", i))
		if p := a.insistOn(body); p.Status != "queued" || *p.Offset != 0 {
			t.Errorf("a push to a queue that was lost: got %+v, want it queued at 0", p)
		}
	}
	if got := a.ids(name("lost", 40) + "?consumerGroup=g&subscriptionMode=all"); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("a pop of a queue that was lost: got %v, want [mine]", got)
	}
	for i := range many {
		if got := b.ids(name("theirs", i) + "?consumerGroup=check&subscriptionMode=all"); !slices.Equal(got, []string{name("theirs", i)}) {
			t.Errorf("the other queue: got %v, want its own message alone", got)
		}
	}
	if got := fetched(); !strings.Contains(got, `"new"`) || strings.Contains(got, `"lost"`) {
		t.Errorf("after: %s, want kept and new", got)
	}
}

// idsOf returns the numbers of the lost partitions as the broker remembers them.
func idsOf(w *world, many int, name func(string, int) string) (ids []int64) {
	for i := range many {
		if p, ok := w.b.names.partition(DefaultTenant, name("lost", i), wire.DefaultPartition); ok {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// A commit waits for a standby that is not there, and somebody cancels the statement. PostgreSQL calls it a success, with
// a warning; to the client nobody can say yet whether it stays.
func TestACommitThatNoStandbyConfirmedIsUnknownToTheClient(t *testing.T) {
	t.Parallel()
	f := newFailover(t)
	w := serve(t, f.open(f.old.DSN()), nil)
	w.one("q", "a")
	lease := w.pop("q?consumerGroup=h&subscriptionMode=all")
	f.old.Set("synchronous_standby_names", "nobody")
	for rule, tc := range map[string]struct{ path, body string }{
		"a push":          {"/api/v1/push", `{"items":[{"queue":"q","transactionId":"b","payload":1}]}`},
		"a configuration": {"/api/v1/configure", `{"queue":"q","options":{"leaseTime":30}}`},
		"an acknowledgement": {"/api/v1/ack", fmt.Sprintf(`{"transactionId":"a","partitionId":%q,"leaseId":%q,"consumerGroup":"h","status":"completed"}`,
			lease.Messages[0].PartitionID, lease.LeaseID)},
	} {
		done := make(chan answer, 1)
		go func() { done <- w.do("POST", tc.path, tc.body) }()
		var got answer
		tick := time.NewTicker(10 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case got = <-done:
				waiting = false
			case <-tick.C: // the only sign of a wait is what the server shows
				f.old.Ask("SELECT count(pg_cancel_backend(pid))::text FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid <> pg_backend_pid()")
			}
		}
		tick.Stop()
		if got.status != 503 || !strings.Contains(got.body, `"outcome":"unknown"`) {
			t.Errorf("%s: got %d %s, want 503 with an unknown outcome", rule, got.status, got.body)
		}
	}
	f.old.Exec("ALTER SYSTEM RESET synchronous_standby_names")
	f.old.Exec("SELECT pg_reload_conf()")
	if got := w.insistOn(`{"items":[{"queue":"q","transactionId":"b","payload":1}]}`); got.Status != "duplicate" {
		t.Errorf("the push again: got %+v, want a duplicate: it was committed", got)
	}
}
