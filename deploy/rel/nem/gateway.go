package nem

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/queengate/queengate/deploy/rel/lab"
)

// slow is how late everything is on a slow link to a broker, and late on one to Redis or the control database.
const slow, late = 2 * time.Second, 200 * time.Millisecond

// broker is N4: gateways and one broker cannot reach each other, or in one direction only, or late, or all that comes back
// is an error. Or all brokers (nil) refuse some of what they are told, or store pushes of which they cannot say so.
func (n *Nemesis) broker(f *fault, b *lab.Broker) {
	w := weather(f.note.Action)
	switch f.note.Action {
	case "slow":
		w = lab.Weather{Delay: slow}
	case "errors":
		w = lab.Weather{Answer: "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"}
	case "refusals":
		w = lab.Weather{On: "POST ", Share: refused, Answer: refusal}
	case "lost":
		w = lab.Weather{On: "POST /api/v1/push", Lost: true}
	}
	brokers := n.lab.Brokers
	if b != nil {
		brokers = []*lab.Broker{b}
	}
	links := make([]*lab.Link, len(brokers))
	for i, b := range brokers {
		links[i] = b.Gate
	}
	n.links(f, w, links...)
}

// refused is the part of requests that brokers refuse, and refusal what they say then: that nothing happened.
const (
	refused     = 0.2
	refusalBody = `{"error":"not now","code":"broker_overloaded","retryable":true,"outcome":"none"}`
)

var refusal = fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
	len(refusalBody), refusalBody)

// links makes a fault of links that are changed together; it is seen when one of them has felt it.
func (n *Nemesis) links(f *fault, w lab.Weather, links ...*lab.Link) {
	hits := func() (sum int64) {
		for _, l := range links {
			sum += l.Hits()
		}
		return sum
	}
	f.inject = func(ctx context.Context) (string, error) {
		before := hits()
		for _, l := range links {
			l.Set(w)
		}
		return until(ctx, "break "+links[0].Name, func() (bool, string) {
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

// control is N23: gateways cannot ask the control database, or hear nothing from it, or late, or are not notified of
// changes. Or one of them starts while it is away, and has only what it has kept.
func (n *Nemesis) control(f *fault, g *lab.Gateway) {
	w := weather(f.note.Action)
	switch f.note.Action {
	case "slow":
		w = lab.Weather{Delay: late}
	case "mute":
		w = lab.Weather{Mute: true}
	}
	var links []*lab.Link
	for _, g := range n.lab.Gateways {
		links = append(links, g.Control...)
	}
	n.links(f, w, links...)
	if g == nil {
		return
	}
	cut, mend := f.inject, f.repair
	f.inject = func(ctx context.Context) (string, error) {
		effect, err := cut(ctx)
		if err != nil {
			return "", err
		}
		pid := g.PID()
		if err := g.End(ctx, syscall.SIGKILL); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s, and process %d is gone and starts again", effect, pid), g.Launch()
	}
	f.repair = func(ctx context.Context) error {
		if err := mend(ctx); err != nil {
			return err
		}
		return g.Restart(ctx)
	}
}

// redis is N20: Redis is killed and comes back empty, stands still, forgets everything, has no memory left or is slow; or
// one gateway is cut off from it, while others are not.
func (n *Nemesis) redis(f *fault, g *lab.Gateway) {
	r := n.lab.Redis
	if g != nil {
		n.links(f, weather("cut"), g.Redis)
		return
	}
	command := func(ctx context.Context, text string) error {
		answer, err := r.Do(ctx, text)
		if err == nil && answer != "+OK" {
			err = fmt.Errorf("%s: Redis says %q", text, answer)
		}
		return err
	}
	f.repair = r.Restart
	switch f.note.Action {
	case "kill-9":
		f.inject = func(ctx context.Context) (string, error) {
			pid := r.PID()
			return fmt.Sprintf("process %d is gone, with all that it knew", pid), r.End(ctx, syscall.SIGKILL)
		}
	case "pause":
		f.inject = func(ctx context.Context) (string, error) {
			if err := r.Signal(syscall.SIGSTOP); err != nil {
				return "", err
			}
			return until(ctx, "stop Redis", func() (bool, string) {
				s := r.State()
				return s == "T", fmt.Sprintf("process %d is in state %s", r.PID(), s)
			})
		}
		f.repair = func(ctx context.Context) error {
			if err := r.Signal(syscall.SIGCONT); err != nil {
				return err
			}
			return r.Restart(ctx)
		}
	case "flush":
		f.inject = func(ctx context.Context) (string, error) {
			return "it has forgotten everything", command(ctx, "FLUSHALL")
		}
	case "full":
		f.inject = func(ctx context.Context) (string, error) {
			return "it has no memory left", command(ctx, "CONFIG SET maxmemory 1")
		}
		f.repair = func(ctx context.Context) error { return command(ctx, "CONFIG SET maxmemory 0") }
	case "slow":
		links := make([]*lab.Link, len(n.lab.Gateways))
		for i, g := range n.lab.Gateways {
			links[i] = g.Redis
		}
		n.links(f, lab.Weather{Delay: late}, links...)
	}
}
