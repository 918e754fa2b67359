package httpkit

import (
	"io"
	"net"
	"sync/atomic"
	"time"
)

// HoldbackListener wraps what it accepts in a HoldbackConn. TLS goes on top: tls.NewListener(HoldbackListener{ln}, …).
type HoldbackListener struct{ net.Listener }

// Accept implements net.Listener.
func (l HoldbackListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &HoldbackConn{Conn: c, first: NewFirstRead(c)}, nil
}

// HoldbackConn is a connection whose reading side can be watched while nobody reads. Where the system cannot tell of a
// hang-up the watch reads ahead and holds back what comes for the next Read, so keep-alive, pipelining and TLS above it
// notice nothing.
//
// Read, SetReadDeadline and Watch belong to the goroutine that serves the connection; Close, Linger and Hurry may be
// called from any.
type HoldbackConn struct {
	net.Conn
	first   *FirstRead
	held    []byte                // what a watch or first read ahead
	pending error                 // what it met after that, for the Read that follows
	watch   atomic.Pointer[Watch] // the one that has a sentry, while it looks out
	linger  atomic.Bool
	reading atomic.Bool // its server waits for input
	closed  atomic.Bool
	handed  atomic.Bool // to the HoldbackConn of the next handler, or of whoever holds it until then

	detaching bool // its handler has let go of it: see Detach
	state     any  // what was handed over to the next handler
}

// Holdback finds the HoldbackConn of a served connection, looking through TLS and other wrappers with NetConn.
func Holdback(c net.Conn) (*HoldbackConn, bool) {
	for c != nil {
		switch w := c.(type) {
		case *HoldbackConn:
			return w, true
		case interface{ NetConn() net.Conn }:
			c = w.NetConn()
		default:
			return nil, false
		}
	}
	return nil, false
}

// NetConn returns the connection underneath.
func (c *HoldbackConn) NetConn() net.Conn { return c.Conn }

// Read implements net.Conn: first what a watch held back, then the connection.
func (c *HoldbackConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if c.detaching {
		return 0, errDetached
	}
	if len(c.held) > 0 {
		return c.takeHeld(p), nil
	}
	if err := c.pending; err != nil {
		c.pending = nil
		return 0, err
	}
	c.reading.Store(true)
	defer c.reading.Store(false)
	if len(p) > 1 || !c.first.Able() {
		return c.Conn.Read(p)
	}
	// The server waits for a request.
	var err error
	if c.held, err = c.first.Wait(); err != nil {
		return 0, err
	}
	return c.takeHeld(p), nil
}

// Hurry ends a Read that waits for input, as its deadline would: for a server that stops while a client is still sending.
// A connection whose request is being served is left alone. It may be called from any goroutine, and once more when the
// server may have set a new deadline in between.
func (c *HoldbackConn) Hurry() {
	if c.reading.Load() {
		// It fails on a connection that is closed, and there is nothing left to end.
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}

func (c *HoldbackConn) takeHeld(p []byte) int {
	n := copy(p, c.held)
	if c.held = c.held[n:]; len(c.held) == 0 {
		c.held = nil
		c.first.Done()
	}
	return n
}

// SetDeadline implements net.Conn.
func (c *HoldbackConn) SetDeadline(t time.Time) error {
	return c.unlessDetaching(c.Conn.SetDeadline(t))
}

// SetWriteDeadline implements net.Conn.
func (c *HoldbackConn) SetWriteDeadline(t time.Time) error {
	return c.unlessDetaching(c.Conn.SetWriteDeadline(t))
}

// unlessDetaching hides from the server that the connection is closed already: it must get as far as to let go of it.
func (c *HoldbackConn) unlessDetaching(err error) error {
	if c.detaching {
		return nil
	}
	return err
}

// Bounds of a lingering close. Beyond maxLingering connections the rest close hard: a crowd of refused uploads must
// not pin the server's workers.
const (
	lingerTime   = time.Second
	lingerBytes  = 1 << 20
	maxLingering = 256
)

var lingering atomic.Int32

// Linger makes Close wait until the client has had time to read the answer: the writing side is shut, and up to 1 MiB
// or one second of input is thrown away. A close with unread input would send a reset, which may overtake the answer.
func (c *HoldbackConn) Linger() { c.linger.Store(true) }

// Close implements net.Conn. It may take a second after Linger. A connection that was detached is another one's to close.
func (c *HoldbackConn) Close() error {
	if c.handed.Load() {
		return nil
	}
	err := c.close()
	if w := c.watch.Load(); w != nil {
		w.sentry.Sound()
	}
	return err
}

func (c *HoldbackConn) close() error {
	if c.closed.Swap(true) || !c.linger.Load() {
		return c.Conn.Close()
	}
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || lingering.Add(1) > maxLingering {
		if ok {
			lingering.Add(-1)
		}
		return c.Conn.Close()
	}
	defer lingering.Add(-1)
	if half.CloseWrite() == nil && c.Conn.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		// How the input ends does not matter any more.
		_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
	}
	return c.Conn.Close()
}
