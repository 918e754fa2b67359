package quota

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// value reads a counter or gauge.
func value(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

// Whatever happens to Redis, no request is refused for it but by a limit, nobody waits for it once it is known to be
// away, and what is admitted beyond the allowance is bounded: by the fleet's burst for each absence.
func TestAFleetStandsWhenRedisDoesNot(t *testing.T) {
	faults := map[string]struct {
		begin, end func(*redistest.Server)
		over       float64
		silent     bool // Redis gives no answer, rather than an error
	}{
		"paused":          {begin: (*redistest.Server).Pause, end: (*redistest.Server).Resume, over: 1, silent: true},
		"killed, emptied": {begin: (*redistest.Server).Kill, end: (*redistest.Server).Start, over: 1},
		"flushed":         {begin: func(s *redistest.Server) { s.Do("FLUSHALL") }, end: func(*redistest.Server) {}, over: 1},
		"scripts gone":    {begin: func(s *redistest.Server) { s.Do("SCRIPT", "FLUSH") }, end: func(*redistest.Server) {}},
		"out of memory": {
			begin: func(s *redistest.Server) { s.Do("CONFIG", "SET", "maxmemory", "1") },
			end:   func(s *redistest.Server) { s.Do("CONFIG", "SET", "maxmemory", "0") }, over: 1,
		},
		"read-only": {
			begin: func(s *redistest.Server) { s.Do("REPLICAOF", "127.0.0.1", "1") },
			end:   func(s *redistest.Server) { s.Do("REPLICAOF", "NO", "ONE") }, over: 1,
		},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			var sizes []int // all, for the fault that loses most
			if name != "killed, emptied" {
				sizes = []int{3}
			}
			eachFleet(t, true, func(t *testing.T, r *fleetRun) {
				r.plan(200, 400)
				r.run(time.Second)
				if fault.silent {
					setBudget(faultBudget, r.gates...)
				}
				fault.begin(r.server)
				r.run(2 * time.Second)
				setBudget(testBudget, r.gates...)
				fault.end(r.server)
				r.run(2 * time.Second)
				for i, g := range r.gates {
					if !g.fleet.asking() {
						t.Errorf("gateway %d has not come back", i)
					}
					if failed := value(t, g.fleet.stats.trips.WithLabelValues("failed")); failed > laneCount {
						t.Errorf("%v round trips were waited for in vain, want at most one per lane", failed)
					}
				}
				r.judge(fault.over, 0.85)
			}, sizes...)
		})
	}
}

// The others leave a gateway that is cut off its share of the rate, as soon as its heartbeat is missed and until it is
// back. After a while it counts as dead, and what it admits comes on top of the plan: never more than its part of it.
func TestAGatewayIsCutOff(t *testing.T) {
	faults := map[string]func(*redistest.Link){
		"cut":  (*redistest.Link).Cut,
		"slow": func(l *redistest.Link) { l.Slow(2 * faultBudget) },
	}
	for name, fault := range faults {
		for _, cut := range []struct {
			lasts time.Duration
			dead  bool
			over  float64 // bursts, of which one is two seconds of the rate
		}{
			// Its part of the level, and its part of the rate until it is missed.
			{7 * time.Second, false, (1 + 5*0.5) / 3},
			// Its part of the level, and of the rate for as long as it is away and until it is heard of.
			{14 * time.Second, true, (1 + 15*0.5) / 3},
		} {
			t.Run(fmt.Sprintf("%s for %v", name, cut.lasts), func(t *testing.T) {
				t.Parallel()
				for _, leases := range []bool{false, true} {
					link := redistest.NewLink(t, redistest.Options(t))
					w := newFleetWorld(t, redistest.Options(t), leases)
					r := newLinkedRun(t, w, link)

					r.plan(200, 400)
					r.run(time.Second)
					setBudget(faultBudget, r.gates[2])
					fault(link)
					r.run(cut.lasts)
					missing, dead := r.gates[0].fleet.deaf.Load() == 1, r.gates[0].fleet.dead.Load() == 1
					if r.gates[2].fleet.asking() || missing == cut.dead || dead != cut.dead {
						t.Fatalf("cut off: %v, missing: %v, dead: %v", !r.gates[2].fleet.asking(), missing, dead)
					}
					setBudget(testBudget, r.gates[2])
					link.Heal()
					r.run(2 * time.Second)
					if f := r.gates[0].fleet; !r.gates[2].fleet.asking() || f.deaf.Load()+f.dead.Load() != 0 {
						t.Fatal("the gateway has not come back")
					}
					r.judge(cut.over, 0.9)
				}
			})
		}
	}
}

// A legal batch above the gateway's part of the burst is saved up for: it waits for no longer than the part takes to grow,
// and whoever comes next waits for the part's next tokens.
func TestABatchAboveThePartIsSavedUpFor(t *testing.T) {
	t.Parallel()
	w := newFleetWorld(t, redistest.Options(t), false)
	w.size = 4
	g := w.gate(nil)
	g.fleet.pipe.fail(errAway)
	c := clusterWith(messageRate(40, 80)) // a part is 10 a second, 20 at once
	refused(t, g, c, push(81), start, wire.BatchExceedsBurst, plans.LimitMessages)
	now := start
	for _, batch := range []int{50, 80, 80} {
		err := refused(t, g, c, push(batch), now, wire.RateLimited, plans.LimitMessages)
		want := time.Duration(batch) * time.Second / 10
		if now.Equal(start) {
			want -= 2 * time.Second // the part was full
		}
		if err.RetryAfter != want {
			t.Fatalf("a batch of %d is told to wait %v, want %v", batch, err.RetryAfter, want)
		}
		if used, most := err.Limit.Used, err.Limit.Limit; used < 0 || used > most {
			t.Errorf("%v of %v are used", used, most)
		}
		refused(t, g, c, push(batch), now.Add(want-time.Microsecond), wire.RateLimited, plans.LimitMessages)
		now = now.Add(want)
		admit(t, g, c, push(batch), now)
	}
	err := refused(t, g, c, push(1), now, wire.RateLimited, plans.LimitMessages)
	if err.RetryAfter != 100*time.Millisecond {
		t.Errorf("the next one is told to wait %v, want 100ms", err.RetryAfter)
	}
}

// What was saved up for a batch ends with the absence.
func TestWhatIsSavedUpEndsWithTheAbsence(t *testing.T) {
	t.Parallel()
	w := newFleetWorld(t, redistest.Options(t), false)
	w.size = 4
	g := w.gate(nil)
	g.fleet.pipe.fail(errAway)
	c := clusterWith(messageRate(40, 80))
	limit := func(n int, now time.Time) float64 {
		t.Helper()
		a, report, err := g.Admit(c, push(n), now)
		if err != nil {
			t.Fatal(err)
		}
		g.Refund(a, now)
		return report.Limit
	}
	refused(t, g, c, push(50), start, wire.RateLimited, plans.LimitMessages)
	now := start.Add(time.Minute)
	if got := limit(50, now); got != 50 {
		t.Fatalf("the part holds %v, want 50", got)
	}
	g.fleet.beat(now)
	if got := limit(1, now); got != 80 {
		t.Fatalf("the bucket holds %v, want 80", got)
	}
	heard(g)
	g.fleet.pipe.fail(errAway)
	now = now.Add(time.Minute)
	if got := limit(1, now); got != 20 {
		t.Fatalf("the next absence begins with a part of %v, want 20", got)
	}
	err := refused(t, g, c, push(50), now, wire.RateLimited, plans.LimitMessages)
	if want := 3 * time.Second; err.RetryAfter != want {
		t.Errorf("a batch of 50 is told to wait %v, want %v", err.RetryAfter, want)
	}
}

// From the beginning of an absence gateways that decide alone admit together what the bucket held and what the rate
// yields, also of batches that are more than their parts: none passes because its gateway does not know of the others.
func TestBatchesAboveThePartsStayWithinThePlan(t *testing.T) {
	eachFleet(t, true, func(t *testing.T, r *fleetRun) {
		const rate, burst = 40, 80
		r.cluster = clusterWith(messageRate(rate, burst))
		for _, g := range r.gates {
			g.Refund(admit(t, g, r.cluster, push(1), start), start)
			heard(g)
		}
		r.server.Kill()
		admitted, turns := 0, make([]time.Time, len(r.gates))
		for now := start; now.Before(start.Add(time.Minute)); now = now.Add(stepOfRun) {
			for i, g := range r.gates {
				if now.Before(turns[i]) {
					continue
				}
				n := burst / 2
				if i%2 == 0 {
					n = burst
				}
				_, _, err := g.Admit(r.cluster, push(n), now)
				switch {
				case err == nil:
					admitted += n
				case err.Code != wire.RateLimited:
					t.Fatal(err)
				default:
					turns[i] = now.Add(err.RetryAfter)
				}
				if most := burst + now.Sub(start).Seconds()*rate; float64(admitted) > most {
					t.Fatalf("after %v %d messages were admitted, want %.1f at most", now.Sub(start), admitted, most)
				}
			}
		}
		if all := float64(burst + 60*rate); float64(admitted) < 0.7*all {
			t.Errorf("%d messages were admitted, want 70 %% of %.0f", admitted, all)
		}
	})
}
