package broker

import (
	"math"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// groupLagging is how many seconds old the oldest pending message of a group may be before the group counts as lagging.
const groupLagging = 300

// listGroups answers with a bare array, one entry per (group, queue). Besides the contract's names the entries have those
// that the existing command line reads.
func (b *Broker) listGroups(x *exchange) error {
	ctx, cancel := b.database()
	defer cancel()
	groups, err := b.db.Groups(ctx, x.who.tenant)
	if err != nil {
		return err
	}
	type entry struct {
		Name              string   `json:"name"`
		Topics            []string `json:"topics"`
		QueueName         string   `json:"queueName"`
		Queue             string   `json:"queue"`
		Members           int64    `json:"members"` // live leases
		PartitionCursors  int64    `json:"partitionCursors"`
		Partitions        int64    `json:"partitions"`
		PartitionsWithLag int64    `json:"partitionsWithLag"`
		TotalLag          int64    `json:"totalLag"`
		LagMessages       int64    `json:"lagMessages"`
		MaxTimeLag        int64    `json:"maxTimeLag"` // seconds
		LagSeconds        int64    `json:"lagSeconds"`
		State             string   `json:"state"`
		Storage           string   `json:"storage"`
		Mode              *string  `json:"subscriptionMode"`
		From              millis   `json:"subscriptionTimestamp"`
		Registered        millis   `json:"subscriptionCreatedAt"`
		Conflation        bool     `json:"conflation"`
	}
	all := make([]entry, len(groups))
	for i := range groups {
		g := &groups[i]
		all[i] = entry{
			Name: g.Name, Topics: []string{g.Queue}, QueueName: g.Queue, Queue: g.Queue, Members: g.Workers,
			PartitionCursors: g.Cursors, Partitions: g.Cursors, PartitionsWithLag: g.Lagging,
			TotalLag: g.Pending, LagMessages: g.Pending, MaxTimeLag: g.LagSeconds, LagSeconds: g.LagSeconds,
			State: groupState(g), Storage: "segments", From: millis(g.From), Registered: millis(g.Registered), Conflation: g.Conflation,
		}
		if g.Mode != "" {
			all[i].Mode = &g.Mode
		}
	}
	return x.answer(all)
}

// groupState is Dead for a group that has no cursor on the queue and is to get none: the queue is not there, or nobody has
// read it.
func groupState(g *store.Group) string {
	switch {
	case g.LagSeconds > groupLagging:
		return "Lagging"
	case g.Cursors == 0 && !g.Seeding:
		return "Dead"
	}
	return "Stable"
}

// laggingGroups answers with a bare array of the partitions where a group is behind, the oldest first.
func (b *Broker) laggingGroups(x *exchange) error {
	args := x.args("minLagSeconds")
	least := args.Int("minLagSeconds", 3600, 0, math.MaxInt32)
	if err := args.Err(); err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	behind, err := b.db.LaggingLanes(ctx, x.who.tenant, seconds(least))
	if err != nil {
		return err
	}
	type row struct {
		Group        string     `json:"consumer_group"`
		Queue        string     `json:"queue_name"`
		Partition    string     `json:"partition_name"`
		PartitionID  uuid.UUID  `json:"partition_id"`
		Worker       *uuid.UUID `json:"worker_id"`
		OffsetLag    int64      `json:"offset_lag"`
		TimeLag      int64      `json:"time_lag_seconds"`
		LagHours     float64    `json:"lag_hours"`
		Oldest       millis     `json:"oldest_unconsumed_at"`
		LastConsumed *string    `json:"last_consumed_at"` // nobody records it
	}
	rows := make([]row, len(behind))
	for i := range behind {
		l := &behind[i]
		rows[i] = row{
			Group: l.Group, Queue: l.Queue, Partition: l.Partition, PartitionID: l.PartitionID, Worker: worker(l),
			OffsetLag: l.Pending, TimeLag: l.LagSeconds, LagHours: math.Round(float64(l.LagSeconds)/36) / 100, Oldest: millis(l.Since),
		}
	}
	return x.answer(rows)
}

// worker is the lease that a lane is out under, nil for none.
func worker(l *store.Lane) *uuid.UUID {
	if l.Worker == uuid.Nil {
		return nil
	}
	return &l.Worker
}

// groupDetail answers with the partitions of a group by queue; an unknown group has none.
func (b *Broker) groupDetail(x *exchange) error {
	ctx, cancel := b.database()
	defer cancel()
	lanes, err := b.db.GroupLanes(ctx, x.who.tenant, x.params[0])
	if err != nil {
		return err
	}
	type partition struct {
		Partition    string     `json:"partition"`
		PartitionID  uuid.UUID  `json:"partitionId"`
		Worker       *uuid.UUID `json:"workerId"`
		LastConsumed millis     `json:"lastConsumedAt"` // when the live lease was granted
		Consumed     int64      `json:"totalConsumed"`
		OffsetLag    int64      `json:"offsetLag"`
		TimeLag      int64      `json:"timeLagSeconds"`
		LeaseActive  bool       `json:"leaseActive"`
	}
	type queue struct {
		Conflation bool        `json:"conflation"`
		Partitions []partition `json:"partitions"`
	}
	queues := map[string]*queue{}
	for i := range lanes {
		l := &lanes[i]
		q := queues[l.Queue]
		if q == nil {
			q = &queue{Conflation: l.Conflation}
			queues[l.Queue] = q
		}
		q.Partitions = append(q.Partitions, partition{
			Partition: l.Partition, PartitionID: l.PartitionID, Worker: worker(l), LastConsumed: millis(l.Acquired),
			Consumed: l.Consumed, OffsetLag: l.Pending, TimeLag: l.LagSeconds, LeaseActive: l.Worker != uuid.Nil,
		})
	}
	return x.answer(queues)
}

// setSubscription changes where a group starts on partitions that it has not read yet.
func (b *Broker) setSubscription(x *exchange) error {
	from, err := wire.ScanSubscription(x.ctx.PostBody())
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	n, err := b.db.SetSubscription(ctx, x.who.tenant, x.params[0], from)
	if err != nil {
		return err
	}
	return x.answer(struct {
		Success bool   `json:"success"`
		Group   string `json:"consumerGroup"`
		From    millis `json:"newTimestamp"`
		Rows    int64  `json:"rowsUpdated"`
	}{true, x.params[0], millis(from), n})
}

// seek moves the cursors of a group on a queue or on one partition, and wakes who waits for them.
func (b *Broker) seek(x *exchange) error {
	group, queue, partition := x.params[0], x.params[1], x.params[2]
	one := x.route.Op == wire.OpSeekPartition
	to, err := wire.ScanSeek(x.ctx.PostBody())
	if err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	n, err := b.db.Seek(ctx, x.who.tenant, group, queue, partition, to)
	if err != nil {
		return err
	}
	switch {
	case n == 0 && one:
		x.preface = append(x.preface, `"success":false,`...)
		return wire.Errorf(wire.NotFound, "Partition not found")
	case n == 0:
		x.preface = append(x.preface, `"success":false,`...)
		return wire.Errorf(wire.NotFound, "Queue not found or has no partitions")
	}
	b.moved(x.who.tenant, queue, group)
	type answer struct {
		Success   bool   `json:"success"`
		Group     string `json:"consumerGroup"`
		Queue     string `json:"queueName"`
		Partition string `json:"partitionName,omitempty"`
		ToEnd     bool   `json:"seekToEnd"`
		At        millis `json:"targetTimestamp"` // null: the end
		Updated   *bool  `json:"updated,omitempty"`
		Moved     *int64 `json:"partitionsUpdated,omitempty"`
	}
	a := answer{Success: true, Group: group, Queue: queue, Partition: partition, ToEnd: to.ToEnd, At: millis(to.At)}
	if one {
		a.Updated = &a.Success
	} else {
		a.Moved = &n
	}
	return x.answer(a)
}

// deleteGroup forgets a group on a queue or everywhere: 200 whether or not there was one. With deleteMetadata=false its
// registrations stay, and the group starts over by them.
func (b *Broker) deleteGroup(x *exchange) error {
	group, queue := x.params[0], x.params[1]
	args := x.args("deleteMetadata")
	registrations := args.Bool("deleteMetadata", true)
	if err := args.Err(); err != nil {
		return err
	}
	ctx, cancel := b.database()
	defer cancel()
	gone, err := b.db.DeleteGroup(ctx, x.who.tenant, group, queue, registrations)
	if err != nil {
		return err
	}
	for _, q := range gone.Queues {
		b.moved(x.who.tenant, q, group)
	}
	return x.answer(struct {
		Success       bool   `json:"success"`
		Group         string `json:"consumerGroup"`
		Queue         string `json:"queueName,omitempty"`
		Cursors       int64  `json:"deletedPartitions"`
		Registrations bool   `json:"metadataDeleted"`
	}{true, group, queue, gone.Cursors, registrations})
}
