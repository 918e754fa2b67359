package mesh

import (
	"context"
	"net"
	"sync"
	"time"
)

// resolveLoop keeps a link to every address that the peers' names stand for.
func (m *Mesh) resolveLoop(ctx context.Context, wg *sync.WaitGroup) {
	tick := time.NewTicker(m.cfg.Resolve)
	defer tick.Stop()
	for {
		m.relink(ctx, m.resolve(ctx), wg)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// resolve returns the addresses of all peers. A name that cannot be looked up keeps the addresses it had: a resolver
// that is away must not part brokers that still reach each other.
func (m *Mesh) resolve(ctx context.Context) map[string]string {
	found := map[string]string{} // address to the peer it comes from
	for _, peer := range m.cfg.Peers {
		host, port, err := splitPeer(peer)
		if err != nil {
			continue // Validate has looked at it
		}
		lookup, cancel := context.WithTimeout(ctx, m.cfg.Resolve)
		addrs, err := net.DefaultResolver.LookupHost(lookup, host)
		cancel()
		if err != nil {
			m.mu.Lock()
			for addr, l := range m.links {
				if l.peer == peer {
					found[addr] = peer
				}
			}
			m.mu.Unlock()
			m.log.Debug("a peer of the mesh cannot be looked up", "peer", peer, "err", err)
			continue
		}
		for _, a := range addrs {
			found[net.JoinHostPort(a, port)] = peer
		}
	}
	return found
}

// relink starts and ends links so that they are those of found.
func (m *Mesh) relink(ctx context.Context, found map[string]string, wg *sync.WaitGroup) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	for addr, l := range m.links {
		if _, ok := found[addr]; !ok {
			l.cancel()
			delete(m.links, addr)
		}
	}
	for addr, peer := range found {
		if _, ok := m.links[addr]; ok {
			continue
		}
		linkCtx, cancel := context.WithCancel(ctx)
		l := &link{m: m, peer: peer, addr: addr, queue: make(chan outgoing, m.cfg.Queue), cancel: cancel}
		m.links[addr] = l
		wg.Go(func() {
			defer cancel()
			l.run(linkCtx)
		})
	}
}
