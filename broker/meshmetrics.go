package broker

import "github.com/prometheus/client_golang/prometheus"

// meshMetrics reads the counters of the mesh when they are asked for.
type meshMetrics struct {
	mesh  Mesh
	descs [5]*prometheus.Desc
}

func newMeshMetrics(m Mesh) meshMetrics {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return meshMetrics{m, [5]*prometheus.Desc{
		desc("queengate_mesh_frames_sent_total", "Hints written to other brokers, once for each of them."),
		desc("queengate_mesh_frames_received_total", "Hints of other brokers."),
		desc("queengate_mesh_frames_dropped_total", "Hints that found no connection or no room; they cost up to a second of latency."),
		desc("queengate_mesh_unauthenticated_total", "Connections that did not prove that they belong to the mesh."),
		desc("queengate_mesh_peers", "Brokers this one sends hints to."),
	}}
}

func (m meshMetrics) Describe(c chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		c <- d
	}
}

func (m meshMetrics) Collect(c chan<- prometheus.Metric) {
	s := m.mesh.Stats()
	for i, n := range []int64{s.Sent, s.Received, s.Dropped, s.Refused} {
		c <- prometheus.MustNewConstMetric(m.descs[i], prometheus.CounterValue, float64(n))
	}
	c <- prometheus.MustNewConstMetric(m.descs[4], prometheus.GaugeValue, float64(s.Out))
}
