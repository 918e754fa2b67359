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
			j.bad(C5, nil, "%s has %d queues and %d partitions, and cannot get to its %d and %d", c.Name, t.Queues, t.Partitions, l.Queues, l.Partitions)
		}
	}
	j.retainedBytes(c)
}

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
		if t.Bytes > bound {
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
		} else if top, seen := highest(truths, a.inv-int64(measured), a.ret); seen && top+2*largest < most*9/10 && j.faults.quiet(a.inv-int64(measured), a.ret, "") {
			j.bad(C6, []int64{a.op}, "%s: a push was refused for retained bytes, and for %s it had held %d of %d at most", c.Name, measured, top, most)
		}
	}
}

// measured is how old a broker's measure may be when a gateway goes by it.
const measured = 5 * time.Second

// highest is the most that was held in a time, if it is known what was held at its begin.
func highest(all []truth, from, to int64) (most int64, seen bool) {
	for _, t := range all {
		switch {
		case t.at <= from:
			most, seen = t.Bytes, true
		case t.at <= to:
			most = max(most, t.Bytes)
		}
	}
	return most, seen
}
