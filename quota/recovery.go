package quota

import (
	"sync"
	"time"
)

// recoveryTime is for how long after the loss of a broker deliveries of its cell are free: leases of the lost one end and
// come back, and a cluster that paid for them would be throttled by the very fault that it suffers from.
const recoveryTime = time.Minute

// recoveries are the cells that lost a broker lately. The zero value knows none. Safe for concurrent use.
type recoveries struct{ until sync.Map } // of a cell's slug: nanoseconds on the gate's clock

// begin notes the loss of a broker at t.
func (r *recoveries) begin(cell string, t int64) { r.until.Store(cell, t+recoveryTime.Nanoseconds()) }

// cover reports whether a cell is recovering at t.
func (r *recoveries) cover(cell string, t int64) bool {
	until, ok := r.until.Load(cell)
	return ok && t < until.(int64)
}

// BrokerLost says that a cell has lost a broker other than by its drain. For a minute deliveries of the cell's clusters
// are not debited.
func (g *Gate) BrokerLost(cell string, now time.Time) { g.recoveries.begin(cell, g.at(now)) }
