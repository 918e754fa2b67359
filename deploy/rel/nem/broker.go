package nem

import (
	"context"
	"fmt"
	"syscall"

	"github.com/queengate/queengate/deploy/rel/hist"
	"github.com/queengate/queengate/deploy/rel/lab"
)

// victim is a process of the lab, *lab.Broker or *lab.Gateway, that can be ended, stopped and started.
type victim interface {
	PID() int
	State() string
	Code() int
	Signal(sig syscall.Signal) error
	End(ctx context.Context, sig syscall.Signal) error
	Ready(ctx context.Context) error
	Restart(ctx context.Context) error
}

// kill is N1, and N2 for gateways: a process is killed, or told to stop, which it does in its time; then it starts again.
func (n *Nemesis) kill(f *fault, name string, v victim) {
	signal := syscall.SIGKILL
	if f.note.Action == "terminate" {
		signal = syscall.SIGTERM
	}
	f.inject = func(ctx context.Context) (string, error) {
		pid := v.PID()
		if err := v.End(ctx, signal); err != nil {
			return "", err
		}
		if code := v.Code(); signal == syscall.SIGTERM && code != 0 {
			n.rec.Note(hist.Log, &hist.LogNote{Process: name, Line: fmt.Sprintf("told to stop, it ended with code %d", code)})
		}
		return fmt.Sprintf("process %d is gone", pid), nil
	}
	f.repair = v.Restart
}

// pause is N3, and N2 for gateways: a process stands still, for longer than a lease or than others believe in it, and goes
// on as if nothing had been.
func (n *Nemesis) pause(f *fault, name string, v victim) {
	f.inject = func(ctx context.Context) (string, error) {
		if err := v.Signal(syscall.SIGSTOP); err != nil {
			return "", err
		}
		return until(ctx, "stop "+name, func() (bool, string) {
			s := v.State()
			return s == "T", fmt.Sprintf("process %d is in state %s", v.PID(), s)
		})
	}
	f.repair = func(ctx context.Context) error {
		if err := v.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		return v.Ready(ctx)
	}
}

// partition is N5: one broker, or all of them when b is nil, cannot reach PostgreSQL.
func (n *Nemesis) partition(f *fault, b *lab.Broker) {
	brokers := n.lab.Brokers
	if b != nil {
		brokers = []*lab.Broker{b}
	}
	f.note.Outage = true
	f.inject = func(ctx context.Context) (string, error) { return n.lose(ctx, brokers, weather(f.note.Action)) }
	f.repair = func(ctx context.Context) error { return regain(ctx, brokers) }
}

// weather is what the links do in an action.
func weather(action string) lab.Weather {
	switch action {
	case "deaf":
		return lab.Weather{Deaf: [2]bool{true, true}}
	case "deaf-forth":
		return lab.Weather{Deaf: [2]bool{lab.Forth: true}}
	case "deaf-back":
		return lab.Weather{Deaf: [2]bool{lab.Back: true}}
	case "loss":
		return lab.Weather{Loss: 0.2}
	}
	return lab.Weather{Cut: true}
}

// lose takes PostgreSQL from brokers, and returns when each of them says so.
func (n *Nemesis) lose(ctx context.Context, brokers []*lab.Broker, w lab.Weather) (string, error) {
	for _, b := range brokers {
		b.Weather(w)
	}
	seen := ""
	for _, b := range brokers {
		effect, err := until(ctx, b.Name+" loses its database", func() (bool, string) {
			sees, why := b.SeesDatabase(ctx)
			return !sees, why
		})
		if err != nil {
			return "", err
		}
		seen = effect
	}
	return seen, nil
}

// regain gives PostgreSQL back to brokers, and returns when each of them has it.
func regain(ctx context.Context, brokers []*lab.Broker) error {
	for _, b := range brokers {
		b.Weather(lab.Weather{})
	}
	return reach(ctx, brokers)
}

// reach waits until brokers have their database.
func reach(ctx context.Context, brokers []*lab.Broker) error {
	for _, b := range brokers {
		if _, err := until(ctx, b.Name+" has its database again", func() (bool, string) { return b.SeesDatabase(ctx) }); err != nil {
			return err
		}
	}
	return nil
}

// mesh is N6: brokers cannot hear each other, or in one direction only, or hear noise.
func (n *Nemesis) mesh(f *fault) {
	var links []*lab.Link
	for _, b := range n.lab.Brokers {
		links = append(links, b.Mesh...)
	}
	hits := func() (sum int64) {
		for _, l := range links {
			sum += l.Hits()
		}
		return sum
	}
	f.inject = func(ctx context.Context) (string, error) {
		before := hits()
		for _, l := range links {
			l.Set(weather(f.note.Action))
		}
		return until(ctx, "break the mesh", func() (bool, string) {
			felt := hits() - before
			return felt > 0, fmt.Sprintf("felt %d times", felt)
		})
	}
	f.repair = func(context.Context) error {
		for _, l := range links {
			l.Set(lab.Weather{})
		}
		return nil
	}
}
