package broker

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/queengate/queengate/wire"
)

func TestEveryRouteHasAHandler(t *testing.T) {
	t.Parallel()
	ops := map[wire.Op]bool{}
	for _, r := range wire.Routes {
		ops[r.Op] = true
		if handlers[r.Op] == nil {
			t.Errorf("%s %s has no handler", r.Method, r.Pattern)
		}
	}
	for op := range handlers {
		if !ops[op] {
			t.Errorf("the handler of op %d has no route", op)
		}
	}
}

type refusal struct {
	Error     string
	Code      wire.Code
	RequestID string `json:"request_id"`
	Outcome   string
	Retryable bool

	RetryAfterMS int64 `json:"retry_after_ms"`
	Limit        struct {
		Name string
		Used float64
	}
}

func TestRefusalsAreJSON(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *Config) { c.MaxBodyBytes = 4096 })
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		code               wire.Code
		header             [2]string
	}{
		"unknown path":         {"GET", "/api/v1/nope", "", 404, wire.NoSuchRoute, [2]string{}},
		"wrong method":         {"GET", "/api/v1/push", "", 405, wire.MethodNotAllowed, [2]string{"Allow", "POST"}},
		"wrong method of two":  {"PUT", "/api/v1/resources/queues/q", "", 405, wire.MethodNotAllowed, [2]string{"Allow", "GET, DELETE"}},
		"dot segment":          {"GET", "/api/v1/%2e%2e/push", "", 400, wire.InvalidRequest, [2]string{}},
		"body that is no JSON": {"POST", "/api/v1/push", `{"items":[`, 400, wire.InvalidRequest, [2]string{}},
		"item without payload": {"POST", "/api/v1/push", `{"items":[{"queue":"q"}]}`, 400, wire.InvalidRequest, [2]string{}},
		"body over the cap":    {"POST", "/api/v1/push", strings.Repeat(" ", 5000), 413, wire.PayloadTooLarge, [2]string{}},
		"bad query":            {"GET", "/api/v1/pop/queue/q?batch=abc", "", 400, wire.InvalidRequest, [2]string{}},
		"bad configure":        {"POST", "/api/v1/configure", `{"queue":7}`, 400, wire.InvalidRequest, [2]string{}},
		"bad ack":              {"POST", "/api/v1/ack/batch", `[]`, 400, wire.InvalidRequest, [2]string{}},
		"internal without key": {"POST", "/internal/v1/tenants/usage", `{}`, 401, wire.Unauthorized, [2]string{}},
	} {
		a := w.do(c.method, c.path, c.body)
		var r refusal
		if err := json.Unmarshal([]byte(a.body), &r); err != nil {
			t.Errorf("%s: %v: %s", name, err, a.body)
			continue
		}
		if a.status != c.status || r.Code != c.code || r.Outcome != "none" || r.RequestID == "" || r.RequestID != a.header.Get(wire.HeaderRequestID) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
		if got := a.header.Get("Content-Type"); got != "application/json" {
			t.Errorf("%s: content type %q", name, got)
		}
		if h := c.header; h[0] != "" && a.header.Get(h[0]) != h[1] {
			t.Errorf("%s: %s: %q, want %q", name, h[0], a.header.Get(h[0]), h[1])
		}
		if a.header.Get("Server") != "" {
			t.Errorf("%s: the server names itself", name)
		}
	}
	if a := w.do("GET", "/api/v1/nope", ""); !strings.HasPrefix(a.body, `{"error":"Not Found","code":"no_such_route"`) {
		t.Error(a.body)
	}
	if a := w.do("GET", "/livez", "", wire.HeaderRequestID, "from-the-gateway"); a.header.Get(wire.HeaderRequestID) != "from-the-gateway" {
		t.Errorf("request id %q", a.header.Get(wire.HeaderRequestID))
	}
}

// raw sends bytes and reads one answer.
func (w *world) raw(text string) answer {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer{r.StatusCode, r.Header, string(b), r.Close}
}

func TestAmbiguousRequestsAreRefused(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	const body = `{"items":[{"queue":"q","payload":1}]}`
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n", len(body), body)
	for name, text := range map[string]string{
		"announced trailer":   "POST /api/v1/push HTTP/1.1\r\nHost: q\r\nTrailer: X-Queen-Tenant\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked + "X-Queen-Tenant: x\r\n\r\n",
		"unannounced trailer": "POST /api/v1/push HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked + "X-Queen-Tenant: x\r\n\r\n",
		"nonsense":            "NONSENSE\r\n\r\n",
		"two body lengths":    "POST /api/v1/push HTTP/1.1\r\nHost: q\r\nContent-Length: 37\r\nContent-Length: 38\r\n\r\n" + body + " ",
	} {
		if a := w.raw(text); a.status != 400 || !strings.Contains(a.body, `"code":"invalid_request"`) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if a := w.raw("POST /api/v1/push HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked + "\r\n"); a.status != 201 {
		t.Errorf("a chunked body: %d %s", a.status, a.body)
	}
	if a := w.raw("GET /livez HTTP/1.1\r\nHost: q\r\nX-Big: " + strings.Repeat("x", 40_000) + "\r\n\r\n"); a.status != 431 || !strings.Contains(a.body, `"code":"request_headers_too_large"`) {
		t.Errorf("a large head: %d %s", a.status, a.body)
	}
}

func TestNothingIsStoredWhenAnItemIsMalformed(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1},{"queue":"q"}]}`).want(t, 400)
	if a := w.do("GET", "/api/v1/resources/queues", ""); a.body != `{"queues":[]}` {
		t.Error(a.body)
	}
	if a := w.do("POST", "/api/v1/push", `{"items":[]}`).want(t, 201); a.body != "[]" {
		t.Error(a.body)
	}
}

func TestAcksFailAlone(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a")
	m := w.pop("q").Messages[0]
	body := fmt.Sprintf(`{"acknowledgments":[
		{"transactionId":"x"},
		{"transactionId":"x","partitionId":"nonsense"},
		{"transactionId":"a","partitionId":%[1]q,"leaseId":%[2]q},
		{"partitionId":%[1]q,"leaseId":%[2]q},
		{"transactionId":"x","partitionId":"00000000-0000-0000-0000-000000000009"}]}`, m.PartitionID, m.LeaseID)
	rs := decode[[]acked](t, w.do("POST", "/api/v1/ack/batch", body).want(t, 200))
	if len(rs) != 5 {
		t.Fatalf("%d results, want 5", len(rs))
	}
	for i, r := range rs {
		if r.Index != i || r.Success != (i == 2) || (r.Error == nil) != (i == 2) {
			t.Errorf("result %d: %+v", i, r)
		}
	}
	if a := w.do("POST", "/api/v1/ack/batch", `{"acknowledgments":[]}`).want(t, 200); a.body != "[]" {
		t.Error(a.body)
	}
	single := fmt.Sprintf(`{"transactionId":"a","partitionId":%q,"consumerGroup":null}`, m.PartitionID)
	if rs := decode[[]acked](t, w.do("POST", "/api/v1/ack", single).want(t, 200)); len(rs) != 1 || !rs[0].Noop {
		t.Errorf("single: %+v", rs)
	}
}
