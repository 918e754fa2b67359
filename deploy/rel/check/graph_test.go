package check

import "testing"

func w(key int32, v int64) access { return access{key, true, v} }
func r(key int32, v int64) access { return access{key, false, v} }

// at is an operation that begins and ends at given times.
func at(op, inv, ret int64, as ...access) node { return node{op, inv, ret, as} }

func TestTheWorstCycleIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		nodes []node
		class string // "" is none
		size  int
	}{
		"nothing":                        {nil, "", 0},
		"one after the other":            {[]node{at(1, 0, 1, w(0, 1), w(2, 1)), at(2, 2, 3, w(0, 2), w(2, 2))}, "", 0},
		"own versions are no cycle":      {[]node{at(1, 0, 1, w(0, 1), w(0, 2)), at(2, 2, 3, r(0, 2))}, "", 0},
		"two writers in two orders":      {[]node{at(1, 0, 9, w(0, 1), w(2, 2)), at(2, 0, 9, w(0, 2), w(2, 1))}, "G0", 2},
		"an order against time":          {[]node{at(1, 0, 1, w(0, 2)), at(2, 2, 3, w(0, 1))}, "strict", 2},
		"a read that is stale":           {[]node{at(1, 0, 1, w(0, 1)), at(2, 2, 3, r(0, 0))}, "strict", 2},
		"what is open has no end":        {[]node{at(1, 0, never, w(0, 2)), at(2, 2, 3, w(0, 1))}, "", 0},
		"each read the other's write":    {[]node{at(1, 0, 9, w(0, 1), r(2, 1)), at(2, 0, 9, w(2, 1), r(0, 1))}, "G1c", 2},
		"a read of half a transaction":   {[]node{at(1, 0, 9, w(0, 1), w(2, 1)), at(2, 0, 9, r(0, 1), r(2, 0))}, "G-single", 2},
		"write skew":                     {[]node{at(1, 0, 9, r(0, 0), w(2, 1)), at(2, 0, 9, r(2, 0), w(0, 1))}, "G2", 2},
		"a long fork":                    {[]node{at(1, 0, 9, w(0, 1)), at(2, 0, 9, w(2, 1)), at(3, 0, 9, r(0, 1), r(2, 0)), at(4, 0, 9, r(0, 0), r(2, 1))}, "G2", 4},
		"three in a ring through time":   {[]node{at(1, 0, 1, w(0, 2)), at(2, 2, 3, w(2, 1)), at(3, 0, 9, w(2, 2), w(0, 1))}, "strict", 3},
		"the shortest of two is chosen":  {[]node{at(1, 0, 9, w(0, 1), w(2, 2), w(4, 1)), at(2, 0, 9, w(0, 2), w(2, 1)), at(3, 0, 9, w(4, 2), w(2, 3))}, "G0", 2},
		"times that touch have no order": {[]node{at(1, 0, 5, w(0, 2)), at(2, 5, 9, w(0, 1))}, "", 0},
	} {
		g := newGraph(c.nodes)
		found := g.worst()
		switch {
		case found == nil && c.class != "":
			t.Errorf("%s: no cycle, want %s", name, c.class)
		case found != nil && (found.class != c.class || len(found.nodes) != c.size):
			t.Errorf("%s: %s of %d nodes (%s), want %q of %d", name, found.class, len(found.nodes), found.describe(g), c.class, c.size)
		}
	}
}

// Real time has few edges: each operation points at those that nobody stands between.
func TestRealTimeHasFewEdges(t *testing.T) {
	t.Parallel()
	var nodes []node
	for i := range int64(1000) {
		nodes = append(nodes, at(2*i, 10*i, 10*i+8), at(2*i+1, 10*i+1, 10*i+9)) // two clients
	}
	edges := 0
	for _, out := range newGraph(nodes).out {
		edges += len(out)
	}
	if edges > 4*1000 {
		t.Errorf("%d edges for 2000 operations of two clients", edges)
	}
}
