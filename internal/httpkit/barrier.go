package httpkit

import (
	"log/slog"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/wire"
)

// Barrier returns a handler that runs next and turns a panic into a 500 with an unknown outcome, counted and logged
// with its stack. The answer carries the request id next had set on it (X-Queen-Request-Id), or a fresh one.
func Barrier(log *slog.Logger, panics prometheus.Counter, next fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			panics.Inc()
			id := string(ctx.Response.Header.Peek(wire.HeaderRequestID))
			if id == "" {
				id = NewRequestID()
			}
			log.Error("panic in a request", "request_id", id, "method", string(ctx.Method()), "panic", p, "stack", string(debug.Stack()))
			ctx.Response.Reset()
			WriteError(ctx, &wire.Error{Code: wire.Internal, Outcome: wire.OutcomeUnknown, Close: true}, id)
		}()
		next(ctx)
	}
}
