package check

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// ordered judges C7: a request that breaks several rules at once is refused for the first of them.
func (j *judge) ordered(a *ask) {
	if a.Want == "" || a.kind == hist.Info {
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
		j.unknown(I2, "%d latencies alone and %d beside a neighbour, want %d of each", len(took["solo"]), len(took["beside"]), least)
		return
	}
	bound := time.Duration(0)
	for _, o := range j.gates.offers {
		n := j.header.Cluster(o.Cluster)
		if n == nil || n.Workload != c.Workload {
			continue
		}
		if n.Limits.RequestRate == 0 {
			if waited := time.Duration(o.MedianMs * float64(time.Millisecond)); waited < waits*percentile(took["solo"], 50) {
				j.unknown(I2, "%s waited for %s at most times, and proves nothing of turns", o.Cluster, waited.Round(time.Millisecond))
			} else {
				bound = waited / waits
			}
			continue
		}
		if times := float64(o.Requests) / o.Seconds / n.Limits.RequestRate; times < crowd {
			j.unknown(I2, "%s offered %.0f times its plan, want %d", o.Cluster, times, crowd)
		}
	}
	j.rules[I2].checked++
	solo, beside := percentile(took["solo"], nth), percentile(took["beside"], nth)
	if bound = max(bound, 2*solo, solo+elbow); beside > bound {
		j.bad(I2, nil, "%s: %s is %s beside a noisy neighbour and %s alone; %s is allowed", c.Name, of, beside.Round(100*time.Microsecond),
			solo.Round(100*time.Microsecond), bound.Round(100*time.Microsecond))
	}
}

func percentile(d []time.Duration, n int) time.Duration {
	slices.Sort(d)
	return d[len(d)*n/100]
}

// refusal is what an answer said, in the words of AskArgs.Want.
func (a *ask) refusal() string {
	return strings.TrimRight(strconv.Itoa(a.status)+" "+a.answer.Code+" "+a.answer.Limit, " ")
}
