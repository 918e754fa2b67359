package proxy

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy/auth"
)

// provider is an identity provider with TLS and one key at a time.
type provider struct {
	*httptest.Server
	t       testing.TB
	private ed25519.PrivateKey
	set     atomic.Pointer[string]
}

func newProvider(t testing.TB) *provider {
	t.Helper()
	p := &provider{t: t}
	p.turn("k")
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/.well-known/openid-configuration" {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, p.URL, p.URL+"/keys")
			return
		}
		fmt.Fprint(w, *p.set.Load())
	}))
	t.Cleanup(p.Close)
	return p
}

// turn replaces the key.
func (p *provider) turn(kid string) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	p.private = private
	set := fmt.Sprintf(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":%q,"x":%q}]}`, kid, base64.RawURLEncoding.EncodeToString(public))
	p.set.Store(&set)
}

func (p *provider) foreign() *auth.ForeignConfig {
	roots := x509.NewCertPool()
	roots.AddCert(p.Certificate())
	return &auth.ForeignConfig{Fetcher: bearer.NewFetcher(bearer.FetcherConfig{Roots: roots, Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})}
}

// issuer is the provider as acme believes it: jobs of orders may do all but manage.
func (p *provider) issuer(w *world) *plans.Issuer {
	return &plans.Issuer{
		ID: uuid.New(), Tenant: w.cluster.TenantID, Name: "ci", URL: p.URL, Audience: "queengate", Algorithms: []string{"EdDSA"},
		Rules: []plans.ClaimRule{{Claim: []string{"job"}, Value: "orders", Roles: []plans.Role{plans.RoleProducer, plans.RoleConsumer}}},
	}
}

func (p *provider) token(job string) string {
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{
		"iss": p.URL, "aud": "queengate", "sub": "job/7", "job": job, "jti": uuid.NewString(),
		"iat": time.Now().Add(-time.Second).Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	})
	t.Header["kid"] = "k"
	text, err := t.SignedString(p.private)
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

func setupIssuer(t testing.TB, o options) (*world, *provider) {
	t.Helper()
	p := newProvider(t)
	o.foreign = p.foreign()
	o.facts = func(w *world) { w.facts.Issuers = []*plans.Issuer{p.issuer(w)} }
	return setup(t, o), p
}

// TestAnIssuersTokenCountsAtItsTenantsPlaces, and everywhere else the answer is the one that rubbish gets: it tells neither
// whether the cluster exists nor whose issuers it believes.
func TestAnIssuersTokenCountsAtItsTenantsPlaces(t *testing.T) {
	t.Parallel()
	w, p := setupIssuer(t, options{})
	push := func(host, credential string, extra ...string) reply {
		lines := append([]string{
			"POST /api/v1/push HTTP/1.1", "Host: " + host, "Authorization: Bearer " + credential, "Content-Length: " + strconv.Itoa(len(aPush)),
		}, extra...)
		return w.ask(strings.Join(lines, "\r\n") + "\r\n\r\n" + aPush)
	}
	act := func(ref string) []string { return []string{"X-Queen-Act-Cluster: " + ref} }
	good := p.token("orders")
	for rule, c := range map[string]struct {
		host   string
		token  string
		extra  []string
		status int
	}{
		"on the tenant's host":                   {"acme.example.com", good, nil, 201},
		"acting there on its cluster":            {"acme.example.com", good, act("acme"), 201},
		"acting there on another":                {"acme.example.com", good, act("zeta"), 403},
		"acting on the cluster on a shared host": {"localhost", good, act("acme"), 201},
		"by its id":                              {"localhost", good, act(w.cluster.ID.String()), 201},
		"a job without a rule":                   {"acme.example.com", p.token("payments"), nil, 403},
		"on another tenant's host":               {"zeta.example.com", good, nil, 401},
		"on nobody's host":                       {"nobody.example.com", good, nil, 401},
		"on a shared host without a cluster":     {"localhost", good, nil, 401},
		"acting on another tenant's there":       {"localhost", good, act("zeta"), 401},
		"acting on nobody's there":               {"localhost", good, act("nobody"), 401},
		"another token on the tenant's host":     {"acme.example.com", good[:len(good)-8], nil, 401},
	} {
		t.Run(rule, func(t *testing.T) {
			r := push(c.host, c.token, c.extra...)
			if r.StatusCode != c.status {
				t.Fatalf("got %d %q, want %d", r.StatusCode, r.body, c.status)
			}
			switch c.status {
			case 401:
				rubbish := push("acme.example.com", "rubbish")
				anonymous := func(r reply) string { return strings.ReplaceAll(r.body, r.Header.Get("X-Queen-Request-Id"), "") }
				if anonymous(r) != anonymous(rubbish) {
					t.Errorf("%s, and rubbish gets %s", r.body, rubbish.body)
				}
			case 201:
				s := await(t, w.broker.seen)
				payload, err := base64.RawURLEncoding.DecodeString(strings.Split(s.header("Authorization"), ".")[1])
				var claims struct{ Sub string }
				if err != nil || json.Unmarshal(payload, &claims) != nil || claims.Sub != "ci:job/7" {
					t.Errorf("the broker is told the producer %s, %v", payload, err)
				}
			}
		})
	}
	if n := len(w.broker.seen); n != 0 {
		t.Errorf("%d refused requests reached the broker", n)
	}
}

// TestAChangeEndsThePollsOfAnIssuersTokens parks a poll under such a token and takes away what it rests on.
func TestAChangeEndsThePollsOfAnIssuersTokens(t *testing.T) {
	t.Parallel()
	change := func(f func(*plans.Issuer)) func(*world, *provider) {
		return func(w *world, _ *provider) {
			i := *w.facts.Issuers[0]
			f(&i)
			w.facts.Issuers = []*plans.Issuer{&i}
			w.publish()
		}
	}
	cut := func(of func(*plans.Issuer) plans.Cutoff) func(*world, *provider) {
		return func(w *world, _ *provider) {
			c := of(w.facts.Issuers[0])
			c.Before = time.Now()
			w.facts.Cutoffs = []plans.Cutoff{c}
			w.publish()
		}
	}
	for rule, c := range map[string]struct {
		change func(*world, *provider)
		status int
	}{
		"the issuer is gone":    {func(w *world, _ *provider) { w.facts.Issuers = nil; w.publish() }, 401},
		"its rules are others":  {change(func(i *plans.Issuer) { i.Rules = nil }), 403},
		"the subject's tokens":  {cut(func(i *plans.Issuer) plans.Cutoff { return plans.Cutoff{Of: i.ID, Subject: "job/7"} }), 401},
		"the issuer's tokens":   {cut(func(i *plans.Issuer) plans.Cutoff { return plans.Cutoff{Of: i.ID} }), 401},
		"the tenant's tokens":   {cut(func(i *plans.Issuer) plans.Cutoff { return plans.Cutoff{Of: i.Tenant} }), 401},
		"the key was withdrawn": {func(_ *world, p *provider) { p.turn("new") }, 401},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			address, parked, ended := parking(t)
			p := newProvider(t)
			foreign := p.foreign()
			foreign.Refresh = time.Millisecond // due whenever one looks
			w := setup(t, options{address: address, foreign: foreign, facts: func(w *world) { w.facts.Issuers = []*plans.Issuer{p.issuer(w)} }})
			conn := w.dial()
			conn.send(strings.Replace(w.head("GET", waiting), w.key, p.token("orders"), 1))
			await(t, parked)
			c.change(w, p)
			if r := conn.read(); r.StatusCode != c.status {
				t.Errorf("got %d %q, want %d", r.StatusCode, r.body, c.status)
			}
			await(t, ended)
			until(t, "the slot", func() bool { return w.slots() == 0 })
		})
	}
	t.Run("but other changes leave it", func(t *testing.T) {
		t.Parallel()
		address, parked, release := releasing(t)
		p := newProvider(t)
		w := setup(t, options{
			address: address, foreign: p.foreign(), facts: func(w *world) { w.facts.Issuers = []*plans.Issuer{p.issuer(w)} },
		})
		conn := w.dial()
		conn.send(strings.Replace(w.head("GET", waiting), w.key, p.token("orders"), 1))
		await(t, parked)
		w.facts.Cutoffs = []plans.Cutoff{{Of: w.facts.Issuers[0].ID, Subject: "job/8", Before: time.Now()}}
		w.publish()
		change(func(i *plans.Issuer) { i.Rules = append(i.Rules, plans.ClaimRule{Claim: []string{"x"}, Value: "y"}) })(w, p)
		release <- struct{}{}
		if r := conn.read(); r.StatusCode != 200 {
			t.Errorf("got %d %q", r.StatusCode, r.body)
		}
	})
}

// TestARevocationEndsThePollsOfOurTokens: the cut-off of a user, of roles that a token states, and of its session.
func TestARevocationEndsThePollsOfOurTokens(t *testing.T) {
	t.Parallel()
	for rule, c := range map[string]struct {
		claims jwt.MapClaims
		change func(*world)
		status int
	}{
		"the user's tokens": {nil, func(w *world) { w.facts.Cutoffs = []plans.Cutoff{{Of: w.user, Before: time.Now()}} }, 401},
		"the session":       {jwt.MapClaims{"sid": "s"}, func(w *world) { w.facts.Revoked = []string{"s"} }, 401},
		"stated roles": {jwt.MapClaims{"roles": []string{"consumer"}}, func(w *world) {
			w.facts.Grants = nil
			w.facts.Cutoffs = []plans.Cutoff{{Of: w.cluster.ID, User: w.user, Before: time.Now()}}
		}, 403},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			address, parked, ended := parking(t)
			w := setup(t, options{address: address})
			claims := jwt.MapClaims{
				"iss": tokenIssuer, "sub": w.user.String(), "jti": "t", "cluster": w.cluster.ID.String(),
				"iat": time.Now().Add(-time.Second).Unix(), "exp": time.Now().Add(time.Hour).Unix(),
			}
			for name, value := range c.claims {
				claims[name] = value
			}
			token := jwt.NewWithClaims(jwt.SigningMethodHS256, claims)
			token.Header["kid"] = "k"
			text, err := token.SignedString([]byte(tokenSecret))
			if err != nil {
				t.Fatal(err)
			}
			conn := w.dial()
			conn.send(strings.Replace(w.head("GET", waiting), w.key, text, 1))
			await(t, parked)
			c.change(w)
			w.publish()
			if r := conn.read(); r.StatusCode != c.status {
				t.Errorf("got %d %q, want %d", r.StatusCode, r.body, c.status)
			}
			await(t, ended)
		})
	}
}
