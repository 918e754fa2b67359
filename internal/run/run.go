// Package run keeps the long-lived parts of a process in order: they start one after the other and stop in reverse,
// the first failure stops all of them, and the whole stop has one budget.
//
// It owns no signals and no timeouts but the budget: what a part does to drain is its own business, between the moment
// its context ends and the moment its Run returns.
package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"
)

// Runner is anything long-lived. Run blocks until ctx ends or it fails, and returns only after every goroutine it
// started has returned; nil means a clean stop. A constructor of a Runner does no I/O and starts nothing.
type Runner interface {
	Run(ctx context.Context) error
}

// Func is a Runner made of a function.
type Func func(ctx context.Context) error

// Run calls f.
func (f Func) Run(ctx context.Context) error { return f(ctx) }

// Readier is a Runner that needs a moment before the parts after it may start: they wait for Ready to be closed.
type Readier interface {
	Runner
	Ready() <-chan struct{}
}

// ErrEnded is the failure of a part that returned nil although nobody had asked it to stop: what is long-lived and
// ends by itself is broken, however politely it does so.
var ErrEnded = errors.New("ended by itself")

// Group is an ordered set of parts. It is built by one goroutine and run once.
type Group struct {
	log    *slog.Logger
	budget time.Duration
	parts  []*part
}

type part struct {
	name   string
	runner Runner
	stop   context.CancelFunc
	done   chan struct{} // closed when Run has returned
	err    error         // set before done is closed
}

// New returns an empty group whose parts have budget, together, to stop.
func New(log *slog.Logger, budget time.Duration) *Group { return &Group{log: log, budget: budget} }

// Add appends a part: it starts after those added before it and stops before them.
func (g *Group) Add(name string, r Runner) {
	g.parts = append(g.parts, &part{name: name, runner: r, done: make(chan struct{})})
}

// Run starts the parts in order and blocks until ctx ends or a part fails; then it stops those that run, last one
// first, each after its successor has returned. It returns the failures joined, nil after a clean stop. Parts that
// outlive the budget are all told to stop at once and named in the error; their goroutines are left behind, since the
// process is about to exit.
func (g *Group) Run(ctx context.Context) error {
	failed := make(chan *part, len(g.parts)) // never blocks: each part sends once
	started := 0
	var first *part
start:
	for _, p := range g.parts {
		g.start(ctx, p, failed)
		started++
		var ready <-chan struct{}
		if r, ok := p.runner.(Readier); ok {
			ready = r.Ready()
		} else {
			ready = closed
		}
		select {
		case <-ready:
		case first = <-failed:
			break start
		case <-ctx.Done():
			break start
		}
	}
	if first == nil {
		select {
		case first = <-failed:
		case <-ctx.Done():
		}
	}
	if first != nil {
		g.log.Error("part failed, stopping", "part", first.name, "err", first.failure(true))
	}
	return g.stop(g.parts[:started], first)
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// start runs p on a context that only stop ends: the caller's end must not reach all parts at the same moment.
func (g *Group) start(ctx context.Context, p *part, failed chan<- *part) {
	pctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = cancel
	go func() {
		defer close(p.done)
		defer func() {
			if v := recover(); v != nil {
				p.err = fmt.Errorf("panic: %v", v)
				g.log.Error("part panicked", "part", p.name, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			}
			failed <- p
		}()
		p.err = p.runner.Run(pctx)
	}()
}

// stop ends the parts in reverse order within the budget.
func (g *Group) stop(parts []*part, first *part) error {
	deadline := time.NewTimer(g.budget)
	defer deadline.Stop()
	late := false
	for i := len(parts) - 1; i >= 0 && !late; i-- {
		p := parts[i]
		begun := time.Now()
		p.stop()
		select {
		case <-p.done:
			g.log.Debug("part stopped", "part", p.name, "dur_ms", time.Since(begun).Milliseconds())
		case <-deadline.C:
			late = true
		}
	}
	var errs []error
	var stuck []string
	for _, p := range parts {
		p.stop()
		select {
		case <-p.done:
			if err := p.failure(p == first); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
			}
		default:
			stuck = append(stuck, p.name)
		}
	}
	if len(stuck) > 0 {
		errs = append(errs, fmt.Errorf("not stopped within %s: %s", g.budget, strings.Join(stuck, ", ")))
	}
	return errors.Join(errs...)
}

// failure is what the return of p means; p.done must be closed or p received from failed. A part that was asked to
// stop may answer with the end of its context.
func (p *part) failure(unasked bool) error {
	switch {
	case unasked && p.err == nil:
		return ErrEnded
	case !unasked && errors.Is(p.err, context.Canceled):
		return nil
	}
	return p.err
}
