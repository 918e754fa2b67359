package main

import (
	"bytes"
	"context"
	cryptotls "crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/bootstrap"
	"github.com/queengate/queengate/internal/conf"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/quota"
)

// asMain makes the test binary the program itself, for tests that kill it.
const asMain = "QUEENGATE_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// watch is an output that tells when it contains a text.
type watch struct {
	mu   sync.Mutex // guards text
	text strings.Builder
	want string
	seen chan struct{}
}

func (w *watch) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := strings.Contains(w.text.String(), w.want)
	w.text.Write(p)
	if !before && strings.Contains(w.text.String(), w.want) {
		close(w.seen)
	}
	return len(p), nil
}

func (w *watch) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// instance is a running `queengate up`.
type instance struct {
	cmd   *exec.Cmd
	out   *watch
	ended chan struct{}
	err   error // of its end
	creds credentials
}

// dataFolder returns a folder that PostgreSQL's own user can reach, which one of t.TempDir is not.
func dataFolder(t *testing.T, name string) string {
	t.Helper()
	base, err := os.MkdirTemp("", "queengate-up")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(base, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	return filepath.Join(base, name)
}

func upCommand(t *testing.T, data string, args ...string) *exec.Cmd {
	t.Helper()
	all := []string{"up", "--data", data, "--http", "127.0.0.1:0", "--https", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--broker", "127.0.0.1:0"}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], append(all, args...)...)
	cmd.Env = append(os.Environ(), asMain+"=1")
	return cmd
}

// start returns when the system says that it is ready.
func start(t *testing.T, data string, args ...string) *instance {
	t.Helper()
	in := &instance{cmd: upCommand(t, data, args...), out: &watch{want: "curl -sS -H", seen: make(chan struct{})}, ended: make(chan struct{})}
	in.cmd.Stdout, in.cmd.Stderr = in.out, in.out
	if err := in.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { in.err = in.cmd.Wait(); close(in.ended) }()
	t.Cleanup(func() {
		in.cmd.Process.Kill()
		<-in.ended
	})
	select {
	case <-in.out.seen:
	case <-in.ended:
		t.Fatalf("ended before it was ready: %v\n%s", in.err, in.out)
	case <-time.After(time.Minute):
		t.Fatalf("not ready in a minute\n%s", in.out)
	}
	text, err := os.ReadFile(filepath.Join(data, credentialsFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &in.creds); err != nil {
		t.Fatal(err)
	}
	return in
}

// interrupt is Ctrl-C; the end must be clean.
func (in *instance) interrupt(t *testing.T) {
	t.Helper()
	if err := in.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-in.ended
	if in.err != nil {
		t.Fatalf("after an interrupt: %v\n%s", in.err, in.out)
	}
}

// do asks the gateway and returns status and body.
func (in *instance) do(t *testing.T, client *http.Client, method, url, host, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	r.Header.Set("Authorization", "Bearer "+in.creds.APIKey)
	resp, err := client.Do(r)
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

// paste runs a text in a plain shell, as a reader would who pastes it into a terminal.
func paste(t *testing.T, text string, env ...string) string {
	t.Helper()
	cmd := exec.Command("sh", "-eu")
	cmd.Stdin = strings.NewReader(text)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, text, out)
	}
	return string(out)
}

func TestTheSystemServesStopsResumesAndRecovers(t *testing.T) {
	t.Parallel()
	data := dataFolder(t, "a folder")
	in := start(t, data)

	t.Run("the three lines of the banner work when pasted", func(t *testing.T) {
		_, lines, _ := strings.Cut(in.out.String(), "push, pop, ack")
		out := paste(t, lines)
		for _, want := range []string{`"status":"queued"`, `"data":{"n":1}`, `"success":true,"error":null,"leaseReleased":true`} {
			if !strings.Contains(out, want) {
				t.Errorf("got %s, want %s in it", out, want)
			}
		}
	})
	t.Run("the quickstart of the README works when pasted", func(t *testing.T) {
		readme, err := os.ReadFile("../../README.md")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(readme), "creds=")
		lines, _, found := strings.Cut(rest, "```")
		if !found {
			t.Fatal("the README has no block that reads the credentials")
		}
		if out := paste(t, "creds="+lines, "QUEENGATE_DATA="+data); !strings.Contains(out, `"leaseReleased":true`) {
			t.Errorf("got %s, want an ack that ended the lease", out)
		}
	})
	t.Run("the cluster comes from the host or the credential", func(t *testing.T) {
		for _, host := range []string{"demo.localhost", "localhost", "127.0.0.1"} {
			if status, body := in.do(t, http.DefaultClient, "GET", in.creds.GatewayURL+"/api/v1/resources/queues", host, ""); status != 200 {
				t.Errorf("host %s: got %d %s, want 200", host, status, body)
			}
		}
	})
	t.Run("HTTPS is served under the local authority", func(t *testing.T) {
		pem, err := os.ReadFile(in.creds.CAFile)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		transport := &http.Transport{TLSClientConfig: &cryptotls.Config{RootCAs: roots}}
		defer transport.CloseIdleConnections()
		status, body := in.do(t, &http.Client{Transport: transport}, "GET", in.creds.GatewayHTTPSURL+"/health", "", "")
		if status != 200 {
			t.Errorf("got %d %s, want 200", status, body)
		}
	})
	t.Run("the operators' port is green", func(t *testing.T) {
		for path, want := range map[string]string{"/readyz": `"status":"ok"`, "/healthz": "limits are kept in memory", "/metrics": "queengate_build_info"} {
			if status, body := in.do(t, http.DefaultClient, "GET", in.creds.OpsURL+path, "", ""); status != 200 || !strings.Contains(body, want) {
				t.Errorf("%s: got %d %s, want 200 with %s", path, status, body, want)
			}
		}
	})
	t.Run("what is secret is its owner's alone", func(t *testing.T) {
		for _, name := range []string{credentialsFile, "keys/cell.key", "tls/ca.key"} {
			if st, err := os.Stat(filepath.Join(data, name)); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("%s: got %v, %v, want mode 0600", name, st, err)
			}
		}
	})
	t.Run("the database's address is usable", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), in.creds.PostgresDSN)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close(context.Background())
	})
	t.Run("a second start on the folder is refused", func(t *testing.T) {
		out, err := upCommand(t, data).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "in use by another queengate") || !strings.Contains(string(out), fmt.Sprint(in.cmd.Process.Pid)) {
			t.Errorf("got %v, %s, want the refusal with the holder's process id", err, out)
		}
	})

	push := func(n int) {
		t.Helper()
		status, body := in.do(t, http.DefaultClient, "POST", in.creds.GatewayURL+"/api/v1/push", "",
			fmt.Sprintf(`{"items":[{"queue":"kept","payload":%d}]}`, n))
		if status != 201 || !strings.Contains(body, "queued") {
			t.Fatalf("push %d: got %d %s", n, status, body)
		}
	}
	pop := func(n int) {
		t.Helper()
		status, body := in.do(t, http.DefaultClient, "GET", in.creds.GatewayURL+"/api/v1/pop/queue/kept?batch=1&autoAck=true", "", "")
		if status != 200 || !strings.Contains(body, fmt.Sprintf(`"data":%d,`, n)) {
			t.Fatalf("pop: got %d %s, want message %d", status, body, n)
		}
	}
	push(1)
	push(2)
	in.interrupt(t)
	key := in.creds.APIKey
	in = start(t, data)
	if in.creds.APIKey != key {
		t.Error("a restart changed the demo key")
	}
	pop(1)
	push(3)

	// The kernel may or may not tell PostgreSQL of our death in time: both must be survived.
	in.cmd.Process.Kill()
	<-in.ended
	in = start(t, data)
	pop(2)

	pid, err := os.ReadFile(filepath.Join(data, "postgres", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	var postmaster int
	if _, err := fmt.Sscan(string(pid), &postmaster); err != nil {
		t.Fatal(err)
	}
	in.cmd.Process.Kill()
	if err := syscall.Kill(postmaster, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-in.ended
	in = start(t, data)
	pop(3)

	// The text of a key may be lost between its making and its writing.
	in.interrupt(t)
	if err := os.Remove(filepath.Join(data, credentialsFile)); err != nil {
		t.Fatal(err)
	}
	in = start(t, data)
	if in.creds.APIKey == key {
		t.Error("a lost key came back")
	}
	push(4)
	pop(4)
	in.interrupt(t)
}

// TestTheGatewayReachesTheBrokerByItsSocket starts the system where a socket can be, twice since the first one is killed,
// and where it cannot.
func TestTheGatewayReachesTheBrokerByItsSocket(t *testing.T) {
	t.Parallel()
	plain := dataFolder(t, "data")
	for _, run := range []struct{ data, want string }{
		{plain, `broker="` + filepath.Join(plain, "broker.sock") + `"`},
		{plain, `broker="` + filepath.Join(plain, "broker.sock") + `"`},
		{dataFolder(t, strings.Repeat("long", 30)), `broker="127.0.0.1:`},
	} {
		in := start(t, run.data)
		if _, body := in.do(t, http.DefaultClient, "GET", in.creds.OpsURL+"/metrics", "", ""); !strings.Contains(body, "queengate_proxy_broker_up{"+run.want) {
			t.Errorf("no broker with %s", run.want)
		}
		if status, body := in.do(t, http.DefaultClient, "GET", in.creds.GatewayURL+"/api/v1/resources/queues", "", ""); status != 200 {
			t.Errorf("got %d %s, want 200", status, body)
		}
		if err := in.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-in.ended
	}
}

// A gateway starts without Redis too, and says so; when Redis answers it decides with it.
func TestRedisIsShownAsItIs(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	for rule, tc := range map[string]struct{ address, mode, want string }{
		"none":            {"", modeAuto, "limits are kept in memory"},
		"not wanted":      {os.Getenv("QUEENGATE_TEST_REDIS"), modeLocal, "limits are kept in memory"},
		"leases":          {os.Getenv("QUEENGATE_TEST_REDIS"), modeAuto, "gateways lease their limits"},
		"exact":           {os.Getenv("QUEENGATE_TEST_REDIS"), modeExact, "answers; it decides for"},
		"nobody is there": {"redis://" + free.Addr().String(), modeLeased, "Redis is away; this gateway decides with its part"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			c := defaults()
			c.Redis, c.Quota.Mode, c.Quota.Budget = conf.Secret(tc.address), tc.mode, time.Second
			o, err := c.fleet()
			if err != nil {
				t.Fatal(err)
			}
			var options []quota.Option
			if o != nil {
				o.Prefix = "test:" + t.Name()
				options = append(options, quota.WithFleet(*o))
			}
			gate := quota.NewGate(slog.New(slog.DiscardHandler), options...)
			ctx, stop := context.WithCancel(t.Context())
			stop() // it begins with a heartbeat, and takes leave
			if err := gate.Run(ctx); err != nil {
				t.Error(err)
			}
			if fact, err := fleetHealth(gate)(t.Context()); err != nil || !strings.Contains(fact, tc.want) {
				t.Errorf("got %q, %v, want %q", fact, err, tc.want)
			}
		})
	}
}

// A fleet's control database in the environment is easily forgotten: its brokers must not be replaced by the one of `up`.
func TestUpLeavesACellOfOthersAlone(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t, migrations.Broker, migrations.Gateway)
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	const theirs = "http://10.0.0.11:6632"
	if _, err := bootstrap.Bootstrap(t.Context(), pool, bootstrap.Request{Tenant: "acme", Cluster: "acme", Cell: demoCell, BaseURL: theirs}); err != nil {
		t.Fatal(err)
	}
	out, err := upCommand(t, dataFolder(t, "data"), "--postgres", dsn).CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("1 other clusters with the brokers at "+theirs)) {
		t.Errorf("got %v, %s", err, out)
	}
	var at string
	if err := pool.QueryRow(t.Context(), "SELECT base_url FROM queengate.cells WHERE slug = $1", demoCell).Scan(&at); err != nil || at != theirs {
		t.Errorf("the brokers of the cell are at %s, %v", at, err)
	}
}

func TestKeysOfABootstrap(t *testing.T) {
	t.Parallel()
	if spec, err := parseKey("auditor=read:payload,produce"); err != nil || spec.Name != "auditor" || spec.Scopes != plans.ScopeReadPayload|plans.ScopeProduce {
		t.Errorf("%+v, %v", spec, err)
	}
	for _, text := range []string{"", "auditor", "=read", "auditor=", "auditor=write", "auditor=read,"} {
		if spec, err := parseKey(text); err == nil {
			t.Errorf("%q is %+v", text, spec)
		}
	}
}

func TestAStartThatCannotWorkSaysWhy(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() }) // and no defer: parallel subtests outlive this function
	// A port that was free a moment ago answers nobody.
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	for rule, tc := range map[string]struct {
		args []string
		want string
	}{
		"a port in use":           {[]string{"--http", taken.Addr().String()}, "http: another program listens on " + taken.Addr().String()},
		"no gateway":              {[]string{"--http", "off"}, "`up` needs both"},
		"PostgreSQL is not there": {[]string{"--postgres", "postgres://queen:hunter2@" + free.Addr().String() + "/x"}, "migrate broker"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			out, err := upCommand(t, dataFolder(t, "data"), tc.args...).CombinedOutput()
			if err == nil || !bytes.Contains(out, []byte(tc.want)) || bytes.Contains(out, []byte("hunter2")) {
				t.Errorf("got %v, %s, want %s and no secret", err, out, tc.want)
			}
		})
	}
}
