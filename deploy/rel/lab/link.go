package lab

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Way is a direction on a link.
type Way int

// The ways: Forth is from who dialled to who listens.
const (
	Forth Way = iota
	Back
)

// Weather is what a link does to what passes it. The zero value passes everything at once.
type Weather struct {
	Cut   bool          // connections are reset, and new ones as soon as they are made
	Deaf  [2]bool       // by way: bytes are held until the weather changes, as TCP does on a network that drops all
	Delay time.Duration // of every piece, each way
	// Answer is what every connection is told as soon as it says something, after which it is closed: whoever listens
	// there hears nothing.
	Answer string
	Loss   float64 // probability that a piece of the stream vanishes: what comes after it makes no sense
}

// pieceBytes is the largest piece that passes a link at once.
const pieceBytes = 32 << 10

// Link is a TCP proxy between two processes. It is safe for concurrent use.
type Link struct {
	Name string

	target  string
	ln      net.Listener
	running sync.WaitGroup
	held    atomic.Int64 // pieces that met a deaf way
	lost    atomic.Int64
	reset   atomic.Int64 // connections

	mu      sync.Mutex // guards all below
	weather Weather
	changed chan struct{} // closed when the weather changes
	conns   map[*net.TCPConn]struct{}
	closed  bool
	dice    *rand.Rand
}

// newLink opens a link on a port of its own to an address.
func newLink(name, target string) (*Link, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open the link %s: %w", name, err)
	}
	l := &Link{
		Name: name, target: target, ln: ln, changed: make(chan struct{}), conns: map[*net.TCPConn]struct{}{},
		dice: rand.New(rand.NewPCG(uint64(len(name)), 1)),
	}
	l.running.Go(l.accept)
	return l, nil
}

// Addr is where to dial the link.
func (l *Link) Addr() string { return l.ln.Addr().String() }

// Port is its port.
func (l *Link) Port() int { return l.ln.Addr().(*net.TCPAddr).Port }

// Set changes the weather. Cut resets the connections there are.
func (l *Link) Set(w Weather) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.weather = w
	close(l.changed)
	l.changed = make(chan struct{})
	if w.Cut {
		l.resetLocked()
	}
}

// resetLocked resets all connections there are.
func (l *Link) resetLocked() {
	l.reset.Add(int64(len(l.conns)))
	for c := range l.conns {
		abort(c)
	}
	clear(l.conns)
}

// Hits is how often the weather was felt: connections reset or answered, pieces held, late or lost.
func (l *Link) Hits() int64 { return l.held.Load() + l.lost.Load() + l.reset.Load() }

// close ends the link and all its connections.
func (l *Link) close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.changed)
		l.changed = make(chan struct{})
		l.resetLocked()
	}
	l.mu.Unlock()
	_ = l.ln.Close()
	l.running.Wait()
}

func (l *Link) accept() {
	for {
		c, err := l.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		l.running.Go(func() { l.serve(c.(*net.TCPConn)) })
	}
}

// track takes a connection into the list of those that a cut resets, unless there is a cut now.
func (l *Link) track(c *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.weather.Cut || l.closed {
		l.reset.Add(1)
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *Link) forget(c *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

func (l *Link) serve(near *net.TCPConn) {
	if !l.track(near) {
		abort(near)
		return
	}
	defer l.forget(near)
	c, err := net.DialTimeout("tcp", l.target, 2*time.Second)
	if err != nil {
		abort(near) // nobody listens there: to who dialled, a reset
		return
	}
	far := c.(*net.TCPConn)
	if !l.track(far) {
		abort(near)
		abort(far)
		return
	}
	defer l.forget(far)
	var both sync.WaitGroup
	both.Go(func() { l.pump(far, near, Forth) })
	both.Go(func() { l.pump(near, far, Back) })
	both.Wait()
	_ = near.Close()
	_ = far.Close()
}

// pump carries one way until the end of the stream, which it hands on, or an error, which ends both ways.
func (l *Link) pump(to, from *net.TCPConn, way Way) {
	buf := make([]byte, pieceBytes)
	for {
		n, err := from.Read(buf)
		if answer := l.answer(); n > 0 && way == Forth && answer != "" {
			_, _ = from.Write([]byte(answer))
			_ = from.Close()
			abort(to)
			return
		}
		if n > 0 && l.pass(way) {
			if _, werr := to.Write(buf[:n]); werr != nil {
				abort(from)
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = to.CloseWrite()
			return
		case err != nil:
			abort(to)
			return
		}
	}
}

// answer is what is told to who dialled in place of an answer, "" when nothing.
func (l *Link) answer() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.weather.Answer != "" {
		l.lost.Add(1)
	}
	return l.weather.Answer
}

// pass lets one piece wait as the weather wants, and reports whether it arrives.
func (l *Link) pass(way Way) bool {
	noted := false
	for {
		l.mu.Lock()
		w, changed, closed := l.weather, l.changed, l.closed
		lose := w.Loss > 0 && l.dice.Float64() < w.Loss
		l.mu.Unlock()
		if closed {
			return false
		}
		if w.Deaf[way] {
			if !noted {
				l.held.Add(1)
				noted = true
			}
			<-changed
			continue
		}
		if w.Delay > 0 {
			if !noted {
				l.held.Add(1)
				noted = true
			}
			time.Sleep(w.Delay)
		}
		if lose {
			l.lost.Add(1)
			return false
		}
		return true
	}
}

// abort closes a connection with a reset.
func abort(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
