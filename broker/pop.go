package broker

import (
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/wire"
)

const (
	// maxCandidates bounds the partitions one claim looks at.
	maxCandidates = 64
	// maxPopBytes bounds the payload of one answer. The first message is delivered whatever its size.
	maxPopBytes = 16 << 20
	// maxIdleClaims bounds the claims of one pop that does not wait: each of them found its partitions taken or empty.
	maxIdleClaims = 4
	// awayPause spaces the attempts of a poll while the database is away.
	awayPause = 500 * time.Millisecond
	// defaultLease is for a queue whose lease time is not set.
	defaultLease = 60 * time.Second
)

// pop claims messages of a queue, of one partition, or of the queues of a namespace or task: 200 with messages, or 204.
// A pop that asked for conflation gets 200 always: its client stops when the word is not echoed.
//
// Its ticket is taken before anything else, so that no push between a claim and a wait is missed. A waiting poll is
// held while the database is away and ends in 204, unless it acknowledges by itself and a claim of its may have gone
// through: then what it took is gone, and its client must hear of it. A poll whose client hangs up receives nothing.
func (b *Broker) pop(x *exchange) error {
	q, err := wire.ParsePopQuery(x.ctx.URI().QueryString())
	if err != nil {
		return err
	}
	if err := refusable(x.route.Op, &q); err != nil {
		x.preface = []byte(`"success":false,"messages":[],`)
		return err
	}
	if !q.TimeoutGiven {
		q.Timeout = b.cfg.PopTimeout
	}
	p := &popping{
		b: b, x: x, q: q,
		key:      park.Key{Tenant: x.who.tenant, Queue: x.params[0], Group: q.Group},
		deadline: x.begin.Add(q.Timeout - wire.PollMargin(q.Timeout)),
	}
	var pin park.Pin
	switch x.route.Op {
	case wire.OpPopPartition:
		p.pinned, pin.Name = true, x.params[1]
	case wire.OpPopDiscover:
		p.scope = b.scopes.enter(store.Scope{Tenant: p.key.Tenant, Namespace: q.Namespace, Task: q.Task})
		p.key.Queue = p.scope.name
	}
	p.ticket = b.park.Join(p.key, pin)
	defer p.conclude()
	b.metrics.pops[p.pinned].Inc()
	p.size()
	return p.run()
}

// popping is one pop on its way.
type popping struct {
	b          *Broker
	x          *exchange
	q          wire.PopQuery
	key        park.Key
	pinned     bool
	scope      *scope          // of a discovery pop, else nil
	budget     int             // messages
	partitions int             // that may be claimed; 0: no cap
	width      int             // partitions to look at
	pilot      *wire.Autopilot // what was chosen for it, nil when it chose itself
	conflate   bool            // its group does; known when the ring is prepared
	conflict   bool            // it asked for what its group does not do
	deadline   time.Time
	holdUntil  time.Time // end of minPopWaitTime, counted from the first partition in hand
	ticket     *park.Ticket
	unsure     bool           // a claim that acknowledges by itself ended without an answer
	over       bool           // ended while it held what it had
	wake       park.Wake      // how
	watch      *httpkit.Watch // nil before the first wait in the handler's goroutine

	// Of a pop that waits without a goroutine, or has: see detach.
	conn     *httpkit.Detached // while it waits
	sentry   *httpkit.Sentry   // from the first such wait on
	vanished atomic.Bool       // the sentry has seen the client go
	woken    park.Wake         // what ended the wait
	inPlace  bool              // it must not wait so
}

func (p *popping) close() {
	p.ticket.Leave()
	if p.scope != nil {
		p.scope.leave()
	}
	if p.watch != nil {
		p.watch.Stop()
	}
	if p.sentry != nil {
		p.sentry.Stop()
	}
}

// run claims and waits by turns until the pop is answered or detached.
func (p *popping) run() error {
	for idle := 1; ; idle++ {
		if !p.b.popsOpen() {
			if w := p.closed(); w != park.Ready {
				return p.end(w)
			}
			continue
		}
		got, looked, err := p.attempt()
		switch {
		case err != nil && p.q.Wait && away(err) && !p.unsure:
			if w := p.rest(); w != park.Ready {
				return p.end(w)
			}
			continue
		case err != nil:
			p.ticket.Return(awayPause)
			return err
		case p.over:
			return p.end(p.wake)
		case got != nil:
			return p.deliver(got)
		case looked && (p.q.Wait && time.Now().Before(p.deadline) || idle < maxIdleClaims):
			continue
		case !p.q.Wait && p.b.feed.away.Load():
			// Nothing is ready as far as this broker knows, and it knows that it is behind.
			return &wire.Error{Code: wire.DatabaseUnavailable, Outcome: wire.OutcomeNone}
		case !p.q.Wait:
			return p.end(park.Deadline)
		}
		if p.detach() {
			return nil
		}
		if w := p.ticket.Wait(p.deadline, p.gone()); w != park.Ready {
			return p.end(w)
		}
	}
}

// rest waits while the database is away, without asking it: the feed finds out when it is back.
func (p *popping) rest() park.Wake {
	p.ticket.Return(awayPause)
	for {
		w := p.ticket.Rest(awayPause, p.deadline, p.gone())
		if w != park.Deadline || !time.Now().Before(p.deadline) {
			return w
		}
		if !p.b.feed.away.Load() && !p.b.pinger.still.Load() {
			return park.Ready
		}
	}
}

// gone returns the channel that closes when the client hangs up. The look-out begins with the first wait: a pop that
// is answered at once pays nothing for it.
func (p *popping) gone() <-chan struct{} {
	if p.sentry != nil {
		p.sentry.Stop() // two cannot stand on one connection
		p.sentry = nil
	}
	if p.watch == nil {
		c, ok := httpkit.Holdback(p.x.ctx.Conn())
		if !ok {
			return nil
		}
		p.watch = c.Watch()
	}
	return p.watch.Gone()
}

// hungUp reports that the client of a pop that has waited is gone.
func (p *popping) hungUp() bool {
	if p.watch == nil {
		return p.vanished.Load()
	}
	select {
	case <-p.watch.Gone():
		return true
	default:
		return false
	}
}

// end answers a pop that got nothing.
func (p *popping) end(w park.Wake) error {
	switch w {
	case park.Full:
		return &wire.Error{Code: wire.BrokerOverloaded, Detail: "too many polls are waiting", RetryAfter: time.Second}
	case park.Gone:
		p.b.metrics.hangups.Inc()
		p.x.gone = true
		p.x.ctx.SetConnectionClose()
	}
	p.b.metrics.popped(0)
	if !p.q.Wait && p.b.names.exists(p.key.Tenant, p.key.Queue) {
		p.b.history.add(p.key.Tenant, p.key.Queue, store.Activity{PopEmpty: 1})
	}
	if p.q.Conflation {
		paused := !p.b.popsOpen()
		p.x.reply(200, func(dst []byte) []byte { return wire.AppendEmptyPop(dst, p.key.Group, p.conflict, paused) })
		return nil
	}
	httpkit.WriteNoContent(p.x.ctx)
	return nil
}

// claimed is a successful claim.
type claimed struct {
	queue    string // "" for a discovery pop
	worker   uuid.UUID
	lease    time.Duration   // the longest
	verdicts []store.Claimed // only those that took
	queues   []string        // of each verdict
}

// attempt claims once from what is ready. looked says that there was something to look at, although nothing may have
// come of it.
func (p *popping) attempt() (got *claimed, looked bool, err error) {
	if err := p.b.unanswered(); err != nil {
		return nil, false, err
	}
	if p.scope != nil {
		return p.discover()
	}
	b := p.b
	queue, err := b.queue(p.key.Tenant, p.key.Queue)
	if err != nil {
		return nil, false, err
	}
	if err := p.prepare(queue); err != nil {
		return nil, false, err
	}
	p.settleForm()
	if err := p.ticket.Lookup(p.findPartition); err != nil {
		return nil, false, err
	}
	ids := p.ticket.Take(p.width)
	if len(ids) == 0 {
		return nil, false, nil
	}
	if queue == nil {
		// Something was pushed to a queue that was not there when we looked, or that is not there any more.
		b.names.forget(p.key.Tenant, p.key.Queue)
		if queue, err = b.queue(p.key.Tenant, p.key.Queue); err == nil && queue == nil {
			p.ticket.Report(vanished(len(ids)))
		}
		return nil, true, err
	}
	if p.holds(queue) {
		switch w := p.hold(queue); w {
		case park.Ready, park.Deadline:
			ids = p.ticket.Take(p.width)
		default:
			p.over, p.wake = true, w
			return nil, false, nil
		}
	}
	return p.claim(ids, []string{queue.Name}, []store.Gate{p.gate(queue)})
}

func vanished(n int) []park.Outcome {
	out := make([]park.Outcome, n)
	for i := range out {
		out[i].Kind = park.Vanished
	}
	return out
}

// noQueue is the epoch of a ring whose queue does not exist; ids of queues are positive.
const noQueue = -1

// prepare makes the ring good for this incarnation of the queue: the group is registered, which seeds its cursors, and
// what is pending is read. Once per ring.
func (p *popping) prepare(queue *store.Queue) error {
	b, ring := p.b, p.ticket.Ring()
	epoch := int64(noQueue)
	if queue != nil {
		epoch = queue.ID
		ring.SetDelay(seconds(queue.Options.DelayedProcessing))
	}
	return ring.Prepare(epoch, func() ([]park.Pending, error) {
		ctx, cancel := b.database()
		defer cancel()
		conflates, err := b.db.Register(ctx, p.key.Tenant, p.key.Group, p.key.Queue, p.seed())
		if err != nil {
			return nil, err
		}
		ring.SetConflating(conflates)
		if queue == nil {
			return nil, nil
		}
		found, err := b.db.Pending(ctx, queue.ID, p.key.Group, seconds(queue.Options.DelayedProcessing))
		if err != nil {
			return nil, err
		}
		out := make([]park.Pending, len(found))
		for i := range found {
			out[i] = b.pending(&found[i])
		}
		return out, nil
	})
}

func (b *Broker) pending(p *store.Pending) park.Pending {
	return park.Pending{
		Partition: p.PartitionID, Last: p.LastOffset, Committed: p.Committed,
		LeasedUntil: b.clock.local(p.LeasedUntil), VisibleAt: b.clock.local(p.VisibleAt),
	}
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// seed says where the group starts on a partition it has no cursor for: at the beginning in queue mode, else as the
// query or the configuration says. A time that cannot be read means now.
func (p *popping) seed() store.Seed {
	s := p.start()
	s.Conflation = p.q.Conflation
	return s
}

func (p *popping) start() store.Seed {
	if p.q.Group == wire.QueueModeGroup {
		return store.Seed{Mode: wire.SeedAll}
	}
	if from := p.q.SubscriptionFrom; from != "" {
		if at, err := time.Parse(time.RFC3339Nano, from); err == nil {
			return store.Seed{Mode: wire.SeedTimestamp, From: at}
		}
		return store.Seed{Mode: wire.SeedNew}
	}
	mode := p.q.SubscriptionMode
	if mode == "" {
		mode = p.b.cfg.SubscriptionMode
	}
	if mode == "new" || mode == "new-only" {
		return store.Seed{Mode: wire.SeedNew}
	}
	return store.Seed{Mode: wire.SeedAll}
}

// findPartition looks up the partition of a pinned pop; 0 when there is none.
func (p *popping) findPartition() (int64, error) {
	name := p.x.params[1]
	if known, ok := p.b.names.partition(p.key.Tenant, p.key.Queue, name); ok {
		return known.ID, nil
	}
	version := p.b.names.version.Load()
	ctx, cancel := p.b.database()
	defer cancel()
	found, err := p.b.db.Lookup(ctx, p.key.Tenant, []store.Pair{{Queue: p.key.Queue, Partition: name}})
	if err != nil {
		return 0, err
	}
	p.b.names.learn(version, found)
	return found[0].ID, nil
}

// holds reports that minPopWaitTime applies: the queue form of a waiting pop for more than one message.
func (p *popping) holds(queue *store.Queue) bool {
	return queue.Options.MinPopWaitTime > 0 && p.q.Wait && !p.pinned && p.budget > 1
}

func (p *popping) hold(queue *store.Queue) park.Wake {
	if p.holdUntil.IsZero() {
		p.holdUntil = time.Now().Add(time.Duration(queue.Options.MinPopWaitTime) * time.Millisecond)
		if p.deadline.Before(p.holdUntil) {
			p.holdUntil = p.deadline
		}
	}
	begin := time.Now()
	w := p.ticket.Hold(p.budget, p.width, p.holdUntil, p.gone())
	p.b.metrics.held(time.Since(begin))
	return w
}

// gate returns what the queue asks of a claim; nil is a queue that does not exist any more.
func (p *popping) gate(queue *store.Queue) store.Gate {
	g := store.Gate{Of: store.Origin{Queue: noQueue}, Lease: defaultLease}
	if queue != nil {
		g.Of = store.Origin{Queue: queue.ID, Life: queue.Life}
		g.Delay, g.Window = seconds(queue.Options.DelayedProcessing), seconds(queue.Options.WindowBuffer)
		if queue.Options.LeaseTime > 0 {
			g.Lease = seconds(queue.Options.LeaseTime)
		}
	}
	if p.q.LeaseSeconds > 0 {
		g.Lease = seconds(p.q.LeaseSeconds)
	}
	return g
}

// claim asks for the partitions in hand. queues and gates say where each belongs and what holds there, or have one
// element for all.
func (p *popping) claim(ids []int64, queues []string, gates []store.Gate) (*claimed, bool, error) {
	got := &claimed{worker: p.share().Stamp(httpkit.NewUUID()), lease: gates[0].Lease}
	c := store.Claim{
		Candidates: ids, Of: gates[0].Of, Group: p.key.Group, Worker: got.worker, Lease: gates[0].Lease, Delay: gates[0].Delay, Window: gates[0].Window, WindowFull: p.b.cfg.WindowFull,
		Budget: p.budget, Bytes: maxPopBytes, MaxPartitions: p.partitions, AutoAck: p.q.AutoAck, Conflate: p.conflate,
	}
	if p.scope == nil {
		got.queue = queues[0]
	} else {
		c.Gates = gates
	}
	call := p.b.claims.doFor(p.x.span, p.key.Tenant, c)[0]
	if call.err != nil {
		p.unsure = p.q.AutoAck && wire.AsError(call.err).Outcome == wire.OutcomeUnknown
		return nil, true, call.err
	}
	p.report(queues, gates, call.out)
	for i, v := range call.out {
		if v.Status == store.ClaimTook {
			at := min(i, len(gates)-1)
			got.verdicts, got.queues = append(got.verdicts, v), append(got.queues, queues[at])
			got.lease = max(got.lease, gates[at].Lease)
		}
	}
	if len(got.verdicts) == 0 {
		return nil, true, nil
	}
	p.ticket.Ring().Took(len(got.verdicts), int(count(got.verdicts)))
	return got, true, nil
}

// share is what the ids of the pop's leases carry: it leads gateways back to this broker, which remembers them.
func (p *popping) share() wire.Share {
	if p.scope != nil {
		return wire.ScopeShare(p.q.Namespace, p.q.Task)
	}
	return wire.QueueShare(p.key.Queue)
}

// report tells the ring what the claim found.
func (p *popping) report(queues []string, gates []store.Gate, verdicts []store.Claimed) {
	clock := &p.b.clock
	now := time.Now()
	out := make([]park.Outcome, len(verdicts))
	unregistered := false
	for i := range verdicts {
		v, o := &verdicts[i], &out[i]
		o.Last, o.Through = v.LastOffset, v.Through
		switch v.Status {
		case store.ClaimTook:
			o.Kind = park.Acked
			if !v.Expires.IsZero() {
				clock.learn(v.Expires.Add(-gates[min(i, len(gates)-1)].Lease), now)
				o.Kind, o.Until = park.Leased, clock.local(v.Expires)
			}
		case store.ClaimEmpty:
			o.Kind, o.Until, o.Through = park.Empty, clock.local(v.VisibleAt), v.After
			if gates[min(i, len(gates)-1)].Window > 0 {
				o.Full = int64(p.b.cfg.WindowFull)
			}
		case store.ClaimLeased:
			o.Kind, o.Until = park.Foreign, clock.local(v.Until)
		case store.ClaimMissing:
			o.Kind = park.Vanished
			p.b.names.forget(p.key.Tenant, queues[min(i, len(queues)-1)])
			if p.pinned {
				p.ticket.Unpin()
			}
		case store.ClaimStale: // it is looked up again, and then its ring's partitions are worth what the database says
			p.b.names.forget(p.key.Tenant, queues[min(i, len(queues)-1)])
			o.Kind = park.Skipped
		case store.ClaimUnregistered:
			unregistered = true
		default:
			o.Kind = park.Skipped
		}
	}
	p.ticket.Report(out)
	if unregistered {
		// The group was deleted while this pop was under way, here or by another broker: start over.
		p.b.park.ResetGroup(p.key)
	}
}
