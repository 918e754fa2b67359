package quota

import (
	"context"
	"hash/maphash"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

const (
	shardCount = 256 // one for each value of a byte

	// idleAfter is how long a cluster must have been silent before its ledger is dropped or its names are forgotten.
	idleAfter  = 10 * time.Minute
	sweepEvery = time.Minute
)

// shard is a part of the clusters. Its map is never changed, only replaced: requests find their ledger without a lock,
// and a shard is small enough to be copied for a new cluster.
type shard struct {
	mu      sync.Mutex // held to replace ledgers
	ledgers atomic.Pointer[map[uuid.UUID]*ledger]
	tally   tally
}

// all returns the ledgers as they are now; the map must not be changed.
func (s *shard) all() map[uuid.UUID]*ledger {
	if m := s.ledgers.Load(); m != nil {
		return *m
	}
	return nil
}

// shard returns the shard of a cluster; the last byte of a UUID is random in every version in use.
func (g *Gate) shard(id uuid.UUID) *shard { return &g.shards[id[15]] }

// ledger returns the cluster's ledger, making a new one for a new cluster. given is a ledger that was found to be
// given up, or nil: whoever gave it up holds the lock until the map is without it.
func (s *shard) ledger(id uuid.UUID, seed maphash.Seed, given *ledger) *ledger {
	if l := s.all()[id]; l != nil && l != given {
		return l
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.all()
	if l := now[id]; l != nil {
		return l
	}
	l := &ledger{acc: newAccount(seed)}
	l.desk.countedIn = &s.tally
	next := make(map[uuid.UUID]*ledger, len(now)+1)
	maps.Copy(next, now)
	next[id] = l
	s.ledgers.Store(&next)
	return l
}

// drop removes the ledgers that gone names.
func (s *shard) drop(gone func(uuid.UUID, *ledger) bool) (dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(s.all())
	for id, l := range next {
		if gone(id, l) {
			delete(next, id)
			dropped++
		}
	}
	if dropped > 0 {
		s.ledgers.Store(&next)
	}
	return dropped
}

// Run sweeps, and saves what months have used, until ctx ends. In a fleet it also keeps up with the others. Its error says
// what the last saving met, or leaving the others.
func (g *Gate) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if g.fleet != nil {
		group.Go(func() error { return g.fleet.run(ctx) })
	}
	if g.months.store != nil {
		group.Go(func() error { return g.saveUntil(ctx) })
	}
	group.Go(func() error {
		g.sweepUntil(ctx)
		return nil
	})
	return group.Wait()
}

func (g *Gate) sweepUntil(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			g.Sweep(now)
		}
	}
}

// Sweep drops the ledgers of clusters that have been silent for ten minutes and whose new ledger would be the same:
// full buckets, no promise outstanding, nothing open, reserved or counted. Of the other silent ones it forgets the
// names, which a listing brings back. It returns how many were dropped.
func (g *Gate) Sweep(now time.Time) (dropped int) {
	t := g.at(now)
	for i := range g.shards {
		dropped += g.shards[i].drop(func(id uuid.UUID, l *ledger) bool { return l.sweep(now, t, id, &g.months) })
	}
	return dropped
}

// sweep reports whether the ledger was given up.
func (l *ledger) sweep(now time.Time, t int64, id uuid.UUID, ms *months) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acc.forgetKeys(t)
	if t-l.acc.touched < idleAfter.Nanoseconds() || l.listing != nil || !l.acc.idle(now, t) {
		return false
	}
	l.acc.names.forget()
	l.desk.scratch = nil
	l.gone = l.acc.blank(now, ms.store != nil)
	if m := &l.acc.month; l.gone && m.own+m.past.own > 0 && ms.store != nil {
		ms.forget(id)
	}
	return l.gone
}

// Forget drops the ledger of a cluster that was deleted. Open admissions may still be ended.
func (g *Gate) Forget(id uuid.UUID) {
	if g.fleet != nil {
		g.fleet.forget(id)
	}
	g.shard(id).drop(func(other uuid.UUID, l *ledger) bool {
		if other != id {
			return false
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.gone = true
		return true
	})
}

// Erase is Forget for the whole fleet: it also removes what Redis keeps of the cluster, whoever wrote it. Errors are of
// Redis, and it may be called again. What a gateway still writes of the cluster afterwards ends by itself, within a day.
func (g *Gate) Erase(ctx context.Context, id uuid.UUID) error {
	g.Forget(id)
	if g.fleet == nil {
		return nil
	}
	return g.fleet.erase(ctx, id)
}
