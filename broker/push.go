package broker

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/wire"
)

// pushRepeats is how often items are offered again whose partition was deleted, or its queue's encryption switched on,
// between the look-up and the write.
const pushRepeats = 3

// errQueueChanging is for what was offered again so often and met yet another deletion or configuration: nothing was
// stored, and in a moment it can be. It has no more than the least Retry-After.
var errQueueChanging = &wire.Error{Code: wire.QueueChanging, RetryAfter: time.Second, Outcome: wire.OutcomeNone}

// push stores the items of a request and answers 201 with a verdict for each, in request order.
//
// Every queue and partition is resolved or created before the first item is offered, so a refusal over a cap stores
// nothing. Payloads alias the request body, which stays in place until the handler returns.
func (b *Broker) push(x *exchange) error {
	p := pushBatches.Get().(*pushBatch)
	p.b, p.who, p.span = b, &x.who, x.span
	err := p.run(x)
	p.free() // not after a panic: then the fuser may still have its frames
	return err
}

func (p *pushBatch) run(x *exchange) error {
	if err := wire.ScanPush(x.ctx.PostBody(), p.each); err != nil {
		return err
	}
	if p.b.spooled.disk == nil {
		if err := p.b.pushesOpen(x.begin); err != nil {
			return err
		}
	}
	if p.diverts(x.begin) {
		p.spool(x.begin)
	} else if err := p.store(x.begin); err != nil {
		return err
	}
	results, refusal := p.results()
	if refusal != nil {
		return refusal
	}
	p.b.metrics.pushed(len(results))
	p.record()
	x.reply(fasthttp.StatusCreated, func(dst []byte) []byte { return wire.AppendPushResults(dst, results) })
	return nil
}

// store offers the batch to the database, and to the spool what the database could not take.
func (p *pushBatch) store(now time.Time) error {
	err := p.resolve(p.groups)
	if err == nil {
		p.submit(p.groups)
		p.repeat()
	}
	if p.b.spooled.disk == nil {
		return err
	}
	away := spoolable(err)
	for _, g := range p.groups {
		away = away || slices.ContainsFunc(g.out, func(v fuse.Result) bool { return spoolable(v.Err) })
	}
	if !away {
		return err
	}
	p.b.spooled.away.Store(true)
	p.spool(now)
	return nil
}

// repeat offers again what was not stored because a partition had changed.
func (p *pushBatch) repeat() {
	for range pushRepeats {
		missing := p.missing()
		if len(missing) == 0 {
			return
		}
		if err := p.resolve(missing); err != nil {
			e := wire.AsError(err)
			for _, g := range missing {
				g.fail(e)
			}
			return
		}
		p.submit(missing)
	}
}

// pushBatch is one push request on its way. Its memory is used again for another. The zero value gathers and resolves,
// which is what a transaction needs; submit takes one of the pool.
type pushBatch struct {
	b       *Broker
	who     *identity
	span    tracing.Span // of the request
	items   []pushPlace
	groups  []*pushGroup
	byName  map[store.Pair]*pushGroup // of groups, once they are many
	spare   []*pushGroup              // empty ones
	answer  []wire.PushResult
	pending sync.WaitGroup

	// Bound once: add for the scan, and done of pending.
	each func(int, wire.PushItem) error
	done func()
}

var pushBatches = sync.Pool{New: func() any {
	p := new(pushBatch)
	p.each = func(_ int, item wire.PushItem) error {
		p.add(item)
		return nil
	}
	p.done = p.pending.Done
	return p
}}

const (
	// compareAll is up to how many names or ids a look through all of them is cheaper than a map.
	compareAll = 8
	// maxKeptItems bounds what a pooled batch keeps.
	maxKeptItems = 1024
)

// free gives the memory of a batch to the next one, unless it is much.
func (p *pushBatch) free() {
	if cap(p.items) <= maxKeptItems && len(p.groups)+len(p.spare) <= maxKeptItems {
		p.reset()
		pushBatches.Put(p)
	}
}

// reset drops what the batch refers to, the request's body among it.
func (p *pushBatch) reset() {
	for _, g := range p.groups {
		clear(g.frames)
		clear(g.out)
		*g = pushGroup{frames: g.frames[:0], out: g.out[:0]}
	}
	p.spare = append(p.spare, p.groups...)
	clear(p.groups)
	clear(p.items)
	clear(p.answer)
	p.items, p.groups, p.answer, p.byName = p.items[:0], p.groups[:0], p.answer[:0], nil
	p.b, p.who, p.span = nil, nil, tracing.Span{}
}

// pushPlace says where the verdict of one item stands. Items that repeat a transaction id share the first one's place.
type pushPlace struct {
	group    *pushGroup
	frame    int
	follower bool
}

// pushGroup is the items of one partition, in request order.
type pushGroup struct {
	pair      store.Pair
	partition store.Partition
	frames    []segment.Frame
	out       []fuse.Result
	first     map[string]int // transaction id to frame, once there are many
	redo      []int          // while repeating: the frames that are offered again
	buffered  []bool         // the frames that are in the spool; nil: none
}

func (p *pushBatch) add(item wire.PushItem) {
	g := p.group(store.Pair{Queue: item.Queue, Partition: item.Partition})
	txn := string(item.TransactionID)
	if txn == "" {
		txn = httpkit.NewUUID().String()
	} else if i, seen := g.find(txn); seen {
		p.items = append(p.items, pushPlace{g, i, true})
		return
	}
	p.items = append(p.items, pushPlace{g, len(g.frames), false})
	g.frames = append(g.frames, segment.Frame{TransactionID: txn, Payload: item.Payload, ProducerSub: p.who.subject})
}

// group returns the group of a partition. Most requests name one, or the same one many times in a row.
func (p *pushBatch) group(pair store.Pair) *pushGroup {
	if n := len(p.items); n > 0 {
		if last := p.items[n-1].group; last.pair == pair {
			return last
		}
	}
	if len(p.groups) <= compareAll {
		for _, g := range p.groups {
			if g.pair == pair {
				return g
			}
		}
	} else if g := p.byName[pair]; g != nil {
		return g
	}
	var g *pushGroup
	if n := len(p.spare); n > 0 {
		g, p.spare = p.spare[n-1], p.spare[:n-1]
	} else {
		g = new(pushGroup)
	}
	g.pair = pair
	p.groups = append(p.groups, g)
	switch n := len(p.groups); {
	case n == compareAll+1:
		p.byName = make(map[store.Pair]*pushGroup, 4*n)
		for _, g := range p.groups {
			p.byName[g.pair] = g
		}
	case n > compareAll:
		p.byName[pair] = g
	}
	return g
}

// find returns the frame of the group that has the transaction id, or promises that the next frame will.
func (g *pushGroup) find(txn string) (int, bool) {
	if len(g.frames) <= compareAll {
		for i := range g.frames {
			if g.frames[i].TransactionID == txn {
				return i, true
			}
		}
		return 0, false
	}
	if g.first == nil {
		g.first = make(map[string]int, 4*len(g.frames))
		for i := range g.frames {
			g.first[g.frames[i].TransactionID] = i
		}
	}
	if i, ok := g.first[txn]; ok {
		return i, true
	}
	g.first[txn] = len(g.frames)
	return 0, false
}

// resolve finds or creates the partitions of groups, in one statement for all that are not known.
func (p *pushBatch) resolve(groups []*pushGroup) error {
	var pairs []store.Pair
	var unknown []*pushGroup
	for _, g := range groups {
		if known, ok := p.b.names.target(p.who.tenant, g.pair.Queue, g.pair.Partition); ok {
			g.partition = known
			continue
		}
		pairs = append(pairs, g.pair)
		unknown = append(unknown, g)
	}
	if len(pairs) == 0 {
		return nil
	}
	version := p.b.names.version.Load()
	span := p.span.Child("provision", tracing.Client)
	found, err := p.b.provisions.do(p.who.tenant, pairs, p.who.caps)
	endTrip(span, tracing.Cargo{Requests: 1, Items: len(pairs)}, err)
	if err != nil {
		return err
	}
	p.b.names.learn(version, found)
	for i, g := range unknown {
		g.partition = found[i]
		p.b.named(&found[i])
	}
	return nil
}

// submit offers the groups to the fuser, all at once, and waits for all verdicts.
func (p *pushBatch) submit(groups []*pushGroup) {
	p.pending.Add(len(groups))
	for _, g := range groups {
		if g.redo == nil {
			g.out = slices.Grow(g.out, len(g.frames))[:len(g.frames)]
			p.start(g, g.frames, g.out, p.done)
			continue
		}
		frames, out := make([]segment.Frame, len(g.redo)), make([]fuse.Result, len(g.redo))
		for i, at := range g.redo {
			frames[i] = g.frames[at]
		}
		p.start(g, frames, out, func() {
			for i, at := range g.redo {
				g.out[at] = out[i]
			}
			p.done()
		})
	}
	p.pending.Wait()
}

// start offers frames of a group in the form in which its partition takes them.
func (p *pushBatch) start(g *pushGroup, frames []segment.Frame, out []fuse.Result, done func()) {
	p.startUnsure(g, 0, frames, out, done)
}

// startUnsure is start for frames that may be stored already, within the last window; 0: they are not.
func (p *pushBatch) startUnsure(g *pushGroup, window time.Duration, frames []segment.Frame, out []fuse.Result, done func()) {
	stored, err := p.b.sealed(&g.partition, frames)
	if err != nil {
		e := wire.AsError(err)
		for i := range out {
			out[i] = fuse.Result{Err: e}
		}
		done()
		return
	}
	p.b.fuser.StartFor(p.span, g.partition, window, stored, out, done)
}

// missing returns the groups with frames whose partition had vanished, or is encrypted since it was resolved, prepared
// to be offered again.
func (p *pushBatch) missing() (again []*pushGroup) {
	for _, g := range p.groups {
		g.redo = nil
		for i := range g.out {
			if g.out[i].Missing {
				g.redo = append(g.redo, i)
			}
		}
		if g.redo != nil {
			p.b.names.forget(p.who.tenant, g.pair.Queue)
			again = append(again, g)
		}
	}
	return again
}

// record counts what was stored. A request counts once for every run of groups of one queue.
func (p *pushBatch) record() {
	for i, g := range p.groups {
		var a store.Activity
		for j := range g.out {
			if v := &g.out[j]; v.Err == nil && !v.Missing && !v.Duplicate {
				a.PushMessages++
			}
		}
		if i == 0 || p.groups[i-1].pair.Queue != g.pair.Queue {
			a.PushRequests = 1
		}
		p.b.history.add(p.who.tenant, g.pair.Queue, a)
	}
}

func (g *pushGroup) fail(e *wire.Error) {
	for _, i := range g.redo {
		g.out[i] = fuse.Result{Err: e}
	}
}

// results turns the verdicts into the answer, or into one refusal when not a single item was stored or known.
func (p *pushBatch) results() ([]wire.PushResult, *wire.Error) {
	var refusal *wire.Error
	stored := len(p.items) == 0
	for i, at := range p.items {
		g := at.group
		v := &g.out[at.frame]
		r := wire.PushResult{Index: i, TransactionID: g.frames[at.frame].TransactionID, Queue: g.pair.Queue}
		switch {
		case g.buffered != nil && g.buffered[at.frame]:
			stored = true
			r.Status, r.Offset, r.MessageID = wire.Buffered, -1, uuid.Nil // it has neither before it is in the database
		case v.Err != nil || v.Missing:
			e := errQueueChanging
			if v.Err != nil {
				e = wire.AsError(v.Err)
			}
			if refusal == nil || e.Outcome == wire.OutcomeUnknown {
				refusal = e
			}
			r.Status, r.Offset, r.Error, r.Outcome = wire.Failed, -1, e.Text(), cmp.Or(e.Outcome, wire.OutcomeNone)
			r.MessageID = uuid.Nil
		default:
			stored = true
			r.Status, r.Offset = wire.Queued, v.Offset
			if v.Duplicate || at.follower {
				r.Status = wire.Duplicate
			}
			r.MessageID = segment.MessageID(v.CreatedAt, v.Offset, g.partition.ID)
		}
		p.answer = append(p.answer, r)
	}
	if stored {
		return p.answer, nil
	}
	return nil, refusal
}
