package quota

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// fleetStats are the metrics of a gate that decides with others.
type fleetStats struct {
	decided              *prometheus.CounterVec
	redis, leased, local prometheus.Counter
	trips                *prometheus.CounterVec
	seconds, calls       prometheus.Histogram
	losses               prometheus.Counter
	drift                prometheus.Gauge
	repairs              prometheus.Counter
}

func (s *fleetStats) init() {
	by := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "queengate_quota_decided_total",
		Help: "Requests by who decided: redis, a lease taken from it, or this gateway alone (no shared limit, or Redis away).",
	}, []string{"by"})
	s.redis, s.leased, s.local = by.WithLabelValues("redis"), by.WithLabelValues("lease"), by.WithLabelValues("local")
	s.decided = by
	s.trips = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "queengate_quota_redis_trips_total", Help: "Round trips to Redis by result.",
	}, []string{"result"})
	s.seconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "queengate_quota_redis_trip_seconds", Help: "Time of a round trip to Redis.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05},
	})
	s.calls = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "queengate_quota_redis_trip_calls", Help: "Calls that shared a round trip.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 8),
	})
	s.losses = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "queengate_quota_redis_losses_total", Help: "Times that Redis went away.",
	})
	s.drift = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "queengate_quota_slots_drift", Help: "Slots in Redis less those of real polls, of the cluster that was compared last.",
	})
	s.repairs = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "queengate_quota_slots_repairs_total", Help: "Times that the slots of a cluster were told to Redis anew.",
	})
}

// observe takes a round trip.
func (s *fleetStats) observe(calls int, d time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	s.trips.WithLabelValues(result).Inc()
	s.seconds.Observe(d.Seconds())
	s.calls.Observe(float64(calls))
}

var (
	awayDesc     = prometheus.NewDesc("queengate_quota_redis_away", "1 while this gateway decides without Redis.", nil, nil)
	gatewaysDesc = prometheus.NewDesc("queengate_quota_gateways", "Gateways of the fleet, by state.", []string{"state"}, nil)
)

func (f *fleet) collectors() []prometheus.Collector {
	s := &f.stats
	return []prometheus.Collector{s.decided, s.trips, s.seconds, s.calls, s.losses, s.drift, s.repairs}
}

func (f *fleet) describe(ch chan<- *prometheus.Desc) {
	for _, c := range f.collectors() {
		c.Describe(ch)
	}
	ch <- awayDesc
	ch <- gatewaysDesc
}

func (f *fleet) collect(ch chan<- prometheus.Metric) {
	for _, c := range f.collectors() {
		c.Collect(ch)
	}
	away := 0.0
	if !f.asking() {
		away = 1
	}
	ch <- prometheus.MustNewConstMetric(awayDesc, prometheus.GaugeValue, away)
	deaf := f.deaf.Load()
	ch <- prometheus.MustNewConstMetric(gatewaysDesc, prometheus.GaugeValue, float64(f.heard.Load()-deaf), "heard")
	ch <- prometheus.MustNewConstMetric(gatewaysDesc, prometheus.GaugeValue, float64(deaf), "missing")
	ch <- prometheus.MustNewConstMetric(gatewaysDesc, prometheus.GaugeValue, float64(f.dead.Load()), "dead")
}
