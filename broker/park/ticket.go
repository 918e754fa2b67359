package park

import (
	"math"
	"time"
)

// Wake says why a wait ended.
type Wake uint8

const (
	Ready    Wake = iota // there is a partition to take, or a hold is full
	Deadline             // the poll's time is up
	Gone                 // the client has hung up
	Drained              // the registry is draining
	Full                 // too many polls are parked
)

// Pin names the one partition a ticket wants. The zero Pin wants any.
type Pin struct {
	ID   int64
	Name string // with ID 0: a partition that does not exist yet
}

// Ticket is the place of one pop in a ring. It belongs to one goroutine at a time, the last of which must Leave; while it
// is parked it belongs to nobody.
type Ticket struct {
	ring    *Ring
	pin     Pin
	names   uint64 // board.names when the pinned partition was last looked up
	resets  int64  // ring.resets likewise
	seq     uint64 // order of arrival, given by the first wait and kept by later ones
	taken   []*entry
	wakeC   chan Wake  // capacity 1; nil before the first wait that blocks
	waiting bool       // in a list of the ring; guarded by board.mu like all below
	parked  func(Wake) // of a ticket that waits without a goroutine
	holding bool
	need    int64 // holding: wake when this many messages are available
	width   int   // holding: of this many partitions
	alarm   alarm
	link    node[*Ticket]
}

// Ring returns the ring the ticket stands in.
func (t *Ticket) Ring() *Ring { return t.ring }

// Lookup finds the id of the one partition the ticket wants, as long as it has none, and again when the ring was reset:
// find, called without a lock, returns it, or 0 when the partition does not exist. What is created after that call began
// ends the next Wait.
func (t *Ticket) Lookup(find func() (int64, error)) error {
	resets := t.ring.resets.Load()
	if t.pin.Name == "" || t.pin.ID != 0 && t.resets == resets {
		return nil
	}
	b := t.ring.board
	b.mu.Lock()
	t.names = b.names
	b.mu.Unlock()
	id, err := find()
	if err != nil {
		return err
	}
	b.mu.Lock()
	t.pin.ID, t.resets = id, resets
	b.mu.Unlock()
	return nil
}

// Unpin makes the ticket forget the id of its partition, which has vanished.
func (t *Ticket) Unpin() {
	t.ring.board.mu.Lock()
	defer t.ring.board.mu.Unlock()
	t.pin.ID = 0
}

// Take fills the ticket's hand up to width partitions and returns all it holds, first come first. Nobody else is
// given them until Report, Return or Leave. An empty answer means that nothing is ready; it is no promise of SQL.
func (t *Ticket) Take(width int) []int64 {
	r := t.ring
	r.board.mu.Lock()
	defer r.board.mu.Unlock()
	r.used = time.Now()
	t.pruneLocked()
	if t.pin != (Pin{}) {
		if e := r.entries.At(t.pin.ID); e != nil && e.state == ready {
			t.takeLocked(e)
		}
	} else {
		for len(t.taken) < width && r.fifo.front != nil {
			t.takeLocked(r.fifo.front.value)
		}
	}
	if len(t.taken) == 0 {
		return nil
	}
	ids := make([]int64, len(t.taken))
	for i, e := range t.taken {
		ids[i] = e.partition
	}
	return ids
}

// Hand returns the queues of the partitions that the last Take returned, in its order. Those of a queue's own ring may
// be unnamed.
func (t *Ticket) Hand() []string {
	r := t.ring
	r.board.mu.Lock()
	defer r.board.mu.Unlock()
	queues := make([]string, len(t.taken))
	for i, e := range t.taken {
		queues[i] = e.queue
	}
	return queues
}

// Supply returns how many partitions are ready in the ring and how many tickets stand in it, this one included.
func (t *Ticket) Supply() (ready, tickets int) {
	r := t.ring
	r.board.mu.Lock()
	defer r.board.mu.Unlock()
	return r.fifo.len, r.tickets
}

func (t *Ticket) takeLocked(e *entry) {
	e.enterLocked(taken)
	e.marked, e.owner = false, t
	t.taken = append(t.taken, e)
}

// pruneLocked lets go of partitions that were dropped from the ring.
func (t *Ticket) pruneLocked() {
	live := t.taken[:0]
	for _, e := range t.taken {
		if !e.dead {
			live = append(live, e)
		}
	}
	t.taken = live
}

// Outcome is what a claim found in one taken partition. Times are on the local clock.
type Outcome struct {
	Kind    Kind
	Until   time.Time // Leased, Foreign: end of the lease; Empty: when delayed messages become visible, or zero
	Last    int64     // Leased, Acked, Empty: the partition's last offset as the claim saw it
	Through int64     // Leased, Acked: the last offset delivered; Empty with Until: the group's cursor
	Full    int64     // Empty with Until: offer it before, once so many messages wait that the claim did not see; 0: never
}

// Kind is the sort of an Outcome.
type Kind uint8

const (
	Skipped  Kind = iota // not looked at: stays first in line
	Leased               // delivered, leased by us
	Acked                // delivered and committed
	Empty                // nothing deliverable
	Foreign              // leased by somebody else
	Vanished             // the partition does not exist any more
)

// earliestRevisit bounds how soon a partition that was found leased or delayed is looked at again, whatever the
// clocks say: a local clock ahead of the database's would otherwise turn into a hot loop.
const earliestRevisit = 50 * time.Millisecond

// Report empties the hand: outcomes answer what the last Take returned, in its order.
func (t *Ticket) Report(outcomes []Outcome) {
	r := t.ring
	r.board.mu.Lock()
	defer r.board.mu.Unlock()
	hand := t.taken
	t.taken = t.taken[len(t.taken):]
	soonest := time.Now().Add(earliestRevisit)
	for i := len(hand) - 1; i >= 0; i-- { // skipped ones go back to the front in their order
		e := hand[i]
		if !e.dead && (i >= len(outcomes) || outcomes[i].Kind == Skipped) {
			r.offerLocked(e, true)
		}
	}
	for i, e := range hand {
		if e.dead || i >= len(outcomes) {
			continue
		}
		switch o := outcomes[i]; o.Kind {
		case Leased:
			e.base, e.last, e.foreign = o.Through, max(e.last, o.Last), false
			r.untilLocked(e, leased, later(o.Until, soonest))
		case Acked:
			e.base = o.Through
			e.learnLocked(o.Last)
			r.restLocked(e, o.Through)
		case Empty:
			if !o.Until.IsZero() {
				e.last = max(e.last, o.Last)
				r.gatherLocked(e, o, later(o.Until, soonest))
				continue
			}
			e.base = o.Last
			e.learnLocked(o.Last)
			r.restLocked(e, o.Last)
		case Foreign:
			e.base, e.foreign = unknown, true
			r.untilLocked(e, leased, later(o.Until, soonest))
		case Vanished:
			r.dropLocked(e)
		}
	}
	clear(hand)
}

// learnLocked takes the end of the partition from a claim. Only a mark that came while the claim ran knows better: what
// was marked before had been committed before, and a claim that does not see it says that it is gone.
func (e *entry) learnLocked(last int64) {
	if e.marked {
		last = max(last, e.last)
	}
	e.last = last
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Return puts back what the ticket holds after a claim that failed: it is offered again after pause, so that a
// database that is away is not asked by every parked poll at once.
func (t *Ticket) Return(pause time.Duration) {
	r := t.ring
	r.board.mu.Lock()
	defer r.board.mu.Unlock()
	until := time.Now().Add(pause)
	for _, e := range t.taken {
		if !e.dead {
			r.untilLocked(e, delayed, until)
		}
	}
	t.taken = t.taken[:0]
}

// Leave ends the ticket; partitions in its hand are handed on.
func (t *Ticket) Leave() {
	r := t.ring
	b := r.board
	b.mu.Lock()
	defer b.mu.Unlock()
	t.stopWaitingLocked()
	for i := len(t.taken) - 1; i >= 0; i-- {
		if e := t.taken[i]; !e.dead {
			r.offerLocked(e, true)
		}
	}
	t.taken = nil
	r.tickets--
	r.used = time.Now()
}

// Wait parks until a partition is handed over, until passes, gone is closed (nil: never) or the registry drains.
func (t *Ticket) Wait(until time.Time, gone <-chan struct{}) Wake {
	t.ring.board.mu.Lock()
	w, waits := t.waitLocked(until)
	if waits {
		t.readyToWakeLocked()
	}
	t.ring.board.mu.Unlock()
	if !waits {
		return w
	}
	return t.sleep(gone)
}

// Park is Wait for a poll that keeps no goroutine. When there is nothing to wait for it returns why, and false. Else the
// ticket is parked, and wake is called once, in a goroutine of its own, with what has ended the wait.
func (t *Ticket) Park(until time.Time, wake func(Wake)) (w Wake, parked bool) {
	t.ring.board.mu.Lock()
	defer t.ring.board.mu.Unlock()
	if w, parked = t.waitLocked(until); parked {
		t.parked = wake
	}
	return w, parked
}

// Abandon ends the wait of a parked ticket, if it is parked at all, with Gone. Any goroutine may call it.
func (t *Ticket) Abandon() {
	t.ring.board.mu.Lock()
	defer t.ring.board.mu.Unlock()
	if t.parked != nil {
		t.wakeLocked(Gone)
	}
}

// waitLocked enters the ticket in its list, or says why it need not wait.
func (t *Ticket) waitLocked(until time.Time) (w Wake, waits bool) {
	reg := t.ring.board.registry
	t.pruneLocked()
	switch {
	case reg.draining.Load():
		return Drained, false
	case len(t.taken) > 0 || t.readyLocked():
		return Ready, false
	case !time.Now().Before(until):
		return Deadline, false
	case reg.waiting.Add(1) > reg.maxWaiting:
		reg.waiting.Add(-1)
		return Full, false
	}
	if t.seq == 0 {
		t.seq = reg.seq.Add(1)
	}
	t.enqueueLocked()
	reg.wheel.set(&t.alarm, until)
	return Ready, true
}

// readyToWakeLocked makes the channel by which a ticket that blocks is woken.
func (t *Ticket) readyToWakeLocked() {
	if t.wakeC == nil {
		t.wakeC = make(chan Wake, 1)
	}
}

// Hold keeps what is in hand and waits for more: until need messages are available in width partitions, counting
// what the hand holds, or until a time, a hang-up or the drain.
func (t *Ticket) Hold(need, width int, until time.Time, gone <-chan struct{}) Wake {
	r := t.ring
	reg := r.board.registry
	r.board.mu.Lock()
	t.need, t.width = int64(need), width
	t.pruneLocked()
	switch {
	case reg.draining.Load():
		r.board.mu.Unlock()
		return Drained
	case len(t.taken) == 0 || t.availableLocked() >= t.need:
		r.board.mu.Unlock()
		return Ready
	case !time.Now().Before(until):
		r.board.mu.Unlock()
		return Deadline
	}
	reg.waiting.Add(1)
	t.waiting, t.holding = true, true
	r.holders.pushBack(&t.link)
	t.readyToWakeLocked()
	reg.wheel.set(&t.alarm, until)
	r.board.mu.Unlock()
	return t.sleep(gone)
}

// Rest waits for d without being offered anything: for a database that is away. It ends with Deadline when d or the
// poll's time is over, whichever comes first.
func (t *Ticket) Rest(d time.Duration, until time.Time, gone <-chan struct{}) Wake {
	r := t.ring
	reg := r.board.registry
	r.board.mu.Lock()
	if reg.draining.Load() {
		r.board.mu.Unlock()
		return Drained
	}
	if end := time.Now().Add(d); end.Before(until) {
		until = end
	}
	reg.waiting.Add(1)
	t.need, t.width = math.MaxInt64, 0
	t.waiting, t.holding = true, true
	r.holders.pushBack(&t.link)
	t.readyToWakeLocked()
	reg.wheel.set(&t.alarm, until)
	r.board.mu.Unlock()
	return t.sleep(gone)
}

func (t *Ticket) sleep(gone <-chan struct{}) Wake {
	select {
	case w := <-t.wakeC:
		return w
	case <-gone:
	}
	t.ring.board.mu.Lock()
	t.stopWaitingLocked()
	t.ring.board.mu.Unlock()
	select {
	case <-t.wakeC: // woken and left at once: Leave hands on what was handed over
	default:
	}
	return Gone
}

// readyLocked reports whether Take would find something, or Prepare has to look again.
func (t *Ticket) readyLocked() bool {
	if t.ring.stale {
		return true
	}
	if t.pin == (Pin{}) {
		return t.ring.fifo.len > 0
	}
	if t.pin.ID == 0 {
		return t.names != t.ring.board.names
	}
	e := t.ring.entries.At(t.pin.ID)
	return e != nil && e.state == ready
}

func (t *Ticket) availableLocked() (n int64) {
	for _, e := range t.taken {
		n += e.available()
	}
	free := t.width - len(t.taken)
	for l := t.ring.fifo.front; l != nil && free > 0; l, free = l.next, free-1 {
		n += l.value.available()
	}
	return n
}

func (t *Ticket) checkHoldLocked() {
	if t.availableLocked() >= t.need {
		t.wakeLocked(Ready)
	}
}

func (t *Ticket) enqueueLocked() {
	t.waiting = true
	r := t.ring
	switch {
	case t.pin == (Pin{}):
		insertBySeq(&r.waiters, t)
	case t.pin.ID == 0:
		if r.unnamed == nil {
			r.unnamed = map[string][]*Ticket{}
		}
		r.unnamed[t.pin.Name] = append(r.unnamed[t.pin.Name], t)
	default:
		l := r.pinned[t.pin.ID]
		if l == nil {
			l = &list[*Ticket]{}
			if r.pinned == nil {
				r.pinned = map[int64]*list[*Ticket]{}
			}
			r.pinned[t.pin.ID] = l
		}
		insertBySeq(l, t)
	}
}

// insertBySeq keeps the order of arrival: a poll that was woken in vain returns to its old place. The walk from the
// back is one step for everybody else.
func insertBySeq(l *list[*Ticket], t *Ticket) {
	at := l.back
	for at != nil && at.value.seq > t.seq {
		at = at.prev
	}
	switch {
	case at == nil:
		l.pushFront(&t.link)
	case at == l.back:
		l.pushBack(&t.link)
	default:
		n := &t.link
		n.in, n.prev, n.next = l, at, at.next
		at.next.prev, at.next = n, n
		l.len++
	}
}

// stopWaitingLocked takes the ticket out of the lists and off the wheel.
func (t *Ticket) stopWaitingLocked() {
	if !t.waiting {
		return
	}
	r := t.ring
	t.waiting, t.holding = false, false
	switch {
	case t.link.in != nil:
		l := t.link.in
		t.link.remove()
		if l.len == 0 && l == r.pinned[t.pin.ID] {
			delete(r.pinned, t.pin.ID)
		}
	default:
		rest := r.unnamed[t.pin.Name]
		for i, u := range rest {
			if u == t {
				rest[i] = rest[len(rest)-1]
				rest = rest[:len(rest)-1]
				break
			}
		}
		if len(rest) == 0 {
			delete(r.unnamed, t.pin.Name)
		} else {
			r.unnamed[t.pin.Name] = rest
		}
	}
	reg := r.board.registry
	reg.wheel.clear(&t.alarm)
	reg.waiting.Add(-1)
}

// wakeLocked ends the wait of a waiting ticket.
func (t *Ticket) wakeLocked(w Wake) {
	if !t.waiting {
		return
	}
	t.stopWaitingLocked()
	if w == Ready {
		t.ring.board.registry.wakes.Add(1)
	}
	if wake := t.parked; wake != nil {
		t.parked = nil
		go wake(w)
		return
	}
	t.wakeC <- w // capacity 1, and one wake per wait
}

// due implements the wheel's call: the poll's time is up.
func (t *Ticket) due(now time.Time) {
	b := t.ring.board
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.waiting && !t.alarm.at.After(now) && !b.registry.wheel.isSet(&t.alarm) {
		t.wakeLocked(Deadline)
	}
}
