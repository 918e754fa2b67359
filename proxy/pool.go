package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// need is what a broker must be able to do for a request.
type need uint8

const (
	needLive  need = iota // pushes: the process is alive and its spool accepts them
	needReady             // everything else: its database answers
)

// Probing: how many answers in a row take a broker out and in again.
const (
	failuresOut = 2
	successesIn = 3
	probeTime   = 2 * time.Second
	// keyInterval lies between two signed questions to a broker that believes the gateway's key.
	keyInterval = 10 * time.Second
)

// broker is one broker of a pool. Safe for concurrent use.
type broker struct {
	pool    *pool
	address string // host:port
	seed    uint64
	idle    idleConns

	live    atomic.Bool
	ready   atomic.Bool
	refuses atomic.Bool   // the last answer that says: it does not believe this gateway's key
	kick    chan struct{} // wakes the prober after a failed connection; capacity 1

	// mu guards faults and orders the changes of live and ready.
	mu     sync.Mutex
	faults int // failed connections: a probe that was under way meanwhile proves nothing
}

// able reports whether the broker can take a request with that need.
func (b *broker) able(n need) bool {
	if n == needLive {
		return b.live.Load()
	}
	return b.ready.Load()
}

// answered notes what an answer to a signed request tells about the gateway's key: a broker says 401 to nothing else.
func (b *broker) answered(status int) {
	refuses := status == fasthttp.StatusUnauthorized
	if b.refuses.Load() == refuses || b.refuses.Swap(refuses) == refuses {
		return
	}
	if refuses {
		b.pool.log.Warn("the broker refuses this gateway's key", "cell", b.pool.cell, "broker", b.address)
		return
	}
	b.pool.log.Info("the broker accepts this gateway's key", "cell", b.pool.cell, "broker", b.address)
}

// failed notes that a connection could not be made: the broker is out until its probes say otherwise.
func (b *broker) failed() {
	b.mu.Lock()
	b.faults++
	b.setLocked(false, false)
	b.mu.Unlock()
	select {
	case b.kick <- struct{}{}:
	default: // a wake is pending already
	}
}

// probed takes the verdict of probes, unless a connection has failed since they began (faults had been seen).
func (b *broker) probed(seen int, live, ready bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.faults != seen {
		return false
	}
	b.setLocked(live, ready)
	return true
}

func (b *broker) seenFaults() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faults
}

func (b *broker) setLocked(live, ready bool) {
	wasLive, wasReady := b.live.Swap(live), b.ready.Swap(ready)
	if wasLive == live && wasReady == ready {
		return
	}
	b.pool.log.Info("broker state", "cell", b.pool.cell, "broker", b.address, "live", live, "ready", ready)
	b.pool.changed()
}

// pool is the brokers of a cell. Safe for concurrent use.
type pool struct {
	log     *slog.Logger
	cell    string
	source  string // what the addresses were read from
	brokers []*broker
	self    plans.Cluster // whom the gateway's own questions to the cell come from

	// mu guards wake, which is closed and replaced when a broker's state changes.
	mu   sync.Mutex
	wake chan struct{}
}

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

// pick returns the able broker that rendezvous hashing gives the tenant, leaving out one that was tried already; nil
// when there is none. All requests of a tenant meet in one broker as long as it is able, and only its tenants move
// when it is not.
func (p *pool) pick(tenant uuid.UUID, n need, tried *broker) *broker {
	var best *broker
	var bestScore uint64
	key := xxhash.Sum64(tenant[:])
	for _, b := range p.brokers {
		if b == tried || !b.able(n) {
			continue
		}
		if s := mix(key ^ b.seed); best == nil || s > bestScore {
			best, bestScore = b, s
		}
	}
	return best
}

// owner returns the broker the tenant would have if all were able.
func (p *pool) owner(tenant uuid.UUID) *broker {
	key := xxhash.Sum64(tenant[:])
	return slices.MaxFunc(p.brokers, func(a, b *broker) int { return cmp.Compare(mix(key^a.seed), mix(key^b.seed)) })
}

// mix spreads the bits of a key that was combined with a broker's seed (the finaliser of SplitMix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// any reports whether some broker of the pool is able.
func (p *pool) any(n need) bool {
	return slices.ContainsFunc(p.brokers, func(b *broker) bool { return b.able(n) })
}

// brokerAddresses reads base URLs (http://host:port), separated by commas or blanks.
func brokerAddresses(list string) ([]string, error) {
	var out []string
	for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		u, err := url.Parse(s)
		if err != nil {
			return nil, fmt.Errorf("broker address: %w", err)
		}
		if u.Scheme != "http" || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil {
			return nil, fmt.Errorf("broker address %q: want http://host:port", s)
		}
		port := u.Port()
		if port == "" {
			port = "80"
		}
		out = append(out, net.JoinHostPort(u.Hostname(), port))
	}
	if len(out) == 0 {
		return nil, errors.New("no broker address")
	}
	return out, nil
}

// pools finds the pool of a cell and keeps its brokers probed. Safe for concurrent use.
type pools struct {
	log      *slog.Logger
	dialer   *upstreamDialer
	tokens   *cellTokens
	override map[string]string
	interval time.Duration
	stop     context.CancelFunc
	probing  context.Context // ends with stop; the probers' lifetime, not a request's
	probers  sync.WaitGroup

	// mu guards byCell and closed.
	mu     sync.RWMutex
	byCell map[string]*pool
	closed bool
}

func newPools(log *slog.Logger, c *Config, d *upstreamDialer, t *cellTokens) *pools {
	ps := &pools{log: log, dialer: d, tokens: t, override: map[string]string{}, interval: c.ProbeInterval, byCell: map[string]*pool{}}
	for cell, urls := range c.Brokers {
		ps.override[cell] = strings.Join(urls, ",")
	}
	ps.probing, ps.stop = context.WithCancel(context.Background())
	return ps
}

// of returns the cell's pool, making it at its first use and anew when the cell's address changes. An address that
// cannot be read, or a cell that is gone, is an error.
func (ps *pools) of(snap *plans.Snapshot, cell string) (*pool, error) {
	source, ok := ps.override[cell]
	if !ok {
		c := snap.Cell(cell)
		if c == nil {
			return nil, fmt.Errorf("cell %s is unknown", cell)
		}
		source = c.BaseURL
	}
	ps.mu.RLock()
	p := ps.byCell[cell]
	ps.mu.RUnlock()
	if p != nil && p.source == source {
		return p, nil
	}
	return ps.make(cell, source)
}

func (ps *pools) make(cell, source string) (*pool, error) {
	addresses, err := brokerAddresses(source)
	if err != nil {
		return nil, fmt.Errorf("cell %s: %w", cell, err)
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.byCell[cell]; p != nil && p.source == source {
		return p, nil
	}
	p := &pool{log: ps.log, cell: cell, source: source, wake: make(chan struct{})}
	p.self = plans.Cluster{Slug: subjectGateway, Cell: cell}
	for _, a := range addresses {
		b := &broker{pool: p, address: a, seed: xxhash.Sum64String(a), kick: make(chan struct{}, 1)}
		b.idle.max = ps.dialer.maxIdle
		// Until the first probe has answered, a broker is trusted: a gateway serves as soon as it starts.
		b.live.Store(true)
		b.ready.Store(true)
		p.brokers = append(p.brokers, b)
		if !ps.closed {
			ps.probers.Go(func() { ps.probe(p, b) })
		}
	}
	ps.byCell[cell] = p
	return p, nil
}

// all returns the pools in use, in cell order.
func (ps *pools) all() []*pool {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	out := make([]*pool, 0, len(ps.byCell))
	for _, p := range ps.byCell {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *pool) int { return strings.Compare(a.cell, b.cell) })
	return out
}

func (ps *pools) current(p *pool) bool {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	return ps.byCell[p.cell] == p
}

// close ends the probers and the idle connections.
func (ps *pools) close() {
	ps.mu.Lock()
	ps.closed = true
	ps.mu.Unlock()
	ps.stop()
	ps.probers.Wait()
	for _, p := range ps.all() {
		for _, b := range p.brokers {
			b.idle.closeAll()
		}
	}
}

// streak turns single answers into a state: failuresOut in a row take it out, successesIn in a row bring it back.
type streak struct {
	up    bool
	count int // answers in a row that disagree with up
}

func (s *streak) note(ok bool) bool {
	if ok == s.up {
		s.count = 0
		return s.up
	}
	s.count++
	if s.up && s.count >= failuresOut || !s.up && s.count >= successesIn {
		s.up, s.count = ok, 0
	}
	return s.up
}

// probe asks one broker for /livez and /readyz until the pools close or its pool is replaced: once per interval, four
// times as often while it is out. A ready one is also asked a signed question now and then.
func (ps *pools) probe(p *pool, b *broker) {
	defer b.idle.closeAll()
	live, ready := streak{up: true}, streak{up: true}
	faults := 0
	var asked time.Time // the last signed question
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ps.probing.Done():
			return
		case <-b.kick:
		case <-pause.C:
		}
		if !ps.current(p) {
			return
		}
		if seen := b.seenFaults(); seen != faults {
			faults, live, ready = seen, streak{}, streak{} // a failed connection is worth any number of bad probes
		}
		l := live.note(ps.asks(b, "/livez"))
		r := ready.note(ps.asks(b, "/readyz"))
		if now := time.Now(); l && r && (b.refuses.Load() || now.Sub(asked) >= keyInterval) {
			asked = now
			ps.askSigned(p, b)
		}
		next := ps.interval
		if !b.probed(faults, l, r && l) || !l || !r {
			next /= 4
		}
		pause.Reset(next)
	}
}

// askSigned asks a broker something that it answers only to a gateway whose key it believes: for the names of nobody.
// Without it a gateway with a wrong key would look well until its first client comes.
func (ps *pools) askSigned(p *pool, b *broker) {
	now := time.Now()
	tok, err := ps.tokens.of(&p.self, wire.AccessInternal, subjectGateway, now)
	if err != nil {
		ps.log.Error("the gateway cannot sign", "cell", p.cell, "err", err)
		return
	}
	req := fmt.Appendf(nil, "GET /internal/v1/tenants/%s/names?limit=1 HTTP/1.1\r\nHost: %s\r\n%s%s: %s\r\n\r\n",
		p.self.BrokerTenant, b.address, tok.lines, wire.HeaderRequestID, httpkit.NewRequestID())
	a, _, err := ps.dialer.do(b, nil, req, nil, now.Add(probeTime))
	if err != nil {
		return // the plain probes tell what is wrong
	}
	b.answered(a.status())
	a.discard()
}

// asks reports whether the broker answers a probe with 2xx.
func (ps *pools) asks(b *broker, path string) bool {
	req := append([]byte("GET "), path...)
	req = append(req, " HTTP/1.1\r\nHost: broker\r\n\r\n"...)
	a, _, err := ps.dialer.do(b, nil, req, nil, time.Now().Add(probeTime))
	if err != nil {
		return false
	}
	ok := a.status() >= 200 && a.status() < 300
	a.discard()
	return ok
}
