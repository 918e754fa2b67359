package store

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

// Lag is arithmetic on cursors: what is behind them, and how old the first message of that is.
func TestLagOfGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start := w.now().Add(-time.Hour)
	a, b := w.lane("a"), w.lane("b")
	for i := range 3 {
		w.pushAt(a, start.Add(time.Duration(i)*10*time.Minute), 2)
	}
	w.pushAt(b, start.Add(50*time.Minute), 1)
	// Retention removed the second segment's predecessor, and log_start is behind: the age is that of what is left.
	w.exec("DELETE FROM queen.log_segments WHERE partition_id = $1 AND base_offset = 0", a.id)
	w.readsAll("g", a)
	lease := w.claim("g", a)
	lease.Budget = 3
	w.pop(lease)
	w.readsAll("absent", a)
	w.exec("UPDATE queen.group_registrations SET queue = 'tomorrow' WHERE consumer_group = 'absent'")
	if err := w.enroll(w.tenant, "late", w.queue, Seed{Mode: wire.SeedNew}); err != nil {
		t.Fatal(err)
	}

	groups, err := w.store.Groups(w.ctx, w.tenant)
	if err != nil {
		t.Fatal(err)
	}
	want := []Group{
		{Queue: "tomorrow", Name: "absent", Mode: "all"},
		{Queue: "orders", Name: "g", Mode: "all", Workers: 1, Cursors: 1, Lagging: 2, Pending: 7, LagSeconds: 3000},
		{Queue: "orders", Name: "late", Mode: "new", Cursors: 2},
	}
	about := cmp.Options{
		cmpopts.IgnoreFields(Group{}, "From", "Registered"),
		cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".LagSeconds" }, cmp.Comparer(func(x, y int64) bool { return x-y < 60 && y-x < 60 })),
	}
	if d := cmp.Diff(want, groups, about); d != "" {
		t.Error(d)
	}
	for _, g := range groups {
		if g.From.IsZero() || g.Registered.IsZero() {
			t.Errorf("%s: %v, %v", g.Name, g.From, g.Registered)
		}
	}

	lanes, err := w.store.GroupLanes(w.ctx, w.tenant, "g")
	if err != nil {
		t.Fatal(err)
	}
	wantLanes := []Lane{
		{Queue: "orders", Group: "g", PartitionID: a.uid, Partition: "a", HasCursor: true, Worker: lease.Worker, Pending: 6, Since: start.Add(10 * time.Minute), LagSeconds: 3000},
		{Queue: "orders", Group: "g", PartitionID: b.uid, Partition: "b", Pending: 1, Since: start.Add(50 * time.Minute), LagSeconds: 600},
	}
	laneAbout := append(about, cmpopts.IgnoreFields(Lane{}, "Acquired"), cmpopts.EquateApproxTime(time.Millisecond))
	if d := cmp.Diff(wantLanes, lanes, laneAbout); d != "" {
		t.Error(d)
	}
	if lanes[0].Acquired.IsZero() || !lanes[1].Acquired.IsZero() {
		t.Errorf("leases acquired at %v and %v", lanes[0].Acquired, lanes[1].Acquired)
	}

	for least, want := range map[time.Duration]int{0: 2, 20 * time.Minute: 1, 2 * time.Hour: 0} {
		got, err := w.store.LaggingLanes(w.ctx, w.tenant, least)
		if err != nil || len(got) != want {
			t.Errorf("behind by %v: %d, want %d (%v)", least, len(got), want, err)
		}
		if want == 2 && got[0].Partition != "a" {
			t.Errorf("the oldest comes first: %+v", got)
		}
	}
	for name, err := range map[string]error{
		"groups": func() error { g, err := w.store.Groups(w.ctx, uuid.New()); return none(len(g), err) }(),
		"lanes":  func() error { l, err := w.store.GroupLanes(w.ctx, uuid.New(), "g"); return none(len(l), err) }(),
	} {
		if err != nil {
			t.Errorf("%s of another tenant: %v", name, err)
		}
	}
}

func none(n int, err error) error {
	if err == nil && n > 0 {
		return wire.Errorf(wire.Internal, "%d rows", n)
	}
	return err
}

func TestDepth(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	depth := func(group string) Depth {
		t.Helper()
		q, err := w.store.LookupQueue(w.ctx, w.tenant, w.queue)
		if err != nil {
			t.Fatal(err)
		}
		d, err := w.store.QueueDepth(w.ctx, q, group)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := depth("g"); d.Partitions != nil {
		t.Errorf("an empty queue: %+v", d)
	}
	a := w.lane("a")
	w.push(a, 5)
	if err := w.enroll(w.tenant, "new", w.queue, Seed{Mode: wire.SeedNew, Conflation: true}); err != nil {
		t.Fatal(err)
	}
	w.push(a, 1)
	later := w.lane("later")
	w.push(later, 2)
	w.exec("UPDATE queen.log_partitions SET log_start = 2 WHERE id = $1", a.id)
	c := w.claim("new", a)
	w.pop(c)
	w.lease(later, 1)
	for group, want := range map[string]Depth{
		"new":               {Conflation: true, Partitions: []PartitionDepth{{"a", 1, 1}, {"later", 2, 0}}},
		"nobody":            {Partitions: []PartitionDepth{{"a", 4, 0}, {"later", 2, 0}}},
		wire.QueueModeGroup: {Partitions: []PartitionDepth{{"a", 4, 0}, {"later", 2, 1}}},
	} {
		if d := cmp.Diff(want, depth(group)); d != "" {
			t.Errorf("%s: %s", group, d)
		}
	}
	w.expire()
	if d := depth("new"); d.Partitions[0].Processing != 0 {
		t.Errorf("an expired lease counts: %+v", d)
	}
}

func TestOverviewAndScopes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("UPDATE queen.queues SET namespace = 'shop', task = 'mail' WHERE id = $1", w.id)
	second := w.newQueue(w.tenant, "second")
	w.exec("UPDATE queen.queues SET namespace = 'shop' WHERE id = $1", second)
	w.newQueue(w.tenant, "third")
	start := w.now().Add(-time.Hour)
	a, b, empty := w.lane("a"), w.laneOf(second, "b"), w.laneOf(second, "empty")
	w.pushAt(a, start, 4)
	w.pushAt(b, start.Add(30*time.Minute), 2)
	w.lease(a, 3)
	w.exec("INSERT INTO queen.log_dlq (id, tenant_id, queue, partition_id, partition_name, consumer_group, offset_, error, retry_count) VALUES (gen_random_uuid(), $1, 'orders', $2, 'a', 'g', 0, 'x', 0)", w.tenant, a.id)
	_ = empty

	o, err := w.store.Overview(w.ctx, w.tenant)
	if err != nil {
		t.Fatal(err)
	}
	near := func(got, want float64) bool { return got >= want && got < want+60 }
	if o.Queues != 3 || o.Namespaces != 1 || o.Tasks != 1 || o.Partitions != 3 || o.Total != 6 || o.Pending != 6 || o.Processing != 3 || o.DeadLetter != 1 ||
		!near(o.LagSeconds.Max, 3600) || !near(o.LagSeconds.Min, 1800) || !near(o.LagSeconds.Avg, 2700) || !near(o.LagSeconds.Median, 2700) ||
		o.LagMessages != (Spread{Avg: 3, Median: 3, Min: 2, Max: 4}) || o.At.IsZero() {
		t.Errorf("%+v", o)
	}
	if o, err := w.store.Overview(w.ctx, uuid.New()); err != nil || o.Queues+o.Partitions+o.Total+o.DeadLetter != 0 {
		t.Errorf("another tenant: %+v, %v", o, err)
	}

	namespaces, err := w.store.Namespaces(w.ctx, w.tenant)
	want := []ScopeSummary{{Name: "shop", Queues: 2, Others: 1, Partitions: 3, Counts: Counts{Total: 6, Pending: 6, Processing: 3}}}
	if d := cmp.Diff(want, namespaces); d != "" || err != nil {
		t.Error(d, err)
	}
	tasks, err := w.store.Tasks(w.ctx, w.tenant)
	want = []ScopeSummary{{Name: "mail", Queues: 1, Others: 1, Partitions: 1, Counts: Counts{Total: 4, Pending: 4, Processing: 3}}}
	if d := cmp.Diff(want, tasks); d != "" || err != nil {
		t.Error(d, err)
	}

	for name, c := range map[string]struct {
		f    ResourceFilter
		want []string
		all  int64
	}{
		"all":          {ResourceFilter{}, []string{"orders/a", "second/b", "second/empty"}, 3},
		"a queue":      {ResourceFilter{Queue: "second"}, []string{"second/b", "second/empty"}, 2},
		"a page":       {ResourceFilter{Page: wire.Page{Limit: 1, Offset: 1}}, []string{"second/b"}, 3},
		"a task":       {ResourceFilter{Task: "mail"}, []string{"orders/a"}, 1},
		"one":          {ResourceFilter{Queue: "second", Partition: "b"}, []string{"second/b"}, 1},
		"no namespace": {ResourceFilter{Namespace: "nowhere"}, nil, 0},
	} {
		page, all, err := w.store.Partitions(w.ctx, w.tenant, c.f)
		var got []string
		for _, p := range page {
			got = append(got, p.Queue+"/"+p.Name)
		}
		if d := cmp.Diff(c.want, got); d != "" || all != c.all || err != nil {
			t.Errorf("%s: %d of all, %v\n%s", name, all, err, d)
		}
	}
	for name, c := range map[string]struct {
		f    ResourceFilter
		want int
	}{"a namespace": {ResourceFilter{Namespace: "shop"}, 2}, "a page": {ResourceFilter{Page: wire.Page{Limit: 2, Offset: 2}}, 1}} {
		if got, err := w.store.Queues(w.ctx, w.tenant, c.f); len(got) != c.want || err != nil {
			t.Errorf("queues of %s: %d, want %d (%v)", name, len(got), c.want, err)
		}
	}
}
