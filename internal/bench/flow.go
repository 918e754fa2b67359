package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// flow is a load from end to end: producers push single messages while consumers pop and acknowledge them.
type flow struct {
	producers int
	lanes     int // partitions; a producer takes one by chance for each message, unless there is one per producer
	perSecond int // messages at an even rate, whatever the answers do; 0: as fast as pushes are answered
	query     string
	consumers int      // of each group
	groups    []string // none: queue mode
}

const (
	// warmUp is how long a flow runs before it counts: each new database session compiles its routines once, which is
	// the cost of a start and not of a message. It also lets the sessions' counters reach pg_stat_database evenly.
	warmUp = 2 * time.Second
	// settling bounds the wait for what was pushed and has not been delivered when the pushes end.
	settling = 20 * time.Second
)

// flowing is a flow under way.
type flowing struct {
	flow
	t     *target
	queue string
	from  time.Time // of the window that counts
	until time.Time

	sent  atomic.Int64 // pushed and answered
	acked atomic.Int64

	mu      sync.Mutex // guards flights
	flights []flight   // the messages that were sent inside the window
}

// run measures f on a queue: deliveries that are acknowledged a second, the time of each from push to pop, and commits.
// It fails when a message is not delivered to every group.
func (t *target) run(queue string, f flow) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		if len(f.groups) == 0 {
			f.groups = []string{""}
		}
		began := time.Now()
		r := &flowing{flow: f, t: t, queue: queue, from: began.Add(warmUp), until: began.Add(warmUp + d)}
		watch, stopWatch := context.WithCancel(ctx)
		defer stopWatch()
		var m *machine
		if f.perSecond > 0 {
			m = watchMachine(watch)
		}
		consuming, stopConsumers := context.WithCancel(ctx)
		defer stopConsumers()
		consumed := make(chan error, 1)
		go func() {
			consumed <- workers(f.consumers*len(f.groups), func(i int) error {
				return r.consume(consuming, f.groups[i%len(f.groups)])
			})
		}()
		measured := make(chan error, 1)
		var s sample
		go func() {
			var err error
			s, err = r.measure(ctx)
			measured <- err
		}()
		err := errors.Join(r.produce(ctx), <-measured)
		if err == nil {
			err = r.settled(ctx, consumed)
		}
		stopConsumers()
		if err = errors.Join(err, <-consumed); err != nil {
			return sample{}, err
		}
		stopWatch()
		s.p50, s.p99 = percentiles(undisturbed(r.flights, nil))
		if m != nil {
			calm := undisturbed(r.flights, m.slow())
			s.calm = float64(len(calm)) / float64(max(1, len(r.flights)))
			s.calm50, s.calm99 = percentiles(calm)
		}
		return s, nil
	}
}

// measure takes the counters at both ends of the window.
func (r *flowing) measure(ctx context.Context) (sample, error) {
	if err := sleepUntil(ctx, r.from); err != nil {
		return sample{}, err
	}
	commits, err := r.t.w.commits(ctx)
	if err != nil {
		return sample{}, err
	}
	acked := r.acked.Load()
	at := r.t.w.open()
	if err := sleepUntil(ctx, r.until); err != nil {
		return sample{}, err
	}
	n := r.acked.Load() - acked
	s := at.close(n)
	after, err := r.t.w.commits(ctx)
	s.commits = float64(after-commits) / float64(max(1, n))
	return s, err
}

func sleepUntil(ctx context.Context, t time.Time) error {
	select {
	case <-time.After(time.Until(t)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *flowing) produce(ctx context.Context) error {
	conns, hangUp, err := r.t.connect(r.producers)
	if err != nil {
		return err
	}
	defer hangUp()
	// The ticks of an even rate wait for a free connection, and the message counts from its tick.
	var ticks chan time.Time
	if r.perSecond > 0 {
		ticks = make(chan time.Time, r.perSecond)
		go r.tick(ctx, ticks)
	}
	return workers(r.producers, func(i int) error {
		m := r.t.pushRequest(r.queue, 1)
		for ctx.Err() == nil {
			at := time.Now()
			if ticks != nil {
				var more bool
				if at, more = <-ticks; !more {
					return nil
				}
			} else if at.After(r.until) {
				return nil
			}
			lane := i
			if r.lanes != r.producers {
				lane = rand.IntN(r.lanes)
			}
			m.lane(0, lane)
			if err := conns[i].expect(201, "push", m.next(at)); err != nil {
				return err
			}
			r.sent.Add(1)
		}
		return ctx.Err()
	})
}

func (r *flowing) tick(ctx context.Context, ticks chan<- time.Time) {
	defer close(ticks)
	step := time.Second / time.Duration(r.perSecond)
	for at := time.Now(); at.Before(r.until) && ctx.Err() == nil; at = at.Add(step) {
		if wait := time.Until(at); wait > 0 {
			time.Sleep(wait)
		}
		ticks <- at
	}
}

func (r *flowing) consume(ctx context.Context, group string) error {
	w, err := r.t.consumer(r.queue, r.query, group)
	if err != nil {
		return err
	}
	defer w.c.Close()
	var mine []flight
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.flights = append(r.flights, mine...)
	}()
	for ctx.Err() == nil {
		if err := w.pop(); err != nil {
			return err
		}
		now := time.Now()
		for i := range w.got.messages {
			sent := time.Unix(0, w.got.messages[i].sent)
			if sent.After(r.from) && sent.Before(r.until) {
				mine = append(mine, flight{sent, now.Sub(sent)})
			}
		}
		if err := w.ack(); err != nil {
			return err
		}
		r.acked.Add(int64(len(w.got.messages)))
	}
	return nil
}

// settled waits until every message has been delivered to every group.
func (r *flowing) settled(ctx context.Context, consumed chan error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(settling)
	want := r.sent.Load() * int64(len(r.groups))
	for r.acked.Load() < want {
		select {
		case <-tick.C:
		case err := <-consumed:
			consumed <- err // for the caller, who waits for it too
			return errors.New("the consumers ended early")
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("only %d of %d messages arrived", r.acked.Load(), want)
		}
	}
	return nil
}
