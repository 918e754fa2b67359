package e2e

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/queengate/queengate/internal/pgtest"
)

// span is a span as a collector gets it.
type span struct {
	*traces.Span
	service    string
	attributes map[string]string
}

func (s span) id() string     { return hex.EncodeToString(s.SpanId) }
func (s span) trace() string  { return hex.EncodeToString(s.TraceId) }
func (s span) parent() string { return hex.EncodeToString(s.ParentSpanId) }

// receiver is an OTLP/HTTP collector that keeps what it gets.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex // guards the rest
	spans []span
	text  string // of every batch whole, resources included
	auth  []string
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, q *http.Request) {
		if err := r.take(q); err != nil {
			t.Errorf("a batch of spans: %v", err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		body, err := proto.Marshal(&collector.ExportTraceServiceResponse{})
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		w.Write(body)
	})
	r.Server = httptest.NewServer(mux)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) take(q *http.Request) error {
	if kind := q.Header.Get("Content-Type"); kind != "application/x-protobuf" {
		return fmt.Errorf("content type %q", kind)
	}
	body := q.Body
	if q.Header.Get("Content-Encoding") == "gzip" {
		var err error
		if body, err = gzip.NewReader(q.Body); err != nil {
			return err
		}
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var batch collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(raw, &batch); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text += prototext.Format(&batch)
	r.auth = append(r.auth, q.Header.Get("X-Collector-Key"))
	for _, of := range batch.ResourceSpans {
		service := ""
		for _, a := range of.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				attributes := map[string]string{}
				for _, a := range s.Attributes {
					switch v := a.Value; {
					case v.GetStringValue() != "":
						attributes[a.Key] = v.GetStringValue()
					default:
						attributes[a.Key] = fmt.Sprint(v.GetIntValue())
					}
				}
				r.spans = append(r.spans, span{s, service, attributes})
			}
		}
	}
	return nil
}

// of returns the spans of a trace.
func (r *receiver) of(trace string) (found []span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if s.trace() == trace {
			found = append(found, s)
		}
	}
	return found
}

// one returns the only span among all that has a name, a service and a parent.
func one(t *testing.T, all []span, service, name, parent string) span {
	t.Helper()
	var found []span
	for _, s := range all {
		if s.service == service && s.Name == name && s.parent() == parent {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		for _, s := range all {
			t.Logf("%s %q %s below %s", s.service, s.Name, s.id(), s.parent())
		}
		t.Fatalf("%d spans %q of %s below %q, want one", len(found), name, service, parent)
	}
	return found[0]
}

// traceOf reads the trace and the gateway's span off an answer.
func traceOf(t *testing.T, r reply) (trace, span string) {
	t.Helper()
	parts := strings.Split(r.header.Get("Traceresponse"), "-")
	if len(parts) != 4 || parts[3] != "01" {
		t.Fatalf("the answer %d has the trace %q", r.status, r.header.Get("Traceresponse"))
	}
	return parts[1], parts[2]
}

// TestTracesReachFromTheClientToTheDatabase sends requests through the real gateway and broker, which export to a real
// receiver: each is one trace with the spans of both processes, and nothing secret is in any of them.
func TestTracesReachFromTheClientToTheDatabase(t *testing.T) {
	t.Parallel()
	const gateway, broker, root = "queengate-gateway", "queengate-broker", ""
	const canary, collectorKey = "canary-of-a-payload", "hunter2"
	r := newReceiver(t)
	dir := dataDir(t)
	s, err := startWith([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + r.URL, "OTEL_EXPORTER_OTLP_HEADERS=x-collector-key=" + collectorKey},
		filepath.Join(dir, "data"), "--postgres", pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	s.stopAtEnd(t)
	c := s.newCluster(t, `{"max_payload_bytes":1000}`)

	const caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	push := func(txn string, opts ...callOption) reply {
		body := m{"items": []m{{"queue": "canary-queue", "transactionId": txn, "payload": canary}}}
		return c.call(t, "POST", "/api/v1/push", body, opts...)
	}
	pushed := push("t-0", header("Traceparent", caller), header("Tracestate", "evil=1"))
	popped := c.call(t, "GET", "/api/v1/pop/queue/canary-queue?consumerGroup=canary-group&subscriptionMode=all", nil)
	got := decode[popAnswer](t, popped.body)
	if len(got.Messages) != 1 {
		t.Fatalf("popped %s", popped.body)
	}
	acked := c.call(t, "POST", "/api/v1/ack", m{
		"transactionId": got.Messages[0].TransactionID, "partitionId": got.Messages[0].PartitionID, "leaseId": got.LeaseID, "consumerGroup": "canary-group",
	})
	refused := c.call(t, "POST", "/api/v1/push", m{"items": []m{{"queue": "canary-queue", "payload": strings.Repeat(canary, 100)}}})
	unauthorized := c.call(t, "POST", "/api/v1/push", m{"items": []m{}}, key("qk_live_canary"))
	moved := c.call(t, "POST", "/api/v1/transaction", m{"operations": []m{{"type": "push", "items": []m{{"queue": "canary-queue", "payload": canary}}}}})
	for what, is := range map[string][2]int{
		"push": {pushed.status, 201}, "pop": {popped.status, 200}, "ack": {acked.status, 200}, "too large": {refused.status, 413},
		"no key": {unauthorized.status, 401}, "transaction": {moved.status, 200},
	} {
		if is[0] != is[1] {
			t.Fatalf("%s: %d, want %d", what, is[0], is[1])
		}
	}
	// Pushes that come together share round trips: some of many do, sooner or later.
	var crowd sync.WaitGroup
	for i := range 8 {
		crowd.Go(func() {
			for k := range 25 {
				push(fmt.Sprintf("c-%d-%d", i, k))
			}
		})
	}
	crowd.Wait()
	s.stop(t) // which sends what is left

	trace, id := traceOf(t, pushed)
	all := r.of(trace)
	request := one(t, all, gateway, "POST /api/v1/push", root)
	if request.id() != id || request.Kind != traces.Span_SPAN_KIND_SERVER {
		t.Errorf("the answer names the span %s, it is %s %v", id, request.id(), request.Kind)
	}
	if len(request.Links) != 1 || hex.EncodeToString(request.Links[0].SpanId) != "b7ad6b7169203331" || request.trace() == "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("a client's trace is linked to and no more: %v", request.Links)
	}
	admission := one(t, all, gateway, "admission", request.id())
	if admission.attributes["queengate.limit.outcome"] != "admitted" {
		t.Errorf("admission: %v", admission.attributes)
	}
	attempt := one(t, all, gateway, "upstream", request.id())
	handling := one(t, all, broker, "POST /api/v1/push", attempt.id())
	trip := one(t, all, broker, "push", handling.id())
	if trip.attributes["queengate.fused.requests"] == "" || trip.attributes["queengate.fused.items"] == "0" || trip.Kind != traces.Span_SPAN_KIND_CLIENT {
		t.Errorf("round trip: %v", trip.attributes)
	}
	one(t, all, broker, "provision", handling.id())
	if rid := pushed.header.Get("X-Queen-Request-Id"); request.attributes["queengate.request_id"] != rid || handling.attributes["queengate.request_id"] != rid {
		t.Errorf("request id %s: %v and %v", rid, request.attributes, handling.attributes)
	}
	if request.attributes["http.response.status_code"] != "201" || request.attributes["queengate.cluster"] != c.slug {
		t.Errorf("request: %v", request.attributes)
	}
	for name, of := range map[string]struct {
		reply reply
		span  string
	}{"claim": {popped, "GET /api/v1/pop/queue/:queue"}, "ack": {acked, "POST /api/v1/ack"}, "transaction": {moved, "POST /api/v1/transaction"}} {
		trace, id := traceOf(t, of.reply)
		all := r.of(trace)
		attempt := one(t, all, gateway, "upstream", id)
		one(t, all, broker, name, one(t, all, broker, of.span, attempt.id()).id())
	}
	trace, id = traceOf(t, refused)
	if a := one(t, r.of(trace), gateway, "admission", id).attributes; a["queengate.limit.outcome"] != "refused" || a["queengate.limit.name"] != "payload" {
		t.Errorf("a refusal: %v", a)
	}
	trace, _ = traceOf(t, unauthorized)
	if got := r.of(trace); len(got) != 1 || got[0].attributes["queengate.code"] != "unauthorized" {
		t.Errorf("a request without a key: %v", got)
	}
	if !slices.ContainsFunc(r.spans, func(s span) bool {
		return s.Name == "push" && s.attributes["queengate.fused.requests"] != "1" && len(s.Links) > 0
	}) {
		t.Error("no round trip of 200 pushes by eight clients was shared, or none links to the others")
	}

	for _, secret := range []string{c.full, c.full[len("qk_test_"):], "Bearer", canary, "canary", collectorKey, "evil", "eyJ"} {
		if strings.Contains(r.text, secret) {
			t.Errorf("%q is in the spans", secret)
		}
	}
	for _, sent := range r.auth {
		if sent != collectorKey {
			t.Errorf("a batch came with the key %q", sent)
		}
	}
	log, err := os.ReadFile(filepath.Join(dir, "data", "log", "queengate.log"))
	if err != nil {
		t.Fatal(err)
	}
	trace, id = traceOf(t, pushed)
	if !strings.Contains(string(log), `"trace_id":"`+trace+`","span_id":"`+id+`"`) {
		t.Error("the log line of the push does not name its trace")
	}
	if strings.Contains(string(log), collectorKey) {
		t.Error("the collector's key is in the log")
	}
}
