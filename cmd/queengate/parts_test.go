package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/internal/pgtest"
)

// freeAddr returns a loopback address that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(pgtest.FreePort(t)))
}

// part runs a command in this process until the test ends, when it must stop cleanly, and returns once its operators'
// port is green.
func part(t *testing.T, environ []string, args ...string) {
	t.Helper()
	ops := freeAddr(t)
	ctx, cancel := context.WithCancel(context.Background())
	out := &watch{seen: make(chan struct{}), want: "\x00"}
	ended := make(chan int, 1)
	go func() { ended <- app(ctx, append(args, "--ops", ops), environ, out, out) }()
	t.Cleanup(func() {
		cancel()
		if status := <-ended; status != 0 {
			t.Errorf("%s: got status %d, want 0\n%s", args[0], status, out)
		}
	})
	for {
		resp, err := http.Get("http://" + ops + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case status := <-ended:
			ended <- status
			t.Fatalf("%s ended with status %d before it was ready\n%s", args[0], status, out)
		case <-time.After(5 * time.Millisecond): // being ready is many parts' state and has no event
		}
	}
}

func TestThePartsServeApart(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t) // an empty database
	keys := t.TempDir()
	dir, err := datadir.Open(keys)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	key, err := dir.EnsureCellKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.WriteFile("cell.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})); err != nil {
		t.Fatal(err)
	}
	environ := []string{
		"QUEENGATE_POSTGRES_DSN=" + dsn, "QUEENGATE_BROKER_CELL_KEYS=" + dir.Path("cell.pub"),
		"QUEENGATE_GATEWAY_CELL_KEY_FILE=" + dir.Path("keys", "cell.key"),
	}
	once := func(args ...string) string {
		t.Helper()
		var out, errs strings.Builder
		if status := app(t.Context(), args, environ, &out, &errs); status != 0 {
			t.Fatalf("%s: got status %d, want 0\n%s", args[0], status, errs.String())
		}
		return out.String()
	}
	for range 2 { // it may be run at any time
		if out := once("migrate"); strings.Count(out, "is up to date") != 2 {
			t.Errorf("migrate: got %q, want both schemas", out)
		}
	}
	broker, gateway := freeAddr(t), freeAddr(t)
	bootstrap := []string{"bootstrap", "--tenant", "acme", "--cluster", "orders", "--cell", "local", "--base-url", "http://" + broker, "--plan", "pro"}
	var made struct {
		Keys   []struct{ Name, Key string }
		Tenant string `json:"broker_tenant"`
	}
	if err := json.Unmarshal([]byte(once(bootstrap...)), &made); err != nil || len(made.Keys) == 0 {
		t.Fatalf("bootstrap: got %+v, %v, want keys", made, err)
	}
	if again := once(bootstrap...); !strings.Contains(again, `"keys": []`) {
		t.Errorf("a second bootstrap minted keys: %s", again)
	}
	part(t, environ, "broker", "--broker", broker)
	part(t, environ, "gateway", "--http", gateway, "--https", "off")

	full := made.Keys[len(made.Keys)-1]
	ask := func(base, key string) (int, string) {
		t.Helper()
		r, err := http.NewRequest("POST", "http://"+base+"/api/v1/push", strings.NewReader(`{"items":[{"queue":"q","payload":1}]}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	if status, body := ask(gateway, full.Key); status != 201 || !strings.Contains(body, `"queued"`) {
		t.Errorf("through the gateway: got %d %s, want 201", status, body)
	}
	if status, body := ask(broker, full.Key); status < 400 || status > 499 {
		t.Errorf("past the gateway: got %d %s, want a refusal", status, body)
	}

	// An operator asks the broker itself, for the cell or in the name of a tenant.
	operator := []string{"operator-token", "--cell-key", dir.Path("keys", "cell.key")}
	for path, args := range map[string][]string{
		"/api/v1/system/maintenance":                     operator,
		"/api/v1/resources/queues":                       append(operator[:3:3], "--tenant", made.Tenant),
		"/internal/v1/tenants/" + made.Tenant + "/names": append(operator[:3:3], "--tenant", made.Tenant, "--access", "internal"),
	} {
		r, err := http.NewRequest("GET", "http://"+broker+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(once(args...)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			r.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != 200 {
			t.Errorf("an operator at %s: %d, %v", path, resp.StatusCode, err)
		}
	}
	for _, args := range [][]string{
		{"operator-token", "--ttl", "24h", "--cell-key", dir.Path("keys", "cell.key")},
		{"operator-token", "--tenant", "acme", "--cell-key", dir.Path("keys", "cell.key")},
		{"operator-token", "--access", "rw", "--cell-key", dir.Path("keys", "cell.key")},
		{"operator-token", "--data", t.TempDir()},
	} {
		if status := app(t.Context(), args, nil, io.Discard, io.Discard); status != 2 {
			t.Errorf("%v: status %d, want 2", args[1:], status)
		}
	}
}

func TestABrokenKeyFileStopsTheBroker(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "cell.pub")
	if err := os.WriteFile(name, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	status := app(t.Context(), []string{"broker"}, []string{"QUEENGATE_BROKER_CELL_KEYS=" + name + ",/nonexistent"}, io.Discard, &errs)
	for _, want := range []string{name + ": no PEM block", "/nonexistent"} {
		if status != 2 || !strings.Contains(errs.String(), want) {
			t.Errorf("got status %d, %s, want 2 and %s", status, errs.String(), want)
		}
	}
}

// TestASocketIsOneBrokersAtATime listens where nobody does, where somebody does, and where somebody was killed.
func TestASocketIsOneBrokersAtATime(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "q") // the folder of a test has too long a name for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "b.sock")
	ln, err := listenSocket(t.Context(), "broker.socket", path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o660 {
		t.Errorf("got %v, %v", st.Mode(), err)
	}
	if _, err := listenSocket(t.Context(), "broker.socket", path); err == nil || !strings.Contains(err.Error(), "another program listens") {
		t.Errorf("a second one: %v", err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false) // as a kill leaves it
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if ln, err = listenSocket(t.Context(), "broker.socket", path); err != nil {
		t.Fatalf("after a kill: %v", err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenSocket(t.Context(), "broker.socket", path); err == nil {
		t.Error("a file was taken for a socket")
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("a file that is no socket was removed: %v", err)
	}
	if _, err := listenSocket(t.Context(), "broker.socket", "/"+strings.Repeat("x", maxSocketPath)); err == nil || !strings.Contains(err.Error(), "107") {
		t.Errorf("a path that is too long: %v", err)
	}
}
