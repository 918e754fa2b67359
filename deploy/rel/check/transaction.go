package check

import (
	"github.com/queengate/queengate/deploy/rel/hist"
)

// transaction is one that was sent.
type transaction struct {
	op       int64
	inv, ret int64
	outcome  hist.Kind
	pushes   []pushedBy
	acks     []ackedBy
	// present is how many of its distinct pushes are in the logs, known when the reading is over.
	present int
}

type pushedBy struct {
	lane *lane
	tx   txid
	hash uint64
	at   int64 // its offset, -1 when it is not there
}

type ackedBy struct {
	cursor *cursor
	offset int64
	first  int64 // of the delivery under whose lease it was sent
}

// committed reports whether the transaction surely took effect.
func (t *transaction) committed() bool {
	return t.outcome == hist.OK || t.outcome == hist.Info && t.present > 0
}

// perhaps reports whether it may have taken effect, and nothing shows whether it did.
func (t *transaction) perhaps() bool { return t.outcome == hist.Info && len(t.pushes) == 0 }

// transacted takes a transaction that came back, or never did.
func (j *judge) transacted(o *operation, e *hist.Event, a *hist.TransactionArgs, v *hist.TransactionAnswer) {
	t := &transaction{op: e.Op, inv: o.inv, ret: int64(e.T), outcome: e.Kind}
	if e.Kind == hist.OK {
		j.counts.Transactions++
	}
	var ofPushes, ofAcks []*hist.TransactionResult
	if v != nil {
		for i := range v.Results {
			if r := &v.Results[i]; r.Type == "push" {
				ofPushes = append(ofPushes, r)
			} else if r.Type == "ack" {
				ofAcks = append(ofAcks, r)
			}
		}
	}
	for i := range a.Pushes {
		in := &a.Pushes[i]
		it := item{offset: -1, bundle: true, label: hist.ItemUnknown}
		switch e.Kind {
		case hist.Fail:
			it.label = hist.ItemFailed
		case hist.OK:
			it.label = hist.ItemQueued
			if i < len(ofPushes) {
				if ofPushes[i].Duplicate {
					it.label = hist.ItemDuplicate
				}
				it.message = j.hashString(ofPushes[i].MessageID)
			}
		}
		j.attempt(o, e, in, i, it)
		if it.label != hist.ItemDuplicate {
			t.pushes = append(t.pushes, pushedBy{j.lane(o.event.Tenant, in.Queue, in.Partition), j.tx(in.TransactionID), j.hash(in.Payload), -1})
		}
	}
	var bundles []*bundle
	for i := range a.Acks {
		x := &a.Acks[i]
		r := verdict{success: e.Kind == hist.OK}
		if e.Kind == hist.OK && i < len(ofAcks) {
			r = verdict{success: ofAcks[i].Success, noop: ofAcks[i].Noop, dlq: ofAcks[i].DLQ}
		}
		bundles = j.collect(o, e, bundles, &x.AckItem, x.Group, i, r)
		if signalOf(x.Status) == completed && !r.noop {
			c := j.cursorOf(o.event.Tenant, x.Group, &x.AckItem)
			by := ackedBy{c, x.Offset, x.Offset}
			if g := j.grant(c, x.LeaseID); g != nil {
				by.first = g.first
			}
			t.acks = append(t.acks, by)
		}
	}
	j.settle(o, e, bundles)
	j.txns = append(j.txns, t)
}

// transactions judges T1 and T2.
func (j *judge) transactions() {
	for _, t := range j.txns {
		j.atomic(t)
	}
	j.outputs()
}

// atomic judges whether one transaction is visible as a whole or not at all, or, rolled back, not at all (the latter
// was T2's part of accounts).
func (j *judge) atomic(t *transaction) {
	whole := true
	var readers []int64
	for i := range t.pushes {
		p := &t.pushes[i]
		whole = whole && p.lane.whole && !p.lane.deletes()
		if p.at = p.lane.find(p.tx, p.hash); p.at >= 0 {
			t.present++
			readers = append(readers, p.lane.records[p.at].op)
		}
	}
	if t.outcome == hist.Fail {
		j.rules[T2].checked++
		return
	}
	if len(t.pushes) == 0 {
		return
	}
	if !whole {
		j.unknown(T1, "not all partitions that transactions wrote to were read to the end")
		return
	}
	j.rules[T1].checked++
	switch {
	case t.present == 0 && t.outcome == hist.OK:
		j.bad(D1, []int64{t.op}, "a transaction was committed, and none of its %d messages is there", len(t.pushes))
		return
	case t.present > 0 && t.present < len(t.pushes):
		j.bad(T1, append([]int64{t.op}, readers...), "%d of the %d messages of a transaction are there", t.present, len(t.pushes))
		return
	case t.present == 0:
		return
	}
	j.partly(t)
	if t.outcome == hist.Info {
		j.applied(t)
	}
}

// partly judges whether somebody saw a part of a transaction's messages in one partition.
func (j *judge) partly(t *transaction) {
	for i := range t.pushes {
		p := &t.pushes[i]
		low, high := p.at, p.at
		for k := range t.pushes {
			if q := &t.pushes[k]; q.lane == p.lane {
				low, high = min(low, q.at), max(high, q.at)
			}
		}
		if low != p.at || low == high {
			continue // once per partition
		}
		for _, mark := range p.lane.marks {
			if mark > low && mark <= high {
				j.bad(T1, []int64{t.op}, "a transaction wrote offsets %d…%d of %s, and a reader saw the high watermark %d between them", low, high, p.lane.key, mark)
				return
			}
		}
	}
}

// applied judges a transaction of unknown outcome whose messages are there: then its acks took effect before the first
// reader had one of its messages.
func (j *judge) applied(t *transaction) {
	seen, by := never, int64(0)
	for i := range t.pushes {
		if r := &t.pushes[i].lane.records[t.pushes[i].at]; r.read < seen {
			seen, by = r.read, r.op
		}
	}
	for _, a := range t.acks {
		if s, ok := j.sought[a.cursor.reader()]; ok && s.ret > t.inv {
			continue
		}
		for _, g := range a.cursor.grants {
			if g.inv > seen && g.first <= a.offset {
				j.bad(T1, []int64{t.op, by, g.op}, "%s: offset %d is delivered again, after the messages of the transaction that acknowledged it had been read",
					a.cursor.name(), g.first)
				break
			}
		}
	}
}

// outputs judges T2, that an input was consumed by one committed transaction at most, and the rest of T1: that the
// cursor of a group which consumes by transactions alone passed nothing without one.
func (j *judge) outputs() {
	type input struct {
		cursor *cursor
		offset int64
	}
	consumed := map[input]int64{}
	covered := map[*cursor]*bitset{}
	var consumers []*cursor // the keys of covered, in the order of the run
	for _, t := range j.txns {
		for _, a := range t.acks {
			if covered[a.cursor] == nil {
				covered[a.cursor] = &bitset{}
				consumers = append(consumers, a.cursor)
			}
			if !t.committed() && !t.perhaps() {
				continue
			}
			for o := max(a.first, 0); o <= a.offset; o++ {
				covered[a.cursor].set(o)
			}
			if !t.committed() || len(t.pushes) == 0 {
				continue
			}
			j.rules[T2].checked++
			at := input{a.cursor, a.offset}
			if before, ok := consumed[at]; ok && before != t.op {
				j.bad(T2, []int64{before, t.op}, "%s: two committed transactions consumed offset %d", a.cursor.name(), a.offset)
			}
			consumed[at] = t.op
		}
	}
	for _, c := range consumers {
		set := covered[c]
		if c.lane.queue == nil || c.lane.queue.Workload != "W5" || c.lane.deletes() || c.acks > 0 || !c.fromStart() {
			continue
		}
		var highest *grant
		for _, g := range c.grants {
			if highest == nil || g.first > highest.first {
				highest = g
			}
		}
		for o := int64(0); highest != nil && o < highest.first; o++ {
			j.rules[T1].checked++
			if !set.has(o) {
				j.bad(T1, []int64{highest.op}, "%s: the cursor is behind offset %d, and no transaction consumed it", c.name(), o)
			}
		}
	}
}
