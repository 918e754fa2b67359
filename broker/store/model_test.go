package store

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

// model is one queue of a tenant in plain Go: what every call of the store should answer and leave behind. Time is in
// whole hours, by which the test makes rows older, and every rule lies half an hour beside one.
type model struct {
	exists     bool
	registered bool                  // the group billing, which reads everything
	lanes      map[string]*modelLane // by name
	letters    []*modelLetter

	limit                                  int // retries
	files                                  bool
	window, keepAll, keepDone, keepWaiting int // minutes; 0: off
}

type modelLane struct {
	lane
	name                   string
	last, start, txnsStart int64
	segments               []*modelSegment // all there ever were
	names                  []string        // by offset
	cursors                map[string]*modelCursor
}

type modelSegment struct {
	base, end, bytes int64
	hours            int
}

// modelCursor is what a (partition, group) should hold.
type modelCursor struct {
	committed, batchEnd int64 // batchEnd -1: nothing is out
	worker              uuid.UUID
	expired             bool
	retries             int
	attemptOffset       int64 // -1: none
	attempts            int
	consumed            int64
}

type modelLetter struct {
	lane    *modelLane
	offset  int64
	group   string
	retries int
	text    bool // the payload was there
}

const modelBilling = "billing"

var modelGroups = []string{wire.QueueModeGroup, modelBilling}

func (m *model) knows(group string) bool { return group == wire.QueueModeGroup || m.registered }

// sorted returns the lanes by name.
func (m *model) sorted() (lanes []*modelLane) {
	for _, name := range slices.Sorted(maps.Keys(m.lanes)) {
		lanes = append(lanes, m.lanes[name])
	}
	return lanes
}

func (l *modelLane) live() []*modelSegment {
	i := 0
	for i < len(l.segments) && l.segments[i].base < l.start {
		i++
	}
	return l.segments[i:]
}

func (l *modelLane) retained() (bytes int64) {
	for _, s := range l.live() {
		bytes += s.bytes
	}
	return bytes
}

// seed makes the cursor of a group that is known and reads everything.
func (l *modelLane) seed(group string) {
	if l.cursors[group] == nil {
		l.cursors[group] = &modelCursor{committed: l.start - 1, batchEnd: -1, attemptOffset: -1}
	}
}

// duplicates says which of the names the sidecar knows within the window, with their lowest offsets there.
func (m *model) duplicates(l *modelLane, names []string) (dups []Dup) {
	if m.window == 0 {
		return nil
	}
	for frame, name := range names {
	segments:
		for _, s := range l.segments {
			if s.hours*60 > m.window {
				continue
			}
			for o := max(s.base, l.txnsStart); o <= s.end; o++ {
				if l.names[o] == name {
					dups = append(dups, Dup{Frame: frame, Offset: o})
					break segments
				}
			}
		}
	}
	return dups
}

func (l *modelLane) append(names []string, bytes int64) (base int64) {
	base = l.last + 1
	l.names = append(l.names, names...)
	l.last += int64(len(names))
	l.segments = append(l.segments, &modelSegment{base: base, end: l.last, bytes: bytes})
	return base
}

// pop is the claim of one worker: the verdict per candidate as text.
func (m *model) pop(c Claim, lanes []*modelLane) (want []string) {
	if !m.knows(c.Group) {
		for range lanes {
			want = append(want, "unregistered")
		}
		return want
	}
	left, parts, ready := int64(c.Budget), 0, false
	for i, l := range lanes {
		k := l.cursors[c.Group]
		start := max(k.committed+1, l.start)
		switch {
		case ready:
			want = append(want, "skipped") // the first one was enough: no other was looked at
			continue
		case k.batchEnd >= 0 && !k.expired:
			want = append(want, "leased")
			continue
		case l.last <= k.committed:
			want = append(want, "empty")
			continue
		case start > l.last: // retention has emptied it: the cursor goes to the end
			*k = modelCursor{committed: l.last, batchEnd: -1, attemptOffset: -1, consumed: k.consumed}
			want = append(want, "empty")
			continue
		case left == 0 || (c.MaxPartitions > 0 && parts == c.MaxPartitions):
			want = append(want, "skipped")
			continue
		}
		ready = i == 0 && c.MaxPartitions == 1 && !c.AutoAck && start == k.committed+1
		through := min(l.last, start+left-1)
		left -= through - start + 1
		parts++
		attempt := 1
		if c.AutoAck {
			*k = modelCursor{committed: through, batchEnd: -1, attemptOffset: -1, consumed: k.consumed + through - k.committed}
		} else {
			if k.attemptOffset == start {
				attempt = k.attempts + 1
			}
			k.batchEnd, k.worker, k.expired, k.attemptOffset, k.attempts = through, c.Worker, false, start, attempt
		}
		want = append(want, fmt.Sprintf("took %d..%d attempt %d", start, through, attempt))
	}
	return want
}

func (k *modelCursor) release() { k.batchEnd, k.worker, k.expired = -1, uuid.Nil, false }
func (k *modelCursor) reset()   { k.retries, k.attemptOffset, k.attempts = 0, -1, 0 }

// ack decides a call, one verdict word per item.
func (m *model) ack(l *modelLane, group, lease string, at []int64, status []wire.AckStatus) (want []string, released bool) {
	k := l.cursors[group]
	if lease != "" && (k.batchEnd < 0 || k.expired || k.worker.String() != lease) {
		for range at {
			want = append(want, "invalid")
		}
		return want, false
	}
	end := k.batchEnd
	if end < 0 {
		end = l.last
	}
	top, sig, kind := int64(-1), int64(-1), wire.AckCompleted
	for i, o := range at {
		if o <= k.committed || o > end {
			continue
		}
		if status[i] == wire.AckCompleted {
			top = max(top, o)
		} else if sig < 0 || o < sig || (o == sig && status[i] > kind) {
			sig, kind = o, status[i]
		}
	}
	filed := int64(-1)
	before := *k
	prefix := top
	if sig >= 0 {
		prefix = min(prefix, sig-1)
	}
	to := max(k.committed, prefix)
	switch {
	case sig < 0 || before.batchEnd < 0:
		if before.batchEnd >= 0 {
			if to >= before.batchEnd {
				k.release()
				k.reset()
				released = !before.expired
			} else if to > before.committed {
				k.attemptOffset = to + 1
			}
		}
	case kind == wire.AckRetry:
		k.release()
	case kind == wire.AckFailed && before.retries < m.limit:
		k.release()
		k.retries++
	default:
		to = sig
		k.release()
		k.reset()
		if kind == wire.AckDLQ || m.files {
			filed = sig
			m.letters = append(m.letters, &modelLetter{l, sig, group, before.retries, sig >= l.start})
		}
	}
	if sig >= 0 && before.batchEnd >= 0 {
		released = !before.expired
	}
	k.committed = to
	k.consumed += to - before.committed
	for i, o := range at {
		switch {
		case o > end:
			want = append(want, "unresolvable:")
		case o <= before.committed && status[i] == wire.AckCompleted:
			want = append(want, "noop")
		case o <= before.committed:
			want = append(want, "already")
		case o == filed:
			want = append(want, "dlq")
		default:
			want = append(want, "ok")
		}
	}
	return want, released
}

// trim takes a step of retention on a lane and returns the messages that go by age, by completion and by waiting.
func (m *model) trim(l *modelLane) (byAge, byCompletion, byWait int64) {
	done := int64(-2) // no group at all: nothing is completed
	for _, group := range modelGroups {
		at := int64(-2)
		if k := l.cursors[group]; k != nil {
			at = k.committed
		} else if group == modelBilling && m.registered {
			at = l.start - 1
		}
		if at > -2 && (done == -2 || at < done) {
			done = at
		}
	}
	past := func(s *modelSegment, keep int) bool { return keep > 0 && s.hours*60 > keep }
	for _, s := range l.live() {
		n := s.end - s.base + 1
		switch {
		case past(s, m.keepAll):
			byAge += n
		case past(s, m.keepDone) && s.end <= done:
			byCompletion += n
		case past(s, m.keepWaiting):
			byWait += n
		default:
			return byAge, byCompletion, byWait
		}
		l.start = s.end + 1
	}
	return byAge, byCompletion, byWait
}

// trimTxns takes a step of the sidecar's.
func (m *model) trimTxns(l *modelLane) (rows int64) {
	keep := max(m.window, m.keepDone, 15)
	for _, s := range l.segments {
		if s.base >= l.txnsStart && s.hours*60 > keep {
			l.txnsStart = s.end + 1
			rows++
		}
	}
	return rows
}

// remove deletes lanes with their letters.
func (m *model) remove(lanes ...*modelLane) {
	for _, l := range lanes {
		delete(m.lanes, l.name)
		m.letters = slices.DeleteFunc(m.letters, func(x *modelLetter) bool { return x.lane == l })
	}
}

// What the statistics should say.

// counts of a lane, as its slowest reader sees it: named groups before queue mode.
func (m *model) counts(l *modelLane) (c Counts) {
	c.Total = l.last - l.start + 1
	slowest := l.start - 1
	for _, group := range []string{wire.QueueModeGroup, modelBilling} {
		if k := l.cursors[group]; k != nil {
			slowest = k.committed // billing, the only named one, is looked at last
		}
	}
	c.Pending = max(l.last-max(slowest, l.start-1), 0)
	for _, k := range l.cursors {
		c.Processing += k.leased()
	}
	c.Processing = min(c.Processing, c.Pending)
	for _, x := range m.letters {
		if x.lane == l {
			c.DeadLetter++
		}
	}
	return c
}

func (k *modelCursor) leased() int64 {
	if k == nil || k.batchEnd < 0 || k.expired {
		return 0
	}
	return k.batchEnd - k.committed
}

// pending is what a group has not acknowledged, with a cursor or without.
func (m *model) pending(l *modelLane, group string) int64 {
	at := l.start - 1
	if k := l.cursors[group]; k != nil {
		at = max(at, k.committed)
	}
	return max(l.last-at, 0)
}
