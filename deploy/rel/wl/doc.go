// Package wl has the workloads: clients that push, pop, acknowledge and read as users would, and record every operation
// in the history.
//
// A workload is a list of queues and a list of threads, each of which does one operation at a time through a [Client].
// The client repeats nothing, opens a connection for every operation, and says exactly what it saw. What a thread does
// next follows from the seed of the run; only how the operations of several threads fall together does not.
//
// Threads that produce stop when the phase of load ends. Threads that consume go on until their queues are drained.
package wl
