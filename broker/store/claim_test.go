package store

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

func TestClaimDeliversFromTheCursorUpToTheBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.push(l, 3, 4, 5)
	for _, want := range []struct {
		budget         int
		after, through int64
		bases          []int64
	}{
		{1, -1, 0, []int64{0}},
		{3, 0, 3, []int64{0, 3}}, // begins inside a segment
		{3, 3, 6, []int64{3}},    // ends with one
		{100, 6, 11, []int64{7}}, // takes what there is
	} {
		lease, got := w.lease(l, want.budget)
		if got.After != want.after || got.Through != want.through || got.LastOffset != 11 || got.Name != "a" || got.UID != l.uid {
			t.Fatalf("budget %d: %+v", want.budget, got)
		}
		var bases []int64
		for _, s := range got.Segments {
			bases = append(bases, s.Base)
			for at := max(s.Base, got.After+1); at <= min(s.End, got.Through); at++ {
				if name, body, err := openFrame(s.Blob, int(at-s.Base)); err != nil || name != txn(at) || string(body) != payload(txn(at)) {
					t.Errorf("message %d is %s %s, %v", at, name, body, err)
				}
			}
		}
		if fmt.Sprint(bases) != fmt.Sprint(want.bases) {
			t.Errorf("budget %d: segments %v, want %v", want.budget, bases, want.bases)
		}
		w.ack(w.group(l, lease, known(want.through, wire.AckCompleted)))
	}
	if got := w.pop(w.claim(wire.QueueModeGroup, l))[0]; got.Status != ClaimEmpty || got.LastOffset != 11 || !got.VisibleAt.IsZero() {
		t.Errorf("drained: %+v", got)
	}
}

func TestTheBudgetSpansCandidatesInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c, d := w.lane("a"), w.lane("b"), w.lane("c"), w.lane("d")
	for _, l := range []lane{a, b, d} {
		w.push(l, 2, 2)
	}
	for name, tc := range map[string]struct {
		budget, partitions int
		order              []lane
		want               string
	}{
		"the last one is cut":        {6, 0, []lane{a, b, d}, "took 4, took 2, skipped"},
		"an empty one costs nothing": {6, 0, []lane{c, d, a}, "empty, took 4, took 2"},
		"the cap on partitions":      {100, 2, []lane{a, c, b, d}, "took 4, empty, took 4, skipped"},
		"one message":                {1, 0, []lane{d, a}, "took 1, skipped"},
		"a missing partition":        {4, 0, []lane{{id: 1 << 40}, a}, "missing, took 4"},
		"the same candidate twice":   {100, 0, []lane{a, a, b}, "took 4, leased, took 4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim := w.claim(name, tc.order...)
			claim.Budget, claim.MaxPartitions = tc.budget, tc.partitions
			if got := say(w.pop(claim)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func say(cs []Claimed) (text string) {
	names := map[ClaimStatus]string{ClaimTook: "took", ClaimEmpty: "empty", ClaimLeased: "leased", ClaimSkipped: "skipped", ClaimMissing: "missing"}
	for i, c := range cs {
		if i > 0 {
			text += ", "
		}
		text += names[c.Status]
		if c.Status == ClaimTook {
			text += fmt.Sprintf(" %d", c.Through-c.After)
		}
	}
	return text
}

func TestTwoPopsOfABundleNeverShareABatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, e := w.lane("a"), w.lane("b"), w.lane("e")
	w.push(a, 4)
	w.push(b, 4)
	bundle := func(claims ...Claim) [][]Claimed {
		rs, err := w.store.ClaimBundle(w.ctx, claims)
		if err != nil {
			t.Fatal(err)
		}
		return rs
	}
	first, second, other := w.claim("g", a), w.claim("g", e, a, b), w.claim("h", a)
	rs := bundle(first, second, other)
	if say(rs[0]) != "took 4" || say(rs[1]) != "empty, leased, took 4" || say(rs[2]) != "took 4" {
		t.Errorf("got %s | %s | %s", say(rs[0]), say(rs[1]), say(rs[2]))
	}
	if !rs[1][1].Until.Equal(rs[0][0].Expires) {
		t.Errorf("leased until %s, want the first pop's expiry %s", rs[1][1].Until, rs[0][0].Expires)
	}
	// Under auto ack the partition is free again, and the second pop goes on where the first ended.
	x, y := w.claim("auto", a), w.claim("auto", a)
	x.AutoAck, y.AutoAck, x.Budget = true, true, 1
	rs = bundle(x, y)
	if say(rs[0]) != "took 1" || say(rs[1]) != "took 3" || rs[1][0].After != 0 {
		t.Errorf("auto ack: %s | %s", say(rs[0]), say(rs[1]))
	}
}

func TestALiveLeaseKeepsOthersOutAndExpiryRedelivers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.push(l, 5)
	lease, first := w.lease(l, 3)
	got := w.pop(w.claim(wire.QueueModeGroup, l))[0]
	if got.Status != ClaimLeased || !got.Until.Equal(first.Expires) {
		t.Fatalf("while leased: %+v", got)
	}
	w.ack(w.group(l, lease, known(0, wire.AckCompleted)))
	w.exec("UPDATE queen.log_consumers SET batch_retry_count = 2")
	w.expire()
	again := w.pop(w.claim(wire.QueueModeGroup, l))[0]
	if again.Status != ClaimTook || again.After != 0 || again.Through != 4 || again.Attempt != 2 {
		t.Errorf("after expiry: %+v", again)
	}
	if c := w.cursor(l, wire.QueueModeGroup); c.Retries != 2 || c.Committed != 0 {
		t.Errorf("expiry charged or moved something: %v", c)
	}
}

func TestAttemptsCountDeliveriesFromTheSameHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.push(l, 6)
	next := func(want int) string {
		t.Helper()
		lease, got := w.lease(l, 4)
		if got.Attempt != want {
			t.Fatalf("attempt %d, want %d", got.Attempt, want)
		}
		return lease
	}
	lease := next(1)
	w.ack(w.group(l, lease, known(0, wire.AckFailed)))
	lease = next(2)
	w.ack(w.group(l, lease, known(0, wire.AckRetry)))
	next(3)
	w.expire()
	lease = next(4)
	w.ack(w.group(l, lease, known(1, wire.AckCompleted))) // partial: the head moves, the lease stays
	w.expire()
	lease = next(5)
	w.ack(w.group(l, lease, known(2, wire.AckCompleted), known(3, wire.AckFailed)))
	lease = next(1)
	w.ack(w.group(l, lease, known(5, wire.AckCompleted)))
	w.push(l, 1)
	next(1)
}

func TestAutoAckCommitsWithTheClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.push(l, 5)
	_, _ = w.lease(l, 2)
	w.expire()
	c := w.claim(wire.QueueModeGroup, l)
	c.AutoAck, c.Budget = true, 3
	got := w.pop(c)[0]
	if say([]Claimed{got}) != "took 3" || got.Attempt != 1 || !got.Expires.IsZero() {
		t.Errorf("claimed %+v", got)
	}
	row := w.cursor(l, wire.QueueModeGroup)
	if row.Committed != 2 || row.BatchEnd != nil || row.Worker != nil || row.Expires != nil || row.Consumed != 3 || row.Attempts != 0 {
		t.Errorf("cursor %v", row)
	}
	if got := w.pop(c)[0]; got.After != 2 || got.Through != 4 {
		t.Errorf("next %+v", got)
	}
}

func TestClaimStepsOverWhatRetentionRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, exact := range map[string]bool{"log_start is exact": true, "log_start lags": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := *w
			w.t = t
			l := w.lane(name)
			w.push(l, 2, 2, 2)
			w.exec("DELETE FROM queen.log_segments WHERE partition_id = $1 AND base_offset < 4", l.id)
			if exact {
				w.exec("UPDATE queen.log_partitions SET log_start = 4 WHERE id = $1", l.id)
			}
			w.readsAll("g", l)
			if err := w.store.seedCursors(w.ctx, []int64{l.id}, []string{"g"}); err != nil {
				t.Fatal(err)
			}
			w.exec("UPDATE queen.log_consumers SET committed = 0 WHERE partition_id = $1", l.id)
			got := w.pop(w.claim("g", l))[0]
			if got.Status != ClaimTook || got.After != 3 || got.Through != 5 || len(got.Segments) != 1 {
				t.Fatalf("over the gap: %+v", got)
			}
			w.expire()
			w.exec("DELETE FROM queen.log_segments WHERE partition_id = $1", l.id)
			if exact {
				w.exec("UPDATE queen.log_partitions SET log_start = 6 WHERE id = $1", l.id)
			}
			if got := w.pop(w.claim("g", l))[0]; got.Status != ClaimEmpty || got.LastOffset != 5 {
				t.Errorf("emptied: %+v", got)
			}
			if c := w.cursor(l, "g"); c.Committed != 5 || c.BatchEnd != nil {
				t.Errorf("the emptied partition is not sealed: %v", c)
			}
			w.push(l, 1)
			if got := w.pop(w.claim("g", l))[0]; got.After != 5 || got.Through != 6 {
				t.Errorf("after the seal: %+v", got)
			}
		})
	}
}

func TestDelayHoldsBackTheYoungestMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, mixed, young := w.lane("old"), w.lane("mixed"), w.lane("young")
	now := w.now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	w.pushAt(old, ago(time.Hour), 2)
	w.pushAt(mixed, ago(time.Hour), 2)
	w.pushAt(mixed, ago(50*time.Minute), 2)
	w.pushAt(mixed, ago(time.Minute), 2)
	w.pushAt(young, ago(time.Minute), 2)
	c := w.claim("g", young, mixed, old)
	c.Delay = 10 * time.Minute
	got := w.pop(c)
	if s := say(got); s != "empty, took 4, took 2" {
		t.Fatalf("got %s", s)
	}
	if at := got[0].VisibleAt; !at.Equal(ago(-9 * time.Minute)) {
		t.Errorf("visible at %s, want %s", at, ago(-9*time.Minute))
	}
	if len(got[1].Segments) != 2 {
		t.Errorf("hidden segments were delivered: %+v", got[1])
	}
	c = w.claim("cut", mixed, old)
	c.Delay, c.Budget = 10*time.Minute, 5
	if s := say(w.pop(c)); s != "took 4, took 1" {
		t.Errorf("budget under a delay: %s", s)
	}
}

// TestWindowGathersFromTheOldestMessage: a partition that is written without pause delivers all the same.
func TestWindowGathersFromTheOldestMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fresh, quiet, busy := w.lane("fresh"), w.lane("quiet"), w.lane("busy")
	now := w.now()
	w.pushAt(quiet, now.Add(-time.Minute), 2)
	w.pushAt(busy, now.Add(-time.Minute), 2)
	w.pushAt(busy, now.Add(-time.Second), 2)
	w.pushAt(fresh, now.Add(-time.Second), 2)
	c := w.claim("g", fresh, busy, quiet)
	c.Window = 10 * time.Second
	got := w.pop(c)
	if s := say(got); s != "empty, took 4, took 2" {
		t.Fatalf("got %s", s)
	}
	if at := got[0].VisibleAt; !at.Equal(now.Add(9 * time.Second)) {
		t.Errorf("visible at %s, want %s", at, now.Add(9*time.Second))
	}
}

// TestAFullWindowIsOver: a window ends before its time when enough has gathered behind the cursor.
func TestAFullWindowIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	scarce, full := w.lane("scarce"), w.lane("full")
	now := w.now()
	w.pushAt(scarce, now.Add(-time.Second), 4)
	w.pushAt(full, now.Add(-time.Second), 3)
	w.pushAt(full, now, 3)
	c := w.claim("g", scarce, full)
	c.Window, c.WindowFull = time.Minute, 5
	got := w.pop(c)
	if s := say(got); s != "empty, took 6" {
		t.Fatalf("got %s", s)
	}
	if got[0].After != -1 || got[0].LastOffset != 3 || !got[0].VisibleAt.Equal(now.Add(59*time.Second)) {
		t.Errorf("what gathers: %+v", got[0])
	}
	// What the cursor has passed counts no more, and a delay holds what a window lets go.
	w.pushAt(full, now, 4)
	c = w.claim("g", full)
	c.Window, c.WindowFull = time.Minute, 5
	if s := say(w.pop(c)); s != "leased" {
		t.Errorf("got %s", s)
	}
	c = w.claim("late", full)
	c.Window, c.WindowFull, c.Delay = time.Minute, 5, 10*time.Second
	got = w.pop(c)
	if s := say(got); s != "empty" || !got[0].VisibleAt.Equal(now.Add(9*time.Second)) {
		t.Errorf("under a delay: %s until %s", s, got[0].VisibleAt)
	}
}

func TestALockedCursorIsLeasedNotEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l, free := w.lane("a"), w.lane("b")
	w.push(l, 2)
	w.push(free, 2)
	w.readsAll("g", l, free)
	if err := w.store.seedCursors(w.ctx, []int64{l.id, free.id}, []string{"g", "g"}); err != nil {
		t.Fatal(err)
	}
	tx, err := w.pool.Begin(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(w.ctx) }() // nothing depends on it: the database is dropped
	if _, err := tx.Exec(w.ctx, "SELECT FROM queen.log_consumers WHERE partition_id = $1 FOR UPDATE", l.id); err != nil {
		t.Fatal(err)
	}
	got := w.pop(w.claim("g", l))[0]
	if got.Status != ClaimLeased || got.Until.IsZero() {
		t.Errorf("locked: %+v", got)
	}
	// A pop that lost its first choice is asked again and takes the next.
	c := w.claim("g", l, free)
	c.MaxPartitions = 1
	if s := say(w.pop(c)); s != "leased, took 2" && s != "leased, skipped" {
		t.Errorf("got %s", s)
	}
}

// Sixteen sessions drain fifty partitions in random order: every message once per group, no overlap, no gap.
func TestConcurrentClaimsNeverOverlap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const partitions, sessions, messages = 50, 16, 24
	ls := make([]lane, partitions)
	for i := range ls {
		ls[i] = w.lane(fmt.Sprint(i))
		w.push(ls[i], 7, 1, messages-8)
	}
	var mu sync.Mutex
	spans := map[int64][][2]int64{}
	delivered := 0
	var wg sync.WaitGroup
	for range sessions {
		wg.Go(func() {
			for {
				mu.Lock()
				done := delivered >= partitions*messages
				mu.Unlock()
				if done || t.Failed() {
					return
				}
				var picked []lane
				for _, i := range rand.Perm(partitions)[:6] {
					picked = append(picked, ls[i])
				}
				auto := rand.IntN(2) == 0
				c := w.claim("g", picked...)
				c.Budget, c.MaxPartitions, c.AutoAck = 1+rand.IntN(20), rand.IntN(4), auto
				rs, err := w.store.ClaimBundle(w.ctx, []Claim{c, func() Claim {
					d := c
					d.Worker = uuid.Must(uuid.NewV7())
					return d
				}()})
				if err != nil {
					t.Error(err)
					return
				}
				for i, r := range rs {
					worker := c.Worker
					if i == 1 {
						worker = uuid.Nil // its leases are left to the acks without a lease below
					}
					for _, got := range r {
						if got.Status != ClaimTook {
							continue
						}
						mu.Lock()
						spans[got.PartitionID] = append(spans[got.PartitionID], [2]int64{got.After, got.Through})
						delivered += int(got.Through - got.After)
						mu.Unlock()
						if auto {
							continue
						}
						g := AckGroup{Tenant: w.tenant, Partition: got.UID, Group: "g", Items: []AckItem{said(got.Through, wire.AckCompleted)}}
						if worker != uuid.Nil {
							g.Lease, g.Items = worker.String(), []AckItem{known(got.Through, wire.AckCompleted)}
						}
						vs, err := w.store.AckBundle(w.ctx, []AckGroup{g})
						if err != nil || !vs[0].LeaseReleased {
							t.Errorf("ack: %+v, %v", vs, err)
							return
						}
					}
				}
			}
		})
	}
	wg.Wait()
	for _, l := range ls {
		slices.SortFunc(spans[l.id], func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
		at := int64(-1)
		for _, s := range spans[l.id] {
			if s[0] != at {
				t.Errorf("partition %d: span %v does not begin at %d", l.id, s, at)
			}
			at = s[1]
		}
		if at != messages-1 || w.cursor(l, "g").Committed != at {
			t.Errorf("partition %d: delivered up to %d", l.id, at)
		}
	}
}

func TestPendingSeesWhatAClaimWouldFind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fresh, leased, drained, late := w.lane("fresh"), w.lane("leased"), w.lane("drained"), w.lane("late")
	w.lane("empty")
	w.push(fresh, 2)
	w.push(leased, 2)
	w.push(drained, 2)
	now := w.now()
	w.pushAt(late, now.Add(-time.Second), 2)
	_, got := w.lease(leased, 1)
	auto := w.claim(wire.QueueModeGroup, drained)
	auto.AutoAck = true
	w.pop(auto)
	want := []Pending{
		{PartitionID: fresh.id, LastOffset: 1, Committed: -1, Group: wire.QueueModeGroup},
		{PartitionID: leased.id, LastOffset: 1, Committed: -1, LeasedUntil: got.Expires, Group: wire.QueueModeGroup},
		{PartitionID: late.id, LastOffset: 1, Committed: -1, Group: wire.QueueModeGroup},
	}
	ps, err := w.store.Pending(w.ctx, w.id, wire.QueueModeGroup, 0)
	if err != nil || fmt.Sprint(ps) != fmt.Sprint(want) {
		t.Errorf("pending %v, %v\nwant    %v", ps, err, want)
	}
	ps, err = w.store.PendingOf(w.ctx, []int64{late.id, drained.id, late.id}, []string{wire.QueueModeGroup, wire.QueueModeGroup, "other"},
		[]time.Duration{time.Hour, 0, 0})
	if err != nil || len(ps) != 2 || !ps[0].VisibleAt.Equal(now.Add(time.Hour-time.Second)) || ps[1].Group != "other" || !ps[1].VisibleAt.IsZero() {
		t.Errorf("pending of: %v, %v", ps, err)
	}
}

func TestOnlyABundleOfLeasesCommitsAsynchronously(t *testing.T) {
	t.Parallel()
	w := newWorld(t, LeaseAsyncCommit(true))
	l := w.lane("a")
	w.push(l, 2)
	for _, auto := range []bool{false, true} {
		c := w.claim(fmt.Sprint(auto), l)
		c.AutoAck = auto
		b := newClaimBundle([]Claim{c, w.claim("g", l)}, 1)
		b.next()
		cl := newCall()
		b.write(cl, w.store.leaseAsync)
		if got := cl.buf[cl.ends[len(cl.ends)-2]-1] == 1; got == auto { // of the last but one parameter
			t.Errorf("auto ack %v: relaxed %v", auto, got)
		}
		cl.release()
	}
	// The setting reaches the commit although the routine has settings of its own, and dies with the transaction.
	tx, err := w.pool.Begin(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(w.ctx) }() // nothing depends on it: the database is dropped
	var mode string
	if _, err := tx.Exec(w.ctx, "SELECT queen.claim_bundle('{}','{}','{}','{}','{}','{}','{}','{}','{}','{}','{}','{}','{}', true)"); err != nil {
		t.Fatal(err)
	}
	if err := tx.QueryRow(w.ctx, "SHOW synchronous_commit").Scan(&mode); err != nil || mode != "off" {
		t.Errorf("synchronous_commit is %q, %v", mode, err)
	}
}
