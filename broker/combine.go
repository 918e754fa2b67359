package broker

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/fair"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/wire"
)

// combiner lets concurrent calls share one statement and one commit: calls that come while a bundle is in flight form
// the next one, so bundles grow with load and a lone call goes out at once, in its caller's goroutine. Use newCombiner.
//
// A bundle is filled from the tenants in turn, by their weights (package fair), and a tenant may have a share of the calls that wait: beyond
// it its calls are refused. One bundle is in flight; a second goes out only when the first is slow, since more of them
// would fragment the bundles (targets.md 2). Calls that share a key never travel in one bundle and keep their order.
type combiner[In, Out any, K comparable] struct {
	bundling[In, Out, K]

	mu      sync.Mutex // guards all below
	budget  *fair.Budget[uuid.UUID]
	ready   *fair.Queue[uuid.UUID, *call[In, Out]] // calls for the next bundle
	behind  int                                    // calls that wait for one of the same key to leave first
	last    map[K]*call[In, Out]                   // of the calls that wait, the latest with the key
	flights int
	started time.Time     // of the last flight
	usual   time.Duration // moving average of a flight
	timer   *time.Timer   // looks whether a second flight is due; nil when not armed
}

// bundling says what a combiner combines.
type bundling[In, Out any, K comparable] struct {
	name  string                    // of the round trip, in traces
	run   func([]In) ([]Out, error) // the outputs answer the inputs in order
	keys  func(In, func(K))
	cost  func(In) int64                   // at least 1: what the call takes of its tenant's turns of callQuantum
	items func(In) int                     // of a call, for traces
	max   int                              // calls per bundle
	note  func(items int, d time.Duration) // observes a flight
}

type call[In, Out any] struct {
	in   In
	out  Out
	err  error
	done *sync.WaitGroup
	span tracing.Span // of the request that makes the call

	tenant uuid.UUID
	waits  int              // for how many calls that share a key with it
	next   []*call[In, Out] // those that wait for this one, once per key
}

// maxFlights and slowFlight say when a second bundle goes out beside the first.
const (
	maxFlights = 2
	slowFlight = 2 * time.Millisecond
)

const (
	// callQuantum is what a tenant may spend per turn, in the unit of bundling.cost: a bundle has many turns.
	callQuantum = 8
	// maxPendingCalls bounds the calls without an answer, shared by fair.Budget's rule.
	maxPendingCalls = 1 << 17
)

func newCombiner[In, Out any, K comparable](b bundling[In, Out, K], weigh func(uuid.UUID) fair.Weight) *combiner[In, Out, K] {
	return &combiner[In, Out, K]{
		bundling: b,
		budget:   fair.NewBudget[uuid.UUID](maxPendingCalls),
		ready:    fair.New[uuid.UUID](callQuantum, func(p *call[In, Out]) int64 { return b.cost(p.in) }, weigh),
		last:     map[K]*call[In, Out]{},
	}
}

// do runs ins of one tenant, together where their keys allow it, and waits for all of them. When too many calls of the
// tenant are waiting, each of ins has the error wire.BrokerOverloaded and none was run.
func (c *combiner[In, Out, K]) do(tenant uuid.UUID, ins ...In) []call[In, Out] {
	return c.doFor(tracing.Span{}, tenant, ins...)
}

// doFor is do for a request with a span: the round trips of its calls are below it.
func (c *combiner[In, Out, K]) doFor(span tracing.Span, tenant uuid.UUID, ins ...In) []call[In, Out] {
	if len(ins) == 0 {
		return nil
	}
	calls := make([]call[In, Out], len(ins))
	var done sync.WaitGroup
	done.Add(len(ins))
	for i, in := range ins {
		calls[i] = call[In, Out]{in: in, done: &done, span: span, tenant: tenant}
	}
	c.mu.Lock()
	if !c.budget.Hold(tenant, int64(len(ins))) {
		c.mu.Unlock()
		for i := range calls {
			calls[i].err = &wire.Error{Code: wire.BrokerOverloaded, RetryAfter: time.Second, Outcome: wire.OutcomeNone}
		}
		return calls
	}
	var mine []*call[In, Out]
	if c.flights == 0 && len(calls) == 1 { // nothing waits while nothing flies
		c.departLocked()
		mine = []*call[In, Out]{&calls[0]}
	} else {
		for i := range calls {
			c.joinLocked(&calls[i])
		}
		if c.flights == 0 {
			mine = c.cutLocked()
		} else {
			c.reviewLocked()
		}
	}
	c.mu.Unlock()
	if mine != nil {
		c.fly(mine)
	}
	done.Wait()
	return calls
}

// backlog counts the calls without an answer.
func (c *combiner[In, Out, K]) backlog() backlog {
	c.mu.Lock()
	defer c.mu.Unlock()
	return backlog{int(c.budget.Used()), c.budget.Owners(), c.budget.Refused(), c.ready.Turns()}
}

// waiting returns the number of calls that wait for the next bundle.
func (c *combiner[In, Out, K]) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready.Len() + c.behind
}

// joinLocked lets a call wait for the next bundle, or for the calls that share a key with it to leave before.
func (c *combiner[In, Out, K]) joinLocked(p *call[In, Out]) {
	c.keys(p.in, func(k K) {
		if before := c.last[k]; before != nil && before != p {
			before.next = append(before.next, p)
			p.waits++
		}
		c.last[k] = p
	})
	if p.waits > 0 {
		c.behind++
		return
	}
	c.ready.Push(p.tenant, p)
}

// leftLocked lets those go on that waited for a call which has left, in the bundle after its own.
func (c *combiner[In, Out, K]) leftLocked(p *call[In, Out]) {
	c.keys(p.in, func(k K) {
		if c.last[k] == p {
			delete(c.last, k)
		}
	})
	for _, n := range p.next {
		if n.waits--; n.waits == 0 {
			c.behind--
			c.ready.Push(n.tenant, n)
		}
	}
	p.next = nil
}

// cutLocked takes the next bundle off the calls that wait and counts its flight.
func (c *combiner[In, Out, K]) cutLocked() []*call[In, Out] {
	c.departLocked()
	batch := make([]*call[In, Out], 0, min(c.ready.Len(), c.max))
	for len(batch) < c.max {
		p, _, ok := c.ready.Next()
		if !ok {
			break
		}
		c.ready.Take(c.cost(p.in))
		batch = append(batch, p)
	}
	for _, p := range batch {
		c.leftLocked(p)
	}
	return batch
}

func (c *combiner[In, Out, K]) departLocked() {
	c.flights++
	c.started = time.Now()
}

// reviewLocked sends a second bundle when the first has been out for long, or sees to it that somebody looks then.
func (c *combiner[In, Out, K]) reviewLocked() {
	if c.ready.Len() == 0 || c.flights >= maxFlights {
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
	for _, p := range batch {
		c.budget.Release(p.tenant, 1)
	}
	if c.ready.Len() > 0 && c.flights < maxFlights {
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
	var trip tracing.Trip
	began := time.Now()
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p}
		}
		if !trip.Empty() {
			trip.End(c.name, began, c.cargo(batch), codeOf(err))
		}
	}()
	ins := make([]In, len(batch))
	for i, p := range batch {
		ins[i] = p.in
		trip.Board(p.span)
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

// cargo counts what a bundle carries, for traces.
func (c *combiner[In, Out, K]) cargo(batch []*call[In, Out]) tracing.Cargo {
	all := tracing.Cargo{Requests: len(batch)}
	for _, p := range batch {
		all.Items += c.items(p.in)
	}
	return all
}
