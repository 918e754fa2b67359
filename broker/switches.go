package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// switches are the operator's switches as this broker knows them. They stand in the database and come with the change
// feed, so all brokers obey within a second or two and nobody asks for them alone; only a broker whose feed sleeps,
// because nobody has asked it anything, reads them with its first request.
type switches struct {
	push, pop atomic.Bool // on: pushes are refused, pops deliver nothing
	seen      atomic.Int64
	known     atomic.Bool // they were read at least once

	mu      sync.Mutex // guards changed; held during a reading
	changed time.Time  // when they were last set from here
}

// switchesAge is how long a reading is believed: the feed brings one every second.
const switchesAge = 3 * time.Second

// switchesRest is how long a held poll rests before it looks by itself: the switch may have been released between its
// look and its rest.
const switchesRest = 10 * time.Second

// maintenanceRetry is what a refused push is told. Maintenance takes as long as it takes; a client must not hammer.
const maintenanceRetry = 5 * time.Second

// obey takes a reading that was begun at asked. One that may be older than what was set here since says nothing.
func (b *Broker) obey(now store.Switches, asked time.Time) {
	s := &b.switches
	s.mu.Lock()
	defer s.mu.Unlock()
	b.obeyLocked(now, asked)
}

func (b *Broker) obeyLocked(now store.Switches, asked time.Time) {
	s := &b.switches
	if asked.Before(s.changed) {
		return
	}
	s.seen.Store(asked.UnixNano())
	s.known.Store(true)
	if s.push.Swap(now.Push) && !now.Push {
		b.spooled.signal() // what was diverted may go to the database
	}
	if s.pop.Swap(now.Pop) && !now.Pop {
		b.park.WakeResting()
	}
}

// look makes sure that the switches are known as of now. While the database is away the last reading stays.
func (b *Broker) look(now time.Time) {
	s := &b.switches
	fresh := func() bool { return now.UnixNano()-s.seen.Load() < int64(switchesAge) }
	if fresh() || b.databaseLost() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if fresh() {
		return // somebody else has just looked
	}
	ctx, cancel := b.database()
	defer cancel()
	asked := time.Now()
	found, err := b.db.Switches(ctx)
	if err != nil {
		s.seen.Store(asked.UnixNano()) // the request finds out by itself what is the matter, and the next need not wait here
		return
	}
	b.obeyLocked(found, asked)
}

// drainOpen reports whether the spool may go to the database. A broker that has just started does not know yet, and the
// feed of one that nobody asks anything sleeps, so whoever drains asks by himself then. An error is the database's.
func (b *Broker) drainOpen() (bool, error) {
	s := &b.switches
	closed := s.push.Load()
	if s.known.Load() && (!closed || time.Now().UnixNano()-s.seen.Load() < int64(switchesAge)) {
		return !closed, nil
	}
	ctx, cancel := b.database()
	defer cancel()
	asked := time.Now()
	found, err := b.db.Switches(ctx)
	if err != nil {
		return false, err
	}
	b.obey(found, asked)
	return !s.push.Load(), nil
}

// pushesOpen refuses whatever stores messages while the operator has stopped pushes.
func (b *Broker) pushesOpen(now time.Time) error {
	b.look(now)
	if b.switches.push.Load() {
		return &wire.Error{Code: wire.Maintenance, RetryAfter: maintenanceRetry}
	}
	return nil
}

// popsOpen reports whether pops deliver.
func (b *Broker) popsOpen() bool {
	b.look(time.Now())
	return !b.switches.pop.Load()
}

// closed holds a waiting pop while the operator has stopped pops, and ends one that does not wait. Ready means that
// they deliver again.
func (p *popping) closed() park.Wake {
	if !p.q.Wait {
		return park.Deadline
	}
	p.ticket.Return(0)
	w := p.ticket.Rest(switchesRest, p.deadline, p.gone())
	if w == park.Deadline && time.Now().Before(p.deadline) {
		return park.Ready
	}
	return w
}
