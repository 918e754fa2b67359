package broker

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
)

// queueLag answers with how old messages were when they were delivered, newest bucket first: a bare array.
func (b *Broker) queueLag(x *exchange) error {
	args := x.args("from", "to", "queue")
	queue := args.Name("queue")
	span, err := spanOf(args, time.Now(), defaultSpan)
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	points, err := b.db.QueueHistory(ctx, x.who.tenant, queue, span)
	if err != nil {
		return err
	}
	type row struct {
		Queue         string  `json:"queueName"`
		PopCount      int64   `json:"popCount"`
		AvgLagMs      float64 `json:"avgLagMs"`
		MaxLagMs      int64   `json:"maxLagMs"`
		BucketMinutes int     `json:"bucketMinutes"`
		BucketTime    millis  `json:"bucketTime"`
	}
	rows := []row{}
	for _, p := range slices.Backward(points) {
		if p.PopMessages > 0 {
			rows = append(rows, row{p.Queue, p.PopMessages, round(p.AvgLagMs()), p.LagMaxMs, minutesOf(span.Width), millis(p.Bucket)})
		}
	}
	return x.answer(rows)
}

// opsRow is a bucket of one queue.
type opsRow struct {
	Bucket             millis  `json:"bucket"`
	Queue              string  `json:"queueName"`
	PushRequests       int64   `json:"pushRequests"`
	PushMessages       int64   `json:"pushMessages"`
	PopMessages        int64   `json:"popMessages"`
	PopEmpty           int64   `json:"popEmpty"` // of pops that did not wait: those that do show in parkedCount
	AckRequests        int64   `json:"ackRequests"`
	AckSuccess         int64   `json:"ackSuccess"`
	AckFailed          int64   `json:"ackFailed"`
	Transactions       int64   `json:"transactions"`
	PartitionsCreated  int64   `json:"partitionsCreated"` // of those that still exist
	PartitionsDeleted  *int64  `json:"partitionsDeleted"` // not kept: null
	PartitionCount     int64   `json:"partitionCount"`    // at the end, of those that still exist
	AvgLagMs           float64 `json:"avgLagMs"`
	MaxLagMs           int64   `json:"maxLagMs"`
	PushPerSecond      float64 `json:"pushPerSecond"`
	PopPerSecond       float64 `json:"popPerSecond"`
	AckPerSecond       float64 `json:"ackPerSecond"`
	EmptyPerSecond     float64 `json:"emptyPerSecond"`
	ParkedCount        int     `json:"parkedCount"`
	DeadLetterMessages int64   `json:"dlqMessages"`
}

// queueOps answers with what happened on each queue per bucket. Buckets without activity are left out.
func (b *Broker) queueOps(x *exchange) error {
	args := x.args("from", "to", "queue")
	queue := args.Name("queue")
	now := time.Now()
	span, err := spanOf(args, now, defaultSpan)
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	points, err := b.db.QueueHistory(ctx, x.who.tenant, queue, span)
	if err != nil {
		return err
	}
	growth, err := b.db.PartitionGrowth(ctx, x.who.tenant, queue, span)
	if err != nil {
		return err
	}
	parked, err := b.parkedSteps(x.who.tenant, queue, span)
	if err != nil {
		return err
	}
	created, count := growthOf(growth)
	gauge := newParkedGauge(parked)
	rows, names := []opsRow{}, []string{}
	for i := range points {
		p := &points[i]
		seconds := covered(span, p.Bucket, now)
		rate := func(n int64) float64 { return round(float64(n) / seconds) }
		rows = append(rows, opsRow{
			Bucket: millis(p.Bucket), Queue: p.Queue, PushRequests: p.PushRequests, PushMessages: p.PushMessages,
			PopMessages: p.PopMessages, PopEmpty: p.PopEmpty, AckRequests: p.AckRequests, AckSuccess: p.AckSuccess, AckFailed: p.AckFailed,
			Transactions: p.Transactions, PartitionsCreated: created[growthKey{p.Queue, p.Bucket.Unix()}], PartitionCount: count(p.Queue, p.Bucket),
			AvgLagMs: round(p.AvgLagMs()), MaxLagMs: p.LagMaxMs, PushPerSecond: rate(p.PushMessages), PopPerSecond: rate(p.PopMessages),
			AckPerSecond: rate(p.AckSuccess + p.AckFailed), EmptyPerSecond: rate(p.PopEmpty), ParkedCount: gauge.until(p.Bucket.Add(span.Width)).total(p.Queue),
			DeadLetterMessages: p.DeadLetters,
		})
		if !slices.Contains(names, p.Queue) {
			names = append(names, p.Queue)
		}
	}
	slices.Sort(names)
	return x.answer(struct {
		TimeRange     timeRange `json:"timeRange"`
		BucketMinutes int       `json:"bucketMinutes"`
		Series        []opsRow  `json:"series"`
		Queues        []string  `json:"queues"`
	}{rangeOf(span), minutesOf(span.Width), rows, names})
}

type growthKey struct {
	queue  string
	bucket int64
}

// growthOf sorts what PartitionGrowth returned into the creations of a bucket and the count at its end.
func growthOf(all []store.Growth) (created map[growthKey]int64, count func(queue string, bucket time.Time) int64) {
	created = map[growthKey]int64{}
	steps := map[string][]store.Growth{}
	for _, g := range all {
		if !g.Bucket.IsZero() {
			created[growthKey{g.Queue, g.Bucket.Unix()}] = g.Created
		}
		steps[g.Queue] = append(steps[g.Queue], g)
	}
	return created, func(queue string, bucket time.Time) (n int64) {
		for _, g := range steps[queue] {
			if g.Bucket.After(bucket) {
				break
			}
			n += g.Created
		}
		return n
	}
}

// parkedSteps returns the changes of the number of waiting polls, with the end of every broker that ended.
func (b *Broker) parkedSteps(tenant uuid.UUID, queue string, span store.Span) ([]store.ParkedChange, error) {
	ctx, cancel := b.database()
	defer cancel()
	steps, err := b.db.Parked(ctx, tenant, queue, span)
	if err != nil || len(steps) == 0 {
		return steps, err
	}
	brokers, err := b.db.Brokers(ctx, span.From)
	if err != nil {
		return nil, err
	}
	seen := make(map[uuid.UUID]time.Time, len(brokers))
	for _, w := range brokers {
		seen[w.ID] = w.Seen
	}
	type lane struct {
		queue  string
		broker uuid.UUID
	}
	last := map[lane]int{}
	for _, s := range steps {
		last[lane{s.Queue, s.Broker}] = s.Parked
	}
	for l, polls := range last {
		// A broker with waiting polls writes every minute; one that was killed says nothing any more.
		if end := seen[l.broker].Add(parkedSilence); polls > 0 && end.Before(span.To) {
			steps = append(steps, store.ParkedChange{At: end, Queue: l.queue, Broker: l.broker})
		}
	}
	slices.SortStableFunc(steps, func(a, b store.ParkedChange) int { return a.At.Compare(b.At) })
	return steps, nil
}

const parkedSilence = 3 * historyEvery

// parkedGauge plays the changes back.
type parkedGauge struct {
	steps []store.ParkedChange
	now   map[string]map[uuid.UUID]int
}

func newParkedGauge(steps []store.ParkedChange) *parkedGauge {
	return &parkedGauge{steps: steps, now: map[string]map[uuid.UUID]int{}}
}

// until plays back what is before at; times must not go back.
func (g *parkedGauge) until(at time.Time) *parkedGauge {
	for len(g.steps) > 0 && g.steps[0].At.Before(at) {
		s := g.steps[0]
		g.steps = g.steps[1:]
		if g.now[s.Queue] == nil {
			g.now[s.Queue] = map[uuid.UUID]int{}
		}
		if s.Parked == 0 {
			delete(g.now[s.Queue], s.Broker)
		} else {
			g.now[s.Queue][s.Broker] = s.Parked
		}
	}
	return g
}

func (g *parkedGauge) total(queue string) (n int) {
	for _, p := range g.now[queue] {
		n += p
	}
	return n
}

// parkedReplicas answers with how many polls waited on each queue at each broker: a row per change and bucket.
func (b *Broker) parkedReplicas(x *exchange) error {
	args := x.args("from", "to", "queue")
	queue := args.Name("queue")
	span, err := spanOf(args, time.Now(), defaultSpan)
	if err != nil {
		return err
	}
	steps, err := b.parkedSteps(x.who.tenant, queue, span)
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	brokers, err := b.db.Brokers(ctx, span.From)
	if err != nil {
		return err
	}
	type row struct {
		Bucket   millis `json:"bucket"`
		Queue    string `json:"queueName"`
		Hostname string `json:"hostname"`
		WorkerID string `json:"workerId"`
		Parked   int    `json:"parkedCount"`
	}
	type replica struct {
		Hostname string `json:"hostname"`
		WorkerID string `json:"workerId"`
		Parked   int    `json:"parkedCount"` // now, on the queues asked for
	}
	hosts := map[uuid.UUID]string{}
	for _, w := range brokers {
		hosts[w.ID] = w.Hostname
	}
	series, replicas := []row{}, []replica{}
	for _, s := range steps {
		at := s.At
		if at.Before(span.From) {
			at = span.From
		}
		series = append(series, row{millis(at.Truncate(span.Width)), s.Queue, hosts[s.Broker], s.Broker.String(), s.Parked})
	}
	gauge := newParkedGauge(steps).until(span.To)
	for _, w := range brokers {
		r := replica{Hostname: w.Hostname, WorkerID: w.ID.String()}
		for _, q := range gauge.now {
			r.Parked += q[w.ID]
		}
		replicas = append(replicas, r)
	}
	return x.answer(struct {
		TimeRange     timeRange `json:"timeRange"`
		BucketMinutes int       `json:"bucketMinutes"`
		Series        []row     `json:"series"`
		Replicas      []replica `json:"replicas"`
	}{rangeOf(span), minutesOf(span.Width), series, replicas})
}

// loadRow is a queue with its share of the work.
type loadRow struct {
	Tenant        *uuid.UUID `json:"tenant,omitempty"` // where the answer is of all tenants
	Queue         string     `json:"queueName"`
	PushRequests  int64      `json:"pushRequests"`
	PushMessages  int64      `json:"pushMessages"`
	PopMessages   int64      `json:"popMessages"`
	AckSuccess    int64      `json:"ackSuccess"`
	AckFailed     int64      `json:"ackFailed"`
	DeadLetters   int64      `json:"dlqMessages"`
	AvgLagMs      float64    `json:"avgLagMs"`
	MaxLagMs      int64      `json:"maxLagMs"`
	PushPerSecond float64    `json:"pushPerSecond"`
	PopPerSecond  float64    `json:"popPerSecond"`
}

func loadRows(all []store.QueueLoad, span store.Span, now time.Time, named bool) []loadRow {
	seconds := max(minTime(span.To, now).Sub(span.From).Seconds(), 1)
	rows := make([]loadRow, len(all))
	for i := range all {
		q := &all[i]
		rows[i] = loadRow{
			nil, q.Queue, q.PushRequests, q.PushMessages, q.PopMessages, q.AckSuccess, q.AckFailed, q.DeadLetters, round(q.AvgLagMs()), q.LagMaxMs,
			round(float64(q.PushMessages) / seconds), round(float64(q.PopMessages) / seconds),
		}
		if named {
			rows[i].Tenant = &q.Tenant
		}
	}
	return rows
}

// workload answers with the busiest queues of the tenant.
func (b *Broker) workload(x *exchange) error {
	args := x.args("from", "to", "limit")
	limit := args.Int("limit", 200, 1, 1000)
	now := time.Now()
	span, err := spanOf(args, now, defaultSpan)
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	loads, err := b.db.Workload(ctx, x.who.tenant, span, limit)
	if err != nil {
		return err
	}
	var sum store.Activity
	for i := range loads {
		sum.Add(&loads[i].Activity)
	}
	return x.answer(struct {
		TimeRange timeRange `json:"timeRange"`
		Queues    []loadRow `json:"queues"`
		Totals    struct {
			Push int64 `json:"pushMessages"`
			Pop  int64 `json:"popMessages"`
			Ack  int64 `json:"ackMessages"`
		} `json:"totals"`
	}{TimeRange: rangeOf(span), Queues: loadRows(loads, span, now, false), Totals: struct {
		Push int64 `json:"pushMessages"`
		Pop  int64 `json:"popMessages"`
		Ack  int64 `json:"ackMessages"`
	}{sum.PushMessages, sum.PopMessages, sum.AckSuccess + sum.AckFailed}})
}
