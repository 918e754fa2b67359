package fuse

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/fair"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/wire"
)

// Pusher is the database side of a fuser; *store.Store is the real one. Its methods are called concurrently, and keep
// nothing of their arguments when they return.
type Pusher interface {
	// PushBundle never waits for a partition row: it answers PushBusy.
	PushBundle(ctx context.Context, segs []store.Segment) ([]store.PushVerdict, error)
	// PushBundleWait is PushBundle that waits for the rows, within the session's lock_timeout.
	PushBundleWait(ctx context.Context, segs []store.Segment) ([]store.PushVerdict, error)
	Sidecar(ctx context.Context, partition int64, window time.Duration, after int64, each func(store.SidecarRow)) (store.Watermark, error)
}

// Config bounds a fuser. Zero values take the defaults named.
type Config struct {
	MaxBundlePartitions int                                // 256
	MaxBundleBytes      int64                              // 8 MiB of payload
	MaxPendingBytes     int64                              // 256 MiB of payload waiting, shared by fair.Budget's rule: beyond it Push answers wire.BrokerOverloaded
	Weigh               func(tenant uuid.UUID) fair.Weight // of a tenant's turns; all weigh the same
	DedupCacheBytes     int64                              // 512 MiB; negative: no cache, every probe covers the whole window
}

func (c Config) withDefaults() Config {
	set := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	if c.MaxBundlePartitions <= 0 {
		c.MaxBundlePartitions = 256
	}
	set(&c.MaxBundleBytes, 8<<20)
	set(&c.MaxPendingBytes, 256<<20)
	set(&c.DedupCacheBytes, 512<<20)
	return c
}

// Landed tells that messages of a partition were committed: the one announcement of every landing path.
type Landed struct {
	Partition  int64
	QueueID    int64
	Tenant     uuid.UUID
	Queue      string
	LastOffset int64
	Count      int
}

// Result is the verdict on one frame.
type Result struct {
	Duplicate bool
	Offset    int64
	CreatedAt time.Time // of the stored message: the original's for a duplicate
	Err       error     // *wire.Error: nothing is known to be stored; Outcome says none or unknown
	Missing   bool      // the partition vanished, or takes encrypted payloads only by now, and nothing was written: provision again and repeat this frame
}

// Fuser is the group commit of pushes across requests and partitions. Safe for concurrent use.
type Fuser struct {
	log    *slog.Logger
	db     Pusher
	cfg    Config
	landed func([]Landed)

	wakeC   chan struct{} // one token: a flusher should look at the ready lanes
	drained chan struct{} // closed when draining and nothing is pending
	workers sync.WaitGroup
	waiters sync.Pool // of *waiter

	mu       sync.Mutex // guards everything below, and the lanes' fields as lane says
	phase    phase
	lanes    map[int64]*lane
	spare    []*lane                 // retired lanes for reuse
	ready    laneQueue               // lanes whose next segment may leave
	pending  int                     // accepted pushes without a full verdict
	budget   *fair.Budget[uuid.UUID] // of their bytes
	waiting  int                     // frames that no flush has taken yet
	inFlight int                     // flushes in flight, at most maxFlushes
	flights  [maxFlushes]time.Time   // since when
	armed    bool                    // a flusher is watching the flush in flight
	pace     pace
	cache    cache
	reading  side // sidecar reads
	solo     side // lanes that wait for their row in a call of their own
	stats    Stats
	readCtx  context.Context // ends when draining begins: a probe by the database is cheaper than a long read then
}

type phase uint8

const (
	idle phase = iota
	running
	draining
	stopped
)

// laneQueue is lanes that wait for something, from their tenants in turn.
type laneQueue = *fair.Queue[uuid.UUID, *lane]

// side bounds work that happens beside the flushes: at most limit lanes at a time, the others wait.
type side struct {
	limit, active int
	queue         laneQueue
}

func newSide(limit int, weigh func(uuid.UUID) fair.Weight) side {
	return side{limit: limit, queue: fair.New(1, func(*lane) int64 { return 1 }, weigh)}
}

// next takes the lane whose turn it is, nil when none waits.
func (s *side) next() *lane {
	l, _, ok := s.queue.Next()
	if ok {
		s.queue.Take(1)
	}
	return l
}

const (
	maxFlushes = 2
	// Reads and waiting calls hold a connection each; more of them would starve the flushes of a usual pool.
	maxReads = 4
	maxSolos = 4
	// frameCost is what a pending frame weighs beside its bytes.
	frameCost = 64
	// laneCost is what a partition in a bundle costs beside its bytes. The database takes some 13 us for each and 1.3 us
	// for a message of 256 bytes, which with its id and frameCost is 400 here.
	laneCost = 4 << 10
	// quantum is what a tenant of the usual weight may spend per turn: seven partitions with a little each. A full bundle of such partitions
	// has 36 turns.
	quantum  = 32 << 10
	maxSpare = 1024
)

// New returns a Fuser; Run must be running for Push to answer. landed is called after each commit and before the
// pushes of that commit are answered, from the flush goroutine; it must not block. The slice is its own to keep.
func New(log *slog.Logger, db Pusher, cfg Config, landed func([]Landed)) *Fuser {
	f := &Fuser{
		log: log, db: db, cfg: cfg.withDefaults(), landed: landed,
		wakeC:   make(chan struct{}, 1),
		drained: make(chan struct{}),
		lanes:   make(map[int64]*lane),
		ready:   fair.New(quantum, (*lane).least, cfg.Weigh),
		reading: newSide(maxReads, cfg.Weigh),
		solo:    newSide(maxSolos, cfg.Weigh),
		pace:    newPace(),
	}
	f.budget = fair.NewBudget[uuid.UUID](f.cfg.MaxPendingBytes)
	f.cache.init(f.cfg.DedupCacheBytes)
	return f
}

// Run flushes until ctx ends, then finishes what was accepted and returns; later pushes are answered wire.Draining.
// A fuser runs once.
func (f *Fuser) Run(ctx context.Context) error {
	readCtx, stopReads := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReads()
	f.mu.Lock()
	if f.phase != idle {
		f.mu.Unlock()
		return errors.New("a fuser runs once")
	}
	f.phase, f.readCtx = running, readCtx
	f.pumpReadsLocked()
	f.mu.Unlock()

	stopC := make(chan struct{})
	for i := range maxFlushes {
		f.workers.Go(func() { f.flushLoop(i, stopC) })
	}
	<-ctx.Done()
	f.mu.Lock()
	f.phase = draining
	for l := f.reading.next(); l != nil; l = f.reading.next() {
		f.settleLocked(l, time.Time{})
	}
	f.checkDrainedLocked()
	f.mu.Unlock()
	stopReads()
	<-f.drained
	close(stopC)
	f.workers.Wait()
	return nil
}

// checkDrainedLocked ends the drain once nothing is pending.
func (f *Fuser) checkDrainedLocked() {
	if f.phase == draining && f.pending == 0 {
		f.phase = stopped
		close(f.drained)
	}
}

// Push stores frames in one partition and blocks until their verdicts are known; results are in frame order and
// written to out (same length). frames, their payloads and out must stay untouched until it returns. There is no
// deadline: its bounds are the database's statement_timeout and lock_timeout.
func (f *Fuser) Push(p store.Partition, frames []segment.Frame, out []Result) {
	w, _ := f.waiters.Get().(*waiter)
	if w == nil {
		w = newWaiter()
	}
	f.Start(p, frames, out, w.done)
	<-w.c
	f.waiters.Put(w)
}

// waiter is a reusable one-shot signal.
type waiter struct {
	c    chan struct{}
	done func()
}

func newWaiter() *waiter {
	w := &waiter{c: make(chan struct{}, 1)}
	w.done = func() { w.c <- struct{}{} }
	return w
}

// Start is Push without waiting: done is called once, when out is complete. One request with many partitions starts
// them all and waits for all. done must not block; it runs on the flush goroutine, or before Start returns when the
// push is refused (wire.BrokerOverloaded, wire.Draining, wire.InvalidRequest, wire.PayloadTooLarge).
func (f *Fuser) Start(p store.Partition, frames []segment.Frame, out []Result, done func()) {
	f.StartUnsure(p, 0, frames, out, done)
}

// StartUnsure is Start for frames that may be stored already, whether or not the partition has a dedup window: those
// that the database finds among its messages of the last window are duplicates. They are offered before others of the
// partition, in a segment of their own.
func (f *Fuser) StartUnsure(p store.Partition, window time.Duration, frames []segment.Frame, out []Result, done func()) {
	f.StartFor(tracing.Span{}, p, window, frames, out, done)
}

// StartFor is StartUnsure for a request with a span: the round trips that its frames take part in are spans below it.
func (f *Fuser) StartFor(span tracing.Span, p store.Partition, window time.Duration, frames []segment.Frame, out []Result, done func()) {
	if len(frames) == 0 {
		done()
		return
	}
	q := newPush(frames, out[:len(frames)], done)
	q.span = span
	if window > 0 {
		q.window = max(window, p.DedupWindow)
	}
	if e := f.accept(&p, q); e != nil {
		q.refuse(e)
		q.free()
		done()
	}
}

func (f *Fuser) accept(p *store.Partition, q *push) *wire.Error {
	if e := q.weigh(); e != nil {
		return e
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.phase >= draining {
		return &wire.Error{Code: wire.Draining}
	}
	if f.lanes[p.ID].another(p) {
		return &wire.Error{Code: wire.DatabaseUnavailable, Detail: "the database was replaced by another one meanwhile", RetryAfter: time.Second}
	}
	if !f.budget.Hold(p.Tenant, q.bytes) {
		return &wire.Error{Code: wire.BrokerOverloaded, RetryAfter: time.Second}
	}
	q.tenant = p.Tenant
	f.pending++
	f.waiting += len(q.frames)
	l := f.lanes[p.ID]
	if l == nil {
		l = f.newLaneLocked(p.ID)
	}
	l.part = *p
	if q.window > 0 {
		l.unsure = append(l.unsure, q)
	} else {
		l.pending = append(l.pending, q)
	}
	if l.state == laneIdle {
		f.settleLocked(l, time.Time{})
	}
	return nil
}

// GiveBack refuses, with e, what no flush has taken yet. While the database does not answer, a flush in flight may take as
// long as a statement may to fail, and all would wait behind it that could be kept elsewhere meanwhile. What is in flight
// stays: nobody knows what becomes of it. The done functions are called before it returns.
func (f *Fuser) GiveBack(e *wire.Error) {
	var back []*push
	f.mu.Lock()
	for _, l := range f.lanes {
		back = f.giveBackLocked(l, back)
	}
	for _, q := range back {
		f.pending--
		f.budget.Release(q.tenant, q.bytes)
	}
	f.checkDrainedLocked()
	f.mu.Unlock()
	for _, q := range back {
		done := q.done
		q.refuse(e)
		q.free()
		done()
	}
}

// Forget drops what the cache knows of partitions: after a queue deletion.
func (f *Fuser) Forget(partitions []int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range partitions {
		f.cache.forget(id)
	}
}

// ForgetAll drops the whole cache. The broker calls it when the database begins another life, in which it may lack rows
// that the watermarks vouch for. Nothing depends on its being called in time: a watermark counts for nothing in another
// life than its own, also one that is already on its way.
func (f *Fuser) ForgetAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cache.clear()
}
