package e2e

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy"
	"github.com/queengate/queengate/proxy/auth"
)

// guarded is two gateways of one control database, in this process, in front of a broker that lets polls wait.
type guarded struct {
	t        *testing.T
	db       *pgxpool.Pool
	gateways [2]string // addresses
	books    [2]*plans.Book
	parked   chan struct{} // a mark for every poll that waits at the broker
	client   *http.Client
	signer   ed25519.PrivateKey // of the provider
	provider *httptest.Server
}

const (
	sessionIssuer = "https://login.queengate.example"
	sessionSecret = "0123456789abcdef0123456789abcdef"
)

func startGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{t: t, db: pgtest.New(t, migrations.Gateway), parked: make(chan struct{}, 64), client: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(g.client.CloseIdleConnections)
	g.startProvider()
	broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("wait") == "true":
			g.parked <- struct{}{}
			<-r.Context().Done() // the gateway gives it up
		case strings.HasPrefix(r.URL.Path, "/api/v1/pop"):
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	t.Cleanup(broker.Close)
	g.exec("SELECT queengate.create_cell('c1', $1)", broker.URL)
	_, cellKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for i := range g.gateways {
		g.startGateway(i, cellKey)
	}
	return g
}

// startProvider starts an identity provider with TLS.
func (g *guarded) startProvider() {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		g.t.Fatal(err)
	}
	g.signer = private
	g.provider = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/.well-known/openid-configuration" {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, g.provider.URL, g.provider.URL+"/keys")
			return
		}
		fmt.Fprintf(w, `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":%q}]}`, base64.RawURLEncoding.EncodeToString(public))
	}))
	g.t.Cleanup(g.provider.Close)
}

func (g *guarded) startGateway(i int, cellKey ed25519.PrivateKey) {
	t := g.t
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(g.provider.Certificate())
	verifier, err := auth.New(auth.Config{
		Issuer: sessionIssuer, Keys: []auth.KeyConfig{{KID: "s", Alg: "HS256", Secret: sessionSecret}},
		Foreign: &auth.ForeignConfig{Fetcher: bearer.NewFetcher(bearer.FetcherConfig{
			Roots: roots, Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	book := plans.NewBook(log, g.db, 0)
	gateway, err := proxy.New(proxy.Options{
		Log: log, Book: book, Verifier: verifier, Metrics: prometheus.NewRegistry(), Config: proxy.Config{CellKey: cellKey, RefusalHold: -1},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := book.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gateway.Listen(ln)
	g.gateways[i], g.books[i] = ln.Addr().String(), book
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- book.Run(ctx) }()
	go func() { ended <- gateway.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Errorf("run: %v", err)
			}
		}
	})
}

func (g *guarded) exec(sql string, args ...any) {
	g.t.Helper()
	if _, err := g.db.Exec(context.Background(), sql, args...); err != nil {
		g.t.Fatalf("%s: %v", sql, err)
	}
}

func (g *guarded) id(sql string, args ...any) (id uuid.UUID) {
	g.t.Helper()
	if err := g.db.QueryRow(context.Background(), sql, args...).Scan(&id); err != nil {
		g.t.Fatalf("%s: %v", sql, err)
	}
	return id
}

// bearerOf is who holds a credential on a cluster of a tenant of its own.
type bearerOf struct {
	name            string // of the tenant and the cluster
	tenant, cluster uuid.UUID
	email           string
	key             string
	keyID           uuid.UUID
	user            uuid.UUID
}

func (g *guarded) newBearer(name string) *bearerOf {
	g.t.Helper()
	b := &bearerOf{name: name, email: "ann@" + name + ".example"}
	b.tenant = g.id("SELECT queengate.create_tenant($1)", name)
	b.cluster = g.id("SELECT queengate.create_cluster($1, $2, 'pro', 'c1')", b.tenant, name)
	var publicID string
	var hash [32]byte
	b.key, publicID, hash = auth.NewKey("test")
	b.keyID = g.id("SELECT queengate.issue_api_key($1, 'k', $2, $3, '{consume}')", b.cluster, hash[:], publicID)
	b.user = g.id("SELECT queengate.create_user($1, $2)", b.tenant, b.email)
	g.exec("SELECT queengate.grant_cluster_role($1, $2, 'consumer')", b.cluster, b.email)
	g.exec("SELECT queengate.set_issuer($1, 'ci', $2, 'queengate', $3)", b.tenant, g.provider.URL, `[{"claim": "job", "value": "orders", "roles": ["consumer"]}]`)
	return b
}

// session is a token of ours, short or not: it was made of a session.
func (g *guarded) session(b *bearerOf, more jwt.MapClaims) string {
	claims := jwt.MapClaims{"iss": sessionIssuer, "sub": b.user.String(), "jti": "short-" + b.name, "sid": "session-" + b.name}
	return g.sign(jwt.SigningMethodHS256, "s", []byte(sessionSecret), claims, more)
}

// job is a token of the tenant's issuer.
func (g *guarded) job(b *bearerOf) string {
	claims := jwt.MapClaims{"iss": g.provider.URL, "aud": "queengate", "sub": "repo:" + b.name, "jti": "job-" + b.name, "job": "orders"}
	return g.sign(jwt.SigningMethodEdDSA, "k", g.signer, claims, nil)
}

func (g *guarded) sign(method jwt.SigningMethod, kid string, key any, claims, more jwt.MapClaims) string {
	g.t.Helper()
	claims["iat"], claims["exp"] = time.Now().Add(-time.Minute).Unix(), time.Now().Add(time.Hour).Unix()
	for name, value := range more {
		claims[name] = value
	}
	token := jwt.NewWithClaims(method, claims)
	token.Header["kid"] = kid
	text, err := token.SignedString(key)
	if err != nil {
		g.t.Fatal(err)
	}
	return text
}

// pop asks a gateway for messages of the bearer's cluster and returns the status, 0 when there was none.
func (g *guarded) pop(ctx context.Context, gateway int, b *bearerOf, credential string, wait bool) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/api/v1/pop/queue/q?wait=%t&timeout=60000", g.gateways[gateway], wait), nil)
	if err != nil {
		return 0
	}
	req.Host = b.name + ".example.com"
	req.Header.Set("Authorization", "Bearer "+credential)
	resp, err := g.client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// TestARevocationReachesEveryGateway parks polls on two gateways and revokes what lets them in: both end their poll and
// refuse the next request, also when nobody is told and the subscription is gone: then the poll of the change log finds it.
// It is W32 of spec/gateway.md 12, and half of W36: that changes are told at all is for TestNotificationsAreFollowed of
// package plans, where no poll helps out.
func TestARevocationReachesEveryGateway(t *testing.T) {
	t.Parallel()
	for mode, cut := range map[string]func(*guarded){
		"announced": func(*guarded) {},
		"unannounced": func(g *guarded) {
			g.exec("DROP TRIGGER inval_log_notify ON queengate.inval_log")
			g.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'queengate listen'")
		},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t)
			cut(g)
			for what, c := range map[string]struct {
				credential func(*bearerOf) string
				revoke     func(*bearerOf)
				status     int
			}{
				"key": {func(b *bearerOf) string { return b.key }, func(b *bearerOf) {
					g.exec("SELECT queengate.revoke_api_key($1, $2)", b.cluster, b.keyID)
				}, 401},
				"token": {func(b *bearerOf) string { return g.session(b, nil) }, func(b *bearerOf) {
					g.exec("SELECT queengate.revoke_session($1, now() + interval '1 hour')", "short-"+b.name)
				}, 401},
				"session": {func(b *bearerOf) string { return g.session(b, nil) }, func(b *bearerOf) {
					g.exec("SELECT queengate.revoke_session($1, now() + interval '1 hour')", "session-"+b.name)
				}, 401},
				"user": {func(b *bearerOf) string { return g.session(b, nil) }, func(b *bearerOf) {
					g.exec("SELECT queengate.revoke_user_tokens($1)", b.email)
				}, 401},
				"role": {func(b *bearerOf) string { return g.session(b, nil) }, func(b *bearerOf) {
					g.exec("SELECT queengate.revoke_cluster_role($1, $2)", b.cluster, b.email)
				}, 403},
				"stated-role": {func(b *bearerOf) string {
					return g.session(b, jwt.MapClaims{"cluster": b.cluster.String(), "roles": []string{"consumer"}})
				}, func(b *bearerOf) {
					g.exec("SELECT queengate.revoke_cluster_role($1, $2)", b.cluster, b.email)
				}, 403},
				"tenant-tokens": {func(b *bearerOf) string { return g.session(b, nil) }, func(b *bearerOf) {
					g.exec("SELECT queengate.revoke_tenant_tokens($1)", b.tenant)
				}, 401},
				"tenant": {func(b *bearerOf) string { return b.key }, func(b *bearerOf) {
					g.exec("SELECT queengate.set_tenant_status($1, 'suspended')", b.tenant)
				}, 403},
				"job": {g.job, func(b *bearerOf) {
					g.exec("SELECT queengate.revoke_issuer_token($1, 'ci', $2, now() + interval '1 hour')", b.tenant, "job-"+b.name)
				}, 401},
				"job-subject": {g.job, func(b *bearerOf) {
					g.exec("SELECT queengate.revoke_issuer_tokens($1, 'ci', $2)", b.tenant, "repo:"+b.name)
				}, 401},
				"job-rules": {g.job, func(b *bearerOf) {
					g.exec("SELECT queengate.set_issuer($1, 'ci', $2, 'queengate', '[]')", b.tenant, g.provider.URL)
				}, 403},
				"issuer": {g.job, func(b *bearerOf) {
					g.exec("SELECT queengate.set_issuer_active($1, 'ci', false)", b.tenant)
				}, 401},
			} {
				took := g.revoke(what, c.credential, c.revoke, c.status)
				t.Logf("%s: %v until both gateways refuse", what, took.Round(time.Millisecond))
			}
		})
	}
}

// revoke makes a bearer, has it wait on both gateways, revokes its credential and returns how long it took until all was
// refused with the status.
func (g *guarded) revoke(what string, credential func(*bearerOf) string, revoke func(*bearerOf), status int) time.Duration {
	t := g.t
	t.Helper()
	const patience = 30 * time.Second
	b := g.newBearer(what)
	text := credential(b)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	for i, book := range g.books {
		eventually(t, patience, "the bearer", func() bool { return book.Snapshot().ClusterByID(b.cluster) != nil })
		eventually(t, patience, what+": let in", func() bool { return g.pop(ctx, i, b, text, false) == http.StatusNoContent })
	}
	var polls sync.WaitGroup
	ended := [len(g.gateways)]int{}
	for i := range g.gateways {
		polls.Go(func() { ended[i] = g.pop(ctx, i, b, text, true) })
	}
	for range g.gateways {
		select {
		case <-g.parked:
		case <-ctx.Done():
			t.Fatalf("%s: the polls do not wait", what)
		}
	}
	begin := time.Now()
	revoke(b)
	for i := range g.gateways {
		eventually(t, patience, what+": refused", func() bool { return g.pop(ctx, i, b, text, false) == status })
	}
	polls.Wait()
	took := time.Since(begin)
	for i, got := range ended {
		if got != status {
			t.Errorf("%s: the poll on gateway %d ends with %d, want %d", what, i, got, status)
		}
	}
	return took
}
