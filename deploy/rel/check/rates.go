package check

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

const (
	// editTime is how long an edit of a plan may take to reach every gateway that hears of it; see heard.
	editTime = 2 * time.Second
	// cutOff is for how long a gateway may spend its part of the rate after it has lost Redis while others have not: it is
	// missed after three seconds, and beats once a second. It counts as dead after eight, of which one may lie before the
	// cut, and then spends its part for as long as it is cut off. See docs/design/fleet-limits.md.
	cutOff, countsAsDead = 5 * time.Second, 7 * time.Second
	// awayTime is how long a gateway may take to know that Redis is away.
	awayTime = time.Second
	// sliceTime is how finely offered load is looked at, and leastTime the shortest load that says something of use.
	sliceTime = 500 * time.Millisecond
	leastTime = 4 * time.Second
	// absent is how long after an answer that a gateway gave alone another is of the same absence of Redis, and lonely the part
	// of the time that absences which nobody made may take: what is let in meanwhile is judged by halves.
	absent, lonely = 2 * time.Second, 0.25
	// granule is how long tokens may lie about unasked for at either end of a load.
	granule = 100 * time.Millisecond
)

// bucket is one rate of a cluster: what a request costs, and what the plan allows.
type bucket struct {
	name  string
	cost  func(*ask) float64
	limit func(*hist.Limits) (rate, burst float64)
}

var buckets = []bucket{
	{"requests", func(*ask) float64 { return 1 }, func(l *hist.Limits) (float64, float64) { return l.RequestRate, l.RequestBurst }},
	{"messages", func(a *ask) float64 { return float64(a.Messages) }, func(l *hist.Limits) (float64, float64) { return l.MessageRate, l.MessageBurst }},
}

// tariff is what a bucket allows over time, at the most generous: while edits spread, the best of the plans that may be in
// force.
type tariff struct {
	spans  []span  // in the order of their begins; the last one has no end
	pieces []piece // the best rate, from one moment to the next
}

// span is a time in which one plan may be in force.
type span struct {
	from, to    int64
	rate, burst float64
}

// piece is the best rate from a moment on, and what all rates have yielded until then.
type piece struct {
	from         int64
	rate, yields float64
}

// tariff needs to know of each edit until when a gateway may not have heard of it.
func (b *bucket) tariff(c *hist.Cluster, edits []edit, heard func(edit) int64) *tariff {
	rate, burst := b.limit(&c.Limits)
	t := &tariff{spans: []span{{0, never, rate, burst}}}
	for _, e := range edits {
		rate, burst := b.limit(&e.Limits)
		t.spans[len(t.spans)-1].to = heard(e)
		t.spans = append(t.spans, span{e.at, never, rate, burst})
	}
	var moments []int64
	for _, s := range t.spans {
		moments = append(moments, s.from, s.to)
	}
	slices.Sort(moments)
	for _, at := range slices.Compact(moments) {
		if at == never {
			break
		}
		x := piece{from: at, yields: t.refill(at)}
		for _, s := range t.spans {
			if s.from <= at && at < s.to {
				x.rate = max(x.rate, s.rate)
			}
		}
		t.pieces = append(t.pieces, x)
	}
	return t
}

// refill is what the rate yields until a time, at the most.
func (t *tariff) refill(until int64) float64 {
	for _, x := range slices.Backward(t.pieces) {
		if x.from <= until {
			return x.yields + x.rate*float64(until-x.from)/float64(second)
		}
	}
	return 0
}

// burst is the largest that may be in force in a time.
func (t *tariff) burst(from, to int64) (most float64) {
	for _, s := range t.spans {
		if s.from <= to && s.to >= from {
			most = max(most, s.burst)
		}
	}
	return most
}

// rate is the largest there is.
func (t *tariff) rate() (most float64) {
	for _, s := range t.spans {
		most = max(most, s.rate)
	}
	return most
}

// steady reports whether one plan was in force, and its rate.
func (t *tariff) steady(from, to int64) (rate float64, ok bool) {
	n := 0
	for _, s := range t.spans {
		if s.from <= to && s.to >= from {
			rate = s.rate
			n++
		}
	}
	return rate, n == 1
}

// rates judges C1 and C2: what was admitted in every window, and whether it was all that the plan allows.
func (j *judge) rates(c *hist.Cluster, asks []*ask) {
	for i := range buckets {
		b := &buckets[i]
		if rate, _ := b.limit(&c.Limits); rate == 0 {
			continue
		}
		t := b.tariff(c, j.gates.edits[c.Name], j.heard)
		admitted := slices.DeleteFunc(byInvocation(asks), func(a *ask) bool { return a.kind != hist.OK || b.cost(a) == 0 || a.Does == hist.DoesAck })
		k := &savings{bucket: b, asks: asks}
		j.windows(c, b, t, admitted, 1, func(from, to int64, t *tariff) float64 { return j.allowance(from, to, t, k) })
		for _, f := range j.faults.all {
			j.alone(c, b, t, k, admitted, f)
		}
		j.utilisation(c, b, t, asks)
	}
}

// heard is when the last gateway must know of an edit; until then either plan may be in force.
func (j *judge) heard(e edit) int64 {
	at := max(e.made+int64(editTime), j.due(e.made))
	if at != never && j.machine.within(e.made, at) != "" {
		at += int64(mostLate)
	}
	return at
}

// windows judges C1: whichever two moments one takes, what was surely admitted between them, which is what was sent after
// the first and answered before the second, is at most share of burst + rate x time, and what extra forgives.
func (j *judge) windows(c *hist.Cluster, b *bucket, t *tariff, admitted []*ask, share float64, extra func(from, to int64, t *tariff) float64) {
	type end struct {
		ask    *ask
		refill float64
	}
	ends := make([]end, len(admitted))
	for i, a := range admitted {
		ends[i] = end{a, t.refill(a.ret)}
	}
	slices.SortFunc(ends, func(x, y end) int { return cmp.Compare(x.ask.ret, y.ask.ret) })
	least := math.Inf(1)
	for _, s := range t.spans {
		least = min(least, s.burst)
	}
	for _, first := range admitted {
		j.rules[C1].checked++
		from, base, sum := first.inv, t.refill(first.inv), 0.0
		for _, e := range ends {
			if e.ask.inv < from {
				continue
			}
			sum += b.cost(e.ask)
			if sum <= share*(least+e.refill-base) {
				continue
			}
			to := e.ask.ret
			allowed := share*(t.burst(from, to)+e.refill-base) + extra(from, to, t)
			if sum > allowed+1e-6 {
				j.bad(C1, []int64{first.op, e.ask.op}, "%s: %.0f %s were admitted between %s and %s, and %.1f are allowed",
					c.Name, sum, b.name, clockTime(from), clockTime(to), allowed)
				return // one window shows it; those around it show the same
			}
		}
	}
}

// allowance is what faults may add to a window: for each absence of Redis one burst, and to a window that begins within it
// what every gateway may have saved up; and for a gateway that is cut off, or says that it decided alone though nobody had
// cut it off, its part of the burst and of the rate.
func (j *judge) allowance(from, to int64, t *tariff, k *savings) (sum float64) {
	n := float64(max(1, len(j.header.Topology.Gateways)))
	burst, rate := t.burst(from, to), t.rate()
	part := func(began, ended int64) float64 {
		lasts := time.Duration(min(ended, to) - began)
		if lasts < countsAsDead {
			lasts = cutOff
		}
		return (burst + lasts.Seconds()*rate) / n
	}
	for _, f := range j.faults.all {
		ended := f.ended
		if ended != never {
			ended += int64(awayTime)
		}
		switch {
		case f.Name != "N20" || f.began >= to || ended <= from:
		case f.Target != "redis":
			sum += part(f.began, ended)
		default:
			sum += burst
			for _, node := range j.header.Topology.Gateways {
				sum += k.saved(node, burst/n, rate/n, f.began, from)
			}
		}
	}
	for _, a := range j.gates.absences {
		if a.from < to && a.to > from {
			sum += part(a.from, a.to)
		}
	}
	return sum
}

// savings are what gateways that decide alone may have saved up for batches that are more than their part of the burst.
type savings struct {
	*bucket
	asks []*ask
	last map[asked]float64 // windows with one begin ask for the same over and over
	at   int64
}

// asked is who was asked for batches, and since when.
type asked struct {
	node  string
	since int64
}

// saved is what a gateway that is alone since a time may have saved up at another: not more than the largest batch that it was
// asked for, nor than its part of the rate has yielded.
func (k *savings) saved(node string, part, rate float64, since, at int64) float64 {
	if at <= since {
		return 0
	}
	if at != k.at || k.last == nil {
		k.last, k.at = map[asked]float64{}, at
	}
	largest, known := k.last[asked{node, since}]
	if !known {
		for _, a := range k.asks {
			if a.node == node && a.inv < at && a.ret > since {
				largest = max(largest, k.cost(a))
			}
		}
		k.last[asked{node, since}] = largest
	}
	return max(0, min(largest-part, rate*time.Duration(at-since).Seconds()))
}

// absence is a time in which one gateway decided alone.
type absence struct{ from, to int64 }

// reunited is how long after a gateway has decided alone what it has let in then may not be known to the others.
const reunited = 20 * time.Second

// estranged reports whether a gateway decided alone in a time, or shortly before, though nobody had cut it off.
func (j *judge) estranged(from, to int64) bool { return j.strayed(from, to, reunited) }

// strayed reports whether a gateway decided alone in a time, or less than settled before, though nobody had cut it off.
func (j *judge) strayed(from, to int64, settled time.Duration) bool {
	return slices.ContainsFunc(j.gates.absences, func(a *absence) bool { return a.from < to && a.to+int64(settled) > from })
}

// absences finds those that no fault explains in what gateways said of each answer.
func (j *judge) absences() {
	last := map[string]*absence{}
	for _, name := range slices.Sorted(maps.Keys(j.gates.asks)) {
		for _, a := range j.gates.asks[name] {
			if a.answer.Mode != "local" || j.header.Topology.Quota == "local" || j.faults.touches(a.inv, a.ret, awayTime, "N20", "N2") {
				continue
			}
			x := last[a.node]
			if x == nil || a.inv > x.to+int64(absent) || a.ret < x.from-int64(absent) {
				x = &absence{a.inv, a.ret}
				last[a.node] = x
				j.gates.absences = append(j.gates.absences, x)
			}
			x.from, x.to = min(x.from, a.inv), max(x.to, a.ret)
		}
	}
	if alone, all := j.lonely(); alone > time.Duration(lonely*float64(all)) {
		j.lacking(C1, j.gates.absences[0].from, never, "gateways decided alone for %s of %s though Redis was there",
			alone.Round(time.Millisecond), all.Round(time.Millisecond))
	}
}

// lonely is for how long some gateway decided alone, of the time in which any was asked.
func (j *judge) lonely() (alone, all time.Duration) {
	first, last := never, int64(0)
	for _, asks := range j.gates.asks {
		for _, a := range asks {
			first = min(first, a.inv)
			if a.ret != never {
				last = max(last, a.ret)
			}
		}
	}
	until := int64(0)
	for _, a := range slices.SortedFunc(slices.Values(j.gates.absences), func(a, b *absence) int { return cmp.Compare(a.from, b.from) }) {
		alone += time.Duration(max(0, a.to-max(a.from, until)))
		until = max(until, a.to)
	}
	return alone, time.Duration(max(0, last-first))
}

// alone judges the part of C1 that each gateway has by itself: while Redis is away it admits its part of the plan, and what
// it has saved up of it.
func (j *judge) alone(c *hist.Cluster, b *bucket, t *tariff, k *savings, admitted []*ask, f *fault) {
	if f.Name != "N20" || f.Target != "redis" || f.Action == "flush" || f.observed == never {
		return
	}
	n := float64(max(1, len(j.header.Topology.Gateways)))
	for _, node := range j.header.Topology.Gateways {
		own := slices.DeleteFunc(slices.Clone(admitted), func(a *ask) bool {
			return a.node != node || a.inv < f.observed+int64(awayTime) || a.ret > f.over() || a.answer.Mode != "local"
		})
		j.windows(c, b, t, own, 1/n, func(from, to int64, t *tariff) float64 {
			return k.saved(node, t.burst(from, to)/n, t.rate()/n, f.began, from)
		})
	}
}

// useful is the part of the allowance that must be used by who asks for more than twice of it.
func (j *judge) useful() float64 {
	switch j.header.Topology.Quota {
	case "local", "exact":
		return 0.99
	}
	return 0.95
}

// utilisation judges C2 over every time in which clients asked for at least twice the rate and nothing was broken.
func (j *judge) utilisation(c *hist.Cluster, b *bucket, t *tariff, asks []*ask) {
	flood := byInvocation(slices.DeleteFunc(slices.Clone(asks), func(a *ask) bool { return a.Part != "flood" }))
	if len(flood) == 0 {
		return
	}
	first := flood[0].inv
	offered := map[int64]float64{} // by slice
	last := int64(0)
	for _, a := range flood {
		last = (a.inv - first) / int64(sliceTime)
		offered[last] += b.cost(a)
	}
	begin := int64(-1) // of the load that goes on
	for k := int64(0); k <= last+1; k++ {
		from, to := first+k*int64(sliceTime), first+(k+1)*int64(sliceTime)
		rate, steady := t.steady(from, to)
		if k <= last && steady && offered[k] >= 2*rate*sliceTime.Seconds() && j.faults.quiet(from, to) && !j.faults.touches(from, to, reunited, "N1") && !j.strayed(from, to, absent) {
			if begin < 0 {
				begin = from + int64(sliceTime) // what had been saved is spent by then
			}
			continue
		}
		if begin >= 0 && from-begin >= int64(leastTime) {
			rate, _ := t.steady(begin, from)
			j.used(c, b, rate, flood, begin, from)
		}
		begin = -1
	}
}

// used judges C2 over one load. A time in which nobody had an answer for longer than tokens may lie about does not count:
// a machine that stands still lets a bucket run over, however much is asked for before and after.
func (j *judge) used(c *hist.Cluster, b *bucket, rate float64, flood []*ask, from, to int64) {
	admitted, answers := 0.0, []int64{to}
	for _, a := range flood {
		if a.ret > from && a.ret < to && a.status != 0 {
			answers = append(answers, a.ret)
		}
		if a.kind == hist.OK && a.ret > from && a.inv < to {
			admitted += b.cost(a)
		}
	}
	slices.Sort(answers)
	counts, last := int64(0), from
	for _, at := range answers {
		if at-last <= int64(granule) {
			counts += at - last
		}
		last = at
	}
	span := time.Duration(counts)
	if span < leastTime/2 {
		return
	}
	j.rules[C2].checked++
	if want := j.useful()*rate*span.Seconds() - rate*granule.Seconds(); admitted < want {
		what := fmt.Sprintf("%s: %.0f %s were admitted in %s from %s on, and %.1f are there to be had", c.Name, admitted, b.name,
			span.Round(time.Millisecond), clockTime(from), rate*span.Seconds())
		if j.header.Topology.Quota == "leased" { // and a gateway that stands still may hold some
			j.late(C2, from, to, nil, "%s", what)
		} else {
			j.bad(C2, nil, "%s", what)
		}
	}
}

// early is how long before its time a client comes that shall be refused.
const early = 300 * time.Millisecond

// honesty judges C3: a lone client that comes back when it was told to is let in, and one that comes early is not. A batch
// that can never fit is told so at once, and not to wait.
func (j *judge) honesty(c *hist.Cluster, asks []*ask) {
	told := map[int]*ask{} // by client: the refusal that counts
	for _, a := range byInvocation(asks) {
		if burst := c.Limits.MessageBurst; burst > 0 && float64(a.Messages) > burst && len(j.gates.edits[c.Name]) == 0 && a.status != 0 {
			j.rules[C3].checked++
			if a.kind == hist.OK || a.status == 429 && a.answer.Limit == "msgs" {
				j.bad(C3, []int64{a.op}, "%s: a batch of %d, of which at most %.0f ever fit, was answered %d", c.Name, a.Messages, burst, a.status)
			}
		}
		if !strings.HasPrefix(a.Part, "lone") {
			continue
		}
		was := told[a.client]
		delete(told, a.client)
		if was != nil && j.faults.quiet(was.inv, a.ret) && !j.estranged(was.inv, a.ret) {
			j.promised(c, was, a)
		}
		if a.status == 429 {
			told[a.client] = a
		}
	}
}

// promised judges what a lone client met that had been told when to come.
func (j *judge) promised(c *hist.Cluster, was, now *ask) {
	ops := []int64{was.op, now.op}
	switch {
	case was.answer.RetryAfter < 1 || was.answer.RetryMs < 1 || int64(was.answer.RetryAfter)*1000 < was.answer.RetryMs:
		j.bad(C3, ops, "%s: a refusal says Retry-After %d and %d ms", c.Name, was.answer.RetryAfter, was.answer.RetryMs)
	case now.inv >= was.ret+int64(was.answer.RetryAfter)*second:
		j.rules[C3].checked++
		if now.kind == hist.Fail {
			j.bad(C3, ops, "%s: a lone client waited the %d s it was told to, and was answered %d", c.Name, was.answer.RetryAfter, now.status)
		}
	case float64(was.answer.RetryMs) > 1000/c.Limits.RequestRate+1:
		// It is told to come behind somebody, and nobody is there but itself, who came too early before.
	case now.ret <= was.inv+was.answer.RetryMs*milli-int64(early):
		j.rules[C3].checked++
		if now.kind == hist.OK {
			j.bad(C3, ops, "%s: a lone client was told to wait %d ms, came %s early, and was let in", c.Name, was.answer.RetryMs,
				time.Duration(was.inv+was.answer.RetryMs*milli-now.ret).Round(time.Millisecond))
		}
	}
}
