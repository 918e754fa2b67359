package proxy

import (
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// lossPause is how long a poll is held after an attempt whose outcome is unknown. Clients poll again at once after an
// empty answer, so whatever goes wrong early is slept out here and not in a busy loop over the network.
const lossPause = time.Second

// pollSlack is how much before the end of a poll an empty answer counts as its regular end: brokers answer a little
// early, so that the answer is there in time, and the way back takes some of it too.
func pollSlack(timeout time.Duration) time.Duration { return 2 * wire.PollMargin(timeout) }

// statusGone is logged for a client that hung up; it never goes over the wire.
const statusGone = 499

// poll is a waiting pop on its way: one broker after the other, until one answers or its time is over. It holds the
// parking slot of its admission. While the cell has no ready broker the poll is held; it ends in 204, whatever happens
// to brokers. It ends at once when the client hangs up, when the gateway drains, and, in the refusal its request would
// get now, when a change takes away what it was let in for.
//
// It belongs to the handler that serves it. While a broker has it there need not be one: see sleep.
type poll struct {
	*parkedPoll
	gateway *Gateway
	ask     quota.Ask
	end     time.Time

	flight    *flight // at a broker; nil: at none
	deadline  time.Time
	changes   <-chan struct{}  // of the pool, since before the broker of the flight was chosen
	amiss     *wire.Error      // the last thing that went wrong
	unwatch   func()           // ends the look-out for a hang-up; nil: nobody looks out
	inPlace   bool             // it waits in its handler
	woken     bool             // the flight is over, or the poll is to be looked at for another reason
	admission *quota.Admission // while no handler has the poll
}

// poll serves a waiting pop.
func (g *Gateway) poll(ctx *fasthttp.RequestCtx, c *clientConn, ask *quota.Ask) {
	ex := &c.ex
	ex.head = ex.head.clone() // the poll may outlive the request that the server has read
	end := ex.start.Add(ex.pop.Timeout)
	p := &poll{gateway: g, ask: *ask, end: end, parkedPoll: g.park(c, end)}
	g.metrics.parked.Inc()
	p.serve(ctx)
}

// close ends the poll's part in the gateway, once.
func (p *poll) close() {
	if p.unwatch != nil {
		p.unwatch()
	}
	p.gateway.metrics.parked.Dec()
	p.gateway.unpark(p.parkedPoll)
}

// serve waits for the end of the poll and answers it, unless the poll goes to sleep.
func (p *poll) serve(ctx *fasthttp.RequestCtx) {
	asleep := false
	defer func() {
		if !asleep {
			p.close()
		}
	}()
	var a *answer
	if a, asleep = p.awaitAnswer(ctx); asleep {
		return
	}
	g, c, ex := p.gateway, p.conn, &p.conn.ex
	verdict := p.verdict()
	switch {
	case a != nil:
		g.conclude(ctx, c, a, &p.ask)
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
		g.noContent(ctx, c, "")
		return
	}
	if p.amiss == nil {
		p.amiss = &wire.Error{Code: wire.BrokerUnavailable}
	}
	g.degrade(ctx, c, p.amiss)
}

// dozeAfter is how long a poll waits for its answer in the handler before it goes to sleep. Consumers of a busy queue have
// theirs by then: to fall asleep and to wake up would cost more than the whole rest of their poll.
const dozeAfter = 20 * time.Millisecond

// awaitAnswer returns the answer that ends a poll, nil when its time is over or it was given up, or says that the poll
// sleeps. Which ends of an attempt let the poll go on elsewhere: docs/design/upstream.md.
func (p *poll) awaitAnswer(ctx *fasthttp.RequestCtx) (a *answer, asleep bool) {
	g, ex := p.gateway, &p.conn.ex
	for {
		if p.flight == nil && !p.depart() {
			return nil, false
		}
		if woken := p.woken && !p.inPlace; !woken {
			p.watch()
			if !p.flight.answersWithin(dozeAfter) && p.fallAsleep(ctx) {
				return nil, true
			}
		}
		p.woken = false
		f := p.flight
		p.flight = nil
		a, far, err := f.answer()
		why, pause := "", g.cfg.pollPause
		switch {
		case err != nil && p.gave() != nil:
			return nil, false
		case err != nil:
			g.metrics.upstreamErrors.WithLabelValues(faultKind(far, err)).Inc()
			p.amiss = unanswered(err)
			if far == sent && !ex.pop.AutoAck {
				why = repeatLost
			}
		case a.failed():
			p.amiss = a.failure()
			if a.status() == fasthttp.StatusUnauthorized || a.saysNone() {
				why, pause = repeatUnsent, lossPause
			}
			a.discard()
		case a.status() == fasthttp.StatusNoContent && time.Until(p.end) > pollSlack(ex.pop.Timeout):
			a.discard()
			p.amiss = &wire.Error{Code: wire.Draining}
			why = repeatDrained
		default:
			return a, false
		}
		if why == "" {
			// Messages may have gone where nobody is: the client is told, by an early end.
			p.pause(lossPause, nil)
			return nil, false
		}
		if !p.pause(pause, p.changes) {
			return nil, false
		}
		g.metrics.repeats.WithLabelValues(why).Inc()
	}
}

// depart sends the poll to a broker, as soon as there is one that takes it. It reports false when the poll is over.
func (p *poll) depart() bool {
	g, ex := p.gateway, &p.conn.ex
	for key := ex.home(); ; {
		pool, tok, e := g.route(ex)
		if e != nil {
			p.amiss = e
			// The cell's addresses may come with the next snapshot.
			if !p.pause(g.cfg.pollPause, nil) {
				return false
			}
			continue
		}
		if !p.enter() {
			p.amiss = errFull()
			if !p.pause(g.cfg.pollPause, nil) {
				return false
			}
			continue
		}
		p.changes = pool.changes()
		b := pool.pick(key, needReady, nil)
		if b == nil {
			g.slots.leave(ex)
			if !p.pause(time.Until(p.end), p.changes) {
				return false
			}
			continue
		}
		p.deadline = p.end.Add(g.cfg.LongPollGrace)
		now := time.Now()
		f, err := g.depart(ex, tok, b, p.call, nil, now, max(p.end.Sub(now), time.Millisecond), p.deadline)
		g.slots.leave(ex)
		if err == nil {
			p.flight = f
			return true
		}
		if p.gave() != nil {
			return false
		}
		p.amiss = wire.Wrap(wire.BrokerUnavailable, err)
		g.metrics.upstreamErrors.WithLabelValues(faultConnect).Inc()
		if !p.pause(g.cfg.pollPause, p.changes) {
			return false
		}
		g.metrics.repeats.WithLabelValues(repeatUnsent).Inc()
	}
}

// enter waits for a slot in which the poll is sent: waiting at a broker it occupies none.
func (p *poll) enter() bool {
	if p.gateway.slots.full() {
		p.watch()
	}
	return p.gateway.slots.enter(&p.conn.ex, time.Until(p.end), p.done)
}

// watch looks out for the client's hang-up for as long as a handler has the poll.
func (p *poll) watch() {
	if p.unwatch == nil {
		p.unwatch = p.conn.watch(func() { p.cancel(errClientGone) })
	}
}

// pause waits for d, a change, or the end of the poll. It reports whether the poll goes on.
func (p *poll) pause(d time.Duration, changes <-chan struct{}) bool {
	p.watch()
	return p.call.pause(d, p.end, changes)
}

// pause waits for d, a change, the end or the giving up of the call. It reports whether the call goes on.
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
