package park

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/small"
)

// Key names a ring.
type Key struct {
	Tenant uuid.UUID
	Queue  string
	Group  string
}

type boardKey struct {
	tenant uuid.UUID
	queue  string
}

// board is one queue of one tenant.
type board struct {
	registry *Registry
	key      boardKey

	mu        sync.Mutex // guards all below and everything inside the rings
	rings     small.Map[string, *Ring]
	watched   map[int64]map[*Watch]struct{} // by partition; 0: any of the queue
	names     uint64                        // grows whenever a partition appears
	strangers bool                          // a partition nobody knew was marked while somebody waits for one that does not exist yet
	dead      bool                          // dropped from the registry: look it up again
}

// Registry holds all boards of a broker.
type Registry struct {
	wheel      wheel
	draining   atomic.Bool
	waiting    atomic.Int64
	maxWaiting int64
	wakes      atomic.Int64
	seq        atomic.Uint64

	mu     sync.RWMutex // guards all below; taken before a board's
	boards map[boardKey]*board
	covers map[boardKey][]boardKey // the scopes that a queue belongs to; the slices do not change
}

// New returns an empty registry that parks at most maxWaiting polls at once.
func New(maxWaiting int) *Registry {
	return &Registry{maxWaiting: int64(maxWaiting), boards: map[boardKey]*board{}, covers: map[boardKey][]boardKey{}}
}

// Join takes a ticket for a ring, making the ring when it is new. pin narrows it to one partition.
func (reg *Registry) Join(k Key, pin Pin) *Ticket {
	for {
		b := reg.board(boardKey{k.Tenant, k.Queue})
		b.mu.Lock()
		if b.dead {
			b.mu.Unlock()
			continue
		}
		r := b.rings.At(k.Group)
		if r == nil {
			r = newRing(b, k.Group)
			b.rings.Put(k.Group, r)
		}
		r.tickets++
		r.used = time.Now()
		b.mu.Unlock()
		t := &Ticket{ring: r, pin: pin}
		t.alarm = alarm{index: -1, owner: t}
		t.link.value = t
		return t
	}
}

func (reg *Registry) board(k boardKey) *board {
	if b := reg.find(k); b != nil {
		return b
	}
	reg.mu.Lock()
	defer reg.mu.Unlock()
	b := reg.boards[k]
	if b == nil {
		b = &board{registry: reg, key: k}
		reg.boards[k] = b
	}
	return b
}

func (reg *Registry) find(k boardKey) *board {
	reg.mu.RLock()
	defer reg.mu.RUnlock()
	return reg.boards[k]
}

// Mark tells every ring of the queue that the partition has messages up to the offset last, count of them new; 0 when
// that is not known.
func (reg *Registry) Mark(tenant uuid.UUID, queue string, partition, last, count int64) {
	reg.told(boardKey{tenant, queue}, func(b *board) {
		for _, r := range b.rings.All() {
			r.markLocked(queue, partition, last, count)
		}
		b.wakeWatchesLocked(partition)
	})
}

// Release tells a ring that the group's lease on a partition has ended, by an ack or a nack, with the cursor at
// committed and the partition's end at last.
func (reg *Registry) Release(k Key, partition, committed, last int64) {
	reg.withRings(k, func(r *Ring) {
		e, _ := r.entryLocked(k.Queue, partition)
		e.base = committed
		if e.state == taken || e.state == ready {
			e.last, e.marked = max(e.last, last), true
			return
		}
		e.last = max(e.last, last)
		r.restLocked(e, committed)
	})
}

// Extend tells a ring that our lease on a partition now ends at until (local clock).
func (reg *Registry) Extend(k Key, partition int64, until time.Time) {
	reg.withRings(k, func(r *Ring) {
		if e := r.entries.At(partition); e != nil && e.state == leased && until.After(e.alarm.at) {
			r.untilLocked(e, leased, until)
		}
	})
}

// withRings calls f for the group's ring of the queue and for those of the scopes that the queue belongs to.
func (reg *Registry) withRings(k Key, f func(*Ring)) {
	reg.told(boardKey{k.Tenant, k.Queue}, func(b *board) {
		if r := b.rings.At(k.Group); r != nil {
			f(r)
		}
	})
}

func (reg *Registry) withRing(k Key, f func(*Ring)) {
	b := reg.find(boardKey{k.Tenant, k.Queue})
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.rings.At(k.Group); r != nil {
		f(r)
	}
}

// Named tells those who wait for a partition that did not exist its id.
func (reg *Registry) Named(tenant uuid.UUID, queue, partition string, id int64) {
	b := reg.find(boardKey{tenant, queue})
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.names++
	for _, r := range b.rings.All() {
		for _, t := range append([]*Ticket(nil), r.unnamed[partition]...) {
			// Its handler looks the partition up once more and waits again, now for the id.
			t.wakeLocked(Ready)
		}
	}
}

// Unnamed is a set of partition names of one queue that somebody waits for although they did not exist.
type Unnamed struct {
	Tenant     uuid.UUID
	Queue      string
	Partitions []string
}

// Strangers returns what is awaited on queues where partitions have appeared that nobody here knew, and forgets that
// they did. Answer with Named.
func (reg *Registry) Strangers() []Unnamed {
	var found []Unnamed
	reg.each(func(b *board) {
		if !b.strangers {
			return
		}
		b.strangers = false
		u := Unnamed{Tenant: b.key.tenant, Queue: b.key.queue}
		for _, r := range b.rings.All() {
			for name := range r.unnamed {
				u.Partitions = append(u.Partitions, name)
			}
		}
		if len(u.Partitions) > 0 {
			found = append(found, u)
		}
	})
	return found
}

// Suspect is a leased partition whose lease may have ended without our hearing of it.
type Suspect struct {
	Key       Key
	Partition int64
	Delay     time.Duration // delayedProcessing of the queue
}

// ownLeaseRest is how long a lease of our own is believed: acknowledgements mostly come back to the broker that
// delivered, and are then heard of at once.
const ownLeaseRest = 2 * time.Second

// activeFor is how long after its last poll a ring counts as one that somebody waits on.
const activeFor = 5 * time.Second

// Suspects returns up to limit leased partitions that somebody waits for, foreign leases and older ones of our own,
// each partition at most once whatever the number of its groups. Answer with Probed.
func (reg *Registry) Suspects(limit int) []Suspect {
	var found []Suspect
	seen := map[int64]bool{}
	now := time.Now()
	reg.each(func(b *board) {
		for _, r := range b.rings.All() {
			if r.tickets == 0 && now.Sub(r.used) > activeFor {
				continue
			}
			for range r.leased.len {
				if len(found) == limit {
					return
				}
				e := r.leased.front.value
				r.leased.rotate()
				if !e.foreign && now.Sub(e.touched) < ownLeaseRest || seen[e.partition] {
					continue
				}
				seen[e.partition] = true
				found = append(found, Suspect{
					Key: Key{b.key.tenant, b.key.queue, r.group}, Partition: e.partition, Delay: time.Duration(r.delay.Load()),
				})
			}
		}
	})
	return found
}

// Probed answers a Suspect: p is what the database says of it, nil when nothing is pending there.
func (reg *Registry) Probed(s Suspect, p *Pending) {
	reg.withRing(s.Key, func(r *Ring) {
		e := r.entries.At(s.Partition)
		if e == nil || e.state != leased {
			return
		}
		if p == nil {
			r.restLocked(e, e.last)
			return
		}
		now := time.Now()
		if p.LeasedUntil.After(now) {
			if !p.LeasedUntil.Equal(e.alarm.at) {
				reg.wheel.set(&e.alarm, later(p.LeasedUntil, now.Add(earliestRevisit)))
			}
			return
		}
		r.placeLocked(e, *p, now)
	})
}

// Forget is ResetGroup for every group of a queue that was deleted or cleared. Who waits, registers anew and waits on
// for messages to come.
func (reg *Registry) Forget(tenant uuid.UUID, queue string) {
	reg.told(boardKey{tenant, queue}, func(b *board) {
		for _, r := range b.rings.All() {
			r.staleLocked()
		}
		b.wakeWatchesLocked(0)
	})
}

// ResetGroup makes a ring ask the database anew at its next use: after its cursors were moved by an operator. Who is
// parked is woken to do so.
func (reg *Registry) ResetGroup(k Key) { reg.withRings(k, (*Ring).staleLocked) }

// Reset is ResetGroup for every ring: after a time in which changes may have been missed.
func (reg *Registry) Reset() {
	reg.each(func(b *board) {
		for _, r := range b.rings.All() {
			r.staleLocked()
		}
		b.wakeWatchesLocked(0)
	})
}

// Sweep drops rings that nobody has used since before, and partitions that have been idle as long.
func (reg *Registry) Sweep(before time.Time) {
	reg.each(func(b *board) {
		for group, r := range b.rings.All() {
			if r.tickets == 0 && r.used.Before(before) {
				r.resetLocked()
				b.rings.Delete(group)
				continue
			}
			for _, e := range r.entries.All() {
				if e.state == idle && e.touched.Before(before) {
					r.dropLocked(e)
				}
			}
		}
	})
	reg.mu.Lock()
	defer reg.mu.Unlock()
	for k, b := range reg.boards {
		b.mu.Lock()
		if b.rings.Len() == 0 && len(b.watched) == 0 {
			b.dead = true
			delete(reg.boards, k)
		}
		b.mu.Unlock()
	}
}

// Drain ends every wait, now and from now on.
func (reg *Registry) Drain() {
	reg.draining.Store(true)
	reg.each(func(b *board) {
		for _, r := range b.rings.All() {
			for _, t := range r.parkedLocked() {
				t.wakeLocked(Drained)
			}
		}
		b.wakeWatchesLocked(0)
	})
	// A ticket that looked at draining before it was set is in its ring by now: it held the board's mutex meanwhile.
}

// Close stops the clock. Nothing waits any more: call Drain before.
func (reg *Registry) Close() { reg.wheel.stop() }

func (r *Ring) parkedLocked() (all []*Ticket) {
	collect := func(l *list[*Ticket]) {
		for n := l.front; n != nil; n = n.next {
			all = append(all, n.value)
		}
	}
	collect(&r.waiters)
	collect(&r.holders)
	for _, l := range r.pinned {
		collect(l)
	}
	for _, ts := range r.unnamed {
		all = append(all, ts...)
	}
	return all
}

// each calls f for every board with its mutex held.
func (reg *Registry) each(f func(*board)) {
	reg.mu.RLock()
	all := make([]*board, 0, len(reg.boards))
	for _, b := range reg.boards {
		all = append(all, b)
	}
	reg.mu.RUnlock()
	for _, b := range all {
		b.mu.Lock()
		f(b)
		b.mu.Unlock()
	}
}

// Waiting returns the number of parked polls.
func (reg *Registry) Waiting() int { return int(reg.waiting.Load()) }

// Wakes returns how often a waiter was handed a partition.
func (reg *Registry) Wakes() int64 { return reg.wakes.Load() }

// Boards returns the number of queues somebody reads or has read lately.
func (reg *Registry) Boards() int {
	reg.mu.RLock()
	defer reg.mu.RUnlock()
	return len(reg.boards)
}
