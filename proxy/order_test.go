package proxy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
)

// change replaces acme by what f makes of a copy, for its key too.
func (w *world) change(f func(c *plans.Cluster, k *plans.Key)) {
	c, k := *w.facts.Clusters[0], *w.facts.Keys[0]
	k.Cluster = &c
	f(&c, &k)
	w.facts.Clusters = append([]*plans.Cluster{&c}, w.facts.Clusters[1:]...)
	w.facts.Keys = append([]*plans.Key{&k}, w.facts.Keys[1:]...)
	w.cluster = &c
	w.publish()
}

// TestTheFirstRefusalInTheOrderIsTheAnswer builds a request that every step refuses and repairs one fault after the
// other, from the front: each time the next step's answer comes.
func TestTheFirstRefusalInTheOrderIsTheAnswer(t *testing.T) {
	t.Parallel()
	w := setup(t, options{facts: func(w *world) {
		w.facts.Keys[0].Scopes = plans.ScopeRead
		w.cluster.Status = plans.Suspended
		w.cluster.Limits = plans.Limits{RequestsPerSecond: one(0.001), RequestsBurst: one(1.0), MaxBodyBytes: one(int64(30))}
	}})
	line, host, key := "Content-Length : 43", "unknown.example.com", "qk_live_wrong"
	path, body := "/api/v1/../push", "{"
	request := func() string {
		return "POST " + path + " HTTP/1.1\r\nHost: " + host + "\r\nAuthorization: " + key + "\r\n" + line + "\r\n\r\n" + body
	}
	for i, step := range []struct {
		status int
		code   string
		repair func()
	}{
		{400, "invalid_request", func() { line = "Content-Length: 43"; body = aPush }},
		{400, "invalid_request", func() { path = "/api/v1/nothing" }},
		{404, "route_blocked", func() { path = "/internal/v1/tenants/usage" }},
		{404, "route_blocked", func() { path = "/livez" }},
		{404, "route_blocked", func() { path = "/api/v1/push" }},
		{401, "unauthorized", func() { key = w.key }},
		{421, "cluster_unknown", func() { host = "zeta.example.com" }},
		{403, "forbidden", func() { host = "acme.example.com" }},
		{403, "cluster_suspended", func() { w.change(func(c *plans.Cluster, _ *plans.Key) { c.Status = plans.Paused }) }},
		{429, "rate_limited", func() { w.change(func(c *plans.Cluster, _ *plans.Key) { c.Status = plans.Active }) }},
		{403, "forbidden", func() {
			w.change(func(c *plans.Cluster, k *plans.Key) { k.Scopes = plans.ScopeRead | plans.ScopeProduce })
			if r := w.ask(w.head("GET", "/api/v1/resources/queues")); r.StatusCode != 201 {
				t.Fatalf("the last request token: got %d %q", r.StatusCode, r.body)
			}
		}},
		{429, "rate_limited", func() {
			w.change(func(c *plans.Cluster, _ *plans.Key) {
				c.Limits.RequestsPerSecond, c.Limits.MaxBodyBytes = nil, one(int64(0))
			})
		}},
		{403, "quota_exceeded", func() {
			w.change(func(c *plans.Cluster, _ *plans.Key) { c.Limits.MaxBodyBytes = one(int64(30)) })
		}},
		{413, "payload_too_large", func() {
			w.change(func(c *plans.Cluster, _ *plans.Key) { c.Limits.MaxBodyBytes = nil })
			body = strings.Replace(aPush, "payload", "paydirt", 1)
		}},
		{400, "invalid_request", func() {
			w.change(func(c *plans.Cluster, _ *plans.Key) {
				c.Limits.MessagesPerSecond, c.Limits.MessagesBurst = one(0.0), one(0.0)
			})
			body = aPush
		}},
		{403, "quota_exceeded", func() {
			w.change(func(c *plans.Cluster, _ *plans.Key) { c.Limits.MessagesPerSecond = nil })
		}},
		{201, "", func() {}},
	} {
		c := w.dial()
		c.send(request())
		r := c.read()
		if r.StatusCode != step.status || r.code() != step.code {
			t.Errorf("step %d: got %d %q, want %d %s", i, r.StatusCode, r.body, step.status, step.code)
		}
		if id := r.Header.Get("X-Queen-Request-Id"); id == "" || r.code() != "" && !strings.Contains(r.body, id) {
			t.Errorf("step %d: request id %q in %q", i, id, r.body)
		}
		if scheme := r.Header.Get("Www-Authenticate"); (scheme == "Bearer") != (step.status == 401) {
			t.Errorf("step %d: WWW-Authenticate %q with %d", i, scheme, step.status)
		}
		if step.status == 429 && r.Header.Get("Retry-After") == "" {
			t.Errorf("step %d: no Retry-After", i)
		}
		if strings.Contains(r.body, "timeout") || strings.Contains(r.body, "connection") {
			t.Errorf("step %d: %q makes old clients spin", i, r.body)
		}
		step.repair()
	}
}

func TestHostAndCredentialAgreeOnTheCluster(t *testing.T) {
	t.Parallel()
	w := setup(t, options{config: func(c *Config) { c.Domains = []string{"example.com"} }})
	foreign, _, hash := auth.NewKey("live")
	w.facts.Keys = append(w.facts.Keys, &plans.Key{ID: uuid.New(), Hash: hash, PublicID: "zetakey", Cluster: w.other, Scopes: plans.ScopeProduce | plans.ScopeAdmin})
	w.publish()
	act := func(ref string) string { return "X-Queen-Act-Cluster: " + ref }
	acme, zeta := w.cluster, w.other
	for name, c := range map[string]struct {
		host, credential string
		extra            []string
		status           int
		tenant           *plans.Cluster
	}{
		"a key on its host":                        {"acme.example.com", w.key, nil, 201, acme},
		"the host in any case, port and dot":       {"ACME.Example.com.:8443", w.key, nil, 201, acme},
		"a key on another host":                    {"zeta.example.com", w.key, nil, 403, nil},
		"another key on the host":                  {"acme.example.com", foreign, nil, 403, nil},
		"a key on an unknown host":                 {"nobody.example.com", w.key, nil, 421, nil},
		"a key under another domain":               {"acme.example.org", w.key, nil, 421, nil},
		"a key on the bare domain":                 {"example.com", w.key, nil, 421, nil},
		"a host that is none":                      {"acme_!", w.key, nil, 421, nil},
		"nobody on an unknown host":                {"nobody.example.com", "", nil, 401, nil},
		"nobody on a known host":                   {"acme.example.com", "", nil, 401, nil},
		"a key on a shared host":                   {"localhost:80", w.key, nil, 201, acme},
		"a key on a shared address":                {"127.0.0.1", foreign, nil, 201, zeta},
		"a key on a shared IPv6 address":           {"[::1]:80", foreign, nil, 201, zeta},
		"nobody on a shared host":                  {"localhost", "", nil, 401, nil},
		"a key that acts":                          {"localhost", w.key, []string{act("acme")}, 403, nil},
		"a key that acts on its own host":          {"acme.example.com", w.key, []string{act("acme")}, 403, nil},
		"a token on a host":                        {"acme.example.com", w.token(uuid.Nil), nil, 201, acme},
		"a token without a role there":             {"zeta.example.com", w.token(uuid.Nil), nil, 403, nil},
		"a token of another cluster":               {"acme.example.com", w.token(zeta.ID), nil, 403, nil},
		"a token that acts on the host's cluster":  {"acme.example.com", w.token(uuid.Nil), []string{act("acme")}, 201, acme},
		"a token that acts on another":             {"acme.example.com", w.token(uuid.Nil), []string{act("zeta")}, 403, nil},
		"a token on a shared host":                 {"localhost", w.token(uuid.Nil), nil, 403, nil},
		"a token that acts by slug":                {"localhost", w.token(uuid.Nil), []string{act("ACME")}, 201, acme},
		"a token that acts by id":                  {"localhost", w.token(uuid.Nil), []string{act(acme.ID.String())}, 201, acme},
		"a token that acts in vain":                {"localhost", w.token(uuid.Nil), []string{act("nobody")}, 403, nil},
		"a token that acts without a role":         {"localhost", w.token(uuid.Nil), []string{act("zeta")}, 403, nil},
		"a token that states its cluster":          {"localhost", w.token(acme.ID), nil, 201, acme},
		"a token that states one and acts on it":   {"localhost", w.token(acme.ID), []string{act("acme")}, 201, acme},
		"a token that states one, acts on another": {"localhost", w.token(acme.ID), []string{act("zeta")}, 403, nil},
		"a token that states a cluster long gone":  {"localhost", w.token(uuid.New()), nil, 403, nil},
	} {
		t.Run(name, func(t *testing.T) {
			lines := append([]string{"POST /api/v1/push HTTP/1.1", "Host: " + c.host, "Content-Length: " + strconv.Itoa(len(aPush))}, c.extra...)
			if c.credential != "" {
				lines = append(lines, "Authorization: Bearer "+c.credential)
			}
			r := w.ask(strings.Join(lines, "\r\n") + "\r\n\r\n" + aPush)
			if r.StatusCode != c.status {
				t.Fatalf("got %d %q, want %d", r.StatusCode, r.body, c.status)
			}
			if c.tenant == nil {
				return
			}
			if got := await(t, w.broker.seen).header("X-Queen-Tenant"); got != c.tenant.BrokerTenant.String() {
				t.Errorf("the broker was told tenant %s, want that of %s", got, c.tenant.Slug)
			}
		})
	}
	if n := len(w.broker.seen); n != 0 {
		t.Errorf("%d refused requests reached the broker", n)
	}
}

func TestLimitHeadersStandOnEveryLimitedAnswer(t *testing.T) {
	t.Parallel()
	w := setup(t, options{facts: func(w *world) {
		w.cluster.Limits.RequestsPerSecond, w.cluster.Limits.RequestsBurst = one(1.0), one(3.0)
	}})
	policy := regexp.MustCompile(`^"req";q=3;w=3$`)
	state := regexp.MustCompile(`^"req";r=\d(;t=\d)?$`)
	for i, want := range []int{201, 201, 201, 429, 429} {
		r := w.ask(w.push(aPush))
		if r.StatusCode != want {
			t.Fatalf("request %d: got %d %q", i, r.StatusCode, r.body)
		}
		h := r.Header
		if h.Get("X-Queen-Limit-Name") != "req" || h.Get("X-Queen-Limit-Limit") != "3" || h.Get("X-Queen-Limit-Mode") != "enforce" ||
			h.Get("X-Queen-Limit-Remaining") != strconv.Itoa(max(0, 2-i)) || h.Get("X-Queen-Limit-Reset") == "" {
			t.Errorf("request %d: %v", i, h)
		}
		if !policy.MatchString(h.Get("RateLimit-Policy")) || !state.MatchString(h.Get("RateLimit")) {
			t.Errorf("request %d: %q %q", i, h.Get("RateLimit-Policy"), h.Get("RateLimit"))
		}
		if want == 429 && (r.code() != "rate_limited" || h.Get("Retry-After") == "" || !strings.Contains(r.body, `"limit":{"name":"req"`)) {
			t.Errorf("request %d: %v %q", i, h, r.body)
		}
	}
	t.Run("and on no other", func(t *testing.T) {
		w.change(func(c *plans.Cluster, _ *plans.Key) { c.Limits = plans.Limits{} })
		if h := w.ask(w.push(aPush)).Header; h.Get("X-Queen-Limit-Name") != "" || h.Get("RateLimit") != "" {
			t.Errorf("%v", h)
		}
	})
}

func TestDeliveriesAndDeletionsReachTheLedger(t *testing.T) {
	t.Parallel()
	w := setup(t, options{
		facts: func(w *world) {
			w.cluster.Limits.MessagesPerSecond, w.cluster.Limits.MessagesBurst = one(0.001), one(10.0)
			w.cluster.Limits.MaxQueues = one(int64(1))
		},
		broker: func(ctx *fasthttp.RequestCtx) {
			switch {
			case strings.HasPrefix(string(ctx.Path()), "/internal/"):
				ctx.SetBodyString(`{"names":[],"more":false}`)
			case ctx.IsGet():
				ctx.Response.Header.Set("X-Queen-Delivered", "8")
				ctx.SetBodyString(`{"messages":[]}`)
			case ctx.IsDelete():
				ctx.SetBodyString(`{}`)
			default:
				ctx.SetStatusCode(201)
			}
		},
	})
	if r := w.ask(w.push(aPush)); r.StatusCode != 201 || r.Header.Get("X-Queen-Limit-Name") == "" {
		t.Fatalf("got %d %q %v", r.StatusCode, r.body, r.Header)
	}
	second := strings.Replace(aPush, `"q"`, `"r"`, 1)
	if r := w.ask(w.push(second)); r.StatusCode != 403 || r.code() != "quota_exceeded" {
		t.Errorf("a second queue: got %d %q", r.StatusCode, r.body)
	}
	if r := w.ask(w.head("DELETE", "/api/v1/resources/queues/q")); r.StatusCode != 200 {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
	if r := w.ask(w.push(second)); r.StatusCode != 201 {
		t.Errorf("after the deletion: got %d %q", r.StatusCode, r.body)
	}
	// Two messages were pushed and eight delivered: the burst of ten is used up.
	if r := w.ask(w.head("GET", "/api/v1/pop/queue/q")); r.StatusCode != 200 {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
	if r := w.ask(w.push(second)); r.StatusCode != 429 {
		t.Errorf("after the delivery: got %d %q", r.StatusCode, r.body)
	}
}

// What a cluster retains is asked for before its first push is judged, and followed from then on.
func TestUsageIsFollowed(t *testing.T) {
	t.Parallel()
	w := setup(t, options{
		facts: func(w *world) { w.cluster.Limits.MaxRetainedBytes = one(int64(1000)) },
	})
	var retained atomic.Int64
	h := fasthttp.RequestHandler(func(ctx *fasthttp.RequestCtx) {
		if string(ctx.Path()) == "/internal/v1/tenants/usage" {
			ctx.SetBodyString(fmt.Sprintf(`{"tenants":[{"tenant":"%s","retained_bytes":%d,"queues":1,"computed_at":"%s"}]}`,
				w.cluster.BrokerTenant, retained.Load(), time.Now().UTC().Format(time.RFC3339Nano)))
			return
		}
		ctx.SetStatusCode(201)
	})
	w.broker.handler.Store(&h)
	asked := func() {
		t.Helper()
		r := await(t, w.broker.seen)
		if r.method != "POST" || r.body != `{"tenants":["`+w.cluster.BrokerTenant.String()+`"]}` || r.header("Authorization") == "" {
			t.Errorf("the broker was asked %+v", r)
		}
	}
	if r := w.ask(w.push(aPush)); r.StatusCode != 201 {
		t.Fatalf("got %d %q", r.StatusCode, r.body)
	}
	asked()
	await(t, w.broker.seen)
	retained.Store(5000)
	w.gateway.measureUsage(context.Background(), time.Now())
	asked()
	if r := w.ask(w.push(aPush)); r.StatusCode != 403 || r.code() != "storage_quota_exceeded" {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
}

// W11: cells are asked side by side, so one that does not answer delays no other.
func TestACellThatHangsDelaysNoOther(t *testing.T) {
	t.Parallel()
	var second *scripted
	w := setup(t, options{facts: func(w *world) {
		second = newScripted(t, nil)
		w.facts.Cells = append(w.facts.Cells, &plans.Cell{Slug: "c2", BaseURL: "http://" + second.address, Status: "active"})
		w.cluster.Limits.MaxRetainedBytes, w.other.Limits.MaxRetainedBytes = one(int64(1000)), one(int64(1000))
		w.other.Cell = "c2"
	}})
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	hangs := fasthttp.RequestHandler(func(ctx *fasthttp.RequestCtx) { <-hold })
	for _, b := range []*scripted{w.broker, second} {
		b.handler.Store(&hangs)
	}
	for _, c := range w.facts.Clusters {
		w.gateway.loads.of(c.ID).touch(time.Now())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.gateway.measureUsage(context.Background(), time.Now())
	}()
	await(t, w.broker.seen)
	await(t, second.seen)
	release()
	await(t, ended)
}

// W5: a gateway that starts with a cluster over its cap does not let pushes through until it has asked in its turn.
func TestAFullClusterIsRefusedFromTheFirstPush(t *testing.T) {
	t.Parallel()
	w := setup(t, options{
		facts: func(w *world) { w.cluster.Limits.MaxRetainedBytes = one(int64(1000)) },
	})
	h := fasthttp.RequestHandler(func(ctx *fasthttp.RequestCtx) {
		ctx.SetBodyString(`{"tenants":[{"tenant":"` + w.cluster.BrokerTenant.String() + `","retained_bytes":1000,"queues":1,"computed_at":"` +
			time.Now().UTC().Format(time.RFC3339Nano) + `"}]}`)
	})
	w.broker.handler.Store(&h)
	if r := w.ask(w.push(aPush)); r.StatusCode != 403 || r.code() != "storage_quota_exceeded" {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
}

// W11: nobody is asked about clusters that have no cap on what they retain.
func TestClustersWithoutACapAreNotMeasured(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	if r := w.ask(w.push(aPush)); r.StatusCode != 201 {
		t.Fatalf("got %d %q", r.StatusCode, r.body)
	}
	await(t, w.broker.seen)
	w.gateway.measureUsage(context.Background(), time.Now())
	select {
	case r := <-w.broker.seen:
		t.Errorf("the broker was asked %+v", r)
	default:
	}
}

// W7: a name counts when something was stored under it, or may have been, and not because somebody tried.
func TestAPushThatStoresNothingHoldsNoName(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		status int
		body   string
		queues int
	}{
		"stored":                     {201, `[{"index":0}]`, 1},
		"refused by the broker":      {400, `{"code":"invalid_request","outcome":"none"}`, 0},
		"failed without effect":      {503, `{"code":"broker_overloaded","outcome":"none"}`, 0},
		"failed, and nobody can say": {500, `{"code":"internal","outcome":"unknown"}`, 1},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := setup(t, options{
				facts: func(w *world) { w.cluster.Limits.MaxQueues = one(int64(3)) },
				broker: func(ctx *fasthttp.RequestCtx) {
					if strings.HasPrefix(string(ctx.Path()), "/internal/") {
						ctx.SetBodyString(`{"names":[]}`)
						return
					}
					ctx.SetStatusCode(c.status)
					ctx.SetBodyString(c.body)
				},
			})
			if r := w.ask(w.push(aPush)); r.StatusCode != c.status {
				t.Fatalf("got %d %q", r.StatusCode, r.body)
			}
			if n := w.gateway.gate.Snapshot(w.cluster, time.Now()).Queues; n == nil || *n != c.queues {
				t.Errorf("the cluster is counted with %v queues, want %d", n, c.queues)
			}
		})
	}
}

func TestNamesAreListedPageByPage(t *testing.T) {
	t.Parallel()
	w := setup(t, options{
		facts: func(w *world) { w.cluster.Limits.MaxQueues = one(int64(3)) },
		broker: func(ctx *fasthttp.RequestCtx) {
			q := ctx.QueryArgs()
			switch {
			case !strings.HasPrefix(string(ctx.Path()), "/internal/"):
				ctx.SetStatusCode(201)
			case string(q.Peek("after_queue")) == "b&" && string(q.Peek("after_partition")) == "p":
				ctx.SetBodyString(`{"names":[{"queue":"c","partition":""}],"more":false}`)
			default:
				ctx.SetBodyString(`{"names":[{"queue":"a","partition":""},{"queue":"b&","partition":"p"}],"more":true}`)
			}
		},
	})
	for queue, status := range map[string]int{"a": 201, "c": 201, "d": 403} {
		if r := w.ask(w.push(strings.Replace(aPush, `"q"`, `"`+queue+`"`, 1))); r.StatusCode != status {
			t.Errorf("%s: got %d %q, want %d", queue, r.StatusCode, r.body, status)
		}
	}
}

func TestHealthKnowsARefusedKeyBeforeTheFirstRequest(t *testing.T) {
	t.Parallel()
	w := setup(t, options{address: rawBroker(t, func(c net.Conn, r *http.Request, _ string) bool {
		answerJSON(c, "200 OK", "{}")
		return true
	}), facts: func(w *world) {
		b := newScripted(t, nil)
		b.wary.Store(true)
		w.other.Cell = "c2"
		w.facts.Cells = append(w.facts.Cells, &plans.Cell{Slug: "c2", BaseURL: "http://" + b.address, Status: "active"})
	}})
	until(t, "the verdict", func() bool {
		_, err := w.gateway.Health()["brokers"](context.Background())
		return err != nil && strings.Contains(err.Error(), "cell c2") && !strings.Contains(err.Error(), "cell c1")
	})
}

func TestHealthCountsOneClusterAsOne(t *testing.T) {
	t.Parallel()
	for want, facts := range map[string]func(*world){
		", 1 cluster":  func(w *world) { w.facts.Clusters = w.facts.Clusters[:1] },
		", 2 clusters": nil,
	} {
		w := setup(t, options{facts: facts})
		if fact, err := w.gateway.Health()["snapshot"](t.Context()); err != nil || !strings.HasSuffix(fact, want) {
			t.Errorf("got %q, %v; want …%s", fact, err, want)
		}
	}
}

func TestHealthTellsWhatIsMissing(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	ask := func(part string) error {
		_, err := w.gateway.Health()[part](context.Background())
		return err
	}
	until(t, "the service", func() bool { return ask("gateway") == nil })
	for _, part := range []string{"snapshot", "brokers"} {
		if err := ask(part); err != nil {
			t.Errorf("%s: %v", part, err)
		}
	}
	w.broker.unready.Store(true)
	until(t, "unready brokers", func() bool { return !w.gateway.pools.all()[0].any(needReady) })
	if err := ask("brokers"); err != nil {
		t.Errorf("a database that is away makes the gateway unready: %v", err)
	}
	w.broker.unready.Store(false)
	until(t, "ready brokers", func() bool { return w.gateway.pools.all()[0].any(needReady) })
	w.broker.wary.Store(true)
	if r := w.ask(w.push(aPush)); r.StatusCode != 502 {
		t.Errorf("a broker that refuses the gateway's key: got %d %q", r.StatusCode, r.body)
	}
	if err := ask("brokers"); err == nil || !strings.Contains(err.Error(), "key") {
		t.Errorf("brokers refuse the gateway's key, but: %v", err)
	}
	w.broker.wary.Store(false)
	until(t, "trust", func() bool { return ask("brokers") == nil })
	w.broker.dead.Store(true)
	until(t, "dead brokers", func() bool { return ask("brokers") != nil })
	w.stop()
	if err := await(t, w.stopped); err != nil {
		t.Errorf("run: %v", err)
	}
	w.stopped <- nil
	if ask("gateway") == nil {
		t.Error("a gateway that has drained is healthy")
	}
}
