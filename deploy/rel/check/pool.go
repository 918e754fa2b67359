package check

import (
	"slices"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

const (
	// foundOut is how long a broker that fails may still be asked.
	foundOut = 2500 * time.Millisecond
	// promptly is how long a push may take when no broker that fails is asked, and one that was under way at it when it is
	// found out.
	promptly = 1500 * time.Millisecond
)

// pool judges P1 and P2: no pop ends in a 5xx because of a broker, and a broker that fails is found out in 2.5 s: then
// nobody waits for it any more, and nobody is sent to it.
func (j *judge) pool(o *operation, e *hist.Event) {
	switch a := o.event.A.(type) {
	case *hist.PopArgs:
		if q := j.header.Queue(o.event.Tenant, a.Queue); q == nil || q.Workload != "G11" {
			return
		}
		j.rules[P1].checked++
		if e.Status >= 500 {
			j.bad(P1, []int64{e.Op}, "a pop of %s ended in %d %s", a.Queue, e.Status, e.Err)
		}
	case *hist.PushArgs:
		if q := j.header.Queue(o.event.Tenant, a.Items[0].Queue); q == nil || q.Workload != "G11" {
			return
		}
		for _, f := range j.faults.all {
			if f.observed == never || !isBroker(j.header, f.Target) {
				continue
			}
			if o.inv < f.observed+int64(foundOut) {
				if last := f.observed + int64(foundOut+promptly); f.cutsOff() && f.over() > last && int64(e.T) > f.observed {
					j.rules[P2].checked++
					if int64(e.T) > last {
						j.bad(P2, []int64{e.Op}, "a push was under way until %s after %s had failed (%s)", clockTime(int64(e.T)-f.observed), f.Target, f.Action)
					}
				}
				continue
			}
			if f.over() != never {
				continue
			}
			j.rules[P2].checked++
			switch took := time.Duration(int64(e.T) - o.inv); {
			case e.Kind != hist.OK:
				j.bad(P2, []int64{e.Op}, "a push ended in %d %s, %s after %s had failed (%s)", e.Status, e.Err, clockTime(o.inv-f.observed), f.Target, f.Action)
			case took > promptly:
				j.bad(P2, []int64{e.Op}, "a push took %s, %s after %s had failed (%s)", took.Round(time.Millisecond), clockTime(o.inv-f.observed), f.Target, f.Action)
			}
		}
	}
}

// cutsOff reports whether nothing comes back from a broker that the fault has: it is gone, stands still, or is not reached.
func (f *fault) cutsOff() bool {
	switch f.Name {
	case "N1", "N3":
		return true
	case "N4":
		return f.Action != "errors"
	}
	return false
}

func isBroker(h *hist.Header, name string) bool { return slices.Contains(h.Topology.Brokers, name) }
