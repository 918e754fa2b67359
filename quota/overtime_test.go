package quota

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/quota/meter"
	"github.com/queengate/queengate/wire"
)

// overtime is gateways that push to one cluster for as long as its use over time allows.
type overtime struct {
	t       *testing.T
	server  *redistest.Server // nil: the shared one
	world   *fleetWorld       // nil: one gateway, without a fleet
	gates   []*Gate
	months  *fakeMonths
	cluster *plans.Cluster
	now     time.Time
	random  *rand.Rand
	stored  int64 // messages that were let in and stored
}

func (o *overtime) clock() time.Time { return o.now }

// join adds a gateway.
func (o *overtime) join() *Gate {
	o.t.Helper()
	options := []Option{WithMonths(o.months), WithClock(o.clock)}
	var g *Gate
	if o.world == nil {
		g = NewGate(slog.New(slog.DiscardHandler), options...)
		g.epoch = start.Add(-time.Hour)
	} else {
		g = o.world.gate(nil, options...)
	}
	o.gates = append(o.gates, g)
	return g
}

// eachOvertime runs a test alone, and over 1, 3 and 8 gateways or so many, for both ledgers of a fleet.
func eachOvertime(t *testing.T, private bool, plan func(*plans.Limits), test func(*testing.T, *overtime), sizes ...int) {
	t.Helper()
	t.Parallel()
	fresh := func(t *testing.T) *overtime {
		return &overtime{t: t, months: newFakeMonths(), cluster: clusterWith(plan), now: start, random: rand.New(rand.NewPCG(3, 9))}
	}
	if len(sizes) == 0 {
		sizes = []int{1, 3, 8}
		t.Run("alone", func(t *testing.T) {
			t.Parallel()
			o := fresh(t)
			o.join()
			test(t, o)
		})
	}
	for _, leases := range []bool{false, true} {
		for _, n := range sizes {
			t.Run(fmt.Sprintf("leases %v, %d gateways", leases, n), func(t *testing.T) {
				t.Parallel()
				o := fresh(t)
				at := redistest.Options
				if private {
					o.server = redistest.New(t)
					o.world = newFleetWorld(t, o.server.Options(), leases)
				} else {
					o.world = newFleetWorld(t, at(t), leases)
				}
				for range n {
					o.join()
				}
				for range 2 {
					o.beat()
				}
				test(t, o)
			})
		}
	}
}

func (o *overtime) beat() {
	for _, g := range o.gates {
		if g.fleet != nil {
			g.fleet.beat(o.now)
		}
	}
}

// pass lets time go by: gateways tend, beat and save as they do.
func (o *overtime) pass(d time.Duration) {
	o.t.Helper()
	for end := o.now.Add(d); o.now.Before(end); {
		o.now = o.now.Add(100 * time.Millisecond)
		whole := o.now.Sub(start)%time.Second == 0
		if whole {
			o.beat()
		}
		for _, g := range o.gates {
			if g.fleet != nil {
				g.fleet.tend(o.now)
				heard(g)
			}
			if whole {
				_ = g.SaveMonths(o.t.Context()) // a test that minds looks at what was saved
			}
		}
	}
}

// offer makes one gateway push n messages of size bytes each, and reports whether they were let in. They are stored.
func (o *overtime) offer(g *Gate, n int, size int64) bool {
	o.t.Helper()
	_ = g.EnsureSeeded(o.t.Context(), o.cluster) // a test of an outage goes on, as a gateway does
	ask := &Ask{Cost: wire.CostMessages, Messages: n, PayloadBytes: int64(n) * size, LargestItem: size}
	a, _, err := g.Admit(o.cluster, ask, o.now)
	if err != nil {
		if err.Code != wire.QuotaExceeded && err.Code != wire.StorageQuotaExceeded {
			o.t.Fatalf("refused with %v", err)
		}
		return false
	}
	g.Settle(a, Outcome{Stored: true, StoredBytes: ask.PayloadBytes}, o.now)
	o.stored += int64(n)
	return true
}

// storm pushes from random gateways, at about 500 pushes a second, until tries pushes in a row are refused.
func (o *overtime) storm(tries, most int) {
	o.t.Helper()
	for n, refused := 0, 0; refused < tries; n++ {
		if n%50 == 49 {
			o.pass(100 * time.Millisecond)
		}
		if o.offer(o.gates[o.random.IntN(len(o.gates))], 1+o.random.IntN(most), 10) {
			refused = 0
		} else {
			refused++
		}
		if n > 200_000 {
			o.t.Fatal("the storm does not end")
		}
	}
}

// drain uses up what is left, message by message, from every gateway.
func (o *overtime) drain() {
	o.t.Helper()
	o.pass(time.Second) // what others have taken ahead comes back
	for _, g := range o.gates {
		for o.offer(g, 1, 10) {
			if o.stored > 1_000_000 {
				o.t.Fatal("the month does not end")
			}
		}
	}
}

func allowance(most int64) func(*plans.Limits) {
	return func(l *plans.Limits) { l.MonthlyMessages = &most }
}

func monthOf(now time.Time) meter.Month {
	m, _, _ := meter.MonthOf(now, nil)
	return m
}

// The fleet stores exactly the month's allowance: no message more, and none that was left is refused (W12: a block within
// one request, not an hour).
func TestAMonthIsTheFleets(t *testing.T) {
	eachOvertime(t, false, allowance(3000), func(t *testing.T, o *overtime) {
		o.storm(20, 7)
		if o.stored > 3000 || o.stored < 2900 {
			t.Fatalf("%d messages were stored in a storm, want 2900..3000", o.stored)
		}
		o.drain()
		if o.stored != 3000 {
			t.Fatalf("%d messages were stored, want 3000", o.stored)
		}
		for i, g := range o.gates {
			err := refused(t, g, o.cluster, push(1), o.now, wire.QuotaExceeded, plans.LimitMonth)
			if err.Limit.Used != 3000 || err.Limit.ResetSeconds <= 0 {
				t.Errorf("gateway %d says %+v", i, err.Limit)
			}
		}
		o.pass(time.Second)
		if saved := o.months.total(o.cluster.ID, monthOf(o.now)); saved != 3000 {
			t.Errorf("%d messages were saved, want 3000", saved)
		}
	})
}

// Whatever Redis loses, a month that was used is not free again: the control database and the gateways know it.
func TestAMonthOutlivesRedis(t *testing.T) {
	for name, fault := range map[string][2]func(*redistest.Server){
		"flushed":         {func(s *redistest.Server) { s.Do("FLUSHALL") }, func(*redistest.Server) {}},
		"killed, emptied": {(*redistest.Server).Kill, (*redistest.Server).Start},
	} {
		t.Run(name, func(t *testing.T) {
			eachOvertime(t, true, allowance(3000), func(t *testing.T, o *overtime) {
				for range 1500 {
					o.offer(o.gates[o.random.IntN(len(o.gates))], 1, 10)
				}
				fault[0](o.server)
				for range 100 { // at once: nothing was saved since, and nobody has looked
					o.offer(o.gates[o.random.IntN(len(o.gates))], 1, 10)
				}
				o.pass(2 * time.Second)
				fault[1](o.server)
				o.pass(2 * time.Second)
				o.storm(20, 7)
				o.drain()
				o.pass(2 * time.Second)
				o.drain()
				if o.stored != 3000 {
					t.Errorf("%d messages were stored, want 3000", o.stored)
				}
			}, 1, 3)
		})
	}
}

// What an idle gateway has counted is known to a Redis that lost its state although it has no request to tell it by, and those
// that do have requests, and heard of the month long ago, do not go on from there: with the database at once, without it
// from the next heartbeat on.
func TestAnIdleGatewaysMonthOutlivesRedis(t *testing.T) {
	flush := func(o *overtime) { o.server.Do("FLUSHALL") }
	restart := func(o *overtime) {
		o.server.Kill()
		o.pass(2 * time.Second) // in which heartbeats find out
		o.server.Start()
	}
	older := func(o *overtime) {
		restart(o)
		o.server.Do("SET", o.world.prefix+":"+layout+":{gateways}:state", o.gates[0].fleet.state)
	}
	for name, test := range map[string]struct {
		fault func(*overtime)
		away  bool // the database, before the fault and after it
		beats time.Duration
	}{
		"flushed":                              {fault: flush},
		"flushed, a heartbeat later":           {fault: flush, beats: 1200 * time.Millisecond},
		"flushed without the database":         {fault: flush, away: true, beats: 1200 * time.Millisecond},
		"killed, emptied":                      {fault: restart, beats: 2 * time.Second},
		"killed, emptied without the database": {fault: restart, away: true, beats: 2 * time.Second},
		"killed, back from an older snapshot, without the database": {fault: older, away: true, beats: 2 * time.Second},
		"flushed again within a second": {fault: func(o *overtime) {
			flush(o)
			o.offer(o.gates[1], 1, 10) // it reads the month, which goes on
			o.offer(o.gates[0], 30, 10)
			_ = o.gates[0].SaveMonths(o.t.Context())
			flush(o)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			eachOvertime(t, true, allowance(3000), func(t *testing.T, o *overtime) {
				idle, others := o.gates[0], o.gates[1:]
				for _, g := range others {
					o.offer(g, 1, 10)
				}
				o.pass(time.Second)
				for o.stored < 2920 {
					o.offer(idle, 1, 10)
				}
				o.pass(12 * time.Second) // it is idle, and all is told and saved
				o.months.set(func(f *fakeMonths) { f.away = test.away })
				test.fault(o)
				o.pass(test.beats)
				for range 10 {
					for _, g := range others {
						o.offer(g, 50, 10)
					}
				}
				o.pass(time.Second) // what was taken ahead comes back
				for _, g := range others {
					for o.offer(g, 1, 10) {
					}
				}
				if o.stored != 3000 {
					t.Errorf("%d messages were stored, want 3000", o.stored)
				}
			}, 3)
		})
	}
}

// While one request reads the month that Redis has lost, those that come meanwhile wait for it rather than go by what was heard.
func TestACrowdAwaitsTheMonthThatRedisLost(t *testing.T) {
	eachOvertime(t, true, allowance(3000), func(t *testing.T, o *overtime) {
		g := o.gates[1]
		o.offer(g, 1, 10)
		o.pass(time.Second) // it has told all, and hears of nothing from now on
		o.offer(o.gates[0], 2998, 10)
		o.pass(2 * time.Second)
		o.server.Do("FLUSHALL")
		held := make(chan struct{})
		o.months.set(func(f *fakeMonths) { f.held = held })
		var crowd sync.WaitGroup
		var letIn atomic.Int64
		const size = 8
		decided := func() float64 { return value(t, g.fleet.stats.redis) }
		before := decided()
		for range size {
			crowd.Go(func() {
				if a, _, _ := g.Admit(o.cluster, push(2), o.now); a != nil {
					letIn.Add(1)
				}
			})
		}
		for decided() < before+size && letIn.Load() == 0 { // each has heard of the loss
			runtime.Gosched()
		}
		close(held)
		crowd.Wait()
		if n := letIn.Load(); n > 0 {
			t.Errorf("%d requests of 2 messages were let in where 1 was left", n)
		}
	}, 3)
}

// A gateway that forgot everything, and one that is new, go on from what is known.
func TestAMonthGoesOnAfterARestart(t *testing.T) {
	eachOvertime(t, false, allowance(100), func(t *testing.T, o *overtime) {
		for range 60 {
			o.offer(o.gates[0], 1, 10)
		}
		o.pass(time.Second)
		o.gates = nil
		o.join()
		o.drain()
		if o.stored != 100 {
			t.Errorf("%d messages were stored, want 100", o.stored)
		}
	})
}

// What dead gateways counted is known when Redis has lost it too: the control database has it.
func TestAMonthOutlivesItsGatewaysAndRedis(t *testing.T) {
	eachOvertime(t, true, allowance(100), func(t *testing.T, o *overtime) {
		for _, g := range o.gates {
			o.offer(g, 20, 10)
		}
		o.pass(time.Second)
		o.gates = o.gates[1:]
		o.server.Do("FLUSHALL")
		o.join()
		o.pass(2 * time.Second)
		o.drain()
		if o.stored != 100 {
			t.Errorf("%d messages were stored, want 100", o.stored)
		}
	}, 1, 3)
}

// Nobody is let in for free because the control database is away, and nothing that was counted meanwhile is lost or doubled.
func TestAMonthIsCountedWhileTheDatabaseIsAway(t *testing.T) {
	eachOvertime(t, false, allowance(300), func(t *testing.T, o *overtime) {
		o.offer(o.gates[0], 50, 10)
		o.pass(time.Second)
		o.months.set(func(f *fakeMonths) { f.unheard = true })
		o.offer(o.gates[0], 50, 10)
		o.pass(2 * time.Second)
		o.months.set(func(f *fakeMonths) { f.away, f.unheard = true, false })
		o.join() // it cannot ask the database
		for _, g := range o.gates {
			o.offer(g, 10, 10)
		}
		o.pass(2 * time.Second)
		o.months.set(func(f *fakeMonths) { f.away = false })
		o.pass(8 * time.Second)
		if saved := o.months.total(o.cluster.ID, monthOf(o.now)); saved != o.stored {
			t.Fatalf("%d messages were saved, want %d", saved, o.stored)
		}
		if o.world == nil {
			o.gates = o.gates[1:] // two without a fleet do not share; the new one knows of the other by now
			o.gates[0].Forget(o.cluster.ID)
		}
		o.drain()
		if o.stored != 300 {
			t.Errorf("%d messages were stored, want 300", o.stored)
		}
	}, 1, 3)
}

// While Redis is away each gateway may use its part of what is left, as the database says from second to second.
func TestAMonthIsSharedOutWithoutRedis(t *testing.T) {
	eachOvertime(t, true, allowance(3000), func(t *testing.T, o *overtime) {
		for range 600 {
			o.offer(o.gates[o.random.IntN(len(o.gates))], 1, 10)
		}
		o.pass(time.Second)
		for _, g := range o.gates {
			o.offer(g, 1, 10)
		}
		o.pass(time.Second)
		o.server.Kill()
		g := o.gates[0]
		before := o.stored
		for o.offer(g, 1, 10) { // a second has not passed
		}
		if part, left := o.stored-before, 3000-before; part > left/int64(len(o.gates))+1 {
			t.Errorf("one of %d gateways used %d of %d that were left", len(o.gates), part, left)
		}
		for range 60 {
			o.pass(time.Second)
			for _, g := range o.gates {
				for range 300 {
					o.offer(g, 1, 10)
				}
			}
		}
		// Between two savings the gateways do not see each other: each uses some of its part of what is left, which is less
		// and less, and at the end a request each.
		if most := 3000 + int64(len(o.gates)) - 1; o.stored > most || o.stored < 2900 {
			t.Errorf("%d messages were stored, want 2900..%d", o.stored, most)
		}
	}, 1, 3)
}

// The month is the tenant's: it turns where the tenant is, everywhere at once, and what was admitted before counts before.
func TestTheMonthTurnsWhereTheTenantIs(t *testing.T) {
	plan := func(l *plans.Limits) { l.MonthlyMessages, l.Zone = new(int64(10)), "America/New_York" }
	eachOvertime(t, false, plan, func(t *testing.T, o *overtime) {
		g, last := o.gates[0], o.gates[len(o.gates)-1]
		o.now = time.Date(2025, 4, 1, 3, 59, 30, 0, time.UTC) // April in UTC, March in New York, which has summer time by now
		o.offer(g, 9, 10)
		_ = g.EnsureSeeded(t.Context(), o.cluster)
		late := admit(t, g, o.cluster, push(1), o.now)
		o.pass(time.Second)
		err := refused(t, last, o.cluster, push(1), o.now, wire.QuotaExceeded, plans.LimitMonth)
		if err.Limit.ResetSeconds != 29 {
			t.Errorf("it resets in %v s, want 29", err.Limit.ResetSeconds)
		}
		o.pass(29 * time.Second)
		for range 10 {
			if !o.offer(last, 1, 10) {
				t.Fatal("the new month was refused")
			}
		}
		g.Settle(late, Outcome{Stored: true, StoredBytes: 10}, o.now)
		refused(t, g, o.cluster, push(1), o.now, wire.QuotaExceeded, plans.LimitMonth)
		o.pass(2 * time.Second)
		march, _, _ := meter.MonthOf(time.Date(2025, 3, 10, 0, 0, 0, 0, time.UTC), nil)
		if got := [2]int64{o.months.total(o.cluster.ID, march), o.months.total(o.cluster.ID, march+1)}; got != [2]int64{10, 10} {
			t.Errorf("March and April have %v, want 10 each", got)
		}
	})
}

// A tenant that moves keeps what its month has used.
func TestATenantMovesWithinItsMonth(t *testing.T) {
	eachOvertime(t, false, allowance(10), func(t *testing.T, o *overtime) {
		o.offer(o.gates[0], 10, 10)
		const zone = plans.Zone("Asia/Tokyo")
		o.cluster = edited(o.cluster, func(l *plans.Limits) { l.MonthlyMessages, l.Zone = new(int64(10)), zone })
		err := refused(t, o.gates[0], o.cluster, push(1), o.now, wire.QuotaExceeded, plans.LimitMonth)
		if want := time.Date(2025, 4, 1, 0, 0, 0, 0, zone.Location()).Sub(o.now).Seconds(); err.Limit.ResetSeconds != want {
			t.Errorf("it resets in %v s, want %v", err.Limit.ResetSeconds, want)
		}
	}, 1, 3)
}

// Each mark is told once a month by the whole fleet, also when the database was away or one push passes several.
func TestAMonthWarnsOnceForTheFleet(t *testing.T) {
	eachOvertime(t, false, allowance(100), func(t *testing.T, o *overtime) {
		said := func() (percents []int) {
			o.pass(time.Second)
			o.months.set(func(f *fakeMonths) {
				for _, w := range f.told {
					percents = append(percents, w.Percent)
				}
			})
			return percents
		}
		want := func(what string, percents ...int) {
			t.Helper()
			if got := said(); fmt.Sprint(got) != fmt.Sprint(percents) {
				t.Fatalf("%s: warned of %v, want %v", what, got, percents)
			}
		}
		g, last := o.gates[0], o.gates[len(o.gates)-1]
		o.offer(g, 79, 10)
		want("79 of 100")
		o.offer(last, 1, 10)
		want("80 of 100", 80)
		o.offer(g, 5, 10)
		want("85 of 100", 80)
		o.months.set(func(f *fakeMonths) { f.away = true })
		o.offer(g, 15, 10)
		want("the database is away", 80)
		o.months.set(func(f *fakeMonths) { f.away = false })
		want("100 of 100", 80, 90, 100)
		for _, g := range o.gates {
			o.offer(g, 1, 10)
		}
		want("refused", 80, 90, 100)
		o.now = time.Date(2025, 4, 1, 0, 0, 0, 0, time.UTC)
		o.offer(last, 95, 10)
		want("the next month", 80, 90, 100, 80, 90)
	})
}

// With the basis push+delivery first deliveries count too. They are never refused.
func TestAMonthMayCountDeliveries(t *testing.T) {
	plan := func(l *plans.Limits) { l.MonthlyMessages, l.Basis = new(int64(10)), plans.CountDeliveries }
	eachOvertime(t, false, plan, func(t *testing.T, o *overtime) {
		g, last := o.gates[0], o.gates[len(o.gates)-1]
		o.offer(g, 4, 10)
		last.Settle(admit(t, last, o.cluster, pop(), o.now), Outcome{Delivered: 4}, o.now)
		o.pass(2 * time.Second)
		refused(t, g, o.cluster, push(3), o.now, wire.QuotaExceeded, plans.LimitMonth)
		last.Settle(admit(t, last, o.cluster, pop(), o.now), Outcome{Delivered: 100}, o.now)
		o.pass(time.Second)
		refused(t, g, o.cluster, push(1), o.now, wire.QuotaExceeded, plans.LimitMonth)
		admit(t, g, o.cluster, pop(), o.now)
		if saved := o.months.total(o.cluster.ID, monthOf(o.now)); saved != 108 {
			t.Errorf("%d were saved, want 108", saved)
		}
	})
}

// A gateway that is killed loses for the database what it counted within the last second; for the fleet nothing that it told.
func TestAKilledGatewayLosesASecond(t *testing.T) {
	eachOvertime(t, false, allowance(100), func(t *testing.T, o *overtime) {
		dead := o.gates[0]
		o.offer(dead, 40, 10)
		o.pass(time.Second)
		o.offer(dead, 20, 10)
		o.now = o.now.Add(tellEvery)
		dead.fleet.tend(o.now)
		heard(dead)
		o.gates = o.gates[1:]
		o.pass(2 * time.Minute) // what it held is nobody's
		o.drain()
		o.pass(time.Second)
		if o.stored != 100 {
			t.Errorf("%d messages were stored, want 100", o.stored)
		}
		if saved := o.months.total(o.cluster.ID, monthOf(o.now)); saved != 80 {
			t.Errorf("%d messages were saved, want all but the 20 of its last second", saved)
		}
	}, 3)
}
