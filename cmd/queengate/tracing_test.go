package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheStandardsVariablesSayWhereTracesGo(t *testing.T) {
	t.Parallel()
	type want struct {
		endpoint, headers, timeout string
		ratio                      float64
		service                    string
	}
	usual := want{timeout: "10s", ratio: 1}
	with := func(change func(*want)) want {
		w := usual
		change(&w)
		return w
	}
	for rule, c := range map[string]struct {
		env  []string
		want want
		err  string // part of it, "" for none
	}{
		"nothing is off":                {nil, usual, ""},
		"the base of all signals":       {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318/"}, with(func(w *want) { w.endpoint = "http://c:4318/v1/traces" }), ""},
		"a base with a path":            {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c/otlp"}, with(func(w *want) { w.endpoint = "https://c/otlp/v1/traces" }), ""},
		"that of traces as it is":       {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://a", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://b/in"}, with(func(w *want) { w.endpoint = "http://b/in" }), ""},
		"ours wins":                     {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://a", "QUEENGATE_OTEL_ENDPOINT=http://ours/x"}, with(func(w *want) { w.endpoint = "http://ours/x" }), ""},
		"the SDK is disabled":           {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://a", "OTEL_SDK_DISABLED=true"}, usual, ""},
		"no exporter of traces":         {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://a", "OTEL_TRACES_EXPORTER=none"}, usual, ""},
		"another exporter":              {[]string{"OTEL_TRACES_EXPORTER=zipkin"}, usual, "OTEL_TRACES_EXPORTER = zipkin: want otlp or none"},
		"another protocol":              {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://a", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, usual, "want http/protobuf"},
		"another protocol to nowhere":   {[]string{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, usual, ""},
		"a sampler":                     {[]string{"OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.25"}, with(func(w *want) { w.ratio = 0.25 }), ""},
		"a sampler of nothing":          {[]string{"OTEL_TRACES_SAMPLER=always_off"}, with(func(w *want) { w.ratio = 0 }), ""},
		"an argument of no sampler":     {[]string{"OTEL_TRACES_SAMPLER_ARG=0.25"}, usual, ""},
		"an unknown sampler":            {[]string{"OTEL_TRACES_SAMPLER=xray"}, usual, "OTEL_TRACES_SAMPLER = xray"},
		"an argument that is no number": {[]string{"OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=NaN"}, usual, "otel.ratio = NaN: want 0..1"},
		"headers of traces win":         {[]string{"OTEL_EXPORTER_OTLP_HEADERS=a=1", "OTEL_EXPORTER_OTLP_TRACES_HEADERS=b=2"}, with(func(w *want) { w.headers = "b=2" }), ""},
		"headers nobody can read":       {[]string{"OTEL_EXPORTER_OTLP_HEADERS=hunter2"}, usual, "otel.headers = redacted"},
		"a time in milliseconds":        {[]string{"OTEL_EXPORTER_OTLP_TIMEOUT=2500"}, with(func(w *want) { w.timeout = "2.5s" }), ""},
		"a service":                     {[]string{"OTEL_SERVICE_NAME=mq"}, with(func(w *want) { w.service = "mq" }), ""},
		"no URL":                        {[]string{"QUEENGATE_OTEL_ENDPOINT=c:4318"}, usual, "otel.endpoint: want a URL"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			cfg := defaults()
			_, err := settings(cfg).Load("up", nil, c.env, io.Discard, nil)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("got %v, want %q and no secret", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			o := cfg.Otel
			got := want{o.Endpoint, o.Headers.Reveal(), o.Timeout.String(), o.Ratio, o.Service}
			if diff := cmp.Diff(fmt.Sprint(c.want), fmt.Sprint(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEachPartHasItsServiceName(t *testing.T) {
	t.Parallel()
	c := defaultOtel()
	c.Attributes = "deployment.environment=a%20b, region=eu"
	cfg, err := c.config("broker")
	if err != nil || cfg.Service != "queengate-broker" || cfg.Attributes["deployment.environment"] != "a b" || cfg.Attributes["region"] != "eu" {
		t.Errorf("%+v, %v", cfg, err)
	}
	c.Service = "mq"
	if cfg, err = c.config("broker"); err != nil || cfg.Service != "mq" {
		t.Errorf("%+v, %v", cfg, err)
	}
}
