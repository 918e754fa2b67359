package quota

import (
	"context"
	"time"

	"github.com/google/uuid"
)

const (
	tendEvery  = 50 * time.Millisecond
	beatEvery  = time.Second
	probeEvery = 250 * time.Millisecond // while Redis is away

	// slotBeat is how often the slots of a cluster are said to be held. Redis drops those of a gateway that has not said
	// so three times in a row.
	slotBeat = 5 * time.Second

	// fleetMemory is for how long a larger fleet is believed, when gateways have died, or Redis has come back and knows
	// fewer of them.
	fleetMemory = 30 * time.Second

	// retellings bounds the clusters of which a round of tending tells Redis anew: a gateway may know very many, and a queue
	// of calls that is too long counts as an absence.
	retellings = 1000
)

// beats paces the heartbeat. Only run uses it.
type beats struct {
	last   time.Time
	seenAt time.Time // when as many gateways as are believed were seen last
}

// due reports whether to beat at now.
func (b *beats) due(now time.Time, asking bool) bool {
	every := beatEvery
	if !asking {
		every = probeEvery
	}
	if now.Sub(b.last) < every {
		return false
	}
	b.last = now
	return true
}

// beat tells Redis that this gateway lives and hears of the others. It is also how an absence ends: it writes, and it
// must be answered in the time that a decision has.
func (f *fleet) beat(now time.Time) {
	back := !f.asking()
	if back {
		if _, err := f.tell("probe", now); err != nil {
			return
		}
		f.log.Info("Redis is back: limits are the fleet's again")
		f.pipe.away.Store(false)
	}
	heard, err := f.tell("beat", now)
	if err != nil {
		f.pipe.fail(err)
		return
	}
	if n := heard[0]; n >= f.seen.Load() || now.Sub(f.beats.seenAt) > fleetMemory {
		f.seen.Store(n)
		f.beats.seenAt = now
	}
	f.heard.Store(heard[0])
	f.deaf.Store(heard[1])
	f.dead.Store(heard[2])
	f.note()
	if state := heard[3]; back || state != f.state && f.state != 0 {
		f.retellAll()
	}
	f.state = heard[3]
}

// retellAll has Redis told what this gateway has counted of months, whether it has traffic or not: Redis lost its state, or may
// have come back with an older one.
func (f *fleet) retellAll() {
	f.retold = f.retold[:0]
	for i := range f.gate.shards {
		for id, l := range f.gate.shards[i].all() {
			f.retold = append(f.retold, busyLedger{id, l})
		}
	}
}

// retell makes some of the ledgers that are left busy with what Redis is to be told anew.
func (f *fleet) retell() {
	n := min(len(f.retold), retellings)
	for _, e := range f.retold[:n] {
		e.l.mu.Lock()
		if s := e.l.partaking; s != nil && !e.l.gone {
			s.month.told = 0
			f.busyWith(e.id, e.l)
		}
		e.l.mu.Unlock()
	}
	if f.retold = f.retold[n:]; len(f.retold) == 0 {
		f.retold = nil
	}
}

// note has the number of gateways remembered when it has changed.
func (f *fleet) note() {
	n := f.seen.Load()
	if f.remember == nil || n == f.told {
		return
	}
	f.told = n // once a change, whatever comes of it
	if err := f.remember(int(n)); err != nil {
		f.log.Warn("the number of gateways cannot be remembered: a restart while Redis is away counts on those of before",
			"gateways", n, "err", err)
	}
}

// tell makes one call of beat.lua, and returns how many gateways there are, how many of them are missing, how many have
// died lately, and which state Redis has.
func (f *fleet) tell(what string, now time.Time) ([]int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), f.pipe.budget)
	defer cancel()
	key := f.prefix + "{gateways}"
	x := &call{script: beatScript, keys: []string{key, key + ":probe", key + ":state"}, args: []any{f.ask(now), f.name, what, newName()}}
	if alone := f.alone.Load(); alone != nil {
		for _, gateway := range *alone {
			x.args = append(x.args, gateway)
		}
	}
	err := f.pipe.try(ctx, x)
	return x.reply, err
}

// tend returns leases that lie unused, and says which slots are held and what was used.
func (f *fleet) tend(now time.Time) {
	f.retell()
	f.returnLeases(now, false)
	t := f.gate.at(now)
	f.eachBusy(func(id uuid.UUID, l *ledger) (done bool) {
		s := f.join(l, id, t)
		held := int64(0)
		for _, a := range l.acc.parked {
			if a.slot != 0 {
				held++
			}
		}
		limited := l.acc.live[limitParked] && len(l.acc.parked) > 0
		if s.mirrors && (limited || held > 0) && t-s.slotsTold >= slotBeat.Nanoseconds() {
			s.slotsTold = t
			f.beatSlots(l, s, id, held, now)
		}
		untold := s.mirrors && s.untold(&l.acc)
		if untold && t-s.toldAt >= tellEvery.Nanoseconds() {
			f.flush(l, s, id, now)
		}
		return !limited && held == 0 && !s.leases() && !untold
	})
}

// busyLedger is the ledger of a cluster that needs tending.
type busyLedger struct {
	id uuid.UUID
	l  *ledger
}

// eachBusy visits the ledgers that need tending, locked, and forgets those that are done.
func (f *fleet) eachBusy(visit func(uuid.UUID, *ledger) (done bool)) {
	f.mu.Lock()
	all := make([]busyLedger, 0, len(f.busy))
	for id, l := range f.busy {
		all = append(all, busyLedger{id, l})
	}
	f.mu.Unlock()
	for _, e := range all {
		e.l.mu.Lock()
		done := visit(e.id, e.l)
		if done {
			f.mu.Lock()
			delete(f.busy, e.id)
			f.mu.Unlock()
			e.l.partaking.tended = false
		}
		e.l.mu.Unlock()
	}
}

// returnLeases gives back what has lain unused, or everything.
func (f *fleet) returnLeases(now time.Time, all bool) {
	t := f.gate.at(now)
	f.eachBusy(func(id uuid.UUID, l *ledger) bool {
		s := f.join(l, id, t)
		if s.leases() && (all || t-s.lastUsed >= leaseIdle.Nanoseconds()) {
			f.queue(l, s, id, now, true, func(s *partaking) bool { return !s.leasing })
		} else if all && s.untold(&l.acc) {
			f.flush(l, s, id, now)
		}
		return false
	})
}

// beatSlots says that the slots of a locked ledger are held. When Redis has another number of them, which an answer lost
// on the way or a Redis that lost its state explain, they are told anew: at the second time, since a poll may be between
// its slot and its seat, and at once when Redis has none.
func (f *fleet) beatSlots(l *ledger, s *partaking, id uuid.UUID, held int64, now time.Time) {
	x := f.slotsCall(s, "beat", now)
	x.then = func(x *call) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if x.err != nil || !s.mirrors {
			return
		}
		f.stats.drift.Set(float64(x.reply[0] - held))
		if x.reply[0] == held && held == int64(len(l.acc.parked)) {
			s.slotsOff = 0
			return
		}
		if s.slotsOff++; s.slotsOff >= 2 || x.reply[0] == 0 {
			s.slotsOff = 0
			f.stats.repairs.Inc()
			f.renewSlots(l, s, now)
		}
	}
	f.pipe.send(s.keys.lane, x)
	f.pipe.push(s.keys.lane)
}

func (f *fleet) slotsCall(s *partaking, what string, now time.Time) *call {
	return &call{
		script: slotsScript, keys: []string{s.keys.slots, s.keys.ours}, args: []any{f.ask(now), f.name, what},
	}
}

// renewSlots tells Redis all slots of a locked ledger, also those of polls that were let in while it was away.
func (f *fleet) renewSlots(l *ledger, s *partaking, now time.Time) {
	t := f.gate.at(now)
	x := f.slotsCall(s, "renew", now)
	for _, a := range l.acc.parked {
		if a.slot == 0 {
			a.slot = f.newSlot()
		}
		x.args = append(x.args, max(0, (a.deadline-t)/1000), a.slot)
		if len(x.args) >= 2*namesPerCall {
			f.pipe.send(s.keys.lane, x)
			x = f.slotsCall(s, "add", now)
		}
	}
	f.pipe.send(s.keys.lane, x)
	f.pipe.push(s.keys.lane)
}

// forget drops a deleted cluster. What Redis has of it ends by itself.
func (f *fleet) forget(id uuid.UUID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.busy, id)
}
