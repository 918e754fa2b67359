package mesh

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"
)

const (
	redialFirst = 250 * time.Millisecond
	redialLast  = 5 * time.Second
	// selfRest is how long an address that turned out to be this node is left alone. It may become another's.
	selfRest = time.Minute
)

// link sends to one address: it dials, and dials again when the connection ends.
type link struct {
	m      *Mesh
	peer   string // the entry of Config.Peers it comes from
	addr   string
	queue  chan outgoing
	up     atomic.Bool // connected; frames offered otherwise are dropped, for they would be stale when it is
	cancel context.CancelFunc
}

type outgoing struct {
	kind    Kind
	payload []byte
}

func (l *link) offer(f outgoing) {
	if l.up.Load() {
		select {
		case l.queue <- f:
			return
		default:
		}
	}
	l.m.dropped.Add(1)
}

// run keeps the link up until ctx ends.
func (l *link) run(ctx context.Context) {
	pause := redialFirst
	var told bool // that the peer is away, once per absence
	for ctx.Err() == nil {
		began := time.Now()
		peer, err := l.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case errors.Is(err, errSelf):
			if !rest(ctx, selfRest) {
				return
			}
			continue
		case peer != "":
			told = false
			l.m.log.Info("a peer of the mesh is gone", "peer", peer, "addr", l.addr, "err", err)
			if time.Since(began) > redialLast {
				pause = redialFirst
			}
		case !told:
			told = true
			l.m.log.Warn("a peer of the mesh cannot be reached", "addr", l.addr, "err", err)
		}
		// Jitter keeps the nodes of a restarted cell from dialling in step.
		if !rest(ctx, pause/2+rand.N(pause)) {
			return
		}
		pause = min(2*pause, redialLast)
	}
}

// serve dials and sends until the connection ends. peer is "" when it did not come about.
func (l *link) serve(ctx context.Context) (peer string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dialer := net.Dialer{Timeout: handshakeTime}
	raw, err := dialer.DialContext(ctx, "tcp", l.addr)
	if err != nil {
		return "", err
	}
	defer raw.Close()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	conn := tls.Client(raw, l.m.auth.config())
	peer, r, err := l.m.greet(ctx, conn)
	if err != nil {
		return "", err
	}
	if peer == "" {
		peer = l.addr // a node may go without a name
	}
	l.m.log.Info("a peer of the mesh is there", "peer", peer, "addr", l.addr)
	defer l.drain()
	l.up.Store(true) // before it is counted: whoever sees the count may rely on it
	defer l.up.Store(false)
	l.m.connectedOut.Add(1)
	defer l.m.connectedOut.Add(-1)
	heard := make(chan error, 1)
	go func() { heard <- l.listen(conn, r) }()
	err = l.send(ctx, conn, heard)
	_ = raw.Close()
	if e := <-heard; err == nil {
		err = e
	}
	return peer, err
}

// listen takes the answers to heartbeats; it returns when the peer has been silent for too long.
func (l *link) listen(conn *tls.Conn, r *bufio.Reader) error {
	var buf []byte
	for {
		_ = conn.SetReadDeadline(time.Now().Add(l.m.cfg.Dead))
		if _, _, err := readFrame(r, &buf); err != nil {
			_ = conn.NetConn().Close() // wakes the sender
			return err
		}
	}
}

// send writes what is queued, many frames to a record where they come fast.
func (l *link) send(ctx context.Context, conn *tls.Conn, heard chan error) error {
	w := bufio.NewWriterSize(conn, 16<<10)
	beat := time.NewTicker(l.m.cfg.Heartbeat)
	defer beat.Stop()
	var buf []byte
	for {
		select {
		case f := <-l.queue:
			buf = appendFrame(buf[:0], f.kind, f.payload)
			l.m.sent.Add(1)
		case <-beat.C:
			buf = appendFrame(buf[:0], kindHeartbeat, nil)
		case err := <-heard:
			heard <- err
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		_ = conn.SetWriteDeadline(time.Now().Add(l.m.cfg.Dead))
		if _, err := w.Write(buf); err != nil {
			return err
		}
		if len(l.queue) == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
}

// drain drops what waits for a connection that has ended.
func (l *link) drain() {
	for {
		select {
		case <-l.queue:
			l.m.dropped.Add(1)
		default:
			return
		}
	}
}
