package broker

import (
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/wire"
)

// The head wall: with JWT on, a request is refused for its credential before a byte of its body is read.
//
// fasthttp reads a body before it calls a handler, unless the request expects to be told to go on. So headerReceived
// judges the head of a request that declares a body, and marks it as expecting if it will be refused; expect then
// refuses it, with the whole answer, and the connection ends. A request that is let in takes no detour.

// expectation is the header value that marks a request.
const expectation = "100-continue"

// headerReceived runs before fasthttp looks at the body.
func (b *Broker) headerReceived(h *fasthttp.RequestHeader) (none fasthttp.RequestConfig) {
	if n := h.ContentLength(); n == 0 || n < -1 {
		return none // no body
	}
	letIn := false
	defer func() {
		// No barrier stands around this call. A panic comes again in expect, where one logs it.
		if recover() != nil || !letIn {
			h.Set(fasthttp.HeaderExpect, expectation)
			h.SetProtocol("HTTP/1.1") // the expectation of an older one is not heeded; the refusal ends the connection anyway
		}
	}()
	u := fasthttp.AcquireURI()
	defer fasthttp.ReleaseURI(u)
	if u.Parse(h.Host(), h.RequestURI()) != nil {
		letIn = true // as far as the malformed target, which fasthttp answers by itself
		return none
	}
	_, denied := b.judge(h, u.PathOriginal(), time.Now())
	letIn = denied == nil
	return none
}

// judge returns the route of a request, nil for none, and the verdict that refuses its credential.
func (b *Broker) judge(h *fasthttp.RequestHeader, path []byte, now time.Time) (r *wire.Route, denied error) {
	r, _, _ = wire.Match(string(h.Method()), path) // what is not there is told by dispatch, if at all
	_, denied = b.verifier.identify(h, path, r, now)
	return r, denied
}

// expect is asked about a request whose body has not been read: because headerReceived marked it, or because its client
// wants to hear first. It answers a refusal, or has the body read.
func (b *Broker) expect(ctx *fasthttp.RequestCtx) (status int) {
	b.headWall(ctx)
	if status = ctx.Response.StatusCode(); status != fasthttp.StatusOK {
		return status
	}
	return fasthttp.StatusContinue
}

// refuseOnHead answers a request that is refused for its credential, and does nothing to any other.
func (b *Broker) refuseOnHead(ctx *fasthttp.RequestCtx) {
	x := newExchange(ctx)
	var denied error
	if x.route, denied = b.judge(&ctx.Request.Header, ctx.URI().PathOriginal(), x.begin); denied == nil {
		return
	}
	e := *wire.AsError(denied)
	e.Close = true // the body may be on its way
	httpkit.WriteError(ctx, &e, x.requestID)
	b.conclude(x, &e)
}
