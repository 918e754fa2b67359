package quota

import (
	"math"
	"math/bits"
	"time"
)

// Amounts are whole millionths of a token and times are nanoseconds, so that a bucket is exact: refilling in many
// small steps gives to the last digit what one big step gives, and a wait is never a nanosecond short.
const (
	token  int64 = 1e6
	second int64 = 1e9

	// maxTokens bounds rates and bursts so that no sum below can overflow: 100 billion per second is unlimited in
	// all but name.
	maxTokens = 1e11

	// debtBursts and debtSeconds bound the debt of deliveries: one huge pop must not stop producers for minutes.
	debtBursts  = 5
	debtSeconds = 60

	// promiseSeconds bounds how far behind a bucket's own wait promises may reach. Beyond it they begin again at the
	// front: still spread, and a caller that hammers cannot push the others out for ever.
	promiseSeconds = 60
)

// bucket is a rate with burst. It starts full, refills by elapsed time and may go negative. The zero value is not yet
// set up. Not safe for concurrent use.
type bucket struct {
	rate  int64 // millionths per second; 0 never refills
	burst int64
	room  int64 // the level when full: the burst, or more to save up in
	level int64 // negative: debt
	rem   int64 // rate x time since the last whole millionth, in millionths x 1e-9; always below one second
	at    int64 // time of level
	set   bool

	largest int64 // what may ever be taken at once: the burst, or that of the whole fleet while it is shared out

	window time.Duration // room / rate: the time from empty to full

	line   line // promised to refused callers
	settle line // likewise to those that may go into debt: they need far less and must not queue behind the others
}

// micro converts a plan's number of tokens to millionths.
func micro(tokens float64) int64 {
	if !(tokens > 0) {
		return 0
	}
	return max(1, int64(math.Round(min(tokens, maxTokens)*float64(token))))
}

// tokens is the inverse of micro.
func tokens(m int64) float64 { return float64(m) / float64(token) }

// units is n whole tokens.
func units(n int) int64 { return int64(min(max(n, 0), maxTokens)) * token }

// configure sets rate and burst as of now. The balance is kept: more burst gives no tokens, less clamps. A burst between nothing and one token is raised to one, since a bucket
// that cannot hold a token could never keep what it promises.
func (b *bucket) configure(rate, burst, now int64) {
	if burst > 0 {
		burst = max(burst, token)
	}
	if !b.set {
		*b = bucket{rate: rate, burst: burst, room: burst, largest: burst, level: burst, at: now, set: true}
		b.window = b.untilGrown(burst)
		return
	}
	if b.rate == rate && b.burst == burst {
		return
	}
	b.refill(now)
	b.rate, b.burst, b.room, b.largest, b.rem = rate, burst, burst, burst, 0
	b.window = b.untilGrown(burst)
	b.level = min(b.level, burst)
	b.line, b.settle = line{}, line{} // promised at a speed that no longer holds
}

// blocked reports whether nothing will ever fit.
func (b *bucket) blocked() bool { return b.rate == 0 || b.burst == 0 }

// makeRoom lets a bucket that is shared out save up for n, a legal batch above its part of the burst, from what it would
// grow from now on. It keeps the room until it is configured anew: others may wait for it.
func (b *bucket) makeRoom(n, now int64) {
	if n <= b.room || n > b.largest {
		return
	}
	b.refill(now) // what overflowed before is gone
	b.room = n
	b.window = b.untilGrown(n)
}

// debtFloor is the lowest level that deliveries may leave.
func (b *bucket) debtFloor() int64 { return -min(debtBursts*b.burst, debtSeconds*b.rate) }

// refill brings the level up to now; an earlier now changes nothing.
func (b *bucket) refill(now int64) {
	dt := now - b.at
	if dt <= 0 {
		return
	}
	b.at = now
	if b.level == b.room {
		return
	}
	grown, rem := growth(b.rate, dt, b.rem)
	if grown >= b.room-b.level {
		b.level, b.rem = b.room, 0
		return
	}
	b.level, b.rem = b.level+grown, rem
}

// growth returns what rate yields in dt on top of the remainder rem, and the new remainder. It saturates.
func growth(rate, dt, rem int64) (grown, left int64) {
	hi, lo := bits.Mul64(uint64(rate), uint64(dt))
	lo, carry := bits.Add64(lo, uint64(rem), 0)
	hi += carry
	if hi >= uint64(second) {
		return math.MaxInt64, 0
	}
	q, r := bits.Div64(hi, lo, uint64(second))
	if q > math.MaxInt64 {
		return math.MaxInt64, 0
	}
	return int64(q), int64(r)
}

// forgive ends debt below floor.
func (b *bucket) forgive(floor int64) { b.level = max(b.level, floor) }

// take removes n, which the caller has checked to fit or to be owed.
func (b *bucket) take(n int64) { b.level -= n }

// debit removes n down to floor; what lies below is recorded by the caller but not charged.
func (b *bucket) debit(n, floor int64) {
	if b.level < floor {
		return
	}
	if b.level -= n; b.level < floor {
		b.level, b.rem = floor, 0
	}
}

// give returns n that were taken and not used. Promised callers may come sooner.
func (b *bucket) give(n int64) {
	if b.level += n; b.level >= b.room {
		b.level, b.rem = b.room, 0
	}
	b.line.owed = max(0, b.line.owed-n)
	b.settle.owed = max(0, b.settle.owed-n)
}

// full reports that the bucket holds nothing worth remembering.
func (b *bucket) full() bool {
	return !b.set || (b.level >= b.room || b.rate == 0) && b.line.left(b) == 0 && b.settle.left(b) == 0
}

// untilGrown returns the least time after which the bucket has grown by n more.
func (b *bucket) untilGrown(n int64) time.Duration {
	if n <= 0 {
		return 0
	}
	if b.rate == 0 {
		return math.MaxInt64
	}
	hi, lo := bits.Mul64(uint64(n), uint64(second))
	lo, borrow := bits.Sub64(lo, uint64(b.rem), 0)
	hi -= borrow
	if hi >= uint64(b.rate) {
		return math.MaxInt64
	}
	q, r := bits.Div64(hi, lo, uint64(b.rate))
	if r > 0 {
		q++
	}
	return time.Duration(min(q, math.MaxInt64))
}

// promise refuses a caller that wants n and needs the level at need. It returns how long after at the caller shall
// come back and remembers it in q, which is one of b's lines. Blocked buckets promise nothing.
func (b *bucket) promise(q *line, n, need int64) time.Duration {
	missing := need - b.level
	owed := missing
	if left := q.left(b); left > 0 {
		if behind := left + n; behind > owed && behind-owed <= promiseSeconds*b.rate {
			owed = behind
		}
	}
	*q = line{owed: owed, at: b.at}
	return b.untilGrown(owed)
}

// line is the virtual queue of refused callers: how much the bucket, as of at, still had to grow until the last of
// them is served. A caller that comes back when told finds its tokens, for nobody else was told that time.
//
// A line knows no identities. It therefore shrinks by four thirds of what the bucket grows: published SDKs return up
// to a fifth early, and whoever comes in the last quarter of its wait counts as that caller, so that a lone early one
// is told the rest of its wait and never queues behind itself.
type line struct{ owed, at int64 }

// left is what remains of the line as of b's time.
func (q *line) left(b *bucket) int64 {
	if q.owed == 0 || b.at <= q.at {
		return q.owed
	}
	grown, _ := growth(b.rate, b.at-q.at, 0)
	grown = min(grown, q.owed)
	return max(0, q.owed-grown-grown/3)
}
