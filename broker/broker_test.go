package broker

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestPushPopAck(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	rs := w.push(`{"items":[
		{"queue":"orders","transactionId":"a","payload":{"n":1}},
		{"queue":"orders","transactionId":"a","payload":{"n":2}},
		{"queue":"orders","partition":"p","payload":1e400},
		{"queue":"other","payload":null}]}`)
	if len(rs) != 4 || rs[0].Status != "queued" || rs[1].Status != "duplicate" || rs[2].Status != "queued" || rs[3].Status != "queued" {
		t.Fatalf("verdicts: %+v", rs)
	}
	if rs[1].MessageID != rs[0].MessageID || rs[1].Index != 1 || *rs[1].Offset != 0 {
		t.Errorf("the follower %+v does not share its leader's identity %+v", rs[1], rs[0])
	}
	if dup := w.one("orders", "a"); dup.Status != "duplicate" || dup.MessageID != rs[0].MessageID {
		t.Errorf("second request: %+v, want a duplicate of %s", dup, rs[0].MessageID)
	}
	got := w.pop("orders?partitions=0&consumerGroup=g&subscriptionMode=all")
	if got.PartitionsClaimed != 2 || len(got.Messages) != 2 {
		t.Fatalf("popped %+v, want both partitions", got)
	}
	for _, m := range got.Messages {
		if m.LeaseID != got.LeaseID || m.DeliveryAttempt != 1 {
			t.Errorf("message %+v", m)
		}
		if m.Partition == "p" && string(m.Data) != "1e400" || m.Partition == "Default" && (m.ID != rs[0].MessageID || string(m.Data) != `{"n":1}`) {
			t.Errorf("message %+v", m)
		}
	}
	if again := w.pop("orders?consumerGroup=g"); again.Messages != nil {
		t.Errorf("leased messages were delivered again: %+v", again)
	}
	for i, r := range w.ack("completed", "g", got.Messages...) {
		if !r.Success || !r.LeaseReleased || r.Error != nil || r.Index != i {
			t.Errorf("ack %d: %+v", i, r)
		}
	}
	if again := w.pop("orders?consumerGroup=g&partitions=0"); again.Messages != nil {
		t.Errorf("acknowledged messages were delivered again: %+v", again)
	}
	if r := w.ack("completed", "g", got.Messages...); !r[0].Noop && r[0].Success {
		t.Errorf("a second ack: %+v", r)
	}
	if other := w.pop("orders?partitions=0&consumerGroup=h&subscriptionMode=all&autoAck=true"); len(other.Messages) != 2 || other.LeaseID != "" {
		t.Errorf("another group: %+v", other)
	}
}

func TestANackIsRedeliveredAtOnce(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a")
	for attempt := 1; attempt <= 4; attempt++ {
		got := w.pop("q?wait=true&timeout=20000")
		if len(got.Messages) != 1 || got.Messages[0].DeliveryAttempt != attempt {
			t.Fatalf("attempt %d: %+v", attempt, got)
		}
		r := w.ack("failed", "", got.Messages...)[0]
		if !r.Success || !r.LeaseReleased || r.DLQ != (attempt == 4) {
			t.Errorf("nack %d: %+v", attempt, r)
		}
	}
	if got := w.pop("q"); got.Messages != nil {
		t.Errorf("a dead letter was delivered: %+v", got)
	}
}

func TestAParkedPollIsWokenByAPush(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for name, path := range map[string]string{
		"queue that does not exist":     "fresh?wait=true&timeout=20000",
		"partition that does not exist": "pinned/partition/p?wait=true&timeout=20000",
		"group of its own":              "grouped?wait=true&timeout=20000&consumerGroup=g",
	} {
		parked := w.b.park.Waiting()
		got := make(chan popped, 1)
		go func() { got <- w.pop(path) }()
		w.until(name+" parks", func() bool { return w.b.park.Waiting() > parked })
		queue, _, _ := strings.Cut(path, "?")
		queue, _, _ = strings.Cut(queue, "/")
		begin := time.Now()
		w.push(fmt.Sprintf(`{"items":[{"queue":%q,"partition":"p","payload":1}]}`, queue))
		select {
		case p := <-got:
			if len(p.Messages) != 1 {
				t.Errorf("%s: %+v", name, p)
			}
		case <-time.After(patience):
			t.Fatalf("%s: never woken", name)
		}
		t.Logf("%s: woken %v after the push began", name, time.Since(begin))
	}
}

func TestAPollEndsBeforeItsTimeWith204(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	// One that lasts for all of its time is never early, however often it is asked; one that is early may be held up.
	w.until("an early answer", func() bool {
		begin := time.Now()
		if got := w.pop("q?wait=true&timeout=1000"); got.Messages != nil {
			t.Fatalf("%+v", got)
		}
		d := time.Since(begin)
		if d < 700*time.Millisecond {
			t.Errorf("answered after %v, want 750 ms", d)
		}
		return d < time.Second
	})
}

func TestAPollWithoutTimeDoesNotWait(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *Config) { c.PopTimeout = 10 * time.Minute }) // far more than the client's patience
	for _, query := range []string{"wait=true&timeout=0", "wait=false", "wait=false&timeout=600000", "", "wait=true&timeout=100"} {
		w.do("GET", "/api/v1/pop/queue/q?"+query, "").want(t, 204)
	}
}

func TestAShortPollUsesMostOfItsTime(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for _, ms := range []int{50, 200, 500} {
		begin := time.Now()
		w.pop(fmt.Sprintf("q?wait=true&timeout=%d", ms))
		if d, least := time.Since(begin), time.Duration(ms)*time.Millisecond*3/4; d < least {
			t.Errorf("a poll of %d ms was answered after %v, want at least %v", ms, d, least)
		}
	}
}

func TestAnotherBrokersPushAndAckAreNoticed(t *testing.T) {
	t.Parallel()
	a := setup(t, nil)
	b := serve(t, a.pool, nil)
	got := make(chan popped, 1)
	poll := func(path string) {
		parked := a.b.park.Waiting()
		go func() { got <- a.pop(path) }()
		a.until("parked", func() bool { return a.b.park.Waiting() > parked })
	}
	poll("q?wait=true&timeout=20000")
	b.one("q", "x")
	first := <-got
	if len(first.Messages) != 1 {
		t.Fatalf("queue form: %+v", first)
	}
	poll("q?wait=true&timeout=20000")
	if r := b.ack("retry", "", first.Messages...)[0]; !r.Success || !r.LeaseReleased {
		t.Fatalf("nack at the other broker: %+v", r)
	}
	if second := <-got; len(second.Messages) != 1 || second.Messages[0].DeliveryAttempt != 2 {
		t.Fatalf("redelivery: %+v", second)
	}
	poll("late/partition/p?wait=true&timeout=20000")
	b.push(`{"items":[{"queue":"late","partition":"p","payload":1}]}`)
	if third := <-got; len(third.Messages) != 1 {
		t.Fatalf("partition made elsewhere: %+v", third)
	}
}

func TestALeaseThatExpiresIsRedelivered(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a")
	first := w.pop("q?leaseSeconds=1")
	second := w.pop("q?wait=true&timeout=20000")
	if len(first.Messages) != 1 || len(second.Messages) != 1 || second.LeaseID == first.LeaseID {
		t.Fatalf("%+v, then %+v", first, second)
	}
	r := w.ack("completed", "", first.Messages...)[0]
	if r.Success || r.Error == nil || !strings.Contains(*r.Error, "invalid or expired lease") {
		t.Errorf("ack of the lost lease: %+v", r)
	}
}

// What a gateway debits is stated by the broker: messages that come for the first time, and none that come again.
func TestOnlyFirstDeliveriesAreCounted(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	delivered := func(want string) popped {
		t.Helper()
		a := w.do("GET", "/api/v1/pop/queue/q?batch=2", "").want(t, 200)
		if got := a.header.Get("X-Queen-Delivered"); got != want {
			t.Errorf("delivered %q, want %s: %s", got, want, a.body)
		}
		return decode[popped](t, a)
	}
	w.one("q", "a")
	w.one("q", "b")
	first := delivered("2")
	w.one("q", "c")
	w.ack("retry", "", first.Messages[:1]...)
	w.ack("completed", "", delivered("0").Messages...)
	delivered("1")
}

func TestExtendKeepsALease(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a")
	got := w.pop("q?leaseSeconds=60")
	type extended struct {
		Success bool
		Renewed int
	}
	e := decode[extended](t, w.do("POST", "/api/v1/lease/"+got.LeaseID+"/extend", `{"seconds":600}`).want(t, 200))
	if !e.Success || e.Renewed != 1 {
		t.Errorf("extend: %+v", e)
	}
	for over, want := range []int{0, 1} { // five minutes later, and ten
		if _, err := w.pool.Exec(t.Context(), "UPDATE queen.log_consumers SET lease_expires_at = lease_expires_at - interval '5 minutes'"); err != nil {
			t.Fatal(err)
		}
		// A broker that knows nothing of the lease asks the database.
		if again := serve(t, w.pool, nil).pop("q"); len(again.Messages) != want {
			t.Errorf("after %d minutes of ten the message comes %d times, want %d", 5+5*over, len(again.Messages), want)
		}
	}
	for _, id := range []string{"nonsense", "00000000-0000-0000-0000-000000000009"} {
		if e := decode[extended](t, w.do("POST", "/api/v1/lease/"+id+"/extend", "").want(t, 200)); e.Success || e.Renewed != 0 {
			t.Errorf("extend %s: %+v", id, e)
		}
	}
}

func TestOptionsGateDelivery(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	configure := func(queue, options string) {
		a := w.do("POST", "/api/v1/configure", fmt.Sprintf(`{"queue":%q,"options":{%s}}`, queue, options)).want(t, 200)
		if !strings.Contains(a.body, `"configured":true`) || !strings.Contains(a.body, `"retryLimit":3`) {
			t.Errorf("configure: %s", a.body)
		}
	}
	configure("delayed", `"delayedProcessing":2`)
	configure("window", `"windowBuffer":2`)
	configure("filled", `"minPopWaitTime":60000`)
	configure("halffilled", `"minPopWaitTime":1000`)
	var wg sync.WaitGroup
	gate := func(queue string, least time.Duration, messages int, pushes ...string) {
		wg.Go(func() {
			begin := time.Now()
			got := make(chan popped, 1)
			go func() { got <- w.pop(queue + "?wait=true&timeout=60000&batch=3") }() // more than the client's patience
			for _, p := range pushes {
				w.one(queue, p)
			}
			n := len((<-got).Messages)
			if d := time.Since(begin); d < least || n != messages {
				t.Errorf("%s: %d messages after %v, want %d after %v", queue, n, d, messages, least)
			}
		})
	}
	gate("delayed", 1900*time.Millisecond, 1, "a")
	gate("window", 1900*time.Millisecond, 1, "a")
	gate("filled", 0, 3, "a", "b", "c")
	gate("halffilled", 900*time.Millisecond, 1, "a")
	wg.Wait()
}

func TestQueueAdministration(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.do("POST", "/api/v1/configure", `{"queue":"a.b.c","namespace":"ns"}`).want(t, 200)
	w.one("a.b.c", "x")
	w.one("a.b.c", "y")
	w.one("second", "y")
	w.ack("completed", "g", w.pop("a.b.c?consumerGroup=g&subscriptionMode=all&batch=1").Messages...)
	type counts struct{ Total, Pending, Processing, Completed, DeadLetter int64 }
	type queue struct {
		Name, Namespace string
		Partitions      int
		RetainedBytes   int64
		Messages        counts
	}
	list := decode[struct{ Queues []queue }](t, w.do("GET", "/api/v1/resources/queues", "").want(t, 200)).Queues
	if len(list) != 2 || list[0].Name != "a.b.c" || list[0].Namespace != "ns" || list[0].Partitions != 1 || list[0].Messages.Total != 2 || list[0].Messages.Pending != 1 {
		t.Errorf("list: %+v", list)
	}
	if list[0].RetainedBytes != 18 {
		t.Errorf("retained bytes %d, want the 18 bytes of two payloads", list[0].RetainedBytes)
	}
	detail := decode[struct {
		Name       string
		Options    map[string]any
		Partitions []struct {
			Name                         string
			Stats                        counts
			OldestMessage, NewestMessage *string
		}
		Totals counts
	}](t, w.do("GET", "/api/v1/resources/queues/a.b.c", "").want(t, 200))
	if len(detail.Options) != 21 || len(detail.Partitions) != 1 || detail.Totals != (counts{Total: 2, Pending: 1, Completed: 1}) || detail.Partitions[0].NewestMessage == nil {
		t.Errorf("detail: %+v", detail)
	}
	if a := w.do("GET", "/api/v1/resources/queues/none", ""); a.status != 404 || !strings.Contains(a.body, `"error":"Queue not found"`) {
		t.Errorf("detail of no queue: %d %s", a.status, a.body)
	}
	for i, want := range []string{
		`{"deleted":true,"queue":"second","existed":true}`,
		`{"deleted":false,"queue":"second","existed":false,"message":"Queue not found, nothing was deleted"}`,
	} {
		if a := w.do("DELETE", "/api/v1/resources/queues/second", "").want(t, 200); a.body != want {
			t.Errorf("deletion %d: %s", i, a.body)
		}
	}
}

// TestADeletedQueueComesBackEmpty pins that caches, rings and the fuser forget a queue and find its next incarnation.
func TestADeletedQueueComesBackEmpty(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for round := range 3 {
		if r := w.one("q", "same"); r.Status != "queued" || *r.Offset != 0 {
			t.Fatalf("round %d: %+v", round, r)
		}
		got := w.pop("q?wait=true&timeout=20000&consumerGroup=g&subscriptionMode=all")
		if len(got.Messages) != 1 {
			t.Fatalf("round %d: %+v", round, got)
		}
		w.do("DELETE", "/api/v1/resources/queues/q", "").want(t, 200)
		if got := w.pop("q?consumerGroup=g"); got.Messages != nil {
			t.Fatalf("round %d: messages of a deleted queue: %+v", round, got)
		}
	}
}

func TestHealthAndMetrics(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	if a := w.do("GET", "/health", "").want(t, 200); a.body != `{"status":"healthy","database":"connected","engine":"postgres","version":"test"}` {
		t.Error(a.body)
	}
	w.do("GET", "/livez", "").want(t, 200)
	w.do("GET", "/readyz", "").want(t, 200)
	w.one("q", "a")
	a := w.do("GET", "/metrics/prometheus", "").want(t, 200)
	for _, line := range []string{
		"queen_process_push_messages_total 1", "queengate_broker_parked_polls 0",
		`queengate_broker_requests_total{route="/api/v1/push",status="2xx"} 1`, "queengate_broker_fuse_stored_total 1",
	} {
		if !strings.Contains(a.body, line+"\n") {
			t.Errorf("metrics lack %q", line)
		}
	}
}
