package proxy

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// socketPath is where a test's socket may be: the folder of a test has too long a name for one.
func socketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "q")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "broker.sock")
}

// behindSocket is a world whose broker is reached by a socket only.
func behindSocket(t *testing.T, handler fasthttp.RequestHandler) (*world, *scripted) {
	t.Helper()
	path := socketPath(t)
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	b := scriptedOn(t, ln, handler)
	w := setup(t, options{address: b.address, facts: func(w *world) { w.facts.Cells[0].BaseURL = "unix:" + path }})
	return w, b
}

func TestABrokerIsReachedByItsSocket(t *testing.T) {
	t.Parallel()
	w, b := behindSocket(t, nil)
	c := w.dial()
	for range 3 { // the connection is kept
		c.send(w.push(aPush))
		if r := c.read(); r.StatusCode != 201 {
			t.Fatalf("got %d %q", r.StatusCode, r.body)
		}
		if got := await(t, b.seen); !strings.HasPrefix(got.head, "Host: localhost\r\n") || got.body != aPush {
			t.Errorf("the broker got %+v", got)
		}
	}
	// Its end takes the file away. There is no new connection then, and nothing was sent.
	if err := os.Remove(b.address); err != nil {
		t.Fatal(err)
	}
	for _, b := range w.gateway.pools.all()[0].brokers() {
		b.closeConns()
	}
	c.send(w.push(aPush))
	if r := c.read(); r.StatusCode != 503 || r.code() != "broker_unavailable" || r.outcome() != "none" {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
	if _, err := w.gateway.dialer.dial(b.address, time.Now().Add(patience)); err == nil || !unreachable(err) {
		t.Errorf("it does not speak against the broker: %v", err)
	}
}

func TestAPollOnASocketSleepsAndIsGivenUp(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}, 2), make(chan struct{})
	w, _ := behindSocket(t, func(ctx *fasthttp.RequestCtx) {
		arrived <- struct{}{}
		<-release
		ctx.SetBodyString(`{"messages":[]}`)
	})
	stays, goes := w.dial(), w.dialTLS()
	for _, c := range []*wireConn{stays, goes} {
		c.send(w.head("GET", waiting))
		await(t, arrived)
	}
	w.sleeping(2)
	if err := goes.Close(); err != nil {
		t.Fatal(err)
	}
	w.sleeping(1)
	close(release)
	if r := stays.read(); r.StatusCode != 200 {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
}

// TestAFullBacklogIsWaitedOut connects to a socket where there is no place until somebody accepts.
func TestAFullBacklogIsWaitedOut(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	d := &upstreamDialer{connectTime: patience}
	for {
		c, err := net.Dial("unix", path)
		if err != nil {
			break // it is full
		}
		defer c.Close()
	}
	if c, err := d.dial(path, time.Now()); err == nil {
		t.Error("there was a place")
		c.Close()
	}
	dialled := make(chan error, 1)
	go func() {
		c, err := d.dial(path, time.Now().Add(patience))
		if err == nil {
			err = c.Close()
		}
		dialled <- err
	}()
	knocked := regexp.MustCompile(`time\.Sleep\(.*\n.*\n.*upstreamDialer\)\.dial\(`)
	until(t, "the dialler to wait", func() bool {
		stacks := make([]byte, 1<<20)
		return len(dialled) > 0 || knocked.Match(stacks[:runtime.Stack(stacks, true)])
	})
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := await(t, dialled); err != nil {
		t.Error(err)
	}
}
