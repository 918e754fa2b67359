package quota

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/quota/meter"
)

// wanted says what of a locked ledger's use over time has to be read before it can be judged, and whether what the gate
// goes on with meanwhile is a last value: then nobody else waits for the reading.
func (g *Gate) wanted(l *ledger, limits *plans.Limits) (month, bytes, stale bool) {
	acc, s := &l.acc, l.partaking
	lost := s != nil && s.mirrors
	if g.months.store != nil && limits.MonthlyMessages != nil && limits.Mode(plans.LimitMonth) != plans.Off {
		m := &acc.month
		m.roll(g.clock(), limits.Zone)
		deaf := s != nil && !s.mirrors && g.clock().Unix() > m.heard // it hears of the others by the database alone
		month = !m.known || lost && s.month.lost || deaf
		stale = month && m.known
	}
	if g.measurer != nil && measures(limits) {
		switch {
		case lost:
			bytes = s.storage.lost
		case acc.storage.mirrored:
		default:
			bytes = acc.storage.computed.IsZero()
		}
		stale = bytes && !month
	}
	return month, bytes, stale
}

// ensureBooks makes known what c has used over time: its month, by the control database, and its retained bytes, by its
// brokers. Callers of one cluster share one reading. On an error the request shall go on: what is not known is the last
// value, or what this gateway has counted itself. With anew nobody goes on with a last value while it is read, and it is read
// however lately it was.
func (g *Gate) ensureBooks(ctx context.Context, c *plans.Cluster, anew bool) error {
	if g.months.store == nil && g.measurer == nil || c.Limits.MonthlyMessages == nil && c.Limits.MaxRetainedBytes == nil {
		return nil
	}
	l := g.lock(c.ID)
	month, bytes, stale := g.wanted(l, &c.Limits)
	switch {
	case !month && !bytes:
		l.mu.Unlock()
		return nil
	case l.reading != nil:
		under := l.reading
		l.mu.Unlock()
		if stale && !anew {
			return nil
		}
		select {
		case <-under.done:
			return under.err
		case <-ctx.Done():
			return fmt.Errorf("await the use of cluster %s: %w", c.Slug, context.Cause(ctx))
		}
	case g.clock().Before(l.read.notBefore) && (!anew || l.read.err != nil):
		err := l.read.err
		l.mu.Unlock()
		return err
	}
	under := &listing{done: make(chan struct{})}
	l.reading = under
	id := l.acc.month.month
	l.mu.Unlock()
	return g.readBooks(ctx, c, l, under, id, month, bytes)
}

// rereads reports whether to read anew, before a request is let in, what Redis has lost of a locked ledger's month or retained
// bytes: not within some seconds of a reading that failed.
func (g *Gate) rereads(l *ledger, month, bytes bool) bool {
	return (month && g.months.store != nil || bytes && g.measurer != nil) &&
		(l.reading != nil || l.read.err == nil || !g.clock().Before(l.read.notBefore))
}

// readBooks reads what is wanted, and ends the reading whatever happens.
func (g *Gate) readBooks(ctx context.Context, c *plans.Cluster, l *ledger, under *listing, id meter.Month, month, bytes bool) (err error) {
	err = errors.New("reading of use did not end")
	defer func() {
		if err != nil {
			err = fmt.Errorf("read the use of cluster %s: %w", c.Slug, err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		pause := listingPause
		if err != nil {
			pause = failurePause
		}
		if l.read.err = err; err != nil || l.partaking != nil {
			l.read.notBefore = g.clock().Add(pause)
		}
		l.reading, under.err = nil, err
		close(under.done)
	}()
	// It serves every request that waits for it, so it outlives the one that began it.
	budget, cancel := context.WithTimeout(context.WithoutCancel(ctx), listingBudget)
	defer cancel()
	var monthErr, bytesErr error
	if month {
		monthErr = g.loadMonth(budget, c.ID, l, id)
	}
	if bytes {
		var u Usage
		if u, bytesErr = g.measure(budget, c); bytesErr == nil {
			g.Measured(c, u)
		}
	}
	return errors.Join(monthErr, bytesErr)
}

// remeasurePause spaces measures that are made because of refusals.
const remeasurePause = 250 * time.Millisecond

// Remeasure has the brokers measure the cluster after Admit refused a push because of retained bytes: the estimate does not
// see what was deleted or retained no longer since the last measure, and counts some bytes twice. It reports whether the
// measure is fresh, so that asking Admit once more is worthwhile; false when it was a measure that set the block, within
// remeasurePause of the last call that measured, and when no broker answers: then the estimate sets the block, which like any
// other only a measure ends. Callers of one cluster share one measure, and wait for it as long as for a listing.
func (g *Gate) Remeasure(ctx context.Context, c *plans.Cluster) bool {
	if g.measurer == nil || !measures(&c.Limits) {
		return false
	}
	l := g.lock(c.ID)
	if under := l.reading; under != nil {
		l.mu.Unlock()
		select {
		case <-under.done:
			return under.err == nil
		case <-ctx.Done():
			return false
		}
	}
	now := g.clock()
	if l.acc.storage.blocked || now.Before(l.remeasure) {
		l.mu.Unlock()
		return false
	}
	l.remeasure = now.Add(remeasurePause)
	under := &listing{done: make(chan struct{})}
	l.reading = under
	id := l.acc.month.month
	l.mu.Unlock()
	if g.readBooks(ctx, c, l, under, id, false, true) == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.acc.storage.blocked
	l.acc.storage.block(*c.Limits.MaxRetainedBytes)
	g.blockChanged(&l.acc.storage, was, c.Slug)
	return false
}

// measure asks for one cluster.
func (g *Gate) measure(ctx context.Context, c *plans.Cluster) (Usage, error) {
	since := g.fleet.time(ctx)
	u, err := g.measurer.Measure(ctx, c)
	u.Since = since
	return u, err
}

// loadMonth reads a month of the control database and, in a fleet, tells Redis.
func (g *Gate) loadMonth(ctx context.Context, cluster uuid.UUID, l *ledger, id meter.Month) error {
	counted, err := g.months.store.Load(ctx, cluster, id)
	if err != nil {
		return err
	}
	var all int64
	for _, n := range counted {
		all += n
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.acc.month
	if m.month != id {
		return nil // it turned meanwhile, and the next is asked for
	}
	if s := l.partaking; !m.known || s == nil || !s.mirrors {
		m.hear(all, counted[g.name])
		m.saved = max(m.saved, counted[g.name])
		m.heard = g.clock().Unix()
	}
	if g.fleet != nil {
		g.fleet.seedMonth(l, cluster, id, counted)
		if s := l.partaking; s.mirrors && s.untold(&l.acc) {
			g.fleet.busyWith(cluster, l)
		}
	}
	return nil
}
