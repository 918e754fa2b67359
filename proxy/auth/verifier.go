package auth

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// Config says which tokens are believed. Without Keys there are only API keys.
type Config struct {
	Issuer   string        // "iss", exactly; required when there are keys
	Audience string        // when set, "aud" must contain it
	Leeway   time.Duration // clock difference granted to exp and nbf; 0 means 30 s
	Keys     []KeyConfig   // several are valid at once, so that keys can be rotated
	Sessions int           // verified tokens remembered; 0 means 16384; rounded up to a power of two
}

const defaultSessions = 16384

// Verifier checks credentials. Safe for concurrent use.
type Verifier struct {
	tokens   *bearer.Verifier // nil: there are only API keys
	sessions *bearer.Cache[session]
}

// New returns a Verifier, or all problems of the configuration joined.
func New(cfg Config) (*Verifier, error) {
	var errs []error
	tokens := bearer.Config{Issuer: cfg.Issuer, Audience: cfg.Audience, Leeway: cfg.Leeway, RequireExpiry: true}
	if tokens.Leeway == 0 {
		tokens.Leeway = bearer.DefaultLeeway
	}
	if tokens.Leeway < 0 || tokens.Leeway > bearer.MaxLeeway {
		errs = append(errs, fmt.Errorf("jwt leeway = %s: want 0..%s", tokens.Leeway, bearer.MaxLeeway))
	}
	if len(cfg.Keys) > 0 && cfg.Issuer == "" {
		errs = append(errs, errors.New("jwt issuer is empty: tokens of anybody's issuer would be believed"))
	}
	ring := bearer.Ring{}
	for _, k := range cfg.Keys {
		key, err := k.parse()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if _, twice := ring[k.KID]; twice {
			errs = append(errs, fmt.Errorf("jwt key %q is configured twice", k.KID))
		}
		ring[k.KID] = key
		if !slices.Contains(tokens.Algorithms, k.Alg) {
			tokens.Algorithms = append(tokens.Algorithms, k.Alg)
		}
	}
	tokens.Keys = ring
	size := cfg.Sessions
	if size == 0 {
		size = defaultSessions
	}
	sessions, err := bearer.NewCache[session](size)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	v := &Verifier{sessions: sessions}
	if len(ring) == 0 {
		return v, nil
	}
	v.tokens, err = bearer.New(tokens)
	return v, err
}

// Refusals that carry nothing of the request are made once; their texts do not tell an unknown key from a malformed one.
var (
	errUnauthorized = wire.Errorf(wire.Unauthorized, "")
	errKeyNotYet    = wire.Errorf(wire.Unauthorized, "the API key is not valid yet")
	errKeyExpired   = wire.Errorf(wire.KeyExpired, "")
	errAddress      = wire.Errorf(wire.Forbidden, "the API key may not be used from this address")
)

// Verify reads a raw Authorization header value and returns the principal; every failure is wire.Unauthorized,
// wire.KeyExpired or wire.Forbidden (address not allowed) and costs no database access.
//
// A key, and a token that was verified before, cost no allocation; nothing returned aliases authorization.
func (v *Verifier) Verify(snap *plans.Snapshot, authorization []byte, remote netip.Addr, now time.Time) (Principal, error) {
	credential := bearer.Credential(authorization)
	if isKey(credential) {
		return verifyKey(snap, credential, remote, now)
	}
	return v.verifyToken(snap, credential, now)
}

func verifyKey(snap *plans.Snapshot, credential []byte, remote netip.Addr, now time.Time) (Principal, error) {
	hash, ok := hashKey(credential)
	if !ok {
		return Principal{}, errUnauthorized
	}
	key := snap.KeyByHash(hash)
	switch {
	case key == nil:
		return Principal{}, errUnauthorized
	case !key.NotBefore.IsZero() && now.Before(key.NotBefore):
		return Principal{}, errKeyNotYet
	case !key.ExpiresAt.IsZero() && !now.Before(key.ExpiresAt):
		return Principal{}, errKeyExpired
	case len(key.CIDRs) > 0 && !admits(key.CIDRs, remote):
		return Principal{}, errAddress
	}
	return Principal{Key: key}, nil
}

// admits reports whether one of the networks holds the address. An IPv4 address mapped into IPv6 counts as IPv4: that
// is how a dual-stack socket shows it.
func admits(networks []netip.Prefix, remote netip.Addr) bool {
	remote = remote.Unmap().WithZone("")
	for _, n := range networks {
		if n.Contains(remote) {
			return true
		}
	}
	return false
}

func (v *Verifier) verifyToken(snap *plans.Snapshot, credential []byte, now time.Time) (Principal, error) {
	if len(credential) == 0 || v.tokens == nil {
		return Principal{}, errUnauthorized
	}
	s := v.sessions.Get(credential)
	if s == nil {
		token := string(credential)
		var err error
		if s, err = v.parseToken(token, now); err != nil {
			return Principal{}, wire.Wrap(wire.Unauthorized, fmt.Errorf("verify token: %w", err))
		}
		v.sessions.Put(token, s.expires, *s)
	}
	// Time and revocation are judged on every use; only the signature and the shape of the claims are remembered. The
	// comparisons are those of the parser, so that the first use and the next agree.
	leeway := v.tokens.Leeway()
	switch {
	case !now.Before(s.expires.Add(leeway)),
		!s.notBefore.IsZero() && now.Before(s.notBefore.Add(-leeway)),
		snap.Revoked(s.jti):
		return Principal{}, errUnauthorized
	}
	return Principal{User: s.user, JTI: s.jti, Cluster: s.cluster, Roles: s.roles}, nil
}
