package broker

import (
	"container/list"
	"sync"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
)

// segmentCache keeps opened segments, so that several groups, or a redelivery, inflate and check the same bytes once.
// A segment is immutable and ids of partitions are never used again, so nothing in it is ever wrong.
type segmentCache struct {
	limit int64

	mu    sync.Mutex // guards all below
	bytes int64
	items map[segmentKey]*list.Element
	order list.List // of *cachedSegment, the one used last in front
}

type segmentKey struct{ partition, base int64 }

type cachedSegment struct {
	key    segmentKey
	reader *segment.Reader
	bytes  int64
}

func newSegmentCache(limit int64) *segmentCache {
	return &segmentCache{limit: limit, items: map[segmentKey]*list.Element{}}
}

// cached returns a reader that is held already, or nil.
func (c *segmentCache) cached(k segmentKey) *segment.Reader {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.items[k]
	if e == nil {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(*cachedSegment).reader
}

// open returns a reader of a stored segment. Two callers may open the same one at once; the later stays.
func (c *segmentCache) open(partition int64, s *store.StoredSegment) (*segment.Reader, error) {
	k := segmentKey{partition, s.Base}
	c.mu.Lock()
	if e := c.items[k]; e != nil {
		c.order.MoveToFront(e)
		c.mu.Unlock()
		return e.Value.(*cachedSegment).reader, nil
	}
	c.mu.Unlock()
	r, err := segment.Open(s.Blob)
	if err != nil {
		return nil, err
	}
	size := readerBytes(r)
	if size > c.limit/8 {
		return r, nil // it would push out too many others
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.items[k] != nil {
		return r, nil
	}
	c.items[k] = c.order.PushFront(&cachedSegment{k, r, size})
	c.bytes += size
	for c.bytes > c.limit {
		oldest := c.order.Back()
		gone := c.order.Remove(oldest).(*cachedSegment)
		delete(c.items, gone.key)
		c.bytes -= gone.bytes
	}
	return r, nil
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
