package auth

import (
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// Principal is who asks. Exactly one of Key, User and Foreign is set.
type Principal struct {
	Key     *plans.Key
	User    uuid.UUID
	Foreign *Foreign

	// Of tokens:
	JTI     string       // what its revocation is filed under; "" for a tenant's issuer that gives none
	SID     string       // JTI of the session that it was made of, or ""
	Cluster uuid.UUID    // cluster claim of a token of ours, or nil UUID
	Roles   []plans.Role // roles stated in a token of ours (a claim), or nil: then the snapshot's roles count
	Issued  time.Time    // zero: it does not say, so every cut-off counts

	Ends time.Time // when the credential ends, with the leeway of the clocks; zero: never
}

// Foreign is the bearer of a token by an issuer of the tenant's own. Immutable.
type Foreign struct {
	Issuer  *plans.Issuer
	Subject string             // "sub" of the token
	Rules   []*plans.ClaimRule // that the token meets

	source     *source
	generation uint64 // of the keys that verified it
}

// Subject is what a broker stores as a message's producer: the key's public id, the user, or the issuer's name with the
// token's subject. The colon in the last keeps an issuer from naming our keys or users.
func (p *Principal) Subject() string {
	switch {
	case p.Key != nil:
		return p.Key.PublicID
	case p.Foreign != nil:
		return p.Foreign.Issuer.Name + ":" + p.Foreign.Subject
	}
	return p.User.String()
}

// Refusals are made once: they carry nothing of the request.
var (
	errOtherCluster = wire.Errorf(wire.Forbidden, "the credential does not belong to this cluster")
	errNoScope      = wire.Errorf(wire.Forbidden, "the API key lacks the scope for this")
	errNoRole       = wire.Errorf(wire.Forbidden, "the user lacks the role for this")
	errNoRule       = wire.Errorf(wire.Forbidden, "no rule of the issuer gives this token the role for this")
	errNeverAllowed = wire.Errorf(wire.Forbidden, "no credential allows this route")
)

// grant is what a class asks for: any one of the scopes of a key, or any one of the roles of a user.
type grant struct {
	scopes plans.Scope
	roles  roleSet
}

type roleSet uint8

func rolesOf(roles ...plans.Role) (set roleSet) {
	for _, r := range roles {
		set |= 1 << r
	}
	return set
}

// grants is spec/gateway.md 4.2 by class. The admin scope implies reading, but neither producing nor consuming. A class
// that is not here asks for what nobody has.
var grants = [...]grant{
	wire.ClassProduce:    {plans.ScopeProduce, rolesOf(plans.RoleAdmin, plans.RoleProducer)},
	wire.ClassConsume:    {plans.ScopeConsume, rolesOf(plans.RoleAdmin, plans.RoleConsumer)},
	wire.ClassQueueAdmin: {plans.ScopeAdmin, rolesOf(plans.RoleAdmin)},
	wire.ClassRead: {
		plans.ScopeRead | plans.ScopeReadPayload | plans.ScopeAdmin,
		rolesOf(plans.RoleAdmin, plans.RoleProducer, plans.RoleConsumer, plans.RoleViewer),
	},
}

// payloads is what shows its holder the payloads of messages where a route of reading answers with messages. Payloads are what
// consuming is about, so who may consume may see them there too, and nobody else but by a scope for it.
var payloads = grant{plans.ScopeReadPayload | plans.ScopeConsume, rolesOf(plans.RoleAdmin, plans.RoleConsumer)}

// Allow decides whether the principal may use a route of that class on the cluster; nil or wire.Forbidden. A blocked or
// unknown class is never allowed. Safe for concurrent use; it does not allocate.
func Allow(snap *plans.Snapshot, p *Principal, c *plans.Cluster, class wire.Class) error {
	if int(class) >= len(grants) || grants[class] == (grant{}) {
		return errNeverAllowed
	}
	return p.holds(snap, c, grants[class])
}

// SeesPayloads reports whether the principal may see payloads on the cluster. Safe for concurrent use; it does not allocate.
func SeesPayloads(snap *plans.Snapshot, p *Principal, c *plans.Cluster) bool {
	return p.holds(snap, c, payloads) == nil
}

// holds decides whether the principal has on the cluster what is asked for; nil or wire.Forbidden.
func (p *Principal) holds(snap *plans.Snapshot, c *plans.Cluster, need grant) error {
	if p.Key != nil {
		if p.Key.Cluster.ID != c.ID {
			return errOtherCluster
		}
		if !p.Key.Scopes.Has(need.scopes) {
			return errNoScope
		}
		return nil
	}
	if p.Foreign != nil {
		return p.Foreign.allow(c, need)
	}
	if p.Cluster != uuid.Nil && p.Cluster != c.ID {
		return errOtherCluster
	}
	roles := p.Roles
	if roles == nil || p.issuedBefore(snap.RolesSince(p.User, c.ID)) {
		roles = snap.RoleOf(p.User, c.ID)
	}
	if rolesOf(roles...)&need.roles == 0 {
		return errNoRole
	}
	return nil
}

// allow decides by what all rules that the token meets give together.
func (f *Foreign) allow(c *plans.Cluster, need grant) error {
	if f.Issuer.Tenant != c.TenantID {
		return errOtherCluster
	}
	for _, r := range f.Rules {
		if r.Covers(c) && (r.Scopes.Has(need.scopes) || rolesOf(r.Roles...)&need.roles != 0) {
			return nil
		}
	}
	return errNoRule
}

// issuedBefore reports whether a token came into being before an instant, zero being none. One that does not say when is
// always that old.
func (p *Principal) issuedBefore(instant time.Time) bool {
	return !instant.IsZero() && p.Issued.Before(instant)
}
