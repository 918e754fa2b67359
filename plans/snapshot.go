package plans

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Snapshot is everything a gateway needs to decide, as of one instant. Immutable; safe for concurrent use. What it
// returns belongs to it and must not be changed. The zero Snapshot is empty: it knows nobody.
type Snapshot struct {
	seq       int64
	byID      map[uuid.UUID]*Cluster
	bySlug    map[string]*Cluster
	ordered   []*Cluster // by slug
	keys      map[uuid.UUID]*Key
	byHash    map[[sha256.Size]byte]*Key
	roles     map[uuid.UUID]map[uuid.UUID][]Role // user, cluster; inner maps are never changed
	operators map[uuid.UUID]bool
	revoked   map[string]time.Time    // token id, when the token ends anyway
	issuers   map[uuid.UUID][]*Issuer // by tenant, a few each
	cutoffs   map[cutoffKey]time.Time
	cells     map[string]*Cell
	plans     map[string]*Plan
}

// ClusterBySlug returns the cluster, or nil.
func (s *Snapshot) ClusterBySlug(slug string) *Cluster { return s.bySlug[slug] }

// ClusterByID returns the cluster, or nil.
func (s *Snapshot) ClusterByID(id uuid.UUID) *Cluster { return s.byID[id] }

// KeyByHash returns the live (not revoked) key with that SHA-256, or nil. Expiry is the caller's to check.
func (s *Snapshot) KeyByHash(hash [sha256.Size]byte) *Key {
	k := s.byHash[hash]
	// A map compares as it likes; the last word is of constant time.
	if k == nil || subtle.ConstantTimeCompare(k.Hash[:], hash[:]) != 1 {
		return nil
	}
	return k
}

// KeyByID returns the live (not revoked) key, or nil.
func (s *Snapshot) KeyByID(id uuid.UUID) *Key { return s.keys[id] }

// RoleOf returns the user's roles on the cluster (a set; a user may hold several), empty when none.
func (s *Snapshot) RoleOf(user, cluster uuid.UUID) []Role { return s.roles[user][cluster] }

// Operator reports whether the user is an operator of the service. A cell must also allow operators.
func (s *Snapshot) Operator(user uuid.UUID) bool { return s.operators[user] }

// Revoked reports whether the token id was revoked.
func (s *Snapshot) Revoked(jti string) bool {
	_, revoked := s.revoked[jti]
	return revoked
}

// Issuer returns the tenant's active issuer of that "iss", exactly, or nil. Another tenant's is never found.
func (s *Snapshot) Issuer(tenant uuid.UUID, iss string) *Issuer {
	for _, i := range s.issuers[tenant] {
		if i.URL == iss {
			return i
		}
	}
	return nil
}

// TokensSince returns the instant before which tokens of a tenant, a user or an issuer do not count, or an issuer's of one
// subject; zero when there is none.
func (s *Snapshot) TokensSince(of uuid.UUID, subject string) time.Time {
	if len(s.cutoffs) == 0 {
		return time.Time{}
	}
	return s.cutoffs[cutoffKey{of: of, subject: subject}]
}

// RolesSince returns the instant before which the roles that tokens of the user state of the cluster do not count; zero
// when there is none.
func (s *Snapshot) RolesSince(user, cluster uuid.UUID) time.Time {
	if len(s.cutoffs) == 0 {
		return time.Time{}
	}
	return s.cutoffs[cutoffKey{of: cluster, user: user}]
}

// Cell returns the cell, or nil.
func (s *Snapshot) Cell(slug string) *Cell { return s.cells[slug] }

// Cells returns all cells in slug order, in a slice of the caller's.
func (s *Snapshot) Cells() []*Cell {
	return slices.SortedFunc(maps.Values(s.cells), func(a, b *Cell) int { return cmp.Compare(a.Slug, b.Slug) })
}

// Plan returns the plan as the catalogue has it, or nil.
func (s *Snapshot) Plan(code string) *Plan { return s.plans[code] }

// Clusters returns all clusters in slug order.
func (s *Snapshot) Clusters() []*Cluster { return s.ordered }

// Seq is the sequence of the last change the snapshot holds.
func (s *Snapshot) Seq() int64 { return s.seq }

// Grant is a user's roles on a cluster.
type Grant struct {
	User, Cluster uuid.UUID
	Roles         []Role
}

// Facts are the contents of a snapshot that is composed by hand, without a database.
type Facts struct {
	Seq       int64
	Clusters  []*Cluster // with their effective limits
	Keys      []*Key     // with Hash and Cluster
	Grants    []Grant
	Operators []uuid.UUID
	Revoked   []string // token ids
	Issuers   []*Issuer
	Cutoffs   []Cutoff
	Cells     []*Cell
	Plans     []*Plan
}

// Compose returns a snapshot of the facts, which must not be changed afterwards.
func Compose(f Facts) *Snapshot {
	s := &Snapshot{
		seq: f.Seq, byID: map[uuid.UUID]*Cluster{}, bySlug: map[string]*Cluster{}, ordered: slices.Clone(f.Clusters),
		keys: map[uuid.UUID]*Key{}, byHash: map[[sha256.Size]byte]*Key{}, roles: map[uuid.UUID]map[uuid.UUID][]Role{},
		operators: map[uuid.UUID]bool{}, revoked: map[string]time.Time{}, cells: map[string]*Cell{}, plans: map[string]*Plan{},
		issuers: map[uuid.UUID][]*Issuer{}, cutoffs: indexCutoffs(f.Cutoffs),
	}
	for _, c := range f.Clusters {
		s.byID[c.ID], s.bySlug[c.Slug] = c, c
	}
	sortClusters(s.ordered)
	for _, k := range f.Keys {
		s.keys[k.ID], s.byHash[k.Hash] = k, k
	}
	for _, g := range f.Grants {
		if s.roles[g.User] == nil {
			s.roles[g.User] = map[uuid.UUID][]Role{}
		}
		s.roles[g.User][g.Cluster] = g.Roles
	}
	for _, u := range f.Operators {
		s.operators[u] = true
	}
	for _, jti := range f.Revoked {
		s.revoked[jti] = time.Time{}
	}
	for _, i := range f.Issuers {
		s.issuers[i.Tenant] = append(s.issuers[i.Tenant], i)
	}
	for _, c := range f.Cells {
		s.cells[c.Slug] = c
	}
	for _, p := range f.Plans {
		s.plans[p.Code] = p
	}
	return s
}

func sortClusters(cs []*Cluster) {
	slices.SortFunc(cs, func(a, b *Cluster) int { return cmp.Compare(a.Slug, b.Slug) })
}
