package fuse

import "time"

// pace knows how long a flush usually takes and how much it carries, and from that when one is slow.
//
// Measured with fixed flushers, 64 producers: 1, 2 and 4 gave 1 : 0.87 : 0.39, because they cut the same messages into
// smaller bundles. So a second flush is for the case that the first hangs on a lock, an fsync or a dead connection.
type pace struct {
	typical time.Duration // moving average of round trips
	frames  float64       // moving average of frames per flush
}

const (
	paceWeight = 8 // a new flush moves the averages by an eighth
	slowFactor = 3
	slowFloor  = time.Millisecond // below it goroutine scheduling is all there is to measure
	// A flush this many times slower than slow lets even a single waiting frame pass it.
	stuckFactor = 4
)

func newPace() pace { return pace{typical: 2 * time.Millisecond} }

// observe adds a finished flush. One outlier counts at most as a slow flush, lest it blinds us to the next.
func (p *pace) observe(took time.Duration, frames int) {
	took = min(took, p.slow())
	p.typical += (took - p.typical) / paceWeight
	p.frames += (float64(frames) - p.frames) / paceWeight
}

func (p *pace) slow() time.Duration { return slowFactor*p.typical + slowFloor }

// patience returns how much longer the frames that wait should leave a flush of that age alone; at most 0 means that
// a second one may leave.
func (p *pace) patience(age time.Duration, waiting int) time.Duration {
	slow := p.slow()
	if age < slow {
		return slow - age
	}
	if 2*float64(waiting) >= p.frames {
		return 0
	}
	// More may arrive meanwhile, so look again before the long patience is over.
	return min(stuckFactor*slow-age, slow)
}
