package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/proxy/auth"
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

// attempt sends the exchange's request to one broker and awaits its answer. One that waits there leaves its slot.
func (g *Gateway) attempt(ex *exchange, tok *cellToken, b *broker, k *call, body []byte, wait time.Duration, deadline time.Time) (*answer, progress, error) {
	begin := time.Now()
	f, err := g.depart(ex, tok, b, k, body, begin, wait, deadline)
	if err != nil {
		return nil, unsent, err
	}
	if wait > 0 {
		g.slots.leave(ex)
	}
	a, far, err := f.answer()
	if err == nil && wait == 0 {
		g.metrics.upstreamTime.observe(ex.route, a.came.Sub(begin))
	}
	return a, far, err
}

// depart sends the exchange's request to one broker. An error says that no byte was sent.
func (g *Gateway) depart(ex *exchange, tok *cellToken, b *broker, k *call, body []byte, now time.Time, wait time.Duration, deadline time.Time) (*flight, error) {
	span := ex.span.Child("upstream", tracing.Client)
	buf := heads.Get().(*[]byte)
	defer heads.Put(buf)
	*buf = appendHead((*buf)[:0], ex, tok, span, b.host, wait, len(body))
	if len(body) <= smallBody {
		*buf, body = append(*buf, body...), nil
	}
	f, err := g.dialer.send(&b.conns, b, k, *buf, body, now, deadline)
	switch {
	case err == nil:
		f.span = span
	case span.Sampled():
		endAttempt(span, b, nil, unsent, err)
	}
	if err != nil {
		b.fell(unsent, err)
	}
	return f, err
}

// answer is land for a request whose end tells something about its broker.
func (f *flight) answer() (*answer, progress, error) {
	a, far, err := f.land()
	if f.span.Sampled() {
		endAttempt(f.span, f.broker, a, far, err)
	}
	if err != nil {
		f.broker.fell(far, err)
	} else {
		f.broker.answered(a)
	}
	return a, far, err
}

// fell notes what a failed attempt says about the broker.
func (b *broker) fell(far progress, err error) {
	switch {
	case far == unsent && unreachable(err):
		b.failed()
	case far != unsent && cutOff(err):
		b.lost()
	}
}

// unreachable reports whether a failed attempt speaks against the broker, and not against this gateway (too many open
// files, no free port) or its client.
func unreachable(err error) bool {
	return isTimeout(err) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.ENOENT) // no socket
}

// unanswered is the error of a request that a broker has, or may have, and whose answer did not come for err.
func unanswered(err error) *wire.Error {
	if isTimeout(err) || err == errBrokerDead {
		return wire.Wrap(wire.UpstreamTimeout, err)
	}
	return wire.Wrap(wire.BadGateway, err)
}

// cutOff reports whether an attempt ended because the broker did: not by a deadline, and not by this gateway.
func cutOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// route finds what every forward needs; its failures are ours, and nothing was sent.
func (g *Gateway) route(ex *exchange) (*pool, *cellToken, *wire.Error) {
	snap := g.book.Snapshot()
	p, err := g.pools.of(snap, ex.cluster.Cell)
	if err != nil {
		return nil, nil, wire.Wrap(wire.BrokerUnavailable, err)
	}
	blind := !auth.SeesPayloads(snap, &ex.principal, ex.cluster)
	tok, err := g.tokens.of(ex.cluster, ex.route.Access, ex.subject, blind, ex.start)
	if err != nil {
		return nil, nil, wire.Wrap(wire.Internal, err)
	}
	return p, tok, nil
}

// maxOffers bounds the brokers that one request is offered to.
const maxOffers = 3

// forward sends anything but a waiting poll and answers what came of it. It goes to another broker when no byte of it
// was sent; a read goes to another one once, when no byte of an answer has come. A pop that its cell cannot serve ends
// in an empty answer that says so.
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
		if ex.pops() {
			g.degrade(ctx, c, e)
			return
		}
		fail(e)
		return
	}
	n := needReady
	if ex.route.Op == wire.OpPush {
		n = needLive
	}
	read := ex.route.Method == fasthttp.MethodGet && !ex.pops() ||
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
	var quit chan struct{}
	if k != nil {
		quit = k.done
	}
	if !g.slots.enter(ex, g.cfg.SlotWait, quit) {
		if k != nil && k.gave() != nil {
			g.giveUp(ctx, c, k)
			return
		}
		fail(errFull())
		return
	}
	defer g.slots.leave(ex)
	var not tried
	var cause error
	why := repeatUnsent
	for key := ex.home(); len(not) < maxOffers; {
		b := p.pick(key, n, not)
		switch {
		case b != nil:
		case len(not) == 1 && not[0].able(n):
			b = not[0] // it lost a connection, no more
		case len(not) == 0 && n == needLive:
			b = p.owner(key)
		}
		if b == nil {
			break
		}
		if len(not) > 0 {
			g.metrics.repeats.WithLabelValues(why).Inc()
		}
		a, far, err := g.attempt(ex, tok, b, k, body, ex.hold, deadline)
		if err == nil {
			g.conclude(ctx, c, a, ask)
			return
		}
		if k != nil && k.gave() != nil {
			g.giveUp(ctx, c, k)
			return
		}
		if far != unsent && !read {
			g.lost(ctx, c, err, ask)
			return
		}
		g.metrics.upstreamErrors.WithLabelValues(faultKind(far, err)).Inc()
		not, cause = append(not, b), err
		if far == partial || far == sent && reached {
			reached = true
			break
		}
		if why = repeatUnsent; far == sent {
			why, reached = repeatRead, true
		}
	}
	e = unanswered(cause)
	if !reached {
		e = wire.Wrap(wire.BrokerUnavailable, cause)
		e.RetryAfter = unavailableRetry
	}
	if ex.pops() {
		g.degrade(ctx, c, e)
		return
	}
	fail(e)
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
	g.metrics.upstreamErrors.WithLabelValues(faultKind(sent, err)).Inc()
	e := unanswered(err)
	if ex.pops() {
		g.degrade(ctx, c, e)
		return
	}
	// It may have been stored: until the brokers are asked again, it counts as if it were.
	g.settle(ex, quota.Outcome{Stored: true, StoredBytes: ask.PayloadBytes})
	e.Outcome = wire.OutcomeUnknown
	g.refuse(ctx, c, e)
}

func faultKind(far progress, err error) string {
	switch {
	case far == unsent:
		return faultConnect
	case isTimeout(err):
		return faultDeadline
	case err == errBrokerDead:
		return faultDead
	}
	return faultLost
}

// conclude settles a broker's answer and relays it.
func (g *Gateway) conclude(ctx *fasthttp.RequestCtx, c *clientConn, a *answer, ask *quota.Ask) {
	ex, status := &c.ex, a.status()
	switch {
	case a.failed() && ex.pops():
		g.degrade(ctx, c, a.failure())
		a.discard()
		return
	case status == fasthttp.StatusUnauthorized:
		e := a.failure()
		a.discard()
		g.refund(ex)
		g.refuse(ctx, c, e)
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

// peek returns the body of an error answer, which stays readable; nil when it is long or has not come whole.
func (a *answer) peek() []byte {
	size := a.size()
	if size <= 0 || size > upstreamReadBuffer/2 {
		return nil
	}
	// The stream reads through the connection's buffer, so a look ahead there takes nothing from it. An error means
	// that the body has not come whole; reading it will say so again.
	b, err := a.conn.br.Peek(size)
	if err != nil {
		return nil
	}
	return b
}

// saysNone reports whether an error answer states that nothing was stored or moved.
func (a *answer) saysNone() bool { return bytes.Contains(a.peek(), outcomeNone) }

// failed reports whether the answer says that the broker fails, and nothing about the request.
func (a *answer) failed() bool { return a.status() >= 500 || a.status() == fasthttp.StatusUnauthorized }

// failure is what an answer that failed says. A 401 refuses what the gateway says about itself: the client's credential
// is not at fault.
func (a *answer) failure() *wire.Error {
	if a.status() == fasthttp.StatusUnauthorized {
		return wire.Wrap(wire.BadGateway, errors.New("the broker refused the gateway's token"))
	}
	return wire.Wrap(codeOfAnswer(a.status(), a.peek()), fmt.Errorf("the broker answered %d", a.status()))
}

// degrade ends a pop that its cell cannot serve: in an empty answer, since published consumers end for good after a few
// 5xx. That it is no ordinary one stands in a header, in the log and in the counter of requests. It has used its
// request: a client that comes back at once is slowed down by its rate alone.
func (g *Gateway) degrade(ctx *fasthttp.RequestCtx, c *clientConn, e *wire.Error) {
	ex := &c.ex
	g.settle(ex, quota.Outcome{})
	ex.cause = e.Unwrap()
	ctx.Response.Header.Set(wire.HeaderDegraded, "upstream")
	g.noContent(ctx, c, e.Code)
}

// noContent answers a pop without messages: 204, no body, no Content-Length, no Content-Type. A pop that asked for
// conflation gets its empty answer in full: its client stops when the word is not echoed. The code is that of what the
// answer stands for, if for anything.
func (g *Gateway) noContent(ctx *fasthttp.RequestCtx, c *clientConn, code wire.Code) {
	h := &ctx.Response.Header
	httpkit.SetRequestID(h, c.ex.id)
	c.ex.stateTrace(h)
	setLimitHeaders(h, &c.ex.report)
	if pop := &c.ex.pop; pop.Conflation {
		h.SetContentType(httpkit.ContentTypeJSON)
		ctx.Response.SetStatusCode(fasthttp.StatusOK)
		ctx.Response.SetBodyRaw(wire.AppendEmptyPop(nil, pop.Group, false, false))
		g.finish(&c.ex, fasthttp.StatusOK, code, "", len(ctx.Response.Body()))
		return
	}
	h.SetNoDefaultContentType(true)
	ctx.Response.ResetBody()
	ctx.Response.SetStatusCode(fasthttp.StatusNoContent)
	g.finish(&c.ex, fasthttp.StatusNoContent, code, "", 0)
}
