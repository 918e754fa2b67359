package quota

import (
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
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
	now any
	act int

	requests, messages bucketArgs

	slot           string
	deadline       int64 // microseconds from now
	mostSlots      int64
	slotMode       int
	mostQueues     int64
	mostPartitions int64
	queueMode      int
	partitionMode  int
	groups         []group
	share, of      int64
	leasing        bool
	asked          uint8
}

// bucketArgs are the arguments of one bucket, in millionths.
type bucketArgs struct {
	limited           bool
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

// express begins a call with everything that is to be told, and with leases if they pay and nobody else speaks of them.
func (f *fleet) express(l *ledger, s *partaking, limits *plans.Limits, t int64, now time.Time) *expression {
	acc := &l.acc
	e := &expression{t: t, now: f.ask(now), share: 1, of: 1, mostQueues: -1, mostPartitions: -1, mostSlots: -1}
	if deaf := f.deaf.Load(); deaf > 0 {
		e.of = f.gateways()
		e.share = max(1, e.of-deaf)
	}
	e.leasing = f.leases && !s.leasing && (s.meter.perSecond >= leaseFrom || s.requests.left+s.messages.left > 0)
	if e.leasing {
		s.number++
		s.leasing = true
	}
	one := func(b *bucketArgs, of *bucket, s2 *side, i limit, perSecond, burst *float64) {
		if b.limited = acc.live[i] && !of.blocked(); !b.limited {
			*s2 = newSide(s2)
			return
		}
		rate, whole := rateAndBurst(perSecond, burst)
		b.rate, b.burst = min(rate, maxShared), min(whole, maxShared)
		b.burst = max(b.burst, token)
		b.floor = -b.burst
		if i == limitMessages {
			whole := bucket{rate: b.rate, burst: b.burst}
			b.floor = whole.debtFloor()
		}
		b.hint, b.hinted = s2.hint, s2.hinted
		b.give, b.debit, b.owe = s2.give, s2.debit, s2.owe
		s2.give, s2.debit, s2.owe, s2.hinted = 0, 0, 0, false
		b.line = 1
		if e.leasing {
			b.seq, b.held = s.number, s2.left
			if s.meter.perSecond >= leaseFrom {
				b.slice = s2.slice(b.rate, b.burst, f.gateways())
			}
		}
	}
	one(&e.requests, &acc.requests, &s.requests, limitRequests, limits.RequestsPerSecond, limits.RequestsBurst)
	one(&e.messages, &acc.messages, &s.messages, limitMessages, limits.MessagesPerSecond, limits.MessagesBurst)
	return e
}

// ask puts the request on the desk into the call. What leases have is used first.
func (e *expression) ask(d *decision, q *question) {
	acc := d.acc
	put := func(b *bucketArgs, i limit, n, fit int64) {
		b.need, b.fit, b.mode = n, fit, modeArg(acc.modes[i])
		e.asked |= toldBits[i]
		if e.leasing {
			b.use = min(b.held, n)
		}
	}
	if q.requests {
		fit := token
		if settles(d.ask.Cost) {
			fit -= e.requests.burst
			e.requests.line = 2
		}
		put(&e.requests, limitRequests, token, fit)
	}
	if q.messages {
		put(&e.messages, limitMessages, q.n, q.n)
		if q.n > e.messages.burst {
			e.messages.never = 1
		}
	}
	if q.slot {
		e.asked |= toldBits[limitParked]
		e.slotMode = modeArg(acc.modes[limitParked])
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
	x.keys = append(x.keys, k.requests, k.messages, k.slots, k.ours, k.names, k.queues)
	x.args = append(make([]any, 0, 64), e.now, f.name, e.act, e.share, e.of)
	for _, b := range []*bucketArgs{&e.requests, &e.messages} {
		rate := b.rate
		if !b.limited {
			rate = -1
		}
		var hint any = ""
		if b.hinted {
			hint = b.hint
		}
		x.args = append(x.args, rate, b.burst, b.floor, hint, b.give, b.debit, b.owe, b.seq, b.held, b.back, b.use,
			max(0, b.slice-b.held+b.use),
			b.need, b.fit, b.mode, b.line, b.never)
	}
	x.args = append(x.args, e.slot, e.deadline, e.mostSlots, e.slotMode,
		e.mostQueues, e.queueMode, e.mostPartitions, e.partitionMode, len(e.groups))
	for _, g := range e.groups {
		x.keys = append(x.keys, g.key)
		x.args = append(x.args, g.queue, len(g.partitions))
		for _, p := range g.partitions {
			x.args = append(x.args, p)
		}
	}
	// What a lease pays for the ask is no longer there for others.
	s.requests.left -= e.requests.use
	s.messages.left -= e.messages.use
}

// bucketReply is a bucket as the call found it, with what a lease added to it.
type bucketReply struct{ level, rem, owed, settle, rate, grant int64 }

type reply struct {
	denied             bool
	bits               uint8
	requests, messages bucketReply
	used, earliest     int64
	known              bool
	generation         int64
	queues, newQueues  int64
	partitions         int64
	growsTo            int64
}

// replyLength is how much decide.lua answers; less is a call that came too late.
const replyLength = 22

func readReply(v []int64) reply {
	b := func(v []int64) bucketReply { return bucketReply{v[0], v[1], v[2], v[3], v[4], v[5]} }
	return reply{
		bits: uint8(v[0]), denied: v[1] != 0, requests: b(v[2:8]), messages: b(v[8:14]),
		used: v[14], earliest: v[15], known: v[16] != 0, generation: v[17], queues: v[18], newQueues: v[19],
		partitions: v[20], growsTo: v[21],
	}
}

// load makes the account mirror what the call found, so that the rules see it.
func (e *expression) load(l *ledger, s *partaking, r *reply) {
	acc := &l.acc
	load := func(b *bucket, args *bucketArgs, r *bucketReply) {
		if !args.limited || !b.set {
			return
		}
		b.level, b.rem, b.at, b.rate = r.level, r.rem*1000, max(b.at, e.t), r.rate
		b.line, b.settle = line{r.owed, b.at}, line{r.settle, b.at}
	}
	load(&acc.requests, &e.requests, &r.requests)
	load(&acc.messages, &e.messages, &r.messages)
	s.seen, s.fresh = e.t, true
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
	if prior != nil {
		t.mask, t.over = t.mask|prior.mask, t.over|prior.over
		t.queues, t.newQueues, t.partitions, t.growsTo = prior.queues, prior.newQueues, prior.partitions, prior.growsTo
	}
	return t
}

// lend takes what the call leased, and puts back what it did not use.
func (e *expression) lend(l *ledger, s *partaking, r *reply, granted bool) {
	if !e.leasing {
		return
	}
	s.leasing = false
	take := func(b *bucket, args *bucketArgs, r *bucketReply, to *side) {
		if !args.limited || args.seq == 0 {
			return
		}
		used := args.use
		if !granted || args.took(r) == 0 {
			used = 0
		}
		to.left += args.use - used + r.grant
		b.level -= args.use - used + r.grant // the mirror is of what is not leased
		if to.left > 0 {
			to.expires = e.t + leaseLife.Nanoseconds()
		}
	}
	take(&l.acc.requests, &e.requests, &r.requests, &s.requests)
	take(&l.acc.messages, &e.messages, &r.messages, &s.messages)
	s.lastUsed = max(s.lastUsed, e.t)
}

// restore ends the speed that holds while gateways are cut off: the next call states the plan's.
func (e *expression) restore(l *ledger) {
	if e.requests.limited {
		l.acc.requests.rate = l.acc.part(e.requests.rate)
	}
	if e.messages.limited {
		l.acc.messages.rate = l.acc.part(e.messages.rate)
	}
}

// took is what a granted call took of a bucket.
func (b *bucketArgs) took(r *bucketReply) int64 {
	if b.mode == 0 || b.mode == 2 && (b.never == 1 || r.level < b.fit) {
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
}

// giveBack makes a call return what is leased.
func (e *expression) giveBack(s *partaking) {
	back := func(b *bucketArgs, of *side) {
		b.back, b.held, b.slice, of.left = b.held, 0, 0, 0
	}
	back(&e.requests, &s.requests)
	back(&e.messages, &s.messages)
}

// flush tells Redis, with nobody waiting, what is to be told of a locked ledger. One flush waits at a time; it says what
// is true when it leaves.
func (f *fleet) flush(l *ledger, s *partaking, id uuid.UUID, now time.Time) {
	f.queue(l, s, id, now, false, func(s *partaking) bool {
		return s.requests.give+s.messages.give+s.requests.debit+s.messages.debit > 0
	})
}

// refill asks for more of what leases hold, ahead of need, when half of it is gone.
func (f *fleet) refill(l *ledger, s *partaking, id uuid.UUID, now time.Time) {
	low := func(to *side, b *bucket, i limit) bool {
		return l.acc.live[i] && !b.blocked() && to.left < to.slice(b.rate, b.burst, f.gateways())/2
	}
	if s.leasing || s.meter.perSecond < leaseFrom ||
		!low(&s.requests, &l.acc.requests, limitRequests) && !low(&s.messages, &l.acc.messages, limitMessages) {
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
			e = f.express(l, s, l.acc.limits, f.gate.at(now), now)
			if back && e.leasing {
				e.giveBack(s)
			}
			e.fill(x, f, s)
			return true
		},
		then: func(x *call) {
			l.mu.Lock()
			defer l.mu.Unlock()
			switch {
			case e == nil:
			case x.err != nil:
				e.lost(l)
			case s.mirrors && len(x.reply) == replyLength:
				r := readReply(x.reply)
				e.load(l, s, &r)
				e.lend(l, s, &r, false)
				e.restore(l)
				if s.requests.left+s.messages.left > 0 {
					f.busyWith(id, l)
				}
			}
		},
	})
	f.pipe.push(s.keys.lane)
}
