package nem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
	"github.com/queengate/queengate/deploy/rel/lab"
)

// Nemesis owns the faults of a run. It is for one goroutine.
type Nemesis struct {
	lab  *lab.Lab
	rec  *hist.Writer
	next int
	say  func(format string, args ...any)
}

// New returns the nemesis of a system. say is told what happens.
func New(l *lab.Lab, rec *hist.Writer, say func(format string, args ...any)) *Nemesis {
	return &Nemesis{lab: l, rec: rec, say: say}
}

// fault is one that is under way. inject does the harm and returns when its effect was seen; repair undoes it and
// returns when the system should be whole.
type fault struct {
	note   hist.Fault
	inject func(context.Context) (effect string, err error)
	repair func(context.Context) error
}

// The bounds of one step.
const (
	injectTime = 20 * time.Second
	repairTime = 45 * time.Second
)

// Play plays a schedule from now on and returns when the last fault was repaired, or ctx has ended and what was broken
// is repaired. An error is one of the harness: a fault that could not be injected is a remark, and the judge does not
// find it observed; one that could not be repaired ends the run.
func (n *Nemesis) Play(ctx context.Context, plan []Plan) error {
	began := time.Now()
	for _, p := range plan {
		if !sleep(ctx, time.Until(began.Add(p.At))) {
			return nil
		}
		f, err := n.fault(p)
		if err != nil {
			return err
		}
		if err := n.play(ctx, f, p.For); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

// play takes one fault from its begin to its end.
func (n *Nemesis) play(ctx context.Context, f *fault, lasts time.Duration) error {
	n.next++
	f.note.ID = n.next
	n.step(f, hist.FaultBegins, "")
	bounded, cancel := context.WithTimeout(ctx, injectTime)
	effect, err := f.inject(bounded)
	cancel()
	if err != nil {
		n.rec.Note(hist.Remark, &hist.RemarkNote{Text: fmt.Sprintf("%s %s was not seen to work: %v", f.note.Name, f.note.Action, err)})
		n.say("  %s %s %s: not seen to work: %v", f.note.Name, f.note.Action, f.note.Target, err)
	} else {
		n.step(f, hist.FaultObserved, effect)
		sleep(ctx, lasts)
	}
	n.step(f, hist.FaultRepairs, "")
	// What was broken is repaired whatever has become of the run.
	bounded, cancel = context.WithTimeout(context.WithoutCancel(ctx), repairTime)
	defer cancel()
	if err := f.repair(bounded); err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	n.step(f, hist.FaultEnds, "")
	return nil
}

func (n *Nemesis) step(f *fault, s hist.Step, effect string) {
	f.note.Step, f.note.Effect = s, effect
	n.rec.Fault(f.note)
	if s == hist.FaultObserved {
		n.say("  %6.1fs %s %s %s: %s", n.rec.Now().Seconds(), f.note.Name, f.note.Action, f.note.Target, effect)
	}
}

// fault makes what a plan says.
func (n *Nemesis) fault(p Plan) (*fault, error) {
	f := &fault{note: hist.Fault{Name: p.Name, Action: p.Action, Target: p.Target}}
	var b *lab.Broker
	var g *lab.Gateway
	if strings.HasPrefix(p.Target, "gw") {
		for _, x := range n.lab.Gateways {
			if x.Name == p.Target {
				g = x
			}
		}
		if g == nil {
			return nil, fmt.Errorf("%s: there is no %s", p, p.Target)
		}
	}
	if strings.HasPrefix(p.Target, "br") {
		for _, x := range n.lab.Brokers {
			if x.Name == p.Target {
				b = x
			}
		}
		if b == nil {
			return nil, fmt.Errorf("%s: there is no %s", p, p.Target)
		}
	}
	switch p.Name {
	case "N1":
		n.kill(f, b.Name, b)
	case "N2":
		if p.Action == "pause" {
			n.pause(f, g.Name, g)
		} else {
			n.kill(f, g.Name, g)
		}
	case "N3":
		n.pause(f, b.Name, b)
	case "N4":
		n.broker(f, b)
	case "N5":
		n.partition(f, b)
	case "N6":
		n.mesh(f)
	case "N8":
		n.postgres(f)
	case "N10":
		n.failover(f)
	case "N14":
		n.disk(f, b)
	case "N16":
		n.power(f, b)
	case "N17":
		n.litter(f, b)
	case "N20":
		n.redis(f, g)
	case "N23":
		n.control(f, g)
	default:
		return nil, fmt.Errorf("there is no nemesis %s", p.Name)
	}
	return f, nil
}

// sleep waits and reports whether ctx goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// until waits until a condition holds; it says what it has seen.
func until(ctx context.Context, what string, holds func() (bool, string)) (string, error) {
	for {
		ok, seen := holds()
		if ok {
			return seen, nil
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return "", fmt.Errorf("%s: %s: %w", what, seen, context.Cause(ctx))
		}
	}
}

var errNoEffect = errors.New("it has no effect")
