package check

import (
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

const (
	// toldTime is how long a revocation may take when gateways hear of it, and missedTime how long after they can ask the
	// control database again when they could not.
	toldTime   = time.Second
	missedTime = 3 * time.Second
)

// revocations judges Y1: what is revoked opens nothing, on any gateway, from a second later on and for ever.
func (j *judge) revocations() {
	for _, x := range j.gates.cuts {
		due, worked := x.at+int64(toldTime), false
		for _, f := range j.faults.all {
			if f.Name == "N23" && f.began < due && f.ended > x.at {
				due = f.ended + int64(missedTime)
				if f.ended == never {
					due = never
				}
			}
		}
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
			if a.kind == hist.OK {
				j.bad(Y1, []int64{a.op}, "%s: %s (%s) was revoked at %s, and %s lets it in %s later", x.Cluster, x.Key, x.How, clockTime(x.at), a.node,
					time.Duration(a.inv-x.at).Round(time.Millisecond))
			}
		}
	}
}
