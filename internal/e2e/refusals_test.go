package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fault is one reason to refuse a push, in the order of evaluation of docs/design/order-of-evaluation.md. Each makes
// the same request fail in one way; two together must answer as the first of them.
type fault struct {
	name   string
	status int
	code   string
	limit  string // of the error body; "" when the refusal names none

	overrides string // limits of the plan, as members of a JSON object
	status2   string // life-cycle status of the cluster
	exhaust   func(t *testing.T, c *cluster)
	request   func(*pushRequest)
}

type pushRequest struct {
	path             string
	opts             []callOption
	items            int
	size             int
	queue, partition string
}

func (r *pushRequest) body() string {
	var b strings.Builder
	b.WriteString(`{"items":[`)
	for i := range r.items {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"queue":%q,"partition":%q,"payload":%q}`, r.queue, r.partition, strings.Repeat("x", r.size))
	}
	b.WriteString(`]}`)
	return b.String()
}

// spendRequest uses up a request bucket of one.
func spendRequest(t *testing.T, c *cluster) {
	t.Helper()
	if r := c.call(t, "GET", "/api/v1/resources/queues", nil); r.status != http.StatusOK {
		t.Fatalf("spend a request: %d %s", r.status, r.body)
	}
}

// spendMessages uses up a message bucket of four.
func spendMessages(t *testing.T, c *cluster) {
	t.Helper()
	c.push(t, items("known", "Default", "spent", 4))
}

// spendPartitions uses up an allowance of one named partition.
func spendPartitions(t *testing.T, c *cluster) {
	t.Helper()
	c.push(t, items("known", "one", "spent", 1))
}

// Rates of one in a thousand seconds keep a spent bucket spent for as long as any test lasts; a spent bucket stays
// spent when the plan is edited again.
var pushFaults = []fault{
	{name: "an unknown path", status: 404, code: "route_blocked", request: func(r *pushRequest) { r.path = "/api/v1/nothing" }},
	{name: "no credential", status: 401, code: "unauthorized", request: func(r *pushRequest) {
		r.opts = append(r.opts, func(q *http.Request) { q.Header.Del("Authorization") })
	}},
	{name: "another host", status: 421, code: "cluster_unknown", request: func(r *pushRequest) { r.opts = append(r.opts, host("nobody.example.test")) }},
	{name: "a suspended cluster", status: 403, code: "cluster_suspended", status2: "suspended"},
	{name: "a credential without the scope", status: 403, code: "forbidden", request: func(r *pushRequest) { r.opts = append(r.opts, nil) }},
	{name: "request rate", status: 429, code: "rate_limited", limit: "req", overrides: `"max_req_per_sec":0.001,"req_burst":1`, exhaust: spendRequest},
	{name: "message rate", status: 429, code: "rate_limited", limit: "msgs", overrides: `"max_msgs_per_sec":0.001,"msgs_burst":4`, exhaust: spendMessages},
	{name: "message batch above burst", status: 413, code: "batch_exceeds_burst", limit: "msgs", overrides: `"max_msgs_per_sec":1,"msgs_burst":3`, request: func(r *pushRequest) { r.items = 4 }},
	{name: "queue count", status: 403, code: "quota_exceeded", limit: "queues", overrides: `"max_queues":1`, request: func(r *pushRequest) { r.queue = "another" }},
	{name: "partition count", status: 403, code: "quota_exceeded", limit: "partitions", overrides: `"max_partitions_per_queue":1`, exhaust: spendPartitions, request: func(r *pushRequest) { r.partition = "two" }},
	{name: "payload size", status: 413, code: "payload_too_large", limit: "payload", overrides: `"max_payload_bytes":100`, request: func(r *pushRequest) { r.size = 101 }},
	{name: "batch size", status: 413, code: "payload_too_large", limit: "batch", overrides: `"max_batch_items":3`, request: func(r *pushRequest) { r.items = 4 }},
	{name: "retained bytes", status: 403, code: "storage_quota_exceeded", limit: "storage", overrides: `"max_retained_bytes":0`},
	{name: "monthly allowance", status: 403, code: "quota_exceeded", limit: "month", overrides: `"monthly_msgs_quota":0`},
	{name: "billing hold", status: 403, code: "push_blocked", status2: "push_blocked"},
}

// TestRefusals sends one push per fault and per pair of faults: the answer is always that of the first in the order,
// and a refused request leaves no queue behind.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for i := range pushFaults {
		for j := i; j < len(pushFaults); j++ {
			first, second := &pushFaults[i], &pushFaults[j]
			if i != j && (first.status2 != "" && second.status2 != "" || first.limit == "msgs" && second.limit == "msgs") {
				continue // a cluster has one status, and one message bucket
			}
			name := first.name
			if i != j {
				name += " before " + second.name
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				checkPushFault(t, s, first, second)
			})
		}
	}
}

func checkPushFault(t *testing.T, s *system, first, second *fault) {
	c := s.newCluster(t, "")
	c.push(t, m{"items": []m{{"queue": "known", "payload": 1}}})
	req := pushRequest{path: "/api/v1/push", items: 1, size: 1, queue: "known", partition: "Default"}
	faults := []*fault{first, second}
	if first == second {
		faults = faults[:1]
	}
	// What must be used up is used up under its own limit alone, the last in the order first: a spent request bucket
	// would refuse whatever spends another.
	for _, f := range slices.Backward(faults) {
		if f.exhaust != nil {
			c.override(t, "{"+f.overrides+"}")
			c.settle(t)
			f.exhaust(t, c)
		}
	}
	var overrides []string
	for _, f := range faults {
		if f.overrides != "" {
			overrides = append(overrides, f.overrides)
		}
		if f.request != nil {
			f.request(&req)
		}
	}
	c.override(t, "{"+strings.Join(overrides, ",")+"}")
	c.settle(t)
	// The status comes last: a suspended cluster could not spend what the other fault needs spent.
	for _, f := range faults {
		if f.status2 != "" {
			c.exec(t, `SELECT queengate.set_cluster_status($1::uuid, $2)`, c.id, f.status2)
			c.settle(t)
		}
	}
	for i, o := range req.opts {
		if o == nil {
			req.opts[i] = key(c.read)
		}
	}
	// The read key must not win over a removed credential.
	r := c.call(t, "POST", req.path, req.body(), dropLast(req.opts)...)
	e := r.refusal(t)
	if r.status != first.status || e.Code != first.code {
		t.Fatalf("got %d %s, want %d %s", r.status, r.body, first.status, first.code)
	}
	if first.limit != "" && (e.Limit == nil || e.Limit.Name != first.limit) {
		t.Errorf("the refusal names limit %+v, want %s", e.Limit, first.limit)
	}
	checkRefusalShape(t, r, e)
	if r := c.call(t, "GET", "/api/v1/resources/queues/another", nil, key(c.admin)); r.status == http.StatusOK {
		t.Error("a refused push made a queue")
	}
}

// dropLast orders options so that removing the credential comes after setting another one.
func dropLast(opts []callOption) []callOption {
	out := append([]callOption(nil), opts...)
	for i := range out {
		probe, _ := http.NewRequest("GET", "http://x", nil)
		probe.Header.Set("Authorization", "x")
		out[i](probe)
		if probe.Header.Get("Authorization") == "" {
			return append(append(out[:i:i], out[i+1:]...), out[i])
		}
	}
	return out
}

// checkRefusalShape checks what every refusal carries.
func checkRefusalShape(t *testing.T, r reply, e errorBody) {
	t.Helper()
	if e.Error == "" || e.RequestID == "" || e.RequestID != r.header.Get("X-Queen-Request-Id") {
		t.Errorf("error %q, request id %q, header %q", e.Error, e.RequestID, r.header.Get("X-Queen-Request-Id"))
	}
	if e.Outcome != "none" {
		t.Errorf("outcome %q", e.Outcome)
	}
	after, err := strconv.Atoi(r.header.Get("Retry-After"))
	switch r.status {
	case 429:
		if err != nil || after < 1 || !e.Retryable || e.RetryAfterMs <= 0 {
			t.Errorf("Retry-After %q, retryable %v, retry_after_ms %d", r.header.Get("Retry-After"), e.Retryable, e.RetryAfterMs)
		}
	case 403, 413, 404, 401, 421:
		if err == nil || e.Retryable || e.RetryAfterMs != 0 {
			t.Errorf("a refusal that time cannot cure says Retry-After %q, retryable %v", r.header.Get("Retry-After"), e.Retryable)
		}
	}
	if e.Limit != nil {
		for _, h := range []string{"X-Queen-Limit-Name", "X-Queen-Limit-Limit", "X-Queen-Limit-Remaining", "X-Queen-Limit-Reset", "X-Queen-Limit-Mode"} {
			if r.header.Get(h) == "" {
				t.Errorf("no %s", h)
			}
		}
		if r.header.Get("X-Queen-Limit-Name") != e.Limit.Name {
			t.Errorf("X-Queen-Limit-Name %q, limit %q", r.header.Get("X-Queen-Limit-Name"), e.Limit.Name)
		}
	}
}

func TestConfigureRefusals(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for name, tt := range map[string]struct {
		overrides, body, code, limit string
		status                       int
	}{
		"retention above the ceiling":           {`{"max_retention_seconds":60}`, `{"queue":"q","options":{"retentionEnabled":true,"retentionSeconds":61}}`, "quota_exceeded", "retention", 403},
		"completed retention above the ceiling": {`{"max_retention_seconds":60}`, `{"queue":"q","completedRetentionSeconds":61}`, "quota_exceeded", "retention", 403},
		"a queue too many":                      {`{"max_queues":0}`, `{"queue":"q"}`, "quota_exceeded", "queues", 403},
		"queues come before retention":          {`{"max_queues":0,"max_retention_seconds":60}`, `{"queue":"q","retentionSeconds":61}`, "quota_exceeded", "queues", 403},
		"malformed":                             {`{}`, `{"queue":"q"`, "invalid_request", "", 400},
		"blocked requests are 403, not 429":     {`{"max_req_per_sec":0}`, `{"queue":"q"}`, "quota_exceeded", "req", 403},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := s.newCluster(t, tt.overrides)
			r := c.call(t, "POST", "/api/v1/configure", tt.body)
			e := r.refusal(t)
			if r.status != tt.status || e.Code != tt.code || (tt.limit != "" && (e.Limit == nil || e.Limit.Name != tt.limit)) {
				t.Errorf("got %d %s", r.status, r.body)
			}
			checkRefusalShape(t, r, e)
		})
	}
}

func TestParkedPopsAreLimited(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, `{"max_parked_pops":1}`)
	first := make(chan reply, 1)
	go func() {
		r, err := c.try(t.Context(), "GET", "/api/v1/pop/queue/q?wait=true&timeout=30000&consumerGroup=g", nil)
		if err == nil {
			first <- r
		}
		close(first)
	}()
	c.arrives(t, "q", "g")
	began := time.Now()
	r := c.call(t, "GET", "/api/v1/pop/queue/q?wait=true&timeout=30000", nil)
	e := r.refusal(t)
	if r.status != 429 || e.Code != "rate_limited" || e.Limit == nil || e.Limit.Name != "parked" {
		t.Errorf("got %d %s", r.status, r.body)
	}
	checkRefusalShape(t, r, e)
	if after, _ := strconv.Atoi(r.header.Get("Retry-After")); after > 30 {
		t.Errorf("Retry-After %d is later than the end of the only parked poll", after)
	}
	if time.Since(began) < 500*time.Millisecond {
		t.Error("a refused waiting pop was answered at once: old SDKs would spin")
	}
	// A pop that does not wait needs no slot.
	if r := c.call(t, "GET", "/api/v1/pop/queue/q", nil); r.status != http.StatusNoContent {
		t.Errorf("a plain pop: %d %s", r.status, r.body)
	}
	c.push(t, items("q", "p", "x", 1))
	if r, ok := <-first; !ok || r.status != http.StatusOK {
		t.Errorf("the parked poll got %d %s", r.status, r.body)
	}
}

func TestShadowModeLetsThroughAndTells(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, `{"max_queues":0}`)
	if r := c.call(t, "POST", "/api/v1/push", items("q", "p", "a", 1)); r.status != 403 {
		t.Fatalf("enforced: %d %s", r.status, r.body)
	}
	c.exec(t, `SELECT queengate.set_limit_modes($1::uuid, '{"queues":"shadow"}')`, c.id)
	c.settle(t)
	r := c.call(t, "POST", "/api/v1/push", items("q", "p", "a", 1))
	if r.status != http.StatusCreated {
		t.Fatalf("shadow: %d %s", r.status, r.body)
	}
	c.exec(t, `SELECT queengate.set_limit_modes($1::uuid, '{"queues":"off"}')`, c.id)
	c.settle(t)
	c.push(t, items("q2", "p", "a", 1))
}

func TestRetryAfterIsTrue(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, `{"max_req_per_sec":0.2,"req_burst":1}`) // five seconds in which to be refused
	spendRequest(t, c)
	r := c.call(t, "GET", "/api/v1/resources/queues", nil)
	if r.status != 429 {
		t.Fatalf("got %d", r.status)
	}
	after, err := strconv.Atoi(r.header.Get("Retry-After"))
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Duration(after) * time.Second)
	if r := c.call(t, "GET", "/api/v1/resources/queues", nil); r.status != http.StatusOK {
		t.Errorf("a lone client that waited exactly Retry-After was answered %d %s", r.status, r.body)
	}
}

func TestPlanAndKeyChangesReachTheGateway(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, `{"max_queues":1}`)
	c.push(t, items("one", "p", "a", 1))
	if r := c.call(t, "POST", "/api/v1/push", items("two", "p", "a", 1)); r.status != 403 {
		t.Fatalf("got %d", r.status)
	}
	c.override(t, `{"max_queues":2}`)
	eventually(t, 20*time.Second, "a bigger plan", func() bool {
		return c.call(t, "POST", "/api/v1/push", items("two", "p", "a", 1)).status == http.StatusCreated
	})
	c.exec(t, `SELECT queengate.revoke_api_key(cluster_id, id) FROM queengate.api_keys WHERE cluster_id = $1::uuid AND name = 'consume'`, c.id)
	eventually(t, 20*time.Second, "a revoked key to be refused", func() bool {
		return c.call(t, "GET", "/api/v1/pop/queue/one", nil, key(c.consume)).status == http.StatusUnauthorized
	})
}

func TestScopesAndRoutes(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	push := func(k string) int { return c.call(t, "POST", "/api/v1/push", items("q", "p", "s", 1), key(k)).status }
	pop := func(k string) int { return c.call(t, "GET", "/api/v1/pop/queue/q", nil, key(k)).status }
	list := func(k string) int { return c.call(t, "GET", "/api/v1/resources/queues", nil, key(k)).status }
	configure := func(k string) int { return c.call(t, "POST", "/api/v1/configure", `{"queue":"q"}`, key(k)).status }
	for name, tt := range map[string]struct {
		key                        string
		push, pop, list, configure int
	}{
		"produce": {c.produce, 201, 403, 403, 403},
		"consume": {c.consume, 403, 204, 403, 403},
		"read":    {c.read, 403, 403, 200, 403},
		"admin":   {c.admin, 403, 403, 200, 200},
	} {
		for what, p := range map[string]struct{ got, want int }{
			"push": {push(tt.key), tt.push}, "list": {list(tt.key), tt.list}, "configure": {configure(tt.key), tt.configure},
		} {
			if p.got != p.want {
				t.Errorf("%s with a %s key: got %d, want %d", what, name, p.got, p.want)
			}
		}
		if got := pop(tt.key); got != tt.pop && !(tt.pop == 204 && got == 200) {
			t.Errorf("pop with a %s key: got %d, want %d", name, got, tt.pop)
		}
	}
}
