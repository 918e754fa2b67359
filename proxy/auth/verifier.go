package auth

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

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

const (
	defaultLeeway   = 30 * time.Second
	defaultSessions = 16384
	maxSessions     = 1 << 24
)

// Verifier checks credentials. Safe for concurrent use.
type Verifier struct {
	issuer   string
	audience string
	leeway   time.Duration
	keys     map[string]signingKey // by key id
	algs     []string
	cache    sessionCache
}

// New returns a Verifier, or all problems of the configuration joined.
func New(cfg Config) (*Verifier, error) {
	var errs []error
	v := &Verifier{issuer: cfg.Issuer, audience: cfg.Audience, leeway: cfg.Leeway, keys: map[string]signingKey{}}
	if v.leeway == 0 {
		v.leeway = defaultLeeway
	}
	if v.leeway < 0 || v.leeway > 5*time.Minute {
		errs = append(errs, fmt.Errorf("jwt leeway = %s: want 0..5m", v.leeway))
	}
	if len(cfg.Keys) > 0 && cfg.Issuer == "" {
		errs = append(errs, errors.New("jwt issuer is empty: tokens of anybody's issuer would be believed"))
	}
	for _, k := range cfg.Keys {
		key, err := k.parse()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if _, twice := v.keys[k.KID]; twice {
			errs = append(errs, fmt.Errorf("jwt key %q is configured twice", k.KID))
		}
		v.keys[k.KID] = key
		if !slices.Contains(v.algs, key.alg) {
			v.algs = append(v.algs, key.alg)
		}
	}
	size := cfg.Sessions
	if size == 0 {
		size = defaultSessions
	}
	if size < 2 || size > maxSessions {
		errs = append(errs, fmt.Errorf("remembered sessions = %d: want 2..%d", size, maxSessions))
		size = 2
	}
	v.cache = newSessionCache(size)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return v, nil
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
	credential := bareCredential(authorization)
	if isKey(credential) {
		return verifyKey(snap, credential, remote, now)
	}
	return v.verifyToken(snap, credential, now)
}

// bareCredential returns the credential without the word Bearer, in any case, and without surrounding blanks.
func bareCredential(authorization []byte) []byte {
	const scheme = "bearer"
	b := bytes.Trim(authorization, " \t")
	if len(b) > len(scheme) && (b[len(scheme)] == ' ' || b[len(scheme)] == '\t') && bytes.EqualFold(b[:len(scheme)], []byte(scheme)) {
		b = bytes.TrimLeft(b[len(scheme):], " \t")
	}
	return b
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
	if len(credential) == 0 || len(credential) > maxTokenBytes {
		return Principal{}, errUnauthorized
	}
	s := v.cache.get(credential)
	if s == nil {
		var err error
		if s, err = v.parseToken(string(credential), now); err != nil {
			return Principal{}, wire.Wrap(wire.Unauthorized, fmt.Errorf("verify token: %w", err))
		}
		v.cache.put(s)
	}
	// Time and revocation are judged on every use; only the signature and the shape of the claims are remembered. The
	// comparisons are those of the parser, so that the first use and the next agree.
	switch {
	case !now.Before(s.expires.Add(v.leeway)),
		!s.notBefore.IsZero() && now.Before(s.notBefore.Add(-v.leeway)),
		snap.Revoked(s.jti):
		return Principal{}, errUnauthorized
	}
	return Principal{User: s.user, JTI: s.jti, Cluster: s.cluster, Roles: s.roles}, nil
}

// sessionCache remembers verified tokens: an open table of two-way sets that is bounded by construction, takes no lock
// and forgets by overwriting. It is keyed by the whole token; the seed of the hash is secret and new in each process,
// so nobody can aim at a set.
type sessionCache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[session]
}

func newSessionCache(size int) sessionCache {
	n := 2
	for n < size {
		n *= 2
	}
	return sessionCache{seed: maphash.MakeSeed(), slots: make([]atomic.Pointer[session], n)}
}

func (c *sessionCache) set(hash uint64) (first, second *atomic.Pointer[session]) {
	i := hash & uint64(len(c.slots)-1)
	return &c.slots[i], &c.slots[i^1]
}

func (c *sessionCache) get(token []byte) *session {
	first, second := c.set(maphash.Bytes(c.seed, token))
	if s := first.Load(); s != nil && s.token == string(token) {
		return s
	}
	if s := second.Load(); s != nil && s.token == string(token) {
		return s
	}
	return nil
}

// put remembers s in the freer way of its set, else in place of the session that ends first.
func (c *sessionCache) put(s *session) {
	first, second := c.set(maphash.String(c.seed, s.token))
	a, b := first.Load(), second.Load()
	if a == nil || b != nil && a.expires.Before(b.expires) {
		first.Store(s)
		return
	}
	second.Store(s)
}
