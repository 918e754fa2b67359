package quota

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// (1) Rate with burst: the request bucket.

// requestLevel is the level at which the request fits: acks, nacks and extensions may leave -burst behind, and so may
// what could turn out to be one.
func (d *decision) requestLevel() int64 {
	if settles(d.ask.Cost) {
		return token - d.acc.requests.burst
	}
	return token
}

func settles(c wire.Cost) bool { return c == wire.CostSettle || c == wire.CostMixed }

func checkRequests(d *decision) (standing, float64) {
	b := &d.acc.requests
	b.refill(d.t)
	if b.blocked() || b.level < d.requestLevel() {
		return over, 0
	}
	return fits, float64(b.level-token) / float64(b.burst)
}

func refuseRequests(d *decision) *wire.Error {
	b, l := &d.acc.requests, d.acc.limits
	if b.blocked() {
		return blocked(plans.LimitRequests, "requests_per_second", "the plan allows no requests")
	}
	var wait time.Duration
	if settles(d.ask.Cost) {
		wait = b.promise(&b.settle, token, d.requestLevel())
	} else {
		wait = b.promise(&b.line, token, token)
	}
	// A push waits until both buckets have room: sent back for one it would only meet the other.
	if !d.head && d.ask.Cost == wire.CostMessages {
		wait = max(wait, d.promiseMessages(units(d.ask.Messages)))
	}
	return limited(b, *l.RequestsPerSecond, wait, plans.LimitRequests, "request")
}

func reportRequests(d *decision) Report { return reportBucket(&d.acc.requests) }

// (1) Rate with burst: the message bucket.

func checkMessages(d *decision) (standing, float64) {
	n := units(d.ask.Messages)
	if n == 0 {
		return untouched, 0
	}
	b := &d.acc.messages
	b.refill(d.t)
	if b.blocked() || n > b.largest || b.level < b.needs(n) {
		return over, 0
	}
	return fits, float64(b.level-n) / float64(b.burst)
}

// promiseMessages is how long a push that is refused for another reason has to wait for n of the message bucket; 0
// when they are there, when time will not bring them, or when nobody enforces it.
func (d *decision) promiseMessages(n int64) time.Duration {
	b := &d.acc.messages
	if !d.acc.live[limitMessages] || d.acc.modes[limitMessages] != plans.Enforce || b.blocked() || n > b.largest {
		return 0
	}
	if b.refill(d.t); b.level >= b.needs(n) {
		return 0
	}
	return b.promise(&b.line, n, b.needs(n))
}

func refuseMessages(d *decision) *wire.Error {
	b, l := &d.acc.messages, d.acc.limits
	if b.blocked() {
		return blocked(plans.LimitMessages, "messages_per_second", "the plan allows no messages")
	}
	n := units(d.ask.Messages)
	if n > b.largest {
		most := b.largest / token
		e := wire.Errorf(wire.BatchExceedsBurst,
			"a batch of %d messages can never fit: the plan's burst admits at most %d at once", d.ask.Messages, most)
		e.Limit = &wire.Limit{
			Name: plans.LimitMessages, Limit: float64(most), Used: float64(d.ask.Messages), Unit: "messages",
		}
		return e
	}
	return limited(b, *l.MessagesPerSecond, b.promise(&b.line, n, b.needs(n)), plans.LimitMessages, "message")
}

func reportMessages(d *decision) Report { return reportBucket(&d.acc.messages) }

// reportBucket states a bucket as the headers do: a policy of burst tokens in a window of burst / rate.
func reportBucket(b *bucket) Report {
	if b.blocked() {
		return Report{Limit: tokens(b.burst)}
	}
	return Report{
		Limit: tokens(b.burst), Remaining: tokens(b.level), Reset: b.untilGrown(b.burst - b.level), Window: b.window,
	}
}

// limited is 429. Used is the rate that the emptied share of the burst stands for: the full rate when the bucket is
// empty, more in debt.
func limited(b *bucket, perSecond float64, wait time.Duration, name, noun string) *wire.Error {
	e := wire.Errorf(wire.RateLimited, "the cluster's %s rate of %s per second (burst %s) is used up", noun,
		decimal(perSecond), decimal(tokens(b.burst)))
	e.RetryAfter = wait
	used := perSecond * float64(b.burst-b.level) / float64(b.burst)
	e.Limit = &wire.Limit{
		Name: name, Limit: perSecond, Used: math.Round(used*1000) / 1000, Unit: noun + "s_per_second",
		ResetSeconds: wait.Seconds(),
	}
	return e
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// blocked is 403 for a limit of zero.
func blocked(name, unit, text string) *wire.Error {
	e := wire.Errorf(wire.QuotaExceeded, "%s", text)
	e.Limit = &wire.Limit{Name: name, Unit: unit}
	return e
}

// (2) Counts. A count that is not known refuses nothing: the broker counts exactly.

// survey looks up the pairs once for both counts.
func (d *decision) survey() *survey {
	if !d.surveyed {
		d.surveyed = true
		d.names = d.acc.names.survey(d.ask.Pairs, d.acc.live[limitPartitions], d.scratch)
		d.told.count(&d.names)
	}
	return &d.names
}

func checkQueues(d *decision) (standing, float64) {
	if len(d.ask.Pairs) == 0 {
		return untouched, 0
	}
	s, most := d.survey(), *d.acc.limits.MaxQueues
	if !d.acc.names.queuesKnown && !d.told.asked(limitQueues) {
		return untouched, 0
	}
	used := int64(s.queues + s.newQueues)
	if s.newQueues > 0 && used > most {
		return over, 0
	}
	return fits, left(most, used)
}

func refuseQueues(d *decision) *wire.Error {
	most, used := *d.acc.limits.MaxQueues, d.names.queues
	return quota(plans.LimitQueues, "queues", most, int64(used),
		"the plan allows %d queues and %d exist; the request needs %d more", most, used, d.names.newQueues)
}

func reportQueues(d *decision) Report {
	return reportCount(*d.acc.limits.MaxQueues, int64(d.names.queues))
}

func checkPartitions(d *decision) (standing, float64) {
	if len(d.ask.Pairs) == 0 {
		return untouched, 0
	}
	s, most := d.survey(), *d.acc.limits.MaxPartitionsPerQueue
	if !d.acc.names.partitionsKnown && !d.told.asked(limitPartitions) {
		return untouched, 0
	}
	if s.grows && int64(s.growsTo) > most {
		return over, 0
	}
	if s.partitions == 0 {
		return untouched, 0 // only Default, which is free
	}
	return fits, left(most, int64(s.partitions))
}

func refusePartitions(d *decision) *wire.Error {
	most := *d.acc.limits.MaxPartitionsPerQueue
	return quota(plans.LimitPartitions, "partitions", most, int64(d.names.growsTo),
		"the plan allows %d partitions per queue beside %s; the request would make %d", most, wire.DefaultPartition,
		d.names.growsTo)
}

func reportPartitions(d *decision) Report {
	return reportCount(*d.acc.limits.MaxPartitionsPerQueue, int64(d.names.partitions))
}

// left is the share of most that is not used.
func left(most, used int64) float64 {
	if most <= 0 {
		return 0
	}
	return float64(most-used) / float64(most)
}

func reportCount(most, used int64) Report {
	return Report{Limit: float64(most), Remaining: float64(most - used)}
}

// quota is 403 for a hard cap.
func quota(name, unit string, most, used int64, text string, args ...any) *wire.Error {
	e := wire.Errorf(wire.QuotaExceeded, text, args...)
	e.Limit = &wire.Limit{Name: name, Limit: float64(most), Used: float64(used), Unit: unit}
	return e
}

// (3) Payload: item, batch, retention ceiling. A cap of zero allows none and is 403, any other is 413.

func checkPayload(d *decision) (standing, float64) {
	return checkSize(d.ask.LargestItem, *d.acc.limits.MaxPayloadBytes)
}

// checkSize compares a size with its cap. A size uses nothing up, so it is never the closest limit.
func checkSize(size, most int64) (standing, float64) {
	switch {
	case size > most:
		return over, 0
	case size <= 0:
		return untouched, 0
	}
	return fits, math.Inf(1)
}

func refusePayload(d *decision) *wire.Error {
	return tooLarge(plans.LimitPayload, "bytes", *d.acc.limits.MaxPayloadBytes, d.ask.LargestItem,
		fmt.Sprintf("the payload of item %d has %d bytes", d.ask.LargestIndex, d.ask.LargestItem))
}

func reportPayload(d *decision) Report {
	return reportCount(*d.acc.limits.MaxPayloadBytes, d.ask.LargestItem)
}

func checkBatch(d *decision) (standing, float64) {
	return checkSize(int64(d.ask.Messages), *d.acc.limits.MaxBatchItems)
}

func refuseBatch(d *decision) *wire.Error {
	return tooLarge(plans.LimitBatch, "items", *d.acc.limits.MaxBatchItems, int64(d.ask.Messages),
		fmt.Sprintf("the batch has %d items", d.ask.Messages))
}

func reportBatch(d *decision) Report {
	return reportCount(*d.acc.limits.MaxBatchItems, int64(d.ask.Messages))
}

func tooLarge(name, unit string, most, size int64, what string) *wire.Error {
	if most <= 0 {
		return blocked(name, unit, what+"; the plan allows none")
	}
	e := wire.Errorf(wire.PayloadTooLarge, "%s; the plan allows %d", what, most)
	e.Limit = &wire.Limit{Name: name, Limit: float64(most), Used: float64(size), Unit: unit}
	return e
}

func checkRetention(d *decision) (standing, float64) {
	return checkSize(d.ask.Retention, *d.acc.limits.MaxRetentionSeconds)
}

func refuseRetention(d *decision) *wire.Error {
	most := *d.acc.limits.MaxRetentionSeconds
	return quota(plans.LimitRetention, "seconds", most, d.ask.Retention,
		"a retention of %d seconds is above the plan's ceiling of %d", d.ask.Retention, most)
}

func reportRetention(d *decision) Report {
	return reportCount(*d.acc.limits.MaxRetentionSeconds, d.ask.Retention)
}

// (4) Long-poll slots.

func checkParked(d *decision) (standing, float64) {
	if !d.ask.Wait {
		return untouched, 0
	}
	most, used := d.mostParked(), d.parked()
	if used >= most {
		return over, 0
	}
	return fits, left(most, used+1)
}

func refuseParked(d *decision) *wire.Error {
	most, used := *d.acc.limits.MaxParkedPops, d.parked()
	if most <= 0 {
		return blocked(plans.LimitParked, "polls", "the plan allows no waiting pops")
	}
	wait := d.untilSlot()
	e := wire.Errorf(wire.RateLimited, "all %d long-poll slots of the plan are taken", most)
	e.RetryAfter = wait
	e.Limit = &wire.Limit{
		Name: plans.LimitParked, Limit: float64(most), Used: float64(used), Unit: "polls", ResetSeconds: wait.Seconds(),
	}
	return e
}

// mostParked is the plan's number, or this gateway's part of it while Redis is away: at least one.
func (d *decision) mostParked() int64 {
	return (*d.acc.limits.MaxParkedPops + d.acc.parts - 1) / d.acc.parts
}

// parked is how many slots are taken, in the fleet when Redis was asked.
func (d *decision) parked() int64 {
	if d.told.asked(limitParked) {
		return d.told.parked
	}
	return int64(len(d.acc.parked))
}

// untilSlot is the time to the earliest deadline among the parked, at the latest.
func (d *decision) untilSlot() time.Duration {
	if d.told.asked(limitParked) {
		return max(time.Millisecond, d.told.untilSlot)
	}
	deadline, _ := d.acc.parked.earliest()
	return max(time.Millisecond, time.Duration(deadline-d.t)) // a slot past its deadline is about to be freed
}

func reportParked(d *decision) Report {
	r := reportCount(*d.acc.limits.MaxParkedPops, d.parked())
	if d.parked() > 0 {
		r.Reset = d.untilSlot()
	}
	return r
}

// (5) Retained bytes, monthly allowance, billing hold. A push without items stores nothing and passes the first two.

func checkStorage(d *decision) (standing, float64) {
	if d.ask.Messages == 0 {
		return untouched, 0
	}
	most := *d.acc.limits.MaxRetainedBytes
	if d.acc.storage.full(most) {
		return over, 0
	}
	return fits, left(most, d.acc.storage.total()+d.ask.PayloadBytes)
}

func refuseStorage(d *decision) *wire.Error {
	most, used := *d.acc.limits.MaxRetainedBytes, d.acc.storage.total()
	e := wire.Errorf(wire.StorageQuotaExceeded, "the cluster retains %d of %d bytes", used, most)
	switch {
	case most == 0:
		e.Detail = "the plan stores nothing: its cap on retained bytes is zero"
	case d.acc.storage.blocked:
		e.Detail += fmt.Sprintf("; pushes resume at %d", releaseLevel(most))
	}
	e.Limit = &wire.Limit{Name: plans.LimitStorage, Limit: float64(most), Used: float64(used), Unit: "bytes"}
	return e
}

func reportStorage(d *decision) Report {
	return reportCount(*d.acc.limits.MaxRetainedBytes, d.acc.storage.total())
}

func checkMonth(d *decision) (standing, float64) {
	if d.ask.Messages == 0 {
		return untouched, 0
	}
	m, most := &d.acc.month, *d.acc.limits.MonthlyMessages
	m.roll(d.now)
	used := m.used + m.reserved + int64(d.ask.Messages)
	if used > most {
		return over, 0
	}
	return fits, left(most, used)
}

func refuseMonth(d *decision) *wire.Error {
	m, most := &d.acc.month, *d.acc.limits.MonthlyMessages
	used := m.used + m.reserved
	e := quota(plans.LimitMonth, "messages", most, used,
		"%d of the month's %d messages are used; the request has %d", used, most, d.ask.Messages)
	if int64(d.ask.Messages) <= most {
		e.Limit.ResetSeconds = m.until(d.now).Seconds()
	}
	return e
}

func reportMonth(d *decision) Report {
	m := &d.acc.month
	r := reportCount(*d.acc.limits.MonthlyMessages, m.used+m.reserved)
	r.Reset = m.until(d.now)
	return r
}

func checkBilling(d *decision) (standing, float64) {
	if d.c.Status == plans.PushBlocked {
		return over, 0
	}
	return untouched, 0
}

func refuseBilling(*decision) *wire.Error { return wire.Errorf(wire.PushBlocked, "") }

func reportBilling(*decision) Report { return Report{} }
