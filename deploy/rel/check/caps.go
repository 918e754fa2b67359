package check

import (
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// caps judges C5 and C6 against what the database holds.
func (j *judge) caps(c *hist.Cluster) {
	l := &c.Limits
	for _, t := range j.gates.truths[c.Name] {
		if l.Queues > 0 {
			j.rules[C5].checked++
			if t.Queues > l.Queues {
				j.bad(C5, nil, "%s has %d queues at %s, and %d are allowed", c.Name, t.Queues, clockTime(t.at), l.Queues)
			}
		}
		if l.Partitions > 0 {
			j.rules[C5].checked++
			if t.Partitions > l.Partitions {
				j.bad(C5, nil, "%s has a queue of %d partitions at %s, and %d are allowed", c.Name, t.Partitions, clockTime(t.at), l.Partitions)
			}
		}
		if t.Full && (t.Queues < l.Queues || t.Partitions < l.Partitions) {
			j.late(C5, t.at-int64(filled), t.at, nil, "%s has %d queues and %d partitions, and cannot get to its %d and %d", c.Name, t.Queues, t.Partitions, l.Queues, l.Partitions)
		}
	}
	j.room(c)
	j.retainedBytes(c)
	j.month(c)
}

const (
	// told is how long a name may count after it is gone, and givenBack after the request has ended that would have made it.
	told, givenBack = 2 * time.Second, 250 * time.Millisecond
	// reserved is how long a name counts that nobody knows to have been made: its gateway may be dead.
	reserved = 65 * time.Second
	// filled is for how long clients try to go to the caps, at most.
	filled = 6 * time.Second
)

// room judges C5 the other way: none is refused for a count while there is room, so what was deleted counts no more, and
// what failed never did.
func (j *judge) room(c *hist.Cluster) {
	counts := map[string]struct {
		most int
		of   func(truth) int64
	}{
		"queues":     {c.Limits.Queues, func(t truth) int64 { return int64(t.Queues) }},
		"partitions": {c.Limits.Partitions, func(t truth) int64 { return int64(t.Partitions) }},
	}
	asks := j.gates.asks[c.Name]
	for _, a := range asks {
		n, ok := counts[a.answer.Limit]
		if !ok || n.most == 0 || a.status != 403 || !j.faults.quiet(a.inv-int64(told), a.ret, "N4") || j.estranged(a.inv-int64(told), a.ret) {
			continue
		}
		if j.faults.touches(a.inv-int64(reserved), a.ret, 0, "N2", "N20") || j.faults.rebooted(a.inv-int64(reserved), a.ret) {
			continue
		}
		there, seen := highest(j.gates.truths[c.Name], a.inv-int64(told), a.ret, n.of)
		if !seen {
			continue
		}
		for _, b := range asks {
			keeps := b.ret + int64(givenBack)
			if b.kind == hist.Info {
				keeps = b.inv + int64(reserved)
			}
			if b != a && (b.Does == hist.DoesPush || b.Does == hist.DoesConfigure) && b.inv < a.ret && keeps > a.inv {
				there++
			}
		}
		j.rules[C5].checked++
		if there < int64(n.most) {
			j.late(C5, a.inv-int64(told), a.ret, []int64{a.op}, "%s: %s was refused for its %s, of which there were %d of %d at most, for %s", c.Name, a.Does, a.answer.Limit, there, n.most, told)
		}
	}
}

// month judges the other half of C6: the allowance of a month is passed by one request per gateway at most, a push is not
// refused while a tenth of it is left, and nothing else is refused for it.
func (j *judge) month(c *hist.Cluster) {
	most := c.Limits.Monthly
	if most == 0 {
		return
	}
	asks := byInvocation(j.gates.asks[c.Name])
	if n := len(asks); n == 0 || monthOf(j.header.Began) != monthOf(j.header.Began.Add(time.Duration(asks[n-1].inv)+time.Minute)) {
		return // another month began
	}
	admitted, largest := 0, 0
	for _, a := range asks {
		if largest = max(largest, a.Messages); a.kind == hist.OK {
			admitted += a.Messages
		}
	}
	j.rules[C6].checked++
	if bound := most + largest*max(1, len(j.header.Topology.Gateways)); admitted > bound {
		j.bad(C6, nil, "%s: %d messages were taken of an allowance of %d, and with a request per gateway %d are allowed", c.Name, admitted, most, bound)
	}
	for _, a := range asks {
		if a.answer.Limit != "month" {
			continue
		}
		j.rules[C6].checked++
		maybe := a.Messages
		for _, b := range asks {
			if b != a && b.kind != hist.Fail && b.inv < a.ret {
				maybe += b.Messages
			}
		}
		switch {
		case a.Does != hist.DoesPush || a.status != 403 || a.answer.Code != "quota_exceeded":
			j.bad(C6, []int64{a.op}, "%s: %s was refused for the month with %s", c.Name, a.Does, a.refusal())
		case maybe < most*9/10 && !j.estranged(0, a.ret) && j.faults.quiet(0, a.ret, "N1", "N2", "N3", "N4", "N23"):
			j.bad(C6, []int64{a.op}, "%s: a push was refused for the month, of whose %d messages at most %d can have been taken", c.Name, most, maybe)
		}
	}
}

func monthOf(t time.Time) string { return t.UTC().Format("2006-01") }

// retainedBytes judges C6: the cap is passed by one request per gateway at most, a push is not refused under 90 % of it,
// and nothing else is refused for it.
func (j *judge) retainedBytes(c *hist.Cluster) {
	most := c.Limits.RetainedBytes
	if most == 0 {
		return
	}
	largest := int64(0)
	for _, a := range j.gates.asks[c.Name] {
		largest = max(largest, a.Bytes)
	}
	bound := most + largest*int64(max(1, len(j.header.Topology.Gateways)))
	truths := j.gates.truths[c.Name]
	for _, t := range truths {
		j.rules[C6].checked++
		if bound := bound + j.unseen(c, t.at); t.Bytes > bound {
			j.bad(C6, nil, "%s holds %d bytes at %s: the cap is %d, and with a request per gateway %d", c.Name, t.Bytes, clockTime(t.at), most, bound)
		}
	}
	for _, a := range j.gates.asks[c.Name] {
		if a.answer.Limit != "storage" {
			continue
		}
		j.rules[C6].checked++
		if a.Does != hist.DoesPush {
			j.bad(C6, []int64{a.op}, "%s: %s was refused for retained bytes", c.Name, a.Does)
		} else if top, seen := highest(truths, a.inv-int64(measured), a.ret, func(t truth) int64 { return t.Bytes }); seen && top+2*largest < most*9/10 && j.faults.quiet(a.inv-int64(measured), a.ret) {
			j.late(C6, a.inv-int64(measured), a.ret, []int64{a.op}, "%s: a push was refused for retained bytes, and for %s it had held %d of %d at most", c.Name, measured, top, most)
		}
	}
}

// unseen is what gateways that decided alone have let in since brokers were measured at the latest, while others went on with
// Redis, which has heard nothing of it.
func (j *judge) unseen(c *hist.Cluster, at int64) (sum int64) {
	from := at - int64(measured)
	for _, f := range j.faults.all {
		if f.Name == "N20" && f.Target == "redis" && f.began < at && (f.ended == never || f.ended > from) {
			return 0 // all of them are alone, and share what is left
		}
	}
	for _, a := range j.gates.asks[c.Name] {
		if a.kind == hist.OK && a.answer.Mode == "local" && a.inv < at && a.ret > from {
			sum += a.Bytes
		}
	}
	return sum
}

// measured is how old a broker's measure may be when a gateway goes by it.
const measured = 5 * time.Second

// highest is the most that was held in a time, if it is known what was held at its begin.
func highest(all []truth, from, to int64, of func(truth) int64) (most int64, seen bool) {
	for _, t := range all {
		switch {
		case t.at <= from:
			most, seen = of(t), true
		case t.at <= to:
			most = max(most, of(t))
		}
	}
	return most, seen
}
