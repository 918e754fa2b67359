package fuse

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/wire"
)

// push is what one request has for one partition. Its frames and results are the caller's memory.
type push struct {
	frames []segment.Frame
	out    []Result
	done   func()
	hashes []store.Hash
	tenant uuid.UUID
	window time.Duration // of an unsure push; else 0, and the partition's holds
	bytes  int64         // cost while pending
	left   int           // frames without a verdict
	span   tracing.Span  // of the request
}

var pushes = sync.Pool{New: func() any { return new(push) }}

func newPush(frames []segment.Frame, out []Result, done func()) *push {
	q := pushes.Get().(*push)
	q.frames, q.out, q.done, q.left = frames, out, done, len(frames)
	return q
}

// weigh hashes the frames and sums their cost, on the caller's goroutine and outside every lock. It refuses what no
// segment can hold.
func (q *push) weigh() *wire.Error {
	q.bytes = 0
	q.hashes = q.hashes[:0]
	for i := range q.frames {
		fr := &q.frames[i]
		if len(fr.TransactionID) > segment.MaxText || len(fr.ProducerSub) > segment.MaxText || len(fr.TraceID) > segment.MaxText {
			return wire.Errorf(wire.InvalidRequest, "a transaction, producer or trace id is longer than %d bytes", segment.MaxText)
		}
		q.bytes += int64(len(fr.TransactionID)+len(fr.Payload)+len(fr.ProducerSub)+len(fr.TraceID)) + frameCost
		q.hashes = append(q.hashes, segment.HashID(fr.TransactionID))
	}
	if q.bytes > segment.MaxBody/2 {
		return wire.Errorf(wire.PayloadTooLarge, "the messages for one partition are larger than %d bytes", segment.MaxBody/2)
	}
	return nil
}

// refuse gives every frame the same error.
func (q *push) refuse(e *wire.Error) {
	for i := range q.out {
		q.out[i] = Result{Err: e}
	}
	q.left = 0
}

func (q *push) free() {
	if cap(q.hashes) > 4096 {
		q.hashes = nil
	}
	q.frames, q.out, q.done, q.window, q.span = nil, nil, nil, 0, tracing.Span{}
	pushes.Put(q)
}

type laneState uint8

const (
	laneIdle    laneState = iota
	laneReading           // waits for a sidecar read
	laneReady             // stands in Fuser.ready, or in a bundle that is being filled
	laneFlying            // its segment is in flight
	laneHeld              // somebody else writes the partition: see Hold
)

// lane is a partition with work. Fuser.mu guards part, state and pending. The other fields belong to whoever moves the
// lane: Fuser.mu while it is idle or ready, the flush or read that holds it otherwise.
type lane struct {
	part    store.Partition // as the latest push named it
	state   laneState
	pending []*push

	batch *batch // while a bundle is filled: the lane's part of it
	taken int    // how many pushes that is

	unsure   []*push // may be stored already, whatever the cache says; Fuser.mu guards it too
	suspects []*push // set apart: the cache has seen one of their frames
	later    bool    // the last segment was clean, so suspects are next
	retry    *batch  // what the last flush left undecided
	entry    *entry  // nil without a dedup window

	holders []*holder // who waits for the lane; guarded by Fuser.mu
	wasHeld bool      // a holder had it last, so pushes are next
}

// another reports that the lane is of a partition that had p's number in another life of the database: what is offered to
// one must not go into the other's segment. The first flush finds it missing, and the lane ends.
func (l *lane) another(p *store.Partition) bool { return l != nil && l.part.UID != p.UID }

func (f *Fuser) newLaneLocked(id int64) *lane {
	var l *lane
	if n := len(f.spare); n > 0 {
		l, f.spare = f.spare[n-1], f.spare[:n-1]
	} else {
		l = new(lane)
	}
	f.lanes[id] = l
	return l
}

// settleLocked decides what a lane that nobody holds does next.
func (f *Fuser) settleLocked(l *lane, now time.Time) {
	f.cache.attach(l)
	switch {
	case l.retry != nil && l.retry.alone:
		f.waitAloneLocked(l)
	case l.retry != nil:
		f.makeReadyLocked(l)
	case f.wantsReadLocked(l, &now):
		l.state = laneReading
		f.reading.queue.Push(l.part.Tenant, l)
		f.pumpReadsLocked()
	case f.grantLocked(l):
	case l.waits():
		f.makeReadyLocked(l)
	default:
		f.retireLocked(l, now)
	}
}

// giveBackLocked appends what no flush has taken of the lane to back. A lane that has nothing left keeps its place until its
// turn comes.
func (f *Fuser) giveBackLocked(l *lane, back []*push) []*push {
	empty := func(from *[]*push) {
		back = append(back, *from...)
		clear(*from)
		*from = (*from)[:0]
	}
	counted := len(back)
	empty(&l.unsure)
	empty(&l.pending)
	for _, q := range back[counted:] {
		f.waiting -= len(q.frames)
	}
	if l.state == laneReady || l.state == laneReading {
		empty(&l.suspects) // a flush has had them once, so they do not count as waiting
	}
	return back
}

// waits reports that the lane has pushes that no flush has.
func (l *lane) waits() bool { return len(l.pending) > 0 || len(l.unsure) > 0 || len(l.suspects) > 0 }

func (f *Fuser) makeReadyLocked(l *lane) {
	l.state = laneReady
	f.ready.Push(l.part.Tenant, l)
	if f.inFlight == 0 {
		f.wake()
	} else if f.inFlight < maxFlushes && !f.armed {
		f.armed = true
		f.wake()
	}
}

func (f *Fuser) wake() {
	select {
	case f.wakeC <- struct{}{}:
	default:
	}
}

func (f *Fuser) retireLocked(l *lane, now time.Time) {
	delete(f.lanes, l.part.ID)
	if l.entry != nil {
		if now.IsZero() {
			now = time.Now()
		}
		f.cache.release(l.entry, now)
	}
	*l = lane{pending: l.pending[:0], unsure: l.unsure[:0], suspects: l.suspects[:0], holders: l.holders[:0]}
	if len(f.spare) < maxSpare && cap(l.pending) <= 256 && cap(l.suspects) <= 256 {
		f.spare = append(f.spare, l)
	}
}
