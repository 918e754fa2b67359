package redistest

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Link is a way to a Redis that can be cut or slow while others are not. Safe for concurrent use.
type Link struct {
	to     *redis.Options
	ln     net.Listener
	serves sync.WaitGroup

	mu    sync.Mutex // guards all below
	cut   bool
	delay time.Duration
	conns map[net.Conn]struct{}
}

// NewLink returns a way to the Redis at to. It ends with the test.
func NewLink(t testing.TB, to *redis.Options) *Link {
	t.Helper()
	dir, err := os.MkdirTemp("", "qgl")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{to: to, conns: map[net.Conn]struct{}{}}
	if l.ln, err = net.Listen("unix", filepath.Join(dir, "s")); err != nil {
		t.Fatal(err)
	}
	l.serves.Go(l.serve)
	t.Cleanup(func() {
		_ = l.ln.Close() // ends serve
		l.Cut()
		l.serves.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return l
}

// Options returns how to reach Redis by the link.
func (l *Link) Options() *redis.Options {
	return &redis.Options{
		Network: "unix", Addr: l.ln.Addr().String(), Username: l.to.Username, Password: l.to.Password, DB: l.to.DB,
	}
}

// Cut closes the link's connections and refuses new ones.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for c := range l.conns {
		_ = c.Close() // which ends both copies
	}
}

// Slow delays every answer from now on.
func (l *Link) Slow(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = d
}

// Heal ends whatever the link suffers from.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.delay = false, 0
}

func (l *Link) serve() {
	for {
		from, err := l.ln.Accept()
		if err != nil {
			return // closed
		}
		to, err := net.Dial(l.to.Network, l.to.Addr)
		if err != nil || !l.keep(from, to) {
			_ = from.Close() // as an absent Redis would
			if to != nil {
				_ = to.Close()
			}
			continue
		}
		l.serves.Go(func() { l.copy(to, from, false) })
		l.serves.Go(func() { l.copy(from, to, true) })
	}
}

// keep remembers the connections of the link, unless it is cut.
func (l *Link) keep(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		if !l.cut {
			l.conns[c] = struct{}{}
		}
	}
	return !l.cut
}

func (l *Link) copy(to, from net.Conn, answers bool) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, to)
		delete(l.conns, from)
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		l.mu.Lock()
		delay := l.delay
		l.mu.Unlock()
		if answers && delay > 0 {
			time.Sleep(delay) // this is what it is for
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
