package quota

import (
	"container/heap"
	"testing"
	"time"

	"github.com/queengate/queengate/wire"
)

// crowd simulates callers that come back when told, in order of time.
type crowd []*caller

type caller struct {
	at       time.Time
	attempts int
	step     func(*caller) // decides, sets at for the next time
	done     bool
}

func (c crowd) Len() int           { return len(c) }
func (c crowd) Less(i, j int) bool { return c[i].at.Before(c[j].at) }
func (c crowd) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *crowd) Push(x any)        { *c = append(*c, x.(*caller)) }
func (c *crowd) Pop() any {
	old := *c
	x := old[len(old)-1]
	*c = old[:len(old)-1]
	return x
}

// run plays until nobody is left or the time is up.
func (c *crowd) run(until time.Time) {
	heap.Init(c)
	for c.Len() > 0 && (*c)[0].at.Before(until) {
		next := (*c)[0]
		if next.step(next); next.done {
			heap.Pop(c)
		} else {
			heap.Fix(c, 0)
		}
	}
}

func TestACrowdGetsInWithinTenAttempts(t *testing.T) {
	header := func(e *wire.Error) time.Duration { return time.Duration(e.RetryAfterSeconds()) * time.Second }
	exact := func(e *wire.Error) time.Duration { return e.RetryAfter }
	tests := map[string]struct {
		callers  int
		burst    float64
		wait     func(*wire.Error) time.Duration
		ask      *Ask
		jitter   func(i int) float64
		attempts int
	}{
		"waiting to the nanosecond":           {200, 20, exact, pop(), nil, 2},
		"waiting by the header":               {200, 20, header, pop(), nil, 2},
		"a burst of one, to the nanosecond":   {200, 1, exact, pop(), nil, 2},
		"SDKs: 20 % early or late, by header": {200, 20, header, pop(), sdkJitter, 10},
		"SDKs with a burst below the rate":    {200, 5, header, pop(), sdkJitter, 10},
		"all 20 % early":                      {200, 20, exact, pop(), func(int) float64 { return 0.8 }, 10},
		"pushes, whose bodies are read":       {200, 20, header, push(1), nil, 10},
		"pushes of SDKs":                      {200, 20, header, push(1), sdkJitter, 10},
		"five times what the horizon holds":   {3000, 20, exact, pop(), nil, 24},
	}
	t.Parallel()
	conformEach(t, func(t *testing.T, newLedger newLedger) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g := newLedger(t, nil)
				c := clusterWith(requestRate(10, test.burst))
				if test.ask.Cost == wire.CostMessages {
					c = clusterWith(messageRate(10, test.burst))
				}
				most, admitted, last := 0, 0, start
				var all crowd
				for i := range test.callers {
					all = append(all, &caller{at: start, step: func(who *caller) {
						who.attempts++
						now := who.at
						_, err := g.AskHead(c, nil, test.ask.Cost, now)
						if err == nil {
							_, _, err = g.Admit(c, test.ask, now)
						}
						if err == nil {
							most, last = max(most, who.attempts), now
							admitted++
							who.done = true
							return
						}
						wait := test.wait(err)
						if test.jitter != nil {
							wait = time.Duration(float64(wait) * test.jitter(1000*i+who.attempts))
						}
						who.at = now.Add(wait)
					}})
				}
				all.run(start.Add(time.Hour))
				if admitted != test.callers || most > test.attempts {
					t.Fatalf("%d of %d got in, the last after %v and %d attempts, want %d", admitted, test.callers,
						last.Sub(start), most, test.attempts)
				}
			})
		}
	})
}

// sdkJitter is what published SDKs multiply Retry-After with.
func sdkJitter(i int) float64 { return 0.8 + 0.4*hashed(i) }

// hashed is a fixed pseudo-random number in [0, 1).
func hashed(i int) float64 {
	x := uint64(i)*0x9E3779B97F4A7C15 + 0x1234567
	x ^= x >> 31
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 29
	return float64(x>>11) / (1 << 53)
}

func TestConsumersAtThreeTimesTheRateNeverLoseAnAck(t *testing.T) {
	conform(t, func(t *testing.T, g ledgerUnderTest, _ *fakeSeeder) {
		c := clusterWith(limits(requestRate(10, 20), messageRate(50, 100)))
		pops, acks, popRefusals := 0, 0, 0
		var all crowd
		for range 3 { // each would pop and ack every 200 ms: 30 requests a second
			holding := false
			all = append(all, &caller{at: start, step: func(who *caller) {
				now := who.at
				who.at = now.Add(100 * time.Millisecond)
				cost := wire.CostDelivery
				if holding {
					cost = wire.CostSettle
				}
				_, err := g.AskHead(c, nil, cost, now)
				var a *Admission
				if err == nil {
					a, _, err = g.Admit(c, &Ask{Cost: cost}, now)
				}
				switch {
				case err != nil && holding:
					t.Errorf("at %v: ack refused: %v", now.Sub(start), err)
				case err != nil:
					popRefusals++
					who.at = now.Add(time.Duration(err.RetryAfterSeconds()) * time.Second)
				case holding:
					acks++
					g.Settle(a, Outcome{}, now)
					holding = false
				default:
					pops++
					g.Settle(a, Outcome{Delivered: 10}, now)
					holding = true
				}
			}})
		}
		all.run(start.Add(10 * time.Minute))
		if popRefusals == 0 || acks < pops-3 {
			t.Fatalf("%d pops (%d refused) and %d acks", pops, popRefusals, acks)
		}
		if total := pops + acks; float64(total) < 0.8*6000 || total > 6000+20+20 {
			t.Fatalf("%d requests in ten minutes at 10 a second", total)
		}
	})
}
