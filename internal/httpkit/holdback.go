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

// HoldbackConn is a connection whose reading side can be watched while nobody reads: the watch reads ahead and holds
// back what comes for the next Read, so keep-alive, pipelining and TLS above it notice nothing.
//
// Read, SetReadDeadline and Watch belong to the goroutine that serves the connection; Close and Linger may be called
// from any.
type HoldbackConn struct {
	net.Conn
	first   *FirstRead
	held    []byte // what a watch or first read ahead
	pending error  // what it met after that, for the Read that follows
	linger  atomic.Bool
	closed  atomic.Bool
}

// maxHeld bounds what a watch reads ahead. It must hold a TLS close alert, which comes before the hang-up itself.
const maxHeld = 4096

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
	if len(c.held) > 0 {
		return c.takeHeld(p), nil
	}
	if err := c.pending; err != nil {
		c.pending = nil
		return 0, err
	}
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

func (c *HoldbackConn) takeHeld(p []byte) int {
	n := copy(p, c.held)
	if c.held = c.held[n:]; len(c.held) == 0 {
		c.held = nil
		c.first.Done()
	}
	return n
}

// aLongTimeAgo is a read deadline that ends a read at once.
var aLongTimeAgo = time.Unix(1, 0)

// HangUpLook is how often a connection whose input nobody reads any more is asked for its hang-up.
const HangUpLook = 250 * time.Millisecond

// Watch is one look-out for the client's hang-up.
type Watch struct {
	c       *HoldbackConn
	gone    chan struct{} // closed when the client has hung up
	stopped chan struct{} // closed by Stop
	done    chan struct{} // closed when the background read has ended
}

// Watch begins to read ahead in the background. Stop must be called before the connection is read again, hence before
// the handler returns. Of what a client pipelines it reads 4 KiB; the rest stays where it is, and the look-out goes on
// by asking for the hang-up every HangUpLook.
func (c *HoldbackConn) Watch() *Watch {
	w := &Watch{c: c, gone: make(chan struct{}), stopped: make(chan struct{}), done: make(chan struct{})}
	if c.pending != nil {
		close(w.gone)
		close(w.done)
		return w
	}
	// The deadline of reading the request is still set. A connection that refuses one is closed: the read says so.
	_ = c.Conn.SetReadDeadline(time.Time{})
	go w.read()
	return w
}

func (w *Watch) read() {
	defer close(w.done)
	c := w.c
	var b [64]byte
	for len(c.held) < maxHeld {
		n, err := c.Conn.Read(b[:])
		c.held = append(c.held, b[:n]...)
		if err == nil {
			continue
		}
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			return // Stop ended the read
		}
		c.pending = err
		close(w.gone)
		return
	}
	if AwaitHangUp(c.Conn, w.stopped) {
		c.pending = io.EOF
		close(w.gone)
	}
}

// AwaitHangUp waits until the peer of c hangs up, and reports true, or until stopped is closed. It reads nothing: the
// look-out of those who have read ahead as much as they care to hold. See HungUp for what it can see.
func AwaitHangUp(c net.Conn, stopped <-chan struct{}) bool {
	tick := time.NewTicker(HangUpLook)
	defer tick.Stop()
	for !HungUp(c) {
		select {
		case <-stopped:
			return false
		case <-tick.C:
		}
	}
	return true
}

// Gone is closed when the client hangs up.
func (w *Watch) Gone() <-chan struct{} { return w.gone }

// Stop ends the look-out, once, and waits for the background read to end. The read deadline is cleared: the server sets its
// own before it reads on.
func (w *Watch) Stop() {
	select {
	case <-w.done:
		return
	default:
	}
	close(w.stopped)
	// An error means the connection is closed, and then the read has ended too.
	_ = w.c.Conn.SetReadDeadline(aLongTimeAgo)
	<-w.done
	_ = w.c.Conn.SetReadDeadline(time.Time{})
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

// Close implements net.Conn. It may take a second after Linger.
func (c *HoldbackConn) Close() error {
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
