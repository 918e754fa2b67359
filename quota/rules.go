package quota

import (
	"fmt"
	"math"
	"time"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

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

// (3) Payload: body, item, batch, retention ceiling. A cap of zero allows none and is 403, any other is 413.

func checkBodySize(d *decision) (standing, float64) {
	return checkSize(d.ask.BodyBytes, *d.acc.limits.MaxBodyBytes)
}

func refuseBodySize(d *decision) *wire.Error {
	return tooLarge(plans.LimitBody, "bytes", *d.acc.limits.MaxBodyBytes, d.ask.BodyBytes,
		fmt.Sprintf("the request body has %d bytes", d.ask.BodyBytes))
}

func reportBodySize(d *decision) Report {
	return reportCount(*d.acc.limits.MaxBodyBytes, d.ask.BodyBytes)
}

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

// (5) Retained bytes, monthly allowance; the hold of the life cycle is in life.go. A push without items stores nothing and passes the first two.

func checkStorage(d *decision) (standing, float64) {
	if d.ask.Messages == 0 {
		return untouched, 0
	}
	most := *d.acc.limits.MaxRetainedBytes
	if d.acc.storage.full(most, d.acc.parts) {
		return over, 0
	}
	return fits, left(most, d.acc.storage.total(d.acc.parts)+d.ask.PayloadBytes)
}

func refuseStorage(d *decision) *wire.Error {
	most, used := *d.acc.limits.MaxRetainedBytes, d.acc.storage.total(d.acc.parts)
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
	return reportCount(*d.acc.limits.MaxRetainedBytes, d.acc.storage.total(d.acc.parts))
}

func checkMonth(d *decision) (standing, float64) {
	if d.ask.Messages == 0 {
		return untouched, 0
	}
	m, most := &d.acc.month, *d.acc.limits.MonthlyMessages
	m.roll(d.now, d.acc.limits.Zone)
	used := m.used(d.acc.parts) + int64(d.ask.Messages)
	if used > most {
		return over, 0
	}
	return fits, left(most, used)
}

func refuseMonth(d *decision) *wire.Error {
	m, most := &d.acc.month, *d.acc.limits.MonthlyMessages
	used := m.used(d.acc.parts)
	e := quota(plans.LimitMonth, "messages", most, used,
		"%d of the month's %d messages are used; the request has %d", used, most, d.ask.Messages)
	if int64(d.ask.Messages) <= most {
		e.Limit.ResetSeconds = m.until(d.now).Seconds()
	}
	return e
}

func reportMonth(d *decision) Report {
	m := &d.acc.month
	r := reportCount(*d.acc.limits.MonthlyMessages, m.used(d.acc.parts))
	r.Reset = m.until(d.now)
	return r
}
