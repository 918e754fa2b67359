package main

import (
	"os"
	"runtime"
	"runtime/debug"
)

// heapGrowth is how far the heap may grow between collections, in percent. What lives long here is small beside what a
// second of requests throws away, so the default of 100 would collect many times a second.
const heapGrowth = 400

func growHeap() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
}

// Where there are few CPUs a process that is a gateway and nothing else runs three goroutines of each at once, up to
// gatewayProcessors: half of its time are system calls, and a thread that the system puts aside in one, for another process,
// keeps its goroutines waiting unless there are other threads. On two CPUs that client and upstream share with it, it takes a
// twentieth to a tenth more with six than with two, at the same CPU per request, with a third off the 99th percentile; sixteen
// are too many (docs/bench/2026-11-30-gateway.md). A broker lost by it there.
const (
	processorsPerCPU  = 3
	gatewayProcessors = 8
)

func addProcessors() {
	// Fewer than CPUs means a quota of CPU time: more would use it up in a burst, and then everything stands still.
	if n := runtime.GOMAXPROCS(0); os.Getenv("GOMAXPROCS") == "" && n == runtime.NumCPU() {
		runtime.GOMAXPROCS(max(n, min(processorsPerCPU*n, gatewayProcessors)))
	}
}
