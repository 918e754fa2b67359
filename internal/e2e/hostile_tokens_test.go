package e2e

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/launch"
	"github.com/queengate/queengate/internal/pgtest"
)

// tokenWorld is a system that believes session tokens of an issuer of the test's, and a user with a role on a cluster.
type tokenWorld struct {
	*cluster
	user   string
	rs     *rsa.PrivateKey
	ed     ed25519.PrivateKey
	secret []byte
}

func newTokenWorld(t *testing.T) *tokenWorld {
	t.Helper()
	w := &tokenWorld{secret: []byte("a secret of at least thirty-two bytes")}
	dir := dataDir(t)
	var err error
	if w.rs, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	if _, w.ed, err = ed25519.GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for kid, pub := range map[string]any{"rs": &w.rs.PublicKey, "ed": w.ed.Public()} {
		path := filepath.Join(dir, kid+".pem")
		if err := os.WriteFile(path, publicPEM(t, pub), 0o600); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, kid+"="+path)
	}
	s, err := startWith([]string{
		"QUEENGATE_GATEWAY_JWT_ISSUER=idp", "QUEENGATE_GATEWAY_JWT_AUDIENCE=queues", "QUEENGATE_GATEWAY_JWT_SECRET=" + string(w.secret),
		"QUEENGATE_GATEWAY_JWT_KEYS=" + strings.Join(keys, ","),
	}, filepath.Join(dir, "data"), "--postgres", pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	s.stopAtEnd(t)
	w.cluster = s.newCluster(t, "")
	err = w.db.QueryRow(t.Context(), `SELECT queengate.create_user(tenant_id, $2, NULL, 'local')::text FROM queengate.clusters WHERE id = $1::uuid`, w.id, w.slug+"@example.test").Scan(&w.user)
	if err != nil {
		t.Fatal(err)
	}
	w.exec(t, `SELECT queengate.grant_cluster_role($1::uuid, $2, 'producer')`, w.id, w.slug+"@example.test")
	w.settle(t)
	return w
}

func publicPEM(t *testing.T, pub any) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// claims are good ones with changes, in pairs of name and value; nil takes a claim away.
func (w *tokenWorld) claims(change ...any) jwt.MapClaims {
	now := time.Now()
	c := jwt.MapClaims{
		"iss": "idp", "aud": "queues", "sub": w.user, "jti": uuid.NewString(), "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(), "cluster": w.id,
	}
	for i := 0; i < len(change); i += 2 {
		if change[i+1] == nil {
			delete(c, change[i].(string))
		} else {
			c[change[i].(string)] = change[i+1]
		}
	}
	return c
}

// token signs claims; header is more of it, in pairs.
func token(t *testing.T, method jwt.SigningMethod, by any, c jwt.Claims, header ...any) string {
	t.Helper()
	tok := jwt.NewWithClaims(method, c)
	for i := 0; i < len(header); i += 2 {
		tok.Header[header[i].(string)] = header[i+1]
	}
	text, err := tok.SignedString(by)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestHostileTokens (S2) sends tokens that forge, confuse or overstate to the real gateway. A refusal is always the same
// 401 without a word on the reason, no token makes anybody fetch anything, and a good token passes before and after.
func TestHostileTokens(t *testing.T) {
	t.Parallel()
	w := newTokenWorld(t)
	var fetched atomic.Int64
	evil := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fetched.Add(1) }))
	defer evil.Close()
	otherEC, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, otherEd, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ed := func(c jwt.Claims, header ...any) string {
		return token(t, jwt.SigningMethodEdDSA, w.ed, c, append([]any{"kid", "ed"}, header...)...)
	}
	good := ed(w.claims())
	parts := strings.Split(good, ".")
	head := func(text string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(text)) + "." + parts[1] + "." + parts[2]
	}
	rsPEM := publicPEM(t, &w.rs.PublicKey)
	at := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	edJWK := map[string]string{"kty": "OKP", "crv": "Ed25519", "x": base64.RawURLEncoding.EncodeToString(otherEd.Public().(ed25519.PublicKey))}

	for rule, tt := range map[string]struct {
		token string
		want  int
	}{
		"EdDSA":                  {good, 201},
		"RS256":                  {token(t, jwt.SigningMethodRS256, w.rs, w.claims(), "kid", "rs"), 201},
		"HS256 of the secret":    {token(t, jwt.SigningMethodHS256, w.secret, w.claims()), 201},
		"an address nobody asks": {ed(w.claims(), "jku", evil.URL+"/keys", "x5u", evil.URL+"/cert"), 201},

		"alg none":                       {token(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, w.claims(), "kid", "ed"), 401},
		"alg None":                       {head(`{"alg":"None","kid":"ed"}`), 401},
		"alg nOnE, without a signature":  {strings.TrimSuffix(head(`{"alg":"nOnE"}`), parts[2]), 401},
		"no alg":                         {head(`{"kid":"ed"}`), 401},
		"alg null":                       {head(`{"alg":null,"kid":"ed"}`), 401},
		"alg a list":                     {head(`{"alg":["EdDSA"],"kid":"ed"}`), 401},
		"alg twice":                      {head(`{"alg":"EdDSA","alg":"none","kid":"ed"}`), 401},
		"alg in small letters":           {head(`{"alg":"eddsa","kid":"ed"}`), 401},
		"HS256 with the RSA PEM":         {token(t, jwt.SigningMethodHS256, rsPEM, w.claims(), "kid", "rs"), 401},
		"HS256 with the RSA PEM, no end": {token(t, jwt.SigningMethodHS256, []byte(strings.TrimSpace(string(rsPEM))), w.claims(), "kid", "rs"), 401},
		"HS256 with the RSA DER":         {token(t, jwt.SigningMethodHS256, x509.MarshalPKCS1PublicKey(&w.rs.PublicKey), w.claims(), "kid", "rs"), 401},
		"HS256 with the Ed25519 key":     {token(t, jwt.SigningMethodHS256, []byte(w.ed.Public().(ed25519.PublicKey)), w.claims(), "kid", "ed"), 401},
		"HS256 with nothing":             {token(t, jwt.SigningMethodHS256, []byte{}, w.claims()), 401},
		"HS512 with the secret":          {token(t, jwt.SigningMethodHS512, w.secret, w.claims()), 401},
		"PS256 with the RSA key":         {token(t, jwt.SigningMethodPS256, w.rs, w.claims(), "kid", "rs"), 401},
		"RS512 with the RSA key":         {token(t, jwt.SigningMethodRS512, w.rs, w.claims(), "kid", "rs"), 401},
		"ES256":                          {token(t, jwt.SigningMethodES256, otherEC, w.claims(), "kid", "ed"), 401},
		"RS256 under the Ed25519 id":     {token(t, jwt.SigningMethodRS256, w.rs, w.claims(), "kid", "ed"), 401},
		"EdDSA under the RSA id":         {token(t, jwt.SigningMethodEdDSA, w.ed, w.claims(), "kid", "rs"), 401},
		"another's key":                  {token(t, jwt.SigningMethodEdDSA, otherEd, w.claims(), "kid", "ed"), 401},
		"another's key, embedded":        {token(t, jwt.SigningMethodEdDSA, otherEd, w.claims(), "kid", "ed", "jwk", edJWK), 401},
		"another's key, embedded alone":  {token(t, jwt.SigningMethodEdDSA, otherEd, w.claims(), "jwk", edJWK), 401},
		"another's key at a jku":         {token(t, jwt.SigningMethodEdDSA, otherEd, w.claims(), "kid", "x", "jku", evil.URL+"/keys"), 401},
		"another's key at an x5u":        {token(t, jwt.SigningMethodEdDSA, otherEd, w.claims(), "kid", "x", "x5u", evil.URL+"/cert"), 401},
		"a critical extension":           {ed(w.claims(), "crit", []string{"exp"}), 401},
		"a payload that is not coded":    {ed(w.claims(), "crit", []string{"b64"}, "b64", false), 401},
		"an embedded certificate":        {token(t, jwt.SigningMethodRS256, w.rs, w.claims(), "x5c", []string{"MIIB"}), 401},

		"a kid that is a path":   {ed(w.claims(), "kid", "../../../../dev/null"), 401},
		"a kid that is SQL":      {ed(w.claims(), "kid", "ed' OR '1'='1"), 401},
		"a kid that is empty":    {ed(w.claims(), "kid", ""), 401},
		"a kid that is a number": {ed(w.claims(), "kid", 1), 401},
		"a kid that is an array": {ed(w.claims(), "kid", []string{"ed"}), 401},
		"a kid with a NUL":       {ed(w.claims(), "kid", "ed\x00"), 401},
		"a kid that is an URL":   {ed(w.claims(), "kid", evil.URL), 401},

		"another issuer":              {ed(w.claims("iss", "idp2")), 401},
		"an issuer with more":         {ed(w.claims("iss", "idp/")), 401},
		"an issuer that is a list":    {ed(w.claims("iss", []string{"idp"})), 401},
		"no issuer":                   {ed(w.claims("iss", nil)), 401},
		"another audience":            {ed(w.claims("aud", "queue")), 401},
		"no audience":                 {ed(w.claims("aud", nil)), 401},
		"audiences without ours":      {ed(w.claims("aud", []string{"a", "b"})), 401},
		"audiences with ours":         {ed(w.claims("aud", []string{"a", "queues"})), 201},
		"no exp":                      {ed(w.claims("exp", nil)), 401},
		"an exp of null":              {ed(jwt.MapClaims(map[string]any{"iss": "idp", "aud": "queues", "sub": w.user, "jti": "x", "cluster": w.id, "exp": (*int)(nil)})), 401},
		"an exp that is a word":       {ed(w.claims("exp", "never")), 401},
		"an exp beyond all numbers":   {ed(w.claims("exp", json.Number("1e400"))), 401},
		"an exp below zero":           {ed(w.claims("exp", -1)), 401},
		"expired":                     {ed(w.claims("exp", at(-2*time.Minute))), 401},
		"not yet":                     {ed(w.claims("nbf", at(10*time.Minute))), 401},
		"from the future":             {ed(w.claims("iat", at(10*time.Minute))), 401},
		"a clock half a minute ahead": {ed(w.claims("nbf", at(15*time.Second), "iat", at(15*time.Second))), 201},
		"no subject":                  {ed(w.claims("sub", nil)), 401},
		"a subject that is SQL":       {ed(w.claims("sub", "' OR ''='")), 401},
		"no jti":                      {ed(w.claims("jti", nil)), 401},
		"roles that are a word":       {ed(w.claims("roles", "admin")), 401},
		"roles that are an object":    {ed(w.claims("roles", map[string]any{"admin": true})), 401},
		"roles that are a number":     {ed(w.claims("roles", 7)), 401},
		"a role nobody knows":         {ed(w.claims("roles", []string{"producer", "root"})), 401},
		"roles within a list":         {ed(w.claims("roles", []any{[]string{"admin"}})), 401},
		"a role that is not enough":   {ed(w.claims("roles", []string{"viewer"})), 403}, // the issuer's word counts before the grant
		"no role at all":              {ed(w.claims("roles", []string{})), 403},
		"a cluster that is no id":     {ed(w.claims("cluster", "*")), 401},
		"a cluster it has no role on": {ed(w.claims("cluster", uuid.NewString())), 403},

		"a signature cut short": {good[:len(good)-3], 401},
		"no signature":          {parts[0] + "." + parts[1] + ".", 401},
		"two parts":             {parts[0] + "." + parts[1], 401},
		"four parts":            {good + "." + parts[2], 401},
		"an encrypted form":     {strings.Repeat("a.", 4) + "a", 401},
		"spaces within":         {parts[0] + " ." + parts[1] + "." + parts[2], 401},
		"dots":                  {strings.Repeat(".", 6000), 401},
		"a megabyte of dots":    {strings.Repeat(".", 1<<20), 431},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			for _, use := range []string{"first", "second"} { // a verdict that is remembered is the same
				r, _ := raw(t, w.proc.Credentials.GatewayURL, pushBy(tt.token))
				if r.status != tt.want {
					t.Fatalf("%s use: got %d %s, want %d", use, r.status, r.body, tt.want)
				}
				if r.status == http.StatusUnauthorized && r.refusal(t).Code != "unauthorized" {
					t.Errorf("%s use: %s", use, r.body)
				}
			}
		})
	}
	t.Run("a clock that is a bit late", func(t *testing.T) {
		// Made here: the leeway is half a minute, and a row may wait longer for its turn.
		late := ed(w.claims("exp", at(-time.Second)))
		if r, _ := raw(t, w.proc.Credentials.GatewayURL, pushBy(late)); r.status != http.StatusCreated {
			t.Errorf("got %d %s", r.status, r.body)
		}
	})
	t.Run("refusals do not tell why", func(t *testing.T) {
		said := map[string]bool{}
		for _, bad := range []string{"x", head(`{"alg":"none"}`), ed(w.claims("iss", "x")), ed(w.claims("exp", at(-time.Hour))), ed(w.claims(), "kid", "x"), "qk_test_unknown"} {
			r, _ := raw(t, w.proc.Credentials.GatewayURL, pushBy(bad))
			said[r.refusal(t).Error] = true
		}
		if len(said) != 1 {
			t.Errorf("they say %v", said)
		}
	})
	t.Run("a flood of unknown keys costs others nothing", func(t *testing.T) {
		for i := range 500 {
			r, _ := raw(t, w.proc.Credentials.GatewayURL, pushBy(ed(w.claims(), "kid", fmt.Sprint("flood-", i))))
			if r.status != http.StatusUnauthorized {
				t.Fatalf("got %d %s", r.status, r.body)
			}
		}
		if r, _ := raw(t, w.proc.Credentials.GatewayURL, pushBy(good)); r.status != http.StatusCreated {
			t.Errorf("a good token: %d %s", r.status, r.body)
		}
	})
	t.Cleanup(func() {
		if n := fetched.Load(); n != 0 {
			t.Errorf("%d fetches from addresses that tokens named", n)
		}
	})
}

// pushBy is a push on the shared host with a credential.
func pushBy(credential string) string {
	const body = `{"items":[{"queue":"q","payload":1}]}`
	return fmt.Sprintf("POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", credential, len(body), body)
}

// TestTwoKeysOfOneIDAreNoConfiguration (S2): which of them counted would be chance.
func TestTwoKeysOfOneIDAreNoConfiguration(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	var keys []string
	for _, name := range []string{"one", "two"} {
		pub, _, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, publicPEM(t, pub), 0o600); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, "same="+path)
	}
	ctx, cancel := launch.Deadline(time.Minute)
	defer cancel()
	p, err := launch.Up(ctx, bin, filepath.Join(dir, "data"), []string{
		"QUEENGATE_GATEWAY_JWT_ISSUER=idp", "QUEENGATE_GATEWAY_JWT_KEYS=" + strings.Join(keys, ","),
	}, "--postgres", pgtest.DSN(t))
	if err == nil {
		p.Kill()
		t.Fatal("it starts")
	}
	if !strings.Contains(err.Error(), `"same" is configured twice`) {
		t.Errorf("got %v", err)
	}
}
