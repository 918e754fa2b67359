package proxy

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/valyala/fasthttp"
)

// What takes a broker out of service and brings it back (docs/design/upstream.md).
const (
	// failuresOut bad probes in a row take a broker out, successesIn good ones bring it back.
	failuresOut = 2
	successesIn = 3
	// lossesOut lost answers in a row eject a broker that its probes find well.
	lossesOut = 3
	// firstEjection is doubled with every further one until longestEjection, and starts anew after a calm of that length.
	firstEjection   = 5 * time.Second
	longestEjection = time.Minute
)

// standing is what is known about a broker, as flags in one word: a request looks at it without a lock.
type standing uint32

const (
	isLive     standing = 1 << iota // its process answers: good for pushes
	isReady                         // its database answers
	isDraining                      // it says that it stops
	isEjected                       // it lost answers lately
)

func (s standing) inService() bool { return s&(isLive|isDraining|isEjected) == isLive }

// probe is one of the two questions that are asked of a broker all the time.
type probe uint8

const (
	livez probe = iota
	readyz
	probes
)

// streak turns single answers into a state: failuresOut in a row take it out, successesIn in a row bring it back.
type streak struct {
	up    bool
	count int // answers in a row that disagree with up
}

func (s *streak) note(ok bool) {
	if ok == s.up {
		s.count = 0
		return
	}
	s.count++
	if s.up && s.count >= failuresOut || !s.up && s.count >= successesIn {
		s.up, s.count = ok, 0
	}
}

// broker is one broker of a pool. Safe for concurrent use.
type broker struct {
	pool    *pool
	address string // host:port, or the path of a socket
	host    string // what requests name as their Host
	seed    uint64
	conns   upstreamConns // of requests
	asking  upstreamConns // of the probes

	flags   atomic.Uint32 // standing
	risen   atomic.Int64  // when it came back, in nanoseconds since 1970; 0: its slow start is over
	losses  atomic.Int32  // answers lost in a row
	refuses atomic.Bool   // the last answer that says: it does not believe this gateway's key

	ejectionsTotal atomic.Int64
	lossesTotal    atomic.Int64

	kicks  [probes]chan struct{} // wake the probers after a fault; capacity 1
	retire func()                // ends the probers

	// mu guards what follows and orders the changes of flags.
	mu        sync.Mutex
	faults    int // changes that no probe reported: one that was under way meanwhile proves nothing
	streaks   [probes]streak
	draining  bool
	ejected   time.Time // until when
	ejections int       // without a calm between them
}

// newBroker returns a broker that is trusted until its first probe has answered: a gateway serves as soon as it starts.
func newBroker(p *pool, address string) *broker {
	b := &broker{pool: p, address: address, host: hostOf(address), seed: xxhash.Sum64String(address), retire: func() {}}
	b.asking.max = int(probes) + 1
	for i := range b.kicks {
		b.kicks[i] = make(chan struct{}, 1)
		b.streaks[i].up = true
	}
	b.flags.Store(uint32(isLive | isReady))
	return b
}

func (b *broker) is(all standing) bool { return standing(b.flags.Load())&all == all }

// able reports whether the broker takes new requests with that need.
func (b *broker) able(n need) bool {
	s := standing(b.flags.Load())
	return s.inService() && (n == needLive || s&isReady != 0)
}

// admits reports whether the slow start has come as far as the key whose score this is: a rising part of the keys, the
// same ones for every gateway that saw the broker come back.
func (b *broker) admits(score uint64, now time.Time) bool {
	at := b.risen.Load()
	if at == 0 {
		return true
	}
	part := float64(now.UnixNano()-at) / float64(b.pool.slowStart)
	if part >= 1 {
		b.risen.CompareAndSwap(at, 0)
		return true
	}
	return float64(mix(score)>>32) < part*math.MaxUint32
}

// answered notes what any answer tells: that answers come, whether the broker stops, and whether it believes the
// gateway's key; a broker says 401 to nothing else.
func (b *broker) answered(a *answer) {
	if b.losses.Load() != 0 {
		b.losses.Store(0)
	}
	if a.draining() && !b.is(isDraining) {
		b.stops()
	}
	refuses := a.status() == fasthttp.StatusUnauthorized
	if b.refuses.Load() == refuses || b.refuses.Swap(refuses) == refuses {
		return
	}
	if refuses {
		b.pool.log.Warn("the broker refuses this gateway's key", "cell", b.pool.cell, "broker", b.address)
		return
	}
	b.pool.log.Info("the broker accepts this gateway's key", "cell", b.pool.cell, "broker", b.address)
}

// stops notes that the broker has said that it stops.
func (b *broker) stops() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults++
	b.draining, b.streaks[readyz] = true, streak{}
	b.publishLocked(time.Now())
}

// failed notes that a connection could not be made: the broker is out until its probes say otherwise. In a pool that
// would be left with less than half of its brokers only they decide.
func (b *broker) failed() {
	b.pool.ejecting.Lock()
	if b.pool.spares(b) {
		b.mu.Lock()
		b.faults++
		if b.is(isLive) {
			b.ejectionsTotal.Add(1)
		}
		b.streaks = [probes]streak{}
		b.publishLocked(time.Now())
		b.mu.Unlock()
	}
	b.pool.ejecting.Unlock()
	b.kick()
}

// lost notes that a request was sent and its answer did not come. Some in a row eject a broker for a while even if its
// probes find it well, unless the pool would be left with less than half of its brokers.
func (b *broker) lost() {
	b.lossesTotal.Add(1)
	if b.losses.Add(1) >= lossesOut {
		b.pool.ejecting.Lock()
		if b.pool.spares(b) {
			b.eject(time.Now())
		}
		b.pool.ejecting.Unlock()
	}
	b.kick()
}

func (b *broker) eject(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Before(b.ejected) {
		return
	}
	if now.Sub(b.ejected) > longestEjection {
		b.ejections = 0
	}
	b.ejected = now.Add(min(firstEjection<<b.ejections, longestEjection))
	b.ejections = min(b.ejections+1, 8)
	b.ejectionsTotal.Add(1)
	b.losses.Store(0)
	b.publishLocked(now)
}

// kick has the broker probed at once.
func (b *broker) kick() {
	for _, c := range b.kicks {
		select {
		case c <- struct{}{}:
		default: // a wake is pending already
		}
	}
}

func (b *broker) seenFaults() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faults
}

// verdict is what a probe brought. One that is neither answered nor silent failed at this gateway.
type verdict struct {
	answered bool
	silent   bool // the broker is why no answer came
	ok       bool // 2xx
	draining bool
}

// probed takes the verdict of a probe, unless something else was learned since it began (faults had been seen). It
// reports whether that is what was known before: if not, the next probe should come soon.
func (b *broker) probed(which probe, v verdict, seen int, now time.Time) (steady bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.faults != seen {
		return false
	}
	s := &b.streaks[which]
	if which == readyz && v.draining {
		*s = streak{}
	} else {
		s.note(v.ok)
	}
	if v.answered {
		b.draining = v.draining
	}
	b.publishLocked(now)
	// Whatever an answer says, it comes from a process that may finish what it has.
	if which == livez && v.silent && !s.up {
		b.conns.cut()
	}
	return s.up && s.count == 0
}

// publishLocked makes the flags those of the guarded state, and does what a change asks for.
func (b *broker) publishLocked(now time.Time) {
	var next standing
	set := func(flag standing, on bool) {
		if on {
			next |= flag
		}
	}
	set(isLive, b.streaks[livez].up)
	set(isReady, b.streaks[livez].up && b.streaks[readyz].up)
	set(isDraining, b.draining)
	set(isEjected, now.Before(b.ejected))
	was := standing(b.flags.Load())
	if was == next {
		return
	}
	if next.inService() && !was.inService() && b.pool.slowStart > 0 {
		b.risen.Store(now.UnixNano())
	}
	b.flags.Store(uint32(next))
	if was.inService() && !next.inService() && next&isDraining == 0 {
		b.pool.lost()
	}
	if !next.inService() {
		b.conns.drop() // it would close them at a moment of its own choice
	}
	b.pool.log.Info("broker state", "cell", b.pool.cell, "broker", b.address, "live", next&isLive != 0, "ready", next&isReady != 0,
		"draining", next&isDraining != 0, "ejected", next&isEjected != 0)
	b.pool.changed()
}

// closeConns ends the connections to a broker that is not asked any more; one under way ends with its request.
func (b *broker) closeConns() {
	b.conns.closeAll()
	b.asking.closeAll()
}

// word says in one word what the broker is good for.
func (b *broker) word() string {
	switch s := standing(b.flags.Load()); {
	case s&isLive == 0:
		return "out"
	case s&isDraining != 0:
		return "draining"
	case s&isEjected != 0:
		return "ejected"
	case s&isReady == 0:
		return "live"
	}
	return "ready"
}
