package proxy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// clusterLoad is what a cluster occupies of this gateway right now. Safe for concurrent use.
type clusterLoad struct {
	id        uuid.UUID
	conns     atomic.Int64
	bodyBytes atomic.Int64
	lastUsed  atomic.Int64 // Unix seconds
}

// touch notes that the cluster is in use.
func (l *clusterLoad) touch(now time.Time) {
	if s := now.Unix(); l.lastUsed.Load() != s {
		l.lastUsed.Store(s)
	}
}

// loads finds the clusterLoad of a cluster. Safe for concurrent use.
type loads struct {
	// mu guards byID.
	mu   sync.RWMutex
	byID map[uuid.UUID]*clusterLoad
}

func newLoads() *loads { return &loads{byID: map[uuid.UUID]*clusterLoad{}} }

func (ls *loads) of(id uuid.UUID) *clusterLoad {
	ls.mu.RLock()
	l := ls.byID[id]
	ls.mu.RUnlock()
	if l != nil {
		return l
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l = ls.byID[id]; l == nil {
		l = &clusterLoad{id: id}
		ls.byID[id] = l
	}
	return l
}

// loadIdle is how long an unused clusterLoad is kept.
const loadIdle = 10 * time.Minute

// active returns the clusters used since then, and forgets long unused ones.
func (ls *loads) active(since, now time.Time) []uuid.UUID {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var used []uuid.UUID
	for id, l := range ls.byID {
		last := l.lastUsed.Load()
		if last >= since.Unix() {
			used = append(used, id)
		}
		if last < now.Add(-loadIdle).Unix() && l.conns.Load() == 0 && l.bodyBytes.Load() == 0 {
			delete(ls.byID, id)
		}
	}
	return used
}

// byteBudget bounds the bytes of all buffered bodies, with a share per cluster. Safe for concurrent use.
type byteBudget struct {
	total, share int64
	used         atomic.Int64
}

func newByteBudget(c *Config) *byteBudget {
	return &byteBudget{total: c.BodyBudgetBytes, share: max(c.BodyBudgetBytes/4, c.MaxBodyBytes)}
}

// take reserves n bytes for a cluster, or nothing.
func (b *byteBudget) take(l *clusterLoad, n int64) bool {
	if b.used.Add(n) > b.total {
		b.used.Add(-n)
		return false
	}
	if l.bodyBytes.Add(n) > b.share {
		b.give(l, n)
		return false
	}
	return true
}

// give returns what take reserved.
func (b *byteBudget) give(l *clusterLoad, n int64) {
	l.bodyBytes.Add(-n)
	b.used.Add(-n)
}
