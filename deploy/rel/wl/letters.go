package wl

import (
	"context"
	"strings"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// Letters is W7: what becomes of a message depends on its number, so that half of them end among the dead letters or are
// delivered again first, and one thread sends dead letters again.
func Letters() Workload {
	w := Workload{Name: "W7", Queues: []hist.Queue{{
		Name: "w7", Workload: "W7", Partitions: partitions(4), LeaseMs: 2000, DedupMs: 3_600_000, RetryLimit: 2, DeadLetters: true,
		Groups: []hist.Group{{Name: "g", Drains: true}},
	}}}
	w.Threads = append(w.Threads, w.feed, w.judge, w.judge, w.resend)
	return w
}

// replayPrefix begins the transaction ids of dead letters that were sent again.
const replayPrefix = "dlq:"

// fate is the status with which a message is acknowledged, and why.
func fate(m *hist.Message) (status, why string) {
	p, err := hist.ParsePayload(m.Data)
	if err != nil || strings.HasPrefix(m.TransactionID, replayPrefix) {
		return "", ""
	}
	switch first := m.DeliveryAttempt <= 1; p.Seq % 8 {
	case 0:
		return "failed", "poison"
	case 1:
		return "dlq", "of no use"
	case 2:
		if first {
			return "failed", "flaky"
		}
	case 3:
		if first {
			return "retry", "busy"
		}
	}
	return "", ""
}

func (w *Workload) judge(ctx context.Context, a *Actor) {
	q := w.Queues[0]
	a.consume(ctx, q.Lease(), func(draining bool) bool {
		got, _ := a.Pop(ctx, a.anyone(), hist.PopArgs{
			Queue: q.Name, Group: "g", Batch: 1 + a.dice.IntN(6), Wait: true, TimeoutMs: wait(draining, 400), Subscription: "all",
		})
		if len(got.Messages) == 0 {
			return false
		}
		items := acks(got.LeaseID, "", got.Messages...)
		for i := range items {
			items[i].Status, items[i].Error = fate(&got.Messages[i])
		}
		a.Ack(ctx, a.anyone(), "g", items...)
		return true
	})
}

// resend sends one dead letter again every other second, and the same one twice now and then.
func (w *Workload) resend(ctx context.Context, a *Actor) {
	q := w.Queues[0]
	a.produce(ctx, 2*time.Second, func() {
		page, kind := a.DeadLetters(ctx, a.anyone(), hist.DeadLettersArgs{Queue: q.Name})
		if kind != hist.OK || len(page.Messages) == 0 {
			return
		}
		l := &page.Messages[a.dice.IntN(len(page.Messages))]
		if strings.HasPrefix(l.TransactionID, replayPrefix) {
			return
		}
		a.Replay(ctx, a.anyone(), l)
		if a.chance(30) {
			a.Replay(ctx, a.anyone(), l)
		}
	})
}
