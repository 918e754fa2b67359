package wipe

import "github.com/prometheus/client_golang/prometheus"

// metrics are the series of a Wiper. That of the gateway whose turn it is counts; the gauge is the same on all.
type metrics struct {
	clusters prometheus.Gauge
	rows     prometheus.Counter
	ended    prometheus.Counter
	failures prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		clusters: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "queengate_wipe_clusters", Help: "Clusters whose data is to be removed, as this gateway saw last.",
		}),
		rows: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "queengate_wipe_rows_total", Help: "Rows of deleted clusters that their cells have removed for this gateway.",
		}),
		ended: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "queengate_wipe_ended_total", Help: "Clusters that this gateway has removed to the end.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "queengate_wipe_failures_total", Help: "Steps of removals that failed; they are taken again.",
		}),
	}
	reg.MustRegister(m.clusters, m.rows, m.ended, m.failures)
	return m
}
