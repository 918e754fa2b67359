package pg

import (
	"context"
	"net"
	"time"
)

// Bounds on a server that has vanished, as it looks from here: without them a statement that waits for its answer, and
// none of which that commits has a deadline, would wait until TCP gives up, a quarter of an hour later. A server that is
// only slow answers them, however long its statement takes.
const (
	deadAfter  = 5 * time.Second // of unacknowledged bytes, or of silence on an idle line
	probeIdle  = 2 * time.Second
	probeEvery = time.Second
	probeCount = 3
)

// dial connects with those bounds; the context bounds the connecting.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeIdle, Interval: probeEvery, Count: probeCount},
		Control:         userTimeout,
	}
	return d.DialContext(ctx, network, address)
}
