package broker

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/seal"
	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/wire"
)

// metrics are the counters of the broker's own work. The queen_* families are those of the existing broker, under
// which its dashboards look for them.
type metrics struct {
	registry *prometheus.Registry
	panics   prometheus.Counter
	hangups  prometheus.Counter
	badHints prometheus.Counter
	inFlight atomic.Int64 // requests
	work     workTotals

	requests map[string]*[6]prometheus.Counter // by route, then by the first digit of the status
	seconds  map[string]prometheus.Observer    // by route
	calls    map[string]tally                  // push, pop, ack
	flights  map[string]flights                // pop, ack
	pops     map[bool]prometheus.Counter       // by whether the pop names its partition
	sealed   prometheus.Counter                // payloads encrypted
	opened   map[seal.KeyID]prometheus.Counter // payloads decrypted, by key
	unopened map[wire.Code]prometheus.Counter  // payloads that could not be, by reason
	fills    prometheus.Counter
	fillTime prometheus.Counter                   // microseconds
	refused  map[bearer.Reason]prometheus.Counter // nil without JWT
	choices  prometheus.Counter                   // of the autopilot
	chosen   prometheus.Counter                   // partitions
}

type tally struct{ requests, messages prometheus.Counter }

type flights struct {
	fired, items prometheus.Counter
	seconds      prometheus.Observer
	rtt          prometheus.Observer
}

func newMetrics(reg *prometheus.Registry, b *Broker) *metrics {
	if reg == nil {
		reg = prometheus.NewRegistry()
	}
	m := &metrics{
		registry: reg, requests: map[string]*[6]prometheus.Counter{}, seconds: map[string]prometheus.Observer{},
		calls: map[string]tally{}, flights: map[string]flights{},
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	m.panics = counter("queengate_broker_panics_total", "Requests that ended in a panic.")
	m.hangups = counter("queengate_broker_hangups_total", "Waiting pops whose client hung up.")
	m.badHints = counter("queengate_broker_unreadable_hints_total", "Frames of other brokers that could not be read to their end.")

	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "queengate_broker_requests_total", Help: "Requests by route and class of status; route is empty when none matched.",
	}, []string{"route", "status"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "queengate_broker_request_seconds", Help: "Time from the head of a request to its answer, waiting included.",
		Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 5, 30},
	}, []string{"route"})
	reg.MustRegister(requests, seconds)
	patterns := []string{""}
	for _, r := range wire.Routes {
		patterns = append(patterns, r.Pattern)
	}
	for _, p := range patterns {
		if m.requests[p] != nil {
			continue
		}
		var byClass [6]prometheus.Counter
		for class := 1; class < len(byClass); class++ {
			byClass[class] = requests.WithLabelValues(p, fmt.Sprintf("%dxx", class))
		}
		m.requests[p] = &byClass
		m.seconds[p] = seconds.WithLabelValues(p)
	}

	for _, op := range []string{"push", "pop", "ack"} {
		m.calls[op] = tally{
			requests: counter("queen_process_"+op+"_requests_total", "Answered "+op+" requests since start."),
			messages: counter("queen_process_"+op+"_messages_total", "Messages of answered "+op+" requests since start."),
		}
	}
	fired := prometheus.NewCounterVec(prometheus.CounterOpts{Name: batchesFired, Help: batchesHelp}, []string{"op"})
	items := prometheus.NewCounterVec(prometheus.CounterOpts{Name: batchItems, Help: itemsHelp}, []string{"op"})
	flight := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "queengate_broker_bundle_seconds", Help: "Duration of a statement shared by concurrent requests.",
		Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .5, 5},
	}, []string{"op"})
	rtt := prometheus.NewSummaryVec(prometheus.SummaryOpts{
		Name: "queen_batch_rtt_milliseconds", Help: "Duration of a statement shared by concurrent requests, in the last ten minutes.",
		Objectives: map[float64]float64{.5: .05, .95: .01, .99: .001},
	}, []string{"op"})
	reg.MustRegister(fired, items, flight, rtt)
	for _, op := range []string{"pop", "ack"} {
		m.flights[op] = flights{fired.WithLabelValues(op), items.WithLabelValues(op), flight.WithLabelValues(op), rtt.WithLabelValues(op)}
	}

	m.sealed = counter("queengate_broker_sealed_total", "Payloads that were encrypted to be stored.")
	opened := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "queengate_broker_opened_total", Help: "Payloads that were decrypted, by the id of their key.",
	}, []string{"key"})
	unopened := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "queengate_broker_unopened_total", Help: "Payloads that could not be decrypted: their key is not configured, or they are not what was stored.",
	}, []string{"reason"})
	reg.MustRegister(opened, unopened)
	m.opened, m.unopened = map[seal.KeyID]prometheus.Counter{}, map[wire.Code]prometheus.Counter{}
	for _, id := range b.cfg.Encryption.IDs() {
		m.opened[id] = opened.WithLabelValues(id.String())
	}
	for _, reason := range []wire.Code{wire.EncryptionKeyMissing, wire.MessageCorrupt} {
		m.unopened[reason] = unopened.WithLabelValues(string(reason))
	}

	gauge := func(name, help string, f func() float64) { registerGauge(reg, name, help, f) }
	since := time.Now()
	m.pops = map[bool]prometheus.Counter{
		false: counter("queen_pop_wildcard_total", "Pops that take any partition."),
		true:  counter("queen_pop_targeted_total", "Pops of one partition by its name."),
	}
	m.choices = counter("queengate_broker_autopilot_choices_total", "Pops for which the autopilot chose, or in shadow mode would have chosen.")
	m.chosen = counter("queengate_broker_autopilot_partitions_total", "Partitions it chose.")
	m.fills = counter("queen_pop_fill_wait_total", "Pops that held what they had until more came (minPopWaitTime).")
	m.fillTime = counter("queen_pop_fill_wait_microseconds_total", "Time they held it.")
	reg.MustRegister(newGauges(b), newBacklogs(b))
	gauge("queen_uptime_seconds", "Seconds since the broker was made.", func() float64 { return time.Since(since).Seconds() })
	gauge("queengate_broker_requests_in_flight", "Requests that are being served, waiting ones included.", func() float64 { return float64(m.inFlight.Load()) })
	gauge("queengate_broker_parked_polls", "Pops that wait.", func() float64 { return float64(b.park.Waiting()) })
	gauge("queen_parked_long_polls", "Pops that wait, under the name of the existing broker.", func() float64 { return float64(b.park.Waiting()) })
	gauge("queengate_broker_read_queues", "Queues somebody reads or has read lately.", func() float64 { return float64(b.park.Boards()) })
	gauge("queengate_broker_database_away", "1 while the change feed cannot ask the database.", func() float64 {
		if b.feed.away.Load() {
			return 1
		}
		return 0
	})
	registerCounter(reg, "queengate_broker_wakes_total", "Waiting pops that were handed a partition.", func() float64 { return float64(b.park.Wakes()) })
	if b.spooled.disk != nil {
		registerSpool(reg, b.spooled)
	}
	if b.deps.Mesh != nil {
		registerMesh(reg, b.deps.Mesh)
	}
	stats := func(name, help string, f func() uint64) {
		registerCounter(reg, name, help, func() float64 { return float64(f()) })
	}
	stats("queengate_broker_fuse_flushes_total", "Push bundles offered to the database.", func() uint64 { return b.fuser.Stats().Flushes })
	stats("queengate_broker_fuse_segments_total", "Segments offered in them.", func() uint64 { return b.fuser.Stats().Segments })
	stats("queengate_broker_fuse_stored_total", "Messages committed.", func() uint64 { return b.fuser.Stats().Stored })
	stats("queengate_broker_fuse_duplicates_total", "Messages the database had seen before.", func() uint64 { return b.fuser.Stats().Duplicates })
	shown := func() shownLife {
		if s := b.feed.shown.Load(); s != nil {
			return *s
		}
		return shownLife{}
	}
	gauge("queengate_broker_database_timeline", "Timeline of the database as the change feed has seen it last; 0 before.", func() float64 { return float64(shown().timeline) })
	gauge("queengate_broker_database_lives", "Databases that this process has met one after the other: it grows with every failover and restart.", func() float64 { return float64(shown().life) })
	gauge("queengate_broker_fuse_pending_bytes", "Payload bytes that wait for a commit.", func() float64 { return float64(b.fuser.Stats().PendingBytes) })
	gauge("queengate_broker_dedup_cache_bytes", "Bytes of the deduplication cache.", func() float64 { return float64(b.fuser.Stats().CacheBytes) })
	registerJanitor(reg, b)
	m.registerJWT(b.cfg.JWT)
	return m
}

// registerGauge and registerCounter add a family that is read when it is asked for.
func registerGauge(reg *prometheus.Registry, name, help string, f func() float64) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
}

func registerCounter(reg *prometheus.Registry, name, help string, f func() float64) {
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, f))
}

// registerJWT adds what there is to say about clients' tokens, when they are taken.
func (m *metrics) registerJWT(j *JWT) {
	if j == nil {
		return
	}
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "queengate_broker_jwt_refused_total", Help: "Tokens of clients that were not believed.",
	}, []string{"reason"})
	m.registry.MustRegister(refused)
	m.refused = map[bearer.Reason]prometheus.Counter{}
	for _, r := range bearer.Reasons {
		m.refused[r] = refused.WithLabelValues(r.String())
	}
	if j.Keys == nil {
		return
	}
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "queengate_broker_jwks_keys", Help: "Keys of the fetched set that are in use.",
		}, func() float64 { return float64(j.Keys.Stats().Keys) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "queengate_broker_jwks_fetches_total", Help: "Fetches of the set of keys.",
		}, func() float64 { return float64(j.Keys.Stats().Fetches) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "queengate_broker_jwks_failures_total", Help: "Fetches that failed; the set known before stays in force.",
		}, func() float64 { return float64(j.Keys.Stats().Failures) }),
	)
}

// refusal counts a token that was not believed, if e is about one.
func (m *metrics) refusal(e *wire.Error) {
	var r *bearer.Refusal
	if errors.As(e, &r) && m.refused != nil {
		m.refused[r.Reason].Inc()
	}
}

func (m *metrics) request(route string, status int, d time.Duration) {
	byClass := m.requests[route]
	if class := status / 100; class >= 1 && class < len(byClass) {
		byClass[class].Inc()
	}
	m.seconds[route].Observe(d.Seconds())
}

func (m *metrics) count(op string, messages int) {
	t := m.calls[op]
	t.requests.Inc()
	t.messages.Add(float64(messages))
	m.work.messages.Add(int64(messages))
}

func (m *metrics) pushed(messages int) { m.count("push", messages) }
func (m *metrics) popped(messages int) { m.count("pop", messages) }
func (m *metrics) acked(messages int)  { m.count("ack", messages) }

// held counts a pop that held what it had until more came.
func (m *metrics) held(d time.Duration) {
	m.fills.Inc()
	m.fillTime.Add(float64(d.Microseconds()))
}

// bundle returns the observer of a combiner.
func (m *metrics) bundle(op string) func(items int, d time.Duration) {
	f := m.flights[op]
	return func(items int, d time.Duration) {
		f.fired.Inc()
		f.items.Add(float64(items))
		f.seconds.Observe(d.Seconds())
		f.rtt.Observe(float64(d.Microseconds()) / 1000)
	}
}

// serveMetrics answers with everything on the registry in the Prometheus text format.
func (b *Broker) serveMetrics(x *exchange) error {
	families, err := b.metrics.registry.Gather()
	if err != nil {
		return fmt.Errorf("gather metrics: %w", err)
	}
	var out bytes.Buffer
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	enc := expfmt.NewEncoder(&out, format)
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return fmt.Errorf("encode metrics: %w", err)
		}
	}
	x.ctx.Response.SetStatusCode(fasthttp.StatusOK)
	x.ctx.Response.Header.SetContentType(string(format))
	x.ctx.Response.SetBodyRaw(out.Bytes())
	return nil
}
