package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/spool"
	"github.com/queengate/queengate/wire"
)

const (
	// drainRecords and drainBytes bound what is offered to the database at a time.
	drainRecords = 1000
	drainBytes   = 8 << 20
	// drainFirst and drainLast are the pauses between attempts while the database is away.
	drainFirst = 100 * time.Millisecond
	drainLast  = time.Second
	// drainAttempts is how often the oldest messages are offered that the database refuses for their own sake.
	drainAttempts = 5

	// sidecarAge is how long the database remembers every transaction id at least (keep_txn in retention.sql).
	sidecarAge = 15 * time.Minute
	// clockDoubt is how far the clocks of broker and database are thought to be apart.
	clockDoubt = time.Minute
)

// runDrain gives the spool back to the database, oldest first, until ctx ends. It rests while the operator has stopped
// pushes.
func (b *Broker) runDrain(ctx context.Context) error {
	l := b.spooled
	timer := time.NewTimer(0)
	defer timer.Stop()
	pause, attempts := drainFirst, 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-timer.C:
		}
		for ctx.Err() == nil && !l.disk.Empty() {
			// What is offered and has no answer may be stored, and is in doubt from then on.
			if b.pinger.lost.Load() {
				break
			}
			open, err := b.drainOpen()
			if err == nil && !open {
				break
			}
			if err == nil {
				err = b.drainOnce(&attempts)
			}
			if err == nil {
				pause = drainFirst
				continue
			}
			if spoolable(err) {
				l.away.Store(true)
			}
			b.log.Debug("the spool waits", "messages", l.messages(), "err", err)
			break
		}
		switch {
		case l.disk.Empty():
			l.away.Store(false)
		default:
			timer.Reset(pause)
			pause = min(2*pause, drainLast)
		}
	}
}

// drainOnce offers the oldest messages and takes them off the spool when all have a verdict. With an error they stay.
func (b *Broker) drainOnce(attempts *int) error {
	l := b.spooled
	batch, err := l.disk.Next(drainRecords, drainBytes)
	if err != nil || batch == nil {
		return err
	}
	d := &drained{b: b, at: time.Now()}
	for i := range batch.Records {
		if err := d.add(&batch.Records[i]); err != nil {
			batch.Return(false)
			return err
		}
	}
	tried, err := d.offer()
	if err != nil {
		batch.Return(tried)
		return err
	}
	if bad := d.refused(); len(bad) > 0 {
		if *attempts++; *attempts < drainAttempts {
			batch.Return(true)
			return bad[0].err
		}
		for _, r := range bad {
			if err := l.disk.Quarantine(r.data, r.err.Error()); err != nil {
				batch.Return(true)
				return err
			}
			b.log.Error("a buffered message is in quarantine", "queue", r.rec.pair.Queue, "partition", r.rec.pair.Partition, "err", r.err)
		}
	}
	*attempts = 0
	l.away.Store(false)
	b.pinger.answered()
	if err := batch.Settle(); err != nil {
		return err
	}
	for _, r := range d.all {
		if r.known {
			l.add(spooledLane{r.rec.tenant, r.rec.pair}, -1)
		}
	}
	d.count()
	d.forgo()
	return nil
}

// drained is a batch of the spool on its way to the database.
type drained struct {
	b       *Broker
	at      time.Time
	all     []*drainedRecord
	batches []*pushBatch // one per tenant
}

type drainedRecord struct {
	rec   spoolRecord
	data  []byte
	known bool // it was read, and counted in spooled
	since time.Time
	group *pushGroup
	index int  // of its frame
	ended bool // its tenant was removed: it is dropped
	err   error
}

// add reads a record. An error is the disk's: what cannot be read is in quarantine.
func (d *drained) add(raw *spool.Record) error {
	r := &drainedRecord{data: raw.Data}
	var err error
	if r.rec, err = readSpoolRecord(raw.Data); err != nil {
		return d.b.spooled.disk.Quarantine(raw.Data, err.Error())
	}
	r.known = true
	d.all = append(d.all, r)
	switch {
	case r.rec.unsure:
		r.since = r.rec.accepted
	case raw.Unsure:
		r.since = raw.Since
	}
	if err := d.b.openRecord(&r.rec); err != nil {
		r.err = err
		return nil
	}
	p := d.batch(r)
	g := p.group(r.rec.pair)
	p.items = append(p.items, pushPlace{group: g, frame: len(g.frames)})
	r.group, r.index = g, len(g.frames)
	g.frames = append(g.frames, segment.Frame{TransactionID: r.rec.txn, Payload: r.rec.payload, ProducerSub: r.rec.sub})
	return nil
}

// batch returns the batch of the record's tenant. The gateway has counted what these pushes create, so no cap is asked
// again: they are accepted. Whether a queue is there only the database knows, so that a plan which refuses queues without
// retention could not do it in time: they are given the ceiling, the latest that was stated.
func (d *drained) batch(r *drainedRecord) *pushBatch {
	for _, p := range d.batches {
		if p.who.tenant == r.rec.tenant {
			p.who.caps.Unbounded.Ceiling = r.rec.ceiling
			return p
		}
	}
	p := &pushBatch{b: d.b, who: &identity{
		tenant: r.rec.tenant, caps: store.Caps{Unbounded: store.Unbounded{Ceiling: r.rec.ceiling}},
	}}
	p.done = p.pending.Done
	d.batches = append(d.batches, p)
	return p
}

// offer asks the database to store all. tried says that with an error some may be stored.
func (d *drained) offer() (tried bool, err error) {
	for _, p := range d.batches {
		if err := d.resolve(p); err != nil {
			return false, err
		}
	}
	if err := d.settled(); err != nil {
		return false, err
	}
	d.doubt()
	for _, round := range d.runs() {
		tried = true
		if err := d.push(round); err != nil {
			return true, err
		}
		if err := d.isolate(round); err != nil {
			return true, err
		}
	}
	return tried, nil
}

// settled makes sure that what may be stored already is stored by now or never will be: as long as the statement that was
// asked to do it may go on, finding nothing proves nothing.
func (d *drained) settled() error {
	if !slices.ContainsFunc(d.all, func(r *drainedRecord) bool { return !r.since.IsZero() }) {
		return nil
	}
	ctx, cancel := d.b.database()
	defer cancel()
	n, err := d.b.db.Lingering(ctx)
	if err == nil && n > 0 {
		err = fmt.Errorf("%d lost sessions may still store what is in doubt", n)
	}
	return err
}

// isolate offers the records of refused stretches one by one: one of them is at fault.
func (d *drained) isolate(round [][]*drainedRecord) error {
	for _, run := range round {
		if len(run) == 1 || !slices.ContainsFunc(run, func(r *drainedRecord) bool { return r.err != nil }) {
			continue
		}
		for _, r := range run {
			if r.err == nil {
				continue
			}
			r.err = nil
			if err := d.push([][]*drainedRecord{{r}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// resolve finds or makes the partitions of a tenant, one by one when together they are refused. What is buffered of a tenant
// that was removed must not make it anew, nor lie in quarantine for ever: it goes nowhere.
func (d *drained) resolve(p *pushBatch) error {
	err := p.resolve(p.groups)
	if err == nil || passing(err) {
		return err
	}
	if store.Closed(err) {
		for _, r := range d.all {
			if r.rec.tenant == p.who.tenant {
				r.ended, r.err = true, nil
			}
		}
		return nil
	}
	for _, g := range p.groups {
		if err := p.resolve([]*pushGroup{g}); passing(err) {
			return err
		} else if err != nil {
			for _, r := range d.all {
				if r.group == g {
					r.err = err
				}
			}
		}
	}
	return nil
}

// passing reports an error that time cures.
func passing(err error) bool {
	var e *wire.Error
	if spoolable(err) {
		return true
	}
	return errors.As(err, &e) && (e.Code == wire.BrokerOverloaded || e.Code == wire.Draining)
}

// doubt refuses what may be stored already and is too old for the database to know.
func (d *drained) doubt() {
	for _, r := range d.all {
		if r.since.IsZero() || r.err != nil || r.ended {
			continue
		}
		if age := d.at.Sub(r.since); age+2*clockDoubt > max(sidecarAge, r.group.partition.DedupWindow) {
			r.err = fmt.Errorf("the message may be stored already, and %v later the database does not know", age.Round(time.Second))
		}
	}
}

// runs cuts each partition's records into stretches of sure and of unsure ones, and returns the stretches that can be
// offered at the same time: first all that come first in their partition, and so on.
func (d *drained) runs() (rounds [][][]*drainedRecord) {
	lanes := map[*pushGroup][]*drainedRecord{}
	var order []*pushGroup
	for _, r := range d.all {
		if r.err != nil || r.ended {
			continue
		}
		if lanes[r.group] == nil {
			order = append(order, r.group)
		}
		lanes[r.group] = append(lanes[r.group], r)
	}
	for _, g := range order {
		rest := lanes[g]
		for n := 0; len(rest) > 0; n++ {
			end := slices.IndexFunc(rest, func(r *drainedRecord) bool { return r.since.IsZero() != rest[0].since.IsZero() })
			if end < 0 {
				end = len(rest)
			}
			if n == len(rounds) {
				rounds = append(rounds, nil)
			}
			rounds[n] = append(rounds[n], rest[:end])
			rest = rest[end:]
		}
	}
	return rounds
}

// push offers stretches of different partitions and waits for the verdicts.
func (d *drained) push(round [][]*drainedRecord) error {
	outs := make([][]fuse.Result, len(round))
	for i, run := range round {
		g := run[0].group
		outs[i] = make([]fuse.Result, len(run))
		frames := make([]segment.Frame, len(run))
		for k, r := range run {
			frames[k] = g.frames[r.index]
		}
		p := d.batch(run[0])
		p.pending.Add(1)
		p.startUnsure(g, d.window(run), frames, outs[i], p.done)
	}
	for _, p := range d.batches {
		p.pending.Wait()
	}
	var wait error
	for i, run := range round {
		for k, r := range run {
			v := &outs[i][k]
			switch {
			case v.Missing:
				// Deleted or newly encrypted a moment ago: the next attempt looks it up anew.
				d.b.names.forget(r.rec.tenant, r.rec.pair.Queue)
				wait = errors.New("a partition has changed")
			case passing(v.Err):
				wait = v.Err
			default:
				r.err = v.Err
			}
		}
	}
	return wait
}

// window is how far back unsure messages are looked for; 0 for sure ones.
func (d *drained) window(run []*drainedRecord) time.Duration {
	if run[0].since.IsZero() {
		return 0
	}
	oldest := run[0].since
	for _, r := range run {
		if r.since.Before(oldest) {
			oldest = r.since
		}
	}
	return d.at.Sub(oldest) + clockDoubt
}

// refused returns the records that the database refuses for their own sake.
func (d *drained) refused() (bad []*drainedRecord) {
	for _, r := range d.all {
		if r.err != nil {
			bad = append(bad, r)
		}
	}
	return bad
}

// count adds what was stored to the history. Requests were counted when they were answered.
func (d *drained) count() {
	for _, p := range d.batches {
		if slices.ContainsFunc(d.all, func(r *drainedRecord) bool { return r.ended && r.rec.tenant == p.who.tenant }) {
			continue
		}
		byQueue := map[string]int64{}
		for _, g := range p.groups {
			byQueue[g.pair.Queue] += int64(len(g.frames))
		}
		for queue, n := range byQueue {
			d.b.history.add(p.who.tenant, queue, store.Activity{PushMessages: n})
		}
	}
}

// forgo counts what was dropped, and says so once per tenant and batch.
func (d *drained) forgo() {
	dropped := map[uuid.UUID]int64{}
	for _, r := range d.all {
		if r.ended {
			dropped[r.rec.tenant]++
		}
	}
	for tenant, n := range dropped {
		d.b.spooled.dropped.Add(n)
		d.b.log.Info("buffered messages of a removed tenant are dropped", "tenant", tenant, "messages", n)
	}
}
