package plans

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(writerFile); path != "" {
		writeWithoutEnd(path)
	}
	goleak.VerifyTestMain(m)
}

// longest bounds a wait for something that must happen; what else would bring it about is an hour away.
const longest = 30 * time.Second

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// fixture is a running book over a database with one cluster, one key and one user.
type fixture struct {
	t       *testing.T
	pool    *pgxpool.Pool
	book    *Book
	changed chan struct{} // capacity 1: a swap has happened
	tenant  uuid.UUID
	cluster uuid.UUID
	key     uuid.UUID
	user    uuid.UUID
}

func setup(t *testing.T, poll time.Duration) *fixture {
	t.Helper()
	f := &fixture{t: t, pool: pgtest.New(t, migrations.Gateway), changed: make(chan struct{}, 1)}
	f.exec("SELECT queengate.create_cell('eu1', 'http://127.0.0.1:6632')")
	f.tenant = scan[uuid.UUID](f, "SELECT queengate.create_tenant('acme')")
	f.cluster = scan[uuid.UUID](f, "SELECT queengate.create_cluster($1, 'acme-main', 'free', 'eu1')", f.tenant)
	f.key = scan[uuid.UUID](f, "SELECT queengate.issue_api_key($1, 'k', $2, 'AAAAAAA1', '{read}', p_allowed_cidrs => '{10.0.0.0/8,fd00::/8}')", f.cluster, hash(1))
	f.user = scan[uuid.UUID](f, "SELECT queengate.create_user($1, 'ann@acme.example')", f.tenant)

	f.book = NewBook(slog.New(slog.DiscardHandler), f.pool, poll)
	f.book.OnChange(func(old, new *Snapshot) {
		if old == nil || new == nil {
			t.Error("a hook was given no snapshot")
		}
		select {
		case f.changed <- struct{}{}:
		default:
		}
	})
	if err := f.book.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- f.book.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return f
}

func hash(n byte) []byte { return append(make([]byte, 31), n) }

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.pool.Exec(context.Background(), sql, args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

func scan[T any](f *fixture, sql string, args ...any) T {
	f.t.Helper()
	var v T
	if err := f.pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// await waits until the snapshot shows what is wanted, woken by swaps, and returns how long it took.
func (f *fixture) await(what string, want func(*Snapshot) bool) time.Duration {
	f.t.Helper()
	start := time.Now()
	late := time.NewTimer(longest)
	defer late.Stop()
	for !want(f.book.Snapshot()) {
		select {
		case <-f.changed:
		case <-late.C:
			f.t.Fatalf("%s is not visible", what)
		}
	}
	return time.Since(start)
}

// listening waits for the book's own connection to be subscribed.
func (f *fixture) listening() {
	f.t.Helper()
	eventually(f.t, "the book to listen", func() bool { return scan[int64](f, sqlListeners) != 0 })
}

const sqlListeners = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
	AND application_name = 'queengate listen' AND state = 'idle' AND query LIKE 'LISTEN%'`

func TestLoadedSnapshot(t *testing.T) {
	t.Parallel()
	f := setup(t, time.Hour)
	s := f.book.Snapshot()
	c := s.ClusterBySlug("acme-main")
	if c == nil || c != s.ClusterByID(f.cluster) || len(s.Clusters()) != 1 || s.Clusters()[0] != c {
		t.Fatal("the cluster is not found by slug, by id and in the list alike")
	}
	want := &Cluster{
		ID: f.cluster, Slug: "acme-main", TenantID: f.tenant, Tenant: "acme", Cell: "eu1", Spread: 1, PlanCode: "free",
		BrokerTenant: scan[uuid.UUID](f, "SELECT broker_tenant_uuid FROM queengate.clusters"), Status: Active,
		Limits: Limits{
			RequestsPerSecond: new(60.0), RequestsBurst: new(120.0), MessagesPerSecond: new(20.0), MessagesBurst: new(100.0),
			MaxQueues: new(int64(20)), MaxPartitionsPerQueue: new(int64(1000)), MaxParkedPops: new(int64(50)),
			MaxPayloadBytes: new(int64(256 << 10)), MaxBatchItems: new(int64(100)), MaxRetainedBytes: new(int64(1 << 30)),
			MaxRetentionSeconds: new(int64(7 * 86400)), Zone: "UTC",
		},
		Features: map[string]bool{"kv": true, "timers": true, "ephemeral": true},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("cluster (-want +got):\n%s", diff)
	}
	if err := c.Limits.Validate(); err != nil {
		t.Error(err)
	}
	k := s.KeyByHash([32]byte(hash(1)))
	if k == nil || k != s.KeyByID(f.key) || k.Cluster != c || k.PublicID != "AAAAAAA1" || k.Scopes != ScopeRead || len(k.CIDRs) != 2 {
		t.Errorf("key %+v", k)
	}
	if cell := s.Cell("eu1"); cell == nil || cell.BaseURL != "http://127.0.0.1:6632" || len(s.Cells()) != 1 {
		t.Errorf("cell %+v", cell)
	}
	if s.ClusterBySlug("nope") != nil || s.KeyByHash([32]byte{}) != nil || s.Cell("nope") != nil || s.Revoked("x") ||
		len(s.RoleOf(f.user, f.cluster)) != 0 || s.Plan("nope") != nil || s.Operator(f.user) {
		t.Error("something unknown is known")
	}
	if s.Plan("pro") == nil || s.Seq() == 0 || f.book.Synced().IsZero() {
		t.Error("plans, sequence or time of the load are missing")
	}
}

// steps is one change of each kind with what must then be seen. They build on each other.
func (f *fixture) steps() []step {
	cluster := func(s *Snapshot) *Cluster { return s.ClusterByID(f.cluster) }
	return []step{
		{
			"a plan edit", "SELECT queengate.set_plan('free', '{\"max_queues\": 21}')", nil,
			func(s *Snapshot) bool { return is(cluster(s).Limits.MaxQueues, 21) },
		},
		{
			"policies of a plan", "SELECT queengate.set_plan_policies('free', 'refuse', 'push+delivery')", nil,
			func(s *Snapshot) bool {
				l := cluster(s).Limits
				return l.Unbounded == RefuseUnbounded && l.Basis == CountDeliveries
			},
		},
		{
			"a policy of a cluster wins", "SELECT queengate.set_cluster_policies($1, 'ceiling')",
			[]any{f.cluster},
			func(s *Snapshot) bool {
				l := cluster(s).Limits
				return l.Unbounded == GiveCeiling && l.Basis == CountDeliveries
			},
		},
		{
			"a tenant moves", "SELECT queengate.set_tenant_time_zone($1, 'America/New_York')",
			[]any{f.tenant},
			func(s *Snapshot) bool { return cluster(s).Limits.Zone == "America/New_York" },
		},
		{
			"a plan edit in plain SQL", "UPDATE queengate.plans SET max_queues = 22 WHERE code = 'free'", nil,
			func(s *Snapshot) bool { return is(cluster(s).Limits.MaxQueues, 22) },
		},
		{
			"a plan's modes", "SELECT queengate.set_plan('free', p_modes => '{\"req\": \"shadow\"}')", nil,
			func(s *Snapshot) bool { return cluster(s).Limits.Mode(LimitRequests) == Shadow },
		},
		{
			"a cluster's modes", "SELECT queengate.set_limit_modes($1, '{\"req\": \"off\"}')",
			[]any{f.cluster},
			func(s *Snapshot) bool { return cluster(s).Limits.Mode(LimitRequests) == Off },
		},
		{
			"an override", "SELECT queengate.set_limit_override($1, '{\"max_queues\": null, \"max_parked_pops\": 0}')",
			[]any{f.cluster},
			func(s *Snapshot) bool {
				return cluster(s).Limits.MaxQueues == nil && is(cluster(s).Limits.MaxParkedPops, 0)
			},
		},
		{
			"cleared overrides", "SELECT queengate.set_limit_override($1, NULL)",
			[]any{f.cluster},
			func(s *Snapshot) bool { return is(cluster(s).Limits.MaxQueues, 22) },
		},
		{
			"another plan", "SELECT queengate.assign_plan($1, 'pro')",
			[]any{f.cluster},
			func(s *Snapshot) bool {
				return cluster(s).PlanCode == "pro" && *cluster(s).Limits.RequestsPerSecond == 600 && cluster(s).Features["streams"]
			},
		},
		{
			"a cluster's status", "SELECT queengate.set_cluster_status($1, 'paused')",
			[]any{f.cluster},
			func(s *Snapshot) bool {
				return cluster(s).Status == Paused && s.KeyByID(f.key).Cluster.Status == Paused
			},
		},
		{
			"a milder tenant's status", "SELECT queengate.set_tenant_status($1, 'grace')",
			[]any{f.tenant},
			func(s *Snapshot) bool { return cluster(s).Status == Paused },
		},
		{
			"a worse tenant's status", "SELECT queengate.set_tenant_status($1, 'suspended')",
			[]any{f.tenant},
			func(s *Snapshot) bool { return cluster(s).Status == Suspended },
		},
		{
			"a healthy tenant", "SELECT queengate.set_tenant_status($1, 'active')",
			[]any{f.tenant},
			func(s *Snapshot) bool { return cluster(s).Status == Paused },
		},
		{
			"a cell's address", "SELECT queengate.set_cell('eu1', 'http://10.0.0.1:6632')", nil,
			func(s *Snapshot) bool { return s.Cell("eu1").BaseURL == "http://10.0.0.1:6632" },
		},
		{
			"a cell's brokers", "SELECT queengate.set_cell('eu1', 'http://10.0.0.1:6632,dns+http://brokers:6632')", nil,
			func(s *Snapshot) bool { return s.Cell("eu1").BaseURL == "http://10.0.0.1:6632,dns+http://brokers:6632" },
		},
		{
			"a cluster's spread", "SELECT queengate.set_cluster_spread($1, 8)",
			[]any{f.cluster},
			func(s *Snapshot) bool { return s.ClusterByID(f.cluster).Spread == 8 },
		},
		{
			"a new cell", "SELECT queengate.create_cell('eu2', 'http://10.0.0.2:6632')", nil,
			func(s *Snapshot) bool { return s.Cell("eu2") != nil },
		},
		{
			"a new cluster", "SELECT queengate.create_cluster($1, 'aaa', 'dev', 'eu2')",
			[]any{f.tenant},
			func(s *Snapshot) bool {
				return s.ClusterBySlug("aaa") != nil && len(s.Clusters()) == 2 && s.Clusters()[0].Slug == "aaa"
			},
		},
		{
			"a new key", "SELECT queengate.issue_api_key($1, 'k2', $2, 'AAAAAAA2', '{produce}', p_expires_at => '2100-01-01')",
			[]any{f.cluster, hash(2)},
			func(s *Snapshot) bool {
				k := s.KeyByHash([32]byte(hash(2)))
				return k != nil && k.Scopes == ScopeProduce && k.ExpiresAt.Year() == 2100 && k.LimitedAs == k.ID
			},
		},
		{
			"a key's twin", "SELECT queengate.rotate_api_key($1, $2, $3, 'AAAAAAA3')",
			[]any{f.cluster, f.key, hash(3)},
			func(s *Snapshot) bool {
				k := s.KeyByHash([32]byte(hash(3)))
				return k != nil && k.ID != f.key && k.LimitedAs == f.key
			},
		},
		{
			"a key's limits", "SELECT queengate.set_api_key_limits($1, $2, '{\"max_req_per_sec\": 5, \"max_msgs_per_sec\": 0}')",
			[]any{f.cluster, f.key},
			func(s *Snapshot) bool {
				l := s.KeyByID(f.key).Limits
				return l != nil && *l.RequestsPerSecond == 5 && *l.RequestsBurst == 10 && *l.MessagesPerSecond == 0 && *l.MessagesBurst == 0
			},
		},
		{
			"a key's limits, lifted in plain SQL", "UPDATE queengate.api_keys SET max_req_per_sec = NULL, max_msgs_per_sec = NULL WHERE id = $1",
			[]any{f.key},
			func(s *Snapshot) bool { return s.KeyByID(f.key).Limits == nil },
		},
		{
			"a plan's rate of deliveries", "SELECT queengate.set_plan('pro', '{\"max_delivery_per_sec\": 50}')", nil,
			func(s *Snapshot) bool {
				l := &cluster(s).Limits
				return l.DeliveryPerSecond != nil && *l.DeliveryPerSecond == 50 && *l.DeliveryBurst == 100
			},
		},
		{
			"a revoked key", "SELECT queengate.revoke_api_key($1, $2)",
			[]any{f.cluster, f.key},
			func(s *Snapshot) bool {
				return s.KeyByHash([32]byte(hash(1))) == nil && s.KeyByID(f.key) == nil && s.KeyByHash([32]byte(hash(2))) != nil
			},
		},
		{
			"a role", "SELECT queengate.grant_cluster_role($1, 'ann@acme.example', 'viewer')",
			[]any{f.cluster},
			func(s *Snapshot) bool { return cmp.Equal(s.RoleOf(f.user, f.cluster), []Role{RoleViewer}) },
		},
		{
			"a second role", "SELECT queengate.grant_cluster_role($1, 'ann@acme.example', 'admin')",
			[]any{f.cluster},
			func(s *Snapshot) bool { return len(s.RoleOf(f.user, f.cluster)) == 2 },
		},
		{
			"no role any more", "SELECT queengate.revoke_cluster_role($1, 'ann@acme.example')",
			[]any{f.cluster},
			func(s *Snapshot) bool {
				return len(s.RoleOf(f.user, f.cluster)) == 0 && !s.RolesSince(f.user, f.cluster).IsZero()
			},
		},
		{
			"an operator", "SELECT queengate.set_operator('ann@acme.example', true)", nil,
			func(s *Snapshot) bool { return s.Operator(f.user) },
		},
		{
			"no operator any more", "SELECT queengate.set_operator('ann@acme.example', false)", nil,
			func(s *Snapshot) bool { return !s.Operator(f.user) },
		},
		{
			"a revoked session", "SELECT queengate.revoke_session('token-1', now() + interval '1 hour')", nil,
			func(s *Snapshot) bool { return s.Revoked("token-1") },
		},
		{
			"an issuer", "SELECT queengate.set_issuer($1, 'ci', 'https://ci.example', 'queengate', $2, NULL, '{ES256}')",
			[]any{f.tenant, `[{"claim": ["a", "b"], "value": "x", "roles": ["producer"], "scopes": ["read"], "clusters": ["acme-main"]}]`},
			func(s *Snapshot) bool {
				i := s.Issuer(f.tenant, "https://ci.example")
				return i != nil && s.Issuer(uuid.New(), "https://ci.example") == nil && cmp.Diff(Issuer{
					ID: i.ID, Tenant: f.tenant, Name: "ci", URL: "https://ci.example", Audience: "queengate", Algorithms: []string{"ES256"},
					Rules: []ClaimRule{{Claim: []string{"a", "b"}, Value: "x", Roles: []Role{RoleProducer}, Scopes: ScopeRead, Clusters: []string{"acme-main"}}},
				}, *i) == ""
			},
		},
		{
			"an issuer's other rules", "SELECT queengate.set_issuer($1, 'ci', 'https://ci.example', 'queengate', '[]', 'https://keys.example/k')",
			[]any{f.tenant},
			func(s *Snapshot) bool {
				i := s.Issuer(f.tenant, "https://ci.example")
				return i != nil && len(i.Rules) == 0 && i.KeysURL == "https://keys.example/k" && len(i.Algorithms) == 3
			},
		},
		{
			"revoked tokens of a subject", "SELECT queengate.revoke_issuer_tokens($1, 'ci', 'job', '2026-11-29 12:00Z')",
			[]any{f.tenant},
			func(s *Snapshot) bool {
				i := s.Issuer(f.tenant, "https://ci.example")
				return s.TokensSince(i.ID, "job").Equal(noon) && s.TokensSince(i.ID, "").IsZero() && s.TokensSince(i.ID, "other").IsZero()
			},
		},
		{
			"revoked tokens of an issuer", "SELECT queengate.revoke_issuer_tokens($1, 'ci', NULL, '2026-11-29 12:00Z')",
			[]any{f.tenant},
			func(s *Snapshot) bool {
				return s.TokensSince(s.Issuer(f.tenant, "https://ci.example").ID, "").Equal(noon)
			},
		},
		{
			"revoked tokens of a user", "SELECT queengate.revoke_user_tokens('ann@acme.example', '2026-11-29 12:00Z')", nil,
			func(s *Snapshot) bool {
				return s.TokensSince(f.user, "").Equal(noon) && s.TokensSince(f.tenant, "").IsZero()
			},
		},
		{
			"a later instant", "SELECT queengate.revoke_user_tokens('ann@acme.example', '2026-11-29 13:00Z')", nil,
			func(s *Snapshot) bool { return s.TokensSince(f.user, "").Equal(noon.Add(time.Hour)) },
		},
		{
			"revoked tokens of a tenant", "SELECT queengate.revoke_tenant_tokens($1, '2026-11-29 12:00Z')",
			[]any{f.tenant},
			func(s *Snapshot) bool { return s.TokensSince(f.tenant, "").Equal(noon) },
		},
		{
			"a switched off issuer", "SELECT queengate.set_issuer_active($1, 'ci', false)",
			[]any{f.tenant},
			func(s *Snapshot) bool { return s.Issuer(f.tenant, "https://ci.example") == nil },
		},
		{
			"a deleted issuer", "SELECT queengate.delete_issuer($1, 'ci')",
			[]any{f.tenant},
			func(s *Snapshot) bool { return len(s.cutoffs) == 3 }, // the user's, the tenant's, and that of a role
		},
		{
			"a cluster's new name", "UPDATE queengate.clusters SET slug = 'zzz' WHERE id = $1",
			[]any{f.cluster},
			func(s *Snapshot) bool {
				return s.ClusterBySlug("acme-main") == nil && s.ClusterBySlug("zzz") != nil && s.Clusters()[1].Slug == "zzz"
			},
		},
		{
			"a change of everything", "INSERT INTO queengate.inval_log (kind, id) VALUES ('all', '')", nil,
			func(s *Snapshot) bool { return s.ClusterBySlug("zzz") != nil },
		},
		{
			"a deleted tenant", "SELECT queengate.delete_tenant($1, true)",
			[]any{f.tenant},
			func(s *Snapshot) bool {
				return len(s.cutoffs) == 0 && len(s.Clusters()) == 0 && cluster(s) == nil && s.ClusterBySlug("zzz") == nil && s.KeyByHash([32]byte(hash(2))) == nil
			},
		},
	}
}

func is(limit *int64, n int64) bool { return limit != nil && *limit == n }

type step struct {
	what string
	sql  string
	args []any
	want func(*Snapshot) bool
}

// TestNotificationsAreFollowed: with the poll out of the way, every kind of change arrives by NOTIFY alone, and the
// incremental snapshot equals the one a fresh load gives.
func TestNotificationsAreFollowed(t *testing.T) {
	t.Parallel()
	f := setup(t, time.Hour)
	f.listening()
	var total time.Duration
	steps := f.steps()
	for _, s := range steps {
		f.exec(s.sql, s.args...)
		total += f.await(s.what, s.want)
		f.matchesFreshLoad(s.what)
	}
	t.Logf("a change is visible after %s on average", (total / time.Duration(len(steps))).Round(10*time.Microsecond))
}

// TestLostNotificationsAreRepaired: without any notification the poll finds every kind of change.
func TestLostNotificationsAreRepaired(t *testing.T) {
	t.Parallel()
	f := setup(t, 20*time.Millisecond)
	f.exec("DROP TRIGGER inval_log_notify ON queengate.inval_log")
	for _, s := range f.steps() {
		f.exec(s.sql, s.args...)
		f.await(s.what, s.want)
	}
}

// TestCatchUpFindsWhatNobodyTold: with notifications and the poll out of the way, who asks is told.
func TestCatchUpFindsWhatNobodyTold(t *testing.T) {
	t.Parallel()
	f := setup(t, time.Hour)
	f.listening()
	f.exec("DROP TRIGGER inval_log_notify ON queengate.inval_log")
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	const times = 3
	began := time.Now()
	for n := range byte(times) {
		f.exec("SELECT queengate.issue_api_key($1, $2, $3, $4, '{read}')", f.cluster, fmt.Sprint("new", n), hash(10+n), fmt.Sprintf("AAAAAA1%d", n))
		made := time.Now()
		var asking sync.WaitGroup
		for range 20 {
			asking.Go(func() {
				if !f.book.CatchUp(ctx, made) {
					t.Error("the book does not catch up")
				} else if f.book.Snapshot().KeyByHash([32]byte(hash(10+n))) == nil {
					t.Error("the book has caught up and does not know the key")
				}
			})
		}
		asking.Wait()
	}
	if d := time.Since(began); d < (times-1)*askPause {
		t.Errorf("the database was asked %d times in %v", times, d)
	}
	cancel()
	if f.book.CatchUp(ctx, time.Now()) {
		t.Error("the wait has no bound")
	}
}

// matchesFreshLoad compares the followed snapshot with one that is read anew.
func (f *fixture) matchesFreshLoad(after string) {
	f.t.Helper()
	seq := scan[int64](f, "SELECT max(seq) FROM queengate.inval_log")
	f.await("the last change", func(s *Snapshot) bool { return s.Seq() == seq })
	fresh := NewBook(slog.New(slog.DiscardHandler), f.pool, time.Hour)
	if err := fresh.Load(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	if diff := cmp.Diff(fresh.Snapshot(), f.book.Snapshot(), cmp.AllowUnexported(Snapshot{}), cmp.Comparer(prefixesEqual)); diff != "" {
		f.t.Errorf("after %s the followed snapshot differs from a fresh one (-fresh +followed):\n%s", after, diff)
	}
}

func TestKilledListenerComesBack(t *testing.T) {
	t.Parallel()
	f := setup(t, time.Hour)
	f.listening()
	f.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'queengate listen'`)
	// Nobody listens now; the subscription that comes back looks for what it missed.
	f.exec("SELECT queengate.set_limit_override($1, '{\"max_queues\": 99}')", f.cluster)
	f.await("a change made while nobody listened", func(s *Snapshot) bool {
		return is(s.ClusterByID(f.cluster).Limits.MaxQueues, 99)
	})
}

// TestUntrustedLogIsReadAgain: when the row last seen is gone or is another one, numbers prove nothing.
func TestUntrustedLogIsReadAgain(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]string{
		"a pruned log":                          "SELECT queengate.prune_inval_log('0')",
		"a restored database":                   "UPDATE queengate.inval_log SET at = at - interval '1 day'",
		"a database that fell behind":           "DELETE FROM queengate.inval_log WHERE seq > 1",
		"more changes than are followed singly": fmt.Sprintf("INSERT INTO queengate.inval_log (kind, id) SELECT 'cell', 'x' FROM generate_series(1, %d)", maxChanges+1),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := setup(t, 20*time.Millisecond)
			f.exec("DROP TRIGGER inval_log_notify ON queengate.inval_log")
			f.exec("BEGIN; ALTER TABLE queengate.clusters DISABLE TRIGGER z_log; UPDATE queengate.clusters SET plan_code = 'pro'; " +
				"SELECT queengate.set_cell('eu1', 'http://10.0.0.9:1'); " + spoil + "; COMMIT")
			f.await(what, func(s *Snapshot) bool { return s.ClusterByID(f.cluster).PlanCode == "pro" })
		})
	}
}

func TestUnchangedThingsKeepTheirPointers(t *testing.T) {
	t.Parallel()
	f := setup(t, time.Hour)
	f.listening()
	f.exec("SELECT queengate.create_cluster($1, 'other', 'dev', 'eu1')", f.tenant)
	f.await("the second cluster", func(s *Snapshot) bool { return s.ClusterBySlug("other") != nil })
	before := f.book.Snapshot()
	f.exec("SELECT queengate.set_plan('dev', '{\"max_queues\": 51}')")
	f.await("the plan edit", func(s *Snapshot) bool { return is(s.ClusterBySlug("other").Limits.MaxQueues, 51) })
	after := f.book.Snapshot()
	if before.ClusterByID(f.cluster) != after.ClusterByID(f.cluster) || before.KeyByID(f.key) != after.KeyByID(f.key) {
		t.Error("a cluster of another plan, or its key, was composed again")
	}
	if *before.ClusterBySlug("other").Limits.MaxQueues != 50 {
		t.Error("an old snapshot changed")
	}
}

func TestDatabaseAwayLeavesTheLastSnapshot(t *testing.T) {
	t.Parallel()
	f := setup(t, 10*time.Millisecond)
	name := scan[string](f, "SELECT current_database()")
	admin := pgtest.New(t) // another database of the same server
	ctx := t.Context()
	block := func(allow bool) {
		if _, err := admin.Exec(ctx, fmt.Sprintf("ALTER DATABASE %s ALLOW_CONNECTIONS %t", name, allow)); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name); err != nil {
			t.Fatal(err)
		}
	}
	before := f.book.Snapshot()
	block(false)
	eventually(t, "the book to notice", f.isAway)
	bounded, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	if f.book.CatchUp(bounded, time.Now()) || bounded.Err() != nil {
		t.Error("to catch up with a database that is away does not fail at once")
	}
	if f.book.Snapshot() != before || f.book.Snapshot().ClusterBySlug("acme-main") == nil {
		t.Error("the last snapshot is not in force")
	}
	block(true)
	f.pool.Reset() // the pool's connections were killed too
	f.exec("SELECT queengate.set_cluster_status($1, 'paused')", f.cluster)
	f.await("a change after the database came back", func(s *Snapshot) bool { return s.ClusterByID(f.cluster).Status == Paused })
}

func (f *fixture) isAway() bool {
	return f.book.away.Load()
}

func TestContradictionsAreWarnedOf(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Gateway)
	if _, err := pool.Exec(t.Context(), `SELECT queengate.create_cell('eu1', 'http://h:1');
		SELECT queengate.bootstrap_tenant('a', 'A', slug, 'free', 'eu1') FROM unnest(ARRAY['sound', 'odd', 'plain']) slug;
		SELECT queengate.set_limit_override(id, '{"max_queues": 1}') FROM queengate.clusters WHERE slug = 'sound';
		SELECT queengate.set_limit_override(id, '{"msgs_burst": 50}') FROM queengate.clusters WHERE slug = 'odd'`); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := NewBook(slog.New(slog.NewTextHandler(&out, nil)), pool, time.Hour).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "cluster=odd") || !strings.Contains(got, "max_batch_items = 100") {
		t.Errorf("log:\n%s", got)
	}
}

func TestComposeByHand(t *testing.T) {
	t.Parallel()
	user := uuid.New()
	b, a := &Cluster{ID: uuid.New(), Slug: "b"}, &Cluster{ID: uuid.New(), Slug: "a"}
	s := Compose(Facts{
		Seq: 7, Clusters: []*Cluster{b, a}, Keys: []*Key{{ID: uuid.New(), Hash: [32]byte(hash(1)), Cluster: a}},
		Grants:  []Grant{{user, a.ID, []Role{RoleViewer}}, {user, b.ID, []Role{RoleAdmin}}},
		Revoked: []string{"x"}, Operators: []uuid.UUID{user}, Cells: []*Cell{{Slug: "c"}}, Plans: []*Plan{{Code: "p"}},
	})
	if s.Seq() != 7 || s.Clusters()[0] != a || s.ClusterBySlug("b") != b || s.KeyByHash([32]byte(hash(1))).Cluster != a ||
		s.RoleOf(user, b.ID)[0] != RoleAdmin || s.RoleOf(user, a.ID)[0] != RoleViewer || !s.Revoked("x") ||
		!s.Operator(user) || s.Cell("c") == nil || s.Plan("p") == nil {
		t.Error("a fact is missing")
	}
	var empty Snapshot
	if empty.ClusterBySlug("a") != nil || empty.Revoked("x") || empty.RoleOf(user, a.ID) != nil || empty.KeyByHash([32]byte{}) != nil {
		t.Error("the zero snapshot knows something")
	}
}

// A day of control work at ten thousand clusters with two keys each: what a whole load and one plan edit cost.
func BenchmarkBook(b *testing.B) {
	pool := pgtest.New(b, migrations.Gateway)
	ctx := context.Background()
	if _, err := pool.Exec(ctx, `BEGIN;
		SELECT queengate.create_cell('eu1', 'http://h:1');
		INSERT INTO queengate.tenants (slug, name) SELECT 't' || i, 't' FROM generate_series(1, 10000) i;
		INSERT INTO queengate.clusters (tenant_id, slug, plan_code, cell) SELECT id, slug, 'free', 'eu1' FROM queengate.tenants;
		INSERT INTO queengate.api_keys (cluster_id, name, public_id, hash, scopes)
			SELECT c.id, 'k', substr(md5(c.slug || n), 1, 8), sha256((c.slug || n)::bytea), '{produce,consume}'
			FROM queengate.clusters c, generate_series(1, 2) n ON CONFLICT DO NOTHING;
		COMMIT`); err != nil {
		b.Fatal(err)
	}
	book := NewBook(slog.New(slog.DiscardHandler), pool, time.Hour)
	b.Run("whole", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := book.Load(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
	edit := func(sql string) func(*testing.B) {
		return func(b *testing.B) {
			if err := book.Load(ctx); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				if _, err := pool.Exec(ctx, sql); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if err := book.refresh(ctx); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.Run("one cluster", edit("UPDATE queengate.clusters SET status = 'active' WHERE slug = 't1'"))
	b.Run("one key", edit("UPDATE queengate.api_keys SET name = 'k' WHERE id = (SELECT min(id::text)::uuid FROM queengate.api_keys)"))
	b.Run("plan of all", edit("UPDATE queengate.plans SET max_queues = 20 WHERE code = 'free'"))
	file := File{Path: filepath.Join(b.TempDir(), "control.book"), Secret: []byte("s"), Origin: "o"}
	kept := NewBook(slog.New(slog.DiscardHandler), pool, time.Hour, WithFile(file))
	if err := kept.Load(ctx); err != nil {
		b.Fatal(err)
	}
	b.Run("whole, kept", func(b *testing.B) {
		for b.Loop() {
			kept.mu.Lock()
			err := kept.reload(ctx)
			kept.mu.Unlock()
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("write the file", func(b *testing.B) {
		for b.Loop() {
			kept.keeper.stored.Store(0)
			if err := kept.store(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read the file", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := kept.keeper.open(time.Hour, time.Now()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("nothing", func(b *testing.B) {
		for b.Loop() {
			if err := book.refresh(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func prefixesEqual(a, b netip.Prefix) bool { return a == b }
