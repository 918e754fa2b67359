package mesh

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "0123456789abcdef0123456789abcdef"

// heard is a frame as a handler got it.
type heard struct {
	from    string
	kind    Kind
	payload string
}

// node is a running mesh with what it has heard.
type node struct {
	*Mesh
	t    testing.TB
	addr string
	c    chan heard
	stop func() // ends it and waits
}

// listen opens a free loopback port.
func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// start runs a node until the test ends. Durations are short; a test that waits, waits for a condition.
func start(t testing.TB, name string, ln net.Listener, cfg Config) *node {
	t.Helper()
	n := &node{t: t, addr: ln.Addr().String(), c: make(chan heard, 10_000)}
	cfg.Addr = n.addr
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat, cfg.Dead, cfg.Resolve = 50*time.Millisecond, 2*time.Second, 50*time.Millisecond
	}
	var err error
	n.Mesh, err = New(slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})), cfg, name, ln)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- n.Run(ctx, func(from string, kind Kind, payload []byte) { n.c <- heard{from, kind, string(payload)} })
	}()
	var once sync.Once
	n.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	t.Cleanup(n.stop)
	return n
}

// until waits for a condition that nothing signals.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
		<-tick.C
	}
}

func (n *node) hears(want heard) {
	n.t.Helper()
	select {
	case got := <-n.c:
		if got != want {
			n.t.Fatalf("heard %+v, want %+v", got, want)
		}
	case <-time.After(20 * time.Second):
		n.t.Fatalf("not within 20 s: %+v", want)
	}
}

func (n *node) connected(out, in int64) {
	n.t.Helper()
	until(n.t, "connections", func() bool { s := n.Stats(); return s.Out == out && s.In == in })
}

// wiretap is a network between a dialler and a node that can be read and written.
type wiretap struct {
	net.Listener
	t  testing.TB
	to string

	mu    sync.Mutex
	up    []byte // what the first dialler has sent
	conns []net.Conn
	deaf  bool     // nothing comes back to the dialler
	side  net.Conn // to the node, of the first dialler
}

func tap(t testing.TB, to string) *wiretap {
	w := &wiretap{Listener: listen(t), t: t, to: to}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := w.Accept()
			if err != nil {
				return
			}
			s, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}
			w.mu.Lock()
			first := w.side == nil
			if first {
				w.side = s
			}
			w.conns = append(w.conns, c, s)
			w.mu.Unlock()
			wg.Go(func() { w.copy(s, c, first); _ = s.Close() })
			wg.Go(func() { w.back(c, s); _ = c.Close() })
		}
	})
	t.Cleanup(func() {
		_ = w.Close()
		w.cut()
		wg.Wait()
	})
	return w
}

func (w *wiretap) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
}

func (w *wiretap) copy(dst io.Writer, src io.Reader, record bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		w.mu.Lock()
		if record {
			w.up = append(w.up, buf[:n]...)
		}
		w.mu.Unlock()
		if _, e := dst.Write(buf[:n]); e != nil || err != nil {
			return
		}
	}
}

func (w *wiretap) back(dst io.Writer, src io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		w.mu.Lock()
		deaf := w.deaf
		w.mu.Unlock()
		if !deaf {
			if _, e := dst.Write(buf[:n]); e != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (w *wiretap) sent() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]byte(nil), w.up...)
}
