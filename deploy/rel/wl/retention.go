package wl

import (
	"context"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// Retention is W8: three queues from which messages vanish, by their age, when all groups have them, and when they have
// waited too long, under producers, consumers and readers.
func Retention() Workload {
	queue := func(name string) hist.Queue {
		return hist.Queue{
			Name: name, Workload: "W8", Partitions: partitions(2), LeaseMs: 1000, DedupMs: 1000, RetryLimit: 1000,
			Groups: []hist.Group{{Name: "g1"}, {Name: "g2"}},
		}
	}
	age, done, waited := queue("w8-age"), queue("w8-done"), queue("w8-wait")
	age.RetentionMs, done.CompletedRetentionMs, waited.MaxWaitMs = 4000, 2000, 2000
	w := Workload{Name: "W8", Queues: []hist.Queue{age, done, waited}}
	for i := range w.Queues {
		only := &Workload{Name: w.Name, Queues: w.Queues[i : i+1]}
		w.Threads = append(w.Threads, only.feed, only.watch)
		for _, group := range []string{"g1", "g2"} {
			w.Threads = append(w.Threads, func(ctx context.Context, a *Actor) { only.work(ctx, a, group) })
		}
	}
	return w
}

// watch reads the first queue from where it begins, and notes on the way where that is.
func (w *Workload) watch(ctx context.Context, a *Actor) {
	q := w.Queues[0]
	at := map[string]int64{}
	a.produce(ctx, 200*time.Millisecond, func() {
		p := one(a, q.Partitions)
		answer, kind := a.Fetch(ctx, a.anyone(), hist.FetchArgs{Entries: []hist.FetchEntry{{Queue: q.Name, Partition: p, Offset: at[p]}}})
		if kind == hist.OK && len(answer.Entries) == 1 {
			e := &answer.Entries[0]
			at[p] = max(at[p]+int64(len(e.Records)), e.LogStartOffset)
		}
	})
}
