package httpkit

import (
	"errors"
	"io"
	"net"
	"slices"

	"github.com/valyala/fasthttp"
)

// Detached is a connection with a request that nobody has answered and no goroutine serves: all that it costs is itself.
//
// A handler that must wait for long lets go with Detach and returns. Whoever has the answer goes on with Serve: the
// server calls its handler again on this connection, which finds with Resumed what was handed over. To the client
// nothing has happened: bytes that it pipelined, keep-alive and the drain of the server are as with a handler that waited.
type Detached struct {
	c *HoldbackConn
}

// errDetached ends the reading of what the server had read ahead.
var errDetached = errors.New("the connection is detached")

// nextRequest is what a resumed handler seems to be asked. It looks at what was handed over and not at this.
var nextRequest = []byte("GET / HTTP/1.1\r\nHost: resumed\r\n\r\n")

// Detach lets go of the connection of a request and reports whether it can. Then the handler must return without an
// answer, and then is called, once, in a goroutine of its own, when the server has let go too: also when the connection
// has been closed meanwhile, which Serve and Stand will say.
//
// The server must not have KeepHijackedConns set, since it would lose a read buffer each time; the closing that it does
// without is not passed on. Its connections must be HoldbackConns: TLS may be under one, not above
// it. What is not HTTP/1.1 that is kept alive cannot be detached, nor can a request with a body, nor anything where
// sentries do not stand, since a hang-up would go unseen.
func Detach(ctx *fasthttp.RequestCtx, then func(*Detached)) bool {
	c, plain := ctx.Conn().(*HoldbackConn)
	h := &ctx.Request.Header
	if !plain || !sentriesStand || socketOf(c.Conn) == nil || c.pending != nil ||
		!h.IsHTTP11() || h.ConnectionClose() || len(ctx.Request.Body()) > 0 {
		return false
	}
	c.detaching = true
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(served net.Conn) {
		// What the server has read of requests that follow comes back before the connection is read again.
		c.held = slices.Concat(readAll(served), c.held)
		c.first.Done()
		c.handed.Store(true)
		// Not here: the server takes its reader back when this returns.
		go then(&Detached{c})
	})
	return true
}

// readAll returns what r has until it ends, in an error that does not matter, nil when that is nothing.
func readAll(r io.Reader) (all []byte) {
	var b [512]byte
	for {
		n, err := r.Read(b[:])
		all = append(all, b[:n]...)
		if err != nil {
			return all
		}
	}
}

// Resumed returns what Serve has handed over to the handler that is called with ctx, once; nil for a request that is new.
func Resumed(ctx *fasthttp.RequestCtx) any {
	c, ok := ctx.Conn().(*HoldbackConn)
	if !ok {
		return nil
	}
	state := c.state
	c.state = nil
	return state
}

// Stand has a sentry look out for the client's hang-up, and with input for whatever it sends, as the function of this
// name does.
func (d *Detached) Stand(input bool, alarm func()) (s *Sentry, ok bool) {
	return Stand(d.c.Conn, input, alarm)
}

// Serve has s call its handler with state, and then serve the connection until its end or until it is detached again. A
// connection that is closed by now is served all the same, in vain. state must not be nil.
//
// taken says that a handler has got state. If not, which takes a server that is full, the connection is closed and
// nobody will.
func (d *Detached) Serve(s *fasthttp.Server, state any) (taken bool) {
	// A connection of its own for the server, which may not be done with its books on the one before.
	c := &HoldbackConn{Conn: d.c.Conn, first: d.c.first, held: nextRequest, state: state}
	if len(d.c.held) > 0 {
		c.held = slices.Concat(nextRequest, d.c.held)
	}
	// How the connection ends is of no more interest than with a connection that never was detached.
	_ = s.ServeConn(c)
	return c.state == nil
}
