package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

// Item is one message to push.
type Item struct {
	Queue     string // made by the first push
	Partition string // "" means wire.DefaultPartition; made by the first push

	// TransactionID is what a repeat is recognised by, within the partition and the queue's dedup window. "" means a
	// new UUID for every call; an id that follows from the data makes repeats across calls and restarts harmless.
	TransactionID string

	// Payload is anything that marshals to JSON; a json.RawMessage is sent as it is, nil as null.
	Payload any

	// TraceID joins messages in traces; only a transaction keeps it, and only if it is a UUID.
	TraceID string
}

// item is an Item on the wire.
type item struct {
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition,omitempty"`
	TransactionID string          `json:"transactionId"`
	Payload       json.RawMessage `json:"payload"`
	TraceID       string          `json:"traceId,omitempty"`
}

// encode fixes the id and the bytes of an item, so that every repeat sends the same.
func (i Item) encode() (item, error) {
	payload, err := marshal(i.Payload)
	if err != nil {
		return item{}, fmt.Errorf("payload for queue %q: %w", i.Queue, err)
	}
	if i.TransactionID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return item{}, err
		}
		i.TransactionID = id.String()
	}
	return item{i.Queue, i.Partition, i.TransactionID, payload, i.TraceID}, nil
}

// PushResult is what became of one item.
type PushResult struct {
	MessageID     string       `json:"message_id"` // of a duplicate: the original's
	TransactionID string       `json:"transaction_id"`
	Queue         string       `json:"queueName"`
	Status        wire.Verdict `json:"status"`
	Offset        int64        `json:"offset"`  // in the partition; -1 when it is not known yet (buffered) or there is none
	Error         string       `json:"error"`   // of a failed one
	Outcome       wire.Outcome `json:"outcome"` // of a failed one: unknown when it may have been stored all the same
}

// Stored reports that the message is in safe hands: stored now (queued) or before (duplicate), or accepted on the disk
// of a broker whose database is away (buffered).
func (r *PushResult) Stored() bool {
	return r.Status == wire.Queued || r.Status == wire.Duplicate || r.Status == wire.Buffered
}

// PushError says that some items of a push were not stored. They may be pushed again with the ids in Results.
type PushError struct{ Results []PushResult }

// Error counts the failed items and quotes the first.
func (e *PushError) Error() string {
	n, text := 0, ""
	for i := range e.Results {
		if r := &e.Results[i]; !r.Stored() {
			if n++; n == 1 {
				text = r.Error
			}
		}
	}
	return fmt.Sprintf("%d of %d messages were not stored: %s", n, len(e.Results), text)
}

// Push stores items and returns a result for each, in their order. Within a partition the order of items, and of calls
// that follow each other, is the order of delivery.
//
// Items of one partition are stored together or not at all; those of different partitions are not. When some were not
// stored, the results come with a [*PushError]. Any other error is an [*Error] of the whole call, or that of a payload
// that cannot be marshalled; after it nothing is stored, unless its outcome is unknown. Items without an id get one that
// holds for all repeats that this call makes by itself.
func (c *Client) Push(ctx context.Context, items ...Item) ([]PushResult, error) {
	encoded := make([]item, len(items))
	for i := range items {
		var err error
		if encoded[i], err = items[i].encode(); err != nil {
			return nil, err
		}
	}
	return c.push(ctx, encoded)
}

func (c *Client) push(ctx context.Context, items []item) ([]PushResult, error) {
	if len(items) == 0 {
		return []PushResult{}, nil
	}
	body := struct {
		Items []item `json:"items"`
	}{items}
	results := make([]PushResult, len(items))
	for i := range results {
		results[i].Offset = -1
	}
	r, err := c.do(ctx, &call{method: "POST", path: "/api/v1/push", body: body, repeatable: true})
	if err != nil {
		return nil, err
	}
	// An array that is shorter or longer would be adjusted silently by decoding into results.
	var raw []json.RawMessage
	if err := r.decode(&raw); err != nil {
		return nil, err
	}
	if len(raw) != len(items) {
		return nil, r.strange(fmt.Errorf("%d results for %d items", len(raw), len(items)))
	}
	stored := true
	for i := range raw {
		if err := json.Unmarshal(raw[i], &results[i]); err != nil {
			return nil, r.strange(err)
		}
		if results[i].TransactionID == "" {
			results[i].TransactionID = items[i].TransactionID
		}
		stored = stored && results[i].Stored()
	}
	if !stored {
		return results, &PushError{results}
	}
	return results, nil
}

// tooLarge reports a refusal that fewer items in one call would not meet.
func tooLarge(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == 413 && e.Outcome == wire.OutcomeNone
}
