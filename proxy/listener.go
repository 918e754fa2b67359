package proxy

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queengate/queengate/internal/httpkit"
)

// clientListener hands fasthttp connections that have passed the walls, wrapped as clientConn.
type clientListener struct {
	net.Listener
	gateway *Gateway
	closing sync.Once
	closed  error
}

// Close implements net.Listener. fasthttp and the drain may both close.
func (l *clientListener) Close() error {
	l.closing.Do(func() { l.closed = l.Listener.Close() })
	return l.closed
}

// Accept implements net.Listener. Connections beyond a wall are closed at once; a lack of file descriptors is waited
// out, since fasthttp would end the server on it.
func (l *clientListener) Accept() (net.Conn, error) {
	pause := 5 * time.Millisecond
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			if !passing(err) {
				return nil, err
			}
			l.gateway.log.Warn("accept a connection", "err", err, "pause_ms", pause.Milliseconds())
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		addr := addressOf(c)
		if !l.gateway.walls.enter(addr) {
			l.gateway.metrics.connsRefused.Inc()
			// The client sees the close; there is nobody else to tell.
			_ = c.Close()
			continue
		}
		cc := &clientConn{Conn: c, gateway: l.gateway, addr: addr, first: httpkit.NewFirstRead(c)}
		l.gateway.walls.keep(cc)
		return &httpkit.HoldbackConn{Conn: cc}, nil
	}
}

// passing reports whether an accept error heals by itself.
func passing(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ECONNABORTED) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}

// addressOf returns the client's address, the zero value for a connection without one.
func addressOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// connWalls counts open connections, in all and per address. Safe for concurrent use.
type connWalls struct {
	max, maxAddress int
	open            atomic.Int64

	// mu guards perAddress and conns.
	mu         sync.Mutex
	perAddress map[netip.Addr]int
	conns      map[*clientConn]struct{}
}

func newConnWalls(c *Config) *connWalls {
	return &connWalls{max: c.MaxConns, maxAddress: c.MaxAddressConns, perAddress: map[netip.Addr]int{}, conns: map[*clientConn]struct{}{}}
}

// wallKey is what connections are counted under: an IPv6 customer owns a whole /64.
func wallKey(a netip.Addr) netip.Addr {
	if a.Is6() {
		p, err := a.Prefix(64)
		if err != nil {
			return a // cannot happen: 64 fits
		}
		return p.Addr()
	}
	return a
}

func (w *connWalls) counted(a netip.Addr) bool {
	return w.maxAddress >= 0 && a.IsValid() && !a.IsLoopback()
}

// enter counts a new connection, or reports that a wall is reached.
func (w *connWalls) enter(a netip.Addr) bool {
	if w.open.Add(1) > int64(w.max) {
		w.open.Add(-1)
		return false
	}
	if !w.counted(a) {
		return true
	}
	key := wallKey(a)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.perAddress[key] >= w.maxAddress {
		w.open.Add(-1)
		return false
	}
	w.perAddress[key]++
	return true
}

// keep remembers an open connection, so that it can be cut.
func (w *connWalls) keep(c *clientConn) {
	w.mu.Lock()
	w.conns[c] = struct{}{}
	w.mu.Unlock()
}

// cut closes all open connections and returns how many there were.
func (w *connWalls) cut() int {
	w.mu.Lock()
	conns := slices.Collect(maps.Keys(w.conns))
	w.mu.Unlock()
	for _, c := range conns {
		c.lingers.Store(false)
		_ = c.Close() // its server notices
	}
	return len(conns)
}

// leave is the counterpart of a granted enter.
func (w *connWalls) leave(c *clientConn) {
	w.open.Add(-1)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
	if !w.counted(c.addr) {
		return
	}
	key := wallKey(c.addr)
	if w.perAddress[key]--; w.perAddress[key] <= 0 {
		delete(w.perAddress, key)
	}
}
