package quota

import (
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/quota/meter"
	"github.com/queengate/queengate/wire"
)

// Pair names a partition that a request may create. Partition "" means only the queue (configure).
type Pair struct{ Queue, Partition string }

// Ask is everything a request costs, known after its body was read. The gate keeps nothing of it.
type Ask struct {
	Cost         wire.Cost
	Key          *plans.Key // whose limits count too; nil: nobody's
	Messages     int        // items of a push; 1 for what returns stored messages
	BodyBytes    int64      // of the body as it was sent
	PayloadBytes int64      // sum of raw payloads
	LargestItem  int64      // bytes of the largest payload
	LargestIndex int
	Pairs        []Pair    // distinct pairs of a push, the queue of a configure, the destination of a replay
	Retention    int64     // the larger of retentionSeconds and completedRetentionSeconds of a configure; 0: none stated
	Wait         bool      // takes a parked slot
	Deadline     time.Time // when a waiting pop ends by itself
}

// Report is the state of the limit closest to refusing, for the X-Queen-Limit-* and RateLimit headers. On a refusal
// it is the limit that refused. The zero Report (Name "") means that the plan limits nothing the request touches.
type Report struct {
	Name      string
	Limit     float64       // of a rate: its burst; otherwise the plan's number
	Remaining float64       // never below zero
	Reset     time.Duration // refused: the wait; a rate: until it is full; month: until the next; otherwise 0
	Window    time.Duration // of RateLimit-Policy: burst / rate; 0 for limits that are no rate
	Mode      plans.Mode
	Shadowed  bool // in shadow mode: it would have refused
	Alone     bool // decided with this gateway's part of the plan, since the fleet's Redis is away
}

// Outcome is what became of an admitted request. Settle records it: accepted pairs are confirmed, the slot is freed,
// delivered messages are debited.
type Outcome struct {
	Delivered   int  // messages of a pop that were first deliveries
	Stored      bool // a push, replay or configure took effect (2xx)
	Returned    int  // messages that a replay returns, when they are more than the one it was admitted with
	StoredBytes int64
}

// Admission is a granted request; the caller must end it with exactly one of Settle and Refund. A second end does
// nothing.
type Admission struct {
	ledger        *ledger
	id            uuid.UUID
	cluster       string // slug, for the log
	cell          string
	holds         []hold // names reserved
	requestTaken  int64  // millionths of a token
	messagesTaken int64
	key           *taken // of the key that asked; nil when it has no limits of its own
	counted       int64  // messages reserved of the month
	month         meter.Month
	bytes         int64 // reserved of the retained bytes
	deadline      int64 // of the slot, on the gate's clock
	place         int32 // in slots; -1 when it holds none
	ended         bool
	undelivered   bool // what it delivers is not debited: in shadow mode it was over the delivery rate

	// In a fleet: what Redis has given.
	central  bool // the tokens
	slot     int64
	reserved []group
}

// Gate is the local ledger: exact for one gateway. One mutex per cluster over all its limits. Safe for concurrent use.
// Times come from its callers; the monotonic part decides, so a step of the wall clock changes no bucket.
type Gate struct {
	log        *slog.Logger
	seeder     Seeder
	clock      func() time.Time // of the I/O of listings only
	epoch      time.Time
	seed       maphash.Seed
	shards     [shardCount]shard
	parked     atomic.Int64
	registerer prometheus.Registerer
	recoveries recoveries
	fleet      *fleet // nil: this gateway is alone
	name       string // of this gateway, a number: unique among all, new at each start
	months     months
	measurer   Measurer
}

// An Option changes a gate at its making.
type Option func(*Gate)

// WithSeeder names the source of the queues and partitions that exist. Without one, counts stay unknown and the
// broker alone decides them.
func WithSeeder(s Seeder) Option { return func(g *Gate) { g.seeder = s } }

// WithClock replaces time.Now, which only paces listings of names.
func WithClock(now func() time.Time) Option { return func(g *Gate) { g.clock = now } }

// WithRegisterer registers the gate's metrics (Gate is their Collector). It panics when they are registered already.
func WithRegisterer(r prometheus.Registerer) Option { return func(g *Gate) { g.registerer = r } }

// NewGate returns a gate.
func NewGate(log *slog.Logger, options ...Option) *Gate {
	g := &Gate{log: log, clock: time.Now, epoch: time.Now(), seed: maphash.MakeSeed(), name: newName()}
	g.months.init()
	for _, o := range options {
		o(g)
	}
	if g.fleet != nil && g.seeder != nil {
		g.seeder = sharedSeeder{g.fleet, g.seeder}
	}
	if g.registerer != nil {
		g.registerer.MustRegister(g)
	}
	return g
}

// ledger is the account of one cluster and its lock.
type ledger struct {
	mu        sync.Mutex // guards all below
	gone      bool       // swept: look the cluster up again
	cluster   string     // slug, for the log
	acc       account
	desk      decision
	partaking *partaking // in a fleet
	listing   *listing   // under way, nil otherwise
	listed    pace
	reading   *listing // of what was used, under way, nil otherwise
	read      pace
	remeasure time.Time // not before: see Remeasure
	unsaved   bool      // its month stands among those to be saved
}

// at is now on the gate's clock.
func (g *Gate) at(now time.Time) int64 { return now.Sub(g.epoch).Nanoseconds() }

// lock returns the cluster's ledger, locked.
func (g *Gate) lock(id uuid.UUID) *ledger {
	s := g.shard(id)
	l := s.ledger(id, g.seed, nil)
	for {
		l.mu.Lock()
		if !l.gone {
			return l
		}
		l.mu.Unlock()
		l = s.ledger(id, g.seed, l)
	}
}

// open returns the cluster's ledger, locked and with its plan applied.
func (g *Gate) open(c *plans.Cluster, t int64) *ledger {
	l := g.lock(c.ID)
	l.cluster = c.Slug
	l.acc.apply(&c.Limits, t)
	return l
}

// AskHead looks at the request buckets of the cluster and of the key that asks (nil: none) before the body is read; it
// takes nothing. nil means go on.
//
// It answers RateLimited or, for a rate of zero, QuotaExceeded. What may be refused for its body is also refused
// (RateLimited with Close set, limit "refusals") while the cluster's budget of refused bodies is empty: the body must
// stay unread. CostMixed is asked for like an ack, which it may be; Admit must be asked for what it turned out to be.
func (g *Gate) AskHead(c *plans.Cluster, key *plans.Key, cost wire.Cost, now time.Time) (Report, *wire.Error) {
	t := g.at(now)
	l := g.open(c, t)
	defer l.mu.Unlock()
	d := &l.desk
	d.begin(&l.acc, c, Ask{Cost: cost, Key: key}, true, now, t)
	var err *wire.Error
	if g.fleet == nil {
		err = d.run(order[:headRules])
	} else {
		err = g.fleet.askHead(l, d, c.ID)
	}
	report := l.alone(d.report(err))
	if err == nil && readsBody(cost) {
		if err = d.refuseBody(); err != nil {
			report = reportBodies(err.RetryAfter)
		}
	}
	d.clear()
	return report, err
}

// BodyRefusalAllowed reports whether the budget for refusals after a body was read has room. AskHead asks it itself.
func (g *Gate) BodyRefusalAllowed(c *plans.Cluster, now time.Time) bool {
	l := g.open(c, g.at(now))
	defer l.mu.Unlock()
	return l.acc.bodies.wait(now) == 0
}

// BodyOver counts a refusal by the plan's cap on a body: whoever reads it enforces that.
func (g *Gate) BodyOver(c *plans.Cluster) { g.shard(c.ID).tally.add(limitBody, plans.Enforce, over) }

// BodyRefused charges the refusal budget for a refusal that the caller made while or after it read a body (too large,
// too slow, unparseable). Refusals of Admit are charged by Admit.
func (g *Gate) BodyRefused(c *plans.Cluster, now time.Time) {
	l := g.open(c, g.at(now))
	defer l.mu.Unlock()
	l.acc.bodies.spend(now)
}

// Admit decides a whole request in the order of design.md 4.2: all or nothing. A refusal leaves everything as it was.
//
// Refusals: RateLimited (key_req, req, key_msgs, msgs, delivery, parked) with the true wait; BatchExceedsBurst; QuotaExceeded (queues, partitions,
// retention, month, and any limit of zero); PayloadTooLarge (payload, batch); StorageQuotaExceeded; PushBlocked. The
// error is nil exactly when the Admission is not. Alone Admit does no I/O; in a fleet it may wait for Redis. Call EnsureSeeded before it for a push or a
// configure, and see Recount for a refusal on counts.
func (g *Gate) Admit(c *plans.Cluster, a *Ask, now time.Time) (*Admission, Report, *wire.Error) {
	if g.fleet != nil {
		return g.fleet.admit(c, a, now)
	}
	t := g.at(now)
	l := g.open(c, t)
	defer l.mu.Unlock()
	l.desk.begin(&l.acc, c, *a, false, now, t)
	return g.decide(l, &l.desk, now)
}

// decide asks every rule about the request on the desk of a locked ledger, takes what they grant and clears the desk.
func (g *Gate) decide(l *ledger, d *decision, now time.Time) (*Admission, Report, *wire.Error) {
	err := d.run(order[:])
	if err != nil {
		if readsBody(d.ask.Cost) {
			l.acc.bodies.spend(now)
		}
		report := l.alone(d.report(err))
		d.clear()
		return nil, report, err
	}
	adm := &Admission{ledger: l, id: d.c.ID, cluster: d.c.Slug, cell: d.c.Cell, place: -1}
	d.commit(adm)
	if adm.place >= 0 {
		g.parked.Add(1)
	}
	report := l.alone(d.report(nil))
	d.clear()
	return adm, report, nil
}

// Settle ends an admission that reached a broker: its tokens are spent.
func (g *Gate) Settle(a *Admission, o Outcome, now time.Time) {
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if !g.end(a, now) {
		return
	}
	acc := &l.acc
	if !o.Stored {
		acc.names.release(a.holds)
	} else {
		acc.names.confirm(a.holds)
		g.count(l, a, max(a.counted, int64(o.Returned)))
		if acc.live[limitStorage] {
			acc.storage.store(o.StoredBytes, now)
			acc.storage.untoldAt = g.at(now)
			g.judge(l, acc.limits.MaxRetainedBytes, a.cluster)
		}
	}
	if o.Delivered > 0 && acc.limits.Basis == plans.CountDeliveries {
		acc.month.roll(now, acc.limits.Zone)
		a.month = acc.month.month
		g.count(l, a, int64(o.Delivered))
	}
	var delivered int64
	if o.Delivered > 0 && !a.undelivered && !g.recoveries.cover(a.cell, g.at(now)) {
		delivered = units(o.Delivered)
	}
	if g.fleet != nil {
		g.fleet.settle(l, a, delivered, o.Stored, now)
		return
	}
	acc.debit(delivered, g.at(now))
}

// Refund ends an admission that certainly did not reach a broker: tokens, pairs and the slot return.
func (g *Gate) Refund(a *Admission, now time.Time) {
	l := a.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if !g.end(a, now) {
		return
	}
	acc := &l.acc
	acc.names.release(a.holds)
	if g.fleet != nil {
		g.fleet.refund(l, a, now)
		return
	}
	acc.refill(g.at(now))
	acc.requests.give(a.requestTaken)
	acc.messages.give(a.messagesTaken)
	if k := a.key; k != nil {
		k.giveBack(g.at(now))
	}
}

// end does what both ends have in common; false means that a has ended before.
func (g *Gate) end(a *Admission, now time.Time) bool {
	if a.ended {
		return false
	}
	a.ended = true
	acc := &a.ledger.acc
	acc.touched = max(acc.touched, g.at(now))
	acc.open--
	if a.key != nil {
		a.key.key.open--
	}
	acc.storage.reserved -= a.bytes
	if a.month == acc.month.month {
		acc.month.reserved -= a.counted
	}
	if acc.parked.leave(a) {
		g.parked.Add(-1)
	}
	return true
}

// QueueDeleted frees a queue and its partitions at once. Call it when a broker has deleted the queue.
func (g *Gate) QueueDeleted(c *plans.Cluster, queue string) {
	l := g.lock(c.ID)
	defer l.mu.Unlock()
	l.acc.names.deleteQueue(queue)
	if g.fleet != nil {
		g.fleet.queueDeleted(l, c, queue, g.clock())
	}
}
