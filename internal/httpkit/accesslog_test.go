package httpkit

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/obs"
)

// TestTheLineOfARequest writes each line through both ways there are: as JSON into a buffer, and by a handler of log/slog.
func TestTheLineOfARequest(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 30, 12, 0, 0, 123450000, time.UTC)
	for name, c := range map[string]struct {
		access Access
		want   string
	}{
		"everything": {
			Access{
				RequestID: "r-1", Tenant: "acme", Cluster: "acme-eu", Method: "POST", Route: "/api/v1/push", Status: 503, Code: "draining",
				Limit: "req", Shadow: "msgs", At: at, Duration: 1234567 * time.Nanosecond, BytesIn: 356, BytesOut: 150, Principal: "k_1",
				Err: errors.New("dial \"b\"\nrefused"), TraceID: "t", SpanID: "s",
			},
			`{"time":"2026-11-30T12:00:00.12345Z","level":"WARN","msg":"request","part":"gateway","request_id":"r-1","tenant":"acme",` +
				`"cluster":"acme-eu","method":"POST","route":"/api/v1/push","status":503,"code":"draining","limit":"req","shadow":"msgs",` +
				`"dur_ms":1.234,"bytes_in":356,"bytes_out":150,"principal":"k_1","trace_id":"t","span_id":"s","err":"dial \"b\"\nrefused"}`,
		},
		"nothing": {
			Access{At: at, Status: 204},
			`{"time":"2026-11-30T12:00:00.12345Z","level":"INFO","msg":"request","part":"gateway","status":204,"dur_ms":0,"bytes_in":0,"bytes_out":0}`,
		},
		"a degraded success": {
			Access{At: at, Status: 204, Code: "database_unavailable"},
			`{"time":"2026-11-30T12:00:00.12345Z","level":"WARN","msg":"request","part":"gateway","status":204,"code":"database_unavailable","dur_ms":0,"bytes_in":0,"bytes_out":0}`,
		},
		"a probe":         {Access{At: at, Status: 503, Probe: true}, ""},
		"another's line":  {Access{At: at, Status: 201, Echo: true}, ""},
		"another's error": {Access{At: at, Status: 404, Echo: true}, `{"time":"2026-11-30T12:00:00.12345Z","level":"INFO","msg":"request","part":"gateway","status":404,"dur_ms":0,"bytes_in":0,"bytes_out":0}`},
	} {
		var ours, theirs bytes.Buffer
		b := obs.NewBuffer(&ours)
		log, err := obs.NewLogger(b, "json", "info")
		if err != nil {
			t.Fatal(err)
		}
		c.access.Log(slog.New(linesOnly{log.With("part", "gateway").Handler().(obs.Beginner), t}))
		c.access.Log(slog.New(slog.NewJSONHandler(&theirs, nil)).With("part", "gateway"))
		if err := b.Flush(); err != nil {
			t.Fatal(err)
		}
		for way, got := range map[string]string{"a line": ours.String(), "log/slog": theirs.String()} {
			if strings.TrimSuffix(got, "\n") != c.want {
				t.Errorf("%s, %s: got\n%swant\n%s", name, way, got, c.want)
			}
		}
	}
}

// linesOnly is a handler that has lines and gets no records.
type linesOnly struct {
	obs.Beginner
	t *testing.T
}

func (l linesOnly) Handle(_ context.Context, r slog.Record) error {
	l.t.Errorf("%q goes through log/slog", r.Message)
	return nil
}
