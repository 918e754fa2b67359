package proxy

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/fair"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/wire"
)

// oneAtATime is a world whose gateway has one slot, and whose broker says what it is asked and answers when told.
type oneAtATime struct {
	*world
	asked   chan string // X-Queen-Tenant and path
	release chan struct{}
}

func setupOne(t *testing.T, o options) *oneAtATime {
	w := &oneAtATime{asked: make(chan string, 256), release: make(chan struct{})}
	o.address = rawBroker(t, func(c net.Conn, r *http.Request, _ string) bool {
		w.asked <- r.Header.Get(wire.HeaderTenant) + " " + r.URL.Path
		select {
		case <-w.release:
		case <-t.Context().Done():
			return false
		}
		answerJSON(c, "200 OK", `{"messages":[],"success":true}`)
		return true
	})
	config := o.config
	o.config = func(c *Config) {
		c.MaxInFlight, c.SlotWait = 1, patience
		if config != nil {
			config(c)
		}
	}
	w.world = setup(t, o)
	return w
}

// waiting waits until n requests wait for a slot.
func (w *oneAtATime) waiting(n int) {
	w.t.Helper()
	until(w.t, fmt.Sprintf("%d requests that wait for a slot", n), func() bool { return w.gateway.slots.places.Stats().Waiting == n })
}

// begin sends requests, one after the other, each when the one before waits, and returns their connections.
func (w *oneAtATime) begin(requests ...string) (conns []*wireConn) {
	w.t.Helper()
	before := w.gateway.slots.places.Stats().Waiting
	for i, r := range requests {
		c := w.dial()
		c.send(r)
		w.waiting(before + i + 1)
		conns = append(conns, c)
	}
	return conns
}

// order answers n requests and returns what the broker was asked meanwhile.
func (w *oneAtATime) order(n int) (asked []string) {
	w.t.Helper()
	for range n {
		w.release <- struct{}{}
		asked = append(asked, await(w.t, w.asked))
	}
	return asked
}

// TestAFullGatewayLetsAcksGoFirstThenPops: whatever came first.
func TestAFullGatewayLetsAcksGoFirstThenPops(t *testing.T) {
	t.Parallel()
	w := setupOne(t, options{})
	const ack, transaction = `{"transactionId":"a","partitionId":"b"}`,
		`{"operations":[{"type":"ack","transactionId":"a","partitionId":"0198f000-0000-7000-8000-000000000000","leaseId":"0198f000-0000-7000-8000-000000000001"}]}`
	first := w.dial()
	first.send(w.push(aPush))
	await(t, w.asked)
	requests := []string{
		w.push(aPush), w.head("GET", "/api/v1/resources/queues"), w.head("GET", "/api/v1/pop/queue/q"), w.push(aPush),
		w.post("/api/v1/ack", ack), w.head("GET", "/api/v1/pop/queue/q"), w.post("/api/v1/lease/0198f000-0000-7000-8000-000000000001/extend", ""),
		w.post("/api/v1/transaction", transaction),
	}
	conns := append(w.begin(requests...), first)
	var got []string
	for _, a := range w.order(len(requests)) {
		got = append(got, strings.Split(a, "/")[3])
	}
	if want := "[ack lease transaction pop pop push resources push]"; fmt.Sprint(got) != want {
		t.Errorf("the broker was asked for %v, want %s", got, want)
	}
	w.release <- struct{}{}
	for _, c := range conns {
		if r := c.read(); r.StatusCode != 200 {
			t.Errorf("got %d %q", r.StatusCode, r.body)
		}
	}
	if s := w.gateway.slots.places.Stats(); s.Free != 1 || s.Waiting != 0 {
		t.Errorf("at rest: %+v", s)
	}
}

// TestAFullGatewayServesClustersByThePlansRates: a flood of one leaves another its turns, worth what each has bought, also
// when the limit itself is only watched.
func TestAFullGatewayServesClustersByThePlansRates(t *testing.T) {
	t.Parallel()
	otherKey, publicID, hash := "", "", [32]byte{}
	w := setupOne(t, options{facts: func(w *world) {
		w.cluster.Limits.RequestsPerSecond, w.cluster.Limits.Modes = one(100.0), map[string]plans.Mode{plans.LimitRequests: plans.Shadow}
		w.other.Limits.RequestsPerSecond = one(300.0)
		otherKey, publicID, hash = auth.NewKey("live")
		w.facts.Keys = append(w.facts.Keys, &plans.Key{ID: uuid.New(), Hash: hash, PublicID: publicID, Cluster: w.other, Scopes: plans.ScopeProduce})
	}})
	theirs := strings.NewReplacer("acme.", "zeta.", w.key, otherKey).Replace(w.push(aPush))
	first := w.dial()
	first.send(w.push(aPush))
	await(t, w.asked)
	conns := append(w.begin(slices.Repeat([]string{w.push(aPush)}, 20)...), first)
	conns = append(conns, w.begin(slices.Repeat([]string{theirs}, 9)...)...)
	var got []string
	for _, a := range w.order(12) {
		name := "acme"
		if strings.HasPrefix(a, w.other.BrokerTenant.String()) {
			name = "zeta"
		}
		got = append(got, name)
	}
	if want := "[zeta zeta zeta acme zeta zeta zeta acme zeta zeta zeta acme]"; fmt.Sprint(got) != want {
		t.Errorf("served %v, want %s", got, want)
	}
	w.order(29 - 12)
	w.release <- struct{}{}
	for _, c := range conns {
		if r := c.read(); r.StatusCode != 200 {
			t.Errorf("got %d %q", r.StatusCode, r.body)
		}
	}
}

// TestWhoFindsNoSlotInTimeIsToldThatNothingHappened, and has its charge back.
func TestWhoFindsNoSlotInTimeIsToldThatNothingHappened(t *testing.T) {
	t.Parallel()
	w := setupOne(t, options{
		config: func(c *Config) { c.SlotWait = 50 * time.Millisecond },
		facts: func(w *world) {
			w.cluster.Limits.RequestsPerSecond, w.cluster.Limits.RequestsBurst = one(0.001), one(2.0)
		},
	})
	first := w.dial()
	first.send(w.push(aPush))
	await(t, w.asked)
	for range 3 { // the burst has one left, which is given back every time
		r := w.ask(w.push(aPush))
		if r.StatusCode != 503 || r.code() != "gateway_overloaded" || r.outcome() != "none" || r.Header.Get("Retry-After") != "1" || r.Close {
			t.Errorf("got %d %q %v", r.StatusCode, r.body, r.Header)
		}
	}
	w.release <- struct{}{}
	if r := first.read(); r.StatusCode != 200 {
		t.Errorf("the first: got %d %q", r.StatusCode, r.body)
	}
}

// TestAPollThatWaitsHoldsNoSlot, nor does it end because there is none.
func TestAPollThatWaitsHoldsNoSlot(t *testing.T) {
	t.Parallel()
	w := setupOne(t, options{config: func(c *Config) { c.SlotWait = 20 * time.Millisecond }})
	poll := w.dial()
	poll.send(w.head("GET", waiting))
	await(t, w.asked)
	w.sleeping(1)
	push := w.dial()
	push.send(w.push(aPush))
	await(t, w.asked) // the broker has both

	late := w.dial()
	late.send(w.head("GET", waiting))
	w.waiting(1)
	until(t, "the patience of a push is over", func() bool { return w.ask(w.push(aPush)).StatusCode == 503 })
	short := w.ask(w.head("GET", "/api/v1/pop/queue/q?wait=true&timeout=100"))
	emptyAnswer(t, short)

	w.release <- struct{}{}
	w.release <- struct{}{}
	for _, c := range []*wireConn{poll, push} {
		if r := c.read(); r.StatusCode != 200 {
			t.Errorf("got %d %q", r.StatusCode, r.body)
		}
	}
	await(t, w.asked)
	w.release <- struct{}{}
	if r := late.read(); r.StatusCode != 200 {
		t.Errorf("the poll that waited for a slot: got %d %q", r.StatusCode, r.body)
	}
}

// TestAClientThatHangsUpWaitingForASlotIsGone: its poll does not wait for its turn.
func TestAClientThatHangsUpWaitingForASlotIsGone(t *testing.T) {
	t.Parallel()
	w := setupOne(t, options{})
	push := w.dial()
	push.send(w.push(aPush))
	await(t, w.asked)
	poll := w.begin(w.head("GET", waiting))[0]
	poll.Close()
	until(t, "the parking slot", func() bool { return w.slots() == 0 })
	w.release <- struct{}{}
	push.read()
	if s := w.gateway.slots.places.Stats(); s.Free != 1 {
		t.Errorf("at rest: %+v", s)
	}
}

func TestWhatAClusterWeighs(t *testing.T) {
	t.Parallel()
	rated := &plans.Cluster{Limits: plans.Limits{RequestsPerSecond: one(250.0)}}
	for name, c := range map[string]struct {
		cluster *plans.Cluster
		want    fair.Weight
	}{"a rate": {rated, fair.WeightOf(250)}, "no rate": {&plans.Cluster{}, fair.Usual}, "gone": {nil, fair.Usual}} {
		if got := weightOf(c.cluster); got != c.want {
			t.Errorf("%s: weighs %d, want %d", name, got, c.want)
		}
	}
}
