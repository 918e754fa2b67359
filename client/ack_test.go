package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queengate/queengate/wire"
)

func TestPopDecodesTheContract(t *testing.T) {
	t.Parallel()
	c, s := start(t, script(t, golden(t, "pop_leased"), answer{status: 204}, golden(t, "pop_autoack")))
	got, err := c.Pop(t.Context(), "a/b c", PopOptions{
		Partition: "p?", Group: "g&", Batch: 5, Partitions: 2, Wait: 1500 * time.Millisecond, Lease: 1100 * time.Millisecond,
		SubscriptionMode: FromAll, SubscriptionFrom: time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC), Namespace: "not here",
	})
	if err != nil || len(got) != 2 {
		t.Fatalf("got %v, %v", got, err)
	}
	want := Message{
		ID: "0198f000-0000-7000-8000-000000000001", TransactionID: "ord-991", Data: []byte(`{"n":1}`), CreatedAt: time.Date(2026, 9, 1, 10, 11, 12, 123456000, time.UTC),
		PartitionID: "0198f000-0000-7000-8000-000000000001", Partition: "c-17", Queue: "orders", Offset: 41, LeaseID: "0198f000-0000-7000-8000-0000000000aa",
		LeaseExpiresAt: time.Date(2026, 9, 1, 10, 12, 12, 123456000, time.UTC), Group: "billing", DeliveryAttempt: 1,
	}
	if d := cmp.Diff(want, got[0]); d != "" {
		t.Error(d)
	}
	var v struct{ N int }
	if err := got[0].Decode(&v); err != nil || v.N != 1 {
		t.Errorf("decoded %v, %v", v, err)
	}
	if got, err := c.Pop(t.Context(), "", PopOptions{Namespace: "n", Task: "t"}); err != nil || got != nil {
		t.Errorf("204: got %v, %v", got, err)
	}
	if got, err := c.Pop(t.Context(), "q", PopOptions{AutoAck: true}); err != nil || len(got) == 0 || got[0].LeaseID != "" {
		t.Errorf("autoAck: got %v, %v", got, err)
	}
	lines := []string{
		"GET /api/v1/pop/queue/a%2Fb%20c/partition/p%3F?batch=5&partitions=2&wait=true&timeout=1500&leaseSeconds=2&consumerGroup=g%26" +
			"&subscriptionMode=all&subscriptionFrom=2026-09-01T00%3A00%3A00Z",
		"GET /api/v1/pop?namespace=n&task=t",
		"GET /api/v1/pop/queue/q?autoAck=true",
	}
	if d := cmp.Diff(lines, s.lines()); d != "" {
		t.Error(d)
	}
}

func TestConflationMustBeEchoed(t *testing.T) {
	t.Parallel()
	c, _ := start(t, script(t, golden(t, "pop_conflated"), golden(t, "pop_conflated_empty"), golden(t, "pop_leased"), answer{status: 204}))
	for i, want := range []error{nil, nil, ErrNoConflation, ErrNoConflation} {
		if _, err := c.Pop(t.Context(), "q", PopOptions{Group: "g", Conflation: true}); !errors.Is(err, want) {
			t.Errorf("answer %d: %v, want %v", i, err, want)
		}
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	c, s := start(t, func(n int, r request) answer {
		if n == 3 {
			return golden(t, "ack_results")
		}
		return acked(r)
	})
	a, b := Message{TransactionID: "a", PartitionID: "p", LeaseID: "l", Group: "g"}, Message{TransactionID: "b", PartitionID: "p"}
	for _, err := range []error{c.Ack(t.Context(), a), c.Nack(t.Context(), "why", a), c.Release(t.Context(), b)} {
		if err != nil {
			t.Error(err)
		}
	}
	bodies := []string{
		`{"acknowledgments":[{"transactionId":"a","partitionId":"p","status":"completed","leaseId":"l"}],"consumerGroup":"g"}`,
		`{"acknowledgments":[{"transactionId":"a","partitionId":"p","status":"failed","error":"why","leaseId":"l"}],"consumerGroup":"g"}`,
		`{"acknowledgments":[{"transactionId":"b","partitionId":"p","status":"retry"}]}`,
	}
	for i, r := range s.seen() {
		if r.line != "POST /api/v1/ack/batch" || r.body != bodies[i] {
			t.Errorf("sent %s %s, want %s", r.line, r.body, bodies[i])
		}
	}

	one := Settlement{Message: &a}
	results, err := c.Settle(t.Context(), one, one, one, one, one, one)
	var e *AckError
	if !errors.As(err, &e) || !errors.Is(err, ErrLeaseLost) || e.Unsure || err.Error() != "2 of 6 messages were not settled: invalid or expired lease (invalid_lease)" {
		t.Errorf("got %v", err)
	}
	if got := fmt.Sprintf("%+v", results[2]); got != "{TransactionID:c Success:true Error: LeaseReleased:false DLQ:true Noop:false Outcome:}" {
		t.Errorf("got %s", got)
	}
	if got := results[5].Outcome; got != wire.OutcomeUnknown {
		t.Errorf("what nobody knows has the outcome %q", got)
	}
	if err := c.Ack(t.Context(), a, b); err == nil || len(s.seen()) != 4 {
		t.Errorf("mixed groups: %v", err)
	}
	if err := c.Ack(t.Context()); err != nil || len(s.seen()) != 4 {
		t.Errorf("nothing to settle: %v", err)
	}
}

func TestRefusalAfterALostAnswerIsUnsure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lost := answer{status: 200, body: `[{"transactionId":"t","success":false,"error":"invalid or expired lease (invalid_lease)"}]`}
		c, _ := start(t, script(t, answer{err: errBroken}, lost))
		var e *AckError
		if err := c.Ack(t.Context(), leaseOf); !errors.As(err, &e) || !e.Unsure || !errors.Is(err, ErrLeaseLost) {
			t.Errorf("got %v", err)
		}
	})
}

func TestExtend(t *testing.T) {
	t.Parallel()
	c, s := start(t, script(t, golden(t, "extend_renewed"), golden(t, "extend_lost")))
	if ends, err := c.Extend(t.Context(), "l/1", 1500*time.Millisecond); err != nil || !ends.Equal(time.Date(2026, 9, 1, 10, 11, 12, 123e6, time.UTC)) {
		t.Errorf("got %s, %v", ends, err)
	}
	if _, err := c.Extend(t.Context(), "l", 0); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("got %v", err)
	}
	if r := s.seen(); r[0].line != "POST /api/v1/lease/l%2F1/extend" || r[0].body != `{"seconds":2}` || r[1].body != `{}` {
		t.Errorf("sent %v", r)
	}
}

func TestTransaction(t *testing.T) {
	t.Parallel()
	in := Message{TransactionID: "in", PartitionID: "p", LeaseID: "l", Group: "g"}
	build := func(c *Client, id string) *Transaction {
		return c.Transaction().Push(Item{Queue: "q", TransactionID: id, Payload: 1}).Ack(in).Settle(Settlement{&in, Rejected, "bad"})
	}
	t.Run("committed", func(t *testing.T) {
		t.Parallel()
		c, s := start(t, script(t, golden(t, "transaction_committed")))
		r, err := build(c, "t").Commit(t.Context())
		if err != nil || len(r.Results) != 5 || r.Results[1].TransactionID != "ord-1" || !r.Results[1].Duplicate || !r.Results[3].DLQ || !r.Results[4].Noop {
			t.Errorf("got %+v, %v", r, err)
		}
		want := `{"operations":[{"type":"push","items":[{"queue":"q","transactionId":"t","payload":1}]},` +
			`{"type":"ack","transactionId":"in","partitionId":"p","status":"completed","leaseId":"l","consumerGroup":"g"},` +
			`{"type":"ack","transactionId":"in","partitionId":"p","status":"dlq","error":"bad","leaseId":"l","consumerGroup":"g"}],"requiredLeases":["l"]}`
		if got := s.seen()[0].body; got != want {
			t.Errorf("sent %s, want %s", got, want)
		}
	})
	t.Run("undone", func(t *testing.T) {
		t.Parallel()
		c, _ := start(t, script(t, golden(t, "transaction_duplicate"), golden(t, "transaction_lease")))
		var e *TransactionError
		if _, err := build(c, "t").Commit(t.Context()); !errors.As(err, &e) || e.Reason != "duplicate" || e.Index != 0 || e.Unsure || errors.Is(err, ErrLeaseLost) {
			t.Errorf("got %v", err)
		}
		if _, err := build(c, "t").Commit(t.Context()); !errors.As(err, &e) || e.Reason != "ack_rejected" || e.Index != -1 || !errors.Is(err, ErrLeaseLost) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("nothing of it is sent when it is empty or cannot be marshalled", func(t *testing.T) {
		t.Parallel()
		c, _ := start(t, script(t))
		for _, tx := range []*Transaction{c.Transaction(), c.Transaction().Push(), c.Transaction().Push(Item{Payload: make(chan int)})} {
			if _, err := tx.Commit(t.Context()); err == nil {
				t.Error("committed")
			}
		}
	})
	tests := map[string]struct {
		id     string
		bare   bool // with a failure that names no lease
		second string
		before bool // taken for committed by the first request
		unsure bool
		want   int // requests
	}{
		"a duplicate of an id made here was the first request": {second: "transaction_duplicate", before: true, want: 2},
		"one of an id given may be somebody else's":            {id: "ord-1", second: "transaction_duplicate", unsure: true, want: 2},
		"a lost lease may be the consequence":                  {id: "ord-1", second: "transaction_lease", unsure: true, want: 2},
		"a failure without a lease is not repeated":            {bare: true, want: 1},
	}
	for name, tt := range tests {
		t.Run("after a lost answer/"+name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, s := start(t, func(n int, _ request) answer {
					if n == 0 {
						return answer{err: errBroken}
					}
					return golden(t, tt.second)
				})
				tx := build(c, tt.id)
				if tt.bare {
					tx.Settle(Settlement{&Message{TransactionID: "x"}, Failed, ""})
				}
				r, err := tx.Commit(t.Context())
				var e *TransactionError
				if r.Before != tt.before || (err == nil) != tt.before || errors.As(err, &e) != tt.unsure || tt.unsure && !e.Unsure {
					t.Errorf("got %+v, %v", r, err)
				}
				if n := len(s.seen()); n != tt.want {
					t.Errorf("%d requests, want %d", n, tt.want)
				}
			})
		})
	}
}

func TestAdminRequests(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	at := time.Date(2026, 9, 1, 10, 0, 0, 0, time.FixedZone("", 3600))
	tests := map[string]struct {
		call   func(*Client) (any, error)
		line   string
		body   string
		answer string
		want   any
	}{
		"list dead letters": {
			func(c *Client) (any, error) {
				page, next, err := c.DeadLetters(ctx, DeadLetterFilter{Queue: "q", Group: "g", From: at}, 5, "cur")
				return []any{len(page), page[0].Reason, page[0].RetryCount, next}, err
			},
			"GET /api/v1/dlq?consumerGroup=g&cursor=cur&from=2026-09-01T09%3A00%3A00Z&limit=5&queue=q", "",
			`{"messages":[{"id":"d","errorMessage":"no","retryCount":3,"data":null,"messageId":null,"transactionId":null}],"nextCursor":"n"}`,
			[]any{1, "no", 3, "n"},
		},
		"replay": {
			func(c *Client) (any, error) { return c.ReplayDeadLetter(ctx, "d", &Destination{"q", "p"}) },
			"POST /api/v1/dlq/d/replay", `{"queue":"q","partition":"p"}`,
			`{"success":true,"result":"moved","replayedAs":{"transaction_id":"dlq:d","queueName":"q","status":"queued","offset":7}}`,
			PushResult{TransactionID: "dlq:d", Queue: "q", Status: "queued", Offset: 7},
		},
		"replay to where it came from": {
			func(c *Client) (any, error) { _, err := c.ReplayDeadLetter(ctx, "d", nil); return nil, err },
			"POST /api/v1/dlq/d/replay", "", `{"success":true,"replayedAs":{}}`, nil,
		},
		"redrive": {
			func(c *Client) (any, error) {
				r, err := c.Redrive(ctx, RedriveRequest{DeadLetterFilter: DeadLetterFilter{Queue: "q", Partition: "p", To: at}, Limit: 9, Rate: 5, TransactionIDs: []string{"t"}})
				return r.Progress, err
			},
			"POST /api/v1/dlq/redrive", `{"queue":"q","limit":9,"rate":5,"filter":{"partition":"p","to":"2026-09-01T10:00:00+01:00","transactionIds":["t"]}}`,
			`{"id":"r","progress":{"matched":4,"moved":3,"remaining":1}}`,
			RedriveProgress{Matched: 4, Moved: 3, Remaining: 1},
		},
		"redrives": {
			func(c *Client) (any, error) { r, err := c.Redrives(ctx, "q", 2); return r, err },
			"GET /api/v1/dlq/redrive?limit=2&queue=q", "", `{"redrives":[{"id":"b","state":"running","errorMessage":null},{"id":"a"}]}`,
			[]Redrive{{ID: "b", State: "running"}, {ID: "a"}},
		},
		"redrive status": {
			func(c *Client) (any, error) { r, err := c.RedriveStatus(ctx, "r"); return r.State, err },
			"GET /api/v1/dlq/redrive/r", "", `{"state":"done","errorMessage":null}`, "done",
		},
		"cancel a redrive": {
			func(c *Client) (any, error) { r, err := c.CancelRedrive(ctx, "r"); return r.State, err },
			"DELETE /api/v1/dlq/redrive/r", "", `{"state":"cancelled"}`, "cancelled",
		},
		"configure": {
			func(c *Client) (any, error) {
				o, err := c.Configure(ctx, "q", QueueOptions{LeaseTime: new(30 * time.Second), RetryLimit: new(0), DeadLetterQueue: new(false), MinPopWaitTime: new(5 * time.Millisecond), Task: new("")}, "merge")
				return []any{o.LeaseTime, o.TTL, o.DLQAfterMaxRetries}, err
			},
			"POST /api/v1/configure", `{"queue":"q","options":{"deadLetterQueue":false,"dlqAfterMaxRetries":false,"leaseTime":30,"minPopWaitTime":5,"retryLimit":0,"task":""},"mode":"merge"}`,
			`{"configured":true,"options":` + golden(t, "options").body + `}`,
			[]any{300, 3600, true},
		},
		"list queues": {
			func(c *Client) (any, error) { q, err := c.Queues(ctx); return q[0].Messages.Pending, err },
			"GET /api/v1/resources/queues", "", `{"queues":[{"name":"q","partitions":2,"messages":{"pending":9}}]}`, int64(9),
		},
		"one queue": {
			func(c *Client) (any, error) {
				q, err := c.Queue(ctx, "a/b")
				return q.Partitions[0].Stats.DeadLetter, err
			},
			"GET /api/v1/resources/queues/a%2Fb", "", `{"partitions":[{"stats":{"failed":null,"deadLetter":2}}]}`, int64(2),
		},
		"delete a queue": {
			func(c *Client) (any, error) { return c.DeleteQueue(ctx, "q") },
			"DELETE /api/v1/resources/queues/q", "", `{"deleted":true,"existed":true}`, true,
		},
		"list groups": {
			func(c *Client) (any, error) { g, err := c.Groups(ctx); return []any{g[0].Queue, g[0].Lag}, err },
			"GET /api/v1/consumer-groups", "", `[{"name":"g","queueName":"q","totalLag":4,"subscriptionMode":null,"subscriptionTimestamp":null}]`,
			[]any{"q", int64(4)},
		},
		"delete a group": {
			func(c *Client) (any, error) { return c.DeleteGroup(ctx, "g", "") },
			"DELETE /api/v1/consumer-groups/g", "", `{"deletedPartitions":3}`, int64(3),
		},
		"delete a group on a queue": {
			func(c *Client) (any, error) { return c.DeleteGroup(ctx, "g", "q") },
			"DELETE /api/v1/consumer-groups/g/queues/q", "", `{"deletedPartitions":1}`, int64(1),
		},
		"seek to the end": {
			func(c *Client) (any, error) { return nil, c.Seek(ctx, "", "q", "", Position{}) },
			"POST /api/v1/consumer-groups/__QUEUE_MODE__/queues/q/seek", `{"toEnd":true}`, `{}`, nil,
		},
		"seek a partition to a time": {
			func(c *Client) (any, error) { return nil, c.Seek(ctx, "g", "q", "p", Position{at}) },
			"POST /api/v1/consumer-groups/g/queues/q/partitions/p/seek", `{"timestamp":"2026-09-01T09:00:00Z"}`, `{}`, nil,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, s := start(t, script(t, answer{status: 200, body: tt.answer}))
			got, err := tt.call(c)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
			if r := s.seen()[0]; r.line != tt.line || r.body != tt.body {
				t.Errorf("sent %s %s\nwant %s %s", r.line, r.body, tt.line, tt.body)
			}
		})
	}
}

func TestPurgeGoesOnUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	c, s := start(t, script(t, answer{status: 200, body: `{"deleted":5,"more":true}`}, answer{status: 200, body: `{"deleted":2,"more":false}`}))
	if n, err := c.PurgeDeadLetters(context.Background(), "q", "g", ""); n != 7 || err != nil {
		t.Errorf("deleted %d, %v", n, err)
	}
	if d := cmp.Diff(times(2, "DELETE /api/v1/dlq?consumerGroup=g&queue=q"), s.lines()); d != "" {
		t.Error(d)
	}
}
