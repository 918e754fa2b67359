package main

import (
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is the whole run as a document: per group its rows and the comparisons.
func report(groups []group, s settings) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmark of %s\n\n", time.Now().UTC().Format("2006-01-02"))
	fmt.Fprintf(&b, "`make bench` (%d repetitions of %v each, medians, spread in brackets). %s, PostgreSQL %s, %d CPUs shared by client, gateway, broker and database; fsync and deduplication on; %d-byte payloads.\n\n",
		s.reps, s.seconds, runtime.Version(), postgresVersion(), runtime.NumCPU(), payloadBytes)
	b.WriteString("Absolute figures move with the neighbours of a shared machine; the ratios, taken in one run, are what counts.\n")
	for i := range groups {
		if g := &groups[i]; len(g.results) > 0 {
			fmt.Fprintf(&b, "\n## %s\n", g.name)
			if g.about != nil {
				fmt.Fprintf(&b, "\n%s\n", g.about())
			}
			g.appendCases(&b)
			g.appendFigures(&b)
			g.appendCalm(&b)
			g.appendRatios(&b)
			g.appendBounds(&b)
		}
	}
	return b.String()
}

// column is what the table of cases says of one.
type column struct {
	head string
	of   func([]sample) string
}

// columns are those of the group's table of cases.
func (g *group) columns() []column {
	cpu := func(f func(sample) time.Duration) func([]sample) string {
		return func(r []sample) string {
			return fmt.Sprintf("%.1f", median(r, func(s sample) float64 { return us(f(s)) }))
		}
	}
	all := []column{
		{"msg/s", func(r []sample) string {
			rate := func(s sample) float64 { return s.rate }
			low, high := spread(r, rate)
			return fmt.Sprintf("%.0f [%.0f–%.0f]", median(r, rate), low, high)
		}},
		{"p50 ms", func(r []sample) string { return cell(r, func(s sample) float64 { return ms(s.p50) }) }},
		{"p99 ms", func(r []sample) string { return cell(r, func(s sample) float64 { return ms(s.p99) }) }},
	}
	if g.requests {
		all[0].head = "requests/s"
		return append(
			all,
			column{"proxy CPU µs/request", cpu(func(s sample) time.Duration { return s.ours })},
			column{"upstream CPU µs/request", cpu(func(s sample) time.Duration { return s.upstream })},
			column{"loader CPU µs/request", cpu(func(s sample) time.Duration { return s.loader })},
			column{"Redis CPU µs/request", func(r []sample) string { return cell(r, func(s sample) float64 { return us(s.redis) }) }},
		)
	}
	return append(
		all,
		column{"queengate CPU µs/msg", cpu(func(s sample) time.Duration { return s.ours })},
		column{"PostgreSQL CPU µs/msg", cpu(func(s sample) time.Duration { return s.postgres })},
		column{"commits/msg", func(r []sample) string { return cell(r, func(s sample) float64 { return s.commits }) }},
	)
}

func (g *group) appendCases(b *strings.Builder) {
	head := false
	columns := g.columns()
	for _, c := range g.cases {
		r := g.results[c.name]
		if len(r) == 0 || r[0].figures != nil {
			continue
		}
		if !head {
			head = true
			b.WriteString("\n| case |")
			for _, x := range columns {
				fmt.Fprintf(b, " %s |", x.head)
			}
			b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
		}
		fmt.Fprintf(b, "| %s: %s |", c.name, c.what)
		for _, x := range columns {
			fmt.Fprintf(b, " %s |", x.of(r))
		}
		b.WriteByte('\n')
	}
}

// appendFigures shows the cases that measure no rate.
func (g *group) appendFigures(b *strings.Builder) {
	head := false
	for _, c := range g.cases {
		r := g.results[c.name]
		if len(r) == 0 || r[0].figures == nil {
			continue
		}
		if !head {
			head = true
			b.WriteString("\n| at most | unit | this run | floor | target |\n|---|---|---|---|---|\n")
		}
		fmt.Fprintf(b, "| **%s**: %s | | | | |\n", c.name, c.what)
		for i, f := range r[0].figures {
			of := func(s sample) float64 { return s.figures[i].value }
			low, high := spread(r, of)
			fmt.Fprintf(b, "| %s | %s | %.3g [%.3g–%.3g] | %s | %s |\n", f.name, f.unit, median(r, of), low, high, limit3(f.floor), limit3(f.target))
		}
	}
}

// limit3 is limit for figures of any size.
func limit3(f float64) string {
	if f == 0 {
		return "–"
	}
	return fmt.Sprintf("%.3g", f)
}

func (g *group) appendRatios(b *strings.Builder) {
	head := false
	for _, x := range g.ratios {
		over, under := g.results[x.over], g.results[x.under]
		if len(over) == 0 || len(under) == 0 {
			continue
		}
		if !head {
			head = true
			b.WriteString("\n| ratio | this run | floor | target |\n|---|---|---|---|\n")
		}
		// Pair by pair, so that a machine that changes speed between repetitions changes both sides.
		pairs := make([]sample, min(len(over), len(under)))
		for i := range pairs {
			pairs[i].rate = over[i].rate / under[i].rate
		}
		row(b, x.name, pairs, func(s sample) float64 { return s.rate }, x.floor, x.target)
	}
}

func (g *group) appendBounds(b *strings.Builder) {
	head := false
	add := func(name string, r []sample, of func(sample) float64, floor, target float64) {
		if len(r) == 0 {
			return
		}
		if !head {
			head = true
			b.WriteString("\n| at most | this run | floor | target |\n|---|---|---|---|\n")
		}
		row(b, name, r, of, floor, target)
	}
	for _, x := range g.bounds {
		add(x.name, g.results[x.kase], x.of, x.floor, x.target)
	}
	for _, x := range g.comparisons {
		add(x.name, g.compared(&x), func(s sample) float64 { return s.rate }, x.floor, x.target)
	}
}

// compared returns the figure of a comparison in every repetition that has all of its cases, as a rate.
func (g *group) compared(x *comparison) (out []sample) {
	for rep := 0; ; rep++ {
		some := make([]sample, len(x.cases))
		for i, name := range x.cases {
			r := g.results[name]
			if rep >= len(r) {
				return out
			}
			some[i] = r[rep]
		}
		out = append(out, sample{rate: x.of(some)})
	}
}

func row(b *strings.Builder, name string, r []sample, of func(sample) float64, floor, target float64) {
	low, high := spread(r, of)
	fmt.Fprintf(b, "| %s | %.2f [%.2f–%.2f] | %s | %s |\n", name, median(r, of), low, high, limit(floor), limit(target))
}

// appendCalm shows the latencies of the messages that passed while the machine was not slowed from outside.
func (g *group) appendCalm(b *strings.Builder) {
	head := false
	for _, c := range g.cases {
		r := g.results[c.name]
		if len(r) == 0 || r[0].calm == 0 {
			continue
		}
		if !head {
			head = true
			b.WriteString("\n| case, without the stretches in which the machine itself was slow | share of the messages or requests | p50 ms | p99 ms |\n|---|---|---|---|\n")
		}
		fmt.Fprintf(b, "| %s | %.0f %% | %.2f | %.2f |\n", c.name, 100*median(r, func(s sample) float64 { return s.calm }),
			median(r, func(s sample) float64 { return ms(s.calm50) }), median(r, func(s sample) float64 { return ms(s.calm99) }))
	}
}

func limit(f float64) string {
	if f == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", f)
}

func cell(r []sample, f func(sample) float64) string {
	if m := median(r, f); m > 0 {
		return fmt.Sprintf("%.2f", m)
	}
	return "–"
}

func values(r []sample, f func(sample) float64) []float64 {
	v := make([]float64, len(r))
	for i := range r {
		v[i] = f(r[i])
	}
	slices.Sort(v)
	return v
}

func median(r []sample, f func(sample) float64) float64 {
	v := values(r, f)
	return v[len(v)/2]
}

func spread(r []sample, f func(sample) float64) (low, high float64) {
	v := values(r, f)
	return v[0], v[len(v)-1]
}

func postgresVersion() string {
	path, err := pgbenchPath()
	if err != nil {
		return "unknown"
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return "unknown"
	}
	f := strings.Fields(string(out))
	if len(f) < 3 {
		return strings.TrimSpace(string(out))
	}
	return f[2]
}
