package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

func (w *world) post(target, body string) string {
	return w.head("POST", target, "Content-Length: "+strconv.Itoa(len(body))) + body
}

const aFetch = `{"entries":[{"queue":"q","offset":7}],"maxWaitMs":30000}`

// TestDiscoveryPopsAreForwarded: in canonical form, holding a slot while they wait.
func TestDiscoveryPopsAreForwarded(t *testing.T) {
	t.Parallel()
	address, parked, ended := parking(t)
	w := setup(t, options{address: address, facts: func(w *world) { w.cluster.Limits.MaxParkedPops = one(int64(1)) }})
	c := w.dial()
	c.send(w.head("GET", "/api/v1/pop?task=%6Dail&namespace=shop&x=y&wait=true&timeout=20000&conflation=true&consumerGroup=g"))
	target := await(t, parked)
	path, query, _ := strings.Cut(target, "?")
	q, err := wire.ParsePopQuery([]byte(query))
	if path != "/api/v1/pop" || err != nil || q.Namespace != "shop" || q.Task != "mail" || !q.Conflation || !q.Wait || q.BatchGiven || strings.Contains(query, "x=") {
		t.Errorf("forwarded as %s: %+v, %v", target, q, err)
	}
	if r := w.ask(w.head("GET", "/api/v1/pop?task=mail&wait=true")); r.StatusCode != 429 {
		t.Errorf("a second poll got %d %q", r.StatusCode, r.body)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, ended)
	until(t, "the slot", func() bool { return w.slots() == 0 })
}

// TestAnEmptyPopOfOursEchoesConflation: what the gateway answers for a broker that is away.
func TestAnEmptyPopOfOursEchoesConflation(t *testing.T) {
	t.Parallel()
	w := setup(t, options{address: rawBroker(t, func(net.Conn, *http.Request, string) bool { return false })})
	for query, want := range map[string]int{"conflation=true&consumerGroup=g": 200, "consumerGroup=g": 204} {
		r := w.ask(w.head("GET", "/api/v1/pop/queue/q?"+query))
		if r.StatusCode != want || strings.Contains(string(r.body), `"messages":[],"conflation":true`) != (want == 200) {
			t.Errorf("%s: %d %q", query, r.StatusCode, r.body)
		}
	}
}

// TestFetchIsForwardedAndDebited: with its body; the messages it delivered are taken from the message bucket.
func TestFetchIsForwardedAndDebited(t *testing.T) {
	t.Parallel()
	w := setup(t, options{broker: func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.Set(wire.HeaderDelivered, "5")
		ctx.SetContentType("application/json")
		ctx.SetBodyString(`{"entries":[]}`)
	}, facts: func(w *world) {
		w.cluster.Limits.MessagesPerSecond, w.cluster.Limits.MessagesBurst = one(0.01), one(5.0)
	}})
	for _, target := range []string{"/api/v1/fetch", "/api/v1/partitions/changed"} {
		body := map[string]string{"/api/v1/fetch": aFetch, "/api/v1/partitions/changed": `{"entries":[{"queue":"q"}]}`}[target]
		if r := w.ask(w.post(target, body)); r.StatusCode != 200 || r.Header.Get(wire.HeaderDelivered) != "" {
			t.Errorf("%s: %d %v", target, r.StatusCode, r.Header)
		}
		if got := await(t, w.broker.seen); got.target != target || got.body != body {
			t.Errorf("%s: the broker got %s %q", target, got.target, got.body)
		}
		if r := w.ask(w.post(target, `{"entries":1}`)); r.StatusCode != 400 {
			t.Errorf("%s with a bad body: %d", target, r.StatusCode)
		}
	}
	if r := w.ask(w.push(aPush)); r.StatusCode != 429 {
		t.Errorf("a push after the bucket was spent by reads: %d %q", r.StatusCode, r.body)
	}
}

// TestAHeldFetchEndsWithItsClient: the broker hears of it at once, and its wait may be longer than other requests get.
func TestAHeldFetchEndsWithItsClient(t *testing.T) {
	t.Parallel()
	parked, ended := make(chan string, 4), make(chan string, 4)
	address := rawBroker(t, func(c net.Conn, r *http.Request, _ string) bool {
		parked <- r.URL.Path
		var b [1]byte
		_, err := c.Read(b[:])
		ended <- fmt.Sprint(err)
		return false
	})
	w := setup(t, options{address: address})
	c := w.dial()
	c.send(w.post("/api/v1/fetch", aFetch))
	await(t, parked)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := await(t, ended); got != io.EOF.Error() && !strings.Contains(got, "reset") {
		t.Errorf("the broker's read ended with %s", got)
	}
	// A cluster that is suspended meanwhile is refused at once.
	c = w.dial()
	defer c.Close()
	c.send(w.post("/api/v1/fetch", aFetch))
	await(t, parked)
	w.change(func(c *plans.Cluster, _ *plans.Key) { c.Status = plans.Suspended })
	if r := c.read(); r.StatusCode != 403 {
		t.Errorf("suspended while it waits: %d %q", r.StatusCode, r.body)
	}
}
