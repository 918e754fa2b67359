package plans

import (
	"errors"
	"fmt"
	"math"
)

// Mode says what happens when a limit is exceeded.
type Mode uint8

const (
	Enforce Mode = iota // refuse
	Shadow              // let through, count and log what would have been refused
	Off                 // do not look
)

// Names of limits, as they stand in plans, errors, headers and metrics.
const (
	LimitRequests   = "req"
	LimitMessages   = "msgs"
	LimitDelivery   = "delivery"
	LimitQueues     = "queues"
	LimitPartitions = "partitions"
	LimitPayload    = "payload"
	LimitBatch      = "batch"
	LimitBody       = "body"
	LimitRetention  = "retention"
	LimitParked     = "parked"
	LimitStorage    = "storage"
	LimitMonth      = "month"

	LimitKeyRequests = "key_req" // of one API key
	LimitKeyMessages = "key_msgs"
)

// Limits is what counts for a cluster now: its plan plus its overrides. nil means unlimited, zero means blocked.
// Bursts are never nil when their rate is set: an absent burst is twice the rate.
type Limits struct {
	RequestsPerSecond     *float64
	RequestsBurst         *float64
	MessagesPerSecond     *float64
	MessagesBurst         *float64
	DeliveryPerSecond     *float64 // nil: deliveries are debited from the message rate
	DeliveryBurst         *float64
	MaxQueues             *int64
	MaxPartitionsPerQueue *int64 // Default is not counted
	MaxParkedPops         *int64
	MaxPayloadBytes       *int64 // raw JSON text of one payload
	MaxBatchItems         *int64
	MaxBodyBytes          *int64
	MaxRetainedBytes      *int64 // raw payload bytes
	MaxRetentionSeconds   *int64
	MonthlyMessages       *int64
	Unbounded             Unbounded       // of queues without retention, under MaxRetentionSeconds
	Basis                 Basis           // of MonthlyMessages
	Zone                  Zone            // of the tenant, whose calendar months count
	Modes                 map[string]Mode // by limit name; absent means Enforce
}

// Mode returns the mode of a limit.
func (l *Limits) Mode(name string) Mode { return l.Modes[name] }

// String returns the mode as it stands in the database, headers and metrics.
func (m Mode) String() string {
	switch m {
	case Shadow:
		return "shadow"
	case Off:
		return "off"
	}
	return "enforce"
}

// limitNames is the closed set of keys of Limits.Modes.
var limitNames = map[string]bool{
	LimitRequests: true, LimitMessages: true, LimitDelivery: true, LimitKeyRequests: true, LimitKeyMessages: true,
	LimitQueues: true, LimitPartitions: true, LimitPayload: true, LimitBatch: true, LimitBody: true, LimitRetention: true,
	LimitParked: true, LimitStorage: true, LimitMonth: true,
}

// rateFields and amountFields tie the names of the database and of overrides to the fields of Limits.
var (
	rateFields = map[string]func(*Limits) **float64{
		"max_req_per_sec":      func(l *Limits) **float64 { return &l.RequestsPerSecond },
		"req_burst":            func(l *Limits) **float64 { return &l.RequestsBurst },
		"max_msgs_per_sec":     func(l *Limits) **float64 { return &l.MessagesPerSecond },
		"msgs_burst":           func(l *Limits) **float64 { return &l.MessagesBurst },
		"max_delivery_per_sec": func(l *Limits) **float64 { return &l.DeliveryPerSecond },
		"delivery_burst":       func(l *Limits) **float64 { return &l.DeliveryBurst },
	}
	amountFields = map[string]func(*Limits) **int64{
		"max_queues":               func(l *Limits) **int64 { return &l.MaxQueues },
		"max_partitions_per_queue": func(l *Limits) **int64 { return &l.MaxPartitionsPerQueue },
		"max_parked_pops":          func(l *Limits) **int64 { return &l.MaxParkedPops },
		"max_payload_bytes":        func(l *Limits) **int64 { return &l.MaxPayloadBytes },
		"max_batch_items":          func(l *Limits) **int64 { return &l.MaxBatchItems },
		"max_body_bytes":           func(l *Limits) **int64 { return &l.MaxBodyBytes },
		"max_retained_bytes":       func(l *Limits) **int64 { return &l.MaxRetainedBytes },
		"max_retention_seconds":    func(l *Limits) **int64 { return &l.MaxRetentionSeconds },
		"monthly_msgs_quota":       func(l *Limits) **int64 { return &l.MonthlyMessages },
	}
)

// The ranges the database accepts; see the domains queengate.rate and queengate.amount.
const (
	maxRate   = 1e9
	maxAmount = 1e15 // exact in a float64
)

// Validate returns everything in the limits that contradicts itself, joined, or nil. The database refuses such plans;
// overrides may lead here, and then a request that the contradiction concerns is refused for good (413), not delayed.
func (l *Limits) Validate() error {
	var errs []error
	for name, field := range rateFields {
		if v := *field(l); v != nil && !(*v >= 0 && *v <= maxRate) {
			errs = append(errs, fmt.Errorf("%s = %v: want 0..%g or none", name, *v, float64(maxRate)))
		}
	}
	for name, field := range amountFields {
		if v := *field(l); v != nil && (*v < 0 || *v > maxAmount) {
			errs = append(errs, fmt.Errorf("%s = %d: want 0..%g or none", name, *v, float64(maxAmount)))
		}
	}
	if positive(l.RequestsPerSecond) && below(l.RequestsBurst, 1) {
		errs = append(errs, fmt.Errorf("req_burst = %g: want at least 1, or no request can pass", *l.RequestsBurst))
	}
	if positive(l.MessagesPerSecond) && below(l.MessagesBurst, 1) {
		errs = append(errs, fmt.Errorf("msgs_burst = %g: want at least 1, or no message can pass", *l.MessagesBurst))
	}
	if positive(l.DeliveryPerSecond) && below(l.DeliveryBurst, 1) {
		errs = append(errs, fmt.Errorf("delivery_burst = %g: want at least 1, or no message can be delivered", *l.DeliveryBurst))
	}
	if positive(l.MessagesPerSecond) && l.MaxBatchItems != nil && below(l.MessagesBurst, float64(*l.MaxBatchItems)) {
		errs = append(errs, fmt.Errorf("msgs_burst = %g: want at least max_batch_items = %d, or a legal batch can never pass",
			*l.MessagesBurst, *l.MaxBatchItems))
	}
	if l.MaxPayloadBytes != nil && l.MaxBodyBytes != nil && *l.MaxPayloadBytes > *l.MaxBodyBytes {
		errs = append(errs, fmt.Errorf("max_body_bytes = %d: want at least max_payload_bytes = %d", *l.MaxBodyBytes, *l.MaxPayloadBytes))
	}
	return errors.Join(errs...)
}

func positive(v *float64) bool             { return v != nil && *v > 0 }
func below(v *float64, bound float64) bool { return v != nil && *v < bound }

// settleBursts gives every rate its burst: twice the rate when none is set, at least one token, since a smaller bucket
// lets nothing through; none for an unlimited rate; zero for a blocked one, or a full bucket would pass before it.
func (l *Limits) settleBursts() {
	l.RequestsBurst = settledBurst(l.RequestsPerSecond, l.RequestsBurst)
	l.MessagesBurst = settledBurst(l.MessagesPerSecond, l.MessagesBurst)
	l.DeliveryBurst = settledBurst(l.DeliveryPerSecond, l.DeliveryBurst)
}

func settledBurst(rate, burst *float64) *float64 {
	switch {
	case rate == nil:
		return nil
	case *rate == 0:
		return new(float64)
	case burst == nil:
		return new(math.Max(1, 2**rate))
	}
	return burst
}
