// Package obs sets up what a process tells about itself: its log (log/slog), its metrics (a Prometheus registry) and
// the operators' port that serves both metrics and health.
//
// It holds no global state: loggers and registries are made once by the command and handed on.
package obs

import (
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewLogger returns a logger that writes to w, which may be a *Buffer. format is json or text, level debug, info, warn
// or error. See Begin for the lines of requests.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: %w", level, err)
	}
	o := &slog.HandlerOptions{Level: l}
	var h slog.Handler
	switch format {
	case "json":
		h = slog.NewJSONHandler(w, o)
	case "text":
		h = slog.NewTextHandler(w, o)
	default:
		return nil, fmt.Errorf("log format %q: want json or text", format)
	}
	b, buffered := w.(*Buffer)
	switch {
	case buffered && format == "json":
		h = newJSONLines(prompt{h, b})
	case buffered:
		h = prompt{h, b}
	}
	return slog.New(h), nil
}

// NewRegistry returns a registry with the runtime's, the process's and the build's metrics.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "queengate_build_info", Help: "Always 1; the labels tell what runs.",
		ConstLabels: prometheus.Labels{"version": Version(), "go": goVersion()},
	})
	info.Set(1)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), info)
	return r
}

// Version returns what the build says of itself: the module's version, or the commit it was built from.
func Version() string {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := b.Main.Version; v != "" && v != "(devel)" {
		return strings.TrimPrefix(v, "v")
	}
	for _, s := range b.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return s.Value[:12]
		}
	}
	return "devel"
}

func goVersion() string {
	if b, ok := debug.ReadBuildInfo(); ok {
		return b.GoVersion
	}
	return "unknown"
}
