package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/queengate/queengate/internal/pgtest"
)

const hunter = "hunter2-hunter2-hunter2-hunter2-hunter2"

func pemOf(t *testing.T, kind string, der []byte, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func publicText(t *testing.T, pub any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(pub)
	return pemOf(t, "PUBLIC KEY", der, err)
}

func TestUnusableMaterialStopsTheStart(t *testing.T) {
	t.Parallel()
	pub, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(priv)
	private := pemOf(t, "PRIVATE KEY", der, err)
	public := publicText(t, pub)
	const secret, off = "JWT_SECRET=" + hunter, "QUEENGATE_BROKER_TENANCY=off"

	for rule, c := range map[string]struct {
		env  []string
		want string // in the error, "" for a start
	}{
		"off":                             {[]string{off, "JWT_ALGORITHM=auto", "JWT_SECRET=short"}, ""},
		"a secret":                        {[]string{off, secret}, ""},
		"with tenancy":                    {[]string{secret, "QUEENGATE_BROKER_CELL_KEYS=k"}, "broker.jwt_enabled and broker.tenancy exclude each other"},
		"no material":                     {[]string{off}, "want broker.jwt_secret for broker.jwt_algorithm = HS256"},
		"no material for auto":            {[]string{off, "JWT_ALGORITHM=auto"}, "want broker.jwt_secret, broker.jwt_public_key, broker.jwt_jwks_url"},
		"a secret for a public algorithm": {[]string{off, secret, "JWT_ALGORITHM=RS256"}, "want broker.jwt_public_key or broker.jwt_jwks_url"},
		"a public key for HS256":          {[]string{off, "JWT_PUBLIC_KEY=" + public}, "want broker.jwt_secret"},
		"a short secret":                  {[]string{off, "JWT_SECRET=hunter2"}, "broker.jwt_secret = redacted: secret of 7 bytes: want at least 32"},
		"a public key as the secret":      {[]string{off, "JWT_SECRET=" + public}, "broker.jwt_secret = redacted: a PEM block"},
		"an unknown algorithm":            {[]string{off, secret, "JWT_ALGORITHM=none"}, "broker.jwt_algorithm = none: want one of auto, HS256"},
		"an Ed25519 key for EdDSA":        {[]string{off, "JWT_PUBLIC_KEY=" + public, "JWT_ALGORITHM=EdDSA"}, ""},
		"an Ed25519 key for auto":         {[]string{off, "JWT_PUBLIC_KEY=" + public, "JWT_ALGORITHM=auto"}, ""},
		"an Ed25519 key for RS256":        {[]string{off, "JWT_PUBLIC_KEY=" + public, "JWT_ALGORITHM=RS256"}, "cannot be used with broker.jwt_algorithm = RS256"},
		"an ECDSA key for ES256":          {[]string{off, "JWT_PUBLIC_KEY=" + publicText(t, &ec.PublicKey), "JWT_ALGORITHM=ES256"}, ""},
		"an ECDSA key for auto":           {[]string{off, "JWT_PUBLIC_KEY=" + publicText(t, &ec.PublicKey), "JWT_ALGORITHM=auto"}, "cannot be used with broker.jwt_algorithm = auto"},
		"a private key":                   {[]string{off, "JWT_PUBLIC_KEY=" + private, "JWT_ALGORITHM=EdDSA"}, "broker.jwt_public_key: want the PEM of a public key, not of a private key"},
		"an address":                      {[]string{off, "JWT_JWKS_URL=https://login.example/keys", "JWT_ALGORITHM=RS256"}, ""},
		"an address of no kind":           {[]string{off, "JWT_JWKS_URL=login.example", "JWT_ALGORITHM=RS256"}, "broker.jwt_jwks_url: want an address that begins with https://"},
		"an address with a password":      {[]string{off, "JWT_JWKS_URL=https://a:hunter2@login.example", "JWT_ALGORITHM=RS256"}, "broker.jwt_jwks_url: want an address without user and password"},
		"too large a skew":                {[]string{off, secret, "JWT_CLOCK_SKEW=3600"}, "broker.jwt_clock_skew = 3600s: want 0s..5m0s"},
		"a switch that is none":           {[]string{off, secret, "JWT_ENABLED=perhaps"}, "broker.jwt_enabled = perhaps: want true or false"},
		"a relative path":                 {[]string{off, secret, "JWT_SKIP_PATHS=health"}, "want a path that begins with a slash"},
		"two faults are both told":        {[]string{off, "JWT_SECRET=hunter2", "JWT_PUBLIC_KEY=x", "JWT_ALGORITHM=auto"}, "broker.jwt_public_key: want the PEM"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			enabled := "JWT_ENABLED=true"
			if rule == "off" {
				enabled = "JWT_ENABLED=false"
			}
			var out, errs strings.Builder
			got := app(context.Background(), []string{"broker", "--check-config"}, append([]string{enabled}, c.env...), &out, &errs)
			want := 0
			if c.want != "" {
				want = 2
			}
			if got != want || !strings.Contains(errs.String(), c.want) || strings.Contains(errs.String(), "hunter2") || strings.Contains(errs.String(), "MC4CAQ") {
				t.Errorf("status %d, %q; want %d, %q and no secret", got, errs.String(), want, c.want)
			}
		})
	}
}

func TestVariablesOfTheExistingSystemForTokens(t *testing.T) {
	t.Parallel()
	c := defaults()
	_, err := settings(c).Load("broker", nil, []string{
		"QUEENGATE_BROKER_TENANCY=off", "JWT_ENABLED=1", "JWT_ALGORITHM=auto", "JWT_SECRET=" + hunter, "JWT_JWKS_URL=https://login.example/keys",
		"JWT_JWKS_REFRESH_INTERVAL=600", "JWT_JWKS_TIMEOUT_MS=1500", "JWT_ISSUER=idp", "JWT_AUDIENCE=queues", "JWT_CLOCK_SKEW=5",
		"JWT_ROLES_CLAIM=job", "JWT_ROLES_ARRAY_CLAIM=groups", "JWT_ROLE_ADMIN=root", "JWT_ROLE_READ_WRITE=dev", "JWT_ROLE_READ_ONLY=eye",
		"JWT_ROLE_WRITE_ONLY=pen", "JWT_SKIP_PATHS=",
	}, io.Discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	j := c.Broker.JWT
	got := fmt.Sprint(j.Enabled, j.Algorithm, j.Secret.Reveal() == hunter, j.JWKSURL, j.JWKSRefresh, j.JWKSTimeout, j.Issuer, j.Audience, j.ClockSkew,
		j.RoleClaim, j.RolesClaim, j.Admin, j.ReadWrite, j.ReadOnly, j.WriteOnly, len(j.SkipPaths))
	want := fmt.Sprint(true, "auto", true, "https://login.example/keys", 10*time.Minute, 1500*time.Millisecond, "idp", "queues", 5*time.Second,
		"job", "groups", "root", "dev", "eye", "pen", 0)
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if text := fmt.Sprintf("%v %+v %#v", j, j, j); strings.Contains(text, hunter) {
		t.Errorf("the secret prints: %s", text)
	}
}

// TestABrokerServesClientsOfItsOwn runs the real command: a secret and a set of keys behind an address at once.
func TestABrokerServesClientsOfItsOwn(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t) // an empty database
	pub, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"keys":[{"kty":"OKP","crv":"Ed25519","use":"sig","alg":"EdDSA","kid":"k1","x":%q}]}`, base64.RawURLEncoding.EncodeToString(pub))
	}))
	t.Cleanup(issuer.Close)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(hunter+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs strings.Builder
	env := []string{"QUEENGATE_POSTGRES_DSN=" + dsn}
	if got := app(t.Context(), []string{"migrate", "--set", "broker"}, env, &out, &errs); got != 0 {
		t.Fatalf("migrate: %s", errs.String())
	}
	addr := freeAddr(t)
	part(t, append(env, "QUEENGATE_BROKER_TENANCY=off", "JWT_ENABLED=true", "JWT_ALGORITHM=auto", "QUEENGATE_BROKER_JWT_SECRET_FILE="+file,
		"JWT_JWKS_URL="+issuer.URL, "JWT_ISSUER=idp"), "broker", "--broker", addr)

	sign := func(m jwt.SigningMethod, key any, role string) string {
		token := jwt.NewWithClaims(m, jwt.MapClaims{"iss": "idp", "sub": "ann", "role": role, "exp": time.Now().Add(time.Hour).Unix()})
		if m == jwt.SigningMethodEdDSA {
			token.Header["kid"] = "k1"
		}
		text, err := token.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	const push = `{"items":[{"queue":"q","payload":1}]}`
	for _, c := range []struct {
		rule, method, path, body, token string
		status                          int
	}{
		{"anybody may ask for health", "GET", "/health", "", "", 200},
		{"nobody may push", "POST", "/api/v1/push", push, "", 401},
		{"a writer pushes", "POST", "/api/v1/push", push, sign(jwt.SigningMethodEdDSA, priv, "write-only"), 201},
		{"a writer does not pop", "GET", "/api/v1/pop/queue/q", "", sign(jwt.SigningMethodEdDSA, priv, "write-only"), 403},
		{"the other issuer's writer pushes", "POST", "/api/v1/push", push, sign(jwt.SigningMethodHS512, []byte(hunter), "write-only"), 201},
		{"the public key is no secret", "POST", "/api/v1/push", push, sign(jwt.SigningMethodHS256, []byte(pub), "admin"), 401},
		{"a worker pops", "GET", "/api/v1/pop/queue/q", "", sign(jwt.SigningMethodHS256, []byte(hunter), "read-write"), 200},
		{"a reader looks", "GET", "/api/v1/resources/queues/q", "", sign(jwt.SigningMethodHS256, []byte(hunter), "read-only"), 200},
		{"a worker deletes nothing", "DELETE", "/api/v1/resources/queues/q", "", sign(jwt.SigningMethodHS256, []byte(hunter), "read-write"), 403},
		{"an admin does", "DELETE", "/api/v1/resources/queues/q", "", sign(jwt.SigningMethodHS256, []byte(hunter), "admin"), 200},
	} {
		req, err := http.NewRequest(c.method, "http://"+addr+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", c.rule, err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s: %d %s, want %d", c.rule, resp.StatusCode, body, c.status)
		}
	}
}
