package store

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

func TestChangesNamesWhatWasWrittenLately(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	if got, _, err := w.Changes(t.Context(), time.Minute); err != nil || len(got) != 0 {
		t.Fatalf("an empty database: got %+v, %v", got, err)
	}
	a, old := w.partition("q", "a"), w.partition("q", "old")
	w.partition("q", "never")
	w.push(w.segment(old, "1"))
	w.ago(2 * time.Minute)
	w.push(w.segment(a, "1", "2"))
	got, _, err := w.Changes(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	want := []Change{{PartitionID: a.ID, QueueID: a.QueueID, Tenant: w.tenant, Queue: "q", LastOffset: 1}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for rule, window := range map[string]time.Duration{"a wider window": 10 * time.Minute, "one beyond the log": 2 * time.Hour} {
		if got, _, err := w.Changes(t.Context(), window); err != nil || len(got) != 2 {
			t.Errorf("%s: got %+v, %v", rule, got, err)
		}
	}
	// Later writes of the same partitions are no further changes, and deleted partitions are none.
	w.push(w.segment(old, "2"))
	w.ago(2 * time.Second)
	w.push(w.segment(a, "3"))
	if _, err := w.DeletePartitions(t.Context(), w.tenant, []int64{old.ID}); err != nil {
		t.Fatal(err)
	}
	want[0].LastOffset = 2
	if got, _, err := w.Changes(t.Context(), 10*time.Minute); err != nil || !cmp.Equal(want, got) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// ago makes everything that was written so far older.
func (w *writer) ago(d time.Duration) {
	w.t.Helper()
	w.exec("UPDATE queen.log_partitions SET last_write_at = last_write_at - $1::interval", d)
	w.exec("UPDATE queen.log_writes SET written_at = written_at - $1::interval", d)
}

// Before the log began, and while calls of a routine that knows none may be under way, the partitions themselves are asked.
func TestChangesAreFoundAcrossAGapOfTheLog(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	changed := func() (n int) {
		t.Helper()
		got, _, err := w.Changes(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		page, exists, err := w.Changed(t.Context(), w.tenant, "q", time.Now().Add(-time.Minute), "", 10)
		if err != nil || !exists || len(page) != len(got) {
			t.Fatalf("the feed tells of %d partitions, the list of %d, %v, %v", len(got), len(page), exists, err)
		}
		return len(got)
	}
	w.push(w.segment(w.partition("q", "logged"), "1"))
	w.exec("UPDATE queen.log_partitions SET last_write_at = clock_timestamp() WHERE id = $1", w.partition("q", "not logged").ID)
	if n := changed(); n != 1 {
		t.Fatalf("%d changes, want the one that is logged", n)
	}
	w.exec("INSERT INTO queen.log_writes (written_at, partitions) VALUES (clock_timestamp(), '{}')")
	if n := changed(); n != 2 {
		t.Errorf("%d changes with a gap, want 2", n)
	}
	w.exec("UPDATE queen.log_writes SET written_at = written_at - interval '2 minutes' WHERE partitions = '{}'")
	if n := changed(); n != 1 {
		t.Errorf("%d changes since the gap, want 1", n)
	}
}

// A new database has no gap; one with partitions has one whenever the routine of pushes is put in, for a minute to come.
func TestANewRoutineOfPushesLeavesAGap(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	gaps := func() int64 {
		return w.count("SELECT count(*) FROM queen.log_writes WHERE partitions = '{}' AND written_at > clock_timestamp() + interval '10 seconds'")
	}
	again := func() {
		t.Helper()
		w.exec("UPDATE public.queengate_routines SET hash = '' WHERE name = 'broker/routines/push.sql'")
		if err := migrations.Apply(t.Context(), w.pool.Config().ConnConfig, migrations.Broker); err != nil {
			t.Fatal(err)
		}
	}
	if again(); gaps() != 0 {
		t.Error("a database without partitions has a gap")
	}
	w.partition("q", "a")
	if again(); gaps() != 1 {
		t.Errorf("%d gaps, want 1", gaps())
	}
}

// Every change of configuration gives another version, and nothing else does.
func TestConfigVersionMovesWithEveryChange(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	version := func() int64 {
		t.Helper()
		_, now, err := w.Changes(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return now.ConfigVersion
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		rule  string
		do    func()
		moves bool
	}{
		{"a new queue", func() { w.partition("q", "a") }, true},
		{"a pair that exists", func() { w.partition("q", "a") }, false},
		{"a new partition", func() { w.partition("q", "b") }, true},
		{"a push", func() { w.push(w.segment(w.partition("q", "a"), "x")) }, false},
		{"a refusal", func() {
			_, err := w.Provision(t.Context(), w.tenant, []Pair{{"r", "a"}}, Caps{MaxQueues: ptr(int64(0))})
			if wire.AsError(err) == nil {
				t.Fatal("was not refused")
			}
		}, false},
		{"configure", func() {
			_, err := w.Configure(t.Context(), w.tenant, configure(t, `{"queue":"q"}`), "", Caps{})
			check(err)
		}, true},
		{"a deleted partition", func() {
			_, err := w.DeletePartitions(t.Context(), w.tenant, []int64{w.partition("q", "b").ID})
			check(err)
		}, true},
		{"a deletion of nothing", func() { _, _, err := w.DeleteQueue(t.Context(), w.tenant, "none"); check(err) }, false},
		{"a deleted queue", func() { _, _, err := w.DeleteQueue(t.Context(), w.tenant, "q"); check(err) }, true},
		{"a fold", func() { _, err := w.FoldUsage(t.Context()); check(err) }, false},
	} {
		before := version()
		step.do()
		if after := version(); (after > before) != step.moves || after < before {
			t.Errorf("%s: version %d, before %d", step.rule, after, before)
		}
	}
}

// The feed walks the log of writes and then the rows it names: its cost follows what was written, not what exists.
func TestChangesReadsOnlyWhatWasWritten(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	w.exec("INSERT INTO queen.log_partitions (queue_id, name, last_write_at) SELECT $1, 'n' || g, now() - interval '1 day' FROM generate_series(1, 20000) g", p.QueueID)
	w.exec("INSERT INTO queen.log_writes (written_at, partitions) SELECT clock_timestamp() - interval '5 minutes', ARRAY[g] FROM generate_series(1, 5000) g")
	w.exec("ANALYZE queen.log_partitions")
	w.push(w.segment(p, "1"))
	since := time.Now().Add(-3 * time.Second)
	for rule, c := range map[string]struct {
		sql  string
		want use
	}{
		"the feed": {strings.ReplaceAll(changes, "$1", "3000000"), use{seeks: 1, tuples: 1}},
		"the list": {
			fmt.Sprintf("SELECT FROM queen.changed_partitions('%s', 'q', '%s', '', 10)", w.tenant, since.Format(time.RFC3339Nano)),
			use{seeks: 2, tuples: 2}, // once for the queue, and once more of this queue for the rest
		},
	} {
		read := w.reads(c.sql)
		if read["log_partitions"] != c.want || read["log_writes"].scans != 0 || read["log_writes"].tuples > 10 {
			t.Errorf("%s reads %+v of partitions and %+v of the log", rule, read["log_partitions"], read["log_writes"])
		}
	}
}

// When most partitions were written, one look at all of them is cheaper than one at each, and finds the same.
func TestChangesReadsAllPartitionsWhenMostWereWritten(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	const n = 2000
	queue := w.partition("q", "a").QueueID
	w.exec("INSERT INTO queen.log_partitions (queue_id, name, last_write_at) SELECT $1, 'n' || g, clock_timestamp() FROM generate_series(1, $2::integer) g", queue, n)
	w.exec("INSERT INTO queen.log_writes (written_at, partitions) SELECT last_write_at, array_agg(id) FROM queen.log_partitions WHERE last_write_at IS NOT NULL GROUP BY 1")
	w.exec("ANALYZE queen.log_partitions")
	read := w.reads(strings.ReplaceAll(changes, "$1", "60000000"))["log_partitions"]
	if read.scans != 1 || read.seeks != 0 {
		t.Errorf("the feed reads %+v of partitions", read)
	}
	if got, _, err := w.Changes(t.Context(), time.Minute); err != nil || len(got) != n {
		t.Errorf("%d changes, %v, want %d", len(got), err, n)
	}
	if n := w.count(unloggedSQL); n != 0 {
		t.Errorf("%d of them are not in the log: the test compares two different things", n)
	}
}

// A list since long ago, or since a time since which the cell has written more than the queue has partitions, goes through
// the queue: its cost has a bound whatever the others do.
func TestChangedPartitionsCostsTheLesserOfTheLogAndTheQueue(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	w.push(w.segment(w.partition("q", "a"), "1"), w.segment(w.partition("q", "b"), "1"))
	w.exec("INSERT INTO queen.log_writes (written_at, partitions) SELECT clock_timestamp() - interval '5 minutes', ARRAY[g, g + 1] FROM generate_series(1000, 9000) g")
	for rule, c := range map[string]struct {
		since time.Duration
		log   bool
	}{
		"the cell wrote less": {time.Minute, true},
		"the cell wrote more": {10 * time.Minute, false},
		"beyond the log":      {time.Hour, false},
	} {
		page, _, err := w.Changed(t.Context(), w.tenant, "q", time.Now().Add(-c.since), "", 10)
		if err != nil || len(page) != 2 || page[0].Name != "a" || page[1].Name != "b" {
			t.Errorf("%s: %+v, %v", rule, page, err)
		}
		read := w.reads(fmt.Sprintf("SELECT FROM queen.changed_partitions('%s', 'q', clock_timestamp() - interval '%d seconds', '', 10)", w.tenant, int(c.since.Seconds())))
		if byKey := read["log_partitions"].seeks == 4; byKey != c.log || read["log_writes"].tuples > 100 {
			t.Errorf("%s: reads %+v of partitions and %+v of the log", rule, read["log_partitions"], read["log_writes"])
		}
	}
}

// reads returns what a statement reads, by table.
func (w *writer) reads(sql string) map[string]use {
	w.t.Helper()
	return w.uses(func(tx pgx.Tx) {
		w.t.Helper()
		if _, err := tx.Exec(w.t.Context(), sql); err != nil {
			w.t.Fatal(err)
		}
	})
}

// use is what was done to a table: sequential scans, look-ups in its indexes, rows that these found, and updates.
type use struct{ scans, seeks, tuples, updated, hot int64 }

// uses runs f in a transaction, commits it and returns what it did, by table.
func (w *writer) uses(f func(pgx.Tx)) map[string]use {
	w.t.Helper()
	tx, err := w.pool.Begin(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(w.t.Context())) }() // committed unless the test failed
	// The session counts on from what it has not told the server yet.
	count := func() map[string]use {
		w.t.Helper()
		rows, err := tx.Query(w.t.Context(), `SELECT relname::text, seq_scan, coalesce(idx_scan, 0), coalesce(idx_tup_fetch, 0), n_tup_upd, n_tup_hot_upd
FROM pg_stat_xact_user_tables WHERE schemaname = 'queen'`)
		if err != nil {
			w.t.Fatal(err)
		}
		all := map[string]use{}
		var name string
		var u use
		if _, err := pgx.ForEachRow(rows, []any{&name, &u.scans, &u.seeks, &u.tuples, &u.updated, &u.hot}, func() error { all[name] = u; return nil }); err != nil {
			w.t.Fatal(err)
		}
		return all
	}
	before := count()
	f(tx)
	after := count()
	if err := tx.Commit(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	for name, u := range after {
		b := before[name]
		after[name] = use{u.scans - b.scans, u.seeks - b.seeks, u.tuples - b.tuples, u.updated - b.updated, u.hot - b.hot}
	}
	return after
}

func TestStateIsShared(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	var on bool
	if found, err := w.State(t.Context(), StateMaintenance, &on); found || err != nil {
		t.Fatalf("before it is set: got %v, %v", found, err)
	}
	for _, want := range []bool{true, false, true} {
		if err := w.SetState(t.Context(), StateMaintenance, want); err != nil {
			t.Fatal(err)
		}
		if found, err := w.State(t.Context(), StateMaintenance, &on); !found || err != nil || on != want {
			t.Errorf("got %v %v, %v", found, on, err)
		}
	}
	if found, err := w.State(t.Context(), StatePopMaintenance, &on); found || err != nil {
		t.Errorf("the other switch: got %v, %v", found, err)
	}
}
