package fuse

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/queengate/queengate/broker/store"
)

// A partition becomes known in one of two ways. Either its very first message is ours, so we have seen all there is.
// Or its window is read from the sidecar without a lock, while its pushes wait and those of all others flow: rows are
// immutable and commit in the order of their offsets, so what is read is complete up to the last row seen, and the
// push that follows probes only behind it. That read is the expensive half of a probe, taken out from under the row
// lock. When another broker has written in between, only the gap is read.

// readChunk is how much a read may add before it asks whether there is still room: a sixteenth of the bound at most.
const readChunk = 256 << 10

// wantsReadLocked reports whether the lane's partition should be read before its next push. now is read when needed.
func (f *Fuser) wantsReadLocked(l *lane, now *time.Time) bool {
	e := l.entry
	if e == nil || l.part.DedupWindow <= 0 || f.phase >= draining || e.vouches(l.part.DedupWindow) && !e.stale {
		return false
	}
	if now.IsZero() {
		*now = time.Now()
	}
	if now.Before(e.notBefore) {
		return false
	}
	if !e.complete && !f.cache.makeRoom(f.cache.limit/10*9, *now) {
		e.notBefore = now.Add(noRoomPause)
		return false
	}
	return true
}

// pumpReadsLocked starts reads while there is something to read and a place to read in.
func (f *Fuser) pumpReadsLocked() {
	for f.phase == running && f.reading.active < f.reading.limit {
		l := f.reading.next()
		if l == nil {
			return
		}
		f.reading.active++
		part := l.part
		f.workers.Go(func() { f.read(f.readCtx, l, part) })
	}
}

// read brings the lane's entry up to date and sets the lane free.
func (f *Fuser) read(ctx context.Context, l *lane, part store.Partition) {
	e := l.entry
	fresh := !e.vouches(part.DedupWindow)
	if fresh {
		e.reset(part.DedupWindow)
	}
	err := f.fill(ctx, e)
	now := time.Now()

	f.mu.Lock()
	defer f.mu.Unlock()
	f.reading.active--
	switch {
	case err == nil && fresh:
		f.stats.Hydrations++
	case err == nil:
		f.stats.TopUps++
	case errors.Is(err, errNoRoom): // the cache has emptied the entry
		f.stats.ReadErrors++
	case errors.Is(err, errOtherLife): // read anew before the next push
		e.reset(part.DedupWindow)
		f.rewoundLocked()
	default:
		f.stats.ReadErrors++
		e.notBefore = now.Add(readPause)
		if fresh {
			e.reset(part.DedupWindow)
		}
		if ctx.Err() == nil {
			f.log.Warn("sidecar read ended early: pushes to the partition probe more than they need", "partition", part.ID, "err", err)
		}
	}
	f.cache.account(e, now)
	f.settleLocked(l, now)
	f.pumpReadsLocked()
}

var (
	errNoRoom    = errors.New("the dedup cache is full")
	errOtherLife = errors.New("the database is another one than what is known was learned of")
)

// fill adds the rows behind the entry's watermark and moves it. A partial read leaves the watermark where it was.
func (f *Fuser) fill(ctx context.Context, e *entry) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("read sidecar of partition %d: panic: %v", e.partition, v)
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	charged, chunk := e.bytes, min(readChunk, f.cache.limit/16)
	full := false
	upTo, err := f.db.Sidecar(ctx, e.partition, e.window, e.verified, func(row store.SidecarRow) {
		if full {
			return
		}
		for i := 0; i+16 <= len(row.Hashes); i += 16 {
			e.add((*store.Hash)(row.Hashes[i:]), row.Base+int64(i/16), row.CreatedAt)
		}
		if e.bytes-charged >= chunk {
			charged = e.bytes
			f.mu.Lock()
			full = !f.cache.account(e, time.Now())
			f.mu.Unlock()
			if full {
				cancel() // a read may be cancelled at any time
			}
		}
	})
	switch {
	case full:
		return errNoRoom
	case err != nil:
		return err
	case e.complete && e.life != upTo.Life:
		return errOtherLife
	}
	e.verified = max(e.verified, upTo.Offset, e.top)
	e.top, e.life = e.verified, upTo.Life
	e.complete, e.stale = true, false
	return nil
}
