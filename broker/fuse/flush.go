package fuse

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime/debug"
	"slices"
	"time"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/wire"
)

const (
	// maxSkips is how often a busy partition rides in vain before it waits in a call of its own.
	maxSkips = 3
	// keepBuffers is how much encoding space a worker keeps between flushes.
	keepBuffers = 16 << 20
)

// worker runs one flush at a time with buffers of its own.
type worker struct {
	f       *Fuser
	index   int // place in Fuser.flights; -1 for one that waits alone
	batches []*batch
	parts   []part
	again   int // repeats left to this flush
	splits  int // calls left to the search for a culprit

	builder segment.Builder
	seen    firstSeen
	segs    []store.Segment
	cuts    []int
	blob    []byte
	hashes  []byte

	trip     tracing.Trip
	landed   []Landed
	finished []*push
	dones    []func()
	rewound  bool
	stats    Stats // what this flush adds
}

// part is what one call offers of a batch: all its live frames, or a share of them while a culprit is searched for.
type part struct {
	batch *batch
	live  []int32
}

// flush offers the bundle to the database, applies the verdicts, announces, and answers.
func (w *worker) flush() {
	began := time.Now()
	w.attempt()
	w.finish(began)
}

// attempt is the part of a flush that other people's code can break: whatever happens, every frame has a verdict or
// stands in its batch's live list afterwards.
func (w *worker) attempt() {
	defer func() {
		if v := recover(); v != nil {
			w.trip.Drop()
			w.f.log.Error("flush panicked", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			e := internal(wire.OutcomeUnknown, fmt.Errorf("flush: panic: %v", v))
			for _, bt := range w.batches {
				w.finished = bt.abandon(e, w.finished)
			}
		}
	}()
	w.again = maxAgain
	w.parts = w.parts[:0]
	for _, bt := range w.batches {
		if len(bt.items) == 0 {
			w.stats.CacheHits += uint64(bt.build(&w.seen))
			w.stats.Followers += uint64(len(bt.follow))
		}
		w.parts = append(w.parts, part{bt, bt.live})
	}
	w.splits = spareSplits + 4*bits.Len(uint(len(w.parts)))
	w.offer(w.parts)
	for _, bt := range w.batches {
		bt.turn()
		w.finished = bt.inherit(w.finished)
	}
	if len(w.landed) > 0 {
		w.f.landed(w.landed)
	}
}

// offer pushes parts in one call and applies what comes of it.
func (w *worker) offer(parts []part) {
	// No deadline: a committing statement is bounded by the session's statement_timeout and lock_timeout, since a
	// cancel from our side would make the outcome unknown (design.md 5.10).
	ctx := context.Background()
	call := w.f.db.PushBundle
	if w.index < 0 {
		call = w.f.db.PushBundleWait
	}
	w.stats.Flushes++
	w.stats.Segments += uint64(len(parts))
	segs := w.encode(parts)
	cargo := w.board(parts)
	began := time.Now()
	verdicts, err := call(ctx, segs)
	if err == nil && len(verdicts) != len(parts) {
		err = fmt.Errorf("push: %d verdicts for %d segments", len(verdicts), len(parts))
	}
	failed := ""
	if err != nil {
		failed = string(wire.AsError(err).Code)
	}
	w.trip.End("push", began, cargo, failed)
	if err != nil {
		w.failed(parts, err)
		return
	}
	for i := range parts {
		w.apply(&parts[i], &verdicts[i])
	}
}

// board notes whose requests are in parts, for their traces. Without one that is traced it looks no further.
func (w *worker) board(parts []part) tracing.Cargo {
	c := tracing.Cargo{Lanes: len(parts)}
	if !slices.ContainsFunc(parts, func(p part) bool { return p.batch.traced }) {
		return c
	}
	for _, p := range parts {
		c.Items += len(p.live)
		var last *push // what is not live may have been answered, and its memory be another's
		for _, i := range p.live {
			if q := p.batch.items[i].push; q != last {
				last = q
				c.Requests++
				w.trip.Board(q.span)
			}
		}
	}
	return c
}

// encode builds the segments of parts in the worker's buffers.
func (w *worker) encode(parts []part) []store.Segment {
	w.segs, w.cuts, w.blob, w.hashes = w.segs[:0], w.cuts[:0], w.blob[:0], w.hashes[:0]
	for _, p := range parts {
		w.builder.Reset()
		var raw int64
		sealed := true
		for _, i := range p.live {
			it := &p.batch.items[i]
			frame := &it.push.frames[it.frame]
			w.builder.Add(frame)
			w.hashes = append(w.hashes, it.hash()[:]...)
			raw += int64(frame.SentBytes())
			sealed = sealed && frame.Encrypted
		}
		w.cuts = append(w.cuts, len(w.blob), len(w.hashes)-16*len(p.live))
		w.blob = w.builder.Append(w.blob)
		w.segs = append(w.segs, store.Segment{
			PartitionID: p.batch.part.ID,
			Known:       p.batch.part.Life,
			Tenant:      p.batch.part.Tenant,
			Count:       len(p.live),
			RawBytes:    raw,
			Verified:    p.batch.verified,
			DedupWindow: p.batch.part.DedupWindow,
			Sealed:      sealed,
		})
	}
	// The buffers may have moved while they grew, so they are cut only now.
	for i := range w.segs {
		s := &w.segs[i]
		from, to := w.cuts[2*i], len(w.blob)
		if i+1 < len(w.segs) {
			to = w.cuts[2*i+2]
		}
		s.Blob = w.blob[from:to:to]
		from = w.cuts[2*i+1]
		to = from + 16*s.Count
		s.Hashes = w.hashes[from:to:to]
	}
	return w.segs
}

// apply carries out the verdict on one part.
func (w *worker) apply(p *part, v *store.PushVerdict) {
	bt := p.batch
	switch v.Status {
	case store.PushStored:
		for k, i := range p.live {
			w.decide(bt, i, Result{Offset: v.Base + int64(k), CreatedAt: v.CreatedAt})
		}
		w.stats.Stored += uint64(len(p.live))
		last := v.Base + int64(len(p.live)) - 1
		w.landed = append(w.landed, Landed{
			Partition: bt.part.ID, QueueID: bt.part.QueueID, Tenant: bt.part.Tenant, Queue: bt.part.Queue,
			LastOffset: last, Count: len(p.live),
		})
		w.learn(p, v)
	case store.PushDuplicate:
		w.duplicates(p, v)
	case store.PushBusy:
		if w.index < 0 { // the waiting call waited in vain
			w.fail(p, outOfTime(errors.New("push: the partition is held by another session")))
			return
		}
		w.stats.BusySkips++
		bt.skips++
		bt.alone = bt.alone || bt.skips >= maxSkips
		bt.keep(p.live, bt.verified)
	case store.PushPlain:
		// One frame that is plaintext refuses them all; who sealed its own loses nothing by offering it again.
		for _, i := range p.live {
			w.decide(bt, i, Result{Missing: true})
		}
	case store.PushMissing:
		for _, i := range p.live {
			w.decide(bt, i, Result{Missing: true})
		}
		if bt.entry != nil {
			bt.entry.reset(bt.part.DedupWindow)
		}
	default:
		w.fail(p, internal(wire.OutcomeUnknown, fmt.Errorf("push: status %d is unknown", v.Status)))
	}
}

// duplicates decides the frames that were seen before and keeps the others for another offer. The database looked at
// all frames up to LastOffset, so the next probe begins behind it.
func (w *worker) duplicates(p *part, v *store.PushVerdict) {
	bt := p.batch
	hit := 0
	for _, d := range v.Dups {
		if d.Frame < 0 || d.Frame >= len(p.live) || bt.items[p.live[d.Frame]].done {
			continue
		}
		hit++
		w.decide(bt, p.live[d.Frame], Result{Duplicate: true, Offset: d.Offset, CreatedAt: d.CreatedAt})
	}
	w.stats.Duplicates += uint64(hit)
	if hit == 0 { // each round decides a frame, or the rounds would not end
		w.fail(p, internal(wire.OutcomeNone, errors.New("push: a duplicate verdict names no frame")))
		return
	}
	for k, i := range p.live {
		if !bt.items[i].done {
			bt.keep(p.live[k:k+1], store.Watermark{Offset: v.LastOffset, Life: v.Life})
		}
	}
	if e := bt.entry; e != nil && e.complete {
		switch {
		case v.LastOffset < e.verified || v.Life != e.life:
			w.rewound = true
		case v.LastOffset > e.verified:
			e.stale = true
		}
	}
}

// learn tells the cache what was stored.
func (w *worker) learn(p *part, v *store.PushVerdict) {
	bt := p.batch
	w.rewound = bt.entry.learn(bt.part.DedupWindow, v.Life, v.Base, len(p.live), v.CreatedAt, func(k int) *store.Hash {
		return bt.items[p.live[k]].hash()
	}) || w.rewound
}

func (w *worker) decide(bt *batch, i int32, r Result) {
	if q := bt.items[i].push; bt.decide(i, r) {
		w.finished = append(w.finished, q)
	}
}

// finish gives the lanes back, settles the books and answers the finished pushes.
func (w *worker) finish(began time.Time) {
	f := w.f
	now := time.Now()
	frames := 0
	f.mu.Lock()
	for _, p := range w.parts {
		frames += len(p.live)
	}
	if w.index >= 0 {
		f.inFlight--
		f.flights[w.index] = time.Time{}
		f.pace.observe(now.Sub(began), frames)
	}
	f.stats.add(&w.stats)
	w.stats = Stats{}
	if w.rewound {
		w.rewound = false
		f.rewoundLocked()
	}
	for _, bt := range w.batches {
		l := bt.lane
		if len(bt.live) > 0 {
			bt.weigh()
			l.retry = bt
		} else {
			bt.free()
		}
		if l.entry != nil {
			f.cache.account(l.entry, now)
		}
		f.settleLocked(l, now)
	}
	for _, q := range w.finished {
		f.pending--
		f.budget.Release(q.tenant, q.bytes)
		w.dones = append(w.dones, q.done)
		q.free()
	}
	f.checkDrainedLocked()
	f.mu.Unlock()

	for _, done := range w.dones {
		done()
	}
	w.reset()
}

// reset drops what the flush referred to, so that a quiet worker keeps nobody's memory.
func (w *worker) reset() {
	clear(w.batches)
	clear(w.parts)
	clear(w.segs)
	clear(w.finished)
	clear(w.dones)
	w.batches, w.parts, w.segs = w.batches[:0], w.parts[:0], w.segs[:0]
	w.finished, w.dones, w.landed = w.finished[:0], w.dones[:0], nil
	if cap(w.blob)+cap(w.hashes) > keepBuffers {
		w.blob, w.hashes = nil, nil
	}
	w.builder.Shrink(keepBuffers)
}
