package mesh

import "sync/atomic"

// counters count since the start.
type counters struct {
	sent, received, dropped, refused atomic.Int64
	connectedOut, connectedIn        atomic.Int64
}

// Stats is a reading of a mesh.
type Stats struct {
	Sent     int64 // frames written, once per peer
	Received int64 // frames of authenticated peers
	Dropped  int64 // frames that no connection or no room was there for
	Refused  int64 // connections that did not prove that they belong here
	Out, In  int64 // connections that stand: those this node sends on, and those it receives on
}

// Stats returns the counters.
func (m *Mesh) Stats() Stats {
	return Stats{
		Sent: m.sent.Load(), Received: m.received.Load(), Dropped: m.dropped.Load(), Refused: m.refused.Load(),
		Out: m.connectedOut.Load(), In: m.connectedIn.Load(),
	}
}
