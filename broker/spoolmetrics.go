package broker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/internal/spool"
)

// stats returns what the spool says of itself; zero without one.
func (l *spooled) stats() spool.Stats {
	if l.disk == nil {
		return spool.Stats{}
	}
	return l.disk.Stats()
}

// spoolMetrics reads the counters of the spool when they are asked for.
type spoolMetrics struct {
	l     *spooled
	descs [8]*prometheus.Desc
}

func newSpoolMetrics(l *spooled) spoolMetrics {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return spoolMetrics{l, [8]*prometheus.Desc{
		desc("queengate_spool_messages", "Messages that wait in the spool for the database."),
		desc("queengate_spool_files", "Files of the spool."),
		desc("queengate_spool_bytes", "Bytes of the spool's files."),
		desc("queengate_spool_oldest_seconds", "Age of the oldest file of the spool; 0 while it is empty."),
		desc("queengate_spool_appended_total", "Messages that were put into the spool since start."),
		desc("queengate_spool_settled_total", "Messages that left the spool, for the database or for quarantine."),
		desc("queengate_spool_refused_total", "Messages that found no room in the spool or whose write failed."),
		desc("queengate_spool_quarantined_total", "Messages and damaged stretches that were put into quarantine: somebody has to look at them."),
	}}
}

func (m spoolMetrics) Describe(c chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		c <- d
	}
}

func (m spoolMetrics) Collect(c chan<- prometheus.Metric) {
	s := m.l.stats()
	age := 0.0
	if !s.Oldest.IsZero() {
		age = time.Since(s.Oldest).Seconds()
	}
	for i, v := range []float64{float64(m.l.messages()), float64(s.Files), float64(s.Bytes), age} {
		c <- prometheus.MustNewConstMetric(m.descs[i], prometheus.GaugeValue, v)
	}
	for i, n := range []int64{s.Appended, s.Settled, s.Refused, s.Quarantined} {
		c <- prometheus.MustNewConstMetric(m.descs[4+i], prometheus.CounterValue, float64(n))
	}
}
