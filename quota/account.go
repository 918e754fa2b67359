package quota

import (
	"hash/maphash"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
)

// limit is the index of a limit in tables; limitNames has its public name.
type limit uint8

const (
	limitKeyRequests limit = iota // rates come first, as they are asked: a key's before its cluster's
	limitRequests
	limitKeyMessages
	limitMessages
	limitDelivery
	limitQueues
	limitPartitions
	limitBody
	limitPayload
	limitBatch
	limitRetention
	limitParked
	limitStorage
	limitMonth
	limitLife     // what a state of the life cycle holds back: hard, in no plan
	limitRefusals // the budget of refusals after a body was read: ours, in no plan
	limitCount

	limitRates = limitDelivery + 1 // so many limits are rates, each with a bucket
)

// Names of the limits that stand in no plan.
const (
	nameBilling  = "billing"
	nameRefusals = "refusals"
)

var limitNames = [limitCount]string{
	plans.LimitKeyRequests, plans.LimitRequests, plans.LimitKeyMessages, plans.LimitMessages, plans.LimitDelivery,
	plans.LimitQueues, plans.LimitPartitions, plans.LimitBody, plans.LimitPayload,
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
	delivery bucket
	keys     map[uuid.UUID]*keyAccount // those with limits of their own, by id
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
	acc.modes[limitLife], acc.live[limitLife] = plans.Enforce, true
	acc.modes[limitRefusals], acc.live[limitRefusals] = plans.Enforce, true
	set := func(i limit, isSet bool) { acc.live[i] = acc.live[i] && isSet }
	set(limitRequests, l.RequestsPerSecond != nil)
	set(limitMessages, l.MessagesPerSecond != nil)
	set(limitDelivery, l.DeliveryPerSecond != nil)
	set(limitQueues, l.MaxQueues != nil)
	set(limitPartitions, l.MaxPartitionsPerQueue != nil)
	set(limitBody, l.MaxBodyBytes != nil)
	set(limitPayload, l.MaxPayloadBytes != nil)
	set(limitBatch, l.MaxBatchItems != nil)
	set(limitRetention, l.MaxRetentionSeconds != nil)
	set(limitParked, l.MaxParkedPops != nil)
	set(limitStorage, l.MaxRetainedBytes != nil)
	set(limitMonth, l.MonthlyMessages != nil)

	acc.judgeKeys()

	acc.configure(now)
	if !acc.live[limitQueues] && !acc.live[limitPartitions] {
		acc.names.forget() // what is not counted is not known when a cap comes back
	} else if !acc.live[limitPartitions] {
		acc.names.partitionsKnown = false
	}
	if old != nil && old.Zone != l.Zone {
		acc.month.move()
	}
	if old == nil || !same(old.MaxRetainedBytes, l.MaxRetainedBytes) {
		acc.storage.judge(l.MaxRetainedBytes, true)
	}
}

// configure gives the buckets the plan's rates, or this gateway's part of them.
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
	if acc.live[limitDelivery] {
		acc.configureBucket(&acc.delivery, l.DeliveryPerSecond, l.DeliveryBurst, now)
		acc.delivery.forgive(acc.delivery.debtFloor())
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
	was := acc.parts
	acc.parts = parts
	share := func(b *bucket) {
		b.refill(now)
		b.level = floorDiv(b.level*was, parts)
	}
	share(&acc.requests)
	share(&acc.messages)
	share(&acc.delivery)
	if acc.limits != nil {
		acc.configure(now)
	}
	for _, k := range acc.keys {
		share(&k.requests)
		share(&k.messages)
		acc.configureKey(k, now)
	}
}

// debit charges n delivered to the rate of deliveries, or to that of messages when the plan has none, down to the floor
// of its debt. It returns which of the two, and how much it was charged: nothing when that is not limited.
func (acc *account) debit(n, now int64) (limit, int64) {
	i, b := limitDelivery, &acc.delivery
	if acc.limits.DeliveryPerSecond == nil {
		i, b = limitMessages, &acc.messages
	}
	if n == 0 || !acc.live[i] {
		return i, 0
	}
	b.refill(now)
	b.debit(n, b.debtFloor())
	return i, n
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

// refill brings the cluster's buckets up to now.
func (acc *account) refill(now int64) {
	acc.requests.refill(now)
	acc.messages.refill(now)
	acc.delivery.refill(now)
}

// idle reports that nothing but the names is worth keeping: buckets full, promises kept, nothing open or counted.
func (acc *account) idle(now time.Time, t int64) bool {
	acc.refill(t)
	for _, k := range acc.keys {
		if !k.idle(t) {
			return false
		}
	}
	return acc.open == 0 && acc.requests.full() && acc.messages.full() && acc.delivery.full() && acc.bodies.full(now)
}

// blank reports that an idle account would be the same if it were made anew; kept says that somebody keeps months.
func (acc *account) blank(now time.Time, kept bool) bool {
	counted := acc.month.own > 0 && now.Unix() < acc.month.end || acc.month.past.own > acc.month.past.saved
	if kept && acc.live[limitMonth] { // the control database has what was counted
		counted = acc.month.unsaved()
	}
	return !counted && (acc.storage.mirrored && acc.storage.untold == 0 || acc.storage.total(1) == 0)
}
