package quota

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// One gateway that asks Redis for everything decides as one that keeps its limits in memory: the same verdicts, the same
// waits, the same levels in headers, through debts, refunds, promises and edits of the plan.
func TestTheScriptCountsAsTheBucketDoes(t *testing.T) {
	t.Parallel()
	w := newFleetWorld(t, redistest.Options(t), false)
	shared := w.gate(nil)
	rapid.Check(t, func(t *rapid.T) {
		local := NewGate(slog.New(slog.DiscardHandler))
		rate := rapid.Float64Range(0.001, 50)
		plan := func(l *plans.Limits) {
			l.RequestsPerSecond, l.RequestsBurst = new(rate.Draw(t, "rate")), new(float64(rapid.IntRange(1, 30).Draw(t, "burst")))
			l.MessagesPerSecond, l.MessagesBurst = new(rate.Draw(t, "rate")), new(float64(rapid.IntRange(1, 30).Draw(t, "burst")))
			l.DeliveryPerSecond, l.DeliveryBurst = nil, nil
			if rapid.Bool().Draw(t, "deliveries apart") {
				l.DeliveryPerSecond, l.DeliveryBurst = new(rate.Draw(t, "rate")), new(float64(rapid.IntRange(1, 30).Draw(t, "burst")))
			}
			l.MaxParkedPops = new(rapid.Int64Range(0, 3).Draw(t, "polls"))
			l.Modes = map[string]plans.Mode{}
			for _, name := range []string{
				plans.LimitKeyRequests, plans.LimitRequests, plans.LimitKeyMessages, plans.LimitMessages, plans.LimitDelivery,
				plans.LimitParked,
			} {
				l.Modes[name] = rapid.SampledFrom([]plans.Mode{plans.Enforce, plans.Enforce, plans.Shadow}).Draw(t, name)
			}
		}
		requestsOfKey := func(l *plans.KeyLimits) {
			keyRequests(rate.Draw(t, "rate"), float64(rapid.IntRange(1, 30).Draw(t, "burst")))(l)
		}
		messagesOfKey := func(l *plans.KeyLimits) {
			keyMessages(rate.Draw(t, "rate"), float64(rapid.IntRange(1, 30).Draw(t, "burst")))(l)
		}
		c := clusterWith(plan)
		keys := []*plans.Key{nil, keyWith(requestsOfKey, messagesOfKey), keyWith(requestsOfKey)}
		type both struct{ local, shared *Admission }
		var open []both
		now := start
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, 3e6).Draw(t, "dt")) * time.Microsecond)
			shared.fleet.tend(now)
			switch rapid.SampledFrom([]string{"ask", "ask", "ask", "end", "edit"}).Draw(t, "step") {
			case "ask":
				ask := &Ask{Cost: rapid.SampledFrom([]wire.Cost{
					wire.CostRequest, wire.CostMessages, wire.CostDelivery, wire.CostSettle,
				}).Draw(t, "cost"), Key: rapid.SampledFrom(keys).Draw(t, "key")}
				switch ask.Cost {
				case wire.CostMessages:
					ask.Messages = rapid.IntRange(0, 32).Draw(t, "messages")
				case wire.CostDelivery:
					ask.Wait, ask.Deadline = rapid.Bool().Draw(t, "waits"), now.Add(time.Minute)
				}
				a, report, err := local.Admit(c, ask, now)
				b, sharedReport, sharedErr := shared.Admit(c, ask, now)
				if got, want := verdict(sharedErr), verdict(err); got != want {
					t.Fatalf("Redis says %s, want %s", got, want)
				}
				// A line of promises shrinks in whole millionths of a token, in steps that differ.
				if err != nil && (sharedErr.RetryAfter-err.RetryAfter).Abs() > time.Duration(10/slowest(c, ask.Key))*time.Microsecond {
					t.Fatalf("Redis says to wait %v, want %v", sharedErr.RetryAfter, err.RetryAfter)
				}
				report.Reset, sharedReport.Reset = 0, 0 // rounded apart
				if sharedReport != report {
					t.Fatalf("Redis reports %+v, want %+v", sharedReport, report)
				}
				if err == nil {
					open = append(open, both{a, b})
				}
			case "end":
				if len(open) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				o := open[i]
				open = append(open[:i], open[i+1:]...)
				if rapid.Bool().Draw(t, "refund") {
					local.Refund(o.local, now)
					shared.Refund(o.shared, now)
					heard(shared)
					continue
				}
				outcome := Outcome{Stored: true, Delivered: rapid.IntRange(0, 100).Draw(t, "delivered")}
				local.Settle(o.local, outcome, now)
				shared.Settle(o.shared, outcome, now)
				heard(shared)
			case "edit":
				c = edited(c, plan)
				keys[1] = editedKey(keys[1], requestsOfKey, messagesOfKey)
			}
		}
		for _, o := range open {
			shared.Settle(o.shared, Outcome{}, now)
		}
	})
}

// slowest is the least rate that a request of the key may meet, at most one.
func slowest(c *plans.Cluster, key *plans.Key) float64 {
	least := 1.0
	all := []*float64{c.Limits.RequestsPerSecond, c.Limits.MessagesPerSecond, c.Limits.DeliveryPerSecond}
	if key != nil {
		all = append(all, key.Limits.RequestsPerSecond, key.Limits.MessagesPerSecond)
	}
	for _, rate := range all {
		if rate != nil {
			least = min(least, *rate)
		}
	}
	return least
}

func verdict(err *wire.Error) string {
	if err == nil {
		return "yes"
	}
	return fmt.Sprintf("%s of %s: %s", err.Code, limitOf(err), err.Text())
}
