package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	w.push(w.segment(a, "1", "2"), w.segment(old, "1"))
	w.exec("UPDATE queen.log_partitions SET last_write_at = last_write_at - interval '1 hour' WHERE id = $1", old.ID)
	got, _, err := w.Changes(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	want := []Change{{PartitionID: a.ID, QueueID: a.QueueID, Tenant: w.tenant, Queue: "q", LastOffset: 1}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got, _, err := w.Changes(t.Context(), 2*time.Hour); err != nil || len(got) != 2 {
		t.Errorf("a wider window: got %+v, %v", got, err)
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

// The feed walks the index on last_write_at alone: its cost follows what was written, not what exists.
func TestChangesReadsOnlyWhatWasWritten(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	w.exec("INSERT INTO queen.log_partitions (queue_id, name) SELECT $1, 'n' || g FROM generate_series(1, 20000) g", p.QueueID)
	w.exec("ANALYZE queen.log_partitions")
	rows, err := w.pool.Query(t.Context(), "EXPLAIN "+strings.ReplaceAll(changes, "$1", "3000000"))
	if err != nil {
		t.Fatal(err)
	}
	var plan strings.Builder
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&plan, line)
	}
	if !strings.Contains(plan.String(), "log_partitions_last_write_at") || strings.Contains(plan.String(), "Seq Scan on log_partitions") {
		t.Error(plan.String())
	}
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
