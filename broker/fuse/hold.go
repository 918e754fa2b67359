package fuse

import (
	"cmp"
	"slices"
	"time"

	"github.com/queengate/queengate/broker/store"
)

// holder waits for a lane or has it.
type holder struct {
	granted chan struct{} // closed when the lane is the holder's
}

// Held is partitions whose pushes wait, so that somebody else can write them and still use and feed the watermarks. It
// belongs to one goroutine.
type Held struct {
	f     *Fuser
	parts []heldPart // ascending by partition
}

type heldPart struct {
	id     int64
	window time.Duration
	lane   *lane // nil: the fuser does not run or has another partition there, nobody waits and nothing is known
}

// Hold waits until no segment of the partitions is in flight and keeps them until Release. Those with a dedup window
// become known first, if they are not and there is room. Partitions are taken in ascending order, so that two holders
// cannot wait for each other; pushes that came before get their turn between two holders. A partition may occur once.
//
// A fuser that does not run, or no more, holds nothing: then nothing is vouched for.
func (f *Fuser) Hold(parts []store.Partition) *Held {
	h := &Held{f: f, parts: make([]heldPart, 0, len(parts))}
	sorted := slices.SortedFunc(slices.Values(parts), func(a, b store.Partition) int { return cmp.Compare(a.ID, b.ID) })
	for i := range sorted {
		h.parts = append(h.parts, heldPart{id: sorted[i].ID, window: sorted[i].DedupWindow, lane: f.hold(&sorted[i])})
	}
	return h
}

func (f *Fuser) hold(p *store.Partition) *lane {
	w := &holder{granted: make(chan struct{})}
	f.mu.Lock()
	if f.phase != running {
		f.mu.Unlock()
		return nil
	}
	l := f.lanes[p.ID]
	if l.another(p) {
		f.mu.Unlock()
		return nil
	}
	if l == nil {
		l = f.newLaneLocked(p.ID)
	}
	l.part = *p
	l.holders = append(l.holders, w)
	if l.state == laneIdle {
		f.settleLocked(l, time.Time{})
	}
	f.mu.Unlock()
	<-w.granted
	return l
}

// grantLocked gives a lane that nobody holds to the first who waits for it, unless pushes have the turn. It reports
// whether it did.
func (f *Fuser) grantLocked(l *lane) bool {
	if len(l.holders) == 0 {
		return false
	}
	if l.wasHeld && l.waits() {
		l.wasHeld = false
		return false
	}
	w := l.holders[0]
	l.holders = slices.Delete(l.holders, 0, 1)
	l.state, l.wasHeld = laneHeld, true
	close(w.granted)
	return true
}

func (h *Held) part(partition int64) *heldPart {
	i, ok := slices.BinarySearchFunc(h.parts, partition, func(p heldPart, id int64) int { return cmp.Compare(p.id, id) })
	if !ok || h.parts[i].lane == nil {
		return nil
	}
	return &h.parts[i]
}

// entry returns what the cache knows of a held partition, nil when that is nothing or was forgotten meanwhile.
func (h *Held) entry(p *heldPart) *entry {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	if e := p.lane.entry; e != nil && !e.doomed {
		return e
	}
	return nil
}

// Vouched returns the watermark up to which nothing with one of the hashes, 16 bytes each, is stored within the
// partition's window: what a push of them may offer as verified. Its offset is -1 when nothing is known.
func (h *Held) Vouched(partition int64, hashes []byte) store.Watermark {
	p := h.part(partition)
	if p == nil || p.window <= 0 {
		return nothing
	}
	e := h.entry(p)
	if !e.vouches(p.window) {
		return nothing
	}
	verified := e.mark()
	for i := 0; i+16 <= len(hashes); i += 16 {
		if off, ok := e.find((*store.Hash)(hashes[i:])); ok {
			verified = verified.Below(off)
		}
	}
	return verified
}

// Stored tells that a segment with these hashes was committed, with that verdict.
func (h *Held) Stored(partition int64, hashes []byte, v *store.PushVerdict) {
	p := h.part(partition)
	if p == nil {
		return
	}
	e := h.entry(p)
	if e.learn(p.window, v.Life, v.Base, len(hashes)/16, v.CreatedAt, func(k int) *store.Hash { return (*store.Hash)(hashes[16*k:]) }) {
		h.f.mu.Lock()
		h.f.rewoundLocked()
		h.f.mu.Unlock()
	}
}

// Release lets the pushes go on. A second call does nothing.
func (h *Held) Release() {
	f, now := h.f, time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range h.parts {
		l := h.parts[i].lane
		if l == nil {
			continue
		}
		h.parts[i].lane = nil
		if l.entry != nil {
			f.cache.account(l.entry, now)
		}
		f.settleLocked(l, now)
	}
}

// rewoundLocked empties the cache: the database is another one, or has less than it once had.
func (f *Fuser) rewoundLocked() {
	f.log.Warn("the database was replaced, restarted or set back: the dedup cache starts over")
	f.cache.clear()
}
