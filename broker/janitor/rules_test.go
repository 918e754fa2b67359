package janitor

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// Three segments 0..9, 10..19 and 20..29 are an hour, ten minutes and no time old.
func TestRulesOfAQueue(t *testing.T) {
	t.Parallel()
	for rule, c := range map[string]struct {
		options string
		groups  func(w *world, p store.Partition)
		want    string
	}{
		"nothing is deleted without a rule":                               {``, nil, "0..30"},
		"retentionSeconds deletes what nobody has read":                   {`"retentionEnabled":true,"retentionSeconds":1800`, nil, "10..30"},
		"retentionSeconds needs retentionEnabled":                         {`"retentionSeconds":1800`, nil, "0..30"},
		"retentionSeconds asks no group":                                  {`"retentionEnabled":true,"retentionSeconds":300`, at(map[string]int64{"a": 4}), "20..30"},
		"zero is no rule":                                                 {`"retentionEnabled":true,"retentionSeconds":0`, at(map[string]int64{"a": 29}), "0..30"},
		"completedRetentionSeconds deletes what all groups are done with": {`"retentionEnabled":true,"completedRetentionSeconds":300`, at(map[string]int64{"a": 29, "b": 19}), "20..30"},
		"completedRetentionSeconds keeps what is young":                   {`"retentionEnabled":true,"completedRetentionSeconds":1800`, at(map[string]int64{"a": 29}), "10..30"},
		"completedRetentionSeconds never passes the slowest cursor":       {`"retentionEnabled":true,"completedRetentionSeconds":300`, at(map[string]int64{"a": 29, "b": 9}), "10..30"},
		"a segment that is not done with as a whole stays":                {`"retentionEnabled":true,"completedRetentionSeconds":300`, at(map[string]int64{"a": 18}), "10..30"},
		"queue mode is a group like any":                                  {`"retentionEnabled":true,"completedRetentionSeconds":300`, at(map[string]int64{"a": 29, wire.QueueModeGroup: -1}), "0..30"},
		"without a group nothing is completed":                            {`"retentionEnabled":true,"completedRetentionSeconds":300`, nil, "0..30"},
		"completedRetentionSeconds needs retentionEnabled":                {`"completedRetentionSeconds":300`, at(map[string]int64{"a": 29}), "0..30"},
		"a registered group without a cursor here has done nothing": {`"retentionEnabled":true,"completedRetentionSeconds":300`, func(w *world, p store.Partition) {
			w.register("late", p.Queue)
			w.exec("DELETE FROM queen.log_consumers")
			w.commit(p, "a", 29)
		}, "0..30"},
		"a group registered on a scope of the queue likewise": {`"retentionEnabled":true,"completedRetentionSeconds":300,"namespace":"ns"`, func(w *world, p store.Partition) {
			w.exec(`INSERT INTO queen.scope_registrations (tenant_id, namespace, task, consumer_group, mode, seed_from, conflation)
				VALUES ($1, 'ns', '', 'late', 'all', now(), false)`, w.tenant)
			w.commit(p, "a", 29)
		}, "0..30"},
		"a group of another tenant or queue holds nothing": {`"retentionEnabled":true,"completedRetentionSeconds":300`, func(w *world, p store.Partition) {
			w.register("late", "another")
			w.exec("INSERT INTO queen.group_registrations (tenant_id, queue, consumer_group, mode, seed_from, conflation) VALUES ($1, $2, 'late', 'all', now(), false)", uuid.New(), p.Queue)
			w.commit(p, "a", 29)
		}, "20..30"},
		"both rules together delete by the further one": {`"retentionEnabled":true,"retentionSeconds":1800,"completedRetentionSeconds":300`, at(map[string]int64{"a": 19}), "20..30"},
		"maxWaitTimeSeconds needs no retentionEnabled":  {`"maxWaitTimeSeconds":300`, nil, "20..30"},
		"maxWaitTimeSeconds asks no group":              {`"maxWaitTimeSeconds":300`, at(map[string]int64{"a": -1}), "20..30"},
		"a sink holds what it has not passed":           {`"retentionEnabled":true,"retentionSeconds":300,"retentionSinkHold":"sink"`, at(map[string]int64{"sink": 9}), "10..30"},
		"a sink that never came holds everything":       {`"retentionEnabled":true,"retentionSeconds":300,"retentionSinkHold":"sink"`, nil, "0..30"},
		"a sink holds for so long and no longer":        {`"retentionEnabled":true,"retentionSeconds":300,"retentionSinkHold":"sink","retentionSinkHoldMaxSeconds":1800`, nil, "10..30"},
		"a sink does not hold back maxWaitTimeSeconds":  {`"maxWaitTimeSeconds":1800,"retentionEnabled":true,"retentionSeconds":300,"retentionSinkHold":"sink"`, nil, "10..30"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.queue("orders", c.options)
			p := w.partition("orders", "p")
			w.push(p, time.Hour, 4, 6)
			w.push(p, 10*time.Minute, 10)
			w.push(p, 0, 10)
			if c.groups != nil {
				c.groups(w, p)
			}
			w.turn()
			w.wantLog(p, c.want)
			if n := w.number("SELECT count(*) FROM queen.log_trims"); n != 0 {
				t.Errorf("%d ranges are left to be deleted", n)
			}
			start := w.number("SELECT log_start FROM queen.log_partitions WHERE id = $1", p.ID)
			if n := w.number("SELECT coalesce(min(base_offset), 0) FROM queen.log_segments WHERE partition_id = $1", p.ID); n != start {
				t.Errorf("the first row is %d, the log starts at %d", n, start)
			}
			if n := w.number("SELECT coalesce(sum(messages), 0)::bigint FROM queen.retention_history"); n != start {
				t.Errorf("history tells of %d messages, %d were deleted", n, start)
			}
		})
	}
}

// at puts cursors where groups have come to.
func at(cursors map[string]int64) func(*world, store.Partition) {
	return func(w *world, p store.Partition) {
		for group, committed := range cursors {
			w.commit(p, group, committed)
		}
	}
}

func TestHistoryNamesTheRule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":7200,"completedRetentionSeconds":1800,"maxWaitTimeSeconds":300`)
	p := w.partition("orders", "p")
	w.push(p, 3*time.Hour, 1)
	w.push(p, time.Hour, 2)
	w.push(p, 10*time.Minute, 4)
	w.push(p, 0, 8)
	w.commit(p, "a", 6)
	w.turn()
	for kind, want := range map[string]int64{"retention": 1, "completed_retention": 2, "eviction": 4} {
		if n := w.number("SELECT coalesce(sum(messages), 0)::bigint FROM queen.retention_history WHERE kind = $1 AND tenant_id = $2 AND queue = 'orders' AND partition_id = $3", kind, w.tenant, p.ID); n != want {
			t.Errorf("%s: %d messages, want %d", kind, n, want)
		}
	}
	if s := w.j.Stats(); s.ByAge != 1 || s.ByCompletion != 2 || s.ByWait != 4 || s.Bytes != 70 {
		t.Errorf("the counters say %+v", s)
	}
	span := store.Span{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour), Width: 24 * time.Hour}
	points, err := w.RetentionHistory(t.Context(), w.tenant, "", span, false)
	if err != nil || len(points) == 0 || points[0].ByAge+points[0].ByCompletion+points[0].ByWait != 7 {
		t.Errorf("%+v %v", points, err)
	}
	if foreign, err := w.RetentionHistory(t.Context(), uuid.New(), "", span, true); err != nil || len(foreign) != 0 {
		t.Errorf("another tenant reads %+v %v", foreign, err)
	}
}

// A batch is out when its messages are evicted: the consumer sees no error and goes on behind the gap.
func TestEvictionUnderALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"maxWaitTimeSeconds":300`)
	p := w.partition("orders", "p")
	w.push(p, time.Hour, 5, 5)
	w.push(p, 0, 3)
	w.register("g", "orders")
	pop := func() store.Claimed {
		t.Helper()
		c := store.Claim{Candidates: []int64{p.ID}, Group: "g", Worker: uuid.New(), Lease: time.Minute, Budget: 7}
		r, err := w.ClaimBundle(t.Context(), []store.Claim{c})
		if err != nil {
			t.Fatal(err)
		}
		return r[0][0]
	}
	if got := pop(); got.Status != store.ClaimTook || got.Through != 6 {
		t.Fatalf("%+v", got)
	}
	w.turn()
	w.wantLog(p, "10..13")
	var worker uuid.UUID
	if err := w.pool.QueryRow(t.Context(), "SELECT worker_id FROM queen.log_consumers WHERE partition_id = $1", p.ID).Scan(&worker); err != nil {
		t.Fatalf("the lease is gone: %v", err)
	}
	var items []store.AckItem
	for o := range int64(7) {
		items = append(items, store.AckItem{Status: wire.AckCompleted, Offset: o})
	}
	vs, err := w.AckBundle(t.Context(), []store.AckGroup{{Tenant: w.tenant, Partition: p.UID, Group: "g", Lease: worker.String(), Items: items}})
	if err != nil || !vs[0].LeaseReleased || vs[0].Committed != 6 || !vs[0].Items[0].Success {
		t.Fatalf("the ack of an evicted batch: %+v %v", vs, err)
	}
	if got := pop(); got.Status != store.ClaimTook || got.After != 9 || got.Through != 12 {
		t.Fatalf("the consumer does not go on behind the gap: %+v", got)
	}
}

// A partition that retention emptied does not look pending for ever.
func TestEmptiedPartitionIsSealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60`)
	p := w.partition("orders", "p")
	w.register("g", "orders")
	w.push(p, time.Hour, 5)
	w.turn()
	w.wantLog(p, "5..5")
	c := store.Claim{Candidates: []int64{p.ID}, Group: "g", Worker: uuid.New(), Lease: time.Minute, Budget: 7}
	r, err := w.ClaimBundle(t.Context(), []store.Claim{c})
	if err != nil || r[0][0].Status != store.ClaimEmpty {
		t.Fatalf("%+v %v", r, err)
	}
	if n := w.number("SELECT committed FROM queen.log_consumers WHERE partition_id = $1", p.ID); n != 4 {
		t.Errorf("the cursor is at %d, want the end", n)
	}
	if pending, err := w.Pending(t.Context(), p.QueueID, "g", 0); err != nil || len(pending) != 0 {
		t.Errorf("pending: %+v %v", pending, err)
	}
	w.push(p, 0, 2)
	if r, err = w.ClaimBundle(t.Context(), []store.Claim{c}); err != nil || r[0][0].After != 4 || r[0][0].Through != 6 {
		t.Errorf("after the next push: %+v %v", r, err)
	}
}

func TestSidecarKeepsForTheLongestOfItsReasons(t *testing.T) {
	t.Parallel()
	for rule, c := range map[string]struct {
		options string
		keep    time.Duration
	}{
		"a quarter of an hour at least":  {`"dedupWindowSeconds":0`, 15 * time.Minute},
		"the window of deduplication":    {`"dedupWindowSeconds":7200`, 2 * time.Hour},
		"completedRetentionSeconds, on":  {`"dedupWindowSeconds":60,"retentionEnabled":true,"completedRetentionSeconds":3600`, time.Hour},
		"completedRetentionSeconds, off": {`"dedupWindowSeconds":60,"completedRetentionSeconds":3600`, time.Hour},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.queue("orders", c.options)
			p := w.partition("orders", "p")
			w.push(p, c.keep+time.Minute, 3)
			w.push(p, c.keep-time.Minute, 4)
			w.push(p, 0, 5)
			w.turn()
			if n := w.number("SELECT txns_start FROM queen.log_partitions WHERE id = $1", p.ID); n != 3 {
				t.Errorf("the sidecar starts at %d, want 3", n)
			}
			if n := w.number("SELECT count(*) FROM queen.log_txns WHERE partition_id = $1", p.ID); n != 2 {
				t.Errorf("%d rows are left, want 2", n)
			}
			w.wantLog(p, "0..12") // segments have rules of their own
		})
	}
}

// A push that repeats a transaction id within the window is a duplicate whether or not retention removed the message.
func TestDeduplicationOutlivesTheMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60`)
	p := w.partition("orders", "p")
	s := w.segment(p, 1)
	for i, want := range []store.PushStatus{store.PushStored, store.PushDuplicate} {
		vs, err := w.PushBundle(t.Context(), []store.Segment{s})
		if err != nil || vs[0].Status != want {
			t.Fatalf("push %d: %+v %v", i, vs, err)
		}
		if i == 0 {
			w.shift(p, 0, 30*time.Minute)
			w.turn()
			w.wantLog(p, "1..1")
		}
	}
}

// More than a batch is due: a turn goes on until nothing is.
func TestTurnTakesAllThatIsDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":1800`)
	w.queue("jobs", `"retentionEnabled":true,"completedRetentionSeconds":1800`)
	w.j = w.janitor(w.Store, Config{BatchSize: 2, Parallelism: 3})
	var all []store.Partition
	for _, queue := range []string{"orders", "jobs"} {
		for _, name := range []string{"a", "b", "c", "d"} {
			p := w.partition(queue, name)
			w.push(p, time.Hour, 1, 1, 1, 1, 1)
			w.push(p, 0, 1)
			w.commit(p, "g", 5)
			all = append(all, p)
		}
	}
	w.turn()
	for _, p := range all {
		w.wantLog(p, "5..6")
	}
	if n := w.number("SELECT count(*) FROM queen.log_trims"); n != 0 {
		t.Errorf("%d ranges are left", n)
	}
}

// Partitions whose groups do not move are due for ever. They cost a page per turn, and others get theirs.
func TestBlockedPartitionsStarveNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("blocked", `"retentionEnabled":true,"completedRetentionSeconds":60`)
	w.queue("free", `"retentionEnabled":true,"completedRetentionSeconds":60`)
	w.j = w.janitor(w.Store, Config{BatchSize: 1}) // a page of five
	for i := range 12 {
		p := w.partition("blocked", string(rune('a'+i)))
		w.push(p, time.Hour, 1)
		w.commit(p, "g", -1)
	}
	free := w.partition("free", "p")
	w.push(free, time.Hour, 1)
	w.commit(free, "g", 0)
	for range 3 {
		w.turn()
	}
	w.wantLog(free, "1..1")
}

// A group whose cursors are owed still holds what it is to read, and lets go what it is not.
func TestCompletionCountsGroupsWhoseCursorsAreOwed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode wire.SeedMode
		want string
	}{
		"that reads everything": {wire.SeedAll, "0..3"},
		"that reads what comes": {wire.SeedNew, "3..3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.queue("orders", `"retentionEnabled":true,"completedRetentionSeconds":60`)
			p := w.partition("orders", "a")
			w.push(p, time.Hour, 3)
			w.commit(p, "done", 2)
			w.exec("UPDATE queen.queues SET partition_count = partition_count + 5000")
			if _, err := w.Register(t.Context(), w.tenant, "g", "orders", store.Seed{Mode: c.mode}); err != nil {
				t.Fatal(err)
			}
			l := w.lease(store.TaskRetention)
			if _, err := w.Trim(t.Context(), l, []int64{p.ID}, 100, false); err != nil {
				t.Fatal(err)
			}
			if n := w.number("SELECT count(*) FROM queen.log_consumers WHERE consumer_group = 'g'"); n != 0 {
				t.Fatal("the cursor is not owed")
			}
			w.wantLog(p, c.want)
		})
	}
}
