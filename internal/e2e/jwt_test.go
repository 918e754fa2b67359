package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/pgtest"
)

// TestTokens sends session tokens of each algorithm through the real gateway: the user's roles on the cluster decide, a
// token of another algorithm under the same key id does not pass, and a revoked one stops passing.
func TestTokens(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	edPub, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, pub any) string {
		der, err := x509.MarshalPKIXPublicKey(pub)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	edFile, rsFile := write("ed.pem", edPub), write("rs.pem", &rsKey.PublicKey)
	rsText, err := os.ReadFile(rsFile)
	if err != nil {
		t.Fatal(err)
	}
	secret := []byte("a secret of at least thirty-two bytes")
	s, err := startWith([]string{
		"QUEENGATE_GATEWAY_JWT_ISSUER=idp", "QUEENGATE_GATEWAY_JWT_AUDIENCE=queues", "QUEENGATE_GATEWAY_JWT_SECRET=" + string(secret),
		"QUEENGATE_GATEWAY_JWT_KEYS=ed=" + edFile + ",rs=" + rsFile,
	}, filepath.Join(dir, "data"), "--postgres", pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	s.stopAtEnd(t)
	c := s.newCluster(t, "")

	var user string
	err = c.db.QueryRow(t.Context(), `SELECT queengate.create_user(tenant_id, $2, NULL, 'local')::text FROM queengate.clusters WHERE id = $1::uuid`, c.id, c.slug+"@example.test").Scan(&user)
	if err != nil {
		t.Fatal(err)
	}
	c.exec(t, `SELECT queengate.grant_cluster_role($1::uuid, $2, 'producer')`, c.id, c.slug+"@example.test")
	c.settle(t)

	claims := func(more jwt.MapClaims) jwt.MapClaims {
		m := jwt.MapClaims{"iss": "idp", "aud": "queues", "sub": user, "jti": uuid.NewString(), "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
		for k, v := range more {
			m[k] = v
		}
		return m
	}
	sign := func(m jwt.SigningMethod, kid string, key any, cl jwt.MapClaims) string {
		tok := jwt.NewWithClaims(m, cl)
		if kid != "" {
			tok.Header["kid"] = kid
		}
		text, err := tok.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	onHost := host(c.slug + ".localhost")
	for name, tt := range map[string]struct {
		token string
		opts  []callOption
		push  int
		pop   int
	}{
		"EdDSA":                        {sign(jwt.SigningMethodEdDSA, "ed", edKey, claims(nil)), []callOption{onHost}, 201, 403},
		"RS256":                        {sign(jwt.SigningMethodRS256, "rs", rsKey, claims(nil)), []callOption{onHost}, 201, 403},
		"HS256":                        {sign(jwt.SigningMethodHS256, "", secret, claims(nil)), []callOption{onHost}, 201, 403},
		"a cluster in the header":      {sign(jwt.SigningMethodEdDSA, "ed", edKey, claims(nil)), []callOption{header("X-Queen-Act-Cluster", c.slug)}, 201, 403},
		"a cluster in the token":       {sign(jwt.SigningMethodEdDSA, "ed", edKey, claims(jwt.MapClaims{"cluster": c.id})), nil, 201, 403},
		"no cluster at all":            {sign(jwt.SigningMethodEdDSA, "ed", edKey, claims(nil)), nil, 403, 403},
		"an unknown user":              {sign(jwt.SigningMethodEdDSA, "ed", edKey, claims(jwt.MapClaims{"sub": uuid.NewString()})), []callOption{onHost}, 403, 403},
		"expired":                      {sign(jwt.SigningMethodEdDSA, "ed", edKey, claims(jwt.MapClaims{"exp": time.Now().Add(-time.Hour).Unix()})), []callOption{onHost}, 401, 401},
		"another issuer":               {sign(jwt.SigningMethodEdDSA, "ed", edKey, claims(jwt.MapClaims{"iss": "other"})), []callOption{onHost}, 401, 401},
		"another audience":             {sign(jwt.SigningMethodEdDSA, "ed", edKey, claims(jwt.MapClaims{"aud": "other"})), []callOption{onHost}, 401, 401},
		"a public key as an HS secret": {sign(jwt.SigningMethodHS256, "rs", rsText, claims(nil)), []callOption{onHost}, 401, 401},
		"another key's id":             {sign(jwt.SigningMethodEdDSA, "rs", edKey, claims(nil)), []callOption{onHost}, 401, 401},
		"unsigned":                     {sign(jwt.SigningMethodNone, "ed", jwt.UnsafeAllowNoneSignatureType, claims(nil)), []callOption{onHost}, 401, 401},
	} {
		t.Run(name, func(t *testing.T) {
			opts := append([]callOption{key(tt.token)}, tt.opts...)
			if r := c.call(t, "POST", "/api/v1/push", items("q", "p", name, 1), opts...); r.status != tt.push {
				t.Errorf("push: %d %s, want %d", r.status, r.body, tt.push)
			}
			if r := c.call(t, "GET", "/api/v1/pop/queue/q", nil, opts...); r.status != tt.pop {
				t.Errorf("pop: %d %s, want %d", r.status, r.body, tt.pop)
			}
		})
	}

	jti := uuid.NewString()
	token := sign(jwt.SigningMethodEdDSA, "ed", edKey, claims(jwt.MapClaims{"jti": jti}))
	push := func() int {
		return c.call(t, "POST", "/api/v1/push", items("q", "p", "r", 1), key(token), onHost).status
	}
	if got := push(); got != http.StatusCreated {
		t.Fatalf("before the revocation: %d", got)
	}
	c.exec(t, `SELECT queengate.revoke_session($1, now() + interval '1 hour')`, jti)
	eventually(t, 20*time.Second, "a revoked token to be refused", func() bool { return push() == http.StatusUnauthorized })
}
