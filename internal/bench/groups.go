package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// group is the cases of one topic. They run in this order in every repetition: each row stands beside what it is
// divided by.
type group struct {
	name    string
	prepare func(context.Context) error // nil, or what the cases stand on; not measured
	cases   []kase
	ratios  []ratio
	bounds  []bound
	alone   bool // its cases start processes of their own

	comparisons []comparison
	requests    bool          // its rates are of requests, and no database takes part
	about       func() string // a line for the report; nil: none

	results map[string][]sample // by name of the case; nil: the group did not run
}

// groupNames are the names of groups, in order.
var groupNames = []string{"push", "gateway", "neighbour", "refuse", "consume", "flow", "latency", "history", "scale", "cell", "proxies", "idle"}

// groups lists the topics in the order in which they run. Those that fill the database come last.
func (w *world) groups() []group {
	return []group{w.pushes(), w.gateways(), w.neighbours(), w.refusals(), w.consumption(), w.flows(), w.latencies(), w.past(), w.scale(), w.cells(), w.proxies(), w.idleness()}
}

// kase is one thing that is measured.
type kase struct {
	name string
	what string // for the report
	run  func(ctx context.Context, d time.Duration) (sample, error)
}

// sample is one measurement. What a case does not measure is zero.
type sample struct {
	rate     float64       // messages per second, or requests
	p50, p99 time.Duration // of one request, or of a message from end to end
	// The same over the share calm of the messages that no slow stretch of the machine touched.
	calm50, calm99 time.Duration
	calm           float64
	ours           time.Duration // CPU of queengate per message, or of the proxy that is measured per request
	postgres       time.Duration // CPU of PostgreSQL per message
	upstream       time.Duration // CPU of what a proxy stands before, per request
	redis          time.Duration // CPU of Redis per request
	loader         time.Duration // CPU of the bench itself per request
	commits        float64       // of the database per message
	figures        []figure      // of a case that measures no rate, and nothing else
}

func (s sample) String() string {
	if s.figures != nil {
		var text strings.Builder
		for _, f := range s.figures {
			fmt.Fprintf(&text, "\n    %8.3f %-5s %s", f.value, f.unit, f.name)
		}
		return text.String()
	}
	t := fmt.Sprintf("%9.0f/s", s.rate)
	if s.p50 > 0 {
		t += fmt.Sprintf("  p50 %6.2f ms  p99 %6.2f ms", ms(s.p50), ms(s.p99))
	}
	if s.calm > 0 {
		t += fmt.Sprintf("  calm %.0f%%: p50 %6.2f ms  p99 %6.2f ms", 100*s.calm, ms(s.calm50), ms(s.calm99))
	}
	if s.commits > 0 {
		t += fmt.Sprintf("  %.2f commits/msg", s.commits)
	}
	t += fmt.Sprintf("  cpu %5.1f us", us(s.ours))
	for _, x := range []struct {
		name string
		cpu  time.Duration
	}{{"pg", s.postgres}, {"upstream", s.upstream}, {"redis", s.redis}, {"loader", s.loader}} {
		if x.cpu > 0 {
			t += fmt.Sprintf(" + %s %5.1f us", x.name, us(x.cpu))
		}
	}
	return t
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// ratio is a row of the comparison: one case over another of the same group, beside what the targets ask of it.
type ratio struct {
	name, over, under string
	floor, target     float64 // at least; 0: the row is for information
}

// bound is a figure of one case that should not exceed what the targets ask.
type bound struct {
	name, kase    string
	of            func(sample) float64
	floor, target float64 // at most
}

// comparison is a figure of several cases of the same repetition that should not exceed what the targets ask.
type comparison struct {
	name          string
	cases         []string
	of            func([]sample) float64 // of one sample of each of the cases
	floor, target float64                // at most; 0: the row is for information
}

// onFresh runs a load on a queue of its own per measurement, so that none inherits another's history.
func onFresh(prefix string, load func(queue string) func(context.Context, time.Duration) (sample, error)) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, d time.Duration) (sample, error) { return load(fresh(prefix))(ctx, d) }
}

// freshPush is a push load on a fresh queue.
func freshPush(t *target, p production) func(context.Context, time.Duration) (sample, error) {
	return onFresh("push", func(q string) func(context.Context, time.Duration) (sample, error) { return t.push(q, p) })
}

// freshFlow is a flow on a fresh queue.
func freshFlow(t *target, f flow) func(context.Context, time.Duration) (sample, error) {
	return onFresh("flow", func(q string) func(context.Context, time.Duration) (sample, error) { return t.run(q, f) })
}
