package obs

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
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
