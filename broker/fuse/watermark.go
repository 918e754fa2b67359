package fuse

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pg"
)

// entry is what the cache knows of one partition: while complete, every transaction id stored at an offset up to
// verified and not older than the window. It may know more, never less; so what it has not seen is new as far as
// verified, and what it has seen was seen at find's offset or not before it.
//
// Ids arrive in the order of their offsets and stand in slices of time, each an eighth of the window, dropped whole
// once its newest id has left the window. A sparse partition fills one slice over the whole window instead, so it never
// holds more than a few small arrays. Ages are told by created_at, which never falls inside a partition, so our own
// clock plays no part in what is dropped.
type entry struct {
	partition int64
	window    time.Duration
	complete  bool
	stale     bool    // another broker has written behind verified: top up before the next push
	verified  int64   // the watermark
	life      pg.Life // of the database that all this was learned of
	top       int64   // the highest offset added
	slices    []slice
	bytes     int64     // of the slices
	notBefore time.Time // no sidecar read before this

	// Guarded by Fuser.mu (see cache).
	pinned     bool // a lane holds it
	doomed     bool // it has left the cache: it may not vouch for another push
	charge     int64
	usedAt     time.Time
	prev, next *entry
}

const (
	sliceParts = 8
	// skew is how much longer than the window ids are kept.
	skew = 5 * time.Second
	// sliceBytes is what a slice weighs beside its arrays.
	sliceBytes = 80
)

// reset makes the entry an empty one that is about to be filled for window.
func (e *entry) reset(window time.Duration) {
	e.window, e.complete, e.stale, e.life = window, false, false, 0
	e.verified, e.top = -1, -1
	e.slices, e.bytes = nil, 0
}

// vouches reports whether verified may be used for a probe of that window.
func (e *entry) vouches(window time.Duration) bool {
	return e != nil && e.complete && window <= e.window
}

// mark returns the watermark of a complete entry.
func (e *entry) mark() store.Watermark { return store.Watermark{Offset: e.verified, Life: e.life} }

// learn takes what was stored: n ids from offset base on, in that life of the database. It reports whether the database
// is another one than before, or has less than it once had. A nil entry learns nothing.
func (e *entry) learn(window time.Duration, life pg.Life, base int64, n int, createdAt time.Time, hash func(k int) *store.Hash) (rewound bool) {
	switch {
	case e == nil:
		return false
	case e.complete && (base <= e.verified || life != e.life):
		return true
	case e.complete && base > e.verified+1:
		e.stale = true
		return false
	case !e.complete && base != 0:
		return false
	case !e.complete: // the first message ever: nothing else is there to be known
		e.reset(window)
		e.complete, e.life = true, life
	}
	for k := range n {
		e.add(hash(k), base+int64(k), createdAt)
	}
	e.verified = base + int64(n) - 1
	return false
}

// add records the id stored at offset. Offsets at or below top are known and skipped.
func (e *entry) add(h *store.Hash, offset int64, createdAt time.Time) {
	if offset <= e.top {
		return
	}
	e.top = offset
	at := createdAt.UnixMilli()
	s := e.current(at, offset)
	before := s.table.bytes()
	s.newest = max(s.newest, at)
	s.table.add(fingerprint(h), uint32(offset-s.base))
	e.bytes += s.table.bytes() - before
}

// current returns the slice that takes an id of that time, sealing the one before and dropping those that have left
// the window.
func (e *entry) current(at, offset int64) *slice {
	if n := len(e.slices); n > 0 {
		s := &e.slices[n-1]
		age, window := at-s.start, e.window.Milliseconds()
		full := age >= window/sliceParts && s.table.n >= denseMax
		if !full && age < window && offset-s.base <= math.MaxUint32 {
			return s
		}
	}
	cutoff := at - (e.window + skew).Milliseconds()
	drop := 0
	for drop < len(e.slices) && e.slices[drop].newest < cutoff {
		e.bytes -= e.slices[drop].table.bytes() + sliceBytes
		drop++
	}
	if drop > 0 {
		kept := copy(e.slices, e.slices[drop:])
		clear(e.slices[kept:])
		e.slices = e.slices[:kept]
	}
	e.slices = append(e.slices, slice{start: at, newest: at, base: offset})
	e.bytes += sliceBytes
	return &e.slices[len(e.slices)-1]
}

// find returns an offset at or before the first at which the id may stand, or false when it stands nowhere.
func (e *entry) find(h *store.Hash) (int64, bool) {
	fp := fingerprint(h)
	for i := range e.slices {
		s := &e.slices[i]
		if off, ok := s.table.find(fp); ok {
			return s.base + int64(off), true
		}
	}
	return 0, false
}

// slice holds the ids of a stretch of time.
type slice struct {
	start, newest int64 // created_at of its first and of its latest id, Unix milliseconds
	base          int64 // offset of its first id
	table         table
}

// table maps 64-bit fingerprints to offsets. Up to denseMax of them stand in a row; more of them in an open-addressing
// table with linear probing, at most three quarters full. Equal fingerprints at different offsets stand side by side,
// so the earliest is always found and a chance collision costs a longer probe, never a wrong verdict.
type table struct {
	fp   []uint64 // 0 is an empty place
	off  []uint32
	n    int
	open bool
}

const (
	denseMax  = 32
	firstOpen = 128
)

// secret scatters fingerprints over the places, so that nobody who chooses transaction ids can aim for one place.
var secret = rand.Uint64() | 1

func fingerprint(h *store.Hash) uint64 { return max(1, binary.LittleEndian.Uint64(h[:8])) }

func (t *table) bytes() int64 { return int64(cap(t.fp))*8 + int64(cap(t.off))*4 }

func (t *table) add(fp uint64, off uint32) {
	if !t.open && t.n < denseMax {
		t.fp = append(t.fp, fp)
		t.off = append(t.off, off)
		t.n++
		return
	}
	if !t.open || 4*(t.n+1) > 3*len(t.fp) {
		t.grow()
	}
	t.put(fp, off)
	t.n++
}

func (t *table) grow() {
	old := *t
	size := firstOpen
	if old.open {
		size = 2 * len(old.fp)
	}
	t.fp, t.off, t.open = make([]uint64, size), make([]uint32, size), true
	for i, fp := range old.fp {
		if fp != 0 {
			t.put(fp, old.off[i])
		}
	}
}

func (t *table) put(fp uint64, off uint32) {
	mask := len(t.fp) - 1
	i := t.place(fp)
	for t.fp[i] != 0 {
		i = (i + 1) & mask
	}
	t.fp[i], t.off[i] = fp, off
}

// place is the top bits of the product: the low ones depend on low bits of the fingerprint only.
func (t *table) place(fp uint64) int { return int((fp * secret) >> 32 & uint64(len(t.fp)-1)) }

func (t *table) find(fp uint64) (off uint32, ok bool) {
	if !t.open {
		for i, have := range t.fp {
			if have == fp {
				return t.off[i], true // they stand in the order of their offsets
			}
		}
		return 0, false
	}
	mask := len(t.fp) - 1
	off = math.MaxUint32
	for i := t.place(fp); t.fp[i] != 0; i = (i + 1) & mask {
		if t.fp[i] == fp {
			off, ok = min(off, t.off[i]), true
		}
	}
	return off, ok
}
