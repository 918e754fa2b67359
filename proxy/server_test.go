package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/queengate/queengate/plans"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp: the date of answers, for the life of the process, and the cleaner of a worker pool, which looks up
		// from its sleep only every ten seconds.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		// One goroutine for all sentries of a process, for its life.
		goleak.IgnoreAnyFunction("github.com/queengate/queengate/internal/httpkit.(*lookout).run"),
	)
}

func TestAPanicIsAnAnswer(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	good := w.book.Snapshot()
	w.book.current.Store(nil)
	for name, request := range map[string]string{"with a body": w.push(aPush), "without": w.head("GET", "/api/v1/pop/queue/q")} {
		c := w.dial()
		c.send(request)
		if r := c.read(); r.StatusCode != 500 || r.code() != "internal" || r.outcome() != "unknown" || !c.ended() {
			t.Errorf("%s: got %d %q", name, r.StatusCode, r.body)
		}
	}
	w.book.current.Store(good)
	if r := w.ask(w.push(aPush)); r.StatusCode != 201 {
		t.Errorf("afterwards: got %d %q", r.StatusCode, r.body)
	}
}

func TestBrokerConnectionsAreKept(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	c := w.dial()
	for range 50 {
		c.send(w.push(aPush))
		if r := c.read(); r.StatusCode != 201 {
			t.Fatalf("got %d", r.StatusCode)
		}
	}
	if n := w.broker.conns.Load(); n > 4 { // one per client, and one per question
		t.Errorf("%d connections for one client and the probes", n)
	}
}

func TestOldHTTPGetsChunksAsOneBody(t *testing.T) {
	t.Parallel()
	w := setup(t, options{address: rawBroker(t, func(c net.Conn, _ *http.Request, _ string) bool {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nX-Queen-Trailer: t\r\n\r\n")
		return true
	})})
	for _, version := range []string{"HTTP/1.0", "HTTP/1.1"} {
		c := w.dial()
		c.send(strings.Replace(w.head("GET", "/api/v1/resources/queues"), "HTTP/1.1", version, 1))
		r := c.read()
		if r.StatusCode != 200 || r.body != "abcde" || len(r.Trailer) > 0 {
			t.Errorf("%s: got %d %q %v", version, r.StatusCode, r.body, r.Trailer)
		}
		if chunked := len(r.TransferEncoding) > 0; chunked != (version == "HTTP/1.1") {
			t.Errorf("%s: chunked %v", version, chunked)
		}
	}
}

func TestASlowReaderDoesNotHoldMemory(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	sent := make(chan int, 1)
	w := setup(t, options{
		config: func(c *Config) { c.WriteTime = 200 * time.Millisecond },
		address: rawBroker(t, func(c net.Conn, _ *http.Request, _ string) bool {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size)
			piece, n := make([]byte, 64<<10), 0
			for n < size {
				m, err := c.Write(piece)
				n += m
				if err != nil {
					break
				}
			}
			sent <- n
			return false
		}),
	})
	c := w.dial()
	for _, target := range []string{"/api/v1/resources/queues", "/api/v1/pop/queue/q?batch=1000", waiting} {
		c.send(w.head("GET", target))
		// The client reads nothing: the gateway gives up after its write time, and the broker was never read ahead of it.
		if n := await(t, sent); n >= size {
			t.Errorf("%s: all of %d bytes went somewhere", target, n)
		}
		until(t, "the end of the client's connection", func() bool { return w.gateway.walls.open.Load() == 0 })
		c = w.dial()
	}
}

func TestAPollsRefusalByThePlanHoldsNoSlot(t *testing.T) {
	t.Parallel()
	address, parked, _ := parking(t)
	w := setup(t, options{address: address, facts: func(w *world) { w.cluster.Limits.MaxParkedPops = one(int64(2)) }})
	for range 2 {
		w.dial().send(w.head("GET", waiting))
		await(t, parked)
	}
	for range 5 {
		r := w.ask(w.head("GET", waiting))
		if r.StatusCode != 429 || r.Header.Get("X-Queen-Limit-Name") != plans.LimitParked || r.Header.Get("Retry-After") == "" {
			t.Errorf("got %d %q %v", r.StatusCode, r.body, r.Header)
		}
	}
	if n := w.slots(); n != 2 {
		t.Errorf("%v slots, want 2", n)
	}
}
