package bearer

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
)

// jwk is what we read of a JSON Web Key (RFC 7517); x5c, x5u and private parts are not looked at.
type jwk struct {
	Kty    string   `json:"kty"`
	Kid    string   `json:"kid"`
	Alg    string   `json:"alg"`
	Use    string   `json:"use"`
	KeyOps []string `json:"key_ops"`
	Crv    string   `json:"crv"`
	N      string   `json:"n"`
	E      string   `json:"e"`
	X      string   `json:"x"`
	Y      string   `json:"y"`
}

// parseSet reads a JSON Web Key Set: its keys that may verify tokens of one of algs, in its order. Others are left out,
// as RFC 7517 5 asks, and told in skipped; a shared secret is always among them. A set without a single key of use is an
// error, so that a mistake of its owner does not replace a good set.
func parseSet(body []byte, algs []string) (keys []Key, skipped []error, err error) {
	var doc struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, nil, errors.New("the answer is no key set")
	}
	for i, raw := range doc.Keys {
		k, err := parseKey(raw)
		if err == nil && !slices.ContainsFunc(algs, k.Fits) {
			err = errors.New("no accepted algorithm uses it")
		}
		if err != nil {
			skipped = append(skipped, fmt.Errorf("key %d: %w", i, err))
			continue
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, nil, errors.Join(append([]error{fmt.Errorf("none of the %d keys can be used", len(doc.Keys))}, skipped...)...)
	}
	return keys, skipped, nil
}

func parseKey(raw json.RawMessage) (Key, error) {
	var j jwk
	if err := json.Unmarshal(raw, &j); err != nil {
		return Key{}, errors.New("malformed")
	}
	if j.Use != "" && j.Use != "sig" {
		return Key{}, errors.New("not for signatures")
	}
	if len(j.KeyOps) > 0 && !slices.Contains(j.KeyOps, "verify") {
		return Key{}, errors.New("not for verifying")
	}
	pub, err := j.publicKey()
	if err != nil {
		return Key{}, err
	}
	k, err := newKey(pub)
	if err == nil && j.Alg != "" {
		k, err = k.Only(j.Alg)
	}
	k.id = j.Kid
	return k, err
}

func (j *jwk) publicKey() (any, error) {
	switch j.Kty {
	case "RSA":
		n, err := base64.RawURLEncoding.DecodeString(j.N)
		if err != nil {
			return nil, errors.New("malformed modulus")
		}
		e, err := base64.RawURLEncoding.DecodeString(j.E)
		exponent := new(big.Int).SetBytes(e)
		if err != nil || exponent.BitLen() > 31 {
			return nil, errors.New("malformed exponent")
		}
		return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(exponent.Int64())}, nil
	case "EC":
		return j.ecdsaKey()
	case "OKP":
		x, err := base64.RawURLEncoding.DecodeString(j.X)
		if j.Crv != "Ed25519" || err != nil || len(x) != ed25519.PublicKeySize {
			return nil, errors.New("want an Ed25519 point")
		}
		return ed25519.PublicKey(x), nil
	}
	return nil, errors.New("want the type RSA, EC or OKP") // oct is a shared secret: it has no place behind an address
}

func (j *jwk) ecdsaKey() (any, error) {
	curve := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()}[j.Crv]
	if curve == nil {
		return nil, errors.New("want the curve P-256, P-384 or P-521")
	}
	size := (curve.Params().BitSize + 7) / 8
	x, errX := base64.RawURLEncoding.DecodeString(j.X)
	y, errY := base64.RawURLEncoding.DecodeString(j.Y)
	if errX != nil || errY != nil || len(x) != size || len(y) != size {
		return nil, errors.New("malformed point")
	}
	return ecdsa.ParseUncompressedPublicKey(curve, slices.Concat([]byte{4}, x, y)) // checks that the point is on the curve
}
