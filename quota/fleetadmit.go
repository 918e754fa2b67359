package quota

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// question is what of a request Redis is asked.
type question struct {
	rates          [limitRates]bool // of their buckets
	slot           bool
	storage, month bool
	pairs          []Pair // that may be new
	n              int64  // millionths of the message bucket
	read           bool   // use over time that Redis has lost is read before the request is let in
}

func (q *question) empty() bool {
	return q.rates == [limitRates]bool{} && !q.slot && !q.storage && !q.month && len(q.pairs) == 0
}

// question returns what of the request on the desk Redis decides: limits that the plan has, that are not blocked (time
// cures nothing then, here or there), and names that are not known to exist.
func (f *fleet) question(d *decision) (q question) {
	acc := d.acc
	asked := func(i limit) bool { return acc.live[i] && rulesOf[i].costs[d.ask.Cost] }
	for i := range limitRates {
		if !asked(i) {
			continue
		}
		b, n, _ := d.asks(i)
		if q.rates[i] = b != nil && !b.blocked(); i == limitMessages {
			q.n = n
		}
	}
	q.slot = asked(limitParked) && d.ask.Wait && (*acc.limits.MaxParkedPops > 0 || acc.modes[limitParked] != plans.Enforce)
	q.storage = asked(limitStorage) && d.ask.Messages > 0
	q.month = asked(limitMonth) && d.ask.Messages > 0
	if asked(limitQueues) || asked(limitPartitions) {
		q.pairs = acc.names.unknown(d.ask.Pairs, acc.live[limitPartitions])
	}
	return q
}

// rulesOf finds a rule by its limit.
var rulesOf = func() (of [limitCount]*rule) {
	for i := range order {
		of[order[i].limit] = &order[i]
	}
	return of
}()

// admit is Gate.Admit in a fleet.
func (f *fleet) admit(c *plans.Cluster, a *Ask, now time.Time) (*Admission, Report, *wire.Error) {
	return f.admitOnce(c, a, now, true)
}

// admitOnce is admit. With read, what Redis has lost of use over time is read anew before the request is let in by what
// this gateway heard last.
func (f *fleet) admitOnce(c *plans.Cluster, a *Ask, now time.Time, read bool) (*Admission, Report, *wire.Error) {
	g := f.gate
	t := g.at(now)
	l := g.open(c, t)
	s := f.join(l, c.ID, t)
	d := &l.desk
	d.begin(&l.acc, c, *a, false, now, t)
	q := f.question(d)
	q.read = read
	if !s.mirrors || q.empty() {
		defer l.mu.Unlock()
		f.stats.local.Inc()
		adm, report, err := g.decide(l, d, now)
		f.seat(l, c.ID, adm)
		return adm, report, err
	}
	s.meter.roll(t, &s.requests.lease, &s.messages.lease)
	s.meter.decisions++
	s.requests.spent += token
	s.messages.spent += q.n
	if f.leases && !q.slot && len(q.pairs) == 0 && s.covers(d, &q, t) {
		defer l.mu.Unlock()
		f.stats.leased.Inc()
		adm, report, err := f.spend(l, s, d, &q, now)
		f.refill(l, s, c.ID, now)
		return adm, report, err
	}
	if len(q.pairs) > namesPerCall {
		l.mu.Unlock()
		return f.admitMany(c, a, q.pairs, now)
	}
	return f.central(l, s, c, a, &q, nil, nil, now)
}

// covers reports whether leases pay for the request. There are none of a key's rates nor of deliveries.
func (s *partaking) covers(d *decision, q *question, t int64) bool {
	return (!q.rates[limitRequests] || s.requests.holds(token, t)) && (!q.rates[limitMessages] || s.messages.holds(q.n, t)) &&
		!q.rates[limitKeyRequests] && !q.rates[limitKeyMessages] && !q.rates[limitDelivery] &&
		(!q.storage || s.storage.holds(max(0, d.ask.PayloadBytes), t) && !d.acc.storage.full(*d.acc.limits.MaxRetainedBytes, 1)) &&
		(!q.month || s.month.holds(int64(d.ask.Messages), t))
}

// spend decides a request that leases cover. What the fleet's bucket holds by itself, as far as known, is shown in
// headers but not spent.
func (f *fleet) spend(l *ledger, s *partaking, d *decision, q *question, now time.Time,
) (*Admission, Report, *wire.Error) {
	acc := &l.acc
	acc.refill(d.t)
	requests, messages := acc.requests.level, acc.messages.level
	if q.rates[limitRequests] {
		acc.requests.level = max(0, requests) + s.requests.left
	}
	if q.rates[limitMessages] {
		acc.messages.level = max(0, messages) + s.messages.left
	}
	adm, report, err := f.gate.decide(l, d, now)
	acc.requests.level, acc.messages.level = requests, messages
	if adm != nil {
		adm.central = true
		s.requests.left -= adm.requestTaken
		s.messages.left -= adm.messagesTaken
		if q.storage {
			s.storage.left -= adm.bytes
		}
		if q.month {
			s.month.left -= adm.counted
		}
		s.lastUsed = d.t
	}
	return adm, report, err
}

// central decides a request in Redis. The ledger comes locked and is released. Names that are reserved already stand in
// held, and go back when it is refused; prior is what was decided of them.
func (f *fleet) central(l *ledger, s *partaking, c *plans.Cluster, a *Ask, q *question, held []group, prior *told,
	now time.Time,
) (*Admission, Report, *wire.Error) {
	g, d := f.gate, &l.desk
	t := d.t
	x := &call{script: decideScript, done: make(chan struct{})}
	e := f.express(l, s, &c.Limits, d.key, t, now)
	e.act = actDecide
	if d.told = prior; d.refusedBesides(q) || prior != nil && prior.over != 0 {
		e.act = actLook
	}
	e.ask(d, q)
	if q.slot {
		e.slot = f.newSlot()
		e.deadline = max(0, a.Deadline.Sub(now).Microseconds())
		e.mostSlots = *l.acc.limits.MaxParkedPops
	}
	groups := groupPairs(&s.keys, q.pairs)
	e.names(&l.acc, d.ask.Cost, groups)
	e.fill(x, f, s)
	f.pipe.send(s.keys.lane, x)
	d.clear()
	l.mu.Unlock()
	f.pipe.await(s.keys.lane, x)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.acc.apply(&c.Limits, t)
	r, ok := e.read(x)
	if !ok || !s.mirrors {
		e.lost(l)
		f.join(l, c.ID, t)
		d.begin(&l.acc, c, *a, false, now, t)
		f.stats.local.Inc()
		adm, report, err := g.decide(l, d, now)
		f.seat(l, c.ID, adm)
		if adm != nil && s.mirrors {
			s.heldHere(&l.acc, adm, 1)
		}
		return f.keep(l, s, adm, held, now), report, err
	}
	f.stats.redis.Inc()
	d.begin(&l.acc, c, *a, false, now, t)
	e.load(f, l, s, &r)
	if len(groups) > 0 {
		f.heed(l, s, &r)
	}
	d.told = e.told(&r, prior)
	granted := e.act == actDecide && !r.denied
	if q.read && granted && g.rereads(l, e.month.lacks(&r.month), e.storage.lacks(&r.storage)) {
		e.undo(f, s, &r)
		if r.known && len(groups) > 0 {
			held = append(held, groups...)
		}
		e.lend(s, &r, granted)
		e.restore(l)
		f.keep(l, s, nil, held, now)
		d.clear()
		l.mu.Unlock()
		defer l.mu.Lock()                                // for the one that unlocks it, also when a store panics
		_ = g.ensureBooks(context.Background(), c, true) // what cannot be read is what was heard last
		return f.admitOnce(c, a, now, false)
	}
	adm, report, err := g.decide(l, d, now)
	wholeMicroseconds(err)
	if adm != nil {
		adm.central, adm.slot = true, e.slot
		if !granted {
			s.heldHere(&l.acc, adm, 1)
		}
		if r.known && len(groups) > 0 {
			held = append(held, groups...)
		}
		f.seat(l, c.ID, adm)
	} else if granted { // a rule that Redis does not know refuses by now
		e.undo(f, s, &r)
		if r.known {
			held = append(held, groups...)
		}
	}
	e.lend(s, &r, granted)
	e.restore(l)
	if s.leases() {
		f.busyWith(c.ID, l)
	}
	return f.keep(l, s, adm, held, now), report, err
}

// undo gives back what a granted call took in Redis: with the next call, which may be the next decision of the cluster.
func (e *expression) undo(f *fleet, s *partaking, r *reply) {
	for i := range e.rates {
		b := &e.rates[i]
		b.to.give += b.took(&r.rates[i])
	}
	s.storage.hold -= e.storage.need
	if e.monthOf == s.monthOf {
		s.month.hold -= e.month.need
	}
	f.freeSlot(s, e.slot)
}

// keep gives reserved names to an admission, or back when there is none.
func (f *fleet) keep(l *ledger, s *partaking, adm *Admission, held []group, now time.Time) *Admission {
	if adm != nil {
		adm.reserved = held
	} else if len(held) > 0 {
		f.endNames(l, s, held, "release", now)
	}
	return adm
}

// seat sees to it that Redis goes on hearing of a poll's slot, or will when it is back.
func (f *fleet) seat(l *ledger, id uuid.UUID, adm *Admission) {
	if adm != nil && adm.place >= 0 && l.acc.live[limitParked] {
		f.busyWith(id, l)
	}
}

// newSlot numbers a slot of this gateway.
func (f *fleet) newSlot() int64 { return f.slotNumber.Add(1) }

// wholeMicroseconds rounds a wait up to what Redis's clock can tell apart.
func wholeMicroseconds(err *wire.Error) {
	if err != nil {
		err.RetryAfter = (err.RetryAfter + time.Microsecond - 1).Truncate(time.Microsecond)
	}
}

// refusedBesides reports whether a rule that Redis is not asked for refuses the request: Redis is then only asked
// whether another refuses before it.
func (d *decision) refusedBesides(q *question) bool {
	asked := [limitCount]bool{
		limitParked: q.slot, limitQueues: len(q.pairs) > 0, limitPartitions: len(q.pairs) > 0,
		limitStorage: q.storage, limitMonth: q.month,
	}
	copy(asked[:], q.rates[:])
	for i := range order {
		r := &order[i]
		if !r.costs[d.ask.Cost] || !d.acc.live[r.limit] || d.acc.modes[r.limit] != plans.Enforce || asked[r.limit] {
			continue
		}
		if s, _ := r.check(d); s == over {
			return true
		}
	}
	return false
}

// askHead is Gate.AskHead's question in a fleet, and asks nobody: a head may be refused by what Redis said last, within a
// second and only while no lease has a token. Whom it refuses is promised a time all the same, which Redis hears of with
// the next call. Otherwise the whole request is asked for, once.
func (f *fleet) askHead(l *ledger, d *decision, id uuid.UUID) *wire.Error {
	s := f.join(l, id, d.t)
	for i, to := range [headRules]*side{limitRequests: &s.requests, limitKeyRequests: d.key.side(limitKeyRequests)} {
		if s.mirrors && !s.mayRefuse(d, limit(i)) {
			continue
		}
		err := d.run(order[i : i+1])
		if err == nil {
			continue
		}
		if wholeMicroseconds(err); s.mirrors && !settles(d.ask.Cost) {
			to.owe += token
		}
		return err
	}
	return nil
}

// mayRefuse reports whether a head may be refused for a rate of requests without Redis being asked.
func (s *partaking) mayRefuse(d *decision, i limit) bool {
	recent := func(fresh bool, seen int64) bool { return fresh && d.t-seen < remembering }
	b := d.bucket(i)
	switch {
	case b == nil:
		return false
	case b.blocked():
		return true
	case i == limitKeyRequests:
		return recent(d.key.fresh, d.key.seen)
	}
	return recent(s.fresh, s.seen) && !s.requests.holds(token, d.t)
}

// settle ends an admission of a locked ledger: what it delivered is debited from a rate, the slot is freed, names are
// confirmed or released. Nobody waits for it: it goes ahead of whatever the cluster asks next.
func (f *fleet) settle(l *ledger, a *Admission, delivered int64, stored bool, now time.Time) {
	s := f.join(l, a.id, f.gate.at(now))
	switch from, n := l.acc.debit(delivered, f.gate.at(now)); {
	case !s.mirrors:
	case from == limitDelivery:
		s.delivery.debit += n
	default:
		s.messages.debit += n
	}
	what := "release"
	if stored {
		what = "confirm"
	}
	f.end(l, s, a, what, now)
}

// refund ends an admission of a locked ledger that took no effect.
func (f *fleet) refund(l *ledger, a *Admission, now time.Time) {
	s := f.join(l, a.id, f.gate.at(now))
	acc := &l.acc
	acc.refill(f.gate.at(now))
	if a.central == s.mirrors { // otherwise it was taken from what is no more
		acc.requests.give(a.requestTaken)
		acc.messages.give(a.messagesTaken)
		if s.mirrors {
			s.requests.give += a.requestTaken
			s.messages.give += a.messagesTaken
		}
		if a.key != nil {
			a.key.giveBack(f.gate.at(now))
			f.refundKey(l, s, a.key, now)
		}
	}
	f.end(l, s, a, "release", now)
}

func (f *fleet) end(l *ledger, s *partaking, a *Admission, names string, now time.Time) {
	f.freeSlot(s, a.slot)
	if len(a.reserved) > 0 {
		f.endNames(l, s, a.reserved, names, now)
	}
	a.slot, a.reserved = 0, nil
	if !s.mirrors {
		return
	}
	s.heldHere(&l.acc, a, -1)
	freed := names == "release" && a.counted > 0
	if !freed && s.untold(&l.acc) && !s.tended {
		f.busyWith(a.id, l) // it is told with the next call, or soon
	}
	if freed || s.due() {
		f.flush(l, s, a.id, now)
	}
}

// refundKey tells Redis what a key gets back, by a call of its own: few requests are refunded, and few keys have limits.
func (f *fleet) refundKey(l *ledger, s *partaking, t *taken, now time.Time) {
	if !s.mirrors || t.requests+t.messages == 0 {
		return
	}
	t.key.requestsSide.give += t.requests
	t.key.messagesSide.give += t.messages
	e := f.begin(f.gate.at(now), now)
	e.tellKey(&l.acc, &s.keys, t.key, limitKeyRequests)
	e.tellKey(&l.acc, &s.keys, t.key, limitKeyMessages)
	x := &call{script: decideScript}
	e.fill(x, f, s)
	f.pipe.send(s.keys.lane, x)
	f.pipe.push(s.keys.lane)
}

// freeSlot frees a slot in Redis; none is 0.
func (f *fleet) freeSlot(s *partaking, slot int64) {
	if slot == 0 || !s.mirrors {
		return // after an absence the slots that are left are told anew
	}
	f.pipe.send(s.keys.lane, &call{
		script: slotsScript, keys: []string{s.keys.slots, s.keys.ours}, args: []any{"", f.name, "free", 0, slot},
	})
	f.pipe.push(s.keys.lane)
}
