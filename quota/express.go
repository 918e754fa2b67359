package quota

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/quota/meter"
	"github.com/queengate/queengate/wire"
)

// What decide.lua does with the ask of a call.
const (
	actSettle = 0 // there is none
	actLook   = 1 // says how it stands, and takes nothing
	actDecide = 2
)

// expression is a call of decide.lua in the making, and what is needed to understand its reply.
type expression struct {
	t   int64
	at  time.Time // the same
	now any
	act int

	rates []bucketArgs  // in the order of evaluation
	two   [2]bucketArgs // their memory; mostly there are no more
	key   *keyAccount   // whose are among them; nil: nobody's

	slot           int64 // its number; 0: none
	deadline       int64 // microseconds from now
	mostSlots      int64
	slotMode       int
	mostQueues     int64
	mostPartitions int64
	queueMode      int
	partitionMode  int
	groups         []group
	share, of      int64 // gateways that are heard of, and all: the rest of the rate is kept for those that are missing
	died           int64 // 1: what was kept is nobody's any more
	leasing        bool
	asked          uint16

	storage, month purseArgs
	monthOf        meter.Month
}

// bucketArgs are the arguments of one bucket, in millionths. Redis hears only of those that the plan limits.
type bucketArgs struct {
	limit             limit
	name              string // in Redis
	of                *bucket
	to                *side
	rate, burst       int64
	floor             int64
	hint              int64
	hinted            bool
	give, debit, owe  int64
	seq               int64
	held, back, use   int64
	slice             int64 // what a lease should hold; 0: none is wanted
	need, fit         int64
	mode, line, never int
}

// maxShared bounds rates and bursts in Redis, whose scripts count in doubles: a billion tokens, as plans do.
const maxShared = 1e15

// modeArg is a mode as the scripts know it.
func modeArg(m plans.Mode) int {
	if m == plans.Shadow {
		return 2
	}
	return 1
}

// begin begins a call.
func (f *fleet) begin(t int64, now time.Time) *expression {
	e := &expression{t: t, at: now, now: f.ask(now), share: 1, of: 1, mostQueues: -1, mostPartitions: -1, mostSlots: -1}
	e.rates = e.two[:0]
	if deaf := f.deaf.Load(); deaf > 0 {
		e.of = f.gateways()
		e.share = max(1, e.of-deaf)
	}
	e.died = flag(f.dead.Load() > 0)
	return e
}

// express begins a call with everything that is to be told, and with leases if they pay and nobody else speaks of them.
// Of keys it tells only what concerns the one that asks.
func (f *fleet) express(l *ledger, s *partaking, limits *plans.Limits, key *keyAccount, t int64, now time.Time) *expression {
	acc := &l.acc
	e := f.begin(t, now)
	e.leasing = f.leases && !s.leasing && (s.meter.perSecond >= leaseFrom || s.leases())
	if e.leasing {
		s.number++
		s.leasing = true
	}
	k := &s.keys
	e.tellKey(acc, k, key, limitKeyRequests)
	e.tell(acc, limitRequests, k.requests, &acc.requests, &s.requests, limits.RequestsPerSecond, limits.RequestsBurst)
	e.tellKey(acc, k, key, limitKeyMessages)
	e.tell(acc, limitMessages, k.messages, &acc.messages, &s.messages, limits.MessagesPerSecond, limits.MessagesBurst)
	e.tell(acc, limitDelivery, k.delivery, &acc.delivery, &s.delivery, limits.DeliveryPerSecond, limits.DeliveryBurst)
	for i := range e.rates {
		b := &e.rates[i]
		if !e.leasing || !b.limit.leasable() {
			continue
		}
		b.seq, b.held = s.number, b.to.left
		if s.meter.perSecond >= leaseFrom {
			b.slice = b.to.slice(b.rate, b.burst, f.gateways())
		}
	}
	f.purses(e, l, s, now)
	return e
}

// tellKey adds a bucket of a key, if there is a key.
func (e *expression) tellKey(acc *account, names *keys, k *keyAccount, i limit) {
	if k == nil {
		return
	}
	e.key = k
	stem, l := names.key+k.id.String(), k.limits
	if i == limitKeyRequests {
		e.tell(acc, i, stem+":req", &k.requests, &k.requestsSide, l.RequestsPerSecond, l.RequestsBurst)
	} else {
		e.tell(acc, i, stem+":msgs", &k.messages, &k.messagesSide, l.MessagesPerSecond, l.MessagesBurst)
	}
}

// tell adds a bucket that is limited, with what is to be told of it.
func (e *expression) tell(acc *account, i limit, name string, of *bucket, to *side, perSecond, burst *float64) {
	if !acc.live[i] || !of.set || perSecond == nil || of.blocked() {
		*to = newSide(to)
		return
	}
	e.rates = append(e.rates, bucketArgs{limit: i, name: name, of: of, to: to, line: 1})
	b := &e.rates[len(e.rates)-1]
	rate, whole := rateAndBurst(perSecond, burst)
	b.rate, b.burst = min(rate, maxShared), min(whole, maxShared)
	b.burst = max(b.burst, token)
	b.floor = -b.burst
	if !i.ofRequests() {
		whole := bucket{rate: b.rate, burst: b.burst}
		b.floor = whole.debtFloor()
	}
	b.hint, b.hinted = to.hint, to.hinted
	b.give, b.debit, b.owe = to.give, to.debit, to.owe
	to.give, to.debit, to.owe, to.hinted = 0, 0, 0, false
}

// ask puts the request on the desk into the call. What leases have is used first.
func (e *expression) ask(d *decision, q *question) {
	for i := range e.rates {
		b := &e.rates[i]
		if !q.rates[b.limit] {
			continue
		}
		_, n, need := d.asks(b.limit)
		b.need, b.fit, b.mode = n, need, modeArg(d.acc.modes[b.limit])
		b.use = min(b.held, n)
		if settles(d.ask.Cost) {
			b.line = 2
		}
		if n > b.burst {
			b.never = 1
		}
		e.asked |= toldBits[b.limit]
	}
	over := func(p *purseArgs, i limit, asked bool, n int64) {
		if asked && p.limited {
			p.need, p.mode = min(n, maxShared), modeArg(d.acc.modes[i])
		}
	}
	over(&e.storage, limitStorage, q.storage, max(0, d.ask.PayloadBytes))
	over(&e.month, limitMonth, q.month, int64(d.ask.Messages))
	if q.slot {
		e.asked |= toldBits[limitParked]
		e.slotMode = modeArg(d.acc.modes[limitParked])
	}
}

// names puts the names that may be new into the call.
func (e *expression) names(acc *account, cost wire.Cost, groups []group) {
	e.groups = groups
	if len(groups) == 0 {
		return
	}
	if acc.live[limitQueues] && rulesOf[limitQueues].costs[cost] {
		e.mostQueues, e.queueMode = *acc.limits.MaxQueues, modeArg(acc.modes[limitQueues])
	}
	if acc.live[limitPartitions] && rulesOf[limitPartitions].costs[cost] {
		e.mostPartitions, e.partitionMode = *acc.limits.MaxPartitionsPerQueue, modeArg(acc.modes[limitPartitions])
	}
}

// fill writes the call.
func (e *expression) fill(x *call, f *fleet, s *partaking) {
	k := &s.keys
	x.keys = append(make([]string, 0, 12), k.slots, k.ours, k.names, k.queues, k.storage, e.month.keyOr(k.months))
	p := make(packed, 0, 512)
	p.add(int64(e.act), e.share, e.of, int64(e.died), s.epoch, int64(len(e.rates)),
		e.slot, e.deadline, e.mostSlots, int64(e.slotMode),
		e.mostQueues, int64(e.queueMode), e.mostPartitions, int64(e.partitionMode), int64(len(e.groups)))
	for i := range e.rates {
		b := &e.rates[i]
		x.keys = append(x.keys, b.name)
		p.add(int64(toldBits[b.limit]), flag(b.limit.ofKey()), b.rate, b.burst, b.floor, b.need, b.fit,
			flag(b.limit != limitDelivery), int64(b.mode), int64(b.line), int64(b.never))
		told := b.hinted || b.give|b.debit|b.owe|b.seq != 0
		if p.add(flag(told)); told {
			hint := int64(noHint)
			if b.hinted {
				hint = b.hint
			}
			p.add(hint, b.give, b.debit, b.owe, b.seq, b.held, b.back, b.use, max(0, b.slice-b.held+b.use))
		}
		b.to.left -= b.use // what a lease pays for the ask is no longer there for others
	}
	p = e.month.pack(e.storage.pack(p))
	for _, g := range e.groups {
		p.add(int64(len(g.partitions)))
	}
	x.args = append(make([]any, 0, fixedArgs), e.now, f.name, 1, []byte(p))
	for _, g := range e.groups {
		x.keys = append(x.keys, g.key)
		x.args = append(x.args, g.queue)
		for _, name := range g.partitions {
			x.args = append(x.args, name)
		}
	}
}

// noHint stands for no hint: no level is so low.
const noHint = -1e18

// packed is numbers as decide.lua reads and writes them.
type packed []byte

func (p *packed) add(numbers ...int64) {
	for _, n := range numbers {
		*p = binary.LittleEndian.AppendUint64(*p, math.Float64bits(float64(n)))
	}
}

func (p packed) len() int { return len(p) / 8 }

func (p packed) at(i int) int64 {
	return int64(math.Float64frombits(binary.LittleEndian.Uint64(p[8*i:])))
}

func flag(set bool) int64 {
	if set {
		return 1
	}
	return 0
}

// bucketReply is a bucket as the call found it, with what a lease added to it.
type bucketReply struct{ level, rem, owed, settle, rate, grant int64 }

type reply struct {
	denied            bool
	bits              uint16
	rates             [limitRates]bucketReply // as many as the call has, in its order
	used, earliest    int64
	known             bool
	generation        int64
	queues, newQueues int64
	partitions        int64
	growsTo           int64
	storage, month    purseReply
}

// What decide.lua answers: so many numbers, and so many more for each bucket of the call.
const replyLength, bucketReplyLength = 18, 6

// read understands what the call was answered; ok is false when there is no answer, or when the call came too late.
func (e *expression) read(x *call) (r reply, ok bool) {
	v := x.answer
	if x.err != nil || v.len() != replyLength+bucketReplyLength*len(e.rates) {
		return reply{}, false
	}
	r = reply{
		bits: uint16(v.at(0)), denied: v.at(1) != 0, used: v.at(2), earliest: v.at(3),
		known: v.at(4) != 0, generation: v.at(5),
		queues: v.at(6), newQueues: v.at(7), partitions: v.at(8), growsTo: v.at(9),
		storage: purseReply{known: v.at(10) != 0, others: v.at(11), blocked: v.at(12) != 0, grant: v.at(13)},
		month:   purseReply{known: v.at(14) != 0, others: v.at(15), ours: v.at(16), grant: v.at(17)},
	}
	for i := range e.rates {
		b := v[8*(replyLength+bucketReplyLength*i):]
		r.rates[i] = bucketReply{b.at(0), b.at(1), b.at(2), b.at(3), b.at(4), b.at(5)}
	}
	return r, true
}

// load makes the account mirror what the call found, so that the rules see it.
func (e *expression) load(f *fleet, l *ledger, s *partaking, r *reply) {
	e.loadPurses(f, l, s, r)
	for i := range e.rates {
		b, r := e.rates[i].of, &r.rates[i]
		if !b.set {
			continue
		}
		b.level, b.rem, b.at, b.rate = r.level, r.rem*1000, max(b.at, e.t), r.rate
		b.line, b.settle = line{r.owed, b.at}, line{r.settle, b.at}
	}
	s.seen, s.fresh = e.t, true
	if e.key != nil {
		e.key.seen, e.key.fresh = e.t, true
	}
}

// told is what the call decided, after what was decided prior to it.
func (e *expression) told(r *reply, prior *told) *told {
	t := &told{
		mask: e.asked, over: r.bits, parked: r.used, untilSlot: time.Duration(r.earliest) * time.Microsecond,
		queues: int(r.queues), newQueues: int(r.newQueues), partitions: int(r.partitions), growsTo: int(r.growsTo),
	}
	if r.known {
		if e.queueMode > 0 {
			t.mask |= toldBits[limitQueues]
		}
		if e.partitionMode > 0 {
			t.mask |= toldBits[limitPartitions]
		}
	}
	// What Redis does not know it decides by what it has heard: enough to refuse, not enough to let in.
	if e.storage.mode > 0 && (r.storage.known || r.bits&toldBits[limitStorage] != 0) {
		t.mask |= toldBits[limitStorage]
	}
	if e.month.mode > 0 && (r.month.known || r.bits&toldBits[limitMonth] != 0) {
		t.mask |= toldBits[limitMonth]
	}
	if prior != nil {
		t.mask, t.over = t.mask|prior.mask, t.over|prior.over
		t.queues, t.newQueues, t.partitions, t.growsTo = prior.queues, prior.newQueues, prior.partitions, prior.growsTo
	}
	return t
}

// lend takes what the call leased, and puts back what it did not use.
func (e *expression) lend(s *partaking, r *reply, granted bool) {
	if !e.leasing {
		return
	}
	s.leasing = false
	for i := range e.rates {
		b, r := &e.rates[i], &r.rates[i]
		if b.seq == 0 {
			continue
		}
		used := b.use
		if !granted || b.took(r) == 0 {
			used = 0
		}
		b.to.left += b.use - used + r.grant
		b.of.level -= b.use - used + r.grant // the mirror is of what is not leased
		if b.to.left > 0 {
			b.to.expires = e.t + leaseLife.Nanoseconds()
		}
	}
	e.lendPurses(s, r)
	s.lastUsed = max(s.lastUsed, e.t)
}

// restore ends the speed that holds while gateways are cut off: the next call states the plan's.
func (e *expression) restore(l *ledger) {
	for i := range e.rates {
		if b := &e.rates[i]; b.of.set {
			b.of.rate = l.acc.part(b.rate)
		}
	}
}

// took is what a granted call took of a bucket.
func (b *bucketArgs) took(r *bucketReply) int64 {
	if b.limit == limitDelivery || b.mode == 0 || b.mode == 2 && (b.never == 1 || r.level < b.fit) {
		return 0
	}
	return b.need
}

// lost ends a call without an answer: it may have taken effect or not. Tokens that it took are gone, those that it gave
// too, which is the safe side; debits stand in the mirror, and in the part of it that this gateway goes on with.
func (e *expression) lost(l *ledger) {
	if e.leasing {
		l.partaking.leasing = false
	}
	e.lostPurses(l)
}

// giveBack makes a call return what is leased.
func (e *expression) giveBack(s *partaking) {
	for i := range e.rates {
		if b := &e.rates[i]; b.limit.leasable() {
			b.back, b.held, b.slice, b.to.left = b.held, 0, 0, 0
		}
	}
	purse := func(p *purseArgs, of *purse) {
		p.hold, p.held, p.share, p.left, of.left = p.hold-of.left, p.held-of.left, 0, 0, 0
	}
	purse(&e.storage, &s.storage)
	purse(&e.month, &s.month)
}

// flush tells Redis, with nobody waiting, what is to be told of a locked ledger. One flush waits at a time; it says what
// is true when it leaves.
func (f *fleet) flush(l *ledger, s *partaking, id uuid.UUID, now time.Time) {
	f.queue(l, s, id, now, false, func(s *partaking) bool {
		return s.due() || s.untold(&l.acc)
	})
}

// due reports whether something is to be told of the cluster's buckets.
func (s *partaking) due() bool { return s.requests.due() || s.messages.due() || s.delivery.due() }

// refill asks for more of what leases hold, ahead of need, when half of it is gone.
func (f *fleet) refill(l *ledger, s *partaking, id uuid.UUID, now time.Time) {
	lowPurse := func(p *purse, i limit) bool { return l.acc.live[i] && p.left < p.taken/2 }
	low := func(to *side, b *bucket, i limit) bool {
		return l.acc.live[i] && !b.blocked() && to.left < to.slice(b.rate, b.burst, f.gateways())/2
	}
	if s.leasing || s.meter.perSecond < leaseFrom ||
		!low(&s.requests, &l.acc.requests, limitRequests) && !low(&s.messages, &l.acc.messages, limitMessages) &&
			!lowPurse(&s.storage, limitStorage) && !lowPurse(&s.month, limitMonth) {
		return
	}
	f.queue(l, s, id, now, false, func(s *partaking) bool { return !s.leasing })
}

// queue sends a call without an ask, unless there is one or nothing is due when it leaves. With back, it returns leases.
func (f *fleet) queue(l *ledger, s *partaking, id uuid.UUID, now time.Time, back bool, due func(*partaking) bool) {
	if s.flushing || !s.mirrors {
		return
	}
	s.flushing = true
	var e *expression
	f.pipe.send(s.keys.lane, &call{
		script: decideScript,
		prepare: func(x *call) bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			s.flushing = false
			if !s.mirrors || l.acc.limits == nil || !due(s) {
				return false
			}
			e = f.express(l, s, l.acc.limits, nil, f.gate.at(now), now)
			if back && e.leasing {
				e.giveBack(s)
			}
			e.fill(x, f, s)
			return true
		},
		then: func(x *call) {
			l.mu.Lock()
			defer l.mu.Unlock()
			if e == nil {
				return
			}
			r, ok := e.read(x)
			switch {
			case x.err != nil:
				e.lost(l)
			case s.mirrors && ok:
				e.load(f, l, s, &r)
				e.lend(s, &r, false)
				e.restore(l)
				if s.leases() {
					f.busyWith(id, l)
				}
			}
		},
	})
	f.pipe.push(s.keys.lane)
}
