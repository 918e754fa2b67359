package fuse

import (
	"encoding/binary"
	"sync"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// batch is the pushes of one lane that travel in one segment, from the first offer until every frame has its verdict.
// It belongs to the flush that holds its lane, and to the lane as its retry in between.
type batch struct {
	lane     *lane
	part     store.Partition // as it was when the batch was made
	pushes   []*push
	items    []item          // their frames, in order
	live     []int32         // leaders without a verdict: the next offer
	next     []int32         // what the current flush leaves of them: see keep
	known    store.Watermark // the watermark of next
	follow   []int32         // items that repeat an earlier one
	entry    *entry          // whose watermark is verified
	verified store.Watermark // no live frame stands at or before it
	unsure   bool            // made of pushes that may be stored already: nobody vouches for them
	suspect  bool            // made of pushes the cache has seen before
	skips    int             // how often its row was held by another session
	bytes    int64           // of what is live, once it has been offered
	alone    bool            // its next offer is a call of its own
	slow     bool            // it was part of a call that ran out of time
	traced   bool            // some of its requests are
}

// nothing is the watermark of who knows nothing.
var nothing = store.Watermark{Offset: -1}

// item is one frame of a batch.
type item struct {
	push   *push
	frame  int32
	leader int32 // the item it repeats, or -1
	done   bool
}

var batches = sync.Pool{New: func() any { return new(batch) }}

func (bt *batch) free() {
	clear(bt.pushes)
	clear(bt.items)
	if cap(bt.items) > 4096 {
		return
	}
	*bt = batch{pushes: bt.pushes[:0], items: bt.items[:0], live: bt.live[:0], next: bt.next[:0], follow: bt.follow[:0]}
	batches.Put(bt)
}

// source returns the pushes that the lane's next segment is made of.
func (l *lane) source() *[]*push {
	unsure := len(l.unsure) > 0
	suspect := len(l.suspects) > 0 && (l.later || len(l.pending) == 0)
	if bt := l.batch; bt != nil {
		unsure, suspect = bt.unsure, bt.suspect
	}
	switch {
	case unsure:
		return &l.unsure
	case suspect:
		return &l.suspects
	}
	return &l.pending
}

// least is the least that a ready lane costs when its turn comes: the first of its pushes that is not in the bundle.
func (l *lane) least() int64 {
	switch {
	case l.retry != nil:
		return laneCost + l.retry.bytes
	case l.batch != nil:
		return (*l.source())[l.taken].bytes
	case !l.waits(): // all was given back
		return 0
	}
	return laneCost + (*l.source())[0].bytes
}

// takeLocked puts the lane's next segment into the bundle, or more of it when a part is there already: at most room bytes,
// but at least one push when first. It returns nothing when that does not fit. What is taken stays in the lane until
// flyLocked; done says that nothing is left to take.
func (l *lane) takeLocked(room int64, first bool) (bytes int64, done bool) {
	if bt := l.retry; bt != nil {
		l.retry, l.batch = nil, bt
		if bt.entry != l.entry && !bt.unsure {
			bt.entry, bt.verified = l.entry, nothing // its watermark was forgotten meanwhile
		}
		return bt.bytes, true
	}
	from := l.source()
	n := l.taken
	for n < len(*from) && bytes+(*from)[n].bytes <= room {
		bytes += (*from)[n].bytes
		n++
	}
	if n == 0 && first {
		n, bytes = 1, (*from)[0].bytes
	}
	if n > 0 && l.batch == nil {
		l.batch = batches.Get().(*batch)
		l.batch.lane, l.batch.part, l.batch.entry, l.batch.suspect = l, l.part, l.entry, from == &l.suspects
		if l.batch.unsure = from == &l.unsure; l.batch.unsure {
			l.batch.entry = nil
		}
	}
	l.taken = n
	return bytes, n == len(*from)
}

// partial reports that the bundle has some of the lane's segment but not all.
func (l *lane) partial() bool { return l.taken > 0 && l.taken < len(*l.source()) }

// flyLocked parts the lane from the batch it has in the bundle and returns how many frames no flush had taken before.
func (l *lane) flyLocked() (bt *batch, frames int) {
	bt = l.batch
	if n := l.taken; n > 0 {
		from := l.source()
		bt.pushes = append(bt.pushes, (*from)[:n]...)
		rest := copy(*from, (*from)[n:])
		clear((*from)[rest:])
		*from = (*from)[:rest]
		if !bt.suspect {
			frames = bt.frames()
		}
		if bt.unsure {
			for _, q := range bt.pushes {
				bt.part.DedupWindow = max(bt.part.DedupWindow, q.window)
			}
		} else {
			l.later = !bt.suspect
		}
	}
	l.batch, l.taken, l.state = nil, 0, laneFlying
	return bt, frames
}

// weigh notes what the batch costs to offer again.
func (bt *batch) weigh() {
	bt.bytes = 0
	for _, i := range bt.live {
		q := bt.items[i].push
		bt.bytes += q.bytes / int64(len(q.frames))
	}
}

// build sets suspects apart, finds repeats and fixes the watermark. It returns the number of pushes set apart.
func (bt *batch) build(seen *firstSeen) (apart int) {
	e := bt.entry
	vouched := bt.part.DedupWindow > 0 && e.vouches(bt.part.DedupWindow)
	bt.verified = nothing
	if vouched {
		bt.verified = e.mark()
		if !bt.suspect {
			apart = bt.setApart(e)
		}
	}
	seen.reset(bt.frames())
	for _, q := range bt.pushes {
		bt.traced = bt.traced || q.span.Sampled()
		for i := range q.frames {
			at := int32(len(bt.items))
			leader := seen.note(bt, &q.hashes[i], at)
			bt.items = append(bt.items, item{push: q, frame: int32(i), leader: leader})
			if leader >= 0 {
				bt.follow = append(bt.follow, at)
				continue
			}
			bt.live = append(bt.live, at)
			if vouched && bt.suspect {
				if off, ok := e.find(&q.hashes[i]); ok {
					bt.verified = bt.verified.Below(off)
				}
			}
		}
	}
	return apart
}

// setApart moves the pushes with a frame the cache has seen to the lane's suspects; when nothing else is left, the
// batch is made of them. Whole pushes move, so that the frames of a request keep their order.
func (bt *batch) setApart(e *entry) (apart int) {
	l := bt.lane
	clean := bt.pushes[:0]
	for _, q := range bt.pushes {
		if q.seenBefore(e) {
			l.suspects = append(l.suspects, q)
			apart++
		} else {
			clean = append(clean, q)
		}
	}
	clear(bt.pushes[len(clean):])
	bt.pushes = clean
	if len(clean) == 0 {
		bt.suspect, l.later = true, false
		bt.pushes = append(bt.pushes, l.suspects...)
		clear(l.suspects)
		l.suspects = l.suspects[:0]
	}
	return apart
}

func (q *push) seenBefore(e *entry) bool {
	for i := range q.hashes {
		if _, ok := e.find(&q.hashes[i]); ok {
			return true
		}
	}
	return false
}

func (bt *batch) frames() (n int) {
	for _, q := range bt.pushes {
		n += len(q.frames)
	}
	return n
}

func (it *item) hash() *store.Hash { return &it.push.hashes[it.frame] }

// decide gives item i its verdict. It reports whether that was the last one of its push.
func (bt *batch) decide(i int32, r Result) bool {
	it := &bt.items[i]
	if it.done {
		return false
	}
	it.done = true
	it.push.out[it.frame] = r
	it.push.left--
	return it.push.left == 0
}

// keep leaves frames for the next offer; no frame of them stands at or before verified.
func (bt *batch) keep(live []int32, verified store.Watermark) {
	switch {
	case len(bt.next) == 0:
		bt.known = verified
	case bt.known.Life != verified.Life: // the halves of a segment met two lives of the database
		bt.known = nothing
	default:
		bt.known = bt.known.Below(verified.Offset + 1)
	}
	bt.next = append(bt.next, live...)
}

// turn makes what was kept the next offer.
func (bt *batch) turn() {
	bt.live, bt.next = bt.next, bt.live[:0]
	bt.verified = bt.known
}

// inherit gives the followers of decided leaders their verdicts: what became of the leader, as a duplicate if it is
// stored. It appends the pushes that are complete now to finished.
func (bt *batch) inherit(finished []*push) []*push {
	rest := bt.follow[:0]
	for _, i := range bt.follow {
		leader := &bt.items[bt.items[i].leader]
		if !leader.done {
			rest = append(rest, i)
			continue
		}
		r := leader.push.out[leader.frame]
		r.Duplicate = r.Err == nil && !r.Missing
		if bt.decide(i, r) {
			finished = append(finished, bt.items[i].push)
		}
	}
	bt.follow = rest
	return finished
}

// abandon gives everything without a verdict the error: the way out of a panic, whatever it left half done.
func (bt *batch) abandon(e *wire.Error, finished []*push) []*push {
	for i := range bt.items {
		if q := bt.items[i].push; bt.decide(int32(i), Result{Err: e}) {
			finished = append(finished, q)
		}
	}
	for _, q := range bt.pushes {
		if q.left > 0 { // it never became items
			q.refuse(e)
			finished = append(finished, q)
		}
	}
	bt.live, bt.next, bt.follow = bt.live[:0], bt.next[:0], bt.follow[:0]
	return finished
}

// firstSeen finds repeated hashes within one batch. It is reused from batch to batch.
type firstSeen struct {
	places []int32 // item + 1; 0 is empty
	mask   uint64
}

// Below this many frames comparing each with all before is cheaper than a table.
const compareAll = 8

func (s *firstSeen) reset(n int) {
	s.mask = 0
	if n <= compareAll {
		return
	}
	size := 32
	for size < 2*n {
		size *= 2
	}
	if cap(s.places) < size || cap(s.places) > 1<<16 && size <= 1<<12 {
		s.places = make([]int32, size)
	} else {
		s.places = s.places[:size]
		clear(s.places)
	}
	s.mask = uint64(size - 1)
}

// note returns the item that had the hash first, or -1 and remembers that it is item at.
func (s *firstSeen) note(bt *batch, h *store.Hash, at int32) int32 {
	if s.mask == 0 {
		for i := range bt.items {
			if it := &bt.items[i]; it.leader < 0 && *it.hash() == *h {
				return int32(i)
			}
		}
		return -1
	}
	for p := (binary.LittleEndian.Uint64(h[:8]) * secret) >> 32 & s.mask; ; p = (p + 1) & s.mask {
		have := s.places[p]
		if have == 0 {
			s.places[p] = at + 1
			return -1
		}
		if *bt.items[have-1].hash() == *h {
			return have - 1
		}
	}
}
