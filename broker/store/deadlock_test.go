package store

import (
	"testing"
	"time"

	"github.com/queengate/queengate/wire"
)

// Circles that were found, each made again step by step. A third session holds the row that the first of two comes to, so
// that the second gets hold of what the first wants next.

// meet starts first and then second while hold keeps them apart, lets go, and returns both errors.
func (w *world) meet(hold string, args []any, first, second func() error) (errs [2]error) {
	w.t.Helper()
	tx, err := w.pool.Begin(w.ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := tx.Exec(w.ctx, hold, args...); err != nil {
		w.t.Fatal(err)
	}
	done := [2]chan error{make(chan error, 1), make(chan error, 1)}
	for i, f := range []func() error{first, second} {
		go func() { done[i] <- f() }()
		w.until("a session waits or is done", func() bool {
			var waiting int
			w.scan("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'", nil, &waiting)
			return waiting+len(done[0])+len(done[1]) == i+1
		})
	}
	if err := tx.Rollback(w.ctx); err != nil {
		w.t.Fatal(err)
	}
	return [2]error{<-done[0], <-done[1]}
}

// large makes the planner choose as it does for tables of millions of rows.
func (w *world) large() {
	w.t.Helper()
	cfg := w.pool.Config().Copy()
	for _, way := range []string{"enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"} {
		cfg.ConnConfig.RuntimeParams[way] = "off"
	}
	w.store = New(openPool(w.t, cfg))
}

func (w *world) until(what string, cond func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ; !cond(); <-tick.C {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited in vain: %s", what)
		}
	}
}

func (w *world) noDeadlock(errs [2]error) {
	w.t.Helper()
	for i, err := range errs {
		if err != nil {
			w.t.Errorf("session %d: %v", i+1, err)
		}
	}
}

// The letters of one message were deleted in the order of their filing, and those of a partition that goes in the other.
func TestDeletingLettersOfAMessageDoesNotDeadlockWithTheEndOfTheirPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.large()
	l := w.lane("p")
	w.pushNamed(l, time.Time{}, "m", "m") // the id came again after the window
	file := func(group string, offset int64) {
		c := w.claim(group, l)
		w.pop(c)
		g := w.group(l, c.Worker.String(), AckItem{Status: wire.AckDLQ, Offset: offset})
		g.Group = group
		if !w.ack(g)[0].Items[0].DLQ {
			t.Fatal("no letter")
		}
	}
	file("g", 1)
	file("h", 0)
	w.noDeadlock(w.meet("SELECT FROM queen.log_dlq WHERE consumer_group = 'h' FOR UPDATE", nil,
		func() error {
			_, err := w.store.DeleteLettersAt(w.ctx, w.tenant, l.uid, "m", "")
			return err
		},
		func() error {
			// By which of three indexes it finds them is the planner's choice; here another than that of the first.
			w.exec("UPDATE pg_index SET indisvalid = false WHERE indexrelid = ANY ('{queen.log_dlq_offset,queen.log_dlq_partition}'::regclass[])")
			_, _, err := w.store.DeleteQueue(w.ctx, w.tenant, w.queue)
			return err
		}))
	var left int
	if w.scan("SELECT count(*) FROM queen.log_dlq", nil, &left); left != 0 {
		t.Errorf("%d letters are left", left)
	}
}

// Rows below a watermark were swept by the list of trims and, once their queue was deleted, by that of dropped partitions
// as well, each in an order of its own.
func TestSweepsOfTrimmedAndOfDroppedLogsDoNotMeet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.large()
	w.exec("UPDATE queen.queues SET retention_enabled = true, retention_seconds = 60 WHERE id = $1", w.id)
	a, b := w.lane("a"), w.lane("b")
	task := w.task(TaskRetention)
	for _, l := range []lane{b, a} { // b is trimmed first
		if _, err := w.store.PushBundle(w.ctx, []Segment{w.segmentOf(l, "m")}); err != nil {
			t.Fatal(err)
		}
		w.exec("UPDATE queen.log_segments SET created_at = created_at - interval '1 h' WHERE partition_id = $1", l.id)
		if tr, err := w.store.Trim(w.ctx, task, []int64{l.id}, 10, false); err != nil || tr.Segments != 1 {
			t.Fatal(tr, err)
		}
	}
	// Deleted as DeleteQueue does, without the sweep that follows it.
	w.exec("SELECT queen.delete_queue($1, $2)", w.tenant, w.queue)
	var listed int
	if w.scan("SELECT count(*) FROM queen.log_trims", nil, &listed); listed != 0 {
		t.Errorf("%d ranges of deleted partitions are listed still", listed)
	}
	w.noDeadlock(w.meet("SELECT FROM queen.log_segments WHERE partition_id = $1 FOR UPDATE", []any{b.id},
		func() error {
			_, err := w.store.SweepTrimmed(w.ctx, task, 100)
			return err
		},
		func() error {
			_, err := w.store.SweepDropped(w.ctx)
			return err
		}))
	var rows int
	if w.scan("SELECT (SELECT count(*) FROM queen.log_segments) + (SELECT count(*) FROM queen.log_txns)", nil, &rows); rows != 0 {
		t.Errorf("%d rows are left", rows)
	}
}
