package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/internal/httpkit"
)

// A pop that has to wait lets go of its goroutine, its buffers and its request: what is left is a popping, its ticket and
// a connection with a sentry on it, between 2 and 3 KB. When it is woken the server calls serve on the connection once
// more, and the pop goes on where it was. See docs/design/parked-polls.md.

// detach ends the handler's part in a pop that waits and reports whether it did: then the handler returns at once, and
// the pop belongs to parkDetached. What cannot be detached waits in its goroutine.
func (p *popping) detach() bool {
	b := p.b
	// A drain that began before this is seen below; one that begins afterwards waits for the pop.
	b.detached.Add(1)
	if p.inPlace || b.draining.Load() || !httpkit.Detach(p.x.ctx, p.parkDetached) {
		b.detached.Add(-1)
		return false
	}
	if p.watch != nil {
		p.watch.Stop()
		p.watch = nil
	}
	p.x.ctx, p.x.parked = nil, true
	return true
}

// parkDetached parks the pop when the server has let go of its connection.
func (p *popping) parkDetached(conn *httpkit.Detached) {
	p.conn = conn
	if p.sentry == nil {
		s, ok := conn.Stand(false, p.hangUp)
		if !ok {
			p.inPlace = true
			p.resume(park.Ready)
			return
		}
		p.sentry = s // it stands until the pop is over, so that a hang-up during a claim is seen too
	}
	w, parked := p.ticket.Park(p.deadline, p.resume)
	if !parked {
		p.resume(w)
		return
	}
	if p.vanished.Load() {
		p.ticket.Abandon() // the sentry was quicker than the ticket
	}
}

// hangUp is the sentry's alarm.
func (p *popping) hangUp() {
	p.vanished.Store(true)
	p.ticket.Abandon()
}

// resume has the pop go on in a handler, in this goroutine, which then serves the connection.
func (p *popping) resume(w park.Wake) {
	p.woken = w
	conn := p.conn
	p.conn = nil
	if conn.Serve(p.b.server, p) {
		return
	}
	// The server has no place for it and has closed the connection.
	p.close()
	p.x.span.End()
	p.b.metrics.inFlight.Add(-1)
	p.b.detached.Add(-1)
}

// goOn is run for a pop that was parked.
func (p *popping) goOn() error {
	defer p.conclude()
	if p.woken != park.Ready {
		return p.end(p.woken)
	}
	return p.run()
}

// conclude ends a pop unless it has been detached.
func (p *popping) conclude() {
	if !p.x.parked {
		p.close()
	}
}

// awaitDetached waits until no pop is without a goroutine, for a broker that drains.
func (b *Broker) awaitDetached(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		n := b.detached.Load()
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("broker: %d polls were still parked after %v", n, b.cfg.DrainTimeout)
		case <-tick.C:
		}
	}
}
