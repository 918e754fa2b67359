package auth

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/internal/bearer"
)

// sourceMetrics are the series of tenants' issuers. None names one: tenants make them.
type sourceMetrics struct {
	fetches *prometheus.CounterVec
	good    prometheus.Counter
	failed  prometheus.Counter
}

func newSourceMetrics() *sourceMetrics {
	m := &sourceMetrics{fetches: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "queengate_auth_issuer_fetches_total", Help: "Fetches of the keys of tenants' issuers, by how they ended.",
	}, []string{"result"})}
	m.good, m.failed = m.fetches.WithLabelValues("good"), m.fetches.WithLabelValues("failed")
	return m
}

// counting returns the source, counted.
func (m *sourceMetrics) counting(fetch bearer.Source) bearer.Source {
	return func(ctx context.Context) ([]byte, error) {
		body, err := fetch(ctx)
		if err != nil {
			m.failed.Inc()
		} else {
			m.good.Inc()
		}
		return body, err
	}
}

var issuersDesc = prometheus.NewDesc("queengate_auth_issuers",
	"Tenants' issuers whose tokens came within the hour, by whether their keys can be used.", []string{"keys"}, nil)

// Describe implements prometheus.Collector.
func (ss *sources) Describe(ch chan<- *prometheus.Desc) {
	ss.metrics.fetches.Describe(ch)
	ch <- issuersDesc
}

// Collect implements prometheus.Collector.
func (ss *sources) Collect(ch chan<- prometheus.Metric) {
	ss.metrics.fetches.Collect(ch)
	yes, no := ss.usable(time.Now())
	ch <- prometheus.MustNewConstMetric(issuersDesc, prometheus.GaugeValue, float64(yes), "usable")
	ch <- prometheus.MustNewConstMetric(issuersDesc, prometheus.GaugeValue, float64(no), "unusable")
}
