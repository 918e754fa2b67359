package quota

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// Refusals that come after a body was read cost us the body and the cluster nothing. Each cluster has a small budget
// of them; while it is empty, heads that announce a body are refused with the body unread.
const (
	refusalsPerSecond = 20
	refusalsBurst     = 40

	// refusalHorizon bounds how far heads are spread over the budget's future.
	refusalHorizon = 10 * second
)

// bodyBudget is the budget of refused bodies. The zero value is full. Not safe for concurrent use.
type bodyBudget struct {
	limiter *rate.Limiter // nil until the first refusal
	tail    int64         // the time the last refused head was told
}

// spend charges one refusal; an empty budget stays empty.
func (b *bodyBudget) spend(now time.Time) {
	if b.limiter == nil {
		b.limiter = rate.NewLimiter(refusalsPerSecond, refusalsBurst)
	}
	b.limiter.AllowN(now, 1)
}

// wait is how long until a body may be refused again; 0 when one may be now.
func (b *bodyBudget) wait(now time.Time) time.Duration {
	if b.limiter == nil {
		return 0
	}
	return max(0, time.Duration((1-b.limiter.TokensAt(now))/refusalsPerSecond*float64(second)))
}

// promise spreads refused heads over the time to come: each is told one refusal's time after the one before.
func (b *bodyBudget) promise(wait time.Duration, t int64) time.Duration {
	told := max(t+wait.Nanoseconds(), b.tail+second/refusalsPerSecond)
	if told > t+refusalHorizon {
		told = t + wait.Nanoseconds()
	}
	b.tail = told
	return time.Duration(told - t)
}

// full reports that nothing is worth remembering.
func (b *bodyBudget) full(now time.Time) bool {
	return b.limiter == nil || b.limiter.TokensAt(now) >= refusalsBurst
}

// refuseBody refuses a head while the budget is empty; nil means that the body may be read. The time it names is also
// the message bucket's, whose refusals are what mostly empties the budget: at least one message is to come.
func (d *decision) refuseBody() *wire.Error {
	acc := d.acc
	wait := acc.bodies.wait(d.now)
	if wait == 0 {
		return nil
	}
	wait = acc.bodies.promise(wait, d.t)
	if pushes[d.ask.Cost] {
		d.ask.Messages = 1
		wait = max(wait, d.promise(limitKeyMessages), d.promise(limitMessages))
	}
	d.countedIn.add(limitRefusals, plans.Enforce, over)
	e := wire.Errorf(wire.RateLimited, "too many requests of the cluster were refused after their body had been read")
	e.RetryAfter, e.Close = wait, true
	e.Limit = &wire.Limit{
		Name: nameRefusals, Limit: refusalsPerSecond, Used: refusalsPerSecond, Unit: "refusals_per_second",
		ResetSeconds: wait.Seconds(),
	}
	return e
}

// reportBodies is the Report that goes with refuseBody.
func reportBodies(wait time.Duration) Report {
	return Report{
		Name: nameRefusals, Limit: refusalsBurst, Reset: wait, Window: time.Second * refusalsBurst / refusalsPerSecond,
	}
}
