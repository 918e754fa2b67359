package park

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queengate/queengate/internal/small"
)

type state uint8

const (
	idle    state = iota // nothing known to be pending
	ready                // in the FIFO, for whoever comes
	taken                // in the hands of a ticket
	leased               // until a time, by us or by another broker
	delayed              // pending, but not to be delivered before a time
)

// entry is one partition of a ring.
type entry struct {
	ring      *Ring
	queue     string
	partition int64
	state     state
	marked    bool  // a mark came while it was taken
	dead      bool  // dropped from the ring: reports are void
	foreign   bool  // leased: not by us
	last      int64 // highest offset heard of; -1 none
	full      int64 // delayed: to be offered when so many messages wait; 0: not before its time
	base      int64 // where the group's cursor, or what it holds leased, is known to end; unknown otherwise
	owner     *Ticket
	touched   time.Time // of the last change of state
	alarm     alarm
	link      node[*entry]
}

// unknown is a base that was never seen; such an entry counts as full.
const unknown = math.MinInt64

// plenty stands for the size of an entry whose size is not known.
const plenty = math.MaxInt32

func (e *entry) available() int64 {
	if e.base == unknown {
		return plenty
	}
	return max(0, e.last-e.base)
}

// Ring is one consumer group of a queue.
type Ring struct {
	board *board
	group string

	prepare sync.Mutex   // held while the database is scanned for the ring
	epoch   atomic.Int64 // of the last successful Prepare, 0 none
	resets  atomic.Int64 // how often what was known of the queue became out of date
	grown   atomic.Int64 // generation of the scope that the ring has followed
	single  atomic.Bool  // the group conflates
	claims  atomic.Int64 // see Yield
	yield   atomic.Int64 // messages per claimed partition, in 1/1024
	delay   atomic.Int64 // delayedProcessing of the queue, for the probe

	// All below is guarded by board.mu.
	entries small.Map[int64, *entry]
	fifo    list[*entry]
	leased  list[*entry]
	waiters list[*Ticket]            // wait for any partition
	pinned  map[int64]*list[*Ticket] // wait for one partition
	unnamed map[string][]*Ticket     // wait for a partition that does not exist yet
	holders list[*Ticket]            // have something and wait for more
	tickets int
	used    time.Time // of the last Join or Take
	stale   bool      // what the ring holds is out of date since the last Prepare began
}

func newRing(b *board, group string) *Ring {
	return &Ring{board: b, group: group}
}

// entryLocked returns the entry of a partition, making it when it is new.
func (r *Ring) entryLocked(queue string, partition int64) (e *entry, isNew bool) {
	if e := r.entries.At(partition); e != nil {
		return e, false
	}
	e = &entry{ring: r, queue: queue, partition: partition, last: -1, base: unknown}
	e.alarm = alarm{index: -1, owner: e}
	e.link.value = e
	r.entries.Put(partition, e)
	return e, true
}

func (r *Ring) markLocked(queue string, partition, last, count int64) {
	e, isNew := r.entryLocked(queue, partition)
	if isNew {
		r.board.names++
		r.board.strangers = r.board.strangers || len(r.unnamed) > 0
	}
	if last <= e.last && !isNew {
		return // heard of before
	}
	e.last = last
	if e.state == idle && e.base == unknown && count > 0 {
		e.base = last - count // nothing was pending before
	}
	switch e.state {
	case idle:
		r.offerLocked(e, false)
	case taken:
		e.marked = true
		if t := e.owner; t.holding {
			t.checkHoldLocked()
		}
	case ready:
		r.checkHoldersLocked()
	case delayed:
		if e.full > 0 && e.available() >= e.full {
			r.offerLocked(e, false)
		}
	}
}

// gatherLocked parks e until a time, or until as many messages wait as end its window. When the claim saw so many, they
// are held back by something else.
func (r *Ring) gatherLocked(e *entry, o Outcome, until time.Time) {
	r.untilLocked(e, delayed, until)
	if o.Full <= 0 || o.Last-o.Through >= o.Full {
		return
	}
	e.base = o.Through
	if e.full = o.Full; e.available() >= e.full {
		r.offerLocked(e, false)
	}
}

// enterLocked moves e to s, out of whatever structure its old state kept it in.
func (e *entry) enterLocked(s state) {
	e.link.remove()
	e.ring.board.registry.wheel.clear(&e.alarm)
	e.state, e.owner, e.full, e.touched = s, nil, 0, time.Now()
}

// offerLocked makes e ready: the waiter that has waited longest gets it, else it joins the FIFO.
func (r *Ring) offerLocked(e *entry, front bool) {
	e.marked = false
	t := r.eldestLocked(e.partition)
	if t == nil {
		e.enterLocked(ready)
		if front {
			r.fifo.pushFront(&e.link)
		} else {
			r.fifo.pushBack(&e.link)
		}
		r.checkHoldersLocked()
		return
	}
	e.enterLocked(taken)
	e.owner = t
	t.taken = append(t.taken, e)
	t.wakeLocked(Ready)
}

// eldestLocked returns the waiter with the oldest claim to the partition.
func (r *Ring) eldestLocked(partition int64) *Ticket {
	var t *Ticket
	if n := r.waiters.front; n != nil {
		t = n.value
	}
	if l := r.pinned[partition]; l != nil && l.front != nil {
		if p := l.front.value; t == nil || p.seq < t.seq {
			t = p
		}
	}
	return t
}

func (r *Ring) checkHoldersLocked() {
	for n := r.holders.front; n != nil; {
		next := n.next
		n.value.checkHoldLocked()
		n = next
	}
}

// restLocked makes e idle, or ready when a mark came that the report cannot have seen.
func (r *Ring) restLocked(e *entry, seen int64) {
	if e.last > seen {
		r.offerLocked(e, false)
		return
	}
	e.last, e.marked = seen, false
	e.enterLocked(idle)
}

// untilLocked parks e in s until a time.
func (r *Ring) untilLocked(e *entry, s state, until time.Time) {
	e.enterLocked(s)
	if s == leased {
		r.leased.pushBack(&e.link)
	}
	r.board.registry.wheel.set(&e.alarm, until)
}

// due implements the wheel's call: a lease has run out or delayed messages have become visible.
func (e *entry) due(now time.Time) {
	b := e.ring.board
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.dead || e.state != leased && e.state != delayed || e.alarm.at.After(now) || b.registry.wheel.isSet(&e.alarm) {
		return // it moved on while the wheel was turning
	}
	if e.state == leased {
		e.base = unknown // what was leased is pending again
	}
	e.ring.offerLocked(e, false)
}

func (r *Ring) dropLocked(e *entry) {
	e.enterLocked(idle)
	e.dead = true
	r.entries.Delete(e.partition)
}

// resetLocked forgets all partitions; waiters stay.
func (r *Ring) resetLocked() {
	for _, e := range r.entries.All() {
		r.dropLocked(e)
	}
	r.epoch.Store(0)
}

// staleLocked makes the next use of the ring ask the database anew, and wakes all who are parked to be that use.
func (r *Ring) staleLocked() {
	r.epoch.Store(0)
	r.resets.Add(1)
	r.stale = true
	for _, t := range r.parkedLocked() {
		t.wakeLocked(Ready)
	}
}

// Pending is a partition with messages behind the group's cursor, as a scan of the database found it. Times are on
// the local clock.
type Pending struct {
	Queue       string // of a scope's ring
	Partition   int64
	Last        int64 // last offset
	Committed   int64
	LeasedUntil time.Time // zero when free
	VisibleAt   time.Time // zero: now
}

func (r *Ring) seedLocked(p Pending, now time.Time) {
	e, isNew := r.entryLocked(p.Queue, p.Partition)
	e.last = max(e.last, p.Last)
	if !isNew && e.state != idle {
		e.base = min(e.base, p.Committed)
		return // pending already, and by newer news
	}
	r.placeLocked(e, p, now)
}

func (r *Ring) placeLocked(e *entry, p Pending, now time.Time) {
	e.last = max(e.last, p.Last)
	e.base = p.Committed
	switch {
	case p.LeasedUntil.After(now):
		e.foreign = true
		r.untilLocked(e, leased, p.LeasedUntil)
	case p.VisibleAt.After(now):
		r.untilLocked(e, delayed, p.VisibleAt)
	default:
		r.offerLocked(e, false)
	}
}

// Prepare makes the ring good for one incarnation of its queue, at most once: what it held is forgotten, and scan,
// called without a lock, registers the group and returns what is pending. Partitions marked meanwhile are kept.
// Callers that come while a scan runs wait for it; a failed scan is repeated by the next caller, and one during which
// the ring became out of date by this one. epoch is any number but 0 that changes with the incarnation.
func (r *Ring) Prepare(epoch int64, scan func() ([]Pending, error)) error {
	if r.epoch.Load() == epoch {
		return nil
	}
	r.prepare.Lock()
	defer r.prepare.Unlock()
	if r.epoch.Load() == epoch {
		return nil
	}
	b := r.board
	for {
		b.mu.Lock()
		r.resetLocked()
		stale := r.stale
		r.stale = false
		b.mu.Unlock()
		pending, err := scan()
		if err != nil {
			b.mu.Lock()
			r.stale = r.stale || stale // who is about to park must not rely on this call
			b.mu.Unlock()
			return err
		}
		now := time.Now()
		b.mu.Lock()
		if r.stale {
			b.mu.Unlock()
			continue
		}
		for _, p := range pending {
			r.seedLocked(p, now)
		}
		r.epoch.Store(epoch)
		b.mu.Unlock()
		return nil
	}
}

// add seeds pending partitions into the ring.
func (r *Ring) add(pending []Pending) {
	now := time.Now()
	r.board.mu.Lock()
	defer r.board.mu.Unlock()
	for _, p := range pending {
		r.seedLocked(p, now)
	}
}

// SetConflating notes that the group is given the newest message of a partition only; it may change with a Prepare.
func (r *Ring) SetConflating(on bool) { r.single.Store(on) }

// Conflating returns what SetConflating noted.
func (r *Ring) Conflating() bool { return r.single.Load() }

// yieldWeight is how much a claim counts in the moving average of Yield: one in so many.
const yieldWeight = 8

// Took notes what a claim yielded.
func (r *Ring) Took(partitions, messages int) {
	got := int64(messages) * 1024 / int64(max(partitions, 1))
	if r.claims.Add(1) == 1 {
		r.yield.Store(got)
		return
	}
	old := r.yield.Load()
	r.yield.Store(old + (got-old)/yieldWeight) // of two at once one may be lost, which an average can bear
}

// Yield returns how many messages a claimed partition has yielded lately, on average, and the number of claims.
func (r *Ring) Yield() (messages float64, claims int64) {
	return float64(r.yield.Load()) / 1024, r.claims.Load()
}

// SetDelay tells the ring the queue's delayedProcessing, which Probe hands back.
func (r *Ring) SetDelay(d time.Duration) { r.delay.Store(int64(d)) }

// Empty reports that the ring has no partition to give at this moment.
func (r *Ring) Empty() bool {
	r.board.mu.Lock()
	defer r.board.mu.Unlock()
	return r.fifo.len == 0
}
