package nem

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/queengate/queengate/deploy/rel/lab"
)

// Plan is one fault to come.
type Plan struct {
	Name   string        // N1…
	Action string        // one of those of the name; see actions
	Target string        // br1…, cell, pg, mesh
	At     time.Duration // since the load began; later when the fault before it takes longer
	For    time.Duration // between observed and repair
}

func (p Plan) String() string {
	return fmt.Sprintf("%s %s %s at %s for %s", p.Name, p.Action, p.Target, p.At.Round(time.Millisecond), p.For.Round(time.Millisecond))
}

// kind is what a nemesis may do: the actions, on what, and how long.
type kind struct {
	actions  []string
	on       string // "br", "gw": any of them; "pg", "mesh", "redis", "control": that; "br|pg": any broker, or all of them
	from, to time.Duration
	needs    func(*lab.Config) string // why it cannot be had, "" when it can
}

// kinds are the nemeses by the names of the programme.
var kinds = map[string]kind{
	"N1": {actions: []string{"kill-9", "terminate"}, on: "br", from: 300 * time.Millisecond, to: 2 * time.Second},
	"N2": {actions: []string{"kill-9", "pause", "terminate"}, on: "gw", from: time.Second, to: 3 * time.Second, needs: gateways},
	"N3": {actions: []string{"pause"}, on: "br", from: 2500 * time.Millisecond, to: 5 * time.Second},
	"N4": {
		actions: []string{"cut", "slow", "deaf-back", "errors", "deaf", "refusals", "lost"}, on: "br", from: 4 * time.Second, to: 6 * time.Second, needs: gateways,
	},
	"N5": {actions: []string{"cut", "deaf", "deaf-forth", "deaf-back"}, on: "br|pg", from: 2 * time.Second, to: 6 * time.Second},
	"N6": {
		actions: []string{"cut", "deaf-forth", "loss"}, on: "mesh", from: 3 * time.Second, to: 6 * time.Second,
		needs: func(c *lab.Config) string { return unless(c.Mesh, "the brokers have no mesh") },
	},
	"N8": {actions: []string{"kill-backend", "kill-9", "immediate", "fast"}, on: "pg", from: 200 * time.Millisecond, to: 3 * time.Second},
	"N10": {
		actions: []string{"failover"}, on: "pg", from: 0, to: time.Second,
		needs: func(c *lab.Config) string { return unless(c.Standby != lab.NoStandby, "there is no standby") },
	},
	"N14": {actions: []string{"full", "io-error"}, on: "br", from: 2 * time.Second, to: 4 * time.Second, needs: volume},
	"N16": {actions: []string{"power-cut"}, on: "br", from: 2 * time.Second, to: 4 * time.Second, needs: volume},
	"N17": {
		actions: []string{"litter"}, on: "br", from: 2 * time.Second, to: 4 * time.Second,
		needs: func(c *lab.Config) string { return unless(c.Spool, "the product has no spool") },
	},
	"N20": {
		actions: []string{"pause", "kill-9", "full", "flush", "slow", "cut-off"}, on: "redis", from: 2 * time.Second, to: 3 * time.Second,
		needs: func(c *lab.Config) string {
			return unless(c.Gateways > 0 && c.Quota != "local", "there are no gateways with Redis")
		},
	},
	"N23": {actions: []string{"cut", "deaf-back", "slow", "mute", "reboot"}, on: "control", from: 3 * time.Second, to: 4 * time.Second, needs: gateways},
}

func gateways(c *lab.Config) string { return unless(c.Gateways > 0, "there are no gateways") }

func unless(ok bool, why string) string {
	if ok {
		return ""
	}
	return why
}

func volume(c *lab.Config) string {
	switch {
	case !c.Spool:
		return "the product has no spool"
	case !c.Volume:
		return "no file system can be mounted here"
	}
	return ""
}

// Known reports whether there is a nemesis of a name, and why it cannot be had in a lab, "" when it can.
func Known(name string, c *lab.Config) (ok bool, why string) {
	k, ok := kinds[name]
	if ok && k.needs != nil {
		why = k.needs(c)
	}
	return ok, why
}

// startTime is what a gateway gets to start in, before it is seen how it does without its control database.
const startTime = 3 * time.Second

// settle is what lies between two faults: time to be served again, and for the judge to see it.
const settle = 6 * time.Second

// Shape is what a schedule must fit.
type Shape struct {
	Load     time.Duration
	Quiet    time.Duration // before the first fault
	Once     bool          // each nemesis comes once, and the load must last for all of them: Length says how long
	Brokers  int
	Gateways int
}

// Schedule draws a schedule from a seed: the nemeses in their order, over and over, until the load is over, or once.
// Actions rotate from a start that the seed decides, so that a few runs have had all of them.
func Schedule(seed uint64, names []string, s Shape) []Plan {
	dice := rand.New(rand.NewPCG(seed, 0x6e656d))
	turn := map[string]int{}
	for _, n := range slices.Sorted(maps.Keys(kinds)) {
		turn[n] = dice.IntN(len(kinds[n].actions))
	}
	var plan []Plan
	at := s.Quiet
	for i := 0; len(names) > 0 && (!s.Once || i < len(names)); i++ {
		name, action, _ := strings.Cut(names[i%len(names)], ":")
		k := kinds[name]
		p := Plan{Name: name, Action: action, Target: k.on, At: at, For: k.from + time.Duration(dice.Int64N(int64(k.to-k.from)))}
		if action == "" {
			p.Action = k.actions[turn[name]%len(k.actions)]
			turn[name]++
		}
		if broker := fmt.Sprintf("br%d", 1+dice.IntN(s.Brokers)); k.on == "br" || k.on == "br|pg" && dice.IntN(3) > 0 {
			p.Target = broker
		} else if k.on == "br|pg" {
			p.Target = "pg"
		}
		if k.on == "gw" || p.Action == "cut-off" || p.Action == "reboot" {
			p.Target = fmt.Sprintf("gw%d", 1+dice.IntN(max(1, s.Gateways)))
		}
		if p.Action == "reboot" {
			p.For += startTime
		}
		if p.Action == "refusals" || p.Action == "lost" {
			p.Target = "cell" // all brokers
		}
		if end := p.At + p.For + settle; !s.Once && end > s.Load {
			break
		}
		plan = append(plan, p)
		at += p.For + settle
	}
	return plan
}

// Length is how long a load must last for a schedule.
func Length(plan []Plan) time.Duration {
	if len(plan) == 0 {
		return 0
	}
	last := plan[len(plan)-1]
	return last.At + last.For + settle
}
