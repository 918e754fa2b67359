package auth

import (
	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// Principal is who asks. Exactly one of Key and User is set.
type Principal struct {
	Key     *plans.Key
	User    uuid.UUID
	JTI     string
	Cluster uuid.UUID    // cluster claim of a token, or nil UUID
	Roles   []plans.Role // roles stated in the token itself (a claim), or nil: then the snapshot's roles count
}

// Subject is the key's public id or the user: what a broker stores as a message's producer.
func (p *Principal) Subject() string {
	if p.Key != nil {
		return p.Key.PublicID
	}
	return p.User.String()
}

// Refusals are made once: they carry nothing of the request.
var (
	errOtherCluster = wire.Errorf(wire.Forbidden, "the credential does not belong to this cluster")
	errNoScope      = wire.Errorf(wire.Forbidden, "the API key lacks the scope for this")
	errNoRole       = wire.Errorf(wire.Forbidden, "the user lacks the role for this")
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
		plans.ScopeRead | plans.ScopeAdmin,
		rolesOf(plans.RoleAdmin, plans.RoleProducer, plans.RoleConsumer, plans.RoleViewer),
	},
}

// Allow decides whether the principal may use a route of that class on the cluster; nil or wire.Forbidden. A blocked or
// unknown class is never allowed. Safe for concurrent use; it does not allocate.
func Allow(snap *plans.Snapshot, p *Principal, c *plans.Cluster, class wire.Class) error {
	if int(class) >= len(grants) || grants[class] == (grant{}) {
		return errNeverAllowed
	}
	need := grants[class]
	if p.Key != nil {
		if p.Key.Cluster.ID != c.ID {
			return errOtherCluster
		}
		if !p.Key.Scopes.Has(need.scopes) {
			return errNoScope
		}
		return nil
	}
	if p.Cluster != uuid.Nil && p.Cluster != c.ID {
		return errOtherCluster
	}
	roles := p.Roles
	if roles == nil {
		roles = snap.RoleOf(p.User, c.ID)
	}
	if rolesOf(roles...)&need.roles == 0 {
		return errNoRole
	}
	return nil
}
