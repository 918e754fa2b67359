package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// judge decides everything that can be decided on a request's head, in the order of the package comment, and leaves
// the verdict in the exchange.
func (g *Gateway) judge(ctx *fasthttp.RequestCtx, c *clientConn) {
	now := time.Now()
	c.ex = exchange{judged: true, start: now, id: httpkit.RequestIDAt(now)}
	c.ex.refusal = g.judgeHead(&ctx.Request.Header, c)
}

func (g *Gateway) judgeHead(rh *fasthttp.RequestHeader, c *clientConn) *wire.Error {
	ex := &c.ex
	var e *wire.Error
	if ex.head, e = g.headWalls.scanHead(rh.RawHeaders(), rh.IsHTTP11()); e != nil {
		return e
	}
	e = g.classify(rh, ex)
	if g.tracer != nil {
		ex.span = g.tracer.Serve(ex.route.Name(), ex.start, ex.head.traceparent, false)
	}
	if e != nil {
		return e
	}
	if answersItself(ex.route) {
		return nil
	}
	snap, e := g.recognise(c, ex)
	if e != nil {
		return e
	}
	cluster, e := g.resolve(ex, snap)
	if e != nil {
		return e
	}
	ex.cluster = cluster
	if e = g.enter(c, cluster); e != nil {
		return e
	}
	if e = entitle(snap, &ex.principal, cluster, ex.route); e != nil {
		return e
	}
	if ex.report, e = g.gate.AskHead(cluster, ex.principal.Key, ex.route.Cost, ex.start); e != nil {
		endAdmission(ex.span.Child(spanAdmission, tracing.Internal), &ex.report, e)
		return e
	}
	return g.judgeBody(rh, ex)
}

// entitle decides whether the cluster's state, the features of its plan and the principal's rights on it allow a route.
func entitle(snap *plans.Snapshot, p *auth.Principal, cluster *plans.Cluster, route *wire.Route) *wire.Error {
	if e := quota.AskLife(cluster.Status, route.Flow()); e != nil {
		return e
	}
	if f := route.Gate(); f != "" && !cluster.Features[string(f)] {
		return wire.Errorf(wire.FeatureGated, "the plan does not include %s", f)
	}
	return wire.AsError(auth.Allow(snap, p, cluster, route.Class))
}

// enter counts the connection for the first cluster served on it, and finds the cluster's load.
func (g *Gateway) enter(c *clientConn, cluster *plans.Cluster) *wire.Error {
	ex := &c.ex
	if c.load != nil && c.load.id == cluster.ID {
		ex.load = c.load
	} else {
		ex.load = g.loads.of(cluster.ID)
	}
	ex.load.touch(ex.start)
	if c.load == nil {
		c.load = ex.load
		if n := ex.load.conns.Add(1); g.cfg.MaxClusterConns >= 0 && n > int64(g.cfg.MaxClusterConns) {
			return overloaded("the cluster has too many clients on this gateway")
		}
	}
	return nil
}

// judgeBody refuses a body by what its head announces.
func (g *Gateway) judgeBody(rh *fasthttp.RequestHeader, ex *exchange) *wire.Error {
	if !ex.head.framed {
		return nil
	}
	size := int64(rh.ContentLength()) // negative: chunked
	if limit := g.bodyLimit(ex.route, ex.cluster); size > limit.bytes || limit.blocks() {
		return g.refuseBody(ex, limit, max(size, 0))
	}
	return nil
}

// admit asks the plan for the whole request at once. What may create first makes the counts of the cluster known;
// a refusal because of a count is looked at once more with fresh names, since other gateways delete too, and one because of
// an estimate of retained bytes with a fresh measure.
func (g *Gateway) admit(ex *exchange, ask *quota.Ask) (*quota.Admission, quota.Report, *wire.Error) {
	ctx := context.Background() // the gate bounds its listings itself
	span := ex.span.Child(spanAdmission, tracing.Internal)
	counts := len(ask.Pairs) > 0
	if counts {
		if err := g.gate.EnsureSeeded(ctx, ex.cluster); err != nil {
			g.log.Debug("counts are not known", "cluster", ex.cluster.Slug, "err", err)
		}
	}
	a, report, e := g.gate.Admit(ex.cluster, ask, time.Now())
	if counts && e != nil && e.Limit != nil && (e.Limit.Name == plans.LimitQueues || e.Limit.Name == plans.LimitPartitions) &&
		e.Limit.Limit > 0 && g.gate.Recount(ctx, ex.cluster) {
		a, report, e = g.gate.Admit(ex.cluster, ask, time.Now())
	}
	if e != nil && e.Code == wire.StorageQuotaExceeded && e.Limit.Limit > 0 && g.gate.Remeasure(ctx, ex.cluster) {
		a, report, e = g.gate.Admit(ex.cluster, ask, time.Now())
	}
	endAdmission(span, &report, e)
	return a, report, e
}

// measure scans the body once and returns what the request asks of the plan. What cannot be scanned is InvalidRequest:
// nothing unparsed is forwarded. The body of an extension may be absent or malformed, and then says nothing.
func measure(ex *exchange, body []byte) (quota.Ask, *wire.Error) {
	ask := quota.Ask{Cost: ex.route.Cost, Key: ex.principal.Key}
	ex.aimByHead()
	switch ex.route.Op {
	case wire.OpPush:
		if err := measurePush(ex, &ask, body); err != nil {
			return ask, wire.AsError(err)
		}
	case wire.OpTransaction:
		var e *wire.Error
		if ask, e = measureTransaction(ex, body); e != nil {
			return ask, e
		}
	case wire.OpConfigure:
		r, err := wire.ScanConfigure(body)
		if err != nil {
			return ask, wire.AsError(err)
		}
		ex.aimAtQueue(r.Queue)
		ask.Pairs, ask.Retention = []quota.Pair{{Queue: r.Queue}}, r.Retention()
	case wire.OpRetryMessage, wire.OpReplayDeadLetter:
		to, err := wire.ScanReplay(body)
		if err != nil {
			return ask, wire.AsError(err)
		}
		askReturn(&ask, to)
	case wire.OpRedrive:
		r, err := wire.ScanRedrive(body)
		if err != nil {
			return ask, wire.AsError(err)
		}
		if r.DryRun {
			ask.Cost = wire.CostRequest // it only counts
			break
		}
		askReturn(&ask, r.Destination)
	case wire.OpFetch:
		r, err := wire.ScanFetch(body)
		if err != nil {
			return ask, wire.AsError(err)
		}
		if len(r.Entries) > 0 {
			ex.aimAtQueue(r.Entries[0].Queue)
		}
		if r.Waits() {
			ex.hold = r.MaxWait
		}
		ask.Cost = wire.CostDelivery // what it reads is debited like what a pop delivers; it takes no slot
	case wire.OpPop, wire.OpPopPartition, wire.OpPopDiscover:
		if ex.pop.Wait {
			ask.Wait, ask.Deadline = true, ex.start.Add(ex.pop.Timeout)
		}
	default:
		if check := checks[ex.route.Op]; check != nil {
			if err := check(ex, body); err != nil {
				return ask, wire.AsError(err)
			}
		}
	}
	return ask, nil
}

// pushMeter counts the messages of a push while they are scanned. Meters are used again: a function of its own for each
// request would be a large part of what the scan of a small one costs.
type pushMeter struct {
	ex    *exchange
	ask   quota.Ask
	pairs pairSet
	each  func(int, wire.PushItem) error // take, bound once
}

var pushMeters = sync.Pool{New: func() any {
	m := new(pushMeter)
	m.each = m.take
	return m
}}

func (m *pushMeter) take(i int, item wire.PushItem) error {
	if i == 0 {
		m.ex.aimAtQueue(item.Queue)
	}
	count(&m.ask, &m.pairs, i, &item)
	return nil
}

// measurePush adds the messages of a push to what its request asks.
func measurePush(ex *exchange, ask *quota.Ask, body []byte) error {
	m := pushMeters.Get().(*pushMeter)
	m.ex, m.ask = ex, *ask
	err := wire.ScanPush(body, m.each)
	m.ask.Pairs = m.pairs.list
	*ask = m.ask
	*m = pushMeter{each: m.each}
	pushMeters.Put(m)
	return err
}

// askReturn adds a message that returns to the log: at least one does, and where it goes may have to be made. How large
// it is the brokers know, and tell with the next measure.
func askReturn(ask *quota.Ask, to wire.Destination) {
	ask.Messages = 1
	if to != (wire.Destination{}) {
		ask.Pairs = []quota.Pair{{Queue: to.Queue, Partition: to.Partition}}
	}
}

// count adds a pushed message to what a request asks.
func count(ask *quota.Ask, pairs *pairSet, i int, item *wire.PushItem) {
	n := int64(len(item.Payload))
	ask.Messages++
	ask.PayloadBytes += n
	if n > ask.LargestItem {
		ask.LargestItem, ask.LargestIndex = n, i
	}
	pairs.add(quota.Pair{Queue: item.Queue, Partition: item.Partition})
}

// pairSet collects distinct pairs: pushes name one or a few partitions, in runs.
type pairSet struct {
	list []quota.Pair
	seen map[quota.Pair]struct{} // once list is long
}

const longPairList = 16

func (s *pairSet) add(p quota.Pair) {
	if n := len(s.list); n > 0 && s.list[n-1] == p {
		return
	}
	if s.seen == nil && len(s.list) < longPairList {
		for _, q := range s.list {
			if q == p {
				return
			}
		}
		s.list = append(s.list, p)
		return
	}
	if s.seen == nil {
		s.seen = make(map[quota.Pair]struct{}, 4*longPairList)
		for _, q := range s.list {
			s.seen[q] = struct{}{}
		}
	}
	if _, ok := s.seen[p]; !ok {
		s.seen[p] = struct{}{}
		s.list = append(s.list, p)
	}
}
