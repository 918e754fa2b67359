package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

var toEnd = wire.Seek{ToEnd: true}

func (w *world) seek(group, partition string, to wire.Seek) int64 {
	w.t.Helper()
	n, err := w.store.Seek(w.ctx, w.tenant, group, w.queue, partition, to)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) moves() []CursorMove {
	w.t.Helper()
	_, now, err := w.store.Changes(w.ctx, time.Second)
	if err != nil {
		w.t.Fatal(err)
	}
	return now.Moves
}

// Where a seek puts a cursor, of messages stamped at minutes 0, 10 and 20 in segments of two, of which retention has
// removed the first.
func TestSeekTargets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start := w.now().Add(-time.Hour)
	at := func(minute int) wire.Seek { return wire.Seek{At: start.Add(time.Duration(minute) * time.Minute)} }
	l := w.lane("a")
	for i := range 3 {
		w.pushAt(l, at(10*i).At, 2)
	}
	w.exec("DELETE FROM queen.log_segments WHERE base_offset = 0")
	w.exec("UPDATE queen.log_partitions SET log_start = 2")
	for name, c := range map[string]struct {
		to   wire.Seek
		want int64
	}{
		"to the end":                    {toEnd, 5},
		"to the time of a segment":      {at(20), 3},
		"to a time between":             {at(15), 3},
		"older than what is retained":   {at(-100), 1},
		"older than the calendar":       {wire.Seek{}, 1},
		"into the future":               {at(1000), 5},
		"to the oldest retained moment": {at(10), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := *w
			w.t = t
			if n := w.seek(name, "", c.to); n != 1 {
				t.Errorf("%d cursors", n)
			}
			if got := w.cursor(l, name); got.Committed != c.want {
				t.Errorf("cursor at %d, want %d", got.Committed, c.want)
			}
		})
	}
}

func TestSeekEndsLeasesAndCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.lane("a"), w.lane("b")
	w.push(a, 4)
	w.push(b, 2)
	lease, _ := w.lease(a, 2)
	w.ack(w.group(a, lease, said(0, wire.AckFailed)))
	lease, _ = w.lease(a, 2)

	if n := w.seek(wire.QueueModeGroup, "a", toEnd); n != 1 {
		t.Errorf("one partition: %d cursors", n)
	}
	if got, want := w.cursor(a, wire.QueueModeGroup), (cursor{Committed: 3}); got.String() != want.String() {
		t.Errorf("cursor %v, want %v", got, want)
	}
	// The lease is gone: what it acknowledges moves nothing.
	if v := w.ack(w.group(a, lease, known(0, wire.AckCompleted)))[0]; v.Items[0].Success || w.cursor(a, wire.QueueModeGroup).Committed != 3 {
		t.Errorf("an ack of a lease from before the seek: %+v", v)
	}
	// Backwards it delivers again, as the first attempt, and makes cursors that were missing.
	if n := w.seek(wire.QueueModeGroup, "", wire.Seek{At: w.now().Add(-time.Hour)}); n != 2 {
		t.Errorf("the queue: %d cursors", n)
	}
	for l, through := range map[lane]int64{a: 3, b: 1} {
		if got := w.pop(w.claim(wire.QueueModeGroup, l))[0]; got.Status != ClaimTook || got.After != -1 || got.Through != through || got.Attempt != 1 {
			t.Errorf("after the seek: %+v", got)
		}
	}
	for name, f := range map[string]func() (int64, error){
		"no such queue":     func() (int64, error) { return w.store.Seek(w.ctx, w.tenant, "g", "nowhere", "", toEnd) },
		"no such partition": func() (int64, error) { return w.store.Seek(w.ctx, w.tenant, "g", w.queue, "z", toEnd) },
		"another tenant":    func() (int64, error) { return w.store.Seek(w.ctx, uuid.New(), "g", w.queue, "", toEnd) },
	} {
		before := len(w.moves())
		if n, err := f(); n != 0 || err != nil || len(w.moves()) != before {
			t.Errorf("%s: %d cursors, %v", name, n, err)
		}
	}
}

// A cursor that was moved before the group's first pop stays where it was put.
func TestASeekBeforeTheFirstPopHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.push(l, 3)
	w.seek("g", "", toEnd)
	if err := w.enroll(w.tenant, "g", w.queue, Seed{Mode: wire.SeedAll}); err != nil {
		t.Fatal(err)
	}
	if got := w.pop(w.claim("g", l))[0]; got.Status != ClaimEmpty {
		t.Errorf("got %+v, want nothing", got)
	}
}

func TestEveryMoveIsMarkedForTheFeed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.push(l, 1)
	other := w.laneOf(w.newQueue(w.tenant, "other"), "a")
	w.readsAll("g", l, other)
	w.exec("INSERT INTO queen.cursor_moves (tenant_id, queue, moved_at) VALUES ($1, 'old', now() - interval '2 hours')", w.tenant)
	w.seek("g", "", toEnd)
	del := func(queue string) {
		if _, err := w.store.DeleteGroup(w.ctx, w.tenant, "g", queue, true); err != nil {
			t.Fatal(err)
		}
	}
	del("orders")
	del("orders") // had nothing any more
	del("")
	if _, err := w.store.ClearQueue(w.ctx, w.tenant, "orders", ""); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.store.DeleteQueue(w.ctx, w.tenant, "other"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range w.moves() {
		if m.Tenant != w.tenant {
			t.Errorf("move of %s", m.Tenant)
		}
		got = append(got, m.Queue+"/"+m.Group)
	}
	if d := cmp.Diff([]string{"orders/g", "orders/g", "other/g", "orders/", "other/"}, got); d != "" {
		t.Error(d)
	}
	var old int
	w.scan("SELECT count(*) FROM queen.cursor_moves WHERE queue = 'old'", nil, &old)
	if old != 0 {
		t.Error("old markers are kept")
	}
	w.exec("UPDATE queen.cursor_moves SET moved_at = moved_at - interval '5 minutes'")
	if got := w.moves(); len(got) != 0 {
		t.Errorf("moves of five minutes ago: %+v", got)
	}
	if _, now, err := w.store.Changes(w.ctx, 10*time.Minute); err != nil || len(now.Moves) != 5 {
		t.Errorf("a wider window: %+v, %v", now.Moves, err)
	}
}

// After its deletion a group starts over: by its registration if that was kept, else not before it registers anew.
func TestADeletedGroupStartsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.push(l, 2)
	w.readsAll("g", l) // everything
	lease := w.claim("g", l)
	w.pop(lease)

	gone, err := w.store.DeleteGroup(w.ctx, w.tenant, "g", w.queue, false)
	if d := cmp.Diff(DeletedGroup{Cursors: 1, Queues: []string{"orders"}}, gone); d != "" || err != nil {
		t.Error(d, err)
	}
	if v := w.ack(AckGroup{Tenant: w.tenant, Partition: l.uid, Group: "g", Lease: lease.Worker.String(), Items: []AckItem{known(1, wire.AckCompleted)}})[0]; v.Items[0].Success {
		t.Errorf("an ack without a cursor: %+v", v)
	}
	if got := w.pop(w.claim("g", l))[0]; got.Status != ClaimTook || got.After != -1 {
		t.Errorf("by its registration: %+v", got)
	}

	claim := w.claim("g", l)
	if gone, err = w.store.DeleteGroup(w.ctx, w.tenant, "g", "", true); err != nil || gone.Cursors != 1 || gone.Registrations != 1 {
		t.Errorf("%+v, %v", gone, err)
	}
	if got := w.pop(claim)[0]; got.Status != ClaimUnregistered {
		t.Errorf("a pop from before the deletion: %+v", got)
	}
	if err := w.enroll(w.tenant, "g", w.queue, Seed{Mode: wire.SeedNew}); err != nil {
		t.Fatal(err)
	}
	if got := w.pop(claim)[0]; got.Status != ClaimEmpty {
		t.Errorf("registered anew at the end: %+v", got)
	}
	if gone, err = w.store.DeleteGroup(w.ctx, uuid.New(), "g", "", true); err != nil || gone.Cursors+gone.Registrations != 0 {
		t.Errorf("another tenant removed %+v, %v", gone, err)
	}
}

func TestASubscriptionMovesNoCursor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	start := w.now().Add(-time.Hour)
	w.pushAt(l, start, 2)
	w.readsAll("g", l)
	w.readsAll("h", l)
	w.pop(w.claim("g", l))
	before := w.cursor(l, "g")
	n, err := w.store.SetSubscription(w.ctx, w.tenant, "g", start.Add(30*time.Minute))
	if err != nil || n != 1 {
		t.Fatal(n, err)
	}
	if got := w.cursor(l, "g"); got.String() != before.String() {
		t.Errorf("cursor %v, want %v", got, before)
	}
	// A partition that the group has not read starts there; other groups are not touched.
	late := w.lane("late")
	w.pushAt(late, start, 2)
	w.pushAt(late, start.Add(40*time.Minute), 2)
	for group, after := range map[string]int64{"g": 1, "h": -1} {
		if got := w.pop(w.claim(group, late))[0]; got.Status != ClaimTook || got.After != after {
			t.Errorf("%s: %+v, want from %d", group, got, after+1)
		}
	}
	if n, err := w.store.SetSubscription(w.ctx, w.tenant, "nobody", start); n != 0 || err != nil {
		t.Errorf("an unknown group: %d, %v", n, err)
	}
}

func TestClearQueueKeepsTheQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.lane("a"), w.lane("Default")
	w.push(a, 3)
	w.push(b, 2)
	w.exec("UPDATE queen.queues SET partition_count = 1, lease_time = 7")
	w.exec("UPDATE queen.log_partitions SET log_start = 1 WHERE id = $1", a.id)
	w.readsAll("g", a)
	c, err := w.store.ClearQueue(w.ctx, w.tenant, w.queue, "a")
	if d := cmp.Diff(Cleared{Existed: true, Partitions: []int64{a.id}, Messages: 2}, c); d != "" || err != nil {
		t.Error(d, err)
	}
	c, err = w.store.ClearQueue(w.ctx, w.tenant, w.queue, "")
	if d := cmp.Diff(Cleared{Existed: true, Partitions: []int64{b.id}, Messages: 2}, c); d != "" || err != nil {
		t.Error(d, err)
	}
	var left, lease, registrations int
	w.scan(`SELECT (SELECT count(*) FROM queen.log_partitions) + (SELECT count(*) FROM queen.log_segments) + (SELECT count(*) FROM queen.log_txns)
+ (SELECT sum(partition_count) FROM queen.queues), (SELECT lease_time FROM queen.queues), (SELECT count(*) FROM queen.group_registrations)`,
		nil, &left, &lease, &registrations)
	if left != 0 || lease != 7 || registrations != 1 {
		t.Errorf("%d rows left, lease time %d, %d registrations", left, lease, registrations)
	}
	if c, err := w.store.ClearQueue(w.ctx, w.tenant, "nowhere", ""); c.Existed || err != nil {
		t.Errorf("a queue that is not there: %+v, %v", c, err)
	}
	if c, err := w.store.ClearQueue(w.ctx, uuid.New(), w.queue, ""); c.Existed || err != nil {
		t.Errorf("another tenant: %+v, %v", c, err)
	}
}

// Two sessions, step by step: whoever comes second sees what the first has done, or loses without harm.
func TestSeekAgainstPopAndAck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lanes := 0
	// begin holds the row of a fresh partition's cursor in an open seek.
	begin := func(expired bool) (l lane, lease string, commit func()) {
		lanes++
		l = w.lane(fmt.Sprint(lanes))
		w.push(l, 4)
		lease, _ = w.lease(l, 2)
		if expired {
			w.expire()
		}
		tx, err := w.pool.Begin(w.ctx)
		if err != nil {
			t.Fatal(err)
		}
		var n int64
		if err := tx.QueryRow(w.ctx, seekGroup, w.tenant, wire.QueueModeGroup, w.queue, fmt.Sprint(lanes), nil).Scan(&n); err != nil || n != 1 {
			t.Fatal(n, err)
		}
		return l, lease, func() {
			if err := tx.Commit(w.ctx); err != nil {
				t.Fatal(err)
			}
		}
	}

	// A pop does not wait for a seek under way, whether a lease or only the lock stands in its way, and afterwards finds the
	// cursor where it was put.
	for _, expired := range []bool{false, true} {
		l, _, commit := begin(expired)
		if got := w.pop(w.claim(wire.QueueModeGroup, l))[0]; got.Status != ClaimLeased {
			t.Errorf("during the seek, lease expired %v: %+v", expired, got)
		}
		commit()
		if got := w.pop(w.claim(wire.QueueModeGroup, l))[0]; got.Status != ClaimEmpty {
			t.Errorf("after the seek, lease expired %v: %+v", expired, got)
		}
	}

	// An ack waits for the seek and then finds its lease gone.
	l, lease, commit := begin(false)
	done := make(chan AckVerdict, 1)
	go func() {
		vs, err := w.store.AckBundle(w.ctx, []AckGroup{w.group(l, lease, known(1, wire.AckCompleted))})
		if err != nil {
			t.Error(err)
		}
		done <- append(vs, AckVerdict{})[0]
	}()
	w.waiting(1)
	commit()
	if v := <-done; len(v.Items) != 1 || v.Items[0].Success || w.cursor(l, wire.QueueModeGroup).Committed != 3 {
		t.Errorf("ack against seek: %+v", v)
	}

	// A seek waits for an ack and then moves the cursor on from it.
	l = w.lane("other order")
	w.push(l, 4)
	lease, _ = w.lease(l, 2)
	tx, err := w.pool.Begin(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(w.ctx, "UPDATE queen.log_consumers SET committed = 0 WHERE partition_id = $1", l.id); err != nil {
		t.Fatal(err)
	}
	moved := make(chan error, 1)
	go func() {
		_, err := w.store.Seek(w.ctx, w.tenant, wire.QueueModeGroup, w.queue, "other order", wire.Seek{At: w.now().Add(-time.Hour)})
		moved <- err
	}()
	w.waiting(1)
	if err := tx.Commit(w.ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-moved; err != nil || w.cursor(l, wire.QueueModeGroup).Committed != -1 || w.cursor(l, wire.QueueModeGroup).Worker != nil {
		t.Errorf("seek against ack: %v, %v", w.cursor(l, wire.QueueModeGroup), err)
	}
}

// waiting waits until n sessions of the test's database wait for a row.
func (w *world) waiting(n int) {
	w.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
		var got int
		w.scan("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'", nil, &got)
		if got >= n {
			tick.Stop()
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%d sessions wait for a row, want %d", got, n)
		}
	}
}
