// Package janitor does the background upkeep of a cell: retention, the purge of the hash sidecar, partitions that nobody
// comes to any more, old history, the log of writes behind the change feed, and cursors that groups are still to get on
// large queues. What may be deleted, and why nobody waits
// meanwhile, stands in docs/design/retention.md.
//
// Every broker runs a janitor. A task is done by one of them at a time, under a claim in the database with a time and a
// fence (store.TaskLease): whatever a task writes checks the claim in its own transaction, so a janitor that was
// overtaken writes nothing more. A turn without anything due is one statement that flushes nothing.
//
// Steps are small and each commits by itself: a crash at any point leaves nothing that the next turn does not finish.
package janitor

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
)

// Store is the database side; *store.Store is the real one. Its methods stand there.
type Store interface {
	ClaimTasks(ctx context.Context, holder string, lease time.Duration, tasks []store.Task, idle time.Duration) ([]store.TaskLease, error)
	RenewTask(ctx context.Context, l store.TaskLease, lease time.Duration) error
	ReleaseTask(ctx context.Context, l store.TaskLease, took time.Duration, stats map[string]int64, failure error) error
	RetentionFirm(ctx context.Context, limit int) ([]int64, error)
	RetentionSoft(ctx context.Context, after store.SoftPosition, limit int) ([]int64, store.SoftPosition, error)
	SidecarDue(ctx context.Context, limit int) ([]int64, error)
	Trim(ctx context.Context, l store.TaskLease, partitions []int64, batch int, wait bool) (store.Trimmed, error)
	SweepTrimmed(ctx context.Context, l store.TaskLease, limit int) (rows int64, err error)
	ReclaimPartitions(ctx context.Context, l store.TaskLease, idle time.Duration, limit int) (deleted int64, err error)
	SweepDropped(ctx context.Context) (removed int64, err error)
	FoldRetentionHistory(ctx context.Context, l store.TaskLease, fold, keep time.Duration, limit int) (rows int64, err error)
	SeedRegistered(ctx context.Context, l store.TaskLease, limit int) (partitions int64, err error)
	PurgeWrites(ctx context.Context, l store.TaskLease, limit int) (rows int64, err error)
}

// Hooks are what a broker adds; each may be absent.
type Hooks struct {
	// Freed is called when retained bytes were given back.
	Freed func()
	// Purges delete a bounded number of rows that are too old and return how many; they are called about once an hour, by
	// one janitor of the cell, until they return 0.
	Purges []func(ctx context.Context) (rows int64, err error)
}

const (
	// lease is how long a task of a broker that died stays undone.
	lease = 30 * time.Second
	// budget ends a run that has more to do than that; the rest is due one period later. It leaves other tasks their turn.
	budget = 10 * time.Second
	// sessionWait bounds how long a step waits for a free session.
	sessionWait = 5 * time.Second
	// farewell bounds what is still written when the process ends.
	farewell = time.Second
)

// Janitor does upkeep. New does no I/O; Run does all.
type Janitor struct {
	log    *slog.Logger
	db     Store
	cfg    Config
	hooks  Hooks
	holder string

	busy  busy
	round store.SoftPosition // of the task retention, which has one run at a time

	mu      sync.Mutex // guards below
	stats   Stats
	failing map[string]bool // tasks whose last run failed
}

// New returns a janitor. cfg must have passed Validate.
func New(log *slog.Logger, db Store, cfg Config, hooks Hooks) *Janitor {
	if hooks.Freed == nil {
		hooks.Freed = func() {}
	}
	return &Janitor{
		log: log, db: db, cfg: cfg.withDefaults(), hooks: hooks, holder: uuid.NewString(),
		stats: Stats{Runs: map[string]uint64{}}, failing: map[string]bool{},
	}
}

// Run takes a turn every interval until ctx ends. A run under way then ends after its current step.
func (j *Janitor) Run(ctx context.Context) error {
	tick := time.NewTicker(j.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := j.Turn(ctx); err != nil && ctx.Err() == nil {
				j.count(func(s *Stats) { s.Errors++ })
				j.log.Debug("upkeep could not ask for its tasks", "err", err)
			}
		}
	}
}

// Turn claims the tasks that are due and free, and runs them to their end, one after the other: two of them want the same
// rows. The error is that of the claim; how a run ended stands in the log, in Stats and in the row of its task.
func (j *Janitor) Turn(ctx context.Context) error {
	claimed := time.Now()
	held, err := j.claim(ctx)
	for _, l := range held {
		j.run(ctx, l, claimed)
	}
	return err
}

func (j *Janitor) claim(ctx context.Context) ([]store.TaskLease, error) {
	ctx, cancel := context.WithTimeout(ctx, sessionWait)
	defer cancel()
	return j.db.ClaimTasks(ctx, j.holder, lease, j.cfg.tasks(), j.cfg.idle())
}

// run does one task under its claim and gives it back.
func (j *Janitor) run(ctx context.Context, l store.TaskLease, claimed time.Time) {
	r := &run{Janitor: j, TaskLease: l, begin: time.Now(), renewed: claimed, did: map[string]int64{}}
	more, err := r.more(ctx) // earlier runs of the turn may have taken long
	switch {
	case !more:
	case l.Task == store.TaskRetention:
		err = r.retention(ctx)
	case l.Task == store.TaskSidecar:
		err = r.sidecar(ctx)
	case l.Task == store.TaskPartitions:
		err = r.partitions(ctx)
	case l.Task == store.TaskHistory:
		err = r.history(ctx)
	case l.Task == store.TaskWrites:
		err = r.writes(ctx)
	case l.Task == store.TaskCursors:
		err = r.cursors(ctx)
	}
	took := time.Since(r.begin)
	lost := errors.Is(err, store.ErrFenced)
	if !lost {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
		defer cancel()
		if e := j.db.ReleaseTask(end, l, took, r.did, err); e != nil && err == nil {
			err = e // the claim ends by itself
		}
	}
	j.conclude(ctx, l.Task, took, err, lost)
}

// conclude counts a run and tells the log when a task begins to fail, once.
func (j *Janitor) conclude(ctx context.Context, task string, took time.Duration, err error, lost bool) {
	failed := err != nil && !lost && ctx.Err() == nil
	j.mu.Lock()
	news := failed && !j.failing[task]
	j.failing[task] = failed
	j.stats.Runs[task]++
	j.stats.Busy += took
	if failed {
		j.stats.Errors++
	}
	if lost {
		j.stats.Fenced++
	}
	j.mu.Unlock()
	switch {
	case news:
		j.log.Warn("upkeep fails", "task", task, "err", err)
	case lost:
		j.log.Info("another broker has taken over upkeep", "task", task)
	}
}

func (j *Janitor) count(f func(*Stats)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f(&j.stats)
}

// run is one run of a task.
type run struct {
	*Janitor
	store.TaskLease
	begin   time.Time
	renewed time.Time

	mu  sync.Mutex // guards did: steps of a run go side by side
	did map[string]int64
}

// more says whether the run may take another round, and keeps its claim alive.
func (r *run) more(ctx context.Context) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if time.Since(r.begin) > budget {
		return false, nil
	}
	if time.Since(r.renewed) < lease/3 {
		return true, nil
	}
	r.renewed = time.Now()
	err := r.step(ctx, func(ctx context.Context) error { return r.db.RenewTask(ctx, r.TaskLease, lease) })
	return err == nil, err
}

// step runs one statement.
func (r *run) step(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, sessionWait)
	defer cancel()
	return f(ctx)
}

// note adds to what the run did.
func (r *run) note(what string, n int64) {
	if n != 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.did[what] += n
	}
}

// drain repeats a bounded deletion until nothing is left or the run is over.
func (r *run) drain(ctx context.Context, what string, f func(context.Context) (int64, error)) error {
	for {
		var n int64
		err := r.step(ctx, func(ctx context.Context) (err error) {
			n, err = f(ctx)
			return err
		})
		r.note(what, n)
		if err != nil || n == 0 {
			return err
		}
		if more, err := r.more(ctx); !more {
			return err
		}
	}
}
