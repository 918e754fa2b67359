package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestRestartAtACountCap restarts the processes while the cluster stands at its caps: what exists stays usable, nothing
// new gets in, and a deletion frees at once.
func TestRestartAtACountCap(t *testing.T) {
	t.Parallel()
	s, again := startOnTestServer(t)
	c := s.newCluster(t, `{"max_queues":2,"max_partitions_per_queue":2}`)
	for _, pair := range [][2]string{{"a", "Default"}, {"a", "p1"}, {"a", "p2"}, {"b", "p1"}} {
		c.push(t, items(pair[0], pair[1], "t", 1))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.proc.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	c.system = again()
	limit := func(queue, partition string) string {
		r := c.call(t, "POST", "/api/v1/push", items(queue, partition, "u", 1))
		if r.status == http.StatusCreated {
			return ""
		}
		if e := r.refusal(t); r.status == 403 && e.Code == "quota_exceeded" && e.Limit != nil {
			return e.Limit.Name
		}
		return fmt.Sprintf("%d %s", r.status, r.body)
	}
	for _, tt := range []struct{ queue, partition, want string }{
		{"c", "Default", "queues"}, {"a", "p3", "partitions"}, {"a", "p1", ""}, {"a", "Default", ""}, {"b", "p1", ""}, {"b", "p2", ""}, {"b", "p3", "partitions"},
	} {
		if got := limit(tt.queue, tt.partition); got != tt.want {
			t.Errorf("push to %s/%s is refused by %q, want %q", tt.queue, tt.partition, got, tt.want)
		}
	}
	// A batch with one pair too many stores nothing of the rest.
	r := c.call(t, "POST", "/api/v1/push", m{"items": []m{{"queue": "a", "partition": "p1", "payload": 1, "transactionId": "half"}, {"queue": "c", "payload": 1}}})
	if r.status != 403 {
		t.Errorf("got %d", r.status)
	}
	if again := c.push(t, m{"items": []m{{"queue": "a", "partition": "p1", "payload": 1, "transactionId": "half"}}}); again[0].Status != "queued" {
		t.Errorf("half of a refused batch was stored: %+v", again[0])
	}
	if r := c.call(t, "DELETE", "/api/v1/resources/queues/b", nil); r.status != http.StatusOK {
		t.Fatalf("delete: %d %s", r.status, r.body)
	}
	if got := limit("c", "Default"); got != "" {
		t.Errorf("after a deletion a new queue is refused by %q", got)
	}
}

// TestRetainedBytesBlockAndRelease fills a cluster to its cap: pushes are refused with the quota's name, everything
// that frees passes, and pushes come back after the deletion.
func TestRetainedBytesBlockAndRelease(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, `{"max_retained_bytes":10000}`)
	body := m{"items": []m{{"queue": "q", "payload": strings.Repeat("x", 4998)}}}
	c.push(t, body)
	c.push(t, body)
	r := c.call(t, "POST", "/api/v1/push", body)
	if e := r.refusal(t); r.status != 403 || e.Code != "storage_quota_exceeded" || e.Limit == nil || e.Limit.Used < 10000 {
		t.Fatalf("got %d %s", r.status, r.body)
	}
	got := c.pop(t, "q", "batch=10")
	if len(got.Messages) != 2 {
		t.Errorf("a full cluster must be able to consume: %+v", got)
	}
	if r := c.ack(t, []m{ackOf(got.Messages[1], "completed")}, nil); !r[0].Success {
		t.Errorf("ack: %+v", r[0])
	}
	if r := c.call(t, "DELETE", "/api/v1/resources/queues/q", nil); r.status != http.StatusOK {
		t.Fatalf("delete: %d %s", r.status, r.body)
	}
	eventually(t, 20*time.Second, "the deletion to free the storage", func() bool {
		return c.call(t, "POST", "/api/v1/push", body).status == http.StatusCreated
	})
}

// TestAnOverRateGroupDrains runs a consumer group at about three times its plan's request rate: its pops are told to
// wait, its acks are not refused, and no lease expires.
func TestAnOverRateGroupDrains(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	const partitions, each = 8, 5
	for p := range partitions {
		c.push(t, items("work", fmt.Sprint("p", p), "t", each))
	}
	c.override(t, `{"max_req_per_sec":20,"req_burst":10}`)
	c.settle(t)
	var mu sync.Mutex
	seen, throttled, refusedAcks := map[string]int{}, 0, 0
	done := func() bool { mu.Lock(); defer mu.Unlock(); return len(seen) == partitions*each }
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for range 6 { // six workers at 10 requests a second each: 60/s against a plan of 20/s
		wg.Go(func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for !done() {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				r, err := c.try(ctx, "GET", "/api/v1/pop/queue/work?batch=1&leaseSeconds=30", nil)
				if err != nil {
					return
				}
				switch r.status {
				case 429:
					mu.Lock()
					throttled++
					mu.Unlock()
					after, _ := strconv.Atoi(r.header.Get("Retry-After"))
					select {
					case <-ctx.Done():
					case <-time.After(time.Duration(after) * time.Second):
					}
				case 200:
					var a popAnswer
					if err := json.Unmarshal(r.body, &a); err != nil {
						t.Error(err)
						return
					}
					for _, msg := range a.Messages {
						if msg.DeliveryAttempt != 1 {
							t.Errorf("%s was delivered %d times: a lease expired", msg.TransactionID, msg.DeliveryAttempt)
						}
						r, err := c.try(ctx, "POST", "/api/v1/ack", ackOf(msg, "completed"))
						if err != nil {
							return
						}
						mu.Lock()
						if r.status != 200 {
							refusedAcks++
						}
						seen[msg.Partition+msg.TransactionID]++
						mu.Unlock()
					}
				}
			}
		})
	}
	wg.Wait()
	if len(seen) != partitions*each || refusedAcks > 0 || throttled == 0 {
		t.Errorf("drained %d of %d, %d acks refused, %d pops told to wait", len(seen), partitions*each, refusedAcks, throttled)
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
}

// TestVanishingClients parks two thousand polls whose clients then vanish, half over TLS: slots, goroutines and broker
// waiters all come back.
func TestVanishingClients(t *testing.T) {
	// Not parallel: it counts goroutines of the whole process.
	const polls = 2000
	s, err := startSystem(dataDir(t))
	if err != nil {
		t.Fatal(err)
	}
	s.stopAtEnd(t)
	c := s.newCluster(t, "")
	ops, broker := c.proc.Credentials.OpsURL+"/metrics", c.proc.Credentials.BrokerURL+"/metrics/prometheus"
	pem, err := os.ReadFile(c.proc.Credentials.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	parked := func() float64 { return metric(t, ops, "queengate_proxy_parked_polls") }
	waiters := func() float64 { return metric(t, broker, "queengate_broker_parked_polls") }
	goroutines := func() float64 { return metric(t, ops, "go_goroutines") }

	park := func(n int) []net.Conn {
		conns := make([]net.Conn, n)
		var wg sync.WaitGroup
		for i := range conns {
			wg.Go(func() {
				var conn net.Conn
				var err error
				if i%2 == 0 {
					conn, err = net.Dial("tcp", strings.TrimPrefix(c.proc.Credentials.GatewayURL, "http://"))
				} else {
					conn, err = tls.Dial("tcp", strings.TrimPrefix(c.proc.Credentials.GatewayHTTPSURL, "https://"), &tls.Config{RootCAs: roots, ServerName: "localhost"})
				}
				if err != nil {
					t.Error(err)
					return
				}
				conns[i] = conn
				_, err = fmt.Fprintf(conn, "GET /api/v1/pop/queue/q%d?wait=true&timeout=80000 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", i%50, c.full)
				if err != nil {
					t.Error(err)
				}
			})
			if i%100 == 99 {
				wg.Wait() // a handshake costs half a millisecond of CPU: do not time out the last ones
			}
		}
		wg.Wait()
		return conns
	}
	leave := func(conns []net.Conn) {
		for _, conn := range conns {
			if conn == nil {
				continue
			}
			if tcp, ok := conn.(*tls.Conn); ok {
				tcp.NetConn().Close() // vanish: no farewell
			}
			conn.Close()
		}
	}
	// One round first, so that what the process keeps for good is not counted.
	leave(park(200))
	eventually(t, 20*time.Second, "the first polls to go", func() bool { return parked() == 0 && waiters() == 0 })
	before := goroutines()
	conns := park(polls)
	eventually(t, 60*time.Second, "all polls to park", func() bool { return parked() == polls && waiters() == polls })
	leave(conns)
	gone := time.Now()
	eventually(t, 20*time.Second, "slots and waiters to come back", func() bool { return parked() == 0 && waiters() == 0 })
	t.Logf("all slots back %v after the clients vanished", time.Since(gone))
	eventually(t, 30*time.Second, "goroutines to come back", func() bool { return goroutines() < before+100 })
	// A message pushed now is leased to nobody.
	c.push(t, items("q1", "p", "t", 1))
	if got := c.pop(t, "q1", "batch=1"); len(got.Messages) != 1 || got.Messages[0].DeliveryAttempt != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestHTTPSWithTheLocalCA(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	pem, err := os.ReadFile(c.proc.Credentials.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate in the CA file")
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequest("GET", c.proc.Credentials.GatewayHTTPSURL+"/api/v1/resources/queues", nil)
	if err != nil {
		t.Fatal(err)
	}
	key(c.read)(req)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("got %d, %v", resp.StatusCode, err)
	}
}
