package quota

import "time"

// Retained bytes are blocked at the cap and, once a broker has measured them there, released at releasePercent of it,
// so that a cluster at its cap does not flap. An estimate blocks only while it stands and, before it refuses anybody, is
// measured again: it may count the pushes around a measure twice, and a false figure must not outlive the next true one.
// Where no broker answers it sets the block itself. A plan edit is judged afresh.
const releasePercent = 90

// depositsKept bounds the history of stored bytes. When a broker has not measured for longer than that many slots,
// the oldest are merged into the later one: counted too long rather than too short.
const depositsKept = 1024

// depositSlot is how finely stored bytes are told apart in time: what was stored in the slot of a measure counts twice
// until the next one.
const depositSlot = 10 * time.Millisecond

func slotOf(t time.Time) int64 { return t.UnixNano() / int64(depositSlot) }

// deposit is what was stored in one slot, named by its end: bytes counted until a measure that is certainly later.
type deposit struct{ until, bytes int64 }

// storage estimates the retained bytes of a cluster: the last measure, plus what was stored since it was computed,
// plus what is admitted and not yet ended. The in-flight part is dropped by timestamp, never because the measured
// value changed: pushes and expiry may cancel out to the byte. Not safe for concurrent use.
//
// In a fleet Redis has the estimate (decide.lua). Then mirrored is set, others is what it said last without what this
// gateway holds, and only untold and reserved are this gateway's to add.
type storage struct {
	measured int64
	computed time.Time // of the measure; zero: none yet
	recent   []deposit // oldest first
	since    int64     // sum of recent
	reserved int64     // admitted, not yet ended
	blocked  bool

	mirrored bool
	others   int64
	untold   int64 // stored, and not yet told to Redis
	untoldAt int64 // when the last of it was, on the gate's clock
	least    int64 // what this gateway knows is retained since Redis was away, until Redis was told; 0: nothing
	shut     bool  // that the cluster is blocked, likewise
}

// settled is what is certainly there.
func (s *storage) settled() int64 {
	if s.mirrored {
		return s.others + s.untold
	}
	return s.measured + s.since
}

// total is what may be there, with the requests in flight. Of parts gateways that do not hear of each other, each counts
// what it adds itself for all of them.
func (s *storage) total(parts int64) int64 {
	if s.mirrored {
		return s.settled() + s.reserved
	}
	return s.measured + parts*(s.since+s.reserved)
}

// full reports whether a push must be refused: by the estimate of this moment, or because a measure set the block.
func (s *storage) full(cap, parts int64) bool { return s.blocked || s.total(parts) >= cap }

// mirror hands the estimate over to Redis, which may have stood still meanwhile: what it says counts only from what this
// gateway knows upwards, until the next measure. t is now, on the gate's clock.
func (s *storage) mirror(t int64) {
	s.least, s.shut = s.settled(), s.blocked
	s.untold, s.untoldAt, s.others = s.since, t, s.measured
	s.mirrored, s.recent, s.since = true, nil, 0
}

// part takes the estimate back at now: what Redis said last, and what it was not told.
func (s *storage) part(now time.Time) {
	untold := s.untold
	s.measured, s.computed = s.others, time.Time{}
	s.mirrored, s.untold = false, 0
	s.store(untold, now)
}

// judge sets or releases the block; fresh ignores the hysteresis. nil is unlimited.
func (s *storage) judge(cap *int64, fresh bool) {
	switch {
	case cap == nil:
		s.blocked = false
	case s.mirrored: // Redis judges
	case s.measured >= *cap:
		s.blocked = true
	case fresh || s.settled() <= releaseLevel(*cap):
		s.blocked = false
	}
}

// block sets the block when the estimate is at the cap without the requests of this gateway in flight. Redis hears of it
// with the next call.
func (s *storage) block(cap int64) {
	switch {
	case s.settled() < cap:
	case s.mirrored:
		s.shut = true
	default:
		s.blocked = true
	}
}

// releaseLevel is the level at which a block ends, without overflow for any cap.
func releaseLevel(cap int64) int64 { return cap/100*releasePercent + cap%100*releasePercent/100 }

// store adds bytes that a broker acknowledged at now. They may have been committed a little earlier, and a measure in
// between then counts them twice until the next one.
func (s *storage) store(bytes int64, now time.Time) {
	if bytes <= 0 {
		return
	}
	if s.mirrored {
		s.untold += bytes
		return
	}
	s.since += bytes
	until := slotOf(now) + 1
	if n := len(s.recent); n > 0 && s.recent[n-1].until >= until {
		s.recent[n-1].bytes += bytes
		return
	}
	if len(s.recent) == depositsKept {
		s.recent[1].bytes += s.recent[0].bytes
		s.recent = append(s.recent[:0], s.recent[1:]...)
	}
	s.recent = append(s.recent, deposit{until, bytes})
}

// measure takes a broker's figure. An older one than the last, which another broker may send, is ignored.
func (s *storage) measure(u Usage) bool {
	if !u.ComputedAt.After(s.computed) {
		return false
	}
	s.measured, s.computed = max(0, u.RetainedBytes), u.ComputedAt
	kept := s.recent[:0]
	s.since = 0
	for _, d := range s.recent {
		if d.until > slotOf(u.ComputedAt) {
			kept = append(kept, d)
			s.since += d.bytes
		}
	}
	s.recent = kept
	return true
}
