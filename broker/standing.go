package broker

import (
	"time"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// The status of a message is arithmetic: its offset against the cursors of its partition. What counts is the slowest
// named group, or the shared queue-mode cursor when no group is named, as in every other statistic of a queue.

// reading is how far the readers of a partition are.
type reading struct {
	queue  *store.BrowseCursor  // the queue-mode cursor; nil: nobody read that way
	groups []store.BrowseCursor // the named ones
	floor  int64                // completed up to here
	leased int64                // the highest offset of a live lease that counts; -1: none
}

func readingOf(l *store.BrowseLane) reading {
	r := reading{floor: l.LogStart - 1, leased: -1}
	for i := range l.Cursors {
		if c := &l.Cursors[i]; c.Group == wire.QueueModeGroup {
			r.queue = c
		} else {
			r.groups = append(r.groups, *c)
		}
	}
	for i, c := range r.counted() {
		if i == 0 || c.Committed < r.floor {
			r.floor = c.Committed
		}
		if !c.Expires.IsZero() {
			r.leased = max(r.leased, c.BatchEnd)
		}
	}
	return r
}

// counted are the cursors that decide on a status.
func (r *reading) counted() []store.BrowseCursor {
	if len(r.groups) == 0 && r.queue != nil {
		return []store.BrowseCursor{*r.queue}
	}
	return r.groups
}

// narrow leaves the offsets that may have a status.
func (l *browseLane) narrow(status string) {
	switch status {
	case statusPending:
		l.Low = max(l.Low, l.floor+1)
	case statusProcessing:
		l.Low, l.High = max(l.Low, l.floor+1), min(l.High, l.leased)
	case statusCompleted:
		l.High = min(l.High, l.floor)
	}
}

// standing is what the readers think of one message.
type standing struct {
	status      string
	queueStatus string // "" when nobody reads in queue mode
	consumedBy  int    // named groups that have passed it
	groups      int    // named groups
	leasedUntil time.Time
}

func (r *reading) standing(at int64, dead bool) standing {
	s := standing{status: statusPending, groups: len(r.groups)}
	if at <= r.floor {
		s.status = statusCompleted
	}
	for _, c := range r.counted() {
		if leases(&c, at) && s.status == statusPending {
			s.status = statusProcessing
		}
	}
	for i := range r.groups {
		c := &r.groups[i]
		if c.Committed >= at {
			s.consumedBy++
		}
		s.lease(c, at)
	}
	if r.queue != nil {
		s.lease(r.queue, at)
		switch {
		case r.queue.Committed >= at:
			s.queueStatus = statusCompleted
		case leases(r.queue, at):
			s.queueStatus = statusProcessing
		default:
			s.queueStatus = statusPending
		}
	}
	if dead {
		s.status = statusDead
	}
	return s
}

// leases reports that the message is out under a live lease of the group.
func leases(c *store.BrowseCursor, at int64) bool {
	return !c.Expires.IsZero() && c.Committed < at && at <= c.BatchEnd
}

func (s *standing) lease(c *store.BrowseCursor, at int64) {
	if leases(c, at) && c.Expires.After(s.leasedUntil) {
		s.leasedUntil = c.Expires
	}
}

// browseMode says how the partitions of an answer are read.
type browseMode struct {
	queue  bool
	groups map[string]struct{}
}

func (m *browseMode) learn(lanes []*store.BrowseLane) {
	for _, l := range lanes {
		for _, c := range l.Cursors {
			if c.Group == wire.QueueModeGroup {
				m.queue = true
				continue
			}
			if m.groups == nil {
				m.groups = map[string]struct{}{}
			}
			m.groups[c.Group] = struct{}{}
		}
	}
}

func (m *browseMode) append(dst []byte) []byte {
	kind := "none"
	switch {
	case m.queue && len(m.groups) > 0:
		kind = "hybrid"
	case m.queue:
		kind = "queue"
	case len(m.groups) > 0:
		kind = "bus"
	}
	dst = append(dst, `{"hasQueueMode":`...)
	dst = appendBool(dst, m.queue)
	dst = appendInt(dst, `,"busGroupsCount":`, int64(len(m.groups)))
	return append(dst, `,"type":"`+kind+`"}`...)
}
