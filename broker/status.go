package broker

import (
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// engine names what keeps the messages, as /health does.
const engine = "postgres"

// statusQueueRow is a queue in a list. The counters stand twice: clients of different ages look in different places.
type statusQueueRow struct {
	ID         uuid.UUID    `json:"id"`
	Name       string       `json:"name"`
	Namespace  string       `json:"namespace"`
	Task       string       `json:"task"`
	CreatedAt  millis       `json:"createdAt"`
	Partitions int64        `json:"partitions"`
	Messages   statusCounts `json:"messages"`
	Pending    int64        `json:"pending"`
	Processing int64        `json:"processing"`
	Completed  int64        `json:"completed"`
	DLQ        int64        `json:"dlq"`
	Retained   int64        `json:"retainedBytes"`
}

type statusCounts struct {
	Total      int64 `json:"total"`
	Pending    int64 `json:"pending"`
	Processing int64 `json:"processing"`
	Completed  int64 `json:"completed"`
	DeadLetter int64 `json:"deadLetter"`
}

func countsOf(c store.Counts) statusCounts {
	return statusCounts{c.Total, c.Pending, c.Processing, c.Completed(), c.DeadLetter}
}

func (c *statusCounts) add(o statusCounts) {
	c.Total += o.Total
	c.Pending += o.Pending
	c.Processing += o.Processing
	c.Completed += o.Completed
	c.DeadLetter += o.DeadLetter
}

// summaries returns the tenant's queues that f lets pass, with their dead letters.
func (b *Broker) summaries(tenant uuid.UUID, f store.ResourceFilter) ([]store.Summary, error) {
	ctx, cancel := b.database()
	defer cancel()
	queues, err := b.db.Queues(ctx, tenant, f)
	if err != nil {
		return nil, err
	}
	dead, err := b.db.DeadLetterCounts(ctx, tenant)
	if err != nil {
		return nil, err
	}
	for i := range queues {
		queues[i].DeadLetter = dead[queues[i].Name]
	}
	return queues, nil
}

// statusQueues answers with a page of the tenant's queues, by name.
func (b *Broker) statusQueues(x *exchange) error {
	args := x.args("limit", "offset", "namespace", "task")
	page, filter := args.Page(100, 10_000), store.ResourceFilter{Namespace: args.Name("namespace"), Task: args.Name("task")}
	if err := args.Err(); err != nil {
		return err
	}
	queues, err := b.summaries(x.who.tenant, filter)
	if err != nil {
		return err
	}
	rows := []statusQueueRow{}
	for _, q := range cut(queues, page) {
		c := countsOf(q.Counts)
		rows = append(rows, statusQueueRow{
			q.UID, q.Name, q.Options.Namespace, q.Options.Task, millis(q.Created), q.Partitions, c,
			c.Pending, c.Processing, c.Completed, c.DeadLetter, q.RetainedBytes,
		})
	}
	type paging struct {
		pagination
		Total int `json:"total"`
	}
	return x.answer(struct {
		Queues     []statusQueueRow `json:"queues"`
		Pagination paging           `json:"pagination"`
	}{rows, paging{pagination(page), len(queues)}})
}

// statusPartition is a partition of one queue. stats repeats messages under the name that another reader knows.
type statusPartition struct {
	ID        uuid.UUID    `json:"id"`
	Name      string       `json:"name"`
	CreatedAt millis       `json:"createdAt"`
	Messages  statusCounts `json:"messages"`
	Stats     statusCounts `json:"stats"`
	Cursor    struct {
		Consumed int64 `json:"totalConsumed"`
		Batches  int64 `json:"batchesConsumed"` // not kept: always 0
	} `json:"cursor"`
	LastActivity  millis `json:"lastActivity"`
	OldestMessage millis `json:"oldestMessage"`
	NewestMessage millis `json:"newestMessage"`
	Pending       int64  `json:"pending"`
	Processing    int64  `json:"processing"`
	Completed     int64  `json:"completed"`
	DLQ           int64  `json:"dlq"`
	Total         int64  `json:"total"`
}

// statusQueue answers with one queue and its partitions, or 404.
func (b *Broker) statusQueue(x *exchange) error {
	ctx, cancel := b.database()
	defer cancel()
	q, parts, err := b.queueInPath(ctx, x)
	if err != nil {
		return err
	}
	activity, err := b.db.QueueActivity(ctx, q)
	if err != nil {
		return err
	}
	type config struct {
		LeaseTime       int  `json:"leaseTime"`
		RetryLimit      int  `json:"retryLimit"`
		RetryDelay      int  `json:"retryDelay"`
		TTL             int  `json:"ttl"`
		MaxQueueSize    int  `json:"maxQueueSize"`
		DeadLetterQueue bool `json:"deadLetterQueue"`
	}
	var answer struct {
		Queue struct {
			ID        uuid.UUID `json:"id"`
			Name      string    `json:"name"`
			Namespace string    `json:"namespace"`
			Task      string    `json:"task"`
			Priority  int       `json:"priority"`
			CreatedAt millis    `json:"createdAt"`
			Config    config    `json:"config"`
		} `json:"queue"`
		Partitions []statusPartition `json:"partitions"`
		Totals     struct {
			Messages   statusCounts `json:"messages"`
			Partitions int          `json:"partitions"`
			Consumed   int64        `json:"totalConsumed"`
			Retained   int64        `json:"retainedBytes"`
		} `json:"totals"`
	}
	o, a := &q.Options, &answer
	a.Queue.ID, a.Queue.Name, a.Queue.Namespace, a.Queue.Task = q.UID, q.Name, o.Namespace, o.Task
	a.Queue.Priority, a.Queue.CreatedAt = o.Priority, millis(q.Created)
	a.Queue.Config = config{o.LeaseTime, o.RetryLimit, o.RetryDelay, o.TTL, o.MaxSize, o.DeadLetterQueue}
	a.Partitions = make([]statusPartition, len(parts))
	for i := range parts {
		p, to := &parts[i], &a.Partitions[i]
		c, last := countsOf(p.Counts), activity[p.ID]
		to.ID, to.Name, to.CreatedAt, to.Messages, to.Stats = p.UID, p.Name, millis(p.Created), c, c
		to.Cursor.Consumed, to.LastActivity = last.Consumed, millis(last.LastWrite)
		to.OldestMessage, to.NewestMessage = millis(p.Oldest), millis(p.Newest)
		to.Pending, to.Processing, to.Completed, to.DLQ, to.Total = c.Pending, c.Processing, c.Completed, c.DeadLetter, c.Total
		a.Totals.Messages.add(c)
		a.Totals.Consumed += last.Consumed
		a.Totals.Retained += p.RetainedBytes
	}
	a.Totals.Partitions = len(parts)
	return x.answer(answer)
}

// status answers /status with the fact that the process serves, and /api/v1/status with the state of the tenant and
// of the process in one picture.
func (b *Broker) status(x *exchange) error {
	if x.route.Pattern == "/status" {
		return x.answer(struct {
			Status string `json:"status"`
			Engine string `json:"engine"`
		}{"ok", engine})
	}
	args := x.args("from", "to")
	now := time.Now()
	span, err := spanOf(args, now, defaultSpan)
	if err != nil {
		return err
	}
	p, err := b.picture(x.who.tenant, span, now)
	if err != nil {
		return err
	}
	return x.answer(p)
}

// picture is the answer of /api/v1/status.
type picture struct {
	TimeRange     timeRange       `json:"timeRange"`
	BucketMinutes int             `json:"bucketMinutes"`
	PointCount    int             `json:"pointCount"`
	Throughput    []throughputRow `json:"throughput"`
	Queues        []pictureQueue  `json:"queues"`
	Messages      pictureMessages `json:"messages"`
	Leases        struct {
		Active     int64 `json:"active"`
		Partitions int64 `json:"partitionsWithLeases"`
		Batch      int64 `json:"totalBatchSize"`
		Acked      int64 `json:"totalAcked"`
	} `json:"leases"`
	DeadLetters pictureDeadLetters `json:"deadLetterQueue"`
	Workers     []workerRow        `json:"workers"`
	Errors      struct {
		DB          int64 `json:"dbErrors"`
		AckFailed   int64 `json:"ackFailed"`
		DeadLetters int64 `json:"dlqMessages"`
	} `json:"errors"`
	StatsAge int `json:"statsAge"` // seconds: the numbers are computed when they are asked for
}

type pictureQueue struct {
	ID         uuid.UUID `json:"id"`
	Name       string    `json:"name"`
	Namespace  string    `json:"namespace"`
	Task       string    `json:"task"`
	Partitions int64     `json:"partitions"`
	Consumed   int64     `json:"totalConsumed"`
}

type pictureMessages struct {
	statusCounts
	Failed   int64 `json:"failed"`
	Requests struct {
		Push int64 `json:"push"`
		Pop  int64 `json:"pop"`
		Ack  int64 `json:"ack"`
	} `json:"requests"`
	Efficiency struct {
		Push float64 `json:"push"` // messages per request
		Pop  float64 `json:"pop"`
		Ack  float64 `json:"ack"`
	} `json:"batchEfficiency"`
}

type pictureDeadLetters struct {
	Total      int64        `json:"totalMessages"`
	Partitions int64        `json:"affectedPartitions"`
	TopErrors  []errorCount `json:"topErrors"`
}

type errorCount struct {
	Error string `json:"error"`
	Count int64  `json:"count"`
}

func (b *Broker) picture(tenant uuid.UUID, span store.Span, now time.Time) (*picture, error) {
	queues, err := b.summaries(tenant, store.ResourceFilter{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := b.database()
	defer cancel()
	points, err := b.db.TenantHistory(ctx, tenant, span)
	if err != nil {
		return nil, err
	}
	process, err := b.db.ProcessHistory(ctx, span)
	if err != nil {
		return nil, err
	}
	brokers, err := b.db.Brokers(ctx, span.From)
	if err != nil {
		return nil, err
	}
	leases, consumed, err := b.db.Leases(ctx, tenant)
	if err != nil {
		return nil, err
	}
	dead, err := b.db.DeadLetters(ctx, tenant)
	if err != nil {
		return nil, err
	}
	p := &picture{
		TimeRange: rangeOf(span), BucketMinutes: minutesOf(span.Width), Throughput: throughput(span, points, process, now),
		Queues: []pictureQueue{}, Workers: b.workers(brokers, process),
	}
	p.PointCount = len(p.Throughput)
	for i := range queues {
		q := &queues[i]
		p.Queues = append(p.Queues, pictureQueue{q.UID, q.Name, q.Options.Namespace, q.Options.Task, q.Partitions, consumed[q.Name]})
		p.Messages.add(countsOf(q.Counts))
	}
	var sum store.Activity
	for i := range points {
		sum.Add(&points[i].Activity)
	}
	m := &p.Messages
	m.Failed, m.Requests.Push, m.Requests.Pop, m.Requests.Ack = sum.AckFailed, sum.PushRequests, sum.PopRequests+sum.PopEmpty, sum.AckRequests
	m.Efficiency.Push, m.Efficiency.Pop = per(sum.PushMessages, sum.PushRequests), per(sum.PopMessages, sum.PopRequests)
	m.Efficiency.Ack = per(sum.AckSuccess+sum.AckFailed, sum.AckRequests)
	p.Leases.Active, p.Leases.Partitions, p.Leases.Batch, p.Leases.Acked = leases.Active, leases.Partitions, leases.Batch, leases.Consumed
	p.DeadLetters = pictureDeadLetters{dead.Total, dead.Partitions, []errorCount{}}
	for _, e := range dead.TopErrors {
		p.DeadLetters.TopErrors = append(p.DeadLetters.TopErrors, errorCount(e))
	}
	p.Errors.AckFailed, p.Errors.DeadLetters = sum.AckFailed, sum.DeadLetters
	for i := range process {
		p.Errors.DB += process[i].DBErrors
	}
	return p, nil
}

func per(n, of int64) float64 {
	if of == 0 {
		return 0
	}
	return round(float64(n) / float64(of))
}

// statusAnalytics answers with the number of messages pushed per interval.
func (b *Broker) statusAnalytics(x *exchange) error {
	args := x.args("interval", "from", "to")
	interval := args.OneOf("interval", "hour", "minute", "day")
	span, err := spanOf(args, time.Now(), 24*time.Hour)
	if err != nil {
		return err
	}
	span.Width = map[string]time.Duration{"minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour}[interval]
	if span.To.Sub(span.From) > maxIntervals*span.Width {
		return wire.Errorf(wire.InvalidRequest, "the range has more than %d intervals", maxIntervals)
	}
	ctx, cancel := b.database()
	defer cancel()
	points, err := b.db.TenantHistory(ctx, x.who.tenant, span)
	if err != nil {
		return err
	}
	type dataPoint struct {
		Timestamp millis `json:"timestamp"`
		Messages  int64  `json:"messages"`
	}
	data := []dataPoint{}
	for i := range points {
		data = append(data, dataPoint{millis(points[i].Bucket), points[i].PushMessages})
	}
	return x.answer(struct {
		DataPoints []dataPoint `json:"dataPoints"`
		Interval   string      `json:"interval"`
		From       millis      `json:"from"`
		To         millis      `json:"to"`
	}{data, interval, millis(span.From), millis(span.To)})
}

// maxIntervals bounds the points of one answer: a week of minutes.
const maxIntervals = 7 * 24 * 60

// statusBuffers answers for the outage spool of this broker.
func (b *Broker) statusBuffers(x *exchange) error {
	healthy := b.pinger.check(pingShared) == nil
	return x.answer(struct {
		Pending   int  `json:"pending"`
		Failed    int  `json:"failed"`
		DBHealthy bool `json:"dbHealthy"`
		Worker    int  `json:"worker"`
	}{b.spooled.messages(), int(b.spooled.stats().Quarantined), healthy, 0})
}
