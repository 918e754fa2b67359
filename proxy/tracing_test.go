package proxy

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/queengate/queengate/internal/tracing"
)

// traced starts a tracer; collect ends it and returns all spans, in the order in which they ended.
func traced(t *testing.T, cfg tracing.Config) (tr *tracing.Tracer, collect func() []sdk.ReadOnlySpan) {
	t.Helper()
	kept := keeper{tracetest.NewInMemoryExporter()}
	tr = tracing.NewTo(slog.New(slog.DiscardHandler), cfg, prometheus.NewRegistry(), kept)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- tr.Run(ctx) }()
	t.Cleanup(stop)
	return tr, func() []sdk.ReadOnlySpan {
		stop()
		if err := await(t, ended); err != nil {
			t.Error(err)
		}
		return kept.GetSpans().Snapshots()
	}
}

// keeper is an exporter in memory whose end forgets nothing.
type keeper struct{ *tracetest.InMemoryExporter }

func (keeper) Shutdown(context.Context) error { return nil }

func attributesOf(s sdk.ReadOnlySpan) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes() {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

const clientTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestTheBrokerContinuesTheGatewaysTraceAlways(t *testing.T) {
	t.Parallel()
	for rule, c := range map[string]struct {
		cfg   *tracing.Config
		trace string // that the broker gets: the client's, "own" or none
		flag  string
	}{
		"without tracing the broker gets no trace":         {nil, "", ""},
		"of the gateway's own":                             {&tracing.Config{Ratio: 1}, "own", "-01"},
		"one that is not sampled says so":                  {&tracing.Config{Ratio: 0}, "own", "-00"},
		"a client's is ignored":                            {&tracing.Config{Ratio: 1, Remote: tracing.Ignore}, "own", "-01"},
		"a client's is continued where the setting has it": {&tracing.Config{Ratio: 0, Remote: tracing.Continue}, clientTrace[3:35], "-01"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			var tr *tracing.Tracer
			if c.cfg != nil {
				tr, _ = traced(t, *c.cfg)
			}
			w := setup(t, options{tracer: tr})
			r := w.ask(w.push(aPush, "Traceparent: "+clientTrace))
			got := await(t, w.broker.seen).header("Traceparent")
			if (got == "") != (c.trace == "") || !strings.HasSuffix(got, c.flag) {
				t.Fatalf("the broker got %q", got)
			}
			if got != "" && (got[3:35] == clientTrace[3:35]) != (c.trace == clientTrace[3:35]) {
				t.Errorf("the broker got %q", got)
			}
			if strings.Contains(got, clientTrace[36:52]) {
				t.Errorf("the broker got the client's span in %q", got)
			}
			if named := r.Header.Get("Traceresponse"); (named != "") != (c.flag == "-01") {
				t.Errorf("the client is told %q", named)
			}
		})
	}
}

func TestEveryAttemptIsASpanWithItsFault(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	nobody := ln.Addr().String()
	ln.Close()
	tr, collect := traced(t, tracing.Config{Ratio: 1})
	w := setup(t, options{tracer: tr, address: nobody})
	if r := w.ask(w.push(aPush)); r.StatusCode != 503 {
		t.Fatalf("got %d %s", r.StatusCode, r.body)
	}
	attempts := 0
	for _, s := range collect() {
		a := attributesOf(s)
		switch s.Name() {
		case "upstream":
			attempts++
			if a["error.type"] != faultConnect || a["server.address"] != nobody || s.Status().Description != faultConnect {
				t.Errorf("attempt: %v %v", a, s.Status())
			}
		case "POST /api/v1/push":
			if a["http.response.status_code"] != "503" || s.Status().Description != "broker_unavailable" {
				t.Errorf("request: %v %v", a, s.Status())
			}
		}
	}
	if attempts == 0 {
		t.Error("no attempt has a span")
	}
}

func TestABrokersFailureIsAFailureOfTheAttempt(t *testing.T) {
	t.Parallel()
	tr, collect := traced(t, tracing.Config{Ratio: 1})
	w := setup(t, options{tracer: tr, broker: func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(500)
		ctx.SetContentType("application/json")
		ctx.SetBodyString(`{"error":"secret of a database","code":"internal","outcome":"unknown"}`)
	}})
	w.ask(w.push(aPush))
	for _, s := range collect() {
		if s.Name() == "upstream" && (attributesOf(s)["http.response.status_code"] != "500" || s.Status().Description != "the broker failed") {
			t.Errorf("attempt: %v %v", attributesOf(s), s.Status())
		}
		if strings.Contains(s.Status().Description, "secret") {
			t.Errorf("%s tells what the broker said: %v", s.Name(), s.Status())
		}
	}
}

func TestAWaitingPollIsOneSpan(t *testing.T) {
	t.Parallel()
	tr, collect := traced(t, tracing.Config{Ratio: 1})
	w := setup(t, options{tracer: tr, broker: func(ctx *fasthttp.RequestCtx) { ctx.SetStatusCode(204) }})
	if r := w.ask(w.head("GET", "/api/v1/pop/queue/q?wait=true&timeout=300")); r.StatusCode != 204 || r.Header.Get("Traceresponse") == "" {
		t.Fatalf("got %d %v", r.StatusCode, r.Header)
	}
	polls := 0
	for _, s := range collect() {
		if s.Name() == "GET /api/v1/pop/queue/:queue" {
			polls++
		}
	}
	if polls != 1 {
		t.Errorf("%d spans of one poll", polls)
	}
}
