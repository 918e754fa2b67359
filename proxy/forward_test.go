package proxy

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

func TestALargeBodyIsRefusedInTheMiddleOfItsArrival(t *testing.T) {
	t.Parallel()
	w := setup(t, options{config: func(c *Config) { c.MaxBodyBytes = 64 << 10 }})
	payload := bytes.Repeat([]byte("x"), 8<<20)
	for name, dial := range map[string]func() *wireConn{"plain": w.dial, "tls": w.dialTLS} {
		t.Run(name+" declared", func(t *testing.T) {
			c := dial()
			c.send(w.head("POST", "/api/v1/push", "Content-Length: "+strconv.Itoa(len(payload))))
			// A client that sends everything before it reads must not lose the answer to a reset.
			if _, err := c.Write(payload); err != nil {
				t.Fatalf("the body was cut off: %v", err)
			}
			if r := c.read(); r.StatusCode != 413 || r.code() != "payload_too_large" || !r.Close {
				t.Errorf("got %d %q", r.StatusCode, r.body)
			}
		})
		t.Run(name+" chunked", func(t *testing.T) {
			c := dial()
			c.send(w.head("POST", "/api/v1/push", "Transfer-Encoding: chunked") + fmt.Sprintf("%x\r\n", len(payload)))
			if _, err := c.Write(payload); err != nil {
				t.Fatalf("the body was cut off: %v", err)
			}
			if r := c.read(); r.StatusCode != 413 || r.code() != "payload_too_large" {
				t.Errorf("got %d %q", r.StatusCode, r.body)
			}
		})
	}
}

func TestThePlansBodyCapNamesItsLimit(t *testing.T) {
	t.Parallel()
	w := setup(t, options{facts: func(w *world) { w.cluster.Limits.MaxBodyBytes = one(int64(100)) }})
	big := `{"items":[{"queue":"q","payload":"` + strings.Repeat("x", 200) + `"}]}`
	if r := w.ask(w.push(big)); r.StatusCode != 413 || !strings.Contains(r.body, `"limit":{"name":"body","limit":100`) {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(big), big)
	for name, request := range map[string]string{
		"declared": w.push(big), "chunked": w.head("POST", "/api/v1/push", "Transfer-Encoding: chunked") + chunks,
	} {
		r := w.ask(request)
		for header, want := range map[string]string{
			"X-Queen-Limit-Name": "body", "X-Queen-Limit-Limit": "100", "X-Queen-Limit-Remaining": "0", "X-Queen-Limit-Reset": "0",
			"X-Queen-Limit-Mode": "enforce", "RateLimit-Policy": `"body";q=100`, "RateLimit": `"body";r=0`,
		} {
			if got := r.Header.Get(header); got != want {
				t.Errorf("%s: %s is %q, want %q", name, header, got, want)
			}
		}
	}
	if r := w.ask(w.push(aPush)); r.StatusCode != 201 {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
	shadowed := *w.cluster
	shadowed.Limits.Modes = map[string]plans.Mode{plans.LimitBody: plans.Shadow}
	key := *w.facts.Keys[0]
	key.Cluster = &shadowed
	w.facts.Clusters[0], w.facts.Keys[0] = &shadowed, &key
	w.publish()
	if r := w.ask(w.push(big)); r.StatusCode != 201 {
		t.Errorf("in shadow: got %d %q", r.StatusCode, r.body)
	}
}

func TestABodyCapOfZeroIsABlock(t *testing.T) {
	t.Parallel()
	w := setup(t, options{facts: func(w *world) { w.cluster.Limits.MaxBodyBytes = one(int64(0)) }})
	for name, request := range map[string]string{
		"declared": w.push(aPush),
		"chunked":  w.head("POST", "/api/v1/push", "Transfer-Encoding: chunked") + "1\r\n{\r\n0\r\n\r\n",
	} {
		r := w.ask(request)
		if r.StatusCode != 403 || r.code() != "quota_exceeded" || r.Header.Get("X-Queen-Limit-Name") != "body" {
			t.Errorf("%s: got %d %q %v", name, r.StatusCode, r.body, r.Header)
		}
	}
	if r := w.ask(w.head("GET", "/api/v1/pop/queue/q")); r.StatusCode != 201 {
		t.Errorf("a request without a body: got %d %q", r.StatusCode, r.body)
	}
}

func TestASlowBodyEnds(t *testing.T) {
	t.Parallel()
	w := setup(t, options{config: func(c *Config) {
		c.BodyGrace, c.BodyTime, c.BodyPace = 100*time.Millisecond, 400*time.Millisecond, 1<<20
	}})
	for name, request := range map[string]string{
		"before its first byte": w.head("POST", "/api/v1/push", "Content-Length: 43"),
		"in its first bytes":    w.head("POST", "/api/v1/push", "Content-Length: 43") + aPush[:10],
		"when it is long":       w.head("POST", "/api/v1/push", "Content-Length: 100000") + strings.Repeat(" ", 20_000),
		"in a chunk":            w.head("POST", "/api/v1/push", "Transfer-Encoding: chunked") + "100\r\n" + aPush,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := w.dial()
			c.send(request)
			if r := c.read(); r.StatusCode != 408 || r.code() != "slow_body" || !c.ended() {
				t.Errorf("got %d %q", r.StatusCode, r.body)
			}
		})
	}
	t.Run("a drip is no pace", func(t *testing.T) {
		t.Parallel()
		c := w.dial()
		c.send(w.head("POST", "/api/v1/push", "Content-Length: 100000"))
		answered := make(chan reply, 1)
		go func() { answered <- c.read() }()
		for {
			select {
			case r := <-answered:
				if r.StatusCode != 408 {
					t.Errorf("got %d %q", r.StatusCode, r.body)
				}
				return
			case <-time.After(5 * time.Millisecond):
				// The server stops reading at some point; that is the end of the drip.
				_, _ = io.WriteString(c, " ")
			}
		}
	})
}

func TestASlowHeadEnds(t *testing.T) {
	t.Parallel()
	w := setup(t, options{config: func(c *Config) { c.HeadTime = 500 * time.Millisecond }})
	c := w.dial()
	c.send("GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: acme")
	if r := c.read(); r.StatusCode != 408 || r.Header.Get("X-Queen-Request-Id") == "" {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
}

func TestNothingUnparsedIsForwarded(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	for name, c := range map[string]struct{ path, body string }{
		"push, no JSON":        {"/api/v1/push", "x"},
		"push, no items":       {"/api/v1/push", "{}"},
		"push, a twin key":     {"/api/v1/push", `{"items":[{"queue":"q","queue":"r","payload":1}]}`},
		"push, another case":   {"/api/v1/push", `{"Items":[{"queue":"q","payload":1}]}`},
		"push, more behind it": {"/api/v1/push", aPush + "{}"},
		"push, nothing":        {"/api/v1/push", ""},
		"ack, an array":        {"/api/v1/ack", "[]"},
		"configure, nothing":   {"/api/v1/configure", "null"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := w.ask(w.head("POST", c.path, "Content-Length: "+strconv.Itoa(len(c.body))) + c.body)
			if r.StatusCode != 400 || r.code() != "invalid_request" {
				t.Errorf("got %d %q", r.StatusCode, r.body)
			}
			if r.Close {
				t.Error("a body that was read whole costs the connection")
			}
		})
	}
	t.Run("an extension needs no body", func(t *testing.T) {
		for _, body := range []string{"", "{}", "x", `{"seconds":5}`} {
			if r := w.ask(w.head("POST", "/api/v1/lease/abc/extend", "Content-Length: "+strconv.Itoa(len(body))) + body); r.StatusCode != 201 {
				t.Errorf("%q: got %d %q", body, r.StatusCode, r.body)
			}
			if got := await(t, w.broker.seen); got.target != "/api/v1/lease/abc/extend" || got.body != body {
				t.Errorf("the broker got %+v", got)
			}
		}
	})
	t.Cleanup(func() {
		if n := len(w.broker.seen); n != 0 {
			t.Errorf("%d requests reached the broker", n)
		}
	})
}

func TestLongAnswersAreStreamed(t *testing.T) {
	t.Parallel()
	long := make([]byte, 4<<20)
	if _, err := rand.Read(long); err != nil {
		t.Fatal(err)
	}
	proceed := make(chan struct{})
	w := setup(t, options{address: rawBroker(t, func(c net.Conn, r *http.Request, _ string) bool {
		switch r.URL.Query().Get("how") {
		case "length":
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(long))
			c.Write(long[:len(long)/2])
			<-proceed
			c.Write(long[len(long)/2:])
		case "chunks":
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for part := long; len(part) > 0; part = part[1<<20:] {
				fmt.Fprintf(c, "%x\r\n%s\r\n", 1<<20, part[:1<<20])
			}
			io.WriteString(c, "0\r\n\r\n")
		case "broken":
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(long))
			c.Write(long[:len(long)/2])
			return false
		}
		return true
	})})
	get := func(c *wireConn, how string) *http.Response {
		c.send(w.head("GET", "/api/v1/resources/queues?how="+how))
		r, err := http.ReadResponse(c.br, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	c := w.dial()
	r := get(c, "length")
	first := make([]byte, len(long)/2-(64<<10)) // a little may wait in buffers for what follows
	_, err := io.ReadFull(r.Body, first)        // before the broker has sent the rest
	close(proceed)
	if err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(r.Body)
	if err != nil || !bytes.Equal(append(first, rest...), long) || r.ContentLength != int64(len(long)) {
		t.Errorf("a body of known length came differently: %v", err)
	}
	r = get(c, "chunks")
	if all, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(all, long) {
		t.Errorf("chunks came differently: %v", err)
	}
	until(t, "the upstream connection", func() bool { return len(idle(w)) > 0 })
	r = get(c, "broken")
	if _, err := io.ReadAll(r.Body); err == nil {
		t.Error("a broken off answer looks whole")
	}
}

func idle(w *world) []*upstreamConn {
	b := w.gateway.pools.all()[0].brokers()[0]
	b.conns.mu.Lock()
	defer b.conns.mu.Unlock()
	return append([]*upstreamConn(nil), b.conns.idle...)
}

func TestOutcomesOfABrokersDeath(t *testing.T) {
	t.Parallel()
	type want struct {
		status        int
		code, outcome string
	}
	for name, c := range map[string]struct {
		script  func(c net.Conn, r *http.Request, body string) bool
		address string
		push    want
		read    int
		config  func(*Config)
	}{
		"nobody listens": {address: refusing(t), push: want{503, "broker_unavailable", "none"}, read: 503},
		"dies before it answers": {
			script: func(net.Conn, *http.Request, string) bool { return false },
			push:   want{502, "bad_gateway", "unknown"}, read: 502,
		},
		"dies in the head of its answer": {
			script: func(c net.Conn, _ *http.Request, _ string) bool { io.WriteString(c, "HTTP/1.1 201"); return false },
			push:   want{502, "bad_gateway", "unknown"}, read: 502,
		},
		"dies in the body of its answer": {
			script: func(c net.Conn, _ *http.Request, _ string) bool {
				io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\n[")
				return false
			},
			push: want{502, "bad_gateway", "unknown"}, read: 502,
		},
		"speaks no HTTP": {
			script: func(c net.Conn, _ *http.Request, _ string) bool { io.WriteString(c, "SSH-2.0-x\r\n\r\n"); return false },
			push:   want{502, "bad_gateway", "unknown"}, read: 502,
		},
		"does not answer in time": {
			script: func(c net.Conn, _ *http.Request, _ string) bool { var b [1]byte; c.Read(b[:]); return false },
			config: func(c *Config) { c.UpstreamTime = 500 * time.Millisecond },
			push:   want{504, "upstream_timeout", "unknown"}, read: 504,
		},
		"does not know the gateway": {
			script: func(c net.Conn, _ *http.Request, _ string) bool { answerJSON(c, "401 Unauthorized", "{}"); return true },
			push:   want{502, "bad_gateway", "none"}, read: 502,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := c.address
			if address == "" {
				address = rawBroker(t, c.script)
			}
			w := setup(t, options{address: address, config: c.config, facts: func(w *world) {
				w.cluster.Limits.RequestsPerSecond, w.cluster.Limits.RequestsBurst = one(1e-9), one(10.0)
			}})
			r := w.ask(w.push(aPush))
			if r.StatusCode != c.push.status || r.code() != c.push.code || r.outcome() != c.push.outcome {
				t.Errorf("push: got %d %q, want %v", r.StatusCode, r.body, c.push)
			}
			// What certainly did not happen is not charged.
			left := 9.0
			if c.push.outcome == "none" {
				left = 10
			}
			report, e := w.gateway.Gate().AskHead(w.cluster, nil, wire.CostRequest, time.Now())
			if e != nil {
				t.Fatal(e)
			}
			if report.Remaining != left {
				t.Errorf("%v tokens are left, want %v", report.Remaining, left)
			}
			if r := w.ask(w.head("GET", "/api/v1/resources/queues")); r.StatusCode != c.read {
				t.Errorf("read: got %d %q, want %d", r.StatusCode, r.body, c.read)
			}
		})
	}
}

func TestAStaleConnectionIsNotUsed(t *testing.T) {
	t.Parallel()
	w := setup(t, options{address: rawBroker(t, func(c net.Conn, _ *http.Request, _ string) bool {
		answerJSON(c, "201 Created", "[]") // and closes, without saying so
		return false
	})})
	for range 20 {
		if r := w.ask(w.push(aPush)); r.StatusCode != 201 {
			t.Fatalf("got %d %q", r.StatusCode, r.body)
		}
		until(t, "the broker's close", func() bool {
			for _, c := range idle(w) {
				if c.fresh(time.Now()) {
					return false
				}
			}
			return true
		})
	}
}

func TestBrokersErrorsAreRelayedAsTheyAre(t *testing.T) {
	t.Parallel()
	const text = `{"error":"queue cap","code":"quota_exceeded","extra":[1, 2]}`
	w := setup(t, options{broker: func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(403)
		ctx.SetContentType("application/json")
		ctx.Response.Header.Set("Retry-After", "7")
		ctx.SetBodyString(text)
	}})
	r := w.ask(w.push(aPush))
	if r.StatusCode != 403 || r.body != text || r.Header.Get("Retry-After") != "7" || r.Header.Get("X-Queen-Request-Id") == "" {
		t.Errorf("got %d %q %v", r.StatusCode, r.body, r.Header)
	}
}

func TestABrokersErrorIsLoggedUnderItsOwnCode(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]wire.Code{
		`{"error":"x","code":"database_unavailable"}`: wire.DatabaseUnavailable,
		`{"error":"x","code":"made_up"}`:              "broker_503",
		`{"error":"x"}`:                               "broker_503",
		"<html>":                                      "broker_503",
		"":                                            "broker_503",
	} {
		if got := codeOfAnswer(503, []byte(body)); got != want {
			t.Errorf("%q: %q, want %q", body, got, want)
		}
	}
	if got := codeOfAnswer(200, []byte(`{"code":"internal"}`)); got != "" {
		t.Errorf("a success has the code %q", got)
	}
	w := setup(t, options{broker: func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(503)
		ctx.SetBodyString(`{"error":"x","code":"database_unavailable","outcome":"none"}`)
	}})
	w.ask(w.push(aPush))
	families, err := w.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(families); !strings.Contains(text, `value:"database_unavailable"`) || strings.Contains(text, "broker_503") {
		t.Error("the request is not counted under database_unavailable")
	}
}

func TestMemoryForBodiesIsBounded(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	w := setup(t, options{
		config: func(c *Config) { c.MaxBodyBytes, c.BodyBudgetBytes = 64<<10, 64<<10 },
		broker: func(ctx *fasthttp.RequestCtx) { <-release; ctx.SetStatusCode(201) },
	})
	big := `{"items":[{"queue":"q","payload":"` + strings.Repeat("x", 40_000) + `"}]}`
	c := w.dial()
	c.send(w.push(big))
	await(t, w.broker.seen)
	r := w.ask(w.push(big))
	if r.StatusCode != 503 || r.code() != "gateway_overloaded" || r.Header.Get("Retry-After") != "1" {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
	families, err := w.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	promised := uint64(0)
	for _, f := range families {
		if f.GetName() == "queengate_proxy_retry_after_seconds" && f.GetMetric()[0].GetHistogram().GetSampleSum() == 1 {
			promised = f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	if promised != 1 {
		t.Errorf("promised waits of a second: %d counted, want 1", promised)
	}
	close(release)
	if r := c.read(); r.StatusCode != 201 {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
	until(t, "the memory", func() bool { return w.gateway.budget.used.Load() == 0 })
	if r := w.ask(w.push(big)); r.StatusCode != 201 {
		t.Errorf("afterwards: got %d %q", r.StatusCode, r.body)
	}
}
