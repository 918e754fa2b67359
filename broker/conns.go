package broker

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/httpkit"
)

// conns are the connections a server reads requests from, so that a drain can end those on which none arrives. Parked
// polls are not among them: they have been detached.
type conns struct {
	mu   sync.Mutex // guards open
	open map[*httpkit.HoldbackConn]struct{}
}

func newConns() *conns { return &conns{open: map[*httpkit.HoldbackConn]struct{}{}} }

// note is the ConnState of a fasthttp.Server.
func (s *conns) note(c net.Conn, state fasthttp.ConnState) {
	if state == fasthttp.StateActive || state == fasthttp.StateIdle {
		return // with every request, and nothing that matters here
	}
	h, ok := httpkit.Holdback(c)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if state == fasthttp.StateNew {
		s.open[h] = struct{}{}
	} else {
		delete(s.open, h)
	}
}

// hurryEvery is how often a drain looks for requests that have not arrived.
const hurryEvery = 50 * time.Millisecond

// hurry waits for grace and then ends, until ctx does, every request that is still arriving: its client is told to go
// elsewhere, and the drain keeps its time for those that are being served.
func (s *conns) hurry(ctx context.Context, grace time.Duration) {
	for t := time.NewTimer(grace); ; t.Reset(hurryEvery) {
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		s.mu.Lock()
		for c := range s.open {
			c.Hurry()
		}
		s.mu.Unlock()
	}
}
