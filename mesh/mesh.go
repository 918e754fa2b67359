package mesh

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Handler is told every frame that an authenticated peer has sent. Calls for one peer come one after the other, those
// for several at the same time; payload is valid during the call. It should return soon: meanwhile that peer waits.
type Handler func(from string, kind Kind, payload []byte)

// Mesh is this node. Safe for concurrent use.
type Mesh struct {
	log  *slog.Logger
	cfg  Config
	name string
	id   nodeID
	auth *authority
	ln   net.Listener
	counters

	mu       sync.Mutex // guards all below
	links    map[string]*link
	inbound  map[net.Conn]struct{}
	ended    bool
	inflight int // handshakes of strangers under way
}

// nodeID tells a node from itself: it is made anew with every start.
type nodeID [16]byte

// maxHandshakes bounds the connections that have not proved who they are.
const maxHandshakes = 64

// handshakeTime bounds how long one may take for it.
const handshakeTime = 5 * time.Second

// New returns a mesh that shows itself to its peers as name, with files read and keys derived; it does no other I/O.
// ln may be nil: Run then listens on cfg.Addr.
func New(log *slog.Logger, cfg Config, name string, ln net.Listener) (*Mesh, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	auth, err := newAuthority(cfg)
	if err != nil {
		return nil, err
	}
	m := &Mesh{
		log: log, cfg: cfg, name: name[:min(len(name), maxName)], auth: auth, ln: ln,
		links: map[string]*link{}, inbound: map[net.Conn]struct{}{},
	}
	if _, err := rand.Read(m.id[:]); err != nil {
		return nil, fmt.Errorf("mesh: make a node id: %w", err)
	}
	return m, nil
}

// Run listens, dials and carries frames until ctx ends, telling handle what comes. A peer that is away is tried again
// for ever. A mesh runs once.
func (m *Mesh) Run(ctx context.Context, handle Handler) error {
	ln := m.ln
	if ln == nil {
		var err error
		if ln, err = (&net.ListenConfig{}).Listen(ctx, "tcp", m.cfg.Addr); err != nil {
			return fmt.Errorf("mesh: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { m.resolveLoop(ctx, &wg) })
	wg.Go(func() {
		<-ctx.Done()
		_ = ln.Close() // ends accept, whose error says so
		m.closeInbound()
	})
	err := m.accept(ctx, ln, handle, &wg)
	cancel()
	wg.Wait()
	return err
}

// Broadcast queues a frame for every peer and never blocks. It keeps payload, which must not change afterwards; one
// that is larger than MaxPayload, or whose kind is the mesh's own, is a fault of the caller and panics.
func (m *Mesh) Broadcast(kind Kind, payload []byte) {
	if kind < FirstKind || len(payload) > MaxPayload {
		panic(fmt.Sprintf("mesh: frame of kind %d with %d bytes", kind, len(payload)))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.links {
		l.offer(outgoing{kind, payload})
	}
}

// accept serves until the listener is closed.
func (m *Mesh) accept(ctx context.Context, ln net.Listener, handle Handler, wg *sync.WaitGroup) error {
	for {
		conn, err := ln.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case err != nil && errors.Is(err, net.ErrClosed):
			return fmt.Errorf("mesh: %w", err)
		case err != nil:
			// Out of descriptors, most likely: nothing is gained by trying at once.
			m.log.Warn("the mesh cannot accept a connection", "err", err)
			if !rest(ctx, time.Second) {
				return nil
			}
			continue
		}
		if !m.admit(conn) {
			m.refused.Add(1)
			_ = conn.Close()
			continue
		}
		wg.Go(func() {
			defer m.dismiss(conn)
			m.receive(ctx, conn, handle)
		})
	}
}

// admit remembers a connection so that the end closes it, unless too many strangers are at the door.
func (m *Mesh) admit(conn net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended || m.inflight >= maxHandshakes {
		return false
	}
	m.inflight++
	m.inbound[conn] = struct{}{}
	return true
}

func (m *Mesh) known() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inflight--
}

func (m *Mesh) dismiss(conn net.Conn) {
	_ = conn.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.inbound, conn)
}

func (m *Mesh) closeInbound() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	for conn := range m.inbound {
		_ = conn.Close()
	}
}

// rest waits and reports whether ctx is still alive.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
