package quota

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/queengate/queengate/internal/redistest"
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
	}{
		"paused":          {(*redistest.Server).Pause, (*redistest.Server).Resume, 1},
		"killed, emptied": {(*redistest.Server).Kill, (*redistest.Server).Start, 1},
		"flushed":         {func(s *redistest.Server) { s.Do("FLUSHALL") }, func(*redistest.Server) {}, 1},
		"scripts gone":    {func(s *redistest.Server) { s.Do("SCRIPT", "FLUSH") }, func(*redistest.Server) {}, 0},
		"out of memory": {
			func(s *redistest.Server) { s.Do("CONFIG", "SET", "maxmemory", "1") },
			func(s *redistest.Server) { s.Do("CONFIG", "SET", "maxmemory", "0") }, 1,
		},
		"read-only": {
			func(s *redistest.Server) { s.Do("REPLICAOF", "127.0.0.1", "1") },
			func(s *redistest.Server) { s.Do("REPLICAOF", "NO", "ONE") }, 1,
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
				fault.begin(r.server)
				r.run(2 * time.Second)
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

// The others leave a gateway that is cut off its share of the rate, as soon as its heartbeat is missed.
func TestAGatewayIsCutOff(t *testing.T) {
	faults := map[string]func(*redistest.Link){
		"cut":  (*redistest.Link).Cut,
		"slow": func(l *redistest.Link) { l.Slow(2 * faultBudget) },
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, leases := range []bool{false, true} {
				link := redistest.NewLink(t, redistest.Options(t))
				w := newFleetWorld(t, redistest.Options(t), leases)
				w.budget = faultBudget
				r := newFleetRun(t, w, 2)
				w.redis = link.Options()
				r.gates = append(r.gates, w.gate(nil))
				r.meet()

				r.plan(200, 400)
				r.run(time.Second)
				fault(link)
				r.run(10 * time.Second)
				if r.gates[2].fleet.asking() || r.gates[0].fleet.deaf.Load() != 1 {
					t.Fatalf("cut off: %v, missing: %d", !r.gates[2].fleet.asking(), r.gates[0].fleet.deaf.Load())
				}
				link.Heal()
				r.run(2 * time.Second)
				if !r.gates[2].fleet.asking() || r.gates[0].fleet.deaf.Load() != 0 {
					t.Fatal("the gateway has not come back")
				}
				// Its part of the level, and its part of the rate until it is missed: (burst + 5 s x rate) / 3.
				r.judge((1+5*0.5)/3, 0.9)
			}
		})
	}
}

// An absence is decided with the gateway's part of the plan: a legal batch passes a full part, and leaves debt.
func TestABatchAboveThePartPasses(t *testing.T) {
	t.Parallel()
	w := newFleetWorld(t, redistest.Options(t), false)
	w.size = 4
	g := w.gate(nil)
	g.fleet.pipe.fail(errAway)
	c := clusterWith(messageRate(40, 80)) // a part is 10 a second, 20 at once
	admit(t, g, c, push(80), start)
	refused(t, g, c, push(1), start, "rate_limited", "msgs")
	refused(t, g, c, push(81), start, "batch_exceeds_burst", "msgs")
	admit(t, g, c, push(1), start.Add(6100*time.Millisecond))
}
