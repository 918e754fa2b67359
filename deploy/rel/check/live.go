package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// faults is what the nemesis did.
type faults struct {
	all    []*fault
	clock  bool // the clock of PostgreSQL was touched at any time
	lossy  bool // commits may be lost by design
	byID   map[int]*fault
	active int
}

// fault is one of them, from its first event to its last.
type fault struct {
	hist.Fault
	began, observed, repaired, ended int64 // never when it has not come to that
}

// over is when the fault's outage ends for the judge.
func (f *fault) over() int64 { return min(f.repaired, f.ended) }

// outage returns the fault that has the database out of a broker's reach now, 0 when there is none.
func (f *faults) outage(node string) int {
	for _, x := range f.all {
		if x.Outage && x.observed != never && x.over() == never && (x.Target == "pg" || x.Target == node) {
			return x.ID
		}
	}
	return 0
}

// clockDuring reports whether the database's clock was touched in a time.
func (f *faults) clockDuring(from, to int64) bool {
	return f.clock && slices.ContainsFunc(f.all, func(x *fault) bool { return x.Clock && x.began < to && x.ended > from })
}

// quiet reports whether no fault was under way, and none had ended shortly before, in a time. except names those that do
// not count.
func (f *faults) quiet(from, to int64, except ...string) bool {
	return !slices.ContainsFunc(f.all, func(x *fault) bool {
		settled := x.ended
		if settled != never {
			settled += int64(x.deadline())
		}
		return !slices.Contains(except, x.Name) && x.began < to && settled > from
	})
}

// deadline is how long after its end every client must be served again.
func (f *fault) deadline() time.Duration {
	switch {
	case f.DeadlineMs > 0:
		return time.Duration(f.DeadlineMs) * time.Millisecond
	case f.Name == "N1":
		return 3 * time.Second
	case f.Name == "N10":
		return 10 * time.Second
	}
	return 5 * time.Second
}

// fault takes a step of a fault.
func (j *judge) fault(at int64, n *hist.Fault) {
	f := &j.faults
	if f.byID == nil {
		f.byID = map[int]*fault{}
	}
	x := f.byID[n.ID]
	if x == nil {
		x = &fault{Fault: *n, began: at, observed: never, repaired: never, ended: never}
		f.byID[n.ID] = x
		f.all = append(f.all, x)
	}
	f.clock = f.clock || n.Clock
	f.lossy = f.lossy || n.Lossy
	switch n.Step {
	case hist.FaultBegins:
		f.active++
		j.live.interrupted()
	case hist.FaultObserved:
		x.observed, x.Effect = at, n.Effect
	case hist.FaultRepairs:
		x.repaired = at
	case hist.FaultEnds:
		if x.ended == never {
			f.active--
		}
		x.ended = at
		if f.active == 0 {
			j.live.ended(x)
		}
	}
}

// outage judges B1: an operation that lies inside an outage.
func (j *judge) outage(o *operation, e *hist.Event) {
	if o.outage == 0 || j.faults.outage(e.Node) != o.outage || !needsDatabase(e.F) {
		return
	}
	j.rules[B1].checked++
	if what := served(o, e); what != "" {
		j.bad(B1, []int64{e.Op}, "%s while %s had the database out of reach", what, j.faults.byID[o.outage].Action)
	}
}

// needsDatabase reports whether an operation cannot do without the database: a push can only be buffered.
func needsDatabase(f hist.Func) bool {
	switch f {
	case hist.Push, hist.Pop, hist.Ack, hist.Transaction, hist.Extend, hist.Fetch, hist.Health:
		return true
	}
	return false
}

// served says what an operation was given that only the database can give, "" when nothing.
func served(o *operation, e *hist.Event) string {
	if e.Kind != hist.OK {
		return ""
	}
	switch v := e.V.(type) {
	case *hist.PushAnswer:
		for i := range *v {
			if s := hist.ItemOutcome(e.Kind, (*v)[i].Status, (*v)[i].Outcome); s == hist.ItemQueued || s == hist.ItemDuplicate {
				return fmt.Sprintf("item %d of a push was answered %s", i, (*v)[i].Status)
			}
		}
		return ""
	case *hist.AckAnswer:
		if !slices.ContainsFunc(*v, func(r hist.AckResult) bool { return r.Success }) {
			return ""
		}
	case *hist.HealthAnswer:
		if e.Status >= 500 {
			return ""
		}
	}
	if v, _ := e.V.(*hist.PopAnswer); e.F == hist.Pop && (v == nil || len(v.Messages) == 0) {
		return "" // a pop that waits is held and may end empty; one that does not may not have heard of the outage yet
	}
	return fmt.Sprintf("%s succeeded (%d)", e.F, e.Status)
}

// liveness judges V1, V2 and R3.
type liveness struct {
	watch *watch
	wakes []wake
	slow  []time.Duration // of wakes that V2 counts
	calm  []time.Duration // those of them while the machine was not busy
}

// watch waits, behind a fault, until every client was served.
type watch struct {
	fault *fault
	tries map[client]*try
}

type client struct {
	workload string
	number   int
}

// try is a client's first attempt behind a fault.
type try struct {
	inv    int64
	extra  int64 // a pop may wait
	served bool
}

// wake is a waiting pop that was given something.
type wake struct {
	lane     *lane
	offset   int64
	inv, ret int64
	op       int64
	node     uint16
}

func (v *liveness) interrupted() { v.watch = nil }

func (v *liveness) ended(f *fault) { v.watch = &watch{fault: f, tries: map[client]*try{}} }

func (v *liveness) phase(name string) {
	if name == hist.Final || name == hist.Done {
		v.watch = nil
	}
}

func (v *liveness) invoked(o *operation) {
	if v.watch == nil {
		return
	}
	k := client{o.event.W, o.event.Client}
	if v.watch.tries[k] == nil {
		v.watch.tries[k] = &try{inv: o.inv}
	}
}

func (v *liveness) completed(j *judge, o *operation, e *hist.Event) {
	if a, ok := o.event.A.(*hist.PopArgs); ok {
		v.popped(j, o, e, a)
	}
	if v.watch == nil {
		return
	}
	t := v.watch.tries[client{e.W, e.Client}]
	if t == nil || t.served || o.inv < t.inv {
		return
	}
	if a, ok := o.event.A.(*hist.PopArgs); ok && a.Wait {
		t.extra += int64(a.TimeoutMs) * milli
	}
	if a, ok := o.event.A.(*hist.AskArgs); ok {
		t.extra += int64(a.WaitMs) * milli
	}
	if !answered(e) {
		return
	}
	t.served = true
	j.rules[V1].checked++
	due := max(t.inv, v.watch.fault.ended) + int64(v.watch.fault.deadline()) + t.extra
	if int64(e.T) > due {
		j.late(V1, v.watch.fault.ended, int64(e.T), []int64{e.Op}, "client %d of %s was served %s after the end of %s (%s), %s allowed", e.Client, e.W,
			clockTime(int64(e.T)-max(t.inv, v.watch.fault.ended)), v.watch.fault.Name, v.watch.fault.Action, v.watch.fault.deadline())
	}
}

// answered reports whether a client was served. A refusal for a limit is an answer as good as any, and whoever hung up
// wanted none.
func answered(e *hist.Event) bool {
	if e.F == hist.Ask {
		return e.Status != 0 && e.Status < 500 || e.Err == hungUp
	}
	return e.Kind == hist.OK || e.Kind == hist.Fail && e.Status >= 200 && e.Status <= 299
}

func (v *liveness) popped(j *judge, o *operation, e *hist.Event, a *hist.PopArgs) {
	q := j.header.Queue(o.event.Tenant, a.Queue)
	if q == nil {
		return
	}
	if q.MaxWaitMs > 0 && j.faults.active == 0 && v.watch == nil {
		j.rules[R3].checked++
		if e.Status >= 400 || e.Kind == hist.Info {
			j.bad(R3, []int64{e.Op}, "a pop of %s ended in %d %s, and no fault was under way", q.Name, e.Status, e.Err)
		}
	}
	answer, _ := e.V.(*hist.PopAnswer)
	if q.Workload != "W11" || !a.Wait || e.Kind != hist.OK || answer == nil || len(answer.Messages) == 0 {
		return
	}
	if m := &answer.Messages[0]; m.DeliveryAttempt <= 1 {
		v.wakes = append(v.wakes, wake{
			lane: j.lane(o.event.Tenant, m.Queue, m.Partition), offset: m.Offset, inv: o.inv, ret: int64(e.T), op: e.Op, node: j.node(e.Node),
		})
	}
}

// The bounds of a wake on another broker.
const (
	wakeCeiling = 1500 * time.Millisecond
	wakeByMesh  = 50 * time.Millisecond
)

func (v *liveness) finish(j *judge) {
	for _, w := range v.wakes {
		r := w.lane.at(w.offset)
		if r == nil {
			continue
		}
		i := slices.IndexFunc(w.lane.items, func(it item) bool {
			return it.tx == r.tx && it.hash == r.hash && it.label == hist.ItemQueued
		})
		if i < 0 {
			continue
		}
		it := &w.lane.items[i]
		if it.inv <= w.inv || it.node == w.node {
			continue // it was there when the pop began, or it needed no other broker
		}
		j.counts.Wakes++
		late := time.Duration(max(0, w.ret-it.ret))
		if j.faults.quiet(it.inv, w.ret, "N6") {
			j.rules[V1].checked++
			if late > wakeCeiling {
				j.late(V1, it.ret, w.ret, []int64{it.op, w.op}, "%s: a waiting pop was answered %s after the push on another broker was", w.lane.key, late.Round(time.Millisecond))
			}
		}
		if j.header.Topology.Mesh && j.faults.quiet(it.inv, w.ret) {
			v.slow = append(v.slow, late)
			if j.machine.within(it.inv, w.ret) == "" {
				v.calm = append(v.calm, late)
			}
			j.rules[V2].checked++
		}
	}
	slices.Sort(v.slow)
	slices.Sort(v.calm)
	if n := len(v.slow); n > 0 && v.slow[n/2] > wakeByMesh {
		if n := len(v.calm); n > 0 && v.calm[n/2] > wakeByMesh {
			j.bad(V2, nil, "half of %d pops were woken later than %s", n, v.calm[n/2].Round(time.Millisecond))
			return
		}
		j.late(V2, 0, never, nil, "half of %d pops were woken later than %s", n, v.slow[n/2].Round(time.Millisecond))
	}
}
