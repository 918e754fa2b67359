package auth

import (
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
)

// KeyConfig is one key that tokens may be signed with.
type KeyConfig struct {
	KID    string // the token's "kid" header, exactly; "" is for tokens that have none
	Alg    string // HS256, RS256 or EdDSA: the only algorithm this key is good for
	Secret string `json:"-"` // HS256: at least 32 bytes
	PEM    string // RS256, EdDSA: the public key
}

// PublicKey returns the configuration of the PEM of a public key, good for the one algorithm of its kind: RS256 for
// RSA, EdDSA for Ed25519.
func PublicKey(kid, text string) (KeyConfig, error) {
	k := KeyConfig{KID: kid, PEM: text}
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return k, fmt.Errorf("jwt key %q: want the PEM of a public key", kid)
	}
	pub, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return k, fmt.Errorf("jwt key %q: want the PEM of a public key: %w", kid, err)
	}
	switch pub.(type) {
	case *rsa.PublicKey:
		k.Alg = "RS256"
	case ed25519.PublicKey:
		k.Alg = "EdDSA"
	default:
		return k, fmt.Errorf("jwt key %q: %T: want RSA or Ed25519", kid, pub)
	}
	return k, nil
}

// String hides the secret, and so do all verbs of fmt and slog.
func (k KeyConfig) String() string { return fmt.Sprintf("{KID:%s Alg:%s redacted}", k.KID, k.Alg) }

// GoString is String.
func (k KeyConfig) GoString() string { return k.String() }

const (
	minSecretBytes = 32   // as long as the digest: RFC 7518 3.2
	minRSABits     = 2048 // RFC 7518 3.3
	maxTokenBytes  = 8 << 10
)

// signingKey is a configured key with its one algorithm.
type signingKey struct {
	alg string
	key any // what golang-jwt wants for alg
}

func (k KeyConfig) parse() (signingKey, error) {
	wrong := func(format string, args ...any) (signingKey, error) {
		return signingKey{}, fmt.Errorf("jwt key %q: "+format, append([]any{k.KID}, args...)...)
	}
	switch k.Alg {
	case "HS256":
		if k.PEM != "" {
			return wrong("HS256 takes a secret and no PEM")
		}
		if block, _ := pem.Decode([]byte(k.Secret)); block != nil {
			return wrong("a PEM block cannot be an HS256 secret")
		}
		if len(k.Secret) < minSecretBytes {
			return wrong("secret of %d bytes: want at least %d", len(k.Secret), minSecretBytes)
		}
		return signingKey{k.Alg, []byte(k.Secret)}, nil
	case "RS256":
		if k.Secret != "" {
			return wrong("RS256 takes a PEM and no secret")
		}
		pub, err := jwt.ParseRSAPublicKeyFromPEM([]byte(k.PEM))
		if err != nil {
			return wrong("want the PEM of an RSA public key")
		}
		if bits := pub.N.BitLen(); bits < minRSABits {
			return wrong("RSA key of %d bits: want at least %d", bits, minRSABits)
		}
		return signingKey{k.Alg, pub}, nil
	case "EdDSA":
		if k.Secret != "" {
			return wrong("EdDSA takes a PEM and no secret")
		}
		pub, err := jwt.ParseEdPublicKeyFromPEM([]byte(k.PEM))
		if err != nil {
			return wrong("want the PEM of an Ed25519 public key")
		}
		return signingKey{k.Alg, pub.(ed25519.PublicKey)}, nil
	}
	return wrong("algorithm %q: want HS256, RS256 or EdDSA", k.Alg)
}

// claims is what we read of a token. Roles count only beside a cluster: a token cannot make its bearer anything on
// clusters it does not name. Identity providers use the name for purposes of their own, hence the late parsing.
type claims struct {
	jwt.RegisteredClaims
	Cluster string          `json:"cluster"`
	Roles   json.RawMessage `json:"roles"`
}

// session is a token whose signature and claims were found good. Immutable.
type session struct {
	token     string
	user      uuid.UUID
	jti       string
	cluster   uuid.UUID
	roles     []plans.Role
	notBefore time.Time // zero: none
	expires   time.Time
}

// parseToken verifies a token at now. The error is for the log; callers are told nothing of it.
func (v *Verifier) parseToken(token string, now time.Time) (*session, error) {
	if len(v.keys) == 0 {
		return nil, errors.New("no token keys are configured")
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods(v.algs), jwt.WithIssuer(v.issuer), jwt.WithLeeway(v.leeway), jwt.WithExpirationRequired(),
		jwt.WithStrictDecoding(), jwt.WithTimeFunc(func() time.Time { return now }),
	}
	if v.audience != "" {
		options = append(options, jwt.WithAudience(v.audience))
	}
	var c claims
	if _, err := jwt.NewParser(options...).ParseWithClaims(token, &c, v.keyOf); err != nil {
		return nil, err
	}
	s := &session{token: token, jti: c.ID, expires: c.ExpiresAt.Time}
	if c.ID == "" {
		return nil, errors.New("jti is missing")
	}
	var err error
	if s.user, err = uuid.Parse(c.Subject); err != nil || s.user == uuid.Nil {
		return nil, errors.New("sub is no user id")
	}
	if c.NotBefore != nil {
		s.notBefore = c.NotBefore.Time
	}
	if c.Cluster == "" {
		return s, nil
	}
	if s.cluster, err = uuid.Parse(c.Cluster); err != nil || s.cluster == uuid.Nil {
		return nil, errors.New("cluster is no cluster id")
	}
	if len(c.Roles) == 0 {
		return s, nil
	}
	var names []string
	if err := json.Unmarshal(c.Roles, &names); err != nil {
		return nil, errors.New("roles is no list of names")
	}
	s.roles = make([]plans.Role, 0, len(names)) // never nil: a token that states no role grants none
	for _, name := range names {
		role := plans.ParseRole(name)
		if role == plans.RoleNone {
			return nil, errors.New("unknown role")
		}
		s.roles = append(s.roles, role)
	}
	return s, nil
}

// keyOf finds the key of a token by its key id and holds the token to the key's own algorithm.
func (v *Verifier) keyOf(t *jwt.Token) (any, error) {
	if _, critical := t.Header["crit"]; critical {
		return nil, errors.New("critical header extensions are not understood") // RFC 7515 4.1.11
	}
	var kid string
	if raw, stated := t.Header["kid"]; stated {
		var ok bool
		if kid, ok = raw.(string); !ok || kid == "" {
			return nil, errors.New("malformed key id")
		}
	}
	key, ok := v.keys[kid]
	if !ok {
		return nil, errors.New("unknown key id")
	}
	if t.Method.Alg() != key.alg {
		return nil, fmt.Errorf("algorithm %s with a key for %s", t.Method.Alg(), key.alg)
	}
	return key.key, nil
}
