package broker

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/queengate/queengate/wire"
)

// combiner lets concurrent calls share one statement and one commit: calls that come while a bundle is in flight form
// the next one, so bundles grow with load and a lone call goes out at once, in its caller's goroutine.
//
// One bundle is in flight; a second goes out only when the first is slow, since more of them would fragment the
// bundles (targets.md 2). Calls that share a key never travel in one bundle and keep their order.
type combiner[In, Out any, K comparable] struct {
	run  func([]In) ([]Out, error) // the outputs answer the inputs in order
	keys func(In, func(K))
	max  int                              // calls per bundle
	note func(items int, d time.Duration) // observes a flight

	mu      sync.Mutex // guards all below
	pending []*call[In, Out]
	flights int
	started time.Time     // of the last flight
	usual   time.Duration // moving average of a flight
	timer   *time.Timer   // looks whether a second flight is due; nil when not armed
}

type call[In, Out any] struct {
	in   In
	out  Out
	err  error
	done *sync.WaitGroup
}

// maxFlights and slowFlight say when a second bundle goes out beside the first.
const (
	maxFlights = 2
	slowFlight = 2 * time.Millisecond
)

// do runs ins, together where their keys allow it, and waits for all of them.
func (c *combiner[In, Out, K]) do(ins ...In) []call[In, Out] {
	calls := make([]call[In, Out], len(ins))
	var done sync.WaitGroup
	done.Add(len(ins))
	c.mu.Lock()
	for i, in := range ins {
		calls[i] = call[In, Out]{in: in, done: &done}
		c.pending = append(c.pending, &calls[i])
	}
	var mine []*call[In, Out]
	if c.flights == 0 {
		mine = c.cutLocked()
	} else {
		c.reviewLocked()
	}
	c.mu.Unlock()
	if mine != nil {
		c.fly(mine)
	}
	done.Wait()
	return calls
}

// waiting returns the number of calls that wait for the next bundle.
func (c *combiner[In, Out, K]) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending)
}

// cutLocked takes the next bundle off the pending calls and counts its flight.
func (c *combiner[In, Out, K]) cutLocked() []*call[In, Out] {
	c.flights++
	c.started = time.Now()
	if len(c.pending) == 1 {
		batch := c.pending
		c.pending = nil
		return batch
	}
	batch := make([]*call[In, Out], 0, min(len(c.pending), c.max))
	var rest []*call[In, Out]
	held := make(map[K]struct{}, len(c.pending))
	for _, p := range c.pending {
		clash := len(batch) == c.max
		c.keys(p.in, func(k K) {
			if _, ok := held[k]; ok {
				clash = true
			}
		})
		// The keys of a call that stays behind are held too: what follows it must not overtake it.
		c.keys(p.in, func(k K) { held[k] = struct{}{} })
		if clash {
			rest = append(rest, p)
		} else {
			batch = append(batch, p)
		}
	}
	c.pending = rest
	return batch
}

// reviewLocked sends a second bundle when the first has been out for long, or sees to it that somebody looks then.
func (c *combiner[In, Out, K]) reviewLocked() {
	if len(c.pending) == 0 || c.flights >= maxFlights {
		return
	}
	wait := time.Until(c.started.Add(max(slowFlight, 2*c.usual)))
	if wait <= 0 {
		go c.fly(c.cutLocked())
		return
	}
	if c.timer == nil {
		c.timer = time.AfterFunc(wait, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.timer = nil
			c.reviewLocked()
		})
	}
}

func (c *combiner[In, Out, K]) fly(batch []*call[In, Out]) {
	begin := time.Now()
	c.flyParts(batch)
	took := time.Since(begin)
	c.mu.Lock()
	c.flights--
	c.usual += (took - c.usual) / 8
	if len(c.pending) > 0 && c.flights < maxFlights {
		go c.fly(c.cutLocked())
	}
	c.mu.Unlock()
	c.note(len(batch), took)
	for _, p := range batch {
		p.done.Done()
	}
}

// flyParts runs a bundle; when an error is the fault of one of its calls, halves are run again until only that call
// has it.
func (c *combiner[In, Out, K]) flyParts(batch []*call[In, Out]) {
	err := c.try(batch)
	if err == nil {
		return
	}
	if len(batch) == 1 || !splittable(err) {
		for _, p := range batch {
			p.err = err
		}
		return
	}
	half := len(batch) / 2
	c.flyParts(batch[:half])
	c.flyParts(batch[half:])
}

func (c *combiner[In, Out, K]) try(batch []*call[In, Out]) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p}
		}
	}()
	ins := make([]In, len(batch))
	for i, p := range batch {
		ins[i] = p.in
	}
	outs, err := c.run(ins)
	if err != nil {
		return err
	}
	if len(outs) != len(ins) {
		return fmt.Errorf("bundle of %d calls has %d answers", len(ins), len(outs))
	}
	for i, p := range batch {
		p.out = outs[i]
	}
	return nil
}

// panicError carries a panic of a bundle to all who travelled in it; the barrier of each request then sees an error.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic in a bundle: %v", e.value) }

// splittable reports that nothing of the bundle was committed and that the database is there: some call is at fault.
func splittable(err error) bool {
	var e *wire.Error
	return errors.As(err, &e) && e.Code != wire.DatabaseUnavailable && e.Outcome != wire.OutcomeUnknown
}
