package check

import (
	"fmt"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// What makes a machine a busy one for a while: a timer of 1 ms that was late by lateMs, or others that had crowded of all CPUs
// while somebody waited for one in crowded of the time. What the run's own processes spend is no excuse.
const lateMs, crowded = 100, 0.25

// How late a timer of 1 ms is at p99 on a machine that was too busy all the time, and on one of which nothing is to be
// learned. A quiet one is late by 1 to 3 ms.
const busyMs, noisyMs = 25, 100

// aftermath is for how long what was held up while the machine was busy may go on to be late.
const aftermath = 2 * time.Second

// machine is what the machine was like during a run.
type machine struct {
	known, busy int // how many times were looked at, and at how many it was busy
	times       []busyTime
	always      string // why all of the run counts as a busy time, "" if it does not
	over        []overtime
}

type busyTime struct {
	from, to int64
	why      string
}

func (m *machine) noted(at int64, n *hist.MachineNote) {
	m.known++
	t := busyTime{from: at - n.ForMs*milli, to: at}
	switch {
	case n.Others >= crowded && n.Wait >= crowded:
		t.why = fmt.Sprintf("others had %.0f %% of the CPUs", 100*n.Others)
	case n.LateMs >= lateMs:
		t.why = fmt.Sprintf("a timer of 1 ms was late by %.0f ms", n.LateMs)
	default:
		return
	}
	m.busy++
	m.times = append(m.times, t)
}

// mostly is the part of a run behind which a machine that was busy is why there was too little of something.
const mostly = 0.5

// part is that of the run in which the machine was busy.
func (m *machine) part() float64 {
	switch {
	case m.always != "":
		return 1
	case m.known == 0:
		return 0
	}
	return float64(m.busy) / float64(m.known)
}

// within says why the machine was busy in a time, or shortly before it; "" if it was not.
func (m *machine) within(from, to int64) string {
	for _, t := range m.times {
		if t.from < to && t.to+int64(aftermath) > from {
			return t.why
		}
	}
	return m.always
}

// overtime is something that was late, or not enough, in a time: a violation, unless the machine was busy then.
type overtime struct {
	rule     Rule
	from, to int64
	open     bool // it leaves the rule open, instead
	violation
}

// late notes a violation that a busy machine explains, if it was busy in a time: then the fact is not judged. That is
// seen at the end, since what the machine was like is told afterwards.
func (j *judge) late(r Rule, from, to int64, ops []int64, format string, args ...any) {
	j.machine.over = append(j.machine.over, overtime{rule: r, from: from, to: to, violation: violation{fmt.Sprintf(format, args...), ops}})
}

// lacking is late for what leaves a rule open on any machine.
func (j *judge) lacking(r Rule, from, to int64, format string, args ...any) {
	j.machine.over = append(j.machine.over, overtime{rule: r, from: from, to: to, open: true, violation: violation{fmt.Sprintf(format, args...), nil}})
}

// settleOvertime judges what was late, when it is known what the machine was like.
func (j *judge) settleOvertime() {
	for _, o := range j.machine.over {
		f := &j.rules[o.rule]
		switch why := j.machine.within(o.from, o.to); {
		case why != "":
			if f.busy == "" {
				f.busy = fmt.Sprintf("%s; and %s", o.text, why)
			}
			f.unjudged++
		case o.open:
			j.unknown(o.rule, "%s", o.text)
		default:
			j.bad(o.rule, o.ops, "%s", o.text)
		}
	}
	j.machine.over = nil
}
