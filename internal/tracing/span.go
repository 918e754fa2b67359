package tracing

import (
	"context"
	"encoding/hex"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Span is one span, or none: the zero Span. Its methods are safe for concurrent use; after End they do nothing.
type Span struct {
	s trace.Span // nil: none
	t *Tracer
}

// Kind is what a span is to the process that makes it.
type Kind = trace.SpanKind

// The kinds that children have.
const (
	Internal = trace.SpanKindInternal
	Client   = trace.SpanKindClient // of a call to somebody else
)

// Sampled reports whether the span goes to the collector. Attributes are worth making only then.
func (s Span) Sampled() bool { return s.s != nil && s.s.IsRecording() }

// Child begins a span below this one, now. Below one that is not sampled it is that one again, which says nothing.
func (s Span) Child(name string, kind Kind) Span {
	if !s.Sampled() {
		return s
	}
	return s.ChildAt(name, kind, time.Now(), nil)
}

// ChildAt is Child for what began at a time, with links.
func (s Span) ChildAt(name string, kind Kind, began time.Time, links []trace.Link) Span {
	if !s.Sampled() {
		return s
	}
	ctx := trace.ContextWithSpan(context.Background(), s.s)
	_, c := s.t.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithTimestamp(began), trace.WithLinks(links...))
	return Span{c, s.t}
}

// Set adds attributes. Calling it costs their making: ask Sampled first.
func (s Span) Set(attributes ...attribute.KeyValue) {
	if s.s != nil {
		s.s.SetAttributes(attributes...)
	}
}

// Fail marks the span as failed, for a reason that is no secret: a code of the error catalogue or the name of a fault.
func (s Span) Fail(reason string) {
	if s.s != nil {
		s.s.SetStatus(codes.Error, reason)
	}
}

// End ends the span now.
func (s Span) End() {
	if s.s != nil {
		s.s.End()
	}
}

// TraceID returns the id of the span's trace for a log line: 32 hexadecimal digits, "" unless it is sampled, since one
// that is not leads nowhere.
func (s Span) TraceID() string {
	if !s.Sampled() {
		return ""
	}
	return s.s.SpanContext().TraceID().String()
}

// SpanID is TraceID for the span itself: 16 hexadecimal digits.
func (s Span) SpanID() string {
	if !s.Sampled() {
		return ""
	}
	return s.s.SpanContext().SpanID().String()
}

// Exists reports whether there is a span, sampled or not.
func (s Span) Exists() bool { return s.s != nil }

// AppendTraceparent appends the traceparent that makes a called process continue the trace (W3C Trace Context, 3.2). One
// that is not sampled says so, and then the other side makes no trace either. The zero Span appends nothing.
func (s Span) AppendTraceparent(dst []byte) []byte {
	if s.s == nil {
		return dst
	}
	c := s.s.SpanContext()
	id, span := c.TraceID(), c.SpanID()
	dst = append(dst, "00-"...)
	dst = hex.AppendEncode(dst, id[:])
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, span[:])
	if c.IsSampled() {
		return append(dst, "-01"...)
	}
	return append(dst, "-00"...)
}

// parse reads a traceparent of version 00: no zero ids, lower case, nothing behind.
func parse(b []byte) (caller trace.SpanContext, ok bool) {
	const form = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	if len(b) != len(form) || b[0] != '0' || b[1] != '0' || b[2] != '-' || b[35] != '-' || b[52] != '-' {
		return caller, false
	}
	var id trace.TraceID
	var span trace.SpanID
	var flags [1]byte
	if !decode(id[:], b[3:35]) || !decode(span[:], b[36:52]) || !decode(flags[:], b[53:]) || !id.IsValid() || !span.IsValid() {
		return caller, false
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: span, TraceFlags: trace.TraceFlags(flags[0]) & trace.FlagsSampled, Remote: true,
	}), true
}

// decode reads hexadecimal digits in lower case, of which the standard has no other.
func decode(dst, digits []byte) bool {
	for _, c := range digits {
		if c >= 'A' && c <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(dst, digits)
	return err == nil
}
