package proxy

import (
	"bytes"
	"errors"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// unavailableRetry is what a client is told while no broker can take its request: probes run four times a second.
const unavailableRetry = time.Second

// smallBody is the size up to which a body is copied behind its head: it costs less than to tell the system of two
// pieces.
const smallBody = 4 << 10

// heads pools the buffers in which request heads are built, with small bodies behind them.
var heads = sync.Pool{New: func() any { return new([]byte) }}

// attempt sends the exchange's request to one broker.
func (g *Gateway) attempt(ex *exchange, tok *cellToken, b *broker, k *call, body []byte, wait time.Duration, deadline time.Time) (*answer, bool, error) {
	buf := heads.Get().(*[]byte)
	*buf = appendHead((*buf)[:0], ex, tok, b.address, wait, len(body))
	if len(body) <= smallBody {
		*buf, body = append(*buf, body...), nil
	}
	begin := time.Now()
	a, wrote, err := g.dialer.do(b, k, *buf, body, deadline)
	heads.Put(buf)
	if err != nil {
		if !wrote && unreachable(err) {
			b.failed()
		}
		return nil, wrote, err
	}
	b.answered(a.status())
	if wait == 0 {
		g.metrics.upstreamTime.observe(ex.route, time.Since(begin))
	}
	return a, wrote, nil
}

// unreachable reports whether a failed attempt speaks against the broker, and not against this gateway (too many open
// files, no free port) or its client.
func unreachable(err error) bool {
	return isTimeout(err) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// route finds what every forward needs; its failures are ours, and nothing was sent.
func (g *Gateway) route(ex *exchange) (*pool, *cellToken, *wire.Error) {
	p, err := g.pools.of(g.book.Snapshot(), ex.cluster.Cell)
	if err != nil {
		return nil, nil, wire.Wrap(wire.BrokerUnavailable, err)
	}
	tok, err := g.tokens.of(ex.cluster, ex.route.Access, ex.subject, ex.start)
	if err != nil {
		return nil, nil, wire.Wrap(wire.Internal, err)
	}
	return p, tok, nil
}

// forward sends anything but a waiting poll and answers what came of it. A second attempt is made when no byte of the
// first was sent; reads also get one when no byte of the answer came. A pop that does not wait says so when no broker
// can be reached: an empty answer would tell a job that drains a queue that it has finished.
func (g *Gateway) forward(ctx *fasthttp.RequestCtx, c *clientConn, body []byte, ask *quota.Ask) {
	ex := &c.ex
	reached := false // a broker, by a read
	fail := func(e *wire.Error) {
		if reached {
			g.settle(ex, quota.Outcome{})
		}
		g.refund(ex) // nothing, when it is settled
		g.refuse(ctx, c, e)
	}
	p, tok, e := g.route(ex)
	if e != nil {
		fail(e)
		return
	}
	n := needReady
	if ex.route.Op == wire.OpPush {
		n = needLive
	}
	read := ex.route.Method == fasthttp.MethodGet && ex.route.Cost != wire.CostDelivery ||
		ex.route.Op == wire.OpFetch || ex.route.Op == wire.OpPartitionsChanged
	deadline := time.Now().Add(g.cfg.UpstreamTime)
	var k *call
	if ex.hold > 0 {
		end := time.Now().Add(ex.hold)
		deadline = end.Add(max(g.cfg.UpstreamTime, g.cfg.LongPollGrace))
		parked := g.park(c, end)
		defer g.unpark(parked)
		k = parked.call
		g.metrics.parked.Inc()
		defer g.metrics.parked.Dec()
		defer c.watch(func() { k.cancel(errClientGone) })()
	}
	var tried *broker
	var cause error
	for range 2 {
		b := p.pick(ex.cluster.BrokerTenant, n, tried)
		switch {
		case b == nil && tried != nil && tried.able(n):
			b = tried // it lost a connection, no more
		case b == nil && tried == nil && n == needLive:
			b = p.owner(ex.cluster.BrokerTenant) // the probes may lag behind a broker that has just come back
		}
		if b == nil {
			break
		}
		a, wrote, err := g.attempt(ex, tok, b, k, body, ex.hold, deadline)
		if err == nil {
			g.conclude(ctx, c, a, ask)
			return
		}
		if k != nil && k.gave() != nil {
			g.giveUp(ctx, c, k)
			return
		}
		if wrote && !read {
			g.lost(ctx, c, err, ask)
			return
		}
		g.metrics.upstreamErrors.WithLabelValues(faultKind(wrote, err)).Inc()
		tried, cause, reached = b, err, reached || wrote
	}
	switch {
	case cause == nil:
		fail(&wire.Error{Code: wire.BrokerUnavailable, RetryAfter: unavailableRetry})
	case isTimeout(cause):
		fail(wire.Wrap(wire.UpstreamTimeout, cause))
	default:
		fail(wire.Wrap(wire.BadGateway, cause))
	}
}

// giveUp ends a held request whose client has gone, that would be refused now, or that a draining gateway cannot wait
// for.
func (g *Gateway) giveUp(ctx *fasthttp.RequestCtx, c *clientConn, k *call) {
	ex := &c.ex
	g.settle(ex, quota.Outcome{})
	if verdict, ok := errors.AsType[*wire.Error](k.gave()); ok {
		ex.report = quota.Report{} // of the request that was let in
		g.answerRefusal(ctx, c, verdict)
		return
	}
	ctx.SetConnectionClose()
	if k.gave() == errClientGone {
		g.metrics.hangUps.Inc()
		ctx.SetStatusCode(fasthttp.StatusNoContent) // there is nobody to read it
		g.finish(ex, statusGone, "", "", 0)
		return
	}
	g.refuse(ctx, c, &wire.Error{Code: wire.Draining, RetryAfter: unavailableRetry})
}

// lost answers for a request that was sent and brought no answer: what became of it is not known.
func (g *Gateway) lost(ctx *fasthttp.RequestCtx, c *clientConn, err error, ask *quota.Ask) {
	ex := &c.ex
	g.metrics.upstreamErrors.WithLabelValues(faultKind(true, err)).Inc()
	// It may have been stored: until the brokers are asked again, it counts as if it were.
	g.settle(ex, quota.Outcome{Stored: true, StoredBytes: ask.PayloadBytes})
	if ex.route.Cost == wire.CostDelivery {
		ex.cause = err
		g.degraded(ctx, c)
		return
	}
	e := wire.Wrap(wire.BadGateway, err)
	if isTimeout(err) {
		e = wire.Wrap(wire.UpstreamTimeout, err)
	}
	e.Outcome = wire.OutcomeUnknown
	g.refuse(ctx, c, e)
}

func faultKind(wrote bool, err error) string {
	switch {
	case !wrote:
		return faultConnect
	case isTimeout(err):
		return faultDeadline
	}
	return faultLost
}

// conclude settles a broker's answer and relays it.
func (g *Gateway) conclude(ctx *fasthttp.RequestCtx, c *clientConn, a *answer, ask *quota.Ask) {
	ex, status := &c.ex, a.status()
	switch {
	case status == fasthttp.StatusUnauthorized:
		// The broker refused what the gateway says about itself; the client's credential is not at fault.
		a.discard()
		g.refund(ex)
		g.refuse(ctx, c, wire.Wrap(wire.BadGateway, errors.New("the broker refused the gateway's token")))
		return
	case status >= 500 && a.saysNone():
		g.refund(ex)
	case status >= 500:
		g.settle(ex, quota.Outcome{Stored: true, StoredBytes: ask.PayloadBytes})
	case status >= 300:
		g.settle(ex, quota.Outcome{})
		if len(ask.Pairs) > 0 && (status == fasthttp.StatusForbidden || ask.Cost == wire.CostReplay) {
			g.gate.Resync(ex.cluster) // the broker counts other names than this gateway, or made a destination in vain
		}
	case ex.route.Op == wire.OpTransaction, ask.Cost == wire.CostReplay:
		g.concludeStored(ex, a, ask)
	default:
		g.settle(ex, quota.Outcome{Stored: true, StoredBytes: ask.PayloadBytes, Delivered: delivered(a)})
		switch ex.route.Op {
		case wire.OpDeleteQueue:
			g.gate.QueueDeleted(ex.cluster, ex.params[0])
		case wire.OpClearQueue:
			g.gate.Resync(ex.cluster) // partitions went
		}
	}
	g.relay(ctx, c, a)
}

// delivered reads how many first deliveries a broker states for a pop.
func delivered(a *answer) int {
	v := a.resp.Header.Peek(wire.HeaderDelivered)
	if len(v) == 0 {
		return 0
	}
	n, err := strconv.Atoi(string(v))
	if err != nil || n < 0 {
		return 0 // a broker of another version; nothing is charged that was not stated
	}
	return n
}

// outcomeNone is how a broker says in an error body that nothing happened.
var outcomeNone = []byte(`"outcome":"none"`)

// saysNone reports whether an error answer states that nothing was stored or moved. The body stays readable.
func (a *answer) saysNone() bool {
	size := a.size()
	if size <= 0 || size > upstreamReadBuffer/2 {
		return false
	}
	// The stream reads through the connection's buffer, so a look ahead there takes nothing from it. An error means
	// that the body has not come whole; reading it will say so again.
	b, err := a.conn.br.Peek(size)
	return err == nil && bytes.Contains(b, outcomeNone)
}

// degraded answers a pop for a broker that is slow or away: an empty answer, since published consumers end on a 5xx.
func (g *Gateway) degraded(ctx *fasthttp.RequestCtx, c *clientConn) {
	ctx.Response.Header.Set(headerDegraded, "upstream")
	g.noContent(ctx, c)
}

// noContent answers a pop without messages: 204, no body, no Content-Length, no Content-Type. A pop that asked for
// conflation gets its empty answer in full: its client stops when the word is not echoed.
func (g *Gateway) noContent(ctx *fasthttp.RequestCtx, c *clientConn) {
	h := &ctx.Response.Header
	httpkit.SetRequestID(h, c.ex.id)
	setLimitHeaders(h, &c.ex.report)
	if pop := &c.ex.pop; pop.Conflation {
		h.SetContentType(httpkit.ContentTypeJSON)
		ctx.Response.SetStatusCode(fasthttp.StatusOK)
		ctx.Response.SetBodyRaw(wire.AppendEmptyPop(nil, pop.Group, false, false))
		g.finish(&c.ex, fasthttp.StatusOK, "", "", len(ctx.Response.Body()))
		return
	}
	h.SetNoDefaultContentType(true)
	ctx.Response.ResetBody()
	ctx.Response.SetStatusCode(fasthttp.StatusNoContent)
	g.finish(&c.ex, fasthttp.StatusNoContent, "", "", 0)
}
