package check

import (
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

const (
	// letGo is how long a slot may be held after its poll has ended, or its client is gone.
	letGo = time.Second
	// onItsWay is how long an answer may take to the client that the gateway does not count any more.
	onItsWay = 250 * time.Millisecond
	// dead is how long after the last end of its polls a killed gateway may keep their slots.
	dead = 10 * time.Second
	// held is how long a waiting pop that is refused is kept, at most, before it is told.
	held = 1500 * time.Millisecond
)

// released is when a poll surely holds no slot any more.
func (a *ask) released() int64 {
	if a.kind == hist.Info && !a.gone { // its gateway may be dead
		return a.inv + int64(a.WaitMs)*milli + int64(dead)
	}
	if a.ret == never {
		return a.inv + int64(a.WaitMs)*milli + int64(dead)
	}
	return a.ret + int64(letGo)
}

// slots judges the cap of C4: never more polls wait than the plan allows, and none is refused while there is room.
func (j *judge) slots(c *hist.Cluster, asks []*ask) {
	most := c.Limits.Parked
	if most == 0 {
		return
	}
	for _, a := range asks {
		if a.Does != hist.DoesPoll || !j.faults.quiet(a.inv, min(a.ret, a.released()), "N2") {
			continue
		}
		switch {
		case a.status == 429 && a.answer.Limit == "parked":
			j.rules[C4].checked++
			maybe := 0
			for _, b := range asks {
				if b != a && b.Does == hist.DoesPoll && b.status != 429 && b.inv < a.ret && b.released() > a.inv {
					maybe++
				}
			}
			if maybe < most {
				j.bad(C4, []int64{a.op}, "%s: a poll was refused while at most %d of %d slots can have been taken", c.Name, maybe, most)
			}
		case a.kind == hist.OK:
			j.rules[C4].checked++
			// What waits for longer than a refusal takes was let in; count those that were when this one was.
			at := a.inv + int64(held)
			if a.ret < at {
				continue
			}
			sure := 0
			for _, b := range asks {
				if b.Does == hist.DoesPoll && b.inv+int64(held) <= at && b.ret >= at && (b.kind == hist.OK || b.gone) {
					sure++
				}
			}
			if sure > most {
				j.bad(C4, []int64{a.op}, "%s: %d polls wait, and %d may", c.Name, sure, most)
			}
		}
	}
}

// gauges judges the gauge of C4: at rest a gateway counts just the polls that wait at it, and none a second after their
// clients are gone.
func (j *judge) gauges() {
	for _, p := range j.gates.parked {
		from, open, rest := p.from-int64(letGo), 0, true
		for _, a := range j.gates.polls {
			// A refused poll holds no slot, however long its refusal takes.
			if a.node != p.Gateway || a.inv > p.to || a.kind == hist.Fail {
				continue
			}
			rest = rest && a.inv < from && (a.ret < from || a.ret > p.to+int64(onItsWay))
			if a.ret > p.to {
				open++
			}
		}
		if !rest || len(j.gates.polls) == 0 || j.faults.touches(from, p.to, 0, "N2") {
			continue
		}
		j.rules[C4].checked++
		if open != p.Polls {
			j.bad(C4, nil, "%s counts %d waiting polls at %s, when %d wait", p.Gateway, p.Polls, clockTime(p.to), open)
		}
	}
}
