package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/internal/obs"
)

func TestOnlyTheFileHasTheLinesOfRequests(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "text"} {
		var file, terminal bytes.Buffer
		lines := obs.NewBuffer(&file)
		log, err := newUpLogger(lines, &terminal, &config{LogFormat: format, LogLevel: "info"})
		if err != nil {
			t.Fatal(err)
		}
		log = log.With("part", "gateway")
		if got := obs.Begin(log, time.Time{}, slog.LevelWarn, httpkit.RequestLine) != nil; got != (format == "json") {
			t.Errorf("%s: a line without a record: %v", format, got)
		}
		if obs.Begin(log, time.Time{}, slog.LevelWarn, "of a part") != nil {
			t.Errorf("%s: the terminal misses a warning of a part", format)
		}
		refused := httpkit.Access{Status: 503, RequestID: "r-1"}
		refused.Log(log)
		refused.Log(log.WithGroup("g"))
		log.Info("quiet")
		log.Warn("loud")
		if err := lines.Flush(); err != nil {
			t.Fatal(err)
		}
		if got := file.String(); strings.Count(got, "\n") != 4 || strings.Count(got, "r-1") != 2 || strings.Count(got, "gateway") != 4 {
			t.Errorf("%s: the file has\n%swant two requests, quiet and loud, of the gateway", format, got)
		}
		if got := terminal.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "msg=loud part=gateway") {
			t.Errorf("%s: the terminal has\n%swant loud alone", format, got)
		}
	}
}
