package broker

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queengate/queengate/wire"
)

// echo is a combiner of numbers that doubles them in one millisecond per bundle, unless run is replaced.
func echo(run func([]int) ([]int, error)) (*combiner[int, int, int], func() [][]int) {
	var mu sync.Mutex
	var bundles [][]int
	if run == nil {
		run = func([]int) ([]int, error) { return nil, nil }
	}
	c := &combiner[int, int, int]{
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
		max:  4, note: func(int, time.Duration) {},
	}
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
				if r := c.do(i)[0]; r.out != 2*i || r.err != nil {
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
		for i, r := range c.do(1, 101, 2, 201) {
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
			wg.Go(func() { c.do(i) })
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
			for _, r := range b.do(1, 2, 3, 4) {
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
	for _, r := range c.do(1, 2) {
		if r.err == nil {
			t.Error("a call of a bundle that panicked has no error")
		}
	}
	if r := c.do(1)[0]; r.err != nil {
		t.Errorf("the combiner is stuck: %v", r.err)
	}
}
