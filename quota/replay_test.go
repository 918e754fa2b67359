package quota

import (
	"testing"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

func replay(pairs ...Pair) *Ask { return &Ask{Cost: wire.CostReplay, Messages: 1, Pairs: pairs} }

// What returns to the log was pushed before: it takes a request and no rate of messages, not even when that is spent.
func TestAReplayTakesNoRate(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(messageRate(1, 2))
		g.Settle(admit(t, g, c, push(2), start), Outcome{Stored: true}, start)
		refused(t, g, c, push(1), start, wire.RateLimited, plans.LimitMessages)
		g.Settle(admit(t, g, c, replay(), start), Outcome{Stored: true}, start)
		refused(t, g, c, push(1), start, wire.RateLimited, plans.LimitMessages)
	})
}

// The month counts what a replay returned: one message, or as many as a redrive has found; nothing when it did not.
func TestTheMonthCountsWhatReturns(t *testing.T) {
	for name, test := range map[string]struct {
		outcome Outcome
		left    int
	}{
		"moved":        {Outcome{Stored: true, Returned: 1}, 9},
		"not said":     {Outcome{Stored: true}, 9},
		"a redrive":    {Outcome{Stored: true, Returned: 7}, 3},
		"a duplicate":  {Outcome{}, 10},
		"more than is": {Outcome{Stored: true, Returned: 12}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
				c := clusterWith(func(l *plans.Limits) { l.MonthlyMessages = new(int64(10)) })
				g.Settle(admit(t, g, c, replay(), start), test.outcome, start)
				refused(t, g, c, push(test.left+1), start, wire.QuotaExceeded, plans.LimitMonth)
				if test.left > 0 {
					admit(t, g, c, push(test.left), start)
				}
			})
		})
	}
}

// A destination that a replay made counts, and one that it did not make does not.
func TestADestinationCountsWhenItIsMade(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(func(l *plans.Limits) { l.MaxQueues = new(int64(1)) })
		if err := g.EnsureSeeded(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		g.Settle(admit(t, g, c, replay(Pair{"gone", "p"}), start), Outcome{}, start)
		g.Settle(admit(t, g, c, replay(Pair{"here", "p"}), start), Outcome{Stored: true, Returned: 1}, start)
		refused(t, g, c, push(1, Pair{"other", "p"}), start, wire.QuotaExceeded, plans.LimitQueues)
		refused(t, g, c, replay(Pair{"other", "p"}), start, wire.QuotaExceeded, plans.LimitQueues)
		admit(t, g, c, replay(Pair{"here", "p"}), start)
	})
}

// Whether a transaction only acknowledges is known when its body is read, so its head passes wherever an ack would, and
// its pushes are refused then.
func TestTheHeadOfATransactionPassesLikeAnAck(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(requestRate(1, 2))
		for range 2 {
			admit(t, g, c, push(1), start)
		}
		for i := range 2 {
			if _, err := g.AskHead(c, nil, wire.CostMessages, start); err == nil {
				t.Fatal("a push passes an empty bucket")
			}
			if _, err := g.AskHead(c, nil, wire.CostMixed, start); err != nil {
				t.Fatalf("head %d: %v", i, err)
			}
			refused(t, g, c, push(1), start, wire.RateLimited, plans.LimitRequests)
			admit(t, g, c, &Ask{Cost: wire.CostSettle}, start)
		}
		if _, err := g.AskHead(c, nil, wire.CostMixed, start); err == nil || err.Code != wire.RateLimited {
			t.Fatalf("below the debt of acks: %v", err)
		}
	})
}
