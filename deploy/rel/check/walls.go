package check

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// ordered judges C7: a request that breaks several rules at once is refused for the first of them. What has been spent to that
// end was spent for nothing where Redis has lost it, or a gateway decides alone, and what was edited where gateways cannot
// have heard of it.
func (j *judge) ordered(a *ask) {
	if a.Want == "" || a.kind == hist.Info || a.answer.Mode == "local" && j.header.Topology.Quota != "local" ||
		j.strayed(a.inv, a.ret, absent) || j.faults.touches(a.inv-int64(insists), a.ret, missedTime, "N20", "N23") || j.faults.forgot(a.ret) {
		return
	}
	j.rules[C7].checked++
	if got := a.refusal(); got != a.Want {
		j.bad(C7, []int64{a.op}, "%s (%s) was answered %q, want %q", a.Part, a.Cluster, got, a.Want)
	}
}

// walled judges I1: no answer shows a text of another tenant. The harness looks for them; here it is believed.
func (j *judge) walled(a *ask) {
	c := j.header.Cluster(a.Cluster)
	if c == nil || c.Canary == "" || a.status == 0 {
		return
	}
	j.rules[I1].checked++
	if a.answer.Leak != "" {
		j.bad(I1, []int64{a.op}, "%s was shown a text of another tenant: %s", a.Cluster, a.answer.Leak)
	}
}

// insists is for how long a push is sent before it is judged, until it is answered as it should be.
const insists = 8 * time.Second

// forgot reports whether Redis had lost what it knew at a time.
func (f *faults) forgot(at int64) bool {
	return slices.ContainsFunc(f.all, func(x *fault) bool {
		return x.Name == "N20" && (x.Action == "kill-9" || x.Action == "flush") && x.began < at
	})
}

const (
	// fullGateway is the workload in which a neighbour has no rate.
	fullGateway = "G6-turns"
	// fewest is how many latencies a percentile is taken of, at least.
	fewest = 50
	// crowd is how many times its plan a noisy neighbour must offer to prove anything.
	crowd = 50
	// waits is how many times as long as the victim alone a neighbour without a rate must wait, if others are to have turns,
	// and as the victim beside it, if they have them.
	waits = 3
	// elbow is how much slower a neighbour may make a victim, if twice is less.
	elbow = 50 * time.Millisecond
)

// noisy judges I2: a victim's p99 beside a neighbour that offers fifty times its plan, or its p90 beside one without a rate that
// has all places of a full gateway but those which turns give to others.
func (j *judge) noisy(c *hist.Cluster, asks []*ask) {
	took := map[string][]time.Duration{}
	from, to := never, int64(0) // when both were measured
	for _, a := range asks {
		if a.Part == "solo" || a.Part == "beside" {
			if a.kind != hist.OK {
				if a.kind == hist.Fail && j.faults.quiet(a.inv, a.ret) {
					j.bad(I2, []int64{a.op}, "%s was refused with %s %s, well within its plan", c.Name, a.refusal(), a.Part)
				}
				continue
			}
			if j.faults.quiet(a.inv, a.ret) {
				took[a.Part] = append(took[a.Part], time.Duration(a.ret-a.inv))
				from, to = min(from, a.inv), max(to, a.ret)
			}
		}
	}
	if len(took) == 0 {
		return
	}
	of, nth, least := "p99", 99, fewest
	if c.Workload == fullGateway {
		of, nth, least = "p90", 90, fewest/3 // who gets no turn is slow
	}
	if len(took["solo"]) < least || len(took["beside"]) < least {
		j.lacking(I2, from, to, "%d latencies alone and %d beside a neighbour, want %d of each", len(took["solo"]), len(took["beside"]), least)
		return
	}
	bound, none := time.Duration(0), time.Duration(math.MaxInt64) // none: who waits for so long has no turns, on any machine
	for _, o := range j.gates.offers {
		n := j.header.Cluster(o.Cluster)
		if n == nil || n.Workload != c.Workload {
			continue
		}
		if n.Limits.RequestRate == 0 {
			if waited := time.Duration(o.MedianMs * float64(time.Millisecond)); waited < waits*percentile(took["solo"], 50) {
				j.lacking(I2, from, to, "%s waited for %s at most times, and proves nothing of turns", o.Cluster, waited.Round(time.Millisecond))
			} else {
				bound, none = waited/waits, waited*2/waits
			}
			continue
		}
		if times := float64(o.Requests) / o.Seconds / n.Limits.RequestRate; times < crowd {
			j.lacking(I2, from, to, "%s offered %.0f times its plan, want %d", o.Cluster, times, crowd)
		}
	}
	j.rules[I2].checked++
	solo, beside := percentile(took["solo"], nth), percentile(took["beside"], nth)
	if bound = max(bound, 2*solo, solo+elbow); beside <= bound {
		return
	}
	what := fmt.Sprintf("%s: %s is %s beside a noisy neighbour and %s alone; %s is allowed", c.Name, of, beside.Round(100*time.Microsecond),
		solo.Round(100*time.Microsecond), bound.Round(100*time.Microsecond))
	if beside > none {
		j.bad(I2, nil, "%s", what)
	} else {
		j.late(I2, from, to, nil, "%s", what)
	}
}

func percentile(d []time.Duration, n int) time.Duration {
	slices.Sort(d)
	return d[len(d)*n/100]
}

// refusal is what an answer said, in the words of AskArgs.Want.
func (a *ask) refusal() string { return a.answer.Refusal(a.status) }
