package check

import (
	"fmt"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

const (
	// toldTime is how long a revocation may take when gateways hear of it, and missedTime how long after they can ask the
	// control database again when they could not.
	toldTime   = time.Second
	missedTime = 3 * time.Second
	// foundTime is how long it may take when they are not notified and must find it, and lateTime when each answer of the
	// control database is late, and it takes some to know.
	foundTime = 2 * time.Second
	lateTime  = 5 * time.Second
	// mostLate is how long after that no machine is too busy for anybody to know.
	mostLate = 5 * time.Second
	// standTime is how long a gateway may need to go on without its control database, and startTime to start without it.
	standTime = time.Second
	startTime = 3 * time.Second
)

// due is when the last gateway must know what was revoked at a time.
func (j *judge) due(at int64) int64 {
	due := at + int64(toldTime)
	for _, f := range j.faults.all {
		if f.Name != "N23" || f.began >= due || f.ended <= at {
			continue
		}
		switch {
		case f.Action == "mute":
			due = max(due, at+int64(foundTime))
		case f.Action == "slow":
			due = max(due, at+int64(lateTime))
		case f.ended == never:
			return never
		default:
			due = max(due, f.ended+int64(missedTime))
		}
	}
	return due
}

// revocations judges Y1: what is revoked opens nothing, on any gateway, from a second later on and for ever.
func (j *judge) revocations() {
	for _, x := range j.gates.cuts {
		due, worked := j.due(x.at), false
		for _, a := range j.gates.asks[x.Cluster] {
			if a.Key != x.Key {
				continue
			}
			worked = worked || a.kind == hist.OK && a.inv < x.at
			if a.inv <= due || !worked {
				continue
			}
			if a.kind != hist.Info {
				j.rules[Y1].checked++
			}
			if a.kind != hist.OK {
				continue
			}
			what := fmt.Sprintf("%s: %s (%s) was revoked at %s, and %s lets it in %s later", x.Cluster, x.Key, x.How, clockTime(x.at), a.node,
				time.Duration(a.inv-x.at).Round(time.Millisecond))
			if a.inv > due+int64(mostLate) {
				j.bad(Y1, []int64{a.op}, "%s", what)
			} else {
				j.late(Y1, x.at, a.inv, []int64{a.op}, "%s", what)
			}
		}
	}
}

// steady judges Y2: while the control database is away, who is not revoked is served by all gateways.
func (j *judge) steady() {
	for _, f := range j.faults.all {
		if f.Name != "N23" || f.Action == "slow" || f.Action == "mute" || f.observed == never {
			continue
		}
		for i := range j.header.Clusters {
			for _, a := range j.gates.asks[j.header.Clusters[i].Name] {
				grace := standTime
				if a.node == f.Target {
					grace = startTime
				}
				if a.Part != "steady" || a.inv < f.observed+int64(grace) || a.ret > f.over() {
					continue
				}
				j.rules[Y2].checked++
				if a.kind != hist.OK {
					j.late(Y2, f.observed, a.ret, []int64{a.op}, "%s: %s answered %d %s, %s after the control database had gone (%s)", a.Cluster, a.node, a.status,
						a.answer.Code, time.Duration(a.inv-f.observed).Round(time.Millisecond), f.Action)
				}
			}
		}
	}
}
