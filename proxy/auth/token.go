package auth

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/bearer"
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
	key, err := bearer.PublicKey(text)
	if err != nil {
		return k, fmt.Errorf("jwt key %q: %w", kid, err)
	}
	for _, alg := range []string{"RS256", "EdDSA"} {
		if key.Fits(alg) {
			k.Alg = alg
			return k, nil
		}
	}
	return k, fmt.Errorf("jwt key %q: want RSA or Ed25519", kid)
}

// String hides the secret, and so do all verbs of fmt and slog.
func (k KeyConfig) String() string { return fmt.Sprintf("{KID:%s Alg:%s redacted}", k.KID, k.Alg) }

// GoString is String.
func (k KeyConfig) GoString() string { return k.String() }

// parse returns the key, pinned to its algorithm.
func (k KeyConfig) parse() (bearer.Key, error) {
	key, err := k.material()
	if err == nil {
		key, err = key.Only(k.Alg)
	}
	if err != nil {
		return bearer.Key{}, fmt.Errorf("jwt key %q: %w", k.KID, err)
	}
	return key, nil
}

func (k KeyConfig) material() (bearer.Key, error) {
	switch {
	case k.Alg != "HS256" && k.Alg != "RS256" && k.Alg != "EdDSA":
		return bearer.Key{}, fmt.Errorf("algorithm %q: want HS256, RS256 or EdDSA", k.Alg)
	case bearer.Shared(k.Alg) && k.PEM != "":
		return bearer.Key{}, fmt.Errorf("%s takes a secret and no PEM", k.Alg)
	case bearer.Shared(k.Alg):
		return bearer.Secret(k.Secret)
	case k.Secret != "":
		return bearer.Key{}, fmt.Errorf("%s takes a PEM and no secret", k.Alg)
	}
	return bearer.PublicKey(k.PEM)
}

// session is a token whose signature and claims were found good. Immutable.
type session struct {
	principal Principal
	notBefore time.Time // with the leeway; zero: none
}

// newSession takes over what every token states, whoever's it is.
func (v *Verifier) newSession(c *bearer.Claims) *session {
	s := &session{principal: Principal{JTI: c.ID, Issued: c.IssuedAt, Ends: c.Expires.Add(v.leeway)}}
	if !c.NotBefore.IsZero() {
		s.notBefore = c.NotBefore.Add(-v.leeway)
	}
	return s
}

// parseToken verifies a token by the issuer it states: ours, or one of the request's tenant. The error is for the log;
// callers are told nothing of it.
func (v *Verifier) parseToken(snap *plans.Snapshot, token string, r *Request) (*session, error) {
	issuer := bearer.StatedIssuer(token)
	if v.tokens != nil && issuer == v.issuer {
		return v.parseOurs(token, r.Now)
	}
	if i := snap.Issuer(r.Tenant, issuer); i != nil && v.foreign != nil {
		return v.parseForeign(i, token, r)
	}
	return nil, bearer.Refuse(bearer.WrongIssuer, nil)
}

// parseOurs verifies a token of a user of ours.
func (v *Verifier) parseOurs(token string, now time.Time) (*session, error) {
	c, err := v.tokens.Verify(token, now)
	if err != nil {
		return nil, err
	}
	s := v.newSession(c)
	p := &s.principal
	if c.ID == "" {
		return nil, errors.New("jti is missing")
	}
	if p.SID, err = c.Text("sid"); err != nil {
		return nil, err
	}
	if p.User, err = uuid.Parse(c.Subject); err != nil || p.User == uuid.Nil {
		return nil, errors.New("sub is no user id")
	}
	cluster, err := c.Text("cluster")
	if err != nil {
		return nil, err
	}
	if cluster == "" {
		// Roles count only beside a cluster: a token cannot make its bearer anything on clusters it does not name. Identity
		// providers use the name for purposes of their own, so it is not looked at.
		return s, nil
	}
	if p.Cluster, err = uuid.Parse(cluster); err != nil || p.Cluster == uuid.Nil {
		return nil, errors.New("cluster is no cluster id")
	}
	names, err := c.Texts("roles")
	if err != nil {
		return nil, err
	}
	if names == nil {
		return s, nil
	}
	p.Roles = make([]plans.Role, 0, len(names)) // never nil: a token that states no role grants none
	for _, name := range names {
		role := plans.ParseRole(name)
		if role == plans.RoleNone {
			return nil, errors.New("unknown role")
		}
		p.Roles = append(p.Roles, role)
	}
	return s, nil
}
