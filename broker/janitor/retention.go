package janitor

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/queengate/queengate/broker/store"
)

const (
	// perStep is how many partitions one step takes: their rows are held until it commits, well under a millisecond each.
	perStep = 16
	// maxPage bounds a work list.
	maxPage = 5000
	// maxSkips is how often a busy partition is passed over before a step waits for it, as pushes do among themselves.
	maxSkips = 3

	reclaimStep = 100
	foldStep    = 5000
	foldAfter   = 24 * time.Hour
	writesStep  = 5000
	cursorsStep = 5000 // some 0.2 s, for which the tenant's row is held
)

func (c Config) page() int { return min(maxPage, 5*c.BatchSize*c.Parallelism) }

// retention removes the segments that a rule lets go: first those that go in any case, then those whose groups are done
// with them, of which it takes one look around per run at most.
func (r *run) retention(ctx context.Context) error {
	// What an earlier run left behind, if any.
	if err := r.sweep(ctx); err != nil {
		return err
	}
	if err := r.trimListed(ctx, r.db.RetentionFirm); err != nil {
		return err
	}
	for {
		more, err := r.more(ctx)
		if !more {
			return err
		}
		var ids []int64
		err = r.step(ctx, func(ctx context.Context) (err error) {
			ids, r.round, err = r.db.RetentionSoft(ctx, r.round, r.cfg.page())
			return err
		})
		if err != nil {
			return err
		}
		complete := r.round == store.SoftPosition{}
		t, err := r.trim(ctx, ids)
		// A partition that gave a whole batch has more.
		for err == nil && t.Segments >= int64(r.cfg.BatchSize) {
			if more, err = r.more(ctx); more {
				t, err = r.trim(ctx, t.Moved)
			} else {
				break
			}
		}
		if err == nil {
			err = r.sweep(ctx)
		}
		if err != nil || complete || len(t.Moved) == 0 {
			return err
		}
	}
}

// sidecar removes the hash rows that are past their age.
func (r *run) sidecar(ctx context.Context) error { return r.trimListed(ctx, r.db.SidecarDue) }

// trimListed trims what a work list names until the list is empty, or nothing on it moves.
func (r *run) trimListed(ctx context.Context, list func(context.Context, int) ([]int64, error)) error {
	for {
		var ids []int64
		err := r.step(ctx, func(ctx context.Context) (err error) {
			ids, err = list(ctx, r.cfg.page())
			return err
		})
		if err != nil || len(ids) == 0 {
			return err
		}
		t, err := r.trim(ctx, ids)
		if err == nil {
			err = r.sweep(ctx)
		}
		if err != nil || len(t.Moved) == 0 {
			return err
		}
		if more, err := r.more(ctx); !more {
			return err
		}
	}
}

// trim takes one step on each of the partitions, several steps side by side.
func (r *run) trim(ctx context.Context, ids []int64) (all store.Trimmed, err error) {
	slices.Sort(ids)
	var mu sync.Mutex // guards all
	steps, ctx := errgroup.WithContext(ctx)
	steps.SetLimit(r.cfg.Parallelism)
	take := func(ids []int64, wait bool) {
		steps.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			var t store.Trimmed
			err := r.step(ctx, func(ctx context.Context) (err error) {
				t, err = r.db.Trim(ctx, r.TaskLease, ids, r.cfg.BatchSize, wait)
				return err
			})
			if err != nil {
				return err
			}
			r.trimmed(&t)
			mu.Lock()
			defer mu.Unlock()
			all.Segments += t.Segments
			all.Moved = append(all.Moved, t.Moved...)
			all.Busy = append(all.Busy, t.Busy...)
			return nil
		})
	}
	tired := r.busy.tired(ids)
	ids = slices.DeleteFunc(ids, func(id int64) bool { return slices.Contains(tired, id) })
	for chunk := range slices.Chunk(ids, perStep) {
		take(chunk, false)
	}
	for _, id := range tired {
		take([]int64{id}, true)
	}
	err = steps.Wait()
	r.busy.note(all.Moved, all.Busy)
	return all, err
}

// trimmed counts a step.
func (r *run) trimmed(t *store.Trimmed) {
	r.count(func(s *Stats) {
		s.ByAge += uint64(t.ByAge)
		s.ByCompletion += uint64(t.ByCompletion)
		s.ByWait += uint64(t.ByWait)
		s.Segments += uint64(t.Segments)
		s.Txns += uint64(t.Txns)
		s.Bytes += uint64(t.RawBytes)
		s.Skipped += uint64(len(t.Busy))
	})
	r.note("messages", t.Messages())
	r.note("segments", t.Segments)
	r.note("sidecarRows", t.Txns)
	r.note("bytes", t.RawBytes)
	r.note("busy", int64(len(t.Busy)))
	if t.RawBytes != 0 {
		r.hooks.Freed()
	}
}

// sweep deletes the rows of what was trimmed.
func (r *run) sweep(ctx context.Context) error {
	sweeps, ctx := errgroup.WithContext(ctx)
	for range r.cfg.Parallelism {
		sweeps.Go(func() error {
			for {
				if err := ctx.Err(); err != nil {
					return err
				}
				var n int64
				err := r.step(ctx, func(ctx context.Context) (err error) {
					n, err = r.db.SweepTrimmed(ctx, r.TaskLease, r.cfg.BatchSize)
					return err
				})
				if err != nil || n == 0 || time.Since(r.begin) > budget {
					return err
				}
				r.count(func(s *Stats) { s.Rows += uint64(n) })
				r.note("rows", n)
			}
		})
	}
	return sweeps.Wait()
}

// partitions deletes those that nobody comes to, and what deleted ones left.
func (r *run) partitions(ctx context.Context) error {
	err := r.drain(ctx, "partitions", func(ctx context.Context) (int64, error) {
		n, err := r.db.ReclaimPartitions(ctx, r.TaskLease, r.cfg.idle(), reclaimStep)
		r.count(func(s *Stats) { s.Partitions += uint64(n) })
		return n, err
	})
	if err != nil {
		return err
	}
	return r.drain(ctx, "rows", r.db.SweepDropped)
}

// history folds and deletes records of what happened.
func (r *run) history(ctx context.Context) error {
	err := r.drain(ctx, "retentionHistory", func(ctx context.Context) (int64, error) {
		return r.db.FoldRetentionHistory(ctx, r.TaskLease, foldAfter, r.cfg.HistoryKeep, foldStep)
	})
	for _, purge := range r.hooks.Purges {
		if err != nil {
			return err
		}
		err = r.drain(ctx, "purged", func(ctx context.Context) (int64, error) { return purge(ctx) })
	}
	return err
}

// writes deletes the log of writes behind the feeds.
func (r *run) writes(ctx context.Context) error {
	return r.drain(ctx, "writes", func(ctx context.Context) (int64, error) {
		return r.db.PurgeWrites(ctx, r.TaskLease, writesStep)
	})
}

// cursors makes those that registrations on large queues owe.
func (r *run) cursors(ctx context.Context) error {
	return r.drain(ctx, "partitions", func(ctx context.Context) (int64, error) {
		return r.db.SeedRegistered(ctx, r.TaskLease, cursorsStep)
	})
}

// busy counts how often partitions were passed over because others held them.
type busy struct {
	mu    sync.Mutex // guards skips: two tasks may trim at once
	skips map[int64]int
}

// maxBusy bounds what is remembered: a partition that is forgotten is passed over a few times more.
const maxBusy = 10_000

// tired returns those of the ids that were passed over often enough to be waited for.
func (b *busy) tired(ids []int64) (tired []int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range ids {
		if b.skips[id] >= maxSkips {
			tired = append(tired, id)
		}
	}
	return tired
}

func (b *busy) note(moved, held []int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range moved {
		delete(b.skips, id)
	}
	if len(b.skips)+len(held) > maxBusy || b.skips == nil {
		b.skips = map[int64]int{}
	}
	for _, id := range held {
		b.skips[id]++
	}
}
