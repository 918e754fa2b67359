package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/queengate/queengate/wire"
)

// Message is a delivered message. It is what settling needs to be given back.
type Message struct {
	ID              string          `json:"id"`
	TransactionID   string          `json:"transactionId"`
	TraceID         string          `json:"traceId"` // "" for none
	Data            json.RawMessage `json:"data"`    // the payload as JSON
	ProducerSub     string          `json:"producerSub"`
	CreatedAt       time.Time       `json:"createdAt"`
	PartitionID     string          `json:"partitionId"`
	Partition       string          `json:"partition"`
	Queue           string          `json:"queue"`
	Offset          int64           `json:"offset"`
	LeaseID         string          `json:"leaseId"` // one for all messages of a pop; "" under AutoAck
	LeaseExpiresAt  time.Time       `json:"leaseExpiresAt"`
	Group           string          `json:"consumerGroup"`
	DeliveryAttempt int             `json:"deliveryAttempt"` // from 1; how often the run it stands first in was delivered
}

// Decode unmarshals the payload into v.
func (m *Message) Decode(v any) error { return json.Unmarshal(m.Data, v) }

// Where a group starts that has not read a queue before, in [PopOptions].
const (
	FromAll = "all" // everything retained
	FromNew = "new" // what is pushed from now on; what the server does by default
)

// PopOptions say what to pop. The zero value pops what is there now of one partition, for all readers without a group.
type PopOptions struct {
	Partition string // only this one; "" lets the broker choose
	Group     string // "" means the cursor that all readers without a group share

	Batch      int // messages at most; 0 means the server's 200
	Partitions int // partitions at most; 0 means one

	// Wait is how long to wait for messages when there are none, in milliseconds' precision; 0 does not wait.
	Wait time.Duration

	// Lease is how long the messages belong to the caller, in whole seconds; 0 means what the queue is configured to.
	Lease time.Duration

	// AutoAck takes messages as done when they are delivered, without a lease: at most once. What is in an answer that
	// does not arrive is lost, so such a pop is not repeated after an unknown outcome.
	AutoAck bool

	// SubscriptionMode (FromAll, FromNew) and SubscriptionFrom (a time) say where a group starts that is new to the queue;
	// they mean nothing afterwards. The zero values leave it to the server.
	SubscriptionMode string
	SubscriptionFrom time.Time

	// Conflation delivers of each partition only its newest message, and settling it settles all before it. It needs a
	// Group.
	Conflation bool

	// Namespace and Task choose queues by what they are configured to, when Pop is given no queue.
	Namespace, Task string
}

// ErrNoConflation says that a pop asked for conflation and the broker does not offer it.
var ErrNoConflation = errors.New("the broker does not conflate")

func (o *PopOptions) path(queue string) string {
	q := wire.PopQuery{
		Batch: o.Batch, BatchGiven: o.Batch > 0, Partitions: o.Partitions, PartitionsGiven: o.Partitions > 0,
		AutoAck: o.AutoAck, Wait: o.Wait > 0, Timeout: o.Wait, TimeoutGiven: o.Wait > 0,
		LeaseSeconds: seconds(o.Lease), Group: o.Group, SubscriptionMode: o.SubscriptionMode, Conflation: o.Conflation,
	}
	if q.Group == "" {
		q.Group = wire.QueueModeGroup
	}
	if !o.SubscriptionFrom.IsZero() {
		q.SubscriptionFrom = o.SubscriptionFrom.UTC().Format(time.RFC3339Nano)
	}
	path := "/api/v1/pop"
	switch {
	case queue == "":
		q.Namespace, q.Task = o.Namespace, o.Task
	case o.Partition != "":
		path += "/queue/" + url.PathEscape(queue) + "/partition/" + url.PathEscape(o.Partition)
	default:
		path += "/queue/" + url.PathEscape(queue)
	}
	if query := q.AppendQuery(nil); len(query) > 0 {
		path += "?" + string(query)
	}
	return path
}

// seconds rounds d up to whole seconds.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// Pop returns messages of a queue, grouped by partition and in order inside each; none is no error. An empty queue name
// pops from the queues of o.Namespace and o.Task.
//
// With o.Wait it returns as soon as there is something, and waits out 429 answers until ctx ends. Messages are leased
// until settled ([Client.Ack], [Client.Nack], …) or until the lease ends, and then delivered again. Errors are [*Error];
// without o.Wait, [ErrDegraded] among them, so that who drains a queue does not take an outage for its end.
func (c *Client) Pop(ctx context.Context, queue string, o PopOptions) ([]Message, error) {
	messages, _, err := c.pop(ctx, queue, &o)
	return messages, err
}

// unknownLease is taken for the length of a lease that the broker does not tell: that of queues nobody configured.
const unknownLease = 60 * time.Second

// pop also returns how long the lease lasts, 0 without one.
func (c *Client) pop(ctx context.Context, queue string, o *PopOptions) ([]Message, time.Duration, error) {
	r, err := c.do(ctx, &call{method: "GET", path: o.path(queue), repeatable: !o.AutoAck, wait: o.Wait})
	if err != nil {
		return nil, 0, err
	}
	if r.status == http.StatusNoContent {
		if o.Conflation {
			return nil, 0, ErrNoConflation // who knows it answers 200 even if there is nothing
		}
		return nil, 0, nil
	}
	var answer struct {
		Messages   []Message `json:"messages"`
		Conflation bool      `json:"conflation"`
	}
	if err := r.decode(&answer); err != nil {
		return nil, 0, err
	}
	if o.Conflation && !answer.Conflation {
		return nil, 0, ErrNoConflation
	}
	if len(answer.Messages) == 0 || answer.Messages[0].LeaseID == "" {
		return answer.Messages, 0, nil
	}
	ends := answer.Messages[0].LeaseExpiresAt
	if ends.IsZero() {
		return answer.Messages, unknownLease, nil
	}
	// Our clock may be wrong, the server's is in the answer.
	now, err := http.ParseTime(r.header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return answer.Messages, max(ends.Sub(now), time.Second), nil // none is shorter: so it seems only by a wrong clock
}
