package broker

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/mesh"
)

// registerMesh shows the counters of the mesh.
func registerMesh(reg *prometheus.Registry, m Mesh) {
	count := func(name, help string, f func(mesh.Stats) int64) {
		registerCounter(reg, "queengate_mesh_"+name, help, func() float64 { return float64(f(m.Stats())) })
	}
	count("frames_sent_total", "Hints written to other brokers, once for each of them.", func(s mesh.Stats) int64 { return s.Sent })
	count("frames_received_total", "Hints of other brokers.", func(s mesh.Stats) int64 { return s.Received })
	count("frames_dropped_total", "Hints that found no connection or no room; they cost up to a second of latency.", func(s mesh.Stats) int64 { return s.Dropped })
	count("unauthenticated_total", "Connections that did not prove that they belong to the mesh.", func(s mesh.Stats) int64 { return s.Refused })
	registerGauge(reg, "queengate_mesh_peers", "Brokers this one sends hints to.", func() float64 { return float64(m.Stats().Out) })
}
