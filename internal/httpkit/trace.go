package httpkit

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/queengate/queengate/internal/tracing"
)

// EndSpan ends the span of the request with the facts of its line, and names the trace in the line. It is called before
// Log. What the line has no room for the span has none for either: no payload, token, value of a query, or name that a
// tenant gave. A 5xx is a failure of ours; a refusal is not.
func (a *Access) EndSpan(s tracing.Span) {
	if !s.Sampled() {
		return
	}
	a.TraceID, a.SpanID = s.TraceID(), s.SpanID()
	var room [9]attribute.KeyValue
	all := append(room[:0],
		attribute.String("http.request.method", a.Method), attribute.Int("http.response.status_code", a.Status),
		attribute.Int("http.request.body.size", a.BytesIn), attribute.Int("http.response.body.size", a.BytesOut))
	text := func(key, v string) {
		if v != "" {
			all = append(all, attribute.String(key, v))
		}
	}
	text("http.route", a.Route)
	text("queengate.request_id", a.RequestID)
	text("queengate.tenant", a.Tenant)
	text("queengate.cluster", a.Cluster)
	text("queengate.code", a.Code)
	s.Set(all...)
	if a.Status >= 500 {
		s.Fail(a.Code)
	}
	s.End()
}
