package quota

import (
	"time"

	"github.com/queengate/queengate/plans"
)

// Levels is what a cluster has used and may still use, for operators. Rates and counts that the plan does not limit
// are nil.
type Levels struct {
	Requests       *BucketLevel `json:"requests"`
	Messages       *BucketLevel `json:"messages"`
	Delivery       *BucketLevel `json:"delivery"` // nil too when deliveries share the message rate
	Parked         int          `json:"parked"`
	Queues         *int         `json:"queues"` // nil: unknown or not counted
	FullestQueue   *int         `json:"fullestQueue"`
	RetainedBytes  int64        `json:"retainedBytes"` // measured plus stored since
	ReservedBytes  int64        `json:"reservedBytes"` // of requests in flight
	MeasuredAt     *time.Time   `json:"measuredAt"`
	StorageBlocked bool         `json:"storageBlocked"`
	MonthMessages  int64        `json:"monthMessages"`
	Open           int          `json:"open"` // admitted requests not yet ended
}

// BucketLevel is the state of a rate.
type BucketLevel struct {
	PerSecond float64 `json:"perSecond"`
	Burst     float64 `json:"burst"`
	Level     float64 `json:"level"`    // negative: debt
	Promised  float64 `json:"promised"` // tokens that refused callers wait for
}

// Snapshot returns the levels of a cluster as of now. FullestQueue counts named partitions.
func (g *Gate) Snapshot(c *plans.Cluster, now time.Time) Levels {
	l := g.open(c, g.at(now))
	defer l.mu.Unlock()
	acc := &l.acc
	acc.refill(g.at(now))
	acc.month.roll(now, acc.limits.Zone)
	s := Levels{
		Parked: len(acc.parked), RetainedBytes: acc.storage.settled(), ReservedBytes: acc.storage.reserved,
		StorageBlocked: acc.storage.blocked, MonthMessages: acc.month.others + acc.month.own, Open: acc.open,
	}
	if acc.live[limitRequests] {
		s.Requests = levelOf(&acc.requests)
	}
	if acc.live[limitMessages] {
		s.Messages = levelOf(&acc.messages)
	}
	if acc.live[limitDelivery] {
		s.Delivery = levelOf(&acc.delivery)
	}
	if !acc.storage.computed.IsZero() {
		s.MeasuredAt = new(acc.storage.computed)
	}
	if acc.live[limitQueues] && acc.names.queuesKnown {
		s.Queues = new(len(acc.names.queues))
	}
	if acc.live[limitPartitions] && acc.names.partitionsKnown {
		s.FullestQueue = new(int)
		for _, names := range acc.names.queues {
			*s.FullestQueue = max(*s.FullestQueue, len(names.partitions))
		}
	}
	return s
}

func levelOf(b *bucket) *BucketLevel {
	return &BucketLevel{
		PerSecond: tokens(b.rate), Burst: tokens(b.room), Level: tokens(b.level), Promised: tokens(b.line.left(b)),
	}
}
