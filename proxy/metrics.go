package proxy

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/wire"
)

// metrics are the series of the data path. Labels are bounded: patterns of the route table, statuses and codes of the
// catalogue, cells and their brokers.
type metrics struct {
	requests       *prometheus.CounterVec
	seconds        perRoute
	upstreamTime   perRoute
	parked         prometheus.Gauge
	hangUps        prometheus.Counter
	panics         prometheus.Counter
	connsRefused   prometheus.Counter
	retryAfter     prometheus.Histogram
	repeats        *prometheus.CounterVec
	upstreamErrors *prometheus.CounterVec

	// counters caches requests by its labels: a look-up by label values hashes three strings per request.
	counters sync.Map // requestLabels -> prometheus.Counter
}

type requestLabels struct {
	op     wire.Op
	status int
	code   wire.Code
}

// routeLabel names a route; what matched none has one name, whatever was asked for.
func routeLabel(r *wire.Route) string {
	if r == nil {
		return "unknown"
	}
	return r.Pattern
}

// Kinds of a failed attempt at a broker.
const (
	faultConnect  = "connect"  // before a byte was sent
	faultDeadline = "deadline" // no answer in time
	faultDead     = "dead"     // its broker was found dead
	faultLost     = "lost"     // after sending
	faultAnswer   = "answer"   // in the middle of the answer
)

// Why a request goes to another broker.
const (
	repeatUnsent  = "unsent"
	repeatRead    = "read"
	repeatDrained = "drained"
	repeatLost    = "lost"
)

// perRoute is a histogram of seconds with one observer per operation, looked up once.
type perRoute []prometheus.Observer

func newPerRoute(v *prometheus.HistogramVec) perRoute {
	p := perRoute{v.WithLabelValues(routeLabel(nil))}
	for i := range wire.Routes {
		r := &wire.Routes[i]
		for int(r.Op) >= len(p) {
			p = append(p, p[0])
		}
		if r.Class != wire.ClassBlocked {
			p[r.Op] = v.WithLabelValues(routeLabel(r))
		}
	}
	return p
}

func (p perRoute) observe(r *wire.Route, d time.Duration) {
	op := wire.OpNone
	if r != nil {
		op = r.Op
	}
	p[op].Observe(d.Seconds())
}

// latencies reach from the gateway's own work (a tenth of a millisecond) to the longest poll.
var latencies = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 90}

func newMetrics(reg prometheus.Registerer, g *Gateway) *metrics {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "queengate_proxy_request_seconds", Help: "Time from a request's head to its answer.", Buckets: latencies,
	}, []string{"route"})
	upstream := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "queengate_proxy_upstream_seconds", Help: "Time to the head of a broker's answer, without waiting polls.", Buckets: latencies,
	}, []string{"route"})
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "queengate_proxy_requests_total", Help: "Requests by route, status and error code; 499 is a client that hung up.",
		}, []string{"route", "status", "code"}),
		parked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "queengate_proxy_parked_polls", Help: "Waiting polls under way.",
		}),
		hangUps: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "queengate_proxy_hang_ups_total", Help: "Clients that hung up while their poll waited.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "queengate_proxy_panics_total", Help: "Requests that ended in a panic.",
		}),
		connsRefused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "queengate_proxy_connections_refused_total", Help: "Connections closed at a wall.",
		}),
		retryAfter: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "queengate_proxy_retry_after_seconds", Help: "Wait that a refusal promised, as in its Retry-After.",
			Buckets: []float64{1, 2, 5, 10, 30, 60, 300, 900, 3600, 86400},
		}),
		repeats: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "queengate_proxy_repeats_total",
			Help: "Requests that went to another broker: of which nothing was sent, reads without an answer, polls that a stopping broker gave back, and polls whose answer was lost.",
		}, []string{"why"}),
		upstreamErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "queengate_proxy_upstream_errors_total",
			Help: "Attempts at a broker that failed: before a byte was sent (connect), by the deadline, cut off since the broker was dead, lost after sending, or in the middle of the answer.",
		}, []string{"kind"}),
	}
	gauge := func(name, help string, f func() float64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	reg.MustRegister(seconds, upstream, m.requests, m.parked, m.hangUps, m.panics, m.connsRefused, m.retryAfter, m.repeats, m.upstreamErrors,
		gauge("queengate_proxy_connections", "Open client connections.", func() float64 { return float64(g.walls.open.Load()) }),
		gauge("queengate_proxy_body_bytes", "Memory taken by request bodies.", func() float64 { return float64(g.budget.used.Load()) }),
		gauge("queengate_proxy_held_refusals", "Refused polls whose answer is held back.", func() float64 { return float64(g.heldRefusals.Load()) }),
		gauge("queengate_proxy_in_flight", "Requests that brokers have, but for those that wait for messages.",
			func() float64 { return float64(g.cfg.MaxInFlight - g.slots.places.Stats().Free) }),
		gauge("queengate_proxy_waiting_requests", "Requests that wait for a slot, since brokers have as many as they may.",
			func() float64 { return float64(g.slots.places.Stats().Waiting) }),
		gauge("queengate_proxy_waiting_clusters", "Clusters whose requests wait for a slot.",
			func() float64 { return float64(g.slots.places.Stats().Owners) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "queengate_proxy_turns_total", Help: "How often the turn passed from one waiting cluster to another.",
		}, func() float64 { return float64(g.slots.places.Stats().Turns) }),
		gauge("queengate_proxy_sleeping_polls", "Waiting polls for which no goroutine waits.", func() float64 { return float64(g.asleep.Load()) }),
		brokerStates{g.cells},
	)
	for _, why := range []string{repeatUnsent, repeatRead, repeatDrained, repeatLost} {
		m.repeats.WithLabelValues(why)
	}
	for _, kind := range []string{faultConnect, faultDeadline, faultDead, faultLost, faultAnswer} {
		m.upstreamErrors.WithLabelValues(kind) // a rate needs the zero before the first
	}
	m.seconds, m.upstreamTime = newPerRoute(seconds), newPerRoute(upstream)
	return m
}

// observe counts one finished exchange.
func (m *metrics) observe(r *wire.Route, status int, code wire.Code, d time.Duration) {
	k := requestLabels{status: status, code: code}
	if r != nil {
		k.op = r.Op
	}
	c, ok := m.counters.Load(k)
	if !ok {
		c = m.requests.WithLabelValues(routeLabel(r), strconv.Itoa(status), string(code))
		m.counters.Store(k, c)
	}
	c.(prometheus.Counter).Inc()
	m.seconds.observe(r, d)
}

// brokerStates collects what is known about each broker. Series of a broker that is gone go with it.
type brokerStates struct{ cells *Cells }

var (
	brokerUp = prometheus.NewDesc("queengate_proxy_broker_up",
		"Whether a broker answers the probe; key: whether it accepts the gateway's signature; serving: whether it gets new requests.",
		[]string{"cell", "broker", "probe"}, nil)
	brokerEjections = prometheus.NewDesc("queengate_proxy_broker_ejections_total",
		"How often a broker was taken out before its probes said so.", []string{"cell", "broker"}, nil)
	brokerLosses = prometheus.NewDesc("queengate_proxy_broker_lost_answers_total",
		"Requests to a broker whose answer did not come.", []string{"cell", "broker"}, nil)
)

// Describe implements prometheus.Collector.
func (s brokerStates) Describe(d chan<- *prometheus.Desc) {
	d <- brokerUp
	d <- brokerEjections
	d <- brokerLosses
}

// Collect implements prometheus.Collector.
func (s brokerStates) Collect(out chan<- prometheus.Metric) {
	for _, p := range s.cells.pools.all() {
		for _, b := range p.brokers() {
			for probe, up := range map[string]bool{
				"livez": b.is(isLive), "readyz": b.is(isReady), "key": !b.refuses.Load(), "serving": b.able(needLive),
			} {
				v := 0.0
				if up {
					v = 1
				}
				out <- prometheus.MustNewConstMetric(brokerUp, prometheus.GaugeValue, v, p.cell, b.address, probe)
			}
			for desc, n := range map[*prometheus.Desc]int64{brokerEjections: b.ejectionsTotal.Load(), brokerLosses: b.lossesTotal.Load()} {
				out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), p.cell, b.address)
			}
		}
	}
}
