package janitor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/broker/store"
)

const trimSQL = `SELECT coalesce(segments, -1), moved, busy FROM queen.trim_partitions($1, $2, $3, $4, 1000, $5)`

// begin opens a session of its own in a transaction; whatever it does stays open until the test ends it.
func (w *world) begin() pgx.Tx {
	w.t.Helper()
	tx, err := w.pool.Begin(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // most tests have ended it
	// Who waits for it must not be let through because the server has ended it.
	if _, err := tx.Exec(context.Background(), "SET LOCAL idle_in_transaction_session_timeout = 0"); err != nil {
		w.t.Fatal(err)
	}
	return tx
}

// trimIn takes a step in an open transaction.
func (w *world) trimIn(tx pgx.Tx, l store.TaskLease, p store.Partition) (segments int64, busy bool) {
	w.t.Helper()
	var held, moved []int64
	if err := tx.QueryRow(w.t.Context(), trimSQL, l.Task, l.Holder, l.Fence, []int64{p.ID}, false).Scan(&segments, &moved, &held); err != nil {
		w.t.Fatal(err)
	}
	return segments, len(held) > 0
}

// pushNow must be stored while what is under way is held open: a push that waits for it does so in vain.
func (w *world) pushNow(p store.Partition) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	vs, err := w.PushBundle(ctx, []store.Segment{w.segment(p, 1)})
	if err != nil || vs[0].Status != store.PushStored {
		w.t.Fatalf("push: %+v %v", vs, err)
	}
}

// The deletion of the rows, which is all the work there is, is under way and held open: pushes, claims and further steps
// on the same partition go on.
func TestPushDoesNotWaitForADeletionUnderWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60`)
	p := w.partition("orders", "p")
	w.push(p, time.Hour, 1, 1, 1)
	w.push(p, 0, 1)
	w.register("g", "orders")
	l := w.lease(store.TaskRetention)
	if tr, err := w.Trim(t.Context(), l, []int64{p.ID}, 1000, false); err != nil || tr.Segments != 3 {
		t.Fatalf("%+v %v", tr, err)
	}
	sweep := w.begin()
	var rows int64
	if err := sweep.QueryRow(t.Context(), "SELECT queen.sweep_trimmed($1, $2, $3, 1000)", l.Task, l.Holder, l.Fence).Scan(&rows); err != nil || rows != 3 {
		t.Fatalf("%d rows: %v", rows, err)
	}
	w.pushNow(p)
	c := store.Claim{Candidates: []int64{p.ID}, Group: "g", Worker: [16]byte{1}, Lease: time.Minute, Budget: 7}
	r, err := w.ClaimBundle(t.Context(), []store.Claim{c})
	if err != nil || r[0][0].Status != store.ClaimTook || r[0][0].After != 2 || r[0][0].Through != 4 {
		t.Fatalf("claim: %+v %v", r, err)
	}
	w.shift(p, 3, time.Hour)
	if tr, err := w.Trim(t.Context(), l, []int64{p.ID}, 1000, false); err != nil || tr.Segments != 1 {
		t.Fatalf("a further step: %+v %v", tr, err)
	}
	if err := sweep.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := w.SweepTrimmed(t.Context(), l, 1000); err != nil || n != 1 {
		t.Fatalf("%d %v", n, err)
	}
}

// A step looks first and locks last: while its plan is being made, pushes land, and what it has planned stays right.
func TestStepsOfPushAndRetentionInEveryOrder(t *testing.T) {
	t.Parallel()
	// Each session does its statement and then commits; an order is who comes when.
	for _, order := range []string{"prPR", "prRP", "rpPR", "rpRP", "pPrR", "rRpP"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60`)
			p := w.partition("orders", "p")
			w.push(p, time.Hour, 2, 3)
			l := w.lease(store.TaskRetention)
			push, trim := w.begin(), w.begin()
			var status, trimmed int64
			var busy bool
			for _, step := range order {
				switch step {
				case 'p':
					s := w.segment(p, 1)
					if err := push.QueryRow(t.Context(), `SELECT status FROM queen.push_bundle(false, $1, $2, $3, $4, $5, $6, $7, $8)`,
						[]int64{p.ID}, []int32{1}, []int64{10}, []int64{-1}, []int64{3600e6}, [][16]byte{w.tenant}, [][]byte{s.Blob}, [][]byte{s.Hashes}).Scan(&status); err != nil {
						t.Fatal(err)
					}
				case 'P':
					if err := push.Commit(t.Context()); err != nil {
						t.Fatal(err)
					}
				case 'r':
					trimmed, busy = w.trimIn(trim, l, p)
				case 'R':
					if err := trim.Commit(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			// Whoever comes second while the first holds the row passes by and waits for nobody.
			overlap := order != "pPrR" && order != "rRpP"
			if (status == 2) != (overlap && order[0] == 'r') || busy != (overlap && order[0] == 'p') {
				t.Fatalf("push status %d, retention busy %v", status, busy)
			}
			if want := map[bool]int64{true: 0, false: 2}[busy]; trimmed != want {
				t.Errorf("the step removed %d segments, want %d", trimmed, want)
			}
			want := map[bool]string{true: "0..6", false: "5..6"}[busy]
			if status == 2 {
				want = "5..5"
			}
			w.wantLog(p, want)
			w.exact()
			if _, err := w.Trim(t.Context(), l, []int64{p.ID}, 1000, false); err != nil {
				t.Fatal(err)
			}
			if start := w.number("SELECT log_start FROM queen.log_partitions WHERE id = $1", p.ID); start != 5 {
				t.Errorf("after another step the log starts at %d, want 5", start)
			}
		})
	}
}

// A partition that is always busy is waited for after three turns, for a quarter of a second at most.
func TestBusyPartitionIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60`)
	p := w.partition("orders", "p")
	w.push(p, 10*time.Minute, 2)
	holder := w.begin()
	if _, err := holder.Exec(t.Context(), "SELECT 1 FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE", p.ID); err != nil {
		t.Fatal(err)
	}
	c := &counted{Store: w.Store}
	w.j = w.janitor(c, Config{})
	for i := range maxSkips + 1 { // the last one waits in vain
		if w.turn(); c.waits != max(0, i+1-maxSkips) {
			t.Fatalf("turn %d: %d steps waited", i, c.waits)
		}
		w.wantLog(p, "0..2")
	}
	if s := w.j.Stats(); s.Skipped != maxSkips+1 || s.Errors != 0 {
		t.Fatalf("%+v", s)
	}
	w.due()
	ended := make(chan error, 1)
	go func() { ended <- w.j.Turn(context.Background()) }()
	// Until the step waits for the row, or has given up waiting: both are fine.
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	w.turn()
	w.wantLog(p, "2..2")
}

// A crash between a step and the deletion of the rows: readers see nothing of them, and the next turn deletes them.
func TestCrashBehindAStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60`)
	p := w.partition("orders", "p")
	w.push(p, time.Hour, 2, 2)
	w.register("g", "orders")
	l := w.lease(store.TaskRetention)
	if _, err := w.Trim(t.Context(), l, []int64{p.ID}, 1000, false); err != nil {
		t.Fatal(err)
	}
	w.exact()
	c := store.Claim{Candidates: []int64{p.ID}, Group: "g", Worker: [16]byte{1}, Lease: time.Minute, Budget: 7}
	if r, err := w.ClaimBundle(t.Context(), []store.Claim{c}); err != nil || r[0][0].Status != store.ClaimEmpty {
		t.Fatalf("a reader sees what was removed: %+v %v", r, err)
	}
	w.exec("UPDATE queen.maintenance_leases SET lease_until = clock_timestamp()") // the process is gone
	w.turn()
	if n := w.number("SELECT count(*) FROM queen.log_segments"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// Pushes from two sides, three janitors, small steps: nothing waits for long, nothing is lost or counted twice.
func TestRetentionUnderTraffic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60,"completedRetentionSeconds":30`)
	var parts []store.Partition
	for i := range 4 {
		parts = append(parts, w.partition("orders", fmt.Sprint("p", i)))
	}
	janitors, stop := context.WithCancel(t.Context())
	var loops, pushers sync.WaitGroup
	for range 3 {
		j := w.janitor(w.Store, Config{BatchSize: 3, Parallelism: 2})
		loops.Go(func() {
			for janitors.Err() == nil {
				// In the order of their keys, as everything that takes more than one of these rows.
				if _, err := w.pool.Exec(context.Background(), `UPDATE queen.maintenance_leases SET next_due_at = clock_timestamp()
					WHERE task IN (SELECT task FROM queen.maintenance_leases ORDER BY task FOR NO KEY UPDATE)`); err != nil {
					t.Error(err)
				}
				if err := j.Turn(janitors); err != nil && janitors.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	var pushed [4]int64
	var segments sync.Mutex // guards w.segment
	for i, p := range parts {
		pushers.Go(func() {
			for range 40 {
				segments.Lock()
				s := w.segment(p, 1+rand.IntN(3))
				segments.Unlock()
				for {
					vs, err := w.PushBundle(t.Context(), []store.Segment{s})
					if err != nil {
						t.Error(err)
						return
					}
					if vs[0].Status == store.PushStored {
						break
					}
				}
				pushed[i] += int64(s.Count)
				// Age the whole partition under its lock, as time does.
				if _, err := w.pool.Exec(t.Context(), `WITH p AS (UPDATE queen.log_partitions SET oldest_live_at = oldest_live_at - interval '20 s',
						last_created_at = last_created_at - interval '20 s' WHERE id = $1 RETURNING id, log_start)
					UPDATE queen.log_segments s SET created_at = s.created_at - interval '20 s' FROM p
					 WHERE s.partition_id = p.id AND s.base_offset >= p.log_start`, p.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	pushers.Wait()
	stop()
	loops.Wait()
	w.exec("UPDATE queen.maintenance_leases SET lease_until = NULL")
	w.turn() // the pushers may have been too fast for any of the three
	for i, p := range parts {
		if last := w.number("SELECT last_offset + 1 FROM queen.log_partitions WHERE id = $1", p.ID); last != pushed[i] {
			t.Errorf("%d messages were pushed, the log ends at %d", pushed[i], last)
		}
		gone := w.number("SELECT log_start FROM queen.log_partitions WHERE id = $1", p.ID)
		if told := w.number("SELECT coalesce(sum(messages), 0)::bigint FROM queen.retention_history WHERE partition_id = $1", p.ID); told != gone || gone == 0 {
			t.Errorf("%d messages are gone, history tells of %d", gone, told)
		}
	}
}

// One janitor works at a time, the fence rises with every claim, and whoever was overtaken writes nothing more.
func TestTaskIsFenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60`)
	p := w.partition("orders", "p")
	w.push(p, time.Hour, 2)
	two := store.New(w.pool)
	tasks := []store.Task{{Name: store.TaskRetention, Period: time.Minute}}
	claim := func(s *store.Store, holder string) []store.TaskLease {
		t.Helper()
		held, err := s.ClaimTasks(t.Context(), holder, time.Minute, tasks, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	w.due()
	first := claim(w.Store, "one")
	if len(first) != 1 {
		t.Fatalf("%+v", first)
	}
	if held := claim(two, "two"); len(held) != 0 {
		t.Fatalf("two brokers hold one task: %+v", held)
	}
	w.exec("UPDATE queen.maintenance_leases SET lease_until = clock_timestamp()") // its time is over
	second := claim(two, "two")
	if len(second) != 1 || second[0].Fence <= first[0].Fence {
		t.Fatalf("the fence does not rise: %+v after %+v", second, first)
	}
	before := w.log(p)
	for what, f := range map[string]func(store.TaskLease) error{
		"trim":    func(l store.TaskLease) error { _, err := w.Trim(t.Context(), l, []int64{p.ID}, 10, false); return err },
		"sweep":   func(l store.TaskLease) error { _, err := w.SweepTrimmed(t.Context(), l, 10); return err },
		"renew":   func(l store.TaskLease) error { return w.RenewTask(t.Context(), l, time.Minute) },
		"history": func(l store.TaskLease) error { _, err := w.FoldRetentionHistory(t.Context(), l, 0, 0, 10); return err },
	} {
		if err := f(first[0]); !errors.Is(err, store.ErrFenced) {
			t.Errorf("%s under a lost claim: %v", what, err)
		}
	}
	if err := w.ReleaseTask(t.Context(), first[0], 0, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.RenewTask(t.Context(), second[0], time.Minute); err != nil {
		t.Errorf("the release of a lost claim ended the next one: %v", err)
	}
	if after := w.log(p); after != before || w.number("SELECT count(*) FROM queen.retention_history") != 0 {
		t.Errorf("a janitor that was overtaken moved the log from %s to %s", before, after)
	}
	if _, err := two.Trim(t.Context(), second[0], []int64{p.ID}, 10, false); err != nil {
		t.Fatal(err)
	}
	w.wantLog(p, "2..2")
	// The same broker's earlier claim is as dead as another's.
	w.exec("UPDATE queen.maintenance_leases SET next_due_at = clock_timestamp(), lease_until = clock_timestamp()")
	if third := claim(two, "two"); len(third) != 1 || third[0].Fence <= second[0].Fence {
		t.Fatalf("%+v", third)
	}
	if _, err := two.SweepTrimmed(t.Context(), second[0], 10); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a sweep under the broker's own earlier claim: %v", err)
	}
}

// Two steps on one partition: the later one, which had made its plan before the first committed, does nothing.
func TestPlanThatWasOvertakenIsDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60`)
	p := w.partition("orders", "p")
	w.push(p, 10*time.Minute, 2, 3)
	l := w.lease(store.TaskRetention)
	first := w.begin()
	if n, _ := w.trimIn(first, l, p); n != 2 {
		t.Fatalf("%d segments", n)
	}
	type result struct {
		store.Trimmed
		err error
	}
	ended := make(chan result, 1)
	go func() {
		tr, err := w.Trim(context.Background(), l, []int64{p.ID}, 1000, true)
		ended <- result{tr, err}
	}()
	w.until("the second step waits, or has given up", func() bool {
		return len(ended) == 1 || w.number("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0
	})
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-ended; r.err != nil || len(r.Moved) != 0 {
		t.Errorf("%+v %v", r.Trimmed, r.err)
	}
	w.wantLog(p, "5..5")
}

// A step under way keeps the task: nobody can claim it between the check and the commit, and nobody waits.
func TestClaimDoesNotOvertakeAStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60`)
	p := w.partition("orders", "p")
	w.push(p, time.Hour, 2)
	w.due()
	tasks := []store.Task{{Name: store.TaskRetention, Period: time.Minute}}
	first, err := w.ClaimTasks(t.Context(), "one", time.Second, tasks, time.Hour)
	if err != nil || len(first) != 1 {
		t.Fatal(first, err)
	}
	step := w.begin()
	if n, _ := w.trimIn(step, first[0], p); n != 1 {
		t.Fatalf("%d segments", n)
	}
	w.until("its time is over", func() bool {
		return w.number("SELECT count(*) FROM queen.maintenance_leases WHERE task = 'retention' AND lease_until < clock_timestamp()") == 1
	})
	if held, err := w.ClaimTasks(t.Context(), "two", time.Minute, tasks, time.Hour); err != nil || len(held) != 0 {
		t.Fatalf("claimed under a step: %+v %v", held, err)
	}
	if err := step.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if held, err := w.ClaimTasks(t.Context(), "two", time.Minute, tasks, time.Hour); err != nil || len(held) != 1 {
		t.Fatalf("not claimed behind it: %+v %v", held, err)
	}
}
