package deadlines

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// told counts how often its owner is told of a deadline.
type told struct {
	net.Conn
	reads, writes atomic.Int32
}

func (t *told) SetReadDeadline(at time.Time) error {
	t.reads.Add(1)
	return t.Conn.SetReadDeadline(at)
}

func (t *told) SetWriteDeadline(at time.Time) error {
	t.writes.Add(1)
	return t.Conn.SetWriteDeadline(at)
}

func pipe(t *testing.T) (c net.Conn, under *told, peer net.Conn) {
	t.Helper()
	near, peer := net.Pipe()
	under = &told{Conn: near}
	c = New(under)
	t.Cleanup(func() { _ = errors.Join(c.Close(), peer.Close()) })
	return c, under, peer
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// must sets a deadline in so long; 0 takes it away.
func must(t *testing.T, set func(time.Time) error, in time.Duration) {
	t.Helper()
	var at time.Time
	if in != 0 {
		at = time.Now().Add(in)
	}
	if err := set(at); err != nil {
		t.Fatal(err)
	}
}

// ends does something that waits and reports how it ended and after how long.
func ends(do func() error) (after time.Duration, timeout bool) {
	begin := time.Now()
	err := do()
	return time.Since(begin), errors.Is(err, os.ErrDeadlineExceeded)
}

func TestADeadlineIsKeptToTheInstant(t *testing.T) {
	t.Parallel()
	for name, moves := range map[string][]time.Duration{
		"set once":            {time.Second},
		"moved on":            {time.Second, 3 * time.Second},
		"moved on and on":     {time.Second, 2 * time.Second, 5 * time.Second, 4 * time.Second},
		"moved back":          {time.Minute, time.Second},
		"taken away and back": {time.Second, 0, 2 * time.Second},
		"in the past":         {time.Second, -time.Second},
		"out of the past":     {-time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, _, _ := pipe(t)
				for _, d := range moves {
					must(t, c.SetDeadline, d)
				}
				due := max(0, moves[len(moves)-1])
				began := time.Now()
				for what, do := range map[string]func([]byte) (int, error){"read": c.Read, "write": c.Write} {
					after, timeout := ends(func() error { _, err := do(make([]byte, 1)); return err })
					want(t, what+" ended by it", timeout, true)
					want(t, what, after, max(0, due-(time.Since(began)-after)))
				}
			})
		})
	}
}

func TestADeadlineThatMovesOnIsToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, under, peer := pipe(t)
		go func() { _, _ = io.Copy(peer, peer) }()
		var b [1]byte
		for range 100 { // two seconds
			must(t, c.SetReadDeadline, time.Minute)
			must(t, c.SetReadDeadline, 30*time.Second)
			must(t, c.SetWriteDeadline, 10*time.Second)
			if _, err := c.Write(b[:]); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, b[:]); err != nil {
				t.Fatal(err)
			}
			must(t, c.SetWriteDeadline, 0)
			time.Sleep(20 * time.Millisecond)
		}
		want(t, "told of reads", under.reads.Load(), 2) // a minute, and the half of it
		want(t, "told of writes", under.writes.Load(), 1)
	})
}

func TestAWaitIsProlongedAndCutShort(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ then, ends time.Duration }{
		"prolonged": {5 * time.Second, 6 * time.Second},
		"cut short": {time.Millisecond, time.Second + time.Millisecond},
		"ended":     {-time.Hour, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				conn, _, _ := pipe(t)
				must(t, conn.SetReadDeadline, 2*time.Second)
				time.AfterFunc(time.Second, func() { must(t, conn.SetReadDeadline, c.then) })
				after, timeout := ends(func() error { _, err := conn.Read(make([]byte, 1)); return err })
				want(t, "ended by it", timeout, true)
				want(t, "after", after, c.ends)
			})
		})
	}
}

func TestWhatWasWrittenIsNotWrittenAgain(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(c net.Conn) (int64, error){
		"Write": func(c net.Conn) (int64, error) {
			n, err := c.Write([]byte("abcdef"))
			return int64(n), err
		},
		"WriteBuffers": func(c net.Conn) (int64, error) {
			return WriteBuffers(c, &net.Buffers{[]byte("abc"), []byte("def")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, _, peer := pipe(t)
				must(t, c.SetWriteDeadline, time.Second)
				must(t, c.SetWriteDeadline, time.Minute)
				got := make(chan string)
				go func() {
					var b [6]byte
					_, err := io.ReadFull(peer, b[:2])
					time.Sleep(2 * time.Second) // the first deadline is over
					_, err2 := io.ReadFull(peer, b[2:])
					if err := errors.Join(err, err2); err != nil {
						t.Error(err)
					}
					got <- string(b[:])
				}()
				n, err := write(c)
				if err != nil {
					t.Error(err)
				}
				want(t, "written", n, 6)
				want(t, "arrived", <-got, "abcdef")
			})
		})
	}
}

// sockets returns both ends of a TCP connection, the accepted one with cheap deadlines.
func sockets(t testing.TB) (c, peer net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if peer, err = net.Dial("tcp", ln.Addr().String()); err == nil {
		c, err = Listener{ln}.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(c.Close(), peer.Close()) })
	return c, peer
}

// The deadline that the runtime knows is over, and the one that was asked for is not.
func TestASocketGoesOnBehindAnEarlierDeadline(t *testing.T) {
	t.Parallel()
	read := func(c net.Conn, b []byte) (int, error) { return io.ReadFull(c, b) }
	raw := func(c net.Conn, b []byte) (n int, err error) {
		rc, err := c.(syscall.Conn).SyscallConn()
		if err != nil {
			return 0, err
		}
		var failed error
		err = rc.Read(func(fd uintptr) bool {
			n, failed = syscall.Read(int(fd), b)
			return failed != syscall.EAGAIN
		})
		return n, errors.Join(err, failed)
	}
	for name, read := range map[string]func(net.Conn, []byte) (int, error){"Read": read, "SyscallConn": raw} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, peer := sockets(t)
			b := make([]byte, 1)
			must(t, c.SetReadDeadline, -time.Second)
			_, err := read(c, b)
			want(t, "a deadline in the past", errors.Is(err, os.ErrDeadlineExceeded), true)
			must(t, c.SetReadDeadline, time.Hour)
			waits := make(chan error, 1)
			go func() { _, err := read(c, b); waits <- err }()
			if _, err := peer.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if err := <-waits; err != nil {
				t.Error(err)
			}
			want(t, "read", string(b), "x")
		})
	}
}

func TestAClosedSocketSaysSo(t *testing.T) {
	t.Parallel()
	c, peer := sockets(t)
	must(t, c.SetDeadline, -time.Second)
	must(t, c.SetDeadline, time.Hour)
	ended := make(chan error, 1)
	go func() { _, err := c.Read(make([]byte, 1)); ended <- err }()
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(peer); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, "a read that waits", errors.Is(<-ended, net.ErrClosed), true)
	_, err := c.Write([]byte("x"))
	want(t, "a write", errors.Is(err, net.ErrClosed), true)
}

// A server's connection from request to request: both sides.
func BenchmarkDeadlines(b *testing.B) {
	c, _ := sockets(b)
	for _, of := range []struct {
		name string
		conn net.Conn
	}{{"of the runtime", c.(*socket).Conn}, {"of New", c}} {
		b.Run(of.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				now := time.Now()
				_ = of.conn.SetReadDeadline(now.Add(75 * time.Second))
				_ = of.conn.SetReadDeadline(now.Add(10 * time.Second))
				_ = of.conn.SetWriteDeadline(now.Add(30 * time.Second))
			}
		})
	}
}
