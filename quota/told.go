package quota

import "time"

// told is what Redis has decided of a request. Rules ask it before they believe the account, which in a fleet knows only
// this gateway's part.
type told struct {
	mask, over uint16 // by bit of a limit

	parked     int64 // slots taken in the fleet
	untilSlot  time.Duration
	queues     int // names there are
	newQueues  int // and those the request adds
	partitions int // of the fullest queue it touches, with the new ones
	growsTo    int // of the fullest that grows; 0: none does
}

// toldBits are the bits of the limits that Redis decides, as decide.lua has them.
var toldBits = [limitCount]uint16{
	limitRequests: 1, limitMessages: 2, limitQueues: 4, limitPartitions: 8, limitParked: 16,
	limitDelivery: 32, limitKeyRequests: 64, limitKeyMessages: 128, limitStorage: 256, limitMonth: 512,
}

// asked reports whether Redis has decided the limit.
func (t *told) asked(l limit) bool { return t != nil && t.mask&toldBits[l] != 0 }

// correct is how the request stands with the limit: as Redis says, if it was asked.
func (t *told) correct(l limit, s standing) standing {
	switch {
	case !t.asked(l):
		return s
	case t.over&toldBits[l] != 0:
		return over
	case s == over:
		return fits
	}
	return s
}

// count puts the fleet's counts into a survey of this gateway's names.
func (t *told) count(s *survey) {
	if t.asked(limitQueues) {
		s.queues, s.newQueues = t.queues, t.newQueues
	}
	if t.asked(limitPartitions) {
		s.partitions = max(s.partitions, t.partitions)
		s.grows, s.growsTo = t.growsTo > 0, t.growsTo
	}
}

// park counts the request's own slot.
func (t *told) park() {
	if t.asked(limitParked) {
		t.parked++
	}
}
