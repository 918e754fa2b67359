package quota

import (
	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
)

// keyAccount is what one API key with limits of its own has used and may still use, under its cluster's plan, together with
// the keys it was rotated from and to: limits are of who holds them. It lives in the account of its cluster and is guarded by
// the same mutex, so that both are decided together.
type keyAccount struct {
	id       uuid.UUID        // plans.Key.LimitedAs
	limits   *plans.KeyLimits // as applied last
	requests bucket           // set up by the first such limit
	messages bucket
	open     int   // admissions not yet ended
	touched  int64 // on the gate's clock

	// In a fleet.
	requestsSide, messagesSide side
	seen                       int64 // when Redis said what the buckets mirror
	fresh                      bool  // it has said so
}

// taken is what an admission took from its key.
type taken struct {
	key                *keyAccount
	requests, messages int64 // millionths of a token
}

// giveBack returns what was taken.
func (t *taken) giveBack(now int64) {
	k := t.key
	k.requests.refill(now)
	k.messages.refill(now)
	k.requests.give(t.requests)
	k.messages.give(t.messages)
}

// bucket returns the bucket of a key's rate; nil when the key does not have that limit. k may be nil.
func (k *keyAccount) bucket(i limit) *bucket {
	switch {
	case k == nil:
	case i == limitKeyRequests && k.limits.RequestsPerSecond != nil:
		return &k.requests
	case i == limitKeyMessages && k.limits.MessagesPerSecond != nil:
		return &k.messages
	}
	return nil
}

// side returns what is to be told of a key's rate; nil when there is no key.
func (k *keyAccount) side(i limit) *side {
	switch {
	case k == nil:
		return nil
	case i == limitKeyRequests:
		return &k.requestsSide
	}
	return &k.messagesSide
}

// key returns the account of a key and makes its limits count; nil when the key has none.
func (acc *account) key(key *plans.Key, now int64) *keyAccount {
	if key == nil || key.Limits == nil {
		return nil
	}
	k := acc.keys[key.LimitedAs]
	if k == nil {
		if acc.keys == nil {
			acc.keys = make(map[uuid.UUID]*keyAccount)
		}
		k = &keyAccount{id: key.LimitedAs, touched: now}
		acc.keys[key.LimitedAs] = k
		acc.judgeKeys()
	}
	k.touched = max(k.touched, now)
	if k.limits != key.Limits {
		k.limits = key.Limits
		acc.configureKey(k, now)
	}
	return k
}

// judgeKeys says whether limits of keys are looked at: not while no key has any.
func (acc *account) judgeKeys() {
	for _, i := range [...]limit{limitKeyRequests, limitKeyMessages} {
		acc.live[i] = len(acc.keys) > 0 && acc.modes[i] != plans.Off
	}
}

// configureKey gives a key's buckets its rates, or this gateway's part of them. Balances are kept.
func (acc *account) configureKey(k *keyAccount, now int64) {
	l := k.limits
	if l.RequestsPerSecond != nil {
		acc.configureBucket(&k.requests, l.RequestsPerSecond, l.RequestsBurst, now)
		k.requests.forgive(-k.requests.burst)
	}
	if l.MessagesPerSecond != nil {
		acc.configureBucket(&k.messages, l.MessagesPerSecond, l.MessagesBurst, now)
		k.messages.forgive(k.messages.debtFloor())
	}
}

// idle reports that nothing of the key is worth keeping.
func (k *keyAccount) idle(now int64) bool {
	k.requests.refill(now)
	k.messages.refill(now)
	return k.open == 0 && k.requests.full() && k.messages.full()
}

// forgetKeys drops the keys that have been silent for a while and would be the same if they came anew.
func (acc *account) forgetKeys(now int64) {
	for id, k := range acc.keys {
		if now-k.touched >= idleAfter.Nanoseconds() && k.idle(now) {
			delete(acc.keys, id)
		}
	}
	acc.judgeKeys()
}
