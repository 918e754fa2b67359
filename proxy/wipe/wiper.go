package wipe

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

const (
	// idlePause is how long a Wiper that has nothing to do waits before it looks again; a change wakes it before. It is what
	// a lost wake costs, and a tenant without clusters.
	idlePause = 30 * time.Second
	// stepPause lies between two steps, so that a wipe leaves the cell to its tenants now and then.
	stepPause = 250 * time.Millisecond
	// faultPause follows a step that failed.
	faultPause = 5 * time.Second
	// stepTime bounds one question to a cell; brokers answer within a few seconds.
	stepTime = 20 * time.Second
	// statementTime bounds one statement.
	statementTime = 10 * time.Second

	// leaseTime outlasts the longest step. The lease is renewed from renewAfter on.
	leaseTime  = time.Minute
	renewAfter = 20 * time.Second
)

// Cells is what a Wiper asks of the brokers; *proxy.Cells is one.
type Cells interface {
	// Retained returns the raw payload bytes that the cluster's cell holds of it.
	Retained(ctx context.Context, c *plans.Cluster) (bytes int64, err error)
	// Wipe has the cluster's cell take some steps of the removal of what it holds of it.
	Wipe(ctx context.Context, c *plans.Cluster) (wire.WipeAnswer, error)
}

// Options are what a Wiper is made of.
type Options struct {
	Log     *slog.Logger
	Pool    *pgxpool.Pool // of the control database
	Cells   Cells
	Erase   func(ctx context.Context, cluster uuid.UUID) error // removes what the fleet remembers of a cluster elsewhere
	Settle  time.Duration                                      // after which a cell that is empty is asked once more
	Metrics prometheus.Registerer
}

// Wiper removes what is to be removed, when it is this gateway's turn. Its methods are safe for concurrent use.
type Wiper struct {
	log     *slog.Logger
	db      store
	cells   Cells
	erase   func(ctx context.Context, cluster uuid.UUID) error
	settle  time.Duration
	metrics *metrics
	wakeC   chan struct{}

	// What follows belongs to Run.

	turn  turn
	quiet bool // the control database could not be read, and that was said
}

// turn is the lease as this process knows it.
type turn struct {
	asked bool  // since it was last given back: it may be ours, even if the answer was lost
	fence int64 // 0: it is another one's turn
	taken time.Time
}

// New returns a Wiper. It does no I/O and starts nothing.
func New(o Options) *Wiper {
	return &Wiper{
		log: o.Log, db: store{pool: o.Pool, holder: uuid.NewString()}, cells: o.Cells, erase: o.Erase, settle: o.Settle,
		metrics: newMetrics(o.Metrics), wakeC: make(chan struct{}, 1),
	}
}

// Follow wakes the Wiper when a cluster has begun to be deleting; it is for plans.Book.OnChange.
func (w *Wiper) Follow(old, new *plans.Snapshot) {
	for _, c := range new.Clusters() {
		if c.Status != plans.Deleting {
			continue
		}
		if before := old.ClusterByID(c.ID); before == nil || before.Status != plans.Deleting {
			w.wake()
			return
		}
	}
}

func (w *Wiper) wake() {
	select {
	case w.wakeC <- struct{}{}:
	default: // it will look anyway
	}
}

// Run works until ctx ends, whatever fails. The lease is given back at the end, so that another gateway goes on at once.
func (w *Wiper) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = w.step(context.WithoutCancel(ctx), w.giveBack) // else it ends by itself
			return nil
		case <-timer.C:
		case <-w.wakeC:
		}
		timer.Reset(w.round(ctx))
	}
}

// step runs one statement within its time.
func (w *Wiper) step(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return f(ctx)
}

// giveBack ends the lease.
func (w *Wiper) giveBack(ctx context.Context) error {
	if !w.turn.asked {
		return nil
	}
	w.turn = turn{}
	return w.db.release(ctx)
}

// round takes one step for everything that is to be removed and returns when to come again. Each cluster gets its step in
// turn, so a small one does not wait for a large one.
func (w *Wiper) round(ctx context.Context) (pause time.Duration) {
	var clusters []dying
	var tenants []plans.Cluster
	err := w.step(ctx, func(ctx context.Context) (err error) {
		clusters, tenants, err = w.db.dying(ctx, w.settle)
		return err
	})
	if err != nil {
		if ctx.Err() == nil && !w.quiet {
			w.quiet = true
			w.log.Warn("what is to be removed cannot be read", "err", err)
		}
		return faultPause
	}
	w.quiet = false
	w.metrics.clusters.Set(float64(len(clusters)))
	if len(clusters)+len(tenants) == 0 {
		_ = w.step(ctx, w.giveBack) // else it ends by itself
		return idlePause
	}
	pause = idlePause
	for i := range clusters {
		if !w.mayWork(ctx) {
			return leaseTime / 2
		}
		pause = min(pause, w.advance(ctx, &clusters[i]))
	}
	for i := range tenants {
		if !w.mayWork(ctx) {
			return leaseTime / 2
		}
		t := &tenants[i]
		if err := w.step(ctx, func(ctx context.Context) error { return w.db.deleteTenant(ctx, t.TenantID) }); err != nil {
			w.fault(ctx, "a tenant cannot be forgotten", t, err)
			pause = min(pause, faultPause)
			continue
		}
		w.log.Info("a tenant is removed", "tenant", t.Tenant)
	}
	return pause
}

// mayWork takes the lease, or renews it in good time, and reports whether it is this process's.
func (w *Wiper) mayWork(ctx context.Context) bool {
	switch {
	case ctx.Err() != nil:
		return false
	case w.turn.fence != 0 && time.Since(w.turn.taken) < renewAfter:
		return true
	}
	taken := time.Now() // before the database's clock is read, so that it is never thought longer than it is
	var fence int64
	err := w.step(ctx, func(ctx context.Context) (err error) {
		fence, err = w.db.take(ctx, leaseTime)
		return err
	})
	if err != nil {
		fence = 0
		if ctx.Err() == nil {
			w.log.Warn("the lease of the wipe cannot be taken", "err", err)
		}
	}
	w.turn = turn{asked: true, fence: fence, taken: taken}
	return fence != 0
}

// advance takes the next step of one cluster and returns when the one after it is due.
func (w *Wiper) advance(ctx context.Context, d *dying) time.Duration {
	switch {
	case d.confirmed:
		return w.forget(ctx, d)
	case d.wait > 0:
		return d.wait
	}
	c := &d.cluster
	if !d.begun {
		if err := w.begin(ctx, c); err != nil {
			w.fault(ctx, "a wipe cannot begin", c, err)
			return faultPause
		}
	}
	asking, cancel := context.WithTimeout(ctx, stepTime)
	answer, err := w.cells.Wipe(asking, c)
	cancel()
	if err != nil {
		w.fault(ctx, "a step of a wipe failed", c, err)
		// Should this fail too, the next attempt says what there is to say.
		_ = w.step(ctx, func(ctx context.Context) error { return w.db.fail(ctx, w.turn.fence, c.ID, err) })
		return faultPause
	}
	w.metrics.rows.Add(float64(answer.Rows))
	var ended bool
	err = w.step(ctx, func(ctx context.Context) (err error) {
		ended, err = w.db.note(ctx, w.turn.fence, c.ID, &answer, w.settle)
		return err
	})
	switch {
	case err != nil:
		w.fault(ctx, "the progress of a wipe cannot be noted", c, err)
		return faultPause
	case ended:
		return w.forget(ctx, d)
	case answer.Done:
		w.log.Info("a cell holds nothing of a cluster any more, and is asked once more", "tenant", c.Tenant, "cluster", c.Slug, "cell", c.Cell, "after", w.settle)
		return w.settle
	}
	w.log.Debug("a wipe goes on", "cluster", c.Slug, "rows", answer.Rows, "at", answer.What, "bytes_left", answer.RetainedBytes)
	return stepPause
}

// begin notes the beginning with what there is. A cell that cannot be asked for it does not hold it up.
func (w *Wiper) begin(ctx context.Context, c *plans.Cluster) error {
	asking, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	var known *int64
	if bytes, err := w.cells.Retained(asking, c); err == nil {
		known = &bytes
	}
	err := w.step(ctx, func(ctx context.Context) error { return w.db.begin(ctx, w.turn.fence, c.ID, known) })
	if err == nil {
		w.log.Info("a cluster is being removed", "tenant", c.Tenant, "cluster", c.Slug, "cell", c.Cell)
	}
	return err
}

// forget removes a cluster whose cell is certainly empty from everywhere else. The control database comes last: it is what
// brings a Wiper back here.
func (w *Wiper) forget(ctx context.Context, d *dying) time.Duration {
	c := &d.cluster
	if err := w.step(ctx, func(ctx context.Context) error { return w.erase(ctx, c.ID) }); err != nil {
		w.fault(ctx, "the limits of a cluster cannot be forgotten", c, err)
		return faultPause
	}
	if err := w.step(ctx, func(ctx context.Context) error { return w.db.deleteCluster(ctx, w.turn.fence, c.ID) }); err != nil {
		w.fault(ctx, "a cluster cannot be forgotten", c, err)
		return faultPause
	}
	w.metrics.ended.Inc()
	w.log.Info("a cluster is removed", "tenant", c.Tenant, "cluster", c.Slug, "cell", c.Cell)
	return 0 // its tenant may be next
}

// fault counts and logs what did not work, unless the process is ending. Whose turn it is is asked anew: it may be that.
func (w *Wiper) fault(ctx context.Context, what string, c *plans.Cluster, err error) {
	w.turn.taken = time.Time{}
	if ctx.Err() != nil {
		return
	}
	w.metrics.failures.Inc()
	w.log.Warn(what, "tenant", c.Tenant, "cluster", c.Slug, "cell", c.Cell, "err", err)
}
