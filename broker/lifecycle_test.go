package broker

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

func TestDrainEndsParkedPollsAndFinishesTheRest(t *testing.T) {
	t.Parallel()
	// Nothing else ends the polls before the test's patience does.
	w := setup(t, func(c *Config) { c.DrainTimeout = time.Hour })
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			a := w.do("GET", "/api/v1/pop/queue/q?wait=true&timeout=90000", "")
			if a.status != 204 {
				t.Errorf("a drained poll: %d %s", a.status, a.body)
			}
		})
	}
	w.until("parked", func() bool { return w.b.park.Waiting() == 20 })
	w.stop()
	wg.Wait()
	if _, err := w.try("GET", "/livez", ""); err == nil {
		t.Error("the listener is still open")
	}
}

// TestADrainDoesNotWaitForRequestsThatDoNotArrive fails at the drain's end, 20 seconds later, when it does: the clients
// would be waited for for a minute.
func TestADrainDoesNotWaitForRequestsThatDoNotArrive(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *Config) { c.drainArrival = time.Millisecond })
	dial := func(text string) (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		return c, bufio.NewReader(c)
	}
	const whole = "GET /livez HTTP/1.1\r\nHost: q\r\n\r\n"
	dial("")
	dial("POST /api/v1/pu")
	_, idle := dial(whole)
	if r, err := http.ReadResponse(idle, nil); err != nil || r.StatusCode != 200 {
		t.Fatal(r, err)
	}
	// The interim answer says that the head has been read.
	body, br := dial("POST /api/v1/push HTTP/1.1\r\nHost: q\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
	if line, err := br.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatal(line, err)
	}
	if line, err := br.ReadString('\n'); err != nil || line != "\r\n" {
		t.Fatal(line, err)
	}
	if _, err := io.WriteString(body, `{"items":[`); err != nil {
		t.Fatal(err)
	}
	w.stop()
	r, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != 503 || !r.Close || !strings.Contains(string(text), `"code":"draining"`) || !strings.Contains(string(text), `"outcome":"none"`) {
		t.Errorf("half a body: %d %v %s, %v", r.StatusCode, r.Header, text, err)
	}
}

func TestReadinessTurnsRedBeforeTheDrain(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *Config) { c.DrainDelay = 3 * time.Second })
	if _, err := w.b.Serving(t.Context()); err != nil {
		t.Errorf("a serving broker: %v", err)
	}
	done := make(chan struct{})
	go func() { w.stop(); close(done) }()
	w.until("red", func() bool { return w.do("GET", "/readyz", "").status == 503 })
	if _, err := w.b.Serving(t.Context()); err == nil {
		t.Error("the process of a draining broker is ready")
	}
	a := w.do("GET", "/livez", "").want(t, 200)
	if !a.close || a.header.Get(wire.HeaderDraining) == "" {
		t.Errorf("a draining broker keeps connections, or does not say so: %v", a.header)
	}
	w.one("q", "a") // still served
	<-done
}

// TestStartAndStop runs brokers that are stopped at once, twice, before they begin and while they serve, and counts
// goroutines afterwards.
func TestStartAndStop(t *testing.T) {
	pool := pgtest.New(t, migrations.Broker)
	db := store.New(pool)
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	log := slog.New(slog.DiscardHandler)
	for i := range 25 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		b := New(log, Deps{Store: db, Ping: pool.Ping, Listener: ln}, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		if i%5 == 0 {
			cancel() // before it begins
		}
		go func() { ended <- b.Run(ctx) }()
		if i%5 > 2 {
			r, err := http.Get("http://" + ln.Addr().String() + "/livez")
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Body.Close(); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		if i%5 == 4 {
			cancel() // twice
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("run %d: %v", i, err)
			}
		case <-time.After(patience):
			t.Fatalf("run %d does not stop", i)
		}
		if err := b.Run(ctx); err == nil {
			t.Error("a broker ran twice")
		}
	}
	http.DefaultClient.CloseIdleConnections()
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before+5; runtime.Gosched() {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}

// TestTheSocketIsServedBesideThePort asks a broker on both until it stops, and looks that it leaves no file.
func TestTheSocketIsServedBesideThePort(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	dir, err := os.MkdirTemp("", "q") // the folder of a test has too long a name for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "broker.sock")
	socket, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	w := serveWith(t, pool, Deps{Store: store.New(pool), Socket: socket}, nil)
	local := http.Client{Timeout: patience, Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", path)
	}}}
	w.one("q", "a")
	r, err := local.Get("http://localhost/api/v1/pop/queue/q?subscriptionMode=all&consumerGroup=g")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err := errors.Join(err, r.Body.Close()); err != nil || r.StatusCode != 200 || !strings.Contains(string(body), `"a"`) {
		t.Errorf("got %d %q, %v", r.StatusCode, body, err)
	}
	local.CloseIdleConnections()
	w.stop()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func TestAnAddressInUseIsAnError(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	b := New(slog.New(slog.DiscardHandler), Deps{Store: store.New(nil)}, Config{Addr: ln.Addr().String()})
	if err := b.Run(t.Context()); err == nil {
		t.Error("two brokers listen on one address")
	}
}

func TestConfigReportsEveryProblem(t *testing.T) {
	t.Parallel()
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	err := Config{Tenancy: true, MaxParked: -1, SubscriptionMode: "some", ConfigureMode: "x", MaxBodyBytes: 1}.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, key := range []string{"broker.keys", "broker.cell", "broker.max_parked", "broker.subscription_mode", "broker.configure_mode", "broker.max_body_bytes"} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("%s is not reported: %v", key, err)
		}
	}
}
