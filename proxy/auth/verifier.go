package auth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// Config says which tokens are believed. Without Keys there are only API keys and the tokens of tenants' issuers.
type Config struct {
	Issuer   string         // "iss" of our own tokens, exactly; required when there are keys
	Audience string         // when set, "aud" of our own tokens must contain it
	Leeway   time.Duration  // clock difference granted to exp, nbf and iat; 0 means 30 s
	Keys     []KeyConfig    // several are valid at once, so that keys can be rotated
	Sessions int            // verified tokens remembered; 0 means 16384; rounded up to a power of two
	Foreign  *ForeignConfig // nil: tenants' issuers are not believed
}

const defaultSessions = 16384

// Verifier checks credentials. Run keeps the keys of tenants' issuers fresh. Safe for concurrent use.
type Verifier struct {
	issuer   string           // of our own tokens
	tokens   *bearer.Verifier // of our own; nil: there are none
	foreign  *sources         // of keys of tenants' issuers; nil: there are none
	leeway   time.Duration
	sessions *bearer.Cache[session]
}

// Request is a credential with what its judgement depends on.
type Request struct {
	Authorization []byte     // the header's value
	Remote        netip.Addr // where the request comes from
	// Tenant is that of the cluster which the request names by its host, or on a shared host by the cluster it acts on; nil
	// for none. Tokens of that tenant's issuers are believed, and of nobody else's.
	Tenant uuid.UUID
	Now    time.Time
	// Prompt: do not wait for keys that would have to be fetched.
	Prompt bool
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
	v := &Verifier{issuer: cfg.Issuer, leeway: tokens.Leeway, sessions: sessions}
	if cfg.Foreign != nil {
		v.foreign = newSources(*cfg.Foreign)
	}
	if len(ring) == 0 {
		return v, nil
	}
	v.tokens, err = bearer.New(tokens)
	return v, err
}

// Refusals that carry nothing of the request are made once; their texts do not tell an unknown key from a malformed one.
var (
	errUnauthorized = wire.Errorf(wire.Unauthorized, "")
	errKeyUnknown   = wire.Errorf(wire.Unauthorized, "")
	errKeyNotYet    = wire.Errorf(wire.Unauthorized, "the API key is not valid yet")
	errKeyExpired   = wire.Errorf(wire.KeyExpired, "")
	errAddress      = wire.Errorf(wire.Forbidden, "the API key may not be used from this address")
)

// KeyUnknown reports whether e, which came of Verify, says that a key is not in the snapshot. It may be newer.
func KeyUnknown(e *wire.Error) bool { return e == errKeyUnknown }

// Run keeps the keys of tenants' issuers fresh until ctx ends. Without it they are fetched when a token asks for them, and
// used until they are too old.
func (v *Verifier) Run(ctx context.Context) error {
	if v.foreign != nil {
		v.foreign.run(ctx)
	}
	<-ctx.Done()
	return nil
}

// OnKeysChanged registers f to be called when the keys of a tenant's issuer have changed, without a lock held. Before the
// Verifier is used only.
func (v *Verifier) OnKeysChanged(f func()) {
	if v.foreign != nil {
		v.foreign.changed = f
	}
}

// Verify returns the principal of a credential; every failure is wire.Unauthorized, wire.KeyExpired or wire.Forbidden
// (address not allowed) and costs no database access. It blocks only for a token of a tenant's issuer whose keys are not
// there, for one fetch at most, and never if the request is Prompt.
//
// A key, and a token that was verified before, cost no allocation; nothing returned aliases the request.
func (v *Verifier) Verify(snap *plans.Snapshot, r Request) (Principal, error) {
	credential := bearer.Credential(r.Authorization)
	if isKey(credential) {
		return verifyKey(snap, credential, r.Remote, r.Now)
	}
	return v.verifyToken(snap, credential, &r)
}

// Stands reports whether a principal that was believed on a cluster of the tenant would be believed at a later time and by
// a later snapshot. If not, the credential must be verified again, which may find it good all the same. It does not block.
func (v *Verifier) Stands(snap *plans.Snapshot, p *Principal, tenant uuid.UUID, now time.Time) bool {
	switch {
	case !p.Ends.IsZero() && !now.Before(p.Ends):
		return false
	case p.Key != nil:
		return snap.KeyByID(p.Key.ID) == p.Key
	}
	return p.current(snap, tenant, now) && !p.revoked(snap, tenant)
}

func verifyKey(snap *plans.Snapshot, credential []byte, remote netip.Addr, now time.Time) (Principal, error) {
	hash, ok := hashKey(credential)
	if !ok {
		return Principal{}, errUnauthorized
	}
	key := snap.KeyByHash(hash)
	switch {
	case key == nil:
		return Principal{}, errKeyUnknown
	case !key.NotBefore.IsZero() && now.Before(key.NotBefore):
		return Principal{}, errKeyNotYet
	case !key.ExpiresAt.IsZero() && !now.Before(key.ExpiresAt):
		return Principal{}, errKeyExpired
	case len(key.CIDRs) > 0 && !admits(key.CIDRs, remote):
		return Principal{}, errAddress
	}
	return Principal{Key: key, Ends: key.ExpiresAt}, nil
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

func (v *Verifier) verifyToken(snap *plans.Snapshot, credential []byte, r *Request) (Principal, error) {
	if len(credential) == 0 {
		return Principal{}, errUnauthorized
	}
	s := v.sessions.Get(credential)
	if s == nil || !s.principal.current(snap, r.Tenant, r.Now) {
		token := string(credential)
		var err error
		if s, err = v.parseToken(snap, token, r); err != nil {
			return Principal{}, wire.Wrap(wire.Unauthorized, fmt.Errorf("verify token: %w", err))
		}
		v.sessions.Put(token, s.principal.Ends, *s)
	}
	// Time and revocation are judged on every use; only the signature and the shape of the claims are remembered. The
	// comparisons are those of the parser, so that the first use and the next agree.
	p := s.principal
	switch {
	case !r.Now.Before(p.Ends), !s.notBefore.IsZero() && r.Now.Before(s.notBefore), p.revoked(snap, r.Tenant):
		return Principal{}, errUnauthorized
	}
	return p, nil
}

// current reports whether what a token was believed by is as it was: its issuer is the tenant's, with the same rules and
// the same keys. A token of ours depends on nothing of that kind.
func (p *Principal) current(snap *plans.Snapshot, tenant uuid.UUID, now time.Time) bool {
	f := p.Foreign
	return f == nil || snap.Issuer(tenant, f.Issuer.URL) == f.Issuer && f.source.stillServes(f.generation, now)
}

// revoked reports whether the token, its session, or the tokens of its time were revoked. tenant is that of the cluster
// where it is used, as far as it is known.
func (p *Principal) revoked(snap *plans.Snapshot, tenant uuid.UUID) bool {
	if p.JTI != "" && snap.Revoked(p.JTI) || p.SID != "" && snap.Revoked(p.SID) {
		return true
	}
	if c := snap.ClusterByID(p.Cluster); c != nil {
		tenant = c.TenantID
	}
	if p.issuedBefore(snap.TokensSince(tenant, "")) {
		return true
	}
	if f := p.Foreign; f != nil {
		return p.issuedBefore(snap.TokensSince(f.Issuer.ID, "")) || p.issuedBefore(snap.TokensSince(f.Issuer.ID, f.Subject))
	}
	return p.issuedBefore(snap.TokensSince(p.User, ""))
}
