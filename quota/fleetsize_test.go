package quota

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// A gateway that starts while Redis is away takes the part that it had in its last life, and no whole plan.
func TestAGatewayThatStartsAloneCountsOnTheOthers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ size, known, part int }{
		"the setting, when it knows nothing": {4, 0, 4},
		"what it knew, when that is more":    {2, 8, 8},
		"the setting, when that is more":     {8, 2, 8},
		"itself at least":                    {0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFleetWorld(t, redistest.Options(t), true)
			w.size, w.known = test.size, test.known
			g := w.gate(nil)
			g.fleet.pipe.fail(errAway)
			c := clusterWith(requestRate(16, 16))
			for range 16 / test.part {
				admit(t, g, c, pop(), start)
			}
			refused(t, g, c, pop(), start, wire.RateLimited, plans.LimitRequests)
		})
	}
}

// The number of gateways is written down when it changes, once a change, and a larger one is believed for a while when
// Redis comes back and knows fewer.
func TestTheNumberOfGatewaysIsRemembered(t *testing.T) {
	t.Parallel()
	w := newFleetWorld(t, redistest.New(t).Options(), true)
	var told []int
	w.known = 3
	w.remember = func(n int) error {
		told = append(told, n)
		return errors.New("the disk is full") // which is no reason to go on trying
	}
	g := w.gate(nil)
	w.known, w.remember = 0, nil
	g.fleet.beats.seenAt = start
	beat := func(after time.Duration, gates ...*Gate) {
		for range 2 {
			for _, other := range gates {
				other.fleet.beat(start.Add(after))
			}
		}
	}
	expect := func(when string, want ...int) {
		t.Helper()
		if diff := cmp.Diff(want, told); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", when, diff)
		}
	}
	beat(0, g)
	expect("three are believed at first")
	others := []*Gate{w.gate(nil), w.gate(nil), w.gate(nil)}
	beat(time.Second, append(others, g)...)
	beat(2*time.Second, append(others, g)...)
	expect("a fourth has come", 4)
	for s := range 17 { // and the others are silent
		beat(time.Duration(4*s+3)*time.Second, g)
	}
	expect("one is left", 4, 1)
}
