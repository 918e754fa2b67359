package fuse

import "time"

// cache holds the entries of partitions by use, the least recently used first to go. Fuser.mu guards it and the
// links, pin and charge of its entries; the content of a pinned entry belongs to the lane that pinned it.
type cache struct {
	limit     int64
	bytes     int64
	entries   map[int64]*entry
	root      entry // ring of all entries: root.next is the most recently used
	evictions uint64
}

const (
	// entryBytes is what an entry weighs beside its slices: the struct and its place in the map.
	entryBytes = 200
	// An entry used this recently stays: dropping it would be followed by reading it again.
	keepFor = 5 * time.Second
	// A partition that found no room is not read again before this.
	noRoomPause = 30 * time.Second
	// A partition whose read failed is pushed with whole probes until then.
	readPause = time.Second
)

func (c *cache) init(limit int64) {
	c.limit = limit
	c.entries = make(map[int64]*entry)
	c.root.next, c.root.prev = &c.root, &c.root
}

// attach gives the lane the entry of its partition, pinned, if it has a dedup window and needs one.
func (c *cache) attach(l *lane) {
	if l.entry != nil {
		if !l.entry.doomed {
			return
		}
		l.entry = nil // a forgotten entry may not vouch again
	}
	if l.part.DedupWindow <= 0 || c.limit < 0 {
		return
	}
	e := c.entries[l.part.ID]
	if e == nil {
		e = &entry{partition: l.part.ID, charge: entryBytes}
		c.entries[e.partition] = e
		c.bytes += e.charge
		e.linkBefore(c.root.next)
	}
	e.pinned = true
	l.entry = e
}

// release unpins an entry whose lane retires and makes it the most recently used.
func (c *cache) release(e *entry, now time.Time) {
	e.pinned = false
	if e.doomed {
		return
	}
	if !e.complete && !now.Before(e.notBefore) {
		c.drop(e) // it knows nothing
		return
	}
	c.account(e, now)
	e.usedAt = now
	e.unlink()
	e.linkBefore(c.root.next)
	c.expire(now)
}

// account charges what the entry has grown by and makes room for it. When there is none the entry is emptied, and its
// partition not read again for a while. The caller holds the entry. It reports whether the entry was spared.
func (c *cache) account(e *entry, now time.Time) bool {
	if e.doomed {
		return true
	}
	c.charge(e)
	if c.makeRoom(c.limit, now) {
		return true
	}
	e.reset(0)
	e.notBefore = now.Add(noRoomPause)
	c.charge(e)
	c.evictions++
	return false
}

func (c *cache) charge(e *entry) {
	charge := entryBytes + e.bytes
	c.bytes += charge - e.charge
	e.charge = charge
}

// makeRoom drops the least recently used entries until at most limit bytes are charged.
func (c *cache) makeRoom(limit int64, now time.Time) bool {
	for e := c.root.prev; c.bytes > limit && e != &c.root; {
		older := e.prev
		if !e.pinned {
			if now.Sub(e.usedAt) < keepFor {
				break
			}
			c.drop(e)
			c.evictions++
		}
		e = older
	}
	return c.bytes <= limit
}

// expire drops the oldest entries once all they know has left its window. Two looks per release outpace the one entry
// that a release can add.
func (c *cache) expire(now time.Time) {
	for range 2 {
		e := c.root.prev
		if e == &c.root || e.pinned || now.Sub(e.usedAt) < e.window+skew {
			return
		}
		c.drop(e)
	}
}

func (c *cache) drop(e *entry) {
	e.unlink()
	delete(c.entries, e.partition)
	c.bytes -= e.charge
	e.doomed = true
}

func (c *cache) forget(partition int64) {
	if e := c.entries[partition]; e != nil {
		c.drop(e)
	}
}

func (c *cache) clear() {
	for _, e := range c.entries {
		c.drop(e)
	}
}

func (e *entry) linkBefore(next *entry) {
	e.next, e.prev = next, next.prev
	e.prev.next, e.next.prev = e, e
}

func (e *entry) unlink() { e.prev.next, e.next.prev = e.next, e.prev }
