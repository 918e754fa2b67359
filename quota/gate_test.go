package quota

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

func testGate(options ...Option) *Gate { return NewGate(slog.New(slog.DiscardHandler), options...) }

func modes(m plans.Mode, names ...string) func(*plans.Limits) {
	return func(l *plans.Limits) {
		l.Modes = make(map[string]plans.Mode)
		for _, n := range names {
			l.Modes[n] = m
		}
	}
}

func TestShadowCountsReportsAndLetsThrough(t *testing.T) {
	t.Parallel()
	for _, f := range faults {
		if f.limits == nil {
			continue // no plan can shadow it
		}
		for _, cost := range f.costs {
			t.Run(fmt.Sprintf("%s/%d", f.name, cost), func(t *testing.T) {
				t.Parallel()
				registry := prometheus.NewRegistry()
				names := new(fakeSeeder)
				g := testGate(WithSeeder(names), WithRegisterer(registry))
				c, ask := provoke(t, g, names, cost, f)
				c = edited(c, limits(f.limits, modes(plans.Shadow, f.limit)))
				adm, report, err := g.Admit(c, ask, start)
				if err != nil {
					t.Fatalf("a shadowed limit refused: %v", err)
				}
				if report.Name != f.limit || report.Mode != plans.Shadow {
					t.Fatalf("report %+v, want the shadowed limit", report)
				}
				if got := decisions(t, registry, f.limit, "shadow", "deny"); got != 1 {
					t.Fatalf("%v shadow denials counted, want 1", got)
				}
				g.Settle(adm, stored, start)
				c = edited(c, limits(f.limits, modes(plans.Off, f.limit)))
				if _, report, err = g.Admit(c, ask, start); err != nil || report != (Report{}) {
					t.Fatalf("a limit that is off: %+v, %v", report, err)
				}
			})
		}
	}
}

// decisions reads one counter.
func decisions(t *testing.T, g prometheus.Gatherer, limit, mode, verdict string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"limit": limit, "mode": mode, "verdict": verdict}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got := map[string]string{}
			for _, l := range m.GetLabel() {
				got[l.GetName()] = l.GetValue()
			}
			if cmp.Equal(got, want) {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no counter %v", want)
	return 0
}

func TestShadowRefusesExactlyWhatEnforcementWould(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	shadow, enforce := testGate(WithRegisterer(registry)), testGate()
	cs := clusterWith(limits(requestRate(10, 20), messageRate(30, 60), modes(plans.Shadow, "req", "msgs")))
	onlyRequests, onlyMessages := clusterWith(requestRate(10, 20)), clusterWith(messageRate(30, 60))
	refused := map[string]int{}
	for i := range 2000 {
		now := start.Add(time.Duration(i) * 50 * time.Millisecond)
		admit(t, shadow, cs, push(5), now)
		for _, c := range []*plans.Cluster{onlyRequests, onlyMessages} {
			if _, _, err := enforce.Admit(c, push(5), now); err != nil {
				refused[limitOf(err)]++
			}
		}
	}
	for _, limit := range []string{"req", "msgs"} {
		if got := decisions(t, registry, limit, "shadow", "deny"); got != float64(refused[limit]) || got < 900 {
			t.Fatalf("%s: %v shadow denials, %d refusals under enforcement", limit, got, refused[limit])
		}
	}
}

func TestRefusedBodiesSpendABudget(t *testing.T) {
	t.Parallel()
	g := testGate()
	c := clusterWith(func(l *plans.Limits) { l.MaxBatchItems = new(int64(1)) })
	for i := range refusalsBurst {
		if _, err := g.AskHead(c, nil, wire.CostMessages, start); err != nil {
			t.Fatalf("head %d: %v", i, err)
		}
		refused(t, g, c, push(2), start, wire.PayloadTooLarge, plans.LimitBatch)
	}
	if g.BodyRefusalAllowed(c, start) {
		t.Fatal("the budget is not spent")
	}
	for i, cost := range []wire.Cost{wire.CostMessages, wire.CostMixed, wire.CostReplay, wire.CostConfigure} {
		report, err := g.AskHead(c, nil, cost, start)
		if err == nil || err.Code != wire.RateLimited || !err.Close || report.Name != nameRefusals {
			t.Fatalf("cost %d: %v with report %+v, want 429 with the body unread", cost, err, report)
		}
		if want := time.Duration(i+1) * time.Second / refusalsPerSecond; err.RetryAfter != want || report.Reset != want {
			t.Fatalf("wait %v, want %v", err.RetryAfter, want)
		}
	}
	for _, cost := range []wire.Cost{wire.CostRequest, wire.CostDelivery, wire.CostSettle} {
		if _, err := g.AskHead(c, nil, cost, start); err != nil {
			t.Fatalf("cost %d has no body worth refusing: %v", cost, err)
		}
	}
	if _, err := g.AskHead(clusterWith(nil), nil, wire.CostMessages, start); err != nil {
		t.Fatalf("another cluster is refused: %v", err)
	}
	later := start.Add(time.Second / refusalsPerSecond)
	if _, err := g.AskHead(c, nil, wire.CostMessages, later); err != nil {
		t.Fatalf("refused after the wait: %v", err)
	}
	g.BodyRefused(c, later)
	if g.BodyRefusalAllowed(c, later) {
		t.Fatal("a refusal of the reader is free")
	}
}

func TestAHeadRefusedForTheBudgetIsToldWhenMessagesFit(t *testing.T) {
	t.Parallel()
	g := testGate()
	c := clusterWith(messageRate(0.5, 5))
	admit(t, g, c, push(5), start)
	for range refusalsBurst {
		g.BodyRefused(c, start)
	}
	for k := 1; k <= 3; k++ {
		if _, err := g.AskHead(c, nil, wire.CostMessages, start); err == nil || err.RetryAfter != time.Duration(2*k)*time.Second {
			t.Fatalf("head %d: %v, want a wait of %d s", k, err, 2*k)
		}
	}
}

func TestTheHeadTakesNothing(t *testing.T) {
	t.Parallel()
	g := testGate()
	c := clusterWith(requestRate(1, 1))
	for range 100 {
		if report, err := g.AskHead(c, nil, wire.CostRequest, start); err != nil || report.Remaining != 1 {
			t.Fatalf("%+v, %v", report, err)
		}
	}
	admit(t, g, c, pop(), start)
	report, err := g.AskHead(c, nil, wire.CostRequest, start)
	if err == nil || err.RetryAfter != time.Second || report.Reset != time.Second || err.RetryAfterSeconds() != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	// The next is told a later time, and the head of a plan edit or a refund is asked anew.
	if _, err = g.AskHead(c, nil, wire.CostRequest, start); err == nil || err.RetryAfter != 2*time.Second {
		t.Fatalf("%v", err)
	}
}

func TestReportsNameTheLimitClosestToRefusing(t *testing.T) {
	t.Parallel()
	half := start.Add(500 * time.Millisecond)
	tests := map[string]struct {
		limits func(*plans.Limits)
		ask    *Ask
		want   Report
	}{
		"the request bucket alone": {
			requestRate(10, 20), pop(),
			Report{Name: "req", Limit: 20, Remaining: 19, Reset: 100 * time.Millisecond, Window: 2 * time.Second},
		},
		"the emptier bucket": {
			limits(requestRate(10, 20), messageRate(5, 10)), push(9),
			Report{Name: "msgs", Limit: 10, Remaining: 1, Reset: 1800 * time.Millisecond, Window: 2 * time.Second},
		},
		"slots": {
			limits(requestRate(10, 20), func(l *plans.Limits) { l.MaxParkedPops = new(int64(2)) }), waitingPop(half),
			Report{Name: "parked", Limit: 2, Remaining: 1, Reset: 500 * time.Millisecond},
		},
		"retained bytes": {
			limits(requestRate(10, 20), retained(12)), push(3),
			Report{Name: "storage", Limit: 12, Remaining: 3},
		},
		"the month": {
			func(l *plans.Limits) { l.MonthlyMessages = new(int64(100)) }, push(3),
			Report{Name: "month", Limit: 100, Remaining: 97, Reset: 21*24*time.Hour + 12*time.Hour},
		},
		"nothing": {nil, push(3), Report{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, got, err := testGate().Admit(clusterWith(test.limits), test.ask, start)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Fatalf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestRefusalsSayWhatTheLimitIs(t *testing.T) {
	t.Parallel()
	g := testGate()
	c := clusterWith(requestRate(10, 20))
	for range 20 {
		admit(t, g, c, pop(), start)
	}
	err := refused(t, g, c, pop(), start, wire.RateLimited, plans.LimitRequests)
	want := &wire.Limit{Name: "req", Limit: 10, Used: 10, Unit: "requests_per_second", ResetSeconds: 0.1}
	if diff := cmp.Diff(want, err.Limit); diff != "" {
		t.Fatalf("-want +got:\n%s", diff)
	}
	if got := string(err.AppendJSON(nil, "r1")); !strings.Contains(got, `"retry_after_ms":100`) {
		t.Fatalf("body %s", got)
	}
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	names := new(fakeSeeder)
	names.set(Pair{"a", "1"}, Pair{"a", "2"})
	g := testGate(WithSeeder(names))
	c := seeded(t, g, clusterWith(limits(requestRate(10, 20), messageRate(1, 10), counted(5, 5), retained(100))))
	g.Measured(c, Usage{RetainedBytes: 40, ComputedAt: start})
	g.Settle(admit(t, g, c, push(2, Pair{"b", "1"}), start), Outcome{Stored: true, StoredBytes: 6}, start)
	admit(t, g, c, waitingPop(start.Add(time.Second)), start)
	if _, _, err := g.Admit(c, push(9), start); err == nil {
		t.Fatal("admitted")
	}
	want := Levels{
		Requests: &BucketLevel{PerSecond: 10, Burst: 20, Level: 18},
		Messages: &BucketLevel{PerSecond: 1, Burst: 10, Level: 8, Promised: 1},
		Parked:   1, Queues: new(2), FullestQueue: new(2), RetainedBytes: 46, MeasuredAt: &start, MonthMessages: 2, Open: 1,
	}
	if diff := cmp.Diff(want, g.Snapshot(c, start)); diff != "" {
		t.Fatalf("-want +got:\n%s", diff)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	g := testGate(WithRegisterer(registry))
	c := clusterWith(limits(requestRate(10, 2), messageRate(10, 20)))
	admit(t, g, c, waitingPop(start), start)
	g.Settle(admit(t, g, c, waitingPop(start), start), Outcome{}, start)
	refused(t, g, c, pop(), start, wire.RateLimited, plans.LimitRequests)
	want := `
# HELP queengate_quota_clusters Clusters with a ledger in memory.
# TYPE queengate_quota_clusters gauge
queengate_quota_clusters 1
# HELP queengate_quota_parked_polls Long polls that hold a slot.
# TYPE queengate_quota_parked_polls gauge
queengate_quota_parked_polls 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "queengate_quota_clusters",
		"queengate_quota_parked_polls"); err != nil {
		t.Fatal(err)
	}
	if allow, deny := decisions(t, registry, "req", "enforce", "allow"), decisions(t, registry, "req", "enforce", "deny"); allow != 2 || deny != 1 {
		t.Fatalf("%v allowed and %v denied, want 2 and 1", allow, deny)
	}
}

func TestIdleLedgersAreDropped(t *testing.T) {
	t.Parallel()
	late := start.Add(idleAfter)
	tests := map[string]struct {
		limits  func(*plans.Limits)
		use     func(t *testing.T, g *Gate, c *plans.Cluster)
		dropped int
	}{
		"full buckets": {requestRate(10, 20), func(t *testing.T, g *Gate, c *plans.Cluster) {
			g.Settle(admit(t, g, c, pop(), start), Outcome{}, start)
		}, 1},
		"a bucket in debt": {messageRate(0.001, 20), func(t *testing.T, g *Gate, c *plans.Cluster) {
			g.Settle(admit(t, g, c, pop(), start), Outcome{Delivered: 20}, start)
		}, 0},
		"an open admission": {requestRate(10, 20), func(t *testing.T, g *Gate, c *plans.Cluster) {
			admit(t, g, c, pop(), start)
		}, 0},
		"used lately": {requestRate(10, 20), func(t *testing.T, g *Gate, c *plans.Cluster) {
			g.Settle(admit(t, g, c, pop(), start.Add(time.Second)), Outcome{}, start.Add(time.Second))
		}, 0},
		"messages counted in this month": {nil, func(t *testing.T, g *Gate, c *plans.Cluster) {
			g.Settle(admit(t, g, c, push(1), start), stored, start)
		}, 0},
		"bytes stored since the last measure": {retained(100), func(t *testing.T, g *Gate, c *plans.Cluster) {
			g.Settle(admit(t, g, c, pop(), start), Outcome{Stored: true, StoredBytes: 1}, start)
		}, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := testGate()
			c := clusterWith(test.limits)
			test.use(t, g, c)
			if got := g.Sweep(start.Add(idleAfter - 1)); got != 0 {
				t.Fatalf("dropped %d too early", got)
			}
			if got := g.Sweep(late); got != test.dropped {
				t.Fatalf("dropped %d, want %d", got, test.dropped)
			}
			admit(t, g, c, pop(), late)
		})
	}
}

func TestIdleNamesAreForgottenAndListedAgain(t *testing.T) {
	t.Parallel()
	g, names, clock := gateWithNames(Pair{"a", ""})
	c := seeded(t, g, clusterWith(counted(1, 1)))
	g.Settle(admit(t, g, c, push(1, Pair{"a", ""}), start), stored, start) // the month keeps the ledger
	g.Sweep(start.Add(idleAfter))
	clock.pass(idleAfter)
	seeded(t, g, c)
	if names.calls() != 2 {
		t.Fatalf("listed %d times, want 2", names.calls())
	}
	refused(t, g, c, push(1, Pair{"b", ""}), start, wire.QuotaExceeded, plans.LimitQueues)
}

func TestForgetEndsALedgerAndItsAdmissionsMayEnd(t *testing.T) {
	t.Parallel()
	g := testGate()
	c := clusterWith(requestRate(1, 1))
	a := admit(t, g, c, waitingPop(start), start)
	g.Forget(c.ID)
	admit(t, g, c, pop(), start)
	g.Settle(a, Outcome{}, start)
	if g.parked.Load() != 0 {
		t.Fatal("the slot is still counted")
	}
}

func TestRunSweepsAndEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := testGate()
		c := clusterWith(requestRate(10, 20))
		g.Settle(admit(t, g, c, pop(), time.Now()), Outcome{}, time.Now())
		ctx, cancel := context.WithTimeout(t.Context(), idleAfter+2*sweepEvery)
		defer cancel()
		if err := g.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if n := len(g.shard(c.ID).all()); n != 0 {
			t.Fatalf("%d ledgers left", n)
		}
	})
}

// TestConcurrentUse plays all calls at once, with sweeps and edits, and checks the sums at the end.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	names := new(fakeSeeder)
	g := testGate(WithSeeder(names))
	plan := limits(requestRate(1000, 500), messageRate(3000, 3000), counted(3, 4), func(l *plans.Limits) {
		l.MaxParkedPops, l.MonthlyMessages, l.MaxRetainedBytes = new(int64(5)), new(int64(1<<40)), new(int64(1<<40))
	})
	clusters := make([]*plans.Cluster, 4)
	for i := range clusters {
		clusters[i] = seeded(t, g, clusterWith(plan))
	}
	var clock, parkedNow, storedMessages atomic.Int64
	var everything sync.WaitGroup
	for worker := range 8 {
		everything.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			for range 2000 {
				now := start.Add(time.Duration(clock.Add(int64(50 * time.Microsecond))))
				c := clusters[random.IntN(len(clusters))]
				switch random.IntN(12) {
				case 0:
					c = edited(c, plan)
				case 1:
					g.Sweep(now)
				case 2:
					g.Resync(c)
				case 3:
					g.Snapshot(c, now)
				case 4:
					g.Measured(c, Usage{RetainedBytes: 1, ComputedAt: now})
				}
				if err := g.EnsureSeeded(t.Context(), c); err != nil {
					t.Error(err)
				}
				cost := wire.Cost(random.IntN(5))
				if _, err := g.AskHead(c, nil, cost, now); err != nil {
					continue
				}
				ask := probe(cost)
				if cost == wire.CostMessages {
					ask = push(2, Pair{fmt.Sprint("q", random.IntN(5)), fmt.Sprint("p", random.IntN(6))})
				}
				a, _, err := g.Admit(c, ask, now)
				if err != nil {
					continue
				}
				if ask.Wait {
					if parkedNow.Add(1) > int64(5*len(clusters)) {
						t.Error("more polls parked than slots")
					}
					parkedNow.Add(-1)
				}
				switch random.IntN(3) {
				case 0:
					g.Refund(a, now)
				case 1:
					g.Settle(a, Outcome{Delivered: 3}, now)
				default:
					storedMessages.Add(a.counted)
					g.Settle(a, Outcome{Stored: true, StoredBytes: 6}, now)
				}
				g.Refund(a, now)
			}
		})
	}
	everything.Wait()
	end := start.Add(time.Duration(clock.Load()))
	month := int64(0)
	for _, c := range clusters {
		b := booksOf(g, c, end)
		if b.Open != 0 || len(b.Parked) != 0 || b.Storage.reserved != 0 || b.Month.reserved != 0 || len(b.Queues) > 3 {
			t.Errorf("at the end %+v", b)
		}
		if b.Requests.level > b.Requests.burst || b.Messages.level > b.Messages.burst {
			t.Errorf("more tokens than the burst: %+v", b)
		}
		for _, q := range b.Queues {
			if len(q.partitions) > 4 {
				t.Errorf("%d partitions", len(q.partitions))
			}
		}
		month += b.Month.own
	}
	if month != storedMessages.Load() {
		t.Errorf("%d messages counted, %d stored", month, storedMessages.Load())
	}
	if g.parked.Load() != 0 {
		t.Errorf("gauge of parked polls %d", g.parked.Load())
	}
}
