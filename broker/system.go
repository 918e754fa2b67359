package broker

import (
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// What an operator reads about the processes and the database, and the switches. None of it is about one tenant, and
// no gateway lets it through.

// processMetrics is a bucket of one process.
type processMetrics struct {
	CPUUserPct    float64 `json:"cpuUserPct"`
	CPUSysPct     float64 `json:"cpuSysPct"`
	RSSBytes      int64   `json:"rssBytes"`
	HeapBytes     int64   `json:"heapBytes"`
	Goroutines    int64   `json:"goroutines"`
	Parked        int64   `json:"parkedPolls"`
	PoolSize      float64 `json:"dbPoolSize"`
	PoolIdle      float64 `json:"dbPoolIdle"`
	PoolActive    float64 `json:"dbPoolActive"`
	SchedLagMs    float64 `json:"schedulerLagAvgMs"`
	SchedLagMaxMs float64 `json:"schedulerLagMaxMs"`
	Requests      int64   `json:"requests"`
	Messages      int64   `json:"messages"`
	DBErrors      int64   `json:"dbErrors"`
}

func metricsOf(p *store.Process) processMetrics {
	return processMetrics{
		round(p.CPUUserPct), round(p.CPUSysPct), int64(p.RSSBytes), int64(p.HeapBytes), int64(p.Goroutines), int64(p.Parked),
		round(p.PoolSize), round(p.PoolIdle), round(p.PoolActive), round(p.SchedLagMs), round(p.SchedLagMaxMs),
		p.Requests, p.Messages, p.DBErrors,
	}
}

// systemMetrics answers with the history of every broker.
func (b *Broker) systemMetrics(x *exchange) error {
	span, err := spanOf(x.args("from", "to"), time.Now(), defaultSpan)
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	brokers, err := b.db.Brokers(ctx, span.From)
	if err != nil {
		return err
	}
	points, err := b.db.ProcessHistory(ctx, span)
	if err != nil {
		return err
	}
	type sample struct {
		Timestamp millis         `json:"timestamp"`
		Samples   int            `json:"sampleCount"`
		Metrics   processMetrics `json:"metrics"`
	}
	type replica struct {
		Hostname string   `json:"hostname"`
		Port     int      `json:"port"`
		WorkerID string   `json:"workerId"`
		Started  millis   `json:"startedAt"`
		Series   []sample `json:"timeSeries"`
	}
	at := map[uuid.UUID]int{}
	replicas := make([]replica, len(brokers))
	for i, w := range brokers {
		at[w.ID] = i
		replicas[i] = replica{w.Hostname, w.Port, w.ID.String(), millis(w.Started), []sample{}}
	}
	for i := range points {
		p := &points[i]
		if k, ok := at[p.Broker]; ok {
			replicas[k].Series = append(replicas[k].Series, sample{millis(p.Bucket), p.Samples, metricsOf(&p.Process)})
		}
	}
	return x.answer(struct {
		TimeRange     timeRange `json:"timeRange"`
		Replicas      []replica `json:"replicas"`
		ReplicaCount  int       `json:"replicaCount"`
		BucketMinutes int       `json:"bucketMinutes"`
		PointCount    int       `json:"pointCount"`
	}{rangeOf(span), replicas, len(replicas), minutesOf(span.Width), len(points)})
}

// busiestQueues is how many queues of the cell worker-metrics names.
const busiestQueues = 100

// workerMetrics answers with what the whole cell did.
func (b *Broker) workerMetrics(x *exchange) error {
	now := time.Now()
	span, err := spanOf(x.args("from", "to"), now, defaultSpan)
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	points, err := b.db.CellHistory(ctx, span)
	if err != nil {
		return err
	}
	process, err := b.db.ProcessHistory(ctx, span)
	if err != nil {
		return err
	}
	brokers, err := b.db.Brokers(ctx, span.From)
	if err != nil {
		return err
	}
	loads, err := b.db.Workload(ctx, uuid.Nil, span, busiestQueues)
	if err != nil {
		return err
	}
	var sum store.Activity
	for i := range points {
		sum.Add(&points[i].Activity)
	}
	rows := throughput(span, points, process, now)
	type summary struct {
		PushRequests int64   `json:"pushRequests"`
		PushMessages int64   `json:"pushMessages"`
		PopRequests  int64   `json:"popRequests"`
		PopMessages  int64   `json:"popMessages"`
		AckRequests  int64   `json:"ackRequests"`
		AckSuccess   int64   `json:"ackSuccess"`
		AckFailed    int64   `json:"ackFailed"`
		Transactions int64   `json:"transactions"`
		DeadLetters  int64   `json:"dlqMessages"`
		AvgLagMs     float64 `json:"avgLagMs"`
		MaxLagMs     int64   `json:"maxLagMs"`
	}
	return x.answer(struct {
		TimeRange     timeRange       `json:"timeRange"`
		BucketMinutes int             `json:"bucketMinutes"`
		PointCount    int             `json:"pointCount"`
		TimeSeries    []throughputRow `json:"timeSeries"`
		Workers       []workerRow     `json:"workers"`
		Queues        []loadRow       `json:"queues"` // the busiest
		Summary       summary         `json:"summary"`
	}{
		rangeOf(span), minutesOf(span.Width), len(rows), rows, b.workers(brokers, process), loadRows(loads, span, now, true),
		summary{
			sum.PushRequests, sum.PushMessages, sum.PopRequests + sum.PopEmpty, sum.PopMessages, sum.AckRequests, sum.AckSuccess, sum.AckFailed,
			sum.Transactions, sum.DeadLetters, round(sum.AvgLagMs()), sum.LagMaxMs,
		},
	})
}

// postgresStats answers with what the database says about itself.
func (b *Broker) postgresStats(x *exchange) error {
	ctx, cancel := b.database()
	defer cancel()
	p, err := b.db.Postgres(ctx)
	if err != nil {
		return err
	}
	pool := b.db.Pool()
	type table struct {
		Name            string `json:"name"`
		Bytes           int64  `json:"totalBytes"`
		IndexBytes      int64  `json:"indexBytes"`
		Live            int64  `json:"liveRows"`
		Dead            int64  `json:"deadRows"`
		Inserted        int64  `json:"inserted"`
		Updated         int64  `json:"updated"`
		Hot             int64  `json:"hotUpdated"`
		Deleted         int64  `json:"deleted"`
		SequentialScans int64  `json:"sequentialScans"`
		IndexScans      int64  `json:"indexScans"`
		Autovacuum      millis `json:"lastAutovacuum"`
		Autoanalyze     millis `json:"lastAutoanalyze"`
	}
	tables := make([]table, len(p.Tables))
	for i, t := range p.Tables {
		tables[i] = table{
			t.Name, t.Bytes, t.IndexBytes, t.Live, t.Dead, t.Inserted, t.Updated, t.Hot, t.Deleted, t.SequentialScans, t.IndexScans,
			millis(t.LastAutovacuum), millis(t.LastAutoanalyze),
		}
	}
	type connections struct {
		Total             int64 `json:"total"`
		Active            int64 `json:"active"`
		IdleInTransaction int64 `json:"idleInTransaction"`
		WaitingOnLocks    int64 `json:"waitingOnLocks"`
		Max               int64 `json:"max"`
	}
	return x.answer(struct {
		Version     string      `json:"version"`
		StartedAt   millis      `json:"startedAt"`
		Database    string      `json:"database"`
		Bytes       int64       `json:"databaseBytes"`
		Connections connections `json:"connections"`
		Pool        poolAnswer  `json:"pool"`
		CacheHit    float64     `json:"cacheHitRatio"`
		Commits     int64       `json:"commits"`
		Rollbacks   int64       `json:"rollbacks"`
		Deadlocks   int64       `json:"deadlocks"`
		TempBytes   int64       `json:"tempBytes"`
		StatsReset  millis      `json:"statsReset"`
		Tables      []table     `json:"tables"`
	}{
		p.Version, millis(p.Started), p.Database, p.Bytes,
		connections{p.Connections, p.ActiveConnections, p.IdleInTransaction, p.WaitingOnLocks, p.Max},
		poolAnswer(pool),
		round(p.CacheHitRatio), p.Commits, p.Rolls, p.Deadlocks, p.TempBytes, millis(p.StatsReset), tables,
	})
}

type poolAnswer struct {
	Size   int `json:"size"`
	Idle   int `json:"idle"`
	Active int `json:"active"`
	Max    int `json:"max"`
}

// refreshStats answers with the sizes of the cell. There is nothing to refresh: every number is computed when somebody
// asks for it.
func (b *Broker) refreshStats(x *exchange) error {
	ctx, cancel := b.database()
	defer cancel()
	c, err := b.db.CellCounts(ctx)
	if err != nil {
		return err
	}
	return x.answer(struct {
		Success       bool   `json:"success"`
		Engine        string `json:"engine"`
		Tenants       int64  `json:"tenants"`
		Queues        int64  `json:"queues"`
		SegPartitions int64  `json:"segPartitions"`
		RetainedBytes int64  `json:"retainedBytes"`
		Timestamp     millis `json:"timestamp"`
	}{true, engine, c.Tenants, c.Queues, c.Partitions, c.RetainedBytes, millis(time.Now())})
}

// sharedState answers with what brokers share beyond the log: the switches. Its keys are snake_case.
func (b *Broker) sharedState(x *exchange) error {
	now, err := b.readSwitches()
	if err != nil {
		return err
	}
	return x.answer(struct {
		Enabled bool   `json:"enabled"`
		Reason  string `json:"reason"`
		Push    bool   `json:"maintenance_mode"`
		Pop     bool   `json:"pop_maintenance_mode"`
	}{false, "brokers_share_the_database_only", now.Push, now.Pop})
}

// readSwitches asks the database, past what this broker believes, and obeys what it hears.
func (b *Broker) readSwitches() (store.Switches, error) {
	ctx, cancel := b.database()
	defer cancel()
	asked := time.Now()
	now, err := b.db.Switches(ctx)
	if err == nil {
		b.obey(now, asked)
	}
	return now, err
}

// setSwitch sets a switch in the database and obeys it here at once; other brokers follow when they hear of it, within two seconds at the latest.
func (b *Broker) setSwitch(key string, on bool) error {
	ctx, cancel := b.database()
	defer cancel()
	if err := b.db.SetSwitch(ctx, key, on); err != nil {
		return err
	}
	s := &b.switches
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = time.Now()
	now := store.Switches{Push: s.push.Load(), Pop: s.pop.Load()}
	if key == store.StateMaintenance {
		now.Push = on
	} else {
		now.Pop = on
	}
	b.obeyLocked(now, s.changed)
	b.hints.changed()
	b.spooled.signal()
	return nil
}

// maintenance answers with the switches as they stand in the database, and with this broker's spool.
func (b *Broker) maintenance(x *exchange) error {
	now, err := b.readSwitches()
	if err != nil {
		return err
	}
	type failedFiles struct {
		Count      int     `json:"count"`
		TotalBytes int64   `json:"totalBytes"`
		TotalMB    float64 `json:"totalMB"`
		Failover   int     `json:"failoverCount"`
		QoS0       int     `json:"qos0Count"`
	}
	type bufferStats struct {
		Pending     int         `json:"pendingCount"`
		Failed      int         `json:"failedCount"`
		DBHealthy   bool        `json:"dbHealthy"`
		FailedFiles failedFiles `json:"failedFiles"`
	}
	s, waiting := b.spooled.stats(), b.spooled.messages()
	return x.answer(struct {
		Push     bool        `json:"maintenanceMode"`
		Pop      bool        `json:"popMaintenanceMode"`
		Buffered int         `json:"bufferedMessages"`
		Healthy  bool        `json:"bufferHealthy"`
		Stats    bufferStats `json:"bufferStats"`
	}{now.Push, now.Pop, waiting, true, bufferStats{Pending: waiting, Failed: int(s.Quarantined), DBHealthy: true}}) // the database has just answered
}

// setMaintenance switches push maintenance.
func (b *Broker) setMaintenance(x *exchange) error {
	on, err := wire.ScanSwitch(x.ctx.PostBody())
	if err != nil {
		return err
	}
	if err := b.setSwitch(store.StateMaintenance, on); err != nil {
		return err
	}
	message := "Maintenance mode DISABLED. PUSHes are stored."
	switch {
	case on && b.spooled.disk != nil:
		message = "Maintenance mode ENABLED. All PUSHes are buffered on disk until it is disabled."
	case on:
		message = "Maintenance mode ENABLED. All PUSHes are refused with 503 until it is disabled."
	}
	return x.answer(struct {
		On       bool   `json:"maintenanceMode"`
		Buffered int    `json:"bufferedMessages"`
		Healthy  bool   `json:"bufferHealthy"`
		Message  string `json:"message"`
	}{on, b.spooled.messages(), true, message})
}

// popMaintenance answers GET with the switch as it stands in the database, and sets it for POST.
func (b *Broker) popMaintenance(x *exchange) error {
	var on bool
	if x.route.Op == wire.OpSetPopMaintenance {
		var err error
		if on, err = wire.ScanSwitch(x.ctx.PostBody()); err != nil {
			return err
		}
		if err := b.setSwitch(store.StatePopMaintenance, on); err != nil {
			return err
		}
	} else {
		now, err := b.readSwitches()
		if err != nil {
			return err
		}
		on = now.Pop
	}
	message := "Pop maintenance mode DISABLED. POP operations deliver messages."
	if on {
		message = "Pop maintenance mode ENABLED. POP operations wait, and return nothing at the end of their time."
	}
	return x.answer(struct {
		On      bool   `json:"popMaintenanceMode"`
		Message string `json:"message"`
	}{on, message})
}

// metricsJSON answers with a small picture of the process for clients that do not read Prometheus.
func (b *Broker) metricsJSON(x *exchange) error {
	type totals struct {
		Total int64   `json:"total"`
		Rate  float64 `json:"rate"` // per second since the start
	}
	type database struct {
		PoolSize int `json:"poolSize"`
		Idle     int `json:"idleConnections"`
		Waiting  int `json:"waitingRequests"` // calls that wait for the next shared statement
	}
	type memory struct {
		RSS          int64 `json:"rss"`
		HeapTotal    int64 `json:"heapTotal"`
		HeapUsed     int64 `json:"heapUsed"`
		External     int64 `json:"external"` // stacks
		ArrayBuffers int64 `json:"arrayBuffers"`
	}
	type cpu struct {
		User   int64 `json:"user"` // microseconds
		System int64 `json:"system"`
	}
	uptime := time.Since(b.history.broker.Started).Seconds()
	of := func(n int64) totals { return totals{n, round(float64(n) / max(uptime, 1))} }
	pool := b.db.Pool()
	used, unused, free := runtimeBytes(heapInUse), runtimeBytes(heapUnused), runtimeBytes(heapFree)
	user, system := cpuTime()
	return x.answer(struct {
		Uptime   float64  `json:"uptime"`
		Requests totals   `json:"requests"`
		Messages totals   `json:"messages"`
		Database database `json:"database"`
		Memory   memory   `json:"memory"`
		CPU      cpu      `json:"cpu"`
	}{
		round(uptime), of(b.metrics.work.requests.Load()), of(b.metrics.work.messages.Load()),
		database{pool.Size, pool.Idle, b.claims.waiting() + b.acks.waiting()},
		memory{residentBytes(), int64(used + unused + free), int64(used), int64(runtimeBytes(stacks)), 0},
		cpu{user.Microseconds(), system.Microseconds()},
	})
}
