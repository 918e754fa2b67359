package quota

import (
	"math"
	"testing"
	"time"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

func retained(most int64) func(*plans.Limits) {
	return func(l *plans.Limits) { l.MaxRetainedBytes = &most }
}

func bytesOf(n int64) *Ask {
	return &Ask{Cost: wire.CostMessages, Messages: 1, PayloadBytes: n, LargestItem: n}
}

func TestRetainedBytes(t *testing.T) {
	after := func(d time.Duration) time.Time { return start.Add(d) }
	store := func(t *testing.T, g ledgerUnderTest, c *plans.Cluster, n int64, now time.Time) {
		t.Helper()
		g.Settle(admit(t, g, c, bytesOf(n), now), Outcome{Stored: true, StoredBytes: n}, now)
	}
	tests := map[string]func(t *testing.T, g ledgerUnderTest, c *plans.Cluster){
		"one batch may cross the cap and no second": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			store(t, g, c, 99, start)
			crossing := admit(t, g, c, bytesOf(5000), start)
			refused(t, g, c, bytesOf(1), start, wire.StorageQuotaExceeded, plans.LimitStorage)
			g.Settle(crossing, Outcome{Stored: true, StoredBytes: 5000}, start)
			refused(t, g, c, bytesOf(1), start, wire.StorageQuotaExceeded, plans.LimitStorage)
		},
		"a push in flight that fails leaves no block": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			store(t, g, c, 95, start)
			failing := admit(t, g, c, bytesOf(50), start)
			refused(t, g, c, bytesOf(1), start, wire.StorageQuotaExceeded, plans.LimitStorage)
			g.Refund(failing, start)
			store(t, g, c, 1, start)
		},
		"a block ends at 90 percent and not before": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			g.Measured(c, Usage{RetainedBytes: 100, ComputedAt: after(0)})
			refused(t, g, c, bytesOf(1), start, wire.StorageQuotaExceeded, plans.LimitStorage)
			g.Measured(c, Usage{RetainedBytes: 91, ComputedAt: after(time.Second)})
			refused(t, g, c, bytesOf(1), start, wire.StorageQuotaExceeded, plans.LimitStorage)
			g.Measured(c, Usage{RetainedBytes: 90, ComputedAt: after(2 * time.Second)})
			store(t, g, c, 1, after(2*time.Second))
			g.Measured(c, Usage{RetainedBytes: 99, ComputedAt: after(4 * time.Second)})
			store(t, g, c, 1, after(4*time.Second))
			refused(t, g, c, bytesOf(1), after(4*time.Second), wire.StorageQuotaExceeded, plans.LimitStorage)
		},
		"a measure replaces what was stored before it, even with the same figure": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			g.Measured(c, Usage{RetainedBytes: 50, ComputedAt: after(0)})
			store(t, g, c, 60, after(time.Second))
			refused(t, g, c, bytesOf(1), start, wire.StorageQuotaExceeded, plans.LimitStorage)
			g.Measured(c, Usage{RetainedBytes: 50, ComputedAt: after(10 * time.Second)}) // pushes and expiry cancelled out to the byte
			store(t, g, c, 1, after(10*time.Second))
		},
		"a measure keeps what was stored after it was computed": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			store(t, g, c, 60, after(10*time.Second))
			g.Measured(c, Usage{RetainedBytes: 40, ComputedAt: after(9 * time.Second)})
			refused(t, g, c, bytesOf(1), start, wire.StorageQuotaExceeded, plans.LimitStorage)
		},
		"a block by estimate ends with a truer measure": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			store(t, g, c, 55, after(0))
			g.Measured(c, Usage{RetainedBytes: 55, ComputedAt: after(0)}) // of the slot in which they were stored: counted twice
			refused(t, g, c, bytesOf(1), start, wire.StorageQuotaExceeded, plans.LimitStorage)
			g.Measured(c, Usage{RetainedBytes: 95, ComputedAt: after(5 * time.Second)})
			store(t, g, c, 1, after(5*time.Second))
		},
		"an older measure than the last is ignored": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			g.Measured(c, Usage{RetainedBytes: 10, ComputedAt: after(time.Minute)})
			g.Measured(c, Usage{RetainedBytes: 100, ComputedAt: after(time.Second)})
			g.Measured(c, Usage{RetainedBytes: 100, ComputedAt: after(time.Minute)})
			store(t, g, c, 1, after(time.Minute))
		},
		"everything but a push passes": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			g.Measured(c, Usage{RetainedBytes: 1000, ComputedAt: start})
			for _, cost := range []wire.Cost{wire.CostRequest, wire.CostDelivery, wire.CostSettle, wire.CostConfigure} {
				admit(t, g, c, probe(cost), start)
			}
			admit(t, g, c, push(0), start)
		},
		"a bigger plan releases at once": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			g.Measured(c, Usage{RetainedBytes: 100, ComputedAt: start})
			refused(t, g, c, bytesOf(1), start, wire.StorageQuotaExceeded, plans.LimitStorage)
			store(t, g, edited(c, retained(101)), 1, start)
		},
		"a smaller plan blocks at once": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			g.Measured(c, Usage{RetainedBytes: 50, ComputedAt: start})
			store(t, g, c, 1, start)
			refused(t, g, edited(c, retained(51)), bytesOf(1), start, wire.StorageQuotaExceeded, plans.LimitStorage)
		},
		"a broker that does not measure for long": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			c = edited(c, retained(1000))
			for i := range 999 {
				store(t, g, c, 1, after(time.Duration(i)*time.Minute))
			}
			end := after(999 * time.Minute)
			store(t, g, c, 1, end)
			refused(t, g, c, bytesOf(1), end, wire.StorageQuotaExceeded, plans.LimitStorage)
			g.Measured(c, Usage{RetainedBytes: 0, ComputedAt: end.Add(time.Minute)})
			store(t, g, c, 1, end)
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) { test(t, g, clusterWith(retained(100))) })
		})
	}
}

func TestReleaseLevelNeverOverflows(t *testing.T) {
	t.Parallel()
	for most, want := range map[int64]int64{0: 0, 1: 0, 10: 9, 99: 89, 101: 90, 256 << 20: 241591910} {
		if got := releaseLevel(most); got != want {
			t.Errorf("release of %d at %d, want %d", most, got, want)
		}
	}
	if got := releaseLevel(math.MaxInt64); got <= 0 || got == math.MaxInt64 {
		t.Errorf("release at %d", got)
	}
}

func TestMonth(t *testing.T) {
	month := func(l *plans.Limits) { l.MonthlyMessages = new(int64(10)) }
	settle := func(t *testing.T, g ledgerUnderTest, c *plans.Cluster, n int, now time.Time) {
		t.Helper()
		g.Settle(admit(t, g, c, push(n), now), stored, now)
	}
	tests := map[string]func(t *testing.T, g ledgerUnderTest, c *plans.Cluster){
		"exactly the allowance is stored": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			settle(t, g, c, 7, start)
			refused(t, g, c, push(4), start, wire.QuotaExceeded, plans.LimitMonth)
			settle(t, g, c, 3, start)
			refused(t, g, c, push(1), start, wire.QuotaExceeded, plans.LimitMonth)
		},
		"requests in flight count and failed ones do not": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			a := admit(t, g, c, push(10), start)
			refused(t, g, c, push(1), start, wire.QuotaExceeded, plans.LimitMonth)
			g.Settle(a, Outcome{}, start)
			settle(t, g, c, 10, start)
		},
		"deliveries do not count": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			g.Settle(admit(t, g, c, pop(), start), Outcome{Delivered: 1000}, start)
			settle(t, g, c, 10, start)
		},
		"the count begins again with the calendar month in UTC": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			zone := time.FixedZone("behind", -5*3600)
			last := time.Date(2025, 3, 31, 23, 59, 59, 0, time.UTC).In(zone)
			settle(t, g, c, 10, last)
			err := refused(t, g, c, push(1), last, wire.QuotaExceeded, plans.LimitMonth)
			if err.Limit.ResetSeconds != 1 {
				t.Fatalf("resets in %v s, want 1", err.Limit.ResetSeconds)
			}
			settle(t, g, c, 10, last.Add(time.Second))
			refused(t, g, c, push(1), last.Add(time.Second), wire.QuotaExceeded, plans.LimitMonth)
		},
		"a plan edit keeps the count": func(t *testing.T, g ledgerUnderTest, c *plans.Cluster) {
			settle(t, g, c, 10, start)
			c = edited(c, func(l *plans.Limits) { l.MonthlyMessages = new(int64(11)) })
			settle(t, g, c, 1, start)
			refused(t, g, c, push(1), start, wire.QuotaExceeded, plans.LimitMonth)
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) { test(t, g, clusterWith(month)) })
		})
	}
}
