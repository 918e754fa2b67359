package broker

import (
	"bytes"
	"crypto/ed25519"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// identity is who asks, as the broker believes it.
type identity struct {
	tenant  uuid.UUID
	cluster string
	subject string
	access  wire.Access
	caps    store.Caps
}

// verifier turns a request's credentials into an identity.
type verifier struct {
	tenancy bool
	cell    string
	keys    map[string]ed25519.PublicKey

	mu          sync.Mutex // guards the two generations
	young, aged map[string]wire.CellClaims
}

// maxCachedTokens bounds each generation of verified tokens. A gateway uses one token per cluster, level and principal
// for minutes, so a cell meets thousands; a full generation pushes the older one out.
const maxCachedTokens = 8192

// identify returns the identity behind a request for a route, or the verdict that refuses it.
func (v *verifier) identify(h *fasthttp.RequestHeader, r *wire.Route, now time.Time) (identity, error) {
	if r.Access == wire.AccessPublic {
		return identity{access: wire.AccessPublic}, nil
	}
	if !v.tenancy && r.Access != wire.AccessInternal {
		return identity{tenant: DefaultTenant, access: wire.AccessAdmin}, nil
	}
	// Whether the request states one tenant is its shape and reveals nothing, so it is judged before the credential:
	// a request without a statement, or with two, is malformed whoever sends it.
	var stated uuid.UUID
	if r.Tenant {
		var err error
		if stated, err = tenantHeader(h); err != nil {
			return identity{}, err
		}
	}
	claims, err := v.token(h, now)
	if err != nil {
		return identity{}, err
	}
	if !claims.Access.Admits(r.Access) {
		return identity{}, wire.Errorf(wire.Forbidden, "Insufficient permissions")
	}
	if r.Tenant && stated != claims.Tenant {
		return identity{}, wire.Errorf(wire.TenantAmbiguous, "the tenant header and the token name different tenants")
	}
	return identity{
		tenant: claims.Tenant, cluster: claims.Cluster, subject: claims.Subject, access: claims.Access,
		caps: store.Caps{MaxQueues: claims.MaxQueues, MaxPartitions: claims.MaxPartitions},
	}, nil
}

func tenantHeader(h *fasthttp.RequestHeader) (uuid.UUID, error) {
	switch sent := h.PeekAll(wire.HeaderTenant); len(sent) {
	case 0:
		return uuid.UUID{}, &wire.Error{Code: wire.TenantRequired}
	case 1:
		if len(sent[0]) == 0 {
			return uuid.UUID{}, &wire.Error{Code: wire.TenantRequired}
		}
		tenant, err := uuid.ParseBytes(sent[0])
		if err != nil || len(sent[0]) != 36 {
			return uuid.UUID{}, wire.Errorf(wire.InvalidRequest, "invalid x-queen-tenant header (must be a UUID)")
		}
		return tenant, nil
	default:
		return uuid.UUID{}, &wire.Error{Code: wire.TenantAmbiguous}
	}
}

func (v *verifier) token(h *fasthttp.RequestHeader, now time.Time) (wire.CellClaims, error) {
	sent := h.PeekAll(fasthttp.HeaderAuthorization)
	if len(sent) > 1 {
		return wire.CellClaims{}, wire.Errorf(wire.InvalidRequest, "the request carries more than one credential")
	}
	if len(sent) == 0 {
		return wire.CellClaims{}, wire.Errorf(wire.Unauthorized, "Authentication required")
	}
	token := sent[0]
	if scheme, rest, ok := bytes.Cut(token, []byte{' '}); ok && bytes.EqualFold(scheme, []byte("Bearer")) {
		token = bytes.TrimLeft(rest, " ")
	}
	if c, ok := v.cached(token, now); ok {
		return c, nil
	}
	c, err := wire.VerifyCell(v.keys, v.cell, string(token), now)
	if err != nil {
		return wire.CellClaims{}, wire.Wrap(wire.Unauthorized, err)
	}
	v.remember(string(token), c)
	return c, nil
}

// cached returns what a token was found to state, until it expires. The leeway for clocks that differ is not given
// from memory: such a token is verified every time.
func (v *verifier) cached(token []byte, now time.Time) (wire.CellClaims, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c, ok := v.young[string(token)]
	if !ok {
		if c, ok = v.aged[string(token)]; ok {
			v.rememberLocked(string(token), c)
		}
	}
	return c, ok && now.Before(c.Expires)
}

func (v *verifier) remember(token string, c wire.CellClaims) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rememberLocked(token, c)
}

func (v *verifier) rememberLocked(token string, c wire.CellClaims) {
	if len(v.young) >= maxCachedTokens {
		v.aged, v.young = v.young, nil
	}
	if v.young == nil {
		v.young = map[string]wire.CellClaims{}
	}
	v.young[token] = c
}
