package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// cursorEvent is something that happened to the cursor and the lease of a partition and group.
type cursorEvent struct {
	kind     eventKind
	grant    *grant
	lease    *lease
	inv, ret int64
	op       int64
	// Of a delivery: its first and last offset. Of an ack: where the cursor surely and possibly is behind it. Of an
	// extension: until when the lease is held at least.
	to, end  int64
	released bool // of an ack: it ended the lease
	acted    bool // of an ack: it surely took effect
	negative bool // of an ack: it had a negative signal
	bundle   bool // of an ack: it was part of a transaction
}

type eventKind uint8

const (
	granted eventKind = iota
	acknowledged
	extension
	sought
)

// note keeps an ack for LIN and T3.
func (c *cursor) note(o *operation, e *hist.Event, b *bundle, surely, possibly int64, released bool) {
	_, negative := b.lowest(true)
	x := cursorEvent{
		kind: acknowledged, grant: b.grant, inv: o.inv, ret: int64(e.T), op: e.Op, to: surely, end: possibly,
		released: released, acted: b.outcome(e.Kind) == hist.OK, negative: negative, bundle: e.F == hist.Transaction,
	}
	if b.grant != nil {
		x.lease = b.grant.lease
	}
	c.events = append(c.events, x)
}

// defaultSearch bounds the search of all partitions together.
const defaultSearch = 20 * time.Second

// state is the cursor and lease of a partition and group.
type state struct {
	cursor int64
	lease  *lease // nil: nobody's
	end    int64  // last offset of the leased batch
	until  int64  // before this time the lease is surely held
}

// model is what a partition and group may do. Whether an ack of unknown outcome took effect, and where exactly a cursor
// is behind a negative signal, is left open: then there are several next states.
var model = (&porcupine.NondeterministicModel{
	Init:              func() []any { return []any{state{cursor: -1}} },
	Step:              func(s, input, _ any) []any { return advance(s.(state), input.(*cursorEvent)) },
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("operation %d", input.(*cursorEvent).op) },
}).ToModel()

// advance returns the states that may follow.
func advance(s state, x *cursorEvent) []any {
	switch x.kind {
	case granted:
		if s.lease != nil && x.ret < s.until || x.to != s.cursor+1 {
			return nil
		}
		return []any{state{s.cursor, x.lease, x.end, x.grant.inv + x.grant.length}}
	case extension:
		if s.lease != x.lease {
			return []any{s} // of several partitions, this was not one that was renewed
		}
		return []any{s, state{s.cursor, s.lease, s.end, max(s.until, x.to)}}
	}
	if s.lease != x.lease {
		if x.acted {
			return nil
		}
		return []any{s}
	}
	after := func(to int64, released bool) any {
		next := s
		next.cursor = max(s.cursor, to)
		if released || next.cursor >= s.end {
			next.lease, next.end, next.until = nil, 0, 0
		}
		return next
	}
	var next []any
	if x.acted {
		next = append(next, after(x.to, x.released))
	} else {
		next = append(next, s)
	}
	if x.negative && x.end > x.to {
		next = append(next, after(x.end-1, true))
	}
	if !x.acted || x.end > x.to {
		next = append(next, after(x.end, x.negative))
	}
	return next
}

// linear judges LIN with porcupine, one partition and group after the other. It is a second look at what L1, L2, A1, A2,
// A4 and A6 judge by simpler means: where one of them is red already it has nothing to add.
func (j *judge) linear(opt Options) {
	left := opt.Search
	if left == 0 {
		left = defaultSearch
	}
	if j.faults.lossy || j.faults.clock || slices.ContainsFunc([]Rule{L1, L2, A1, A2, A4, A6}, func(r Rule) bool { return j.rules[r].broken > 0 }) {
		return
	}
	for _, l := range j.all {
		for _, c := range l.cursors() {
			history := c.history()
			if len(history) == 0 {
				continue
			}
			began := time.Now()
			result := porcupine.CheckOperationsTimeout(model, history, max(left, time.Millisecond))
			left -= time.Since(began)
			j.rules[LIN].checked += int64(len(history))
			switch result {
			case porcupine.Illegal:
				j.bad(LIN, stuck(history), "%s: no order of its %d deliveries, acks and extensions explains them all; the first that has no place is named",
					c.name(), len(history))
			case porcupine.Unknown:
				j.unknown(LIN, "the search for an order of the %d operations of %s was given up", len(history), c.name())
				return
			}
		}
	}
}

// history returns the operations of a cursor for porcupine, none when something about it is not in the model.
func (c *cursor) history() []porcupine.Operation {
	if !c.fromStart() || c.lane.deletes() || len(c.grants) == 0 {
		return nil
	}
	var ops []porcupine.Operation
	for i := range c.events {
		x := &c.events[i]
		if x.kind == sought || x.lease == nil {
			return nil
		}
		o := porcupine.Operation{ClientId: len(ops), Input: x, Call: x.inv, Return: x.ret}
		if x.kind == acknowledged && !x.acted {
			// It may take effect at any time, but not when its lease has been superseded.
			o.Return = never
			if by := firstBehind(x.grant); by != nil {
				o.Return = max(by.ret, x.ret)
			}
		}
		ops = append(ops, o)
	}
	return ops
}

// firstBehind returns the delivery of the partition and group that came first after g.
func firstBehind(g *grant) *grant {
	var first *grant
	for _, x := range g.cursor.grants {
		if x.inv > g.ret && (first == nil || x.ret < first.ret) {
			first = x
		}
	}
	return first
}

// stuck returns the operation at which a history cannot go on: the last one of the shortest illegal prefix.
func stuck(history []porcupine.Operation) []int64 {
	legal, illegal := 0, len(history)
	prefix := func(n int) []porcupine.Operation { return history[:n] }
	for illegal-legal > 1 {
		middle := (legal + illegal) / 2
		if porcupine.CheckOperationsTimeout(model, prefix(middle), time.Second) == porcupine.Ok {
			legal = middle
		} else {
			illegal = middle
		}
	}
	ops := []int64{history[illegal-1].Input.(*cursorEvent).op}
	if illegal > 1 {
		ops = append(ops, history[illegal-2].Input.(*cursorEvent).op)
	}
	return ops
}
