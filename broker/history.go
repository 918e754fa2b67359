package broker

import (
	"context"
	"hash/maphash"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/wire"
)

// history gathers what queues do, per minute, and writes it once a minute in one statement.
//
// Only queues that did something have a row: a poll that waited in vain is not something, since the number of waiting
// polls shows it, and that number is written only when it has changed. So ten thousand idle queues write nothing.
// A minute is kept until it is written, and written again as it is when the outcome was unknown: its numbers are exact.
// What a killed broker had not written yet, a minute at most, is lost. The janitor deletes what is too old.
type history struct {
	broker store.Broker // its port is guarded by mu

	seed   maphash.Seed
	shards [historyShards]historyShard
	lost   atomic.Int64 // rows given up because too many were waiting

	mu      sync.Mutex // guards all below; held during a write
	since   time.Time
	last    time.Time // bucket of the last minute taken
	waiting []*store.Minute
	rows    int // of waiting
	parked  map[queueKey]int
	process sampler
}

type historyShard struct {
	mu     sync.Mutex // guards queues
	queues map[queueKey]*store.Activity
	_      [40]byte // shards do not share cache lines
}

const (
	historyShards = 32
	historyEvery  = time.Minute
	// maxHistoryRows bounds the queues of one minute and the rows that wait for the database, about 250 bytes each.
	// Beyond it new queues are not gathered and the oldest minutes are given up; lost counts both.
	maxHistoryRows = 100_000
	// historyStop bounds the last write of a broker that stops.
	historyStop = 2 * time.Second
)

func newHistory(hostname string) *history {
	h := &history{
		broker: store.Broker{ID: httpkit.NewUUID(), Hostname: hostname, Started: time.Now()},
		seed:   maphash.MakeSeed(), since: time.Now(), parked: map[queueKey]int{},
	}
	for i := range h.shards {
		h.shards[i].queues = map[queueKey]*store.Activity{}
	}
	return h
}

// add counts what happened on a queue.
func (h *history) add(tenant uuid.UUID, queue string, a store.Activity) {
	k := queueKey{tenant, queue}
	s := &h.shards[maphash.Comparable(h.seed, k)%historyShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.queues[k]
	if sum == nil {
		if len(s.queues) >= maxHistoryRows/historyShards {
			h.lost.Add(1)
			return
		}
		sum = new(store.Activity)
		s.queues[k] = sum
	}
	sum.Add(&a)
}

// pushed counts what a request stored on a queue. One that names several queues or partitions counts for each.
func (h *history) pushed(tenant uuid.UUID, queue string, stored int) {
	h.add(tenant, queue, store.Activity{PushRequests: 1, PushMessages: int64(stored)})
}

// transacted counts a transaction, on one of its queues.
func (h *history) transacted(tenant uuid.UUID, queue string) {
	if queue != "" {
		h.add(tenant, queue, store.Activity{Transactions: 1})
	}
}

// popped counts a delivery; now is the time on the database's clock.
func (h *history) popped(tenant uuid.UUID, a *wire.PopAnswer, now time.Time) {
	// A pop by namespace or task delivers of several queues, one after the other.
	for rest := a.Messages; len(rest) > 0; {
		d := store.Activity{PopRequests: 1}
		queue := rest[0].Queue
		for len(rest) > 0 && rest[0].Queue == queue {
			lag := max(0, now.Sub(rest[0].CreatedAt).Milliseconds())
			d.PopMessages++
			d.LagMs += lag
			d.LagMaxMs = max(d.LagMaxMs, lag)
			rest = rest[1:]
		}
		h.add(tenant, queue, d)
	}
}

// acked counts what was decided on a group of acknowledgements.
func (h *history) acked(g *store.AckGroup, v *store.AckVerdict) {
	if v.Queue == "" {
		return
	}
	a := store.Activity{AckRequests: 1}
	for i := range v.Items {
		switch {
		case v.Items[i].DLQ:
			a.DeadLetters++
			a.AckFailed++
		case v.Items[i].Success && g.Items[i].Status == wire.AckCompleted:
			a.AckSuccess++
		default:
			a.AckFailed++
		}
	}
	h.add(g.Tenant, v.Queue, a)
}

// runHistory writes a minute after each minute, until ctx ends, and then what is left.
func (b *Broker) runHistory(ctx context.Context, addr net.Addr) error {
	h := b.history
	if tcp, ok := addr.(*net.TCPAddr); ok {
		h.mu.Lock()
		h.broker.Port = tcp.Port
		h.mu.Unlock()
	}
	for {
		next := time.NewTimer(time.Until(time.Now().Truncate(historyEvery).Add(historyEvery)))
		select {
		case <-ctx.Done():
			next.Stop()
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), historyStop)
			defer cancel()
			b.flushHistory(last, time.Now())
			return nil
		case now := <-next.C:
			b.flushHistory(ctx, now)
		}
	}
}

// flushHistory takes the minute that ends now and writes all that waits, oldest first.
func (b *Broker) flushHistory(ctx context.Context, now time.Time) {
	h := b.history
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := b.takeMinuteLocked(now); m != nil {
		h.waiting = append(h.waiting, m)
		h.rows += 1 + len(m.Queues)
	}
	for h.rows > maxHistoryRows && len(h.waiting) > 1 {
		h.lost.Add(int64(len(h.waiting[0].Queues)))
		h.dropFirstLocked()
	}
	for len(h.waiting) > 0 {
		ctx, cancel := context.WithTimeout(ctx, databaseWait)
		err := b.db.WriteMinute(ctx, h.broker, h.waiting[0])
		cancel()
		if err != nil {
			b.log.Warn("the history of a minute could not be written", "minutes", len(h.waiting), "err", err)
			return
		}
		h.dropFirstLocked()
	}
}

func (h *history) dropFirstLocked() {
	h.rows -= 1 + len(h.waiting[0].Queues)
	h.waiting[0] = nil // the slice keeps its place
	h.waiting = h.waiting[1:]
}

// takeMinuteLocked empties the counters into a minute, nil when there is nothing to say.
func (b *Broker) takeMinuteLocked(now time.Time) *store.Minute {
	h := b.history
	bucket := h.since.Truncate(historyEvery)
	if !bucket.After(h.last) {
		bucket = h.last.Add(historyEvery) // a clock that was set back must not name a minute twice
	}
	m := &store.Minute{Bucket: bucket}
	at := map[queueKey]int{}
	for i := range h.shards {
		s := &h.shards[i]
		s.mu.Lock()
		taken := s.queues
		if len(taken) > 0 {
			s.queues = make(map[queueKey]*store.Activity, len(taken))
		}
		s.mu.Unlock()
		for k, a := range taken {
			at[k] = len(m.Queues)
			m.Queues = append(m.Queues, store.QueueMinute{Tenant: k.tenant, Queue: k.name, Activity: *a, Parked: -1})
		}
	}
	waiting := map[queueKey]int{}
	b.park.Parked(func(tenant uuid.UUID, queue string, polls int) {
		if b.names.exists(tenant, queue) { // neither a scope nor a name that a stranger made up
			waiting[queueKey{tenant, queue}] = polls
		}
	})
	changed := func(k queueKey, n int) {
		i, ok := at[k]
		if !ok {
			i = len(m.Queues)
			m.Queues = append(m.Queues, store.QueueMinute{Tenant: k.tenant, Queue: k.name})
		}
		m.Queues[i].Parked = n
	}
	for k, n := range waiting {
		if h.parked[k] != n {
			changed(k, n)
		}
	}
	for k := range h.parked {
		if _, still := waiting[k]; !still {
			changed(k, 0)
		}
	}
	h.parked = waiting
	m.Process = h.process.sample(b, now)
	h.since = now
	if len(m.Queues) == 0 && m.Process.Requests == 0 && len(waiting) == 0 {
		return nil
	}
	h.last = bucket
	return m
}
