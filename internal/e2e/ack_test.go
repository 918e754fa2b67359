package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestAckDecisionTable walks the table of docs/design/ack.md through the real processes. Every case has a queue of its
// own with five messages, of which a pop leased all.
func TestAckDecisionTable(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	type want struct {
		success, released, dlq, noop bool
		err                          string
	}
	ok := want{success: true}
	done := want{success: true, released: true}
	tests := map[string]struct {
		options string   // of the queue, members of a JSON object
		query   string   // of the pop
		acks    []string // status by offset; "" is not acknowledged
		lease   string   // "own" (default), "none", "wrong"
		want    map[int]want
		next    []int64 // offsets of the next pop, nil: nothing to deliver
		attempt int     // deliveryAttempt of the next pop
	}{
		"all completed releases the lease":                     {acks: []string{"completed", "completed", "completed", "completed", "completed"}, want: map[int]want{0: done, 4: done}},
		"the last completes all before it":                     {acks: []string{"", "", "", "", "ok"}, want: map[int]want{4: done}},
		"a partial ack keeps the lease":                        {acks: []string{"completed", "completed", "", "", ""}, want: map[int]want{0: ok, 1: ok}},
		"failed releases and redelivers from itself":           {acks: []string{"completed", "failed", "", "", ""}, want: map[int]want{0: done, 1: done}, next: []int64{1, 2, 3, 4}, attempt: 1},
		"failed at the head counts a delivery":                 {acks: []string{"failed"}, want: map[int]want{0: done}, next: []int64{0, 1, 2, 3, 4}, attempt: 2},
		"completions above a failure are lost":                 {acks: []string{"completed", "failed", "completed", "completed", "completed"}, want: map[int]want{0: done, 4: done}, next: []int64{1, 2, 3, 4}, attempt: 1},
		"retry releases and redelivers":                        {acks: []string{"retry"}, want: map[int]want{0: done}, next: []int64{0, 1, 2, 3, 4}, attempt: 2},
		"dlq files one and redelivers the rest":                {acks: []string{"completed", "dlq", "", "", ""}, want: map[int]want{0: done, 1: {success: true, released: true, dlq: true}}, next: []int64{2, 3, 4}, attempt: 1},
		"an unknown word is a failure":                         {acks: []string{"Completed"}, want: map[int]want{0: done}, next: []int64{0, 1, 2, 3, 4}, attempt: 2},
		"the lowest signal decides":                            {acks: []string{"", "", "failed", "dlq", ""}, want: map[int]want{2: done, 3: done}, next: []int64{0, 1, 2, 3, 4}, attempt: 2},
		"a retry limit of zero dead-letters at once":           {options: `"retryLimit":0`, acks: []string{"failed"}, want: map[int]want{0: {success: true, released: true, dlq: true}}, next: []int64{1, 2, 3, 4}, attempt: 1},
		"without dead letters an exhausted message is dropped": {options: `"retryLimit":0,"deadLetterQueue":false,"dlqAfterMaxRetries":false`, acks: []string{"failed"}, want: map[int]want{0: done}, next: []int64{1, 2, 3, 4}, attempt: 1},
		"a wrong lease moves nothing":                          {lease: "wrong", acks: []string{"completed"}, want: map[int]want{0: {err: "invalid or expired lease"}}},
		"a lease-less ack moves the cursor":                    {lease: "none", acks: []string{"completed", "completed", "completed", "completed", "completed"}, want: map[int]want{4: done}},
		"autoAck leaves nothing to acknowledge":                {query: "&autoAck=true", lease: "none", acks: []string{"completed"}, want: map[int]want{0: {success: true, noop: true}}},
		"a failure below the cursor is refused":                {query: "&autoAck=true", lease: "none", acks: []string{"failed"}, want: map[int]want{0: {err: "already committed"}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := "ack-" + strings.ReplaceAll(name, " ", "-")
			if r := c.call(t, "POST", "/api/v1/configure", fmt.Sprintf(`{"queue":%q,"options":{%s}}`, queue, tt.options)); r.status != http.StatusOK {
				t.Fatalf("configure: %d %s", r.status, r.body)
			}
			c.push(t, items(queue, "p", "t", 5))
			got := c.pop(t, queue, "batch=5"+tt.query)
			if len(got.Messages) != 5 {
				t.Fatalf("popped %d messages", len(got.Messages))
			}
			var acks []m
			var offsets []int
			for i, status := range tt.acks {
				if status == "" {
					continue
				}
				a := ackOf(got.Messages[i], status)
				switch tt.lease {
				case "none":
					delete(a, "leaseId")
				case "wrong":
					a["leaseId"] = "00000000-0000-7000-8000-000000000000"
				}
				acks, offsets = append(acks, a), append(offsets, i)
			}
			for i, r := range c.ack(t, acks, nil) {
				w, checked := tt.want[offsets[i]]
				if !checked {
					continue
				}
				text := ""
				if r.Error != nil {
					text = *r.Error
				}
				if r.Success != w.success || r.LeaseReleased != w.released || r.DLQ != w.dlq || r.Noop != w.noop || !strings.Contains(text, w.err) || (w.err == "" && text != "") {
					t.Errorf("offset %d: got %+v (%s), want %+v", offsets[i], r, text, w)
				}
				if r.TransactionID != fmt.Sprintf("t-%d", offsets[i]) || r.Index != i {
					t.Errorf("result %d answers %s", i, r.TransactionID)
				}
			}
			next := c.pop(t, queue, "batch=5")
			var offs []int64
			for _, msg := range next.Messages {
				offs = append(offs, msg.Offset)
				if msg.DeliveryAttempt != tt.attempt {
					t.Errorf("offset %d: delivery attempt %d, want %d", msg.Offset, msg.DeliveryAttempt, tt.attempt)
				}
			}
			if fmt.Sprint(offs) != fmt.Sprint(tt.next) {
				t.Errorf("the next pop got %v, want %v", offs, tt.next)
			}
		})
	}
}

func TestTheFourthFailureDeadLetters(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	c.push(t, items("q", "p", "poison", 2))
	for round := 1; round <= 4; round++ {
		got := c.pop(t, "q", "batch=2&consumerGroup=g&subscriptionMode=all")
		if len(got.Messages) == 0 || got.Messages[0].Offset != 0 || got.Messages[0].DeliveryAttempt != round {
			t.Fatalf("round %d: got %+v", round, got.Messages)
		}
		r := c.ack(t, []m{ackOf(got.Messages[0], "failed")}, "g")
		if !r[0].Success || r[0].DLQ != (round == 4) {
			t.Errorf("round %d: %+v", round, r[0])
		}
	}
	var reason, payload string
	err := c.db.QueryRow(t.Context(), `SELECT error, convert_from(payload::text::bytea, 'UTF8') FROM queen.log_dlq d
		WHERE transaction_id = 'poison-0' AND tenant_id = (SELECT broker_tenant_uuid FROM queengate.clusters WHERE id = $1::uuid)`, c.id).Scan(&reason, &payload)
	if err != nil {
		t.Fatal(err)
	}
	if reason != "Retries exhausted" {
		t.Errorf("reason %q", reason)
	}
	if next := c.pop(t, "q", "batch=2&consumerGroup=g"); len(next.Messages) != 1 || next.Messages[0].Offset != 1 {
		t.Errorf("after the dead letter: %+v", next.Messages)
	}
}

func TestLateAndForeignAcks(t *testing.T) {
	t.Parallel()
	s := shared(t)
	c, other := s.newCluster(t, ""), s.newCluster(t, "")
	c.push(t, items("q", "p", "t", 1))
	got := c.pop(t, "q", "batch=1").Messages
	if len(got) != 1 {
		t.Fatal("nothing popped")
	}
	errOf := func(rs []ackResult) string {
		if rs[0].Error == nil {
			return ""
		}
		return *rs[0].Error
	}
	foreign := errOf(other.ack(t, []m{ackOf(got[0], "completed")}, nil))
	missing := ackOf(got[0], "completed")
	missing["partitionId"] = "0198f000-0000-7000-8000-000000000001"
	if unknown := errOf(other.ack(t, []m{missing}, nil)); foreign == "" || foreign != unknown {
		t.Errorf("a foreign partition says %q, an unknown one %q", foreign, unknown)
	}
	unresolvable := ackOf(got[0], "completed")
	unresolvable["transactionId"] = "never"
	if e := errOf(c.ack(t, []m{unresolvable}, nil)); !strings.Contains(e, "unresolvable") {
		t.Errorf("an unknown id says %q", e)
	}
	if e := errOf(c.ack(t, []m{ackOf(got[0], "completed")}, "nobody")); !strings.Contains(e, "consumer not found") {
		t.Errorf("a group that never popped says %q", e)
	}
	if r := c.ack(t, []m{ackOf(got[0], "completed")}, nil); !r[0].Success || !r[0].LeaseReleased {
		t.Errorf("the right ack: %+v", r[0])
	}
	again := ackOf(got[0], "completed")
	delete(again, "leaseId")
	if r := c.ack(t, []m{again}, nil); !r[0].Success || !r[0].Noop {
		t.Errorf("a repeated ack: %+v", r[0])
	}
	for name, a := range map[string]m{"no partition": {"transactionId": "t-0"}, "no id": {"partitionId": got[0].PartitionID}, "a malformed partition": {"transactionId": "t-0", "partitionId": "p"}} {
		if e := errOf(c.ack(t, []m{a}, nil)); e == "" {
			t.Errorf("%s succeeded", name)
		}
	}
}

func TestLeases(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	c.push(t, items("q", "p", "t", 3))
	first := c.pop(t, "q", "batch=3&leaseSeconds=3")
	if len(first.Messages) != 3 || first.LeaseID == "" {
		t.Fatalf("got %+v", first)
	}
	if second := c.pop(t, "q", "batch=3"); len(second.Messages) != 0 {
		t.Error("a leased partition was delivered to a second consumer")
	}
	type extended struct {
		Success   bool
		Renewed   int
		NewExpiry *string `json:"newExpiresAt"`
		Snake     *string `json:"lease_expires_at"`
	}
	extend := func(lease string, body any) extended {
		r := c.call(t, "POST", "/api/v1/lease/"+lease+"/extend", body)
		if r.status != http.StatusOK {
			t.Fatalf("extend: %d %s", r.status, r.body)
		}
		return decode[extended](t, r.body)
	}
	e := extend(first.LeaseID, `{"seconds":3}`)
	if !e.Success || e.Renewed != 1 || e.NewExpiry == nil || *e.NewExpiry != *e.Snake {
		t.Errorf("extend: %+v", e)
	}
	if e := extend("0198f000-0000-7000-8000-000000000001", nil); e.Success || e.Renewed != 0 || e.NewExpiry != nil {
		t.Errorf("an unknown lease: %+v", e)
	}
	// A parked poll is woken by the end of the lease, without a push.
	redelivered := c.pop(t, "q", "batch=3&wait=true&timeout=20000")
	if len(redelivered.Messages) != 3 || redelivered.Messages[0].DeliveryAttempt != 2 {
		t.Fatalf("after expiry: %+v", redelivered)
	}
	if r := c.ack(t, []m{ackOf(first.Messages[0], "completed")}, nil); r[0].Success || r[0].Error == nil || !strings.Contains(*r[0].Error, "invalid_lease") {
		t.Errorf("the lost lease acknowledged: %+v", r[0])
	}
}
