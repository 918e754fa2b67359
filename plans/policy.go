package plans

import (
	"sync"
	"time"
	_ "time/tzdata" // a machine without zones must not count other months than its neighbour
)

// Unbounded says what becomes of a queue that would keep its messages without end, under a plan with a ceiling on
// retention.
type Unbounded uint8

// What the database calls allow, ceiling and refuse.
const (
	AllowUnbounded  Unbounded = iota // it may
	GiveCeiling                      // it is given the ceiling, as its options then show
	RefuseUnbounded                  // it is refused: 403, with both numbers
)

// ParseUnbounded reads the policy as it stands in the database; what it does not know allows.
func ParseUnbounded(s string) Unbounded {
	switch s {
	case "ceiling":
		return GiveCeiling
	case "refuse":
		return RefuseUnbounded
	}
	return AllowUnbounded
}

// Basis says what the monthly allowance counts.
type Basis uint8

// What the database calls push and push+delivery.
const (
	CountPushes     Basis = iota // messages stored
	CountDeliveries              // and messages delivered for the first time
)

// ParseBasis reads the basis as it stands in the database; what it does not know counts pushes.
func ParseBasis(s string) Basis {
	if s == "push+delivery" {
		return CountDeliveries
	}
	return CountPushes
}

// policies are a cluster's differences from its plan besides numbers; nil follows the plan.
type policies struct {
	unbounded *Unbounded
	basis     *Basis
}

// parsePolicies reads the columns of a cluster.
func parsePolicies(unbounded, basis *string) (p policies) {
	if unbounded != nil {
		p.unbounded = new(ParseUnbounded(*unbounded))
	}
	if basis != nil {
		p.basis = new(ParseBasis(*basis))
	}
	return p
}

// settle puts the policies and the tenant's zone into effective limits.
func (p policies) settle(l *Limits, zone Zone) {
	if p.unbounded != nil {
		l.Unbounded = *p.unbounded
	}
	if p.basis != nil {
		l.Basis = *p.basis
	}
	l.Zone = zone
}

// Zone names a time zone as the IANA database does. The zero value is UTC.
type Zone string

// zones are the locations that were found, by their names.
var zones sync.Map

// Location returns the zone's rules; those of UTC for a name that this program does not know, which a newer PostgreSQL may.
func (z Zone) Location() *time.Location {
	if found, ok := zones.Load(z); ok {
		return found.(*time.Location)
	}
	zone, err := time.LoadLocation(string(z))
	if err != nil || z == "Local" {
		zone = time.UTC
	}
	zones.Store(z, zone)
	return zone
}
