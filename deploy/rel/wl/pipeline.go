package wl

import (
	"context"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// Pipeline is W5: workers take one message, or one of each of two partitions, and acknowledge it in the transaction that
// pushes what they make of it. Some sleep past their lease and then try to commit, which must fail.
func Pipeline() Workload {
	w := Workload{Name: "W5", Queues: []hist.Queue{
		{
			Name: "w5-in", Workload: "W5", Partitions: partitions(6), LeaseMs: 2000, DedupMs: 3_600_000, RetryLimit: 1000,
			Groups: []hist.Group{{Name: "pipe", Drains: true}},
		},
		{Name: "w5-out", Workload: "W5", Partitions: partitions(4), LeaseMs: 60_000, DedupMs: 3_600_000, RetryLimit: 3},
	}}
	w.Threads = append(w.Threads, w.feed)
	for range 3 {
		w.Threads = append(w.Threads, w.transform)
	}
	return w
}

func (w *Workload) transform(ctx context.Context, a *Actor) {
	in, out := w.Queues[0], w.Queues[1]
	a.consume(ctx, in.Lease(), func(draining bool) bool {
		args := hist.PopArgs{Queue: in.Name, Group: "pipe", Batch: 1, Wait: true, TimeoutMs: wait(draining, 400), Subscription: "all"}
		if a.chance(20) {
			args.Batch, args.Partitions = 2, 2
		} else if draining {
			args.Batch = 5
		}
		got, _ := a.Pop(ctx, a.anyone(), args)
		if len(got.Messages) == 0 {
			return false
		}
		t := hist.TransactionArgs{Leases: []string{got.LeaseID}}
		for _, x := range acks(got.LeaseID, "", got.Messages...) {
			t.Acks = append(t.Acks, hist.TransactionAck{AckItem: x, Group: "pipe"})
			t.Pushes = append(t.Pushes, a.item(out.Name, one(a, out.Partitions)))
		}
		if !draining && a.chance(6) {
			a.pause(ctx, in.Lease()*2)
		}
		a.Transact(ctx, a.anyone(), t)
		return true
	})
}

// Wake is W11: on every partition a consumer waits on one broker for what a producer pushes on another.
func Wake() Workload {
	w := Workload{Name: "W11", Queues: []hist.Queue{{
		Name: "w11", Workload: "W11", Partitions: partitions(3), LeaseMs: 5000, DedupMs: 3_600_000, RetryLimit: 1000,
		Groups: []hist.Group{{Name: "w", Drains: true}},
	}}}
	q := w.Queues[0]
	for i, p := range q.Partitions {
		w.Threads = append(w.Threads,
			func(ctx context.Context, a *Actor) {
				at := a.stage.Nodes[i%len(a.stage.Nodes)]
				a.produce(ctx, 300*time.Millisecond, func() { a.Push(ctx, at, a.item(q.Name, p)) })
			},
			func(ctx context.Context, a *Actor) {
				at := a.stage.Nodes[(i+1)%len(a.stage.Nodes)]
				a.consume(ctx, q.Lease(), func(draining bool) bool {
					got, _ := a.Pop(ctx, at, hist.PopArgs{
						Queue: q.Name, Partition: p, Group: "w", Batch: 5, Wait: true, TimeoutMs: wait(draining, 3000), Subscription: "all",
					})
					if len(got.Messages) == 0 {
						return false
					}
					a.Ack(ctx, at, "w", acks(got.LeaseID, "", got.Messages...)...)
					return true
				})
			})
	}
	return w
}
