package migrations_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/pg"
)

// lease takes the lease of the wipe for a holder, 0 when another has it.
func (w *world) lease(holder string, d time.Duration) int64 {
	w.t.Helper()
	fence := scan[*int64](w, "SELECT queengate.take_lease('wipe', $1, $2)", holder, d)
	if fence == nil {
		return 0
	}
	return *fence
}

// wiped brings a deleting cluster to where its data is removed for certain.
func (w *world) wiped(cluster uuid.UUID) {
	w.t.Helper()
	fence := w.lease("test", time.Hour)
	w.exec("SELECT queengate.begin_wipe($1, $2, 10)", fence, cluster)
	for range 2 {
		w.exec("SELECT queengate.note_wipe($1, $2, 0, true, 'tenant', 0, 0, '0 s')", fence, cluster)
	}
}

// refused wants a statement to fail with a state.
func (w *world) refused(what, state, sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), sql, args...); pg.State(err) != state {
		w.t.Errorf("%s: %v, want %s", what, err, state)
	}
}

// Every state may follow every other, except that nothing follows deleting; a change leaves one audit row, and the state
// that was there already none.
func TestTransitionsOfTheLifeCycle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	states := []string{"active", "grace", "push_blocked", "export_only", "paused", "suspended", "deleting"}
	for _, of := range []struct{ table, set string }{
		{"tenants", "SELECT queengate.set_tenant_status($1, $2)"}, {"clusters", "SELECT queengate.set_cluster_status($1, $2)"},
	} {
		id := map[string]uuid.UUID{"tenants": w.rival, "clusters": w.acmeMain}[of.table]
		for _, from := range states {
			for _, to := range states {
				w.exec("UPDATE queengate."+of.table+" SET status = $2 WHERE id = $1", id, from)
				before := scan[int64](w, "SELECT count(*) FROM queengate.operations")
				_, err := w.pool.Exec(t.Context(), of.set, id, to)
				rows := scan[int64](w, "SELECT count(*) FROM queengate.operations") - before
				got := scan[string](w, "SELECT status FROM queengate."+of.table+" WHERE id = $1", id)
				legal := from != "deleting" || to == "deleting"
				switch {
				case legal && (err != nil || got != to || rows == 1 != (from != to)):
					t.Errorf("%s: %s to %s: %v, is %s, %d audit rows", of.table, from, to, err, got, rows)
				case !legal && (pg.State(err) != "55000" || got != from || rows != 0):
					t.Errorf("%s: %s to %s: %v, is %s, %d audit rows", of.table, from, to, err, got, rows)
				}
			}
		}
		w.refused("no state", "23514", of.set, id, nil)
	}
}

// One holder at a time; the fence tells the holders apart, also one that lost the lease and took it again.
func TestLeasesAreFenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const long, over = time.Hour, -time.Second
	first := w.lease("a", long)
	if first == 0 || w.lease("b", long) != 0 {
		t.Fatal("two holders at a time")
	}
	if again := w.lease("a", over); again != first {
		t.Errorf("renewed with the fence %d, want %d", again, first)
	}
	if back := w.lease("a", long); back == first {
		t.Error("a lease that had ended was renewed with its old fence")
	}
	w.exec("SELECT queengate.release_lease('wipe', 'b')") // not b's
	if w.lease("b", long) != 0 {
		t.Error("a lease was released by somebody else")
	}
	w.exec("SELECT queengate.release_lease('wipe', 'a')")
	second := w.lease("b", long)
	if second <= first {
		t.Errorf("the fence went from %d to %d", first, second)
	}
	w.exec("SELECT queengate.set_cluster_status($1, 'deleting')", w.acmeMain)
	w.exec("SELECT queengate.begin_wipe($1, $2, 5)", second, w.acmeMain)
	for what, sql := range map[string]string{
		"begin": "SELECT queengate.begin_wipe($1, $2, 0)", "fail": "SELECT queengate.fail_wipe($1, $2, 'x')",
		"note": "SELECT queengate.note_wipe($1, $2, 1, true, '', 0, 0, '0 s')", "delete": "SELECT queengate.delete_cluster($1, $2)",
	} {
		w.refused(what+" by a former holder", "55000", sql, first, w.acmeMain)
	}
}

// A wipe ends only when its cell, after a while, says once more that nothing is left; progress is shown meanwhile.
func TestAWipeEndsWhenItIsConfirmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	show := func() string {
		return scan[string](w, `SELECT coalesce((SELECT concat_ws(' ', tenant, cluster, cell, state, rows_removed, bytes_removed, bytes_left, stands_at, failure)
			FROM queengate.wipe_progress), 'nothing')`)
	}
	step := func(want string, ended bool, rows int64, done bool, bytes int64, settle string) {
		t.Helper()
		got := scan[bool](w, "SELECT queengate.note_wipe((SELECT fence FROM queengate.leases), $1, $2, $3, 'log', $4, 0, $5::text::interval)", w.acmeMain, rows, done, bytes, settle)
		if diff := cmp.Diff(want, show()); diff != "" || got != ended {
			t.Errorf("ended %t, want %t; progress (-want +got):\n%s", got, ended, diff)
		}
	}
	fence := w.lease("a", time.Hour)
	w.refused("a wipe of a cluster that lives", "55000", "SELECT queengate.begin_wipe($1, $2, 0)", fence, w.acmeMain)
	if got := show(); got != "nothing" {
		t.Errorf("shown of nothing: %s", got)
	}
	w.exec("SELECT queengate.set_tenant_status($1, 'deleting')", w.acme) // the tenant's state counts for its clusters
	if got := show(); got != "acme acme-main eu1 waiting 0" {
		t.Errorf("before: %s", got)
	}
	for range 2 {
		w.exec("SELECT queengate.begin_wipe($1, $2, 100)", fence, w.acmeMain)
	}
	if n := scan[int64](w, "SELECT count(*) FROM queengate.operations WHERE action = 'wipe_begun'"); n != 1 {
		t.Errorf("%d audit rows of the beginning, want 1", n)
	}
	step("acme acme-main eu1 removing 7 60 40 log", false, 7, false, 40, "1 h")
	w.exec("SELECT queengate.fail_wipe($1, $2, 'no broker')", fence, w.acmeMain)
	if got := show(); got != "acme acme-main eu1 removing 7 60 40 log no broker" {
		t.Errorf("after a failure: %s", got)
	}
	step("acme acme-main eu1 settling 12 100 0 log", false, 5, true, 0, "1 h")
	if wait := scan[float64](w, "SELECT extract(epoch FROM wait)::float8 FROM queengate.dying_clusters('1 h')"); wait < 3000 || wait > 3600 {
		t.Errorf("waits %v s", wait)
	}
	step("acme acme-main eu1 settling 12 100 0 log", false, 0, true, 0, "1 h") // too early
	w.refused("a deletion before the end", "55000", "SELECT queengate.delete_cluster($1, $2)", fence, w.acmeMain)
	step("acme acme-main eu1 settling 14 100 0 log", false, 2, true, 0, "0 s") // something had come late
	step("acme acme-main eu1 removed 14 100 0 log", true, 0, true, 0, "0 s")
	if got := scan[string](w, "SELECT coalesce(string_agg(slug, ' '), '') FROM queengate.dying_tenants()"); got != "" {
		t.Errorf("a tenant with a cluster is ripe: %s", got)
	}
	w.exec("SELECT queengate.delete_cluster($1, $2)", fence, w.acmeMain)
	w.refused("a second time", "P0002", "SELECT queengate.delete_cluster($1, $2)", fence, w.acmeMain)
	if got := scan[string](w, "SELECT slug FROM queengate.dying_tenants()"); got != "acme" {
		t.Errorf("ripe: %s", got)
	}
	w.exec("SELECT queengate.delete_tenant($1)", w.acme)
	for _, table := range []string{"wipes", "dying_clusters('0 s')", "dying_tenants()", "api_keys"} {
		if n := scan[int64](w, fmt.Sprintf("SELECT count(*) FROM queengate.%s", table)); n != 0 {
			t.Errorf("%s: %d rows left", table, n)
		}
	}
	want := "cluster_deleted 14 100, tenant_deleted"
	if got := scan[string](w, `SELECT string_agg(concat_ws(' ', action, meta ->> 'rows', meta ->> 'bytes'), ', ' ORDER BY at)
		FROM queengate.operations WHERE action LIKE '%\_deleted'`); got != want {
		t.Errorf("the audit says %q, want %q", got, want)
	}
}

// keepers are tables that name a tenant or a cluster and outlive it. A new table that names one either goes with it, by its
// reference, or is added here with the reason.
var keepers = map[string]string{
	"operations": "the audit",
}

// byHand are the tables whose rows delete_cluster and delete_tenant delete themselves.
var byHand = map[string]bool{"api_keys": true, "cluster_roles": true, "clusters": true, "users": true, "identities": true}

// The end of a tenant takes what every table of the control database has of it, also those that nobody thought of when
// delete_cluster and delete_tenant were written.
func TestNoTableOutlivesItsTenantOrStopsItsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, column := range []string{"cluster_id", "tenant_id", "user_id"} {
		tables := scan[[]string](w, `SELECT array_agg(c.table_name::text) FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
			WHERE table_schema = 'queengate' AND table_type = 'BASE TABLE' AND column_name = $1`, column)
		for _, table := range tables {
			if byHand[table] || keepers[table] != "" {
				continue
			}
			goes := scan[bool](w, `SELECT EXISTS (SELECT FROM pg_constraint k JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey)
				WHERE k.contype = 'f' AND k.confdeltype = 'c' AND k.conrelid = ('queengate.' || $1)::regclass AND a.attname = $2)`, table, column)
			if !goes {
				t.Errorf("%s.%s: let it refer ON DELETE CASCADE, or add the table to keepers with the reason", table, column)
			}
		}
	}
	stops := scan[[]string](w, `SELECT coalesce(array_agg(c.relname::text), '{}') FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
		WHERE k.contype = 'f' AND k.confrelid IN ('queengate.clusters'::regclass, 'queengate.tenants'::regclass, 'queengate.users'::regclass, 'queengate.api_keys'::regclass)
		AND k.confdeltype NOT IN ('c', 'n')`)
	for _, table := range stops {
		if !byHand[table] {
			t.Errorf("%s refers to what a deletion deletes, and stops it", table)
		}
	}
}
