// Package memory gives memory back to the system while a process does little. Collections are rare (cmd/queengate sets
// GOGC), so what a burst has left behind, say the handshakes of ten thousand connections that then wait, stays for minutes:
// the next collection comes when the heap has grown by as much again, or after two minutes, and even then the runtime
// keeps what it had needed.
package memory

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// lookEvery lies between two looks.
	lookEvery = 15 * time.Second
	// lasts is how many times what was allocated between two looks must lie spare: it would last for a minute then.
	lasts = int(time.Minute / lookEvery)
	// worth is the least that is given back: it costs a collection, and later page faults.
	worth = 4 << 20
)

// Upkeep gives memory back that lies spare, in the whole process: it has one. New does nothing; Run does all.
type Upkeep struct {
	read    func() reading
	free    func()
	returns prometheus.Counter
	before  uint64 // allocated at the last look
}

// New returns an Upkeep that counts on reg.
func New(reg prometheus.Registerer) *Upkeep {
	u := &Upkeep{read: read, free: debug.FreeOSMemory, returns: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "queengate_memory_returns_total", Help: "How often memory that lay spare was given back to the system.",
	})}
	reg.MustRegister(u.returns)
	return u
}

// Run looks until ctx ends.
func (u *Upkeep) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			u.look(u.read())
		}
	}
}

// look gives back what would not be used within a minute, were the last fifteen seconds to go on. What follows such a
// collection counts as garbage until the next one, so a process that does little does it seldom.
func (u *Upkeep) look(r reading) {
	lately := r.allocated - u.before
	u.before = r.allocated
	if r.spare >= worth && lately < r.spare/uint64(lasts) {
		u.free()
		u.returns.Inc()
	}
}

// reading is the state of the heap, in bytes.
type reading struct {
	allocated uint64 // since the start
	spare     uint64 // allocated since the last collection, which may be garbage, or free and not given back
}

func read() reading {
	s := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	live, objects := s[1].Value.Uint64(), s[2].Value.Uint64()
	return reading{allocated: s[0].Value.Uint64(), spare: objects - min(objects, live) + s[3].Value.Uint64()}
}
