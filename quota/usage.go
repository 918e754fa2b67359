package quota

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
)

// Usage is what a broker last measured for a cluster.
type Usage struct {
	RetainedBytes int64
	ComputedAt    time.Time // the broker's clock

	// Since is when the measure was asked for, by the clock of the fleet's Redis, as UsageDuty said: all that was stored
	// before is in it, whatever the clocks of brokers say. Zero: ComputedAt is believed.
	Since time.Time
}

// Measurer asks the brokers of a cluster what it retains, within ctx.
type Measurer interface {
	Measure(ctx context.Context, c *plans.Cluster) (Usage, error)
}

// WithMeasurer names the source of measures for clusters of which the gate knows none. Without one it waits for Measured.
func WithMeasurer(m Measurer) Option { return func(g *Gate) { g.measurer = m } }

// measures reports whether the plan has a cap for which measures are wanted.
func measures(l *plans.Limits) bool {
	return l.MaxRetainedBytes != nil && l.Mode(plans.LimitStorage) != plans.Off
}

// UsageDuty says for which clusters of a cell this gateway is to ask the brokers now, given those it has served lately.
// Clusters without a cap on retained bytes need no measure and may be left in: they are not asked for.
//
// Alone those are the clusters given. In a fleet one gateway at a time asks for what all have served: it gets every
// cluster, the others get none, and a gateway that stops asking is followed by another after two intervals. since goes
// into Usage.Since. While Redis is away each asks for itself. It may wait for Redis.
func (g *Gate) UsageDuty(ctx context.Context, cell string, served []uuid.UUID, interval time.Duration) (ask []uuid.UUID, since time.Time) {
	if f := g.fleet; f != nil && f.asking() {
		if ask, since, err := f.duty(ctx, cell, served, interval); err == nil {
			return ask, since
		}
	}
	return served, time.Time{}
}

// Measured takes what a broker measured for the cluster. Older measures than the last are ignored.
func (g *Gate) Measured(c *plans.Cluster, u Usage) {
	if !measures(&c.Limits) {
		return
	}
	l := g.lock(c.ID)
	defer l.mu.Unlock()
	if g.fleet != nil && g.fleet.measured(l, c, u) {
		return
	}
	if l.acc.storage.measure(u) {
		g.judge(l, c.Limits.MaxRetainedBytes, c.Slug)
	}
}

// judge sets or releases the storage block of a locked ledger.
func (g *Gate) judge(l *ledger, most *int64, cluster string) {
	s := &l.acc.storage
	was := s.blocked
	s.judge(most, false)
	g.blockChanged(s, was, cluster)
}

// blockChanged says so in the log.
func (g *Gate) blockChanged(s *storage, was bool, cluster string) {
	if s.blocked != was {
		g.log.Info("storage block changed", "cluster", cluster, "blocked", s.blocked, "retained_bytes", s.settled())
	}
}
