package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestABrokerStandsStill stops the broker of a tenant in the midst of requests, as a frozen machine or a cut cable would.
// What is under way there ends because the probes say so, and not with its own time: writes with an unknown outcome,
// reads and leased polls at another broker. Nothing is sent twice.
func TestABrokerStandsStill(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 1)
	if r, err := f.call(t.Context(), 0, "POST", "/api/v1/push", items("q", "p", "first", 1)); err != nil || r.status != http.StatusCreated {
		t.Fatalf("push: %v %d %s", err, r.status, r.body)
	}
	var home *part
	for _, b := range f.brokers {
		if metric(t, "http://"+b.ops+"/metrics", "queengate_broker_requests_total", `route="/api/v1/push"`) > 0 {
			home = b
		}
	}
	if home == nil {
		t.Fatal("no broker has had the push")
	}
	r, err := f.call(t.Context(), 0, "GET", "/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all", nil)
	if err != nil || r.status != http.StatusOK {
		t.Fatalf("pop: %v %d %s", err, r.status, r.body)
	}
	held := decode[popAnswer](t, r.body)

	var waiting sync.WaitGroup
	waiting.Go(func() {
		r, err := f.call(t.Context(), 0, "GET", "/api/v1/pop/queue/quiet?wait=true&timeout=50000&consumerGroup=g&subscriptionMode=all", nil)
		if err != nil || r.status != http.StatusOK {
			t.Errorf("the poll that waited there: %v %d %s", err, r.status, r.body)
		}
	})
	eventually(t, 20*time.Second, "the poll", func() bool {
		return metric(t, "http://"+home.ops+"/metrics", "queengate_broker_parked_polls") == 1
	})

	signal := func(s syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(home.PID(), s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	stopped := true
	defer func() {
		if stopped {
			signal(syscall.SIGCONT)
		}
	}()
	began := time.Now()
	var asking sync.WaitGroup
	for n := range f.gateways {
		for path, body := range map[string]any{
			"/api/v1/push":        items("q", "p", fmt.Sprint("doubtful", n), 1),
			"/api/v1/transaction": m{"operations": []m{{"type": "push", "items": items("q", "p", fmt.Sprint("together", n), 1)["items"]}}},
			"/api/v1/ack":         merge(ackOf(held.Messages[0], "completed"), m{"consumerGroup": "g"}),
			"/api/v1/lease/" + held.LeaseID + "/extend": m{"seconds": 30},
		} {
			asking.Go(func() {
				r, err := f.call(t.Context(), n, "POST", path, body)
				if err != nil {
					t.Errorf("%s: %v", path, err)
				} else if e := r.refusal(t); r.status != http.StatusGatewayTimeout || e.Outcome != "unknown" {
					t.Errorf("%s: got %d %s, want 504 with an unknown outcome", path, r.status, r.body)
				}
			})
		}
		asking.Go(func() {
			r, err := f.call(t.Context(), n, "GET", "/api/v1/resources/queues", nil)
			if err != nil || r.status != http.StatusOK {
				t.Errorf("a read: %v %d %s, want that of another broker", err, r.status, r.body)
			}
		})
		asking.Go(func() {
			r, err := f.call(t.Context(), n, "GET", "/api/v1/pop/queue/q?consumerGroup=other", nil)
			if err != nil || r.status != http.StatusNoContent || r.header.Get("X-Queen-Degraded") == "" {
				t.Errorf("a pop that does not wait: %v %d %s, want 204 that says so", err, r.status, r.body)
			}
		})
	}
	asking.Wait()
	if t.Failed() {
		return
	}
	t.Logf("everything was answered %v after the stop", time.Since(began).Round(time.Millisecond))
	for _, g := range f.gateways {
		kind := func(k string) float64 {
			return metric(t, "http://"+g.ops+"/metrics", "queengate_proxy_upstream_errors_total", `kind="`+k+`"`)
		}
		if late, dead := kind("deadline"), kind("dead"); late != 0 || dead < 6 {
			t.Errorf("%v requests ended with their time and %v were cut off, want 0 and the 6 of this test", late, dead)
		}
	}
	// The poll was woken by its broker's end, and waits at the one that has the tenant now.
	if r, err := f.call(t.Context(), 1, "POST", "/api/v1/push", items("quiet", "p", "t", 1)); err != nil || r.status != http.StatusCreated {
		t.Errorf("push: %v %d %s", err, r.status, r.body)
	}
	waiting.Wait()

	signal(syscall.SIGCONT)
	stopped = false
	f.serving(home, 1)
	for n := range f.gateways {
		// What the broker finds in its sockets it may store now, and then this is a repeat.
		for _, id := range []string{"doubtful", "together"} {
			if r, err := f.call(t.Context(), n, "POST", "/api/v1/push", items("q", "p", fmt.Sprint(id, n), 1)); err != nil || r.status != http.StatusCreated {
				t.Errorf("push: %v %d %s", err, r.status, r.body)
			}
		}
	}
	stored := f.stored("q")
	for id, n := range stored {
		if n != 1 {
			t.Errorf("%s is stored %d times", id, n)
		}
	}
	if len(stored) != 1+2*len(f.gateways) {
		t.Errorf("stored are %v", stored)
	}
}
