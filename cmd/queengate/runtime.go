package main

import (
	"os"
	"runtime"
	"runtime/debug"
)

const (
	// heapGrowth is how far the heap may grow between collections, in percent. What lives long here is small beside what a
	// second of requests throws away, so the default of 100 would collect many times a second.
	heapGrowth = 400
	// fewestProcessors is how many goroutines may run at once also where there are fewer CPUs. Three quarters of the time of
	// a gateway are system calls; one whose thread the system has put aside for another process keeps its processor, and with
	// two of them half of the goroutines wait for it.
	fewestProcessors = 8
)

// tuneRuntime sets up the Go runtime for a server of short requests. What the environment says of it stands.
func tuneRuntime() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
	// Fewer processors than CPUs means a quota of CPU time: more would use it up in a burst, and then everything stands still.
	if n := runtime.GOMAXPROCS(0); os.Getenv("GOMAXPROCS") == "" && n == runtime.NumCPU() && n < fewestProcessors {
		runtime.GOMAXPROCS(fewestProcessors)
	}
}
