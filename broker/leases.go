package broker

import (
	"container/list"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/store"
)

// leaseRegistry remembers what this broker delivered under which lease, so that an ack can name offsets instead of
// having them searched, and an extension the partitions. It is never needed for correctness: the database decides on
// every lease, and a forgotten one costs a search.
type leaseRegistry struct {
	limit int64

	mu    sync.Mutex // guards all below and the leases
	bytes int64
	byID  map[string]*list.Element // by lease id as it stands on the wire
	order list.List                // of *lease, the one granted last in front
}

// lease is what one pop delivered.
type lease struct {
	id      string
	key     park.Key
	parts   []delivered
	expires time.Time // of this memory, not of the lease
	bytes   int64
}

// delivered is the contiguous span of one partition under a lease.
type delivered struct {
	partition int64
	uid       uuid.UUID
	after     int64
	hashes    []store.Hash // of the offsets after+1, after+2, …; empty after a gap
	gap       bool
}

// add appends the identity of the message at offset. Retention may have left a gap below it; offsets then do not
// follow from places, and the span is not remembered.
func (d *delivered) add(offset int64, h store.Hash) {
	if d.gap = d.gap || offset != d.after+1+int64(len(d.hashes)); d.gap {
		d.hashes = nil
		return
	}
	d.hashes = append(d.hashes, h)
}

// leaseGrace is how much longer than the lease itself its memory is kept: for extensions and late acks.
const leaseGrace = 10 * time.Second

func newLeaseRegistry(limit int64) *leaseRegistry {
	return &leaseRegistry{limit: max(limit, 0), byID: map[string]*list.Element{}}
}

// grant remembers a lease.
func (r *leaseRegistry) grant(worker uuid.UUID, key park.Key, d time.Duration, parts []delivered) {
	l := &lease{id: worker.String(), key: key, parts: parts, expires: time.Now().Add(d + leaseGrace), bytes: 256}
	for i := range parts {
		l.bytes += 96 + int64(len(parts[i].hashes))*16
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[l.id] = r.order.PushFront(l)
	r.bytes += l.bytes
	for r.bytes > r.limit {
		r.dropLocked(r.order.Back())
	}
}

// clear forgets every lease.
func (r *leaseRegistry) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.byID)
	r.order.Init()
	r.bytes = 0
}

func (r *leaseRegistry) dropLocked(e *list.Element) {
	l := r.order.Remove(e).(*lease)
	delete(r.byID, l.id)
	r.bytes -= l.bytes
}

// released forgets a partition of a lease, and the lease with its last one.
func (r *leaseRegistry) released(id string, partition int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID[id]
	if e == nil {
		return
	}
	l := e.Value.(*lease)
	for i := range l.parts {
		if l.parts[i].partition == partition {
			// Readers outside the lock hold the old slice: make a new one.
			l.parts = append(l.parts[:i:i], l.parts[i+1:]...)
			break
		}
	}
	if len(l.parts) == 0 {
		r.dropLocked(e)
	}
}

// forget drops what is remembered of a group's leases on a queue, of every group's when it is "".
func (r *leaseRegistry) forget(k park.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e := r.order.Back(); e != nil; {
		prev := e.Prev()
		if l := e.Value.(*lease); l.key.Tenant == k.Tenant && l.key.Queue == k.Queue && (k.Group == "" || l.key.Group == k.Group) {
			r.dropLocked(e)
		}
		e = prev
	}
}

// held returns what was delivered under a lease of the tenant, nil when it is not remembered.
func (r *leaseRegistry) held(id string, tenant uuid.UUID) (park.Key, []delivered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID[id]
	if e == nil {
		return park.Key{}, nil
	}
	l := e.Value.(*lease)
	if l.key.Tenant != tenant {
		return park.Key{}, nil
	}
	return l.key, l.parts
}

// extended keeps the memory of a lease for as long as the lease now lives.
func (r *leaseRegistry) extended(id string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.byID[id]; e != nil {
		e.Value.(*lease).expires = until.Add(leaseGrace)
	}
}

// sweep forgets leases that are over.
func (r *leaseRegistry) sweep(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e := r.order.Back(); e != nil; {
		prev := e.Prev()
		if now.After(e.Value.(*lease).expires) {
			r.dropLocked(e)
		}
		e = prev
	}
}

// fewItems is up to where comparing one by one beats building a map.
const fewItems = 8

// locate fills the offsets of acknowledged messages from what the partition delivered. A message that was delivered
// twice under the lease stays unresolved: the database knows which of the two the cursor has passed.
func (d *delivered) locate(items []store.AckItem) {
	if len(items) <= fewItems {
		for i := range items {
			at := -1
			for k := range d.hashes {
				if d.hashes[k] != items[i].Hash {
					continue
				}
				if at >= 0 {
					at = -1
					break
				}
				at = k
			}
			if at >= 0 {
				items[i].Offset = d.after + 1 + int64(at)
			}
		}
		return
	}
	where := make(map[store.Hash]int64, len(d.hashes))
	for k, h := range d.hashes {
		if _, twice := where[h]; twice {
			where[h] = -1
		} else {
			where[h] = d.after + 1 + int64(k)
		}
	}
	for i := range items {
		if at, ok := where[items[i].Hash]; ok && at >= 0 {
			items[i].Offset = at
		}
	}
}
