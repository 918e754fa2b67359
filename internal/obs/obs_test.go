package obs

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLogFormatAndLevelAreChecked(t *testing.T) {
	t.Parallel()
	for _, bad := range [][2]string{{"xml", "info"}, {"json", "loud"}} {
		if _, err := NewLogger(io.Discard, bad[0], bad[1]); err == nil {
			t.Errorf("format %s, level %s: want an error", bad[0], bad[1])
		}
	}
	var b strings.Builder
	log, err := NewLogger(&b, "json", "warn")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet")
	log.Warn("loud", "queue", "orders")
	var line struct{ Msg, Queue string }
	if err := json.Unmarshal([]byte(b.String()), &line); err != nil || line.Msg != "loud" || line.Queue != "orders" {
		t.Errorf("got %q, %v, want the one warning as JSON", b.String(), err)
	}
}

func TestTheOperatorsPortTellsHealthAndMetrics(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := NewOps(slog.New(slog.DiscardHandler), ln, NewRegistry(), map[string]Health{
		"database": func(context.Context) (string, error) { return "", errors.New("dial postgres://secret") },
		"redis":    func(context.Context) (string, error) { return "not configured", nil },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	for path, want := range map[string]struct {
		status int
		text   string
	}{
		"/livez":   {200, `"status":"ok"`},
		"/readyz":  {503, `"database":{"status":"failing"}`},
		"/healthz": {200, `"redis":{"status":"ok","fact":"not configured"}`},
		"/metrics": {200, "queengate_build_info{"},
		"/nothing": {404, ""},
	} {
		resp, err := http.Get("http://" + ln.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != want.status || !strings.Contains(string(body), want.text) || strings.Contains(string(body), "secret") {
			t.Errorf("%s: got %d %s, %v, want %d with %s and no cause", path, resp.StatusCode, body, err, want.status, want.text)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("a clean stop: got %v, want nil", err)
	}
}

func TestAWarningDoesNotWait(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	log, err := NewLogger(NewBuffer(r), "text", "info")
	if err != nil {
		t.Fatal(err)
	}
	log = log.With("part", "gateway").WithGroup("g")
	log.Info("one")
	log.Warn("two", "n", 2)
	// Both stand there now, whether or not the first one's time has come meanwhile.
	if got := strings.Join(r.read(), ""); strings.Count(got, "\n") != 2 || !strings.HasSuffix(got, "msg=two part=gateway g.n=2\n") {
		t.Errorf("got %q, want both lines", got)
	}
}

func BenchmarkRequestLine(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for name, w := range map[string]io.Writer{"direct": f, "buffered": NewBuffer(f)} {
		b.Run(name, func(b *testing.B) {
			log, err := NewLogger(w, "json", "info")
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				log.LogAttrs(b.Context(), slog.LevelInfo, "request", slog.String("request_id", "01a22962-a023-74d7-ac4c-98b3cded2311"),
					slog.String("cluster", "demo"), slog.String("route", "/api/v1/push"), slog.Int("status", 201), slog.Float64("dur_ms", 1.25))
			}
		})
	}
}
