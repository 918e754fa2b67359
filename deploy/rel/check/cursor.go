package check

import (
	"slices"
	"sort"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// cursor is everything about one partition and group.
type cursor struct {
	lane  *lane
	group string
	spec  *hist.Group // nil when the header does not name it

	certain []step          // what the cursor had surely reached, rising in both
	most    []step          // what acks that were sent may have reached, rising in both (R1)
	settled int64           // what it may have reached, by acks that have come back
	under   map[int64]int64 // and by those that have not: operation -> offset
	grants  []*grant        // deliveries under a lease, in the order in which they came back
	seen    bitset          // offsets that were delivered
	twice   int64           // deliveries of an offset that had been delivered before
	next    *expectation    // where the next delivery must begin, after a mixed ack
	budget  budget
	acks    int           // acks outside of transactions that did or may have done something
	events  []cursorEvent // for LIN and T3

	// For dead letters: what acks said about an offset.
	completed, maybe, failed bitset
}

// step says that from at on everything up to offset was acknowledged.
type step struct{ at, offset, op int64 }

// grant is one delivery of a partition under a lease.
type grant struct {
	cursor      *cursor
	lease       *lease
	inv, ret    int64
	first, last int64
	until       int64 // the lease is surely held from ret to here
	length      int64 // of the lease, before any extension
	op          int64
	attempt     int
}

// lease is what one pop was given; it may span partitions.
type lease struct {
	id     string
	grants []*grant
}

// expectation is where the delivery after a mixed ack must begin.
type expectation struct{ low, high, since, op int64 }

// budget is how many failures a partition and group was charged since it last began anew.
type budget struct{ low, high int }

func (j *judge) cursor(l *lane, group string) *cursor {
	c := l.groups[group]
	if c == nil {
		c = &cursor{lane: l, group: group, settled: -1, under: map[int64]int64{}}
		if l.queue != nil {
			if i := slices.IndexFunc(l.queue.Groups, func(g hist.Group) bool { return g.Name == group }); i >= 0 {
				c.spec = &l.queue.Groups[i]
			}
		}
		l.groups[group] = c
	}
	return c
}

func (c *cursor) name() string {
	if c.group == "" {
		return c.lane.key.String()
	}
	return c.lane.key.String() + " for " + c.group
}

func (c *cursor) reader() reader {
	return reader{c.lane.key.tenant, c.lane.key.queue, c.group}
}

// fromStart reports whether the group is known to read from the first message on.
func (c *cursor) fromStart() bool { return c.group == "" || c.spec != nil && c.spec.Drains }

// surely returns the last step that was made before a time.
func (c *cursor) surely(before int64) (step, bool) {
	i := sort.Search(len(c.certain), func(i int) bool { return c.certain[i].at >= before })
	if i == 0 {
		return step{}, false
	}
	return c.certain[i-1], true
}

func (c *cursor) reached(at, offset, op int64) {
	if n := len(c.certain); n == 0 || c.certain[n-1].offset < offset {
		c.certain = append(c.certain, step{at, offset, op})
	}
}

// sent notes that an ack was sent that may move the cursor to offset.
func (c *cursor) sent(at, offset, op int64) {
	if !c.lane.deletes() {
		return
	}
	n := len(c.most)
	for n > 0 && c.most[n-1].at >= at && c.most[n-1].offset <= offset {
		n--
	}
	if c.most = c.most[:n]; n == 0 || c.most[n-1].offset < offset {
		c.most = append(c.most, step{at, offset, op})
	}
}

// possibly is the highest offset that may have been acknowledged by now.
func (c *cursor) possibly() int64 {
	most := c.settled
	for _, o := range c.under {
		most = max(most, o)
	}
	return most
}

// possiblyAt is the highest offset that acks which had been sent by a time may have acknowledged. For when the reading
// is over.
func (c *cursor) possiblyAt(at int64) int64 {
	i := sort.Search(len(c.most), func(i int) bool { return c.most[i].at >= at })
	if i == 0 {
		return -1
	}
	return c.most[i-1].offset
}

// popped takes a pop that came back: A1 A2 A4 A5 A6, and what L1 and L2 need.
func (j *judge) popped(o *operation, e *hist.Event, a *hist.PopArgs, v *hist.PopAnswer) {
	tenant := o.event.Tenant
	r := reader{tenant, a.Queue, a.Group}
	// A pop that waits is held when the database goes away, also in the midst of a claim, and then ends empty. Brokers do
	// so only if that costs a lease; gateways end every pop like this, also one with autoAck whose answer was lost.
	gateway := slices.Contains(j.header.Topology.Gateways, e.Node)
	parked := e.Kind == hist.OK && (a.Wait || gateway) && (v == nil || len(v.Messages) == 0) && !j.faults.quiet(o.inv, int64(e.T))
	if e.Kind == hist.Info || parked && a.AutoAck && gateway {
		j.lost[r] = int64(e.T)
	}
	if e.Kind == hist.Info || e.Kind == hist.Fail && e.Status >= 500 || parked {
		j.hazy[r] = int64(e.T)
	}
	if e.Kind != hist.OK || v == nil || len(v.Messages) == 0 {
		return
	}
	var held *lease
	if v.LeaseID != "" {
		if held = j.leases[v.LeaseID]; held != nil {
			j.bad(L1, []int64{held.grants[0].op, e.Op}, "two pops were given the lease %s", v.LeaseID)
		}
		held = &lease{id: v.LeaseID}
		j.leases[v.LeaseID] = held
	}
	for from := 0; from < len(v.Messages); {
		first := &v.Messages[from]
		to := from + 1
		for to < len(v.Messages) && v.Messages[to].Partition == first.Partition && v.Messages[to].Queue == first.Queue {
			to++
		}
		if a.Queue != "" && first.Queue != a.Queue || a.Partition != "" && first.Partition != a.Partition {
			j.bad(X4, []int64{e.Op}, "a pop of %s/%s was given messages of %s/%s", a.Queue, a.Partition, first.Queue, first.Partition)
		}
		c := j.cursor(j.lane(tenant, first.Queue, first.Partition), a.Group)
		j.delivered(o, e, a, c, held, v.Messages[from:to])
		from = to
	}
}

// delivered takes the messages that one pop was given of one partition.
func (j *judge) delivered(o *operation, e *hist.Event, a *hist.PopArgs, c *cursor, held *lease, ms []hist.Message) {
	l := c.lane
	again := false
	for i := range ms {
		m := &ms[i]
		j.read(l, m.Offset, j.tx(m.TransactionID), record{
			hash: j.hash(m.Data), message: j.hashString(m.ID), created: m.CreatedAt.UnixNano(), precise: true,
		}, e)
		if i > 0 && m.Offset != ms[i-1].Offset+1 {
			j.bad(A2, []int64{e.Op}, "%s: offset %d follows %d in one delivery", c.name(), m.Offset, ms[i-1].Offset)
		}
		if m.Offset >= 0 && m.Offset <= l.end()+farthest && c.seen.set(m.Offset) {
			again = true
			c.twice++
			j.counts.Redeliveries++
		}
	}
	first, last := ms[0].Offset, ms[len(ms)-1].Offset
	moved := false
	if s, ok := j.sought[c.reader()]; ok && s.ret > o.inv {
		moved = true // by hand, while this pop was under way
	}
	if !moved {
		j.begins(o, e, c, first, held == nil)
	}
	if held == nil {
		j.rules[A5].checked++
		if again && c.spec != nil && c.spec.AutoAck {
			j.bad(A5, []int64{e.Op}, "%s: an offset of %d…%d was delivered before, and the group acknowledges by itself", c.name(), first, last)
		}
		c.reached(int64(e.T), last, e.Op)
		c.sent(o.inv, last, e.Op)
		c.settled = max(c.settled, last)
		return
	}
	duration := time.Duration(a.LeaseSeconds) * time.Second
	if duration == 0 && l.queue != nil {
		duration = l.queue.Lease()
	}
	g := &grant{
		cursor: c, lease: held, inv: o.inv, ret: int64(e.T), first: first, last: last, until: o.inv + int64(duration), length: int64(duration), op: e.Op,
		attempt: ms[0].DeliveryAttempt,
	}
	if !moved {
		j.attempts(c, g)
	}
	held.grants = append(held.grants, g)
	c.grants = append(c.grants, g)
	c.events = append(c.events, cursorEvent{kind: granted, grant: g, lease: g.lease, inv: g.inv, ret: g.ret, to: first, end: last, op: g.op})
}

// begins judges where a delivery begins: A4 right behind a mixed ack, else A1 and A2.
func (j *judge) begins(o *operation, e *hist.Event, c *cursor, first int64, auto bool) {
	if x := c.next; x != nil && o.inv > x.since {
		c.next = nil
		if len(c.under) == 0 {
			j.rules[A4].checked++
			if first < x.low || first > x.high {
				j.bad(A4, []int64{x.op, e.Op}, "%s: behind a mixed ack the next delivery begins at %d, want %d…%d", c.name(), first, x.low, x.high)
				return
			}
		}
	}
	if s, ok := c.surely(o.inv); ok {
		rule := A1
		if auto {
			rule = A5 // acknowledged by being delivered
		}
		j.rules[rule].checked++
		if first <= s.offset {
			if !auto {
				j.bad(A1, []int64{s.op, e.Op}, "%s: offset %d is delivered again, and everything up to %d was acknowledged", c.name(), first, s.offset)
			}
			return
		}
	}
	if c.lane.deletes() || !c.fromStart() || auto && j.lost[c.reader()] > 0 {
		return
	}
	j.rules[A2].checked++
	if most := c.possibly(); first > most+1 {
		j.bad(A2, []int64{e.Op}, "%s: a delivery begins at %d, and nobody can have acknowledged more than %d", c.name(), first, most)
	}
}

// attempts judges A6: a delivery that begins where the last one did counts one more, one that begins inside of it, behind
// what was acknowledged of it, may count one more, any other begins at 1. After a lost answer it may be more.
func (j *judge) attempts(c *cursor, g *grant) {
	if g.attempt == 0 || len(c.grants) == 0 {
		return
	}
	last := c.grants[len(c.grants)-1]
	if last.ret > g.inv || last.attempt == 0 {
		return // they overlap: their order is not known
	}
	least, most := 1, 1
	switch {
	case last.first == g.first:
		least, most = last.attempt+1, last.attempt+1
	case last.first < g.first && g.first <= last.last:
		most = last.attempt + 1
	}
	exact := true
	for _, r := range []reader{c.reader(), {c.lane.key.tenant, "", c.group}} {
		if at, ok := j.hazy[r]; ok && at >= last.inv {
			exact = false
		}
	}
	for _, o := range j.under {
		p, ok := o.event.A.(*hist.PopArgs)
		if ok && p.Group == c.group && o.event.Tenant == c.lane.key.tenant &&
			(o.inv < last.until && last.until < g.ret || !j.faults.quiet(o.inv, g.ret)) {
			exact = false // its answer may have been lost, and its lease have run out
			break
		}
	}
	j.rules[A6].checked++
	if g.attempt < least || exact && g.attempt > most {
		j.bad(A6, []int64{last.op, g.op}, "%s: the delivery from %d says attempt %d, want %d", c.name(), g.first, g.attempt, least)
	}
}

// overlaps judges L1: leases that were surely held at the same time.
func (j *judge) overlaps(c *cursor) {
	if len(c.grants) == 0 {
		return
	}
	list := slices.Clone(c.grants)
	slices.SortStableFunc(list, func(a, b *grant) int { return compare(a.ret, b.ret) })
	var longest *grant
	for _, g := range list {
		if j.faults.clockDuring(g.inv, g.until) {
			continue
		}
		j.rules[L1].checked++
		if longest != nil && g.ret < longest.until && g.ret < g.until {
			j.bad(L1, []int64{longest.op, g.op}, "%s: offsets from %d were leased to %s until %s at least, and to %s at %s", c.name(), g.first,
				longest.lease.id, clockTime(longest.until), g.lease.id, clockTime(g.ret))
		}
		if longest == nil || g.until > longest.until {
			longest = g
		}
	}
}

func clockTime(t int64) string { return time.Duration(t).Round(time.Millisecond).String() }

// completeness judges A3: what was pushed was delivered.
func (j *judge) completeness(c *cursor) {
	if c.spec == nil || !c.spec.Drains || c.lane.deletes() {
		return
	}
	if c.spec.AutoAck && j.lost[c.reader()] > 0 {
		return // what a lost answer held is gone, as the group chose
	}
	if !j.phases[hist.Final] || !c.lane.whole {
		j.unknown(A3, "%s was not drained and read to the end", c.name())
		return
	}
	for o := range c.lane.records {
		if r := &c.lane.records[o]; !r.final || !r.promised {
			continue // of unknown outcome: it may have come when the drain was over
		}
		j.rules[A3].checked++
		if !c.seen.has(int64(o)) {
			j.bad(A3, []int64{c.lane.records[o].op}, "%s: offset %d was never delivered", c.name(), o)
		}
	}
}

// bitset is a set of offsets.
type bitset []uint64

// set adds an offset and reports whether it was there.
func (b *bitset) set(o int64) bool {
	for int64(len(*b)) <= o/64 {
		*b = append(*b, 0)
	}
	was := (*b)[o/64]&(1<<(o%64)) != 0
	(*b)[o/64] |= 1 << (o % 64)
	return was
}

func (b bitset) has(o int64) bool {
	return o >= 0 && o/64 < int64(len(b)) && b[o/64]&(1<<(o%64)) != 0
}
