package proxy

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// limitName is the limit that a refusal names.
func limitName(t *testing.T, r reply) string {
	t.Helper()
	var body struct{ Limit struct{ Name string } }
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		t.Fatalf("%q: %v", r.body, err)
	}
	return body.Limit.Name
}

// A key's own limit is named in the error and in the headers, holds for that key alone, and is edited live.
func TestAKeysLimitIsItsOwn(t *testing.T) {
	t.Parallel()
	sibling, publicID, hash := auth.NewKey("live")
	w := setup(t, options{
		facts: func(w *world) {
			w.cluster.Limits.RequestsPerSecond, w.cluster.Limits.RequestsBurst = one(1000.0), one(2000.0)
			w.facts.Keys[0].Limits = &plans.KeyLimits{RequestsPerSecond: one(0.001), RequestsBurst: one(3.0)}
			w.facts.Keys = append(w.facts.Keys, &plans.Key{
				ID: uuid.New(), Hash: hash, PublicID: publicID, Cluster: w.cluster, Scopes: plans.ScopeProduce,
			})
		},
		broker: func(ctx *fasthttp.RequestCtx) { ctx.SetStatusCode(201) },
	})
	for i := range 3 {
		r := w.ask(w.push(aPush))
		if r.StatusCode != 201 || r.Header.Get("X-Queen-Limit-Name") != plans.LimitKeyRequests {
			t.Fatalf("push %d: got %d %q %v", i, r.StatusCode, r.body, r.Header)
		}
	}
	r := w.ask(w.push(aPush))
	if r.StatusCode != 429 || r.code() != "rate_limited" || limitName(t, r) != plans.LimitKeyRequests ||
		r.Header.Get("X-Queen-Limit-Name") != plans.LimitKeyRequests || r.Header.Get("Retry-After") == "" {
		t.Errorf("got %d %q %v", r.StatusCode, r.body, r.Header)
	}
	if text := strings.ToLower(r.body); strings.Contains(text, "timeout") || strings.Contains(text, "connection") {
		t.Errorf("old clients retry on %q", r.body)
	}
	if r := w.ask(strings.ReplaceAll(w.push(aPush), w.key, sibling)); r.StatusCode != 201 {
		t.Errorf("its sibling: got %d %q", r.StatusCode, r.body)
	}
	w.change(func(_ *plans.Cluster, k *plans.Key) { k.Limits = nil })
	if r := w.ask(w.push(aPush)); r.StatusCode != 201 {
		t.Errorf("after the limit was lifted: got %d %q", r.StatusCode, r.body)
	}
}

// With a rate of deliveries consumers wait for what they were given, and producers do not; reads by offset pay too.
func TestConsumersWaitForTheRateOfDeliveries(t *testing.T) {
	t.Parallel()
	w := setup(t, options{
		facts: func(w *world) {
			w.cluster.Limits.MessagesPerSecond, w.cluster.Limits.MessagesBurst = one(0.001), one(4.0)
			w.cluster.Limits.DeliveryPerSecond, w.cluster.Limits.DeliveryBurst = one(0.001), one(6.0)
		},
		broker: func(ctx *fasthttp.RequestCtx) {
			if strings.HasPrefix(string(ctx.Path()), "/api/v1/push") {
				ctx.SetStatusCode(201)
				return
			}
			ctx.Response.Header.Set(wire.HeaderDelivered, "3")
			ctx.SetBodyString(`{"messages":[]}`)
		},
	})
	pop, fetch := w.head("GET", "/api/v1/pop/queue/q"), w.post("/api/v1/fetch", aFetch)
	for _, request := range []string{pop, fetch} {
		if r := w.ask(request); r.StatusCode != 200 || r.Header.Get("X-Queen-Limit-Name") != plans.LimitDelivery {
			t.Fatalf("got %d %q %v", r.StatusCode, r.body, r.Header)
		}
	}
	for _, request := range []string{pop, fetch, w.head("GET", waiting)} {
		if r := w.ask(request); r.StatusCode != 429 || limitName(t, r) != plans.LimitDelivery || r.Header.Get("Retry-After") == "" {
			t.Errorf("got %d %q", r.StatusCode, r.body)
		}
	}
	if r := w.ask(w.push(aPush)); r.StatusCode != 201 {
		t.Errorf("a push: got %d %q", r.StatusCode, r.body)
	}
}

// The slots in Redis are the polls that clients hold open on all gateways: after some of them hung up, and, by the
// audit, after Redis has lost them.
func TestTheSlotsOfAFleetAreItsOpenPolls(t *testing.T) {
	t.Parallel()
	server := redistest.New(t)
	address, parked, _ := parking(t)
	id := uuid.New()
	newGateway := func() *world {
		w := setup(t, options{
			address: address,
			fleet:   &quota.FleetOptions{Redis: server.Options(), Leases: true, Prefix: "polls", Budget: patience},
			facts: func(w *world) {
				w.cluster.ID = id
				w.cluster.Limits.MaxParkedPops = one(int64(100))
			},
		})
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- w.gateway.Gate().Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := await(t, ended); err != nil {
				t.Errorf("the gate: %v", err)
			}
		})
		return w
	}
	gateways := []*world{newGateway(), newGateway()}
	var open []net.Conn
	for i := range 9 {
		w := gateways[i%2]
		c := w.dial()
		c.send(w.head("GET", waiting))
		await(t, parked)
		open = append(open, c)
	}
	client := redis.NewClient(server.Options())
	defer client.Close()
	slots := func() (n int64) {
		holders, err := client.Keys(t.Context(), "polls:*:p:*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range holders {
			n += client.ZCard(t.Context(), key).Val()
		}
		return n
	}
	polls := func() float64 { return gateways[0].slots() + gateways[1].slots() }
	if got := slots(); got != 9 {
		t.Fatalf("Redis has %d slots, want 9", got)
	}
	for _, c := range open[:3] {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the slots of those who hung up", func() bool { return slots() == 6 && polls() == 6 })
	server.Do("FLUSHALL")
	until(t, "the audit", func() bool { return slots() == 6 })
	if polls() != 6 {
		t.Errorf("%v polls are open, want 6", polls())
	}
	for _, c := range open[3:] {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "all slots", func() bool { return slots() == 0 && polls() == 0 })
}
