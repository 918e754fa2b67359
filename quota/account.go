package quota

import (
	"hash/maphash"
	"time"

	"github.com/queengate/queengate/plans"
)

// limit is the index of a limit in tables; limitNames has its public name.
type limit uint8

const (
	limitRequests limit = iota
	limitMessages
	limitQueues
	limitPartitions
	limitPayload
	limitBatch
	limitRetention
	limitParked
	limitStorage
	limitMonth
	limitBilling  // the push block of the life-cycle: hard, in no plan
	limitRefusals // the budget of refusals after a body was read: ours, in no plan
	limitCount
)

// Names of the limits that stand in no plan.
const (
	nameBilling  = "billing"
	nameRefusals = "refusals"
)

var limitNames = [limitCount]string{
	plans.LimitRequests, plans.LimitMessages, plans.LimitQueues, plans.LimitPartitions, plans.LimitPayload,
	plans.LimitBatch, plans.LimitRetention, plans.LimitParked, plans.LimitStorage, plans.LimitMonth,
	nameBilling, nameRefusals,
}

// account is everything one cluster has used and may still use. Its owner holds the mutex of its ledger.
type account struct {
	limits *plans.Limits // as applied last; its address tells a new plan
	parts  int64         // among how many the plan is shared out: 1, or the fleet while its Redis is away
	modes  [limitCount]plans.Mode
	live   [limitCount]bool // set and not off

	requests bucket
	messages bucket
	parked   slots
	names    registry
	storage  storage
	month    month

	open    int // admissions not yet ended
	bodies  bodyBudget
	touched int64
}

func newAccount(seed maphash.Seed) account { return account{parts: 1, names: registry{seed: seed}} }

// apply makes l count from now on. Balances are kept.
func (acc *account) apply(l *plans.Limits, now int64) {
	old := acc.limits
	if old == nil || acc.touched < now {
		acc.touched = now
	}
	if old == l {
		return
	}
	acc.limits = l
	for i := range acc.modes {
		acc.modes[i] = l.Mode(limitNames[i])
		acc.live[i] = acc.modes[i] != plans.Off
	}
	acc.modes[limitBilling], acc.live[limitBilling] = plans.Enforce, true
	acc.modes[limitRefusals], acc.live[limitRefusals] = plans.Enforce, true
	set := func(i limit, isSet bool) { acc.live[i] = acc.live[i] && isSet }
	set(limitRequests, l.RequestsPerSecond != nil)
	set(limitMessages, l.MessagesPerSecond != nil)
	set(limitQueues, l.MaxQueues != nil)
	set(limitPartitions, l.MaxPartitionsPerQueue != nil)
	set(limitPayload, l.MaxPayloadBytes != nil)
	set(limitBatch, l.MaxBatchItems != nil)
	set(limitRetention, l.MaxRetentionSeconds != nil)
	set(limitParked, l.MaxParkedPops != nil)
	set(limitStorage, l.MaxRetainedBytes != nil)
	set(limitMonth, l.MonthlyMessages != nil)

	acc.configure(now)
	if !acc.live[limitQueues] && !acc.live[limitPartitions] {
		acc.names.forget() // what is not counted is not known when a cap comes back
	} else if !acc.live[limitPartitions] {
		acc.names.partitionsKnown = false
	}
	if old == nil || !same(old.MaxRetainedBytes, l.MaxRetainedBytes) {
		acc.storage.judge(l.MaxRetainedBytes, true)
	}
}

// configure gives both buckets the plan's rates, or this gateway's part of them.
func (acc *account) configure(now int64) {
	l := acc.limits
	if acc.live[limitRequests] {
		acc.configureBucket(&acc.requests, l.RequestsPerSecond, l.RequestsBurst, now)
		acc.requests.forgive(-acc.requests.burst) // a smaller burst: acks must not wait for the old one's debt
	}
	if acc.live[limitMessages] {
		acc.configureBucket(&acc.messages, l.MessagesPerSecond, l.MessagesBurst, now)
		acc.messages.forgive(acc.messages.debtFloor())
	}
}

func (acc *account) configureBucket(b *bucket, perSecond, burst *float64, now int64) {
	rate, whole := rateAndBurst(perSecond, burst)
	b.configure(acc.part(rate), acc.part(whole), now)
	b.largest = max(b.burst, whole)
}

// part is this gateway's part of a rate or burst; some never becomes nothing, since nothing is a block.
func (acc *account) part(whole int64) int64 {
	if whole == 0 {
		return 0
	}
	return max(1, whole/acc.parts)
}

// split shares the plan out among so many gateways, and this one's part of what is left; 1 takes it back, on the guess
// that the others have as much.
func (acc *account) split(parts, now int64) {
	if parts == acc.parts {
		return
	}
	acc.refill(now)
	for _, b := range []*bucket{&acc.requests, &acc.messages} {
		b.level = floorDiv(b.level*acc.parts, parts)
	}
	if acc.parts = parts; acc.limits != nil {
		acc.configure(now)
	}
}

// floorDiv rounds down, also below zero.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// rateAndBurst is a rate of the plan in millionths; an absent burst is twice the rate.
func rateAndBurst(perSecond, burst *float64) (rate, whole int64) {
	if burst == nil {
		return micro(*perSecond), micro(2 * *perSecond)
	}
	return micro(*perSecond), micro(*burst)
}

func same(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }

// countsNames reports whether the plan has a cap on queues or partitions.
func (acc *account) countsNames() bool { return acc.live[limitQueues] || acc.live[limitPartitions] }

// refill brings both buckets up to now.
func (acc *account) refill(now int64) {
	acc.requests.refill(now)
	acc.messages.refill(now)
}

// idle reports that nothing but the names is worth keeping: buckets full, promises kept, nothing open or counted.
func (acc *account) idle(now time.Time, t int64) bool {
	acc.refill(t)
	return acc.open == 0 && acc.requests.full() && acc.messages.full() && acc.bodies.full(now)
}

// blank reports that an idle account would be the same if it were made anew.
func (acc *account) blank(now time.Time) bool {
	return acc.storage.total() == 0 && (acc.month.used == 0 || now.Unix() >= acc.month.end)
}
