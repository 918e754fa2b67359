package park

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// Watch waits for news of partitions without being given any: for readers that hold no lease. It belongs to one
// goroutine, which must Leave. What is marked after Watch was called ends the next Wait.
type Watch struct {
	reg  *Registry
	at   []watched
	news chan struct{} // capacity 1
}

// Interest is a partition of a queue; Partition 0 means any, for one that does not exist yet.
type Interest struct {
	Queue     string
	Partition int64
}

type watched struct {
	board     *board
	partition int64
}

// Watch begins to watch partitions of a tenant.
func (reg *Registry) Watch(tenant uuid.UUID, interests []Interest) *Watch {
	w := &Watch{reg: reg, news: make(chan struct{}, 1)}
	for _, in := range interests {
		for {
			b := reg.board(boardKey{tenant, in.Queue})
			b.mu.Lock()
			if b.dead {
				b.mu.Unlock()
				continue
			}
			at := watched{b, in.Partition}
			if !slices.Contains(w.at, at) {
				if b.watched == nil {
					b.watched = map[int64]map[*Watch]struct{}{}
				}
				if b.watched[in.Partition] == nil {
					b.watched[in.Partition] = map[*Watch]struct{}{}
				}
				b.watched[in.Partition][w] = struct{}{}
				w.at = append(w.at, at)
			}
			b.mu.Unlock()
			break
		}
	}
	return w
}

// Wait blocks until there is news, until a time, or until gone is closed (nil: never) or the registry drains.
func (w *Watch) Wait(until time.Time, gone <-chan struct{}) Wake {
	if w.reg.draining.Load() {
		return Drained
	}
	if w.reg.waiting.Add(1) > w.reg.maxWaiting {
		w.reg.waiting.Add(-1)
		return Full
	}
	defer w.reg.waiting.Add(-1)
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-w.news:
		if w.reg.draining.Load() {
			return Drained
		}
		return Ready
	case <-t.C:
		return Deadline
	case <-gone:
		return Gone
	}
}

// Leave ends the watch.
func (w *Watch) Leave() {
	for _, at := range w.at {
		at.board.mu.Lock()
		set := at.board.watched[at.partition]
		delete(set, w)
		if len(set) == 0 {
			delete(at.board.watched, at.partition)
		}
		at.board.mu.Unlock()
	}
	w.at = nil
}

// wakeWatchesLocked tells who watches the partition, or with 0 everybody on the board, that there is news.
func (b *board) wakeWatchesLocked(partition int64) {
	if len(b.watched) == 0 {
		return
	}
	wake := func(set map[*Watch]struct{}) {
		for w := range set {
			select {
			case w.news <- struct{}{}:
			default: // it has not looked at the last news yet
			}
		}
	}
	if partition == 0 {
		for _, set := range b.watched {
			wake(set)
		}
		return
	}
	wake(b.watched[partition])
	wake(b.watched[0])
}
