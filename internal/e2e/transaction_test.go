package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

type transactionAnswer struct {
	TransactionID string `json:"transactionId"`
	Success       bool   `json:"success"`
	Reason        string `json:"reason"`
	Error         string `json:"error"`
	Results       []m    `json:"results"`
}

// transact sends a transaction, which must be answered 200.
func (c *cluster) transact(t testing.TB, body m, opts ...callOption) transactionAnswer {
	t.Helper()
	r := c.call(t, "POST", "/api/v1/transaction", body, opts...)
	if r.status != http.StatusOK {
		t.Fatalf("transaction: %d %s", r.status, r.body)
	}
	return decode[transactionAnswer](t, r.body)
}

// sdkAck is an ack as published SDKs put it into a transaction: its lease stands in requiredLeases only.
func sdkAck(msg message, status string) m {
	return m{"type": "ack", "transactionId": msg.TransactionID, "partitionId": msg.PartitionID, "status": status}
}

func pushTo(queue, txn string, payload any) m {
	return m{"type": "push", "items": []m{{"queue": queue, "transactionId": txn, "payload": payload}}}
}

// TestTransactions moves messages from queue to queue through the gateway: all or nothing, whatever is wrong.
func TestTransactions(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	c.push(t, items("in", "p", "t", 3))
	got := c.pop(t, "in", "batch=3")
	ops := func(status, out string) m {
		return m{"operations": []m{sdkAck(got.Messages[0], status), pushTo("out", out, m{"n": 1})}, "requiredLeases": []string{got.LeaseID}}
	}
	if a := c.transact(t, ops("completed", "x")); !a.Success || len(a.Results) != 2 || a.Results[0]["type"] != "push" || a.Results[0]["transactionId"] != "x" ||
		a.Results[1]["type"] != "ack" || a.Results[1]["error"] != nil || a.TransactionID == "" {
		t.Fatalf("%+v", a)
	}
	if a := c.transact(t, ops("completed", "x")); a.Success || a.Reason != "duplicate" || !strings.HasPrefix(a.Error, "QDUP ") || a.Results == nil {
		t.Errorf("the same again: %+v", a)
	}
	foreign := ops("completed", "y")
	foreign["requiredLeases"] = []string{"0198f000-0000-7000-8000-0000000000aa"}
	if a := c.transact(t, foreign); a.Success || a.Reason != "ack_rejected" || !strings.Contains(a.Error, "invalid or expired lease") {
		t.Errorf("another lease: %+v", a)
	}
	unknown := ops("completed", "y")
	unknown["operations"] = append(unknown["operations"].([]m), m{"type": "ack", "transactionId": "nowhere", "partitionId": got.PartitionID})
	if a := c.transact(t, unknown); a.Success || a.Reason != "ack_rejected" || !strings.HasPrefix(a.Error, "QTXN ack references unknown transactionId") {
		t.Errorf("an unknown message: %+v", a)
	}
	out := c.pop(t, "out", "batch=10")
	if len(out.Messages) != 1 || out.Messages[0].TransactionID != "x" || out.Messages[0].ProducerSub == nil {
		t.Fatalf("out has %+v", out)
	}
	// A dead letter, and the completion of what was passed before, in one commit.
	last := m{"operations": []m{sdkAck(got.Messages[0], "completed"), sdkAck(got.Messages[2], "dlq")}, "requiredLeases": []string{got.LeaseID}}
	if a := c.transact(t, last); !a.Success || a.Results[0]["noop"] != true || a.Results[1]["dlq"] != true {
		t.Errorf("%+v", a)
	}
	for name, body := range map[string]string{
		"nothing": `{}`, "no operation": `{"operations":[]}`, "an unknown one": `{"operations":[{"type":"pop"}]}`, "a rider": `{"operations":[{"type":"push","queue":"q"}],"timers":[{}]}`,
	} {
		r := c.call(t, "POST", "/api/v1/transaction", body)
		if a := decode[transactionAnswer](t, r.body); r.status != 400 || a.Success || a.Reason != "bad_request" || a.Error == "" || a.Results == nil {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
}

// TestTransactionsUnderAPlan holds transactions to every limit of a push, and counts only what they stored.
func TestTransactionsUnderAPlan(t *testing.T) {
	t.Parallel()
	t.Run("limits", func(t *testing.T) {
		t.Parallel()
		c := shared(t).newCluster(t, `{"max_queues":1,"max_partitions_per_queue":1,"max_batch_items":2,"max_payload_bytes":100,"max_msgs_per_sec":0.001,"msgs_burst":10}`)
		op := func(queue, partition string, payload any) m {
			return m{"type": "push", "queue": queue, "partition": partition, "payload": payload}
		}
		for _, tt := range []struct {
			name string
			ops  []m
			want string // limit that refuses; "" for none
		}{
			{"the first queue", []m{op("a", "Default", 1)}, ""},
			{"a second queue", []m{op("a", "Default", 1), op("b", "Default", 1)}, "queues"},
			{"the first partition", []m{op("a", "p", 1)}, ""},
			{"a second partition", []m{op("a", "q", 1)}, "partitions"},
			{"too many items", []m{op("a", "p", 1), op("a", "p", 2), op("a", "p", 3)}, "batch"},
			{"a large payload", []m{op("a", "p", strings.Repeat("x", 200))}, "payload"},
			{"two at once", []m{op("a", "p", 1), op("a", "p", 2)}, ""},
			{"more than the burst left", nil, "msgs"},
		} {
			if tt.name == "more than the burst left" {
				for range 3 {
					c.transact(t, m{"operations": []m{op("a", "p", 1), op("a", "p", 2)}})
				}
				tt.ops = []m{op("a", "p", 1)}
			}
			r := c.call(t, "POST", "/api/v1/transaction", m{"operations": tt.ops})
			got := ""
			if r.status != http.StatusOK {
				if e := r.refusal(t); e.Limit != nil {
					got = e.Limit.Name
				}
			}
			if got != tt.want || r.status == http.StatusOK && !decode[transactionAnswer](t, r.body).Success {
				t.Errorf("%s: refused by %q, want %q: %d %s", tt.name, got, tt.want, r.status, r.body)
			}
		}
	})
	t.Run("month", func(t *testing.T) {
		t.Parallel()
		c := shared(t).newCluster(t, `{"monthly_msgs_quota":2}`)
		body := m{"operations": []m{pushTo("q", "same", 1)}}
		c.transact(t, body)
		for range 3 {
			if a := c.transact(t, body); a.Success || a.Reason != "duplicate" {
				t.Fatalf("what is rolled back counts nothing: %+v", a)
			}
		}
		c.transact(t, m{"operations": []m{pushTo("q", "other", 1)}})
		r := c.call(t, "POST", "/api/v1/transaction", m{"operations": []m{pushTo("q", "third", 1)}})
		if r.status != http.StatusForbidden {
			t.Errorf("beyond the month: %d %s", r.status, r.body)
		}
	})
	t.Run("storage", func(t *testing.T) {
		t.Parallel()
		c := shared(t).newCluster(t, `{"max_retained_bytes":10000}`)
		full := func(n int) reply {
			return c.call(t, "POST", "/api/v1/transaction", m{"operations": []m{pushTo("q", fmt.Sprint("t", n), strings.Repeat("x", 4998))}})
		}
		full(0)
		full(1)
		if r := full(2); r.status != http.StatusForbidden || r.refusal(t).Code != "storage_quota_exceeded" {
			t.Fatalf("a full cluster: %d %s", r.status, r.body)
		}
		got := c.pop(t, "q", "batch=10")
		if a := c.transact(t, m{"operations": []m{sdkAck(got.Messages[1], "completed")}, "requiredLeases": []string{got.LeaseID}}); !a.Success {
			t.Errorf("a full cluster must be able to acknowledge: %+v", a)
		}
	})
	t.Run("rights", func(t *testing.T) {
		t.Parallel()
		c := shared(t).newCluster(t, "")
		c.push(t, items("in", "p", "t", 1))
		got := c.pop(t, "in", "")
		ack := m{"operations": []m{sdkAck(got.Messages[0], "completed"), pushTo("out", "x", 1)}, "requiredLeases": []string{got.LeaseID}}
		for name, tt := range map[string]struct {
			key  string
			body m
			want int
		}{
			"produce acknowledges": {c.produce, ack, 403}, "consume pushes": {c.consume, ack, 403}, "admin": {c.admin, ack, 403}, "read": {c.read, ack, 403},
			"produce pushes": {c.produce, m{"operations": []m{pushTo("out", "y", 1)}}, 200},
		} {
			if r := c.call(t, "POST", "/api/v1/transaction", tt.body, key(tt.key)); r.status != tt.want {
				t.Errorf("%s: %d %s, want %d", name, r.status, r.body, tt.want)
			}
		}
		if a := c.transact(t, ack); !a.Success {
			t.Errorf("the full key: %+v", a)
		}
	})
}

// TestARolledBackTransactionKeepsTheCountsExact lets a transaction make a queue and roll back: the queue is there and
// counts, at the gateway as at the broker.
func TestARolledBackTransactionKeepsTheCountsExact(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, `{"max_queues":2}`)
	c.push(t, items("a", "Default", "t", 1))
	if a := c.transact(t, m{"operations": []m{pushTo("a", "t-0", 1), pushTo("b", "x", 1)}}); a.Success || a.Reason != "duplicate" {
		t.Fatalf("%+v", a)
	}
	eventually(t, 20*time.Second, "a third queue to be refused", func() bool {
		r := c.call(t, "POST", "/api/v1/push", items("c", "Default", "t", 1))
		return r.status == http.StatusForbidden && r.refusal(t).Limit != nil && r.refusal(t).Limit.Name == "queues"
	})
	c.push(t, items("b", "Default", "t", 1))
}
