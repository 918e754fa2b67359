package contract

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// ackKeys are the seven members of every item of an ack's answer, sorted.
var ackKeys = []string{"dlq", "error", "index", "leaseReleased", "noop", "success", "transactionId"}

func testAckShape(t *testing.T, s *service) {
	s.push("shape", "Default", "a", "b", "c")
	got := s.some("shape").Messages
	one := decode[[]m](t, s.do("POST", "/api/v1/ack", text(t, ackBody(got[0], "completed"))).want(t, 200))
	if len(one) != 1 || !slices.Equal(keys(one[0]), ackKeys) || one[0]["success"] != true || one[0]["error"] != nil {
		t.Errorf("%v", one)
	}
	unknown := got[2]
	unknown.TransactionID = "nowhere"
	batch := text(t, m{"acknowledgments": []m{
		ackBody(got[1], "completed"), ackBody(got[1], "completed"), ackBody(unknown, "completed"), {"transactionId": "x"}, ackBody(got[2], "completed"),
	}})
	results := decode[[]m](t, s.do("POST", "/api/v1/ack/batch", batch).want(t, 200))
	if len(results) != 5 {
		t.Fatalf("%d results", len(results))
	}
	for i, want := range []bool{true, true, false, false, true} {
		if r := results[i]; !slices.Equal(keys(r), ackKeys) || r["index"] != float64(i) || r["success"] != want || (r["error"] == nil) != want {
			t.Errorf("item %d: %v", i, r)
		}
	}
	if text := results[2]["error"].(string); !strings.HasPrefix(text, "unresolvable: ") {
		t.Errorf("an unknown id: %s", text)
	}
}

func testAckCursor(t *testing.T, s *service) {
	s.push("cursor", "Default", txns("a", 5)...)
	got := s.some("cursor").Messages
	if r := s.ack("completed", got[4]); !r[0].Success || !r[0].LeaseReleased {
		t.Errorf("%+v", r)
	}
	if p := s.pop("cursor"); len(p.Messages) > 0 {
		t.Errorf("a completed batch comes back: %q", p.ids())
	}
	s.push("cursor", "Default", txns("b", 5)...)
	got = s.some("cursor").Messages
	r := s.settle(nil, ackBody(got[0], "completed"), ackBody(got[1], "completed"), ackBody(got[2], "failed"), ackBody(got[3], "completed"), ackBody(got[4], "completed"))
	if slices.ContainsFunc(r, func(a acked) bool { return !a.Success }) {
		t.Errorf("%+v", r)
	}
	if p := s.some("cursor"); p.ids() != "b-2 b-3 b-4" {
		t.Errorf("after a failure in the middle: %q", p.ids())
	}
}

func testRetriesExhausted(t *testing.T, s *service) {
	s.do("POST", "/api/v1/configure", `{"queue":"poison","options":{"retryLimit":3}}`).want(t, 200)
	s.push("poison", "Default", "bad", "good")
	for i := range 4 {
		g := s.some("poison").Messages[0]
		if g.TransactionID != "bad" || g.DeliveryAttempt != i+1 {
			t.Fatalf("delivery %d is %+v", i+1, g)
		}
		nack := ackBody(g, "failed")
		nack["error"] = fmt.Sprint("reason ", i+1)
		if r := s.settle(nil, nack)[0]; !r.Success || !r.LeaseReleased || r.DLQ != (i == 3) {
			t.Errorf("nack %d: %+v", i+1, r)
		}
	}
	letters := s.letters("queue=poison")
	if len(letters) != 1 || letters[0]["transactionId"] != "bad" || letters[0]["errorMessage"] != "reason 4" || letters[0]["retryCount"] != 3.0 {
		t.Errorf("%v", letters)
	}
	if p := s.some("poison"); p.ids() != "good" {
		t.Errorf("then %q", p.ids())
	}
}

func testUnchargedRedelivery(t *testing.T, s *service) {
	const times = 20
	s.push("retried", "Default", "a")
	for i := range times {
		g := s.some("retried").Messages[0]
		if r := s.ack("retry", g)[0]; !r.Success || r.DLQ || g.DeliveryAttempt != i+1 {
			t.Fatalf("delivery %d: %+v, %+v", i+1, g, r)
		}
	}
	if g := s.some("retried").Messages[0]; g.DeliveryAttempt != times+1 {
		t.Errorf("after %d retries: %+v", times, g)
	}
	// The shortest lease is a second: twenty of them run out while the other lines are tested.
	s.push("expired", "Default", "a")
	for i := range times {
		if g := s.some("expired?leaseSeconds=1&wait=true&timeout=30000").Messages[0]; g.DeliveryAttempt != i+1 {
			t.Fatalf("delivery %d: %+v", i+1, g)
		}
	}
	if g := s.some("expired?wait=true&timeout=30000").Messages[0]; g.DeliveryAttempt != times+1 {
		t.Errorf("after %d expiries: %+v", times, g)
	}
	if l := append(s.letters("queue=retried"), s.letters("queue=expired")...); len(l) > 0 {
		t.Errorf("dead letters: %v", l)
	}
}

func testAckLease(t *testing.T, s *service) {
	s.push("lease", "Default", "a")
	old := s.some("lease?leaseSeconds=1").Messages[0]
	now := s.some("lease?wait=true&timeout=30000").Messages[0]
	foreign := now
	foreign.LeaseID = uuid.NewString()
	for what, g := range map[string]message{"an expired lease": old, "a foreign lease": foreign} {
		if r := s.ack("completed", g)[0]; r.Success || !strings.Contains(r.reason(), "invalid or expired lease") || !strings.Contains(r.reason(), "invalid_lease") {
			t.Errorf("%s: %+v %s", what, r, r.reason())
		}
	}
	now.LeaseID = ""
	if r := s.ack("completed", now)[0]; !r.Success || r.reason() != "" {
		t.Errorf("no lease: %+v", r)
	}
}

func testNullGroup(t *testing.T, s *service) {
	s.push("nullgroup", "Default", "a", "b", "c", "d")
	for i, group := range []string{`null`, `"__QUEUE_MODE__"`, `""`} {
		p := s.some("nullgroup?batch=1")
		g := p.Messages[0]
		if g.Group != "__QUEUE_MODE__" {
			t.Errorf("group %q", g.Group)
		}
		body := fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"completed","error":null,"consumerGroup":%s}`, g.TransactionID, g.PartitionID, g.LeaseID, group)
		if r := decode[[]acked](t, s.do("POST", "/api/v1/ack", body).want(t, 200)); !r[0].Success {
			t.Errorf("%s: %+v", group, r)
		}
		if want := []string{"a", "b", "c"}[i]; g.TransactionID != want {
			t.Errorf("popped %s, want %s", g.TransactionID, want)
		}
	}
}

var extendKeys = []string{"expiresAt", "leaseId", "lease_expires_at", "newExpiresAt", "renewed", "success"}

func testExtend(t *testing.T, s *service) {
	extend := func(lease, body string) m {
		o := decode[m](t, s.do("POST", "/api/v1/lease/"+lease+"/extend", body).want(t, 200))
		if !slices.Equal(keys(o), extendKeys) || o["leaseId"] != lease || o["newExpiresAt"] != o["expiresAt"] || o["expiresAt"] != o["lease_expires_at"] {
			t.Errorf("%v", o)
		}
		return o
	}
	for _, lease := range []string{uuid.NewString(), "not-a-uuid"} {
		if o := extend(lease, `{}`); o["success"] != false || o["renewed"] != 0.0 || o["expiresAt"] != nil {
			t.Errorf("unknown: %v", o)
		}
	}
	s.push("extend", "a", "x")
	s.push("extend", "b", "y")
	lease := s.some("extend?partitions=2&leaseSeconds=500").LeaseID
	at := func(o m) time.Time {
		v, err := time.Parse(time.RFC3339, fmt.Sprint(o["newExpiresAt"]))
		if err != nil || o["success"] != true || o["renewed"] != 2.0 {
			t.Fatalf("%v: %v", o, err)
		}
		return v
	}
	first := at(extend(lease, `{"seconds":1}`))
	if least := time.Now().Add(400 * time.Second); first.Before(least) {
		t.Errorf("a shorter extension ended the lease at %v", first)
	}
	for _, body := range []string{``, `{}`, `{"seconds":60}`, `{"seconds":"x"}`, `nonsense`} {
		if again := at(extend(lease, body)); again.Before(first) {
			t.Errorf("%q moved the end from %v to %v", body, first, again)
		}
	}
	if longer := at(extend(lease, `{"seconds":1000}`)); longer.Sub(first) < 400*time.Second {
		t.Errorf("a longer extension ends at %v", longer)
	}
}

func testTransactions(t *testing.T, s *service) {
	s.push("txin", "Default", "a", "b", "c")
	s.push("txout", "Default", "taken")
	got := s.some("txin").Messages
	// JavaScript: no transactionId, no partition, leases only beside the operations.
	js := func(status string, item m) m {
		return m{"operations": []m{
			{"type": "ack", "transactionId": got[0].TransactionID, "partitionId": got[0].PartitionID, "status": status},
			{"type": "push", "items": []m{item}},
		}, "requiredLeases": []string{got[0].LeaseID}}
	}
	lost := s.transact(js("completed", m{"queue": "txout", "payload": 1, "transactionId": "taken"}))
	if lost["success"] != false || lost["reason"] != "duplicate" || !strings.HasPrefix(lost["error"].(string), "QDUP ") || len(lost["results"].([]any)) != 0 {
		t.Errorf("a duplicate: %v", lost)
	}
	if r := s.ack("completed", got[0])[0]; r.Noop || !r.Success {
		t.Errorf("the ack of a rolled back transaction took effect: %+v", r)
	}
	done := s.transact(js("completed", m{"queue": "txout", "payload": 2}))
	results := done["results"].([]any)
	if done["success"] != true || len(results) != 2 || done["transactionId"] == "" {
		t.Fatalf("JavaScript: %v", done)
	}
	has(t, results[0].(m), "index", "type", "success", "transactionId", "messageId", "queueName")
	has(t, results[1].(m), "index", "type", "success", "transactionId", "error", "dlq")
	// Go: flat operations with ids of their own, the lease on each ack.
	if o := s.transact(m{"operations": []m{
		{"type": "push", "queue": "txout", "partition": "Default", "payload": m{"n": 3}, "transactionId": "go"},
		{"type": "ack", "transactionId": got[1].TransactionID, "partitionId": got[1].PartitionID, "leaseId": got[1].LeaseID, "status": "completed", "consumerGroup": "__QUEUE_MODE__"},
	}}); o["success"] != true {
		t.Errorf("Go: %v", o)
	}
	stale := js("completed", m{"queue": "txout", "payload": 4})
	stale["requiredLeases"] = []string{uuid.NewString()}
	if o := s.transact(stale); o["success"] != false || o["reason"] != "ack_rejected" {
		t.Errorf("another lease: %v", o)
	}
	// Key-value is not served: a transaction that counts on it must not commit without.
	rider := js("completed", m{"queue": "txout", "payload": 5})
	rider["kv"] = []m{{"op": "put", "ns": "n", "key": "k", "value": 1, "forever": true, "expect": 7, "required": true}}
	r := s.do("POST", "/api/v1/transaction", text(t, rider)).want(t, 400)
	if o := decode[m](t, r); o["success"] != false || o["reason"] != "bad_request" || o["error"] == "" {
		t.Errorf("a rider: %v", o)
	}
	p := s.some("txout?batch=10")
	if len(p.Messages) != 3 || string(p.Messages[1].Data) != "2" || p.Messages[1].TransactionID == "" || p.Messages[2].TransactionID != "go" {
		t.Errorf("stored %+v", p.Messages)
	}
}
