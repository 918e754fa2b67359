package broker

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/seal"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/spool"
	"github.com/queengate/queengate/wire"
)

// Spool keeps messages on disk while the database cannot take them; *spool.Spool is the real one.
type Spool interface {
	Append(records ...[]byte) error
	Next(records int, bytes int64) (*spool.Batch, error)
	Quarantine(data []byte, reason string) error
	Each(f func(data []byte)) error
	Empty() bool
	Stats() spool.Stats
}

// spooled is what waits in the spool, by partition: a push to a partition with messages in the spool goes behind them,
// even if the database would take it, so that this broker keeps their order.
type spooled struct {
	disk    Spool         // nil: pushes fail while the database is away
	wake    chan struct{} // one token: there may be something to drain
	dropped atomic.Int64  // messages of removed tenants
	away    atomic.Bool   // the database did not take the last push or the last of the spool: not to be asked by every push

	mu    sync.Mutex // guards all below
	lanes map[spooledLane]int
	total int
}

type spooledLane struct {
	tenant uuid.UUID
	pair   store.Pair
}

func newSpooled(disk Spool) *spooled {
	return &spooled{disk: disk, wake: make(chan struct{}, 1), lanes: map[spooledLane]int{}}
}

// recall counts what an earlier process has left.
func (l *spooled) recall() error {
	if l.disk == nil {
		return nil
	}
	err := l.disk.Each(func(data []byte) {
		if rec, err := readSpoolRecord(data); err == nil {
			l.add(spooledLane{rec.tenant, rec.pair}, 1)
		}
	})
	l.signal()
	return err
}

func (l *spooled) add(lane spooledLane, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total += n
	if l.lanes[lane] += n; l.lanes[lane] <= 0 {
		delete(l.lanes, lane)
	}
}

// before reports that a partition of the groups has messages in the spool.
func (l *spooled) before(tenant uuid.UUID, groups []*pushGroup) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total == 0 {
		return false
	}
	for _, g := range groups {
		if l.lanes[spooledLane{tenant, g.pair}] > 0 {
			return true
		}
	}
	return false
}

// messages returns how many wait.
func (l *spooled) messages() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

func (l *spooled) signal() {
	select {
	case l.wake <- struct{}{}:
	default: // the drain has not looked yet
	}
}

// databaseLost reports that the database did not answer when it was last asked, by whomever. One that stands still answers a
// push only when its statement has run out of time, so pushes do not find out by themselves.
func (b *Broker) databaseLost() bool {
	return b.spooled.away.Load() || b.feed.away.Load() || b.pinger.lost.Load()
}

// giveBack lets pushes that wait for the database go to the spool. Without one they wait on: what else could become of them?
func (b *Broker) giveBack() {
	if b.spooled.disk != nil {
		b.fuser.GiveBack(errUnanswered)
	}
}

// diverts reports that a push goes to the spool without asking the database: the operator has stopped pushes, the
// database is away, or older messages of a partition wait in the spool.
func (p *pushBatch) diverts(now time.Time) bool {
	l := p.b.spooled
	if l.disk == nil {
		return false
	}
	p.b.look(now)
	return p.b.switches.push.Load() || p.b.databaseLost() || l.before(p.who.tenant, p.groups)
}

// spoolable reports an error of which the spool is the cure: the database is away, or did not say what it did.
func spoolable(err error) bool {
	var e *wire.Error
	return errors.As(err, &e) && (e.Code == wire.DatabaseUnavailable || e.Outcome == wire.OutcomeUnknown)
}

func unsure(err error) bool {
	var e *wire.Error
	return errors.As(err, &e) && e.Outcome == wire.OutcomeUnknown
}

// spool puts messages on disk, in request order, and gives them the verdict buffered: those without a verdict, and
// those with one of which the spool is the cure. What the disk refuses fails, with the verdict it had if it had one.
func (p *pushBatch) spool(now time.Time) {
	l := p.b.spooled
	var records [][]byte
	counts := map[spooledLane]int{}
	for _, g := range p.groups {
		if len(g.out) == 0 {
			g.out = append(g.out, make([]fuse.Result, len(g.frames))...)
			for i := range g.out {
				g.out[i].Err = &wire.Error{Code: wire.DatabaseUnavailable, Outcome: wire.OutcomeNone}
			}
		}
		for i := range g.out {
			v := &g.out[i]
			if v.Err == nil || !spoolable(v.Err) {
				continue
			}
			rec := spoolRecord{
				accepted: now, unsure: unsure(v.Err), tenant: p.who.tenant, pair: g.pair, ceiling: p.who.caps.Unbounded.Ceiling,
				txn: g.frames[i].TransactionID, sub: g.frames[i].ProducerSub, payload: g.frames[i].Payload,
			}
			if err := p.b.sealRecord(&rec); err != nil {
				v.Err = err
				continue
			}
			if g.buffered == nil {
				g.buffered = make([]bool, len(g.out))
			}
			g.buffered[i] = true
			records = append(records, rec.append(nil))
			counts[spooledLane{p.who.tenant, g.pair}]++
		}
	}
	if len(records) == 0 {
		return
	}
	// Counted first: what is pushed while these are written goes behind them.
	for lane, n := range counts {
		l.add(lane, n)
	}
	err := l.disk.Append(records...)
	if err == nil {
		l.signal()
		return
	}
	for lane, n := range counts {
		l.add(lane, -n)
	}
	p.b.log.Warn("the spool does not take messages", "messages", len(records), "err", err)
	for _, g := range p.groups {
		for i := range g.buffered {
			if g.buffered[i] {
				g.out[i].Err = refusedBySpool(g.out[i].Err, err)
			}
		}
		g.buffered = nil
	}
}

// refusedBySpool is the verdict on a message that neither the database nor the disk has taken for certain.
func refusedBySpool(verdict, refusal error) error {
	e := wire.Wrap(wire.DatabaseUnavailable, errors.Join(verdict, refusal))
	e.Detail = "the database is away and the spool does not take the message"
	if errors.Is(refusal, spool.ErrFull) {
		e.Detail = "the database is away and the spool is full"
	}
	e.Outcome = wire.OutcomeNone
	if unsure(verdict) || errors.Is(refusal, spool.ErrUnknown) {
		e.Outcome = wire.OutcomeUnknown
	}
	return e
}

// sealRecord encrypts the payload of a record when there is a key to do it with. Whether its queue is encrypted cannot
// be asked while the database is away, so all are.
func (b *Broker) sealRecord(r *spoolRecord) error {
	if !b.cfg.Encryption.Seals() {
		return nil
	}
	at := r.place()
	sealed, err := b.cfg.Encryption.Seal(nil, &at, r.txn, r.payload)
	if err != nil {
		return keyMissing(err)
	}
	r.payload, r.sealed = sealed, true
	return nil
}

// openRecord is the way back.
func (b *Broker) openRecord(r *spoolRecord) error {
	if !r.sealed {
		return nil
	}
	at := r.place()
	payload, err := b.unseal(&at, r.txn, r.payload)
	if err == nil {
		r.payload, r.sealed = payload, false
	}
	return err
}

// place binds the payload of a record to its partition, whose number may not be known: no partition has the number 0,
// and no name has the sign between the names.
func (r *spoolRecord) place() seal.Place {
	return seal.Place{Tenant: r.tenant, Queue: r.pair.Queue + "\x1f" + r.pair.Partition}
}
