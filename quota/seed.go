package quota

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/queengate/queengate/plans"
)

// Seeder lists what a cluster has: each queue (as a Pair without partition, or by its partitions) and each named
// partition, in any order, repeats allowed. It stops at an error of each and returns it.
type Seeder interface {
	Seed(ctx context.Context, c *plans.Cluster, each func(Pair) error) error
}

const (
	listingBudget = 2 * time.Second // for one listing; a request waits for it
	listingPause  = time.Second     // between two listings of a cluster
	failurePause  = 5 * time.Second // after a listing that failed
	tooManyPause  = 5 * time.Minute // after one that found more names than we count
)

var (
	errTooManyNames   = errors.New("more names than a gateway counts")
	errTooManyChanges = errors.New("too many changes during the listing")
)

// pace says when a cluster's names may be listed again.
type pace struct {
	wanted    bool // known counts are in doubt
	notBefore time.Time
	err       error // of the last listing
}

// listing is one listing under way; err is set before done is closed.
type listing struct {
	done chan struct{}
	err  error
}

// caps returns which names the plan counts.
func caps(l *plans.Limits) (queues, partitions bool) {
	return l.MaxQueues != nil && l.Mode(plans.LimitQueues) != plans.Off,
		l.MaxPartitionsPerQueue != nil && l.Mode(plans.LimitPartitions) != plans.Off
}

// EnsureSeeded makes the counts of c known before its first push or configure is admitted. It returns at once when
// they are, or when the plan caps neither queues nor partitions. Otherwise it lists the names through the Seeder;
// callers of the same cluster share one listing, of at most two seconds. On an error, which is for the log, the
// request shall go on: unknown counts refuse nothing, and the broker refuses exactly. After a failure it answers the
// same error for some seconds without asking again.
//
// While known counts are listed anew (Resync) only the caller that began waits; the others use the old ones.
//
// It also makes known what the cluster has used over time, where the plan limits it: the month and the retained bytes.
func (g *Gate) EnsureSeeded(ctx context.Context, c *plans.Cluster) error {
	return errors.Join(g.ensureBooks(ctx, c, false), g.ensure(ctx, c, false))
}

// ensure is EnsureSeeded; with anew it lists, or awaits a listing under way, even when the counts are known.
func (g *Gate) ensure(ctx context.Context, c *plans.Cluster, anew bool) error {
	queues, partitions := caps(&c.Limits)
	if !queues && !partitions || g.seeder == nil {
		return nil
	}
	l := g.lock(c.ID)
	names := &l.acc.names
	known := names.queuesKnown && (names.partitionsKnown || !partitions)
	switch {
	case known && !l.listed.wanted && !anew:
		l.mu.Unlock()
		return nil
	case l.listing != nil:
		under := l.listing
		l.mu.Unlock()
		if known && !anew {
			return nil
		}
		select {
		case <-under.done:
			return under.err
		case <-ctx.Done():
			return fmt.Errorf("await names of cluster %s: %w", c.Slug, context.Cause(ctx))
		}
	case g.clock().Before(l.listed.notBefore):
		err := l.listed.err
		l.mu.Unlock()
		return err
	}
	under := &listing{done: make(chan struct{})}
	l.listing = under
	l.listed.wanted = false
	into := names.begin()
	l.mu.Unlock()
	return g.list(ctx, c, l, under, into, partitions)
}

// list runs one listing and ends it whatever happens: the ledger must not wait for ever for a seeder that panicked.
func (g *Gate) list(ctx context.Context, c *plans.Cluster, l *ledger, under *listing, into *registry, partitions bool,
) (err error) {
	err = errors.New("listing of names did not end")
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		pause := listingPause
		if err == nil {
			err = l.acc.names.adopt(into, partitions)
		} else {
			l.acc.names.abandon()
		}
		if err != nil {
			err = fmt.Errorf("list names of cluster %s: %w", c.Slug, err)
		}
		switch {
		case errors.Is(err, errTooManyNames):
			pause = tooManyPause
		case err != nil:
			pause = failurePause
		}
		l.listed.notBefore, l.listed.err = g.clock().Add(pause), err
		l.listing = nil
		under.err = err
		close(under.done)
	}()
	// The listing serves every request that waits for it, so it outlives the one that began it.
	budget, cancel := context.WithTimeout(context.WithoutCancel(ctx), listingBudget)
	defer cancel()
	err = g.seeder.Seed(budget, c, func(p Pair) error {
		if !into.add(p, partitions) {
			return errTooManyNames
		}
		return nil
	})
	return err
}

// Resync says that the broker counts differently (it refused a name that was admitted here): the next EnsureSeeded
// lists the names anew, at most once a second.
func (g *Gate) Resync(c *plans.Cluster) {
	l := g.lock(c.ID)
	defer l.mu.Unlock()
	l.listed.wanted = true
}

// Recount lists the names anew after Admit refused a request because of queues or partitions: other gateways, and the
// broker's own clean-up, delete names without telling this one. It reports whether the names are now fresh, so that
// asking Admit once more is worthwhile; false within a second of the last listing.
func (g *Gate) Recount(ctx context.Context, c *plans.Cluster) bool {
	if g.seeder == nil {
		return false
	}
	l := g.lock(c.ID)
	early := l.listing == nil && g.clock().Before(l.listed.notBefore)
	l.mu.Unlock()
	return !early && g.ensure(ctx, c, true) == nil
}
