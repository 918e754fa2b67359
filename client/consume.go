package client

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// ConsumeOptions are the settings of a consumer; what it pops is in PopOptions, of which AutoAck must be off.
//
// Wait is 30 seconds if it is 0. Batch is how many messages a worker holds at a time.
type ConsumeOptions struct {
	PopOptions

	// Workers is how many loops pop and handle side by side; 0 means one. A partition is never in two hands of a group.
	Workers int

	// StopTimeout is how long handlers may go on after ctx ended, before their own context ends; 0 means 30 seconds.
	StopTimeout time.Duration

	// OnError, if set, is told what a consumer survives: failed handlers ([*HandlerError]), lost leases, broken
	// connections. It is called by several goroutines.
	OnError func(error)
}

// HandlerError is an error or panic of a handler, as [ConsumeOptions].OnError is told.
type HandlerError struct {
	Messages []Message // what the handler was given
	Panic    any       // nil for an error
	Stack    []byte    // of the panic
	cause    error
}

// Error quotes the error or the panic.
func (e *HandlerError) Error() string {
	if e.Panic != nil {
		return fmt.Sprintf("panic: %v", e.Panic)
	}
	return e.cause.Error()
}

// Unwrap returns the error of the handler, nil for a panic.
func (e *HandlerError) Unwrap() error { return e.cause }

// settled is an error of a handler that chooses its status.
type settled struct {
	status Status
	cause  error
}

func (e *settled) Error() string { return e.cause.Error() }
func (e *settled) Unwrap() error { return e.cause }

// AsReleased marks an error of a handler: its message is delivered again and no attempt is charged.
func AsReleased(err error) error { return &settled{Released, err} }

// AsRejected marks an error of a handler: its message becomes a dead letter at once.
func AsRejected(err error) error { return &settled{Rejected, err} }

// Handler handles one message. A nil error completes it; an error fails it, unless [AsReleased] or [AsRejected] says
// otherwise, and what else was popped of its partition is delivered again after it. A panic counts as an error. ctx ends
// when the lease is lost, with [ErrLeaseLost] as its cause, or when a stopping consumer waits no longer; a handler that
// returns the error of ctx then is not charged with a failure.
type Handler func(ctx context.Context, m *Message) error

// BatchHandler handles what one pop delivered: at least one message, of one partition or of several, in order inside each.
// Its error goes for all of them. See [Handler].
type BatchHandler func(ctx context.Context, messages []Message) error

// Consume pops messages of a queue and hands them to h one by one, in order inside each partition, until ctx ends. It
// renews the lease while h runs, at a third of its length, and settles what h has done about every second and at the end
// of a batch. A settlement that fails is told to OnError, and its messages are delivered again.
//
// When ctx ends, polls are given up (what is on its way in answer to one is delivered again when its lease ends),
// handlers that run are waited for, what they did is settled and what was not begun is given back; then Consume returns
// nil. It returns earlier, in the same orderly way, with the [*Error] of a request that no repeat will cure: 403, such as
// a suspended cluster, and every other 4xx but 429. It waits out 429, 5xx and broken connections for as long as they last.
func (c *Client) Consume(ctx context.Context, queue string, h Handler, o ConsumeOptions) error {
	return c.consume(ctx, queue, o, func(b *batch) { b.each(h) })
}

// ConsumeBatch is Consume with a handler for whole batches.
func (c *Client) ConsumeBatch(ctx context.Context, queue string, h BatchHandler, o ConsumeOptions) error {
	return c.consume(ctx, queue, o, func(b *batch) { b.whole(h) })
}

func (c *Client) consume(ctx context.Context, queue string, o ConsumeOptions, handle func(*batch)) error {
	if o.AutoAck {
		return errors.New("a consumer settles what it has handled: AutoAck must be off")
	}
	if o.Wait <= 0 {
		o.Wait = 30 * time.Second
	}
	if o.StopTimeout <= 0 {
		o.StopTimeout = 30 * time.Second
	}
	if o.OnError == nil {
		o.OnError = func(error) {}
	}
	// ctx stops the loops; work is what handlers and settlements run under, and ends StopTimeout later.
	ctx, stop := context.WithCancel(ctx)
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		sleep(work, o.StopTimeout)
		end()
	}()
	defer func() {
		stop()
		end()
		<-ended
	}()

	w := worker{c: c, queue: queue, o: &o, work: work, handle: handle}
	var wg sync.WaitGroup
	var once sync.Once
	var fatal error
	for range max(o.Workers, 1) {
		wg.Go(func() {
			if err := w.run(ctx); err != nil {
				once.Do(func() { fatal = err })
				stop()
			}
		})
	}
	wg.Wait()
	return fatal
}

// worker is what the loops of one consumer share.
type worker struct {
	c      *Client
	queue  string
	o      *ConsumeOptions
	work   context.Context
	handle func(*batch)
}

// Empty answers that come early, from a broker that is being drained or paused, must not make a busy loop.
const (
	earlyAnswer   = 200 * time.Millisecond
	minEmptyPause = 100 * time.Millisecond
	maxEmptyPause = 2 * time.Second
)

// run pops and handles until ctx ends, which is nil, or until a request fails for good.
func (w *worker) run(ctx context.Context) error {
	faults, pause := 0, minEmptyPause
	for ctx.Err() == nil {
		begin := time.Now()
		messages, lease, err := w.c.pop(ctx, w.queue, &w.o.PopOptions)
		var e *Error
		switch {
		case err == nil && len(messages) > 0:
			faults, pause = 0, minEmptyPause
			w.handle(&batch{worker: w, stop: ctx, messages: messages, lease: lease, skip: map[string]bool{}})
		case err == nil:
			if faults = 0; time.Since(begin) >= min(earlyAnswer, w.o.Wait/2) {
				pause = minEmptyPause
				continue
			}
			sleep(ctx, pause)
			pause = min(2*pause, maxEmptyPause)
		case ctx.Err() != nil:
			return nil
		case !errors.As(err, &e) || !e.Temporary() && e.Status >= 300:
			return err
		default:
			faults++
			w.o.OnError(err)
			sleep(ctx, max(w.c.retry.pause(faults), spread(e.RetryAfter)))
		}
	}
	return nil
}

// batch is what one pop delivered, on its way through the handler.
type batch struct {
	*worker
	stop     context.Context // ended: begin nothing more
	messages []Message
	lease    time.Duration
	settling []Settlement    // decided, not sent
	sent     time.Time       // when settlements were last sent
	skip     map[string]bool // partitions of which nothing more is handled: it is delivered again
	lost     bool            // the lease, and with it all partitions
}

// settleEvery is how long a handled message waits at most, between two handlers, for company on its way to the broker.
const settleEvery = time.Second

// each hands the messages to h one by one.
func (b *batch) each(h Handler) {
	ctx, stopRenewal := b.renew()
	defer stopRenewal() // a handler may end its goroutine
	b.sent = time.Now()
	for i := range b.messages {
		m := &b.messages[i]
		if b.skip[m.PartitionID] {
			continue
		}
		if b.stop.Err() != nil || ctx.Err() != nil {
			b.giveBack(i)
			break
		}
		if len(b.settling) > 0 && time.Since(b.sent) >= settleEvery {
			if b.flush(); b.skip[m.PartitionID] {
				continue
			}
		}
		status, reason := b.call(ctx, b.messages[i:i+1], func() error { return h(ctx, m) })
		b.skip[m.PartitionID] = status != Completed
		b.settling = append(b.settling, Settlement{m, status, reason})
	}
	b.lost = b.lost || errors.Is(context.Cause(ctx), ErrLeaseLost)
	stopRenewal()
	b.flush()
}

// giveBack releases the first message of every partition from the i-th on: the rest of the partition goes with it.
func (b *batch) giveBack(i int) {
	for ; i < len(b.messages); i++ {
		if m := &b.messages[i]; !b.skip[m.PartitionID] {
			b.skip[m.PartitionID] = true
			b.settling = append(b.settling, Settlement{m, Released, ""})
		}
	}
}

// whole hands all messages to h at once.
func (b *batch) whole(h BatchHandler) {
	ctx, stopRenewal := b.renew()
	defer stopRenewal() // a handler may end its goroutine
	if b.stop.Err() != nil {
		b.giveBack(0)
	} else {
		status, reason := b.call(ctx, b.messages, func() error { return h(ctx, b.messages) })
		for i := range b.messages {
			b.settling = append(b.settling, Settlement{&b.messages[i], status, reason})
		}
	}
	b.lost = errors.Is(context.Cause(ctx), ErrLeaseLost)
	stopRenewal()
	b.flush()
}

// call runs a handler and says what its outcome means for the messages.
func (b *batch) call(ctx context.Context, messages []Message, h func() error) (status Status, reason string) {
	failed := &HandlerError{Messages: messages}
	func() {
		defer func() {
			if p := recover(); p != nil {
				failed.Panic, failed.Stack = p, debug.Stack()
			}
		}()
		failed.cause = h()
	}()
	if failed.cause == nil && failed.Panic == nil {
		return Completed, ""
	}
	status = Failed
	var s *settled
	switch {
	case errors.As(failed.cause, &s):
		status = s.status
	case ctx.Err() != nil && errors.Is(failed.cause, ctx.Err()):
		status = Released // it gave up because we told it to
	}
	b.o.OnError(failed)
	return status, failed.Error()
}

// settleWait bounds the sending of settlements after the consumer was told to stop at once.
const settleWait = 5 * time.Second

// flush sends what is decided. A failure is told and forgotten: the lease ends, and the messages are delivered again.
func (b *batch) flush() {
	list := b.settling
	b.settling, b.sent = nil, time.Now()
	if len(list) == 0 || b.lost {
		return
	}
	ctx := b.work
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), settleWait)
		defer cancel()
	}
	results, err := b.c.Settle(ctx, list...)
	for i := range results {
		if r := &results[i]; !r.Success && leaseLost(r.Error) {
			b.skip[list[i].Message.PartitionID] = true // a seek, say, ended it there
		}
	}
	if err != nil {
		b.o.OnError(fmt.Errorf("settle %d messages of %s: %w", len(list), list[0].Message.Queue, err))
	}
}

// renew extends the lease until stop is called, which waits for the last extension. The context is that of handlers.
func (b *batch) renew() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(b.work)
	lease := b.lease
	if b.o.Lease > 0 {
		lease = time.Duration(seconds(b.o.Lease)) * time.Second
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ends := time.Now().Add(lease)
		tick := time.NewTicker(lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			// Beyond the end of the lease there is nothing to extend.
			within, over := context.WithDeadline(ctx, ends)
			asked := time.Now()
			_, err := b.c.Extend(within, b.messages[0].LeaseID, lease)
			over()
			if err == nil {
				ends = asked.Add(lease)
				continue
			}
			if ctx.Err() != nil {
				return
			}
			lost := errors.Is(err, ErrLeaseLost)
			if !lost && !time.Now().Before(ends) {
				lost, err = true, fmt.Errorf("%w: %w", ErrLeaseLost, err)
			}
			b.o.OnError(fmt.Errorf("renew the lease of %d messages of %s: %w", len(b.messages), b.messages[0].Queue, err))
			if lost {
				cancel(ErrLeaseLost)
				return
			}
		}
	}()
	return ctx, sync.OnceFunc(func() {
		close(quit)
		cancel(nil)
		<-done
	})
}
