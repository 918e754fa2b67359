package httpkit

import (
	"net"
	"syscall"
)

// Sentry looks out on one connection, without reading it, for what happens to it first. See Stand.
type Sentry struct {
	conn  syscall.Conn
	post  uint64 // names it to the look-out that all sentries share
	alarm func() // nil once it was called or is not wanted any more; guarded by the look-out
}

// Stand has a sentry look out on c until its peer hangs up, fully or by closing its writing side, also behind bytes that
// nobody has read; with input, until there is something to read. It then calls alarm, once, which must neither block nor
// call a sentry. All sentries of a process share one goroutine, so a connection that stays quiet costs about 200 bytes
// and nothing else. Wrappers such as TLS are looked through with NetConn: what they have buffered is not seen.
//
// Stop must be called before c is given back. At most one sentry stands on a connection at a time. The end of a stream
// stands behind its bytes: it is not seen while the peer has more to send than the system's receive buffer takes.
//
// ok is false where the system has no such thing and for what is no socket.
func Stand(c net.Conn, input bool, alarm func()) (s *Sentry, ok bool) {
	sc := socketOf(c)
	if sc == nil {
		return nil, false
	}
	s = &Sentry{conn: sc, alarm: alarm}
	return s, s.enlist(input)
}

// socketOf finds what has a descriptor under wrappers with NetConn, nil when there is nothing.
func socketOf(c net.Conn) syscall.Conn {
	for {
		switch w := c.(type) {
		case syscall.Conn:
			return w
		case interface{ NetConn() net.Conn }:
			c = w.NetConn()
		default:
			return nil
		}
	}
}
