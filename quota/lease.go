package quota

import "time"

// Leases: tokens that a gateway has taken from Redis ahead of need and spends by itself. Redis has debited them, and
// refills only to the burst less what is leased out, so the fleet never admits more than burst + rate x time.
const (
	// leaseLife is how long a gateway spends a lease after it asked for it. Redis counts it as outstanding for twice as
	// long, so the gateway stops first, by whichever clock.
	leaseLife = time.Second

	// leaseIdle is how long a lease may lie unused before it is returned.
	leaseIdle = 200 * time.Millisecond

	// leaseFrom is from how many decisions a second of a cluster on one gateway leases pay.
	leaseFrom = 50

	// leaseSlice is for how much time of demand a lease is taken.
	leaseSlice = 50 * time.Millisecond

	// demandWindow is over how long demand is measured.
	demandWindow = 200 * time.Millisecond
)

// lease is what is left of the tokens taken ahead of one bucket. Not safe for concurrent use.
type lease struct {
	left    int64 // millionths of a token
	expires int64 // on the gate's clock
	spent   int64 // in the demand window
	demand  int64 // millionths per second, of the last window
}

// holds reports whether n may be spent by itself at t.
func (l *lease) holds(n, t int64) bool { return l.left >= n && t < l.expires }

// expire forgets what may no longer be spent; Redis has written it off, or will.
func (l *lease) expire(t int64) {
	if t >= l.expires {
		l.left = 0
	}
}

// slice is how much a lease should hold: a moment's demand, no more than that moment's rate, and a small part of the
// burst, so that gateways do not starve each other.
func (l *lease) slice(rate, burst, gateways int64) int64 {
	moment := func(perSecond int64) int64 { return perSecond / int64(time.Second/leaseSlice) }
	return min(moment(l.demand), moment(rate), burst/(4*gateways))
}

// tempo counts decisions of a cluster on this gateway.
type tempo struct {
	since     int64
	decisions int64
	perSecond int64 // of the last window
}

// roll ends a window when it is over.
func (m *tempo) roll(t int64, leases ...*lease) {
	took := t - m.since
	if took < demandWindow.Nanoseconds() {
		return
	}
	perSecond := func(n int64) int64 { return int64(float64(n) * float64(second) / float64(took)) }
	m.perSecond = perSecond(m.decisions)
	for _, l := range leases {
		l.demand, l.spent = perSecond(l.spent), 0
	}
	m.since, m.decisions = t, 0
}
