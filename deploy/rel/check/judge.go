package check

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// never is the end of what has no end.
const never = int64(math.MaxInt64)

// kept is how many violations of one rule a report names; all are counted.
const kept = 3

// violation is one fact that breaks a rule, with the operations that show it.
type violation struct {
	text string
	ops  []int64
}

// finding is what is known of a rule.
type finding struct {
	checked    int64 // facts that were tested
	broken     int64
	violations []violation // the first ones
	unknown    string      // why it could not be decided
	unjudged   int64       // facts that were not judged, because the machine was busy
	busy       string      // the first of them, and what the machine was like
}

// judge is one reading of a history.
type judge struct {
	*book
	rules   [ruleCount]finding
	counts  Counts
	faults  faults
	live    liveness
	gates   gates
	clock   clock
	machine machine
	phase   string
	phases  map[string]bool

	under  map[int64]*operation // operations that have not come back
	leases map[string]*lease
	lost   map[reader]int64 // when the last pop of unknown outcome was given up
	hazy   map[reader]int64 // likewise, and pops that ended in a 5xx: they may have claimed
	sought map[reader]seek
	txns   []*transaction
	dead   letters
	noise  []string // reasons for UNKNOWN that belong to no rule
	anew   bool     // a queue was deleted: offsets began anew, see excuse
}

// reader is a group on a queue.
type reader struct{ tenant, queue, group string }

// seek is the last time that a group was moved by hand.
type seek struct{ inv, ret int64 }

// operation is one that has not come back, with what was known when it was sent.
type operation struct {
	event      hist.Event
	inv        int64
	superseded []bool      // of an ack or a transaction, per ack: another lease had been granted already
	marks      []watermark // of a fetch, per entry: what it must at least see
	outage     int         // the fault that has the database out of reach, 0 when none
	final      bool        // sent in the phase Final
}

// watermark is the least that a fetch must report: what fetches and pushes that had come back knew.
type watermark struct{ highest, op int64 }

// Judge reads a history and judges it. The error is one of reading: a line that cannot be understood, or an operation
// that came back twice. The same history has the same report, unless a search is given up.
func Judge(r *hist.Reader, opt Options) (*Report, error) {
	return judgeEvents(&r.Header, r.Events(), r.Cut, opt)
}

// Options say how much effort is spent.
type Options struct {
	// Search bounds the searches of LIN, 20 s when zero. A bound that is met makes the rule UNKNOWN.
	Search time.Duration
}

func judgeEvents(h *hist.Header, events iter.Seq2[hist.Event, error], cut func() error, opt Options) (*Report, error) {
	j := &judge{
		book: newBook(h), under: map[int64]*operation{}, leases: map[string]*lease{}, lost: map[reader]int64{}, hazy: map[reader]int64{},
		sought: map[reader]seek{}, phases: map[string]bool{},
	}
	for _, q := range h.Queues {
		for _, p := range q.Partitions {
			j.lane(q.Tenant, q.Name, p)
		}
	}
	for e, err := range events {
		if err != nil {
			return nil, err
		}
		if err := j.event(e); err != nil {
			return nil, err
		}
	}
	if cut != nil {
		if err := cut(); err != nil {
			j.noise = append(j.noise, err.Error())
		}
	}
	j.finish(opt)
	return j.report(), nil
}

// event takes the next event.
func (j *judge) event(e hist.Event) error {
	j.counts.Events++
	switch e.Kind {
	case hist.Invoked:
		if j.under[e.Op] != nil {
			return fmt.Errorf("operation %d is invoked twice", e.Op)
		}
		o := &operation{event: e, inv: int64(e.T), outage: j.faults.outage(e.Node), final: j.phase == hist.Final}
		j.under[e.Op] = o
		j.live.invoked(o)
		return j.invoked(o)
	case hist.OK, hist.Fail, hist.Info:
		o := j.under[e.Op]
		if o == nil {
			return fmt.Errorf("operation %d comes back and was never invoked", e.Op)
		}
		delete(j.under, e.Op)
		if o.event.F != e.F {
			return fmt.Errorf("operation %d is invoked as %s and comes back as %s", e.Op, o.event.F, e.F)
		}
		j.counts.Operations++
		if e.Kind == hist.Info {
			j.counts.Infos++
		}
		j.live.completed(j, o, &e)
		j.outage(o, &e)
		j.pool(o, &e)
		return j.completed(o, &e)
	case hist.Nemesis:
		f, ok := e.A.(*hist.Fault)
		if !ok {
			return errors.New("a fault does not say what it is")
		}
		j.fault(int64(e.T), f)
	case hist.Noted:
		j.note(&e)
	default:
		return fmt.Errorf("an event has the unknown kind %q", e.Kind)
	}
	return nil
}

// invoked remembers what an operation must respect.
func (j *judge) invoked(o *operation) error {
	switch a := o.event.A.(type) {
	case *hist.AckArgs:
		o.superseded = make([]bool, len(a.Items))
		for i := range a.Items {
			o.superseded[i] = j.ackInvoked(o, &a.Items[i], a.Group)
		}
	case *hist.TransactionArgs:
		o.superseded = make([]bool, len(a.Acks))
		for i := range a.Acks {
			o.superseded[i] = j.ackInvoked(o, &a.Acks[i].AckItem, a.Acks[i].Group)
		}
	case *hist.ExtendArgs:
	case *hist.FetchArgs:
		o.marks = make([]watermark, len(a.Entries))
		for i, e := range a.Entries {
			l := j.lane(o.event.Tenant, e.Queue, e.Partition)
			o.marks[i] = watermark{l.highest, l.highOp}
			if l.acked+1 > l.highest {
				o.marks[i] = watermark{l.acked + 1, l.ackedOp}
			}
		}
	case *hist.SeekArgs:
		r := reader{o.event.Tenant, a.Queue, a.Group}
		j.sought[r] = seek{o.inv, never}
		j.seekInvoked(o, a)
	case *hist.PushArgs, *hist.PopArgs, *hist.DeadLettersArgs, *hist.ReplayArgs, *hist.HealthArgs, *hist.ConfigureArgs, *hist.TargetArgs, *hist.AskArgs:
	default:
		if o.event.A == nil {
			return fmt.Errorf("operation %d (%s) has no arguments", o.event.Op, o.event.F)
		}
	}
	return nil
}

// completed takes the outcome of an operation. e is the completion, o.event the invocation.
func (j *judge) completed(o *operation, e *hist.Event) error {
	missing := e.Kind == hist.OK && e.V == nil
	switch a := o.event.A.(type) {
	case *hist.PushArgs:
		v, _ := e.V.(*hist.PushAnswer)
		if missing || (e.Kind == hist.OK && len(*v) != len(a.Items)) {
			return fmt.Errorf("push %d is ok and has not one answer per item", e.Op)
		}
		j.pushed(o, e, a, v)
	case *hist.TransactionArgs:
		v, _ := e.V.(*hist.TransactionAnswer)
		if missing {
			return fmt.Errorf("transaction %d is ok and has no answer", e.Op)
		}
		j.transacted(o, e, a, v)
	case *hist.FetchArgs:
		if e.Kind != hist.OK {
			return nil
		}
		v, _ := e.V.(*hist.FetchAnswer)
		if missing || len(v.Entries) != len(a.Entries) {
			return fmt.Errorf("fetch %d is ok and has not one answer per entry", e.Op)
		}
		j.fetched(o, e, a, v)
	case *hist.PopArgs:
		v, _ := e.V.(*hist.PopAnswer)
		j.popped(o, e, a, v)
	case *hist.AckArgs:
		v, _ := e.V.(*hist.AckAnswer)
		if missing || (e.Kind == hist.OK && len(*v) != len(a.Items)) {
			return fmt.Errorf("ack %d is ok and has not one answer per item", e.Op)
		}
		j.acked(o, e, a, v)
	case *hist.ExtendArgs:
		v, _ := e.V.(*hist.ExtendAnswer)
		if missing {
			return fmt.Errorf("extend %d is ok and has no answer", e.Op)
		}
		j.extended(o, e, a, v)
	case *hist.SeekArgs:
		r := reader{o.event.Tenant, a.Queue, a.Group}
		if s := j.sought[r]; e.Kind != hist.Info && s.inv == o.inv {
			j.sought[r] = seek{s.inv, int64(e.T)}
		}
	case *hist.DeadLettersArgs:
		if v, ok := e.V.(*hist.DeadLettersAnswer); ok && e.Kind == hist.OK {
			j.dead.listed(j, o, e, a, v)
		}
	case *hist.ReplayArgs:
		v, _ := e.V.(*hist.ReplayAnswer)
		j.dead.replayed(j, e, a, v)
	case *hist.AskArgs:
		j.asked(o, e, a)
	case *hist.TargetArgs:
		if e.Kind != hist.Fail {
			j.anew = true
		}
	}
	return nil
}

func (j *judge) note(e *hist.Event) {
	switch n := e.A.(type) {
	case *hist.PhaseNote:
		j.phase = n.Phase
		j.phases[n.Phase] = true
		j.live.phase(n.Phase)
	case *hist.ExitNote:
		j.rules[EXT].checked++
		if !n.Expected {
			j.bad(EXT, nil, "%s ended by itself after %s: code %d %s", n.Process, e.T.Round(time.Millisecond), n.Code, n.Signal)
		}
	case *hist.LogNote:
		j.bad(LOG, nil, "%s wrote: %s", n.Process, n.Line)
	case *hist.InvariantNote:
		j.rules[SQL].checked++
		if !n.Holds {
			j.bad(SQL, nil, "%s: %s", n.Name, n.Detail)
		}
	case *hist.NoiseNote:
		if n.TimerP99Ms > busyMs {
			j.machine.always = fmt.Sprintf("a timer of 1 ms was late by %.0f ms at p99", n.TimerP99Ms)
		}
		if n.TimerP99Ms > noisyMs {
			j.noise = append(j.noise, fmt.Sprintf("the machine is too noisy: a timer of 1 ms is late by %.0f ms at p99", n.TimerP99Ms))
		}
	case *hist.MachineNote:
		j.machine.noted(int64(e.T), n)
	default:
		j.gateNote(e)
	}
}

// bad notes a violation. The operations are those that show it, the one to look at first in front.
func (j *judge) bad(r Rule, ops []int64, format string, args ...any) {
	f := &j.rules[r]
	f.broken++
	if len(f.violations) < kept {
		f.violations = append(f.violations, violation{fmt.Sprintf(format, args...), ops})
	}
}

// unknown notes that a rule cannot be decided. The first reason stays.
func (j *judge) unknown(r Rule, format string, args ...any) {
	if f := &j.rules[r]; f.unknown == "" {
		f.unknown = fmt.Sprintf(format, args...)
	}
}

// finish judges what needs the whole history.
func (j *judge) finish(opt Options) {
	// What never came back may still have happened.
	for _, op := range slices.Sorted(maps.Keys(j.under)) {
		o := j.under[op]
		e := o.event
		e.Kind, e.T, e.V = hist.Info, time.Duration(never), nil
		_ = j.completed(o, &e) // an operation without an answer cannot have a wrong one
	}
	j.counts.Infos += len(j.under)
	for _, l := range j.all {
		l.sortRecords()
	}
	j.clock.settle(j)
	for _, l := range j.all {
		j.accounts(l)
		j.order(l)
		j.times(l)
		j.duplicates(l)
		for _, c := range l.cursors() {
			j.overlaps(c)
			j.completeness(c)
		}
		j.retention(l)
	}
	j.transactions()
	j.dead.finish(j)
	j.serial()
	j.linear(opt)
	j.gateways()
	j.live.finish(j)
	j.settleOvertime()
}
