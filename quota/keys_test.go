package quota

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// keyWith is a key with limits of its own; a rate without a burst is none.
func keyWith(edits ...func(*plans.KeyLimits)) *plans.Key {
	id := uuid.New()
	return editedKey(&plans.Key{ID: id, LimitedAs: id}, edits...)
}

// editedKey is the same key with other limits, as a new snapshot would hold it.
func editedKey(k *plans.Key, edits ...func(*plans.KeyLimits)) *plans.Key {
	n := *k
	n.Limits = nil
	if len(edits) > 0 {
		n.Limits = &plans.KeyLimits{}
	}
	for _, e := range edits {
		e(n.Limits)
	}
	return &n
}

func keyRequests(rate, burst float64) func(*plans.KeyLimits) {
	return func(l *plans.KeyLimits) { l.RequestsPerSecond, l.RequestsBurst = &rate, &burst }
}

func keyMessages(rate, burst float64) func(*plans.KeyLimits) {
	return func(l *plans.KeyLimits) { l.MessagesPerSecond, l.MessagesBurst = &rate, &burst }
}

// by is the ask of a key.
func by(k *plans.Key, a *Ask) *Ask {
	a.Key = k
	return a
}

// A key that is refused takes nothing of its siblings: neither tokens nor places in their lines.
func TestARefusedKeyNeverDrainsItsSiblings(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(limits(requestRate(10, 20), messageRate(10, 40)))
		greedy, sibling := keyWith(keyRequests(1, 2), keyMessages(1, 4)), keyWith()
		for range 2 {
			admit(t, g, c, by(greedy, push(2)), start)
		}
		for range 100 {
			refused(t, g, c, by(greedy, push(2)), start, wire.RateLimited, plans.LimitKeyRequests)
			if _, err := g.AskHead(c, greedy, wire.CostMessages, start); err == nil || limitOf(err) != plans.LimitKeyRequests {
				t.Fatalf("the head of a key that is over: %v", err)
			}
		}
		for range 18 {
			admit(t, g, c, by(sibling, push(2)), start)
		}
		// Whether the greedy one asks on or not, the sibling waits only for itself.
		for range 50 {
			refused(t, g, c, by(greedy, push(2)), start, wire.RateLimited, plans.LimitKeyRequests)
		}
		err := refused(t, g, c, by(sibling, pop()), start, wire.RateLimited, plans.LimitRequests)
		if want := 100 * time.Millisecond; err.RetryAfter != want {
			t.Fatalf("the sibling waits %v, want %v", err.RetryAfter, want)
		}
	})
}

// A key and the twin it was rotated to have their limits together, not each.
func TestARotatedKeyAndItsTwinShareTheirLimits(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(limits(requestRate(100, 200), messageRate(100, 200)))
		old := keyWith(keyRequests(1, 4), keyMessages(1, 5))
		twin := editedKey(old, keyRequests(1, 4), keyMessages(1, 5)) // the snapshot has limits of its own for each
		twin.ID = uuid.New()
		admit(t, g, c, by(old, push(3)), start)
		admit(t, g, c, by(twin, push(2)), start)
		refused(t, g, c, by(old, push(1)), start, wire.RateLimited, plans.LimitKeyMessages)
		admit(t, g, c, by(twin, pop()), start)
		admit(t, g, c, by(old, pop()), start)
		err := refused(t, g, c, by(twin, pop()), start, wire.RateLimited, plans.LimitKeyRequests)
		if want := time.Second; err.RetryAfter != want {
			t.Fatalf("the twin waits %v, want %v", err.RetryAfter, want)
		}
		admit(t, g, c, by(keyWith(keyRequests(1, 4)), pop()), start) // another key's are its own
	})
}

// All or nothing across both: what the cluster refuses costs the key nothing.
func TestWhatTheClusterRefusesCostsTheKeyNothing(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(messageRate(1, 5))
		key := keyWith(keyRequests(0.001, 1), keyMessages(0.001, 5))
		admit(t, g, c, push(5), start)
		for range 10 {
			refused(t, g, c, by(key, push(5)), start, wire.RateLimited, plans.LimitMessages)
		}
		later := start.Add(5 * time.Second)
		admit(t, g, c, by(key, push(5)), later) // all that the key has is there
		refused(t, g, c, by(key, push(1)), later, wire.RateLimited, plans.LimitKeyRequests)
	})
}

func TestARefundReturnsWhatTheKeyGave(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(limits(requestRate(1, 1), messageRate(1, 3)))
		key := keyWith(keyRequests(1, 1), keyMessages(1, 3))
		for range 5 {
			a := admit(t, g, c, by(key, push(3)), start)
			refused(t, g, c, by(key, push(3)), start, wire.RateLimited, plans.LimitKeyRequests)
			g.Refund(a, start)
			g.Refund(a, start)
			if gate := g.(*Gate); gate.fleet != nil {
				heard(gate)
			}
		}
	})
}

// A lone client that waits exactly as told is admitted, whichever of its buckets was the slowest; sooner it is not.
func TestALoneKeyThatWaitsAsToldIsAdmitted(t *testing.T) {
	tests := map[string]struct {
		plan  func(*plans.Limits)
		key   []func(*plans.KeyLimits)
		limit string
		wait  time.Duration
	}{
		"the key's requests": {
			limits(requestRate(10, 20), messageRate(100, 200)),
			[]func(*plans.KeyLimits){keyRequests(0.5, 1)},
			plans.LimitKeyRequests, 2 * time.Second,
		},
		"the key's messages": {
			limits(requestRate(10, 20), messageRate(100, 200)),
			[]func(*plans.KeyLimits){keyMessages(2, 4)},
			plans.LimitKeyMessages, 2 * time.Second,
		},
		"the key's messages, behind its requests": {
			limits(requestRate(10, 20), messageRate(100, 200)),
			[]func(*plans.KeyLimits){keyRequests(1, 1), keyMessages(1, 4)},
			plans.LimitKeyRequests, 4 * time.Second,
		},
		"the cluster's messages, behind the key's requests": {
			limits(requestRate(10, 20), messageRate(1, 4)),
			[]func(*plans.KeyLimits){keyRequests(1, 1)},
			plans.LimitKeyRequests, 4 * time.Second,
		},
		"the key's messages, behind the cluster's requests": {
			limits(requestRate(1, 1), messageRate(100, 200)),
			[]func(*plans.KeyLimits){keyMessages(1, 4)},
			plans.LimitRequests, 4 * time.Second,
		},
	}
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				c, key := clusterWith(test.plan), keyWith(test.key...)
				admit(t, g, c, by(key, push(4)), start)
				err := refused(t, g, c, by(key, push(4)), start, wire.RateLimited, test.limit)
				if err.RetryAfter != test.wait {
					t.Fatalf("wait %v, want %v", err.RetryAfter, test.wait)
				}
				if adm, _, _ := g.Admit(c, by(key, push(4)), start.Add(test.wait-300*time.Millisecond)); adm != nil {
					t.Fatal("admitted 300 ms before its time")
				}
				admit(t, g, c, by(key, push(4)), start.Add(test.wait))
			})
		}
	})
}

// A batch that no time lets in under the key's burst is refused for good, and named with the key's number.
func TestABatchAboveTheKeysBurst(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(messageRate(1000, 2000))
		key := keyWith(keyMessages(10, 20))
		err := refused(t, g, c, by(key, push(21)), start, wire.BatchExceedsBurst, plans.LimitKeyMessages)
		if err.Limit.Limit != 20 || !strings.Contains(err.Text(), "the key's burst admits at most 20") {
			t.Fatalf("%v with %+v", err, err.Limit)
		}
		admit(t, g, c, by(key, push(20)), start)
	})
}

// Acks of a key go into its debt like those of a cluster into the cluster's.
func TestAcksGoIntoTheKeysDebt(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(requestRate(1000, 2000))
		key := keyWith(keyRequests(10, 20))
		for range 40 {
			if _, err := g.AskHead(c, key, wire.CostSettle, start); err != nil {
				t.Fatal(err)
			}
			admit(t, g, c, by(key, &Ask{Cost: wire.CostSettle}), start)
		}
		err := refused(t, g, c, by(key, &Ask{Cost: wire.CostSettle}), start, wire.RateLimited, plans.LimitKeyRequests)
		if err.RetryAfter != 100*time.Millisecond {
			t.Fatalf("an ack waits %v", err.RetryAfter)
		}
		err = refused(t, g, c, by(key, pop()), start, wire.RateLimited, plans.LimitKeyRequests)
		if err.RetryAfter != 2100*time.Millisecond {
			t.Fatalf("a pop waits %v", err.RetryAfter)
		}
	})
}

// What the key's holder is delivered counts for the cluster alone.
func TestDeliveriesCostTheClusterAndNotTheKey(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(messageRate(1000, 2000))
		key := keyWith(keyMessages(1, 5))
		g.Settle(admit(t, g, c, by(key, pop()), start), Outcome{Delivered: 1000}, start)
		admit(t, g, c, by(key, push(5)), start)
		refused(t, g, c, push(1000), start, wire.RateLimited, plans.LimitMessages)
	})
}

// Limits of a key change live; balances are kept, and a limit that is lifted lets everything through.
func TestEditsOfAKeyAreLive(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(requestRate(1000, 2000))
		key := keyWith(keyRequests(10, 20))
		for range 20 {
			admit(t, g, c, by(key, pop()), start)
		}
		faster := editedKey(key, keyRequests(100, 200))
		refused(t, g, c, by(faster, pop()), start, wire.RateLimited, plans.LimitKeyRequests)
		later := start.Add(20 * time.Millisecond) // two tokens at the new rate, and not two hundred
		for range 2 {
			admit(t, g, c, by(faster, pop()), later)
		}
		refused(t, g, c, by(faster, pop()), later, wire.RateLimited, plans.LimitKeyRequests)
		free := editedKey(key)
		for range 50 {
			admit(t, g, c, by(free, pop()), later)
		}
		shut := editedKey(key, keyRequests(0, 0), keyMessages(0, 0))
		err := refused(t, g, c, by(shut, pop()), later, wire.QuotaExceeded, plans.LimitKeyRequests)
		if err.RetryAfter != 0 || !strings.Contains(err.Text(), "the key is allowed no requests") {
			t.Fatalf("%v", err)
		}
		admit(t, g, c, pop(), later)
	})
}

// Limits of keys have modes of their own, which the plan or the cluster sets.
func TestLimitsOfKeysInShadowMode(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		mode := func(m plans.Mode) func(*plans.Limits) {
			return func(l *plans.Limits) { l.Modes = map[string]plans.Mode{plans.LimitKeyRequests: m} }
		}
		c := clusterWith(mode(plans.Shadow))
		key := keyWith(keyRequests(1, 2))
		for range 10 {
			admit(t, g, c, by(key, pop()), start)
		}
		_, report, _ := g.Admit(c, by(key, pop()), start)
		if report.Name != plans.LimitKeyRequests || report.Mode != plans.Shadow {
			t.Fatalf("report %+v", report)
		}
		c = edited(c, mode(plans.Enforce))
		refused(t, g, c, by(key, pop()), start, wire.RateLimited, plans.LimitKeyRequests)
		c = edited(c, mode(plans.Off))
		if _, report, err := g.Admit(c, by(key, pop()), start); err != nil || report.Name != "" {
			t.Fatalf("report %+v, %v", report, err)
		}
	})
}

// A key's limit is the fleet's: it is not had once per gateway.
func TestAKeysLimitIsTheFleets(t *testing.T) {
	eachFleet(t, false, func(t *testing.T, r *fleetRun) {
		c := clusterWith(requestRate(1000, 2000))
		key := keyWith(keyRequests(1, 8))
		for i := range 8 {
			admit(t, r.gates[i%len(r.gates)], c, by(key, pop()), start)
		}
		for _, g := range r.gates {
			refused(t, g, c, by(key, pop()), start, wire.RateLimited, plans.LimitKeyRequests)
		}
	})
}

// A key at its own limit and its siblings at the cluster's, over the fleet: each bucket is never exceeded, and what the
// greedy key offers in vain leaves the siblings all of the rest.
func TestAGreedyKeyLeavesItsSiblingsTheRest(t *testing.T) {
	eachFleet(t, false, func(t *testing.T, r *fleetRun) {
		r.plan(300, 300)
		greedy := newReferee(60, 60)
		key := keyWith(keyRequests(60, 60))
		sibling := keyWith(keyRequests(1e6, 1e6))
		served := 0.0
		for r.now.Before(start.Add(5 * time.Second)) {
			r.now = r.now.Add(stepOfRun)
			whole := r.now.Sub(start)%beatEvery == 0
			for _, g := range r.gates {
				if g.fleet.tend(r.now); whole {
					g.fleet.beat(r.now)
				}
			}
			for i := range 12 { // 6 of each: ten times what the key may, and twice what the cluster may
				who := key
				if i%2 == 0 {
					who = sibling
				}
				g := r.gates[r.random.IntN(len(r.gates))]
				if _, err := g.AskHead(r.cluster, who, wire.CostDelivery, r.now); err != nil {
					continue
				}
				a, _, err := g.Admit(r.cluster, by(who, pop()), r.now)
				if err != nil {
					continue
				}
				r.requests.admit(r.now, 1)
				if who == key {
					greedy.admit(r.now, 1)
				} else {
					served++
				}
				g.Settle(a, Outcome{}, r.now)
			}
		}
		r.judge(0, 0.95)
		if greedy.lowest < -1e-3 {
			t.Errorf("the key had %.3f more than burst + rate x time", -greedy.lowest)
		}
		if least := 0.95 * (r.requests.allowance - greedy.allowance); served < least {
			t.Errorf("the sibling had %.0f requests, want at least %.0f", served, least)
		}
	})
}

// While Redis is away a key has its part of its limits like the cluster; the part begins with what was left, and when
// Redis is back nothing is forgiven.
func TestAKeyHasItsPartWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	for _, leases := range []bool{false, true} {
		w := newFleetWorld(t, redistest.Options(t), leases)
		w.size = 4
		g, other := w.gate(nil), w.gate(nil)
		c := clusterWith(requestRate(4000, 8000))
		key := keyWith(keyRequests(4, 8))
		admit(t, g, c, by(key, pop()), start) // seven are left: a part of one and three quarters
		g.fleet.pipe.fail(errAway)
		admit(t, g, c, by(key, pop()), start)
		err := refused(t, g, c, by(key, pop()), start, wire.RateLimited, plans.LimitKeyRequests)
		if err.RetryAfter != 250*time.Millisecond {
			t.Fatalf("wait %v, want a quarter of a token at 1 a second", err.RetryAfter)
		}
		g.fleet.beat(start)
		admit(t, g, c, by(key, pop()), start) // Redis hears that a quarter of three are left
		for range 2 {
			admit(t, other, c, by(key, pop()), start)
		}
		refused(t, other, c, by(key, pop()), start, wire.RateLimited, plans.LimitKeyRequests)
	}
}

// A key that has been silent for long is forgotten, and one in debt is not.
func TestSilentKeysAreForgotten(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		gate := g.(*Gate)
		c := clusterWith(requestRate(1000, 2000))
		quick, slow := keyWith(keyRequests(10, 20)), keyWith(keyRequests(0.001, 20))
		for _, key := range []*plans.Key{quick, slow} {
			g.Settle(admit(t, g, c, by(key, pop()), start), Outcome{}, start)
		}
		now := start.Add(idleAfter)
		g.Settle(admit(t, g, c, pop(), now), Outcome{}, now)
		gate.Sweep(now)
		l := gate.open(c, gate.at(now))
		defer l.mu.Unlock()
		if l.acc.keys[quick.ID] != nil || l.acc.keys[slow.ID] == nil {
			t.Fatalf("kept %v", l.acc.keys)
		}
	})
}
