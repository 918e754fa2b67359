package proxy

import (
	"errors"
	"sync"
	"time"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/wire"
)

// parkedPoll is a waiting poll as others see it: its call, which they may give up, and what it was let in for. The head
// of its request, which its connection holds, stays as it is for as long as the poll is registered.
type parkedPoll struct {
	*call
	conn *clientConn
	last time.Time // when it ends at the latest

	// What follows is guarded by parkedPolls.mu.

	cluster   *plans.Cluster // as of the last judgement, and so is
	principal auth.Principal
	alarm     *time.Timer // at the end of the credential, if that is before the poll's
}

// parkedPolls is the waiting polls of this gateway. Safe for concurrent use.
type parkedPolls struct {
	// mu guards polls, drained and the judgements of the polls.
	mu      sync.Mutex
	polls   map[*parkedPoll]struct{}
	drained bool
}

// drain gives up all polls and all that come later.
func (pp *parkedPolls) drain() {
	pp.mu.Lock()
	polls := pp.polls
	pp.polls, pp.drained = map[*parkedPoll]struct{}{}, true
	pp.mu.Unlock()
	for p := range polls {
		p.cancel(errDraining)
	}
}

// park registers the poll that a connection serves, until the end of it. From then on it is given up, with the refusal
// as its cause, when its request would be refused: because of a change of the snapshot or of the time. A gateway that
// drains gives it up at once.
func (g *Gateway) park(c *clientConn, end time.Time) *parkedPoll {
	p := &parkedPoll{
		call: newCall(), conn: c, last: end.Add(g.cfg.LongPollGrace), cluster: c.ex.cluster, principal: c.ex.principal,
	}
	pp := &g.parked
	pp.mu.Lock()
	drained := pp.drained
	var e *wire.Error
	if !drained {
		pp.polls[p] = struct{}{}
		// A snapshot that came after the head was judged is looked at here, one that comes later by rejudge.
		snap, now := g.book.Snapshot(), time.Now()
		if e = g.judgeParked(p, snap, now); e == nil {
			g.setAlarm(p, now)
		}
	}
	pp.mu.Unlock()
	switch {
	case drained:
		p.cancel(errDraining)
	case e != nil:
		p.cancel(e)
	}
	return p
}

// unpark is the counterpart of park. The poll's request may be forgotten afterwards.
func (g *Gateway) unpark(p *parkedPoll) {
	g.parked.mu.Lock()
	defer g.parked.mu.Unlock()
	delete(g.parked.polls, p)
	if p.alarm != nil {
		p.alarm.Stop()
	}
}

// rejudge gives up the parked polls that the new snapshot would not let in. It costs a few look-ups per poll, and a
// judgement for those whose cluster or credential changed.
func (g *Gateway) rejudge(_, snap *plans.Snapshot) {
	now := time.Now()
	refused := map[*parkedPoll]*wire.Error{}
	g.parked.mu.Lock()
	for p := range g.parked.polls {
		if e := g.judgeParked(p, snap, now); e != nil {
			refused[p] = e
		}
	}
	g.parked.mu.Unlock()
	for p, e := range refused {
		p.cancel(e) // it closes a connection, which is not for the time under the lock
	}
}

// judgeParked decides whether a poll's request would be let in now, as judgeHead would, but for what counts requests.
// The lock of the parked polls is held.
func (g *Gateway) judgeParked(p *parkedPoll, snap *plans.Snapshot, now time.Time) *wire.Error {
	ex := &p.conn.ex
	if snap.ClusterByID(p.cluster.ID) == p.cluster && g.verifier.Stands(snap, &p.principal, p.cluster.TenantID, now) &&
		entitle(snap, &p.principal, p.cluster, ex.route) == nil {
		return nil
	}
	again := exchange{start: now, head: ex.head, route: ex.route}
	if e := g.authenticate(p.conn, &again, snap, true); e != nil {
		return e
	}
	cluster, e := g.resolve(&again, snap)
	if e != nil {
		return e
	}
	if cluster.ID != p.cluster.ID {
		return &wire.Error{Code: wire.ClusterUnknown} // its name belongs to another one now
	}
	if e := entitle(snap, &again.principal, cluster, ex.route); e != nil {
		return e
	}
	p.cluster, p.principal = cluster, again.principal
	g.setAlarm(p, now)
	return nil
}

// setAlarm has the poll judged again when its credential ends, if that is before the poll does. The lock of the parked
// polls is held.
func (g *Gateway) setAlarm(p *parkedPoll, now time.Time) {
	if p.alarm != nil {
		p.alarm.Stop()
		p.alarm = nil
	}
	ends := p.principal.Ends
	if ends.IsZero() || ends.After(p.last) {
		return
	}
	p.alarm = time.AfterFunc(ends.Sub(now), func() {
		g.parked.mu.Lock()
		_, parked := g.parked.polls[p]
		var e *wire.Error
		if parked {
			e = g.judgeParked(p, g.book.Snapshot(), ends)
		}
		g.parked.mu.Unlock()
		if e != nil {
			p.cancel(e)
		}
	})
}

// verdict returns the refusal because of which a poll was given up, nil when it was not or for another reason.
func (p *parkedPoll) verdict() *wire.Error {
	var e *wire.Error
	if errors.As(p.gave(), &e) {
		return e
	}
	return nil
}
