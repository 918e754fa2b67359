package fuse

import (
	"slices"
	"time"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

const (
	// maxAgain bounds repeats of a bundle that the server rolled back only because of others.
	maxAgain = 3
	// One culprit among n segments is found in two calls per halving. An error that spares none costs this many more
	// before the rest fails together.
	spareSplits = 16
)

// failed carries out what the error of a call means for its parts.
func (w *worker) failed(parts []part, err error) {
	fate, e := judge(err)
	switch {
	case fate == fateAgain && w.again > 0:
		w.again--
		w.offer(parts)
	case fate == fateSlow && w.index >= 0:
		for i := range parts {
			w.tooSlow(&parts[i], e)
		}
	case fate == fateDivide && w.splits > 0 && w.divide(parts):
	default:
		for i := range parts {
			w.fail(&parts[i], e)
		}
	}
}

// tooSlow decides on a part of a bundle that ran out of time. The likely culprit is a probe of a whole window: it goes
// alone. The others ride once more and fail then, since their callers have waited long enough.
func (w *worker) tooSlow(p *part, e *wire.Error) {
	bt := p.batch
	switch {
	case bt.part.DedupWindow > 0 && bt.verified.Offset < 0:
		bt.alone = true
	case bt.slow:
		w.fail(p, e)
		return
	}
	bt.slow = true
	bt.keep(p.live, bt.verified)
}

// divide offers the halves of parts one after the other: the halves of the bundle, then those of a segment, cut
// between two pushes. It reports false when nothing is left to cut.
func (w *worker) divide(parts []part) bool {
	var halves [2][]part
	if n := len(parts); n > 1 {
		halves = [2][]part{parts[:n/2], parts[n/2:]}
	} else {
		p := parts[0]
		owner := func(k int) *push { return p.batch.items[p.live[k]].push }
		cut := len(p.live) / 2
		for cut < len(p.live) && cut > 0 && owner(cut) == owner(cut-1) {
			cut++
		}
		if cut == len(p.live) {
			cut = slices.IndexFunc(p.live, func(i int32) bool { return p.batch.items[i].push != owner(0) })
		}
		if cut <= 0 {
			return false
		}
		halves = [2][]part{{{p.batch, p.live[:cut]}}, {{p.batch, p.live[cut:]}}}
	}
	w.stats.Splits++
	for _, half := range halves {
		w.splits--
		rest := half[:0:0]
		for _, p := range half {
			if len(p.batch.next) > 0 {
				p.batch.keep(p.live, p.batch.verified) // its earlier frames are not stored yet
			} else {
				rest = append(rest, p)
			}
		}
		if len(rest) > 0 {
			w.offer(rest)
		}
	}
	return true
}

func (w *worker) fail(p *part, e *wire.Error) {
	for _, i := range p.live {
		w.decide(p.batch, i, Result{Err: e})
	}
}

// fate is what an error of a call means for the frames in it.
type fate uint8

const (
	fateFatal  fate = iota // all of them fail
	fateAgain              // rolled back because of others: offer them again
	fateSlow               // one of them took too long
	fateDivide             // one of them is at fault: search for it
)

// judge sorts an error of a call. Only what is known to have left nothing behind may be offered again.
func judge(err error) (fate, *wire.Error) {
	e := wire.AsError(pg.Error("push", err))
	switch state := pg.State(err); {
	case pg.Retryable(err):
		return fateAgain, e
	case state == "57014" || state == "55P03": // statement_timeout, lock_timeout
		return fateSlow, outOfTime(err)
	case e.Outcome == wire.OutcomeUnknown || e.Code == wire.DatabaseUnavailable:
		return fateFatal, e
	}
	return fateDivide, e
}

func internal(outcome wire.Outcome, cause error) *wire.Error {
	e := wire.Wrap(wire.Internal, cause)
	e.Outcome = outcome
	return e
}

// outOfTime is the verdict on frames whose partition or statement was not to be had within the bounds of the session.
func outOfTime(cause error) *wire.Error {
	e := wire.Wrap(wire.DatabaseUnavailable, cause)
	e.Detail, e.RetryAfter, e.Outcome = "the database could not store this within its own bounds", time.Second, wire.OutcomeNone
	return e
}
