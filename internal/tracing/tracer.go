package tracing

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Remote is what the traceparent of a client is good for.
type Remote string

// The ways to take a client's traceparent.
const (
	Ignore   Remote = "ignore" // nothing
	Link     Remote = "link"   // a trace of our own links to it
	Continue Remote = "parent" // our spans are part of the client's trace, and its sampling decides
)

// Config says where spans go and which there are.
type Config struct {
	Endpoint   string            // http or https URL that takes OTLP; without a path /v1/traces; "": tracing is off
	Headers    map[string]string // sent with each batch: a collector's credentials
	CA         string            // PEM of the authorities to trust instead of the system's
	Timeout    time.Duration     // of one batch; 0 means 10 s
	Ratio      float64           // of the traces that begin here, 0..1
	Remote     Remote            // "" means Link
	Service    string            // service.name
	Version    string            // service.version
	Attributes map[string]string // more of the resource
}

const defaultTimeout = 10 * time.Second

// Validate reports all problems of c, joined, without quoting what may be secret.
func (c Config) Validate() error {
	var errs []error
	if c.Endpoint != "" {
		if u, err := url.Parse(c.Endpoint); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			errs = append(errs, errors.New("otel.endpoint: want a URL that begins with http:// or https://, without user and password"))
		}
	}
	if !(c.Ratio >= 0 && c.Ratio <= 1) {
		errs = append(errs, fmt.Errorf("otel.ratio = %v: want 0..1", c.Ratio))
	}
	if !slices.Contains([]Remote{"", Ignore, Link, Continue}, c.Remote) {
		errs = append(errs, fmt.Errorf("otel.clients = %s: want ignore, link or parent", c.Remote))
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("otel.timeout = %s: want more than 0", c.Timeout))
	}
	if _, err := c.authorities(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// authorities returns the pool to trust, nil for the system's.
func (c Config) authorities() (*x509.CertPool, error) {
	if c.CA == "" {
		return nil, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(c.CA)) {
		return nil, errors.New("otel.ca: want certificates as PEM text")
	}
	return pool, nil
}

// target returns the URL that batches are posted to.
func (c Config) target() string {
	u, err := url.Parse(c.Endpoint)
	if err != nil {
		return c.Endpoint // Validate has seen it
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	return u.String()
}

// Tracer makes spans; nil makes none. Safe for concurrent use.
type Tracer struct {
	tracer trace.Tracer
	remote Remote
	out    *outlet
}

// Limits of one span. What we put on spans is far below them; they bound what a mistake could cost.
var limits = sdk.SpanLimits{
	AttributeValueLengthLimit: 512, AttributeCountLimit: 32, EventCountLimit: 16, LinkCountLimit: maxLinks,
	AttributePerEventCountLimit: 8, AttributePerLinkCountLimit: 8,
}

// New returns a tracer, or nil when cfg has no endpoint. It does no I/O and starts nothing: spans go out while Run runs.
func New(log *slog.Logger, cfg Config, reg prometheus.Registerer) (*Tracer, error) {
	if err := cfg.Validate(); err != nil || cfg.Endpoint == "" {
		return nil, err
	}
	if cfg.Timeout == 0 { // the exporter's own default is another's
		cfg.Timeout = defaultTimeout
	}
	pool, err := cfg.authorities()
	if err != nil {
		return nil, err
	}
	options := []otlptracehttp.Option{
		otlptracehttp.WithEndpointURL(cfg.target()), otlptracehttp.WithHeaders(cfg.Headers), otlptracehttp.WithTimeout(cfg.Timeout),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		// A batch that fails for a moment is sent again, and a longer outage ends it: newer spans are worth more.
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled: true, InitialInterval: 500 * time.Millisecond, MaxInterval: 5 * time.Second, MaxElapsedTime: cfg.Timeout,
		}),
	}
	if strings.HasPrefix(cfg.Endpoint, "https:") {
		options = append(options, otlptracehttp.WithTLSClientConfig(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}))
	}
	// Starting the HTTP client does no I/O, whatever its context.
	exporter, err := otlptracehttp.New(context.Background(), options...)
	if err != nil {
		return nil, fmt.Errorf("otel.endpoint: %w", err)
	}
	return NewTo(log, cfg, reg, exporter), nil
}

// scope names the maker of the spans.
const scope = "github.com/queengate/queengate"

// NewTo is New with a way out of the caller's, for tests. cfg is valid, and its endpoint is not looked at.
func NewTo(log *slog.Logger, cfg Config, reg prometheus.Registerer, exporter sdk.SpanExporter) *Tracer {
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	out := newOutlet(log, exporter, cfg.Timeout, reg)
	provider := sdk.NewTracerProvider(
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(cfg.Ratio))),
		sdk.WithResource(cfg.resource()), sdk.WithRawSpanLimits(limits), sdk.WithSpanProcessor(out),
	)
	remote := cfg.Remote
	if remote == "" {
		remote = Link
	}
	return &Tracer{tracer: provider.Tracer(scope, trace.WithInstrumentationVersion(cfg.Version)), remote: remote, out: out}
}

// resource describes the process, by no more than it was told.
func (c Config) resource() *resource.Resource {
	all := []attribute.KeyValue{
		attribute.String("telemetry.sdk.name", "opentelemetry"), attribute.String("telemetry.sdk.language", "go"),
		attribute.String("service.instance.id", uuid.NewString()),
	}
	for k, v := range c.Attributes {
		all = append(all, attribute.String(k, v))
	}
	// Of two values of a name the later counts.
	all = append(all, attribute.String("service.name", c.Service), attribute.String("service.version", c.Version))
	return resource.NewSchemaless(all...)
}

// Run sends spans to the collector until ctx ends, then what is left, within the time of one batch. A collector that is
// away is no failure of Run. Add it before what makes spans, so that it ends after it. A nil tracer waits for ctx.
func (t *Tracer) Run(ctx context.Context) error {
	if t == nil {
		<-ctx.Done()
		return nil
	}
	return t.out.run(ctx)
}

// Serve begins the span of a request that this process serves since at. traceparent is the caller's header, malformed or
// empty for none. A trusted caller, a gateway that has proved itself, is continued; anybody else as Config.Remote says.
func (t *Tracer) Serve(name string, at time.Time, traceparent []byte, trusted bool) Span {
	if t == nil {
		return Span{}
	}
	ctx := context.Background()
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(at)}
	if caller, ok := parse(traceparent); ok {
		switch {
		case trusted, t.remote == Continue:
			ctx = trace.ContextWithRemoteSpanContext(ctx, caller)
		case t.remote == Link:
			options = append(options, trace.WithLinks(trace.Link{SpanContext: caller}))
		}
	}
	_, s := t.tracer.Start(ctx, name, options...)
	return Span{s, t}
}
