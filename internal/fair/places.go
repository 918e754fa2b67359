package fair

import (
	"sync"
	"time"
)

// Places bounds how much of something is under way at a time. When all places are taken, those who wait are let in by
// class, and within a class from the owners in turn, a place at a time. Use NewPlaces. Safe for concurrent use.
type Places[K comparable] struct {
	mu      sync.Mutex // guards all below
	free    int
	classes []waiting[K]
}

// waiting is those of a class who wait for a place.
type waiting[K comparable] struct {
	queue  *Queue[K, *visitor[K]]
	budget *Budget[K]
}

// visitor is somebody who waits for a place, or has given up and is passed over when its turn comes.
type visitor[K comparable] struct {
	owner K
	in    chan struct{} // closed when the place is the visitor's
	gone  bool
}

// PlacesStats is how Places stand. Who has given up counts as waiting until its turn comes.
type PlacesStats struct {
	Free            int
	Waiting, Owners int    // visitors, and whose they are
	Refused, Turns  uint64 // since the start; turns: how often the turn passed from one owner to another
}

// NewPlaces returns n places for visitors of so many classes; class 0 goes first, and a class waits while one before it
// does. In each class at most so many may wait, shared among the owners by Budget's rule. weigh is that of New.
func NewPlaces[K comparable](n, classes int, atMost int64, weigh func(K) Weight) *Places[K] {
	p := &Places[K]{free: n}
	for range classes {
		p.classes = append(p.classes, waiting[K]{New(1, func(*visitor[K]) int64 { return 1 }, weigh), NewBudget[K](atMost)})
	}
	return p
}

// Enter waits for a place, for at most patience or until quit is closed; nil never is. It reports false when there was
// none, at once when too many of the owner wait already. Whoever has entered must leave.
func (p *Places[K]) Enter(owner K, class int, patience time.Duration, quit <-chan struct{}) bool {
	p.mu.Lock()
	if p.free > 0 { // then nobody waits
		p.free--
		p.mu.Unlock()
		return true
	}
	c := &p.classes[class]
	if !c.budget.Hold(owner, 1) {
		p.mu.Unlock()
		return false
	}
	v := &visitor[K]{owner: owner, in: make(chan struct{})}
	c.queue.Push(owner, v)
	p.mu.Unlock()

	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-v.in:
		return true
	case <-timer.C:
	case <-quit:
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

// Leave hands the place on.
func (p *Places[K]) Leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.classes {
		if p.classes[i].admit() {
			return
		}
	}
	p.free++
}

// admit lets in the visitor whose turn it is. It reports false when nobody of the class waits.
func (c *waiting[K]) admit() bool {
	for {
		v, _, ok := c.queue.Next()
		if !ok {
			return false
		}
		cost := int64(1)
		if v.gone {
			cost = 0
		}
		c.queue.Take(cost)
		c.budget.Release(v.owner, 1)
		if !v.gone {
			close(v.in)
			return true
		}
	}
}

// Stats returns the sums over all classes.
func (p *Places[K]) Stats() PlacesStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PlacesStats{Free: p.free}
	for _, c := range p.classes {
		s.Waiting += int(c.budget.Used())
		s.Owners += c.budget.Owners()
		s.Refused += c.budget.Refused()
		s.Turns += c.queue.Turns()
	}
	return s
}
