package broker

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/internal/spool"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

// wipes calls the route until it is done and returns the rows that went.
func (w *world) wipes(tenant uuid.UUID, headers ...string) (rows int64) {
	w.t.Helper()
	for range 1000 {
		a := decode[wire.WipeAnswer](w.t, w.do("POST", "/internal/v1/tenants/"+tenant.String()+"/wipe", "", headers...).want(w.t, 200))
		if rows += a.Rows; a.Done {
			if a.Queues != 0 || a.RetainedBytes != 0 {
				w.t.Errorf("done, and left: %+v", a)
			}
			return rows
		}
	}
	w.t.Fatal("no end of it")
	return rows
}

// A wipe takes its tenant and nobody else's; afterwards the tenant stores nothing, under any name it had or had not.
func TestAWipedTenantStoresNothingAnyMore(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	w := setup(t, m.tenancy)
	gone, stays := uuid.New(), uuid.New()
	for _, tenant := range []uuid.UUID{gone, stays} {
		w.push(items(item("q", "a", "1"), item("q", "b", "2"), item("other", "a", "3")), m.headers(tenant, wire.AccessReadWrite)...)
	}
	if rows := w.wipes(gone, m.headers(gone, wire.AccessInternal)...); rows == 0 {
		t.Error("nothing was removed")
	}
	if rows := w.wipes(gone, m.headers(gone, wire.AccessInternal)...); rows != 0 {
		t.Errorf("once more: %d rows", rows)
	}
	for name, body := range map[string]string{
		"a name it had":    items(item("q", "a", "4")),
		"a name it hadn't": items(item("fresh", "a", "5")),
	} {
		if a := w.do("POST", "/api/v1/push", body, m.headers(gone, wire.AccessReadWrite)...); a.status < 400 && !strings.Contains(a.body, `"status":"failed"`) {
			t.Errorf("a push to %s: %d %s", name, a.status, a.body)
		}
	}
	if a := w.do("POST", "/api/v1/configure", `{"queue":"fresh"}`, m.headers(gone, wire.AccessReadWrite)...); a.status != 403 || !strings.Contains(a.body, `"code":"cluster_suspended"`) {
		t.Errorf("a configuration: %d %s", a.status, a.body)
	}
	if rows := w.wipes(gone, m.headers(gone, wire.AccessInternal)...); rows != 0 {
		t.Errorf("after that: %d rows", rows)
	}
	poll := "q/partition/a?consumerGroup=g&subscriptionMode=all"
	if got := w.pop(poll, m.headers(stays, wire.AccessReadWrite)...); len(got.Messages) != 1 || got.Messages[0].TransactionID != "1" {
		t.Errorf("the other tenant pops %+v", got)
	}
	w.push(items(item("q", "a", "6")), m.headers(stays, wire.AccessReadWrite)...)
}

// There is no way back from a wipe, so it is asked for twice: by the path and by the token.
func TestAWipeNeedsATokenOfItsTenant(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	w := setup(t, m.tenancy)
	tenant := uuid.New()
	path := "/internal/v1/tenants/" + tenant.String() + "/wipe"
	w.push(items(item("q", "a", "1")), m.headers(tenant, wire.AccessReadWrite)...)
	for name, headers := range map[string][]string{
		"no token":         nil,
		"another tenant's": m.headers(uuid.New(), wire.AccessInternal),
		"nobody's":         {"Authorization", m.token(wire.CellClaims{Access: wire.AccessInternal})},
		"a client's":       m.headers(tenant, wire.AccessAdmin),
	} {
		if a := w.do("POST", path, "", headers...); a.status < 400 || a.status >= 500 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	for _, bad := range []string{"nobody", uuid.Nil.String()} {
		w.do("POST", "/internal/v1/tenants/"+bad+"/wipe", "", m.headers(uuid.Nil, wire.AccessInternal)...).want(t, 400)
	}
	if got := w.pop("q/partition/a?consumerGroup=g&subscriptionMode=all", m.headers(tenant, wire.AccessReadWrite)...); len(got.Messages) != 1 {
		t.Errorf("a refused wipe removed something: %+v", got)
	}
}

// The one tenant of a broker without tenancy stays, whoever asks: its administrators are clients.
func TestABrokerWithoutTenantsRemovesNone(t *testing.T) {
	t.Parallel()
	w := setup(t, withJWT(t, nil))
	admin := bearing(clientToken(t, "role", "admin"))
	w.push(items(item("q", "a", "1")), admin...)
	w.do("POST", "/internal/v1/tenants/"+DefaultTenant.String()+"/wipe", "", admin...).want(t, 403)
	w.push(items(item("fresh", "a", "2")), admin...)
	if got := w.pop("q/partition/a?consumerGroup=g&subscriptionMode=all", admin...); len(got.Messages) != 1 {
		t.Errorf("popped %+v", got)
	}
}

// What a spool still holds of a removed tenant is dropped and counted, and what it holds of others is stored.
func TestTheSpoolDropsWhatIsOfARemovedTenant(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	pool := pgtest.New(t, migrations.Broker)
	w := serveWith(t, pool, Deps{Store: store.New(pool), Spool: openSpool(t, spool.Config{Dir: t.TempDir()})}, m.tenancy)
	gone, stays := uuid.New(), uuid.New()
	operator := []string{"Authorization", m.token(wire.CellClaims{Access: wire.AccessAdmin})}
	w.push(items(item("q", "a", "0")), m.headers(gone, wire.AccessReadWrite)...)
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`, operator...).want(t, 200)
	for _, tenant := range []uuid.UUID{gone, stays} {
		for _, r := range w.push(items(item("q", "a", "1"), item("q", "b", "2")), m.headers(tenant, wire.AccessReadWrite)...) {
			if r.Status != "buffered" {
				t.Fatalf("want buffered: %+v", r)
			}
		}
	}
	w.wipes(gone, m.headers(gone, wire.AccessInternal)...)
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":false}`, operator...).want(t, 200)
	w.drained()
	if n := w.b.spooled.dropped.Load(); n != 2 {
		t.Errorf("%d messages were dropped, want 2", n)
	}
	if n := w.b.spooled.stats().Quarantined; n != 0 {
		t.Errorf("%d messages are in quarantine", n)
	}
	if rows := w.wipes(gone, m.headers(gone, wire.AccessInternal)...); rows != 0 {
		t.Errorf("the spool brought %d rows back", rows)
	}
	got := w.pop("q/partition/a?consumerGroup=g&subscriptionMode=all", m.headers(stays, wire.AccessReadWrite)...)
	if len(got.Messages) != 1 || got.Messages[0].TransactionID != "1" {
		t.Errorf("the other tenant pops %+v", got)
	}
}
