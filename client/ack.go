package client

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/queengate/queengate/wire"
)

// Status is what a reader reports about a message.
type Status string

const (
	Completed Status = "completed" // done: the cursor moves past it, and past all before it in its partition
	Failed    Status = "failed"    // deliver again, and charge an attempt; beyond the queue's limit it becomes a dead letter
	Released  Status = "retry"     // deliver again and charge nothing
	Rejected  Status = "dlq"       // make it a dead letter now
)

// Settlement is the outcome of one message.
type Settlement struct {
	Message *Message
	Status  Status
	Reason  string // kept with a dead letter; of no use with Completed
}

// AckResult is the answer to one [Settlement].
type AckResult struct {
	TransactionID string `json:"transactionId"`
	Success       bool   `json:"success"`       // it was carried out
	Error         string `json:"error"`         // why not
	LeaseReleased bool   `json:"leaseReleased"` // the call ended the lease of the message's partition
	DLQ           bool   `json:"dlq"`           // the message is a dead letter now
	Noop          bool   `json:"noop"`          // the cursor had passed it before

	// Outcome is set when the item could not be decided: unknown when it may have been carried out all the same.
	Outcome wire.Outcome `json:"outcome"`
}

// AckError says that some settlements were not carried out. errors.Is finds [ErrLeaseLost] in it.
type AckError struct {
	Results []AckResult

	// Unsure says that an earlier request of the same call went without an answer: what is refused now may have been
	// carried out then, and its lease have ended by that.
	Unsure bool
}

// Error counts the refused settlements and quotes the first.
func (e *AckError) Error() string {
	n, text := 0, ""
	for i := range e.Results {
		if r := &e.Results[i]; !r.Success {
			if n++; n == 1 {
				text = r.Error
			}
		}
	}
	return fmt.Sprintf("%d of %d messages were not settled: %s", n, len(e.Results), text)
}

// Is reports that target is ErrLeaseLost and a settlement was refused for that.
func (e *AckError) Is(target error) bool {
	if target != ErrLeaseLost {
		return false
	}
	for i := range e.Results {
		if !e.Results[i].Success && leaseLost(e.Results[i].Error) {
			return true
		}
	}
	return false
}

// leaseLost reads a text of the contract (spec of the ack: "invalid or expired lease"); there is no code beside it.
func leaseLost(text string) bool {
	return strings.Contains(text, "invalid_lease") || strings.Contains(strings.ToLower(text), "invalid or expired lease")
}

// Ack settles messages as completed. See [Client.Settle].
func (c *Client) Ack(ctx context.Context, messages ...Message) error {
	return c.settleAll(ctx, Completed, "", messages)
}

// Nack settles messages as failed: they are delivered again and, beyond the queue's limit, become dead letters with the
// reason. One call charges one attempt per partition, however many messages it names. See [Client.Settle].
func (c *Client) Nack(ctx context.Context, reason string, messages ...Message) error {
	return c.settleAll(ctx, Failed, reason, messages)
}

// Release gives messages back unsettled: they are delivered again at once and nothing is charged. See [Client.Settle].
func (c *Client) Release(ctx context.Context, messages ...Message) error {
	return c.settleAll(ctx, Released, "", messages)
}

func (c *Client) settleAll(ctx context.Context, status Status, reason string, messages []Message) error {
	list := make([]Settlement, len(messages))
	for i := range messages {
		list[i] = Settlement{&messages[i], status, reason}
	}
	_, err := c.Settle(ctx, list...)
	return err
}

// ack is a Settlement on the wire.
type ack struct {
	Type          string `json:"type,omitempty"` // in a transaction
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	Status        Status `json:"status"`
	Error         string `json:"error,omitempty"`
	LeaseID       string `json:"leaseId,omitempty"`
	Group         string `json:"consumerGroup,omitempty"` // in a transaction
}

func (s *Settlement) encode() ack {
	return ack{
		TransactionID: s.Message.TransactionID, PartitionID: s.Message.PartitionID, Status: s.Status, Error: s.Reason,
		LeaseID: s.Message.LeaseID,
	}
}

// repeatable reports that settling twice does no harm: under a lease the second time is refused, and a completion moves
// the cursor to where it is. A failure without a lease would hit whoever holds the partition by then.
func (s *Settlement) repeatable() bool { return s.Message.LeaseID != "" || s.Status == Completed }

// Settle reports the outcome of messages of one group, and returns a result for each, in their order.
//
// In each partition the earliest message that is not completed decides: completions before it count, those after it do
// not, and the rest of the lease is delivered again. When some were not carried out, the results come with an
// [*AckError]; any other error is an [*Error] of the whole call.
func (c *Client) Settle(ctx context.Context, list ...Settlement) ([]AckResult, error) {
	if len(list) == 0 {
		return []AckResult{}, nil
	}
	var body struct {
		Acks  []ack  `json:"acknowledgments"`
		Group string `json:"consumerGroup,omitempty"`
	}
	body.Group = list[0].Message.Group
	k := call{method: "POST", path: "/api/v1/ack/batch", repeatable: true}
	for i := range list {
		if list[i].Message.Group != body.Group {
			return nil, errors.New("messages of different groups cannot be settled in one call")
		}
		body.Acks = append(body.Acks, list[i].encode())
		k.repeatable = k.repeatable && list[i].repeatable()
	}
	k.body = body
	var results []AckResult
	r, err := c.ask(ctx, &k, &results)
	if err != nil {
		return nil, err
	}
	if len(results) != len(list) {
		return nil, r.strange(fmt.Errorf("%d results for %d messages", len(results), len(list)))
	}
	for i := range results {
		if !results[i].Success {
			return results, &AckError{results, r.unsure}
		}
	}
	return results, nil
}

// Extend makes a lease end d from now, in whole seconds, in all its partitions, and never earlier than it would; 0 means
// the queue's lease time, at least a minute. It returns the new end, by the server's clock, or [ErrLeaseLost].
func (c *Client) Extend(ctx context.Context, leaseID string, d time.Duration) (time.Time, error) {
	var body struct {
		Seconds int `json:"seconds,omitempty"`
	}
	body.Seconds = seconds(d)
	var answer struct {
		Success   bool      `json:"success"`
		ExpiresAt time.Time `json:"expiresAt"`
	}
	k := call{method: "POST", path: "/api/v1/lease/" + url.PathEscape(leaseID) + "/extend", body: body, repeatable: true}
	if _, err := c.ask(ctx, &k, &answer); err != nil {
		return time.Time{}, err
	}
	if !answer.Success {
		return time.Time{}, ErrLeaseLost
	}
	return answer.ExpiresAt, nil
}
