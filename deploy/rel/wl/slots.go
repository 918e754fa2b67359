package wl

import (
	"context"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// parkedMost is how many polls the cluster of G2 may have waiting; more than that come.
const parkedMost = 60

// Slots is G2: more polls than a plan has slots wait at all gateways, and go away in every way: most to their end, some
// when their client hangs up in the middle. All come and go together, so that there are times of rest in which the gauge of
// a gateway can be held against the polls that wait there.
func Slots() Workload {
	const cluster = "g2"
	w := Workload{Name: "G2", Clusters: []hist.Cluster{{Name: cluster, Workload: "G2", Limits: hist.Limits{Parked: parkedMost}}}}
	for i := range parkedMost + parkedMost/6 {
		w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
			t := a.stage.Tenants[cluster]
			for a.stage.Loading() && ctx.Err() == nil {
				// A round lasts eight seconds of the run's clock, and every client comes at its begin.
				round := 8*time.Second - a.rec.Now()%(8*time.Second)
				if !a.rest(ctx, round+time.Duration(i)*5*time.Millisecond) {
					return
				}
				wait, patience := 4*time.Second, time.Duration(0)
				if a.chance(40) {
					patience = 3 * time.Second
				}
				a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: cluster, Does: hist.DoesPoll, WaitMs: int(wait.Milliseconds())}, poll("empty", wait), patience)
			}
		})
	}
	w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
		quiet, cancel := a.whileLoading(ctx)
		defer cancel()
		a.stage.Fleet.Parked(quiet, 200*time.Millisecond)
	})
	return w
}
