package quota

import (
	"context"
	"crypto/sha1" // Redis names scripts by it
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// laneCount is how many connections decide. A cluster keeps to one, so that its calls reach Redis in order.
const laneCount = 2

// maxPipeline bounds the calls of one round trip, so that a burst does not keep Redis from the other gateways for long.
const maxPipeline = 128

// maxQueue bounds the calls that wait for a round trip; beyond it Redis counts as away, since it is too slow.
const maxQueue = 1 << 15

// errAway answers calls without asking while Redis is away.
var errAway = errors.New("redis is away")

// script is a Lua script and the name that Redis gives it.
type script struct{ text, sha string }

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(sum[:])}
}

// call is one script run. Its owner fills it, the lane answers it.
type call struct {
	script *script
	keys   []string
	args   []any

	// prepare, when there is one, fills the call at the last moment; false means that there is nothing to say by now.
	prepare func(*call) bool
	// then, when there is one, takes the answer of a call that nobody waits for.
	then func(*call)
	done chan struct{} // closed when answered; nil when nobody waits

	reply  []int64 // of scripts that answer with numbers
	answer packed  // of decide.lua
	err    error
}

// finish answers the call.
func (x *call) finish() {
	if x.then != nil {
		x.then(x)
	}
	if x.done != nil {
		close(x.done)
	}
}

// pipe runs calls on a Redis. Calls that come while a round trip of their lane is in flight share the next one, so a
// lone call leaves at once, in its caller's goroutine, and a crowd costs few round trips; decisions of one cluster then
// share a run of their script too (run.go).
//
// The first failure, of the network or of Redis itself, is the last one that anybody waits for: the pipe is then away
// and answers errAway at once, until back is called. Safe for concurrent use.
type pipe struct {
	client *redis.Client
	budget time.Duration // for one round trip
	lost   func(error)   // told once per absence
	away   atomic.Bool
	loaded atomic.Bool // Redis knows the scripts, unless it has forgotten them
	lanes  [laneCount]lane
	drains sync.WaitGroup

	observe func(calls int, d time.Duration, err error)
}

type lane struct {
	mu    sync.Mutex // guards all below
	queue []*call
	busy  bool // somebody drains the queue
}

// send queues a call and returns; the order of sends of one lane is the order of Redis.
func (p *pipe) send(lane byte, x *call) {
	l := &p.lanes[lane%laneCount]
	l.mu.Lock()
	full := len(l.queue) >= maxQueue
	if !full {
		l.queue = append(l.queue, x)
	}
	l.mu.Unlock()
	if full {
		p.fail(errors.New("too many calls wait"))
		x.err = errAway
		p.drains.Go(x.finish) // the caller may hold what finish wants
	}
}

// await runs the lane, if nobody does, until the call is answered. Whoever waits pays for one round trip: what has
// queued meanwhile is for others.
func (p *pipe) await(lane byte, x *call) {
	l := &p.lanes[lane%laneCount]
	if l.enter() {
		p.flight(l)
		p.leave(l)
	}
	<-x.done
}

// push sees to it that the queue goes out, without waiting.
func (p *pipe) push(lane byte) {
	l := &p.lanes[lane%laneCount]
	if l.enter() {
		p.drains.Go(func() { p.drain(l) })
	}
}

// enter makes the caller the one that drains the lane; false when somebody does, or when there is nothing.
func (l *lane) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy || len(l.queue) == 0 {
		return false
	}
	l.busy = true
	return true
}

// leave hands what has queued meanwhile to a goroutine, or the lane to the next caller.
func (p *pipe) leave(l *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		l.busy = false
		return
	}
	p.drains.Go(func() { p.drain(l) })
}

func (p *pipe) drain(l *lane) {
	for {
		p.flight(l)
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.busy = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
	}
}

// flight makes one round trip for the head of the queue.
func (p *pipe) flight(l *lane) {
	l.mu.Lock()
	n := min(len(l.queue), maxPipeline)
	batch := append([]*call(nil), l.queue[:n]...)
	l.queue = append(l.queue[:0], l.queue[n:]...)
	l.mu.Unlock()

	calls := batch[:0:n]
	for _, x := range batch {
		if x.prepare == nil || x.prepare(x) {
			calls = append(calls, x)
		} else {
			x.finish()
		}
	}
	if len(calls) == 0 {
		return
	}
	began := time.Now()
	err := p.exchange(calls)
	if p.observe != nil {
		p.observe(len(calls), time.Since(began), err)
	}
	if err != nil {
		p.fail(err)
	}
	for _, x := range calls {
		x.finish()
	}
}

// exchange answers the calls by one round trip, or two when Redis does not know a script. The error is the first that
// is not an answer; every call then has one.
func (p *pipe) exchange(calls []*call) error {
	if p.away.Load() {
		for _, x := range calls {
			x.err = errAway
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.budget)
	defer cancel()
	if !p.loaded.Load() {
		if err := p.load(ctx); err != nil {
			for _, x := range calls {
				x.err = err
			}
			return err
		}
	}
	unknown := p.round(ctx, calls, false)
	if len(unknown) > 0 {
		p.round(ctx, unknown, true)
	}
	for _, x := range calls {
		if x.err != nil {
			return x.err
		}
	}
	return nil
}

// load gives Redis the scripts, so that calls run in the order in which they are sent.
func (p *pipe) load(ctx context.Context) error {
	pipeline := p.client.Pipeline()
	for _, s := range scripts {
		pipeline.ScriptLoad(ctx, s.text)
	}
	if _, err := pipeline.Exec(ctx); err != nil {
		return fmt.Errorf("give redis the scripts: %w", err)
	}
	p.loaded.Store(true)
	return nil
}

// round sends the calls, with their scripts or only the names of those, and returns the calls whose scripts Redis does
// not know. They took no effect.
func (p *pipe) round(ctx context.Context, calls []*call, whole bool) (unknown []*call) {
	pipeline := p.client.Pipeline()
	runs := runsOf(calls)
	replies := make([]*redis.Cmd, len(runs))
	for i, r := range runs {
		x := r[0]
		if args := r.args(); whole {
			replies[i] = pipeline.Eval(ctx, x.script.text, x.keys, args...)
		} else {
			replies[i] = pipeline.EvalSha(ctx, x.script.sha, x.keys, args...)
		}
	}
	_, _ = pipeline.Exec(ctx) // every command has its own error
	for i, r := range runs {
		err := r.answer(replies[i])
		if err == nil {
			continue
		}
		if !whole && strings.HasPrefix(err.Error(), "NOSCRIPT") {
			unknown = append(unknown, r...)
		}
		err = fmt.Errorf("ask redis: %w", err)
		for _, x := range r {
			x.err = err
		}
	}
	return unknown
}

// fail begins an absence.
func (p *pipe) fail(err error) {
	p.loaded.Store(false)
	if !p.away.Swap(true) {
		p.lost(err)
	}
}

// try runs one call by itself, on any connection, within ctx; it is how an absence ends.
func (p *pipe) try(ctx context.Context, x *call) error {
	x.reply, x.err = p.client.Eval(ctx, x.script.text, x.keys, x.args...).Int64Slice()
	return x.err
}

// close waits for what is in flight and closes the connections.
func (p *pipe) close() error {
	p.drains.Wait()
	if err := p.client.Close(); err != nil {
		return fmt.Errorf("close redis: %w", err)
	}
	return nil
}
