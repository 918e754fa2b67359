package httpkit

import (
	"io"
	"net"
	"time"
)

// Watch is one look-out for the client's hang-up.
type Watch struct {
	c      *HoldbackConn
	gone   chan struct{} // closed when the client has hung up
	sentry *Sentry       // nil when the watch reads ahead
	ahead  *readAhead    // nil when a sentry does it
}

// Watch begins to look out. Stop must be called before the connection is read again, hence before the handler returns.
//
// It leaves the looking to a Sentry, which reads nothing. Where there is none it reads ahead in a goroutine of its own:
// 4 KiB of what a client pipelines; the rest stays where it is, and it goes on by asking for the hang-up every HangUpLook.
func (c *HoldbackConn) Watch() *Watch {
	w := &Watch{c: c, gone: make(chan struct{})}
	if c.pending != nil {
		close(w.gone)
		return w
	}
	if c.standSentry(w) {
		return w
	}
	w.ahead = &readAhead{stopped: make(chan struct{}), done: make(chan struct{})}
	// The deadline of reading the request is still set. A connection that refuses one is closed: the read says so.
	_ = c.Conn.SetReadDeadline(time.Time{})
	go w.read()
	return w
}

// standSentry leaves the look-out to a sentry, if it can.
func (c *HoldbackConn) standSentry(w *Watch) bool {
	s, ok := Stand(c.Conn, false, func() { close(w.gone) })
	if !ok {
		return false
	}
	w.sentry = s
	c.watch.Store(w)
	if c.closed.Load() {
		s.Sound() // Close may have looked for the watch too early
	}
	return true
}

// Gone is closed when the client hangs up.
func (w *Watch) Gone() <-chan struct{} { return w.gone }

// Stop ends the look-out, once.
func (w *Watch) Stop() {
	switch {
	case w.sentry != nil:
		w.c.watch.Store(nil)
		w.sentry.Stop()
	case w.ahead != nil:
		w.stopReading()
	}
}

// readAhead is the background read of a watch without a sentry.
type readAhead struct {
	stopped chan struct{} // closed by Stop
	done    chan struct{} // closed when the read has ended
}

// maxHeld bounds what a watch reads ahead. It must hold a TLS close alert, which comes before the hang-up itself.
const maxHeld = 4096

// aLongTimeAgo is a read deadline that ends a read at once.
var aLongTimeAgo = time.Unix(1, 0)

func (w *Watch) read() {
	defer close(w.ahead.done)
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
	if AwaitHangUp(c.Conn, w.ahead.stopped) {
		c.pending = io.EOF
		close(w.gone)
	}
}

// stopReading ends the background read and waits for its end. The read deadline is cleared: the server sets its own
// before it reads on.
func (w *Watch) stopReading() {
	select {
	case <-w.ahead.done:
		return
	default:
	}
	close(w.ahead.stopped)
	// An error means the connection is closed, and then the read has ended too.
	_ = w.c.Conn.SetReadDeadline(aLongTimeAgo)
	<-w.ahead.done
	_ = w.c.Conn.SetReadDeadline(time.Time{})
}

// HangUpLook is how often a connection whose input nobody reads any more is asked for its hang-up.
const HangUpLook = 250 * time.Millisecond

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
