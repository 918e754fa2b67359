package plans

import (
	"crypto/sha256"
	"net/netip"
	"time"

	"github.com/google/uuid"
)

// Status is a state of the life cycle, of a cluster or of its tenant, the better ones first: what counts is the worse of
// the two. What each lets through: docs/design/life-cycle.md.
type Status uint8

const (
	Active      Status = iota
	PushBlocked        // grace: no message is stored
	ExportOnly         // nothing is put in; what is there is read, taken out and deleted
	Paused             // nothing passes, and the answer (429) heals by itself
	Suspended          // nothing passes; also every state that this program does not know
	Deleting           // nothing passes, and what is there is being removed
)

var statusNames = [...]string{"active", "push_blocked", "export_only", "paused", "suspended", "deleting"}

// String returns the status as it stands in the database.
func (s Status) String() string { return statusNames[s] }

// ParseStatus reads a status of a cluster or a tenant; what it does not know is Suspended.
func ParseStatus(s string) Status {
	if s == "grace" {
		return PushBlocked
	}
	for i, name := range statusNames {
		if s == name {
			return Status(i)
		}
	}
	return Suspended
}

// Cluster is one namespace of queues with its plan. Immutable.
type Cluster struct {
	ID           uuid.UUID
	Slug         string
	TenantID     uuid.UUID
	Tenant       string // slug
	BrokerTenant uuid.UUID
	Cell         string // slug
	Spread       int    // over how many shares its queues are spread; 0 and 1: it has one broker
	PlanCode     string
	Status       Status
	Limits       Limits
	Features     map[string]bool
}

// Scope is what an API key may do.
type Scope uint8

const (
	ScopeProduce Scope = 1 << iota
	ScopeConsume
	ScopeAdmin
	ScopeRead
	ScopeReadPayload // ScopeRead, and payloads beside it; who may consume sees them anyway
)

var scopeNames = [...]string{"produce", "consume", "admin", "read", "read:payload"}

// ParseScopes returns the set of the named scopes; unknown names grant nothing.
func ParseScopes(names []string) Scope {
	var set Scope
	for _, name := range names {
		for i, known := range scopeNames {
			if name == known {
				set |= 1 << i
			}
		}
	}
	return set
}

// Names returns the scopes of the set as they stand in the database, in a fixed order.
func (s Scope) Names() []string {
	var names []string
	for i, name := range scopeNames {
		if s&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// Has reports whether the set and want have a scope in common.
func (s Scope) Has(want Scope) bool { return s&want != 0 }

// Key is one API key, bound to one cluster for life. Immutable.
type Key struct {
	ID        uuid.UUID
	Hash      [sha256.Size]byte // of the plaintext, which is never stored
	PublicID  string            // shown in lists and logs
	Name      string
	Cluster   *Cluster
	Scopes    Scope
	NotBefore time.Time // zero: none
	ExpiresAt time.Time // zero: never
	CIDRs     []netip.Prefix
	Limits    *KeyLimits // nil: only its cluster's count
	LimitedAs uuid.UUID  // by which id they are counted: that of the first key it was rotated from, or its own
}

// KeyLimits are what one key, together with the twins it was rotated to, may use of its cluster's plan: they come under the
// plan's, never instead of them. nil is no limit of the key's own, zero is blocked. Bursts are never nil when their rate is
// set. Their modes are those of the cluster, by the names LimitKeyRequests and LimitKeyMessages. Immutable.
type KeyLimits struct {
	RequestsPerSecond *float64
	RequestsBurst     *float64
	MessagesPerSecond *float64 // of pushes; what the key's holder is delivered counts for the cluster alone
	MessagesBurst     *float64
}

// newKeyLimits returns the limits of a key as the database has them, with every burst; nil when there are none.
func newKeyLimits(requests, requestsBurst, messages, messagesBurst *float64) *KeyLimits {
	if requests == nil && messages == nil {
		return nil
	}
	return &KeyLimits{
		RequestsPerSecond: requests, RequestsBurst: settledBurst(requests, requestsBurst),
		MessagesPerSecond: messages, MessagesBurst: settledBurst(messages, messagesBurst),
	}
}

// Role is a user's role on a cluster.
type Role uint8

const (
	RoleNone Role = iota
	RoleViewer
	RoleConsumer
	RoleProducer
	RoleAdmin
)

var roleNames = [...]string{"", "viewer", "consumer", "producer", "admin"}

// String returns the role as it stands in the database.
func (r Role) String() string { return roleNames[r] }

// ParseRole returns the named role; what it does not know is RoleNone.
func ParseRole(s string) Role {
	for i, name := range roleNames {
		if s == name {
			return Role(i)
		}
	}
	return RoleNone
}

// Cell is one broker pool.
type Cell struct {
	Slug    string
	BaseURL string // http://host:port of its brokers, separated by commas; dns+http:// for all addresses of a name
	Status  string // active, draining or dead
}
