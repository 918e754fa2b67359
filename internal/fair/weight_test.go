package fair_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/queengate/queengate/internal/fair"
)

func TestAWeightIsProportionalToTheRate(t *testing.T) {
	t.Parallel()
	for rate, want := range map[float64]fair.Weight{
		100: fair.Usual, 50: fair.Usual / 2, 6.25: fair.Usual / 16, 60: 154, 1800: 18 * fair.Usual, 12_800: 128 * fair.Usual,
		0: fair.Usual / 16, -1: fair.Usual / 16, 1: fair.Usual / 16, 1e18: 128 * fair.Usual,
	} {
		if got := fair.WeightOf(rate); got != want {
			t.Errorf("%v per second weigh %d, want %d", rate, got, want)
		}
	}
}

func TestWeightsAreRemembered(t *testing.T) {
	t.Parallel()
	var ws fair.Weights[string]
	for _, want := range []fair.Weight{fair.Usual, 3, 512, 512, fair.Usual, 7} {
		ws.Set("a", want)
		if got := ws.Of("a"); got != want {
			t.Errorf("a weighs %d, want %d", got, want)
		}
	}
	if got := ws.Of("b"); got != fair.Usual {
		t.Errorf("nobody weighs %d, want %d", got, fair.Usual)
	}
}

// TestOwnersAreServedByTheirWeight: while owners wait, the rounds that each has had differ by what its quantum and a
// largest item make of them, and an edit of a weight holds from the owner's next turn.
func TestOwnersAreServedByTheirWeight(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		quantum := rapid.Int64Range(1, 20).Draw(t, "quantum")
		costs := rapid.SliceOfN(rapid.Int64Range(1, 30), 1, 7).Draw(t, "costs")
		rates := rapid.SliceOfN(rapid.Float64Range(6.25, 3000), 4, 4)
		largest, pushed := slices.Max(costs), 0
		var ws fair.Weights[int]
		q := fair.New(quantum, (*job).need, ws.Of)
		add := func(k int) {
			cost := costs[pushed%len(costs)]
			pushed++
			q.Push(k, &job{owner: k, cost: cost, part: cost})
		}
		serve := func() (owner int, cost int64) {
			j, _, _ := q.Next()
			q.Take(j.cost)
			add(j.owner)
			return j.owner, j.cost
		}
		weigh := func(label string, owners int) {
			for k, rate := range rates.Draw(t, label) {
				ws.Set(k%owners, fair.WeightOf(rate))
			}
		}
		const owners = 4
		weigh("rates", owners)
		for k := range owners {
			add(k)
			add(k)
		}
		measure := func() {
			served := make([]int64, owners)
			for range 300 {
				k, cost := serve()
				served[k] += cost
			}
			for a := range owners {
				for b := range owners {
					// What a round is worth to each of them.
					wa := float64(ws.Of(a)) / float64(fair.Usual) * float64(quantum)
					wb := float64(ws.Of(b)) / float64(fair.Usual) * float64(quantum)
					if apart := float64(served[a])/wa - float64(served[b])/wb; apart > 2+float64(largest)/wa+float64(largest)/wb {
						t.Fatalf("of weights %v and %v per turn %v and %v were served: %v rounds apart", wa, wb, served[a], served[b], apart)
					}
				}
			}
		}
		measure()
		weigh("edited rates", owners)
		// What is left of turns before the edit goes with as many rounds as it is worth of the lightest.
		for left := float64(quantum) * 30 * owners * 16; left > 0; {
			_, cost := serve()
			left -= float64(cost)
		}
		measure()
	})
}
