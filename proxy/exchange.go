package proxy

import (
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// exchange is what is known about the request a connection is serving. It lives in its clientConn and is overwritten by
// the next request.
type exchange struct {
	judged  bool
	start   time.Time
	id      string // request id
	head    head
	route   *wire.Route // nil when none matched
	params  wire.Params
	query   []byte // raw, of a route other than a pop
	pop     wire.PopQuery
	hold    time.Duration  // for how long a broker may hold the request, other than a pop; 0: not at all
	acks    bool           // of a transaction: it acknowledges
	place   place          // by the head alone
	share   wire.Share     // of a cluster that is spread over several brokers
	shared  bool           // share is known
	cluster *plans.Cluster // nil before the credential and the host are settled
	load    *clusterLoad
	subject string // of the principal
	span    tracing.Span

	principal auth.Principal
	report    quota.Report
	refusal   *wire.Error // what the head is refused with

	// admission is ended by exactly one of settle and refund; nil before and afterwards.
	admission *quota.Admission

	slotted bool // it holds a slot
	bytesIn int
	cause   error // behind a 5xx or a degraded answer, for the log
}

// pops reports whether the request is a pop.
func (ex *exchange) pops() bool { return ex.route != nil && ex.route.Cost == wire.CostDelivery }

// waits reports whether the request is a long poll.
func (ex *exchange) waits() bool { return ex.pops() && ex.pop.Wait }

// settle ends the admission of a request that reached a broker, or may have.
func (g *Gateway) settle(ex *exchange, o quota.Outcome) {
	if a := ex.admission; a != nil {
		ex.admission = nil
		g.gate.Settle(a, o, time.Now())
	}
}

// refund ends the admission of a request that certainly took no effect.
func (g *Gateway) refund(ex *exchange) {
	if a := ex.admission; a != nil {
		ex.admission = nil
		g.gate.Refund(a, time.Now())
	}
}

// finish counts and logs an exchange whose answer stands in the response. It is called once per request, when the
// answer is complete or, for a streamed one, when its last byte was passed on.
func (g *Gateway) finish(ex *exchange, status int, code wire.Code, limit string, bytesOut int) {
	now := time.Now()
	g.metrics.observe(ex.route, status, code, now.Sub(ex.start))
	a := httpkit.Access{
		RequestID: ex.id, Status: status, Code: string(code), Limit: limit, At: now, Duration: now.Sub(ex.start),
		BytesIn: ex.bytesIn, BytesOut: bytesOut, Principal: ex.subject, Err: ex.cause,
	}
	if ex.report.Shadowed {
		a.Shadow = ex.report.Name
	}
	if ex.route != nil {
		a.Method, a.Route = ex.route.Method, ex.route.Pattern
	}
	if ex.cluster != nil {
		a.Cluster, a.Tenant = ex.cluster.Slug, ex.cluster.Tenant
	}
	a.EndSpan(ex.span)
	a.Log(g.log)
}

// refuse answers e and finishes the exchange. A waiting poll is answered a little later.
func (g *Gateway) refuse(ctx *fasthttp.RequestCtx, c *clientConn, e *wire.Error) {
	ex := &c.ex
	if status := e.Code.Status(); ex.waits() && status >= 401 && status < 500 {
		begin := time.Now()
		g.holdRefusal(c)
		e = later(e, &ex.report, time.Since(begin))
	}
	g.answerRefusal(ctx, c, e)
}

// later returns a refusal as it is true after a while: what a limit promised for then is nearer by now.
func later(e *wire.Error, r *quota.Report, after time.Duration) *wire.Error {
	r.Reset = max(0, r.Reset-after)
	if e.Limit == nil {
		return e
	}
	l, moved := *e.Limit, *e
	moved.Limit = &l
	if l.ResetSeconds > 0 {
		l.ResetSeconds = max(0, l.ResetSeconds-after.Seconds())
	}
	if e.RetryAfter > 0 {
		moved.RetryAfter = max(time.Millisecond, e.RetryAfter-after)
	}
	return &moved
}

// answerRefusal answers e at once and finishes the exchange. Whatever limit e names stands in the headers too.
func (g *Gateway) answerRefusal(ctx *fasthttp.RequestCtx, c *clientConn, e *wire.Error) {
	ex := &c.ex
	status := e.Code.Status()
	if l := e.Limit; l != nil && ex.report.Name != l.Name {
		ex.report = quota.Report{
			Name: l.Name, Limit: l.Limit, Remaining: l.Limit - l.Used, Reset: time.Duration(l.ResetSeconds * float64(time.Second)),
		}
	}
	if e.Close {
		c.closeAfter()
	}
	if ex.cause == nil && status >= 500 {
		ex.cause = e.Unwrap()
	}
	setLimitHeaders(&ctx.Response.Header, &ex.report)
	ex.stateTrace(&ctx.Response.Header)
	httpkit.WriteError(ctx, e, ex.id)
	limit := ""
	if e.Limit != nil {
		limit = e.Limit.Name
	}
	if s := e.RetryAfterSeconds(); s > 0 {
		g.metrics.retryAfter.Observe(float64(s))
	}
	g.finish(ex, status, e.Code, limit, len(ctx.Response.Body()))
}

// closing returns e as an error whose answer ends the connection.
func closing(e *wire.Error) *wire.Error {
	if e.Close {
		return e
	}
	c := *e
	c.Close = true
	return &c
}

// holdRefusal delays the answer to a refused waiting poll: published clients poll again at once on every 4xx, as fast
// as they are refused (spec/sdk-contract.md 1.3). It holds no slot, ends when the client goes or the gateway drains,
// and the number of held polls is bounded: beyond it refusals are answered at once.
func (g *Gateway) holdRefusal(c *clientConn) {
	if g.cfg.RefusalHold <= 0 || g.heldRefusals.Add(1) > int64(g.cfg.MaxHeldRefusals) {
		if g.cfg.RefusalHold > 0 {
			g.heldRefusals.Add(-1)
		}
		return
	}
	defer g.heldRefusals.Add(-1)
	gone := make(chan struct{})
	stop := c.watch(func() { close(gone) })
	defer stop()
	pause := time.NewTimer(g.cfg.RefusalHold)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-gone:
	case <-g.draining:
	}
}
