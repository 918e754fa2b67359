package httpkit

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/wire"
)

// patience bounds a wait for something that must happen; it is long only so that a loaded machine does not lie.
const patience = 20 * time.Second

// world is a fasthttp server whose handler parks on "/park" until the client goes or release is closed: no other end is
// in sight.
type world struct {
	transport
	dial    func() net.Conn
	parked  chan struct{} // one value per handler that has begun to wait
	left    chan string   // how each wait ended
	release chan struct{}
}

func setup(t *testing.T, tr transport) *world {
	t.Helper()
	w := &world{transport: tr, parked: make(chan struct{}, 64), left: make(chan string, 64), release: make(chan struct{})}
	s := &fasthttp.Server{
		NoDefaultServerHeader: true, Logger: log.New(io.Discard, "", 0), ReadTimeout: time.Hour, IdleTimeout: time.Hour, ReduceMemoryUsage: true, MaxRequestBodySize: 1 << 20,
		ErrorHandler: func(ctx *fasthttp.RequestCtx, err error) { WriteError(ctx, HeadError(err), "r") },
		Handler: func(ctx *fasthttp.RequestCtx) {
			if string(ctx.Path()) != "/park" {
				ctx.SetBodyString("plain")
				return
			}
			c, ok := Holdback(ctx.Conn())
			if !ok {
				t.Error("the served connection is not wrapped")
				return
			}
			watch := c.Watch()
			defer watch.Stop()
			w.parked <- struct{}{}
			select {
			case <-watch.Gone():
				w.left <- "gone"
			case <-w.release:
				w.left <- "released"
			}
			ctx.SetBodyString("parked")
		},
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var ln net.Listener = tcp
	if tr.hidden {
		ln = hidingListener{tcp}
	}
	ln = HoldbackListener{ln}
	w.dial = func() net.Conn {
		c, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if tr.secure {
		server, client := selfSigned(t)
		ln = tls.NewListener(ln, server)
		plain := w.dial
		w.dial = func() net.Conn { return tls.Client(plain(), client) }
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.ShutdownWithContext(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return w
}

func selfSigned(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "q"}, DNSNames: []string{"q"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		&tls.Config{RootCAs: pool, ServerName: "q"}
}

func request(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: q\r\n\r\n" }

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func body(t *testing.T, br *bufio.Reader) string {
	t.Helper()
	r, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func await[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("waited in vain")
		panic("unreachable")
	}
}

// transport is what a world's connections are like. A hidden socket looks like none: watches have to read ahead.
type transport struct{ secure, hidden bool }

func eachTransport(t *testing.T, f func(t *testing.T, w *world)) {
	for name, tr := range map[string]transport{
		"plain": {}, "tls": {secure: true}, "plain, read ahead": {hidden: true}, "tls, read ahead": {secure: true, hidden: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, setup(t, tr))
		})
	}
}

// hidingListener accepts connections that show no descriptor.
type hidingListener struct{ net.Listener }

func (l hidingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return hiddenConn{c, c.(*net.TCPConn)}, nil
}

type hiddenConn struct {
	net.Conn
	half interface{ CloseWrite() error }
}

func (c hiddenConn) CloseWrite() error { return c.half.CloseWrite() }

func TestHangUpIsNoticedWhileTheHandlerWaits(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, w *world) {
		c := w.dial()
		send(t, c, request("/park"))
		await(t, w.parked)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if how := await(t, w.left); how != "gone" {
			t.Errorf("wait ended as %q, want gone", how)
		}
	})
}

// TestHangUpIsNoticedBehindFurtherBytes fails when the look-out ends with what it can hold.
func TestHangUpIsNoticedBehindFurtherBytes(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 100, maxHeld, 20 * maxHeld} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			eachTransport(t, func(t *testing.T, w *world) {
				size := size
				if w.hidden { // only a descriptor tells of an end that stands behind more than is read ahead
					size = min(size, 100)
				}
				c := w.dial()
				send(t, c, request("/park"))
				await(t, w.parked)
				send(t, c, strings.Repeat("x", size))
				if err := c.Close(); err != nil {
					t.Fatal(err)
				}
				if how := await(t, w.left); how != "gone" {
					t.Errorf("wait ended as %q, want gone", how)
				}
			})
		})
	}
}

func TestAQuietOrTalkingPeerHasNotHungUp(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	served, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	if HungUp(served) {
		t.Error("a quiet peer")
	}
	send(t, client, "bytes")
	if HungUp(&HoldbackConn{Conn: served}) {
		t.Error("a talking peer")
	}
	if err := client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	if !AwaitHangUp(served, stopped) {
		t.Error("the end of a stream is not seen")
	}
	close(stopped)
	if AwaitHangUp(client, stopped) {
		t.Error("a stopped look-out has seen something")
	}
}

func TestKeepAliveSurvivesAWatch(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, w *world) {
		c := w.dial()
		defer c.Close()
		br := bufio.NewReader(c)
		close(w.release)
		for range 20 {
			send(t, c, request("/park"))
			if b := body(t, br); b != "parked" {
				t.Fatalf("got %q, want parked", b)
			}
			send(t, c, request("/"))
			if b := body(t, br); b != "plain" {
				t.Fatalf("got %q, want plain", b)
			}
		}
	})
}

func TestARequestPipelinedDuringAWatchLosesNoByte(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, w *world) {
		c := w.dial()
		defer c.Close()
		br := bufio.NewReader(c)
		send(t, c, request("/park"))
		await(t, w.parked)
		// A long one too: more than the watch holds back.
		send(t, c, request("/")+request("/?"+strings.Repeat("x", 3000))+request("/?"+strings.Repeat("y", 3000))+request("/park"))
		close(w.release)
		for i, want := range []string{"parked", "plain", "plain", "plain", "parked"} {
			if b := body(t, br); b != want {
				t.Fatalf("answer %d is %q, want %q", i, b, want)
			}
		}
	})
}

// TestRefusalArrivesWhileTheBodyIsStillComing fails without the lingering close: the reset overtakes the answer.
func TestRefusalArrivesWhileTheBodyIsStillComing(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, w *world) {
		for range 10 {
			c := w.dial()
			size := 3 << 20
			send(t, c, fmt.Sprintf("POST / HTTP/1.1\r\nHost: q\r\nContent-Length: %d\r\n\r\n", size))
			send(t, c, strings.Repeat("x", 256<<10))
			r, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(r.Body)
			if err != nil || r.StatusCode != 413 || !strings.Contains(string(b), `"code":"payload_too_large"`) {
				t.Errorf("got %d %s (%v), want a whole 413", r.StatusCode, b, err)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestHoldbackLooksThroughWrappers(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	h := &HoldbackConn{Conn: a}
	if got, ok := Holdback(tls.Server(h, &tls.Config{})); !ok || got != h {
		t.Error("not found under TLS")
	}
	if _, ok := Holdback(b); ok {
		t.Error("found on a connection that has none")
	}
}

func TestAStoppedWatchKeepsTheErrorForTheNextRead(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	h := &HoldbackConn{Conn: a}
	w := h.Watch()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, w.Gone())
	w.Stop()
	if _, err := h.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read after the hang-up: %v, want EOF", err)
	}
}

func TestBarrierCountsAndAnswers(t *testing.T) {
	t.Parallel()
	n := prometheus.NewCounter(prometheus.CounterOpts{Name: "panics"})
	var ctx fasthttp.RequestCtx
	Barrier(slog.New(slog.DiscardHandler), n, func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.Set(wire.HeaderRequestID, "abc")
		panic("broken invariant")
	})(&ctx)
	if got := testutil.ToFloat64(n); got != 1 {
		t.Errorf("counted %v panics, want 1", got)
	}
	b := string(ctx.Response.Body())
	if ctx.Response.StatusCode() != 500 || !strings.Contains(b, `"request_id":"abc"`) || !strings.Contains(b, `"outcome":"unknown"`) || strings.Contains(b, "broken") {
		t.Errorf("got %d %s", ctx.Response.StatusCode(), b)
	}
}
