package tracing

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

const (
	queueSpans = 8192            // ended and not yet sent, beyond which they are dropped
	batchSpans = 512             // sent at once
	batchPause = 2 * time.Second // the longest that an ended span waits for company
)

// outlet is the way from ended spans to the collector. The SDK's own batch processor starts a goroutine where it is made,
// keeps its number of drops to itself and tells failures to a global handler, so it is not used.
type outlet struct {
	log      *slog.Logger
	exporter sdk.SpanExporter
	timeout  time.Duration
	queue    chan sdk.ReadOnlySpan

	exported, dropped, failed prometheus.Counter

	failing bool // the last batch did; of run's goroutine
}

func newOutlet(log *slog.Logger, exporter sdk.SpanExporter, timeout time.Duration, reg prometheus.Registerer) *outlet {
	spans := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "queengate_tracing_spans_total",
		Help: "Spans that ended: exported to the collector, dropped because it is too slow, or failed in a batch that it did not take.",
	}, []string{"outcome"})
	reg.MustRegister(spans)
	return &outlet{
		log: log, exporter: exporter, timeout: timeout, queue: make(chan sdk.ReadOnlySpan, queueSpans),
		exported: spans.WithLabelValues("exported"), dropped: spans.WithLabelValues("dropped"), failed: spans.WithLabelValues("failed"),
	}
}

// OnStart implements sdk.SpanProcessor.
func (*outlet) OnStart(context.Context, sdk.ReadWriteSpan) {}

// OnEnd implements sdk.SpanProcessor. It never waits.
func (o *outlet) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	select {
	case o.queue <- s:
	default:
		o.dropped.Inc()
	}
}

// Shutdown implements sdk.SpanProcessor; run sees to the end.
func (*outlet) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdk.SpanProcessor.
func (*outlet) ForceFlush(context.Context) error { return nil }

// run sends until ctx ends, and then what is there.
func (o *outlet) run(ctx context.Context) error {
	batch := make([]sdk.ReadOnlySpan, 0, batchSpans)
	sending := context.WithoutCancel(ctx) // a stop does not break off what is on its way
	pause := time.NewTimer(batchPause)
	defer pause.Stop()
	for {
		select {
		case s := <-o.queue:
			if batch = append(batch, s); len(batch) == batchSpans {
				batch = o.send(sending, batch)
			}
		case <-pause.C:
			batch = o.send(sending, batch)
			pause.Reset(batchPause)
		case <-ctx.Done():
			return o.finish(sending, batch)
		}
	}
}

// finish sends what has ended so far, within the time of one batch, and closes the exporter.
func (o *outlet) finish(ctx context.Context, batch []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	for {
		select {
		case s := <-o.queue:
			if batch = append(batch, s); len(batch) == batchSpans {
				batch = o.send(ctx, batch)
			}
			continue
		default:
		}
		o.send(ctx, batch)
		// It holds no more than idle connections, and what is unsent by now is counted.
		_ = o.exporter.Shutdown(ctx)
		return nil
	}
}

// send hands a batch to the collector and returns it empty. A failure is told once per outage.
func (o *outlet) send(ctx context.Context, batch []sdk.ReadOnlySpan) []sdk.ReadOnlySpan {
	if len(batch) == 0 {
		return batch
	}
	n := float64(len(batch))
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	err := o.exporter.ExportSpans(ctx, batch)
	switch {
	case err == nil && o.failing:
		o.log.Info("the collector takes traces again")
	case err != nil && !o.failing:
		o.log.Warn("the collector does not take traces; spans are lost until it does", "err", err)
	}
	if o.failing = err != nil; o.failing {
		o.failed.Add(n)
	} else {
		o.exported.Add(n)
	}
	clear(batch)
	return batch[:0]
}
