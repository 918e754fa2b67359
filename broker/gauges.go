package broker

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/broker/store"
)

// gauges are the families of a scrape that are read when they are asked for: the process, the pool, the switches, and
// the totals of the cell, the only ones that cost a statement. The route is open to everybody, so scrapes share that
// statement; while the database is away those families are absent.
//
// No family has a tenant or a queue as a label: that belongs to the routes a tenant reads. There is no admission
// arbiter here, so queen_admission_* is absent.
type gauges struct {
	b *Broker

	rss, cpu, sched, healthy, maintenance, popMaintenance, itemsPer, lost, fired, items *prometheus.Desc

	pool, buffer, totals map[string]*prometheus.Desc

	mu    sync.Mutex // guards below; held during the statement, so scrapes wait for it
	asked time.Time
	cell  store.Totals
	err   error
}

// The families of shared statements, of which pops and acks count their own and pushes are the fuser's.
const (
	batchesFired = "queen_batches_fired_total"
	batchesHelp  = "Statements shared by concurrent requests."
	batchItems   = "queen_batch_items_fired_total"
	itemsHelp    = "Calls that travelled in them; of push, segments."
)

const (
	totalsShared = 5 * time.Second
	totalsLimit  = 2 * time.Second
)

func newGauges(b *Broker) *gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	cell := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help+" since the cell was made, up to a minute ago; the same at every broker.", nil, prometheus.Labels{"scope": "cluster"})
	}
	s := &gauges{
		b:              b,
		rss:            desc("queen_process_resident_memory_bytes", "Memory of the process in RAM."),
		cpu:            desc("queengate_broker_cpu_seconds_total", "Processor time of the process.", "mode"),
		sched:          desc("queen_event_loop_lag_avg_milliseconds", "Mean wait of a goroutine for a processor since start."),
		healthy:        desc("queen_file_buffer_db_healthy", "1 while the change feed can ask the database."),
		maintenance:    desc("queen_maintenance_mode_enabled", "1 while the operator has stopped pushes."),
		popMaintenance: desc("queengate_broker_pop_maintenance_enabled", "1 while the operator has stopped pops."),
		itemsPer:       desc("queen_fusion_items_per_batch", "Mean calls per shared statement since start; push: segments.", "op"),
		fired:          desc(batchesFired, batchesHelp, "op"),
		items:          desc(batchItems, itemsHelp, "op"),
		lost:           desc("queengate_broker_history_lost_total", "Rows of the per-minute history given up because too many were waiting."),
		pool:           map[string]*prometheus.Desc{}, buffer: map[string]*prometheus.Desc{}, totals: map[string]*prometheus.Desc{},
	}
	for _, state := range []string{"size", "idle", "active"} {
		s.pool[state] = desc("queen_db_pool_"+state, "Database sessions of the broker: "+state+".")
	}
	for _, state := range []string{"pending", "failed"} {
		s.buffer[state] = desc("queen_file_buffer_"+state, "Pushes in the outage spool: "+state+".")
	}
	for _, op := range []string{"push", "pop", "ack"} {
		s.totals[op+"_requests"] = cell("queen_cluster_"+op+"_requests_total", op+" requests")
		s.totals[op+"_messages"] = cell("queen_cluster_"+op+"_messages_total", op+" messages")
	}
	s.totals["transactions"] = cell("queen_cluster_transactions_total", "Transactions")
	s.totals["dlq"] = cell("queen_cluster_dlq_total", "Dead letters")
	s.totals["db_errors"] = cell("queen_cluster_db_errors_total", "Requests that failed at the database")
	s.totals["ack"] = prometheus.NewDesc("queen_cluster_ack_total", "Acknowledged messages since the cell was made, up to a minute ago; the same at every broker.",
		[]string{"result"}, prometheus.Labels{"scope": "cluster"})
	return s
}

// Describe sends nothing: which families a scrape has depends on the database, so the collector is unchecked.
func (s *gauges) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *gauges) Collect(out chan<- prometheus.Metric) {
	b := s.b
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) { send(d, prometheus.GaugeValue, v, labels...) }
	gauge(s.rss, float64(residentBytes()))
	user, system := cpuTime()
	send(s.cpu, prometheus.CounterValue, user.Seconds(), "user")
	send(s.cpu, prometheus.CounterValue, system.Seconds(), "system")
	mean, _ := schedLag(schedCounts(), nil)
	gauge(s.sched, mean)
	pool := b.db.Pool()
	for name, n := range map[string]int{"size": pool.Size, "idle": pool.Idle, "active": pool.Active} {
		gauge(s.pool[name], float64(n))
	}
	gauge(s.buffer["pending"], float64(b.spooled.messages()))
	gauge(s.buffer["failed"], float64(b.spooled.stats().Quarantined))
	gauge(s.healthy, number(!b.feed.away.Load()))
	gauge(s.maintenance, number(b.switches.push.Load()))
	gauge(s.popMaintenance, number(b.switches.pop.Load()))
	st := b.fuser.Stats()
	send(s.fired, prometheus.CounterValue, float64(st.Flushes), "push")
	send(s.items, prometheus.CounterValue, float64(st.Segments), "push")
	if st.Flushes > 0 {
		gauge(s.itemsPer, float64(st.Segments)/float64(st.Flushes), "push")
	}
	send(s.lost, prometheus.CounterValue, float64(b.history.lost.Load()))
	t, err := s.cellTotals()
	if err != nil {
		return
	}
	for name, n := range map[string]int64{
		"push_requests": t.PushRequests, "push_messages": t.PushMessages, "pop_requests": t.PopRequests + t.PopEmpty, "pop_messages": t.PopMessages,
		"ack_requests": t.AckRequests, "ack_messages": t.AckSuccess + t.AckFailed, "transactions": t.Transactions, "dlq": t.DeadLetters, "db_errors": t.DBErrors,
	} {
		send(s.totals[name], prometheus.CounterValue, float64(n))
	}
	send(s.totals["ack"], prometheus.CounterValue, float64(t.AckSuccess), "success")
	send(s.totals["ack"], prometheus.CounterValue, float64(t.AckFailed), "failed")
}

func (s *gauges) cellTotals() (store.Totals, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.asked) >= totalsShared {
		ctx, cancel := context.WithTimeout(context.Background(), totalsLimit)
		defer cancel()
		s.cell, s.err = s.b.db.CellTotals(ctx)
		s.asked = time.Now()
	}
	return s.cell, s.err
}

func number(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
