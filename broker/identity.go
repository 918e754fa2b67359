package broker

import (
	"crypto/ed25519"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/internal/fair"
	"github.com/queengate/queengate/wire"
)

// identity is who asks, as the broker believes it.
type identity struct {
	tenant  uuid.UUID
	cluster string
	subject string
	access  wire.Access
	caps    store.Caps
	blind   bool // payloads are withheld
}

// verifier turns a request's credentials into an identity.
type verifier struct {
	tenancy bool
	cell    string
	keys    map[string]ed25519.PublicKey
	cache   *bearer.Cache[wire.CellClaims]
	weights *fair.Weights[uuid.UUID]
	clients *clients // nil without JWT
}

// maxCachedTokens is how many verified tokens are remembered. A gateway uses one token per cluster, level and principal
// for minutes, and a client its own, so a broker meets thousands.
const maxCachedTokens = 16384

func newVerifier(cfg *Config, weights *fair.Weights[uuid.UUID]) *verifier {
	v := &verifier{weights: weights, tenancy: cfg.Tenancy, cell: cfg.Cell, keys: cfg.Keys}
	var err error
	if v.cache, err = bearer.NewCache[wire.CellClaims](maxCachedTokens); err != nil {
		panic(err) // the size is ours
	}
	if cfg.JWT != nil {
		v.clients = newClients(cfg.JWT)
	}
	return v
}

// identify returns the identity behind a request for a path, or the verdict that refuses it. r is nil for a path, or a
// method, that does not exist.
func (v *verifier) identify(h *fasthttp.RequestHeader, path []byte, r *wire.Route, now time.Time) (identity, error) {
	if v.clients != nil {
		return v.clients.identify(h, path, r, now)
	}
	if r == nil {
		return identity{}, nil
	}
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
	// Whoever consumes is given payloads: a gateway lets nobody consume who may not see them.
	if !claims.Access.Admits(r.Access) || claims.WithholdPayloads && r.Class == wire.ClassConsume {
		return identity{}, errNoPermission
	}
	if r.Tenant && stated != claims.Tenant {
		return identity{}, wire.Errorf(wire.TenantAmbiguous, "the tenant header and the token name different tenants")
	}
	return identity{
		tenant: claims.Tenant, cluster: claims.Cluster, subject: claims.Subject, access: claims.Access,
		caps: capsOf(&claims), blind: claims.WithholdPayloads,
	}, nil
}

// capsOf is what a token says of what its bearer creates.
func capsOf(c *wire.CellClaims) store.Caps {
	caps := store.Caps{MaxQueues: c.MaxQueues, MaxPartitions: c.MaxPartitions}
	if c.RetentionCeiling != nil {
		caps.Unbounded = store.Unbounded{Ceiling: *c.RetentionCeiling, Refuse: c.RefuseUnbounded}
	}
	return caps
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
	credential, err := credentialOf(h)
	if err != nil {
		return wire.CellClaims{}, err
	}
	// The leeway for clocks that differ is not given from memory: such a token is verified every time.
	if c := v.cache.Get(credential); c != nil && now.Before(c.Expires) {
		return *c, nil
	}
	if len(credential) > bearer.MaxTokenBytes {
		return wire.CellClaims{}, &wire.Error{Code: wire.Unauthorized}
	}
	token := string(credential)
	c, err := wire.VerifyCell(v.keys, v.cell, token, now)
	if err != nil {
		return wire.CellClaims{}, wire.Wrap(wire.Unauthorized, err)
	}
	v.cache.Put(token, c.Expires, c)
	v.weights.Set(c.Tenant, weightOf(&c))
	return c, nil
}

// weightOf is what the turns of a tenant are worth, by what a gateway states of its plan. One without a rate, and one of
// whom an older gateway states nothing, is as usual.
func weightOf(c *wire.CellClaims) fair.Weight {
	if c.RequestsPerSecond == nil {
		return fair.Usual
	}
	return fair.WeightOf(*c.RequestsPerSecond)
}
