package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Transaction gathers pushes and settlements that are carried out in one commit, all or none: with it a message is
// handed on exactly once. Build it, then commit it once. It is not safe for concurrent use.
type Transaction struct {
	c          *Client
	operations []any
	leases     []string
	made       map[string]bool // transaction ids made here: nobody else can have pushed them
	pushed     []item
	repeatable bool
	err        error
}

// Transaction returns an empty transaction.
func (c *Client) Transaction() *Transaction {
	return &Transaction{c: c, made: map[string]bool{}, repeatable: true}
}

// Push adds items. Unlike in a [Client.Push] a duplicate of a stored message undoes the transaction.
func (t *Transaction) Push(items ...Item) *Transaction {
	encoded := make([]item, len(items))
	for i := range items {
		e, err := items[i].encode()
		if err != nil && t.err == nil {
			t.err = err
		}
		if items[i].TransactionID == "" {
			t.made[e.TransactionID] = true
		}
		encoded[i] = e
	}
	if len(encoded) > 0 {
		t.pushed = append(t.pushed, encoded...)
		t.operations = append(t.operations, struct {
			Type  string `json:"type"`
			Items []item `json:"items"`
		}{"push", encoded})
	}
	return t
}

// Ack adds messages as completed.
func (t *Transaction) Ack(messages ...Message) *Transaction {
	for i := range messages {
		t.Settle(Settlement{Message: &messages[i], Status: Completed})
	}
	return t
}

// Settle adds settlements, which obey the rules of [Client.Settle] and may be of different groups and leases.
func (t *Transaction) Settle(list ...Settlement) *Transaction {
	for i := range list {
		s := &list[i]
		a := s.encode()
		a.Type, a.Group = "ack", s.Message.Group
		t.operations = append(t.operations, a)
		t.repeatable = t.repeatable && s.repeatable()
		if a.LeaseID != "" && !slices.Contains(t.leases, a.LeaseID) {
			t.leases = append(t.leases, a.LeaseID)
		}
	}
	return t
}

// TransactionResult is what a committed transaction did.
type TransactionResult struct {
	ID string

	// Results are those of the items pushed and then of the messages settled, each in the order they were added. They
	// are nil with Before.
	Results []OperationResult

	// Before says that a repeat found the transaction committed by an earlier request of the same call, whose answer was
	// lost.
	Before bool
}

// OperationResult is what one operation of a committed transaction did.
type OperationResult struct {
	Type          string `json:"type"` // push or ack
	TransactionID string `json:"transactionId"`
	MessageID     string `json:"messageId"` // of a push
	Queue         string `json:"queueName"` // of a push
	Duplicate     bool   `json:"duplicate"` // of a push that repeats an earlier one of the same transaction
	DLQ           bool   `json:"dlq"`       // of an ack: the message is a dead letter now
	Noop          bool   `json:"noop"`      // of an ack: the cursor had passed the message before
}

// TransactionError says that a transaction was undone: nothing of it is stored.
type TransactionError struct {
	Reason  string // a word of the contract, such as duplicate or ack_rejected
	Message string // for people
	Index   int    // of the operation that failed, counted as in Results; -1 when it is none of them

	// Unsure says that an earlier request of the same call went without an answer: it may have been carried out, and
	// this refusal be its consequence.
	Unsure bool
}

// Error returns the reason and the text.
func (e *TransactionError) Error() string {
	return fmt.Sprintf("the transaction was undone (%s): %s", e.Reason, e.Message)
}

// Is reports that target is ErrLeaseLost and that a lost lease was the reason.
func (e *TransactionError) Is(target error) bool {
	return target == ErrLeaseLost && leaseLost(e.Message)
}

// Commit carries the transaction out. Errors: [*TransactionError] when it was undone, [*Error] when the call failed; the
// outcome of that says whether it may have been committed. It is repeated only if a repeat is recognised: settlements
// without a lease, other than completions, are not.
func (t *Transaction) Commit(ctx context.Context) (TransactionResult, error) {
	if t.err == nil && len(t.operations) == 0 {
		t.err = errors.New("the transaction is empty")
	}
	if t.err != nil {
		return TransactionResult{}, t.err
	}
	body := struct {
		Operations []any    `json:"operations"`
		Leases     []string `json:"requiredLeases,omitempty"`
	}{t.operations, t.leases}
	var answer struct {
		ID      string            `json:"transactionId"`
		Success bool              `json:"success"`
		Results []OperationResult `json:"results"`
		Reason  string            `json:"reason"`
		Error   string            `json:"error"`
		Index   *int              `json:"failedIndex"`
	}
	r, err := t.c.ask(ctx, &call{method: "POST", path: "/api/v1/transaction", body: body, repeatable: t.repeatable}, &answer)
	if err != nil {
		return TransactionResult{}, err
	}
	if answer.Success {
		return TransactionResult{ID: answer.ID, Results: answer.Results}, nil
	}
	e := &TransactionError{Reason: answer.Reason, Message: answer.Error, Index: -1, Unsure: r.unsure}
	if answer.Index != nil {
		e.Index = *answer.Index
	}
	// Pushes are counted before acks, so the index of a duplicate is that of an item.
	if r.unsure && answer.Reason == "duplicate" && e.Index >= 0 && e.Index < len(t.pushed) && t.made[t.pushed[e.Index].TransactionID] {
		return TransactionResult{ID: answer.ID, Before: true}, nil
	}
	return TransactionResult{}, e
}
