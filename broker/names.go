package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/small"
)

// names remembers what the names of tenants resolve to: queues with their options and partitions with their ids. Ids
// are never used again and a deleted one is reported missing by the statement that meets it, so only options can be
// stale, for at most refreshAge after the change feed has told of a change.
type names struct {
	version atomic.Int64 // configuration version of the database, from the change feed

	mu         sync.RWMutex // guards all below
	queues     map[queueKey]*knownQueue
	partitions int
}

type queueKey struct {
	tenant uuid.UUID
	name   string
}

type knownQueue struct {
	queue      *store.Queue // nil: does not exist, or was never looked up (asked zero)
	asked      time.Time
	version    int64 // of names when queue was read
	partitions small.Map[string, knownPartition]
	latest     queueFacts // as the latest of them to be looked up told
}

type knownPartition struct {
	store.Partition
	asked   time.Time
	version int64 // of names when the partition was read
}

// queueFacts are what a look-up of a partition tells of its queue.
type queueFacts struct {
	id          int64
	dedupWindow time.Duration
	encrypted   bool
	asked       time.Time
	version     int64
}

const (
	// refreshAge is how long an entry is used after the configuration version has moved: it bounds the look-ups of a
	// broker while somebody creates queues without pause.
	refreshAge = 2 * time.Second
	// maxKnownPartitions bounds the cache, which starts anew when it is full: about 200 bytes each.
	maxKnownPartitions = 500_000
)

func newNames() *names { return &names{queues: map[queueKey]*knownQueue{}} }

func (n *names) fresh(asked time.Time, version int64) bool {
	return version == n.version.Load() || time.Since(asked) < refreshAge
}

// queue returns the queue, from memory when it may, nil when there is none.
func (b *Broker) queue(tenant uuid.UUID, name string) (*store.Queue, error) {
	n, k := b.names, queueKey{tenant, name}
	n.mu.RLock()
	known := n.queues[k]
	hit := known != nil && !known.asked.IsZero() && n.fresh(known.asked, known.version)
	var q *store.Queue
	if hit {
		q = known.queue
	}
	n.mu.RUnlock()
	if hit {
		return q, nil
	}
	version, asked := n.version.Load(), time.Now()
	ctx, cancel := b.database()
	defer cancel()
	q, err := b.db.LookupQueue(ctx, tenant, name)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	known = n.knownLocked(k)
	known.queue, known.asked, known.version = q, asked, version
	return q, nil
}

func (n *names) knownLocked(k queueKey) *knownQueue {
	known := n.queues[k]
	if known == nil {
		if n.partitions >= maxKnownPartitions {
			clear(n.queues)
			n.partitions = 0
		}
		known = &knownQueue{}
		n.queues[k] = known
		n.partitions++ // an entry of its own, so that names of absent queues are bounded too
	}
	return known
}

// exists reports whether the queue is known to exist.
func (n *names) exists(tenant uuid.UUID, queue string) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	known := n.queues[queueKey{tenant, queue}]
	return known != nil && (known.queue != nil || known.partitions.Len() > 0)
}

// partition returns a partition from memory.
func (n *names) partition(tenant uuid.UUID, queue, name string) (store.Partition, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	known := n.queues[queueKey{tenant, queue}]
	if known == nil {
		return store.Partition{}, false
	}
	p, ok := known.partitions.Get(name)
	return p.Partition, ok && n.fresh(p.asked, p.version)
}

// target returns a partition to push to from memory. A push that meets a deleted one is told so, so only the options
// of the queue must be fresh, and the latest look-up of any of its partitions tells them: a change of the
// configuration costs a look-up per queue, however many partitions are written to.
func (n *names) target(tenant uuid.UUID, queue, name string) (store.Partition, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	known := n.queues[queueKey{tenant, queue}]
	if known == nil {
		return store.Partition{}, false
	}
	p, ok := known.partitions.Get(name)
	p.DedupWindow, p.Encrypted = known.latest.dedupWindow, known.latest.encrypted
	return p.Partition, ok && n.fresh(known.latest.asked, known.latest.version)
}

// learn remembers resolved partitions, all read when the configuration version was version.
func (n *names) learn(version int64, ps []store.Partition) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range ps {
		if p.ID == 0 {
			continue
		}
		known := n.knownLocked(queueKey{p.Tenant, p.Queue})
		if known.queue == nil {
			known.asked = time.Time{} // it exists after all
		}
		if known.latest.id != p.QueueID {
			// Another queue of the same name: nothing of the one before holds.
			n.partitions -= known.partitions.Len()
			known.partitions = small.Map[string, knownPartition]{}
		}
		known.latest = queueFacts{p.QueueID, p.DedupWindow, p.Encrypted, now, version}
		if known.partitions.Put(p.Name, knownPartition{p, now, version}) {
			n.partitions++
		}
	}
}

// forget drops what is known of a queue.
func (n *names) forget(tenant uuid.UUID, queue string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := queueKey{tenant, queue}
	if known := n.queues[k]; known != nil {
		n.partitions -= known.partitions.Len() + 1
		delete(n.queues, k)
	}
}

// clear forgets everything.
func (n *names) clear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.queues)
	n.partitions = 0
}

// empty reports that nothing is remembered.
func (n *names) empty() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.queues) == 0
}
