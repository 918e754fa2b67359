package quota

import (
	"testing"
	"time"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

func deliveryRate(rate, burst float64) func(*plans.Limits) {
	return func(l *plans.Limits) { l.DeliveryPerSecond, l.DeliveryBurst = &rate, &burst }
}

func delivered(n int) Outcome { return Outcome{Delivered: n} }

// With a rate of their own, deliveries cost producers nothing: consumers wait for what consumers were given.
func TestDeliveriesPayFromTheirOwnRate(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(limits(messageRate(10, 20), deliveryRate(10, 20)))
		g.Settle(admit(t, g, c, pop(), start), delivered(30), start)
		admit(t, g, c, push(20), start)
		for _, ask := range []*Ask{pop(), waitingPop(start.Add(time.Minute))} {
			err := refused(t, g, c, ask, start, wire.RateLimited, plans.LimitDelivery)
			if err.Limit.Limit != 10 || err.Limit.Unit != "messages_per_second" {
				t.Fatalf("limit %+v", err.Limit)
			}
		}
		for _, cost := range []wire.Cost{wire.CostSettle, wire.CostRequest, wire.CostReplay, wire.CostConfigure} {
			admit(t, g, c, &Ask{Cost: cost}, start)
		}
	})
}

// What a pop will deliver nobody knows: it passes while there is a message to deliver, and waits until there is one.
func TestAPopIsToldWhenThereIsAMessageToDeliver(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(deliveryRate(10, 20))
		g.Settle(admit(t, g, c, pop(), start), delivered(19), start)
		g.Settle(admit(t, g, c, pop(), start), delivered(50), start) // the twentieth was there
		err := refused(t, g, c, pop(), start, wire.RateLimited, plans.LimitDelivery)
		if want := 5 * time.Second; err.RetryAfter != want {
			t.Fatalf("wait %v, want %v: 49 messages of debt and one to deliver, at 10 a second", err.RetryAfter, want)
		}
		refused(t, g, c, pop(), start.Add(err.RetryAfter-300*time.Millisecond), wire.RateLimited, plans.LimitDelivery)
		admit(t, g, c, pop(), start.Add(err.RetryAfter))
	})
}

// A pop that finds nothing costs no delivery, and one of redeliveries neither.
func TestAnEmptyPopCostsNoDelivery(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(deliveryRate(1, 2))
		for range 10 {
			g.Settle(admit(t, g, c, pop(), start), Outcome{}, start)
			g.Refund(admit(t, g, c, pop(), start), start)
		}
		g.Settle(admit(t, g, c, pop(), start), delivered(2), start)
		refused(t, g, c, pop(), start, wire.RateLimited, plans.LimitDelivery)
	})
}

func TestTheDebtOfDeliveriesIsBounded(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(deliveryRate(10, 20))
		g.Settle(admit(t, g, c, pop(), start), delivered(10_000), start)
		err := refused(t, g, c, pop(), start, wire.RateLimited, plans.LimitDelivery)
		if want := 10100 * time.Millisecond; err.RetryAfter != want {
			t.Fatalf("wait %v, want %v: five bursts and a message", err.RetryAfter, want)
		}
	})
}

func TestARecoveringCellDeliversForFree(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(deliveryRate(10, 20))
		c.Cell = "hit"
		g.(*Gate).BrokerLost("hit", start)
		g.Settle(admit(t, g, c, pop(), start), delivered(500), start)
		admit(t, g, c, pop(), start)
	})
}

// The shadow count is what enforcement would have refused: what a pop delivered that would not have been is free.
func TestDeliveriesInShadowModeCountWhatWouldBeRefused(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		shadow := func(l *plans.Limits) { l.Modes = map[string]plans.Mode{plans.LimitDelivery: plans.Shadow} }
		c := clusterWith(limits(deliveryRate(10, 20), shadow))
		g.Settle(admit(t, g, c, pop(), start), delivered(20), start)
		for range 5 {
			a, report, err := g.Admit(c, pop(), start)
			if err != nil || report.Name != plans.LimitDelivery || report.Mode != plans.Shadow {
				t.Fatalf("report %+v, %v", report, err)
			}
			g.Settle(a, delivered(100), start)
		}
		c = edited(c, deliveryRate(10, 20))
		refused(t, g, c, pop(), start, wire.RateLimited, plans.LimitDelivery)
		admit(t, g, c, pop(), start.Add(100*time.Millisecond))
	})
}

// Off means that nobody looks, and not that producers pay again.
func TestDeliveriesThatAreNotLookedAtCostNothing(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		off := func(l *plans.Limits) { l.Modes = map[string]plans.Mode{plans.LimitDelivery: plans.Off} }
		c := clusterWith(limits(deliveryRate(1, 1), messageRate(10, 20), off))
		g.Settle(admit(t, g, c, pop(), start), delivered(500), start)
		admit(t, g, c, pop(), start)
		admit(t, g, c, push(20), start)
	})
}

func TestAPlanWithoutDeliveriesDeliversNothing(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(deliveryRate(0, 0))
		err := refused(t, g, c, pop(), start, wire.QuotaExceeded, plans.LimitDelivery)
		if err.RetryAfter != 0 {
			t.Fatalf("%v promises that time cures it", err)
		}
		admit(t, g, c, push(1), start)
	})
}

// A rate of its own that is given or taken away, live: debts stay where they were made.
func TestDeliveriesChangeTheirRateLive(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		shared := clusterWith(messageRate(10, 20))
		apart := edited(shared, limits(messageRate(10, 20), deliveryRate(5, 5)))
		g.Settle(admit(t, g, shared, pop(), start), delivered(30), start)
		g.Settle(admit(t, g, apart, pop(), start), delivered(10), start)
		refused(t, g, apart, push(1), start, wire.RateLimited, plans.LimitMessages)
		refused(t, g, apart, pop(), start, wire.RateLimited, plans.LimitDelivery)
		admit(t, g, shared, pop(), start)
		later := start.Add(1100 * time.Millisecond) // 10 + 1 at 10 a second
		admit(t, g, apart, push(1), later)
		refused(t, g, apart, pop(), later, wire.RateLimited, plans.LimitDelivery)
		admit(t, g, apart, pop(), start.Add(1200*time.Millisecond)) // 5 + 1 at 5 a second
	})
}

// Consumers that are told to wait do not come back together: each is told a message's time after the one before.
func TestConsumersAreToldDifferentTimes(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(deliveryRate(10, 20))
		g.Settle(admit(t, g, c, pop(), start), delivered(20), start)
		for i := range 20 {
			err := refused(t, g, c, pop(), start, wire.RateLimited, plans.LimitDelivery)
			if want := time.Duration(i+1) * 100 * time.Millisecond; err.RetryAfter != want {
				t.Fatalf("consumer %d waits %v, want %v", i, err.RetryAfter, want)
			}
		}
	})
}
