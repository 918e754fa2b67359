package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/queengate/queengate/deploy/rel/check"
	"github.com/queengate/queengate/deploy/rel/hist"
	"github.com/queengate/queengate/deploy/rel/wl"
)

const gateUsage = "[-seed N] [-part ci]    the workloads of gateways: fleets of three and eight, exact, leased and local, and a pool of brokers"

var gateCommand = command{name: "gate", usage: gateUsage, run: gate}

// lane is some cells that run one after the other, beside other lanes.
type lane []cell

// gateRounds are the runs of gateways: rounds of lanes. A latency is measured in the first, which has the machine for itself;
// what comes after it waits most of the time. Each cell has quiet load first, in which what a fault forgives is not forgiven.
func gateRounds() [][]lane {
	floors := hist.Floors{Admitted: 300, Refused: 200}
	return [][]lane{
		{{{
			Workloads: []string{"G1", "G2", "G3", "G4", "G5", "G6", "G8"}, Brokers: 2, Gateways: 3, Quota: "exact", Quiet: 13 * time.Second,
			Nemeses: []string{"N4:refusals", "N2:terminate", "N20:pause", "N23:cut", "N20:kill-9", "N23:slow", "N20:cut-off"}, Floors: floors,
		}}},
		{
			{{
				Workloads: []string{"G1", "G2", "G8"}, Brokers: 1, Gateways: 8, Quota: "leased", Quiet: 12 * time.Second,
				Nemeses: []string{"N20:full", "N23:reboot", "N3", "N23:mute", "N20:slow", "N1:kill-9"}, Floors: floors,
			}},
			{{
				Workloads: []string{"G11"}, Brokers: 3, Gateways: 2, Quiet: 3 * time.Second,
				Nemeses: []string{"N1:kill-9", "N4:slow", "N3", "N4:errors", "N4:deaf-back", "N4:lost"}, Floors: hist.Floors{Pushes: 300},
			}},
			{
				{Workloads: []string{"G1"}, Brokers: 1, Gateways: 1, Quota: "local", Load: 8 * time.Second, Floors: floors},
				turns,
			},
		},
	}
}

// turns is a cell of few places at brokers that are 20 ms away: a gateway is full long before the machine is busy.
var turns = cell{
	Workloads: []string{"G6-turns"}, Brokers: 1, Gateways: 2, Quota: "exact", Load: 10 * time.Second, Far: 20 * time.Millisecond,
	Settings: map[string]string{"QUEENGATE_GATEWAY_MAX_IN_FLIGHT": "8"}, Floors: hist.Floors{Admitted: 150},
}

// ciRounds are the part of them that fits into two minutes: fewer faults and no full gateway, none of the rules missing.
func ciRounds() [][]lane {
	rounds := gateRounds()
	all, leased, pool, alone := &rounds[0][0][0], &rounds[1][0][0], &rounds[1][1][0], &rounds[1][2]
	all.Nemeses = []string{"N2:kill-9", "N20:pause", "N23:cut"}
	leased.Workloads, leased.Nemeses = []string{"G1", "G2"}, []string{"N20:kill-9"}
	pool.Nemeses = []string{"N1:kill-9", "N4:slow"}
	*alone = (*alone)[:1]
	return rounds
}

// gate runs the cells of gateways, one round after the other. Exit codes are those of run, the worst of all cells; one that
// could not be judged is run once more, and one that failed never is. What a busy machine kept from being judged is said at
// the end, and no failure: who waits for the outcome can do nothing about it.
func gate(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("rel gate", flag.ContinueOnError)
	flags.SetOutput(stderr)
	seed := flags.Uint64("seed", 0, "of generators and schedules; 0 draws one")
	part := flags.String("part", "all", "all, or ci for two minutes")
	product := flags.String("product", ".", "the product's source, or a folder below it")
	binary := flags.String("binary", "", "a built product instead of its source")
	out := flags.String("out", defaultOut(), "where runs are kept")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	rounds := map[string]func() [][]lane{"all": gateRounds, "ci": ciRounds}[*part]
	if rounds == nil {
		fmt.Fprintln(stderr, "rel gate: want -part all or ci")
		return exitUsage
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	b, err := prepare(ctx, *product, *binary, *out)
	if err != nil {
		fmt.Fprintln(stderr, "rel gate:", err)
		return exitUsage
	}
	b.say = func(format string, args ...any) { fmt.Fprintf(stdout, format+"\n", args...) }
	b.say("seed %d", *seed)
	worst := exitPass
	var unjudged []string
	for _, lanes := range rounds() {
		ended := make([][]gated, len(lanes))
		var all sync.WaitGroup
		for i, l := range lanes {
			all.Go(func() {
				for _, c := range l {
					c.Seed, c.Once, c.Polls = *seed, true, 3
					out := stdout
					if len(lanes) > 1 {
						out = &labelled{to: stdout, label: strings.Join(c.Workloads, "+") + ": "}
					}
					ended[i] = append(ended[i], gateOne(ctx, b, c, out, stderr))
				}
			})
		}
		all.Wait()
		for _, e := range slices.Concat(ended...) {
			// A failure outweighs what could not be judged.
			if rank := []int{exitPass, exitUnknown, exitUsage, exitFail}; slices.Index(rank, e.code) > slices.Index(rank, worst) {
				worst = e.code
			}
			unjudged = append(unjudged, e.unjudged...)
		}
		if ctx.Err() != nil {
			return exitUnknown
		}
	}
	for _, why := range unjudged {
		b.say("%s", why)
	}
	return worst
}

// gated is what came of a cell.
type gated struct {
	code     int
	unjudged []string // what a busy machine kept from being judged
}

// gateOne runs a cell, and once more if nothing was broken and nothing proved; on a machine that is busy most of the time it
// would be no better.
func gateOne(ctx context.Context, b *bench, c cell, stdout, stderr io.Writer) gated {
	own := *b
	own.say = func(format string, args ...any) { fmt.Fprintf(stdout, format+"\n", args...) }
	for again := false; ; again = true {
		report, code := one(ctx, &own, c, stdout, stderr)
		busy := report != nil && report.Verdict == check.NotJudged
		switch {
		case code != exitUnknown || ctx.Err() != nil:
			return gated{code: code}
		case busy && (again || report.Busy > mostly):
			g := gated{code: exitPass}
			for _, why := range report.Reasons {
				g.unjudged = append(g.unjudged, c.name()+": "+why)
			}
			return g
		case again:
			return gated{code: code}
		}
		own.say("nothing was broken and nothing proved: once more")
	}
}

// mostly is for how much of a run a machine is busy that will be so again.
const mostly = 0.5

// labelled puts a label before each line. Every write must be of whole lines.
type labelled struct {
	to    io.Writer
	label string
}

func (l *labelled) Write(p []byte) (int, error) {
	var all bytes.Buffer
	for line := range bytes.Lines(p) {
		all.WriteString(l.label)
		all.Write(line)
	}
	_, err := l.to.Write(all.Bytes())
	return len(p), err
}

const pollsUsage = "-gateway HOST:PORT -n N -for 6s    some waiting polls of G2, which runs start by themselves, and kill"

var pollsCommand = command{name: "polls", usage: pollsUsage, run: polls}

// polls is the process of clients that will be killed. It prints how each poll has ended, as JSON, a line each.
func polls(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("rel polls", flag.ContinueOnError)
	flags.SetOutput(stderr)
	gateway := flags.String("gateway", "", "its address")
	n := flags.Int("n", 1, "how many polls")
	lasts := flags.Duration("for", time.Second, "how long they wait")
	if err := flags.Parse(args); err != nil || *gateway == "" {
		return exitUsage
	}
	wl.Polls(ctx, *gateway, os.Getenv(wl.NoiseKey), *n, *lasts, stdout)
	return exitPass
}

const noiseUsage = "-gateways HOST:PORT,... [-rate N] [-crowd N] -for 6s    the noisy tenant of G6, which runs start by themselves"

var noiseCommand = command{name: "noise", usage: noiseUsage, run: noise}

// noise is the process of the noisy tenant. It prints what it has offered, as JSON.
func noise(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("rel noise", flag.ContinueOnError)
	flags.SetOutput(stderr)
	gateways := flags.String("gateways", "", "their addresses, with commas")
	rate := flags.Int("rate", 100, "requests a second")
	crowd := flags.Int("crowd", 0, "instead of a rate: requests under way all the time")
	lasts := flags.Duration("for", time.Second, "how long")
	if err := flags.Parse(args); err != nil || *gateways == "" || *rate < 1 {
		return exitUsage
	}
	addrs, key := strings.Split(*gateways, ","), os.Getenv(wl.NoiseKey)
	var o hist.OfferNote
	if *crowd > 0 {
		o = wl.Crowd(ctx, addrs, key, *crowd, *lasts)
	} else {
		o = wl.Noise(ctx, addrs, key, *rate, *lasts)
	}
	if err := json.MarshalWrite(stdout, &o); err != nil {
		fmt.Fprintln(stderr, "rel noise:", err)
		return exitUsage
	}
	return exitPass
}
