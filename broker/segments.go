package broker

import (
	"container/list"
	"sync"
	"time"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
)

// segmentCache keeps opened segments, so that several groups, or a redelivery, inflate and check the same bytes once.
// A segment is immutable and ids of partitions are never used again in one life of the database. In another one both may
// be another's, so the life is part of the key: what a failover has lost is not found, however late anybody notices.
type segmentCache struct {
	limit int64

	mu    sync.Mutex // guards all below
	bytes int64
	items map[segmentKey]*list.Element
	order list.List // of *cachedSegment, the one used last in front
}

type segmentKey struct {
	life            store.Life
	partition, base int64
}

type cachedSegment struct {
	key    segmentKey
	reader *segment.Reader
	bytes  int64
	used   time.Time
}

func newSegmentCache(limit int64) *segmentCache {
	return &segmentCache{limit: max(limit, 0), items: map[segmentKey]*list.Element{}}
}

// cached returns a reader that is held already, or nil.
func (c *segmentCache) cached(k segmentKey) *segment.Reader {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.items[k]
	if e == nil {
		return nil
	}
	return c.useLocked(e)
}

func (c *segmentCache) useLocked(e *list.Element) *segment.Reader {
	c.order.MoveToFront(e)
	s := e.Value.(*cachedSegment)
	s.used = time.Now()
	return s.reader
}

// sweep drops what has not been used since before.
func (c *segmentCache) sweep(before time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.order.Back(); e != nil && e.Value.(*cachedSegment).used.Before(before); e = c.order.Back() {
		c.dropLocked(e)
	}
}

func (c *segmentCache) dropLocked(e *list.Element) {
	gone := c.order.Remove(e).(*cachedSegment)
	delete(c.items, gone.key)
	c.bytes -= gone.bytes
}

// open returns a reader of a stored segment. Two callers may open the same one at once; the earlier stays.
func (c *segmentCache) open(partition int64, s *store.StoredSegment) (*segment.Reader, error) {
	k := segmentKey{s.Life, partition, s.Base}
	if r := c.cached(k); r != nil {
		return r, nil
	}
	r, err := segment.Open(s.Blob)
	if err != nil {
		return nil, err
	}
	size := readerBytes(r)
	if size > c.limit/8 || s.Life == 0 {
		return r, nil // it would push out too many others, or is of who knows when
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.items[k] != nil {
		return r, nil
	}
	c.items[k] = c.order.PushFront(&cachedSegment{k, r, size, time.Now()})
	c.bytes += size
	for c.bytes > c.limit {
		c.dropLocked(c.order.Back())
	}
	return r, nil
}

// clear drops everything.
func (c *segmentCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.items)
	c.order.Init()
	c.bytes = 0
}

// readerBytes estimates what a reader holds: its frames and the bookkeeping of the cache.
func readerBytes(r *segment.Reader) int64 {
	n := int64(256)
	for i := range r.Len() {
		f := r.Frame(i)
		n += int64(len(f.Payload) + len(f.TransactionID) + len(f.ProducerSub) + len(f.TraceID) + 16)
	}
	return n
}
