package check

import (
	"slices"
	"strconv"
	"strings"
)

// access is what a node did to a key: it wrote a version, or read one. Versions of a key are in a total order which was
// observed, not inferred: offsets of a log, positions of a cursor.
type access struct {
	key     int32
	write   bool
	version int64
}

// node is an operation that is atomic by promise.
type node struct {
	op       int64
	inv, ret int64 // ret is never when it may have taken effect at any later time
	accesses []access
}

// edge is a dependency.
type edge uint8

const (
	writeWrite edge = 1 << iota // the next version of a key
	writeRead                   // what was read
	readWrite                   // what replaced what was read
	realTime                    // came back before the other was sent
)

func (e edge) String() string {
	switch e {
	case writeWrite:
		return "ww"
	case writeRead:
		return "wr"
	case readWrite:
		return "rw"
	}
	return "rt"
}

// link is an edge to a node.
type link struct {
	to   int32
	kind edge
}

// graph is the dependencies of a history: a directed graph that has no cycle if the nodes have an order which explains
// everything that was seen, and that agrees with real time.
type graph struct {
	nodes []node
	out   [][]link
}

// newGraph finds all dependencies of nodes. Writers of a key must have distinct versions.
func newGraph(nodes []node) *graph {
	g := &graph{nodes: nodes, out: make([][]link, len(nodes))}
	type touch struct {
		access
		node int32
	}
	var all []touch
	for n := range nodes {
		for _, a := range nodes[n].accesses {
			all = append(all, touch{a, int32(n)})
		}
	}
	// Along a key: a version, then who read it.
	slices.SortFunc(all, func(a, b touch) int {
		switch {
		case a.key != b.key:
			return compare(a.key, b.key)
		case a.version != b.version:
			return compare(a.version, b.version)
		case a.write != b.write && a.write:
			return -1
		case a.write != b.write:
			return 1
		}
		return compare(a.node, b.node)
	})
	for i := 0; i < len(all); {
		key := all[i].key
		writer := int32(-1) // of the version at hand
		var readers []int32 // of versions since the last writer
		for ; i < len(all) && all[i].key == key; i++ {
			t := all[i]
			if !t.write {
				if writer >= 0 {
					g.link(writer, t.node, writeRead)
				}
				readers = append(readers, t.node)
				continue
			}
			if writer >= 0 {
				g.link(writer, t.node, writeWrite)
			}
			for _, r := range readers {
				g.link(r, t.node, readWrite)
			}
			writer, readers = t.node, readers[:0]
		}
	}
	g.time()
	return g
}

func (g *graph) link(from, to int32, kind edge) {
	if from != to {
		g.out[from] = append(g.out[from], link{to, kind})
	}
}

// time adds the edges of real time: from each node to those that were sent after it came back, but only where no other
// node stands between, so that there are few.
func (g *graph) time() {
	type event struct {
		at   int64
		node int32
		sent bool
	}
	var events []event
	for n := range g.nodes {
		events = append(events, event{g.nodes[n].inv, int32(n), true})
		if g.nodes[n].ret != never {
			events = append(events, event{g.nodes[n].ret, int32(n), false})
		}
	}
	slices.SortFunc(events, func(a, b event) int {
		switch {
		case a.at != b.at:
			return compare(a.at, b.at)
		case a.sent != b.sent && a.sent:
			return -1 // what happens at once is not ordered
		case a.sent != b.sent:
			return 1
		}
		return compare(a.node, b.node)
	})
	var frontier []int32 // came back, and nobody that was sent later has
	for _, e := range events {
		if e.sent {
			for _, f := range frontier {
				g.link(f, e.node, realTime)
			}
			continue
		}
		inv := g.nodes[e.node].inv
		frontier = slices.DeleteFunc(frontier, func(f int32) bool { return g.nodes[f].ret < inv })
		frontier = append(frontier, e.node)
	}
}

// cycle is a proof that there is no order.
type cycle struct {
	class string // G0, G1c, G-single, G2, strict
	nodes []int32
	kinds []edge // kinds[i] leads from nodes[i] to nodes[i+1], the last one to nodes[0]
}

func (c *cycle) describe(g *graph) string {
	var b strings.Builder
	for i, n := range c.nodes {
		if i > 0 {
			b.WriteString(" ")
		}
		b.WriteString(strconv.FormatInt(g.nodes[n].op, 10))
		b.WriteString(" -" + c.kinds[i].String() + "->")
	}
	b.WriteString(" " + strconv.FormatInt(g.nodes[c.nodes[0]].op, 10))
	return b.String()
}

// classes are the kinds of cycles from the worst to the mildest, by the edges that they are made of.
var classes = []struct {
	name string
	of   edge
}{
	{"G0", writeWrite},
	{"G1c", writeWrite | writeRead},
	{"G2", writeWrite | writeRead | readWrite}, // G-single if it has one rw
	{"strict", writeWrite | writeRead | readWrite | realTime},
}

// worst returns a shortest cycle of the worst class there is, nil when there is none.
func (g *graph) worst() *cycle {
	for _, class := range classes {
		var best *cycle
		for _, component := range g.components(class.of) {
			for _, n := range component[:min(len(component), 32)] {
				if c := g.through(n, class.of); c != nil && (best == nil || len(c.nodes) < len(best.nodes)) {
					best = c
				}
			}
		}
		if best == nil {
			continue
		}
		best.class = class.name
		if class.name == "G2" {
			crossings := 0
			for _, k := range best.kinds {
				if k == readWrite {
					crossings++
				}
			}
			if crossings == 1 {
				best.class = "G-single"
			}
		}
		return best
	}
	return nil
}

// through returns a shortest cycle through a node, nil when there is none.
func (g *graph) through(n int32, of edge) *cycle {
	from := map[int32]int32{}
	kind := map[int32]edge{}
	queue := []int32{n}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, l := range g.out[at] {
			if l.kind&of == 0 {
				continue
			}
			if l.to == n {
				c := &cycle{nodes: []int32{at}, kinds: []edge{l.kind}}
				for at != n {
					c.kinds = append(c.kinds, kind[at])
					at = from[at]
					c.nodes = append(c.nodes, at)
				}
				slices.Reverse(c.nodes)
				slices.Reverse(c.kinds)
				return c
			}
			if _, seen := kind[l.to]; !seen {
				from[l.to], kind[l.to] = at, l.kind
				queue = append(queue, l.to)
			}
		}
	}
	return nil
}

// components returns the strongly connected components of more than one node (Tarjan's algorithm, without recursion).
func (g *graph) components(of edge) [][]int32 {
	n := len(g.nodes)
	index, low := make([]int32, n), make([]int32, n) // 0: not visited
	onStack := make([]bool, n)
	var stack []int32
	var found [][]int32
	counter := int32(0)
	type frame struct {
		node int32
		next int
	}
	for root := range int32(n) {
		if index[root] != 0 {
			continue
		}
		calls := []frame{{root, 0}}
		for len(calls) > 0 {
			f := &calls[len(calls)-1]
			v := f.node
			if f.next == 0 {
				counter++
				index[v], low[v] = counter, counter
				stack = append(stack, v)
				onStack[v] = true
			}
			descended := false
			for f.next < len(g.out[v]) {
				l := g.out[v][f.next]
				f.next++
				if l.kind&of == 0 {
					continue
				}
				if index[l.to] == 0 {
					calls = append(calls, frame{l.to, 0})
					descended = true
					break
				}
				if onStack[l.to] {
					low[v] = min(low[v], index[l.to])
				}
			}
			if descended {
				continue
			}
			if low[v] == index[v] {
				var component []int32
				for {
					w := stack[len(stack)-1]
					stack = stack[:len(stack)-1]
					onStack[w] = false
					component = append(component, w)
					if w == v {
						break
					}
				}
				if len(component) > 1 {
					found = append(found, component)
				}
			}
			calls = calls[:len(calls)-1]
			if len(calls) > 0 {
				up := calls[len(calls)-1].node
				low[up] = min(low[up], low[v])
			}
		}
	}
	return found
}
