package wl

import (
	"context"
	"fmt"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
	"github.com/queengate/queengate/deploy/rel/lab"
)

// Caps is G3: pushes, configures and deletions over more names than the plan has room for, and pushes up to the cap of
// retained bytes, which are deleted again. What the database holds is looked at ten times a second.
func Caps() Workload {
	const (
		counts = "g3-counts"
		bytes  = "g3-bytes"
	)
	w := Workload{Name: "G3", Clusters: []hist.Cluster{
		{Name: counts, Workload: "G3", Limits: hist.Limits{Queues: 5, Partitions: 3}},
		{Name: bytes, Workload: "G3", Limits: hist.Limits{RetainedBytes: 200_000}},
	}}
	for range 3 {
		w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) {
			t := a.stage.Tenants[counts]
			a.produce(ctx, 150*time.Millisecond, func() { a.count(ctx, t) })
		})
	}
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

// count makes or deletes one of more queues and partitions than there is room for.
func (a *Actor) count(ctx context.Context, t *lab.Tenant) {
	queue, partition := fmt.Sprintf("q%d", a.dice.IntN(8)), fmt.Sprintf("p%d", a.dice.IntN(5))
	switch {
	case a.chance(15):
		a.remove(ctx, t, queue)
	case a.chance(15):
		a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: t.Name, Does: hist.DoesConfigure}, post("/api/v1/configure", map[string]any{"queue": queue}), 0)
	default:
		a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: t.Name, Does: hist.DoesPush, Messages: 1}, pushes(queue, partition, 1, 10), 0)
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

// reserved is how long a gateway that died keeps the names that it had reserved, and a gateway may know of a queue that is
// gone.
const reserved = 65 * time.Second

// fill goes to both caps when the load is over. Where a gateway was killed, what it had reserved must have ended first.
func (a *Actor) fill(ctx context.Context, t *lab.Tenant) {
	until := time.Now().Add(reserved)
	for time.Now().Before(until) && a.rest(ctx, 200*time.Millisecond) {
		refused := 0
		for i := range 8 {
			v := a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: t.Name, Does: hist.DoesPush, Messages: 1}, pushes(fmt.Sprintf("q%d", i), "p0", 1, 10), 0)
			if v.Limit == "queues" {
				refused++
			}
		}
		for i := range 8 {
			for p := range 5 {
				a.ask(ctx, a.gateway(t, ""), hist.AskArgs{Cluster: t.Name, Does: hist.DoesPush, Messages: 1}, pushes(fmt.Sprintf("q%d", i), fmt.Sprintf("p%d", p), 1, 10), 0)
			}
		}
		if refused == 3 { // 8 names, and room for 5
			break
		}
	}
	if err := a.stage.Fleet.Full(ctx, t); err != nil {
		a.remark("what %s holds could not be counted: %v", t.Name, err)
	}
}
