package proxy

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

func TestAPushReachesTheBrokerAndItsAnswerTheClient(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	r := w.ask(w.push(aPush))
	if r.StatusCode != 201 || r.body != `[{"index":0}]` || r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("got %d %q %v", r.StatusCode, r.body, r.Header)
	}
	got := await(t, w.broker.seen)
	if got.method != "POST" || got.target != "/api/v1/push" || got.body != aPush {
		t.Errorf("the broker got %+v", got)
	}
	if id := r.Header.Get("X-Queen-Request-Id"); id == "" || id != got.header("X-Queen-Request-Id") {
		t.Errorf("request id %q, the broker got %q", id, got.header("X-Queen-Request-Id"))
	}
}

func TestRefusedOnTheHeadWithoutOneBodyByte(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	for name, dial := range map[string]func() *wireConn{"plain": w.dial, "tls": w.dialTLS} {
		for _, size := range []int{1, 100_000, 10 << 20} {
			t.Run(fmt.Sprintf("%s %d", name, size), func(t *testing.T) {
				c := dial()
				c.send(strings.Replace(w.head("POST", "/api/v1/push", fmt.Sprintf("Content-Length: %d", size)), w.key, "qk_live_wrong", 1))
				r := c.read()
				if r.StatusCode != 401 || r.code() != "unauthorized" || r.Header.Get("X-Queen-Request-Id") == "" {
					t.Errorf("got %d %q %v", r.StatusCode, r.body, r.Header)
				}
				if !c.ended() {
					t.Error("the connection goes on without the body")
				}
			})
		}
		t.Run(name+" chunked", func(t *testing.T) {
			c := dial()
			c.send(strings.Replace(w.head("POST", "/api/v1/push", "Transfer-Encoding: chunked"), w.key, "qk_live_wrong", 1))
			if r := c.read(); r.StatusCode != 401 {
				t.Errorf("got %d %q", r.StatusCode, r.body)
			}
		})
	}
}

func TestARefusalOfASmallBodyKeepsTheConnection(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	for name, dial := range map[string]func() *wireConn{"plain": w.dial, "tls": w.dialTLS} {
		t.Run(name, func(t *testing.T) {
			c := dial()
			for range 3 {
				c.send(strings.Replace(w.push(aPush), w.key, "qk_live_wrong", 1))
				if r := c.read(); r.StatusCode != 401 || r.Close {
					t.Fatalf("got %d close=%v", r.StatusCode, r.Close)
				}
			}
			c.send(w.push(aPush))
			if r := c.read(); r.StatusCode != 201 {
				t.Errorf("got %d %q", r.StatusCode, r.body)
			}
		})
	}
}

func TestInterimAnswers(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	t.Run("whoever expects one gets it", func(t *testing.T) {
		c := w.dial()
		c.send(w.head("POST", "/api/v1/push", "Expect: 100-Continue", fmt.Sprintf("Content-Length: %d", len(aPush))))
		if r := c.read(); r.StatusCode != 100 {
			t.Fatalf("got %d", r.StatusCode)
		}
		c.send(aPush)
		if r := c.read(); r.StatusCode != 201 {
			t.Errorf("got %d %q", r.StatusCode, r.body)
		}
	})
	t.Run("who is refused gets the refusal instead", func(t *testing.T) {
		c := w.dial()
		c.send(strings.Replace(w.head("POST", "/api/v1/push", "Expect: 100-continue", "Content-Length: 5"), w.key, "x", 1))
		if r := c.read(); r.StatusCode != 401 {
			t.Errorf("got %d", r.StatusCode)
		}
	})
	t.Run("nobody else does, also when requests are pipelined", func(t *testing.T) {
		c := w.dial()
		c.send(strings.Repeat(w.push(aPush), 5))
		for range 5 {
			if r := c.read(); r.StatusCode != 201 {
				t.Fatalf("got %d %q", r.StatusCode, r.body)
			}
		}
	})
}

func TestWhatTwoReadersCouldReadDifferentlyIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	auth := "Authorization: Bearer " + w.key + "\r\n"
	const host, length = "Host: acme.example.com\r\n", "Content-Length: 43\r\n"
	for name, request := range map[string]string{
		"length and chunked":         "POST /api/v1/push HTTP/1.1\r\n" + host + auth + length + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunked and length":         "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "Transfer-Encoding: chunked\r\n" + length + "\r\n0\r\n\r\n",
		"two lengths":                "POST /api/v1/push HTTP/1.1\r\n" + host + auth + length + "Content-Length: 44\r\n\r\n" + aPush,
		"twice the same length":      "POST /api/v1/push HTTP/1.1\r\n" + host + auth + length + length + "\r\n" + aPush,
		"a list of lengths":          "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "Content-Length: 43, 43\r\n\r\n" + aPush,
		"a signed length":            "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "Content-Length: +43\r\n\r\n" + aPush,
		"two hosts":                  "POST /api/v1/push HTTP/1.1\r\n" + host + "Host: zeta.example.com\r\n" + auth + length + "\r\n" + aPush,
		"no host":                    "POST /api/v1/push HTTP/1.1\r\n" + auth + length + "\r\n" + aPush,
		"two credentials":            "POST /api/v1/push HTTP/1.1\r\n" + host + auth + auth + length + "\r\n" + aPush,
		"two encodings":              "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"an encoding in front":       "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"identity":                   "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "Transfer-Encoding: identity\r\n" + length + "\r\n" + aPush,
		"a hidden encoding":          "POST /api/v1/push HTTP/1.1\r\n" + host + auth + length + "Transfer-Encoding : chunked\r\n\r\n" + aPush,
		"a space before the colon":   "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "Content-Length : 43\r\n\r\n" + aPush,
		"a folded header":            "POST /api/v1/push HTTP/1.1\r\n" + host + auth + length + "X-A: b\r\n c\r\n\r\n" + aPush,
		"a folded first header":      "POST /api/v1/push HTTP/1.1\r\n " + host + auth + length + "\r\n" + aPush,
		"a bare line feed":           "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "X-A: b\n" + length + "\r\n" + aPush,
		"a bare carriage return":     "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "X-A: b\rc\r\n" + length + "\r\n" + aPush,
		"an announced trailer":       "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "Trailer: X-Queen-Tenant\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"a trailer to move ours":     "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "Trailer: X-Queen-Tenant\r\n" + length + "\r\n" + aPush,
		"an unannounced trailer":     "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "Transfer-Encoding: chunked\r\n\r\n2b\r\n" + aPush + "\r\n0\r\nX-Queen-Tenant: x\r\n\r\n",
		"a name with a space":        "POST /api/v1/push HTTP/1.1\r\n" + host + auth + length + "X A: b\r\n\r\n" + aPush,
		"a body of a GET":            "GET /api/v1/pop/queue/q HTTP/1.1\r\n" + host + auth + length + "\r\n" + aPush,
		"chunks of a GET":            "GET /api/v1/pop/queue/q HTTP/1.1\r\n" + host + auth + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"another host in the target": "POST http://zeta.example.com/api/v1/push HTTP/1.1\r\n" + host + auth + length + "\r\n" + aPush,
		"a user in the target":       "POST http://u@acme.example.com/api/v1/push HTTP/1.1\r\n" + host + auth + length + "\r\n" + aPush,
		"a fragment":                 "POST /api/v1/push#x HTTP/1.1\r\n" + host + auth + length + "\r\n" + aPush,
		"two acting clusters":        "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "X-Queen-Act-Cluster: a\r\nX-Queen-Act-Cluster: b\r\n" + length + "\r\n" + aPush,
		"a coded body":               "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "Content-Encoding: gzip\r\n" + length + "\r\n" + aPush,
		"broken chunks":              "POST /api/v1/push HTTP/1.1\r\n" + host + auth + "Transfer-Encoding: chunked\r\n\r\nzz\r\n" + aPush + "\r\n0\r\n\r\n",
		"old HTTP with chunks":       "POST /api/v1/push HTTP/1.0\r\n" + host + auth + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := w.dial()
			c.send(request)
			r := c.read()
			if r.StatusCode != 400 || r.code() != "invalid_request" {
				t.Errorf("got %d %q", r.StatusCode, r.body)
			}
			if !c.ended() {
				t.Error("the connection goes on")
			}
		})
	}
	t.Cleanup(func() {
		if n := len(w.broker.seen); n != 0 {
			t.Errorf("%d requests reached the broker", n)
		}
	})
}

func TestNothingOfTheClientsHeadersPasses(t *testing.T) {
	t.Parallel()
	w := setup(t, options{broker: func(ctx *fasthttp.RequestCtx) {
		h := &ctx.Response.Header
		h.Set("X-Queen-Delivered", "3")
		h.Set("X-Queen-Secret", "s")
		h.Set("Set-Cookie", "a=b")
		h.Set("Server", "broker")
		h.Set("Etag", `"1"`)
		ctx.SetContentType("application/json; charset=utf-8")
		ctx.SetBodyString("[]")
	}})
	r := w.ask(w.push(aPush, "X-Queen-Tenant: evil", "x-queen-request-id: evil", "X-Queen-Anything: evil", "Cookie: a=evil",
		"Forwarded: for=evil", "X-Forwarded-For: evil", "X-Forwarded-Host: evil", "X-Real-IP: evil", "Proxy-Authorization: evil",
		"Connection: keep-alive, X-Queen-Tenant", "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tracestate: a=evil", "Accept: evil", "User-Agent: evil", "Content-Type: text/evil"))
	got := await(t, w.broker.seen)
	if strings.Contains(got.head, "evil") {
		t.Errorf("the broker got\n%s", got.head)
	}
	names := map[string]bool{}
	for line := range strings.SplitSeq(strings.TrimSpace(got.head), "\r\n") {
		name, _, _ := strings.Cut(line, ":")
		if names[name] {
			t.Errorf("%s twice", name)
		}
		names[name] = true
	}
	for _, want := range []string{"Host", "Authorization", "X-Queen-Tenant", "X-Queen-Request-Id", "Content-Type", "Content-Length"} {
		if !names[want] {
			t.Errorf("%s is missing in\n%s", want, got.head)
		}
		delete(names, want)
	}
	if len(names) > 0 {
		t.Errorf("not on the list: %v", names)
	}
	if got.header("X-Queen-Tenant") != w.cluster.BrokerTenant.String() || got.header("Content-Type") != "application/json" {
		t.Errorf("the broker got\n%s", got.head)
	}
	for _, name := range []string{"X-Queen-Delivered", "X-Queen-Secret", "Set-Cookie", "Server"} {
		if v := r.Header.Get(name); v != "" {
			t.Errorf("the client got %s: %s", name, v)
		}
	}
	if r.Header.Get("Etag") != `"1"` || r.Header.Get("Content-Type") != "application/json; charset=utf-8" {
		t.Errorf("the client got %v", r.Header)
	}
}

func TestOldHTTPAndKeepAlive(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	old := strings.Replace(w.push(aPush), "HTTP/1.1", "HTTP/1.0", 1)
	t.Run("1.0 closes", func(t *testing.T) {
		c := w.dial()
		c.send(old)
		if r := c.read(); r.StatusCode != 201 || !c.ended() {
			t.Errorf("got %d", r.StatusCode)
		}
	})
	t.Run("1.0 keeps alive on demand", func(t *testing.T) {
		c := w.dial()
		for range 2 {
			c.send(strings.Replace(old, "Host:", "Connection: keep-alive\r\nHost:", 1))
			if r := c.read(); r.StatusCode != 201 || r.Header.Get("Connection") != "keep-alive" {
				t.Errorf("got %d %v", r.StatusCode, r.Header)
			}
		}
	})
	t.Run("1.0 is judged", func(t *testing.T) {
		c := w.dial()
		c.send(strings.Replace(old, w.key, "x", 1))
		if r := c.read(); r.StatusCode != 401 {
			t.Errorf("got %d", r.StatusCode)
		}
	})
	t.Run("1.1 closes on demand", func(t *testing.T) {
		c := w.dial()
		c.send(w.push(aPush, "Connection: close"))
		if r := c.read(); r.StatusCode != 201 || !r.Close || !c.ended() {
			t.Errorf("got %d", r.StatusCode)
		}
	})
	t.Run("the absolute form is the same request", func(t *testing.T) {
		c := w.dial()
		c.send(strings.Replace(w.push(aPush), "/api/v1/push", "http://ACME.example.com/api/v1/push", 1))
		if r := c.read(); r.StatusCode != 201 {
			t.Errorf("got %d %q", r.StatusCode, r.body)
		}
	})
	t.Run("chunks arrive as one body", func(t *testing.T) {
		for len(w.broker.seen) > 0 {
			<-w.broker.seen
		}
		c := w.dial()
		c.send(w.head("POST", "/api/v1/push", "Transfer-Encoding: chunked") + "14\r\n" + aPush[:20] + "\r\n17\r\n" + aPush[20:] + "\r\n0\r\n\r\n")
		if r := c.read(); r.StatusCode != 201 {
			t.Fatalf("got %d %q", r.StatusCode, r.body)
		}
		if got := await(t, w.broker.seen); got.body != aPush || got.header("Content-Length") != "43" {
			t.Errorf("the broker got %+v", got)
		}
	})
}

func TestHeadsHaveBounds(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	for name, c := range map[string]struct {
		request string
		status  int
	}{
		"a long header":   {w.head("GET", "/api/v1/pop/queue/q", "X-A: "+strings.Repeat("a", 70_000)), 431},
		"many headers":    {w.head("GET", "/api/v1/pop/queue/q", strings.Repeat("X-A: a\r\n", 120)+"X-B: b"), 431},
		"a long target":   {w.head("GET", "/api/v1/pop/queue/q?consumerGroup="+strings.Repeat("a", 6500)), 414},
		"the longest":     {w.head("GET", "/api/v1/pop/queue/q?consumerGroup="+strings.Repeat("a", 7800)), 414},
		"a longer target": {w.head("GET", "/api/v1/pop/queue/q?consumerGroup="+strings.Repeat("a", 65000)), 431},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c2 := w.dial()
			c2.send(c.request)
			if r := c2.read(); r.StatusCode != c.status || r.code() != map[int]string{414: "request_target_too_long", 431: "request_headers_too_large"}[c.status] {
				t.Errorf("got %d %q, want %d", r.StatusCode, r.body, c.status)
			}
		})
	}
}

// records is the client's end under TLS: it counts the records that come.
type records struct {
	net.Conn
	head []byte // of the record that is coming
	rest int    // of its body
	n    int
}

func (r *records) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	for b := p[:n]; len(b) > 0; {
		if r.rest > 0 {
			k := min(r.rest, len(b))
			r.rest, b = r.rest-k, b[k:]
			continue
		}
		r.head, b = append(r.head, b[0]), b[1:]
		if len(r.head) == 5 {
			r.rest, r.head = int(r.head[3])<<8|int(r.head[4]), nil
			r.n++
		}
	}
	return n, err
}

// TestAnAnswerThatFitsIsOneRecord asks for answers of 15 KB, head and body, over TLS. A connection begins with small
// records, so the first ones are not looked at.
func TestAnAnswerThatFitsIsOneRecord(t *testing.T) {
	t.Parallel()
	w := setup(t, options{broker: func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("application/json")
		ctx.SetBodyString(`"` + strings.Repeat("x", 15_000) + `"`)
	}})
	tcp, err := net.Dial("tcp", w.secure)
	if err != nil {
		t.Fatal(err)
	}
	seen := &records{Conn: tcp}
	c := w.client(tls.Client(seen, w.clientTLS))
	const first, all = 20, 25
	for i := range all {
		before := seen.n
		c.send(w.head("GET", "/api/v1/resources/queues"))
		if r := c.read(); r.StatusCode != 200 || len(r.body) != 15_002 {
			t.Fatalf("got %d with %d bytes", r.StatusCode, len(r.body))
		}
		if n := seen.n - before; i >= first && n != 1 {
			t.Errorf("answer %d came in %d records, want 1", i, n)
		}
	}
}
