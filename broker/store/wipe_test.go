package store

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

// cellTables hold nothing of any tenant. A new table of schema queen either says whose its rows are, by a column that
// tenantTables knows, or is added here with the reason.
var cellTables = map[string]string{
	"config_version":     "a counter of the cell",
	"system_state":       "switches of the cell",
	"maintenance_leases": "tasks of the cell",
	"brokers":            "processes",
	"broker_metrics":     "minutes of processes",
	"cell_totals":        "sums over all tenants",
	"log_writes":         "numbers of partitions for a quarter of an hour, which are nobody's without the partition",
	"closed_tenants":     "which tenants may not begin again",
}

// tenantTables returns, for every table that belongs to tenants, the condition that chooses the rows of one: $1 is the
// tenant, $2 and $3 are the ids of its partitions and its queues, which may be gone already.
func (w *world) tenantTables() map[string]string {
	w.t.Helper()
	rows, err := w.pool.Query(w.ctx, `SELECT t.table_name::text, array_agg(c.column_name::text || ' ' || c.data_type)
FROM information_schema.tables t JOIN information_schema.columns c USING (table_schema, table_name)
WHERE t.table_schema = 'queen' AND t.table_type = 'BASE TABLE' GROUP BY 1`)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	of := map[string]string{}
	for rows.Next() {
		var table string
		var columns []string
		if err := rows.Scan(&table, &columns); err != nil {
			w.t.Fatal(err)
		}
		switch {
		case slices.Contains(columns, "tenant_id uuid"):
			of[table] = "tenant_id = $1 AND $2::bigint[] IS NOT NULL AND $3::bigint[] IS NOT NULL"
		case slices.Contains(columns, "partition_id bigint"):
			of[table] = "partition_id = ANY ($2::bigint[]) AND $1::uuid IS NOT NULL AND $3::bigint[] IS NOT NULL"
		case slices.Contains(columns, "queue_id bigint"):
			of[table] = "queue_id = ANY ($3::bigint[]) AND $1::uuid IS NOT NULL AND $2::bigint[] IS NOT NULL"
		case cellTables[table] == "":
			w.t.Errorf("whose are the rows of %s? A wipe of a tenant must remove its own: %s", table, strings.Join(columns, ", "))
		}
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	return of
}

// tenancy is a tenant that has something in every table.
type tenancy struct {
	id                 uuid.UUID
	partitions, queues []int64
}

// fill makes a tenant with a bit of everything that the product ever writes for one.
func (w *world) fill(name string) tenancy {
	w.t.Helper()
	of := tenancy{id: uuid.New()}
	sub := *w
	sub.tenant = of.id
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatalf("%s: %v", name, err)
		}
	}
	ps, err := w.store.Provision(w.ctx, of.id, []Pair{{"sales.orders", "a"}, {"sales.orders", "b"}, {"other", "a"}}, Caps{})
	must(err)
	for _, p := range ps {
		of.partitions = append(of.partitions, p.ID)
		if !slices.Contains(of.queues, p.QueueID) {
			of.queues = append(of.queues, p.QueueID)
		}
		for i := range 3 {
			_, err := w.store.PushBundle(w.ctx, []Segment{sub.segmentOf(lane{p.ID, p.UID}, fmt.Sprint("m", i))})
			must(err)
		}
	}
	must(sub.enroll(of.id, "g", "sales.orders", Seed{Mode: wire.SeedAll}))
	_, err = w.store.RegisterScope(w.ctx, Scope{Tenant: of.id, Namespace: "sales"}, "h", Seed{Mode: wire.SeedAll})
	must(err)
	c := Claim{Candidates: []int64{ps[0].ID}, Group: "g", Worker: uuid.New(), Lease: time.Minute, Budget: 2}
	_, err = w.store.ClaimBundle(w.ctx, []Claim{c})
	must(err)
	vs := w.ack(AckGroup{Tenant: of.id, Partition: ps[0].UID, Group: "g", Lease: c.Worker.String(), Items: []AckItem{{Status: wire.AckDLQ, Offset: 0}}})
	if !vs[0].Items[0].DLQ {
		w.t.Fatalf("%+v", vs[0])
	}
	_, err = w.store.Seek(w.ctx, of.id, "g", "sales.orders", "", wire.Seek{ToEnd: true})
	must(err)
	_, err = w.store.StartRedrive(w.ctx, &Redrive{Tenant: of.id, Filter: LetterFilter{Queue: "sales.orders"}, Rate: 1})
	must(err)
	must(w.store.AddTrace(w.ctx, of.id, &Trace{ID: uuid.New(), Partition: ps[0].UID, TransactionID: "m0", Data: []byte("1"), Names: []string{"n", "o"}}))
	must(w.store.WriteMinute(w.ctx, Broker{ID: uuid.New(), Hostname: "h", Started: time.Now()}, &Minute{
		Bucket: time.Now().Truncate(time.Minute), Queues: []QueueMinute{{Tenant: of.id, Queue: "other"}},
	}))
	// Retention has trimmed a partition and not swept it, and a deleted one is not swept either.
	w.exec("UPDATE queen.queues SET retention_enabled = true, retention_seconds = 1 WHERE id = $1", ps[0].QueueID)
	w.exec("UPDATE queen.log_segments SET created_at = created_at - interval '1 h' WHERE partition_id = $1", ps[1].ID)
	tr, err := w.store.Trim(w.ctx, w.task(TaskRetention), []int64{ps[1].ID}, 2, false)
	must(err)
	if tr.Segments != 2 {
		w.t.Fatalf("%+v", tr)
	}
	_, err = w.store.DeletePartitions(w.ctx, of.id, []int64{ps[2].ID})
	must(err)
	return of
}

// task is a claim on a task of upkeep that nobody else has for an hour.
func (w *world) task(name string) TaskLease {
	w.t.Helper()
	l := TaskLease{Task: name, Holder: "test"}
	w.scan(`UPDATE queen.maintenance_leases SET holder = $2, fence = fence + 1, lease_until = clock_timestamp() + interval '1 hour'
WHERE task = $1 RETURNING fence`, []any{name, l.Holder}, &l.Fence)
	return l
}

// rowsOf says what is in the tables of a tenant, "" for nothing, and a digest of it.
func (w *world) rowsOf(tables map[string]string, of tenancy) map[string]string {
	w.t.Helper()
	rows := map[string]string{}
	for table, where := range tables {
		var n int
		var digest string
		w.scan("SELECT count(*), md5(coalesce(string_agg(r::text, ' ' ORDER BY r::text), '')) FROM queen."+table+" r WHERE "+where,
			[]any{of.id, of.partitions, of.queues}, &n, &digest)
		if n > 0 {
			rows[table] = fmt.Sprintf("%d rows %s", n, digest)
		}
	}
	return rows
}

func (w *world) wipe(tenant uuid.UUID) (steps []Wiped) {
	w.t.Helper()
	for range 1000 {
		step, err := w.store.WipeTenant(w.ctx, tenant)
		if err != nil {
			w.t.Fatal(err)
		}
		steps = append(steps, step)
		if step.Done {
			return steps
		}
	}
	w.t.Fatalf("no end of it: %+v", steps[len(steps)-10:])
	return nil
}

// Everything of one tenant goes, from every table there is or will be, and nothing of another.
func TestAWipeLeavesNothingOfTheTenantAndAllOfTheOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tables := w.tenantTables()
	gone, stays := w.fill("gone"), w.fill("stays")
	before := w.rowsOf(tables, stays)
	for _, of := range []tenancy{gone, stays} {
		for table := range tables {
			if w.rowsOf(tables, of)[table] == "" {
				t.Errorf("the test puts nothing into %s, so it cannot see whether a wipe removes it", table)
			}
		}
	}
	steps := w.wipe(gone.id)
	if left := w.rowsOf(tables, gone); len(left) > 0 {
		t.Errorf("a wipe leaves %v", left)
	}
	if d := cmp.Diff(before, w.rowsOf(tables, stays)); d != "" {
		t.Errorf("a wipe of another tenant changes (-before +after):\n%s", d)
	}
	var order []string
	for _, s := range steps {
		if s.Rows > 0 && !slices.Contains(order, s.What) {
			order = append(order, s.What)
		}
	}
	want := []string{"redrives", "dead letters", "partitions", "queues", "log", "registrations", "traces", "history", "ledger", "tenant"}
	if d := cmp.Diff(want[:8], order[:8]); d != "" || !slices.Equal(order[8:], want[9:]) {
		t.Errorf("the order of the steps: %v", order)
	}
	// A wipe of nobody is done at once and makes no tenant.
	if again := w.wipe(gone.id); len(again) != 1 || again[0].Rows != 0 || len(w.rowsOf(tables, gone)) != 0 {
		t.Errorf("once more: %+v", again)
	}
}

// A wipe that stops anywhere is gone on with by calling it again; every step is small.
func TestAWipeGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tables := w.tenantTables()
	of := w.fill("tenant")
	total := func() (n int) {
		for table, where := range tables {
			var rows int
			w.scan("SELECT count(*) FROM queen."+table+" WHERE "+where, []any{of.id, of.partitions, of.queues}, &rows)
			n += rows
		}
		return n
	}
	at := total()
	for calls := 1; ; calls++ {
		tx, err := w.pool.Begin(w.ctx)
		if err != nil {
			t.Fatal(err)
		}
		step := func() (what string, removed int64, done bool) {
			if err := tx.QueryRow(w.ctx, "SELECT what, removed, done FROM queen.wipe_tenant($1, 1)", of.id).Scan(&what, &removed, &done); err != nil {
				t.Fatal(err)
			}
			return what, removed, done
		}
		// A crash in the step: nothing has happened.
		step()
		if err := tx.Rollback(w.ctx); err != nil {
			t.Fatal(err)
		}
		if n := total(); n != at {
			t.Fatalf("a step that was rolled back has changed %d rows into %d", at, n)
		}
		if tx, err = w.pool.Begin(w.ctx); err != nil {
			t.Fatal(err)
		}
		what, removed, done := step()
		if err := tx.Commit(w.ctx); err != nil {
			t.Fatal(err)
		}
		n := total()
		// A partition takes its cursors and leaves a row that says its log is to be swept, and one of the ledger.
		if at-n > 6 || removed > 3 {
			t.Errorf("one step of one row (%s, %d) has removed %d", what, removed, at-n)
		}
		if at = n; done {
			break
		}
		if calls > 200 {
			t.Fatalf("no end of it: %s", what)
		}
	}
	if at != 0 {
		t.Errorf("%d rows are left", at)
	}
}

// A tenant that goes on during its wipe is one that begins anew: nothing of before comes back, and what is new works.
func TestATenantThatWritesDuringItsWipeBeginsAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	of := w.fill("tenant")
	sub := *w
	sub.tenant = of.id
	fresh := 0
	for range 1000 {
		step, err := w.store.WipeTenant(w.ctx, of.id)
		if err != nil {
			t.Fatal(err)
		}
		if step.Done {
			break
		}
		if fresh < 3 && step.What == "log" {
			fresh++
			ps, err := w.store.Provision(w.ctx, of.id, []Pair{{"sales.orders", "a"}}, Caps{MaxQueues: ptr[int64](1)})
			if err != nil {
				t.Fatal(err)
			}
			vs, err := w.store.PushBundle(w.ctx, []Segment{sub.segmentOf(lane{ps[0].ID, ps[0].UID}, "m0")})
			if err != nil || vs[0].Status != PushStored || vs[0].Base != 0 {
				t.Fatalf("%+v %v", vs, err)
			}
			of.partitions = append(of.partitions, ps[0].ID)
			of.queues = append(of.queues, ps[0].QueueID)
		}
	}
	if left := w.rowsOf(w.tenantTables(), of); fresh == 0 || len(left) > 0 {
		t.Errorf("written to %d times, left: %v", fresh, slices.Sorted(maps.Keys(left)))
	}
}

// Trace events go by their age, with their names; the others stay.
func TestOldTracesArePurged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("p")
	note := func(name string, age time.Duration) {
		id := uuid.New()
		if err := w.store.AddTrace(w.ctx, w.tenant, &Trace{ID: id, Partition: l.uid, TransactionID: name, Hash: Hash{1}, Data: []byte("1"), Names: []string{name, "all"}}); err != nil {
			t.Fatal(err)
		}
		w.exec("UPDATE queen.message_traces SET created_at = created_at - $2::interval WHERE id = $1", id, age)
		w.exec("UPDATE queen.message_trace_names SET created_at = created_at - $2::interval WHERE trace_id = $1", id, age)
	}
	note("old", 49*time.Hour)
	note("older", 100*time.Hour)
	note("young", 47*time.Hour)
	if n, err := w.store.PurgeTraces(w.ctx, 48*time.Hour); err != nil || n != 2 {
		t.Errorf("%d purged: %v", n, err)
	}
	if n, err := w.store.PurgeTraces(w.ctx, 48*time.Hour); err != nil || n != 0 {
		t.Errorf("then %d: %v", n, err)
	}
	var names []string
	w.scan("SELECT array_agg(name ORDER BY name) FROM queen.message_trace_names", nil, &names)
	all, total, err := w.store.TracesByName(w.ctx, w.tenant, "all", wire.Page{Limit: 10})
	if err != nil || !slices.Equal(names, []string{"all", "young"}) || total != 1 || len(all) != 1 || all[0].TransactionID != "young" {
		t.Errorf("left: names %v, %d events, %+v, %v", names, total, all, err)
	}
}

// A closed tenant creates nothing any more, whoever was about to: those who came before are wiped, those who come after
// are refused, and a wipe that has said it is done stays true.
func TestAClosedTenantNeverBeginsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	of := w.fill("tenant")
	begin := make(chan struct{})
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			<-begin
			for n := 0; ; n++ {
				_, err := w.store.Provision(w.ctx, of.id, []Pair{{fmt.Sprintf("q%d-%d", i, n), "a"}}, Caps{})
				if Closed(err) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	close(begin)
	for range 2 {
		if err := w.store.CloseTenant(w.ctx, of.id); err != nil {
			t.Fatal(err)
		}
	}
	w.wipe(of.id)
	writers.Wait()
	var left int
	w.scan("SELECT (SELECT count(*) FROM queen.queues WHERE tenant_id = $1) + (SELECT count(*) FROM queen.tenants WHERE tenant_id = $1)", []any{of.id}, &left)
	if left != 0 {
		t.Errorf("%d queues and tenants are left", left)
	}
	if _, err := w.store.Provision(w.ctx, of.id, []Pair{{"sales.orders", "a"}}, Caps{}); !Closed(err) {
		t.Errorf("it begins anew: %v", err)
	}
	if _, err := w.store.Seek(w.ctx, of.id, "g", "sales.orders", "", wire.Seek{ToEnd: true}); err != nil {
		t.Errorf("a seek of nothing: %v", err)
	}
	if len(w.wipe(of.id)) != 1 {
		t.Error("there was something to wipe again")
	}
}
