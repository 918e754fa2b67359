package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestPushPopAck(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	results := c.push(t, m{"items": []m{
		{"queue": "orders", "partition": "c-1", "transactionId": "a", "payload": m{"n": 1.50}},
		{"queue": "orders", "partition": "c-1", "transactionId": "b", "payload": nil},
		{"queue": "orders", "partition": "c-1", "transactionId": "a", "payload": "again"},
		{"queue": "orders", "partition": "c-2", "transactionId": "a", "payload": []int{1}},
		{"queue": "orders", "payload": "x"},
	}}, key(c.produce))
	statuses := ""
	for i, r := range results {
		statuses += r.Status + " "
		if r.Index != i || r.QueueName != "orders" || r.MessageID == "" || r.TransactionID == "" || r.Offset == nil {
			t.Errorf("result %d: %+v", i, r)
		}
	}
	if statuses != "queued queued duplicate queued queued " {
		t.Errorf("statuses %s", statuses)
	}
	if results[2].MessageID != results[0].MessageID || *results[2].Offset != 0 {
		t.Errorf("the repeat is %+v, its leader %+v", results[2], results[0])
	}
	again := c.push(t, m{"items": []m{{"queue": "orders", "partition": "c-1", "transactionId": "b", "payload": 0}}})
	if again[0].Status != "duplicate" || again[0].MessageID != results[1].MessageID || *again[0].Offset != 1 {
		t.Errorf("a repeat in another request: %+v, original %+v", again[0], results[1])
	}
	for _, hostname := range []string{c.slug + ".localhost", "localhost", "127.0.0.1", "LOCALHOST:8080", c.slug + ".localhost."} {
		r := c.call(t, "GET", "/api/v1/resources/queues", nil, host(hostname))
		if r.status != http.StatusOK || !strings.Contains(string(r.body), `"orders"`) {
			t.Errorf("host %s: %d %s", hostname, r.status, r.body)
		}
	}
	got := c.pop(t, "orders", "batch=10&partitions=10", key(c.consume))
	if len(got.Messages) != 4 {
		t.Fatalf("popped %+v", got)
	}
	var acks []m
	for _, msg := range got.Messages {
		acks = append(acks, ackOf(msg, "completed"))
		if msg.TransactionID == "b" && string(msg.Data) != "null" || msg.TransactionID == "a" && msg.Partition == "c-1" && string(msg.Data) != `{"n":1.5}` {
			t.Errorf("message %+v", msg)
		}
		if msg.ProducerSub == nil {
			t.Error("no producer")
		}
		if _, err := time.Parse("2006-01-02T15:04:05.000000Z", msg.CreatedAt); err != nil {
			t.Error(err)
		}
	}
	for _, r := range c.ack(t, acks, nil) {
		if !r.Success || !r.LeaseReleased {
			t.Errorf("ack: %+v", r)
		}
	}
	r := c.call(t, "GET", "/api/v1/pop/queue/orders", nil)
	if r.status != http.StatusNoContent || len(r.body) != 0 || r.header.Get("Content-Length") != "" {
		t.Errorf("an empty pop: %d, %q, Content-Length %q", r.status, r.body, r.header.Get("Content-Length"))
	}
}

func TestAParkedPopIsWokenByAPush(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	answers := make(chan reply, 1)
	go func() {
		r, err := c.try(t.Context(), "GET", "/api/v1/pop/queue/later?wait=true&timeout=20000&consumerGroup=g", nil)
		if err == nil {
			answers <- r
		}
		close(answers)
	}()
	c.arrives(t, "later", "g")
	began := time.Now()
	c.push(t, items("later", "p", "t", 1))
	select {
	case r := <-answers:
		if r.status != http.StatusOK || len(decode[popAnswer](t, r.body).Messages) != 1 {
			t.Errorf("got %d %s: a group that waited before the queue existed must get its first message", r.status, r.body)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the poll was not woken")
	}
	t.Logf("woken %v after the push", time.Since(began))
}

// TestAGroupOutlivesItsQueue deletes and recreates a queue under a parked poll: what is pushed to the new one reaches
// the group, whatever it was told about where to start.
func TestAGroupOutlivesItsQueue(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	c.push(t, items("q", "p", "old", 1))
	if got := c.pop(t, "q", "consumerGroup=g"); len(got.Messages) != 0 {
		t.Fatalf("a new group got %+v", got.Messages)
	}
	answers := make(chan reply, 1)
	go func() {
		r, err := c.try(t.Context(), "GET", "/api/v1/pop/queue/q?wait=true&timeout=20000&consumerGroup=h", nil)
		if err == nil {
			answers <- r
		}
		close(answers)
	}()
	c.arrives(t, "q", "h")
	if r := c.call(t, "DELETE", "/api/v1/resources/queues/q", nil); r.status != http.StatusOK {
		t.Fatalf("delete: %d %s", r.status, r.body)
	}
	c.push(t, items("q", "p", "new", 1))
	select {
	case r := <-answers:
		if r.status != http.StatusOK || len(decode[popAnswer](t, r.body).Messages) != 1 {
			t.Errorf("the parked poll got %d %s", r.status, r.body)
		}
	case <-time.After(25 * time.Second):
		t.Fatal("the parked poll was not woken")
	}
}

func TestSubscriptionModes(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	c.push(t, items("q", "p", "old", 2))
	for name, tt := range map[string]struct {
		query string
		want  int
	}{
		"group-less pops get everything": {"", 3},
		"all gets everything":            {"&consumerGroup=a&subscriptionMode=all", 3},
		"new gets what comes":            {"&consumerGroup=b&subscriptionMode=new", 1},
		"the default is new":             {"&consumerGroup=c", 1},
		"a time in the past":             {"&consumerGroup=d&subscriptionFrom=2020-01-01T00:00:00Z", 3},
		"now":                            {"&consumerGroup=e&subscriptionFrom=now", 1},
	} {
		first := c.pop(t, "q", "batch=10&leaseSeconds=1"+tt.query)
		t.Run(name, func(t *testing.T) {
			if n := len(first.Messages); n != tt.want-1 && tt.want == 3 || tt.want == 1 && n != 0 {
				t.Errorf("before the push: %d messages", n)
			}
		})
	}
	c.push(t, items("q", "p", "fresh", 1))
	for _, group := range []string{"b", "c", "e"} {
		if got := c.pop(t, "q", "batch=10&consumerGroup="+group); len(got.Messages) != 1 || got.Messages[0].TransactionID != "fresh-0" {
			t.Errorf("group %s got %+v", group, got.Messages)
		}
	}
}

func TestConfigureListAndDelete(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	r := c.call(t, "POST", "/api/v1/configure", `{"queue":"a/b c","namespace":"n","options":{"leaseTime":7,"retryLimit":1}}`)
	got := decode[struct {
		Configured bool
		Queue      string
		Options    map[string]any
	}](t, r.body)
	if r.status != http.StatusOK || !got.Configured || got.Queue != "a/b c" || got.Options["leaseTime"] != 7.0 || got.Options["dedupWindowSeconds"] != 3600.0 {
		t.Fatalf("configure: %d %s", r.status, r.body)
	}
	c.push(t, items("a/b c", "p", "t", 1))
	if got := c.pop(t, "a%2Fb%20c", "batch=1"); len(got.Messages) != 1 || got.Queue != "a/b c" {
		t.Errorf("a name with a slash and a space: %+v", got)
	}
	r = c.call(t, "GET", "/api/v1/resources/queues/a%2Fb%20c", nil)
	if r.status != http.StatusOK || !strings.Contains(string(r.body), `"leaseTime":7`) {
		t.Errorf("detail: %d %s", r.status, r.body)
	}
	for _, existed := range []bool{true, false} {
		r := c.call(t, "DELETE", "/api/v1/resources/queues/a%2Fb%20c", nil)
		d := decode[struct{ Deleted, Existed bool }](t, r.body)
		if r.status != http.StatusOK || d.Deleted != existed || d.Existed != existed {
			t.Errorf("delete: %d %s", r.status, r.body)
		}
	}
	if again := c.push(t, items("a/b c", "p", "t", 1)); again[0].Status != "queued" || *again[0].Offset != 0 {
		t.Errorf("deleting a queue must forget its dedup keys: %+v", again[0])
	}
}

// badInputs is section 7 of the contract: each is refused with a JSON body and stores nothing.
var badInputs = map[string]struct {
	method, path, body string
	status             int
	code               string
}{
	"malformed JSON":              {"POST", "/api/v1/push", `{"items":[`, 400, "invalid_request"},
	"no body":                     {"POST", "/api/v1/push", ``, 400, "invalid_request"},
	"a wrong type":                {"POST", "/api/v1/push", `{"items":[{"queue":7,"payload":1}]}`, 400, "invalid_request"},
	"a payload is missing":        {"POST", "/api/v1/push", `{"items":[{"queue":"bad","payload":1},{"queue":"bad"}]}`, 400, "invalid_request"},
	"control characters":          {"POST", "/api/v1/push", `{"items":[{"queue":"bad\u0001","payload":1}]}`, 400, "invalid_request"},
	"a name of 3 KB":              {"POST", "/api/v1/push", `{"items":[{"queue":"` + strings.Repeat("n", 3072) + `","payload":1}]}`, 400, "invalid_request"},
	"a transaction id of 65,536":  {"POST", "/api/v1/push", `{"items":[{"queue":"bad","payload":1,"transactionId":"` + strings.Repeat("t", 65536) + `"}]}`, 400, "invalid_request"},
	"10,000 levels":               {"POST", "/api/v1/push", `{"items":[{"queue":"bad","payload":` + strings.Repeat("[", 10000) + strings.Repeat("]", 10000) + `}]}`, 400, "invalid_request"},
	"a duplicate key":             {"POST", "/api/v1/push", `{"items":[{"queue":"bad","queue":"bad","payload":1}]}`, 400, "invalid_request"},
	"invalid UTF-8":               {"POST", "/api/v1/push", "{\"items\":[{\"queue\":\"bad\",\"payload\":\"\xff\"}]}", 400, "invalid_request"},
	"a queue without a name":      {"POST", "/api/v1/push", `{"items":[{"queue":"","payload":1}]}`, 400, "invalid_request"},
	"a queue no path can name":    {"POST", "/api/v1/configure", `{"queue":".."}`, 400, "invalid_request"},
	"a wrong method":              {"PUT", "/api/v1/push", `{"items":[]}`, 405, "method_not_allowed"},
	"an unknown path":             {"POST", "/api/v1/pusch", `{"items":[]}`, 404, "route_blocked"},
	"a dot segment":               {"GET", "/api/v1/pop/queue/%2e%2e", "", 400, "invalid_request"},
	"a bad query":                 {"GET", "/api/v1/pop/queue/bad?batch=x", "", 400, "invalid_request"},
	"a flag that is not":          {"GET", "/api/v1/pop/queue/bad?wait=1", "", 400, "invalid_request"},
	"an ack that is none":         {"POST", "/api/v1/ack", `[]`, 400, "invalid_request"},
	"a batch without acks":        {"POST", "/api/v1/ack/batch", `{}`, 400, "invalid_request"},
	"a queue that does not exist": {"GET", "/api/v1/resources/queues/bad", "", 404, "not_found"},
	"an internal route":           {"POST", "/internal/v1/tenants/usage", `{}`, 404, "route_blocked"},
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	s := shared(t)
	c, neighbour := s.newCluster(t, ""), s.newCluster(t, "")
	for name, tt := range badInputs {
		t.Run(name, func(t *testing.T) {
			// A neighbour's push shares the bundle with the bad one.
			pushed := make(chan reply, 1)
			go func() {
				r, err := neighbour.try(t.Context(), "POST", "/api/v1/push", items("good", "p", name, 3))
				if err == nil {
					pushed <- r
				}
				close(pushed)
			}()
			r := c.call(t, tt.method, tt.path, tt.body)
			e := r.refusal(t)
			if r.status != tt.status || e.Code != tt.code || !strings.HasPrefix(r.header.Get("Content-Type"), "application/json") {
				t.Errorf("got %d %s %s, want %d %s", r.status, r.header.Get("Content-Type"), r.body, tt.status, tt.code)
			}
			for _, word := range []string{"timeout", "connection"} {
				if strings.Contains(strings.ToLower(e.Error), word) {
					t.Errorf("the text says %q: %s", word, e.Error)
				}
			}
			good := <-pushed
			if good.status != http.StatusCreated || strings.Count(string(good.body), `"queued"`) != 3 {
				t.Errorf("the neighbour's push: %d %s", good.status, good.body)
			}
		})
	}
	if r := c.call(t, "GET", "/api/v1/resources/queues", nil); strings.Contains(string(r.body), `"bad`) {
		t.Errorf("bad input stored something: %s", r.body)
	}
}

func TestOversizeBodies(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, `{"max_body_bytes":1000,"max_payload_bytes":900}`)
	r := c.call(t, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":"`+strings.Repeat("x", 2000)+`"}]}`)
	if e := r.refusal(t); r.status != 413 || e.Code != "payload_too_large" {
		t.Errorf("got %d %s", r.status, r.body)
	}
	// Far above the cap, with the answer sent while the body still comes.
	r = c.call(t, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":"`+strings.Repeat("x", 8<<20)+`"}]}`)
	if e := r.refusal(t); r.status != 413 || e.Code != "payload_too_large" {
		t.Errorf("got %d %s", r.status, r.body)
	}
}

// TestTheHeadIsJudgedBeforeTheBody declares a body and sends none of it.
func TestTheHeadIsJudgedBeforeTheBody(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, `{"max_req_per_sec":0.001,"req_burst":1}`)
	spendRequest(t, c)
	addr := strings.TrimPrefix(c.proc.Credentials.GatewayURL, "http://")
	for name, tt := range map[string]struct {
		auth   string
		status int
	}{
		"no credential":  {"", 401},
		"a wrong key":    {"Authorization: Bearer qk_test_" + strings.Repeat("A", 43) + "\r\n", 401},
		"over its rate":  {"Authorization: Bearer " + c.full + "\r\n", 429},
		"the wrong role": {"Authorization: Bearer " + c.read + "\r\n", 403},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 1000000\r\n\r\n", tt.auth)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != tt.status {
				t.Errorf("got %d, want %d", resp.StatusCode, tt.status)
			}
		})
	}
}

// TestSmuggling sends requests that two readers could understand differently.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	addr := strings.TrimPrefix(c.proc.Credentials.GatewayURL, "http://")
	auth := "Authorization: Bearer " + c.full + "\r\n"
	for name, head := range map[string]string{
		"two lengths":            "Host: localhost\r\nContent-Length: 12\r\nContent-Length: 13\r\n",
		"two equal hosts":        "Host: localhost\r\nHost: localhost\r\nContent-Length: 12\r\n",
		"length and chunks":      "Host: localhost\r\nContent-Length: 12\r\nTransfer-Encoding: chunked\r\n",
		"two transfer encodings": "Host: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
		"a trailer":              "Host: localhost\r\nTrailer: X-Queen-Tenant\r\nTransfer-Encoding: chunked\r\n",
		"a second credential":    "Host: localhost\r\n" + auth + "Content-Length: 12\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			body := `{"items":[]}`
			if strings.Contains(head, "chunked") {
				body = "c\r\n" + body + "\r\n0\r\n\r\n"
			}
			fmt.Fprintf(conn, "POST /api/v1/push HTTP/1.1\r\n%s%s\r\n%s", auth, head, body)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != 400 {
				t.Errorf("got %d, want 400", resp.StatusCode)
			}
		})
	}
}

// TestClientsCannotStateATenant sends every header that a broker might believe.
func TestClientsCannotStateATenant(t *testing.T) {
	t.Parallel()
	s := shared(t)
	c, victim := s.newCluster(t, ""), s.newCluster(t, "")
	victim.push(t, items("secret", "p", "t", 1))
	var tenant string
	if err := c.db.QueryRow(t.Context(), `SELECT broker_tenant_uuid::text FROM queengate.clusters WHERE id = $1::uuid`, victim.id).Scan(&tenant); err != nil {
		t.Fatal(err)
	}
	r := c.call(t, "GET", "/api/v1/resources/queues", nil, header("X-Queen-Tenant", tenant), header("Connection", "X-Queen-Request-Id"), header("X-Queen-Request-Id", "mine"))
	if r.status != http.StatusOK || strings.Contains(string(r.body), "secret") {
		t.Errorf("got %d %s", r.status, r.body)
	}
	if id := r.header.Get("X-Queen-Request-Id"); id == "" || id == "mine" {
		t.Errorf("request id %q", id)
	}
	// The broker itself believes nobody without a signature.
	req, err := http.NewRequest("GET", c.proc.Credentials.BrokerURL+"/api/v1/resources/queues", nil)
	if err != nil {
		t.Fatal(err)
	}
	for want, tenants := range map[int][]string{400: nil, 401: {tenant}} {
		req.Header["X-Queen-Tenant"] = tenants
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("direct to the broker with tenants %v: %d, want %d", tenants, resp.StatusCode, want)
		}
	}
}
