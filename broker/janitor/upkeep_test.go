package janitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queengate/queengate/broker/store"
)

// grow makes a partition and all it has older.
func (w *world) grow(p store.Partition, age time.Duration) {
	w.t.Helper()
	w.exec(`UPDATE queen.log_partitions SET created_at = created_at - $2::interval, last_write_at = last_write_at - $2::interval,
		idle_since = idle_since - $2::interval WHERE id = $1`, p.ID, age)
	w.exec("UPDATE queen.log_consumers SET created_at = created_at - $2::interval WHERE partition_id = $1", p.ID, age)
}

func TestPartitionThatNobodyComesToIsDeleted(t *testing.T) {
	t.Parallel()
	const old, young = 31 * 24 * time.Hour, 29 * 24 * time.Hour
	for veto, c := range map[string]struct {
		stays bool
		make  func(w *world, p store.Partition)
		veto  string // the part of the condition that keeps it
	}{
		"none":                      {false, func(w *world, p store.Partition) { w.commit(p, "g", -1); w.grow(p, old) }, ``},
		"none, written to long ago": {false, func(w *world, p store.Partition) { w.push(p, time.Hour, 3); w.turn(); w.grow(p, old) }, ``},
		"an old lease that ended":   {false, func(w *world, p store.Partition) { w.commit(p, "g", -1); w.grow(p, old); w.lend(p, -old, -old) }, ``},
		"it is young": {true, func(w *world, p store.Partition) {
			w.push(p, time.Hour, 3)
			w.turn()
			w.grow(p, old)
			w.exec("UPDATE queen.log_partitions SET created_at = clock_timestamp() - $2::interval WHERE id = $1", p.ID, young)
		}, `p.created_at, `},
		"it was written to, which only the row says": {true, func(w *world, p store.Partition) {
			w.grow(p, old)
			w.push(p, time.Hour, 3)
			w.turn()
			w.exec("UPDATE queen.log_partitions SET idle_since = NULL") // emptied before there was this column
		}, `, p.last_write_at`},
		"it holds messages":             {true, func(w *world, p store.Partition) { w.push(p, 0, 3); w.grow(p, old) }, `p.oldest_live_at IS NULL AND`},
		"a dead letter":                 {true, func(w *world, p store.Partition) { w.letter(p); w.grow(p, old) }, `AND NOT EXISTS (SELECT FROM queen.log_dlq d WHERE d.partition_id = p.id)`},
		"a live lease":                  {true, func(w *world, p store.Partition) { w.commit(p, "g", -1); w.grow(p, old); w.lend(p, -old, time.Hour) }, `, k.lease_expires_at`},
		"a lease that ended lately":     {true, func(w *world, p store.Partition) { w.commit(p, "g", -1); w.grow(p, old); w.lend(p, -old, -time.Hour) }, `, k.lease_expires_at`},
		"a lease that was given lately": {true, func(w *world, p store.Partition) { w.commit(p, "g", -1); w.grow(p, old); w.lend(p, -young, -old) }, `, k.lease_acquired_at`},
		"a group that came lately":      {true, func(w *world, p store.Partition) { w.grow(p, old); w.commit(p, "g", -1) }, `k.created_at, `},
	} {
		t.Run(veto, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60`)
			p := w.partition("orders", "p")
			c.make(w, p)
			if c.stays {
				// What the list left out is refused under the lock as well.
				w.exec("UPDATE queen.maintenance_leases SET holder = 'h', fence = 1, lease_until = now() + interval '1 hour' WHERE task = 'partitions'")
				if n := w.number("SELECT queen.reclaim_partitions('partitions', 'h', 1, $1, $2, interval '30 days')", w.tenant, []int64{p.ID}); n != 0 {
					t.Error("it is deleted when it is asked for by id")
				}
				w.exec("UPDATE queen.maintenance_leases SET lease_until = NULL")
			}
			if c.veto != "" {
				defer w.withoutVeto(c.veto, p)
			}
			w.turn()
			if stays := w.number("SELECT count(*) FROM queen.log_partitions WHERE id = $1", p.ID) == 1; stays != c.stays {
				t.Fatalf("the partition stays: %v, want %v", stays, c.stays)
			}
			if c.stays {
				return
			}
			if n := w.number("SELECT count(*) FROM queen.retention_history WHERE kind = 'partition_deleted' AND partition_id = $1", p.ID); n != 1 {
				t.Errorf("history tells of %d deletions", n)
			}
			for _, table := range []string{"log_txns", "log_consumers", "dropped_partitions"} {
				if n := w.number("SELECT count(*) FROM queen." + table + " WHERE partition_id = " + jsonOf(p.ID)); n != 0 {
					t.Errorf("%s has %d rows of it", table, n)
				}
			}
			if n := w.number("SELECT partition_count FROM queen.queues WHERE name = 'orders'"); n != 0 {
				t.Errorf("the queue counts %d partitions", n)
			}
			// A push that still knows the id is told so, and makes the partition anew, from offset 0.
			vs, err := w.PushBundle(t.Context(), []store.Segment{w.segment(p, 1)})
			if err != nil || vs[0].Status != store.PushMissing {
				t.Fatalf("%+v %v", vs, err)
			}
			again := w.partition("orders", "p")
			w.push(again, 0, 1)
			w.wantLog(again, "0..1")
		})
	}
}

// withoutVeto takes a part out of the condition, in the list and under the lock: now the partition must go, so it was that
// part and no other that kept it.
func (w *world) withoutVeto(part string, p store.Partition) {
	w.t.Helper()
	for _, routine := range []string{"idle_partitions", "reclaim_partitions"} {
		var text string
		if err := w.pool.QueryRow(context.Background(), "SELECT pg_get_functiondef(('queen.' || $1)::regproc)", routine).Scan(&text); err != nil {
			w.t.Fatal(err)
		}
		if !strings.Contains(text, part) {
			w.t.Fatalf("%s does not test %s", routine, part)
		}
		w.exec(strings.ReplaceAll(text, part, ""))
	}
	w.turn()
	if n := w.number("SELECT count(*) FROM queen.log_partitions WHERE id = $1", p.ID); n != 0 {
		w.t.Errorf("it stays without %q as well: the test shows nothing of that veto", part)
	}
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // it marshals numbers
	}
	return string(b)
}

// lend gives group g a lease that was acquired and ends at these times from now.
func (w *world) lend(p store.Partition, acquired, expires time.Duration) {
	w.t.Helper()
	w.exec(`UPDATE queen.log_consumers SET committed = -1, batch_end = 0, worker_id = gen_random_uuid(),
		lease_acquired_at = clock_timestamp() + $2::interval, lease_expires_at = clock_timestamp() + $3::interval
		WHERE partition_id = $1`, p.ID, acquired, expires)
}

func (w *world) letter(p store.Partition) {
	w.t.Helper()
	w.exec(`INSERT INTO queen.log_dlq (id, tenant_id, queue, partition_id, partition_name, consumer_group, offset_, error, retry_count)
		VALUES (gen_random_uuid(), $1, 'orders', $2, 'p', 'g', 0, 'no', 0)`, w.tenant, p.ID)
}

// The veto of a push that has the row: the partition is in use.
func TestPartitionInUseIsNotDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", ``)
	p := w.partition("orders", "p")
	w.grow(p, 31*24*time.Hour)
	push := w.begin()
	if _, err := push.Exec(t.Context(), "SELECT 1 FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE", p.ID); err != nil {
		t.Fatal(err)
	}
	w.turn()
	if n := w.number("SELECT count(*) FROM queen.log_partitions WHERE id = $1", p.ID); n != 1 {
		t.Fatal("it was deleted under a push")
	}
}

func TestPartitionsAreKeptWhenTheOperatorSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", ``)
	p := w.partition("orders", "p")
	w.grow(p, 31*24*time.Hour)
	w.j = w.janitor(w.Store, Config{KeepPartitions: true})
	w.turn()
	if n := w.number("SELECT count(*) FROM queen.log_partitions WHERE id = $1", p.ID); n != 1 {
		t.Error("it was deleted")
	}
}

// A task that an operator switched off is not done.
func TestDisabledTaskRests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60`)
	p := w.partition("orders", "p")
	w.push(p, time.Hour, 1)
	w.exec("UPDATE queen.maintenance_leases SET enabled = task <> 'retention'")
	w.turn()
	w.wantLog(p, "0..1")
	w.exec("UPDATE queen.maintenance_leases SET enabled = true")
	w.turn()
	w.wantLog(p, "1..1")
}

func TestHistoryIsFoldedAndForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := time.Now().Add(-48 * time.Hour).Truncate(time.Hour).Add(time.Minute)
	add := func(at time.Time, kind string) {
		w.exec("INSERT INTO queen.retention_history (tenant_id, queue, partition_id, kind, messages, raw_bytes, at) VALUES ($1, 'orders', 7, $2, 5, 50, $3)", w.tenant, kind, at)
	}
	add(old, "retention")
	add(old.Add(time.Minute), "retention")
	add(old, "eviction")
	add(old.Add(2*time.Hour), "retention")
	add(time.Now(), "retention")
	add(time.Now().Add(-91*24*time.Hour), "retention")
	var purged int
	w.j.hooks.Purges = append(w.j.hooks.Purges, func(context.Context) (int64, error) { purged++; return int64(2 - purged), nil })
	w.turn()
	if n := w.number("SELECT count(*) FROM queen.retention_history"); n != 4 {
		t.Errorf("%d rows, want one fresh and three folded", n)
	}
	if n := w.number("SELECT sum(messages)::bigint FROM queen.retention_history"); n != 25 {
		t.Errorf("%d messages, want 25", n)
	}
	if n := w.number("SELECT events FROM queen.retention_history WHERE partition_id IS NULL AND kind = 'retention' AND at = $1", old.Truncate(time.Hour)); n != 2 {
		t.Errorf("%d events in the hour, want 2", n)
	}
	if purged != 2 {
		t.Errorf("the purge was called %d times, want until it returned 0", purged)
	}
}

// What no feed looks back to any more goes, in steps, and nothing that one might.
func TestTheLogOfWritesIsPurgedBehindTheFeeds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", ``)
	for _, name := range []string{"old", "young"} {
		w.push(w.partition("orders", name), 0, 1)
	}
	w.exec("UPDATE queen.log_writes SET written_at = written_at - interval '15 minutes' WHERE partitions <> (SELECT partitions FROM queen.log_writes ORDER BY written_at DESC LIMIT 1)")
	w.exec("INSERT INTO queen.log_writes (written_at, partitions) SELECT clock_timestamp() - interval '1 hour', ARRAY[n] FROM generate_series(1, 3) n")
	l := w.lease(store.TaskWrites)
	for _, want := range []int64{2, 2, 0} {
		if n, err := w.PurgeWrites(t.Context(), l, 2); err != nil || n != want {
			t.Fatalf("a step of two rows: %d, %v, want %d", n, err, want)
		}
	}
	if n := w.number("SELECT count(*) FROM queen.log_writes WHERE written_at > clock_timestamp() - interval '14 minutes'"); n != 1 || w.number("SELECT count(*) FROM queen.log_writes") != 1 {
		t.Errorf("%d rows are left, want the young one", n)
	}
	l.Fence++
	if _, err := w.PurgeWrites(t.Context(), l, 2); !errors.Is(err, store.ErrFenced) {
		t.Errorf("under a claim of somebody else: %v", err)
	}
	// And by itself.
	w.exec("UPDATE queen.maintenance_leases SET lease_until = NULL")
	w.exec("UPDATE queen.log_writes SET written_at = written_at - interval '15 minutes'")
	w.turn()
	if n := w.number("SELECT count(*) FROM queen.log_writes"); n != 0 {
		t.Errorf("%d rows are left after a turn", n)
	}
}

// counted is a store that counts the calls that reach the database beyond the claim.
type counted struct {
	Store
	claims int
	held   []store.TaskLease
	waits  int // steps that may wait for a row
}

func (c *counted) Trim(ctx context.Context, l store.TaskLease, partitions []int64, batch int, wait bool) (store.Trimmed, error) {
	if wait {
		c.waits++
	}
	return c.Store.Trim(ctx, l, partitions, batch, wait)
}

func (c *counted) ClaimTasks(ctx context.Context, holder string, lease time.Duration, tasks []store.Task, idle time.Duration) ([]store.TaskLease, error) {
	c.claims++
	held, err := c.Store.ClaimTasks(ctx, holder, lease, tasks, idle)
	c.held = append(c.held, held...)
	return held, err
}

// With nothing due a turn is one statement, and what is not due for the rules counts as nothing.
func TestIdleTurnIsOneStatement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":3600`)
	p := w.partition("orders", "p")
	w.push(p, 10*time.Minute, 3)
	c := &counted{Store: w.Store}
	w.j = w.janitor(c, Config{})
	w.exec("UPDATE queen.maintenance_leases SET next_due_at = clock_timestamp() + interval '1 hour' WHERE task = 'history'")
	w.exec("UPDATE queen.maintenance_leases SET next_due_at = clock_timestamp() WHERE task <> 'history'")
	if err := w.j.Turn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.claims != 1 || len(c.held) != 0 {
		t.Errorf("%d claims gave %+v", c.claims, c.held)
	}
	if n := w.number("SELECT count(*) FROM queen.maintenance_leases WHERE next_due_at > clock_timestamp() AND lease_until IS NULL AND last_run_at IS NOT NULL"); n != 5 {
		t.Errorf("%d tasks were done with, want 5", n)
	}
}

func TestReleasedTaskSaysWhatItDid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60`)
	w.push(w.partition("orders", "p"), time.Hour, 3)
	w.turn()
	if n := w.number("SELECT (last_run_stats->>'messages')::bigint FROM queen.maintenance_leases WHERE task = 'retention'"); n != 3 {
		t.Errorf("%d messages", n)
	}
	if n := w.number("SELECT count(*) FROM queen.maintenance_leases WHERE task = 'retention' AND lease_until IS NULL AND next_due_at > clock_timestamp() AND period = interval '5 s'"); n != 1 {
		t.Error("the task is not due one period later")
	}
	// After an error it is due at once, and the error can be read.
	l := w.lease(store.TaskHistory)
	if err := w.ReleaseTask(t.Context(), l, time.Second, nil, errors.New("no luck")); err != nil {
		t.Fatal(err)
	}
	if n := w.number("SELECT count(*) FROM queen.maintenance_leases WHERE task = 'history' AND next_due_at <= clock_timestamp() AND last_error = 'no luck'"); n != 1 {
		t.Error("the task is not due after an error")
	}
}

// fake answers claims from memory.
type fake struct {
	Store
	turns chan struct{}
	fail  error
}

func (f *fake) ClaimTasks(context.Context, string, time.Duration, []store.Task, time.Duration) ([]store.TaskLease, error) {
	f.turns <- struct{}{}
	return nil, f.fail
}

func TestRunTakesATurnEveryInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{turns: make(chan struct{}), fail: errors.New("the database is away")}
		j := (&world{t: t}).janitor(f, Config{Interval: 200 * time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- j.Run(ctx) }()
		begin := time.Now()
		for range 5 {
			<-f.turns
		}
		if d := time.Since(begin); d != time.Second {
			t.Errorf("five turns took %v, want a second", d)
		}
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if s := j.Stats(); s.Errors != 5 {
			t.Errorf("%d errors, want 5", s.Errors)
		}
	})
}

func TestConfigBounds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg Config
		bad bool
	}{
		"defaults":       {Config{}, false},
		"least interval": {Config{Interval: 200 * time.Millisecond}, false},
		"below it":       {Config{Interval: 199 * time.Millisecond}, true},
		"no rows":        {Config{BatchSize: -1}, true},
		"too many steps": {Config{Parallelism: 17}, true},
		"negative days":  {Config{CleanupDays: -1}, true},
		"short history":  {Config{HistoryKeep: time.Hour}, true},
	} {
		if err := c.cfg.Validate(); (err != nil) != c.bad {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len((Config{KeepPartitions: true}).withDefaults().tasks()); n != 5 {
		t.Errorf("%d tasks without the cleanup of partitions, want 5", n)
	}
	for _, task := range (Config{Interval: 200 * time.Millisecond}).withDefaults().tasks() {
		if task.Name == store.TaskRetention && task.Period != 200*time.Millisecond || task.Name == store.TaskPartitions && task.Period < time.Minute {
			t.Errorf("%+v", task)
		}
	}
}

// What a registration on a large queue owes is made by whichever janitor comes next, in one run.
func TestOwedCursorsAreMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.queue("orders", "")
	for i := range 7 {
		w.push(w.partition("orders", fmt.Sprint("p", i)), 0, 2)
	}
	w.exec("UPDATE queen.queues SET partition_count = partition_count + 5000")
	w.register("g", "orders")
	w.register("h", "orders")
	if n := w.number("SELECT count(*) FROM queen.log_consumers"); n != 0 {
		t.Fatalf("%d cursors came with the registrations", n)
	}
	w.turn()
	if n := w.number("SELECT count(*) FROM queen.log_consumers"); n != 2*w.number("SELECT count(*) FROM queen.log_partitions") {
		t.Errorf("%d cursors", n)
	}
	if n := w.j.Stats().Runs[store.TaskCursors]; n != 1 {
		t.Errorf("%d runs", n)
	}
	w.turn()
	if n := w.j.Stats().Runs[store.TaskCursors]; n != 1 {
		t.Errorf("%d runs, the last of them for nothing", n)
	}
}
