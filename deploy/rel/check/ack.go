package check

import (
	"slices"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// signal is what an ack says about a message, from the weakest to the strongest.
type signal uint8

const (
	completed signal = iota
	retry
	failure
	deadLetter
)

// signalOf folds the spellings of the wire: any word that it does not know is a failure.
func signalOf(status string) signal {
	switch status {
	case "", "completed", "success", "acked", "ok":
		return completed
	case "retry":
		return retry
	case "dlq":
		return deadLetter
	}
	return failure
}

// cursorOf returns the partition and group that an ack is about.
func (j *judge) cursorOf(tenant, group string, it *hist.AckItem) *cursor {
	return j.cursor(j.lane(tenant, it.Queue, it.Partition), group)
}

// reach is how far an ack item may move the cursor.
func reach(it *hist.AckItem) int64 {
	if signalOf(it.Status) == retry {
		return it.Offset - 1
	}
	return it.Offset
}

// ackInvoked notes that an ack is under way, and reports whether its lease has been superseded.
func (j *judge) ackInvoked(o *operation, it *hist.AckItem, group string) (superseded bool) {
	c := j.cursorOf(o.event.Tenant, group, it)
	if at, ok := c.under[o.event.Op]; !ok || reach(it) > at {
		c.under[o.event.Op] = reach(it)
	}
	c.sent(o.inv, reach(it), o.event.Op)
	g := j.grant(c, it.LeaseID)
	return g != nil && supersededBy(g) != nil
}

// grant returns what a lease delivered of a partition, nil when nobody saw that.
func (j *judge) grant(c *cursor, leaseID string) *grant {
	held := j.leases[leaseID]
	if held == nil {
		return nil
	}
	i := slices.IndexFunc(held.grants, func(g *grant) bool { return g.cursor == c })
	if i < 0 {
		return nil
	}
	return held.grants[i]
}

// supersededBy returns a delivery of the same partition and group that surely came after g, nil when there is none yet.
func supersededBy(g *grant) *grant {
	list := g.cursor.grants
	for i := len(list) - 1; i >= 0 && list[i] != g; i-- {
		if list[i].inv > g.ret {
			return list[i]
		}
	}
	return nil
}

// verdict is what became of one item of an ack or of a transaction.
type verdict struct {
	success, noop, dlq bool
	unsure             bool // the broker does not know
}

// bundle is what one call says about one partition under one lease. The broker judges it together.
type bundle struct {
	cursor *cursor
	lease  string
	grant  *grant // what the lease delivered, nil when nobody saw that
	items  []bundled
}

type bundled struct {
	offset int64
	signal signal
	verdict
}

// acked takes an ack that came back, or never did.
func (j *judge) acked(o *operation, e *hist.Event, a *hist.AckArgs, v *hist.AckAnswer) {
	var bundles []*bundle
	for i := range a.Items {
		var r verdict
		if e.Kind == hist.OK {
			x := &(*v)[i]
			r = verdict{x.Success, x.Noop, x.DLQ, hist.AckOutcome(e.Kind, x) == hist.Info}
		}
		bundles = j.collect(o, e, bundles, &a.Items[i], a.Group, i, r)
	}
	j.settle(o, e, bundles)
}

// collect adds an item to the bundle of its partition and lease, and judges L2.
func (j *judge) collect(o *operation, e *hist.Event, bundles []*bundle, it *hist.AckItem, group string, index int, r verdict) []*bundle {
	c := j.cursorOf(o.event.Tenant, group, it)
	if o.superseded[index] {
		j.rules[L2].checked++
		if r.success && !r.noop {
			g := j.grant(c, it.LeaseID)
			j.bad(L2, []int64{g.op, supersededBy(g).op, e.Op}, "%s: an ack of offset %d succeeds under the lease %s, which was superseded before it was sent",
				c.name(), it.Offset, it.LeaseID)
		} else if e.Kind != hist.Info && !r.success && !r.unsure {
			j.counts.Fenced++
		}
	}
	if r.success && !r.noop {
		j.counts.Acks++
	}
	i := slices.IndexFunc(bundles, func(b *bundle) bool { return b.cursor == c && b.lease == it.LeaseID })
	if i < 0 {
		i = len(bundles)
		bundles = append(bundles, &bundle{cursor: c, lease: it.LeaseID, grant: j.grant(c, it.LeaseID)})
	}
	b := bundles[i]
	b.items = append(b.items, bundled{it.Offset, signalOf(it.Status), r})
	return bundles
}

// settle draws the consequences of what an ack or a transaction said, once it is back.
func (j *judge) settle(o *operation, e *hist.Event, bundles []*bundle) {
	for _, b := range bundles {
		kind := b.outcome(e.Kind)
		if at, ok := b.cursor.under[e.Op]; ok {
			delete(b.cursor.under, e.Op)
			if kind == hist.Info {
				b.cursor.settled = max(b.cursor.settled, at)
			}
		}
		if e.F == hist.Ack && e.Kind != hist.Fail {
			b.cursor.acks++
		}
		switch kind {
		case hist.OK:
			j.effect(o, e, b)
		case hist.Info:
			j.perhaps(o, e, b)
		}
	}
}

// outcome is that of the bundle in an operation that ended in op: the broker decides a bundle as one.
func (b *bundle) outcome(op hist.Kind) hist.Kind {
	if slices.ContainsFunc(b.items, func(it bundled) bool { return it.unsure }) {
		return hist.Info
	}
	return op
}

// lowest returns the lowest negative signal of a bundle and the strongest one at that offset; found is false when it
// says nothing but completed. Items that did not succeed count only if all says so.
func (b *bundle) lowest(all bool) (at bundled, found bool) {
	for _, it := range b.items {
		if it.signal == completed || !it.success && !all {
			continue
		}
		switch {
		case !found || it.offset < at.offset:
			at, found = it, true
		case it.offset == at.offset:
			at.signal, at.dlq = max(at.signal, it.signal), at.dlq || it.dlq
		}
	}
	return at, found
}

// highest returns the highest offset below a bound that the bundle completes, -1 when there is none.
func (b *bundle) highest(below int64, all bool) int64 {
	most := int64(-1)
	for _, it := range b.items {
		if it.signal == completed && it.offset < below && (it.success || all) {
			most = max(most, it.offset)
		}
	}
	return most
}

// effect takes what an answered ack did.
func (j *judge) effect(o *operation, e *hist.Event, b *bundle) {
	c := b.cursor
	if s, ok := j.sought[c.reader()]; ok && s.ret > o.inv {
		return // the cursor was moved by hand meanwhile
	}
	low, negative := b.lowest(false)
	surely := b.highest(never, false)
	possibly := surely
	released := b.grant == nil || surely >= b.grant.last
	if negative {
		released = true
		surely = b.highest(low.offset, false)
		possibly = low.offset - 1
		if low.dlq {
			surely = low.offset
		}
		if low.signal > retry {
			possibly = low.offset
		}
		j.mixed(e, b, low, surely, possibly)
	}
	acted := slices.ContainsFunc(b.items, func(it bundled) bool { return it.success && !it.noop })
	c.settled = max(c.settled, possibly)
	if surely >= 0 {
		c.reached(int64(e.T), surely, e.Op)
	}
	if !acted {
		return
	}
	if !negative {
		c.next = nil // the cursor has moved on
	}
	if released {
		c.release(b.grant, o.inv)
	}
	switch {
	case b.grant == nil:
		c.budget.low = 0 // whether a batch was under way is not known
	case !negative && surely >= b.grant.last:
		c.budget = budget{}
	}
	first := surely
	if b.grant != nil {
		first = b.grant.first
	}
	for at := max(first, 0); at <= surely; at++ {
		if !negative || !low.dlq || at != low.offset {
			c.completed.set(at)
		}
	}
	for at := max(first, surely+1, 0); negative && at < low.offset; at++ {
		c.maybe.set(at)
	}
	c.note(o, e, b, surely, possibly, released)
}

// release ends what is surely held at a time: by the lease of g, by every lease when g is nil.
func (c *cursor) release(g *grant, at int64) {
	if g != nil {
		g.until = min(g.until, at)
		return
	}
	for i := len(c.grants) - 1; i >= 0 && c.grants[i].until > at; i-- {
		c.grants[i].until = at
	}
}

// perhaps takes what an ack of unknown outcome may have done.
func (j *judge) perhaps(o *operation, e *hist.Event, b *bundle) {
	c := b.cursor
	low, negative := b.lowest(true)
	most := b.highest(never, true)
	first := most
	if b.grant != nil {
		first = b.grant.first
	}
	if negative {
		c.failed.setIf(low.signal > retry, low.offset)
		most = max(low.offset, -1)
		if b.grant == nil {
			first = most
		}
		c.budget.high++
	}
	for at := max(first, 0); at <= most; at++ {
		c.maybe.set(at)
	}
	c.budget.low = 0
	c.next = nil
	if negative || b.grant == nil || most >= b.grant.last {
		c.release(b.grant, o.inv)
	}
	c.note(o, e, b, -1, most, false)
}

func (b *bitset) setIf(yes bool, o int64) {
	if yes {
		b.set(o)
	}
}

// mixed judges A4: the answers to a bundle with negative signals, the retry budget, and where the next delivery begins.
func (j *judge) mixed(e *hist.Event, b *bundle, low bundled, surely, possibly int64) {
	c := b.cursor
	ops := []int64{e.Op}
	if b.grant != nil {
		ops = append(ops, b.grant.op)
	}
	j.rules[A4].checked++
	for _, it := range b.items {
		if it.dlq && (it.offset != low.offset || it.signal < failure) {
			j.bad(A4, ops, "%s: offset %d is reported dead, and the lowest signal is %d", c.name(), it.offset, low.offset)
			return
		}
	}
	alone := len(c.under) == 0
	letters := c.lane.queue != nil && c.lane.queue.DeadLetters
	if low.signal >= failure {
		c.failed.set(low.offset)
	}
	switch {
	case low.signal == deadLetter:
		if letters && !low.dlq {
			j.bad(A4, ops, "%s: offset %d was sent to the dead letters, and the answer does not say so", c.name(), low.offset)
		}
		c.budget = budget{}
	case low.signal == failure:
		c.budget.low++
		c.budget.high++
		limit := never
		if c.lane.queue != nil {
			limit = int64(c.lane.queue.RetryLimit)
		}
		if alone && letters {
			if low.dlq && int64(c.budget.high) <= limit {
				j.bad(A4, ops, "%s: offset %d is dead after %d failures at most, and %d are allowed", c.name(), low.offset, c.budget.high, limit)
			}
			if !low.dlq && int64(c.budget.low) > limit {
				j.bad(A4, ops, "%s: offset %d lives after %d failures at least, and %d are allowed", c.name(), low.offset, c.budget.low, limit)
			}
		}
		if low.dlq || !letters {
			c.budget = budget{}
		}
	}
	if !alone {
		c.budget.low = 0
		return
	}
	if c.lane.deletes() {
		return
	}
	from := surely + 1
	if b.grant != nil {
		from = max(from, b.grant.first)
	}
	to := possibly + 1
	if low.signal == failure && !low.dlq && letters {
		to = low.offset // it was not dropped
	}
	c.next = &expectation{low: from, high: to, since: int64(e.T), op: e.Op}
}

// extended takes an extension that came back: L1's time of a lease, L2.
func (j *judge) extended(o *operation, e *hist.Event, a *hist.ExtendArgs, v *hist.ExtendAnswer) {
	held := j.leases[a.LeaseID]
	if held == nil {
		return
	}
	live, superseded := 0, []int64{}
	for _, g := range held.grants {
		if by := supersededBy(g); by != nil && by.ret < o.inv {
			superseded = append(superseded, g.op, by.op)
		} else {
			live++
		}
	}
	if len(superseded) > 0 {
		j.rules[L2].checked++
		if e.Kind == hist.OK && v.Success && v.Renewed > live {
			j.bad(L2, append(superseded, e.Op), "an extension renewed %d leases %s, and %d at most can be held", v.Renewed, a.LeaseID, live)
		} else if e.Kind == hist.Fail {
			j.counts.Fenced++
		}
	}
	if e.Kind != hist.OK || !v.Success {
		return
	}
	for _, g := range held.grants {
		// Which of several partitions were renewed is not said.
		if v.Renewed == len(held.grants) && len(superseded) == 0 {
			g.until = max(g.until, o.inv+int64(a.Seconds)*1_000_000_000)
		}
		g.cursor.events = append(g.cursor.events, cursorEvent{
			kind: extension, lease: held, inv: o.inv, ret: int64(e.T), to: o.inv + int64(a.Seconds)*1_000_000_000, op: e.Op,
		})
	}
}

// seekInvoked forgets what the cursors of a group had reached: from here on they may be anywhere.
func (j *judge) seekInvoked(o *operation, a *hist.SeekArgs) {
	for _, l := range j.all {
		if l.key.tenant != o.event.Tenant || l.key.queue != a.Queue || a.Partition != "" && a.Partition != l.key.partition {
			continue
		}
		c := j.cursor(l, a.Group)
		c.certain, c.next, c.settled = nil, nil, never-1
		c.release(nil, o.inv)
		c.budget.low = 0
		c.events = append(c.events, cursorEvent{kind: sought})
	}
}
