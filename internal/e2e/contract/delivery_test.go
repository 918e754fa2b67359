package contract

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func testPushEdges(t *testing.T, s *service) {
	if r := s.do("POST", "/api/v1/push", `{"items":[]}`).want(t, 201); r.body != "[]" {
		t.Errorf("no items: %s", r.body)
	}
	r := s.do("POST", "/api/v1/push", `{"items":[{"queue":"edges","payload":1},{"queue":"edges"}]}`).want(t, 400)
	if e := decode[m](t, r); !strings.HasPrefix(e["error"].(string), "bad body: ") {
		t.Errorf("without payload: %s", r.body)
	}
	s.do("POST", "/api/v1/push", `{"items":[{"queue":"edges","transactionId":"null","payload":null}]}`).want(t, 201)
	r = s.do("GET", "/api/v1/pop/queue/edges", "").want(t, 200)
	if !strings.Contains(r.body, `"data":null`) || strings.Count(r.body, `"transactionId"`) != 1 {
		t.Errorf("want one message, of the null payload: %s", r.body)
	}
}

func testPushDuplicates(t *testing.T, s *service) {
	first := s.push("dups", "Default", "a")[0]
	again := s.push("dups", "Default", "b", "a", "b")
	if again[0].Status != "queued" || again[1].Status != "duplicate" || again[1].MessageID != first.MessageID || *again[1].Offset != *first.Offset {
		t.Errorf("a second request: %+v after %+v", again, first)
	}
	if again[2].Status != "duplicate" || again[2].MessageID != again[0].MessageID || *again[2].Offset != *again[0].Offset {
		t.Errorf("within a request: %+v", again)
	}
	if other := s.push("dups", "another", "a")[0]; other.Status != "queued" {
		t.Errorf("another partition: %+v", other)
	}
	if got := s.some("dups/partition/Default").ids(); got != "a b" {
		t.Errorf("stored %q", got)
	}
}

func testPushResultOrder(t *testing.T, s *service) {
	var items []m
	for i := range 9 {
		items = append(items, m{"queue": fmt.Sprint("order-", i%3), "transactionId": fmt.Sprint("t", i), "payload": i})
	}
	results := decode[[]m](t, s.do("POST", "/api/v1/push", text(t, m{"items": items})).want(t, 201))
	if len(results) != len(items) {
		t.Fatalf("%d results of %d items", len(results), len(items))
	}
	want := []string{"index", "message_id", "offset", "queueName", "status", "transaction_id"}
	for i, r := range results {
		if !slices.Equal(keys(r), want) {
			t.Errorf("keys %v, want %v", keys(r), want)
		}
		if r["index"] != float64(i) || r["queueName"] != items[i]["queue"] || r["transaction_id"] != items[i]["transactionId"] || r["offset"] != float64(i/3) {
			t.Errorf("result %d is %v", i, r)
		}
	}
}

// An empty dict is no body at all for the Python SDK: neither content type nor, from some HTTP stacks, a length.
func testBodylessPosts(t *testing.T, s *service) {
	s.bury("bodyless", "dead", "g")
	s.push("bodyless", "Default", "a")
	lease := s.some("bodyless?consumerGroup=h&subscriptionMode=all")
	letter := s.letters("queue=bodyless")[0]
	for _, c := range []struct{ path, want string }{
		{"/api/v1/lease/" + lease.LeaseID + "/extend", `"success":true`},
		{fmt.Sprintf("/api/v1/messages/%s/%s/retry", letter["partitionId"], letter["transactionId"]), `"result":"moved"`},
		{"/api/v1/stats/refresh", `{`},
		{"/api/v1/consumer-groups/h/queues/bodyless/seek", `"seekToEnd":true`},
		{"/api/v1/consumer-groups/h/queues/bodyless/partitions/Default/seek", `"seekToEnd":true`},
	} {
		for _, length := range []string{"", "Content-Length: 0\r\n"} {
			if strings.HasSuffix(c.path, "/retry") && length != "" {
				continue // the letter is gone with the first
			}
			r := s.raw("POST " + c.path + " HTTP/1.1\r\nHost: broker\r\nUser-Agent: python-httpx/0.27\r\nAccept: */*\r\n" + length + "\r\n")[0]
			if r.status != 200 || !strings.Contains(r.body, c.want) {
				t.Errorf("%s %q: %d %s", c.path, length, r.status, r.body)
			}
		}
	}
}

func testEmptyPop(t *testing.T, s *service) {
	s.push("empty", "Default", "a")
	pop := "GET /api/v1/pop/queue/empty?wait=false&autoAck=true HTTP/1.1\r\nHost: broker\r\n\r\n"
	got := s.raw(pop, pop, "GET /health HTTP/1.1\r\nHost: broker\r\n\r\n")
	if got[0].status != 200 || got[2].status != 200 {
		t.Errorf("before and after on the same connection: %d, %d", got[0].status, got[2].status)
	}
	none := got[1]
	if none.status != 204 || none.body != "" {
		t.Errorf("%d %q", none.status, none.body)
	}
	for _, h := range []string{"Content-Length", "Content-Type", "Transfer-Encoding", "Connection"} {
		if v := none.header.Get(h); v != "" {
			t.Errorf("a 204 with %s: %s", h, v)
		}
	}
}

// The HTTP client of the Go SDK gives up at exactly the time it asked for, so the answer must come before. How fast a
// push wakes a poll is measured by the benchmarks.
func testWaitingPop(t *testing.T, s *service) {
	const limit = 3 * time.Second
	strict := &http.Client{Timeout: limit}
	defer strict.CloseIdleConnections()
	// A busy machine may hold the answer up; one that is given at the end of the time or later never comes in time.
	s.until("an answer in time", func() bool {
		r, err := s.try(strict, "GET", fmt.Sprintf("/api/v1/pop/queue/waiting?wait=true&timeout=%d", limit.Milliseconds()), "")
		if err == nil && r.status != 204 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		return err == nil
	})
	got := make(chan popped, 1)
	go func() { got <- s.pop("waiting?wait=true&timeout=30000") }()
	s.until("the poll is parked", func() bool { return s.parked() > 0 })
	s.push("waiting", "Default", "a")
	if p := <-got; p.ids() != "a" {
		t.Errorf("woken with %+v", p)
	}
}

// parked is how many polls wait at the broker.
func (s *service) parked() (n int) {
	s.t.Helper()
	for line := range strings.Lines(s.do("GET", "/metrics/prometheus", "").want(s.t, 200).body) {
		if rest, ok := strings.CutPrefix(line, "queen_parked_long_polls "); ok {
			if _, err := fmt.Sscan(rest, &n); err != nil {
				s.t.Fatal(err)
			}
			return n
		}
	}
	s.t.Fatal("no metric queen_parked_long_polls")
	return 0
}

func testLeases(t *testing.T, s *service) {
	s.push("leases", "p", "a", "b", "c")
	first := s.some("leases?batch=1")
	if p := s.pop("leases?batch=1"); len(p.Messages) > 0 {
		t.Fatalf("a leased partition was given out again: %+v", p)
	}
	s.ack("completed", first.Messages[0])
	if p := s.some("leases?batch=1&leaseSeconds=1"); p.ids() != "b" {
		t.Errorf("after the ack: %q", p.ids())
	}
	if p := s.some("leases?batch=10&wait=true&timeout=30000"); p.ids() != "b c" {
		t.Errorf("after the expiry: %q", p.ids())
	}

	s.push("wide", "one", "a", "b", "c")
	s.push("wide", "two", "x", "y", "z")
	p := s.some("wide?partitions=2&batch=4")
	if p.PartitionsClaimed != 2 || len(p.Messages) != 4 {
		t.Fatalf("%d messages of %d partitions", len(p.Messages), p.PartitionsClaimed)
	}
	for _, g := range p.Messages {
		if g.LeaseID != p.LeaseID || g.LeaseID == "" {
			t.Errorf("lease %q of %q", g.LeaseID, p.LeaseID)
		}
	}
}

// JS and Python put a name into the path of a pop as it is; what their HTTP stacks escape by themselves is the space and
// what lies beyond ASCII. A '%' stays, so it must not need an escape. Slashes need one.
func testNames(t *testing.T, s *service) {
	raw := strings.NewReplacer(" ", "%20")
	for i, name := range []string{"two words", "100%", "5%x and %%", "ünïcode ☃", "a+b", "colon:at@", "slash/ed"} {
		s.do("POST", "/api/v1/configure", text(t, m{"queue": name, "namespace": "space " + name, "task": name})).want(t, 200)
		s.push(name, name, fmt.Sprint("t", i))
		var paths []string
		for _, form := range []func(string) string{url.PathEscape, raw.Replace} {
			if n := form(name); n != name || !strings.Contains(name, "/") {
				paths = append(paths, "/api/v1/pop/queue/"+n, "/api/v1/pop/queue/"+n+"/partition/"+n)
			}
		}
		query := url.Values{"namespace": {"space " + name}, "task": {name}}
		paths = append(paths, "/api/v1/pop?"+query.Encode(), "/api/v1/pop?task="+strings.ReplaceAll(url.QueryEscape(name), "+", "%20"))
		for j, path := range paths {
			sep := "?"
			if strings.Contains(path, "?") {
				sep = "&"
			}
			r := s.raw(fmt.Sprintf("GET %s%ssubscriptionMode=all&consumerGroup=g%d HTTP/1.1\r\nHost: broker\r\n\r\n", path, sep, j))[0]
			if r.status != 200 {
				t.Errorf("%s: %d %s", path, r.status, r.body)
				continue
			}
			if p := decode[popped](t, r); len(p.Messages) != 1 || p.Messages[0].Queue != name || p.Messages[0].Partition != name {
				t.Errorf("%s gave %+v", path, p)
			}
		}
	}
}

func testIDsAscend(t *testing.T, s *service) {
	const pushes, producers = 1000, 8
	var wg sync.WaitGroup
	for i := range producers {
		wg.Go(func() {
			for k := range pushes / producers {
				r, err := s.try(s.client, "POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":"ascend","transactionId":"%d-%d","payload":%d}]}`, i, k, k))
				if err != nil || r.status != 201 {
					t.Errorf("%d %s %v", r.status, r.body, err)
				}
			}
		})
	}
	wg.Wait()
	got := s.some(fmt.Sprint("ascend?batch=", pushes)).Messages
	if len(got) != pushes {
		t.Fatalf("%d messages", len(got))
	}
	var last message
	var before time.Time
	for _, g := range got {
		at, err := time.Parse(time.RFC3339, g.CreatedAt)
		if err != nil || !strings.HasSuffix(g.CreatedAt, "Z") || at.Before(before) {
			t.Fatalf("createdAt %s after %s: %v", g.CreatedAt, last.CreatedAt, err)
		}
		if g.ID <= last.ID || g.ID != strings.ToLower(g.ID) || g.ID[14] != '7' {
			t.Fatalf("id %s after %s", g.ID, last.ID)
		}
		last, before = g, at
	}
}
