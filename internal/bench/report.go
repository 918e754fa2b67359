package main

import (
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// ratio is a row of the comparison: one case over another of the same run, beside what shared targets ask of it.
type ratio struct {
	name, over, under string
	floor, target     float64
}

// ratios carry the numbers of the project's targets (rows b1, b1', b100, a6, a7, c1 and the end-to-end row).
var ratios = []ratio{
	{"b1: push of 1 / one-row INSERT", "push-b1-direct", "pg-insert", 0.7, 0.95},
	{"b1': push of 1 / push routine per message", "push-b1-direct", "pg-push", 1.4, 1.9},
	{"b100: push of 100 / push routine alone", "push-b100-direct", "store-push-b100", 0.45, 0.6},
	{"a6: push of 1, gateway over TLS / direct", "push-b1-gateway-tls", "push-b1-direct", 0.50, 0.65},
	{"a7: push of 100, gateway over TLS / direct", "push-b100-gateway-tls", "push-b100-direct", 0.70, 0.82},
	{"push of 1, gateway / direct", "push-b1-gateway", "push-b1-direct", 0, 0},
	{"push of 100, gateway / direct", "push-b100-gateway", "push-b100-direct", 0, 0},
	{"c1: drain / claim and ack alone", "drain-direct", "store-drain", 0.18, 0.30},
	{"drain, gateway / direct", "drain-gateway", "drain-direct", 0, 0},
}

func report(cases []kase, results map[string][]sample, s settings) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmark of %s\n\n", time.Now().UTC().Format("2006-01-02"))
	fmt.Fprintf(&b, "`make bench` (%d repetitions of %v each, medians, spread in brackets). %s, PostgreSQL %s, %d CPUs shared by client, gateway, broker and database; fsync and deduplication on; %d-byte payloads.\n\n",
		s.reps, s.seconds, runtime.Version(), postgresVersion(), runtime.NumCPU(), payloadBytes)
	b.WriteString("Absolute figures move with the neighbours of a shared machine; the ratios, taken in one run, are what counts.\n\n")
	b.WriteString("| case | msg/s | p50 ms | p99 ms | queengate CPU µs/msg | PostgreSQL CPU µs/msg |\n|---|---|---|---|---|---|\n")
	for _, c := range cases {
		r := results[c.name]
		if len(r) == 0 {
			continue
		}
		rate := median(r, func(s sample) float64 { return s.rate })
		low, high := spread(r, func(s sample) float64 { return s.rate })
		fmt.Fprintf(&b, "| %s: %s | %.0f [%.0f–%.0f] | %s | %s | %.1f | %.1f |\n", c.name, c.what, rate, low, high,
			latencyCell(r, func(s sample) float64 { return ms(s.p50) }), latencyCell(r, func(s sample) float64 { return ms(s.p99) }),
			median(r, func(s sample) float64 { return us(s.ours) }), median(r, func(s sample) float64 { return us(s.postgres) }))
	}
	b.WriteString(calmTable(cases, results))
	b.WriteString("\n| ratio | this run | floor | target |\n|---|---|---|---|\n")
	for _, x := range ratios {
		over, under := results[x.over], results[x.under]
		if len(over) == 0 || len(under) == 0 {
			continue
		}
		// Pair by pair, so that a machine that changes speed between repetitions changes both sides.
		pairs := make([]sample, min(len(over), len(under)))
		for i := range pairs {
			pairs[i].rate = over[i].rate / under[i].rate
		}
		low, high := spread(pairs, func(s sample) float64 { return s.rate })
		fmt.Fprintf(&b, "| %s | %.2f [%.2f–%.2f] | %s | %s |\n", x.name, median(pairs, func(s sample) float64 { return s.rate }), low, high, bound(x.floor), bound(x.target))
	}
	return b.String()
}

// calmTable shows the latencies of the messages that passed while the machine was not slowed from outside.
func calmTable(cases []kase, results map[string][]sample) string {
	var b strings.Builder
	for _, c := range cases {
		r := results[c.name]
		if len(r) == 0 || r[0].calm == 0 {
			continue
		}
		if b.Len() == 0 {
			b.WriteString("\n| case, without the stretches in which the machine itself was slow | share of the messages | p50 ms | p99 ms |\n|---|---|---|---|\n")
		}
		fmt.Fprintf(&b, "| %s | %.0f %% | %.2f | %.2f |\n", c.name, 100*median(r, func(s sample) float64 { return s.calm }),
			median(r, func(s sample) float64 { return ms(s.calm50) }), median(r, func(s sample) float64 { return ms(s.calm99) }))
	}
	return b.String()
}

func bound(f float64) string {
	if f == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", f)
}

func latencyCell(r []sample, f func(sample) float64) string {
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
