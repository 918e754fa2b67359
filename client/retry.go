package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Retry says how often and how patiently a call is repeated. The zero value means the defaults.
type Retry struct {
	// Attempts is how many requests a call may send in all while they fail with 5xx or without an answer; 0 means 4, 1
	// that nothing is repeated. With several URLs every attempt goes to another as long as one is not known to fail.
	Attempts int

	// Refusals is how many requests a call may send in all while they are answered 429; 0 means 10, negative: until its
	// context ends. Pops that wait have no such limit.
	Refusals int

	// MinPause and MaxPause bound the pause after a failure that says nothing of its own: it begins at MinPause (0 means
	// 250 ms) and doubles up to MaxPause (0 means 30 s), each time shortened by up to a half at random.
	MinPause, MaxPause time.Duration

	// MaxWait is the longest Retry-After that a call waits for; beyond it the error is returned at once. 0 means 2
	// minutes, negative means any. Pops that wait have no such limit.
	MaxWait time.Duration
}

func (r Retry) withDefaults() Retry {
	if r.Attempts <= 0 {
		r.Attempts = 4
	}
	if r.Refusals == 0 {
		r.Refusals = 10
	}
	if r.MinPause <= 0 {
		r.MinPause = 250 * time.Millisecond
	}
	if r.MaxPause <= 0 {
		r.MaxPause = 30 * time.Second
	}
	r.MaxPause = max(r.MaxPause, r.MinPause)
	if r.MaxWait == 0 {
		r.MaxWait = 2 * time.Minute
	}
	return r
}

// pause returns how long to wait after the n-th failure in a row, n from 1.
func (r Retry) pause(n int) time.Duration {
	d := r.MaxPause
	if n < 32 && r.MinPause<<(n-1) < d && r.MinPause<<(n-1) > 0 {
		d = r.MinPause << (n - 1)
	}
	return d - rand.N(d/2+1)
}

// spread lengthens a wait that was asked for by up to a fifth, so that a refused crowd does not come back at once. It is
// never shortened: who comes early is refused again.
func spread(d time.Duration) time.Duration { return d + rand.N(d/5+1) }

// sleep waits for d, and reports at once that it cannot when ctx ends before that.
func sleep(ctx context.Context, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// downTime is how long a URL that failed is asked only when no other is left.
const downTime = 5 * time.Second

// endpoints are the URLs of a client. It keeps to the first as long as that one answers, so that its connections stay
// warm; clients differ in which one they call the first.
type endpoints struct {
	urls []string // without a slash at the end

	mu   sync.Mutex  // guards down
	down []time.Time // until when a URL counts as failing
}

// pick returns the URL to ask next: the first that does not count as failing, else the one that failed longest ago.
func (e *endpoints) pick() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, best := time.Now(), 0
	for i, until := range e.down {
		if !now.Before(until) {
			return i
		}
		if until.Before(e.down[best]) {
			best = i
		}
	}
	return best
}

// failed marks a URL and reports whether another one is fit to be asked at once.
func (e *endpoints) failed(i int) (other bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	e.down[i] = now.Add(downTime)
	for _, until := range e.down {
		if !now.Before(until) {
			return true
		}
	}
	return false
}

func (e *endpoints) answered(i int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down[i] = time.Time{}
}
