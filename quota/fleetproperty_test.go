package quota

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// referee replays admissions through one bucket: for every window, admitted <= burst + rate x time means that a bucket
// which starts full never goes below zero.
type referee struct {
	rate, burst float64
	level       float64
	at          time.Time
	lowest      float64
	admitted    float64
	allowance   float64 // what could have been admitted
}

func newReferee(rate, burst float64) *referee {
	return &referee{rate: rate, burst: burst, level: burst, at: start, allowance: burst}
}

func (r *referee) pass(now time.Time) {
	grown := now.Sub(r.at).Seconds() * r.rate
	r.allowance += grown
	r.level, r.at = min(r.burst, r.level+grown), now
}

func (r *referee) admit(now time.Time, n int) {
	r.pass(now)
	r.level -= float64(n)
	r.admitted += float64(n)
	r.lowest = min(r.lowest, r.level)
}

// edit changes the plan: balances are kept.
func (r *referee) edit(now time.Time, rate, burst float64) {
	r.pass(now)
	r.allowance -= max(0, r.level-burst)
	r.rate, r.burst, r.level = rate, burst, min(r.level, burst)
}

// fleetRun is gateways under load, in steps of ten milliseconds of their clock.
type fleetRun struct {
	t        *testing.T
	server   *redistest.Server // nil: the shared one
	gates    []*Gate
	dead     map[int]bool
	cluster  *plans.Cluster
	requests *referee
	messages *referee
	offered  float64 // of what the plan allows
	random   *rand.Rand
	now      time.Time
	batch    int
	waits    time.Duration // the longest real time of a decision
}

func newFleetRun(t *testing.T, w *fleetWorld, gateways int) *fleetRun {
	r := &fleetRun{
		t: t, dead: map[int]bool{}, offered: 2, now: start, batch: 2, random: rand.New(rand.NewPCG(uint64(gateways), 7)),
	}
	for range gateways {
		r.gates = append(r.gates, w.gate(nil))
	}
	return r
}

// newLinkedRun has three gateways that know of each other, the third of which reaches Redis over the link.
func newLinkedRun(t *testing.T, w *fleetWorld, link *redistest.Link) *fleetRun {
	t.Helper()
	r := newFleetRun(t, w, 2)
	w.redis = link.Options()
	r.gates = append(r.gates, w.gate(nil))
	r.meet()
	return r
}

// meet lets all gateways know of each other.
func (r *fleetRun) meet() {
	for range 2 {
		for _, g := range r.gates {
			g.fleet.beat(start)
		}
	}
}

const stepOfRun = 10 * time.Millisecond

func (r *fleetRun) plan(rate, burst float64) {
	if r.cluster == nil {
		r.cluster = clusterWith(nil)
	}
	r.cluster = edited(r.cluster, limits(requestRate(rate, burst), messageRate(2*rate, 2*burst)))
	if r.requests == nil {
		r.requests, r.messages = newReferee(rate, burst), newReferee(2*rate, 2*burst)
		return
	}
	r.requests.edit(r.now, rate, burst)
	r.messages.edit(r.now, 2*rate, 2*burst)
}

// run offers load for a while. Messages are offered half as often as requests, in batches, and as much over their rate.
func (r *fleetRun) run(d time.Duration) {
	r.t.Helper()
	for end := r.now.Add(d); r.now.Before(end); {
		r.now = r.now.Add(stepOfRun)
		whole := r.now.Sub(start)%beatEvery == 0
		for i, g := range r.gates {
			if r.dead[i] {
				continue
			}
			g.fleet.tend(r.now)
			if whole {
				g.fleet.beat(r.now)
				if g.fleet.absences != nil {
					g.fleet.tellAbsences(r.t.Context())
				}
			}
		}
		asks := r.offered * r.requests.rate * stepOfRun.Seconds()
		for n := int(asks + r.random.Float64()); n > 0; n-- {
			i := r.random.IntN(len(r.gates))
			if r.dead[i] {
				continue
			}
			r.ask(r.gates[i])
		}
	}
	r.requests.pass(r.now)
	r.messages.pass(r.now)
}

func (r *fleetRun) ask(g *Gate) {
	r.t.Helper()
	ask := &Ask{Cost: wire.CostRequest}
	if r.random.IntN(2) == 0 {
		ask = push(1 + r.random.IntN(2*r.batch-1))
	}
	began := time.Now()
	defer func() { r.waits = max(r.waits, time.Since(began)) }()
	if _, err := g.AskHead(r.cluster, nil, ask.Cost, r.now); err != nil {
		return
	}
	a, _, err := g.Admit(r.cluster, ask, r.now)
	switch {
	case err != nil && err.Code != wire.RateLimited:
		r.t.Fatalf("at %v: %v", r.now.Sub(start), err)
	case err != nil:
	case r.random.IntN(20) == 0:
		g.Refund(a, r.now) // it never left, and the referee has not seen it
		heard(g)
	default:
		r.requests.admit(r.now, 1)
		r.messages.admit(r.now, ask.Messages)
		g.Settle(a, Outcome{Stored: true}, r.now)
	}
}

// judge compares with what may be admitted beside the allowance, and with what must be.
func (r *fleetRun) judge(over, least float64) {
	r.t.Helper()
	if over*r.requests.burst+r.requests.lowest < -1e-3 {
		r.t.Errorf("requests: %.3f beyond burst + rate x time, want at most %.3f", -r.requests.lowest, over*r.requests.burst)
	}
	if over*r.messages.burst+r.messages.lowest < -1e-3 {
		r.t.Errorf("messages: %.3f beyond burst + rate x time, want at most %.3f", -r.messages.lowest, over*r.messages.burst)
	}
	most := max(r.requests.admitted/r.requests.allowance, r.messages.admitted/r.messages.allowance)
	if most < least {
		r.t.Errorf("%.2f %% of the allowance was used, want %.0f %%", 100*most, 100*least)
	}
}

// eachFleet runs a test for both ledgers over 1, 3 and 8 gateways, or so many. With private they have a Redis of their own.
func eachFleet(t *testing.T, private bool, test func(*testing.T, *fleetRun), sizes ...int) {
	t.Helper()
	t.Parallel()
	if len(sizes) == 0 {
		sizes = []int{1, 3, 8}
	}
	for _, leases := range []bool{false, true} {
		for _, n := range sizes {
			t.Run(fmt.Sprintf("leases %v, %d gateways", leases, n), func(t *testing.T) {
				t.Parallel()
				if !private {
					r := newFleetRun(t, newFleetWorld(t, redistest.Options(t), leases), n)
					r.meet()
					test(t, r)
					return
				}
				server := redistest.New(t)
				r := newFleetRun(t, newFleetWorld(t, server.Options(), leases), n)
				r.server = server
				r.meet()
				test(t, r)
			})
		}
	}
}

// The allowance is never exceeded, and twice the load uses it up.
func TestAFleetAdmitsThePlanAndAllOfIt(t *testing.T) {
	eachFleet(t, false, func(t *testing.T, r *fleetRun) {
		r.plan(400, 400)
		r.run(6 * time.Second)
		least := 0.99
		if r.gates[0].fleet.leases {
			least = 0.95
		}
		r.judge(0, least)
	})
}

// Leases that are held while the bucket is full do not come on top of it.
func TestABurstAfterQuietHoldsTheLeasesToo(t *testing.T) {
	eachFleet(t, false, func(t *testing.T, r *fleetRun) {
		r.plan(400, 200)
		for range 2 {
			r.offered = 0.6
			r.run(2 * time.Second)
			r.offered = 10
			r.run(300 * time.Millisecond)
		}
		r.judge(0, 0.4)
		if f := r.gates[0].fleet; f.leases != (value(t, f.stats.leased) > 0.1*value(t, f.stats.redis)) {
			t.Errorf("%v requests decided by leases, %v in Redis", value(t, f.stats.leased), value(t, f.stats.redis))
		}
	})
}

func TestAPlanEditKeepsTheFleetsBalance(t *testing.T) {
	eachFleet(t, false, func(_ *testing.T, r *fleetRun) {
		r.plan(300, 600)
		r.run(time.Second)
		r.plan(100, 100)
		r.run(2 * time.Second)
		r.plan(500, 1000)
		r.run(2 * time.Second)
		r.judge(0, 0.9)
	})
}

// What was used stays used for the gateway that comes after: a restart, also of all of them, gives no tokens.
func TestARestartGivesNoTokens(t *testing.T) {
	t.Parallel()
	for _, leases := range []bool{false, true} {
		t.Run(fmt.Sprintf("leases %t", leases), func(t *testing.T) {
			t.Parallel()
			const burst = 10
			w := newFleetWorld(t, redistest.Options(t), leases)
			c := clusterWith(limits(requestRate(0.001, burst), messageRate(0.001, 2*burst)))
			admitted := 0
			for life := range 3 {
				g := w.gate(nil)
				for range burst {
					if a, _, err := g.Admit(c, push(2), start); err == nil {
						g.Settle(a, Outcome{Stored: true}, start)
						admitted++
					}
				}
				if admitted < 1 || admitted > burst {
					t.Errorf("%d requests are admitted at once by the end of life %d, the burst is %d", admitted, life, burst)
				}
			}
		})
	}
}

// What a dead gateway had leased is lost, and nothing is admitted for it twice. What was kept for it while it might have
// been cut off goes to the others: over the minute of its death all of the plan is used.
func TestAGatewayDies(t *testing.T) {
	eachFleet(t, false, func(t *testing.T, r *fleetRun) {
		r.plan(90, 180)
		r.offered = 4 // what is sent to the dead one is lost
		r.run(10 * time.Second)
		if len(r.gates) > 1 {
			r.dead[1] = true
		}
		r.run(5 * time.Second)
		if want := int64(len(r.dead)); r.gates[0].fleet.deaf.Load() != want {
			t.Fatalf("%d gateways are missing, want %d", r.gates[0].fleet.deaf.Load(), want)
		}
		r.run(45 * time.Second)
		if r.gates[0].fleet.deaf.Load() != 0 {
			t.Fatal("a dead gateway is missed after three quarters of a minute")
		}
		least := 0.99
		if r.gates[0].fleet.leases {
			least = 0.95
		}
		r.judge(0, least)
	})
}

// What was kept for a gateway that died never comes on top of what a full bucket holds.
func TestWhatWasKeptForTheDeadStaysWithinThePlan(t *testing.T) {
	eachFleet(t, false, func(_ *testing.T, r *fleetRun) {
		r.plan(100, 50)
		r.run(time.Second)
		r.dead[1] = true
		for _, phase := range []struct {
			offered float64
			lasts   time.Duration
		}{
			{8, 6 * time.Second},           // it is missed, and its share kept
			{0.1, 2500 * time.Millisecond}, // the bucket fills
			{8, 3 * time.Second},           // and is empty when it counts as dead
		} {
			r.offered = phase.offered
			r.run(phase.lasts)
		}
		r.judge(0, 0.7)
	}, 3)
}

// What was kept for a gateway that is back belongs to it: it may have spent it while nobody heard of it.
func TestWhatWasKeptIsForgottenWhenTheGatewayIsBack(t *testing.T) {
	eachFleet(t, false, func(t *testing.T, r *fleetRun) {
		r.plan(90, 90)
		r.offered = 4
		r.run(time.Second)
		r.dead[1] = true
		r.run(7 * time.Second)
		r.dead[1] = false
		r.run(2 * time.Second)
		kept := 3 * r.requests.rate / 3 // for as many seconds, a third
		if used := r.requests.admitted; used > r.requests.allowance-kept {
			t.Errorf("%.0f requests were admitted, want %.0f at most", used, r.requests.allowance-kept)
		}
		r.judge(0, 0.85)
	}, 3)
}

// Debt is paid by time alone: neither by idling nor by asking another gateway.
func TestDebtIsNotForgivenByIdling(t *testing.T) {
	eachFleet(t, false, func(t *testing.T, r *fleetRun) {
		c := clusterWith(messageRate(10, 20))
		first, last := r.gates[0], r.gates[len(r.gates)-1]
		first.Settle(admit(t, first, c, pop(), start), Outcome{Delivered: 120}, start)
		first.fleet.pipe.drains.Wait()
		err := refused(t, last, c, push(1), start, wire.RateLimited, plans.LimitMessages)
		if want := 10100 * time.Millisecond; err.RetryAfter != want {
			t.Fatalf("wait %v, want %v", err.RetryAfter, want)
		}
		refused(t, first, c, push(1), start.Add(10*time.Second), wire.RateLimited, plans.LimitMessages)
		admit(t, last, c, push(1), start.Add(err.RetryAfter))
	})
}

// Whoever is told to wait by one gateway may come back to another.
func TestACrowdOfAFleetGetsInWithinTenAttempts(t *testing.T) {
	eachFleet(t, false, func(t *testing.T, r *fleetRun) {
		c := clusterWith(requestRate(10, 20))
		most, admitted := 0, 0
		var all crowd
		for i := range 200 {
			all = append(all, &caller{at: start, step: func(who *caller) {
				g := r.gates[(i+7*who.attempts)%len(r.gates)]
				who.attempts++
				_, err := g.AskHead(c, nil, wire.CostDelivery, who.at)
				if err == nil {
					_, _, err = g.Admit(c, pop(), who.at)
				}
				if who.done = err == nil; who.done {
					most = max(most, who.attempts)
					admitted++
					return
				}
				who.at = who.at.Add(time.Duration(err.RetryAfterSeconds()) * time.Second)
			}})
		}
		all.run(start.Add(time.Hour))
		if admitted != 200 || most > 10 {
			t.Fatalf("%d of 200 got in with at most %d attempts, want 10", admitted, most)
		}
	})
}

// faultBudget is how long gateways wait for a Redis that does not answer, while it does not. At any other time they have
// testBudget: a machine may be busy enough to keep a Redis that is well from answering in so little.
const faultBudget = 250 * time.Millisecond

// setBudget is how long gateways wait for Redis from now on.
func setBudget(d time.Duration, gates ...*Gate) {
	for _, g := range gates {
		heard(g)
		g.fleet.pipe.budget = d
	}
}
