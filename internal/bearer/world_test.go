package bearer

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
	"errors"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

const (
	secret      = "0123456789abcdef0123456789abcdef"
	otherSecret = "fedcba9876543210fedcba9876543210"
)

// pairs are made once: an RSA key costs a good part of a second.
var pairs = sync.OnceValue(func() (p struct {
	rsa, otherRSA, weakRSA *rsa.PrivateKey
	ed, otherEd            ed25519.PrivateKey
	ec                     map[string]*ecdsa.PrivateKey // by algorithm
},
) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	var err error
	p.rsa, err = rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	p.otherRSA, err = rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	p.weakRSA, err = rsa.GenerateKey(rand.Reader, 1024)
	must(err)
	_, p.ed, err = ed25519.GenerateKey(rand.Reader)
	must(err)
	_, p.otherEd, err = ed25519.GenerateKey(rand.Reader)
	must(err)
	p.ec = map[string]*ecdsa.PrivateKey{}
	for alg, curve := range map[string]elliptic.Curve{"ES256": elliptic.P256(), "ES384": elliptic.P384(), "ES512": elliptic.P521()} {
		p.ec[alg], err = ecdsa.GenerateKey(curve, rand.Reader)
		must(err)
	}
	return p
})

// signer returns the private key of an algorithm.
func signer(alg string) any {
	switch alg[:2] {
	case "HS":
		return []byte(secret)
	case "RS", "PS":
		return pairs().rsa
	case "ES":
		return pairs().ec[alg]
	}
	return pairs().ed
}

// public returns the key that verifies what signer signs.
func public(t testing.TB, alg string) Key {
	t.Helper()
	var k Key
	var err error
	switch s := signer(alg).(type) {
	case []byte:
		k, err = Secret(string(s))
	case interface{ Public() any }:
		k, err = newKey(s.Public())
	case *rsa.PrivateKey:
		k, err = newKey(&s.PublicKey)
	case *ecdsa.PrivateKey:
		k, err = newKey(&s.PublicKey)
	case ed25519.PrivateKey:
		k, err = newKey(s.Public())
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func publicPEM(pub any) string {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func goodClaims() jwt.MapClaims {
	return jwt.MapClaims{
		"iss": "https://login.example", "aud": "queues", "sub": "ann", "role": "admin",
		"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
}

// sign makes a token; headers come in pairs.
func sign(t testing.TB, alg string, key any, claims jwt.Claims, header ...any) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.GetSigningMethod(alg), claims)
	for i := 0; i < len(header); i += 2 {
		token.Header[header[i].(string)] = header[i+1]
	}
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// raw signs any payload at all with HS256.
func raw(t testing.TB, payload string) string {
	t.Helper()
	head := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	sig, err := jwt.SigningMethodHS256.Sign(head, []byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return head + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func mustNew(t testing.TB, cfg Config) *Verifier {
	t.Helper()
	v, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// reasonOf returns why a token was refused, 0 when it was not.
func reasonOf(t testing.TB, err error) Reason {
	t.Helper()
	if err == nil {
		return 0
	}
	var r *Refusal
	if !errors.As(err, &r) {
		t.Fatalf("%v is no refusal", err)
	}
	return r.Reason
}

// jwkOf returns a public key as a member of a key set.
func jwkOf(kid string, pub any) map[string]any {
	b64 := base64.RawURLEncoding.EncodeToString
	k := map[string]any{"kid": kid, "use": "sig"}
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		k["kty"], k["n"], k["e"] = "RSA", b64(pub.N.Bytes()), b64(big.NewInt(int64(pub.E)).Bytes())
	case *ecdsa.PublicKey:
		point, err := pub.Bytes()
		if err != nil {
			panic(err)
		}
		half := len(point) / 2
		k["kty"], k["crv"], k["x"], k["y"] = "EC", pub.Params().Name, b64(point[1:1+half]), b64(point[1+half:])
	case ed25519.PublicKey:
		k["kty"], k["crv"], k["x"] = "OKP", "Ed25519", b64(pub)
	}
	return k
}

func with(k map[string]any, pairs ...any) map[string]any {
	for i := 0; i < len(pairs); i += 2 {
		k[pairs[i].(string)] = pairs[i+1]
	}
	return k
}

func setOf(keys ...map[string]any) []byte {
	body, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		panic(err)
	}
	return body
}
