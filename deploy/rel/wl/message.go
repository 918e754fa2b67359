package wl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// partitions names n partitions.
func partitions(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("p%d", i)
	}
	return names
}

// configure sets all options of a queue.
func (a *Actor) configure(ctx context.Context, at Node, q *hist.Queue) error {
	options := map[string]any{
		"leaseTime": q.LeaseMs / 1000, "retryLimit": q.RetryLimit, "dedupWindowSeconds": q.DedupMs / 1000,
		"deadLetterQueue": q.DeadLetters, "dlqAfterMaxRetries": q.DeadLetters,
		"retentionEnabled": q.RetentionMs > 0 || q.CompletedRetentionMs > 0, "retentionSeconds": q.RetentionMs / 1000,
		"completedRetentionSeconds": q.CompletedRetentionMs / 1000, "maxWaitTimeSeconds": q.MaxWaitMs / 1000,
	}
	if kind := a.Configure(ctx, at, q.Name, options); kind != hist.OK {
		return fmt.Errorf("configure %s at %s: the call ended in %s; see the history", q.Name, at.Name, kind)
	}
	return nil
}

// producer names the thread in what it pushes.
func (a *Actor) producer() string { return fmt.Sprintf("%s-%d", strings.ToLower(a.w), a.thread) }

// item makes the next message of the thread, with a transaction id of its own.
func (a *Actor) item(queue, partition string) hist.PushItem {
	a.seq++
	id := hist.ID{Queue: queue, Partition: partition, Prod: a.producer(), Seq: a.seq}
	return hist.PushItem{Queue: queue, Partition: partition, TransactionID: id.String(), Payload: a.payload(id)}
}

// pooled makes the next message of the thread under a transaction id that others use too.
func (a *Actor) pooled(queue, partition string, pool int64) hist.PushItem {
	a.seq++
	id := hist.ID{Queue: queue, Partition: partition, Prod: a.producer(), Seq: a.seq}
	shared := id
	shared.Prod, shared.Seq = hist.PoolProducer, a.dice.Int64N(pool)
	return hist.PushItem{Queue: queue, Partition: partition, TransactionID: shared.String(), Payload: a.payload(id)}
}

// payload is of some tens of bytes, and now and then of some thousand.
func (a *Actor) payload(id hist.ID) []byte {
	n := a.dice.IntN(60)
	if a.chance(2) {
		n = 4000
	}
	return hist.Payload{ID: id, Pad: strings.Repeat("x", n)}.JSON()
}

// one picks from a list.
func one[T any](a *Actor, list []T) T { return list[a.dice.IntN(len(list))] }

// acks are acknowledgements of messages under their lease.
func acks(lease, status string, messages ...hist.Message) []hist.AckItem {
	items := make([]hist.AckItem, len(messages))
	for i, m := range messages {
		items[i] = hist.AckItem{
			TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: lease, Status: status,
			Queue: m.Queue, Partition: m.Partition, Offset: m.Offset,
		}
	}
	return items
}

// Final reads every queue from every node, from its start to its end, and all dead letters. What it cannot read within
// a bounded number of tries it leaves to the judge to miss.
func (s *Stage) Final(ctx context.Context, workloads []Workload) {
	for _, w := range workloads {
		a := s.actor(w.Name, 0)
		for _, at := range s.Brokers {
			for i := range w.Queues {
				a.readAll(ctx, at, &w.Queues[i])
			}
		}
		for i := range w.Queues {
			if w.Queues[i].DeadLetters {
				a.readLetters(ctx, s.Brokers[i%len(s.Brokers)], w.Queues[i].Name)
			}
		}
	}
}

// tries bounds how often a final read begins anew.
const tries = 200

func (a *Actor) readAll(ctx context.Context, at Node, q *hist.Queue) {
	left := make([]hist.FetchEntry, len(q.Partitions))
	for i, p := range q.Partitions {
		left[i] = hist.FetchEntry{Queue: q.Name, Partition: p}
	}
	for n := 0; len(left) > 0 && n < tries && ctx.Err() == nil; n++ {
		answer, kind := a.Fetch(ctx, at, hist.FetchArgs{Entries: slices.Clone(left)})
		if kind != hist.OK || len(answer.Entries) != len(left) {
			continue
		}
		var more []hist.FetchEntry
		for i, e := range answer.Entries {
			next := left[i]
			switch {
			case e.Error == "UNKNOWN_TOPIC_OR_PARTITION":
				continue // nobody ever pushed to it
			case next.Offset < e.LogStartOffset:
				next.Offset = e.LogStartOffset
			}
			next.Offset += int64(len(e.Records))
			if next.Offset < e.HighWatermark {
				more = append(more, next)
			}
		}
		left = more
	}
}

// readLetters reads the list of dead letters to its end, and returns it.
func (a *Actor) readLetters(ctx context.Context, at Node, queue string) []hist.DeadLetter {
	var all []hist.DeadLetter
	for cursor, n := "", 0; n < tries && ctx.Err() == nil; n++ {
		page, kind := a.DeadLetters(ctx, at, hist.DeadLettersArgs{Queue: queue, Cursor: cursor})
		if kind != hist.OK {
			continue
		}
		all = append(all, page.Messages...)
		if page.Next == "" {
			break
		}
		cursor = page.Next
	}
	return all
}
