package wl

import (
	"context"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// Outage is W13: producers that keep to one broker each push while PostgreSQL comes and goes, some with transaction ids
// of their own and some with ids that others use, a consumer and transactions find out what an outage lets through, and
// one thread asks each broker for its health.
func Outage() Workload {
	w := Workload{Name: "W13", Queues: []hist.Queue{
		{
			Name: "w13", Workload: "W13", Partitions: partitions(4), LeaseMs: 2000, DedupMs: 3_600_000, RetryLimit: 1000,
			Groups: []hist.Group{{Name: "g", Drains: true}},
		},
		{Name: "w13-free", Workload: "W13", Partitions: partitions(2), LeaseMs: 60_000, RetryLimit: 3},
		{Name: "w13-pool", Workload: "W13", Partitions: partitions(2), LeaseMs: 60_000, DedupMs: 3_600_000, RetryLimit: 3},
	}}
	for range 3 {
		w.Threads = append(w.Threads, w.keep)
	}
	w.Threads = append(w.Threads, w.shuffle, w.attend, w.health)
	return w
}

// keep pushes to one broker.
func (w *Workload) keep(ctx context.Context, a *Actor) {
	at := a.mine()
	a.produce(ctx, 120*time.Millisecond, func() {
		items := make([]hist.PushItem, 1+a.dice.IntN(3))
		for i := range items {
			q := one(a, w.Queues[:2])
			items[i] = a.item(q.Name, one(a, q.Partitions))
		}
		a.Push(ctx, at, items...)
	})
}

// shuffle pushes ids of the pool to all brokers.
func (w *Workload) shuffle(ctx context.Context, a *Actor) {
	q := w.Queues[2]
	a.produce(ctx, 150*time.Millisecond, func() {
		a.Push(ctx, a.anyone(), a.pooled(q.Name, one(a, q.Partitions), 2000))
	})
}

// attend consumes the first queue, and pushes a transaction now and then.
func (w *Workload) attend(ctx context.Context, a *Actor) {
	q := w.Queues[0]
	a.consume(ctx, q.Lease(), func(draining bool) bool {
		got, _ := a.Pop(ctx, a.anyone(), hist.PopArgs{
			Queue: q.Name, Group: "g", Batch: 10, Partitions: 4, Wait: a.chance(50), TimeoutMs: wait(draining, 300), Subscription: "all",
		})
		if !draining && a.chance(10) {
			a.Transact(ctx, a.anyone(), hist.TransactionArgs{Pushes: []hist.PushItem{a.item(q.Name, one(a, q.Partitions))}})
		}
		if len(got.Messages) == 0 {
			a.pause(ctx, 100*time.Millisecond)
			return false
		}
		a.Ack(ctx, a.anyone(), "g", acks(got.LeaseID, "", got.Messages...)...)
		return true
	})
}

func (w *Workload) health(ctx context.Context, a *Actor) {
	a.produce(ctx, 300*time.Millisecond, func() { a.Health(ctx, a.anyone()) })
}
