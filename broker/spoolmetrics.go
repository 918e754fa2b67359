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

// registerSpool shows the counters of the spool.
func registerSpool(reg *prometheus.Registry, l *spooled) {
	gauge := func(name, help string, f func(spool.Stats) float64) {
		registerGauge(reg, "queengate_spool_"+name, help, func() float64 { return f(l.stats()) })
	}
	count := func(name, help string, f func(spool.Stats) int64) {
		registerCounter(reg, "queengate_spool_"+name, help, func() float64 { return float64(f(l.stats())) })
	}
	registerGauge(reg, "queengate_spool_messages", "Messages that wait in the spool for the database.", func() float64 { return float64(l.messages()) })
	gauge("files", "Files of the spool.", func(s spool.Stats) float64 { return float64(s.Files) })
	gauge("bytes", "Bytes of the spool's files.", func(s spool.Stats) float64 { return float64(s.Bytes) })
	gauge("oldest_seconds", "Age of the oldest file of the spool; 0 while it is empty.", func(s spool.Stats) float64 {
		if s.Oldest.IsZero() {
			return 0
		}
		return time.Since(s.Oldest).Seconds()
	})
	registerCounter(reg, "queengate_spool_dropped_total", "Messages of the spool that were dropped because their tenant was removed.",
		func() float64 { return float64(l.dropped.Load()) })
	count("appended_total", "Messages that were put into the spool since start.", func(s spool.Stats) int64 { return s.Appended })
	count("settled_total", "Messages that left the spool, for the database or for quarantine.", func(s spool.Stats) int64 { return s.Settled })
	count("refused_total", "Messages that found no room in the spool or whose write failed.", func(s spool.Stats) int64 { return s.Refused })
	count("quarantined_total", "Messages and damaged stretches that were put into quarantine: somebody has to look at them.", func(s spool.Stats) int64 { return s.Quarantined })
}
