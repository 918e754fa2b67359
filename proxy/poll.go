package proxy

import (
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// Pauses of a waiting poll. Clients poll again at once after an empty answer, so whatever goes wrong early is slept
// out here and not in a busy loop over the network.
const (
	// pollPause lies between two attempts of one poll that both ended before its time.
	pollPause = 250 * time.Millisecond
	// lossPause is how long a poll is held after an attempt whose outcome is unknown.
	lossPause = time.Second
)

// pollSlack is how much before the end of a poll an empty answer counts as its regular end: brokers answer a little
// early, so that the answer is there in time, and the way back takes some of it too.
func pollSlack(timeout time.Duration) time.Duration { return 2 * wire.PollMargin(timeout) }

// statusGone is logged for a client that hung up; it never goes over the wire.
const statusGone = 499

// poll serves a waiting pop: one broker after the other, until one answers or the poll's time is over. It holds the
// parking slot of its admission. While the cell has no ready broker the poll is held; it ends in 204, whatever happens
// to brokers. It ends at once when the client hangs up, when the gateway drains, and, in the refusal its request would
// get now, when a change takes away what it was let in for.
func (g *Gateway) poll(ctx *fasthttp.RequestCtx, c *clientConn, ask *quota.Ask) {
	ex := &c.ex
	end := ex.start.Add(ex.pop.Timeout)
	p := g.park(c, end)
	defer g.unpark(p)
	g.metrics.parked.Inc()
	defer g.metrics.parked.Dec()
	defer c.watch(func() { p.cancel(errClientGone) })()

	a, err := g.awaitAnswer(ex, p.call, end)
	verdict := p.verdict()
	switch {
	case a != nil:
		g.conclude(ctx, c, a, ask)
		return
	case verdict != nil:
		g.settle(ex, quota.Outcome{})
		ex.report = quota.Report{} // of the request that was let in
		g.answerRefusal(ctx, c, verdict)
		return
	case p.gave() == errClientGone:
		g.settle(ex, quota.Outcome{})
		g.metrics.hangUps.Inc()
		ctx.SetConnectionClose()
		ctx.SetStatusCode(fasthttp.StatusNoContent) // there is nobody to read it
		g.finish(ex, statusGone, "", "", 0)
		return
	case p.gave() == errDraining:
		g.settle(ex, quota.Outcome{})
		ctx.SetConnectionClose() // the client finds a gateway that stays
		g.noContent(ctx, c)
		return
	}
	g.settle(ex, quota.Outcome{})
	ex.cause = err
	g.degraded(ctx, c)
}

// awaitAnswer returns the answer that ends a poll, nil when its time is over or it was given up; err is the last thing
// that went wrong. Which ends of an attempt let the poll go on elsewhere: docs/design/upstream.md.
func (g *Gateway) awaitAnswer(ex *exchange, k *call, end time.Time) (_ *answer, err error) {
	for key := ex.home(); ; {
		p, tok, e := g.route(ex)
		if e != nil {
			// The cell's addresses may come with the next snapshot.
			if !k.pause(pollPause, end, nil) {
				return nil, e
			}
			continue
		}
		changes := p.changes()
		b := p.pick(key, needReady, nil)
		if b == nil {
			if !k.pause(time.Until(end), end, changes) {
				return nil, err
			}
			continue
		}
		left := max(time.Until(end), time.Millisecond)
		a, far, attemptErr := g.attempt(ex, tok, b, k, nil, left, end.Add(g.cfg.LongPollGrace))
		why, pause := "", pollPause
		switch {
		case attemptErr != nil && k.gave() != nil:
			return nil, attemptErr
		case attemptErr != nil:
			g.metrics.upstreamErrors.WithLabelValues(faultKind(far, attemptErr)).Inc()
			err = attemptErr
			switch {
			case far == unsent:
				why = repeatUnsent
			case far == sent && !ex.pop.AutoAck:
				why = repeatLost
			}
		case a.status() >= 500:
			err = brokerStatus(a.status())
			if a.saysNone() {
				why, pause = repeatUnsent, lossPause
			}
			a.discard()
		case a.status() == fasthttp.StatusNoContent && time.Until(end) > pollSlack(ex.pop.Timeout):
			a.discard()
			why = repeatDrained
		default:
			return a, nil
		}
		if why == "" {
			// Messages may have gone where nobody is: the client is told, by an early end.
			k.pause(lossPause, end, nil)
			return nil, err
		}
		if !k.pause(pause, end, changes) {
			return nil, err
		}
		g.metrics.repeats.WithLabelValues(why).Inc()
	}
}

// pause waits for d, a change, or the end of the poll. It reports whether the poll goes on.
func (k *call) pause(d time.Duration, end time.Time, changes <-chan struct{}) bool {
	d = min(d, time.Until(end))
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-changes:
		case <-k.done:
		}
	}
	return k.gave() == nil && time.Now().Before(end)
}

// gave returns why the call was given up, or nil.
func (k *call) gave() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cause
}
