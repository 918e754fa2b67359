package check

import "github.com/queengate/queengate/deploy/rel/hist"

// serial judges T3. A transaction is one node: its messages are appends to logs, whose order the offsets say, and its
// acks are writes of cursors, whose order is the position. A plain push is a node for each partition (it promises no
// more), and so is a plain ack; a delivery reads one cursor, and the messages that it was given.
//
// Only partitions and groups that transactions touched are looked at: the others have one key per node, and O4, A1 and
// A2 say more about them.
func (j *judge) serial() {
	if j.faults.lossy {
		return
	}
	s := serializer{j: j, byOp: map[int64]int32{}, lanes: map[*lane]int32{}, cursors: map[*cursor]int32{}}
	for _, t := range j.txns {
		if !t.committed() {
			continue
		}
		for _, p := range t.pushes {
			s.key(p.lane)
		}
		for _, a := range t.acks {
			s.cursorKey(a.cursor)
		}
	}
	if len(s.order) == 0 {
		return
	}
	for _, l := range s.order {
		s.appends(l)
	}
	for _, c := range s.groups {
		s.positions(c)
	}
	g := newGraph(s.nodes)
	j.rules[T3].checked += int64(len(s.nodes))
	if c := g.worst(); c != nil {
		ops := make([]int64, len(c.nodes))
		for i, n := range c.nodes {
			ops[i] = g.nodes[n].op
		}
		j.bad(T3, ops, "%s: no order explains the operations %s", c.class, c.describe(g))
	}
}

// serializer turns what the judge knows into nodes.
type serializer struct {
	j       *judge
	nodes   []node
	byOp    map[int64]int32 // of transactions
	lanes   map[*lane]int32
	cursors map[*cursor]int32
	order   []*lane
	groups  []*cursor
	writers map[int64]int32 // of the lane at hand: offset -> node
}

func (s *serializer) key(l *lane) int32 {
	k, ok := s.lanes[l]
	if !ok {
		k = int32(2 * len(s.lanes))
		s.lanes[l] = k
		s.order = append(s.order, l)
	}
	return k
}

func (s *serializer) cursorKey(c *cursor) int32 {
	k, ok := s.cursors[c]
	if !ok {
		k = int32(2*len(s.cursors) + 1)
		s.cursors[c] = k
		s.groups = append(s.groups, c)
		s.key(c.lane)
	}
	return k
}

func (s *serializer) add(n node) int32 {
	s.nodes = append(s.nodes, n)
	return int32(len(s.nodes) - 1)
}

// transaction returns the node of one.
func (s *serializer) transaction(op, inv, ret int64) int32 {
	n, ok := s.byOp[op]
	if !ok {
		n = s.add(node{op: op, inv: inv, ret: ret})
		s.byOp[op] = n
	}
	return n
}

// appends adds the writers of a log, and who was given its messages.
func (s *serializer) appends(l *lane) {
	key := s.key(l)
	plain := map[int64]int32{}
	s.writers = map[int64]int32{}
	for i := range l.items {
		it := &l.items[i]
		if it.label == hist.ItemFailed || it.label == hist.ItemDuplicate {
			continue
		}
		all := l.of(it.tx)
		if len(all) != 1 || l.records[all[0]].hash != it.hash {
			continue // which push brought it is not known
		}
		at := int64(all[0])
		if _, taken := s.writers[at]; taken {
			continue
		}
		ret := it.ret
		if it.label != hist.ItemQueued {
			ret = never // it may have come later
		}
		var n int32
		if it.bundle {
			n = s.transaction(it.op, it.inv, ret)
		} else {
			var ok bool
			if n, ok = plain[it.op]; !ok {
				n = s.add(node{op: it.op, inv: it.inv, ret: ret})
				plain[it.op] = n
			}
			s.nodes[n].ret = max(s.nodes[n].ret, ret)
		}
		s.writers[at] = n
		s.nodes[n].accesses = append(s.nodes[n].accesses, access{key, true, at + 1})
	}
	for _, c := range l.cursors() {
		if _, ok := s.cursors[c]; !ok {
			continue
		}
		for _, g := range c.grants {
			r := node{op: g.op, inv: g.inv, ret: g.ret, accesses: []access{{s.cursors[c], false, g.first}}}
			s.add(r)
		}
	}
}

// positions adds the writers of a cursor. Positions are one above offsets, so that 0 is the start.
func (s *serializer) positions(c *cursor) {
	key := s.cursorKey(c)
	taken := map[int64]bool{}
	for i := range c.events {
		x := &c.events[i]
		if x.kind != acknowledged || !x.acted || x.to != x.end || taken[x.to] {
			continue
		}
		taken[x.to] = true
		var n int32
		if x.bundle {
			n = s.transaction(x.op, x.inv, x.ret)
		} else {
			n = s.add(node{op: x.op, inv: x.inv, ret: x.ret})
		}
		s.nodes[n].accesses = append(s.nodes[n].accesses, access{key, true, x.to + 1})
	}
	for _, t := range s.j.txns {
		if t.outcome != hist.Info || !t.committed() {
			continue
		}
		for _, a := range t.acks {
			if a.cursor == c && !taken[a.offset] {
				taken[a.offset] = true
				n := s.transaction(t.op, t.inv, never)
				s.nodes[n].accesses = append(s.nodes[n].accesses, access{key, true, a.offset + 1})
			}
		}
	}
}
