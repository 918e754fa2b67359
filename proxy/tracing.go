package proxy

import (
	"errors"

	"github.com/valyala/fasthttp"
	"go.opentelemetry.io/otel/attribute"

	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// spanAdmission is the name of the plan's decision on a request.
const spanAdmission = "admission"

// traceresponse is the header that tells a client which trace its request is in (W3C Trace Context, level 2).
var traceresponse = []byte("Traceresponse")

// stateTrace names the trace of a request on its answer, when there will be one to look at.
func (ex *exchange) stateTrace(h *fasthttp.ResponseHeader) {
	if !ex.span.Sampled() {
		return
	}
	var room [64]byte
	h.SetCanonical(traceresponse, ex.span.AppendTraceparent(room[:0]))
}

// endAdmission ends the span of the plan's decision: which limit was closest, or refused.
func endAdmission(s tracing.Span, r *quota.Report, e *wire.Error) {
	if !s.Sampled() {
		return
	}
	outcome := "admitted"
	if e != nil {
		outcome = "refused"
		s.Set(attribute.String("queengate.code", string(e.Code)), attribute.Int64("queengate.retry_after_ms", e.RetryAfter.Milliseconds()))
	}
	s.Set(attribute.String("queengate.limit.outcome", outcome))
	switch {
	case e != nil && e.Limit != nil:
		l := e.Limit
		s.Set(attribute.String("queengate.limit.name", l.Name), attribute.Float64("queengate.limit.limit", l.Limit), attribute.Float64("queengate.limit.used", l.Used))
	case r.Name != "":
		s.Set(attribute.String("queengate.limit.name", r.Name), attribute.Float64("queengate.limit.limit", r.Limit),
			attribute.Float64("queengate.limit.remaining", r.Remaining), attribute.Bool("queengate.limit.alone", r.Alone))
	}
	s.End()
}

// endAttempt ends the span of one attempt at a broker, when the head of its answer is there or will not come.
func endAttempt(s tracing.Span, b *broker, a *answer, far progress, err error) {
	s.Set(attribute.String("server.address", b.address))
	switch {
	case err == nil:
		s.Set(attribute.Int("http.response.status_code", a.status()))
		if a.status() >= 500 {
			s.Fail("the broker failed")
		}
	case errors.Is(err, errClientGone):
		s.Set(attribute.String("error.type", "client_gone"))
	case errors.Is(err, errDraining):
		s.Set(attribute.String("error.type", "draining"))
	default:
		kind := faultKind(far, err)
		s.Set(attribute.String("error.type", kind))
		s.Fail(kind)
	}
	s.End()
}
