package wire

import (
	"slices"
	"testing"
)

// A route that clients have says which way it moves what a tenant keeps; one that they have not says nothing.
func TestEveryRouteOfClientsHasADirection(t *testing.T) {
	t.Parallel()
	for i := range Routes {
		r := &Routes[i]
		if known := slices.Contains(Flows, r.Flow()); known == (r.Class == ClassBlocked) {
			t.Errorf("%s %s: class %d, direction %s", r.Method, r.Pattern, r.Class, r.Flow())
		}
	}
}

// The direction agrees with what else the table says of a route: a route that was put into the wrong line would be open,
// or closed, in a state of the life cycle where it must not be.
func TestDirectionsAgreeWithTheTableOfRoutes(t *testing.T) {
	t.Parallel()
	for i := range Routes {
		r := &Routes[i]
		if r.Class == ClassBlocked {
			continue
		}
		var want []Flow
		switch {
		case r.Method == "DELETE", r.Op == OpClearQueue:
			want = []Flow{FlowRemove}
		case r.Cost == CostDelivery, r.Cost == CostSettle:
			want = []Flow{FlowOut}
		case r.Method == "GET":
			want = []Flow{FlowRead}
		case r.Cost == CostMessages:
			want = []Flow{FlowPush}
		case r.Cost == CostMixed:
			want = []Flow{FlowMixed}
		case r.Cost == CostReplay:
			want = []Flow{FlowPush, FlowMixed}
		case r.Cost == CostConfigure:
			want = []Flow{FlowWrite}
		default: // POST that costs a request
			want = []Flow{FlowOut, FlowWrite}
		}
		if !slices.Contains(want, r.Flow()) {
			t.Errorf("%s %s: direction %s, want one of %v", r.Method, r.Pattern, r.Flow(), want)
		}
		if r.Flow() == FlowRead && r.Class != ClassRead || r.Class == ClassRead && r.Flow() != FlowRead {
			t.Errorf("%s %s: direction %s, class %d", r.Method, r.Pattern, r.Flow(), r.Class)
		}
	}
}

// A feature that a plan lacks closes the way in and no other.
func TestFeaturesGateTheWayIn(t *testing.T) {
	t.Parallel()
	gated := 0
	for i := range Routes {
		r := &Routes[i]
		want := Feature("")
		if r.Flow().In() {
			want = r.Feature()
		}
		if r.Gate() != want {
			t.Errorf("%s %s: gated by %q, want %q", r.Method, r.Pattern, r.Gate(), want)
		}
		if r.Gate() != "" {
			gated++
		}
	}
	if gated == 0 {
		t.Error("no route is gated")
	}
	for op := range features {
		if !slices.ContainsFunc(Routes, func(r Route) bool { return r.Op == op && r.Class != ClassBlocked }) {
			t.Errorf("operation %d has a feature and no route", op)
		}
	}
}
