package main

import (
	"slices"
	"testing"
	"time"
)

// Probes at 0, 10, 20 … ms of 1 ms CPU, but for those of 30 to 50 ms: the stretch is 20 (the end of the last good one)
// to 51, and as long again after it.
func TestSlowStretchesAndTheFlightsTheyTouch(t *testing.T) {
	t0 := time.Unix(1_700_000_000, 0)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	m := &machine{done: make(chan struct{})}
	close(m.done)
	for i := range 20 {
		p := probe{from: at(10 * i), to: at(10*i + 1), cpu: time.Millisecond}
		if i >= 3 && i <= 5 {
			p.cpu = 10 * time.Millisecond
		}
		m.probes = append(m.probes, p)
	}
	slow := m.slow()
	if want := []stretch{{at(21), at(81)}}; !slices.Equal(slow, want) {
		t.Fatalf("slow stretches are %v, want %v", slow, want)
	}

	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	got := undisturbed([]flight{
		{at(0), ms(2)},    // before
		{at(15), ms(10)},  // runs into it
		{at(40), ms(1)},   // inside
		{at(75), ms(1)},   // in the drain
		{at(82), ms(3)},   // after
		{at(10), ms(100)}, // across
	}, slow)
	if want := []time.Duration{ms(2), ms(3)}; !slices.Equal(got, want) {
		t.Fatalf("undisturbed flights took %v, want %v", got, want)
	}
}
