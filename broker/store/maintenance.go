package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
)

// Tasks of upkeep, as queen.maintenance_leases names them.
const (
	TaskRetention  = "retention"  // whole segments past the rules of their queue
	TaskSidecar    = "sidecar"    // hash rows past their age
	TaskPartitions = "partitions" // partitions nobody comes to any more
	TaskHistory    = "history"    // records of what happened, past theirs
	TaskWrites     = "writes"     // the log of writes, behind the feeds
	TaskCursors    = "cursors"    // cursors that registrations on large queues owe
)

// Task is a task and how often the cell runs it.
type Task struct {
	Name   string
	Period time.Duration
}

// TaskLease is a claim on a task. It ends when it is released, at its time on the database's clock unless it is
// renewed, or with the next claim of the task: whatever is written under it checks that in its own transaction.
type TaskLease struct {
	Task   string
	Holder string
	Fence  int64
	Until  time.Time
}

// ErrFenced says that a claim on a task is not in force any more. Nothing was written.
var ErrFenced = errors.New("the claim on the task is lost")

var (
	claimTasks  = statement(`SELECT task, fence, until FROM queen.claim_tasks($1, $2, $3, $4, $5)`)
	renewTask   = statement(`SELECT queen.renew_task($1, $2, $3, $4)`)
	releaseTask = statement(`SELECT queen.release_task($1, $2, $3, $4, $5, $6)`)
)

// ClaimTasks claims those of the tasks that are due, enabled and held by nobody, for lease. A due task without anything
// to do is not claimed and is due again one period later: this one statement, without a flush, is all that an idle cell
// costs. idle is the age of partitions that TaskPartitions reclaims. It waits for nobody.
func (s *Store) ClaimTasks(ctx context.Context, holder string, lease time.Duration, tasks []Task, idle time.Duration) ([]TaskLease, error) {
	names, periods := make([]string, len(tasks)), make([]time.Duration, len(tasks))
	for i, t := range tasks {
		names[i], periods[i] = t.Name, t.Period
	}
	const op = "claim tasks"
	conn, err := s.acquire(ctx, op)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	rows, err := conn.Query(context.WithoutCancel(ctx), claimTasks, holder, lease, names, periods, idle)
	if err != nil {
		return nil, pg.Error(op, err)
	}
	held, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (TaskLease, error) {
		l := TaskLease{Holder: holder}
		return l, row.Scan(&l.Task, &l.Fence, &l.Until)
	})
	if err = pg.Confirmed(conn.Conn(), err); err != nil {
		return nil, pg.Error(op, err)
	}
	return held, nil
}

// RenewTask makes the claim last for lease from now. Errors: ErrFenced.
func (s *Store) RenewTask(ctx context.Context, l TaskLease, lease time.Duration) error {
	var held bool
	if err := s.commit(ctx, "renew task", renewTask, []any{l.Task, l.Holder, l.Fence, lease}, []any{&held}); err != nil {
		return err
	}
	if !held {
		return ErrFenced
	}
	return nil
}

// ReleaseTask ends the claim and records the run: how long it took, what it did, and with what error it ended, if any;
// after an error the task is due at once. A claim that is lost already is no error.
func (s *Store) ReleaseTask(ctx context.Context, l TaskLease, took time.Duration, stats map[string]int64, failure error) error {
	did, err := json.Marshal(stats)
	if err != nil {
		return err
	}
	var text *string
	if failure != nil {
		t := storable(failure.Error())
		text = &t
	}
	args := []any{l.Task, l.Holder, l.Fence, took.Milliseconds(), did, text}
	return s.commit(ctx, "release task", releaseTask, args, []any{new(bool)})
}

// fenced runs a statement of a task that answers NULL when the claim is lost.
func (s *Store) fenced(ctx context.Context, op, sql string, l TaskLease, args ...any) (int64, error) {
	var n *int64
	if err := s.commit(ctx, op, sql, append([]any{l.Task, l.Holder, l.Fence}, args...), []any{&n}); err != nil {
		return 0, err
	}
	if n == nil {
		return 0, ErrFenced
	}
	return *n, nil
}
