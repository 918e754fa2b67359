package broker

import (
	"math"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// counts are the messages of something as its slowest reader sees them.
type counts struct {
	Total      int64  `json:"total"`
	Pending    int64  `json:"pending"`
	Processing int64  `json:"processing"`
	Completed  int64  `json:"completed"`
	Failed     *int64 `json:"failed"` // null: what fails is pending again or a dead letter
	DeadLetter int64  `json:"deadLetter"`
}

func countsFrom(c *store.Counts) counts {
	return counts{Total: c.Total, Pending: c.Pending, Processing: c.Processing, Completed: c.Completed(), DeadLetter: c.DeadLetter}
}

// filter reads the parameters by which listings are narrowed; without a limit all is listed unless def says otherwise.
func (x *exchange) filter(def int) (store.ResourceFilter, error) {
	args := x.args("queue", "partition", "namespace", "task", "limit", "offset")
	f := store.ResourceFilter{
		Queue: args.Name("queue"), Partition: args.Name("partition"), Namespace: args.Name("namespace"), Task: args.Name("task"),
		Page: wire.Page{Limit: args.Int("limit", def, 1, math.MaxInt32), Offset: args.Int("offset", 0, 0, math.MaxInt32)},
	}
	return f, args.Err()
}

// overview answers with the totals of the tenant.
func (b *Broker) overview(x *exchange) error {
	ctx, cancel := b.database()
	defer cancel()
	o, err := b.db.Overview(ctx, x.who.tenant)
	if err != nil {
		return err
	}
	type spread struct {
		Avg    float64 `json:"avg"`
		Median float64 `json:"median"`
		Min    float64 `json:"min"`
		Max    float64 `json:"max"`
	}
	of := func(s store.Spread) spread {
		return spread{round(s.Avg), round(s.Median), round(s.Min), round(s.Max)}
	}
	var a struct {
		Queues     int64  `json:"queues"`
		Partitions int64  `json:"partitions"`
		Namespaces int64  `json:"namespaces"`
		Tasks      int64  `json:"tasks"`
		Messages   counts `json:"messages"`
		Lag        struct {
			Time   spread `json:"time"`   // seconds, over partitions with something pending
			Offset spread `json:"offset"` // messages, likewise
		} `json:"lag"`
		Throughput struct {
			Ingested  float64 `json:"ingestedPerSecond"`
			Processed float64 `json:"processedPerSecond"`
		} `json:"throughput"`
		At       millis `json:"timestamp"`
		StatsAge int    `json:"statsAge"` // always fresh
	}
	a.Queues, a.Partitions, a.Namespaces, a.Tasks = o.Queues, o.Partitions, o.Namespaces, o.Tasks
	a.Messages = countsFrom(&o.Counts)
	a.Messages.Failed = new(int64)
	a.Lag.Time, a.Lag.Offset = of(o.LagSeconds), of(o.LagMessages)
	a.Throughput.Ingested, a.Throughput.Processed = round(o.IngestedPerSecond), round(o.ProcessedPerSecond)
	a.At = millis(o.At)
	return x.answer(a)
}

// scopeEntry is a namespace or a task in a listing. Besides the contract's names it has those that the existing command
// line reads.
type scopeEntry struct {
	Namespace      string `json:"namespace,omitempty"`
	Task           string `json:"task,omitempty"`
	Name           string `json:"name"`
	Queues         int64  `json:"queues"`
	QueueCount     int64  `json:"queueCount"`
	TaskCount      *int64 `json:"taskCount,omitempty"`
	NamespaceCount *int64 `json:"namespaceCount,omitempty"`
	Partitions     int64  `json:"partitions"`
	Messages       struct {
		Total      int64 `json:"total"`
		Pending    int64 `json:"pending"`
		Processing int64 `json:"processing"`
	} `json:"messages"`
}

func scopeEntries(scopes []store.ScopeSummary, finish func(*scopeEntry, *int64)) []scopeEntry {
	all := make([]scopeEntry, len(scopes))
	for i := range scopes {
		s, e := &scopes[i], &all[i]
		e.Name, e.Queues, e.QueueCount, e.Partitions = s.Name, s.Queues, s.Queues, s.Partitions
		e.Messages.Total, e.Messages.Pending, e.Messages.Processing = s.Total, s.Pending, s.Processing
		finish(e, &s.Others)
	}
	return all
}

// namespaces answers with the namespaces of the tenant's queues.
func (b *Broker) namespaces(x *exchange) error {
	ctx, cancel := b.database()
	defer cancel()
	all, err := b.db.Namespaces(ctx, x.who.tenant)
	if err != nil {
		return err
	}
	return x.answer(struct {
		Namespaces []scopeEntry `json:"namespaces"`
	}{scopeEntries(all, func(e *scopeEntry, tasks *int64) { e.Namespace, e.TaskCount = e.Name, tasks })})
}

// tasks answers with the tasks of the tenant's queues.
func (b *Broker) tasks(x *exchange) error {
	ctx, cancel := b.database()
	defer cancel()
	all, err := b.db.Tasks(ctx, x.who.tenant)
	if err != nil {
		return err
	}
	return x.answer(struct {
		Tasks []scopeEntry `json:"tasks"`
	}{scopeEntries(all, func(e *scopeEntry, namespaces *int64) { e.Task, e.NamespaceCount = e.Name, namespaces })})
}

// partitionEntry is a partition with its numbers.
type partitionEntry struct {
	ID      uuid.UUID `json:"id"`
	Name    string    `json:"name"`
	Created millis    `json:"createdAt"`
	Stats   counts    `json:"stats"`
	Oldest  millis    `json:"oldestMessage"`
	Newest  millis    `json:"newestMessage"`
}

func partitionOf(p *store.PartitionDetail) partitionEntry {
	return partitionEntry{
		ID: p.UID, Name: p.Name, Created: millis(p.Created), Stats: countsFrom(&p.Counts), Oldest: millis(p.Oldest), Newest: millis(p.Newest),
	}
}

// partitionPage is how many partitions are listed when the query does not say.
const partitionPage = 1000

// listPartitions answers with a page of the tenant's partitions by queue and name; total says how many match in all.
func (b *Broker) listPartitions(x *exchange) error {
	f, err := x.filter(partitionPage)
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	page, total, err := b.db.Partitions(ctx, x.who.tenant, f)
	if err != nil {
		return err
	}
	type entry struct {
		partitionEntry
		Queue     string `json:"queue"`
		Namespace string `json:"namespace"`
		Task      string `json:"task"`
		Retained  int64  `json:"retainedBytes"`
		Segments  int64  `json:"segments"`
	}
	all := make([]entry, len(page))
	for i := range page {
		p := &page[i]
		all[i] = entry{partitionOf(&p.PartitionDetail), p.Queue, p.Namespace, p.Task, p.RetainedBytes, p.Segments}
	}
	return x.answer(struct {
		Partitions []entry    `json:"partitions"`
		Pagination pagination `json:"pagination"`
		Total      int64      `json:"total"`
	}{all, pagination{f.Limit, f.Offset}, total})
}

// queueDepth answers with what a group has to read in a queue, or 404.
func (b *Broker) queueDepth(x *exchange) error {
	args := x.args("group")
	group := args.Name("group")
	if group == "" {
		group = wire.QueueModeGroup
	}
	if err := args.Err(); err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	q, err := b.db.LookupQueue(ctx, x.who.tenant, x.params[0])
	if err != nil {
		return err
	}
	if q == nil {
		return wire.Errorf(wire.NotFound, "Queue not found")
	}
	d, err := b.db.QueueDepth(ctx, q, group)
	if err != nil {
		return err
	}
	type partition struct {
		Partition  string `json:"partition"`
		Pending    int64  `json:"pending"`
		Processing int64  `json:"processing"`
		Ready      int64  `json:"ready"`
	}
	var a struct {
		Queue             string      `json:"queue"`
		Group             string      `json:"group"`
		Pending           int64       `json:"pending"`
		Processing        int64       `json:"processing"`
		Ready             int64       `json:"ready"`
		PartitionsPending int64       `json:"partitionsPending"`
		PartitionsReady   int64       `json:"partitionsReady"`
		Conflation        bool        `json:"conflation"`
		EffectivePending  int64       `json:"effectivePending"`
		EffectiveReady    int64       `json:"effectiveReady"`
		Partitions        []partition `json:"partitions"`
	}
	a.Queue, a.Group, a.Conflation, a.Partitions = q.Name, group, d.Conflation, make([]partition, len(d.Partitions))
	for i, p := range d.Partitions {
		ready := p.Pending - p.Processing
		a.Partitions[i] = partition{p.Partition, p.Pending, p.Processing, ready}
		a.Pending += p.Pending
		a.Processing += p.Processing
		a.Ready += ready
		if p.Pending > 0 {
			a.PartitionsPending++
		}
		if ready > 0 {
			a.PartitionsReady++
		}
	}
	a.EffectivePending, a.EffectiveReady = a.Pending, a.Ready
	if a.Conflation {
		a.EffectivePending, a.EffectiveReady = a.PartitionsPending, a.PartitionsReady
	}
	return x.answer(a)
}

// clearQueue removes what a queue or, with partition=, one of its partitions holds, dedup keys included; the queue with
// its options and the subscriptions of its groups stay.
func (b *Broker) clearQueue(x *exchange) error {
	queue := x.params[0]
	args := x.args("partition")
	partition := args.Name("partition")
	if err := args.Err(); err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	gone, err := b.db.ClearQueue(ctx, x.who.tenant, queue, partition)
	if err != nil {
		return err
	}
	if !gone.Existed {
		return wire.Errorf(wire.NotFound, "Queue not found")
	}
	b.vanished(x.who.tenant, queue, gone.Partitions)
	return x.answer(struct {
		Success    bool   `json:"success"`
		Queue      string `json:"queue"`
		Partition  string `json:"partition,omitempty"`
		Cleared    bool   `json:"cleared"`
		Partitions int    `json:"deletedPartitions"`
		Messages   int64  `json:"deletedMessages"`
	}{true, queue, partition, true, len(gone.Partitions), gone.Messages})
}

// vanished makes this broker forget partitions of a queue that were deleted, and sweep what they leave.
func (b *Broker) vanished(tenant uuid.UUID, queue string, partitions []int64) {
	b.fuser.Forget(partitions)
	b.moved(tenant, queue, "")
	b.feed.fold()
	b.feed.swept.Store(false)
}
