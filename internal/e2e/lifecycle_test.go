package e2e

import (
	"net/http"
	"testing"
	"time"
)

// A state that an operator sets in the database is in force at the gateway within the time of every change, for requests and
// for polls that wait already, and it heals as it came.
func TestStatesReachTheGateway(t *testing.T) {
	t.Parallel()
	c := shared(t).newCluster(t, "")
	c.push(t, items("q", "p", "first", 3))
	push := func() int { return c.call(t, "POST", "/api/v1/push", items("q", "p", "more", 1)).status }
	pop := func() int { return c.call(t, "GET", "/api/v1/pop/queue/empty", nil).status }
	remove := func() int { return c.call(t, "DELETE", "/api/v1/resources/queues/none", nil).status }
	for _, tt := range []struct {
		set               string
		push, pop, remove int
	}{
		{`SELECT queengate.set_cluster_status($1::uuid, 'push_blocked')`, 403, 204, 200},
		{`SELECT queengate.set_cluster_status($1::uuid, 'export_only')`, 403, 204, 200},
		{`SELECT queengate.set_cluster_status($1::uuid, 'paused')`, 429, 429, 429},
		{`SELECT queengate.set_tenant_status(tenant_id, 'suspended') FROM queengate.clusters WHERE id = $1::uuid`, 403, 403, 403},
		{`SELECT queengate.set_cluster_status($1::uuid, 'active')`, 403, 403, 403}, // its tenant is not
		{`SELECT queengate.set_tenant_status(tenant_id, 'active') FROM queengate.clusters WHERE id = $1::uuid`, 201, 204, 200},
	} {
		c.exec(t, tt.set, c.id)
		c.settle(t)
		if got := [3]int{push(), pop(), remove()}; got != [3]int{tt.push, tt.pop, tt.remove} {
			t.Errorf("%s: push, pop and removal are answered %v, want %v", tt.set, got, [3]int{tt.push, tt.pop, tt.remove})
		}
	}

	ended := make(chan reply, 1)
	go func() {
		r, err := c.try(t.Context(), "GET", "/api/v1/pop/queue/empty?wait=true&timeout=60000&consumerGroup=g&subscriptionMode=all", nil)
		if err != nil {
			r.body = []byte(err.Error())
		}
		ended <- r
	}()
	c.arrives(t, "empty", "g")
	c.exec(t, `SELECT queengate.set_cluster_status($1::uuid, 'paused')`, c.id)
	select {
	case r := <-ended:
		if r.status != http.StatusTooManyRequests || r.header.Get("Retry-After") != "30" {
			t.Errorf("a parked poll of a cluster that is paused is answered %d %s, Retry-After %q", r.status, r.body, r.header.Get("Retry-After"))
		}
	case <-time.After(30 * time.Second):
		t.Error("a parked poll of a cluster that is paused waits on")
	}
}
