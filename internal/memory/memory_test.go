package memory

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestOnlyWhatWouldLieSpareIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		looks, freed := make(chan reading), 0
		u := New(prometheus.NewRegistry())
		u.free = func() { freed++ }
		u.read = func() reading {
			select {
			case r := <-looks:
				return r
			case <-ctx.Done():
				return reading{}
			}
		}
		ended := make(chan error, 1)
		go func() { ended <- u.Run(ctx) }()
		var now reading
		const mb = 1 << 20
		for _, step := range []struct {
			what             string
			allocated, spare uint64 // added
			freed            int    // so far
		}{
			{"a burst", 200 * mb, 90 * mb, 0},
			{"a calm after it", mb, mb, 1},
			{"nothing", 0, 0, 1},
			{"too little to be worth it", 0, 3 * mb, 1},
			{"what would be used within a minute", 2 * mb, 2 * mb, 1},
			{"what would not", mb, mb, 2},
			{"a busy process", 900 * mb, 60 * mb, 2},
			{"which goes on", 900 * mb, 0, 2},
			{"and ends", 0, 0, 3},
		} {
			now.allocated += step.allocated
			now.spare += step.spare
			before := freed
			looks <- now
			synctest.Wait()
			if freed != step.freed {
				t.Errorf("%s: memory was given back %d times, want %d", step.what, freed, step.freed)
			}
			if freed > before {
				now.spare = 0
			}
		}
		if n := testutil.ToFloat64(u.returns); n != float64(freed) {
			t.Errorf("%v returns are counted, want %d", n, freed)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestGarbageLiesSpareUntilItIsGivenBack reads the heap of this process.
func TestGarbageLiesSpareUntilItIsGivenBack(t *testing.T) {
	u := New(prometheus.NewRegistry())
	const much = 64 << 20
	before := u.read()
	held := make([]byte, much)
	runtime.KeepAlive(held)
	after := u.read()
	if n := after.allocated - before.allocated; n < much {
		t.Errorf("%d bytes were allocated, want at least %d", n, much)
	}
	held = nil
	runtime.GC()
	if r := u.read(); r.spare < much/2 {
		t.Errorf("%d bytes lie spare, want at least %d", r.spare, much/2)
	}
	u.free()
	if r := u.read(); r.spare > much/8 {
		t.Errorf("%d bytes still lie spare, want at most %d", r.spare, much/8)
	}
}
