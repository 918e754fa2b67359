package quota

import (
	"time"

	"github.com/queengate/queengate/plans"
)

// What a fleet uses over time, retained bytes and the month, is counted in Redis in two parts: what has been used, and what
// each gateway holds, which is what its requests in flight may use and what it has taken ahead of need. Together they may
// not exceed the plan. A gateway tells with its calls what it has used and what it no longer holds.

const (
	// purseShare is which part of what is left a gateway of a busy cluster takes ahead, divided by the gateways: so small
	// that others are refused at the end only what was worth a request or two when it was taken.
	purseShare = 64

	// tellEvery is how long what was used may stay untold. Until then it counts as held, so that nobody else is let in for
	// it; only the time of what was stored suffers, by which it is told apart from what a measure has seen.
	tellEvery = 200 * time.Millisecond
)

// purse is what is to be told of one limit over time, and what was taken ahead of it. Its ledger's mutex guards it.
type purse struct {
	left    int64 // taken ahead and not used
	taken   int64 // what left was when it was taken
	expires int64 // on the gate's clock: not to be used any more
	hold    int64 // to be told: held more, or less when negative
	told    int64 // of the month: what Redis was told last that this gateway has counted
	lost    bool  // Redis does not know the limit's use: it has to be read
}

// holds reports whether n may be used at t without asking.
func (p *purse) holds(n, t int64) bool { return p.left >= n && t < p.expires }

// drop gives back what was taken ahead.
func (p *purse) drop() {
	p.hold -= p.left
	p.left = 0
}

// expire gives back what may no longer be used.
func (p *purse) expire(t int64) {
	if p.left > 0 && t >= p.expires {
		p.drop()
	}
}

// purseArgs are the arguments of one limit over time.
type purseArgs struct {
	limited     bool
	key         string
	most        int64
	mode        int // as of a bucket: 0 not asked
	need        int64
	hold, held  int64 // the change, and all that is held, for a Redis that does not know
	used        int64 // stored since the last call, or all that was counted of the month; below 0: not known
	age         int64 // of the last that was stored, in microseconds
	share, left int64 // the divisor of what is left; 0: nothing is taken ahead
	least       int64 // of bytes, after an absence: what is retained at least
	shut        bool  // and that the cluster was blocked
}

// keyOr is the key of the limit, or any of its kind when it is not limited.
func (p *purseArgs) keyOr(any string) string {
	if p.limited {
		return p.key
	}
	return any
}

// lacks reports that a call was to enforce the limit, and that Redis does not know its use.
func (p *purseArgs) lacks(r *purseReply) bool { return p.mode == modeArg(plans.Enforce) && !r.known }

// pack appends the arguments of a call.
func (p *purseArgs) pack(to packed) packed {
	if to.add(flag(p.limited)); p.limited {
		to.add(p.most, int64(p.mode), p.need, p.hold, p.held, p.used, p.age, p.share, p.left, p.least, flag(p.shut))
	}
	return to
}

// leases reports that something taken ahead is left.
func (s *partaking) leases() bool {
	return s.requests.left+s.messages.left > 0 || s.storage.left+s.month.left > 0
}

// untold reports that there is something to tell of use over time.
func (s *partaking) untold(acc *account) bool {
	return acc.live[limitStorage] && (s.storage.hold != 0 || acc.storage.untold > 0) ||
		acc.live[limitMonth] && (s.month.hold != 0 || acc.month.known && acc.month.own > s.month.told)
}

// purses fills a call's part of use over time. It is left out when it is neither asked for nor to be told.
func (f *fleet) purses(e *expression, l *ledger, s *partaking, now time.Time) {
	acc := &l.acc
	acc.month.roll(now, acc.limits.Zone)
	s.toldAt = e.t
	if s.monthOf != acc.month.month {
		s.monthOf, s.month = acc.month.month, purse{}
	}
	share := int64(0)
	if e.leasing && s.meter.perSecond >= leaseFrom {
		share = purseShare * f.gateways()
	}
	if acc.live[limitStorage] {
		st := &acc.storage
		e.storage = purseArgs{
			limited: true, key: s.keys.storage, most: min(*acc.limits.MaxRetainedBytes, maxShared), share: share, left: s.storage.left,
			hold: s.storage.hold, held: st.reserved + s.storage.left, used: st.untold, age: (e.t - st.untoldAt) / 1000,
			least: st.least, shut: st.shut,
		}
		s.storage.hold, st.untold = 0, 0
	} else {
		s.storage = purse{}
	}
	if acc.live[limitMonth] {
		m := &acc.month
		e.month = purseArgs{
			limited: true, key: s.keys.months + m.month.String(), most: min(*acc.limits.MonthlyMessages, maxShared), share: share,
			left: s.month.left, hold: s.month.hold, held: m.reserved + s.month.left, used: -1,
		}
		if m.known {
			e.month.used = m.own
			s.month.told = m.own
		}
		e.monthOf = m.month
		s.month.hold = 0
	} else {
		s.month = purse{}
	}
}

// purseReply is one limit over time as a call found it.
type purseReply struct {
	known   bool
	others  int64 // of the month: all that was counted; and what others hold
	ours    int64 // of the month: what this gateway has counted, as Redis knows it
	blocked bool
	grant   int64
}

// loadPurses makes the account mirror what the call found.
func (e *expression) loadPurses(f *fleet, l *ledger, s *partaking, r *reply) {
	acc := &l.acc
	if e.storage.limited {
		st, was := &acc.storage, acc.storage.blocked
		if e.storage.least == st.least && e.storage.shut == st.shut {
			st.least, st.shut = 0, false // it has been told
		}
		if s.storage.lost = !r.storage.known; r.storage.known {
			st.others, st.blocked = r.storage.others, r.storage.blocked
			f.gate.blockChanged(st, was, l.cluster)
		}
	}
	if e.month.limited && e.monthOf == acc.month.month {
		if s.month.lost = !r.month.known; r.month.known {
			acc.month.hear(r.month.others, r.month.ours)
		}
	}
}

// lendPurses takes what the call took ahead.
func (e *expression) lendPurses(s *partaking, r *reply) {
	take := func(p *purse, n int64) {
		p.left += n
		p.taken = p.left
		p.expires = e.t + leaseLife.Nanoseconds()
	}
	if e.storage.limited && r.storage.grant > 0 {
		take(&s.storage, r.storage.grant)
	}
	if e.month.limited && e.monthOf == s.monthOf && r.month.grant > 0 {
		take(&s.month, r.month.grant)
	}
}

// lostPurses ends a call without an answer: what it told may not have been heard. The rest is told anew, as a whole, when
// Redis is back.
func (e *expression) lostPurses(l *ledger) {
	if e.storage.limited && e.storage.used > 0 {
		st := &l.acc.storage
		if st.mirrored {
			st.untold += e.storage.used
		} else {
			st.store(e.storage.used, e.at)
		}
	}
}

// heldHere notes that this gateway has admitted a request which Redis has not granted, with sign 1, or that a request has
// ended, with sign -1.
func (s *partaking) heldHere(acc *account, a *Admission, sign int64) {
	s.storage.hold += sign * a.bytes
	if a.month == s.monthOf {
		s.month.hold += sign * a.counted
	}
}
