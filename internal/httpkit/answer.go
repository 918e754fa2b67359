package httpkit

import (
	"errors"
	"net"
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/wire"
)

// ContentTypeJSON is the content type of every body the product answers, except metrics and the dashboard.
const ContentTypeJSON = "application/json"

// WriteJSON answers body, which it takes over, with status.
func WriteJSON(ctx *fasthttp.RequestCtx, status int, body []byte) {
	ctx.Response.SetStatusCode(status)
	ctx.Response.Header.SetContentType(ContentTypeJSON)
	ctx.Response.SetBodyRaw(body)
}

// WriteNoContent answers 204: no body, no Content-Length, no Content-Type.
func WriteNoContent(ctx *fasthttp.RequestCtx) {
	ctx.Response.ResetBody()
	ctx.Response.Header.SetNoDefaultContentType(true)
	ctx.Response.SetStatusCode(fasthttp.StatusNoContent)
}

// WriteError renders e: status, JSON body, X-Queen-Request-Id, Retry-After, WWW-Authenticate and Allow where the code has them. With
// e.Close the connection ends after the answer, lingering so that the answer survives input that is still coming.
func WriteError(ctx *fasthttp.RequestCtx, e *wire.Error, requestID string) {
	h := &ctx.Response.Header
	h.Set(wire.HeaderRequestID, requestID)
	if s := e.RetryAfterSeconds(); s > 0 {
		h.Set(wire.HeaderRetryAfter, strconv.Itoa(s))
	}
	if e.Code.Status() == fasthttp.StatusUnauthorized {
		h.Set(fasthttp.HeaderWWWAuthenticate, "Bearer")
	}
	if e.Allow != "" {
		h.Set(fasthttp.HeaderAllow, e.Allow)
	}
	if e.Close {
		CloseAfter(ctx)
	}
	WriteJSON(ctx, e.Code.Status(), e.AppendJSON(make([]byte, 0, 256), requestID))
}

// CloseAfter ends the connection after this answer, lingering until the client has read it.
func CloseAfter(ctx *fasthttp.RequestCtx) {
	ctx.SetConnectionClose()
	if c, ok := Holdback(ctx.Conn()); ok {
		c.Linger()
	}
}

// HeadError turns the error with which fasthttp gave up on reading a request into a verdict. Its connection closes.
func HeadError(err error) *wire.Error {
	var small *fasthttp.ErrSmallBuffer
	var ne net.Error
	var e *wire.Error
	switch {
	case errors.As(err, &small):
		e = wire.Wrap(wire.HeadersTooLarge, err)
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		e = wire.Wrap(wire.PayloadTooLarge, err)
	case errors.As(err, &ne) && ne.Timeout():
		e = wire.Wrap(wire.SlowBody, err)
	default:
		e = wire.Wrap(wire.InvalidRequest, err)
	}
	e.Close = true
	return e
}
