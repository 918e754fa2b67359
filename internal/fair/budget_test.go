package fair_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/queengate/queengate/internal/fair"
)

func TestWhoeverFloodsFillsItsShareOnly(t *testing.T) {
	t.Parallel()
	for owners, share := range map[int]int64{1: 500, 2: 333, 3: 250, 9: 100} {
		b := fair.NewBudget[int](1000)
		held := make([]int64, owners)
		for more := true; more; { // all of them at once, one at a time
			more = false
			for k := range owners {
				if b.Hold(k, 1) {
					held[k]++
					more = true
				}
			}
		}
		for k, h := range held {
			if h < share || h > share+1 {
				t.Errorf("%d owners: %d holds %d, want %d", owners, k, h, share)
			}
		}
		if !b.Hold(owners, 1) {
			t.Errorf("%d owners: a newcomer is refused", owners)
		}
		if b.Hold(0, 1) {
			t.Errorf("%d owners: who has its share is given more", owners)
		}
	}
}

func TestBudget(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const limit = 100
		b := fair.NewBudget[int](limit)
		type grant struct {
			k    int
			cost int64
		}
		var grants []grant
		held := map[int]int64{}
		var used int64
		var refused uint64
		t.Repeat(map[string]func(*rapid.T){
			"hold": func(t *rapid.T) {
				g := grant{rapid.IntRange(0, 4).Draw(t, "owner"), rapid.Int64Range(1, 150).Draw(t, "cost")}
				want := used == 0 || held[g.k]+g.cost <= limit-used
				if got := b.Hold(g.k, g.cost); got != want {
					t.Fatalf("Hold(%d, %d) = %v with %d held by it and %d in all", g.k, g.cost, got, held[g.k], used)
				}
				if !want {
					refused++
					return
				}
				grants = append(grants, g)
				held[g.k] += g.cost
				used += g.cost
			},
			"release": func(t *rapid.T) {
				if len(grants) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(grants)-1).Draw(t, "grant")
				g := grants[i]
				grants = append(grants[:i], grants[i+1:]...)
				b.Release(g.k, g.cost)
				used -= g.cost
				if held[g.k] -= g.cost; held[g.k] == 0 {
					delete(held, g.k)
				}
			},
			"": func(t *rapid.T) {
				if b.Used() != used || b.Owners() != len(held) || b.Refused() != refused {
					t.Fatalf("%d of %d owners, %d refusals, want %d of %d, %d", b.Used(), b.Owners(), b.Refused(), used, len(held), refused)
				}
				if used > limit && len(grants) != 1 {
					t.Fatalf("%d of %d are held by %d grants", used, limit, len(grants))
				}
			},
		})
	})
}
