package run

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// diary records what happens in which order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) add(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *diary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines)
}

// testPart is a runner that waits for its end, drains for a while and may fail by itself.
type testPart struct {
	name   string
	d      *diary
	warmUp time.Duration // until ready
	drain  time.Duration
	lives  time.Duration // 0: until asked
	err    error
	ready  chan struct{}
}

func (p *testPart) Ready() <-chan struct{} { return p.ready }

func (p *testPart) Run(ctx context.Context) error {
	p.d.add(p.name + " starts")
	time.Sleep(p.warmUp) // in the bubble of synctest: no real time passes
	close(p.ready)
	var end <-chan time.Time
	if p.lives > 0 {
		end = time.After(p.lives)
	}
	select {
	case <-ctx.Done():
		time.Sleep(p.drain)
		p.d.add(p.name + " stopped")
	case <-end:
		p.d.add(p.name + " ends")
	}
	return p.err
}

func group(d *diary, parts ...*testPart) *Group {
	g := New(slog.New(slog.DiscardHandler), 10*time.Second)
	for _, p := range parts {
		p.d, p.ready = d, make(chan struct{})
		g.Add(p.name, p)
	}
	return g
}

func TestPartsStartInOrderAndStopInReverse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d diary
		g := group(&d, &testPart{name: "a", warmUp: time.Second, drain: time.Second}, &testPart{name: "b", drain: time.Second}, &testPart{name: "c"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := g.Run(ctx); err != nil {
			t.Errorf("a clean stop: got %v, want nil", err)
		}
		want := []string{"a starts", "b starts", "c starts", "c stopped", "b stopped", "a stopped"}
		if diff := cmp.Diff(want, d.read()); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

func TestTheFirstFailureStopsAll(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for rule, tc := range map[string]struct {
		fails *testPart
		want  string
	}{
		"an error is passed on with the name of its part": {&testPart{name: "b", lives: time.Second, err: boom}, "b: boom"},
		"a part that ends by itself is a failure":         {&testPart{name: "b", lives: time.Second}, "b: ended by itself"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var d diary
				err := group(&d, &testPart{name: "a"}, tc.fails, &testPart{name: "c"}).Run(t.Context())
				if err == nil || err.Error() != tc.want {
					t.Errorf("got %v, want %s", err, tc.want)
				}
				want := []string{"a starts", "b starts", "c starts", "b ends", "c stopped", "a stopped"}
				if diff := cmp.Diff(want, d.read()); diff != "" {
					t.Errorf("order (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestAFailureDuringTheStartLeavesTheRestUnstarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d diary
		g := New(slog.New(slog.DiscardHandler), time.Second)
		a := &testPart{name: "a", d: &d, ready: make(chan struct{})}
		g.Add("a", a)
		g.Add("b", neverReady{errors.New("no port")})
		g.Add("c", Func(func(context.Context) error { d.add("c starts"); return nil }))
		if err := g.Run(t.Context()); err == nil || err.Error() != "b: no port" {
			t.Errorf("got %v, want b: no port", err)
		}
		if diff := cmp.Diff([]string{"a starts", "a stopped"}, d.read()); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

type neverReady struct{ err error }

func (n neverReady) Ready() <-chan struct{}    { return make(chan struct{}) }
func (n neverReady) Run(context.Context) error { return n.err }

func TestAnEndDuringTheStartStopsWhatHasStarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d diary
		g := group(&d, &testPart{name: "a", warmUp: time.Minute}, &testPart{name: "b"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Run(ctx); err == nil || !strings.Contains(err.Error(), "not stopped within 10s: a") {
			t.Errorf("a part that cannot be interrupted: got %v, want it named", err)
		}
		time.Sleep(time.Hour) // it returns in the end, and finds that it is to stop
		if diff := cmp.Diff([]string{"a starts", "a stopped"}, d.read()); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

func TestAStopOverItsBudgetNamesTheStuckPartsAndTellsTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d diary
		g := group(&d, &testPart{name: "a"}, &testPart{name: "b", drain: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); cancel() }()
		begun := time.Now()
		err := g.Run(ctx)
		if err == nil || !strings.Contains(err.Error(), "b") || time.Since(begun) != 11*time.Second {
			t.Errorf("got %v after %s, want b named after 11s", err, time.Since(begun))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"a starts", "b starts", "a stopped"}, d.read()); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
		time.Sleep(time.Hour) // no goroutine may outlive the test
	})
}

func TestAPanicIsAFailureOfItsPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(slog.New(slog.DiscardHandler), time.Second)
		g.Add("a", Func(func(context.Context) error { panic("lost invariant") }))
		if err := g.Run(t.Context()); err == nil || err.Error() != "a: panic: lost invariant" {
			t.Errorf("got %v, want the panic with its part", err)
		}
	})
}
