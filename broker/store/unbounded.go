package store

import (
	"fmt"
	"math"

	"github.com/queengate/queengate/wire"
)

// seconds is the ceiling as the database takes it: nil for none.
func (u Unbounded) seconds() *int32 {
	if u.Ceiling <= 0 {
		return nil
	}
	return new(int32(min(u.Ceiling, math.MaxInt32)))
}

// apply gives options without retention the ceiling, or refuses them. A rule on completed messages alone bounds nothing:
// what no group reads would stay.
//
// Where retention was switched off, what else was set of it was without effect. It must not begin to delete because the
// ceiling switches retention on, so it goes.
func (u Unbounded) apply(queue string, o *wire.QueueOptions) error {
	ceiling := u.seconds()
	if ceiling == nil || o.RetentionEnabled && o.RetentionSeconds > 0 {
		return nil
	}
	if u.Refuse {
		return u.refuse(queue)
	}
	if !o.RetentionEnabled {
		o.RetentionEnabled, o.CompletedRetentionSeconds = true, 0
	}
	o.RetentionSeconds = int(*ceiling)
	return nil
}

// refuse is 403 with both numbers: what the queue would have, and what the plan allows.
func (u Unbounded) refuse(queue string) error {
	return &wire.Error{
		Code: wire.QuotaExceeded,
		Detail: fmt.Sprintf("queue %q has no retention (retentionSeconds 0 keeps messages without end) and the plan allows %d seconds: "+
			"configure it with retentionEnabled and retentionSeconds first", queue, u.Ceiling),
		Limit: &wire.Limit{Name: "retention", Limit: float64(u.Ceiling), Unit: "seconds"},
	}
}
