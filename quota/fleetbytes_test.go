package quota

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// measure tells the fleet, by its first gateway, what a broker has measured now.
func (o *overtime) measure(bytes int64) {
	o.t.Helper()
	g := o.gates[0]
	g.Measured(o.cluster, Usage{RetainedBytes: bytes, ComputedAt: o.now.Add(-time.Hour), Since: o.now})
	if g.fleet != nil {
		heard(g)
	}
}

// From the first byte on the fleet lets in what fits under the cap and one request more of each gateway, at most, whatever
// is in flight and however seldom brokers measure (W5: an upstream let 2.5 GB past a cap of 256 MiB).
func TestRetainedBytesAreTheFleets(t *testing.T) {
	const size = 10
	eachOvertime(t, false, retained(30_000), func(t *testing.T, o *overtime) {
		o.measure(10_000)
		o.storm(20, 7)
		stored := 10_000 + o.stored*size
		if over := stored - 30_000; over >= 7*size {
			t.Fatalf("%d bytes are stored, want less than one request above 30000", stored)
		}
		if stored < 29_000 {
			t.Fatalf("%d bytes are stored, want 29000 at least", stored)
		}
		for i, g := range o.gates {
			err := refused(t, g, o.cluster, bytesOf(1), o.now, wire.StorageQuotaExceeded, plans.LimitStorage)
			if err.Limit.Limit != 30_000 || err.Limit.Used < 29_000 {
				t.Errorf("gateway %d says %+v", i, err.Limit)
			}
		}
	})
}

// What is in flight anywhere counts everywhere, and a request that fails leaves nothing.
func TestBytesInFlightCountForTheFleet(t *testing.T) {
	eachOvertime(t, false, retained(100), func(t *testing.T, o *overtime) {
		o.measure(0)
		var open []*Admission
		for _, g := range o.gates {
			if a, _, err := g.Admit(o.cluster, bytesOf(60), o.now); err == nil {
				open = append(open, a)
			}
		}
		if want := min(2, len(o.gates)); len(open) != want {
			t.Fatalf("%d requests of 60 bytes are in flight under a cap of 100, want %d", len(open), want)
		}
		last := o.gates[len(o.gates)-1]
		for i, a := range open {
			o.gates[i].Refund(a, o.now)
		}
		o.pass(time.Second)
		if !o.offer(last, 1, 10) {
			t.Error("requests that failed are counted")
		}
	})
}

// The block ends at 90 percent and not before, for every gateway at the same measure.
func TestAFleetsBlockEndsAt90Percent(t *testing.T) {
	eachOvertime(t, false, retained(1000), func(t *testing.T, o *overtime) {
		for _, step := range []struct {
			bytes int64
			full  bool
		}{{999, false}, {1000, true}, {950, true}, {901, true}, {900, false}, {980, false}, {1001, true}, {0, false}} {
			o.pass(5 * time.Second)
			o.measure(step.bytes)
			for i, g := range o.gates {
				a, _, err := g.Admit(o.cluster, bytesOf(0), o.now)
				if full := err != nil; full != step.full {
					t.Fatalf("gateway %d at %d bytes: refused %v, want %v", i, step.bytes, full, step.full)
				}
				if a != nil {
					g.Refund(a, o.now)
				}
				for _, cost := range []wire.Cost{wire.CostRequest, wire.CostDelivery, wire.CostSettle, wire.CostConfigure} {
					g.Refund(admit(t, g, o.cluster, probe(cost), o.now), o.now)
				}
			}
		}
	})
}

// A measure replaces what was stored before it was asked for, by whichever gateway and however late that is told, and
// keeps what was stored since; that its figure is the same as the last one's changes nothing.
func TestAMeasureKnowsWhatCameBefore(t *testing.T) {
	eachOvertime(t, false, retained(1000), func(t *testing.T, o *overtime) {
		o.measure(500)
		g, last := o.gates[0], o.gates[len(o.gates)-1]
		o.now = o.now.Add(time.Second)
		if !o.offer(last, 1, 480) {
			t.Fatal("refused at 500 of 1000")
		}
		o.now = o.now.Add(time.Second) // nobody has tended: last has not told of it yet
		o.measure(500)                 // as much has expired
		if !o.offer(g, 1, 480) {
			t.Fatal("refused at 500 of 1000 by what the measure had seen")
		}
		o.pass(time.Second) // by now it has told, with when that was
		if !o.offer(g, 1, 10) {
			t.Fatal("refused at 980 of 1000: what came late counts beside the measure that had seen it")
		}
		o.pass(time.Second)
		o.measure(500)
		o.now = o.now.Add(time.Second)
		if !o.offer(last, 1, 500) {
			t.Fatal("refused at 500 of 1000")
		}
		refused(t, g, o.cluster, bytesOf(1), o.now, wire.StorageQuotaExceeded, plans.LimitStorage)
		g.Measured(o.cluster, Usage{RetainedBytes: 0, Since: o.now.Add(-time.Minute)}) // of a slow broker
		refused(t, g, o.cluster, bytesOf(1), o.now, wire.StorageQuotaExceeded, plans.LimitStorage)
	}, 1, 3)
}

// An edit of the plan is judged afresh by every gateway.
func TestAFleetsCapIsEdited(t *testing.T) {
	eachOvertime(t, false, retained(1000), func(t *testing.T, o *overtime) {
		o.measure(1000)
		refused(t, o.gates[0], o.cluster, bytesOf(1), o.now, wire.StorageQuotaExceeded, plans.LimitStorage)
		o.cluster = edited(o.cluster, retained(1050))
		for i, g := range o.gates {
			if a, _, err := g.Admit(o.cluster, bytesOf(1), o.now); err != nil {
				t.Errorf("gateway %d refused under a larger cap: %v", i, err)
			} else {
				g.Refund(a, o.now)
			}
		}
		o.cluster = edited(o.cluster, retained(1000))
		for _, g := range o.gates {
			refused(t, g, o.cluster, bytesOf(1), o.now, wire.StorageQuotaExceeded, plans.LimitStorage)
		}
	}, 1, 3)
}

// A Redis that lost its state has not made room: what is unknown is what each gateway has heard last.
func TestAFullClusterStaysFullWithoutRedis(t *testing.T) {
	for name, fault := range map[string][2]func(*redistest.Server){
		"flushed":         {func(s *redistest.Server) { s.Do("FLUSHALL") }, func(*redistest.Server) {}},
		"killed, emptied": {(*redistest.Server).Kill, (*redistest.Server).Start},
	} {
		t.Run(name, func(t *testing.T) {
			eachOvertime(t, true, retained(10_000), func(t *testing.T, o *overtime) {
				o.measure(9000)
				for o.offer(o.gates[o.random.IntN(len(o.gates))], 1, 10) {
				}
				stored := o.stored
				for _, g := range o.gates {
					o.offer(g, 1, 10) // each has heard
				}
				fault[0](o.server)
				for range 10 {
					for i, g := range o.gates {
						if o.offer(g, 1, 10) {
							t.Fatalf("gateway %d let a push in", i)
						}
					}
					o.pass(100 * time.Millisecond)
				}
				fault[1](o.server)
				o.pass(2 * time.Second)
				for _, g := range o.gates {
					o.offer(g, 1, 10)
				}
				if o.stored != stored {
					t.Errorf("%d messages were let in", o.stored-stored)
				}
				o.measure(10_000)
				refused(t, o.gates[0], o.cluster, bytesOf(1), o.now, wire.StorageQuotaExceeded, plans.LimitStorage)
				o.pass(5 * time.Second)
				o.measure(5000)
				if !o.offer(o.gates[len(o.gates)-1], 1, 10) {
					t.Error("the block does not end")
				}
			}, 1, 3)
		})
	}
}

// A Redis that stood still knows nothing of what happened meanwhile: what a broker measured, and what was stored.
func TestWhatHappenedWithoutRedisCountsWhenItIsBack(t *testing.T) {
	for rule, meanwhile := range map[string]func(*overtime){
		"a gateway heard that the cluster is full": func(o *overtime) {
			o.offer(o.gates[0], 1, 0) // by which it finds out that Redis is away
			o.gates[0].Measured(o.cluster, Usage{RetainedBytes: 10_000, ComputedAt: o.now})
		},
		"a gateway stored what was left": func(o *overtime) { o.offer(o.gates[0], 1, 1000) },
		"it was stored and measured": func(o *overtime) {
			o.offer(o.gates[0], 1, 1000)
			o.pass(time.Second)
			o.gates[0].Measured(o.cluster, Usage{RetainedBytes: 10_000, ComputedAt: o.now})
		},
	} {
		t.Run(rule, func(t *testing.T) {
			eachOvertime(t, true, retained(10_000), func(t *testing.T, o *overtime) {
				o.measure(9000)
				for _, g := range o.gates {
					o.offer(g, 1, 0) // each has heard
				}
				setBudget(faultBudget, o.gates...)
				o.server.Pause()
				meanwhile(o)
				o.pass(time.Second)
				setBudget(testBudget, o.gates...)
				o.server.Resume()
				for !o.gates[0].fleet.asking() {
					o.pass(100 * time.Millisecond)
				}
				o.pass(time.Second)
				for i, g := range o.gates {
					if o.offer(g, 1, 10) {
						t.Errorf("gateway %d lets a push in", i)
					}
				}
			}, 3)
		})
	}
}

// While Redis is away each gateway counts what it adds for all of them, from the last measure on.
func TestBytesAreSharedOutWithoutRedis(t *testing.T) {
	eachOvertime(t, true, retained(10_000), func(t *testing.T, o *overtime) {
		o.measure(1000)
		for _, g := range o.gates {
			o.offer(g, 1, 0)
		}
		o.server.Kill()
		for _, g := range o.gates {
			for o.offer(g, 1, 10) {
			}
		}
		if stored := 1000 + 10*o.stored; stored > 10_000+int64(10*len(o.gates)) || stored < 9900 {
			t.Errorf("%d bytes are stored, want 9900 to a request of each above 10000", stored)
		}
	}, 1, 3)
}

// W11: of a fleet one gateway asks a cell, for the clusters of all. When it stops, or its cell does not answer it, another does.
func TestOneGatewayAsksForAll(t *testing.T) {
	t.Parallel()
	w := newFleetWorld(t, redistest.Options(t), false)
	now := start
	w.now = func() time.Time { return now }
	gates := []*Gate{w.gate(nil), w.gate(nil), w.gate(nil)}
	clusters := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	const interval = 5 * time.Second
	round := func(alive ...int) (asked []int) {
		t.Helper()
		for _, i := range alive {
			ids, since := gates[i].UsageDuty(context.Background(), "c1", clusters[i:i+1], interval)
			if !since.Equal(now) {
				t.Fatalf("the measure is of %v, want %v", since, now)
			}
			if len(ids) == 0 {
				continue
			}
			asked = append(asked, i)
			for _, j := range alive[:slices.Index(alive, i)+1] {
				if !slices.Contains(ids, clusters[j]) {
					t.Errorf("gateway %d is not asked for the cluster of %d", i, j)
				}
			}
		}
		now = now.Add(interval)
		return asked
	}
	want := func(got []int, who ...int) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(who) {
			t.Fatalf("gateways %v asked, want %v", got, who)
		}
	}
	want(round(0, 1, 2), 0)
	want(round(1, 2, 0), 0)
	want(round(1, 2)) // 0 may be late
	want(round(1, 2), 1)
	gates[1].UsageFailed(context.Background(), "c1")
	want(round(2, 1), 2)
	now = now.Add(2 * time.Minute)
	ids, _ := gates[2].UsageDuty(context.Background(), "c1", clusters[2:], interval)
	if len(ids) != 1 || ids[0] != clusters[2] {
		t.Errorf("after two minutes %v are asked for, want only what is in use", ids)
	}
	gates[0].fleet.pipe.fail(errAway)
	ids, since := gates[0].UsageDuty(context.Background(), "c1", clusters[:1], interval)
	if len(ids) != 1 || !since.IsZero() {
		t.Errorf("without Redis a gateway asks for %v as of %v, want its own", ids, since)
	}
}

// scales is a broker that measures what the test says.
type scales struct {
	bytes, asked int64
	broken       bool
	now          func() time.Time // its clock; nil: ahead of everybody's
}

func (s *scales) Measure(context.Context, *plans.Cluster) (Usage, error) {
	s.asked++
	if s.broken {
		return Usage{}, errAway
	}
	if s.now != nil {
		return Usage{RetainedBytes: s.bytes, ComputedAt: s.now()}, nil
	}
	return Usage{RetainedBytes: s.bytes, ComputedAt: start.Add(time.Hour + time.Duration(s.asked))}, nil
}

// The estimate does not see deletions: before a push is refused for good by it, brokers measure.
func TestARefusalByTheEstimateIsWorthAMeasure(t *testing.T) {
	eachOvertime(t, false, retained(10_000), func(t *testing.T, o *overtime) {
		broker := &scales{bytes: 9000}
		for _, g := range o.gates {
			g.measurer = broker
		}
		o.measure(9000)
		last := o.gates[len(o.gates)-1]
		for o.offer(o.gates[0], 1, 500) {
		}
		asked := broker.asked
		broker.bytes = 5000 // a queue was deleted
		o.pass(time.Second)
		refused(t, last, o.cluster, bytesOf(1), o.now, wire.StorageQuotaExceeded, plans.LimitStorage)
		if !last.Remeasure(t.Context(), o.cluster) || broker.asked != asked+1 {
			t.Fatalf("no measure was made: %d", broker.asked-asked)
		}
		if !o.offer(last, 1, 10) {
			t.Error("a push is refused after a measure that has room for it")
		}
		if last.Remeasure(t.Context(), o.cluster) {
			t.Error("two measures within a moment")
		}
		o.pass(time.Second)
		broker.bytes = 10_000
		if !last.Remeasure(t.Context(), o.cluster) {
			t.Error("no measure is made after a while")
		}
		refused(t, last, o.cluster, bytesOf(1), o.now, wire.StorageQuotaExceeded, plans.LimitStorage)
		o.pass(time.Second)
		if last.Remeasure(t.Context(), o.cluster) {
			t.Error("a measure that set the block is doubted")
		}
	})
}

// A gateway that hears by a push that Redis has lost what is retained has it measured before it lets the push in, also when it
// heard long ago that there was room.
func TestBytesThatRedisLostAreMeasuredFirst(t *testing.T) {
	eachOvertime(t, true, retained(10_000), func(t *testing.T, o *overtime) {
		broker := &scales{}
		for _, g := range o.gates {
			g.measurer = broker
			if !o.offer(g, 1, 10) {
				t.Fatal("an empty cluster is full")
			}
		}
		broker.bytes = 10_000
		o.server.Do("FLUSHALL")
		for i, g := range o.gates {
			if o.offer(g, 1, 10) {
				t.Errorf("gateway %d lets a push in", i)
			}
		}
		o.pass(10 * time.Second)
		broker.broken, broker.asked = true, 0
		broker.bytes = 0
		o.server.Do("FLUSHALL")
		for range 3 {
			o.offer(o.gates[0], 1, 10)
		}
		if broker.asked != 1 {
			t.Errorf("brokers that do not answer were asked %d times at once, want once", broker.asked)
		}
	}, 1, 3)
}

// Whether a measure confirms the estimate or no broker can be asked: once it has refused a push as full, what ends the block
// is a measure of 90 percent or less.
func TestABlockByTheEstimateEndsAt90Percent(t *testing.T) {
	for name, broken := range map[string]bool{"measured": false, "no broker answers": true} {
		t.Run(name, func(t *testing.T) {
			eachOvertime(t, false, retained(10_000), func(t *testing.T, o *overtime) {
				broker := &scales{now: func() time.Time { return o.now }}
				for _, g := range o.gates {
					g.measurer = broker
				}
				measure := func(bytes int64) {
					o.gates[0].Measured(o.cluster, Usage{RetainedBytes: bytes, ComputedAt: o.now, Since: o.now})
					if o.world != nil {
						heard(o.gates[0])
					}
				}
				measure(9000)
				for o.offer(o.gates[0], 1, 500) {
				}
				o.pass(time.Second)
				last := o.gates[len(o.gates)-1]
				refused(t, last, o.cluster, bytesOf(1), o.now, wire.StorageQuotaExceeded, plans.LimitStorage)
				broker.bytes, broker.broken = 9000+500*o.stored, broken
				if fresh := last.Remeasure(t.Context(), o.cluster); fresh == broken {
					t.Fatalf("a fresh measure: %v, want %v", fresh, !broken)
				}
				refused(t, last, o.cluster, bytesOf(1), o.now, wire.StorageQuotaExceeded, plans.LimitStorage)
				for _, bytes := range []int64{9999, 9001} {
					o.pass(5 * time.Second)
					measure(bytes)
					for i, g := range o.gates {
						refused(t, g, o.cluster, bytesOf(1), o.now, wire.StorageQuotaExceeded, plans.LimitStorage)
						if asked := broker.asked; g.Remeasure(t.Context(), o.cluster) || broker.asked != asked {
							t.Fatalf("gateway %d doubts the block", i)
						}
					}
				}
				o.pass(5 * time.Second)
				measure(9000)
				for i, g := range o.gates {
					if !o.offer(g, 1, 10) {
						t.Errorf("gateway %d refuses at 90 percent", i)
					}
				}
			})
		})
	}
}

// An estimate that only what is in flight has brought to the cap blocks nobody for longer than it stands.
func TestWhatIsInFlightSetsNoBlock(t *testing.T) {
	eachOvertime(t, false, retained(10_000), func(t *testing.T, o *overtime) {
		g := o.gates[0]
		g.measurer = &scales{broken: true}
		o.measure(9500)
		a := admit(t, g, o.cluster, bytesOf(600), o.now)
		refused(t, g, o.cluster, bytesOf(1), o.now, wire.StorageQuotaExceeded, plans.LimitStorage)
		if g.Remeasure(t.Context(), o.cluster) {
			t.Fatal("a measure of a broker that does not answer")
		}
		g.Refund(a, o.now)
		o.pass(time.Second)
		if !o.offer(g, 1, 10) {
			t.Error("a push is refused for one that failed")
		}
	})
}
