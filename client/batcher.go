package client

import (
	"context"
	"sync"
	"time"
)

// BatcherOptions are the settings of a [Batcher]. The zero value means the defaults.
type BatcherOptions struct {
	Items  int           // pushed in one call at most; 0 means 100
	Bytes  int           // of payload pushed in one call at most, but for a single larger item; 0 means 1 MiB
	Linger time.Duration // how long an item waits for company; 0 means 10 ms, negative: not at all
	Buffer int           // items taken but not answered at most, beyond which Add waits; 0 means 10 times Items
}

// Batcher gathers items into pushes. One push is in flight at a time, so that items keep the order in which they were
// added; while it is, the next batch gathers, whatever Linger says. A batch that is too large for the plan is halved.
//
// A batch that fails after the client's repeats fails its items, and the next batch is tried all the same: who needs order
// across failures must stop adding at the first. A Batcher is safe for concurrent use and must be closed.
type Batcher struct {
	c     *Client
	o     BatcherOptions
	slots chan struct{} // one per item taken and not answered
	wakeC chan struct{} // capacity 1: there is something to look at

	// ctx bounds the pushes; it ends only when Close gives up on them.
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the loop has ended

	mu      sync.Mutex // guards all below
	waiting []*Pending
	bytes   int       // of payload in waiting
	since   time.Time // when the first of waiting came
	closed  bool
	// Items are answered in the order in which they are added, so two counts tell how far a flush is.
	added, answered uint64
	flushes         []flush // by upTo
}

// flush is a call that waits until upTo items are answered.
type flush struct {
	upTo uint64
	done chan struct{}
}

// Pending is an item on its way.
type Pending struct {
	item   item
	done   chan struct{}
	result PushResult
	err    error
}

// Done is closed when the result is there.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Wait returns the result of the item, or the error of ctx, which leaves the item on its way. The error is nil if the item
// was stored, a [*PushError] if it was not, else that of the push.
func (p *Pending) Wait(ctx context.Context) (PushResult, error) {
	select {
	case <-p.done:
		return p.result, p.err
	case <-ctx.Done():
		return PushResult{}, context.Cause(ctx)
	}
}

// TransactionID is the id of the item, given or made.
func (p *Pending) TransactionID() string { return p.item.TransactionID }

// NewBatcher starts a batcher; [Batcher.Close] ends it.
func (c *Client) NewBatcher(o BatcherOptions) *Batcher {
	if o.Items <= 0 {
		o.Items = 100
	}
	if o.Bytes <= 0 {
		o.Bytes = 1 << 20
	}
	if o.Linger == 0 {
		o.Linger = 10 * time.Millisecond
	}
	if o.Buffer <= 0 {
		o.Buffer = 10 * o.Items
	}
	b := &Batcher{c: c, o: o, slots: make(chan struct{}, o.Buffer), wakeC: make(chan struct{}, 1), done: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	go b.run()
	return b
}

// Add takes an item and returns at once, unless Buffer items are on their way: then it waits for room. It fails with
// [ErrClosed], with the error of ctx, or because the payload cannot be marshalled; the item is then not taken. The result
// need not be waited for.
func (b *Batcher) Add(ctx context.Context, i Item) (*Pending, error) {
	encoded, err := i.encode()
	if err != nil {
		return nil, err
	}
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-b.done:
		return nil, ErrClosed
	}
	p := &Pending{item: encoded, done: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		<-b.slots
		return nil, ErrClosed
	}
	if len(b.waiting) == 0 {
		b.since = time.Now()
	}
	b.waiting = append(b.waiting, p)
	b.bytes += len(encoded.Payload)
	b.added++
	if n := len(b.waiting); n == 1 || n >= b.o.Items || b.bytes >= b.o.Bytes {
		b.wake()
	}
	return p, nil
}

func (b *Batcher) wake() {
	select {
	case b.wakeC <- struct{}{}:
	default: // it is awake
	}
}

// Flush pushes what was added before it without waiting for company, and returns when all that is answered, or with the
// error of ctx. Whether it was stored is told by each item's [Pending].
func (b *Batcher) Flush(ctx context.Context) error {
	b.mu.Lock()
	if b.answered == b.added {
		b.mu.Unlock()
		return nil
	}
	f := flush{b.added, make(chan struct{})}
	b.flushes = append(b.flushes, f)
	b.wake()
	b.mu.Unlock()
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close takes no more items, pushes what is there and returns when it is answered. When ctx ends before that, what is left
// fails with the error of ctx, which Close returns; items in flight may have been stored. A second Close waits likewise.
func (b *Batcher) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.wake()
	b.mu.Unlock()
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		b.cancel(context.Cause(ctx))
		<-b.done
		return context.Cause(ctx)
	}
}

func (b *Batcher) run() {
	defer close(b.done)
	defer b.cancel(nil)
	linger := time.NewTimer(0)
	defer linger.Stop()
	for {
		batch, wait, over := b.next()
		switch {
		case over:
			return
		case batch != nil:
			b.send(batch)
			b.sent(len(batch))
		case wait > 0:
			linger.Reset(wait)
			select {
			case <-linger.C:
			case <-b.wakeC:
			}
		default:
			<-b.wakeC
		}
	}
}

// next takes the next batch if it is time; else it says how long to wait at most, 0 for as long as nothing is added.
func (b *Batcher) next() (batch []*Pending, wait time.Duration, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		return nil, 0, b.closed
	}
	full := len(b.waiting) >= b.o.Items || b.bytes >= b.o.Bytes
	if left := b.o.Linger - time.Since(b.since); !full && len(b.flushes) == 0 && !b.closed && left > 0 {
		return nil, left, false
	}
	n, size := 0, 0
	for n < len(b.waiting) && n < b.o.Items {
		size += len(b.waiting[n].item.Payload)
		if n > 0 && size > b.o.Bytes {
			break
		}
		n++
	}
	batch = b.waiting[:n:n]
	b.waiting = append([]*Pending(nil), b.waiting[n:]...)
	for _, p := range batch {
		b.bytes -= len(p.item.Payload)
	}
	return batch, 0, false
}

// sent frees the room of n items and tells those who flush.
func (b *Batcher) sent(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answered += uint64(n)
	for len(b.flushes) > 0 && b.flushes[0].upTo <= b.answered {
		close(b.flushes[0].done)
		b.flushes = b.flushes[1:]
	}
	for range n {
		<-b.slots
	}
}

// send pushes a batch and answers its items.
func (b *Batcher) send(batch []*Pending) {
	items := make([]item, len(batch))
	for i, p := range batch {
		items[i] = p.item
	}
	var results []PushResult
	err := context.Cause(b.ctx)
	if err == nil {
		results, err = b.c.push(b.ctx, items)
	}
	if len(batch) > 1 && tooLarge(err) {
		half := len(batch) / 2
		b.send(batch[:half])
		b.send(batch[half:])
		return
	}
	for i, p := range batch {
		switch {
		case results == nil:
			p.result, p.err = PushResult{TransactionID: p.item.TransactionID, Queue: p.item.Queue, Offset: -1}, err
		case results[i].Stored():
			p.result = results[i]
		default:
			p.result, p.err = results[i], &PushError{results[i : i+1]}
		}
		close(p.done)
	}
}
