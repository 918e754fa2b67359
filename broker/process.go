package broker

import (
	"bytes"
	"math"
	"os"
	"runtime"
	rtm "runtime/metrics"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queengate/queengate/broker/store"
)

// workTotals are what the process has done since its start.
type workTotals struct {
	requests, messages, dbErrors atomic.Int64
}

// cpuTime returns the processor time the process has used.
func cpuTime() (user, system time.Duration) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0, 0 // it fails for a bad argument only
	}
	return time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())
}

// residentBytes returns the memory of the process that is in RAM, or what the runtime has of the system where that is
// not to be had.
func residentBytes() int64 {
	if raw, err := os.ReadFile("/proc/self/statm"); err == nil {
		if f := bytes.Fields(raw); len(f) > 1 {
			if pages, err := strconv.ParseInt(string(f[1]), 10, 64); err == nil {
				return pages * int64(os.Getpagesize())
			}
		}
	}
	return int64(runtimeBytes("/memory/classes/total:bytes"))
}

func runtimeBytes(name string) uint64 {
	s := []rtm.Sample{{Name: name}}
	rtm.Read(s)
	if s[0].Value.Kind() != rtm.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}

const (
	heapInUse  = "/memory/classes/heap/objects:bytes"
	heapUnused = "/memory/classes/heap/unused:bytes"
	heapFree   = "/memory/classes/heap/free:bytes"
	stacks     = "/memory/classes/heap/stacks:bytes"
	schedWait  = "/sched/latencies:seconds"
)

// schedCounts returns how often goroutines waited how long for a processor, since the start.
func schedCounts() *rtm.Float64Histogram {
	s := []rtm.Sample{{Name: schedWait}}
	rtm.Read(s)
	if s[0].Value.Kind() != rtm.KindFloat64Histogram {
		return &rtm.Float64Histogram{}
	}
	return s[0].Value.Float64Histogram()
}

// schedLag returns the mean and the largest wait for a processor, in milliseconds, that h has beyond before, which may
// be nil. Both are as exact as the buckets of the runtime.
func schedLag(h *rtm.Float64Histogram, before []uint64) (mean, most float64) {
	var n uint64
	var sum float64
	for i, count := range h.Counts {
		if i < len(before) {
			count -= before[i]
		}
		if count == 0 {
			continue
		}
		low, high := h.Buckets[i], h.Buckets[i+1]
		if math.IsInf(low, 0) {
			low = 0
		}
		if math.IsInf(high, 0) {
			high = low
		}
		n += count
		sum += float64(count) * (low + high) / 2
		most = high
	}
	if n == 0 {
		return 0, 0
	}
	return sum / float64(n) * 1000, most * 1000
}

// sampler makes samples of the process, each of the time since the one before. It belongs to the history's loop.
type sampler struct {
	at                           time.Time
	requests, messages, dbErrors int64
	user, system                 time.Duration
	sched                        []uint64
}

func (s *sampler) sample(b *Broker, now time.Time) store.Process {
	work := &b.metrics.work
	requests, messages, dbErrors := work.requests.Load(), work.messages.Load(), work.dbErrors.Load()
	user, system := cpuTime()
	waits := schedCounts()
	pool := b.db.Pool()
	p := store.Process{
		Requests: requests - s.requests, Messages: messages - s.messages, DBErrors: dbErrors - s.dbErrors,
		RSSBytes: float64(residentBytes()), HeapBytes: float64(runtimeBytes(heapInUse)),
		Goroutines: float64(runtime.NumGoroutine()), Parked: float64(b.park.Waiting()),
		PoolSize: float64(pool.Size), PoolIdle: float64(pool.Idle), PoolActive: float64(pool.Active),
	}
	began := s.at
	if began.IsZero() {
		began = b.history.broker.Started
	}
	if d := now.Sub(began); d > 0 {
		p.CPUUserPct = 100 * float64(user-s.user) / float64(d)
		p.CPUSysPct = 100 * float64(system-s.system) / float64(d)
	}
	p.SchedLagMs, p.SchedLagMaxMs = schedLag(waits, s.sched)
	*s = sampler{now, requests, messages, dbErrors, user, system, append(s.sched[:0], waits.Counts...)}
	return p
}
