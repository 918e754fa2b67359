package check

import "github.com/queengate/queengate/deploy/rel/hist"

// clock relates the clock of the database to that of the run. Every push that was answered queued, and whose record was
// read, bounds the difference: its creation lies between its invocation and its completion.
type clock struct {
	known    bool
	low, top int64 // database time - run time lies between
}

// wide is how far apart the bounds may lie, or cross, for the relation to be of use.
const wide = 50 * milli

// settle finds the bounds.
func (c *clock) settle(j *judge) {
	if j.faults.clock {
		return // the clock of the database was tampered with
	}
	low, top := -never, never
	for _, l := range j.all {
		for i := range l.items {
			it := &l.items[i]
			r := l.at(it.offset)
			if it.label != hist.ItemQueued || r == nil || r.tx != it.tx || r.hash != it.hash {
				continue
			}
			created := r.created
			if !r.precise {
				created += milli
			}
			low, top = max(low, r.created-it.ret), min(top, created-it.inv)
		}
	}
	if low > top { // the clocks drift a little
		low, top = top, low
	}
	c.low, c.top, c.known = low, top, low > -never && top < never && top-low <= wide
}

// latest is the latest time of the run at which a record can have been created.
func (c *clock) latest(r *record) int64 {
	created := r.created
	if !r.precise {
		created += milli
	}
	return created - c.low
}

// earliest is the earliest time of the run at which a record can have been created.
func (c *clock) earliest(r *record) int64 { return r.created - c.top }
