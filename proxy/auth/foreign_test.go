package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// signers are made once; es stands for the issuer's own key, and so does keys().rsa.
var signers = sync.OnceValue(func() (s struct {
	es, otherES *ecdsa.PrivateKey
	otherRSA    *rsa.PrivateKey
},
) {
	var err error
	if s.es, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		panic(err)
	}
	if s.otherES, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		panic(err)
	}
	if s.otherRSA, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		panic(err)
	}
	return s
})

func jwkOf(kid string, pub any) map[string]any {
	enc := base64.RawURLEncoding.EncodeToString
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		return map[string]any{"kty": "RSA", "kid": kid, "n": enc(pub.N.Bytes()), "e": enc(big.NewInt(int64(pub.E)).Bytes())}
	case *ecdsa.PublicKey:
		point, err := pub.Bytes()
		if err != nil {
			panic(err)
		}
		return map[string]any{"kty": "EC", "crv": "P-256", "kid": kid, "x": enc(point[1:33]), "y": enc(point[33:])}
	case ed25519.PublicKey:
		return map[string]any{"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": enc(pub)}
	}
	panic(fmt.Sprintf("no key: %T", pub))
}

// provider is an identity provider with TLS whose key set a test changes.
type provider struct {
	*httptest.Server
	asked atomic.Int64 // for keys

	mu     sync.Mutex // guards what follows
	keys   []map[string]any
	broken bool
}

func newProvider(t testing.TB, keys ...map[string]any) *provider {
	t.Helper()
	p := &provider{keys: keys}
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case p.broken:
			w.WriteHeader(http.StatusInternalServerError)
		case r.URL.Path == "/.well-known/openid-configuration":
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, p.URL, p.URL+"/keys")
		case r.URL.Path == "/keys":
			p.asked.Add(1)
			_ = json.NewEncoder(w).Encode(map[string]any{"keys": p.keys})
		}
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) serve(broken bool, keys ...map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken, p.keys = broken, keys
}

func (p *provider) foreign() *ForeignConfig {
	roots := x509.NewCertPool()
	roots.AddCert(p.Certificate())
	return &ForeignConfig{Fetcher: bearer.NewFetcher(bearer.FetcherConfig{Roots: roots, Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})}
}

// foreignWorld is two tenants of which the first believes a provider.
type foreignWorld struct {
	*world
	provider *provider
	verifier *Verifier
	issuer   *plans.Issuer
	rival    uuid.UUID // a tenant that believes nobody
}

func setupForeign(t testing.TB) *foreignWorld {
	t.Helper()
	w := &foreignWorld{world: setup(), rival: uuid.New()}
	w.provider = newProvider(t, jwkOf("rs", &keys().rsa.PublicKey), jwkOf("es", &signers().es.PublicKey), jwkOf("ed", keys().ed.Public()))
	cfg := config()
	cfg.Foreign = w.provider.foreign()
	w.verifier = mustNew(t, cfg)
	w.cluster.TenantID, w.other.TenantID = uuid.New(), w.rival
	w.issuer = &plans.Issuer{
		ID: uuid.New(), Tenant: w.cluster.TenantID, Name: "ci", URL: w.provider.URL, Audience: "queengate",
		Algorithms: []string{"RS256", "ES256", "EdDSA"},
		Rules:      []plans.ClaimRule{{Claim: []string{"repository"}, Value: "acme/orders", Roles: []plans.Role{plans.RoleProducer}}},
	}
	w.facts.Issuers = []*plans.Issuer{w.issuer}
	return w
}

// claims are good ones, changed by pairs of a name and a value; nil removes.
func (w *foreignWorld) claims(pairs ...any) jwt.MapClaims {
	c := jwt.MapClaims{
		"iss": w.provider.URL, "aud": []string{"else", "queengate"}, "sub": "repo:acme/orders", "jti": "job-1",
		"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(), "repository": "acme/orders",
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == nil {
			delete(c, pairs[i].(string))
		} else {
			c[pairs[i].(string)] = pairs[i+1]
		}
	}
	return c
}

func (w *foreignWorld) es(t testing.TB, pairs ...any) string {
	t.Helper()
	return sign(t, jwt.SigningMethodES256, "es", signers().es, w.claims(pairs...))
}

// ask verifies a token on a cluster of the tenant that believes the provider.
func (w *foreignWorld) ask(token string, at time.Time) (Principal, error) {
	return w.verifier.Verify(w.snapshot(), Request{Authorization: []byte("Bearer " + token), Tenant: w.cluster.TenantID, Now: at})
}

func TestTokensOfATenantsIssuer(t *testing.T) {
	t.Parallel()
	rs, es, ed := jwt.SigningMethodRS256, jwt.SigningMethodES256, jwt.SigningMethodEdDSA
	w := setupForeign(t)
	none := func(header string) string {
		body, err := json.Marshal(w.claims())
		if err != nil {
			t.Fatal(err)
		}
		enc := base64.RawURLEncoding.EncodeToString
		return enc([]byte(header)) + "." + enc(body) + "."
	}
	good := w.es(t)
	for rule, c := range map[string]struct {
		token string
		ok    bool
	}{
		"RS256":                                    {sign(t, rs, "rs", keys().rsa, w.claims()), true},
		"ES256":                                    {good, true},
		"EdDSA":                                    {sign(t, ed, "ed", keys().ed, w.claims()), true},
		"without a key id":                         {sign(t, es, "", signers().es, w.claims()), true},
		"without a jti":                            {w.es(t, "jti", nil), true},
		"an audience alone":                        {w.es(t, "aud", "queengate"), true},
		"the leeway before its begin":              {w.es(t, "nbf", now.Add(30*time.Second).Unix()), true},
		"the leeway after its end":                 {w.es(t, "exp", now.Add(-29*time.Second).Unix()), true},
		"roles of its own that are no list":        {w.es(t, "roles", map[string]any{"admin": true}), true},
		"a cluster of its own":                     {w.es(t, "cluster", w.other.ID.String()), true},
		"after its end":                            {w.es(t, "exp", now.Add(-31*time.Second).Unix()), false},
		"before its begin":                         {w.es(t, "nbf", now.Add(31*time.Second).Unix()), false},
		"issued in the future":                     {w.es(t, "iat", now.Add(31*time.Second).Unix()), false},
		"without an end":                           {w.es(t, "exp", nil), false},
		"an end that is a text":                    {w.es(t, "exp", "never"), false},
		"another audience":                         {w.es(t, "aud", "another"), false},
		"without an audience":                      {w.es(t, "aud", nil), false},
		"another issuer":                           {w.es(t, "iss", w.provider.URL+"/"), false},
		"our own issuer":                           {w.es(t, "iss", "https://login.example"), false},
		"without an issuer":                        {w.es(t, "iss", nil), false},
		"an issuer that is a list":                 {w.es(t, "iss", []string{w.provider.URL}), false},
		"without a subject":                        {w.es(t, "sub", nil), false},
		"a subject with control characters":        {w.es(t, "sub", "a\nb"), false},
		"a subject that is too long":               {w.es(t, "sub", strings.Repeat("x", wire.MaxNameBytes-2)), false},
		"the longest subject":                      {w.es(t, "sub", strings.Repeat("x", wire.MaxNameBytes-3)), true},
		"another's signature":                      {sign(t, es, "es", signers().otherES, w.claims()), false},
		"another RSA key under the id":             {sign(t, rs, "rs", signers().otherRSA, w.claims()), false},
		"RS256 with the id of ES256":               {sign(t, rs, "es", keys().rsa, w.claims()), false},
		"RS512, which is not allowed":              {sign(t, jwt.SigningMethodRS512, "rs", keys().rsa, w.claims()), false},
		"PS256, which is not allowed":              {sign(t, jwt.SigningMethodPS256, "rs", keys().rsa, w.claims()), false},
		"HS256 with the RSA public key":            {sign(t, jwt.SigningMethodHS256, "rs", []byte(keys().rsaPEM), w.claims()), false},
		"HS256 with our own secret":                {sign(t, jwt.SigningMethodHS256, "hs", []byte(secret), w.claims()), false},
		"none":                                     {none(`{"alg":"none"}`), false},
		"None":                                     {none(`{"alg":"None"}`), false},
		"nOnE":                                     {none(`{"alg":"nOnE","kid":"es"}`), false},
		"no algorithm":                             {none(`{"kid":"es"}`), false},
		"a critical extension":                     {sign(t, es, "es", signers().es, w.claims(), "crit", []string{"exp"}), false},
		"a key in the token":                       {sign(t, es, "new", signers().otherES, w.claims(), "jwk", jwkOf("new", &signers().otherES.PublicKey)), false},
		"an address of keys in the token":          {sign(t, es, "new", signers().otherES, w.claims(), "jku", "https://keys.example"), false},
		"a certificate's address in the token":     {sign(t, es, "new", signers().otherES, w.claims(), "x5u", "https://keys.example"), false},
		"a key id that is a path":                  {sign(t, es, "../../etc/passwd", signers().es, w.claims()), false},
		"a key id that is SQL":                     {sign(t, es, "' OR 1=1 --", signers().es, w.claims()), false},
		"an empty key id":                          {sign(t, es, "", signers().es, w.claims(), "kid", ""), false},
		"a key id that is a number":                {sign(t, es, "", signers().es, w.claims(), "kid", 1), false},
		"an older token signed for another tenant": {sign(t, ed, "ed", keys().ed, w.claims("iss", "https://other.example")), false},
		"a megabyte of dots":                       {strings.Repeat(".", 1<<20), false},
		"a token that is too long":                 {w.es(t, "x", strings.Repeat("x", bearer.MaxTokenBytes)), false},
		"a cut signature":                          {good[:len(good)-4], false},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			for _, use := range []string{"first", "second"} {
				p, err := w.ask(c.token, now)
				if c.ok && (err != nil || p.Foreign == nil || p.Foreign.Issuer != w.issuer || p.User != uuid.Nil || p.Key != nil || p.Roles != nil || p.Cluster != uuid.Nil) {
					t.Errorf("%s use: %+v, %v", use, p, err)
				}
				if !c.ok && codeOf(err) != wire.Unauthorized {
					t.Errorf("%s use: %v, want unauthorized", use, err)
				}
				if !c.ok && err != nil && wire.AsError(err).Text() != errUnauthorized.Text() {
					t.Errorf("%s use: the caller is told %q", use, wire.AsError(err).Text())
				}
			}
			if c.ok {
				return
			}
			if got := w.verifier.sessions.Get([]byte(c.token)); got != nil {
				t.Error("a refused token is remembered")
			}
		})
	}
	t.Cleanup(func() {
		// All at one instant, so that the unknown key ids share one fetch, or the first one was theirs.
		if n := w.provider.asked.Load(); n != 1 {
			t.Errorf("the issuer was asked %d times", n)
		}
	})
}

// TestIssuersCountForTheirTenantAlone: a good token is nobody's at any other place, remembered or not.
func TestIssuersCountForTheirTenantAlone(t *testing.T) {
	t.Parallel()
	w := setupForeign(t)
	token := w.es(t)
	elsewhere := func(tenant uuid.UUID) error {
		_, err := w.verifier.Verify(w.snapshot(), Request{Authorization: []byte(token), Tenant: tenant, Now: now})
		return err
	}
	for _, when := range []string{"before it was used", "after it was used"} {
		for place, tenant := range map[string]uuid.UUID{"another tenant's": w.rival, "nobody's": uuid.Nil} {
			err := elsewhere(tenant)
			if codeOf(err) != wire.Unauthorized || wire.AsError(err).Text() != errUnauthorized.Text() {
				t.Errorf("at %s place %s: %v", place, when, err)
			}
		}
		if when == "before it was used" && w.provider.asked.Load() != 0 {
			t.Error("keys were fetched for a token of nobody's issuer")
		}
		if p, err := w.ask(token, now); err != nil || Allow(w.snapshot(), &p, w.cluster, wire.ClassProduce) != nil ||
			codeOf(Allow(w.snapshot(), &p, w.other, wire.ClassProduce)) != wire.Forbidden {
			t.Errorf("at its place: %+v, %v", p, err)
		}
	}
	// The same provider, believed by the other tenant too, is another issuer: its rules are that tenant's.
	theirs := *w.issuer
	theirs.ID, theirs.Tenant, theirs.Name, theirs.Rules = uuid.New(), w.rival, "github", nil
	w.facts.Issuers = append(w.facts.Issuers, &theirs)
	p, err := w.verifier.Verify(w.snapshot(), Request{Authorization: []byte(token), Tenant: w.rival, Now: now})
	if err != nil || p.Foreign.Issuer != &theirs || p.Subject() != "github:repo:acme/orders" || codeOf(Allow(w.snapshot(), &p, w.other, wire.ClassProduce)) != wire.Forbidden {
		t.Errorf("believed by both: %+v, %v", p, err)
	}
}

func TestRulesGiveRolesAndScopes(t *testing.T) {
	t.Parallel()
	one := func(claim, value string, r plans.ClaimRule) plans.ClaimRule {
		r.Claim, r.Value = strings.Split(claim, "|"), value
		return r
	}
	producer := plans.ClaimRule{Roles: []plans.Role{plans.RoleProducer}}
	consumer := plans.ClaimRule{Roles: []plans.Role{plans.RoleConsumer}}
	viewer := plans.ClaimRule{Roles: []plans.Role{plans.RoleViewer}}
	classes := map[string]wire.Class{"p": wire.ClassProduce, "c": wire.ClassConsume, "r": wire.ClassRead, "a": wire.ClassQueueAdmin}
	w := setupForeign(t)
	for rule, c := range map[string]struct {
		rules  []plans.ClaimRule
		claims []any
		want   string // classes that are allowed on acme-main
	}{
		"no rule at all":                       {nil, nil, ""},
		"a rule that the token does not meet":  {[]plans.ClaimRule{one("repository", "acme/other", producer)}, nil, ""},
		"a text":                               {[]plans.ClaimRule{one("repository", "acme/orders", producer)}, nil, "pr"},
		"a text in another case":               {[]plans.ClaimRule{one("repository", "ACME/orders", producer)}, nil, ""},
		"a claim in another case":              {[]plans.ClaimRule{one("Repository", "acme/orders", producer)}, nil, ""},
		"a beginning":                          {[]plans.ClaimRule{one("repository", "acme", producer)}, nil, ""},
		"a star is a character":                {[]plans.ClaimRule{one("repository", "*", producer)}, nil, ""},
		"a member of a list":                   {[]plans.ClaimRule{one("groups", "ops", consumer)}, []any{"groups", []string{"dev", "ops"}}, "cr"},
		"a number that reads alike":            {[]plans.ClaimRule{one("level", "7", producer)}, []any{"level", 7}, ""},
		"a truth":                              {[]plans.ClaimRule{one("admin", "true", producer)}, []any{"admin", true}, ""},
		"a list within an object":              {[]plans.ClaimRule{one("realm_access|roles", "ops", viewer)}, []any{"realm_access", map[string]any{"roles": []string{"ops"}}}, "r"},
		"a claim with dots":                    {[]plans.ClaimRule{one("https://acme.example/roles", "ops", viewer)}, []any{"https://acme.example/roles", "ops"}, "r"},
		"everybody of the issuer":              {[]plans.ClaimRule{one("iss", w.provider.URL, viewer)}, nil, "r"},
		"several are taken together":           {[]plans.ClaimRule{one("repository", "acme/orders", producer), one("sub", "repo:acme/orders", consumer)}, nil, "pcr"},
		"scopes":                               {[]plans.ClaimRule{one("repository", "acme/orders", plans.ClaimRule{Scopes: plans.ScopeProduce})}, nil, "p"},
		"the scope admin implies reading only": {[]plans.ClaimRule{one("repository", "acme/orders", plans.ClaimRule{Scopes: plans.ScopeAdmin})}, nil, "ra"},
		"scopes and roles":                     {[]plans.ClaimRule{one("repository", "acme/orders", plans.ClaimRule{Scopes: plans.ScopeConsume, Roles: []plans.Role{plans.RoleViewer}})}, nil, "cr"},
		"the role admin is all":                {[]plans.ClaimRule{one("repository", "acme/orders", plans.ClaimRule{Roles: []plans.Role{plans.RoleAdmin}})}, nil, "pcra"},
		"this cluster":                         {[]plans.ClaimRule{one("repository", "acme/orders", plans.ClaimRule{Roles: []plans.Role{plans.RoleProducer}, Clusters: []string{"x", "acme-main"}})}, nil, "pr"},
		"other clusters":                       {[]plans.ClaimRule{one("repository", "acme/orders", plans.ClaimRule{Roles: []plans.Role{plans.RoleProducer}, Clusters: []string{"x"}})}, nil, ""},
		"a role that the token states":         {nil, []any{"roles", []string{"admin"}, "role", "admin"}, ""},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			issuer := *w.issuer
			issuer.ID, issuer.Rules = uuid.New(), c.rules
			snap := plans.Compose(plans.Facts{Issuers: []*plans.Issuer{&issuer}, Clusters: w.facts.Clusters})
			token := w.es(t, append(c.claims, "jti", rule)...)
			p, err := w.verifier.Verify(snap, Request{Authorization: []byte(token), Tenant: issuer.Tenant, Now: now})
			if err != nil {
				t.Fatal(err)
			}
			for letter, class := range classes {
				err := Allow(snap, &p, w.cluster, class)
				if (err == nil) != strings.Contains(c.want, letter) || err != nil && codeOf(err) != wire.Forbidden {
					t.Errorf("class %s: %v, want %q", letter, err, c.want)
				}
			}
		})
	}
}

// TestWhatAnIssuersTokenRestsOnIsAskedEveryTime: a remembered verdict ends with the issuer, its rules, its keys, and with
// every kind of revocation.
func TestWhatAnIssuersTokenRestsOnIsAskedEveryTime(t *testing.T) {
	t.Parallel()
	changed := func(f func(*plans.Issuer)) func(*foreignWorld) {
		return func(w *foreignWorld) {
			i := *w.issuer
			f(&i)
			w.facts.Issuers = []*plans.Issuer{&i}
		}
	}
	cut := func(cut func(*foreignWorld) plans.Cutoff) func(*foreignWorld) {
		return func(w *foreignWorld) {
			c := cut(w)
			c.Before = cmpTime(c.Before, now.Add(time.Nanosecond))
			w.facts.Cutoffs = append(w.facts.Cutoffs, c)
		}
	}
	for rule, c := range map[string]struct {
		change func(*foreignWorld)
		want   wire.Code
	}{
		"nothing":                     {func(*foreignWorld) {}, ""},
		"the issuer is gone":          {func(w *foreignWorld) { w.facts.Issuers = nil }, wire.Unauthorized},
		"another audience":            {changed(func(i *plans.Issuer) { i.Audience = "another" }), wire.Unauthorized},
		"another algorithm":           {changed(func(i *plans.Issuer) { i.Algorithms = []string{"RS256"} }), wire.Unauthorized},
		"other rules":                 {changed(func(i *plans.Issuer) { i.Rules = nil }), wire.Forbidden},
		"the same, written again":     {changed(func(*plans.Issuer) {}), ""},
		"the token":                   {func(w *foreignWorld) { w.facts.Revoked = []string{issuedID(w.issuer, "job-1")} }, wire.Unauthorized},
		"a token of ours of that id":  {func(w *foreignWorld) { w.facts.Revoked = []string{"job-1"} }, ""},
		"another issuer's of that id": {func(w *foreignWorld) { w.facts.Revoked = []string{issuedID(&plans.Issuer{ID: uuid.New()}, "job-1")} }, ""},
		"the subject":                 {cut(func(w *foreignWorld) plans.Cutoff { return plans.Cutoff{Of: w.issuer.ID, Subject: "repo:acme/orders"} }), wire.Unauthorized},
		"another subject":             {cut(func(w *foreignWorld) plans.Cutoff { return plans.Cutoff{Of: w.issuer.ID, Subject: "repo:acme/other"} }), ""},
		"all of the issuer":           {cut(func(w *foreignWorld) plans.Cutoff { return plans.Cutoff{Of: w.issuer.ID} }), wire.Unauthorized},
		"all of the tenant":           {cut(func(w *foreignWorld) plans.Cutoff { return plans.Cutoff{Of: w.cluster.TenantID} }), wire.Unauthorized},
		"all of another tenant":       {cut(func(w *foreignWorld) plans.Cutoff { return plans.Cutoff{Of: w.rival} }), ""},
		"the subject, up to its instant": {cut(func(w *foreignWorld) plans.Cutoff {
			return plans.Cutoff{Of: w.issuer.ID, Subject: "repo:acme/orders", Before: now}
		}), ""},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			w := setupForeign(t)
			token := w.es(t)
			first, err := w.ask(token, now)
			if err != nil {
				t.Fatal(err)
			}
			c.change(w)
			snap := w.snapshot()
			p, err := w.ask(token, now)
			if err == nil {
				err = Allow(snap, &p, w.cluster, wire.ClassProduce)
			}
			if got := codeOf(err); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if w.verifier.Stands(snap, &first, w.cluster.TenantID, now) && c.want != "" {
				t.Error("what was believed before still stands")
			}
		})
	}
	t.Run("a token that does not say when it was issued", func(t *testing.T) {
		t.Parallel()
		w := setupForeign(t)
		w.facts.Cutoffs = []plans.Cutoff{{Of: w.issuer.ID, Before: now.Add(-24 * time.Hour)}}
		if _, err := w.ask(w.es(t, "iat", nil), now); codeOf(err) != wire.Unauthorized {
			t.Errorf("%v: it may be older than the cut-off", err)
		}
	})
}

func cmpTime(t, otherwise time.Time) time.Time {
	if t.IsZero() {
		return otherwise
	}
	return t
}

// TestKeysOfAnIssuerTurn: a new key is found with the next fetch that the pause allows, a withdrawn one ends its tokens, an
// outage changes nothing until the keys are too old.
func TestKeysOfAnIssuerTurn(t *testing.T) {
	t.Parallel()
	w := setupForeign(t)
	var changes atomic.Int64
	w.verifier.OnKeysChanged(func() { changes.Add(1) })
	es, old, fresh := jwt.SigningMethodES256, jwkOf("es", &signers().es.PublicKey), jwkOf("new", &signers().otherES.PublicKey)
	ofOld := w.es(t, "exp", now.Add(48*time.Hour).Unix())
	ofNew := sign(t, es, "new", signers().otherES, w.claims("exp", now.Add(48*time.Hour).Unix()))
	for _, s := range []struct {
		rule   string
		change func()
		token  string
		after  time.Duration
		prompt bool
		want   wire.Code
		asked  int64
	}{
		{"who must not wait has no keys fetched", nil, ofOld, 0, true, wire.Unauthorized, 0},
		{"the first token has", nil, ofOld, 0, false, "", 1},
		{"an unknown key within the pause", func() { w.provider.serve(false, old, fresh) }, ofNew, issuerPause - 1, false, wire.Unauthorized, 1},
		{"and after it", nil, ofNew, issuerPause, false, "", 2},
		{"the old one beside it", nil, ofOld, issuerPause, true, "", 2},
		{"a withdrawn key, until the next fetch", func() { w.provider.serve(false, fresh) }, ofOld, 2 * issuerPause, false, "", 2},
		{"and after it", func() { w.verifier.foreign.tend(context.Background(), now.Add(20*time.Minute)) }, ofOld, 20 * time.Minute, true, wire.Unauthorized, 3},
		{"an outage", func() { w.provider.serve(true) }, ofNew, 24*time.Hour + 20*time.Minute, false, "", 3},
		{"for too long", nil, ofNew, 24*time.Hour + 20*time.Minute + 1, false, wire.Unauthorized, 3},
		{"until it is over", func() { w.provider.serve(false, fresh) }, ofNew, 25 * time.Hour, false, "", 4},
	} {
		if s.change != nil {
			s.change()
		}
		r := Request{Authorization: []byte(s.token), Tenant: w.cluster.TenantID, Now: now.Add(s.after), Prompt: s.prompt}
		_, err := w.verifier.Verify(w.snapshot(), r)
		if got := codeOf(err); got != s.want || w.provider.asked.Load() != s.asked {
			t.Errorf("%s: %q (%v), asked %d times; want %q, %d", s.rule, got, err, w.provider.asked.Load(), s.want, s.asked)
		}
	}
	if n := changes.Load(); n != 3 {
		t.Errorf("%d changes were told, want 3", n)
	}
}

// TestOnlyIssuersInUseAreAsked: thousands of configured issuers cost nothing, and what nobody uses is forgotten.
func TestOnlyIssuersInUseAreAsked(t *testing.T) {
	t.Parallel()
	w := setupForeign(t)
	reg := prometheus.NewRegistry()
	cfg := config()
	cfg.Foreign = w.provider.foreign()
	cfg.Foreign.Metrics = reg
	w.verifier = mustNew(t, cfg)
	ss := w.verifier.foreign
	tend := func(after time.Duration) { ss.tend(t.Context(), now.Add(after)) }
	tend(0)
	if _, err := w.ask(w.es(t), now); err != nil {
		t.Fatal(err)
	}
	if err := testutil.CollectAndCompare(ss, strings.NewReader(`
# HELP queengate_auth_issuer_fetches_total Fetches of the keys of tenants' issuers, by how they ended.
# TYPE queengate_auth_issuer_fetches_total counter
queengate_auth_issuer_fetches_total{result="failed"} 0
queengate_auth_issuer_fetches_total{result="good"} 1
`), "queengate_auth_issuer_fetches_total"); err != nil {
		t.Error(err)
	}
	if yes, no := ss.usable(now); yes != 1 || no != 0 {
		t.Errorf("%d usable, %d not", yes, no)
	}
	for _, c := range []struct {
		after         time.Duration
		asked, source int
	}{
		{time.Minute, 1, 1}, {20 * time.Minute, 2, 1}, {59 * time.Minute, 3, 1}, {2 * time.Hour, 3, 1}, {23 * time.Hour, 3, 1}, {25 * time.Hour, 3, 0},
	} {
		tend(c.after)
		if asked, n := int(w.provider.asked.Load()), len(ss.byKey); asked != c.asked || n != c.source {
			t.Errorf("after %v: asked %d times, %d sources; want %d, %d", c.after, asked, n, c.asked, c.source)
		}
	}
	if _, err := reg.Gather(); err != nil {
		t.Error(err)
	}
}

// TestAChangeOfRulesKeepsTheKeys: what an issuer may do is no reason to ask it again.
func TestAChangeOfRulesKeepsTheKeys(t *testing.T) {
	t.Parallel()
	w := setupForeign(t)
	for range 5 {
		i := *w.issuer
		i.Rules = append(i.Rules, plans.ClaimRule{Claim: []string{"sub"}, Value: "x", Roles: []plans.Role{plans.RoleViewer}})
		w.issuer, w.facts.Issuers = &i, []*plans.Issuer{&i}
		if _, err := w.ask(w.es(t), now); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.provider.asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// TestRunEnds: with its context, with and without issuers.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	for _, v := range []*Verifier{setupForeign(t).verifier, mustNew(t, config())} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- v.Run(ctx) }()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkVerifyForeign(b *testing.B) {
	w := setupForeign(b)
	token := w.es(b)
	snap, r := w.snapshot(), Request{Authorization: []byte(token), Tenant: w.cluster.TenantID, Now: now}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.verifier.Verify(snap, r); err != nil {
			b.Fatal(err)
		}
	}
}
