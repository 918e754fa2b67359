package quota

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// fleetWorld is gateways over one Redis with a clock of their own: the time of each call is what its caller says.
type fleetWorld struct {
	t      testing.TB
	redis  *redis.Options
	leases bool
	prefix string
	budget time.Duration
	size   int

	// Of the gates to come: what they know from before, and who is told.
	known    int
	remember func(int) error
	absences Absences // nil: they have none

	mu     sync.Mutex // guards latest
	latest time.Time
	now    func() time.Time // of what is asked without a time; nil: the latest that was said
}

// testBudget is long enough for a busy machine: only a test of an absence waits for it.
const testBudget = 10 * time.Second

func newFleetWorld(t testing.TB, o *redis.Options, leases bool) *fleetWorld {
	return &fleetWorld{t: t, redis: o, leases: leases, prefix: "test:" + uuid.NewString(), budget: testBudget, latest: start}
}

// gate makes one more gateway. It does not run: the test beats and tends.
func (w *fleetWorld) gate(s Seeder, options ...Option) *Gate {
	w.t.Helper()
	options = append([]Option{
		WithSeeder(s),
		WithFleet(FleetOptions{
			Redis: w.redis, Leases: w.leases, Prefix: w.prefix, Budget: w.budget, Size: w.size, Known: w.known, Remember: w.remember,
			Absences: w.absences,
		}),
	}, options...)
	if s == nil {
		options = options[1:]
	}
	g := NewGate(slog.New(slog.DiscardHandler), options...)
	g.epoch = start.Add(-time.Hour)
	g.fleet.ask = func(now time.Time) any {
		if w.now != nil {
			now = w.now()
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if now.After(w.latest) {
			w.latest = now
		}
		return (now.UnixNano() + 999) / 1000
	}
	g.fleet.listingTime = func() time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.latest
	}
	g.fleet.clock = func(context.Context) (time.Time, error) { return g.fleet.listingTime(), nil }
	w.t.Cleanup(func() {
		if err := g.fleet.pipe.close(); err != nil {
			w.t.Error(err)
		}
	})
	return g
}
