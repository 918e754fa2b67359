package proxy

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
)

// releasing is a raw broker that parks every pop until it is released, and then answers it.
func releasing(t *testing.T) (address string, parked, release chan struct{}) {
	parked, release = make(chan struct{}, 64), make(chan struct{}, 64)
	address = rawBroker(t, func(c net.Conn, _ *http.Request, _ string) bool {
		parked <- struct{}{}
		select {
		case <-release:
		case <-t.Context().Done():
			return false
		}
		answerJSON(c, "200 OK", `{"messages":[]}`)
		return true
	})
	return address, parked, release
}

// sleeping waits until n polls are without a handler.
func (w *world) sleeping(n int64) {
	w.t.Helper()
	until(w.t, "polls that sleep", func() bool { return w.gateway.asleep.Load() == n })
}

// TestAPollThatWaitsHasNoGoroutine parks many polls: the server serves none of their connections meanwhile, and they are
// answered and go on being served all the same.
func TestAPollThatWaitsHasNoGoroutine(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain", "tls"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, parked, release := releasing(t)
			w := setup(t, options{address: address})
			dial := w.dial
			if name == "tls" {
				dial = w.dialTLS
			}
			const polls = 20
			var conns []*wireConn
			for range polls {
				c := dial()
				c.send(w.head("GET", waiting))
				await(t, parked)
				conns = append(conns, c)
			}
			w.sleeping(polls)
			until(t, "the server to let go", func() bool { return w.gateway.server.GetCurrentConcurrency() == 0 })
			if n := w.slots(); n != polls {
				t.Errorf("%v slots are taken, want %d", n, polls)
			}
			for range 3 {
				for range polls {
					release <- struct{}{}
				}
				for _, c := range conns {
					if r := c.read(); r.StatusCode != 200 || r.Close {
						t.Fatalf("got %d %q, close %v", r.StatusCode, r.body, r.Close)
					}
				}
				until(t, "the slots", func() bool { return w.slots() == 0 })
				for _, c := range conns {
					c.send(w.head("GET", waiting))
					await(t, parked)
				}
				w.sleeping(polls)
			}
			for range polls {
				release <- struct{}{}
			}
			for _, c := range conns {
				c.read()
			}
		})
	}
}

// TestWhatCannotSleepWaitsInItsHandler: a client that closes after the answer, and one of old HTTP.
func TestWhatCannotSleepWaitsInItsHandler(t *testing.T) {
	t.Parallel()
	address, parked, release := releasing(t)
	w := setup(t, options{address: address})
	for name, request := range map[string]string{
		"a connection that ends": w.head("GET", waiting, "Connection: close"),
		"HTTP/1.0":               strings.Replace(w.head("GET", waiting), "HTTP/1.1", "HTTP/1.0", 1),
	} {
		c := w.dial()
		c.send(request)
		await(t, parked)
		if n := w.gateway.asleep.Load(); n != 0 {
			t.Errorf("%s: %d polls sleep", name, n)
		}
		release <- struct{}{}
		if r := c.read(); r.StatusCode != 200 || !c.ended() {
			t.Errorf("%s: got %d %q", name, r.StatusCode, r.body)
		}
	}
}

// TestATLSClientThatSaysItClosesGivesItsPollUp: it has not closed its side of the TCP connection.
func TestATLSClientThatSaysItClosesGivesItsPollUp(t *testing.T) {
	t.Parallel()
	address, parked, ended := parking(t)
	w := setup(t, options{address: address})
	c := w.dialTLS()
	c.send(w.head("GET", waiting))
	await(t, parked)
	w.sleeping(1)
	if err := c.Conn.(*tls.Conn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	await(t, ended)
	until(t, "the slot", func() bool { return w.slots() == 0 })
}

// TestATLSClientThatSendsMoreWakesItsPollOnly: half a request is no reason to end the poll before it.
func TestATLSClientThatSendsMoreWakesItsPollOnly(t *testing.T) {
	t.Parallel()
	address, parked, release := releasing(t)
	w := setup(t, options{address: address})
	c := w.dialTLS()
	c.send(w.head("GET", waiting))
	await(t, parked)
	w.sleeping(1)
	next := w.head("GET", waiting)
	c.send(next[:20])
	w.sleeping(0)
	if n := w.slots(); n != 1 {
		t.Errorf("%v slots are taken, want 1", n)
	}
	release <- struct{}{}
	if r := c.read(); r.StatusCode != 200 {
		t.Fatalf("got %d %q", r.StatusCode, r.body)
	}
	c.send(next[20:])
	await(t, parked)
	release <- struct{}{}
	if r := c.read(); r.StatusCode != 200 {
		t.Errorf("the next request: got %d %q", r.StatusCode, r.body)
	}
}

// TestASleepingPollGoesToAnotherBroker: it wakes when its broker goes away, and sleeps again at the next.
func TestASleepingPollGoesToAnotherBroker(t *testing.T) {
	t.Parallel()
	asked := make(chan net.Conn, 8)
	release := make(chan struct{})
	w := setup(t, options{address: rawBroker(t, func(c net.Conn, _ *http.Request, _ string) bool {
		asked <- c
		select {
		case <-release:
		case <-t.Context().Done():
			return false
		}
		answerJSON(c, "200 OK", `{"messages":[]}`)
		return true
	})})
	c := w.dial()
	c.send(w.head("GET", waiting))
	first := await(t, asked)
	w.sleeping(1)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, asked)
	w.sleeping(1)
	close(release)
	if r := c.read(); r.StatusCode != 200 {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
}

// BenchmarkPoll is a waiting poll that finds its message only after it has gone to sleep.
func BenchmarkPoll(b *testing.B) {
	release := make(chan struct{}, 1)
	w := setup(b, options{broker: func(ctx *fasthttp.RequestCtx) {
		<-release
		ctx.SetContentType("application/json")
		ctx.SetBodyString(`{"messages":[]}`)
	}})
	c := w.dial()
	request := w.head("GET", waiting)
	b.ReportAllocs()
	for b.Loop() {
		c.send(request)
		for w.gateway.asleep.Load() == 0 {
			runtime.Gosched()
		}
		release <- struct{}{}
		c.read()
	}
}

// TestAPollThatIsAnsweredAtOnceDoesNotSleep looks at who serves it: a poll that has slept goes on in a goroutine that
// its sleep has begun. On a busy machine at once may be too late, so one of many is enough.
func TestAPollThatIsAnsweredAtOnceDoesNotSleep(t *testing.T) {
	t.Parallel()
	w := setup(t, options{broker: func(ctx *fasthttp.RequestCtx) { ctx.SetBodyString(`{"messages":[]}`) }})
	served := make(chan string, 1)
	w.gateway.log = slog.New(witness{slog.DiscardHandler, func() {
		stack := make([]byte, 64<<10)
		served <- string(stack[:runtime.Stack(stack, false)])
	}})
	var by string
	for range 50 {
		if r := w.ask(w.head("GET", waiting)); r.StatusCode != 200 {
			t.Fatalf("got %d %q", r.StatusCode, r.body)
		}
		if by = await(t, served); strings.Contains(by, "(*poll).serve") && !strings.Contains(by, "(*sleep).end") {
			return
		}
	}
	t.Errorf("served by\n%s", by)
}

// witness is told of every line of a request, by whoever writes it.
type witness struct {
	slog.Handler
	see func()
}

func (w witness) Enabled(context.Context, slog.Level) bool { return true }

func (w witness) Handle(_ context.Context, r slog.Record) error {
	if r.Message == httpkit.RequestLine {
		w.see()
	}
	return nil
}

// TestALookForAnAnswerTakesNothingFromIt looks for an answer before it comes, when it comes and when none will.
func TestALookForAnAnswerTakesNothingFromIt(t *testing.T) {
	t.Parallel()
	release := make(chan string, 1)
	address := rawBroker(t, func(c net.Conn, _ *http.Request, _ string) bool {
		answer := <-release
		if answer != "" {
			answerJSON(c, "200 OK", answer)
		}
		return answer != ""
	})
	t.Cleanup(func() { close(release) })
	d := &upstreamDialer{connectTime: patience, maxIdle: 1}
	b := &broker{address: address}
	b.conns.max = 1
	t.Cleanup(b.conns.closeAll)
	depart := func() *flight {
		f, err := d.send(&b.conns, b, nil, []byte("GET / HTTP/1.1\r\nHost: b\r\n\r\n"), nil, time.Now(), time.Now().Add(patience))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := depart()
	for range 3 {
		if f.answersWithin(time.Nanosecond) {
			t.Error("an answer before it was given")
		}
	}
	release <- "late"
	a, _, err := f.land()
	if err != nil {
		t.Fatal(err)
	}
	a.discard()
	f = depart()
	release <- "soon"
	if !f.answersWithin(patience) {
		t.Error("no answer")
	}
	if a, _, err = f.land(); err != nil || a.size() != len("soon") {
		t.Fatalf("got %v, %v", a, err)
	}
	a.discard()
	f = depart()
	release <- ""
	if !f.answersWithin(patience) {
		t.Error("a broken connection is waited for")
	}
	if a, far, err := f.land(); err == nil || far != sent {
		t.Errorf("got %v, %v, %v", a, far, err)
	}
}
