package proxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/quota"
)

// sleep is a poll that waits for its broker and for which nobody waits: no goroutine, no request, no buffers. What is left
// are the two connections with a sentry on each, and a timer. Whatever happens first wakes the poll, which then goes on
// in a handler of the server, on the same connection. See docs/design/parked-polls.md.
type sleep struct {
	poll   *poll
	conn   *httpkit.Detached
	state  atomic.Uint32 // of the states below
	stirs  atomic.Bool   // it was the client that woke it
	client *httpkit.Sentry
	broker *httpkit.Sentry
	late   *time.Timer
}

// States of a sleep.
const (
	dozing uint32 = iota // what may wake it is being set up
	asleep
	awake
)

// fallAsleep ends the handler's part in a poll that a broker has, and reports whether it did: then the handler returns at
// once. What cannot be detached waits in its handler: HTTP/1.0, a connection that is to close, where there are no
// sentries, and a gateway that drains.
func (p *poll) fallAsleep(ctx *fasthttp.RequestCtx) bool {
	g, ex := p.gateway, &p.conn.ex
	// A drain that began before this is seen below; one that begins afterwards waits for the poll.
	g.asleep.Add(1)
	if p.inPlace || g.drains() || !httpkit.Detach(ctx, p.lieDown) {
		g.asleep.Add(-1)
		return false
	}
	if p.unwatch != nil {
		p.unwatch()
		p.unwatch = nil
	}
	p.admission, ex.admission = ex.admission, nil // the handler must not end it
	return true
}

// lieDown begins the sleep when the server has let go of the connection.
func (p *poll) lieDown(conn *httpkit.Detached) {
	s := &sleep{poll: p, conn: conn}
	p.sleeps(s.wake) // before the sentries: one on a connection that is closed behind it says nothing
	p.flight.conn.asleep()
	// A TLS client says that it closes before it does, so whatever it sends is looked at.
	_, secure := p.conn.Conn.(*tls.Conn)
	var stand [2]bool
	if s.client, stand[0] = conn.Stand(secure, s.stir); !stand[0] {
		s.client = nil
	}
	if s.broker, stand[1] = httpkit.Stand(p.flight.conn.Conn, true, s.wake); !stand[1] {
		s.broker = nil
	}
	s.late = time.AfterFunc(time.Until(p.deadline), s.wake)
	if p.inPlace = !stand[0] || !stand[1]; p.inPlace {
		s.wake()
	}
	if !s.state.CompareAndSwap(dozing, asleep) {
		s.end()
	}
}

// stir is the alarm of the client's sentry.
func (s *sleep) stir() {
	s.stirs.Store(true)
	s.wake()
}

// wake ends the sleep, once. It does not block.
func (s *sleep) wake() {
	if s.state.Swap(awake) == asleep {
		go s.end()
	}
}

// end has the poll go on in a handler, in this goroutine, which then serves the connection.
func (s *sleep) end() {
	p := s.poll
	p.sleeps(nil)
	s.late.Stop()
	for _, sentry := range []*httpkit.Sentry{s.client, s.broker} {
		if sentry != nil {
			sentry.Stop()
		}
	}
	if s.stirs.Load() {
		if httpkit.HungUp(p.conn) {
			p.cancel(errClientGone)
		} else {
			p.inPlace = true // it must be read to know what it wants
		}
	}
	p.woken = true
	if s.conn.Serve(p.gateway.server, p) {
		return
	}
	// The server has no place for it and has closed the connection.
	p.cancel(errClientGone)
	_, _, _ = p.flight.answer() // there is none
	p.close()
	p.gateway.settle(p.rise(), quota.Outcome{})
}

// rise gives the admission of a poll that was asleep back to its exchange.
func (p *poll) rise() *exchange {
	ex := &p.conn.ex
	ex.admission, p.admission = p.admission, nil
	p.gateway.asleep.Add(-1)
	return ex
}

// resume serves a poll that was asleep.
func (p *poll) resume(ctx *fasthttp.RequestCtx) {
	defer p.gateway.settle(p.rise(), quota.Outcome{Stored: true})
	p.serve(ctx)
}

// awaitSleepers waits until no poll is without a handler, for a gateway that drains.
func (g *Gateway) awaitSleepers(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		n := g.asleep.Load()
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d polls were still waiting after %s of draining", n, g.cfg.DrainTime)
		case <-tick.C:
		}
	}
}

// drains reports whether the gateway has begun to drain.
func (g *Gateway) drains() bool {
	select {
	case <-g.draining:
		return true
	default:
		return false
	}
}
