package broker

import (
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/wire"
)

const (
	// pollMargin is how long before the client's own limit a poll is answered: SDKs give up at exactly that limit.
	pollMargin = 250 * time.Millisecond
	// maxCandidates bounds the partitions one claim looks at.
	maxCandidates = 64
	// maxIdleClaims bounds the claims of one pop that does not wait: each of them found its partitions taken or empty.
	maxIdleClaims = 4
	// awayPause spaces the attempts of a poll while the database is away.
	awayPause = 500 * time.Millisecond
	// defaultLease is for a queue whose lease time is not set.
	defaultLease = 60 * time.Second
)

// pop claims messages of a queue, or of one partition: 200 with messages, or 204.
//
// Its ticket is taken before anything else, so that no push between a claim and a wait is missed. A waiting poll is
// held while the database is away and ends in 204; a poll whose client hangs up receives nothing.
func (b *Broker) pop(x *exchange) error {
	q, err := wire.ParsePopQuery(x.ctx.URI().QueryString())
	if err != nil {
		return err
	}
	p := popping{
		b: b, x: x, q: q,
		key:      park.Key{Tenant: x.who.tenant, Queue: x.params[0], Group: q.Group},
		budget:   min(max(q.Batch, 1), b.cfg.MaxPopMessages),
		deadline: x.begin.Add(q.Timeout - pollMargin),
	}
	p.width = min(p.budget, maxCandidates)
	if q.Partitions > 0 {
		p.width = min(p.width, q.Partitions)
	}
	var pin park.Pin
	if x.route.Op == wire.OpPopPartition {
		p.pinned, p.width = true, 1
		pin.Name = x.params[1]
	}
	p.ticket = b.park.Join(p.key, pin)
	defer p.close()
	return p.run()
}

// popping is one pop on its way.
type popping struct {
	b         *Broker
	x         *exchange
	q         wire.PopQuery
	key       park.Key
	pinned    bool
	budget    int // messages
	width     int // partitions
	deadline  time.Time
	holdUntil time.Time // end of minPopWaitTime, counted from the first partition in hand
	ticket    *park.Ticket
	watch     *httpkit.Watch // nil before the first wait
	over      bool           // ended while it held what it had
	wake      park.Wake      // how
}

func (p *popping) close() {
	p.ticket.Leave()
	if p.watch != nil {
		p.watch.Stop()
	}
}

func (p *popping) run() error {
	for idle := 1; ; idle++ {
		got, looked, err := p.attempt()
		switch {
		case err != nil && p.q.Wait && away(err):
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
		case !p.q.Wait:
			return p.end(park.Deadline)
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
		if !p.b.feed.away.Load() {
			return park.Ready
		}
	}
}

// gone returns the channel that closes when the client hangs up. The look-out begins with the first wait: a pop that
// is answered at once pays nothing for it.
func (p *popping) gone() <-chan struct{} {
	if p.watch == nil {
		c, ok := httpkit.Holdback(p.x.ctx.Conn())
		if !ok {
			return nil
		}
		p.watch = c.Watch()
	}
	return p.watch.Gone()
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
	httpkit.WriteNoContent(p.x.ctx)
	return nil
}

// claimed is a successful claim.
type claimed struct {
	queue    *store.Queue
	worker   uuid.UUID
	lease    time.Duration
	verdicts []store.Claimed // only those that took
}

// attempt claims once from what is ready. looked says that there was something to look at, although nothing may have
// come of it.
func (p *popping) attempt() (got *claimed, looked bool, err error) {
	b := p.b
	queue, err := b.queue(p.key.Tenant, p.key.Queue)
	if err != nil {
		return nil, false, err
	}
	if err := p.prepare(queue); err != nil {
		return nil, false, err
	}
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
	return p.claim(queue, ids)
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
		if err := b.db.Register(ctx, p.key.Tenant, p.key.Group, p.key.Queue, p.seed()); err != nil {
			return nil, err
		}
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
	return p.ticket.Hold(p.budget, p.width, p.holdUntil, p.gone())
}

func (p *popping) claim(queue *store.Queue, ids []int64) (*claimed, bool, error) {
	lease := defaultLease
	if queue.Options.LeaseTime > 0 {
		lease = seconds(queue.Options.LeaseTime)
	}
	if p.q.LeaseSeconds > 0 {
		lease = seconds(p.q.LeaseSeconds)
	}
	got := &claimed{queue: queue, worker: httpkit.NewUUID(), lease: lease}
	call := p.b.claims.do(store.Claim{
		Candidates: ids, QueueID: queue.ID, Group: p.key.Group, Worker: got.worker, Lease: lease,
		Delay: seconds(queue.Options.DelayedProcessing), Window: seconds(queue.Options.WindowBuffer),
		Budget: p.budget, MaxPartitions: p.q.Partitions, AutoAck: p.q.AutoAck,
	})[0]
	if call.err != nil {
		return nil, true, call.err
	}
	p.report(lease, call.out)
	for _, v := range call.out {
		if v.Status == store.ClaimTook {
			got.verdicts = append(got.verdicts, v)
		}
	}
	if len(got.verdicts) == 0 {
		return nil, true, nil
	}
	return got, true, nil
}

// report tells the ring what the claim found.
func (p *popping) report(lease time.Duration, verdicts []store.Claimed) {
	clock := &p.b.clock
	now := time.Now()
	out := make([]park.Outcome, len(verdicts))
	for i := range verdicts {
		v, o := &verdicts[i], &out[i]
		o.Last, o.Through = v.LastOffset, v.Through
		switch v.Status {
		case store.ClaimTook:
			o.Kind = park.Acked
			if !p.q.AutoAck {
				clock.learn(v.Expires.Add(-lease), now)
				o.Kind, o.Until = park.Leased, clock.local(v.Expires)
			}
		case store.ClaimEmpty:
			o.Kind, o.Until = park.Empty, clock.local(v.VisibleAt)
		case store.ClaimLeased:
			o.Kind, o.Until = park.Foreign, clock.local(v.Until)
		case store.ClaimMissing:
			o.Kind = park.Vanished
			p.b.names.forget(p.key.Tenant, p.key.Queue)
			if p.pinned {
				p.ticket.Unpin()
			}
		default:
			o.Kind = park.Skipped
		}
	}
	p.ticket.Report(out)
}

// deliver answers with what was claimed. If the client has gone meanwhile, the leases are released without a charge,
// so that nothing stays leased to nobody; under autoAck the messages are consumed, as the client chose.
func (p *popping) deliver(got *claimed) error {
	if p.watch != nil {
		select {
		case <-p.watch.Gone():
			if !p.q.AutoAck {
				p.release(got)
			}
			return p.end(park.Gone)
		default:
		}
	}
	answer, delivered, err := p.b.open(got, p.key, p.q.AutoAck)
	if err != nil {
		return err
	}
	if !p.q.AutoAck {
		p.b.leases.grant(got.worker, p.key, got.lease, delivered)
	}
	p.b.metrics.popped(len(answer.Messages))
	p.x.reply(200, func(dst []byte) []byte { return wire.AppendPopAnswer(dst, answer) })
	p.x.ctx.Response.Header.Set(wire.HeaderDelivered, strconv.Itoa(firstDeliveries(answer)))
	return nil
}

// firstDeliveries counts what a plan is charged for: a message that comes again is the service's trouble.
func firstDeliveries(a *wire.PopAnswer) (n int) {
	for i := range a.Messages {
		if a.Messages[i].DeliveryAttempt <= 1 {
			n++
		}
	}
	return n
}

// release ends the leases of a claim that nobody will work on. A failure costs the lease time and no message.
func (p *popping) release(got *claimed) {
	groups := make([]store.AckGroup, len(got.verdicts))
	for i := range got.verdicts {
		v := &got.verdicts[i]
		groups[i] = store.AckGroup{
			Tenant: p.key.Tenant, Partition: v.UID, Group: p.key.Group, Lease: got.worker.String(),
			Items: []store.AckItem{{Hash: p.b.firstHash(v), Status: wire.AckRetry, Offset: v.After + 1}},
		}
	}
	for _, c := range p.b.acks.do(groups...) {
		if c.err != nil {
			p.b.log.Warn("a lease could not be released", "request_id", p.x.requestID, "err", c.err)
			continue
		}
		p.b.settled(&c.in, &c.out)
	}
}

// firstHash returns the identity of the first message a claim delivered, zero when its segment cannot be read.
func (b *Broker) firstHash(v *store.Claimed) store.Hash {
	s := &v.Segments[0]
	r, err := segment.Open(s.Blob)
	if err != nil {
		return store.Hash{}
	}
	first := max(v.After+1, s.Base)
	if i := int(first - s.Base); i < r.Len() {
		return segment.HashID(r.Frame(i).TransactionID)
	}
	return store.Hash{}
}
