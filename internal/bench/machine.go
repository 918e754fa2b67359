package main

import (
	"context"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A virtual machine may be slowed from outside without a trace in its own counters: no steal time, no throttling, yet a
// loop without a system call takes ten times its CPU time for some 60 ms. A latency that falls in such a stretch says
// nothing about the product, so the latency case watches for them and reports its percentiles with and without.
const (
	probeEvery = 2 * time.Millisecond
	probeSpins = 60_000
	// slowFactor is how much more CPU time than usual the probe must take. A shared core or cold caches make 2.
	slowFactor = 3
)

// machine finds the stretches in which the machine was slow.
type machine struct {
	probes []probe
	sum    int // of the loops, so that none can be left out
	done   chan struct{}
}

type probe struct {
	from, to time.Time
	cpu      time.Duration // of this thread alone, so waiting for a core does not count
}

// watchMachine probes until ctx ends, at about 3 % of one core.
func watchMachine(ctx context.Context) *machine {
	m := &machine{done: make(chan struct{})}
	go func() {
		defer close(m.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		tick := time.NewTicker(probeEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			p := probe{from: time.Now()}
			before := threadCPU()
			m.sum += spin(probeSpins)
			p.cpu, p.to = threadCPU()-before, time.Now()
			m.probes = append(m.probes, p)
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	return m
}

func spin(n int) (sum int) {
	for i := range n {
		sum += i ^ sum
	}
	return sum
}

func threadCPU() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // the clock exists on every Linux
	}
	return time.Duration(t.Nano())
}

// stretch is a time in which the machine was slow, and as long again after it: the backlog it left is drained then.
type stretch struct{ from, to time.Time }

// slow returns the slow stretches, once the watch has ended.
func (m *machine) slow() []stretch {
	<-m.done
	if len(m.probes) == 0 {
		return nil
	}
	cpu := make([]time.Duration, len(m.probes))
	for i := range m.probes {
		cpu[i] = m.probes[i].cpu
	}
	slices.Sort(cpu)
	limit := slowFactor * cpu[len(cpu)/2]
	var out []stretch
	end := m.probes[0].from // of the last probe that was not slow
	for i := range m.probes {
		p := &m.probes[i]
		switch {
		case p.cpu < limit:
			end = p.to
			continue
		case len(out) > 0 && out[len(out)-1].from.Equal(end):
			out[len(out)-1].to = p.to
		default:
			out = append(out, stretch{end, p.to})
		}
	}
	for i := range out {
		out[i].to = out[i].to.Add(out[i].to.Sub(out[i].from))
	}
	return out
}

// flight is one message from its push to its arrival.
type flight struct {
	sent time.Time
	took time.Duration
}

// undisturbed returns the latencies of the flights that no slow stretch touched.
func undisturbed(flights []flight, slow []stretch) []time.Duration {
	var out []time.Duration
	for _, f := range flights {
		if !slices.ContainsFunc(slow, func(s stretch) bool { return f.sent.Before(s.to) && f.sent.Add(f.took).After(s.from) }) {
			out = append(out, f.took)
		}
	}
	return out
}
