package quota

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// ledgerUnderTest is what every ledger must do. The suite below knows nothing else of a ledger.
type ledgerUnderTest interface {
	AskHead(*plans.Cluster, *plans.Key, wire.Cost, time.Time) (Report, *wire.Error)
	Admit(*plans.Cluster, *Ask, time.Time) (*Admission, Report, *wire.Error)
	Settle(*Admission, Outcome, time.Time)
	Refund(*Admission, time.Time)
	Measured(*plans.Cluster, Usage)
	EnsureSeeded(context.Context, *plans.Cluster) error
	QueueDeleted(*plans.Cluster, string)
	Resync(*plans.Cluster)
}

// newLedger makes a ledger of the kind under test.
type newLedger func(testing.TB, Seeder) ledgerUnderTest

var ledgersUnderTest = map[string]newLedger{
	"local": func(_ testing.TB, s Seeder) ledgerUnderTest {
		return NewGate(slog.New(slog.DiscardHandler), WithSeeder(s))
	},
	"exact": func(t testing.TB, s Seeder) ledgerUnderTest {
		return newFleetWorld(t, redistest.Options(t), false).gate(s)
	},
	"leased": func(t testing.TB, s Seeder) ledgerUnderTest {
		return newFleetWorld(t, redistest.Options(t), true).gate(s)
	},
}

// conform runs a test against every ledger.
func conform(t *testing.T, test func(t *testing.T, g ledgerUnderTest, names *fakeSeeder)) {
	t.Helper()
	t.Parallel()
	conformEach(t, func(t *testing.T, newLedger newLedger) {
		names := new(fakeSeeder)
		test(t, newLedger(t, names), names)
	})
}

// conformEach is conform for tests that need several ledgers of a kind.
func conformEach(t *testing.T, test func(t *testing.T, newLedger newLedger)) {
	t.Helper()
	for name, newLedger := range ledgersUnderTest {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newLedger)
		})
	}
}

// start is the first instant of most tests; the clock is the test's.
var start = time.Date(2025, 3, 10, 12, 0, 0, 0, time.UTC)

func clusterWith(edit func(*plans.Limits)) *plans.Cluster {
	c := &plans.Cluster{ID: uuid.New(), Slug: "acme", Status: plans.Active}
	if edit != nil {
		edit(&c.Limits)
	}
	return c
}

// edited is the same cluster under another plan, as a new snapshot would hold it.
func edited(c *plans.Cluster, edit func(*plans.Limits)) *plans.Cluster {
	n := *c
	n.Limits = plans.Limits{}
	edit(&n.Limits)
	return &n
}

func requestRate(rate, burst float64) func(*plans.Limits) {
	return func(l *plans.Limits) { l.RequestsPerSecond, l.RequestsBurst = &rate, &burst }
}

func messageRate(rate, burst float64) func(*plans.Limits) {
	return func(l *plans.Limits) { l.MessagesPerSecond, l.MessagesBurst = &rate, &burst }
}

func limits(edits ...func(*plans.Limits)) func(*plans.Limits) {
	return func(l *plans.Limits) {
		for _, e := range edits {
			e(l)
		}
	}
}

func push(n int, pairs ...Pair) *Ask {
	return &Ask{Cost: wire.CostMessages, Messages: n, PayloadBytes: int64(3 * n), LargestItem: 5, Pairs: pairs}
}

func pop() *Ask { return &Ask{Cost: wire.CostDelivery} }

func waitingPop(deadline time.Time) *Ask {
	return &Ask{Cost: wire.CostDelivery, Wait: true, Deadline: deadline}
}

// admit fails the test when the ask is refused.
func admit(t *testing.T, g ledgerUnderTest, c *plans.Cluster, a *Ask, now time.Time) *Admission {
	t.Helper()
	adm, _, err := g.Admit(c, a, now)
	if err != nil {
		t.Fatalf("refused: %v", err)
	}
	return adm
}

// refused fails the test unless the ask is refused with the code because of the limit.
func refused(t *testing.T, g ledgerUnderTest, c *plans.Cluster, a *Ask, now time.Time, code wire.Code, limit string,
) *wire.Error {
	t.Helper()
	adm, report, err := g.Admit(c, a, now)
	if err == nil || adm != nil {
		t.Fatalf("admitted, want %s of %s", code, limit)
	}
	if got := limitOf(err); err.Code != code || got != limit {
		t.Fatalf("got %s of %q (%v), want %s of %q", err.Code, got, err, code, limit)
	}
	if limit != "" && report.Name != limit {
		t.Fatalf("report names %q, want %q", report.Name, limit)
	}
	return err
}

func limitOf(err *wire.Error) string {
	if err.Limit == nil {
		return ""
	}
	return err.Limit.Name
}

// fault makes one limit refuse the probing ask of its kind. prepare runs under a plan that holds only this fault's
// limits.
type fault struct {
	name    string
	costs   []wire.Cost
	limits  func(*plans.Limits)
	prepare func(t *testing.T, g ledgerUnderTest, c *plans.Cluster, key *plans.Key)
	cluster func(*plans.Cluster)
	key     func(*plans.KeyLimits)
	ask     func(*Ask)
	code    wire.Code
	limit   string
	bucket  string // faults of the same bucket exclude each other
}

var (
	onPush      = []wire.Cost{wire.CostMessages}
	onStore     = []wire.Cost{wire.CostMessages, wire.CostReplay}
	onPop       = []wire.Cost{wire.CostDelivery}
	onConfigure = []wire.Cost{wire.CostConfigure}
)

// faults stand in the order of design.md 4.2.
var faults = []fault{
	{
		name:  "request bucket of the key",
		costs: []wire.Cost{wire.CostMessages, wire.CostDelivery, wire.CostReplay, wire.CostConfigure},
		key:   keyRequests(1, 1), code: wire.RateLimited, limit: plans.LimitKeyRequests,
		prepare: func(t *testing.T, g ledgerUnderTest, c *plans.Cluster, key *plans.Key) {
			g.Settle(admit(t, g, c, by(key, &Ask{Cost: wire.CostRequest}), start), Outcome{}, start)
		},
	},
	{
		name: "request bucket", costs: []wire.Cost{wire.CostMessages, wire.CostDelivery, wire.CostReplay, wire.CostConfigure},
		limits: requestRate(1, 1), code: wire.RateLimited, limit: plans.LimitRequests,
		prepare: func(t *testing.T, g ledgerUnderTest, c *plans.Cluster, _ *plans.Key) {
			g.Settle(admit(t, g, c, &Ask{Cost: wire.CostRequest}, start), Outcome{}, start)
		},
	},
	{
		name: "message bucket of the key", costs: onPush, key: keyMessages(1, 4), bucket: "key",
		code: wire.RateLimited, limit: plans.LimitKeyMessages,
		prepare: func(t *testing.T, g ledgerUnderTest, c *plans.Cluster, key *plans.Key) {
			g.Settle(admit(t, g, c, by(key, push(2)), start), Outcome{}, start)
		},
	},
	{
		name: "batch above the burst of the key", costs: onPush, key: keyMessages(1, 2), bucket: "key",
		code: wire.BatchExceedsBurst, limit: plans.LimitKeyMessages,
	},
	{
		name: "message bucket", costs: onPush, limits: messageRate(1, 10), bucket: "cluster",
		code: wire.RateLimited, limit: plans.LimitMessages,
		prepare: func(t *testing.T, g ledgerUnderTest, c *plans.Cluster, _ *plans.Key) {
			g.Settle(admit(t, g, c, pop(), start), Outcome{Delivered: 12}, start)
		},
	},
	{
		name: "batch above the burst", costs: onPush, limits: messageRate(1, 2), bucket: "cluster",
		code: wire.BatchExceedsBurst, limit: plans.LimitMessages,
	},
	{
		name: "delivery bucket", costs: onPop, limits: deliveryRate(1, 10),
		code: wire.RateLimited, limit: plans.LimitDelivery,
		prepare: func(t *testing.T, g ledgerUnderTest, c *plans.Cluster, _ *plans.Key) {
			g.Settle(admit(t, g, c, pop(), start), Outcome{Delivered: 12}, start)
		},
	},
	{
		name: "queues", costs: []wire.Cost{wire.CostMessages, wire.CostReplay, wire.CostConfigure},
		limits: func(l *plans.Limits) { l.MaxQueues = new(int64(1)) },
		ask:    func(a *Ask) { a.Pairs = append(a.Pairs, Pair{"new", ""}) },
		code:   wire.QuotaExceeded, limit: plans.LimitQueues,
	},
	{
		name: "partitions", costs: onStore,
		limits: func(l *plans.Limits) { l.MaxPartitionsPerQueue = new(int64(1)) },
		ask:    func(a *Ask) { a.Pairs = append(a.Pairs, Pair{"q0", "p1"}) },
		code:   wire.QuotaExceeded, limit: plans.LimitPartitions,
	},
	{
		name: "body", costs: []wire.Cost{wire.CostMessages, wire.CostReplay, wire.CostConfigure},
		limits: func(l *plans.Limits) { l.MaxBodyBytes = new(int64(10)) },
		ask:    func(a *Ask) { a.BodyBytes = 11 },
		code:   wire.PayloadTooLarge, limit: plans.LimitBody,
	},
	{
		name: "payload", costs: onPush, limits: func(l *plans.Limits) { l.MaxPayloadBytes = new(int64(10)) },
		ask:  func(a *Ask) { a.LargestItem, a.LargestIndex = 11, 2 },
		code: wire.PayloadTooLarge, limit: plans.LimitPayload,
	},
	{
		name: "batch", costs: onPush, limits: func(l *plans.Limits) { l.MaxBatchItems = new(int64(2)) },
		code: wire.PayloadTooLarge, limit: plans.LimitBatch,
	},
	{
		name: "retention", costs: onConfigure,
		limits: func(l *plans.Limits) { l.MaxRetentionSeconds = new(int64(60)) },
		ask:    func(a *Ask) { a.Retention = 61 },
		code:   wire.QuotaExceeded, limit: plans.LimitRetention,
	},
	{
		name: "parked", costs: onPop, limits: func(l *plans.Limits) { l.MaxParkedPops = new(int64(1)) },
		prepare: func(t *testing.T, g ledgerUnderTest, c *plans.Cluster, _ *plans.Key) {
			admit(t, g, c, waitingPop(start.Add(time.Minute)), start)
		},
		code: wire.RateLimited, limit: plans.LimitParked,
	},
	{
		name: "storage", costs: onStore, limits: func(l *plans.Limits) { l.MaxRetainedBytes = new(int64(100)) },
		prepare: func(t *testing.T, g ledgerUnderTest, c *plans.Cluster, _ *plans.Key) {
			g.Measured(c, Usage{RetainedBytes: 100, ComputedAt: start})
		},
		code: wire.StorageQuotaExceeded, limit: plans.LimitStorage,
	},
	{
		name: "month", costs: onStore, limits: func(l *plans.Limits) { l.MonthlyMessages = new(int64(3)) },
		prepare: func(t *testing.T, g ledgerUnderTest, c *plans.Cluster, _ *plans.Key) {
			g.Settle(admit(t, g, c, push(1), start), Outcome{Stored: true}, start)
		},
		code: wire.QuotaExceeded, limit: plans.LimitMonth,
	},
	{
		name: "billing hold", costs: onStore, cluster: func(c *plans.Cluster) { c.Status = plans.PushBlocked },
		code: wire.PushBlocked,
	},
}

// probe is the ask that every fault of its kind refuses and that passes without a fault.
func probe(cost wire.Cost) *Ask {
	switch cost {
	case wire.CostMessages:
		return push(3, Pair{"q0", "p0"})
	case wire.CostReplay:
		return &Ask{Cost: cost, Messages: 3, Pairs: []Pair{{"q0", "p0"}}}
	case wire.CostConfigure:
		return &Ask{Cost: cost, Pairs: []Pair{{Queue: "q0"}}, Retention: 30}
	case wire.CostDelivery:
		return waitingPop(start.Add(time.Hour))
	}
	return &Ask{Cost: cost}
}

// provoke brings the faults about and returns the cluster and the ask that meets them.
func provoke(t *testing.T, g ledgerUnderTest, names *fakeSeeder, cost wire.Cost, faults ...fault,
) (*plans.Cluster, *Ask) {
	t.Helper()
	names.set(Pair{"q0", "p0"})
	c := clusterWith(nil)
	var together []func(*plans.Limits)
	var ofKey []func(*plans.KeyLimits)
	key, ask := keyWith(), probe(cost)
	for _, f := range faults {
		if f.limits != nil {
			together = append(together, f.limits)
		}
		one := key
		if f.key != nil {
			ofKey = append(ofKey, f.key)
			one = editedKey(key, f.key)
		}
		if f.prepare != nil {
			alone := func(*plans.Limits) {}
			if f.limits != nil {
				alone = f.limits
			}
			f.prepare(t, g, edited(c, alone), one)
		}
		if f.ask != nil {
			f.ask(ask)
		}
	}
	ask.Key = editedKey(key, ofKey...)
	c = edited(c, limits(together...))
	for _, f := range faults {
		if f.cluster != nil {
			f.cluster(c)
		}
	}
	if err := g.EnsureSeeded(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c, ask
}

func TestEveryLimitRefusesAlone(t *testing.T) {
	t.Parallel()
	conformEach(t, func(t *testing.T, newLedger newLedger) {
		for _, f := range faults {
			for _, cost := range f.costs {
				t.Run(fmt.Sprintf("%s/%d", f.name, cost), func(t *testing.T) {
					names := new(fakeSeeder)
					g := newLedger(t, names)
					c, ask := provoke(t, g, names, cost, f)
					err := refused(t, g, c, ask, start, f.code, f.limit)
					if err.Code.Retry() == wire.RetryAfter && err.RetryAfter <= 0 {
						t.Fatalf("%v names no time", err)
					}
					for _, word := range []string{"timeout", "connection"} {
						if strings.Contains(err.Text(), word) {
							t.Fatalf("%q holds a word that old SDKs retry on", err.Text())
						}
					}
				})
			}
		}
	})
}

func TestNoFaultNoRefusal(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, names *fakeSeeder) {
		for cost := wire.CostRequest; cost <= wire.CostConfigure; cost++ {
			c, ask := provoke(t, g, names, cost)
			c = edited(c, limits(requestRate(10, 20), messageRate(10, 20), func(l *plans.Limits) {
				l.MaxQueues, l.MaxPartitionsPerQueue, l.MaxPayloadBytes = new(int64(1)), new(int64(1)), new(int64(5))
				l.MaxBatchItems, l.MaxRetentionSeconds, l.MaxParkedPops = new(int64(3)), new(int64(30)), new(int64(1))
				l.MaxRetainedBytes, l.MonthlyMessages = new(int64(10)), new(int64(3))
			}))
			if err := g.EnsureSeeded(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			admit(t, g, c, ask, start)
		}
	})
}

func TestFirstRefusalInOrderAnswers(t *testing.T) {
	t.Parallel()
	pairs := 0
	for i, first := range faults {
		for _, second := range faults[i+1:] {
			if first.bucket != "" && first.bucket == second.bucket {
				continue
			}
			for _, cost := range first.costs {
				if !slices.Contains(second.costs, cost) {
					continue
				}
				pairs++
				t.Run(fmt.Sprintf("%s before %s/%d", first.name, second.name, cost), func(t *testing.T) {
					conformEach(t, func(t *testing.T, newLedger newLedger) {
						names := new(fakeSeeder)
						g := newLedger(t, names)
						// The order in which faults come about must not matter.
						c, ask := provoke(t, g, names, cost, second, first)
						refused(t, g, c, ask, start, first.code, first.limit)
					})
				})
			}
		}
	}
	if pairs < 45 {
		t.Fatalf("only %d pairs were generated", pairs)
	}
}

func TestZeroIsBlockedForEver(t *testing.T) {
	zero := func(field func(*plans.Limits) **int64) func(*plans.Limits) {
		return func(l *plans.Limits) { *field(l) = new(int64(0)) }
	}
	tests := map[string]struct {
		limits func(*plans.Limits)
		ask    *Ask
		code   wire.Code
		limit  string
	}{
		"request rate":  {requestRate(0, 10), pop(), wire.QuotaExceeded, plans.LimitRequests},
		"request burst": {requestRate(10, 0), pop(), wire.QuotaExceeded, plans.LimitRequests},
		"acks too":      {requestRate(0, 0), &Ask{Cost: wire.CostSettle}, wire.QuotaExceeded, plans.LimitRequests},
		"message rate":  {messageRate(0, 10), push(1), wire.QuotaExceeded, plans.LimitMessages},
		"message burst": {messageRate(10, 0), push(1), wire.QuotaExceeded, plans.LimitMessages},
		"queues": {
			zero(func(l *plans.Limits) **int64 { return &l.MaxQueues }), push(1, Pair{"new", ""}),
			wire.QuotaExceeded, plans.LimitQueues,
		},
		"partitions": {
			zero(func(l *plans.Limits) **int64 { return &l.MaxPartitionsPerQueue }), push(1, Pair{"q0", "p1"}),
			wire.QuotaExceeded, plans.LimitPartitions,
		},
		"payload": {
			zero(func(l *plans.Limits) **int64 { return &l.MaxPayloadBytes }), push(1),
			wire.QuotaExceeded, plans.LimitPayload,
		},
		"batch": {
			zero(func(l *plans.Limits) **int64 { return &l.MaxBatchItems }), push(1),
			wire.QuotaExceeded, plans.LimitBatch,
		},
		"retention": {
			zero(func(l *plans.Limits) **int64 { return &l.MaxRetentionSeconds }), probe(wire.CostConfigure),
			wire.QuotaExceeded, plans.LimitRetention,
		},
		"parked": {
			zero(func(l *plans.Limits) **int64 { return &l.MaxParkedPops }), probe(wire.CostDelivery),
			wire.QuotaExceeded, plans.LimitParked,
		},
		"storage": {
			zero(func(l *plans.Limits) **int64 { return &l.MaxRetainedBytes }), push(1),
			wire.StorageQuotaExceeded, plans.LimitStorage,
		},
		"month": {
			zero(func(l *plans.Limits) **int64 { return &l.MonthlyMessages }), push(1),
			wire.QuotaExceeded, plans.LimitMonth,
		},
	}
	conform(t, func(t *testing.T, g ledgerUnderTest, names *fakeSeeder) {
		names.set(Pair{"q0", ""})
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				c := clusterWith(test.limits)
				if err := g.EnsureSeeded(t.Context(), c); err != nil {
					t.Fatal(err)
				}
				err := refused(t, g, c, test.ask, start, test.code, test.limit)
				if err.RetryAfter != 0 || err.Code.Status() != 403 || err.Limit.ResetSeconds != 0 {
					t.Fatalf("%v (%d) promises that time cures it", err, err.Code.Status())
				}
			})
		}
	})
}

func TestNothingIsLimitedByNil(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, names *fakeSeeder) {
		c := clusterWith(nil)
		for cost := wire.CostRequest; cost <= wire.CostConfigure; cost++ {
			for range 1000 {
				_, report, err := g.Admit(c, probe(cost), start)
				if err != nil || report != (Report{}) {
					t.Fatalf("cost %d: report %+v, error %v", cost, report, err)
				}
			}
		}
		if err := g.EnsureSeeded(t.Context(), c); err != nil || names.calls() != 0 {
			t.Fatalf("listed %d times (%v), want never", names.calls(), err)
		}
	})
}

func TestBatchAboveTheBurstNamesTheMost(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(messageRate(10, 200))
		err := refused(t, g, c, push(201), start, wire.BatchExceedsBurst, plans.LimitMessages)
		if err.Code.Status() != 413 || err.Limit.Limit != 200 || !strings.Contains(err.Text(), "200") {
			t.Fatalf("%v with limit %+v does not name 200", err, err.Limit)
		}
		admit(t, g, c, push(200), start)
	})
}

func TestItemTooLargeNamesItsIndex(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(func(l *plans.Limits) { l.MaxPayloadBytes = new(int64(10)) })
		ask := push(5)
		ask.LargestItem, ask.LargestIndex = 11, 4
		err := refused(t, g, c, ask, start, wire.PayloadTooLarge, plans.LimitPayload)
		if !strings.Contains(err.Text(), "item 4") || err.Limit.Limit != 10 || err.Limit.Used != 11 {
			t.Fatalf("%v with limit %+v", err, err.Limit)
		}
	})
}

func TestRefundReturnsEverything(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, names *fakeSeeder) {
		names.set()
		c := clusterWith(limits(requestRate(1, 1), messageRate(1, 3), func(l *plans.Limits) {
			l.MaxQueues, l.MaxPartitionsPerQueue = new(int64(1)), new(int64(1))
			l.MaxRetainedBytes, l.MonthlyMessages = new(int64(9)), new(int64(3))
		}))
		if err := g.EnsureSeeded(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			a := admit(t, g, c, push(3, Pair{fmt.Sprint("q", i), "p"}), start)
			g.Refund(a, start)
			g.Refund(a, start)
			g.Settle(a, Outcome{Stored: true, StoredBytes: 9}, start)
		}
	})
}

func TestSlotsAreFreedExactlyOnce(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(func(l *plans.Limits) { l.MaxParkedPops = new(int64(2)) })
		a := admit(t, g, c, waitingPop(start.Add(40*time.Second)), start)
		b := admit(t, g, c, waitingPop(start.Add(20*time.Second)), start)
		err := refused(t, g, c, waitingPop(start.Add(time.Hour)), start, wire.RateLimited, plans.LimitParked)
		if err.RetryAfter != 20*time.Second {
			t.Fatalf("wait %v, want the earliest deadline among the parked", err.RetryAfter)
		}
		admit(t, g, c, pop(), start) // takes no slot
		for range 3 {
			g.Settle(b, Outcome{}, start)
			g.Refund(b, start)
		}
		admit(t, g, c, waitingPop(start.Add(time.Hour)), start)
		err = refused(t, g, c, waitingPop(start.Add(time.Hour)), start, wire.RateLimited, plans.LimitParked)
		if err.RetryAfter != 40*time.Second {
			t.Fatalf("wait %v, want the deadline of the one still parked", err.RetryAfter)
		}
		g.Settle(a, Outcome{}, start)
		admit(t, g, c, waitingPop(start.Add(time.Hour)), start)
	})
}

func TestProducersWaitForDeliveryDebtAndConsumersDoNot(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(messageRate(10, 20))
		g.Settle(admit(t, g, c, pop(), start), Outcome{Delivered: 10_000}, start)
		for range 3 {
			admit(t, g, c, pop(), start)
			admit(t, g, c, waitingPop(start.Add(time.Second)), start)
		}
		err := refused(t, g, c, push(1), start, wire.RateLimited, plans.LimitMessages)
		// The debt ends at 5 bursts: 100 messages and the one asked for, at 10 a second.
		if want := 10100 * time.Millisecond; err.RetryAfter != want {
			t.Fatalf("wait %v, want %v", err.RetryAfter, want)
		}
		admit(t, g, c, push(1), start.Add(err.RetryAfter))
	})
}

func TestAcksGoIntoDebtAndAreRefusedOnlyBelow(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(requestRate(10, 20))
		ack := &Ask{Cost: wire.CostSettle}
		for i := range 40 {
			if _, err := g.AskHead(c, nil, wire.CostSettle, start); err != nil {
				t.Fatalf("ack %d: %v", i, err)
			}
			admit(t, g, c, ack, start)
		}
		head, _ := g.AskHead(c, nil, wire.CostSettle, start)
		err := refused(t, g, c, ack, start, wire.RateLimited, plans.LimitRequests)
		if head.Name != plans.LimitRequests || err.RetryAfter > 200*time.Millisecond {
			t.Fatalf("head %+v, wait %v", head, err.RetryAfter)
		}
		admit(t, g, c, ack, start.Add(err.RetryAfter))
		// Everything else waits until the debt is paid.
		err = refused(t, g, c, pop(), start.Add(200*time.Millisecond), wire.RateLimited, plans.LimitRequests)
		if err.RetryAfter < 1900*time.Millisecond {
			t.Fatalf("wait %v, want the whole debt", err.RetryAfter)
		}
	})
}

func TestLoneClientThatWaitsAsToldIsAdmitted(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(limits(requestRate(3, 7), messageRate(11, 50)))
		now := start
		for _, n := range []int{50, 1, 49, 13, 50, 50} {
			_, _, err := g.Admit(c, push(n), now)
			if err == nil {
				continue
			}
			now = now.Add(err.RetryAfter)
			admit(t, g, c, push(n), now)
		}
		if now.Equal(start) {
			t.Fatal("nothing was ever refused")
		}
	})
}

// The time that is named is the true one: 300 ms before it the request does not fit yet, and whoever has come then gets
// in at the time all the same.
func TestSoonerThanToldIsTooSoon(t *testing.T) {
	tests := map[string]struct {
		limits func(*plans.Limits)
		ask    *Ask
		spend  int // asks until the first refusal
		limit  string
	}{
		"requests":          {requestRate(0.5, 2), pop(), 2, plans.LimitRequests},
		"messages":          {messageRate(10, 20), push(20), 1, plans.LimitMessages},
		"a request of both": {limits(requestRate(2, 1), messageRate(10, 20)), push(20), 1, plans.LimitRequests},

		"a wait of minutes for a request":   {requestRate(0.01, 1), pop(), 1, plans.LimitRequests},
		"a wait of minutes for the message": {messageRate(0.1, 20), push(20), 1, plans.LimitMessages},
	}
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				c := clusterWith(test.limits)
				for range test.spend {
					admit(t, g, c, test.ask, start)
				}
				err := refused(t, g, c, test.ask, start, wire.RateLimited, test.limit)
				early := start.Add(err.RetryAfter - 300*time.Millisecond)
				if adm, _, _ := g.Admit(c, test.ask, early); adm != nil {
					t.Fatalf("told to wait %v, and admitted 300 ms before", err.RetryAfter)
				}
				admit(t, g, c, test.ask, start.Add(err.RetryAfter))
			})
		}
	})
}

func TestAPushIsToldWhenBothBucketsFit(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(limits(requestRate(1, 1), messageRate(1, 10)))
		admit(t, g, c, push(10), start)
		err := refused(t, g, c, push(10), start, wire.RateLimited, plans.LimitRequests)
		if err.RetryAfter != 10*time.Second {
			t.Fatalf("wait %v, want 10s for the messages, not 1s for the request", err.RetryAfter)
		}
		admit(t, g, c, push(10), start.Add(err.RetryAfter))
	})
}

func TestPlanEditsKeepBalances(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		small := clusterWith(messageRate(10, 20))
		admit(t, g, small, push(20), start)
		big := edited(small, messageRate(1000, 2000))
		refused(t, g, big, push(1), start, wire.RateLimited, plans.LimitMessages)
		later := start.Add(10 * time.Second)
		admit(t, g, big, push(1), later)
		small = edited(small, messageRate(10, 20))
		admit(t, g, small, push(20), later)
		refused(t, g, small, push(1), later, wire.RateLimited, plans.LimitMessages)
	})
}

func TestDebtIsForgivenDownToWhatASmallerPlanAllows(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(limits(requestRate(100, 200), messageRate(100, 200)))
		for range 400 {
			admit(t, g, c, &Ask{Cost: wire.CostSettle}, start)
		}
		g.Settle(admit(t, g, edited(c, messageRate(100, 200)), pop(), start), Outcome{Delivered: 5000}, start)
		c = edited(c, limits(requestRate(1, 2), messageRate(1, 2)))
		err := refused(t, g, c, &Ask{Cost: wire.CostSettle}, start, wire.RateLimited, plans.LimitRequests)
		if err.RetryAfter != time.Second {
			t.Fatalf("an ack waits %v for the old plan's debt", err.RetryAfter)
		}
		later := start.Add(3 * time.Second)
		err = refused(t, g, c, push(1), later, wire.RateLimited, plans.LimitMessages)
		if err.RetryAfter != 8*time.Second {
			t.Fatalf("a push waits %v, want 10 messages of debt and its own, less 3 s", err.RetryAfter)
		}
	})
}
