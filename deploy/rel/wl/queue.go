package wl

import (
	"context"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// Queue is W2: two groups consume what producers push, half of the consumers from any partition and half from one they
// name. Some never acknowledge, some when their lease is over, some extend it first, and some acknowledge a part. A third
// group lets every pop acknowledge itself.
func Queue() Workload {
	w := Workload{Name: "W2", Queues: []hist.Queue{{
		Name: "w2", Workload: "W2", Partitions: partitions(8), LeaseMs: 2000, DedupMs: 3_600_000, RetryLimit: 1000,
		Groups: []hist.Group{{Name: "g1", Drains: true}, {Name: "g2", Drains: true}, {Name: "auto", AutoAck: true, Drains: true}},
	}}}
	for range 2 {
		w.Threads = append(w.Threads, w.feed)
	}
	for _, group := range []string{"g1", "g1", "g1", "g1", "g2", "g2"} {
		w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) { w.work(ctx, a, group) })
	}
	w.Threads = append(w.Threads, w.autoAck)
	return w
}

// autoAck is the thread of W2 that lets every pop acknowledge itself.
func (w *Workload) autoAck(ctx context.Context, a *Actor) {
	q := w.Queues[0]
	a.consume(ctx, 0, func(draining bool) bool {
		got, _ := a.Pop(ctx, a.anyone(), hist.PopArgs{
			Queue: q.Name, Group: "auto", Batch: 10, AutoAck: true, Wait: true, TimeoutMs: wait(draining, 400), Subscription: "all",
		})
		return len(got.Messages) > 0
	})
}

// feed pushes to the first queue of a workload.
func (w *Workload) feed(ctx context.Context, a *Actor) {
	q := w.Queues[0]
	a.produce(ctx, 150*time.Millisecond, func() {
		items := make([]hist.PushItem, 1+a.dice.IntN(5))
		for i := range items {
			items[i] = a.item(q.Name, one(a, q.Partitions))
		}
		a.Push(ctx, a.anyone(), items...)
	})
}

// wait is how long a poll may wait, in milliseconds: a second when the queue is drained.
func wait(draining bool, ms int) int {
	if draining {
		return 1000
	}
	return ms
}

// work consumes for a group until the queue is empty.
func (w *Workload) work(ctx context.Context, a *Actor, group string) {
	q := w.Queues[0]
	pinned := a.thread%2 == 0
	a.consume(ctx, q.Lease(), func(draining bool) bool {
		args := hist.PopArgs{Queue: q.Name, Group: group, Batch: 1 + a.dice.IntN(12), Subscription: "all"}
		if pinned && !draining {
			args.Partition = one(a, q.Partitions)
		} else if a.chance(30) {
			args.Partitions = 2
		}
		if args.Wait = draining || a.chance(60); args.Wait {
			args.TimeoutMs = wait(draining, 400)
		}
		got, _ := a.Pop(ctx, a.anyone(), args)
		if len(got.Messages) == 0 {
			if !args.Wait {
				a.pause(ctx, 50*time.Millisecond)
			}
			return false
		}
		a.settle(ctx, &q, group, &got, draining)
		return true
	})
}

// settle does with a delivery what consumers do, for good and for bad. When the queue is drained, all of them behave.
func (a *Actor) settle(ctx context.Context, q *hist.Queue, group string, got *hist.PopAnswer, draining bool) {
	done := acks(got.LeaseID, "", got.Messages...)
	fate := a.dice.IntN(100)
	switch {
	case draining, fate >= 20:
	case fate < 4: // gone, without a word
		return
	case fate < 7: // late: somebody else may have it by now
		a.pause(ctx, q.Lease()*3/2)
	case fate < 12:
		a.Extend(ctx, a.anyone(), got.LeaseID, int(q.LeaseMs/1000))
		a.pause(ctx, q.Lease()/2)
	case fate < 20: // a part now, the rest comes back
		done = done[:1+a.dice.IntN(len(done))]
	}
	a.Ack(ctx, a.anyone(), group, done...)
}
