package wl

import (
	"context"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// Log is W1: producers write 8 partitions of two queues by pushes of 1 to 20 messages, a fifth of them by transactions
// over up to four partitions, and readers follow the log from positions of their own on all brokers, half of them
// waiting for what comes.
func Log() Workload {
	w := Workload{Name: "W1", Queues: []hist.Queue{
		{Name: "w1-a", Workload: "W1", Partitions: partitions(4), LeaseMs: 60_000, DedupMs: 3_600_000, RetryLimit: 3},
		{Name: "w1-b", Workload: "W1", Partitions: partitions(4), LeaseMs: 60_000, RetryLimit: 3},
	}}
	for range 4 {
		w.Threads = append(w.Threads, w.write)
	}
	for i := range 3 {
		w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) { w.follow(ctx, a, i%2 == 0) })
	}
	return w
}

func (w *Workload) write(ctx context.Context, a *Actor) {
	a.produce(ctx, 160*time.Millisecond, func() {
		if a.chance(20) {
			args := hist.TransactionArgs{}
			for range 1 + a.dice.IntN(4) {
				q := one(a, w.Queues)
				args.Pushes = append(args.Pushes, a.item(q.Name, one(a, q.Partitions)))
			}
			a.Transact(ctx, a.anyone(), args)
			return
		}
		items := make([]hist.PushItem, 1+a.dice.IntN(10)*a.dice.IntN(3))
		for i := range items {
			q := one(a, w.Queues)
			items[i] = a.item(q.Name, one(a, q.Partitions))
		}
		a.Push(ctx, a.anyone(), items...)
	})
}

// follow reads one queue, partition by partition, from where it stands.
func (w *Workload) follow(ctx context.Context, a *Actor, wait bool) {
	q := w.Queues[a.thread%len(w.Queues)]
	at := map[string]int64{}
	a.produce(ctx, 100*time.Millisecond, func() {
		p := one(a, q.Partitions)
		args := hist.FetchArgs{Entries: []hist.FetchEntry{{Queue: q.Name, Partition: p, Offset: at[p]}}}
		if wait {
			args.MaxWaitMs, args.MinBytes = 500, 1
		}
		answer, kind := a.Fetch(ctx, a.anyone(), args)
		if kind == hist.OK && len(answer.Entries) == 1 {
			at[p] += int64(len(answer.Entries[0].Records))
		}
	})
}
