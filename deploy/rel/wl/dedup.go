package wl

import (
	"context"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// poolIDs is how many transaction ids a partition of W6 has.
const poolIDs = 40

// Dedup is W6: producers push, on all brokers, messages whose transaction ids come from a small pool, also twice in one
// request, into a queue whose window ends in the course of the run and one whose does not. What had an unknown outcome
// is sent once more, to another broker.
func Dedup() Workload {
	w := Workload{Name: "W6", Queues: []hist.Queue{
		{Name: "w6-short", Workload: "W6", Partitions: partitions(3), LeaseMs: 60_000, DedupMs: 2000, RetryLimit: 3},
		{Name: "w6-long", Workload: "W6", Partitions: partitions(2), LeaseMs: 60_000, DedupMs: 3_600_000, RetryLimit: 3},
	}}
	for range 3 {
		w.Threads = append(w.Threads, w.repeat)
	}
	return w
}

func (w *Workload) repeat(ctx context.Context, a *Actor) {
	a.produce(ctx, 120*time.Millisecond, func() {
		items := make([]hist.PushItem, 1+a.dice.IntN(4))
		for i := range items {
			q := one(a, w.Queues)
			items[i] = a.pooled(q.Name, one(a, q.Partitions), poolIDs)
		}
		if len(items) > 1 && a.chance(20) {
			items[len(items)-1] = items[0]
		}
		at := a.anyone()
		if _, kind := a.Push(ctx, at, items...); kind == hist.Info {
			other := a.anyone()
			for n := 0; other.Name == at.Name && n < 10; n++ {
				other = a.anyone()
			}
			a.Push(ctx, other, items...)
		}
	})
}
