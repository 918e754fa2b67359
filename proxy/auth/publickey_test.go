package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"testing"
)

func TestPublicKeyPinsTheAlgorithmOfItsKind(t *testing.T) {
	t.Parallel()
	encode := func(pub any) string {
		der, err := x509.MarshalPKIXPublicKey(pub)
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	}
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for want, text := range map[string]string{"EdDSA": encode(ed), "RS256": encode(&rs.PublicKey)} {
		k, err := PublicKey("k1", text)
		if err != nil || k.Alg != want || k.KID != "k1" {
			t.Errorf("got %v, %v, want %s", k, err, want)
		}
		if _, err := New(Config{Issuer: "i", Keys: []KeyConfig{k}}); err != nil {
			t.Errorf("%s: %v", want, err)
		}
	}
	for name, text := range map[string]string{"nothing": "", "no PEM": "hello", "another kind": encode(&ec.PublicKey), "rubbish": "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"} {
		if k, err := PublicKey("k1", text); err == nil {
			t.Errorf("%s: accepted as %v", name, k)
		}
	}
}
