package proxy

import (
	"sync"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/wire"
)

// openAPIDocument describes the routes that clients can reach through a gateway. It is built once: it depends on the
// program alone.
var openAPIDocument = sync.OnceValue(func() []byte {
	return wire.OpenAPI(wire.OpenAPIInfo{
		Title: "Queengate", Version: "1", Gateway: true, Serves: func(r *wire.Route) bool { return r.Class != wire.ClassBlocked },
	})
})

// answersItself reports whether the gateway answers a route from what it is, to anybody: nothing about a cluster is in
// the answer, so no credential is asked for and no plan is charged.
func answersItself(r *wire.Route) bool { return r.Op == wire.OpOpenAPI }

// openAPI answers with the document.
func (g *Gateway) openAPI(ctx *fasthttp.RequestCtx, c *clientConn) {
	httpkit.SetRequestID(&ctx.Response.Header, c.ex.id)
	doc := openAPIDocument()
	httpkit.WriteJSON(ctx, fasthttp.StatusOK, doc)
	g.finish(&c.ex, fasthttp.StatusOK, "", "", len(doc))
}
