package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"
	"golang.org/x/sync/errgroup"

	"github.com/queengate/queengate/internal/deadlines"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/quota"
)

// Book is where the gateway finds what it decides with. *plans.Book is one.
type Book interface {
	// Snapshot returns the current snapshot; never nil.
	Snapshot() *plans.Snapshot
	// OnChange registers f to be called after each swap of the snapshot. The gateway does it in New.
	OnChange(f func(old, new *plans.Snapshot))
	// CatchUp waits, for as long as ctx lasts, until the snapshot is one of the instant at or later, and reports whether
	// it is.
	CatchUp(ctx context.Context, at time.Time) bool
}

// Options are what a Gateway is made of.
type Options struct {
	Log      *slog.Logger
	Config   Config
	Book     Book
	Verifier *auth.Verifier // run by the Gateway
	Metrics  prometheus.Registerer
	Fleet    *quota.FleetOptions // how limits are shared with other gateways; nil: this one is alone
	Months   quota.Months        // where monthly use is kept; nil: it begins with the gateway
	Shelf    quota.Shelf         // what could not be saved of it when the gateway stops; nil: that is lost
	Tracer   *tracing.Tracer     // nil: no traces
}

// Gateway serves the data path on any number of listeners. Its methods are safe for concurrent use unless they say
// otherwise.
type Gateway struct {
	log      *slog.Logger
	cfg      Config
	book     Book
	verifier *auth.Verifier
	gate     *quota.Gate
	cells    *Cells
	pools    *pools
	tokens   *cellTokens
	dialer   *upstreamDialer
	server   *fasthttp.Server
	metrics  *metrics
	tracer   *tracing.Tracer // nil: off

	headWalls   headWalls
	walls       *connWalls
	loads       *loads
	slots       *slots
	budget      *byteBudget
	parked      parkedPolls
	sharedHosts map[string]struct{}
	domains     map[string]struct{}

	heldRefusals atomic.Int64
	newKeys      atomic.Int64 // requests whose key may be newer than the snapshot
	asleep       atomic.Int64 // polls without a handler
	serving      atomic.Bool
	draining     chan struct{} // closed when the drain begins
	drainOnce    sync.Once

	listeners []*clientListener // before Run
}

// New returns a Gateway that listens nowhere yet. It does no I/O and starts nothing, and registers
// with the Book, which must not run yet. The error reports all problems of
// the configuration.
func New(o Options) (*Gateway, error) {
	if err := o.Config.Validate(); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	cfg := o.Config.withDefaults()
	cells := newCells(o.Log, &cfg, o.Book)
	g := &Gateway{
		log: o.Log, cfg: cfg, book: o.Book, verifier: o.Verifier, cells: cells, pools: cells.pools, tokens: cells.tokens,
		dialer: cells.dialer, tracer: o.Tracer, headWalls: headWalls{maxHeaders: cfg.MaxHeaders}, walls: newConnWalls(&cfg), loads: newLoads(),
		slots:  newSlots(&cfg, o.Book),
		budget: newByteBudget(&cfg), parked: parkedPolls{polls: map[*parkedPoll]struct{}{}},
		sharedHosts: map[string]struct{}{}, domains: map[string]struct{}{}, draining: make(chan struct{}),
	}
	for _, h := range cfg.SharedHosts {
		g.sharedHosts[strings.ToLower(strings.Trim(h, "[]."))] = struct{}{}
	}
	for _, d := range cfg.Domains {
		g.domains[strings.ToLower(strings.Trim(d, "."))] = struct{}{}
	}
	g.metrics = newMetrics(o.Metrics, g)
	limits := []quota.Option{quota.WithSeeder(cells), quota.WithMeasurer(cells), quota.WithRegisterer(o.Metrics)}
	if o.Months != nil {
		limits = append(limits, quota.WithMonths(o.Months))
	}
	if o.Shelf != nil {
		limits = append(limits, quota.WithShelf(o.Shelf))
	}
	if o.Fleet != nil {
		limits = append(limits, quota.WithFleet(*o.Fleet))
	}
	g.gate = quota.NewGate(o.Log, limits...)
	cells.pools.lost = func(cell string) { g.gate.BrokerLost(cell, time.Now()) }
	g.server = g.newServer()
	o.Book.OnChange(g.pools.follow)
	o.Book.OnChange(g.rejudge)
	o.Verifier.OnKeysChanged(func() { g.rejudge(nil, g.book.Snapshot()) })
	return g, nil
}

// Gate returns the gateway's ledger, for those who show usage.
func (g *Gateway) Gate() *quota.Gate { return g.gate }

// Cells returns the gateway's way to ask the brokers of all cells.
func (g *Gateway) Cells() *Cells { return g.cells }

// Listen adds a listener, which the gateway owns from now on. Before Run only, not concurrently.
func (g *Gateway) Listen(ln net.Listener) { g.listen(deadlines.Listener{Listener: ln}) }

// ListenTLS is Listen for clients that speak TLS.
func (g *Gateway) ListenTLS(ln net.Listener, c *tls.Config) {
	g.listen(tls.NewListener(deadlines.Listener{Listener: ln}, c))
}

func (g *Gateway) listen(ln net.Listener) {
	g.listeners = append(g.listeners, &clientListener{Listener: ln, gateway: g})
}

// Run serves all listeners until ctx ends, then drains: readiness goes red, load balancers get DrainDelay to notice,
// waiting polls end, nothing new is accepted, and requests under way have DrainTime. It returns when everything it
// started has ended; requests that outlast DrainTime are cut off and make an error.
func (g *Gateway) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, ln := range g.listeners {
		group.Go(func() error {
			if err := g.server.Serve(ln); err != nil {
				return fmt.Errorf("serve %s: %w", ln.Addr(), err)
			}
			return nil
		})
	}
	group.Go(func() error { return g.followUsage(ctx) })
	group.Go(func() error { return g.verifier.Run(ctx) })
	group.Go(func() error {
		<-ctx.Done()
		return g.drain()
	})
	g.serving.Store(true)
	err := group.Wait()
	g.pools.close()
	return err
}

// drain ends the service in order; see Run.
func (g *Gateway) drain() error {
	g.serving.Store(false)
	if g.cfg.DrainDelay > 0 {
		// Nothing ends this wait early: the process was told to stop, and load balancers need the time.
		time.Sleep(g.cfg.DrainDelay)
	}
	g.drainOnce.Do(func() { close(g.draining) })
	g.parked.drain()
	for _, ln := range g.listeners {
		// Shutdown closes them too, but only those whose Serve has come that far; it reports the error.
		_ = ln.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.cfg.DrainTime)
	defer cancel()
	waited := g.awaitSleepers(ctx)
	err := errors.Join(waited, g.server.ShutdownWithContext(ctx))
	if errors.Is(err, context.DeadlineExceeded) {
		n := g.walls.cut()
		// The handlers see their connections closed; their upstream deadlines end the rest.
		err = fmt.Errorf("%d connections were cut off after %s of draining", n, g.cfg.DrainTime)
	}
	if err != nil {
		return fmt.Errorf("drain the gateway: %w", err)
	}
	return nil
}
