package mesh

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// maxName bounds the name a node gives itself.
const maxName = 255

var (
	errHello = errors.New("mesh: the peer's first frame is not a hello")
	errSelf  = errors.New("mesh: this node itself")
)

// receive takes the frames of an accepted connection until it ends.
func (m *Mesh) receive(ctx context.Context, raw net.Conn, handle Handler) {
	conn := tls.Server(raw, m.auth.config())
	peer, r, err := m.greet(ctx, conn)
	m.known()
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, errSelf) {
			m.refused.Add(1)
			m.log.Warn("the mesh has refused a connection", "remote", raw.RemoteAddr().String(), "err", err)
		}
		return
	}
	m.connectedIn.Add(1)
	defer m.connectedIn.Add(-1)
	var buf, beat []byte
	beat = appendFrame(beat, kindHeartbeat, nil)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(m.cfg.Dead))
		kind, payload, err := readFrame(r, &buf)
		if err != nil {
			m.parted(ctx, peer, err)
			return
		}
		switch {
		case kind == kindHeartbeat:
			_ = conn.SetWriteDeadline(time.Now().Add(m.cfg.Dead))
			if _, err := conn.Write(beat); err != nil {
				m.parted(ctx, peer, err)
				return
			}
		case kind >= FirstKind:
			m.received.Add(1)
			handle(peer, kind, payload)
		}
	}
}

func (m *Mesh) parted(ctx context.Context, peer string, err error) {
	if ctx.Err() == nil && !errors.Is(err, io.EOF) {
		m.log.Debug("a connection of the mesh has ended", "peer", peer, "err", err)
	}
}

// greet proves both sides to each other and exchanges hellos, the same on both: in it a node meets itself, too. A
// connection that turns out to be to itself is reported as errSelf.
func (m *Mesh) greet(ctx context.Context, conn *tls.Conn) (peer string, r *bufio.Reader, err error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	// A fresh deadline for all of it: HandshakeContext ends with ctx, the hello with the connection's own.
	_ = conn.SetDeadline(time.Now().Add(handshakeTime))
	if err := conn.HandshakeContext(ctx); err != nil {
		return "", nil, fmt.Errorf("mesh: handshake: %w", err)
	}
	if _, err := conn.Write(appendFrame(nil, kindHello, append(m.id[:], m.name...))); err != nil {
		return "", nil, fmt.Errorf("mesh: hello: %w", err)
	}
	r = bufio.NewReaderSize(conn, 16<<10)
	var buf []byte
	kind, payload, err := readFrame(r, &buf)
	switch {
	case err != nil:
		return "", nil, fmt.Errorf("mesh: hello: %w", err)
	case kind != kindHello || len(payload) < len(m.id) || len(payload) > len(m.id)+maxName:
		return "", nil, errHello
	case nodeID(payload[:len(m.id)]) == m.id:
		return "", nil, errSelf
	}
	_ = conn.SetDeadline(time.Time{})
	return string(payload[len(m.id):]), r, nil
}
