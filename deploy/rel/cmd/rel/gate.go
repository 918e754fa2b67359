package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/queengate/queengate/deploy/rel/hist"
	"github.com/queengate/queengate/deploy/rel/wl"
)

const gateUsage = "[-seed N] [-part ci]    the workloads of gateways: fleets of three and eight, exact, leased and local, and a pool of brokers"

var gateCommand = command{name: "gate", usage: gateUsage, run: gate}

// gateCells are the runs of gateways. Each has quiet load first, in which what a fault forgives is not forgiven.
func gateCells() []cell {
	floors := hist.Floors{Admitted: 300, Refused: 200}
	return []cell{
		{
			Workloads: []string{"G1", "G2", "G3", "G4", "G5", "G6", "G8"}, Brokers: 2, Gateways: 3, Quota: "exact", Quiet: 14 * time.Second,
			Nemeses: []string{"N4:refusals", "N2:terminate", "N20:pause", "N23:cut", "N20:kill-9", "N23:slow", "N20:cut-off"}, Floors: floors,
		},
		{
			Workloads: []string{"G1", "G2", "G8"}, Brokers: 1, Gateways: 8, Quota: "leased", Quiet: 12 * time.Second,
			Nemeses: []string{"N20:full", "N23:reboot", "N3", "N23:mute", "N20:slow", "N1:kill-9"}, Floors: floors,
		},
		{Workloads: []string{"G1"}, Brokers: 1, Gateways: 1, Quota: "local", Load: 8 * time.Second, Floors: floors},
		turns,
		{
			Workloads: []string{"G11"}, Brokers: 3, Gateways: 2, Quiet: 3 * time.Second,
			Nemeses: []string{"N1:kill-9", "N4:slow", "N3", "N4:errors", "N4:deaf-back", "N4:lost"}, Floors: hist.Floors{Pushes: 300},
		},
	}
}

// turns is a cell of few places at brokers that are 20 ms away: a gateway is full long before the machine is busy.
var turns = cell{
	Workloads: []string{"G6-turns"}, Brokers: 1, Gateways: 2, Quota: "exact", Load: 10 * time.Second, Far: 20 * time.Millisecond,
	Settings: map[string]string{"QUEENGATE_GATEWAY_MAX_IN_FLIGHT": "8"}, Floors: hist.Floors{Admitted: 150},
}

// ciCells are the part of them that fits into three minutes: fewer faults and no full gateway, none of the rules missing.
func ciCells() []cell {
	cells := gateCells()
	cells[0].Nemeses = []string{"N2:kill-9", "N20:pause", "N23:cut"}
	cells[1].Workloads = []string{"G1", "G2"}
	cells[1].Nemeses = []string{"N20:kill-9"}
	cells[4].Nemeses = []string{"N1:kill-9", "N4:slow"}
	return slices.Delete(cells, 3, 4)
}

// gate runs the cells of gateways, one after the other. Exit codes are those of run, the worst of all cells; one that could
// not be judged is run once more, and one that failed never is.
func gate(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("rel gate", flag.ContinueOnError)
	flags.SetOutput(stderr)
	seed := flags.Uint64("seed", 0, "of generators and schedules; 0 draws one")
	part := flags.String("part", "all", "all, or ci for three minutes")
	product := flags.String("product", ".", "the product's source, or a folder below it")
	binary := flags.String("binary", "", "a built product instead of its source")
	out := flags.String("out", defaultOut(), "where runs are kept")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	cells := map[string]func() []cell{"all": gateCells, "ci": ciCells}[*part]
	if cells == nil {
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
	for _, c := range cells() {
		c.Seed, c.Once, c.Polls = *seed, true, 3
		code := one(ctx, b, c, stdout, stderr)
		if code == exitUnknown && ctx.Err() == nil {
			b.say("nothing was broken and nothing proved: once more")
			code = one(ctx, b, c, stdout, stderr)
		}
		// A failure outweighs what could not be judged.
		if rank := []int{exitPass, exitUnknown, exitUsage, exitFail}; slices.Index(rank, code) > slices.Index(rank, worst) {
			worst = code
		}
		if ctx.Err() != nil {
			return exitUnknown
		}
	}
	return worst
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
