package lab

import (
	"bytes"
	"encoding/binary"
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
	Lost   bool    // answers are lost: what was said has been heard, and the connection is reset when something comes back
	On     string  // Answer and Lost befall only what begins so, say a method and a path
	Share  float64 // and only this part of it, all when zero
	Mute   bool    // notifications of PostgreSQL vanish, and everything else passes
	Loss   float64 // probability that a piece of the stream vanishes: what comes after it makes no sense
}

// pieceBytes is the largest piece that passes a link at once.
const pieceBytes = 32 << 10

// Link is a TCP proxy between two processes. It is safe for concurrent use.
type Link struct {
	Name string

	target  string
	far     time.Duration // how far away the target always is, each way
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
func newLink(name, target string) (*Link, error) { return newFarLink(name, target, 0) }

// newFarLink is newLink to a target that is so far away.
func newFarLink(name, target string, far time.Duration) (*Link, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open the link %s: %w", name, err)
	}
	l := &Link{
		Name: name, target: target, far: far, ln: ln, changed: make(chan struct{}), conns: map[*net.TCPConn]struct{}{},
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
	var doomed atomic.Bool // its next answer is lost
	both.Go(func() { l.pump(far, near, Forth, &doomed) })
	both.Go(func() { l.pump(near, far, Back, &doomed) })
	both.Wait()
	_ = near.Close()
	_ = far.Close()
}

// pump carries one way until the end of the stream, which it hands on, or an error, which ends both ways.
func (l *Link) pump(to, from *net.TCPConn, way Way, doomed *atomic.Bool) {
	buf := make([]byte, pieceBytes)
	for {
		n, err := from.Read(buf)
		piece := buf[:n]
		switch {
		case n == 0:
		case way == Back && doomed.Load():
			abort(from)
			abort(to)
			return
		case way == Back:
			piece = l.mute(piece)
		default:
			answer, lost := l.befalls(piece)
			if answer != "" {
				_, _ = from.Write([]byte(answer))
				_ = from.Close()
				abort(to)
				return
			}
			if lost {
				doomed.Store(true)
			}
		}
		if len(piece) > 0 && l.pass(way) {
			if _, werr := to.Write(piece); werr != nil {
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

// befalls is what happens to something that is said: it is answered here, or its answer will be lost, or neither.
func (l *Link) befalls(said []byte) (answer string, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.weather
	if w.Answer == "" && !w.Lost || !bytes.HasPrefix(said, []byte(w.On)) || w.Share > 0 && l.dice.Float64() >= w.Share {
		return "", false
	}
	l.lost.Add(1)
	return w.Answer, w.Lost
}

// mute takes notifications of PostgreSQL out of what comes back. They come by themselves, between answers: a piece that
// begins with one is of nothing else, save other messages behind it.
func (l *Link) mute(piece []byte) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	const header = 5 // a letter, and the length of all that follows it
	for l.weather.Mute && len(piece) >= header && piece[0] == 'A' {
		length := 1 + int(binary.BigEndian.Uint32(piece[1:]))
		if length < header || length > len(piece) {
			break
		}
		l.lost.Add(1)
		piece = piece[length:]
	}
	return piece
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
		if w.Delay > 0 && !noted {
			l.held.Add(1)
			noted = true
		}
		if late := w.Delay + l.far; late > 0 {
			time.Sleep(late)
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
