package httpkit

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// detachWorld is a server whose handler lets go of "/wait", where it can; the test has it go on.
type detachWorld struct {
	server  *fasthttp.Server
	addr    string
	waiting chan *Detached // what was let go of
	inPlace chan string    // requests that could not be
}

func setupDetach(t *testing.T, concurrency int) *detachWorld {
	t.Helper()
	w := &detachWorld{waiting: make(chan *Detached, 64), inPlace: make(chan string, 64)}
	w.server = &fasthttp.Server{
		NoDefaultServerHeader: true, Logger: log.New(io.Discard, "", 0), ReadTimeout: patience, WriteTimeout: patience, IdleTimeout: patience,
		ReduceMemoryUsage: true, Concurrency: concurrency,
		Handler: func(ctx *fasthttp.RequestCtx) {
			if text, ok := Resumed(ctx).(string); ok {
				ctx.SetBodyString(text)
				return
			}
			path := string(ctx.Path())
			if path == "/wait" {
				if Detach(ctx, func(d *Detached) { w.waiting <- d }) {
					return
				}
				w.inPlace <- path
			}
			ctx.SetBodyString(path)
		},
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(HoldbackListener{ln}) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := w.server.ShutdownWithContext(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return w
}

func (w *detachWorld) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// goOn serves a connection that was let go of, in the background.
func (w *detachWorld) goOn(d *Detached, answer string) <-chan bool {
	taken := make(chan bool, 1)
	go func() { taken <- d.Serve(w.server, answer) }()
	return taken
}

func TestADetachedRequestIsAnsweredAndItsConnectionGoesOn(t *testing.T) {
	t.Parallel()
	w := setupDetach(t, 0)
	c := w.dial(t)
	br := bufio.NewReader(c)
	for range 10 {
		send(t, c, request("/wait"))
		w.goOn(await(t, w.waiting), "later")
		if b := body(t, br); b != "later" {
			t.Fatalf("got %q, want later", b)
		}
		send(t, c, request("/plain"))
		if b := body(t, br); b != "/plain" {
			t.Fatalf("got %q, want /plain", b)
		}
	}
}

// TestDetachingLosesNoPipelinedByte sends requests behind one that waits: with it, so that the server has read them
// already, and while it waits.
func TestDetachingLosesNoPipelinedByte(t *testing.T) {
	t.Parallel()
	long := "/?" + strings.Repeat("x", 3000)
	for name, parts := range map[string][2]string{
		"with it":            {request("/a") + request(long), ""},
		"in halves":          {request("/a") + "GET /", "?" + strings.Repeat("x", 3000) + " HTTP/1.1\r\nHost: q\r\n\r\n"},
		"while it waits":     {"", request("/a") + request(long)},
		"beyond the reader":  {request("/a") + request("/?"+strings.Repeat("x", 3900)), ""},
		"a waiting one more": {request("/a") + request("/b") + request("/wait"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setupDetach(t, 0)
			c := w.dial(t)
			br := bufio.NewReader(c)
			send(t, c, request("/wait")+parts[0])
			d := await(t, w.waiting)
			send(t, c, parts[1])
			w.goOn(d, "later")
			want := []string{"later", "/a", "/"}
			if strings.Contains(parts[0], "/b") {
				want = []string{"later", "/a", "/b"}
			}
			for i, want := range want {
				if b := body(t, br); b != want {
					t.Fatalf("answer %d is %q, want %q", i, b, want)
				}
			}
			if strings.Contains(parts[0], "/b") {
				w.goOn(await(t, w.waiting), "again")
				if b := body(t, br); b != "again" {
					t.Fatalf("got %q, want again", b)
				}
			}
		})
	}
}

func TestAHangUpIsSeenWhileDetached(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"quiet": "", "behind bytes": request("/a") + strings.Repeat("x", 5000)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setupDetach(t, 0)
			c := w.dial(t)
			send(t, c, request("/wait"))
			d := await(t, w.waiting)
			gone := make(chan struct{})
			s, ok := d.Stand(false, func() { close(gone) })
			if !ok {
				t.Skip("no sentries on this system")
			}
			send(t, c, before)
			select {
			case <-gone:
				t.Fatal("a client that is there has hung up")
			default:
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			await(t, gone)
			s.Stop()
			if !await(t, w.goOn(d, "to nobody")) {
				t.Error("the handler has not got its state back")
			}
		})
	}
}

// TestAClientThatIsGoneIsHandedOverAllTheSame fails when the server gives up on a closed connection before it lets go.
func TestAClientThatIsGoneIsHandedOverAllTheSame(t *testing.T) {
	t.Parallel()
	w := setupDetach(t, 0)
	for range 20 {
		c := w.dial(t)
		if err := c.(*net.TCPConn).SetLinger(0); err != nil { // a reset
			t.Fatal(err)
		}
		send(t, c, request("/wait"))
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		d := await(t, w.waiting)
		if !await(t, w.goOn(d, "to nobody")) {
			t.Fatal("the handler has not got its state back")
		}
	}
}

func TestAFullServerSaysThatItHasNotTakenAConnectionBack(t *testing.T) {
	t.Parallel()
	w := setupDetach(t, 1)
	first := w.dial(t)
	send(t, first, request("/wait"))
	d := await(t, w.waiting)
	// Another one takes the only place, and keeps it alive. The server gives it away a moment after it has let go of the
	// first connection, and refuses until then.
	for b := ""; b != "/plain"; {
		if b != "" && !strings.Contains(b, "Concurrency limit exceeded") {
			t.Fatal(b)
		}
		other := w.dial(t)
		send(t, other, request("/plain"))
		b = body(t, bufio.NewReader(other))
	}
	if await(t, w.goOn(d, "later")) {
		t.Error("a full server has taken it")
	}
	if _, err := io.ReadAll(first); err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("the connection is not closed: %v", err)
	}
}

func TestWhatCannotBeDetachedIsServedInPlace(t *testing.T) {
	t.Parallel()
	w := setupDetach(t, 0)
	for name, text := range map[string]string{
		"HTTP/1.0":          "GET /wait HTTP/1.0\r\nHost: q\r\n\r\n",
		"kept alive in 1.0": "GET /wait HTTP/1.0\r\nHost: q\r\nConnection: keep-alive\r\n\r\n",
		"to be closed":      "GET /wait HTTP/1.1\r\nHost: q\r\nConnection: close\r\n\r\n",
		"with a body":       "POST /wait HTTP/1.1\r\nHost: q\r\nContent-Length: 2\r\n\r\nhi",
	} {
		c := w.dial(t)
		send(t, c, text)
		await(t, w.inPlace)
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || r.StatusCode != 200 {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
}
