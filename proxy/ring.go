package proxy

import (
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

// need is what a broker must be able to do for a request.
type need uint8

const (
	needLive  need = iota // pushes: the process is alive and its spool accepts them
	needReady             // everything else: its database answers
)

// homeKey is what rendezvous hashing weighs the brokers by: the tenant, and the share of a cluster that is spread.
// The first share is where the whole tenant was before it was spread.
func homeKey(tenant uuid.UUID, share uint64) uint64 {
	const golden = 0x9e3779b97f4a7c15
	return xxhash.Sum64(tenant[:]) + share*golden
}

// home returns the key by which the exchange finds its broker (wire.Way).
func (ex *exchange) home() uint64 {
	if k := ex.cluster.Spread; k > 1 && ex.shared {
		return homeKey(ex.cluster.BrokerTenant, uint64(ex.share)%uint64(k))
	}
	return homeKey(ex.cluster.BrokerTenant, 0)
}

// aim gives a request of a spread cluster its share, unless it has one: the first name decides.
func (ex *exchange) aim(s wire.Share) {
	if !ex.shared {
		ex.share, ex.shared = s, true
	}
}

func (ex *exchange) spread() bool { return ex.cluster.Spread > 1 }

// aimByHead takes the share from the path and the query of a request, as far as they say it.
func (ex *exchange) aimByHead() {
	if !ex.spread() {
		return
	}
	r, p := ex.route, &ex.params
	switch r.Way {
	case wire.ByQueue:
		ex.aimAtQueue(r.Param(p, "queue"))
	case wire.ByScope:
		ex.aim(wire.ScopeShare(ex.pop.Namespace, ex.pop.Task))
	case wire.ByPartition:
		ex.aimAtID(r.Param(p, "partition"))
	case wire.ByLease:
		ex.aimAtID(r.Param(p, "lease"))
	case wire.ByTenant, wire.BySettled:
	}
}

func (ex *exchange) aimAtQueue(queue string) {
	if queue != "" && ex.spread() {
		ex.aim(wire.QueueShare(queue))
	}
}

func (ex *exchange) aimAtID(id string) {
	if s, ok := wire.ShareOfID(id); ok {
		ex.aim(s)
	}
}

// aimAtAck follows an acknowledgement to the broker that granted its lease and remembers what it delivered, or to that
// of its queue.
func (ex *exchange) aimAtAck(it *wire.AckItem) {
	if !ex.spread() {
		return
	}
	ex.aimAtID(it.LeaseID)
	ex.aimAtID(it.PartitionID)
}

// tried are the brokers that a request was offered to in vain.
type tried []*broker

func (t tried) has(b *broker) bool { return slices.Contains(t, b) }

// pick returns the able broker that rendezvous hashing gives the key, leaving out those that were tried; nil when there
// is none. All requests of a key meet in one broker as long as it is able, and only its keys move when it is not. A
// broker that came back lately gets its keys one after the other, each at a moment of its own.
func (p *pool) pick(key uint64, n need, not tried) *broker {
	var best, warming *broker
	var bestScore, warmingScore uint64
	var now time.Time
	for _, b := range p.brokers() {
		if not.has(b) || !b.able(n) {
			continue
		}
		s := mix(key ^ b.seed)
		if b.risen.Load() != 0 {
			if now.IsZero() {
				now = time.Now()
			}
			if !b.admits(s, now) {
				if warming == nil || s > warmingScore {
					warming, warmingScore = b, s
				}
				continue
			}
		}
		if best == nil || s > bestScore {
			best, bestScore = b, s
		}
	}
	if best == nil {
		return warming // there is nobody to spare it
	}
	return best
}

// owner returns where a push goes when no broker is able: a live one if there is any, else that which the key would
// have if all were able. The probes may lag behind a broker that has just come back.
func (p *pool) owner(key uint64) *broker {
	var best *broker
	var bestScore uint64
	bestLives := false
	for _, b := range p.brokers() {
		s, lives := mix(key^b.seed), b.is(isLive)
		if best == nil || lives && !bestLives || lives == bestLives && s > bestScore {
			best, bestScore, bestLives = b, s, lives
		}
	}
	return best
}

// mix spreads the bits of a key that was combined with a broker's seed (the finaliser of SplitMix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
