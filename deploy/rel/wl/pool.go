package wl

import (
	"context"
	"sync"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// poolSpread is over how many shares the tenant of G11 is spread, so that every broker has some of them.
const poolSpread = 32

// Pool is G11: pushes and waiting pops of a tenant that is spread over all brokers, while brokers fail in every way. What
// was pushed is there once at the end, so no push was sent to a second broker after a first may have had it.
func Pool() Workload {
	w := Workload{Name: "G11", Prepare: func(ctx context.Context, s *Stage) error {
		return s.Fleet.Do(ctx, "SELECT queengate.set_cluster_spread(id, $1) FROM queengate.clusters WHERE slug = 'rel'", poolSpread)
	}}
	for i := range 6 {
		w.Queues = append(w.Queues, hist.Queue{
			Name: "g11-" + string(rune('a'+i)), Workload: "G11", Partitions: partitions(2), LeaseMs: 3000, RetryLimit: 1000,
			Groups: []hist.Group{{Name: "g"}},
		})
	}
	for i := range w.Queues {
		q := &w.Queues[i]
		w.Threads = append(w.Threads,
			func(ctx context.Context, a *Actor) {
				for a.stage.Loading() && ctx.Err() == nil {
					v, kind := a.Pop(ctx, a.anyone(), hist.PopArgs{Queue: q.Name, Group: "g", Batch: 20, Wait: true, TimeoutMs: 3000, Subscription: "all"})
					if kind == hist.OK && len(v.Messages) > 0 {
						a.Ack(ctx, a.anyone(), "g", acks(v.LeaseID, "", v.Messages...)...)
					}
					if kind != hist.OK && !a.pause(ctx, 100*time.Millisecond) {
						return
					}
				}
			})
	}
	w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) { a.flow(ctx, w.Queues) }, func(ctx context.Context, a *Actor) {
		quiet, cancel := a.whileLoading(ctx)
		defer cancel()
		a.stage.Fleet.Pools(quiet, 200*time.Millisecond)
	})
	return w
}

// flow is how many clients may have a push under way.
const flow = 300

// flow pushes at a steady rate, whatever becomes of the pushes before: clients that waited for a broker that does not
// answer would all be held by it soon, and none be left to see where pushes go then.
func (a *Actor) flow(ctx context.Context, queues []hist.Queue) {
	var all sync.WaitGroup
	defer all.Wait()
	idle := make(chan *Actor, flow)
	for i := range flow {
		idle <- a.stage.actor(a.w, 1000+i)
	}
	a.produce(ctx, 20*time.Millisecond, func() {
		q := &queues[a.dice.IntN(len(queues))]
		c := <-idle
		all.Go(func() {
			c.Push(ctx, c.anyone(), c.item(q.Name, one(c, q.Partitions)))
			idle <- c
		})
	})
}
