package proxy

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// patience bounds a wait for something that must happen; it is long only so that a loaded machine does not lie.
const patience = 20 * time.Second

const (
	tokenIssuer = "test"
	tokenSecret = "0123456789abcdef0123456789abcdef"
)

// book is a Book whose snapshot a test replaces.
type book struct {
	current atomic.Pointer[plans.Snapshot]
	hooks   []func(old, new *plans.Snapshot)
	catchUp atomic.Pointer[func(ctx context.Context) bool] // nil: it is the latest
}

func (b *book) Snapshot() *plans.Snapshot { return b.current.Load() }

func (b *book) OnChange(f func(old, new *plans.Snapshot)) { b.hooks = append(b.hooks, f) }

func (b *book) CatchUp(ctx context.Context, _ time.Time) bool {
	f := b.catchUp.Load()
	return f == nil || (*f)(ctx)
}

// world is a gateway in front of a scripted broker.
type world struct {
	t         testing.TB
	gateway   *Gateway
	broker    *scripted
	book      *book
	facts     plans.Facts
	cluster   *plans.Cluster // acme, of the key
	other     *plans.Cluster // zeta
	key       string         // all scopes of acme
	user      uuid.UUID      // admin of acme
	plain     string         // address
	secure    string         // address
	clientTLS *tls.Config
	metrics   *prometheus.Registry
	stop      context.CancelFunc
	stopped   chan error
}

type options struct {
	config  func(*Config)
	facts   func(w *world)
	broker  fasthttp.RequestHandler
	address string // of the broker, instead of a scripted one
	foreign *auth.ForeignConfig
	fleet   *quota.FleetOptions
	tracer  *tracing.Tracer
	log     io.Writer // instead of the test's
}

func setup(t testing.TB, o options) *world {
	t.Helper()
	w := &world{t: t, book: &book{}, metrics: prometheus.NewRegistry(), stopped: make(chan error, 1)}
	address := o.address
	if address == "" {
		w.broker = newScripted(t, o.broker)
		address = w.broker.address
	}
	w.cluster = &plans.Cluster{
		ID: uuid.New(), Slug: "acme", TenantID: uuid.New(), Tenant: "acme-inc", BrokerTenant: uuid.New(), Cell: "c1",
		Features: map[string]bool{string(wire.FeatureTraces): true},
	}
	w.other = &plans.Cluster{ID: uuid.New(), Slug: "zeta", TenantID: uuid.New(), Tenant: "zeta-inc", BrokerTenant: uuid.New(), Cell: "c1"}
	w.user = uuid.New()
	plaintext, publicID, hash := auth.NewKey("live")
	w.key = plaintext
	w.facts = plans.Facts{
		Clusters: []*plans.Cluster{w.cluster, w.other},
		Keys: []*plans.Key{{
			ID: uuid.New(), Hash: hash, PublicID: publicID, Cluster: w.cluster,
			Scopes: plans.ScopeProduce | plans.ScopeConsume | plans.ScopeAdmin | plans.ScopeRead,
		}},
		Grants: []plans.Grant{{User: w.user, Cluster: w.cluster.ID, Roles: []plans.Role{plans.RoleAdmin}}},
		Cells:  []*plans.Cell{{Slug: "c1", BaseURL: "http://" + address, Status: "active"}},
	}
	if o.facts != nil {
		o.facts(w)
	}
	w.publish()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		CellKey: private, ProbeInterval: 50 * time.Millisecond, UsageInterval: time.Hour, RefusalHold: -1, DrainTime: patience,
	}
	if o.config != nil {
		o.config(&cfg)
	}
	verifier, err := auth.New(auth.Config{Issuer: tokenIssuer, Keys: []auth.KeyConfig{{KID: "k", Alg: "HS256", Secret: tokenSecret}}, Foreign: o.foreign})
	if err != nil {
		t.Fatal(err)
	}
	if o.log == nil {
		o.log = testLog{t}
	}
	w.gateway, err = New(Options{
		Log: slog.New(slog.NewTextHandler(o.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Config: cfg, Book: w.book,
		Verifier: verifier, Metrics: w.metrics, Fleet: o.fleet, Tracer: o.tracer,
	})
	if err != nil {
		t.Fatal(err)
	}
	// No broker of a test is slow on purpose: the bounds would take out those of a busy machine.
	w.gateway.pools.limits = [probes]time.Duration{patience, patience}
	plain, secure := listen(t), listen(t)
	var server *tls.Config
	server, w.clientTLS = selfSigned(t)
	w.plain, w.secure = plain.Addr().String(), secure.Addr().String()
	w.gateway.Listen(plain)
	w.gateway.ListenTLS(secure, server)
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	go func() { w.stopped <- w.gateway.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := await(t, w.stopped); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return w
}

// publish makes the facts, as they are now, the snapshot.
func (w *world) publish() {
	next := plans.Compose(w.facts)
	old := w.book.current.Swap(next)
	for _, f := range w.book.hooks {
		f(old, next)
	}
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Helper()
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func await[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("waited in vain")
		panic("unreachable")
	}
}

// seen is a request as a broker got it.
type seen struct {
	method, target string
	head           string // raw header lines
	body           string
}

func (s seen) header(name string) string {
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET / HTTP/1.1\r\n" + s.head)))
	if err != nil {
		return "unreadable: " + err.Error()
	}
	return r.Header.Get(name)
}

// namesOfNobody is the path of a gateway's signed question.
var namesOfNobody = "/internal/v1/tenants/" + uuid.Nil.String() + "/names"

// scripted is a broker that answers probes, records everything else and answers it with a handler.
type scripted struct {
	address string
	seen    chan seen
	unready atomic.Bool
	dead    atomic.Bool  // says so
	silent  atomic.Bool  // to its probes
	wary    atomic.Bool  // believes no gateway's key
	conns   atomic.Int64 // open, also idle ones
	probed  [probes]atomic.Bool
	handler atomic.Pointer[fasthttp.RequestHandler]
}

func newScripted(t testing.TB, handler fasthttp.RequestHandler) *scripted {
	t.Helper()
	return scriptedOn(t, listen(t), handler)
}

func scriptedOn(t testing.TB, ln net.Listener, handler fasthttp.RequestHandler) *scripted {
	t.Helper()
	b := &scripted{seen: make(chan seen, 1024)}
	if handler == nil {
		handler = func(ctx *fasthttp.RequestCtx) {
			ctx.SetStatusCode(201)
			ctx.SetContentType("application/json")
			ctx.SetBodyString(`[{"index":0}]`)
		}
	}
	b.handler.Store(&handler)
	b.address = ln.Addr().String()
	s := &fasthttp.Server{
		MaxRequestBodySize: 1 << 30, NoDefaultServerHeader: true, CloseOnShutdown: true,
		ConnState: func(_ net.Conn, state fasthttp.ConnState) {
			switch state {
			case fasthttp.StateNew:
				b.conns.Add(1)
			case fasthttp.StateClosed:
				b.conns.Add(-1)
			}
		},
		Handler: func(ctx *fasthttp.RequestCtx) {
			switch string(ctx.Path()) {
			case "/livez", "/readyz":
				if b.silent.Load() {
					ctx.Conn().Close()
					return
				}
			}
			switch string(ctx.Path()) {
			case "/livez":
				b.probed[livez].Store(true)
				if b.dead.Load() {
					ctx.SetStatusCode(503)
				}
				return
			case "/readyz":
				b.probed[readyz].Store(true)
				if b.dead.Load() || b.unready.Load() {
					ctx.SetStatusCode(503)
				}
				return
			}
			if b.wary.Load() {
				ctx.SetStatusCode(401)
				return
			}
			if string(ctx.Path()) == namesOfNobody {
				ctx.SetBodyString(`{"names":[]}`)
				return
			}
			b.seen <- seen{string(ctx.Method()), string(ctx.RequestURI()), string(ctx.Request.Header.RawHeaders()), string(ctx.PostBody())}
			(*b.handler.Load())(ctx)
		},
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.ShutdownWithContext(ctx); err != nil {
			t.Errorf("shut the broker down: %v", err)
		}
		<-served
	})
	return b
}

func selfSigned(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		&tls.Config{RootCAs: pool, ServerName: "localhost"}
}

// token is a signed bearer token of the world's user.
func (w *world) token(cluster uuid.UUID) string {
	claims := jwt.MapClaims{"iss": tokenIssuer, "sub": w.user.String(), "jti": uuid.NewString(), "exp": time.Now().Add(time.Hour).Unix(), "role": "viewer"}
	if cluster != uuid.Nil {
		claims["cluster"] = cluster.String()
	}
	t := jwt.NewWithClaims(jwt.SigningMethodHS256, claims)
	t.Header["kid"] = "k"
	s, err := t.SignedString([]byte(tokenSecret))
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// wireConn is a client that writes and reads bytes.
type wireConn struct {
	net.Conn
	t  testing.TB
	br *bufio.Reader
}

func (w *world) dial() *wireConn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.plain)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.client(c)
}

func (w *world) dialTLS() *wireConn {
	w.t.Helper()
	c, err := tls.Dial("tcp", w.secure, w.clientTLS)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.client(c)
}

func (w *world) client(c net.Conn) *wireConn {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	return &wireConn{Conn: c, t: w.t, br: bufio.NewReader(c)}
}

func (c *wireConn) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// reply is an answer as a client read it.
type reply struct {
	*http.Response
	body string
}

func (c *wireConn) read() reply {
	c.t.Helper()
	r, err := http.ReadResponse(c.br, nil)
	if err != nil {
		c.t.Fatalf("read an answer: %v", err)
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Fatalf("read a body: %v", err)
	}
	return reply{r, string(b)}
}

// ended reports whether the server has closed the connection.
func (c *wireConn) ended() bool {
	_, err := c.br.ReadByte()
	return err == io.EOF
}

func (r reply) code() string {
	var e struct{ Code string }
	if json.Unmarshal([]byte(r.body), &e) != nil {
		return ""
	}
	return e.Code
}

func (r reply) outcome() string {
	var e struct{ Outcome string }
	if json.Unmarshal([]byte(r.body), &e) != nil {
		return ""
	}
	return e.Outcome
}

// head builds a request head for the acme cluster, with its key.
func (w *world) head(method, target string, extra ...string) string {
	lines := append([]string{method + " " + target + " HTTP/1.1", "Host: acme.example.com", "Authorization: Bearer " + w.key}, extra...)
	return strings.Join(lines, "\r\n") + "\r\n\r\n"
}

const aPush = `{"items":[{"queue":"q","payload":{"n":1}}]}`

func (w *world) push(body string, extra ...string) string {
	return w.head("POST", "/api/v1/push", append(extra, "Content-Length: "+strconv.Itoa(len(body)))...) + body
}

// ask sends one request on a connection of its own.
func (w *world) ask(request string) reply {
	w.t.Helper()
	c := w.dial()
	defer c.Close()
	c.send(request)
	return c.read()
}

// until waits for a condition that nothing announces.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for end := time.After(patience); !ok(); {
		select {
		case <-look.C:
		case <-end:
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// slots is how many parking slots are taken, as the ledger says.
func (w *world) slots() float64 {
	w.t.Helper()
	return w.family("queengate_quota_parked_polls").GetMetric()[0].GetGauge().GetValue()
}

// counted is the sum of a counter's series that have all of the labels, given as name, value, name, value.
func (w *world) counted(name string, labels ...string) (n float64) {
	w.t.Helper()
	for _, m := range w.family(name).GetMetric() {
		have := map[string]string{}
		for _, l := range m.GetLabel() {
			have[l.GetName()] = l.GetValue()
		}
		all := true
		for i := 0; i < len(labels); i += 2 {
			all = all && have[labels[i]] == labels[i+1]
		}
		if all {
			n += m.GetCounter().GetValue()
		}
	}
	return n
}

func (w *world) family(name string) *dto.MetricFamily {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f
		}
	}
	w.t.Fatalf("no series %s", name)
	return nil
}
