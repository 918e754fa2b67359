// Package broker is the broker process: an HTTP server over the message store.
//
// It owns the routes of wire.Routes with their use cases (push, pop, ack, lease extension, configuration), tenancy
// (the tenant of a request comes from a signed token, see identity), and the loops behind them: the fuser, one change
// feed, one probe of doubtful leases. The logic of each use case stands in the file of its name; SQL is in
// broker/store, group commit of pushes in broker/fuse, waiting in broker/park.
//
// Promises. Pushes: all or nothing up to the first byte stored; afterwards every item has its own verdict. Order: that
// of the request within a partition. Pops and acks of concurrent requests share statements and commits (combiner); a
// parked poll costs no SQL and no timer, and a poll whose client hangs up receives nothing. Whatever lands messages is
// announced in one place (announce.go). Errors say whether a repeat can double (wire.Outcome). An idle broker asks the
// database about once a second, and not at all while nobody has asked it anything.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/wire"
)

// Store is the database side of a broker; *store.Store is the real one.
type Store interface {
	fuse.Pusher
	Provision(ctx context.Context, tenant uuid.UUID, pairs []store.Pair, caps store.Caps) ([]store.Partition, error)
	Lookup(ctx context.Context, tenant uuid.UUID, pairs []store.Pair) ([]store.Partition, error)
	LookupQueue(ctx context.Context, tenant uuid.UUID, queue string) (*store.Queue, error)
	Configure(ctx context.Context, tenant uuid.UUID, req *wire.ConfigureRequest, absent wire.ConfigureMode, caps store.Caps) (*store.Queue, error)
	DeleteQueue(ctx context.Context, tenant uuid.UUID, queue string) (existed bool, partitions []int64, err error)
	Changes(ctx context.Context, window time.Duration) (changes []store.Change, configVersion int64, err error)
	Usage(ctx context.Context, tenants []uuid.UUID) ([]store.Usage, error)
	Names(ctx context.Context, tenant uuid.UUID, after store.Pair, limit int) ([]store.Pair, error)
	Register(ctx context.Context, tenant uuid.UUID, group, queue string, seed store.Seed) error
	ClaimBundle(ctx context.Context, claims []store.Claim) ([][]store.Claimed, error)
	AckBundle(ctx context.Context, groups []store.AckGroup) ([]store.AckVerdict, error)
	Extend(ctx context.Context, tenant uuid.UUID, lease string, seconds int) (renewed int, expires time.Time, err error)
	ExtendKnown(ctx context.Context, tenant uuid.UUID, lease string, seconds int, partitions []int64) (renewed int, expires time.Time, err error)
	Pending(ctx context.Context, queueID int64, group string, delay time.Duration) ([]store.Pending, error)
	Queues(ctx context.Context, tenant uuid.UUID) ([]store.Summary, error)
	QueuePartitions(ctx context.Context, queueID int64) ([]store.PartitionDetail, error)
	FoldUsage(ctx context.Context) (moved int64, err error)
	SweepDropped(ctx context.Context) (removed int64, err error)
	PendingOf(ctx context.Context, partitions []int64, groups []string, delay []time.Duration) ([]store.Pending, error)
}

// Deps is what a broker stands on.
type Deps struct {
	Store    Store
	Ping     func(context.Context) error // a round trip to the database, for /health and /readyz
	Registry *prometheus.Registry        // the broker's metrics are registered on it and served from it
	Listener net.Listener                // nil: Run listens on Config.Addr
}

// Broker serves one cell's tenants. New does no I/O; Run does all.
type Broker struct {
	log  *slog.Logger
	db   Store
	deps Deps
	cfg  Config

	names    *names
	park     *park.Registry
	fuser    *fuse.Fuser
	claims   *combiner[store.Claim, []store.Claimed, claimKey]
	acks     *combiner[store.AckGroup, store.AckVerdict, ackKey]
	segments *segmentCache
	leases   *leaseRegistry
	verifier *verifier
	metrics  *metrics
	pinger   *pinger
	clock    clock
	feed     feed
	server   *fasthttp.Server

	draining atomic.Bool
	running  atomic.Bool
}

type claimKey struct {
	partition int64
	group     string
}

type ackKey struct {
	partition uuid.UUID
	group     string
}

// Calls per shared statement: beyond it a statement holds its row locks for longer than it saves.
const (
	maxClaimsPerBundle = 128
	maxAcksPerBundle   = 256
)

// New returns a broker. cfg must have passed Validate.
func New(log *slog.Logger, deps Deps, cfg Config) *Broker {
	b := &Broker{log: log, db: deps.Store, deps: deps, cfg: cfg.withDefaults()}
	b.names = newNames()
	b.park = park.New(b.cfg.MaxParked)
	b.fuser = fuse.New(log, deps.Store, b.cfg.Fuse, b.landed)
	b.segments = newSegmentCache(b.cfg.SegmentCacheBytes)
	b.leases = newLeaseRegistry(b.cfg.LeaseCacheBytes)
	b.verifier = &verifier{tenancy: b.cfg.Tenancy, cell: b.cfg.Cell, keys: b.cfg.Keys}
	b.metrics = newMetrics(deps.Registry, b)
	b.pinger = &pinger{ping: deps.Ping}
	b.claims = &combiner[store.Claim, []store.Claimed, claimKey]{
		run: func(cs []store.Claim) ([][]store.Claimed, error) {
			ctx, cancel := b.database()
			defer cancel()
			return b.db.ClaimBundle(ctx, cs)
		},
		keys: func(c store.Claim, each func(claimKey)) {
			for _, id := range c.Candidates {
				each(claimKey{id, c.Group})
			}
		},
		max: maxClaimsPerBundle, note: b.metrics.bundle("pop"),
	}
	b.acks = &combiner[store.AckGroup, store.AckVerdict, ackKey]{
		run: func(gs []store.AckGroup) ([]store.AckVerdict, error) {
			ctx, cancel := b.database()
			defer cancel()
			return b.db.AckBundle(ctx, gs)
		},
		keys: func(g store.AckGroup, each func(ackKey)) { each(ackKey{g.Partition, g.Group}) },
		max:  maxAcksPerBundle, note: b.metrics.bundle("ack"),
	}
	b.server = &fasthttp.Server{
		Handler:      httpkit.Barrier(log, b.metrics.panics, b.serve),
		ErrorHandler: b.refuseHead,
		Logger:       quietLogger{log},

		MaxRequestBodySize: b.cfg.MaxBodyBytes,
		ReadTimeout:        b.cfg.ReadTimeout,
		WriteTimeout:       b.cfg.WriteTimeout,
		IdleTimeout:        b.cfg.IdleTimeout,

		NoDefaultServerHeader:        true,
		NoDefaultDate:                true,
		NoDefaultContentType:         true,
		SecureErrorLogMessage:        true, // an error text must not quote a request
		DisablePreParseMultipartForm: true,
		ReduceMemoryUsage:            true, // a parked poll gives its reader back
		MaxIdleWorkerDuration:        3 * time.Second,
		CloseOnShutdown:              true,
	}
	return b
}

// Run serves until ctx ends, then drains: readiness turns red, parked polls are answered 204, the listener closes,
// requests in flight are finished. It returns when everything it started has returned; nil means a clean stop. It
// runs once.
func (b *Broker) Run(ctx context.Context) error {
	if b.running.Swap(true) {
		return errors.New("the broker runs already or has run")
	}
	ln := b.deps.Listener
	if ln == nil {
		var err error
		if ln, err = (&net.ListenConfig{}).Listen(ctx, "tcp", b.cfg.Addr); err != nil {
			return fmt.Errorf("broker: %w", err)
		}
	}
	// The loops outlive the requests: those in flight still push, claim and wait.
	loops, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	fail := make(chan error, 4)
	start := func(name string, f func(context.Context) error) {
		wg.Go(func() {
			if err := f(loops); err != nil {
				fail <- fmt.Errorf("broker: %s: %w", name, err)
			}
		})
	}
	start("fuser", b.fuser.Run)
	start("feed", b.runFeed)
	start("sweep", b.runSweep)
	served := make(chan error, 1)
	go func() { served <- b.server.Serve(httpkit.HoldbackListener{Listener: ln}) }()
	b.log.Info("broker is serving", "addr", ln.Addr().String(), "tenancy", b.cfg.Tenancy)

	var errs []error
	select {
	case <-ctx.Done():
	case err := <-fail:
		errs = append(errs, err)
	case err := <-served:
		errs = append(errs, fmt.Errorf("broker: serve: %w", orClosed(err)))
		served <- nil
	}
	errs = append(errs, b.drain(context.WithoutCancel(ctx), ln))
	errs = append(errs, <-served)
	stopLoops()
	wg.Wait()
	b.park.Close()
	close(fail)
	for err := range fail {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func orClosed(err error) error {
	if err == nil {
		return net.ErrClosed
	}
	return err
}

func (b *Broker) drain(ctx context.Context, ln net.Listener) error {
	b.draining.Store(true)
	b.log.Info("broker is draining", "parked", b.park.Waiting())
	if b.cfg.DrainDelay > 0 {
		time.Sleep(b.cfg.DrainDelay) // load balancers are reading the red light
	}
	b.park.Drain()
	ctx, cancel := context.WithTimeout(ctx, b.cfg.DrainTimeout)
	defer cancel()
	err := b.server.ShutdownWithContext(ctx)
	// A server that had not begun to serve knows no listener to close; a second close is an error nobody needs.
	_ = ln.Close()
	if err != nil {
		return fmt.Errorf("broker: requests were still running after %v: %w", b.cfg.DrainTimeout, err)
	}
	return nil
}

// quietLogger takes what fasthttp has to say about broken connections: nothing anybody must act on.
type quietLogger struct{ log *slog.Logger }

func (l quietLogger) Printf(format string, args ...any) {
	l.log.Debug("http server", "text", fmt.Sprintf(format, args...))
}

// clock keeps the difference between the database's clock, which decides on leases, and ours, which wakes.
type clock struct{ ahead atomic.Int64 } // nanoseconds the database is ahead

// learn takes a reading: the database's time was at when ours is now.
func (c *clock) learn(at, now time.Time) { c.ahead.Store(int64(at.Sub(now))) }

// local returns the local time at which the database's clock shows t; the zero time stays zero.
func (c *clock) local(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(-time.Duration(c.ahead.Load()))
}
