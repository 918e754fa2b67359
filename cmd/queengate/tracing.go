package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/internal/conf"
	"github.com/queengate/queengate/internal/obs"
	"github.com/queengate/queengate/internal/tracing"
)

// otelConfig says where traces go.
type otelConfig struct {
	Endpoint   string
	Headers    conf.Secret
	CA         string
	Timeout    time.Duration
	Ratio      float64
	Clients    string
	Service    string
	Attributes string
}

func defaultOtel() otelConfig {
	return otelConfig{Timeout: 10 * time.Second, Ratio: 1, Clients: string(tracing.Link)}
}

func (c *otelConfig) declare(s *conf.Set) {
	s.Section("otel", "Traces. OpenTelemetry spans over OTLP/HTTP; without an endpoint there are none. The standard's own variables count too.", "up", "gateway", "broker")
	s.String(&c.Endpoint, "endpoint", "URL of the collector that traces are posted to; one without a path gets /v1/traces.",
		conf.EnvFunc(otelEndpoint, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
			"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"))
	s.Secret(&c.Headers, "headers", "Headers sent to the collector, such as its credentials: name=value, separated by commas, values percent-encoded.",
		conf.Env("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"))
	s.Text(&c.CA, "ca", "Certificates of the authorities to trust for the collector instead of the system's, as PEM text.")
	s.Duration(&c.Timeout, "timeout", "For one batch, repeats included; a stop waits no longer for the last one.", 100*time.Millisecond, time.Minute,
		milliseconds("OTEL_EXPORTER_OTLP_TIMEOUT", 100*time.Millisecond), milliseconds("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", 100*time.Millisecond))
	s.Float(&c.Ratio, "ratio", "Part of the traces beginning here that is sampled. What continues a trace is sampled as that is.", 0, 1,
		conf.EnvFunc(otelRatio, "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"))
	s.Enum(&c.Clients, "clients", "What the traceparent of a client is good for: nothing, a link from our trace, or to be the parent, whose sampling then decides. A broker always continues the trace of its gateways.",
		[]string{string(tracing.Ignore), string(tracing.Link), string(tracing.Continue)})
	s.String(&c.Service, "service", "service.name of the spans; without one queengate-gateway or queengate-broker.", conf.Env("OTEL_SERVICE_NAME"))
	s.String(&c.Attributes, "attributes", "Further attributes of the resource: name=value, separated by commas, values percent-encoded.", conf.Env("OTEL_RESOURCE_ATTRIBUTES"))
	s.Check(func() error {
		cfg, err := c.config("")
		return errors.Join(err, cfg.Validate())
	})
}

// config returns the configuration of a part's tracer.
func (c *otelConfig) config(part string) (tracing.Config, error) {
	cfg := tracing.Config{
		Endpoint: c.Endpoint, CA: c.CA, Timeout: c.Timeout, Ratio: c.Ratio, Remote: tracing.Remote(c.Clients),
		Service: or(c.Service, "queengate-"+part), Version: obs.Version(),
	}
	var err1, err2 error
	cfg.Headers, err1 = pairs("otel.headers", c.Headers.Reveal())
	cfg.Attributes, err2 = pairs("otel.attributes", c.Attributes)
	return cfg, errors.Join(err1, err2)
}

// tracer returns the tracer of a part, nil when there are no traces.
func (c *otelConfig) tracer(log *slog.Logger, part string, reg prometheus.Registerer) (*tracing.Tracer, error) {
	cfg, err := c.config(part)
	if err != nil {
		return nil, usageError{err}
	}
	t, err := tracing.New(log.With("part", "tracing"), cfg, prometheus.WrapRegistererWith(prometheus.Labels{"part": part}, reg))
	if err != nil {
		return nil, usageError{err}
	}
	return t, nil
}

// pairs reads name=value, separated by commas, with percent-encoded values. Errors quote no value: it may be secret.
func pairs(setting, text string) (map[string]string, error) {
	all := map[string]string{}
	for entry := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		name, value, ok := strings.Cut(entry, "=")
		name = strings.TrimSpace(name)
		plain, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || name == "" || err != nil {
			return nil, fmt.Errorf("%s = redacted: want name=value, separated by commas, values percent-encoded", setting)
		}
		all[name] = plain
	}
	return all, nil
}

// otelEndpoint reads the standard's variables: the endpoint of traces as it is, or that of all signals, to which the path
// is added.
func otelEndpoint(get func(string) string) (string, error) {
	disabled, err := yes(get, "OTEL_SDK_DISABLED", false)
	if err != nil || disabled {
		return "", err
	}
	switch v := get("OTEL_TRACES_EXPORTER"); v {
	case "", "otlp":
	case "none":
		return "", nil
	default:
		return "", fmt.Errorf("OTEL_TRACES_EXPORTER = %s: want otlp or none", v)
	}
	endpoint := get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
	if base := get("OTEL_EXPORTER_OTLP_ENDPOINT"); endpoint == "" && base != "" {
		endpoint = strings.TrimRight(base, "/") + "/v1/traces"
	}
	if endpoint == "" {
		return "", nil
	}
	protocol := or(get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), get("OTEL_EXPORTER_OTLP_PROTOCOL"))
	if protocol != "" && protocol != "http/protobuf" {
		return "", fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL = %s: want http/protobuf", protocol)
	}
	return endpoint, nil
}

// otelRatio reads the standard's sampler. Whether a parent counts is otel.clients.
func otelRatio(get func(string) string) (string, error) {
	switch v := get("OTEL_TRACES_SAMPLER"); v {
	case "always_on", "parentbased_always_on":
		return "1", nil
	case "always_off", "parentbased_always_off":
		return "0", nil
	case "traceidratio", "parentbased_traceidratio":
		return or(get("OTEL_TRACES_SAMPLER_ARG"), "1"), nil
	case "":
		return "", nil // an argument of no sampler says nothing
	default:
		return "", fmt.Errorf("OTEL_TRACES_SAMPLER = %s: want always_on, always_off, traceidratio or one of them with parentbased_", v)
	}
}
