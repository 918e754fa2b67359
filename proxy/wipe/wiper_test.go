package wipe

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds a wait for something that must happen; it is long only so that a loaded machine does not lie.
const patience = 60 * time.Second

// rowsPerStep is what a cell of the tests removes at a time.
const rowsPerStep = 10

// cells are brokers that hold so many rows of a tenant.
type cells struct {
	mu     sync.Mutex // guards all below
	rows   map[uuid.UUID]int64
	late   map[uuid.UUID]int64 // what brokers write down after the tenant is empty for the first time
	where  map[uuid.UUID]string
	calls  int
	inside int
	beside int                    // calls that met another one
	before func(call int) error   // of each step, before anything is removed
	after  func(c *plans.Cluster) // of each step
}

func (cs *cells) Retained(_ context.Context, c *plans.Cluster) (int64, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.rows[c.BrokerTenant] * 100, nil
}

func (cs *cells) Wipe(_ context.Context, c *plans.Cluster) (wire.WipeAnswer, error) {
	cs.mu.Lock()
	cs.calls++
	if cs.inside++; cs.inside > 1 {
		cs.beside++
	}
	call, before, after := cs.calls, cs.before, cs.after
	cs.mu.Unlock()
	if before != nil {
		if err := before(call); err != nil {
			cs.mu.Lock()
			defer cs.mu.Unlock()
			cs.inside--
			return wire.WipeAnswer{}, err
		}
	}
	cs.mu.Lock()
	cs.where[c.BrokerTenant] = c.Cell
	n := min(cs.rows[c.BrokerTenant], rowsPerStep)
	cs.rows[c.BrokerTenant] -= n
	a := wire.WipeAnswer{Rows: n, What: "log", RetainedBytes: cs.rows[c.BrokerTenant] * 100}
	if cs.rows[c.BrokerTenant] == 0 {
		a.Done, a.What = true, "tenant"
		cs.rows[c.BrokerTenant] = cs.late[c.BrokerTenant]
		delete(cs.late, c.BrokerTenant)
	}
	cs.inside--
	cs.mu.Unlock()
	if after != nil {
		after(c)
	}
	return a, nil
}

// of returns what is left of a tenant at its cell, and how often it was asked to wipe.
func (cs *cells) of(tenant uuid.UUID) (rows int64, calls int) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.rows[tenant], cs.calls
}

// world is a control database with two tenants: acme has a cluster in each of two cells, rival one in the first.
type world struct {
	t           *testing.T
	pool        *pgxpool.Pool
	cells       *cells
	acme, rival uuid.UUID
	clusters    map[string]uuid.UUID // ids, by slug
	tenants     map[string]uuid.UUID // at the brokers, by slug of the cluster

	mu     sync.Mutex // guards all below
	erased map[uuid.UUID]bool
	refuse error // of the erasure
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, pool: pgtest.New(t, migrations.Gateway), clusters: map[string]uuid.UUID{}, tenants: map[string]uuid.UUID{},
		cells:  &cells{rows: map[uuid.UUID]int64{}, late: map[uuid.UUID]int64{}, where: map[uuid.UUID]string{}},
		erased: map[uuid.UUID]bool{},
	}
	for _, cell := range []string{"c1", "c2"} {
		w.exec("SELECT queengate.create_cell($1, 'http://127.0.0.1:6632')", cell)
	}
	w.acme = scan[uuid.UUID](w, "SELECT queengate.create_tenant('acme')")
	w.rival = scan[uuid.UUID](w, "SELECT queengate.create_tenant('rival')")
	for i, c := range []struct {
		tenant     uuid.UUID
		slug, cell string
	}{{w.acme, "acme-one", "c1"}, {w.acme, "acme-two", "c2"}, {w.rival, "rival-one", "c1"}} {
		id := scan[uuid.UUID](w, "SELECT queengate.create_cluster($1, $2, 'free', $3)", c.tenant, c.slug, c.cell)
		w.clusters[c.slug] = id
		w.tenants[c.slug] = scan[uuid.UUID](w, "SELECT broker_tenant_uuid FROM queengate.clusters WHERE id = $1", id)
		w.cells.rows[w.tenants[c.slug]] = 25
		email, hash := fmt.Sprintf("u%d@example.com", i), sha256.Sum256([]byte(c.slug))
		w.exec("SELECT queengate.create_user($1, $2)", c.tenant, email)
		w.exec("SELECT queengate.grant_cluster_role($1, $2, 'admin')", id, email)
		w.exec("SELECT queengate.issue_api_key($1, 'k', $2, NULL, '{read}')", id, hash[:])
	}
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func scan[T any](w *world, sql string, args ...any) T {
	w.t.Helper()
	var v T
	if err := w.pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// running is a Wiper that runs.
type running struct {
	*Wiper
	cancel func()
	stop   func() // ends it and waits for the end; more than once is fine
}

// run starts a Wiper as a gateway of its own would.
func (w *world) run(settle time.Duration) *running {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Wiper: w.wiper(settle), cancel: cancel}
	var done sync.WaitGroup
	done.Go(func() {
		if err := r.Run(ctx); err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	r.stop = func() {
		cancel()
		done.Wait()
	}
	w.t.Cleanup(r.stop)
	return r
}

func (w *world) wiper(settle time.Duration) *Wiper {
	return New(Options{
		Log: slog.New(slog.DiscardHandler), Pool: w.pool, Cells: w.cells, Settle: settle, Metrics: prometheus.NewRegistry(),
		Erase: func(_ context.Context, cluster uuid.UUID) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.refuse != nil {
				return w.refuse
			}
			w.erased[cluster] = true
			return nil
		},
	})
}

// until waits for what nothing announces to the test.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for late := time.After(patience); !ok(); {
		select {
		case <-look.C:
		case <-late:
			w.t.Fatalf("waited in vain for: %s", what)
		}
	}
}

func (w *world) exists(table string, id uuid.UUID) bool {
	w.t.Helper()
	return scan[bool](w, "SELECT EXISTS (SELECT FROM queengate."+table+" WHERE id = $1)", id)
}

// rivals is all that the control database holds of rival and of nobody.
func (w *world) rivals() string {
	w.t.Helper()
	return scan[string](w, `SELECT concat_ws(E'\n',
		(SELECT string_agg(t::text, E'\n') FROM queengate.tenants t WHERE id = $1),
		(SELECT string_agg(c::text, E'\n') FROM queengate.clusters c WHERE tenant_id = $1),
		(SELECT string_agg(u::text, E'\n') FROM queengate.users u WHERE tenant_id = $1),
		(SELECT string_agg(r::text, E'\n') FROM queengate.cluster_roles r WHERE tenant_id = $1),
		(SELECT string_agg(k::text, E'\n') FROM queengate.api_keys k JOIN queengate.clusters c ON c.id = k.cluster_id WHERE tenant_id = $1),
		(SELECT string_agg(p::text, E'\n' ORDER BY code) FROM queengate.plans p),
		(SELECT string_agg(c::text, E'\n' ORDER BY slug) FROM queengate.cells c))`, w.rival)
}

// gone checks that nothing is left of acme anywhere but in the audit, and all of rival.
func (w *world) gone(rivals string) {
	w.t.Helper()
	for slug, tenant := range w.tenants {
		rows, _ := w.cells.of(tenant)
		if want := map[bool]int64{true: 25}[slug == "rival-one"]; rows != want {
			w.t.Errorf("%s: %d rows are left at its cell, want %d", slug, rows, want)
		}
		if w.erased[w.clusters[slug]] == (slug == "rival-one") {
			w.t.Errorf("%s: erased %t", slug, w.erased[w.clusters[slug]])
		}
	}
	if diff := cmp.Diff(rivals, w.rivals()); diff != "" {
		w.t.Errorf("another tenant changed (-before +after):\n%s", diff)
	}
	for table, left := range map[string]int64{"tenants": 1, "clusters": 1, "users": 1, "api_keys": 1, "cluster_roles": 1, "wipes": 0} {
		if n := scan[int64](w, "SELECT count(*) FROM queengate."+table); n != left {
			w.t.Errorf("%s: %d rows, want %d", table, n, left)
		}
	}
	want := map[string]int64{"wipe_begun": 2, "cluster_deleted": 2, "tenant_deleted": 1}
	for action, n := range want {
		if got := scan[int64](w, "SELECT count(*) FROM queengate.operations WHERE action = $1 AND tenant_id = $2", action, w.acme); got != n {
			w.t.Errorf("the audit has %d rows of %s, want %d", got, action, n)
		}
	}
}

// A tenant that is deleting goes, from every cell it has a cluster in, from Redis and from the control database, with what
// brokers wrote late; nobody else loses anything.
func TestADeletedTenantGoesFromEverywhere(t *testing.T) {
	t.Parallel()
	w := setup(t)
	before := w.rivals()
	w.cells.late[w.tenants["acme-two"]] = 3
	w.exec("SELECT queengate.set_tenant_status($1, 'deleting')", w.acme)
	r := w.run(0)
	w.until("the end of acme", func() bool { return !w.exists("tenants", w.acme) })
	r.stop()
	w.gone(before)
	if diff := cmp.Diff(map[uuid.UUID]string{w.tenants["acme-one"]: "c1", w.tenants["acme-two"]: "c2"}, w.cells.where); diff != "" {
		t.Errorf("asked cells (-want +got):\n%s", diff)
	}
	if rows, ended := testutil.ToFloat64(r.metrics.rows), testutil.ToFloat64(r.metrics.ended); rows != 53 || ended != 2 {
		t.Errorf("counted %v rows and %v clusters", rows, ended)
	}
	got := scan[string](w, "SELECT string_agg(concat_ws(' ', target, meta ->> 'rows', meta ->> 'bytes', meta ->> 'keys'), ', ' ORDER BY target) FROM queengate.operations WHERE action = 'cluster_deleted'")
	if want := "acme-one 25 2500 1, acme-two 28 2500 1"; got != want {
		t.Errorf("the audit says %q, want %q", got, want)
	}
}

// One cluster may go alone: its tenant and the tenant's other clusters stay.
func TestADeletedClusterLeavesItsTenant(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec("SELECT queengate.set_cluster_status($1, 'deleting')", w.clusters["acme-one"])
	r := w.run(0)
	w.until("the end of acme-one", func() bool { return !w.exists("clusters", w.clusters["acme-one"]) })
	r.stop()
	if !w.exists("tenants", w.acme) || !w.exists("clusters", w.clusters["acme-two"]) {
		t.Error("more went than was to go")
	}
	if rows, _ := w.cells.of(w.tenants["acme-two"]); rows != 25 {
		t.Errorf("%d rows of the other cluster are left", rows)
	}
}

// A gateway that ends in the middle of any step is followed by another one, which goes on; nothing is lost or done to
// anybody else, and the count of rows is that of the steps whose end was noted.
func TestAWipeSurvivesTheEndOfEveryGateway(t *testing.T) {
	t.Parallel()
	w := setup(t)
	before := w.rivals()
	w.exec("SELECT queengate.set_tenant_status($1, 'deleting')", w.acme)
	lives := 0
	for empty := false; !empty; lives++ {
		if lives > 100 {
			t.Fatal("no end of it")
		}
		// It ends when its first, second or third step has been taken and before that is noted.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		steps := 0
		w.cells.mu.Lock()
		w.cells.after = func(*plans.Cluster) {
			if steps++; steps > lives%3 {
				cancel()
			}
		}
		w.cells.mu.Unlock()
		if err := w.wiper(time.Hour).Run(ctx); err != nil {
			t.Fatal(err)
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Fatal("nothing happens")
		}
		one, _ := w.cells.of(w.tenants["acme-one"])
		two, _ := w.cells.of(w.tenants["acme-two"])
		empty = one+two == 0
	}
	if lives < 2 {
		t.Error("the test cuts nothing off")
	}
	w.cells.mu.Lock()
	w.cells.after = nil
	w.cells.mu.Unlock()
	r := w.run(0)
	w.until("the end of acme", func() bool { return !w.exists("tenants", w.acme) })
	r.stop()
	w.gone(before)
}

// Of many gateways one works at a time, and another goes on when it ends.
func TestOneGatewayOfAFleetWorks(t *testing.T) {
	t.Parallel()
	w := setup(t)
	before := w.rivals()
	for _, slug := range []string{"acme-one", "acme-two"} {
		w.cells.rows[w.tenants[slug]] = 65
	}
	w.exec("SELECT queengate.set_tenant_status($1, 'deleting')", w.acme)
	held := make(chan struct{})
	w.cells.before = func(call int) error {
		if call == 2 {
			<-held
		}
		return nil
	}
	var fleet []*running
	for range 3 {
		fleet = append(fleet, w.run(0))
	}
	working := func() *running {
		for _, r := range fleet {
			if scan[bool](w, "SELECT EXISTS (SELECT FROM queengate.leases WHERE holder = $1 AND until > clock_timestamp())", r.db.holder) {
				return r
			}
		}
		return nil
	}
	w.until("the second step", func() bool { _, n := w.cells.of(uuid.Nil); return n == 2 })
	first := working()
	if first == nil {
		t.Fatal("steps are taken and nobody has the lease")
	}
	first.cancel() // in the middle of it
	close(held)
	first.stop()
	for _, r := range fleet {
		r.wake() // the change of a snapshot does that, and else the half of a lease's time
	}
	w.until("the end of acme", func() bool { return !w.exists("tenants", w.acme) })
	for _, r := range fleet {
		r.stop()
	}
	w.gone(before)
	if w.cells.beside > 0 {
		t.Errorf("%d steps were taken side by side", w.cells.beside)
	}
	var rows float64
	for _, r := range fleet {
		rows += testutil.ToFloat64(r.metrics.rows)
	}
	if alone := testutil.ToFloat64(first.metrics.rows); alone == rows {
		t.Error("nobody went on: one gateway did all of it")
	}
}

// Who has lost the lease without knowing notes nothing: not progress, not the end.
func TestAGatewayThatWasCutOffNotesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec("SELECT queengate.set_cluster_status($1, 'deleting')", w.clusters["acme-one"])
	w.cells.before = func(call int) error {
		if call == 1 { // another one finds the lease over while the step is under way
			w.exec("UPDATE queengate.leases SET until = '-infinity'")
			w.exec("SELECT queengate.take_lease('wipe', 'another', '1 hour')")
		}
		return nil
	}
	r := w.run(0)
	w.until("a failure", func() bool { return testutil.ToFloat64(r.metrics.failures) > 0 })
	r.stop()
	if rows := scan[int64](w, "SELECT rows_removed FROM queengate.wipes"); rows != 0 {
		t.Errorf("%d rows were noted by a former holder", rows)
	}
	if holder := scan[string](w, "SELECT holder FROM queengate.leases WHERE until > clock_timestamp()"); holder != "another" {
		t.Errorf("%s holds the lease", holder)
	}
}

// A cell that does not answer holds up its own clusters and nobody else's, and what it says stands where people look.
func TestAFailingCellHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var mu sync.Mutex
	broken := true
	w.cells.before = func(int) error { return nil }
	w.exec("SELECT queengate.set_tenant_status($1, 'deleting')", w.acme)
	failing := &failingCell{cells: w.cells, cell: "c1", broken: func() bool { mu.Lock(); defer mu.Unlock(); return broken }}
	wiper := w.wiper(0)
	wiper.cells = failing
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- wiper.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	w.until("the end of acme-two", func() bool { wiper.wake(); return !w.exists("clusters", w.clusters["acme-two"]) })
	if got := scan[string](w, "SELECT concat_ws(' ', cluster, state, rows_removed, failure) FROM queengate.wipe_progress"); got != "acme-one removing 0 the cell is away" {
		t.Errorf("shown: %q", got)
	}
	mu.Lock()
	broken = false
	mu.Unlock()
	w.until("the end of acme", func() bool { wiper.wake(); return !w.exists("tenants", w.acme) })
}

// failingCell is cells of which one is away while broken says so.
type failingCell struct {
	*cells
	cell   string
	broken func() bool
}

func (f *failingCell) Wipe(ctx context.Context, c *plans.Cluster) (wire.WipeAnswer, error) {
	if c.Cell == f.cell && f.broken() {
		return wire.WipeAnswer{}, errors.New("the cell is away")
	}
	return f.cells.Wipe(ctx, c)
}

// The control database is the last to forget: a cluster that Redis still has something of stays deleting.
func TestNothingIsForgottenBeforeItIsErased(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.refuse = errors.New("redis is away")
	w.exec("SELECT queengate.set_cluster_status($1, 'deleting')", w.clusters["acme-one"])
	r := w.run(0)
	w.until("a refused erasure", func() bool { r.wake(); return testutil.ToFloat64(r.metrics.failures) > 1 })
	if !w.exists("clusters", w.clusters["acme-one"]) {
		t.Fatal("forgotten too early")
	}
	w.mu.Lock()
	w.refuse = nil
	w.mu.Unlock()
	w.until("the end", func() bool { r.wake(); return !w.exists("clusters", w.clusters["acme-one"]) })
}

// Only news of a deletion wake.
func TestADeletionWakes(t *testing.T) {
	t.Parallel()
	snapshot := func(states ...plans.Status) *plans.Snapshot {
		var f plans.Facts
		for i, s := range states {
			f.Clusters = append(f.Clusters, &plans.Cluster{ID: uuid.UUID{byte(i + 1)}, Slug: fmt.Sprint(i), Status: s})
		}
		return plans.Compose(f)
	}
	for name, tt := range map[string]struct {
		old, new *plans.Snapshot
		want     int
	}{
		"deleting":      {snapshot(plans.Active, plans.Active), snapshot(plans.Active, plans.Deleting), 1},
		"at the start":  {&plans.Snapshot{}, snapshot(plans.Deleting), 1},
		"another state": {snapshot(plans.Active), snapshot(plans.Suspended), 0},
		"still":         {snapshot(plans.Deleting), snapshot(plans.Deleting, plans.Active), 0},
		"gone":          {snapshot(plans.Deleting), snapshot(), 0},
	} {
		w := New(Options{Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
		w.Follow(tt.old, tt.new)
		if got := len(w.wakeC); got != tt.want {
			t.Errorf("%s: %d wakes, want %d", name, got, tt.want)
		}
	}
}
