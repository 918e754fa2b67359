package client

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/queengate/queengate/wire"
)

// QueueOptions are the options that [Client.Configure] names; nil ones are not named. Write them as new(30 * time.Second).
type QueueOptions struct {
	Namespace, Task    *string
	LeaseTime          *time.Duration // whole seconds, at least 1
	RetryLimit         *int           // failures of a message before it becomes a dead letter
	DeadLetterQueue    *bool          // keep what is given up; off, it is dropped
	DelayedProcessing  *time.Duration // whole seconds: a message is not delivered before it is that old
	WindowBuffer       *time.Duration // whole seconds: a partition is not read before it was quiet for so long
	RetentionEnabled   *bool
	Retention          *time.Duration // whole seconds; deletes what is older, read or not
	CompletedRetention *time.Duration // whole seconds; deletes what is older and was read by every group
	MaxWaitTime        *time.Duration // whole seconds; deletes what waited longer unread
	MinPopWaitTime     *time.Duration // milliseconds: how long a pop holds out for a full batch
	EncryptionEnabled  *bool
	DedupWindow        *time.Duration // whole seconds: how long a transaction id is remembered; 0 switches that off
}

func (o *QueueOptions) encode() map[string]any {
	m := map[string]any{}
	for name, v := range map[string]*time.Duration{
		"leaseTime": o.LeaseTime, "delayedProcessing": o.DelayedProcessing, "windowBuffer": o.WindowBuffer,
		"retentionSeconds": o.Retention, "completedRetentionSeconds": o.CompletedRetention, "maxWaitTimeSeconds": o.MaxWaitTime,
		"dedupWindowSeconds": o.DedupWindow,
	} {
		if v != nil {
			m[name] = seconds(*v)
		}
	}
	if o.MinPopWaitTime != nil {
		m["minPopWaitTime"] = o.MinPopWaitTime.Milliseconds()
	}
	for name, v := range map[string]*bool{"retentionEnabled": o.RetentionEnabled, "encryptionEnabled": o.EncryptionEnabled} {
		if v != nil {
			m[name] = *v
		}
	}
	if v := o.DeadLetterQueue; v != nil {
		m["deadLetterQueue"], m["dlqAfterMaxRetries"] = *v, *v // either of them switches it on
	}
	if o.RetryLimit != nil {
		m["retryLimit"] = *o.RetryLimit
	}
	for name, v := range map[string]*string{"namespace": o.Namespace, "task": o.Task} {
		if v != nil {
			m[name] = *v
		}
	}
	return m
}

// Configure makes a queue or changes its options, and returns the effective ones in the units of the wire. With
// wire.ConfigureMerge what is not named stays as it is, with wire.ConfigureReplace it returns to its default, with
// wire.ConfigureDefault the server decides.
func (c *Client) Configure(ctx context.Context, queue string, o QueueOptions, mode wire.ConfigureMode) (wire.QueueOptions, error) {
	body := struct {
		Queue   string             `json:"queue"`
		Options map[string]any     `json:"options"`
		Mode    wire.ConfigureMode `json:"mode,omitempty"`
	}{queue, o.encode(), mode}
	var answer struct {
		Configured bool              `json:"configured"`
		Options    wire.QueueOptions `json:"options"` // its names are those of the wire but for case
	}
	r, err := c.ask(ctx, &call{method: "POST", path: "/api/v1/configure", body: body, repeatable: true}, &answer)
	if err == nil && !answer.Configured {
		err = r.strange(errors.New("the queue is not configured"))
	}
	return answer.Options, err
}

// Counts count messages as the cursor sees them that readers without a group share.
type Counts struct {
	Total      int64 `json:"total"`
	Pending    int64 `json:"pending"`
	Processing int64 `json:"processing"` // leased
	Completed  int64 `json:"completed"`
	DeadLetter int64 `json:"deadLetter"`
}

// Queue is a queue in a listing.
type Queue struct {
	ID            string    `json:"id"`
	Name          string    `json:"name"`
	Namespace     string    `json:"namespace"`
	Task          string    `json:"task"`
	CreatedAt     time.Time `json:"createdAt"`
	Partitions    int64     `json:"partitions"`
	RetainedBytes int64     `json:"retainedBytes"` // of payloads
	Messages      Counts    `json:"messages"`
}

// Queues returns all queues of the cluster.
func (c *Client) Queues(ctx context.Context) ([]Queue, error) {
	var answer struct {
		Queues []Queue `json:"queues"`
	}
	_, err := c.ask(ctx, &call{method: "GET", path: "/api/v1/resources/queues", repeatable: true}, &answer)
	return answer.Queues, err
}

// QueueDetail is one queue with its options and partitions.
type QueueDetail struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`
	CreatedAt     time.Time         `json:"createdAt"`
	Options       wire.QueueOptions `json:"options"`
	Partitions    []Partition       `json:"partitions"`
	Totals        Counts            `json:"totals"`
	RetainedBytes int64             `json:"retainedBytes"`
}

// Partition is a partition in a [QueueDetail].
type Partition struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`
	Stats     Counts    `json:"stats"`
}

// Queue returns one queue. One that does not exist is an [*Error] with Status 404.
func (c *Client) Queue(ctx context.Context, name string) (q QueueDetail, err error) {
	_, err = c.ask(ctx, &call{method: "GET", path: "/api/v1/resources/queues/" + url.PathEscape(name), repeatable: true}, &q)
	return q, err
}

// DeleteQueue deletes a queue with its messages, cursors, groups and dead letters, and reports whether it existed. A repeat
// that finds nothing after a lost answer reports false.
func (c *Client) DeleteQueue(ctx context.Context, name string) (existed bool, err error) {
	var answer struct {
		Existed bool `json:"existed"`
	}
	_, err = c.ask(ctx, &call{method: "DELETE", path: "/api/v1/resources/queues/" + url.PathEscape(name), repeatable: true}, &answer)
	return answer.Existed, err
}

// Group is a consumer group on one queue.
type Group struct {
	Name              string    `json:"name"`
	Queue             string    `json:"queueName"`
	Members           int64     `json:"members"` // live leases
	PartitionCursors  int64     `json:"partitionCursors"`
	PartitionsWithLag int64     `json:"partitionsWithLag"`
	Lag               int64     `json:"totalLag"`   // messages
	LagSeconds        int64     `json:"maxTimeLag"` // age of the oldest message not read
	State             string    `json:"state"`      // Stable, Lagging, Dead
	SubscriptionMode  string    `json:"subscriptionMode"`
	SubscriptionFrom  time.Time `json:"subscriptionTimestamp"`
}

// Groups returns the consumer groups of the cluster, one entry per group and queue.
func (c *Client) Groups(ctx context.Context) (groups []Group, err error) {
	_, err = c.ask(ctx, &call{method: "GET", path: "/api/v1/consumer-groups", repeatable: true}, &groups)
	return groups, err
}

// DeleteGroup forgets the cursors and registrations of a group on a queue, or on all with "": if it comes back, it starts
// anew. It returns how many cursors there were.
func (c *Client) DeleteGroup(ctx context.Context, group, queue string) (cursors int64, err error) {
	path := "/api/v1/consumer-groups/" + url.PathEscape(group)
	if queue != "" {
		path += "/queues/" + url.PathEscape(queue)
	}
	var answer struct {
		Cursors int64 `json:"deletedPartitions"`
	}
	_, err = c.ask(ctx, &call{method: "DELETE", path: path, repeatable: true}, &answer)
	return answer.Cursors, err
}

// Position is where a seek moves cursors: to the first message of a time or later, or with the zero value to the end.
type Position struct{ Time time.Time }

func (p Position) encode() map[string]any {
	if p.Time.IsZero() {
		return map[string]any{"toEnd": true}
	}
	return map[string]any{"timestamp": p.Time.UTC().Format(time.RFC3339Nano)}
}

// Seek moves the cursors of a group on a queue, or on one partition if it is not "", and ends their leases. group "" means
// the cursor of all readers without one. A queue or partition that does not exist is an [*Error] with Status 404.
func (c *Client) Seek(ctx context.Context, group, queue, partition string, to Position) error {
	if group == "" {
		group = wire.QueueModeGroup
	}
	path := "/api/v1/consumer-groups/" + url.PathEscape(group) + "/queues/" + url.PathEscape(queue)
	if partition != "" {
		path += "/partitions/" + url.PathEscape(partition)
	}
	_, err := c.do(ctx, &call{method: "POST", path: path + "/seek", body: to.encode(), repeatable: true})
	return err
}
