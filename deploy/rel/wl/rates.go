package wl

import (
	"context"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// Rates is G1: clients ask for many times what their plan allows, over all gateways: of requests, of messages in batches of
// every size up to the burst and sometimes above it, and of messages while the plan is edited. Two lone clients wait as
// long as they are told, and sometimes come early.
func Rates() Workload {
	const (
		requests = "g1-requests"
		messages = "g1-messages"
		edited   = "g1-edited"
		lone     = "g1-lone"
	)
	w := Workload{Name: "G1", Clusters: []hist.Cluster{
		{Name: requests, Workload: "G1", Limits: hist.Limits{RequestRate: 15, RequestBurst: 10}},
		{Name: messages, Workload: "G1", Limits: hist.Limits{MessageRate: 60, MessageBurst: 20}},
		{Name: edited, Workload: "G1", Limits: hist.Limits{MessageRate: 20, MessageBurst: 10}},
		{Name: lone, Workload: "G1", Limits: hist.Limits{RequestRate: 0.4, RequestBurst: 1}},
	}}
	for range 5 {
		w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
			t := a.stage.Tenants[requests]
			a.produce(ctx, 60*time.Millisecond, func() {
				a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: t.Name, Does: hist.DoesRead, Part: "flood"}, get(lists), 0)
			})
		})
	}
	flood := func(cluster string, most, burst int) func(context.Context, *Actor) {
		return func(ctx context.Context, a *Actor) {
			t := a.stage.Tenants[cluster]
			a.produce(ctx, 70*time.Millisecond, func() {
				n := 1
				switch {
				case a.chance(2):
					n = burst + 1 + a.dice.IntN(burst)
				case a.chance(50):
					n = 1 + a.dice.IntN(most)
				}
				a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: t.Name, Does: hist.DoesPush, Messages: n, Part: "flood"}, pushes("q", "p", n, 20), 0)
			})
		}
	}
	for range 5 {
		w.Threads = append(w.Threads, flood(messages, 20, 20))
	}
	for range 2 {
		w.Threads = append(w.Threads, flood(edited, 5, 10))
	}
	w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) { edits(ctx, a, edited) })
	w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
		t := a.stage.Tenants[lone]
		ctx, cancel := a.whileLoading(ctx)
		defer cancel()
		for ctx.Err() == nil {
			v := a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: t.Name, Does: hist.DoesRead, Part: "lone"}, get(lists), 0)
			wait := time.Duration(v.RetryAfter) * time.Second
			if early := time.Duration(v.RetryMs)*time.Millisecond - 400*time.Millisecond; early > 0 && a.chance(40) {
				wait = early
			}
			if v.status == 429 && !a.rest(ctx, wait) {
				return
			}
		}
	})
	return w
}

// edits changes the plan of a cluster up and down until the load ends.
func edits(ctx context.Context, a *Actor, cluster string) {
	t := a.stage.Tenants[cluster]
	for a.stage.Loading() && a.pause(ctx, 6*time.Second) {
		l := hist.Limits{MessageRate: float64(10 + 10*a.dice.IntN(4)), MessageBurst: float64(10 + 5*a.dice.IntN(3))}
		a.rec.Note(hist.Edit, &hist.PlanNote{Cluster: cluster, Limits: l})
		if err := a.stage.Fleet.Limit(ctx, t, &l); err != nil {
			a.remark("the plan of %s could not be edited: %v", cluster, err)
			continue
		}
		a.rec.Note(hist.Edit, &hist.PlanNote{Cluster: cluster, Limits: l, Made: true})
	}
}
