package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/deadlines"
	"github.com/queengate/queengate/internal/tracing"
)

// progress is how far an attempt has come, as far as this side can tell.
type progress uint8

const (
	unsent  progress = iota // no byte of the request: nothing can have happened at the broker
	sent                    // perhaps all of it, and no byte of an answer has come
	partial                 // bytes of an answer have come
)

// upstreamDialer makes calls to brokers over HTTP/1.1 keep-alive connections. It is written for what fasthttp's client
// cannot tell: whether a byte of the request was sent, and how to give up a call that waits. Safe for concurrent use.
type upstreamDialer struct {
	connectTime time.Duration
	maxIdle     int
}

// upstreamConn is one connection to a broker; it belongs to one request at a time.
type upstreamConn struct {
	net.Conn
	home *upstreamConns  // where it goes when the request is over
	br   *bufio.Reader   // nil while the connection is parked
	raw  syscall.RawConn // nil when the system offers none
	used time.Time       // when it went idle

	peek  func(fd uintptr) bool // c.look, bound once
	quiet bool                  // what look saw

	// What follows is guarded by home.mu.

	call  *call // of the request that has it; nil: nobody can give it up
	place int   // among the busy ones
	cut   bool  // by upstreamConns.cut
}

const (
	// upstreamIdle is how long an idle connection is trusted: less than a broker keeps it.
	upstreamIdle = 45 * time.Second
	// upstreamWarm is how long it is trusted without a look at it, which is a system call. A broker that dies within this
	// time after an answer could as well have died within the next request.
	upstreamWarm = time.Millisecond
)

const upstreamReadBuffer = 4 << 10

// upstreamConns is the connections to a broker, idle and busy, that serve one purpose. Safe for concurrent use.
type upstreamConns struct {
	max int // of idle ones

	// mu guards what follows, and parts of the connections.
	mu     sync.Mutex
	idle   []*upstreamConn // a stack: the most recently used is the least likely to be stale, and the rest can age
	busy   []*upstreamConn // in no order
	closed bool
}

// take hands an idle connection to a request; nil when there is none.
func (uc *upstreamConns) take(k *call) *upstreamConn {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	n := len(uc.idle)
	if n == 0 {
		return nil
	}
	c := uc.idle[n-1]
	uc.idle[n-1] = nil
	uc.idle = uc.idle[:n-1]
	uc.engageLocked(c, k)
	return c
}

// add takes in a new connection, which a request has.
func (uc *upstreamConns) add(c *upstreamConn, k *call) {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	uc.engageLocked(c, k)
}

func (uc *upstreamConns) engageLocked(c *upstreamConn, k *call) {
	c.call, c.place = k, len(uc.busy)
	uc.busy = append(uc.busy, c)
}

// releaseLocked ends the connection's part in a request, if it has one.
func (uc *upstreamConns) releaseLocked(c *upstreamConn) {
	if c.place < 0 {
		return
	}
	last := len(uc.busy) - 1
	moved := uc.busy[last]
	uc.busy[c.place], moved.place = moved, c.place
	uc.busy[last] = nil
	uc.busy = uc.busy[:last]
	c.call, c.place = nil, -1
}

// cut ends what is under way: the broker is dead, and would be waited for in vain.
func (uc *upstreamConns) cut() {
	uc.mu.Lock()
	defer uc.mu.Unlock()
	for _, c := range uc.busy {
		if c.cut {
			continue
		}
		c.cut = true
		_ = c.Conn.Close() // whoever reads or writes it reports what happened
		if c.call != nil {
			c.call.rouse()
		}
	}
}

// wasCut reports whether the connection was cut under its request.
func (c *upstreamConn) wasCut() bool {
	c.home.mu.Lock()
	defer c.home.mu.Unlock()
	return c.cut
}

// Close implements net.Conn.
func (c *upstreamConn) Close() error {
	c.home.mu.Lock()
	c.home.releaseLocked(c)
	c.home.mu.Unlock()
	return c.Conn.Close()
}

// put ends a request's part in a connection that is good for another one.
func (uc *upstreamConns) put(c *upstreamConn, now time.Time) {
	c.used = now
	uc.mu.Lock()
	uc.releaseLocked(c)
	var old *upstreamConn
	keep := !uc.closed && !c.cut && len(uc.idle) < uc.max
	if keep {
		uc.idle = append(uc.idle, c)
		if first := uc.idle[0]; c.used.Sub(first.used) > upstreamIdle {
			old = first
			uc.idle = append(uc.idle[:0], uc.idle[1:]...)
		}
	}
	uc.mu.Unlock()
	// Nothing is lost with an idle connection, so how its closing ends does not matter.
	if !keep {
		_ = c.Conn.Close()
	}
	if old != nil {
		_ = old.Conn.Close()
	}
}

// drop closes what is idle now.
func (uc *upstreamConns) drop() {
	uc.mu.Lock()
	conns := uc.idle
	uc.idle = nil
	uc.mu.Unlock()
	for _, c := range conns {
		_ = c.Conn.Close()
	}
}

// closeAll closes what is idle now and what would be later.
func (uc *upstreamConns) closeAll() {
	uc.mu.Lock()
	uc.closed = true
	uc.mu.Unlock()
	uc.drop()
}

// fresh reports whether an idle connection is still worth a request: neither aged, nor closed by the broker, nor with
// bytes in it that nobody asked for.
func (c *upstreamConn) fresh(now time.Time) bool {
	rested := now.Sub(c.used)
	if rested > upstreamIdle || c.br.Buffered() > 0 {
		return false
	}
	if rested < upstreamWarm || c.raw == nil {
		return true
	}
	return c.raw.Read(c.peek) == nil && c.quiet
}

// look finds out whether there is nothing to read, without waiting.
func (c *upstreamConn) look(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	c.quiet = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
	return true
}

// call lets another goroutine give up an attempt that waits for a broker. Safe for concurrent use.
type call struct {
	// mu guards what follows, but for the channel.
	mu    sync.Mutex
	conn  net.Conn
	cause error
	wake  func()        // what is called when the connection is closed under a wait that nobody reads for; must not block. nil: somebody does
	done  chan struct{} // closed by cancel
}

func newCall() *call { return &call{done: make(chan struct{})} }

var (
	errClientGone = errors.New("the client has hung up")
	errDraining   = errors.New("the gateway drains")
	// errBrokerDead is the end of an attempt that was cut off.
	errBrokerDead = errors.New("the broker does not answer its probes")
)

// cancel gives the call up, once: a connection it waits on is closed, which ends the wait at the broker too.
func (k *call) cancel(cause error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cause != nil {
		return
	}
	k.cause = cause
	close(k.done)
	if k.conn != nil {
		_ = k.conn.Close() // the reader of it reports what happened
	}
	k.rouseLocked() // and there is one soon
}

// rouse has somebody look at the connection of the call, if nobody does.
func (k *call) rouse() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rouseLocked()
}

func (k *call) rouseLocked() {
	if k.wake != nil {
		k.wake()
	}
}

// sleeps has wake called when the call's connection is closed by cancel or because its broker is dead, and at once when
// the call is given up already. nil ends that.
func (k *call) sleeps(wake func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wake = wake
	if wake != nil && k.cause != nil {
		wake()
	}
}

// attach ties the call to the connection it waits on; false when it was given up already. nil calls cannot be.
func (k *call) attach(c net.Conn) bool {
	if k == nil {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cause != nil {
		return false
	}
	k.conn = c
	return true
}

// detach ends attach and returns why the call was given up, if it was.
func (k *call) detach() error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conn = nil
	return k.cause
}

// answer is a broker's answer whose head has been read. It is ended by exactly one of discard, release and abandon.
type answer struct {
	resp *fasthttp.Response
	conn *upstreamConn
	came time.Time // its head
}

func (a *answer) status() int { return a.resp.StatusCode() }

// size returns the length of the body, -1 when it is not known beforehand.
func (a *answer) size() int {
	if a.resp.BodyStream() == nil {
		return 0
	}
	return max(a.resp.Header.ContentLength(), -1)
}

// release ends an answer whose body was read to its end; its connection is kept when both sides like.
func (a *answer) release() {
	conn, keep := a.conn, !a.resp.ConnectionClose() && !a.draining()
	// Closing gives the stream back to its pool; it was read to the end.
	_ = a.resp.CloseBodyStream()
	fasthttp.ReleaseResponse(a.resp)
	if keep && conn.br.Buffered() == 0 && conn.SetDeadline(time.Time{}) == nil {
		conn.home.put(conn, a.came)
		return
	}
	_ = conn.Close()
}

// abandon ends an answer with its connection.
func (a *answer) abandon() {
	_ = a.conn.Close()
	_ = a.resp.CloseBodyStream()
	fasthttp.ReleaseResponse(a.resp)
}

// discard reads a short body away.
func (a *answer) discard() {
	if s := a.resp.BodyStream(); s != nil {
		if n, err := io.Copy(io.Discard, io.LimitReader(s, maxIgnoredBody+1)); err != nil || n > maxIgnoredBody {
			a.abandon()
			return
		}
	}
	a.release()
}

// draining reports whether the broker says that it stops.
func (a *answer) draining() bool { return len(a.resp.Header.PeekCanonical(names.draining)) > 0 }

// do sends one request, head and body, and reads the head of its answer, until the deadline. far is how far it came. An
// idle connection that turns out to be dead before a byte was written is replaced. k may be nil. When the probes find
// the broker dead the attempt ends in errBrokerDead, or the reading of its answer in an error.
func (d *upstreamDialer) do(b *broker, k *call, head, body []byte, deadline time.Time) (a *answer, far progress, err error) {
	return d.doOn(&b.conns, b, k, head, body, deadline)
}

// doOn is do on connections of a kind: probes have theirs, so that they neither take nor warm those of requests.
func (d *upstreamDialer) doOn(conns *upstreamConns, b *broker, k *call, head, body []byte, deadline time.Time) (a *answer, far progress, err error) {
	f, err := d.send(conns, b, k, head, body, time.Now(), deadline)
	if err != nil {
		return nil, unsent, err
	}
	return f.land()
}

// flight is a request that a broker has, or has a part of, and whose answer has not been read. It ends with land.
type flight struct {
	broker  *broker
	call    *call // nil: nobody can give it up
	conn    *upstreamConn
	sendErr error // why only a part was sent
	span    tracing.Span

	deadline time.Time // of the answer
	answered answer    // once it has landed well
}

// send is the first half of do. An error says that no byte was sent.
func (d *upstreamDialer) send(conns *upstreamConns, b *broker, k *call, head, body []byte, now, deadline time.Time) (*flight, error) {
	c, err := d.conn(conns, b.address, k, now, deadline)
	if err != nil {
		return nil, err
	}
	if !k.attach(c.Conn) {
		conns.put(c, now)
		return nil, k.detach()
	}
	f := &flight{broker: b, call: k, conn: c, deadline: deadline}
	wrote := false
	if err = c.SetDeadline(deadline); err == nil {
		wrote, err = c.send(head, body)
	}
	if err != nil && !wrote {
		_, _, err = f.down(nil, unsent, err)
		return nil, err
	}
	f.sendErr = err
	return f, nil
}

// answersWithin waits for d at most, and reports whether the flight can land at once: something of an answer has come, or
// nothing will.
func (f *flight) answersWithin(d time.Duration) bool {
	c := f.conn
	c.awake()
	if c.SetReadDeadline(earliest(time.Now().Add(d), f.deadline)) != nil {
		return true // it is closed
	}
	_, err := c.br.Peek(1)
	return c.SetReadDeadline(f.deadline) != nil || !isTimeout(err)
}

// land is the second half of do: it waits for the answer, until the deadline, and reads its head.
func (f *flight) land() (*answer, progress, error) {
	// A broker that refuses a long body may have answered before it closed; the answer tells more than the write.
	if f.sendErr != nil && isTimeout(f.sendErr) {
		return f.down(nil, sent, f.sendErr)
	}
	c := f.conn
	c.awake()
	far := sent
	_, err := c.br.Peek(1)
	if err == nil {
		far = partial
		resp := fasthttp.AcquireResponse()
		resp.StreamBody = true
		resp.Header.SetNoDefaultContentType(true)
		if err = resp.ReadLimitBody(c.br, 0); err == nil {
			if f.sendErr != nil {
				resp.SetConnectionClose()
			}
			f.answered = answer{resp: resp, conn: c, came: time.Now()}
			return f.down(&f.answered, partial, nil)
		}
		fasthttp.ReleaseResponse(resp)
	}
	if f.sendErr != nil {
		err = f.sendErr
	}
	return f.down(nil, far, err)
}

// down ends the flight. One that was given up meanwhile has no answer.
func (f *flight) down(a *answer, far progress, err error) (*answer, progress, error) {
	cause := f.call.detach()
	switch {
	case cause != nil:
		if a != nil {
			a.abandon()
			a = nil
		}
		err = cause
	case err != nil && f.conn.wasCut():
		err = errBrokerDead
	}
	if a == nil {
		_ = f.conn.Close() // it is unusable, and err says why
	}
	return a, far, err
}

// conn returns an idle connection that is still good, or a new one.
func (d *upstreamDialer) conn(conns *upstreamConns, address string, k *call, now, deadline time.Time) (*upstreamConn, error) {
	for c := conns.take(k); c != nil; c = conns.take(k) {
		if c.fresh(now) {
			return c, nil
		}
		_ = c.Close()
	}
	nc, err := d.dial(address, earliest(now.Add(d.connectTime), deadline))
	if err != nil {
		return nil, err
	}
	nc = deadlines.New(nc)
	c := &upstreamConn{Conn: nc, home: conns, place: -1}
	c.peek = c.look
	c.awake()
	if sc, ok := nc.(syscall.Conn); ok {
		if c.raw, err = sc.SyscallConn(); err != nil {
			_ = nc.Close()
			return nil, err
		}
	}
	conns.add(c, k)
	return c, nil
}

// backlogPause lies between two knocks at a socket whose backlog is full: there the system refuses at once, where with TCP
// it would knock again by itself.
const backlogPause = 2 * time.Millisecond

// dial connects to a broker.
func (d *upstreamDialer) dial(address string, deadline time.Time) (net.Conn, error) {
	dialer := net.Dialer{Deadline: deadline}
	if !isSocket(address) {
		return dialer.Dial("tcp", address)
	}
	for {
		c, err := dialer.Dial("unix", address)
		if !errors.Is(err, syscall.EAGAIN) || time.Until(deadline) < backlogPause {
			return c, err
		}
		time.Sleep(backlogPause)
	}
}

// upstreamReaders are the readers of connections that are not parked.
var upstreamReaders = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, upstreamReadBuffer) }}

// awake gives a connection a reader, if it has none.
func (c *upstreamConn) awake() {
	if c.br == nil {
		c.br = upstreamReaders.Get().(*bufio.Reader)
		c.br.Reset(c.Conn)
	}
}

// asleep takes the reader of a connection from which nothing has been read since it was last used up.
func (c *upstreamConn) asleep() {
	if br := c.br; br != nil && br.Buffered() == 0 {
		c.br = nil
		br.Reset(nil)
		upstreamReaders.Put(br)
	}
}

// send writes head and body with one system call where it can.
func (c *upstreamConn) send(head, body []byte) (wrote bool, err error) {
	if len(body) == 0 {
		n, err := c.Conn.Write(head)
		return n > 0, err
	}
	n, err := deadlines.WriteBuffers(c.Conn, &net.Buffers{head, body})
	return n > 0, err
}
