package proxy

import (
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/fair"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// slots bounds the requests that brokers have from this gateway at a time. When all slots are taken, those who wait go on
// by kind, and within a kind the clusters take turns that are worth the request rates of their plans. What waits for
// messages gives its slot on as soon as it has been sent: see docs/design/fairness.md. Safe for concurrent use.
type slots struct {
	places *fair.Places[uuid.UUID]
	wait   time.Duration
}

// Kinds of requests, in the order in which they go on: what frees a broker of work before what takes work from it, and
// that before what brings more.
const (
	kindSettle = iota // acknowledgements and extensions of leases
	kindTake          // pops and fetches
	kindBring         // pushes, and everything else
	kinds
)

// maxWaiting bounds those of a kind that wait for a slot, shared by fair.Budget's rule.
const maxWaiting = 1 << 14

func newSlots(c *Config, book Book) *slots {
	weigh := func(id uuid.UUID) fair.Weight { return weightOf(book.Snapshot().ClusterByID(id)) }
	return &slots{fair.NewPlaces(c.MaxInFlight, kinds, maxWaiting, weigh), c.SlotWait}
}

// weightOf is what the turns of a cluster are worth: the request rate of its plan, whatever the mode of that limit. One
// that is gone or has no rate is as usual.
func weightOf(c *plans.Cluster) fair.Weight {
	if c == nil || c.Limits.RequestsPerSecond == nil {
		return fair.Usual
	}
	return fair.WeightOf(*c.Limits.RequestsPerSecond)
}

// kindOf says how urgent a request is. A transaction that acknowledges is an acknowledgement.
func kindOf(ex *exchange) int {
	switch {
	case ex.route.Cost == wire.CostSettle || ex.route.Cost == wire.CostMixed && ex.acks:
		return kindSettle
	case ex.route.Cost == wire.CostDelivery || ex.route.Op == wire.OpFetch:
		return kindTake
	}
	return kindBring
}

// errFull is what a request is told for which there was no slot in time. Nothing of it was sent.
func errFull() *wire.Error {
	return &wire.Error{
		Code: wire.GatewayOverloaded, Detail: "more requests wait than the brokers take", RetryAfter: time.Second, Outcome: wire.OutcomeNone,
	}
}

// enter waits for a slot, for at most d and the patience of slots, or until quit is closed, and reports whether the
// exchange has one now. leave ends it.
func (s *slots) enter(ex *exchange, d time.Duration, quit <-chan struct{}) bool {
	ex.slotted = s.places.Enter(ex.cluster.ID, kindOf(ex), min(d, s.wait), quit)
	return ex.slotted
}

// leave gives the exchange's slot, if it has one, to whoever is next.
func (s *slots) leave(ex *exchange) {
	if ex.slotted {
		ex.slotted = false
		s.places.Leave()
	}
}

// full reports whether there is no slot now.
func (s *slots) full() bool { return s.places.Stats().Free == 0 }
