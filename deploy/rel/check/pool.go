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
			over := f.over()
			if o.inv < f.observed+int64(foundOut) {
				if last := f.observed + int64(foundOut+promptly); f.cutsOff() && over > last && int64(e.T) > f.observed {
					j.rules[P2].checked++
					if int64(e.T) > last {
						j.late(P2, f.observed, int64(e.T), []int64{e.Op}, "a push was under way until %s after %s had failed (%s)", clockTime(int64(e.T)-f.observed), f.Target, f.Action)
					}
				}
				continue
			}
			// What still waits when the fault is over counts too, if it was sent long enough before.
			if over != never && o.inv+int64(promptly) > over {
				continue
			}
			j.rules[P2].checked++
			switch took := time.Duration(int64(e.T) - o.inv); {
			case took > promptly:
				j.late(P2, f.observed, int64(e.T), []int64{e.Op}, "a push took %s, %s after %s had failed (%s)", took.Round(time.Millisecond), clockTime(o.inv-f.observed), f.Target, f.Action)
			case e.Kind != hist.OK:
				j.late(P2, f.observed, int64(e.T), []int64{e.Op}, "a push ended in %d %s, %s after %s had failed (%s)", e.Status, e.Err, clockTime(o.inv-f.observed), f.Target, f.Action)
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
		return f.Action != "errors" && f.Action != "refusals" && f.Action != "lost"
	}
	return false
}

// pooled judges P2 by what a gateway says of its pool: answers that are lost never leave it less than half of the brokers
// that are there. It must say so twice, since it is not asked in one moment.
func (j *judge) pooled(n *hist.PoolNote) {
	short := func(n *hist.PoolNote) bool { return n != nil && 2*n.Live >= n.Brokers && 2*n.Serving < n.Brokers }
	g := &j.gates
	if g.pools == nil {
		g.pools = map[string]*hist.PoolNote{}
	}
	was := g.pools[n.Gateway]
	g.pools[n.Gateway] = n
	for _, f := range j.faults.all {
		if f.Name != "N4" || f.Action != "lost" || f.observed == never || f.ended != never {
			continue
		}
		j.rules[P2].checked++
		if short(was) && short(n) {
			j.bad(P2, nil, "%s sends to %d of %d brokers, of which %d answer its probes", n.Gateway, n.Serving, n.Brokers, n.Live)
		}
	}
}

func isBroker(h *hist.Header, name string) bool { return slices.Contains(h.Topology.Brokers, name) }
