package auth

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

const (
	secret      = "0123456789abcdef0123456789abcdef"
	otherSecret = "fedcba9876543210fedcba9876543210"
)

// keys are made once: an RSA key costs a good part of a second.
var keys = sync.OnceValue(func() (k struct {
	rsa           *rsa.PrivateKey
	ed            ed25519.PrivateKey
	rsaPEM, edPEM string
},
) {
	var err error
	if k.rsa, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		panic(err)
	}
	if _, k.ed, err = ed25519.GenerateKey(rand.Reader); err != nil {
		panic(err)
	}
	k.rsaPEM, k.edPEM = publicPEM(k.rsa.Public()), publicPEM(k.ed.Public())
	return k
})

func publicPEM(pub any) string {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func config() Config {
	return Config{Issuer: "https://login.example", Audience: "queengate", Keys: []KeyConfig{
		{KID: "hs", Alg: "HS256", Secret: secret},
		{KID: "rs", Alg: "RS256", PEM: keys().rsaPEM},
		{KID: "ed", Alg: "EdDSA", PEM: keys().edPEM},
		{KID: "", Alg: "HS256", Secret: otherSecret},
	}}
}

func goodClaims() jwt.MapClaims {
	return jwt.MapClaims{
		"iss": "https://login.example", "aud": "queengate", "sub": "0b5c6f0e-7a0b-4c55-9f5e-5f1a2c3d4e5f",
		"jti": "token-1", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
}

// sign makes a token; kid "" leaves the header out.
func sign(t testing.TB, method jwt.SigningMethod, kid string, key any, c jwt.MapClaims, header ...any) string {
	t.Helper()
	token := jwt.NewWithClaims(method, c)
	if kid != "" {
		token.Header["kid"] = kid
	}
	for i := 0; i+1 < len(header); i += 2 {
		token.Header[header[i].(string)] = header[i+1]
	}
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTokens(t *testing.T) {
	t.Parallel()
	hs, rs, ed := jwt.SigningMethodHS256, jwt.SigningMethodRS256, jwt.SigningMethodEdDSA
	with := func(pairs ...any) jwt.MapClaims {
		c := goodClaims()
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i+1] == nil {
				delete(c, pairs[i].(string))
			} else {
				c[pairs[i].(string)] = pairs[i+1]
			}
		}
		return c
	}
	byHS := func(c jwt.MapClaims) string { return sign(t, hs, "hs", []byte(secret), c) }
	good := byHS(goodClaims())
	parts := strings.Split(good, ".")
	otherRSA, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, otherEd, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	cluster := uuid.NewString()

	for rule, c := range map[string]struct {
		token string
		ok    bool
	}{
		"HS256":                        {good, true},
		"RS256":                        {sign(t, rs, "rs", keys().rsa, goodClaims()), true},
		"EdDSA":                        {sign(t, ed, "ed", keys().ed, goodClaims()), true},
		"a key for tokens without kid": {sign(t, hs, "", []byte(otherSecret), goodClaims()), true},

		"no algorithm":             {sign(t, jwt.SigningMethodNone, "hs", jwt.UnsafeAllowNoneSignatureType, goodClaims()), false},
		"no algorithm in capitals": {encode(map[string]string{"alg": "NONE", "kid": "hs"}) + "." + parts[1] + ".", false},
		"no signature":             {parts[0] + "." + parts[1] + ".", false},

		"a public RSA key used as a shared secret":          {sign(t, hs, "rs", []byte(keys().rsaPEM), goodClaims()), false},
		"a public RSA key in DER used as a shared secret":   {sign(t, hs, "rs", x509.MarshalPKCS1PublicKey(&keys().rsa.PublicKey), goodClaims()), false},
		"a public Ed25519 key used as a shared secret":      {sign(t, hs, "ed", []byte(keys().ed.Public().(ed25519.PublicKey)), goodClaims()), false},
		"an RSA signature under the kid of a shared secret": {sign(t, rs, "hs", keys().rsa, goodClaims()), false},
		"an Ed25519 signature under the kid of an RSA key":  {sign(t, ed, "rs", keys().ed, goodClaims()), false},
		"HS512 with the right secret":                       {sign(t, jwt.SigningMethodHS512, "hs", []byte(secret), goodClaims()), false},
		"PS256 with the right key":                          {sign(t, jwt.SigningMethodPS256, "rs", keys().rsa, goodClaims()), false},
		"the wrong secret":                                  {sign(t, hs, "hs", []byte(otherSecret), goodClaims()), false},
		"another RSA key":                                   {sign(t, rs, "rs", otherRSA, goodClaims()), false},
		"another Ed25519 key":                               {sign(t, ed, "ed", otherEd, goodClaims()), false},
		"an unknown kid":                                    {sign(t, hs, "xx", []byte(secret), goodClaims()), false},
		"no kid with the secret of another key":             {sign(t, hs, "", []byte(secret), goodClaims()), false},
		"a kid that is no text":                             {sign(t, hs, "", []byte(secret), goodClaims(), "kid", 7), false},
		"an empty kid":                                      {sign(t, hs, "", []byte(otherSecret), goodClaims(), "kid", ""), false},
		"a key in the token itself":                         {sign(t, hs, "", []byte("mine mine mine mine mine mine mi"), goodClaims(), "jwk", map[string]string{"kty": "oct", "k": "bWluZQ"}), false},
		"a critical extension":                              {sign(t, hs, "hs", []byte(secret), goodClaims(), "crit", []string{"exp"}), false},
		"other claims under the same signature":             {parts[0] + "." + encode(with("jti", "token-2")) + "." + parts[2], false},
		"a signature with other padding bits":               {good[:len(good)-1] + string(flip(good[len(good)-1])), false},
		"a fourth part":                                     {good + ".", false},
		"not a token":                                       {"garbage", false},
		"too long":                                          {strings.Repeat("a", bearer.MaxTokenBytes+1), false},

		"another issuer":                      {byHS(with("iss", "https://login.example/")), false},
		"no issuer":                           {byHS(with("iss", nil)), false},
		"another audience":                    {byHS(with("aud", "other")), false},
		"no audience":                         {byHS(with("aud", nil)), false},
		"one of several audiences":            {byHS(with("aud", []string{"other", "queengate"})), true},
		"no expiry":                           {byHS(with("exp", nil)), false},
		"expired beyond the leeway":           {byHS(with("exp", now.Add(-30*time.Second).Unix())), false},
		"expired within the leeway":           {byHS(with("exp", now.Add(-29*time.Second).Unix())), true},
		"not yet, beyond the leeway":          {byHS(with("nbf", now.Add(31*time.Second).Unix())), false},
		"not yet, within the leeway":          {byHS(with("nbf", now.Add(30*time.Second).Unix())), true},
		"no jti":                              {byHS(with("jti", nil)), false},
		"a revoked jti":                       {byHS(with("jti", "revoked")), false},
		"no sub":                              {byHS(with("sub", nil)), false},
		"a sub that is no uuid":               {byHS(with("sub", "ann")), false},
		"a nil sub":                           {byHS(with("sub", uuid.Nil.String())), false},
		"a cluster":                           {byHS(with("cluster", cluster)), true},
		"a cluster that is no uuid":           {byHS(with("cluster", "acme-main")), false},
		"a nil cluster":                       {byHS(with("cluster", uuid.Nil.String())), false},
		"roles on a cluster":                  {byHS(with("cluster", cluster, "roles", []string{"producer", "consumer"})), true},
		"an unknown role on a cluster":        {byHS(with("cluster", cluster, "roles", []string{"root"})), false},
		"roles on a cluster that are no list": {byHS(with("cluster", cluster, "roles", "admin")), false},
		"somebody else's roles, no cluster":   {byHS(with("roles", map[string]any{"realm": 1})), true},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			v, w := mustNew(t, config()), setup()
			w.facts.Revoked = []string{"revoked"}
			for _, use := range []string{"first", "second"} {
				p, err := v.Verify(w.snapshot(), Request{Authorization: []byte("Bearer " + c.token), Remote: remote, Now: now})
				if c.ok && (err != nil || p.User.String() != goodClaims()["sub"] || p.Subject() != p.User.String() || p.Key != nil || p.JTI == "") {
					t.Errorf("%s use: %+v, %v", use, p, err)
				}
				if !c.ok && codeOf(err) != wire.Unauthorized {
					t.Errorf("%s use: %v, want unauthorized", use, err)
				}
			}
		})
	}
}

// flip changes the unused low bits of the last base64url digit of a 32-byte signature.
func flip(c byte) byte {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return digits[strings.IndexByte(digits, c)^1]
}

func TestTokenClaimsArriveInThePrincipal(t *testing.T) {
	t.Parallel()
	v, w := mustNew(t, config()), setup()
	principal := func(extra jwt.MapClaims) Principal {
		c := goodClaims()
		for k, x := range extra {
			c[k] = x
		}
		token := sign(t, jwt.SigningMethodHS256, "hs", []byte(secret), c)
		p, err := v.Verify(w.snapshot(), Request{Authorization: []byte(token), Remote: remote, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		if !p.Issued.Equal(now) || !p.Ends.Equal(now.Add(time.Hour+30*time.Second)) {
			t.Errorf("issued %v, ends %v", p.Issued, p.Ends)
		}
		p.Issued, p.Ends = time.Time{}, time.Time{}
		return p
	}
	user := uuid.MustParse(goodClaims()["sub"].(string))
	id := uuid.New()
	for rule, c := range map[string]struct {
		claims jwt.MapClaims
		want   Principal
	}{
		"neither":                   {nil, Principal{User: user, JTI: "token-1"}},
		"a cluster":                 {jwt.MapClaims{"cluster": id.String()}, Principal{User: user, JTI: "token-1", Cluster: id}},
		"a cluster and roles":       {jwt.MapClaims{"cluster": id.String(), "roles": []string{"viewer"}}, Principal{User: user, JTI: "token-1", Cluster: id, Roles: []plans.Role{plans.RoleViewer}}},
		"a cluster and no roles":    {jwt.MapClaims{"cluster": id.String(), "roles": []string{}}, Principal{User: user, JTI: "token-1", Cluster: id, Roles: []plans.Role{}}},
		"roles without a cluster":   {jwt.MapClaims{"roles": []string{"admin"}}, Principal{User: user, JTI: "token-1"}},
		"the placeholder of a role": {jwt.MapClaims{"role": "admin"}, Principal{User: user, JTI: "token-1"}},
	} {
		if diff := cmp.Diff(c.want, principal(c.claims)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", rule, diff)
		}
	}
}

// TestRememberedTokensAreJudgedAgain: a token whose signature was paid for still ends by time and by revocation.
func TestRememberedTokensAreJudgedAgain(t *testing.T) {
	t.Parallel()
	v, w := mustNew(t, config()), setup()
	token := []byte(sign(t, jwt.SigningMethodHS256, "hs", []byte(secret), goodClaims()))
	at := func(snap *plans.Snapshot, when time.Time) wire.Code {
		_, err := v.Verify(snap, Request{Authorization: token, Remote: remote, Now: when})
		return codeOf(err)
	}
	if got := at(w.snapshot(), now); got != "" {
		t.Fatal(got)
	}
	if v.sessions.Get(token) == nil {
		t.Fatal("the token is not remembered")
	}
	if got := at(w.snapshot(), now.Add(time.Hour+29*time.Second)); got != "" {
		t.Errorf("within the leeway: %s", got)
	}
	if got := at(w.snapshot(), now.Add(time.Hour+30*time.Second)); got != wire.Unauthorized {
		t.Errorf("beyond the leeway: %q, want unauthorized", got)
	}
	w.facts.Revoked = []string{"token-1"}
	if got := at(w.snapshot(), now); got != wire.Unauthorized {
		t.Errorf("revoked: %q, want unauthorized", got)
	}
}

func TestRefusedTokensAreNotRemembered(t *testing.T) {
	t.Parallel()
	v, w := mustNew(t, config()), setup()
	bad := []byte(sign(t, jwt.SigningMethodHS256, "hs", []byte(otherSecret), goodClaims()))
	if _, err := v.Verify(w.snapshot(), Request{Authorization: bad, Remote: remote, Now: now}); err == nil || v.sessions.Get(bad) != nil {
		t.Error("a refused token is remembered")
	}
}

func TestVerifierIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	cfg := config()
	cfg.Sessions = 2 // so that sessions push each other out all the time
	v, snap := mustNew(t, cfg), setup().snapshot()
	var tokens [8][]byte
	for i := range tokens {
		c := goodClaims()
		c["jti"] = fmt.Sprint(i)
		tokens[i] = []byte(sign(t, jwt.SigningMethodHS256, "hs", []byte(secret), c))
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				n := (i + g) % len(tokens)
				p, err := v.Verify(snap, Request{Authorization: tokens[n], Remote: remote, Now: now})
				if err != nil || p.JTI != fmt.Sprint(n) {
					t.Errorf("token %d: %+v, %v", n, p, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestConfig(t *testing.T) {
	t.Parallel()
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	base := func(k ...KeyConfig) Config { return Config{Issuer: "i", Keys: k} }
	for rule, c := range map[string]struct {
		cfg  Config
		want string // part of the error; "" for none
	}{
		"no keys at all":                    {Config{}, ""},
		"all kinds of keys":                 {config(), ""},
		"keys without an issuer":            {Config{Keys: config().Keys}, "issuer is empty"},
		"a short secret":                    {base(KeyConfig{Alg: "HS256", Secret: "short"}), "want at least 32"},
		"a PEM as a secret":                 {base(KeyConfig{Alg: "HS256", Secret: keys().rsaPEM}), "cannot be a shared secret"},
		"a secret and a PEM":                {base(KeyConfig{Alg: "RS256", Secret: secret, PEM: keys().rsaPEM}), "no secret"},
		"a PEM beside an HS256 secret":      {base(KeyConfig{Alg: "HS256", Secret: secret, PEM: keys().rsaPEM}), "no PEM"},
		"an Ed25519 key for RS256":          {base(KeyConfig{Alg: "RS256", PEM: keys().edPEM}), "cannot be used with an Ed25519 public key"},
		"an RSA key for EdDSA":              {base(KeyConfig{Alg: "EdDSA", PEM: keys().rsaPEM}), "cannot be used with an RSA public key"},
		"a secret for EdDSA":                {base(KeyConfig{Alg: "EdDSA", Secret: secret}), "no secret"},
		"a weak RSA key":                    {base(KeyConfig{Alg: "RS256", PEM: publicPEM(weak.Public())}), "want at least 2048"},
		"the algorithm none":                {base(KeyConfig{Alg: "none"}), "want HS256, RS256 or EdDSA"},
		"an algorithm in small letters":     {base(KeyConfig{Alg: "hs256", Secret: secret}), "want HS256, RS256 or EdDSA"},
		"a key id twice":                    {base(KeyConfig{KID: "a", Alg: "HS256", Secret: secret}, KeyConfig{KID: "a", Alg: "HS256", Secret: otherSecret}), "twice"},
		"a leeway below zero":               {Config{Leeway: -1}, "leeway"},
		"a leeway that forgives too much":   {Config{Leeway: time.Hour}, "leeway"},
		"too few sessions":                  {Config{Sessions: 1}, "remembered tokens"},
		"all problems are told, the second": {base(KeyConfig{Alg: "none"}, KeyConfig{KID: "x", Alg: "HS256", Secret: "short"}), `key "x"`},
	} {
		_, err := New(c.cfg)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", rule, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "short\"")) {
			t.Errorf("%s: the error tells a secret: %v", rule, err)
		}
	}
}

func TestSecretsOfKeysDoNotPrint(t *testing.T) {
	t.Parallel()
	cfg := config()
	raw, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(cfg), fmt.Sprintf("%v %+v %#v %s", cfg, cfg, cfg, cfg.Keys[0]), string(raw)} {
		if strings.Contains(text, secret) || strings.Contains(text, otherSecret) {
			t.Errorf("a secret is printed: %s", text)
		}
	}
}

func FuzzToken(f *testing.F) {
	v, snap := mustNew(f, config()), setup().snapshot()
	good := sign(f, jwt.SigningMethodHS256, "hs", []byte(secret), goodClaims())
	f.Add([]byte(good))
	f.Add([]byte("bearer " + good))
	f.Add([]byte("eyJhbGciOiJub25lIn0.e30."))
	f.Fuzz(func(t *testing.T, header []byte) {
		p, err := v.Verify(snap, Request{Authorization: header, Remote: remote, Now: now})
		switch {
		case err == nil && !strings.HasSuffix(strings.Trim(string(header), " \t"), good):
			t.Fatalf("%q is believed: %+v", header, p)
		case err != nil && codeOf(err) != wire.Unauthorized:
			t.Fatalf("%q: %v, want unauthorized", header, err)
		case err != nil && cmp.Diff(p, Principal{}) != "":
			t.Fatalf("%q: refused with a principal", header)
		}
	})
}

func BenchmarkVerifyToken(b *testing.B) {
	v, snap := mustNew(b, config()), setup().snapshot()
	header := []byte("Bearer " + sign(b, jwt.SigningMethodHS256, "hs", []byte(secret), goodClaims()))
	b.Run("remembered", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := v.Verify(snap, Request{Authorization: header, Remote: remote, Now: now}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("new HS256", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := v.parseToken(snap, string(header[len("Bearer "):]), &Request{Now: now}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
