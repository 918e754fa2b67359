package broker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/broker/janitor"
	"github.com/queengate/queengate/broker/store"
)

// newJanitor returns the janitor of this broker. It needs to tell the caches nothing: a message that retention removed is
// an immutable segment of a partition id that is never used again, so the segment cache cannot be wrong about it, and the
// deduplication cache forgets by the queue's window, which the sidecar's age is never below.
func (b *Broker) newJanitor() *janitor.Janitor {
	cfg := b.cfg.Janitor
	cfg.HistoryKeep = b.cfg.HistoryKeep
	return janitor.New(b.log, b.db, cfg, janitor.Hooks{
		Freed: b.feed.fold,
		Purges: []func(context.Context) (int64, error){
			func(ctx context.Context) (int64, error) { return b.db.PurgeHistory(ctx, b.cfg.HistoryKeep) },
			func(ctx context.Context) (int64, error) { return b.db.PurgeTraces(ctx, b.cfg.TraceKeep) },
		},
	})
}

// registerJanitor puts the counters of the janitor on the registry.
func registerJanitor(reg *prometheus.Registry, b *Broker) {
	add := func(name, help string, labels prometheus.Labels, f func(janitor.Stats) float64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "queengate_janitor_" + name, Help: help, ConstLabels: labels,
		}, func() float64 { return f(b.janitor.Stats()) }))
	}
	count := func(name, help string, f func(janitor.Stats) uint64) {
		add(name, help, nil, func(s janitor.Stats) float64 { return float64(f(s)) })
	}
	for _, task := range []string{store.TaskRetention, store.TaskSidecar, store.TaskPartitions, store.TaskHistory, store.TaskWrites, store.TaskCursors} {
		add("runs_total", "Tasks of upkeep that this broker did.", prometheus.Labels{"task": task},
			func(s janitor.Stats) float64 { return float64(s.Runs[task]) })
	}
	const removed = "Messages that retention removed, by the rule that let them go."
	add("messages_total", removed, prometheus.Labels{"rule": "retention"}, func(s janitor.Stats) float64 { return float64(s.ByAge) })
	add("messages_total", removed, prometheus.Labels{"rule": "completed_retention"}, func(s janitor.Stats) float64 { return float64(s.ByCompletion) })
	add("messages_total", removed, prometheus.Labels{"rule": "eviction"}, func(s janitor.Stats) float64 { return float64(s.ByWait) })
	add("run_seconds_total", "Time spent in tasks of upkeep.", nil, func(s janitor.Stats) float64 { return s.Busy.Seconds() })
	count("segments_total", "Segments removed.", func(s janitor.Stats) uint64 { return s.Segments })
	count("sidecar_rows_total", "Hash rows removed.", func(s janitor.Stats) uint64 { return s.Txns })
	count("freed_bytes_total", "Payload bytes given back to tenants.", func(s janitor.Stats) uint64 { return s.Bytes })
	count("deleted_rows_total", "Rows of the log deleted behind what was removed.", func(s janitor.Stats) uint64 { return s.Rows })
	count("partitions_total", "Partitions deleted because nobody came to them.", func(s janitor.Stats) uint64 { return s.Partitions })
	count("busy_total", "Partitions passed over because others held them.", func(s janitor.Stats) uint64 { return s.Skipped })
	count("errors_total", "Turns and tasks of upkeep that failed.", func(s janitor.Stats) uint64 { return s.Errors })
	count("fenced_total", "Tasks that another broker took over before they were done.", func(s janitor.Stats) uint64 { return s.Fenced })
}

type retentionPoint struct {
	Bucket millis `json:"bucket"`
	retentionTotals
}

type retentionTotals struct {
	Queue              string `json:"queueName,omitempty"`
	RetentionMsgs      int64  `json:"retentionMsgs"`
	CompletedRetention int64  `json:"completedRetentionMsgs"`
	EvictionMsgs       int64  `json:"evictionMsgs"`
	TotalMsgs          int64  `json:"totalMsgs"`
	EventCount         int64  `json:"eventCount"`
	PartitionsDeleted  int64  `json:"partitionsDeleted"`
}

func (t *retentionTotals) add(p *store.RetentionPoint) {
	t.RetentionMsgs += p.ByAge
	t.CompletedRetention += p.ByCompletion
	t.EvictionMsgs += p.ByWait
	t.TotalMsgs += p.ByAge + p.ByCompletion + p.ByWait
	t.EventCount += p.Events
	t.PartitionsDeleted += p.PartitionsDeleted
}

// retentionHistory answers with what retention removed: a series over time, or with groupBy=queue a row per queue.
func (b *Broker) retentionHistory(x *exchange) error {
	args := x.args("from", "to", "queue", "groupBy")
	queue, groupBy := args.Name("queue"), args.OneOf("groupBy", "", "queue")
	span, err := spanOf(args, time.Now(), 24*time.Hour)
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	points, err := b.db.RetentionHistory(ctx, x.who.tenant, queue, span, groupBy != "")
	if err != nil {
		return err
	}
	out := struct {
		TimeRange     timeRange          `json:"timeRange"`
		BucketMinutes int                `json:"bucketMinutes"`
		GroupBy       string             `json:"groupBy,omitempty"`
		Series        []retentionPoint   `json:"series"`
		Rows          []*retentionTotals `json:"rows,omitempty"`
		Totals        retentionTotals    `json:"totals"`
	}{TimeRange: rangeOf(span), BucketMinutes: minutesOf(span.Width), GroupBy: groupBy, Series: []retentionPoint{}}
	rows := map[string]*retentionTotals{}
	for i := range points {
		p := &points[i]
		out.Totals.add(p)
		if groupBy == "" {
			out.Series = append(out.Series, retentionPoint{Bucket: millis(p.At)})
			out.Series[len(out.Series)-1].add(p)
			continue
		}
		row := rows[p.Queue]
		if row == nil {
			row = &retentionTotals{Queue: p.Queue}
			rows[p.Queue] = row
			out.Rows = append(out.Rows, row)
		}
		row.add(p)
	}
	return x.answer(out)
}
