package quota

import (
	"math"
	"strconv"
	"time"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// (1) Rate with burst. Five buckets: requests of the key and of its cluster, messages of both, deliveries of the cluster.
// The key's comes first: a key over its own rate takes no place in the line of its siblings.

// rateText is how a rate is spoken of.
type rateText struct {
	owner, noun, unit string
	nothing           string // what a rate of zero says
}

var rateTexts = [limitRates]rateText{
	limitKeyRequests: {"key", "request", "requests_per_second", "the key is allowed no requests"},
	limitRequests:    {"cluster", "request", "requests_per_second", "the plan allows no requests"},
	limitKeyMessages: {"key", "message", "messages_per_second", "the key is allowed no messages"},
	limitMessages:    {"cluster", "message", "messages_per_second", "the plan allows no messages"},
	limitDelivery:    {"cluster", "delivery", "messages_per_second", "the plan allows no deliveries"},
}

// ofKey reports whether a rate is a key's own.
func (l limit) ofKey() bool { return l == limitKeyRequests || l == limitKeyMessages }

// ofRequests reports whether a rate counts requests.
func (l limit) ofRequests() bool { return l == limitKeyRequests || l == limitRequests }

// leasable reports whether tokens of a rate are taken ahead of need.
func (l limit) leasable() bool { return l == limitRequests || l == limitMessages }

// settles reports whether a route may go into debt for its request: acks, nacks and extensions, and what could turn out
// to be one.
func settles(c wire.Cost) bool { return c == wire.CostSettle || c == wire.CostMixed }

// bucket returns the bucket of a rate; nil when the request's key has none.
func (d *decision) bucket(i limit) *bucket {
	switch i {
	case limitRequests:
		return &d.acc.requests
	case limitMessages:
		return &d.acc.messages
	case limitDelivery:
		return &d.acc.delivery
	}
	return d.key.bucket(i)
}

// asks returns what the request wants of a rate, and the level at which it passes; a nil bucket when it wants nothing.
// What a pop will deliver is not known before: it passes while the bucket holds a message, and is debited afterwards.
func (d *decision) asks(i limit) (b *bucket, n, need int64) {
	switch i {
	case limitRequests, limitKeyRequests:
		if b = d.bucket(i); b == nil {
			return nil, 0, 0
		}
		if settles(d.ask.Cost) {
			return b, token, token - b.burst
		}
		return b, token, token
	case limitMessages, limitKeyMessages:
		if n = units(d.ask.Messages); n == 0 || !pushes[d.ask.Cost] {
			return nil, 0, 0
		}
		if b = d.bucket(i); b == nil {
			return nil, 0, 0
		}
		b.makeRoom(n, d.t)
		return b, n, n
	}
	if !pops[d.ask.Cost] {
		return nil, 0, 0
	}
	return &d.acc.delivery, token, token
}

func checkRate(i limit) func(*decision) (standing, float64) {
	return func(d *decision) (standing, float64) {
		b, n, need := d.asks(i)
		if b == nil {
			return untouched, 0
		}
		b.refill(d.t)
		if b.blocked() || n > b.largest || b.level < need {
			return over, 0
		}
		return fits, float64(b.level-n) / float64(b.room)
	}
}

func refuseRate(i limit) func(*decision) *wire.Error {
	return func(d *decision) *wire.Error {
		b, n, _ := d.asks(i)
		switch {
		case b.blocked():
			return blocked(limitNames[i], rateTexts[i].unit, rateTexts[i].nothing)
		case n > b.largest:
			return d.exceedsBurst(i, b)
		}
		wait := d.promise(i)
		// A request waits until all its buckets have room: sent back for one it would only meet the other. But a key
		// that is over its own rate gets no place in its cluster's lines.
		for j := i + 1; j < limitRates && !d.head; j++ {
			if i.ofKey() && !j.ofKey() {
				wait = max(wait, d.lacks(j))
			} else {
				wait = max(wait, d.promise(j))
			}
		}
		return d.limited(i, b, wait)
	}
}

func reportRate(i limit) func(*decision) Report {
	return func(d *decision) Report { return reportBucket(d.bucket(i)) }
}

// lacks is how long a rate has to grow until the request passes it; 0 when it does, when time will not help, or when
// nobody enforces it.
func (d *decision) lacks(i limit) time.Duration {
	if !d.acc.live[i] || d.acc.modes[i] != plans.Enforce {
		return 0
	}
	b, n, need := d.asks(i)
	if b == nil || b.blocked() || n > b.largest {
		return 0
	}
	if b.refill(d.t); b.level >= need {
		return 0
	}
	return b.untilGrown(need - b.level)
}

// promise is lacks for a request that gets a place in the rate's line.
func (d *decision) promise(i limit) time.Duration {
	if d.lacks(i) == 0 {
		return 0
	}
	b, n, need := d.asks(i)
	if settles(d.ask.Cost) {
		return b.promise(&b.settle, n, need)
	}
	return b.promise(&b.line, n, need)
}

// reportBucket states a bucket as the headers do: a policy of room tokens in a window of room / rate.
func reportBucket(b *bucket) Report {
	if b.blocked() {
		return Report{Limit: tokens(b.burst)}
	}
	return Report{
		Limit: tokens(b.room), Remaining: tokens(b.level), Reset: b.untilGrown(b.room - b.level), Window: b.window,
	}
}

// limited is 429. Used is the rate that the emptied share of the bucket stands for: the full rate when the bucket is
// empty, more in debt.
func (d *decision) limited(i limit, b *bucket, wait time.Duration) *wire.Error {
	text, perSecond := &rateTexts[i], d.perSecond(i)
	e := wire.Errorf(wire.RateLimited, "the %s's %s rate of %s per second (burst %s) is used up", text.owner, text.noun,
		decimal(perSecond), decimal(tokens(b.room)))
	e.RetryAfter = wait
	used := perSecond * float64(b.room-b.level) / float64(b.room)
	e.Limit = &wire.Limit{
		Name: limitNames[i], Limit: perSecond, Used: math.Round(used*1000) / 1000, Unit: text.unit,
		ResetSeconds: wait.Seconds(),
	}
	return e
}

// exceedsBurst is 413 for a batch that no time can let in.
func (d *decision) exceedsBurst(i limit, b *bucket) *wire.Error {
	owner, most := "plan", b.largest/token
	if i.ofKey() {
		owner = "key"
	}
	e := wire.Errorf(wire.BatchExceedsBurst,
		"a batch of %d messages can never fit: the %s's burst admits at most %d at once", d.ask.Messages, owner, most)
	e.Limit = &wire.Limit{
		Name: limitNames[i], Limit: float64(most), Used: float64(d.ask.Messages), Unit: "messages",
	}
	return e
}

// perSecond is a rate as the plan or the key has it: the whole one, also while it is shared out.
func (d *decision) perSecond(i limit) float64 {
	switch i {
	case limitRequests:
		return *d.acc.limits.RequestsPerSecond
	case limitMessages:
		return *d.acc.limits.MessagesPerSecond
	case limitDelivery:
		return *d.acc.limits.DeliveryPerSecond
	case limitKeyRequests:
		return *d.key.limits.RequestsPerSecond
	}
	return *d.key.limits.MessagesPerSecond
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
