package quota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

func counted(queues, partitions int64) func(*plans.Limits) {
	return func(l *plans.Limits) { l.MaxQueues, l.MaxPartitionsPerQueue = &queues, &partitions }
}

func seeded(t *testing.T, g ledgerUnderTest, c *plans.Cluster) *plans.Cluster {
	t.Helper()
	if err := g.EnsureSeeded(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c
}

var stored = Outcome{Stored: true}

func TestNames(t *testing.T) {
	tests := map[string]func(t *testing.T, g ledgerUnderTest, names *fakeSeeder){
		"an allowance of N gives exactly N named partitions beside Default": func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
			c := seeded(t, g, clusterWith(counted(1, 3)))
			g.Settle(admit(t, g, c, &Ask{Cost: wire.CostConfigure, Pairs: []Pair{{Queue: "q"}}}, start), stored, start)
			for _, p := range []string{"Default", "a", "b", "c"} {
				g.Settle(admit(t, g, c, push(1, Pair{"q", p}), start), stored, start)
			}
			refused(t, g, c, push(1, Pair{"q", "d"}), start, wire.QuotaExceeded, plans.LimitPartitions)
			for _, p := range []string{"Default", "a", "b", "c"} {
				g.Settle(admit(t, g, c, push(1, Pair{"q", p}), start), stored, start)
			}
		},
		"the pairs of a batch are checked together and refused whole": func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
			c := seeded(t, g, clusterWith(counted(2, 2)))
			refused(t, g, c, push(3, Pair{"a", "1"}, Pair{"b", "1"}, Pair{"c", "1"}), start, wire.QuotaExceeded, plans.LimitQueues)
			refused(t, g, c, push(3, Pair{"a", "1"}, Pair{"a", "2"}, Pair{"a", "3"}), start, wire.QuotaExceeded, plans.LimitPartitions)
			admit(t, g, c, push(4, Pair{"a", "1"}, Pair{"b", "1"}, Pair{"a", "2"}, Pair{"b", "2"}), start)
		},
		"pairs may repeat": func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
			c := seeded(t, g, clusterWith(counted(1, 1)))
			admit(t, g, c, push(4, Pair{"a", "1"}, Pair{"a", "1"}, Pair{"a", ""}, Pair{"a", "Default"}), start)
		},
		"a reservation counts at once and is released when nothing was stored": func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
			c := seeded(t, g, clusterWith(counted(1, 1)))
			a := admit(t, g, c, push(1, Pair{"a", "1"}), start)
			refused(t, g, c, push(1, Pair{"b", "1"}), start, wire.QuotaExceeded, plans.LimitQueues)
			refused(t, g, c, push(1, Pair{"a", "2"}), start, wire.QuotaExceeded, plans.LimitPartitions)
			g.Settle(a, Outcome{}, start)
			g.Settle(admit(t, g, c, push(1, Pair{"b", "1"}), start), stored, start)
		},
		"two requests may reserve the same name and one confirmation keeps it": func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
			c := seeded(t, g, clusterWith(counted(1, 1)))
			one := admit(t, g, c, push(1, Pair{"a", "1"}), start)
			two := admit(t, g, c, push(1, Pair{"a", "1"}), start)
			g.Settle(one, stored, start)
			g.Refund(two, start)
			refused(t, g, c, push(1, Pair{"a", "2"}), start, wire.QuotaExceeded, plans.LimitPartitions)
			refused(t, g, c, push(1, Pair{"b", "1"}), start, wire.QuotaExceeded, plans.LimitQueues)
		},
		"two requests may reserve the same name and the last release frees it": func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
			c := seeded(t, g, clusterWith(counted(1, 1)))
			one := admit(t, g, c, push(1, Pair{"a", "1"}), start)
			two := admit(t, g, c, push(1, Pair{"a", "1"}), start)
			g.Refund(one, start)
			refused(t, g, c, push(1, Pair{"b", "1"}), start, wire.QuotaExceeded, plans.LimitQueues)
			g.Settle(two, Outcome{}, start)
			admit(t, g, c, push(1, Pair{"b", "1"}), start)
		},
		"a deleted queue is free at once, with its partitions": func(t *testing.T, g ledgerUnderTest, names *fakeSeeder) {
			names.set(Pair{"a", "1"}, Pair{"a", "2"}, Pair{"b", ""})
			c := seeded(t, g, clusterWith(counted(2, 2)))
			refused(t, g, c, push(1, Pair{"c", ""}), start, wire.QuotaExceeded, plans.LimitQueues)
			g.QueueDeleted(c, "a")
			g.QueueDeleted(c, "never existed")
			a := admit(t, g, c, push(2, Pair{"c", "1"}, Pair{"c", "2"}), start)
			g.Refund(a, start)
			admit(t, g, c, push(2, Pair{"a", "3"}, Pair{"a", "4"}), start)
		},
		"a push in flight keeps its names when the queue is deleted": func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
			c := seeded(t, g, clusterWith(counted(1, 1)))
			g.Settle(admit(t, g, c, push(1, Pair{"a", ""}), start), stored, start)
			inFlight := admit(t, g, c, push(1, Pair{"a", "1"}), start)
			g.QueueDeleted(c, "a")
			refused(t, g, c, push(1, Pair{"b", ""}), start, wire.QuotaExceeded, plans.LimitQueues)
			g.Settle(inFlight, Outcome{}, start)
			admit(t, g, c, push(1, Pair{"b", ""}), start)
		},
		"a smaller plan refuses new names and not the known ones": func(t *testing.T, g ledgerUnderTest, names *fakeSeeder) {
			names.set(Pair{"a", "1"}, Pair{"b", "1"})
			c := seeded(t, g, clusterWith(counted(2, 2)))
			c = edited(c, counted(1, 0))
			admit(t, g, c, push(2, Pair{"a", "1"}, Pair{"b", "1"}), start)
			refused(t, g, c, push(1, Pair{"a", "2"}), start, wire.QuotaExceeded, plans.LimitPartitions)
			refused(t, g, c, push(1, Pair{"c", ""}), start, wire.QuotaExceeded, plans.LimitQueues)
		},
		"counts that are not known refuse nothing": func(t *testing.T, g ledgerUnderTest, names *fakeSeeder) {
			names.fail(errors.New("broker away"))
			c := clusterWith(counted(0, 0))
			for range 3 {
				if err := g.EnsureSeeded(t.Context(), c); err == nil {
					t.Fatal("no error of a failed listing")
				}
				g.Settle(admit(t, g, c, push(1, Pair{"a", "1"}), start), stored, start)
			}
			if names.calls() != 1 {
				t.Fatalf("a broken broker was asked %d times at once", names.calls())
			}
		},
		"names are listed once": func(t *testing.T, g ledgerUnderTest, names *fakeSeeder) {
			c := clusterWith(counted(1, 1))
			for range 10 {
				seeded(t, g, c)
			}
			if names.calls() != 1 {
				t.Fatalf("listed %d times", names.calls())
			}
		},
		"without a cap on partitions they cost nothing": func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
			c := seeded(t, g, clusterWith(func(l *plans.Limits) { l.MaxQueues = new(int64(1)) }))
			for i := range 100 {
				g.Settle(admit(t, g, c, push(1, Pair{"a", fmt.Sprint(i)}), start), stored, start)
			}
			if gate, ok := g.(*Gate); ok && gate.lock(c.ID).acc.names.names != 1 {
				t.Fatal("partitions are remembered")
			}
		},
		"a cap that comes later is counted from a new listing": func(t *testing.T, g ledgerUnderTest, names *fakeSeeder) {
			c := seeded(t, g, clusterWith(func(l *plans.Limits) { l.MaxQueues = new(int64(1)) }))
			g.Settle(admit(t, g, c, push(1, Pair{"a", "1"}), start), stored, start)
			names.set(Pair{"a", "1"})
			c = edited(c, counted(1, 1))
			admit(t, g, c, push(1, Pair{"a", "2"}), start) // not known yet
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { conform(t, test) })
	}
}

// handClock is a clock that only the test moves.
type handClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func gateWithNames(pairs ...Pair) (*Gate, *fakeSeeder, *handClock) {
	names, clock := new(fakeSeeder), &handClock{now: start}
	names.set(pairs...)
	return NewGate(slog.New(slog.DiscardHandler), WithSeeder(names), WithClock(clock.Now)), names, clock
}

func TestResyncListsAnewAtMostOnceASecond(t *testing.T) {
	t.Parallel()
	g, names, clock := gateWithNames(Pair{"a", ""})
	c := seeded(t, g, clusterWith(counted(1, 1)))
	names.set()
	for range 5 {
		g.Resync(c)
		seeded(t, g, c)
	}
	if names.calls() != 1 {
		t.Fatalf("listed %d times within a second", names.calls())
	}
	refused(t, g, c, push(1, Pair{"b", ""}), start, wire.QuotaExceeded, plans.LimitQueues)
	clock.pass(listingPause)
	seeded(t, g, c)
	seeded(t, g, c)
	if names.calls() != 2 {
		t.Fatalf("listed %d times, want once more", names.calls())
	}
	admit(t, g, c, push(1, Pair{"b", ""}), start)
}

func TestRecountHealsWhatOthersDeleted(t *testing.T) {
	t.Parallel()
	g, names, clock := gateWithNames(Pair{"a", ""})
	c := seeded(t, g, clusterWith(counted(1, 1)))
	names.set() // another gateway has deleted it
	refused(t, g, c, push(1, Pair{"b", ""}), start, wire.QuotaExceeded, plans.LimitQueues)
	if g.Recount(t.Context(), c) {
		t.Fatal("counted anew within a second of the last listing")
	}
	clock.pass(listingPause)
	if !g.Recount(t.Context(), c) {
		t.Fatal("not counted anew")
	}
	admit(t, g, c, push(1, Pair{"b", ""}), start)
	clock.pass(listingPause)
	names.fail(errors.New("broker away"))
	if g.Recount(t.Context(), c) {
		t.Fatal("a failed listing is no count")
	}
	refused(t, g, c, push(1, Pair{"d", ""}), start, wire.QuotaExceeded, plans.LimitQueues) // the old ones stay
}

func TestAListingMissesNothingThatHappensMeanwhile(t *testing.T) {
	t.Parallel()
	g, names, clock := gateWithNames(Pair{"a", "1"}, Pair{"gone", "1"}, Pair{"back", "1"})
	c := seeded(t, g, clusterWith(counted(10, 10)))
	held := admit(t, g, c, push(1, Pair{"held", "1"}), start)
	ends := admit(t, g, c, push(1, Pair{"ends", "1"}), start)
	names.during = func() {
		g.QueueDeleted(c, "gone")
		g.QueueDeleted(c, "back")
		g.Settle(admit(t, g, c, push(1, Pair{"back", "2"}), start), stored, start)
		g.Settle(admit(t, g, c, push(1, Pair{"new", "1"}), start), stored, start)
		g.Settle(ends, Outcome{}, start)
	}
	clock.pass(listingPause)
	if !g.Recount(t.Context(), c) {
		t.Fatal("not counted anew")
	}
	l := g.lock(c.ID)
	defer l.mu.Unlock()
	r := &l.acc.names
	check := func(when string, want map[string][]string) {
		t.Helper()
		total := 0
		for q, parts := range want {
			e := r.queues[r.hash(q)]
			if e == nil || len(e.partitions) != len(parts) {
				t.Fatalf("%s: queue %s is %+v, want %v", when, q, e, parts)
			}
			for _, p := range parts {
				if _, ok := e.partitions[r.hash(p)]; !ok {
					t.Fatalf("%s: partition %s/%s is missing", when, q, p)
				}
			}
			total += 1 + len(parts)
		}
		if len(r.queues) != len(want) || r.names != total {
			t.Fatalf("%s: %d queues and %d names, want %d and %d", when, len(r.queues), r.names, len(want), total)
		}
	}
	known := map[string][]string{"a": {"1"}, "back": {"2"}, "new": {"1"}}
	withHeld := map[string][]string{"a": {"1"}, "back": {"2"}, "new": {"1"}, "held": {"1"}}
	check("after the listing", withHeld)
	r.release(held.holds)
	check("after the release", known)
}

func TestListingIsSharedAndOutlivesItsFirstCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, names, _ := gateWithNames()
		c := clusterWith(counted(1, 1))
		proceed := make(chan struct{})
		names.during = func() { <-proceed }
		first, cancel := context.WithCancel(t.Context())
		results := make(chan error, 3)
		go func() { results <- g.EnsureSeeded(first, c) }()
		synctest.Wait()
		go func() { results <- g.EnsureSeeded(t.Context(), c) }()
		gone, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { left <- g.EnsureSeeded(gone, c) }()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v from a caller that left", err)
		}
		cancel()
		close(proceed)
		for range 2 {
			if err := <-results; err != nil {
				t.Fatal(err)
			}
		}
		if names.calls() != 1 {
			t.Fatalf("listed %d times", names.calls())
		}
	})
}

func TestAListingThatPanicsIsOver(t *testing.T) {
	t.Parallel()
	g, names, clock := gateWithNames()
	c := clusterWith(counted(1, 1))
	names.during = func() { panic("seeder") }
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		g.EnsureSeeded(t.Context(), c) //nolint:errcheck // it panics
	}()
	names.during = nil
	clock.pass(failurePause)
	seeded(t, g, c)
}

func TestMoreNamesThanAGatewayCountsAreTheBrokers(t *testing.T) {
	t.Parallel()
	g, _, clock := gateWithNames()
	calls := 0
	g.seeder = seederFunc(func(each func(Pair) error) error {
		calls++
		for i := range maxNames + 1 {
			if err := each(Pair{"q", fmt.Sprint(i)}); err != nil {
				return err
			}
		}
		return nil
	})
	c := clusterWith(counted(1, 5))
	if err := g.EnsureSeeded(t.Context(), c); !errors.Is(err, errTooManyNames) {
		t.Fatalf("got %v", err)
	}
	admit(t, g, c, push(1, Pair{"x", "1"}), start)
	clock.pass(failurePause)
	if err := g.EnsureSeeded(t.Context(), c); err == nil || calls != 1 {
		t.Fatalf("listed %d times (%v)", calls, err)
	}
}

type seederFunc func(each func(Pair) error) error

func (f seederFunc) Seed(_ context.Context, _ *plans.Cluster, each func(Pair) error) error {
	return f(each)
}

func TestANameThatCollidesIsLetThrough(t *testing.T) {
	t.Parallel()
	g, _, _ := gateWithNames(Pair{"q", "a"})
	c := seeded(t, g, clusterWith(counted(1, 1)))
	refused(t, g, c, push(1, Pair{"q", "b"}), start, wire.QuotaExceeded, plans.LimitPartitions)
	l := g.lock(c.ID)
	r := &l.acc.names
	r.queues[r.hash("q")].partitions[r.hash("b")] = 0 // as if a known name had the hash of b
	l.mu.Unlock()
	admit(t, g, c, push(1, Pair{"q", "b"}), start)
}
