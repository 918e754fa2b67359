package broker

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/fair"
	"github.com/queengate/queengate/wire"
)

var (
	tenantA = uuid.MustParse("00000000-0000-0000-0000-00000000000a")
	tenantB = uuid.MustParse("00000000-0000-0000-0000-00000000000b")
)

// echo is a combiner of numbers that doubles them in one millisecond per bundle, unless run is replaced.
func echo(run func([]int) ([]int, error)) (*combiner[int, int, int], func() [][]int) {
	var mu sync.Mutex
	var bundles [][]int
	if run == nil {
		run = func([]int) ([]int, error) { return nil, nil }
	}
	c := newCombiner(bundling[int, int, int]{
		run: func(ins []int) ([]int, error) {
			mu.Lock()
			bundles = append(bundles, slices.Clone(ins))
			mu.Unlock()
			if outs, err := run(ins); outs != nil || err != nil {
				return outs, err
			}
			time.Sleep(time.Millisecond)
			outs := make([]int, len(ins))
			for i, in := range ins {
				outs[i] = 2 * in
			}
			return outs, nil
		},
		keys: func(in int, each func(int)) { each(in % 100) },
		cost: func(int) int64 { return callQuantum }, // one call per turn
		max:  4, note: func(int, time.Duration) {},
	}, nil)
	return c, func() [][]int {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(bundles)
	}
}

func TestALoneCallGoesAtOnceAndOthersShareTheNextBundle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, bundles := echo(nil)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				if r := c.do(tenantA, i)[0]; r.out != 2*i || r.err != nil {
					t.Errorf("%d: %v, %v", i, r.out, r.err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if got := fmt.Sprint(bundles()); got != "[[0] [1 2 3 4] [5]]" {
			t.Errorf("bundles %s", got)
		}
	})
}

func TestCallsThatShareAKeyKeepTheirOrderInBundlesOfTheirOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, bundles := echo(nil)
		for i, r := range c.do(tenantA, 1, 101, 2, 201) {
			if want := []int{2, 202, 4, 402}[i]; r.out != want {
				t.Errorf("%d: %d, want %d", i, r.out, want)
			}
		}
		if got := fmt.Sprint(bundles()); got != "[[1 2] [101] [201]]" {
			t.Errorf("bundles %s", got)
		}
	})
}

func TestASlowBundleIsJoinedByASecondAndNoThird(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		c, bundles := echo(func([]int) ([]int, error) { <-block; return nil, nil })
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() { c.do(tenantA, i) })
			time.Sleep(time.Second)
		}
		if n := len(bundles()); n != 2 {
			t.Errorf("%d bundles in flight, want 2", n)
		}
		close(block)
		wg.Wait()
		if n := len(bundles()); n != 3 {
			t.Errorf("%d bundles in all, want 3", n)
		}
	})
}

func TestOnlyTheCulpritFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		fail int
	}{
		"a fault of one call":     {&wire.Error{Code: wire.Internal, Outcome: wire.OutcomeNone}, 1},
		"an unknown outcome":      {&wire.Error{Code: wire.Internal, Outcome: wire.OutcomeUnknown}, 4},
		"the database is away":    {&wire.Error{Code: wire.DatabaseUnavailable}, 4},
		"an error without a word": {errors.New("broken"), 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _ := echo(func(ins []int) ([]int, error) {
				for _, in := range ins {
					if in == 3 {
						return nil, c.err
					}
				}
				return nil, nil
			})
			failed := 0
			for _, r := range b.do(tenantA, 1, 2, 3, 4) {
				if r.err != nil {
					failed++
				} else if r.out != 2*r.in {
					t.Errorf("%d: %d", r.in, r.out)
				}
			}
			if failed != c.fail {
				t.Errorf("%d calls failed, want %d", failed, c.fail)
			}
		})
	}
}

func TestAPanicInABundleReachesEveryCallAndNoOther(t *testing.T) {
	t.Parallel()
	first := true
	c, _ := echo(func([]int) ([]int, error) {
		if first {
			first = false
			panic("broken")
		}
		return nil, nil
	})
	for _, r := range c.do(tenantA, 1, 2) {
		if r.err == nil {
			t.Error("a call of a bundle that panicked has no error")
		}
	}
	if r := c.do(tenantA, 1)[0]; r.err != nil {
		t.Errorf("the combiner is stuck: %v", r.err)
	}
}

// TestAFloodOfOneTenantLeavesTheOthersTheirTurns: however many calls of one wait, a call of another is in the next
// bundle but one.
func TestAFloodOfOneTenantLeavesTheOthersTheirTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, bundles := echo(nil)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() { c.do(tenantA, i) })
			synctest.Wait()
		}
		for i := range 4 {
			wg.Go(func() { c.do(tenantB, 90+i) })
			synctest.Wait()
		}
		wg.Wait()
		if got := fmt.Sprint(bundles()[:4]); got != "[[0] [90 1 91 2] [92 3 93 4] [5 6 7 8]]" {
			t.Errorf("bundles %s", got)
		}
		if s := c.backlog(); s.pending != 0 || s.tenants != 0 || c.waiting() != 0 || len(c.last) != 0 {
			t.Errorf("at rest: %+v, %d wait, %d keys", s, c.waiting(), len(c.last))
		}
	})
}

func TestCallsOfOneKeyOvertakeNobodyOfIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, bundles := echo(nil)
		var wg sync.WaitGroup
		for _, in := range []int{7, 1, 101, 2, 201, 102, 301} {
			wg.Go(func() { c.do(tenantA, in) })
			synctest.Wait()
		}
		wg.Wait()
		if got := fmt.Sprint(bundles()); got != "[[7] [1 2] [101 102] [201] [301]]" {
			t.Errorf("bundles %s", got)
		}
	})
}

func TestATenantWithItsShareOfCallsIsRefusedAndItsNeighbourIsNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		c, _ := echo(func([]int) ([]int, error) { <-block; return nil, nil })
		c.budget = fair.NewBudget[uuid.UUID](9)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() { c.do(tenantA, i) })
			synctest.Wait()
		}
		for _, r := range c.do(tenantA, 4, 5) {
			var e *wire.Error
			if !errors.As(r.err, &e) || e.Code != wire.BrokerOverloaded || e.RetryAfter <= 0 || e.Outcome != wire.OutcomeNone {
				t.Errorf("beyond the share: %v", r.err)
			}
		}
		wg.Go(func() {
			for _, r := range c.do(tenantB, 6, 7) {
				if r.err != nil {
					t.Errorf("a neighbour: %v", r.err)
				}
			}
		})
		synctest.Wait()
		if s := c.backlog(); s.pending != 6 || s.tenants != 2 || s.refused != 1 {
			t.Errorf("backlog %+v", s)
		}
		close(block)
		wg.Wait()
		if s := c.backlog(); s.pending != 0 || s.tenants != 0 {
			t.Errorf("at rest: %+v", s)
		}
	})
}

// TestABundleIsSharedByTheWeightsOfTheTenants: one of three times the weight has three of four calls, while both wait.
func TestABundleIsSharedByTheWeightsOfTheTenants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, bundles := echo(nil)
		weights := fair.Weights[uuid.UUID]{}
		weights.Set(tenantB, 3*fair.Usual)
		c.ready = fair.New(callQuantum, func(p *call[int, int]) int64 { return c.cost(p.in) }, weights.Of)
		var wg sync.WaitGroup
		wg.Go(func() { c.do(tenantA, 99) })
		synctest.Wait()
		for i := range 9 {
			wg.Go(func() { c.do(tenantA, i) })
			wg.Go(func() { c.do(tenantB, 50+i) })
			synctest.Wait()
		}
		wg.Wait()
		for _, b := range bundles()[1:4] {
			heavy := 0
			for _, in := range b {
				if in >= 50 {
					heavy++
				}
			}
			if len(b) != 4 || heavy != 3 {
				t.Errorf("a bundle has %d calls of the heavier tenant: %v", heavy, b)
			}
		}
	})
}
