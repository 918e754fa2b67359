package broker

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

// insist pushes one message until the broker has a verdict: the first tries after a failover find dead sessions.
func (w *world) insist(txn string) pushed {
	w.t.Helper()
	body := fmt.Sprintf(`{"items":[{"queue":"q","transactionId":%q,"payload":1}]}`, txn)
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
	w.t.Fatalf("%s is not taken", txn)
	return pushed{}
}

func (w *world) ids(query string) (ids []string) {
	w.t.Helper()
	for _, m := range w.pop(query).Messages {
		ids = append(ids, m.TransactionID)
	}
	return ids
}

// A standby that lacks the last two messages is promoted, and another broker writes two others at their offsets. Who
// trusted what it knew of the old primary would take a repeat of one of them for new, and show the lost ones.
func TestNothingKnownOfAReplacedPrimaryIsTrusted(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	old := pgtest.NewServer(t, nil)
	pc, err := pg.Parse(pg.Config{DSN: old.DSN()})
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(ctx, pc.ConnConfig, migrations.Broker); err != nil {
		t.Fatal(err)
	}
	next := old.Standby()
	open := func(dsn string) *pgxpool.Pool {
		pool, err := pg.Open(context.Background(), pg.Config{DSN: dsn, MaxConn: 8})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return pool
	}
	a := serve(t, open(fmt.Sprintf("host=%s,%s port=%d,%d user=postgres dbname=postgres", old.Host, next.Host, old.Port, next.Port)), nil)
	a.one("q", "kept")
	next.AwaitReplay(old)
	next.Exec("ALTER SYSTEM SET primary_conninfo = ''")
	next.Exec("SELECT pg_reload_conf()")
	next.AwaitDetached()
	a.one("q", "lost-1")
	a.one("q", "lost-2")
	if got := a.ids("q?consumerGroup=before&subscriptionMode=all"); len(got) != 3 {
		t.Fatalf("before: got %v", got)
	}

	next.Promote()
	old.Stop()
	b := serve(t, open(next.DSN()), nil)
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
