package broker

import (
	"sync"

	"github.com/queengate/queengate/wire"
)

// openAPIDocument is built once: it depends on the program alone.
var openAPIDocument = sync.OnceValue(func() []byte {
	return wire.OpenAPI(wire.OpenAPIInfo{Title: "Queengate broker", Version: "1", Serves: func(*wire.Route) bool { return true }})
})

// openAPI answers with the description of the broker's own routes.
func (b *Broker) openAPI(x *exchange) error {
	x.reply(200, func(dst []byte) []byte { return append(dst, openAPIDocument()...) })
	return nil
}
