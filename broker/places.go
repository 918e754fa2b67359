package broker

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/fair"
)

// places bounds how much of something is under way at a time. When all places are taken, those who wait are let in from
// the tenants in turn.
type places struct {
	mu      sync.Mutex // guards all below
	free    int
	waiting *fair.Queue[uuid.UUID, *visitor]
	budget  *fair.Budget[uuid.UUID] // of those that wait
}

// visitor is somebody who waits for a place, or has given up and is passed over when its turn comes.
type visitor struct {
	tenant uuid.UUID
	in     chan struct{} // closed when the place is the visitor's
	gone   bool
}

// maxVisitors bounds those that wait, shared by fair.Budget's rule.
const maxVisitors = 1 << 14

func newPlaces(n int) *places {
	return &places{
		free:    n,
		waiting: fair.New[uuid.UUID](1, func(*visitor) int64 { return 1 }),
		budget:  fair.NewBudget[uuid.UUID](maxVisitors),
	}
}

// enter waits for a place, for at most patience. It reports false when there was none, at once when too many of the
// tenant wait already. Whoever has entered must leave.
func (p *places) enter(tenant uuid.UUID, patience time.Duration) bool {
	p.mu.Lock()
	if p.free > 0 { // then nobody waits
		p.free--
		p.mu.Unlock()
		return true
	}
	if !p.budget.Hold(tenant, 1) {
		p.mu.Unlock()
		return false
	}
	v := &visitor{tenant: tenant, in: make(chan struct{})}
	p.waiting.Push(tenant, v)
	p.mu.Unlock()

	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-v.in:
		return true
	case <-timer.C:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-v.in: // at the last moment
		return true
	default:
		v.gone = true
		return false
	}
}

// leave hands the place on.
func (p *places) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		v, _, ok := p.waiting.Next()
		if !ok {
			p.free++
			return
		}
		cost := int64(1)
		if v.gone {
			cost = 0
		}
		p.waiting.Take(cost)
		p.budget.Release(v.tenant, 1)
		if !v.gone {
			close(v.in)
			return
		}
	}
}

// backlog counts those who wait; who has given up counts until its turn comes.
func (p *places) backlog() backlog {
	p.mu.Lock()
	defer p.mu.Unlock()
	return backlog{int(p.budget.Used()), p.budget.Owners(), p.budget.Refused(), p.waiting.Turns()}
}
