package bootstrap

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/wire"
)

func request() Request {
	return Request{
		Tenant: "demo", TenantName: "Demo", Cluster: "demo-main", Plan: "pro", Cell: "local",
		BaseURL: "http://127.0.0.1:6632", Email: "Boss@Demo.example",
	}
}

func count(t *testing.T, pool *pgxpool.Pool, table string) int {
	t.Helper()
	var n int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM queengate."+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func snapshot(t *testing.T, pool *pgxpool.Pool) *plans.Snapshot {
	t.Helper()
	book := plans.NewBook(slog.New(slog.DiscardHandler), pool, time.Hour)
	if err := book.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return book.Snapshot()
}

// TestBootstrappedKeysWork goes from an empty database to keys that a gateway admits, each to its own class only.
func TestBootstrappedKeysWork(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Gateway)
	r, err := Bootstrap(t.Context(), pool, request())
	if err != nil {
		t.Fatal(err)
	}
	if !r.Created || r.CanLogin || r.UserID == uuid.Nil || len(r.Keys) != 5 {
		t.Errorf("result %+v", r)
	}
	snap := snapshot(t, pool)
	c := snap.ClusterBySlug("demo-main")
	if c == nil || c.ID != r.ClusterID || c.BrokerTenant != r.BrokerTenant || c.TenantID != r.TenantID || c.PlanCode != "pro" || c.Cell != "local" {
		t.Fatalf("cluster %+v", c)
	}
	if roles := snap.RoleOf(r.UserID, c.ID); len(roles) != 1 || roles[0] != plans.RoleAdmin {
		t.Errorf("the administrator's roles are %v", roles)
	}
	v, err := auth.New(auth.Config{})
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string][]wire.Class{
		"admin":   {wire.ClassQueueAdmin, wire.ClassRead},
		"read":    {wire.ClassRead},
		"produce": {wire.ClassProduce},
		"consume": {wire.ClassConsume},
		"full":    {wire.ClassProduce, wire.ClassConsume, wire.ClassQueueAdmin, wire.ClassRead},
	}
	for _, key := range r.Keys {
		p, err := v.Verify(snap, auth.Request{
			Authorization: []byte("Bearer " + key.Plaintext.Reveal()), Remote: netip.MustParseAddr("127.0.0.1"), Now: time.Now(),
		})
		if err != nil || p.Subject() != key.PublicID || p.Key.ID != key.ID || p.Key.Name != key.Name {
			t.Errorf("key %s: %+v, %v", key.Name, p, err)
			continue
		}
		var got []wire.Class
		for _, class := range []wire.Class{wire.ClassProduce, wire.ClassConsume, wire.ClassQueueAdmin, wire.ClassRead} {
			if auth.Allow(snap, &p, c, class) == nil {
				got = append(got, class)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(allowed[key.Name]) {
			t.Errorf("key %s is admitted to classes %v, want %v", key.Name, got, allowed[key.Name])
		}
	}
	if text := fmt.Sprintf("%v %+v %#v", r, r, r.Keys); strings.Contains(text, "qk_live") {
		t.Error("a printed result tells a key")
	}
}

func TestBootstrapIsIdempotent(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Gateway)
	first, err := Bootstrap(t.Context(), pool, request())
	if err != nil {
		t.Fatal(err)
	}
	ops, keys, outbox := count(t, pool, "operations"), count(t, pool, "api_keys"), count(t, pool, "outbox")
	again := request()
	again.Plan, again.BaseURL = "free", ""
	second, err := Bootstrap(t.Context(), pool, again)
	if err != nil {
		t.Fatal(err)
	}
	if second.Created || len(second.Keys) != 0 || second.TenantID != first.TenantID || second.ClusterID != first.ClusterID ||
		second.UserID != first.UserID || second.BrokerTenant != first.BrokerTenant {
		t.Errorf("the second run gave %+v, the first %+v", second, first)
	}
	if count(t, pool, "operations") != ops || count(t, pool, "api_keys") != keys || count(t, pool, "outbox") != outbox {
		t.Error("the second run left a trace")
	}
	if got := snapshot(t, pool).ClusterBySlug("demo-main").PlanCode; got != "pro" {
		t.Errorf("the second run moved the cluster to %s", got)
	}

	if _, err := pool.Exec(t.Context(), "SELECT queengate.revoke_api_key($1, $2)", first.ClusterID, first.Keys[1].ID); err != nil {
		t.Fatal(err)
	}
	moved := request()
	moved.BaseURL, moved.PasswordHash = "http://127.0.0.1:7000,http://127.0.0.1:7001", "$2a$12$0123456789012345678901"
	third, err := Bootstrap(t.Context(), pool, moved)
	if err != nil {
		t.Fatal(err)
	}
	if len(third.Keys) != 1 || third.Keys[0].Name != "read" || third.CanLogin {
		t.Errorf("the third run gave %+v, want the revoked key again and the old password, which is none", third)
	}
	if got := snapshot(t, pool).Cell("local").BaseURL; got != moved.BaseURL {
		t.Errorf("the cell is still at %s", got)
	}
}

func TestConcurrentBootstrapsAgree(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Gateway)
	var results [4]Result
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			var err error
			if results[i], err = Bootstrap(t.Context(), pool, request()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	minted := 0
	for _, r := range results {
		minted += len(r.Keys)
		if r.ClusterID != results[0].ClusterID || r.TenantID != results[0].TenantID {
			t.Errorf("%+v and %+v differ", r, results[0])
		}
	}
	if minted != 5 || count(t, pool, "api_keys") != 5 {
		t.Errorf("%d keys were told, %d are stored, want 5", minted, count(t, pool, "api_keys"))
	}
}

func TestBootstrapRefusals(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Gateway)
	if _, err := Bootstrap(t.Context(), pool, request()); err != nil {
		t.Fatal(err)
	}
	ops := count(t, pool, "operations")
	for rule, c := range map[string]struct {
		change func(*Request)
		want   string // part of the error
		state  string // SQLSTATE
	}{
		"a cluster of another tenant":      {func(r *Request) { r.Tenant = "rival" }, "belongs to another tenant", "42501"},
		"an address of another tenant":     {func(r *Request) { r.Tenant, r.Cluster = "rival", "rival-one" }, "belongs to another tenant", "42501"},
		"an unknown plan":                  {func(r *Request) { r.Cluster, r.Plan = "demo-two", "gold" }, "unknown plan gold", "P0002"},
		"a slug that is no DNS label":      {func(r *Request) { r.Tenant, r.Email = "Demo_2", "" }, "violates check constraint", "23514"},
		"no names":                         {func(r *Request) { *r = Request{} }, "tenant is missing\ncluster is missing\ncell is missing", ""},
		"a cell that nobody can reach":     {func(r *Request) { r.Cell, r.BaseURL = "nowhere", "" }, "no base url", ""},
		"a base url with a path":           {func(r *Request) { r.BaseURL = "http://h:1/x" }, "want http://host:port", ""},
		"a second base url with a path":    {func(r *Request) { r.BaseURL = "http://h:1,http://h:2/x" }, `"http://h:2/x": want`, ""},
		"an environment with an underline": {func(r *Request) { r.Env = "a_b" }, "1 to 16 of [a-z0-9]", ""},
	} {
		r := request()
		c.change(&r)
		result, err := Bootstrap(t.Context(), pool, r)
		if err == nil || !strings.Contains(err.Error(), c.want) || pg.State(err) != c.state {
			t.Errorf("%s: %v, want %q with SQLSTATE %q", rule, err, c.want, c.state)
		}
		if len(result.Keys) != 0 {
			t.Errorf("%s: keys were told", rule)
		}
	}
	if got := count(t, pool, "operations"); got != ops {
		t.Errorf("refused runs left %d audit rows", got-ops)
	}
}
