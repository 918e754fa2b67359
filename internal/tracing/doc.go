// Package tracing makes OpenTelemetry spans of requests and hands them to a collector over OTLP/HTTP. It owns the
// sampling, what a traceparent of somebody else is good for, and the way out; what a span says is its maker's business.
// The design, and what the spans of the product are, is docs/design/tracing.md.
//
// A nil *Tracer is tracing that is off. Its spans are the zero Span, on which every method does nothing and allocates
// nothing, so that a hot path need not ask. What costs something to put together, attributes above all, is put together
// only where Span.Sampled says that somebody will see it.
//
// Spans leave through a queue with an end: when the collector is slow or away they are dropped and counted
// (queengate_tracing_spans_total), and no request waits for it. Nothing here is global: no provider, propagator or error
// handler of the otel module is registered, and no variable of the environment is read but by the exporter, for what
// Config leaves open.
package tracing
