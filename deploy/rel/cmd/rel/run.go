package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/queengate/queengate/deploy/rel/check"
	"github.com/queengate/queengate/deploy/rel/hist"
	"github.com/queengate/queengate/deploy/rel/lab"
	"github.com/queengate/queengate/deploy/rel/nem"
)

const runUsage = "[-seed N] [-workloads W1,...] [-nemeses N1,...] [-nightly]    put a system up, load and break it, judge"

var runCommand = command{name: "run", usage: runUsage, run: run}

// smoke is the combined run of every day: all workloads under all nemeses, once each.
var smoke = cell{
	Workloads: []string{"W1", "W2", "W5", "W6", "W7", "W8", "W11", "W13"},
	Nemeses:   []string{"N1", "N3", "N8", "N5", "N6", "N16", "N14", "N17", "N10"}, Once: true,
	Brokers: 3, Polls: 3,
}

// smokeFloors are what it must have seen to prove anything.
var smokeFloors = hist.Floors{
	Pushes: 3000, Acks: 2000, Redeliveries: 5, Infos: 5, Buffered: 50, Duplicates: 50, Transactions: 100, Fenced: 5,
	DeadLetters: 5, Deleted: 50, Wakes: 20, Reads: 500,
}

// runFlags are the flags of rel run.
type runFlags struct {
	*flag.FlagSet
	cell                 cell
	product, binary, out string
	keep, nightly        bool
}

func newRunFlags(stderr io.Writer) *runFlags {
	f := &runFlags{FlagSet: flag.NewFlagSet("rel run", flag.ContinueOnError), cell: smoke}
	c := &f.cell
	f.SetOutput(stderr)
	f.Uint64Var(&c.Seed, "seed", 0, "of generators and schedule; 0 draws one")
	f.listVar(&c.Workloads, "workloads", "all that take part")
	f.listVar(&c.Nemeses, "nemeses", "in their order; NAME:ACTION asks for one action, none for a quiet run")
	f.BoolVar(&c.Once, "once", c.Once, "every nemesis comes once and the load lasts for all of them; else they rotate until it is over")
	f.DurationVar(&c.Load, "load", 0, "how long the load lasts, at least")
	f.IntVar(&c.Brokers, "brokers", c.Brokers, "how many")
	f.IntVar(&c.Gateways, "gateways", c.Gateways, "how many stand between clients and brokers")
	f.StringVar(&c.Quota, "quota", "", "who decides over limits: local, exact or leased; the product's choice without it")
	f.DurationVar(&c.Quiet, "quiet", quietTime, "load before the first fault")
	f.IntVar(&c.Polls, "polls", c.Polls, "empty polls of a second that end a drain")
	f.Func("standby", "of PostgreSQL: none, sync or async (sync when N10 is asked for)", func(s string) error {
		switch c.Standby = lab.Standby(s); c.Standby {
		case "none":
			c.Standby = lab.NoStandby
		case lab.SyncStandby, lab.AsyncStandby:
		default:
			return errors.New("want none, sync or async")
		}
		return nil
	})
	f.DurationVar(&c.Far, "far", 0, "how far away gateways are from brokers, each way")
	f.mapVar(&c.Postgres, "postgres", "a setting of PostgreSQL")
	f.mapVar(&c.Settings, "setting", "a variable of gateways")
	f.StringVar(&f.product, "product", ".", "the product's source, or a folder below it")
	f.StringVar(&f.binary, "binary", "", "a built product instead of its source")
	f.StringVar(&f.out, "out", defaultOut(), "where runs are kept")
	f.BoolVar(&f.keep, "keep", false, "keep the data of runs that pass, too")
	f.BoolVar(&f.nightly, "nightly", false, "all cells of a night; a state file in -out lists those that are done")
	return f
}

// defaultOut is where runs are kept.
func defaultOut() string { return filepath.Join(os.TempDir(), "queengate-rel") }

// mapVar defines a flag that sets one member of a map.
func (f *runFlags) mapVar(to *map[string]string, name, usage string) {
	f.Func(name, usage+", NAME=VALUE; may be repeated", func(s string) error {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("want NAME=VALUE")
		}
		if *to == nil {
			*to = map[string]string{}
		}
		(*to)[key] = value
		return nil
	})
}

// listVar defines a flag with a list of names, "none" for an empty one.
func (f *runFlags) listVar(to *[]string, name, usage string) {
	f.Func(name, fmt.Sprintf("%s (default %s)", usage, strings.Join(*to, ",")), func(s string) error {
		*to = nil
		if s != "" && s != "none" {
			*to = strings.Split(s, ",")
		}
		return nil
	})
}

// run runs one cell, or with -nightly all cells of a night, and prints what came of each. Exit code: 0 when all passed,
// 1 when one failed, 3 when one could not be judged, 2 when there was nothing to run. The whole run is made once more if it
// could not be judged, which is mostly a busy machine's doing; one that failed never is.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f := newRunFlags(stderr)
	if err := f.Parse(args); err != nil {
		return exitUsage
	}
	if f.cell.Seed == 0 {
		f.cell.Seed = uint64(time.Now().UnixNano())
	}
	b, err := prepare(ctx, f.product, f.binary, f.out)
	if err != nil {
		fmt.Fprintln(stderr, "rel run:", err)
		return exitUsage
	}
	b.keep = f.keep
	b.say = func(format string, args ...any) { fmt.Fprintf(stdout, format+"\n", args...) }
	if f.whole() {
		f.cell.Floors = smokeFloors
		f.cell.Nemeses = slices.DeleteFunc(slices.Clone(f.cell.Nemeses), func(n string) bool {
			_, why := nem.Known(n, &lab.Config{Spool: b.spool, Volume: b.spool && lab.CanMount() == nil, Mesh: true, Standby: lab.SyncStandby})
			if why != "" {
				b.say("left out: %s: %s", n, why)
			}
			return why != ""
		})
	}
	if f.nightly {
		return night(ctx, b, f.cell.Seed, stdout, stderr)
	}
	_, code := one(ctx, b, f.cell, stdout, stderr)
	if code == exitUnknown && f.whole() && ctx.Err() == nil {
		b.say("nothing was broken and nothing proved: once more")
		_, code = one(ctx, b, f.cell, stdout, stderr)
	}
	return code
}

// whole reports that the smoke run is asked for, and not a part of it.
func (f *runFlags) whole() bool {
	whole := true
	f.Visit(func(x *flag.Flag) { whole = whole && x.Name != "workloads" && x.Name != "nemeses" && x.Name != "load" })
	return whole
}

// one runs a cell and prints what came of it.
func one(ctx context.Context, b *bench, c cell, stdout, stderr io.Writer) (*check.Report, int) {
	report, dir, err := b.run(ctx, c)
	show(stdout, report, dir)
	if err != nil {
		fmt.Fprintf(stderr, "rel run: %v\n  the folder of the run is %s\n", err, dir)
		if report == nil || report.Verdict != check.Fail {
			return nil, exitUnknown
		}
	}
	return report, exitOf(report.Verdict, true)
}

// prepare builds the product unless it is built, and makes the folder of runs, which PostgreSQL's user must be able to
// pass.
func prepare(ctx context.Context, product, binary, out string) (*bench, error) {
	b := &bench{binary: binary, out: out}
	if err := os.MkdirAll(out, 0o711); err != nil {
		return nil, err
	}
	var err error
	if b.out, err = filepath.Abs(out); err != nil {
		return nil, err
	}
	if b.root, err = lab.Root(product); err != nil && binary == "" {
		return nil, err
	}
	if binary == "" {
		if b.binary, err = lab.Build(ctx, b.root, b.out); err != nil {
			return nil, err
		}
	} else if b.binary, err = filepath.Abs(binary); err != nil {
		return nil, err
	}
	b.spool = lab.HasSpool(ctx, b.binary)
	return b, ctx.Err()
}
