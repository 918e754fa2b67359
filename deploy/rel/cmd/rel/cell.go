package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/queengate/queengate/deploy/rel/check"
	"github.com/queengate/queengate/deploy/rel/hist"
	"github.com/queengate/queengate/deploy/rel/lab"
	"github.com/queengate/queengate/deploy/rel/nem"
	"github.com/queengate/queengate/deploy/rel/wl"
)

// cell is one run: workloads under nemeses on a lab, from a seed.
type cell struct {
	Workloads []string
	Nemeses   []string // in the order in which they come
	Once      bool     // each nemesis comes once and the load lasts for all of them; else they rotate until it is over
	Load      time.Duration
	Standby   lab.Standby
	Postgres  map[string]string // settings that differ
	Brokers   int
	Gateways  int               // clients ask them; 0: they ask the brokers
	Quota     string            // who decides over limits; see lab.Config
	Quiet     time.Duration     // load before the first fault, quietTime when zero
	Far       time.Duration     // how far away gateways are from brokers, each way
	Settings  map[string]string // of gateways, that differ
	Polls     int               // empty polls that end a drain
	Floors    hist.Floors
	Seed      uint64
}

// name is the cell without its seed.
func (c *cell) name() string {
	name := strings.Join(c.Workloads, "+") + "_" + strings.Join(c.Nemeses, "+")
	if c.Gateways > 0 {
		name += fmt.Sprintf("_gw%d%s", c.Gateways, c.Quota)
	}
	if c.Standby != lab.NoStandby {
		name += "_" + string(c.Standby)
	}
	return strings.ReplaceAll(name, ":", "-")
}

// command is what to type to run the cell again.
func (c *cell) command() string { return "go run ./cmd/rel run " + strings.Join(c.args(), " ") }

// args are the arguments of rel run that make the cell.
func (c *cell) args() []string {
	args := []string{"-seed", strconv.FormatUint(c.Seed, 10)}
	if !slices.Equal(c.Workloads, smoke.Workloads) || !slices.Equal(c.Nemeses, smoke.Nemeses) || c.Load != 0 {
		args = append(args, "-workloads", strings.Join(c.Workloads, ","), "-nemeses", cmp.Or(strings.Join(c.Nemeses, ","), "none"),
			"-load", c.Load.String(), fmt.Sprintf("-once=%v", c.Once))
	} // else it is the whole smoke run, with its floors
	args = append(args, "-brokers", strconv.Itoa(c.Brokers), "-gateways", strconv.Itoa(c.Gateways), "-polls", strconv.Itoa(c.Polls),
		"-standby", cmp.Or(string(c.Standby), "none"))
	if c.Quota != "" {
		args = append(args, "-quota", c.Quota)
	}
	if c.Quiet != 0 && c.Quiet != quietTime {
		args = append(args, "-quiet", c.Quiet.String())
	}
	if c.Far != 0 {
		args = append(args, "-far", c.Far.String())
	}
	for _, name := range slices.Sorted(maps.Keys(c.Settings)) {
		args = append(args, "-setting", name+"="+c.Settings[name])
	}
	for _, name := range slices.Sorted(maps.Keys(c.Postgres)) {
		args = append(args, "-postgres", name+"="+c.Postgres[name])
	}
	return args
}

// bench is what cells share: the product, where runs are kept, and who hears of them.
type bench struct {
	root, binary string
	spool        bool
	out          string
	keep         bool // the data folders too
	say          func(format string, args ...any)
}

// The bounds of the phases that wait for the system, and the load before the first fault unless a cell says otherwise.
const (
	quietTime = 2 * time.Second
	warmTime  = 2 * time.Second
	drainTime = 2 * time.Minute
	finalTime = time.Minute
)

// run runs a cell and judges it. The folder of the run is returned whatever came of it.
func (b *bench) run(ctx context.Context, c cell) (report *check.Report, dir string, err error) {
	if c.Standby == lab.NoStandby && slices.Contains(c.Nemeses, "N10") {
		c.Standby = lab.SyncStandby
	}
	began := time.Now()
	id := fmt.Sprintf("%s_%s_%d", began.UTC().Format("20060102T150405"), c.name(), c.Seed)
	dir = filepath.Join(b.out, id)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, dir, err
	}
	b.say("run %s\n  again: %s", id, c.command())
	workloads, queues, clusters, err := named(c.Workloads)
	if err != nil {
		return nil, dir, err
	}
	cfg := lab.Config{
		Dir: dir, Binary: b.binary, Brokers: c.Brokers, Gateways: c.Gateways, Quota: c.Quota, Standby: c.Standby, Mesh: true,
		Spool: b.spool, Postgres: c.Postgres, Settings: c.Settings, Far: c.Far, Volume: b.spool && lab.CanMount() == nil,
	}
	for _, n := range c.Nemeses {
		name, _, _ := strings.Cut(n, ":")
		if ok, why := nem.Known(name, &cfg); !ok || why != "" {
			return nil, dir, fmt.Errorf("the nemesis %s cannot be had: %s", name, why)
		}
	}
	plan := nem.Schedule(c.Seed, c.Nemeses, nem.Shape{Load: c.Load, Quiet: cmp.Or(c.Quiet, quietTime), Once: c.Once, Brokers: c.Brokers, Gateways: c.Gateways})
	header := hist.Header{
		Run: id, Seed: c.Seed, Git: lab.Revision(ctx, b.root), Cmd: c.command(), Queues: queues, Clusters: clusters, Floors: c.Floors,
		Versions: map[string]string{"go": runtime.Version()}, Topology: hist.Topology{Mesh: true, Spool: b.spool, Quota: c.Quota},
	}
	for i := range c.Brokers {
		header.Topology.Brokers = append(header.Topology.Brokers, fmt.Sprintf("br%d", i+1))
	}
	for i := range c.Gateways {
		header.Topology.Gateways = append(header.Topology.Gateways, fmt.Sprintf("gw%d", i+1))
	}
	rec, err := hist.Create(filepath.Join(dir, check.HistoryFile), header)
	if err != nil {
		return nil, dir, err
	}
	if c.Once {
		c.Load = max(c.Load, nem.Length(plan))
	}
	err = b.play(ctx, rec, &c, cfg, workloads, plan)
	if err := errors.Join(err, rec.Close()); err != nil {
		// What was recorded is judged all the same: a broken promise weighs more than a run that did not end.
		report, jerr := check.Dir(dir, id, check.Options{})
		return report, dir, errors.Join(err, jerr)
	}
	b.say("  judging after %s", time.Since(began).Round(100*time.Millisecond))
	report, err = check.Dir(dir, id, check.Options{})
	if err == nil && report.Verdict == check.Pass && !b.keep {
		err = discard(dir)
	}
	b.say("  %s after %s", verdict(report), time.Since(began).Round(100*time.Millisecond))
	return report, dir, err
}

func verdict(r *check.Report) check.Verdict {
	if r == nil {
		return check.Unknown
	}
	return r.Verdict
}

// discard removes all of a run but what judges read: the history, reports and logs.
func discard(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && e.Name() != "log" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// named makes workloads and collects their queues and clusters.
func named(names []string) (all []wl.Workload, queues []hist.Queue, clusters []hist.Cluster, err error) {
	for _, name := range names {
		w, ok := wl.Named(name)
		if !ok {
			return nil, nil, nil, fmt.Errorf("there is no workload %s", name)
		}
		all = append(all, w)
		queues = append(queues, w.Queues...)
		clusters = append(clusters, w.Clusters...)
	}
	return all, queues, clusters, nil
}

// tenants makes those of workloads.
func tenants(ctx context.Context, l *lab.Lab, workloads []wl.Workload) (map[string]*lab.Tenant, error) {
	made := map[string]*lab.Tenant{}
	for i := range workloads {
		for k := range workloads[i].Clusters {
			c := &workloads[i].Clusters[k]
			if len(l.Gateways) == 0 {
				return nil, fmt.Errorf("%s needs gateways", c.Workload)
			}
			t, err := l.NewTenant(ctx, c.Name, &c.Limits)
			if err != nil {
				return nil, err
			}
			made[c.Name] = t
		}
	}
	return made, nil
}

// canaries are the texts that no tenant but their own may be shown.
func canaries(workloads []wl.Workload) (all []string) {
	for i := range workloads {
		for k := range workloads[i].Clusters {
			if c := workloads[i].Clusters[k].Canary; c != "" {
				all = append(all, c)
			}
		}
	}
	return all
}

// play takes a system through all phases of a run and down again.
func (b *bench) play(ctx context.Context, rec *hist.Writer, c *cell, cfg lab.Config, workloads []wl.Workload, plan []nem.Plan) (err error) {
	rec.Phase(hist.Setup)
	l, ctx, err := lab.Up(ctx, rec, cfg)
	defer func() {
		err = errors.Join(err, l.Broken(), l.Down(), l.ScanLogs())
	}()
	if err != nil {
		return err
	}
	var nodes, brokers []wl.Node
	for _, br := range l.Brokers {
		brokers = append(brokers, wl.Node{Name: br.Name, Addr: br.Addr, Header: l.BrokerHeader()})
	}
	for _, g := range l.Gateways {
		nodes = append(nodes, wl.Node{Name: g.Name, Addr: g.Addr, Secure: g.Secure, Header: l.GatewayHeader()})
	}
	if len(nodes) == 0 {
		nodes = brokers
	}
	s := wl.NewStage(rec, c.Seed, nodes, brokers, c.Polls)
	s.Fleet = l
	if s.Tenants, err = tenants(ctx, l, workloads); err != nil {
		return err
	}
	if err := s.Known(ctx); err != nil {
		return err
	}
	if err := s.Setup(ctx, workloads); err != nil {
		return err
	}
	var aside sync.WaitGroup
	quiet, listen := context.WithCancel(ctx)
	aside.Go(func() {
		if err := lab.Noise(quiet, rec, cfg.Dir); err != nil {
			b.say("  the machine's noise could not be measured: %v", err)
		}
	})
	aside.Go(func() { l.Sample(quiet) })
	defer aside.Wait()
	defer listen()

	rec.Phase(hist.Warmup)
	played := make(chan struct{})
	clients, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer close(played)
		s.Run(clients, workloads)
	}()
	defer func() { stop(); <-played }()
	wait(ctx, warmTime)

	rec.Phase(hist.Load)
	over := time.Now().Add(c.Load)
	if err := nem.New(l, rec, b.say).Play(ctx, plan); err != nil {
		return err
	}
	wait(ctx, time.Until(over))

	rec.Phase(hist.Healed)
	wait(ctx, warmTime)

	rec.Phase(hist.Drain)
	s.Drain()
	select {
	case <-played:
	case <-time.After(drainTime):
		return fmt.Errorf("the queues were not drained within %s", drainTime)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := l.SpoolsDrain(ctx); err != nil {
		return err
	}

	rec.Phase(hist.Final)
	final, cancel := context.WithTimeout(ctx, finalTime)
	defer cancel()
	s.Final(final, workloads)
	if err := l.ScanFor(final, canaries(workloads)); err != nil {
		return err
	}
	if err := l.CheckTables(final, l.Current()); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	rec.Phase(hist.Done)
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// show prints what is worth reading of a report.
func show(w io.Writer, r *check.Report, dir string) {
	if r == nil {
		return
	}
	for _, why := range r.Reasons {
		fmt.Fprintf(w, "  %s\n", why)
	}
	k := r.Counts
	fmt.Fprintf(w, "  %d operations (%d of unknown outcome), pushed %d, duplicates %d, buffered %d, acknowledged %d, redelivered %d, transactions %d, fenced %d, dead %d\n",
		k.Operations, k.Infos, k.Pushes, k.Duplicates, k.Buffered, k.Acks, k.Redeliveries, k.Transactions, k.Fenced, k.DeadLetters)
	judged := slices.DeleteFunc(slices.Clone(r.Rules), func(x check.RuleReport) bool { return x.Checked == 0 })
	names := make([]string, len(judged))
	for i, x := range judged {
		names[i] = fmt.Sprintf("%s:%d", x.Rule, x.Checked)
	}
	fmt.Fprintf(w, "  judged %s\n  report %s\n", strings.Join(names, " "), filepath.Join(dir, check.MarkdownFile))
}
