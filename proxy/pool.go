package proxy

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queengate/queengate/plans"
)

// pool is the brokers of a cell. Safe for concurrent use.
type pool struct {
	log       *slog.Logger
	cell      string
	self      plans.Cluster // whom the gateway's own questions to the cell come from
	slowStart time.Duration // 0: none
	lost      func()        // a broker of it went out of service, other than by its drain

	// Guarded by the lock of the pools.
	source    string // what the endpoints were read from
	endpoints []endpoint
	known     resolved
	moved     chan struct{} // wakes the look-up of names; capacity 1

	members  atomic.Pointer[[]*broker] // immutable, by address
	ejecting sync.Mutex                // held while it is decided whether the pool spares a broker

	// mu guards wake, which is closed and replaced when a broker's state changes, or the brokers do.
	mu   sync.Mutex
	wake chan struct{}
}

func newPool(log *slog.Logger, cell string, slowStart time.Duration) *pool {
	p := &pool{log: log, cell: cell, slowStart: slowStart, moved: make(chan struct{}, 1), wake: make(chan struct{}), lost: func() {}}
	p.self = plans.Cluster{Slug: subjectGateway, Cell: cell}
	p.members.Store(&[]*broker{})
	return p
}

func (p *pool) brokers() []*broker { return *p.members.Load() }

func (p *pool) changed() {
	p.mu.Lock()
	close(p.wake)
	p.wake = make(chan struct{})
	p.mu.Unlock()
}

// changes returns a channel that is closed at the next change of a broker's state. It is taken before the look at the
// brokers, so that no change is missed.
func (p *pool) changes() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wake
}

// any reports whether some broker of the pool is able.
func (p *pool) any(n need) bool {
	return slices.ContainsFunc(p.brokers(), func(b *broker) bool { return b.able(n) })
}

// spares reports whether at least half of the brokers are in service without this one.
func (p *pool) spares(b *broker) bool {
	all, others := p.brokers(), 0
	for _, o := range all {
		if o != b && o.able(needLive) {
			others++
		}
	}
	return 2*others >= len(all)
}

// join replaces the brokers by those of the addresses. One that stays keeps its state and its connections; one that
// goes finishes what it was sent. To a pool that serves already a new one comes slowly, as if it came back.
func (p *pool) join(addresses []string, enter func(*broker)) {
	old := map[string]*broker{}
	for _, b := range p.brokers() {
		old[b.address] = b
	}
	next := make([]*broker, 0, len(addresses))
	var fresh []*broker
	for _, a := range addresses {
		b := old[a]
		if delete(old, a); b == nil {
			b = newBroker(p, a)
			if len(p.brokers()) > 0 && p.slowStart > 0 {
				b.risen.Store(time.Now().UnixNano())
			}
			fresh = append(fresh, b)
		}
		next = append(next, b)
	}
	if len(fresh) == 0 && len(old) == 0 {
		return
	}
	for _, b := range fresh {
		enter(b)
	}
	p.members.Store(&next)
	for _, b := range old {
		b.retire()
	}
	p.log.Info("brokers of a cell", "cell", p.cell, "brokers", addresses)
	p.changed()
}

// pools finds the pool of a cell and keeps its brokers probed. Safe for concurrent use.
type pools struct {
	log      *slog.Logger
	dialer   *upstreamDialer
	tokens   *cellTokens
	override map[string]string
	interval time.Duration
	slow     time.Duration
	limits   [probes]time.Duration // of the time to answer a probe
	ask      prober
	askKey   func(*broker)
	look     lookup
	lost     func(cell string) // a broker went out of service, other than by its drain
	stop     context.CancelFunc
	probing  context.Context // ends with stop; the probers' lifetime, not a request's
	probers  sync.WaitGroup

	// mu guards byCell, closed, and the brokers of the pools.
	mu     sync.RWMutex
	byCell map[string]*pool
	closed bool
}

func newPools(log *slog.Logger, c *Config, d *upstreamDialer, t *cellTokens) *pools {
	ps := &pools{
		log: log, dialer: d, tokens: t, override: map[string]string{}, interval: c.ProbeInterval, slow: max(c.SlowStart, 0),
		look: net.DefaultResolver.LookupHost, lost: func(string) {}, byCell: map[string]*pool{},
	}
	ps.limits = [probes]time.Duration{livez: livezTime, readyz: readyzTime}
	ps.ask, ps.askKey = ps.asks, ps.askSigned
	for cell, urls := range c.Brokers {
		ps.override[cell] = strings.Join(urls, ",")
	}
	ps.probing, ps.stop = context.WithCancel(context.Background())
	return ps
}

// source returns where the brokers of a cell are.
func (ps *pools) source(snap *plans.Snapshot, cell string) (string, error) {
	if s, ok := ps.override[cell]; ok {
		return s, nil
	}
	c := snap.Cell(cell)
	if c == nil {
		return "", fmt.Errorf("cell %s is unknown", cell)
	}
	return c.BaseURL, nil
}

// of returns the cell's pool, making it at its first use. An address that cannot be read, or a cell that is gone, is an
// error.
func (ps *pools) of(snap *plans.Snapshot, cell string) (*pool, error) {
	source, err := ps.source(snap, cell)
	if err != nil {
		return nil, err
	}
	ps.mu.RLock()
	p := ps.byCell[cell]
	same := p != nil && p.source == source
	ps.mu.RUnlock()
	if same {
		return p, nil
	}
	return ps.settle(cell, source)
}

// follow gives the pools in use the brokers of a new snapshot, and wakes what waits for one.
func (ps *pools) follow(_, snap *plans.Snapshot) {
	for _, p := range ps.all() {
		if _, err := ps.of(snap, p.cell); err != nil {
			ps.log.Warn("the brokers of a cell are not known any more", "cell", p.cell, "err", err)
		}
	}
}

// settle makes the pool of a cell, or gives it other brokers.
func (ps *pools) settle(cell, source string) (*pool, error) {
	endpoints, err := readEndpoints(source)
	if err != nil {
		return nil, fmt.Errorf("cell %s: %w", cell, err)
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byCell[cell]
	if p != nil && p.source == source {
		return p, nil
	}
	if p == nil {
		p = newPool(ps.log, cell, ps.slow)
		p.lost = func() { ps.lost(cell) }
		if !ps.closed {
			ps.probers.Go(func() { ps.resolve(p) })
		}
	}
	p.source, p.endpoints = source, endpoints
	p.join(p.known.addresses(endpoints), ps.enterLocked)
	ps.byCell[cell] = p
	select {
	case p.moved <- struct{}{}:
	default: // the look-up has not begun yet
	}
	return p, nil
}

// enterLocked starts the probers of a broker that joins a pool.
func (ps *pools) enterLocked(b *broker) {
	b.conns.max = ps.dialer.maxIdle
	if ps.closed {
		return
	}
	ctx, stop := context.WithCancel(ps.probing)
	var asking sync.WaitGroup
	for which := range probes {
		asking.Go(func() { ps.watch(ctx, b, which) })
	}
	asking.Go(func() { ps.watchKey(ctx, b) })
	ps.probers.Go(func() {
		asking.Wait()
		b.closeConns()
	})
	b.retire = stop
}

// resolve looks up, now and then, what stands behind the names of a pool that mean several brokers.
func (ps *pools) resolve(p *pool) {
	tick := time.NewTicker(resolveInterval)
	defer tick.Stop()
	for {
		select {
		case <-ps.probing.Done():
			return
		case <-tick.C:
		case <-p.moved:
		}
		ps.mu.RLock()
		endpoints, known := p.endpoints, p.known
		ps.mu.RUnlock()
		next, err := known.resolve(ps.probing, endpoints, ps.look)
		if err != nil && ps.probing.Err() == nil {
			ps.log.Warn("brokers cannot be looked up", "cell", p.cell, "err", err)
		}
		ps.mu.Lock()
		if slices.Equal(p.endpoints, endpoints) && !ps.closed {
			p.known = next
			p.join(next.addresses(endpoints), ps.enterLocked)
		}
		ps.mu.Unlock()
	}
}

// all returns the pools in use, in cell order.
func (ps *pools) all() []*pool {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	return slices.SortedFunc(maps.Values(ps.byCell), func(a, b *pool) int { return cmp.Compare(a.cell, b.cell) })
}

// close ends the probers and the idle connections.
func (ps *pools) close() {
	ps.mu.Lock()
	ps.closed = true
	ps.mu.Unlock()
	ps.stop()
	ps.probers.Wait()
	for _, p := range ps.all() {
		for _, b := range p.brokers() {
			b.closeConns()
		}
	}
}
