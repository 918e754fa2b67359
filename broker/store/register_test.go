package store

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

// crowd makes the queue count as one whose cursors a registration leaves to others.
func (w *world) crowd() {
	w.t.Helper()
	w.exec("UPDATE queen.queues SET partition_count = $2 WHERE id = $1", w.id, seedWhole)
}

// seedOwed takes steps of so many partitions until no registration owes a cursor, and returns how many it took.
func (w *world) seedOwed(limit int) (steps int) {
	w.t.Helper()
	l := w.task(TaskCursors)
	for {
		n, err := w.store.SeedRegistered(w.ctx, l, limit)
		if err != nil {
			w.t.Fatal(err)
		}
		if n == 0 {
			return steps
		}
		steps++
	}
}

// starts are the first offsets that a group gets, by partition; -1: nothing.
func (w *world) starts(group string, lanes map[string]lane) map[string]int64 {
	w.t.Helper()
	got := map[string]int64{}
	for name, l := range lanes {
		c := w.claim(group, l)
		switch v := w.pop(c)[0]; v.Status {
		case ClaimTook:
			got[name] = v.After + 1
		case ClaimEmpty:
			got[name] = -1
		default:
			w.t.Fatalf("%s: %+v", name, v)
		}
	}
	return got
}

// toRead are the partitions that a group has something to read in, as a ring, as the depth, and as the list of groups say.
func (w *world) toRead(queue *Queue, group string, lanes map[string]lane) (ring []string, depth map[string]int64, listed int64) {
	w.t.Helper()
	found, err := w.store.Pending(w.ctx, queue.ID, group, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	depth = map[string]int64{}
	for _, p := range found {
		for name, l := range lanes {
			if l.id == p.PartitionID {
				ring = append(ring, name)
			}
		}
	}
	d, err := w.store.QueueDepth(w.ctx, queue, group)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range d.Partitions {
		depth[p.Partition] = p.Pending
	}
	groups, err := w.store.Groups(w.ctx, w.tenant)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range groups {
		if groups[i].Queue == queue.Name && groups[i].Name == group {
			listed = groups[i].Pending
		}
	}
	return ring, depth, listed
}

// Whether the cursors of a group are made with its registration, in steps, or by its claims, and whatever is written
// meanwhile: it starts at the same messages, and the same wait for it.
func TestWhereAGroupStartsDoesNotDependOnWhoMakesItsCursors(t *testing.T) {
	t.Parallel()
	hourAgo := time.Now().Add(-time.Hour)
	at := func(minute int) time.Time { return hourAgo.Add(time.Duration(minute) * time.Minute) }
	none := int64(-1)
	for mode, c := range map[string]struct {
		seed Seed
		want map[string]int64
	}{
		"all":                    {Seed{Mode: wire.SeedAll}, map[string]int64{"old": 0, "both": 0, "empty": none, "filled": 0, "born": 0, "misdated": 0}},
		"new":                    {Seed{Mode: wire.SeedNew}, map[string]int64{"old": none, "both": 2, "empty": none, "filled": 0, "born": 0, "misdated": 0}},
		"from a time between":    {Seed{Mode: wire.SeedTimestamp, From: at(5)}, map[string]int64{"old": 1, "both": 1, "empty": none, "filled": 0, "born": 0, "misdated": 0}},
		"from after what was":    {Seed{Mode: wire.SeedTimestamp, From: at(20)}, map[string]int64{"old": none, "both": 2, "empty": none, "filled": 0, "born": 0, "misdated": 0}},
		"from before everything": {Seed{Mode: wire.SeedTimestamp, From: at(-5)}, map[string]int64{"old": 0, "both": 0, "empty": none, "filled": 0, "born": 0, "misdated": 0}},
	} {
		for way, seeds := range map[string]func(w *world, written func()){
			"with the registration":    func(_ *world, written func()) { written() },
			"in steps, before writes":  func(w *world, written func()) { w.seedOwed(2); written() },
			"in steps, after writes":   func(w *world, written func()) { written(); w.seedOwed(2) },
			"in steps, between writes": func(w *world, written func()) { w.step(1); written(); w.seedOwed(3) },
			"by claims":                func(_ *world, written func()) { written() },
		} {
			t.Run(mode+" "+way, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				queue := &Queue{Tenant: w.tenant, Name: w.queue, ID: w.id}
				lanes := map[string]lane{}
				for _, name := range []string{"old", "both", "empty", "filled"} {
					lanes[name] = w.laneOf(queue.ID, name)
				}
				for _, name := range []string{"old", "both"} {
					w.pushAt(lanes[name], at(0), 1)
					w.pushAt(lanes[name], at(10), 1)
				}
				if way != "with the registration" {
					w.crowd()
				}
				if err := w.enroll(w.tenant, "g", w.queue, c.seed); err != nil {
					t.Fatal(err)
				}
				seeds(w, func() {
					lanes["born"] = w.laneOf(queue.ID, "born")
					// By a server whose clock is far behind.
					lanes["misdated"] = w.laneOf(queue.ID, "misdated")
					w.exec("UPDATE queen.log_partitions SET created_at = created_at - interval '1 day' WHERE id = $1", lanes["misdated"].id)
					for _, name := range []string{"both", "filled", "born", "misdated"} {
						w.push(lanes[name], 1)
					}
				})
				ring, depth, listed := w.toRead(queue, "g", lanes)
				got := w.starts("g", lanes)
				if d := cmp.Diff(c.want, got); d != "" {
					t.Error("first offsets (-want +got):\n" + d)
				}
				said, sum := map[string]bool{}, int64(0)
				for _, name := range ring {
					said[name] = true
				}
				for name, l := range lanes {
					var last int64
					w.scan("SELECT last_offset FROM queen.log_partitions WHERE id = $1", []any{l.id}, &last)
					pending := int64(0)
					if got[name] != none {
						pending = last - got[name] + 1
					}
					sum += pending
					if depth[name] != pending {
						t.Errorf("%s: the depth is %d, delivered are %d", name, depth[name], pending)
					}
					if said[name] != (pending > 0) {
						t.Errorf("%s: pending for the ring %v, delivered are %d", name, said[name], pending)
					}
				}
				if listed != sum {
					t.Errorf("the list of groups says %d, delivered are %d", listed, sum)
				}
			})
		}
	}
}

// count is what a query counts.
func (w *world) count(sql string, args ...any) (n int) {
	w.t.Helper()
	w.scan(sql, args, &n)
	return n
}

// step takes one step of so many partitions.
func (w *world) step(limit int) {
	w.t.Helper()
	if n, err := w.store.SeedRegistered(w.ctx, w.task(TaskCursors), limit); err != nil || n == 0 {
		w.t.Fatalf("a step looked at %d partitions: %v", n, err)
	}
}

// A step makes the cursors of so many partitions, by name, and none twice; what a step did stays when its maker dies, and
// whoever comes next goes on from there.
func TestCursorsAreOwedUntilTheyAreMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 5 {
		w.lane(fmt.Sprint("p", i))
	}
	w.crowd()
	if err := w.enroll(w.tenant, "g", w.queue, Seed{Mode: wire.SeedAll}); err != nil {
		t.Fatal(err)
	}
	for made := range 3 {
		if n := w.count("SELECT count(*) FROM queen.log_consumers"); n != 2*made {
			t.Errorf("%d cursors after %d steps of 2", n, made)
		}
		groups, err := w.store.Groups(w.ctx, w.tenant)
		if err != nil || len(groups) != 1 || !groups[0].Seeding || groups[0].Cursors != int64(2*made) {
			t.Errorf("after %d steps of 2: %+v %v", made, groups, err)
		}
		// A session that dies takes its step along.
		tx, err := w.pool.Begin(w.ctx)
		if err != nil {
			t.Fatal(err)
		}
		l := w.task(TaskCursors)
		var n *int64
		if err := tx.QueryRow(w.ctx, sqlSeedNext, l.Task, l.Holder, l.Fence, 2).Scan(&n); err != nil || n == nil {
			t.Fatal(n, err)
		}
		// Nobody waits for it.
		if n, err := w.store.SeedRegistered(w.ctx, l, 2); n != 0 || err != nil {
			t.Errorf("while the tenant is locked: %d %v", n, err)
		}
		if err := tx.Rollback(w.ctx); err != nil {
			t.Fatal(err)
		}
		w.step(2)
	}
	if n := w.count("SELECT count(*) FROM queen.log_consumers"); n != 5 {
		t.Errorf("%d cursors", n)
	}
	if n := w.count("SELECT count(*) FROM queen.group_registrations WHERE seeded_to IS NOT NULL"); n != 0 {
		t.Error("nothing is owed, and something is said to be")
	}
	if steps := w.seedOwed(2); steps != 0 {
		t.Errorf("%d steps too many", steps)
	}
	l := w.task(TaskCursors)
	w.task(TaskCursors)
	if _, err := w.store.SeedRegistered(w.ctx, l, 2); !errors.Is(err, ErrFenced) {
		t.Errorf("under a claim that is lost: %v", err)
	}
}

// A cursor that a claim or an operator has made is not touched by a step.
func TestAStepLeavesCursorsThatAreThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	taken, sought, left := w.lane("a"), w.lane("b"), w.lane("c")
	for _, l := range []lane{taken, sought, left} {
		w.push(l, 3)
	}
	w.crowd()
	if err := w.enroll(w.tenant, "g", w.queue, Seed{Mode: wire.SeedAll}); err != nil {
		t.Fatal(err)
	}
	c := w.claim("g", taken)
	c.Budget, c.AutoAck = 2, true
	if got := w.pop(c)[0]; got.Status != ClaimTook || got.After != -1 {
		t.Fatalf("%+v", got)
	}
	if _, err := w.store.Seek(w.ctx, w.tenant, "g", w.queue, "b", wire.Seek{ToEnd: true}); err != nil {
		t.Fatal(err)
	}
	w.seedOwed(2)
	for l, want := range map[lane]int64{taken: 1, sought: 2, left: -1} {
		if got := w.cursor(l, "g").Committed; got != want {
			t.Errorf("committed %d, want %d", got, want)
		}
	}
}

// Another start for partitions to come leaves those alone that the group was to get, whether their cursors are made or not.
func TestANewSubscriptionDoesNotMoveOwedCursors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lanes := map[string]lane{"a": w.lane("a"), "b": w.lane("b"), "c": w.lane("c")}
	for _, l := range lanes {
		w.pushAt(l, w.now().Add(-time.Hour), 2)
	}
	w.crowd()
	if err := w.enroll(w.tenant, "g", w.queue, Seed{Mode: wire.SeedNew}); err != nil {
		t.Fatal(err)
	}
	w.step(1)
	if n, err := w.store.SetSubscription(w.ctx, w.tenant, "g", w.now().Add(-2*time.Hour)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if d := cmp.Diff(map[string]int64{"a": -1, "b": -1, "c": -1}, w.starts("g", lanes)); d != "" {
		t.Error(d)
	}
	if w.seedOwed(2) != 0 {
		t.Error("cursors are owed still")
	}
}

// Whoever deletes a group or its queue deletes what is owed, and nothing comes back.
func TestWhatIsOwedGoesWithItsRegistration(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(w *world) error{
		"group":  func(w *world) error { return only(w.store.DeleteGroup(w.ctx, w.tenant, "g", "", true)) },
		"queue":  func(w *world) error { _, _, err := w.store.DeleteQueue(w.ctx, w.tenant, w.queue); return err },
		"tenant": func(w *world) error { return w.wipeAll() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for i := range 5 {
				w.push(w.lane(fmt.Sprint("p", i)), 1)
			}
			w.crowd()
			if err := w.enroll(w.tenant, "g", w.queue, Seed{Mode: wire.SeedAll}); err != nil {
				t.Fatal(err)
			}
			w.step(2)
			if err := remove(w); err != nil {
				t.Fatal(err)
			}
			if steps := w.seedOwed(2); steps != 0 {
				t.Errorf("%d steps", steps)
			}
			if n := w.count("SELECT (SELECT count(*) FROM queen.log_consumers) + (SELECT count(*) FROM queen.group_registrations)"); n != 0 {
				t.Errorf("%d rows are left", n)
			}
		})
	}
}

// wipeAll removes the tenant.
func (w *world) wipeAll() error {
	for {
		step, err := w.store.WipeTenant(w.ctx, w.tenant)
		if err != nil || step.Done {
			return err
		}
	}
}

// The queues of a scope share what one commit makes; the rest is owed.
func TestAScopeMakesNoMoreCursorsAtOnceThanAQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lanes := map[string]lane{}
	for i, partitions := range []int{seedWhole - 10, 5, 10, 1} { // with Default: all but 4 may, then 2 too many, and so on
		name := fmt.Sprint("sales.", i)
		id := w.newQueue(w.tenant, name)
		w.exec("UPDATE queen.queues SET namespace = 'sales', partition_count = $2 WHERE id = $1", id, partitions)
		l := w.laneOf(id, "a")
		w.push(l, 2)
		lanes[name] = l
	}
	scope := Scope{Tenant: w.tenant, Namespace: "sales"}
	if _, err := w.store.RegisterScope(w.ctx, scope, "g", Seed{Mode: wire.SeedNew}); err != nil {
		t.Fatal(err)
	}
	if n := w.count("SELECT count(*) FROM queen.log_consumers"); n != 2 {
		t.Errorf("%d cursors, want those of the first two queues", n)
	}
	if n := w.count("SELECT count(*) FROM queen.group_registrations WHERE seeded_to = ''"); n != 2 {
		t.Errorf("%d queues owe, want 2", n)
	}
	// One that joins is read from the time of the scope's registration.
	id := w.newQueue(w.tenant, "sales.late")
	w.exec("UPDATE queen.queues SET namespace = 'sales', partition_count = $2 WHERE id = $1", id, seedWhole)
	lanes["sales.late"] = w.laneOf(id, "a")
	w.push(lanes["sales.late"], 2)
	if _, err := w.store.RegisterScope(w.ctx, scope, "g", Seed{Mode: wire.SeedAll}); err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{"sales.0": -1, "sales.1": -1, "sales.2": -1, "sales.3": -1, "sales.late": 0}
	w.seedOwed(1)
	if d := cmp.Diff(want, w.starts("g", lanes)); d != "" {
		t.Error(d)
	}
}

// Brokers that register a group on a large queue at once, steps, claims and pushes: one start for all.
func TestConcurrentRegistrationsOnALargeQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ls []lane
	for i := range 40 {
		l := w.lane(fmt.Sprint(i))
		w.pushAt(l, w.now().Add(-time.Hour), 2)
		ls = append(ls, l)
	}
	w.crowd()
	task := w.task(TaskCursors)
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			seed := Seed{Mode: wire.SeedAll}
			if i%2 == 0 {
				seed = Seed{Mode: wire.SeedTimestamp, From: time.Unix(0, 0)} // which is everything
			}
			if err := w.enroll(w.tenant, "g", w.queue, seed); err != nil {
				t.Error(err)
			}
			for range 5 {
				if _, err := w.store.SeedRegistered(w.ctx, task, 3); err != nil {
					t.Error(err)
				}
				c := Claim{Candidates: []int64{ls[(7*i)%40].id, ls[(11*i)%40].id}, Group: "g", Worker: uuid.New(), Lease: time.Minute, Budget: 1000}
				if _, err := w.store.ClaimBundle(w.ctx, []Claim{c}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	w.seedOwed(3)
	if n := w.count("SELECT count(*) FROM queen.log_consumers"); n != 40 {
		t.Errorf("%d cursors of 40", n)
	}
	if n := w.count("SELECT count(DISTINCT committed) FROM queen.log_consumers"); n != 1 {
		t.Errorf("they stand at %d different places", n)
	}
}

// Brokers of the release before make all cursors at once, and what they call says where the group is.
func TestTheReleaseBeforeRegistersAsItDid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 5 {
		w.push(w.lane(fmt.Sprint("p", i)), 2)
	}
	w.exec("UPDATE queen.queues SET namespace = 'sales', partition_count = $2 WHERE id = $1", w.id, seedWhole)
	var outcome string
	w.scan("SELECT outcome FROM queen.register_group($1, 'g', $2, 'new', NULL, false, 10)", []any{w.tenant, w.queue}, &outcome)
	if n := w.count("SELECT count(*) FROM queen.log_consumers WHERE consumer_group = 'g' AND committed = 1"); n != 5 || outcome != "first" {
		t.Errorf("%s, %d cursors at the end", outcome, n)
	}
	w.scan("SELECT outcome FROM queen.register_scope($1, 'h', 'sales', '', 'new', NULL, false, 10)", []any{w.tenant}, &outcome)
	if n := w.count("SELECT count(*) FROM queen.log_consumers WHERE consumer_group = 'h' AND committed = 1"); n != 5 || outcome != "first" {
		t.Errorf("scope: %s, %d cursors at the end", outcome, n)
	}
}
