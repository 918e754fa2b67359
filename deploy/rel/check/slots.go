package check

import (
	"slices"
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
	// restTime is how long a process has had to let go of what clients held, when it is looked at after a storm.
	restTime = 12 * time.Second
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

// counted reports whether slots are counted as ever in a time: whatever happens to brokers and to the control database, but
// not while Redis is away, or a gateway stands still.
func (f *faults) counted(from, to int64) bool {
	return f.quiet(from, to, "N1", "N2", "N3", "N4", "N5", "N8", "N23") && !slices.ContainsFunc(f.all, func(x *fault) bool {
		stands := x.Name == "N2" && x.Action == "pause" || x.Name == "N20" // what is let go meanwhile ends with its deadline
		return stands && x.began < to && (x.ended == never || x.ended+int64(reunited) > from)
	})
}

// slots judges the cap of C4: never more polls wait than the plan allows, and none is refused while there is room.
func (j *judge) slots(c *hist.Cluster, asks []*ask) {
	most := c.Limits.Parked
	if most == 0 {
		return
	}
	for _, a := range asks {
		if a.Does != hist.DoesPoll || !j.faults.counted(a.inv, min(a.ret, a.released())) || j.estranged(a.inv, a.ret) {
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
				j.late(C4, a.inv-int64(letGo), a.ret, []int64{a.op}, "%s: a poll was refused while at most %d of %d slots can have been taken", c.Name, maybe, most)
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
				j.late(C4, a.inv, at, []int64{a.op}, "%s: %d polls wait, and %d may", c.Name, sure, most)
			}
		}
	}
}

// gauges judges the gauges of C4: at rest a gateway counts just the polls that wait at it, and none a second after their
// clients are gone; nor does a broker have more polls waiting than there are.
func (j *judge) gauges() {
	for _, p := range j.gates.parked {
		broker := isBroker(j.header, p.Gateway)
		from, open, rest := p.from-int64(letGo), 0, true
		for _, a := range j.gates.polls {
			// A refused poll holds no slot, however long its refusal takes.
			if !broker && a.node != p.Gateway || a.inv > p.to || a.kind == hist.Fail {
				continue
			}
			rest = rest && a.inv < from && (a.ret < from || a.ret > p.to+int64(onItsWay))
			if a.ret > p.to {
				open++
			}
		}
		if !rest || len(j.gates.polls) == 0 {
			continue
		}
		if broker {
			if j.faults.quiet(from, p.to) {
				j.rules[C4].checked++
				if p.Polls > open {
					j.late(C4, from, p.to, nil, "%s has %d waiting polls at %s, when %d wait at all gateways", p.Gateway, p.Polls, clockTime(p.to), open)
				}
			}
			continue
		}
		if j.faults.touches(from, p.to, 0, "N2") || j.faults.rebooted(from, p.to) {
			continue
		}
		j.rules[C4].checked++
		if open != p.Polls {
			j.late(C4, from, p.to, nil, "%s counts %d waiting polls at %s, when %d wait", p.Gateway, p.Polls, clockTime(p.to), open)
		}
	}
}

// rebooted reports whether a gateway was down in a time because it had to start without its control database.
func (f *faults) rebooted(from, to int64) bool {
	return slices.ContainsFunc(f.all, func(x *fault) bool { return x.Action == "reboot" && x.began < to && x.ended > from })
}

// rests judges F1: a process that went through a storm of clients holds what it held before.
func (j *judge) rests() {
	before := map[string]*rest{}
	for _, n := range j.gates.rests {
		if !n.After {
			before[n.Process] = n
			continue
		}
		was := before[n.Process]
		if was == nil || was.PID != n.PID {
			continue // it was started anew
		}
		j.rules[F1].checked++
		if !n.Within(was.RestNote) {
			j.late(F1, n.at-int64(restTime), n.at, nil, "%s has %d goroutines and %d open files after the storm, and had %d and %d before", n.Process, n.Goroutines, n.Files, was.Goroutines, was.Files)
		}
	}
}
