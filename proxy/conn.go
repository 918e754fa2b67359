package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
)

// errRefused ends the reading of a body whose request is already refused.
var errRefused = errors.New("the request is refused")

// interimContinue is what fasthttp sends before it reads a body that a client announced with Expect. The gateway makes
// fasthttp treat every body so, in order to judge a request on its head, and takes the unasked answer out again.
var interimContinue = []byte("HTTP/1.1 100 Continue\r\n\r\n")

// bodyArrival is how long a refusal waits for a small body that is probably on its way already: clients send head and
// body in two packets, and a connection whose body has been read can go on living.
const bodyArrival = 20 * time.Millisecond

// Bounds of a lingering close: long enough for a client that sends its whole body before it reads the answer.
const (
	lingerTime  = 5 * time.Second
	lingerQuiet = time.Second // without input
	lingerBytes = 64 << 20
)

// clientConn is a client's connection as fasthttp sees it, through a HoldbackConn that is made anew for a poll that goes
// on. It sits outside TLS, so that a closing TLS client is seen when it says so, and adds what fasthttp lacks: a watch for
// the client's hang-up, a refusal that does not wait for the body, the removal of unasked interim answers, a lingering
// close, and a write deadline that progress renews.
//
// Close may be called by any goroutine, everything else belongs to the one that serves the connection.
type clientConn struct {
	net.Conn
	gateway *Gateway
	addr    netip.Addr
	load    *clusterLoad // of the first cluster that was served here, which the connection counts for

	ex exchange

	first   *httpkit.FirstRead
	held    []byte    // what the watch or first has read, for the next Reads
	failed  error     // what the watch met, for the next Read
	arrival time.Time // while set: the request is refused, and its body may arrive until then
	interim bool      // the next write is an interim answer nobody asked for
	lingers atomic.Bool
	closed  atomic.Bool
}

// clientOf returns the connection of a request.
func clientOf(ctx *fasthttp.RequestCtx) *clientConn {
	return ctx.Conn().(*httpkit.HoldbackConn).NetConn().(*clientConn)
}

// Read implements net.Conn.
func (c *clientConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(c.held) > 0 {
		return c.takeHeld(p), nil
	}
	if c.failed != nil {
		return 0, c.failed
	}
	if len(p) == 1 && c.arrival.IsZero() && c.first.Able() {
		// The server waits for a request.
		var err error
		if c.held, err = c.first.Wait(); err != nil {
			return 0, err
		}
		return c.takeHeld(p), nil
	}
	if c.arrival.IsZero() {
		return c.Conn.Read(p)
	}
	if err := c.Conn.SetReadDeadline(c.arrival); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p)
	if err != nil {
		c.lingers.Store(true)
		err = errRefused
	}
	return n, err
}

func (c *clientConn) takeHeld(p []byte) int {
	n := copy(p, c.held)
	if c.held = c.held[n:]; len(c.held) == 0 {
		c.held = nil
		c.first.Done()
	}
	return n
}

// Write implements net.Conn. Every write has the whole write time again: a slow reader of a long answer is served as
// long as it reads.
func (c *clientConn) Write(p []byte) (int, error) {
	if c.interim {
		c.interim = false
		// fasthttp flushes the interim answer alone: with ReduceMemoryUsage nothing older waits in its writer.
		if bytes.Equal(p, interimContinue) {
			return len(p), nil
		}
	}
	if err := c.Conn.SetWriteDeadline(time.Now().Add(c.gateway.cfg.WriteTime)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// NetConn returns the connection underneath.
func (c *clientConn) NetConn() net.Conn { return c.Conn }

// Close implements net.Conn. After linger it first lets the client read its answer: a close with unread input sends a
// reset, which can overtake the answer.
func (c *clientConn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	c.gateway.walls.leave(c)
	if c.load != nil {
		c.load.conns.Add(-1)
	}
	if c.lingers.Load() {
		c.drain()
	}
	return c.Conn.Close()
}

func (c *clientConn) drain() {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() != nil {
		return
	}
	end := time.Now().Add(lingerTime)
	buf := make([]byte, 16<<10)
	for left := lingerBytes; left > 0; {
		now := time.Now()
		if !now.Before(end) || c.Conn.SetReadDeadline(earliest(now.Add(lingerQuiet), end)) != nil {
			return
		}
		n, err := c.Conn.Read(buf)
		if err != nil {
			return // how the input ends does not matter any more
		}
		left -= n
	}
}

// aLongTimeAgo is a read deadline that ends a read at once.
var aLongTimeAgo = time.Unix(1, 0)

// watch looks out for the client's hang-up, in the background, until stop is called, and calls gone when it happens.
// stop must be called before the connection is read again. What comes in is held back for the next Read, as much as the
// reader of requests has room for; beyond that the connection is only asked whether it has ended.
func (c *clientConn) watch(gone func()) (stop func()) {
	if c.failed != nil {
		gone()
		return func() {}
	}
	// The deadline of reading the request is still set. A connection that refuses a new one is closed; the read says so.
	_ = c.Conn.SetReadDeadline(time.Time{})
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		err := c.readAhead()
		if err == nil && httpkit.AwaitHangUp(c.Conn, stopped) {
			err = io.EOF
		}
		if err == nil {
			return
		}
		select {
		case <-stopped:
			if isTimeout(err) {
				return
			}
		default:
		}
		c.failed = err
		gone()
	}()
	return func() {
		close(stopped)
		// An error means that the connection is closed, and then the read has ended too.
		_ = c.Conn.SetReadDeadline(aLongTimeAgo)
		<-done
		_ = c.Conn.SetReadDeadline(time.Time{})
	}
}

// readAhead reads into held until it is full, which is no error, or the reading fails.
func (c *clientConn) readAhead() error {
	var first [1]byte // most parked clients send nothing, and nothing is what they cost
	for limit := c.gateway.cfg.MaxHeadBytes; len(c.held) < limit; {
		if len(c.held) == 0 {
			n, err := c.Conn.Read(first[:])
			c.held = append(c.held, first[:n]...)
			if err != nil {
				return err
			}
			continue
		}
		if len(c.held) == cap(c.held) {
			c.held = slices.Grow(c.held, 64) // at least doubles
		}
		n, err := c.Conn.Read(c.held[len(c.held):min(cap(c.held), limit)])
		c.held = c.held[:len(c.held)+n]
		if err != nil {
			return err
		}
	}
	return nil
}

// isTimeout reports whether a deadline ended the operation. fasthttp's own timeouts are no net.Error.
func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// isHangUp reports whether reading from a client ended because the client went away.
func isHangUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// closeAfter ends the connection after the current answer, lingering.
func (c *clientConn) closeAfter() { c.lingers.Store(true) }
