package quota

import (
	"time"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/quota/meter"
)

// monthCount is what this gateway has counted of one month, all of it.
type monthCount struct {
	month meter.Month
	own   int64
	saved int64 // of own, in the control database
}

// month counts the messages of the current calendar month of the tenant. Not safe for concurrent use.
//
// Its use is what others have counted, as far as this gateway has heard, and what it has counted itself. own is known only
// when others is: a gateway that forgot a cluster and meets it again has a row to go on from.
type month struct {
	monthCount
	begin, end int64 // Unix seconds, half-open; both zero before the first roll
	known      bool  // others is what the database or Redis said
	others     int64 // counted by others; in a fleet also what they have admitted
	reserved   int64 // admitted here, not yet ended
	anchor     int64 // own and reserved when others was heard
	heard      int64 // Unix seconds: when others was heard of the database

	warned int // the highest mark of the allowance that this gateway has told, in percent

	past      monthCount // the month before: what was admitted in it ends in it
	pastKnown bool
}

// roll begins a new month when now lies beyond the counted one. What is known of it has to be asked.
func (m *month) roll(now time.Time, zone plans.Zone) {
	if t := now.Unix(); t < m.end && t >= m.begin {
		return
	}
	id, begin, end := meter.MonthOf(now, zone.Location())
	m.begin, m.end = begin.Unix(), end.Unix()
	switch id {
	case m.month:
	case m.past.month: // the tenant moved west within hours of the turn
		m.past, m.monthCount = m.monthCount, m.past
		m.known, m.pastKnown = m.pastKnown, m.known
		m.renew()
	default:
		m.past, m.monthCount = m.monthCount, monthCount{month: id}
		m.known, m.pastKnown = false, m.known
		m.renew()
	}
}

func (m *month) renew() { m.others, m.reserved, m.anchor, m.warned = 0, 0, 0, 0 }

// move makes the next roll look at the calendar anew: the tenant's zone is another one.
func (m *month) move() { m.begin, m.end = 0, 0 }

// caution is which part of its part of what is left a gateway uses while Redis is away, from one saving to the next. Each
// has seen what the others had used a saving ago: with a quarter, what is left never falls below nothing for that.
const caution = 4

// used is what the month has used, with the requests in flight. Of parts gateways that hear of each other by the database
// alone, each counts what it has added itself since then for all of them, and more.
func (m *month) used(parts int64) int64 {
	if parts > 1 {
		parts *= caution
	}
	return m.others + m.anchor + parts*(m.own+m.reserved-m.anchor)
}

// hear takes what was counted in the current month: all of it, and this gateway's part of that.
func (m *month) hear(all, ours int64) {
	if !m.known {
		m.known = true
		m.own += ours // counted by this gateway before it forgot the cluster
	}
	m.others = max(0, all-ours)
	m.anchor = ours
}

// count adds messages to the month they were admitted in. One that is over for longer is saved and done.
func (m *month) count(in meter.Month, messages int64) {
	switch in {
	case m.month:
		m.own += messages
	case m.past.month:
		m.past.own += messages
	}
}

// unsaved reports that the control database lacks something of it.
func (m *month) unsaved() bool { return m.own > m.saved || m.past.own > m.past.saved }

// until is the time to the next month.
func (m *month) until(now time.Time) time.Duration { return max(0, time.Unix(m.end, 0).Sub(now)) }
