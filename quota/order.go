package quota

import (
	"time"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// rule is one limit in the order of evaluation. Its functions only look: what a request takes is taken by commit,
// after every rule has passed.
type rule struct {
	limit limit
	costs [wire.CostConfigure + 1]bool // of which routes it is asked

	// check says how the request stands, and which share of the limit would be left (for the report of the limit
	// closest to refusing).
	check func(d *decision) (standing, float64)

	// refuse builds the answer to a request that is over. A rate promises its time to come back here.
	refuse func(d *decision) *wire.Error

	// report describes the limit as it is now, for headers.
	report func(d *decision) Report
}

// standing is how a request stands with one limit.
type standing uint8

const (
	untouched standing = iota // the request asks nothing of it
	fits
	over
)

// order is the one place that says in which order limits are evaluated (design.md 4.2): rate with burst, counts,
// payload, long-poll slots, retained bytes, then the monthly allowance and the hold of the life cycle. The answer to a request
// is its first refusal in this order. The cap on the whole body is enforced by whoever reads it; what comes here is over it in
// shadow mode only.
var order = [...]rule{
	rateRule(limitKeyRequests, all),
	rateRule(limitRequests, all),
	rateRule(limitKeyMessages, pushes),
	rateRule(limitMessages, pushes),
	rateRule(limitDelivery, pops),
	{limitQueues, creates, checkQueues, refuseQueues, reportQueues},
	{limitPartitions, stores, checkPartitions, refusePartitions, reportPartitions},
	{limitBody, all, checkBodySize, refuseBodySize, reportBodySize},
	{limitPayload, pushes, checkPayload, refusePayload, reportPayload},
	{limitBatch, pushes, checkBatch, refuseBatch, reportBatch},
	{limitRetention, configures, checkRetention, refuseRetention, reportRetention},
	{limitParked, pops, checkParked, refuseParked, reportParked},
	{limitStorage, stores, checkStorage, refuseStorage, reportStorage},
	{limitMonth, stores, checkMonth, refuseMonth, reportMonth},
	{limitLife, stores, checkLife, refuseLife, reportLife},
}

// headRules are the rules that a head is asked for.
const headRules = 2

func rateRule(i limit, costs [wire.CostConfigure + 1]bool) rule {
	return rule{i, costs, checkRate(i), refuseRate(i), reportRate(i)}
}

// Which routes a rule is asked for, by wire.Cost.
var (
	all = costs(wire.CostRequest, wire.CostMessages, wire.CostDelivery, wire.CostSettle, wire.CostMixed, wire.CostReplay,
		wire.CostConfigure)
	pushes     = costs(wire.CostMessages)
	stores     = costs(wire.CostMessages, wire.CostReplay)
	pops       = costs(wire.CostDelivery)
	configures = costs(wire.CostConfigure)
	creates    = costs(wire.CostMessages, wire.CostReplay, wire.CostConfigure)
)

func costs(cs ...wire.Cost) (set [wire.CostConfigure + 1]bool) {
	for _, c := range cs {
		set[c] = true
	}
	return set
}

// readsBody reports whether a refusal of the route may come after its body was read.
func readsBody(c wire.Cost) bool { return creates[c] || c == wire.CostMixed }

// decision is the desk on which one request is decided. It lives in the ledger and is reused, so that deciding
// allocates nothing.
type decision struct {
	acc   *account
	key   *keyAccount // of the asking key; nil when it has no limits of its own
	c     *plans.Cluster
	ask   Ask
	head  bool // only the request buckets are asked and the body is unread
	now   time.Time
	t     int64 // now on the gate's clock
	names survey

	told      *told // what the fleet's Redis has decided of it; nil when it was not asked
	surveyed  bool
	nearest   *rule            // the rule with the least share left
	share     float64          // of nearest; below zero when it would have refused, in shadow mode
	overs     [limitCount]bool // the rules that would have
	scratch   []hold           // memory for surveys
	countedIn *tally
}

// scratchHolds bounds the memory that an account keeps for surveys.
const scratchHolds = 64

// begin lays a request on the desk.
func (d *decision) begin(acc *account, c *plans.Cluster, ask Ask, head bool, now time.Time, t int64) {
	d.acc, d.c, d.ask, d.head, d.now, d.t = acc, c, ask, head, now, t
	d.key = acc.key(ask.Key, t)
	d.names, d.surveyed, d.told = survey{}, false, nil
	d.nearest, d.share = nil, 2
	d.overs = [limitCount]bool{}
}

// clear drops what belongs to the caller.
func (d *decision) clear() {
	d.c, d.key, d.ask.Key, d.ask.Pairs, d.told = nil, nil, nil, nil, nil
	if d.surveyed && cap(d.names.holds) <= scratchHolds {
		d.scratch = d.names.holds[:0]
	}
	d.names = survey{}
}

// run asks the rules in order and returns the first refusal, or nil. Nothing of the account changes, save that a
// refusing bucket remembers its promise.
func (d *decision) run(rules []rule) *wire.Error {
	for i := range rules {
		r := &rules[i]
		if !r.costs[d.ask.Cost] || !d.acc.live[r.limit] {
			continue
		}
		s, share := r.check(d)
		s = d.told.correct(r.limit, s)
		if s == untouched {
			continue
		}
		mode := d.acc.modes[r.limit]
		if s == over && mode == plans.Enforce {
			d.countedIn.add(r.limit, mode, over)
			d.nearest = r
			return r.refuse(d)
		}
		if s == over {
			share = -1
			d.overs[r.limit] = true
		}
		if !d.head {
			d.countedIn.add(r.limit, mode, s) // once per request
		}
		if share < d.share {
			d.nearest, d.share = r, share
		}
	}
	return nil
}

// report describes the nearest limit as it is now; the zero Report when the request touched none.
func (d *decision) report(refused *wire.Error) Report {
	if d.nearest == nil {
		return Report{}
	}
	rep := d.nearest.report(d)
	rep.Name = limitNames[d.nearest.limit]
	rep.Mode = d.acc.modes[d.nearest.limit]
	rep.Shadowed = d.overs[d.nearest.limit]
	rep.Remaining = max(0, rep.Remaining)
	if refused != nil && refused.RetryAfter > 0 {
		rep.Reset = refused.RetryAfter
	}
	return rep
}

// commit takes what the rules have granted. It cannot fail.
func (d *decision) commit(a *Admission) {
	acc, ask := d.acc, &d.ask
	acc.open++
	if acc.live[limitRequests] && !d.overs[limitRequests] {
		acc.requests.take(token)
		a.requestTaken = token
	}
	if d.key != nil {
		a.key = d.takeOfKey()
	}
	a.undelivered = d.overs[limitDelivery]
	if ask.Cost == wire.CostDelivery && ask.Wait {
		a.deadline = d.t + max(0, ask.Deadline.Sub(d.now).Nanoseconds())
		acc.parked.park(a)
		d.told.park()
	}
	if acc.countsNames() && len(d.names.holds) > 0 {
		a.holds = append([]hold(nil), d.names.holds...)
		acc.names.reserve(a.holds)
		d.names.queues += d.names.newQueues
	}
	if !stores[ask.Cost] {
		return
	}
	if pushes[ask.Cost] && acc.live[limitMessages] && !d.overs[limitMessages] {
		a.messagesTaken = units(ask.Messages)
		acc.messages.take(a.messagesTaken)
	}
	a.bytes = max(0, ask.PayloadBytes)
	a.counted = int64(max(0, ask.Messages))
	acc.storage.reserved += a.bytes
	acc.month.roll(d.now, acc.limits.Zone)
	a.month = acc.month.month
	acc.month.reserved += a.counted
}

// takeOfKey takes what the request costs its key.
func (d *decision) takeOfKey() *taken {
	k := &taken{key: d.key}
	k.key.open++
	take := func(i limit) int64 {
		if !d.acc.live[i] || d.overs[i] {
			return 0
		}
		b, n, _ := d.asks(i)
		if b == nil {
			return 0
		}
		b.take(n)
		return n
	}
	k.requests, k.messages = take(limitKeyRequests), take(limitKeyMessages)
	return k
}
