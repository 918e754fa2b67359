package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/queengate/queengate/deploy/rel/check"
	"github.com/queengate/queengate/deploy/rel/hist"
	"github.com/queengate/queengate/deploy/rel/lab"
)

// stateFile lists the cells of a night that are done, one a line: name, seed, verdict. A night that was broken off goes
// on behind them; remove it to begin anew.
const stateFile = "nightly.state"

// again is how often a cell that did not pass is run once more with its seed, to learn its rate.
const again = 3

// nightFloors are what a cell of the night must have seen of its workload.
var nightFloors = map[string]hist.Floors{
	"W1":  {Pushes: 2000, Reads: 2000, Transactions: 50},
	"W2":  {Pushes: 1000, Acks: 1500, Redeliveries: 5, Fenced: 2},
	"W5":  {Transactions: 200, Fenced: 2},
	"W6":  {Pushes: 500, Duplicates: 100},
	"W7":  {Acks: 200, DeadLetters: 20, Redeliveries: 20},
	"W8":  {Deleted: 100},
	"W11": {Wakes: 50},
	"W13": {Buffered: 50},
}

// matrix is the cells of a night: every workload that keeps what it is given under every fault of processes, links and
// PostgreSQL, then the rest with the faults that are theirs, and the workloads of gateways with all kinds of theirs. A cell
// takes less than two minutes.
func matrix(seed uint64) []cell {
	var cells []cell
	add := func(w, n string, gateways int) {
		c := cell{
			Workloads: strings.Split(w, "+"), Nemeses: strings.Split(n, "+"), Load: nightLoad, Brokers: 3, Gateways: gateways,
			Polls: 8, Seed: seed + uint64(len(cells)),
		}
		if len(c.Workloads) == 1 && gateways == 0 {
			c.Floors = nightFloors[w]
		}
		if n == "N10" { // there is one standby
			c.Standby, c.Once = lab.SyncStandby, true
		}
		cells = append(cells, c)
	}
	for _, w := range []string{"W1", "W2", "W5", "W6", "W7", "W13"} {
		for _, n := range []string{"N1", "N5", "N8", "N10"} {
			add(w, n, 0)
		}
	}
	add("W13", "N16", 0)
	add("W13", "N14", 0)
	add("W13", "N17", 0)
	add("W2", "N3", 0)
	add("W8", "N1+N8", 0)
	add("W11", "N6", 0)
	add("W1+W2+W5+W6", "N1+N3+N5", 2)
	for _, c := range []cell{
		{Workloads: []string{"G1"}, Nemeses: []string{"N20", "N2"}, Brokers: 1, Gateways: 3, Quota: "exact"},
		{Workloads: []string{"G1"}, Nemeses: []string{"N20", "N2"}, Brokers: 1, Gateways: 8, Quota: "leased"},
		{Workloads: []string{"G2"}, Nemeses: []string{"N1", "N2", "N3"}, Brokers: 2, Gateways: 3, Quota: "exact"},
		{Workloads: []string{"G3", "G5"}, Nemeses: []string{"N4:refusals", "N20"}, Brokers: 2, Gateways: 3, Quota: "leased"},
		{Workloads: []string{"G8"}, Nemeses: []string{"N23"}, Brokers: 1, Gateways: 3, Quota: "exact"},
		{Workloads: []string{"G11"}, Nemeses: []string{"N4", "N1", "N3"}, Brokers: 3, Gateways: 2},
	} {
		c.Load, c.Quiet, c.Polls, c.Seed = nightLoad, gateQuiet, 3, seed+uint64(len(cells))
		cells = append(cells, c)
	}
	return cells
}

// nightLoad is how long the load of a cell lasts, and gateQuiet how much of it gateways have before their first fault.
const nightLoad, gateQuiet = 70 * time.Second, 8 * time.Second

// night runs the cells that are not done.
func night(ctx context.Context, b *bench, seed uint64, stdout, stderr io.Writer) int {
	path := filepath.Join(b.out, stateFile)
	done, began, err := readState(path, seed)
	if err != nil {
		fmt.Fprintln(stderr, "rel run:", err)
		return exitUsage
	}
	worst := exitPass
	for _, c := range matrix(began) {
		if v, ok := done[c.name()]; ok {
			b.say("%s is done: %s", c.name(), v)
			worst = max(worst, exitOf(v, true))
			continue
		}
		v := b.rate(ctx, c, stdout, stderr)
		if ctx.Err() != nil {
			return exitUnknown
		}
		worst = max(worst, exitOf(v, true))
		if err := appendState(path, c, v); err != nil {
			fmt.Fprintln(stderr, "rel run:", err)
			return exitUsage
		}
	}
	return worst
}

// rate runs a cell, and if it does not pass some times more with the same seed.
func (b *bench) rate(ctx context.Context, c cell, stdout, stderr io.Writer) check.Verdict {
	verdicts := map[check.Verdict]int{}
	for n := 0; n <= again && ctx.Err() == nil; n++ {
		report, dir, err := b.run(ctx, c)
		show(stdout, report, dir)
		v := verdict(report)
		if err != nil {
			fmt.Fprintln(stderr, "rel run:", err)
			if v == check.Pass {
				v = check.Unknown
			}
		}
		verdicts[v]++
		if n == 0 && v == check.Pass {
			return v
		}
	}
	b.say("  of %d runs with seed %d: %d failed, %d could not be judged", again+1, c.Seed, verdicts[check.Fail], verdicts[check.Unknown]+verdicts[check.NotJudged])
	if verdicts[check.Fail] > 0 {
		return check.Fail
	}
	return check.Unknown
}

// readState reads the cells that are done, and the seed of the night, which a new night gets from seed.
func readState(path string, seed uint64) (map[string]check.Verdict, uint64, error) {
	done := map[string]check.Verdict{}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return done, seed, os.WriteFile(path, fmt.Appendf(nil, "seed %d\n", seed), 0o644)
	}
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var name, v string
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "seed "):
			if _, err := fmt.Sscanf(line, "seed %d", &seed); err != nil {
				return nil, 0, fmt.Errorf("read %s: %w", path, err)
			}
		default:
			var s uint64
			if _, err := fmt.Sscan(line, &name, &s, &v); err != nil {
				return nil, 0, fmt.Errorf("read %s: %w", path, err)
			}
			done[name] = check.Verdict(v)
		}
	}
	return done, seed, nil
}

func appendState(path string, c cell, v check.Verdict) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, c.name(), c.Seed, v)
	return errors.Join(err, f.Close())
}
