package bearer

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Bounds of key material. A secret is as long as the shortest digest it keys (RFC 7518 3.2): 256 bits cannot be guessed,
// whatever the digest. RSA is 3.3 of the same; beyond the upper bound one verification costs milliseconds.
const (
	MinSecretBytes = 32
	MinRSABits     = 2048
	MaxRSABits     = 8192
)

// Key is key material with what it is good for. The zero Key is good for nothing. Immutable; it does not print.
type Key struct {
	id  string // of a fetched key
	alg string // the one algorithm that the key's owner allows; "" for all of its kind
	key any    // []byte, *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
}

// String hides the key, and so do all verbs of fmt.
func (k Key) String() string { return fmt.Sprintf("{%T redacted}", k.key) }

// GoString is String.
func (k Key) GoString() string { return k.String() }

// Secret returns a shared secret: MinSecretBytes at least, and nothing that looks like the PEM of another key.
func Secret(text string) (Key, error) {
	if block, _ := pem.Decode([]byte(text)); block != nil || strings.Contains(text, "-----BEGIN ") {
		return Key{}, errors.New("a PEM block cannot be a shared secret")
	}
	if len(text) < MinSecretBytes {
		return Key{}, fmt.Errorf("secret of %d bytes: want at least %d", len(text), MinSecretBytes)
	}
	return Key{key: []byte(text)}, nil
}

// PublicKey returns the public key in a PEM text: RSA, ECDSA on P-256, P-384 or P-521, or Ed25519, as a key of its own
// or in a certificate. Line ends may be written as \n, as they come in environment variables.
func PublicKey(text string) (Key, error) {
	block, _ := pem.Decode([]byte(strings.ReplaceAll(text, `\n`, "\n")))
	if block == nil {
		return Key{}, errors.New("want the PEM of a public key")
	}
	var pub any
	var err error
	switch block.Type {
	case "PUBLIC KEY":
		pub, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		pub, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		var cert *x509.Certificate
		if cert, err = x509.ParseCertificate(block.Bytes); err == nil {
			pub = cert.PublicKey
		}
	default:
		return Key{}, fmt.Errorf("want the PEM of a public key, not of a %s", strings.ToLower(block.Type))
	}
	if err != nil {
		return Key{}, fmt.Errorf("want the PEM of a public key: %w", err)
	}
	return newKey(pub)
}

// newKey holds a public key to the bounds.
func newKey(pub any) (Key, error) {
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		if bits := pub.N.BitLen(); bits < MinRSABits || bits > MaxRSABits {
			return Key{}, fmt.Errorf("RSA key of %d bits: want at least %d and at most %d", bits, MinRSABits, MaxRSABits)
		}
		if pub.E < 3 || pub.E%2 == 0 {
			return Key{}, fmt.Errorf("RSA key with the exponent %d", pub.E)
		}
	case *ecdsa.PublicKey:
		if ecdsaAlgorithm(pub.Curve) == "" {
			return Key{}, fmt.Errorf("ECDSA key on %s: want P-256, P-384 or P-521", pub.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	default:
		return Key{}, fmt.Errorf("%T: want RSA, ECDSA or Ed25519", pub)
	}
	return Key{key: pub}, nil
}

// ecdsaAlgorithm returns the one algorithm of a curve (RFC 7518 3.4), "" when it has none.
func ecdsaAlgorithm(c elliptic.Curve) string {
	switch c {
	case elliptic.P256():
		return "ES256"
	case elliptic.P384():
		return "ES384"
	case elliptic.P521():
		return "ES512"
	}
	return ""
}

// Only returns the key pinned to one algorithm; an algorithm of another kind of key is an error.
func (k Key) Only(alg string) (Key, error) {
	if !k.Fits(alg) {
		return Key{}, fmt.Errorf("algorithm %q cannot be used with %s", alg, k.kind())
	}
	k.alg = alg
	return k, nil
}

func (k Key) kind() string {
	switch k.key.(type) {
	case []byte:
		return "a shared secret"
	case *rsa.PublicKey:
		return "an RSA public key"
	case *ecdsa.PublicKey:
		return "an ECDSA public key"
	case ed25519.PublicKey:
		return "an Ed25519 public key"
	}
	return "no key"
}

// Fits reports whether the key may verify tokens of the algorithm. It is the wall against confusion of algorithms: the
// kind of the key decides, and its owner's word where there is one.
func (k Key) Fits(alg string) bool {
	if k.alg != "" && k.alg != alg {
		return false
	}
	switch key := k.key.(type) {
	case []byte:
		return slices.Contains(hsFamily, alg)
	case *rsa.PublicKey:
		return slices.Contains(rsFamily, alg) || slices.Contains(psFamily, alg)
	case *ecdsa.PublicKey:
		return ecdsaAlgorithm(key.Curve) == alg
	case ed25519.PublicKey:
		return alg == edDSA
	}
	return false
}
