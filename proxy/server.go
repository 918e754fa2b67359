package proxy

import (
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// Values of the Expect header as the server leaves it. They differ in case, which fasthttp ignores, and tell who asked
// for the interim answer.
const (
	expectedByClient = "100-continue"
	expectedByUs     = "100-Continue"
)

// answerBuffer is what a TLS record holds: an answer that fits, head and body, is one record and one system call. With the
// 4 KiB that fasthttp takes by itself every longer answer is two, of which the first wakes a client that can do nothing
// with it yet.
const answerBuffer = 16 << 10

// newServer returns the fasthttp server behind every listener. Its gaps are closed like this:
//
//   - A request is judged on its head. headerReceived marks every declared body as expected, so fasthttp asks expect
//     before it reads a byte of it; the connection swallows the interim answer nobody asked for.
//   - ReduceMemoryUsage makes fasthttp flush every answer at once, which the swallowing relies on, and keeps write
//     buffers out of parked connections.
//   - StreamRequestBody lets the handler read a body under caps, budget and pace; the first 8 KiB are read by fasthttp
//     under the deadline that headerReceived sets.
//   - What it lets pass on framing is refused by scanHead, and what it refuses itself goes through unreadable.
func (g *Gateway) newServer() *fasthttp.Server {
	return &fasthttp.Server{
		Handler:                      g.handle,
		ErrorHandler:                 g.unreadable,
		HeaderReceived:               g.headerReceived,
		ExpectHandler:                g.expect,
		Concurrency:                  g.cfg.MaxConns + 1, // the walls count; this must not come first
		ReadBufferSize:               g.cfg.MaxHeadBytes,
		WriteBufferSize:              answerBuffer,
		ReadTimeout:                  g.cfg.HeadTime,
		IdleTimeout:                  g.cfg.IdleTime,
		MaxRequestBodySize:           math.MaxInt,
		ReduceMemoryUsage:            true,
		StreamRequestBody:            true,
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		CloseOnShutdown:              true,
		SecureErrorLogMessage:        true,
		LazyRequestTime:              true,
		Logger:                       serverLog{g.log},
	}
}

// headerReceived runs before fasthttp looks at the body.
func (g *Gateway) headerReceived(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	if n := h.ContentLength(); n == 0 || n < -1 {
		return fasthttp.RequestConfig{}
	}
	if isName(h.Peek(fasthttp.HeaderExpect), expectedByClient) {
		h.Set(fasthttp.HeaderExpect, expectedByClient)
	} else {
		h.Set(fasthttp.HeaderExpect, expectedByUs)
	}
	return fasthttp.RequestConfig{ReadTimeout: g.cfg.BodyGrace + prefetched*time.Second/time.Duration(g.cfg.BodyPace)}
}

// expect judges a request whose body has not been read. A refusal goes out at once, complete, and ends the connection.
// Only a small body gets a moment to arrive first, unless the client waits for the interim answer: then the refusal
// comes from handle and the connection lives on; when the body does not come, it comes from unreadable.
func (g *Gateway) expect(ctx *fasthttp.RequestCtx) (status int) {
	c := clientOf(ctx)
	defer g.barrier(ctx, c, func() { status = fasthttp.StatusInternalServerError })
	g.judge(ctx, c)
	asked := string(ctx.Request.Header.Peek(fasthttp.HeaderExpect)) == expectedByClient
	if e := c.ex.refusal; e != nil {
		size := ctx.Request.Header.ContentLength()
		if asked || e.Close || size < 0 || size > maxIgnoredBody {
			c.closeAfter()
			g.refuse(ctx, c, closing(e))
			c.ex.judged = false
			return ctx.Response.StatusCode()
		}
		c.arrival = time.Now().Add(bodyArrival)
	}
	c.interim = !asked
	return fasthttp.StatusContinue
}

// handle serves a request whose head has been read, and the first bytes of its body, or a poll that was asleep.
func (g *Gateway) handle(ctx *fasthttp.RequestCtx) {
	c := clientOf(ctx)
	defer g.barrier(ctx, c, nil)
	if p, ok := httpkit.Resumed(ctx).(*poll); ok {
		p.resume(ctx)
		return
	}
	if !c.ex.judged {
		g.judge(ctx, c)
	}
	g.serve(ctx, c)
	c.ex.judged = false
}

func (g *Gateway) serve(ctx *fasthttp.RequestCtx, c *clientConn) {
	ex := &c.ex
	if e := ex.refusal; e != nil {
		if ex.head.framed && !e.Close && !drainBody(ctx.RequestBodyStream()) {
			e = closing(e)
		}
		c.arrival = time.Time{}
		g.refuse(ctx, c, e)
		return
	}
	if answersItself(ex.route) {
		g.openAPI(ctx, c)
		return
	}
	body, e := g.readBody(ctx, c)
	if e != nil {
		g.gate.BodyRefused(ex.cluster, time.Now())
		g.refuse(ctx, c, e)
		return
	}
	defer body.release()
	var text []byte
	if body != nil {
		text = body.b
	}
	ask, e := measure(ex, text)
	if usesBody(ex.route.Op) {
		ask.BodyBytes = int64(len(text))
	} else {
		text = nil
	}
	if e == nil {
		e = g.allowAcks(ex)
	}
	if e != nil {
		g.gate.BodyRefused(ex.cluster, time.Now())
		g.refuse(ctx, c, e)
		return
	}
	if ex.admission, ex.report, e = g.admit(ex, &ask); e != nil {
		g.refuse(ctx, c, e)
		return
	}
	// Whatever breaks from here on: the request may have had its effect.
	defer g.settle(ex, quota.Outcome{Stored: true, StoredBytes: ask.PayloadBytes})
	if ask.Wait {
		g.poll(ctx, c, &ask)
		return
	}
	g.forward(ctx, c, text, &ask)
}

// barrier ends a panic: it is counted and logged with its stack, and the client gets a 500 with an unknown outcome.
// It must be deferred.
func (g *Gateway) barrier(ctx *fasthttp.RequestCtx, c *clientConn, then func()) {
	p := recover()
	if p == nil {
		return
	}
	g.metrics.panics.Inc()
	g.log.Error("panic in a request", "request_id", c.ex.id, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	ctx.Response.Reset()
	c.closeAfter()
	g.refuse(ctx, c, &wire.Error{Code: wire.Internal, Outcome: wire.OutcomeUnknown, Close: true})
	c.ex.judged = false
	if then != nil {
		then()
	}
}

// unreadable answers what fasthttp could not read as a request, and refusals whose body did not arrive in time. The
// connection ends.
func (g *Gateway) unreadable(ctx *fasthttp.RequestCtx, err error) {
	c := clientOf(ctx)
	defer g.barrier(ctx, c, nil)
	if c.ex.judged && c.ex.refusal != nil {
		g.refuse(ctx, c, closing(c.ex.refusal))
		c.ex.judged = false
		return
	}
	e := httpkit.HeadError(err)
	if !c.ex.judged {
		c.ex = exchange{start: time.Now(), id: httpkit.NewRequestID()}
		if isTimeout(err) {
			e.Detail = "the request head arrives too slowly"
		}
	}
	if isTimeout(err) {
		e.Code = wire.SlowBody
	}
	if c.ex.cluster != nil {
		g.gate.BodyRefused(c.ex.cluster, time.Now())
	}
	c.closeAfter()
	g.refuse(ctx, c, e)
	c.ex.judged = false
}

// serverLog takes what fasthttp logs about connections.
type serverLog struct{ log *slog.Logger }

func (l serverLog) Printf(format string, args ...any) {
	l.log.Debug("http server", "text", fmt.Sprintf(format, args...))
}
