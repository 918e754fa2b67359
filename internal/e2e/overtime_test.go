package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"
)

// queueOptions returns the options of a queue as GET shows them, or nil when there is no such queue.
func (c *cluster) queueOptions(t *testing.T, queue string) map[string]any {
	t.Helper()
	r := c.call(t, "GET", "/api/v1/resources/queues/"+queue, nil)
	if r.status == http.StatusNotFound {
		return nil
	}
	var q struct {
		Options map[string]any `json:"options"`
	}
	if err := json.Unmarshal(r.body, &q); err != nil || r.status != http.StatusOK || q.Options == nil {
		t.Fatalf("queue %s: %d %s", queue, r.status, r.body)
	}
	return q.Options
}

// What the plan says of queues without retention holds for a queue that is configured, pushed to, or made by a
// transaction, and the answer and the queue's options show it.
func TestUnboundedRetentionIsThePlans(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for policy, want := range map[string]struct {
		seconds float64 // of a queue that states none
		refused bool
	}{"allow": {0, false}, "ceiling": {600, false}, "refuse": {0, true}} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			c := s.newCluster(t, `{"max_retention_seconds":600}`)
			c.exec(t, `SELECT queengate.set_cluster_policies($1::uuid, $2)`, c.id, policy)
			c.settle(t)
			for queue, ask := range map[string]func(queue string) reply{
				"pushed": func(q string) reply { return c.call(t, "POST", "/api/v1/push", items(q, "p", "t", 1)) },
				"transacted": func(q string) reply {
					return c.call(t, "POST", "/api/v1/transaction", m{"operations": []m{{"type": "push", "items": []m{{"queue": q, "payload": 1}}}}})
				},
				"configured": func(q string) reply { return c.call(t, "POST", "/api/v1/configure", m{"queue": q, "options": m{}}) },
			} {
				r := ask(queue)
				if want.refused {
					e := r.refusal(t)
					if r.status != 403 || e.Code != "quota_exceeded" || e.Limit == nil || e.Limit.Name != "retention" || e.Limit.Limit != 600 {
						t.Errorf("%s: got %d %s", queue, r.status, r.body)
					}
					if o := c.queueOptions(t, queue); o != nil {
						t.Errorf("%s was made: %v", queue, o)
					}
					continue
				}
				if r.status/100 != 2 {
					t.Errorf("%s: got %d %s", queue, r.status, r.body)
					continue
				}
				o := c.queueOptions(t, queue)
				if o["retentionSeconds"] != want.seconds || o["retentionEnabled"] != (want.seconds > 0) {
					t.Errorf("%s keeps its messages for %v s (%v), want %v", queue, o["retentionSeconds"], o["retentionEnabled"], want.seconds)
				}
			}
			if r := c.call(t, "POST", "/api/v1/configure", m{"queue": "stated", "options": m{"retentionEnabled": true, "retentionSeconds": 60}}); r.status != http.StatusOK {
				t.Errorf("what states retention got %d %s", r.status, r.body)
			}
			c.push(t, items("stated", "p", "t", 1))
		})
	}
}

// The month's use outlives the processes, and its marks are told once.
func TestAMonthOutlivesTheGateway(t *testing.T) {
	t.Parallel()
	s, again := startOnTestServer(t)
	c := s.newCluster(t, `{"monthly_msgs_quota":10}`)
	c.push(t, items("q", "p", "a", 8))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.proc.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	c.system = again()
	r := c.call(t, "POST", "/api/v1/push", items("q", "p", "b", 3))
	if e := r.refusal(t); r.status != 403 || e.Code != "quota_exceeded" || e.Limit == nil || e.Limit.Name != "month" || e.Limit.Used != 8 || e.Limit.Reset <= 0 {
		t.Fatalf("got %d %s", r.status, r.body)
	}
	c.push(t, items("q", "p", "b", 2))
	eventually(t, time.Minute, "the marks to be told", func() bool {
		var percents string
		err := c.db.QueryRow(t.Context(), `SELECT coalesce(string_agg(payload ->> 'percent', ' ' ORDER BY (payload ->> 'percent')::integer), '')
			FROM queengate.outbox WHERE kind = 'monthly_allowance' AND payload ->> 'cluster' = $1`, c.slug).Scan(&percents)
		if err != nil {
			t.Fatal(err)
		}
		return percents == "80 90 100"
	})
}
