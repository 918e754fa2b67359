package wl

import (
	"context"
	"fmt"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
	"github.com/queengate/queengate/deploy/rel/lab"
)

// Caps is G3: pushes, configures and deletions over more names than the plan has room for, pushes up to the cap of
// retained bytes, which are deleted again, and pushes beyond a month's allowance. What the database holds is looked at ten
// times a second.
func Caps() Workload {
	const (
		counts = "g3-counts"
		bytes  = "g3-bytes"
		month  = "g3-month"
	)
	w := Workload{Name: "G3", Clusters: []hist.Cluster{
		{Name: counts, Workload: "G3", Limits: hist.Limits{Queues: 5, Partitions: 3}},
		{Name: bytes, Workload: "G3", Limits: hist.Limits{RetainedBytes: 200_000}},
		{Name: month, Workload: "G3", Limits: hist.Limits{Monthly: 250}},
	}}
	for range 2 {
		w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
			t := a.stage.Tenants[month]
			a.produce(ctx, 250*time.Millisecond, func() {
				n := 1 + a.dice.IntN(4)
				a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: month, Does: hist.DoesPush, Messages: n}, pushes("q", "p", n, 10), 0)
			})
			// What is used up keeps nobody from reading.
			a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: month, Does: hist.DoesPop}, get("/api/v1/pop/queue/q?consumerGroup=g&wait=false"), 0)
		})
	}
	for range 3 {
		w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
			t, last := a.stage.Tenants[counts], ""
			a.produce(ctx, 150*time.Millisecond, func() {
				if a.rec.Now()%sweepEvery < sweepAt {
					last = a.count(ctx, t, last)
				}
			})
		})
	}
	w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) { a.sweeps(ctx, a.stage.Tenants[counts]) })
	for range 2 {
		w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
			t := a.stage.Tenants[bytes]
			a.produce(ctx, 150*time.Millisecond, func() { a.pushBytes(ctx, t, fmt.Sprintf("q%d", a.dice.IntN(2))) })
		})
	}
	w.Threads = append(w.Threads,
		func(ctx context.Context, a *Actor) {
			t := a.stage.Tenants[bytes]
			a.produce(ctx, 6*time.Second, func() { a.remove(ctx, t, fmt.Sprintf("q%d", a.dice.IntN(2))) })
		},
		func(ctx context.Context, a *Actor) {
			quiet, cancel := a.whileLoading(ctx)
			defer cancel()
			a.stage.Fleet.Watch(quiet, 100*time.Millisecond, []*lab.Tenant{a.stage.Tenants[counts], a.stage.Tenants[bytes]})
			if ctx.Err() == nil {
				a.fill(ctx, a.stage.Tenants[counts])
			}
		})
	return w
}

const (
	// countedNames is of how many names queues are made, mostly of such as are not there.
	countedNames = 24
	// Every sweepEvery of the run's clock, at sweepAt of it, clients pause and all queues but two are deleted; at refillAt more
	// are made, for which there must be room then.
	sweepEvery, sweepAt, refillAt = 9 * time.Second, 5 * time.Second, 8 * time.Second
)

// count makes one of more queues and partitions than there is room for, or deletes the one that this client made last.
func (a *Actor) count(ctx context.Context, t *lab.Tenant, last string) (made string) {
	queue, partition := fmt.Sprintf("q%d", a.dice.IntN(countedNames)), fmt.Sprintf("p%d", a.dice.IntN(5))
	if last != "" && a.chance(40) {
		queue = last
	}
	does, r := hist.AskArgs{Cluster: t.Name, Does: hist.DoesPush, Messages: 1}, pushes(queue, partition, 1, 10)
	switch {
	case last != "" && a.chance(30):
		a.remove(ctx, t, last)
		return ""
	case a.chance(15):
		does, r = hist.AskArgs{Cluster: t.Name, Does: hist.DoesConfigure}, post("/api/v1/configure", map[string]any{"queue": queue})
	}
	if v := a.ask(ctx, a.gateway(t, ""), does, r, 0); v.kind == hist.OK {
		return queue
	}
	return last
}

// sweeps deletes queues now and then, and a while later makes others.
func (a *Actor) sweeps(ctx context.Context, t *lab.Tenant) {
	ctx, cancel := a.whileLoading(ctx)
	defer cancel()
	until := func(d time.Duration) bool { return a.rest(ctx, (d-a.rec.Now()%sweepEvery+sweepEvery)%sweepEvery) }
	for until(sweepAt + 200*time.Millisecond) {
		a.sweep(ctx, t, 2)
		if !until(refillAt) {
			return
		}
		for range 8 {
			queue := fmt.Sprintf("q%d", a.dice.IntN(countedNames))
			a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: t.Name, Does: hist.DoesPush, Messages: 1}, pushes(queue, "p0", 1, 10), 0)
		}
	}
}

// sweep deletes all queues but some.
func (a *Actor) sweep(ctx context.Context, t *lab.Tenant, but int) {
	for _, i := range a.dice.Perm(countedNames) {
		at := a.gateway(t, "")
		path := fmt.Sprintf("/api/v1/resources/queues/q%d", i)
		if there := do(ctx, at, "GET", path, nil, 0); there.Status == 200 {
			if but--; but < 0 {
				a.remove(ctx, t, fmt.Sprintf("q%d", i))
			}
		}
	}
}

func (a *Actor) remove(ctx context.Context, t *lab.Tenant, queue string) {
	r := request{method: "DELETE", path: "/api/v1/resources/queues/" + queue}
	a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: t.Name, Does: hist.DoesDelete}, r, 0)
}

func (a *Actor) pushBytes(ctx context.Context, t *lab.Tenant, queue string) {
	const n, size = 4, 1000
	a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: t.Name, Does: hist.DoesPush, Messages: n, Bytes: bytesOf(n, size)}, pushes(queue, "p", n, size), 0)
}

// known is how long a gateway may know of a queue that is gone.
const known = 5 * time.Second

// fill goes to both caps when the load is over. Where a gateway was killed, what it had reserved keeps its places for a
// minute, and a cap that is not reached says nothing.
func (a *Actor) fill(ctx context.Context, t *lab.Tenant) {
	until, made := time.Now().Add(known), 0
	a.sweep(ctx, t, 0)
	for time.Now().Before(until) && a.rest(ctx, 500*time.Millisecond) {
		made = 0
		for i := range 8 {
			v := a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: t.Name, Does: hist.DoesPush, Messages: 1}, pushes(fmt.Sprintf("q%d", i), "p0", 1, 10), 0)
			if v.kind == hist.OK {
				made++
			}
		}
		for i := range 8 {
			for p := range 5 {
				a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: t.Name, Does: hist.DoesPush, Messages: 1}, pushes(fmt.Sprintf("q%d", i), fmt.Sprintf("p%d", p), 1, 10), 0)
			}
		}
		if made == 5 { // of 8 names
			break
		}
	}
	if made < 5 && a.stage.Fleet.GatewaysDied() {
		a.remark("a gateway was killed that had reserved names")
		return
	}
	if err := a.stage.Fleet.Full(ctx, t); err != nil {
		a.remark("what %s holds could not be counted: %v", t.Name, err)
	}
}
