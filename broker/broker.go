// Package broker is the broker process: an HTTP server over the message store.
//
// It owns the routes of wire.Routes with their use cases (push, pop, ack, lease extension, configuration), who may use
// them (behind gateways the tenant of a request comes from a signed token, see identity; clients of its own bring tokens
// of an issuer, see JWT), and the loops behind them: the fuser, one change feed, one probe of doubtful leases. The logic
// of each use case stands in the file of its name; SQL is in broker/store, group commit of pushes in broker/fuse,
// waiting in broker/park.
//
// Promises. Pushes: all or nothing up to the first byte stored; afterwards every item has its own verdict. Order: that
// of the request within a partition. Pops and acks of concurrent requests share statements and commits (combiner), and
// what is shared is filled from the tenants in turn, however much one of them offers (docs/design/fairness.md); a
// parked poll costs no SQL, no timer and no goroutine (detach.go), and a poll whose client hangs up receives nothing.
// Whatever lands messages is announced in one place (announce.go). Errors say whether a repeat can double
// (wire.Outcome). An idle broker asks the database less than twice a second (docs/design/parked-polls.md).
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
	"github.com/queengate/queengate/broker/janitor"
	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/internal/deadlines"
	"github.com/queengate/queengate/internal/fair"
	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/wire"
)

// Store is the database side of a broker; *store.Store is the real one.
type Store interface {
	fuse.Pusher
	janitor.Store
	RetentionHistory(ctx context.Context, tenant uuid.UUID, queue string, span store.Span, byQueue bool) ([]store.RetentionPoint, error)
	Provision(ctx context.Context, tenant uuid.UUID, pairs []store.Pair, caps store.Caps) ([]store.Partition, error)
	Lookup(ctx context.Context, tenant uuid.UUID, pairs []store.Pair) ([]store.Partition, error)
	LookupQueue(ctx context.Context, tenant uuid.UUID, queue string) (*store.Queue, error)
	Configure(ctx context.Context, tenant uuid.UUID, req *wire.ConfigureRequest, absent wire.ConfigureMode, caps store.Caps) (*store.Queue, error)
	DeleteQueue(ctx context.Context, tenant uuid.UUID, queue string) (existed bool, partitions []int64, err error)
	Changes(ctx context.Context, window time.Duration) (changes []store.Change, now store.Shared, err error)
	Usage(ctx context.Context, tenants []uuid.UUID) ([]store.Usage, error)
	CloseTenant(ctx context.Context, tenant uuid.UUID) error
	WipeTenant(ctx context.Context, tenant uuid.UUID) (store.Wiped, error)
	Names(ctx context.Context, tenant uuid.UUID, after store.Pair, limit int) ([]store.Pair, error)
	Register(ctx context.Context, tenant uuid.UUID, group, queue string, seed store.Seed) (conflates bool, err error)
	RegisterScope(ctx context.Context, scope store.Scope, group string, seed store.Seed) (conflates bool, err error)
	ScopeQueues(ctx context.Context, scopes []store.Scope) ([][]store.Member, error)
	FetchRanges(ctx context.Context, tenant uuid.UUID, entries []wire.FetchEntry, records, total int64) ([]store.Range, error)
	Blobs(ctx context.Context, life store.Life, keys []store.SegmentKey) ([]store.StoredSegment, error)
	SafeTime(ctx context.Context) (at time.Time, degraded bool, err error)
	Changed(ctx context.Context, tenant uuid.UUID, queue string, since time.Time, after string, limit int) (page []wire.ChangedPartition, exists bool, err error)
	Liveness(ctx context.Context, tenant uuid.UUID, queue string, limit int) (store.Liveness, error)
	PendingIn(ctx context.Context, queues []int64, group string) ([]store.Pending, error)
	ClaimBundle(ctx context.Context, claims []store.Claim) ([][]store.Claimed, error)
	AckBundle(ctx context.Context, groups []store.AckGroup) ([]store.AckVerdict, error)
	Transact(ctx context.Context, t *store.Transaction) (store.TransactionVerdict, error)
	Extend(ctx context.Context, tenant uuid.UUID, lease string, seconds int) (renewed int, expires time.Time, err error)
	ExtendKnown(ctx context.Context, tenant uuid.UUID, lease string, seconds int, partitions []int64) (renewed int, expires time.Time, err error)
	Pending(ctx context.Context, queueID int64, group string, delay time.Duration) ([]store.Pending, error)
	Queues(ctx context.Context, tenant uuid.UUID, f store.ResourceFilter) ([]store.Summary, error)
	QueuePartitions(ctx context.Context, q *store.Queue) ([]store.PartitionDetail, error)
	Overview(ctx context.Context, tenant uuid.UUID) (store.Overview, error)
	Namespaces(ctx context.Context, tenant uuid.UUID) ([]store.ScopeSummary, error)
	Tasks(ctx context.Context, tenant uuid.UUID) ([]store.ScopeSummary, error)
	Partitions(ctx context.Context, tenant uuid.UUID, f store.ResourceFilter) (page []store.PartitionSummary, matching int64, err error)
	QueueDepth(ctx context.Context, q *store.Queue, group string) (store.Depth, error)
	ClearQueue(ctx context.Context, tenant uuid.UUID, queue, partition string) (store.Cleared, error)
	Groups(ctx context.Context, tenant uuid.UUID) ([]store.Group, error)
	LaggingLanes(ctx context.Context, tenant uuid.UUID, least time.Duration) ([]store.Lane, error)
	GroupLanes(ctx context.Context, tenant uuid.UUID, group string) ([]store.Lane, error)
	Seek(ctx context.Context, tenant uuid.UUID, group, queue, partition string, to wire.Seek) (moved int64, err error)
	DeleteGroup(ctx context.Context, tenant uuid.UUID, group, queue string, registrations bool) (store.DeletedGroup, error)
	SetSubscription(ctx context.Context, tenant uuid.UUID, group string, from time.Time) (registrations int64, err error)
	FoldUsage(ctx context.Context) (moved int64, err error)
	SweepDropped(ctx context.Context) (removed int64, err error)
	Switches(ctx context.Context) (store.Switches, error)
	SetSwitch(ctx context.Context, key string, on bool) error
	AddTrace(ctx context.Context, tenant uuid.UUID, t *store.Trace) error
	TracesOfMessage(ctx context.Context, tenant, partition uuid.UUID, message store.Hash) ([]store.Trace, error)
	TracesByName(ctx context.Context, tenant uuid.UUID, name string, page wire.Page) (all []store.Trace, total int64, err error)
	TraceNames(ctx context.Context, tenant uuid.UUID, page wire.Page) (all []store.TraceName, total int64, err error)
	DeadLetterCounts(ctx context.Context, tenant uuid.UUID) (map[string]int64, error)
	DeadLetters(ctx context.Context, tenant uuid.UUID) (store.DeadLetterSummary, error)
	Leases(ctx context.Context, tenant uuid.UUID) (all store.Leases, consumed map[string]int64, err error)
	QueueActivity(ctx context.Context, q *store.Queue) (map[int64]store.PartitionActivity, error)
	PartitionGrowth(ctx context.Context, tenant uuid.UUID, queue string, span store.Span) ([]store.Growth, error)
	QueueHistory(ctx context.Context, tenant uuid.UUID, queue string, span store.Span) ([]store.Point, error)
	TenantHistory(ctx context.Context, tenant uuid.UUID, span store.Span) ([]store.Point, error)
	CellHistory(ctx context.Context, span store.Span) ([]store.Point, error)
	ProcessHistory(ctx context.Context, span store.Span) ([]store.ProcessPoint, error)
	Workload(ctx context.Context, tenant uuid.UUID, span store.Span, limit int) ([]store.QueueLoad, error)
	Parked(ctx context.Context, tenant uuid.UUID, queue string, span store.Span) ([]store.ParkedChange, error)
	Brokers(ctx context.Context, since time.Time) ([]store.Broker, error)
	CellTotals(ctx context.Context) (store.Totals, error)
	CellCounts(ctx context.Context) (store.CellCounts, error)
	Postgres(ctx context.Context) (store.Postgres, error)
	Pool() store.PoolStats
	Lingering(ctx context.Context) (int, error)
	WriteMinute(ctx context.Context, b store.Broker, m *store.Minute) error
	PurgeHistory(ctx context.Context, keep time.Duration) (removed int64, err error)
	PurgeTraces(ctx context.Context, keep time.Duration) (removed int64, err error)
	PendingOf(ctx context.Context, partitions []int64, groups []string, delay []time.Duration) ([]store.Pending, error)
	BrowseLanes(ctx context.Context, tenant uuid.UUID, f store.BrowseFilter, most int) ([]*store.BrowseLane, error)
	Lane(ctx context.Context, tenant, uid uuid.UUID) (*store.BrowseLane, error)
	SegmentHeads(ctx context.Context, ranges []store.OffsetRange) ([][]store.SegmentHead, error)
	Segments(ctx context.Context, known store.Life, at []store.SegmentAddress) ([]store.StoredSegment, error)
	DeadOffsets(ctx context.Context, tenant uuid.UUID, ranges []store.OffsetRange) ([][]store.DeadOffset, error)
	Message(ctx context.Context, l *store.BrowseLane, transactionID string) (*store.StoredMessage, error)
	Letters(ctx context.Context, tenant uuid.UUID, f store.LetterFilter, after store.LetterKey, limit, skip, maxBytes int) (page []store.Letter, more bool, err error)
	LettersByID(ctx context.Context, tenant uuid.UUID, ids []uuid.UUID) ([]store.Letter, error)
	Letter(ctx context.Context, tenant, id uuid.UUID) (*store.Letter, error)
	LetterAt(ctx context.Context, tenant, partition uuid.UUID, transactionID, group string) (*store.Letter, error)
	LetterSignatures(ctx context.Context, tenant uuid.UUID, queue string, newest int) ([]store.LetterSignature, error)
	CountLetters(ctx context.Context, tenant uuid.UUID, f store.LetterFilter, limit int) (int64, error)
	Redrives(ctx context.Context, tenant uuid.UUID, queue string, state store.RedriveState, limit int) ([]*store.Redrive, error)
	DeleteLettersAt(ctx context.Context, tenant, partition uuid.UUID, transactionID, group string) (deleted int64, err error)
	PurgeLetters(ctx context.Context, tenant uuid.UUID, f store.LetterFilter, limit int) (deleted int64, err error)
	DeadLetterHead(ctx context.Context, tenant uuid.UUID, m *store.StoredMessage, group, reason string) (store.HeadVerdict, error)
	MoveLetters(ctx context.Context, m *store.Move) (store.MoveVerdict, error)
	StartRedrive(ctx context.Context, r *store.Redrive) (*store.Redrive, error)
	Redrive(ctx context.Context, tenant, id uuid.UUID) (*store.Redrive, error)
	CancelRedrive(ctx context.Context, tenant, id uuid.UUID) (*store.Redrive, error)
	ClaimRedrive(ctx context.Context, holder string) (*store.Redrive, error)
	RedrivePage(ctx context.Context, r *store.Redrive, limit int) ([]store.RedriveItem, error)
	SettleRedrive(ctx context.Context, r *store.Redrive, upTo store.LetterKey, failed int) (held bool, err error)
	RenewRedrive(ctx context.Context, r *store.Redrive) (held bool, err error)
	ReleaseRedrive(ctx context.Context, r *store.Redrive) error
	FinishRedrive(ctx context.Context, r *store.Redrive, state store.RedriveState, reason string) error
}

// Deps is what a broker stands on.
type Deps struct {
	Store    Store
	Ping     func(context.Context) error // a round trip to the database, for /health and /readyz
	Registry *prometheus.Registry        // the broker's metrics are registered on it and served from it
	Listener net.Listener                // nil: Run listens on Config.Addr
	Socket   net.Listener                // for gateways on this machine, besides; nil: none
	Spool    Spool                       // where pushes wait while the database is away; nil: they are refused
	Mesh     Mesh                        // to the other brokers of the cell; nil: there are none, or they hear by the feed
	Tracer   *tracing.Tracer             // nil: no traces

	// Cut ends the statements in flight of a database that stands still: that has said nothing for quiet, although it was
	// asked something at asked or before. nil: they wait for it.
	Cut func(asked time.Time, quiet time.Duration) (sessions int, still bool)
}

// Broker serves one cell's tenants. New does no I/O; Run does all.
type Broker struct {
	log  *slog.Logger
	db   Store
	deps Deps
	cfg  Config

	names    *names
	park     *park.Registry
	scopes   *scopes
	fuser    *fuse.Fuser
	claims   *combiner[store.Claim, []store.Claimed, claimKey]
	acks     *combiner[store.AckGroup, store.AckVerdict, ackKey]
	segments *segmentCache
	leases   *leaseRegistry
	verifier *verifier
	metrics  *metrics
	tracer   *tracing.Tracer // nil: off
	pinger   *pinger
	clock    clock
	feed     feed
	hints    *hints
	spooled  *spooled
	redrives *redrives
	switches switches
	history  *history
	janitor  *janitor.Janitor
	server   *fasthttp.Server
	conns    *conns                  // of server
	headWall fasthttp.RequestHandler // nil without JWT

	transactions *fair.Places[uuid.UUID] // in the database
	provisions   *provisioner
	weights      *fair.Weights[uuid.UUID] // of tenants, as the gateways' tokens state them

	draining atomic.Bool
	detached atomic.Int64 // pops that no handler serves
	running  atomic.Bool
}

type claimKey struct {
	partition int64
	group     string
}

// ackKey names the tenant too: who acknowledges what is not its own must not stand in the owner's way.
type ackKey struct {
	tenant, partition uuid.UUID
	group             string
}

// Calls per shared statement: beyond it a statement holds its row locks for longer than it saves.
const (
	maxClaimsPerBundle = 128
	maxAcksPerBundle   = 256
)

// ackItemsPerCost is how many items of an acknowledgement weigh as much as a partition more.
const ackItemsPerCost = 64

// maxHeadBytes bounds a request's head, above it 431: what a gateway takes from a client, escaped anew, and its token.
const maxHeadBytes = 32 << 10

// New returns a broker. cfg must have passed Validate.
func New(log *slog.Logger, deps Deps, cfg Config) *Broker {
	b := &Broker{log: log, db: deps.Store, deps: deps, cfg: cfg.withDefaults(), tracer: deps.Tracer}
	b.names = newNames()
	b.weights = &fair.Weights[uuid.UUID]{}
	b.cfg.Fuse.Weigh = b.weights.Of
	b.transactions = fair.NewPlaces(maxTransactions, 1, maxVisitors, b.weights.Of)
	b.provisions = newProvisioner(b.weights.Of, func(tenant uuid.UUID, pairs []store.Pair, caps store.Caps) ([]store.Partition, error) {
		if err := b.unanswered(); err != nil {
			return nil, err
		}
		ctx, cancel := b.database()
		defer cancel()
		return b.db.Provision(ctx, tenant, pairs, caps)
	})
	b.park = park.New(b.cfg.MaxParked)
	b.scopes = newScopes()
	b.hints = newHints(deps.Mesh)
	b.spooled = newSpooled(deps.Spool)
	b.feed.due, b.feed.every = make(chan struct{}, 1), feedEvery
	b.fuser = fuse.New(log, deps.Store, b.cfg.Fuse, b.landed)
	b.segments = newSegmentCache(b.cfg.SegmentCacheBytes)
	b.leases = newLeaseRegistry(b.cfg.LeaseCacheBytes)
	b.history = newHistory(b.cfg.Hostname)
	b.janitor = b.newJanitor()
	b.metrics = newMetrics(deps.Registry, b)
	b.verifier = newVerifier(&b.cfg, b.weights)
	b.redrives = newRedrives()
	b.pinger = &pinger{ping: deps.Ping, onLost: b.lost}
	b.claims = newCombiner(bundling[store.Claim, []store.Claimed, claimKey]{
		name: "claim", run: func(cs []store.Claim) ([][]store.Claimed, error) {
			if err := b.unanswered(); err != nil {
				return nil, err
			}
			ctx, cancel := b.database()
			defer cancel()
			return b.db.ClaimBundle(ctx, cs)
		},
		keys: func(c store.Claim, each func(claimKey)) {
			for _, id := range c.Candidates {
				each(claimKey{id, c.Group})
			}
		},
		// What a claim costs goes with the partitions it looks at.
		cost:  func(c store.Claim) int64 { return int64(max(len(c.Candidates), 1)) },
		items: func(c store.Claim) int { return len(c.Candidates) },
		max:   maxClaimsPerBundle, note: b.metrics.bundle("pop"),
	}, b.weights.Of)
	b.acks = newCombiner(bundling[store.AckGroup, store.AckVerdict, ackKey]{
		name: "ack", run: func(gs []store.AckGroup) ([]store.AckVerdict, error) {
			if err := b.unanswered(); err != nil {
				return nil, err
			}
			ctx, cancel := b.database()
			defer cancel()
			return b.db.AckBundle(ctx, gs)
		},
		keys:  func(g store.AckGroup, each func(ackKey)) { each(ackKey{g.Tenant, g.Partition, g.Group}) },
		cost:  func(g store.AckGroup) int64 { return 1 + int64(len(g.Items))/ackItemsPerCost },
		items: func(g store.AckGroup) int { return len(g.Items) },
		max:   maxAcksPerBundle, note: b.metrics.bundle("ack"),
	}, b.weights.Of)
	b.conns = newConns()
	b.server = &fasthttp.Server{
		ConnState:    b.conns.note,
		Handler:      httpkit.Barrier(log, b.metrics.panics, b.serve),
		ErrorHandler: b.refuseHead,
		Logger:       quietLogger{log},

		MaxRequestBodySize: b.cfg.MaxBodyBytes,
		ReadBufferSize:     maxHeadBytes,
		ReadTimeout:        b.cfg.ReadTimeout,
		WriteTimeout:       b.cfg.WriteTimeout,
		IdleTimeout:        b.cfg.IdleTimeout,

		NoDefaultServerHeader:        true,
		NoDefaultDate:                true,
		NoDefaultContentType:         true,
		SecureErrorLogMessage:        true, // an error text must not quote a request
		DisablePreParseMultipartForm: true,
		ReduceMemoryUsage:            true, // who waits gives its reader back
		MaxIdleWorkerDuration:        3 * time.Second,
		CloseOnShutdown:              true,
	}
	if b.cfg.JWT != nil {
		b.headWall = httpkit.Barrier(log, b.metrics.panics, b.refuseOnHead)
		b.server.HeaderReceived, b.server.ExpectHandler = b.headerReceived, b.expect
		b.server.ReadBufferSize = bearer.MaxTokenBytes + 4<<10 // the longest head: a token, and what there was room for before
	}
	return b
}

// Run serves until ctx ends, then drains: readiness turns red, parked polls are answered 204, the listener closes,
// requests in flight are finished, and those that have not arrived in five seconds are refused. It returns when everything it started has returned; nil means a clean stop. It
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
	listeners := []net.Listener{ln}
	if s := b.deps.Socket; s != nil {
		listeners = append(listeners, s)
	}
	if err := b.spooled.recall(); err != nil {
		closeAll(listeners)
		return fmt.Errorf("broker: %w", err)
	}
	// The loops outlive the requests: those in flight still push, claim and wait.
	loops, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	fail := make(chan error, 8)
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
	if m := b.deps.Mesh; m != nil {
		start("mesh", func(ctx context.Context) error { return m.Run(ctx, b.hear) })
		start("hints", b.hints.run)
	}
	if b.deps.Spool != nil {
		start("spool", b.runDrain)
	}
	start("redrives", b.runRedrives)
	start("janitor", b.janitor.Run)
	start("history", func(ctx context.Context) error { return b.runHistory(ctx, ln.Addr()) })
	if j := b.cfg.JWT; j != nil && j.Keys != nil {
		start("keys of tokens", j.Keys.Run)
	}
	served := make(chan error, len(listeners))
	for _, ln := range listeners {
		go func() { served <- b.server.Serve(httpkit.HoldbackListener{Listener: deadlines.Listener{Listener: ln}}) }()
	}
	b.log.Info("broker is serving", "addr", ln.Addr().String(), "tenancy", b.cfg.Tenancy, "jwt", b.cfg.JWT != nil)
	if id, ok := b.cfg.Encryption.Active(); ok {
		b.log.Info("payloads of encrypted queues are sealed", "key", id, "keys", len(b.cfg.Encryption.IDs()))
	}

	var errs []error
	select {
	case <-ctx.Done():
	case err := <-fail:
		errs = append(errs, err)
	case err := <-served:
		errs = append(errs, fmt.Errorf("broker: serve: %w", orClosed(err)))
		served <- nil
	}
	errs = append(errs, b.drain(context.WithoutCancel(ctx), listeners))
	for range listeners {
		errs = append(errs, <-served)
	}
	stopLoops()
	wg.Wait()
	b.park.Close()
	close(fail)
	for err := range fail {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// closeAll closes listeners that may be closed already, which is an error nobody needs.
func closeAll(listeners []net.Listener) {
	for _, ln := range listeners {
		_ = ln.Close()
	}
}

func orClosed(err error) error {
	if err == nil {
		return net.ErrClosed
	}
	return err
}

func (b *Broker) drain(ctx context.Context, listeners []net.Listener) error {
	b.draining.Store(true)
	b.log.Info("broker is draining", "parked", b.park.Waiting())
	if b.cfg.DrainDelay > 0 {
		time.Sleep(b.cfg.DrainDelay) // load balancers are reading the red light
	}
	b.park.Drain()
	ctx, cancel := context.WithTimeout(ctx, b.cfg.DrainTimeout)
	defer cancel()
	waited := b.awaitDetached(ctx)
	var hurrying sync.WaitGroup
	defer hurrying.Wait()
	late, shut := context.WithCancel(ctx)
	defer shut()
	hurrying.Go(func() { b.conns.hurry(late, min(b.cfg.drainArrival, b.cfg.DrainTimeout/2)) })
	err := b.server.ShutdownWithContext(ctx)
	closeAll(listeners) // a server that had not begun to serve knows none to close
	if err != nil {
		err = fmt.Errorf("broker: requests were still running after %v: %w", b.cfg.DrainTimeout, err)
	}
	return errors.Join(waited, err)
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

// database returns what the database's clock shows at the local time t.
func (c *clock) database(t time.Time) time.Time { return t.Add(time.Duration(c.ahead.Load())) }

// local returns the local time at which the database's clock shows t; the zero time stays zero.
func (c *clock) local(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(-time.Duration(c.ahead.Load()))
}
