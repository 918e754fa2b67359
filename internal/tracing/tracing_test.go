package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// collector is an exporter that keeps what it gets, or fails, or waits until it is let go.
type collector struct {
	mu    sync.Mutex // guards spans and fails
	spans []sdk.ReadOnlySpan
	fails bool
	hold  chan struct{} // nil: it does not wait
}

func (c *collector) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if c.hold != nil {
		select {
		case <-c.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fails {
		return errors.New("the collector is away")
	}
	c.spans = append(c.spans, spans...)
	return nil
}

func (*collector) Shutdown(context.Context) error { return nil }

func (c *collector) named(name string) (found []sdk.ReadOnlySpan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
}

// world is a tracer with its collector.
type world struct {
	*Tracer
	*collector
	reg  *prometheus.Registry
	stop func() // ends Run and waits for it
}

func setup(t testing.TB, cfg Config, c *collector) *world {
	t.Helper()
	reg := prometheus.NewRegistry()
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Second
	}
	tr := NewTo(slog.New(slog.DiscardHandler), cfg, reg, c)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- tr.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	return &world{tr, c, reg, stop}
}

func (w *world) count(t *testing.T, outcome string) float64 {
	t.Helper()
	return testutil.ToFloat64(map[string]prometheus.Counter{
		"exported": w.out.exported, "dropped": w.out.dropped, "failed": w.out.failed,
	}[outcome])
}

const (
	callerTrace = "0af7651916cd43dd8448eb211c80319c"
	callerSpan  = "b7ad6b7169203331"
	caller      = "00-" + callerTrace + "-" + callerSpan + "-01"
)

func TestWhatATraceparentIsGoodFor(t *testing.T) {
	t.Parallel()
	unsampled := strings.TrimSuffix(caller, "01") + "00"
	for rule, c := range map[string]struct {
		remote  Remote
		ratio   float64
		header  string
		trusted bool
		trace   string // of the span: the caller's, or "own"
		sampled bool
		links   int
	}{
		"ignored":                              {Ignore, 1, caller, false, "own", true, 0},
		"linked to":                            {Link, 1, caller, false, "own", true, 1},
		"linked to, whatever it samples":       {Link, 1, unsampled, false, "own", true, 1},
		"a link does not make it sampled":      {Link, 0, caller, false, "own", false, 0},
		"continued":                            {Continue, 0, caller, false, callerTrace, true, 0},
		"continued, and not sampled":           {Continue, 1, unsampled, false, callerTrace, false, 0},
		"a gateway is always continued":        {Ignore, 0, caller, true, callerTrace, true, 0},
		"a gateway decides on sampling":        {Link, 1, unsampled, true, callerTrace, false, 0},
		"malformed is none":                    {Continue, 1, "00-x", true, "own", true, 0},
		"none, and the ratio decides":          {Continue, 0, "", true, "own", false, 0},
		"the way that is not named is linking": {"", 1, caller, false, "own", true, 1},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			w := setup(t, Config{Ratio: c.ratio, Remote: c.remote}, &collector{})
			s := w.Serve("r", time.Now(), []byte(c.header), c.trusted)
			parent := string(s.AppendTraceparent(nil))
			if got := parent[3:35]; (got == callerTrace) != (c.trace == callerTrace) {
				t.Errorf("the trace is %s", got)
			}
			if s.Sampled() != c.sampled || strings.HasSuffix(parent, "-01") != c.sampled {
				t.Errorf("sampled is %v in %s", s.Sampled(), parent)
			}
			s.End()
			w.stop()
			got := w.named("r")
			if len(got) != map[bool]int{true: 1}[c.sampled] {
				t.Fatalf("%d spans", len(got))
			}
			if c.sampled && len(got[0].Links()) != c.links {
				t.Errorf("links %v", got[0].Links())
			}
		})
	}
}

func TestTraceparentsAreReadExactly(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		caller:                  true,
		caller[:53] + "00":      true,
		caller[:53] + "ff":      true, // flags of tomorrow
		"":                      false,
		strings.ToUpper(caller): false,
		"01" + caller[2:]:       false,
		caller[:53] + "0x":      false,
		caller + "-x":           false,
		caller[:52] + "_01":     false,
		"00-" + strings.Repeat("0", 32) + caller[35:]:       false,
		caller[:36] + strings.Repeat("0", 16) + caller[52:]: false,
		caller[:35] + "\x00" + caller[36:]:                  false,
	} {
		got, ok := parse([]byte(s))
		if ok != want {
			t.Errorf("%q: %v", s, ok)
		}
		if ok && (got.TraceID().String() != callerTrace || got.SpanID().String() != callerSpan || got.IsSampled() != (s[54] == '1' || s[54] == 'f')) {
			t.Errorf("%q is read as %+v", s, got)
		}
	}
}

func FuzzTraceparent(f *testing.F) {
	f.Add([]byte(caller))
	f.Fuzz(func(t *testing.T, header []byte) {
		got, ok := parse(header)
		if !ok {
			return
		}
		s := Span{s: trace.SpanFromContext(trace.ContextWithSpanContext(context.Background(), got))}
		if again := s.AppendTraceparent(nil); string(again[:53]) != string(header[:53]) {
			t.Errorf("%q is written as %q", header, again)
		}
	})
}

func TestARoundTripIsInEachTraceItServes(t *testing.T) {
	t.Parallel()
	w := setup(t, Config{Ratio: 1}, &collector{})
	off := setup(t, Config{Ratio: 0}, &collector{})
	var trip Trip
	var requests []Span
	const riders = 3 * compareAll // so that both ways to tell them apart are used
	for i := range riders {
		s := w.Serve(fmt.Sprint("request ", i), time.Now(), nil, false)
		requests = append(requests, s)
		for range 3 { // a request with several partitions boards once
			trip.Board(s)
			trip.Board(requests[0])
		}
	}
	trip.Board(Span{})
	trip.Board(off.Serve("unsampled", time.Now(), nil, false))
	began := time.Now().Add(-time.Second)
	trip.End("push", began, Cargo{Requests: riders + 2, Items: 99, Lanes: 7}, "")
	if !trip.Empty() {
		t.Error("the trip is not empty after its end")
	}
	trip.Board(requests[1])
	trip.End("ack", began, Cargo{Requests: 1, Items: 1}, "internal")
	trip.Board(requests[1])
	trip.Drop()
	trip.End("lost", began, Cargo{}, "")
	for _, s := range requests {
		s.End()
	}
	w.stop()
	got := w.named("push")
	if len(got) != riders {
		t.Fatalf("%d spans of the trip, want %d", len(got), riders)
	}
	linked := map[trace.SpanID]int{}
	for i, s := range got {
		of := requests[i].s.SpanContext()
		if s.Parent().SpanID() != of.SpanID() || s.SpanContext().TraceID() != of.TraceID() || !s.StartTime().Equal(began) || s.SpanKind() != Client {
			t.Errorf("span %d: %+v below %+v", i, s.SpanContext(), s.Parent())
		}
		for _, want := range []attribute.KeyValue{attribute.Int("queengate.fused.requests", riders+2), attribute.Int("queengate.fused.items", 99), attribute.Int("queengate.fused.partitions", 7)} {
			if !slices.Contains(s.Attributes(), want) {
				t.Errorf("span %d has no %v in %v", i, want, s.Attributes())
			}
		}
		for _, l := range s.Links() {
			if l.SpanContext.SpanID() == of.SpanID() {
				t.Error("a trip links to its own request")
			}
			linked[l.SpanContext.SpanID()]++
		}
	}
	for i, s := range requests {
		if linked[s.s.SpanContext().SpanID()] != riders-1 {
			t.Errorf("request %d is linked to %d times", i, linked[s.s.SpanContext().SpanID()])
		}
	}
	if failed := w.named("ack"); len(failed) != 1 || failed[0].Status().Description != "internal" || len(w.named("lost")) != 0 {
		t.Errorf("the other trips: %v %v", failed, w.named("lost"))
	}
}

func TestACrowdsLinksAreBounded(t *testing.T) {
	t.Parallel()
	w := setup(t, Config{Ratio: 1}, &collector{})
	var trip Trip
	for range 4 * maxLinks {
		trip.Board(w.Serve("r", time.Now(), nil, false))
	}
	trip.End("push", time.Now(), Cargo{}, "")
	w.stop()
	for _, s := range w.named("push") {
		if len(s.Links()) != maxLinks {
			t.Fatalf("%d links, want %d", len(s.Links()), maxLinks)
		}
	}
}

func TestSpansGoOutWithoutBeingAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, Config{Ratio: 1}, &collector{})
		w.Serve("r", time.Now(), nil, false).End()
		time.Sleep(batchPause)
		synctest.Wait()
		if len(w.named("r")) != 1 || w.count(t, "exported") != 1 {
			t.Error("the span has not gone out")
		}
		w.stop()
	})
}

// A collector that hangs costs spans, never time: whoever ends a span goes on at once, and the stop has its bound.
func TestACollectorThatHangsBlocksNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &collector{hold: make(chan struct{})}
		w := setup(t, Config{Ratio: 1, Timeout: time.Second}, c)
		begin := time.Now()
		const more = 100
		for range queueSpans + 2*batchSpans + more {
			w.Serve("r", time.Now(), nil, false).End()
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("ending spans took %s", d)
		}
		if got := w.count(t, "dropped"); got < more {
			t.Errorf("%v are dropped, want at least %d", got, more)
		}
		stopping := time.Now()
		w.stop()
		if d := time.Since(stopping); d > 2*time.Second {
			t.Errorf("the stop took %s, want one batch and the rest within one more", d)
		}
		sum := w.count(t, "dropped") + w.count(t, "failed") + w.count(t, "exported")
		if want := float64(queueSpans + 2*batchSpans + more); sum != want {
			t.Errorf("%v spans are counted, want %v", sum, want)
		}
	})
}

func TestAFailingCollectorIsNoFailureOfOurs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &collector{fails: true}
		w := setup(t, Config{Ratio: 1}, c)
		for range 3 {
			w.Serve("lost", time.Now(), nil, false).End()
			time.Sleep(batchPause)
		}
		synctest.Wait()
		if got := w.count(t, "failed"); got != 3 {
			t.Errorf("%v are counted as failed, want 3", got)
		}
		c.mu.Lock()
		c.fails = false
		c.mu.Unlock()
		w.Serve("kept", time.Now(), nil, false).End()
		w.stop() // what has ended goes out before the end
		if len(w.named("kept")) != 1 {
			t.Error("the last span has not gone out")
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	good := Config{Endpoint: "http://collector:4318", Ratio: 0.5}
	with := func(change func(*Config)) Config {
		c := good
		change(&c)
		return c
	}
	for rule, c := range map[string]struct {
		cfg  Config
		want string // part of the error, "" for none
	}{
		"a collector":         {good, ""},
		"nothing is off":      {Config{}, ""},
		"another scheme":      {with(func(c *Config) { c.Endpoint = "grpc://collector:4317" }), "otel.endpoint"},
		"no scheme":           {with(func(c *Config) { c.Endpoint = "collector:4318" }), "otel.endpoint"},
		"a password":          {with(func(c *Config) { c.Endpoint = "http://u:hunter2@collector" }), "otel.endpoint"},
		"more than all":       {with(func(c *Config) { c.Ratio = 1.5 }), "otel.ratio = 1.5"},
		"less than nothing":   {with(func(c *Config) { c.Ratio = -1 }), "otel.ratio"},
		"an unknown way":      {with(func(c *Config) { c.Remote = "trust" }), "otel.clients = trust"},
		"an authority of mud": {with(func(c *Config) { c.CA = "mud" }), "otel.ca"},
		"time backwards":      {with(func(c *Config) { c.Timeout = -1 }), "otel.timeout"},
	} {
		tr, err := New(slog.New(slog.DiscardHandler), c.cfg, prometheus.NewRegistry())
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: %v, want %q", rule, err, c.want)
		}
		if on := c.cfg.Endpoint != "" && err == nil; (tr != nil) != on {
			t.Errorf("%s: the tracer is %v", rule, tr)
		}
	}
	for endpoint, want := range map[string]string{
		"http://c:4318": "http://c:4318/v1/traces", "http://c:4318/": "http://c:4318/v1/traces", "https://c/otlp/v1/traces": "https://c/otlp/v1/traces",
	} {
		if got := (Config{Endpoint: endpoint}).target(); got != want {
			t.Errorf("%s: %s, want %s", endpoint, got, want)
		}
	}
}

// Tracing that is off, and a request that is not sampled below the request's own span, cost no allocation.
func TestOffCostsNothing(t *testing.T) {
	var off *Tracer
	unsampled := setup(t, Config{Ratio: 0}, &collector{}).Serve("r", time.Now(), nil, false)
	var trip Trip
	header := []byte(caller)
	room := make([]byte, 0, 64)
	for name, s := range map[string]Span{"off": off.Serve("r", time.Now(), header, true), "not sampled": unsampled} {
		n := testing.AllocsPerRun(100, func() {
			_ = off.Serve("r", time.Time{}, header, true)
			c := s.Child("admission", Internal)
			c.EndTrip(Cargo{}, "")
			c.End()
			_ = c.AppendTraceparent(room)
			_ = s.TraceID() + s.SpanID()
			s.Fail("internal")
			trip.Board(s)
			trip.End("push", time.Time{}, Cargo{}, "")
			s.End()
		})
		if n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	for name, cfg := range map[string]*Config{"off": nil, "not sampled": {Ratio: 0}, "sampled": {Ratio: 1}} {
		b.Run(name, func(b *testing.B) {
			var tr *Tracer
			if cfg != nil {
				tr = setup(b, *cfg, &collector{}).Tracer
			}
			var trip Trip
			room := make([]byte, 0, 64)
			b.ReportAllocs()
			for b.Loop() {
				s := tr.Serve("POST /api/v1/push", time.Time{}, nil, false)
				c := s.Child("upstream", Client)
				_ = c.AppendTraceparent(room)
				c.End()
				trip.Board(s)
				trip.End("push", time.Time{}, Cargo{}, "")
				s.End()
			}
		})
	}
}
