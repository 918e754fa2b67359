// Package deadlines makes the deadlines of connections cheap to move.
//
// A server moves deadlines all the time: one for the head of a request, one for its body, one for the write, two while it
// asks somebody else, one for the idle time. The runtime keeps a timer for each, and nearly all are moved on before they
// are due. Here the runtime hears only of a deadline that is earlier than the one it knows. When that is due, and the one that
// was asked for is not, the timer is set anew and what waited goes on: a deadline is kept to the instant, and a connection
// that is always busy sets a timer once in a while.
package deadlines

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Listener accepts connections as New returns them. TLS goes on top of it.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return New(c), nil
}

// New returns c with deadlines that cost next to nothing as long as they move forwards; they must not be set in another way
// from then on. What it returns is as safe for concurrent use as c: a deadline that is moved ends or prolongs a Read or
// Write that waits. It is a syscall.Conn when c is one. To set a deadline on a connection that is closed need not fail: the
// next Read or Write says so.
func New(c net.Conn) net.Conn {
	if sc, ok := c.(syscall.Conn); ok {
		s := &socket{sc: sc}
		s.init(c)
		return s
	}
	d := &conn{}
	d.init(c)
	return d
}

// WriteBuffers writes what is in bufs to c and takes it out, with as few system calls as c can when it is of New.
func WriteBuffers(c net.Conn, bufs *net.Buffers) (int64, error) {
	if d, ok := c.(interface {
		writeBuffers(bufs *net.Buffers) (int64, error)
	}); ok {
		return d.writeBuffers(bufs)
	}
	return bufs.WriteTo(c)
}

type conn struct {
	net.Conn
	reads, writes side
}

func (c *conn) init(under net.Conn) {
	c.Conn = under
	for _, s := range []*side{&c.reads, &c.writes} {
		s.asked, s.armed = never, never
	}
}

// side is one direction of a connection. Its times are read against epoch.
type side struct {
	// mu is held while the runtime is told, so that what it knows is what stands here.
	mu    sync.Mutex
	asked time.Duration // the deadline, or never
	armed time.Duration // what the runtime knows: never later than asked
}

// epoch is what deadlines are compared by: a difference of two times is half as large as a time and keeps the monotonic
// clock.
var epoch = time.Now()

const never = time.Duration(1<<63 - 1)

// set moves the deadline to t.
func (s *side) set(t time.Time, arm func(time.Time) error) error {
	at := never
	if !t.IsZero() {
		at = t.Sub(epoch)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = at
	if s.armed <= at {
		return nil
	}
	return s.armLocked(arm)
}

// armLocked tells the runtime of the deadline.
func (s *side) armLocked(arm func(time.Time) error) error {
	var t time.Time
	if s.asked != never {
		t = epoch.Add(s.asked)
	}
	err := arm(t)
	if err == nil {
		s.armed = s.asked
	}
	return err
}

// goesOn reports whether an operation that ended with err goes on, since its deadline has been moved and is not due.
func (s *side) goesOn(err error, arm func(time.Time) error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(epoch) < s.asked && s.armLocked(arm) == nil
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.reads.set(t, c.Conn.SetReadDeadline) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.writes.set(t, c.Conn.SetWriteDeadline) }

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err == nil || n > 0 || !c.reads.goesOn(err, c.Conn.SetReadDeadline) {
			return n, err
		}
	}
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (n int, err error) {
	for {
		m, err := c.Conn.Write(p[n:])
		if n += m; err == nil || !c.writes.goesOn(err, c.Conn.SetWriteDeadline) {
			return n, err
		}
	}
}

func (c *conn) writeBuffers(bufs *net.Buffers) (n int64, err error) {
	for {
		m, err := bufs.WriteTo(c.Conn)
		if n += m; err == nil || !c.writes.goesOn(err, c.Conn.SetWriteDeadline) {
			return n, err
		}
	}
}

// CloseWrite shuts the writing side, where the connection underneath can.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// NetConn returns the connection underneath.
func (c *conn) NetConn() net.Conn { return c.Conn }

// socket is a conn that has a descriptor.
type socket struct {
	conn
	sc syscall.Conn
}

// SyscallConn implements syscall.Conn.
func (s *socket) SyscallConn() (syscall.RawConn, error) {
	raw, err := s.sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	return rawConn{raw, &s.conn}, nil
}

// rawConn is a descriptor whose waits end at the deadlines of its connection.
type rawConn struct {
	syscall.RawConn
	c *conn
}

// Read implements syscall.RawConn.
func (r rawConn) Read(f func(fd uintptr) (done bool)) error {
	for {
		if err := r.RawConn.Read(f); err == nil || !r.c.reads.goesOn(err, r.c.Conn.SetReadDeadline) {
			return err
		}
	}
}

// Write implements syscall.RawConn.
func (r rawConn) Write(f func(fd uintptr) (done bool)) error {
	for {
		if err := r.RawConn.Write(f); err == nil || !r.c.writes.goesOn(err, r.c.Conn.SetWriteDeadline) {
			return err
		}
	}
}
