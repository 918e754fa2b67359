package plans

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// apply replaces in c what ch names by what was found of it; what was not found is gone.
func (c *catalogue) apply(ch *changes, found *catalogue) {
	if ch.all {
		*c = *found
		return
	}
	replace(c.tenants, found.tenants, ch.tenants)
	replace(c.cells, found.cells, ch.cells)
	replace(c.plans, found.plans, ch.plans)
	replace(c.clusters, found.clusters, ch.clusters)
	replace(c.operators, found.operators, ch.users)
	replace(c.roles, found.roles, ch.roles)
	replace(c.keys, found.keys, ch.keys)
	replace(c.revoked, found.revoked, ch.sessions)
	replace(c.issuers, found.issuers, ch.issuers)
	replace(c.cutoffs, found.cutoffs, ch.cutoffs)
}

func replace[K comparable, V any](all, found map[K]V, ids []K) {
	for _, id := range ids {
		if v, ok := found[id]; ok {
			all[id] = v
		} else {
			delete(all, id)
		}
	}
}

// revokedGrace is how long a revoked token is remembered beyond its end: more than any verifier's leeway.
const revokedGrace = time.Hour

// snapshot builds the snapshot that follows prev. What ch does not touch, it shares with prev: maps as a whole, and
// clusters and keys by pointer. composed are the ids of the clusters that were looked at again.
func (c *catalogue) snapshot(prev *Snapshot, ch *changes, seq int64, now time.Time) (_ *Snapshot, composed map[uuid.UUID]bool) {
	next := *prev
	next.seq = seq
	if ch.all || len(ch.cells) > 0 {
		next.cells = maps.Clone(c.cells)
	}
	if ch.all || len(ch.plans) > 0 {
		next.plans = maps.Clone(c.plans)
	}
	if ch.all || len(ch.roles) > 0 {
		next.roles = maps.Clone(c.roles)
	}
	if ch.all || len(ch.users) > 0 {
		next.operators = maps.Clone(c.operators)
	}
	if ch.all || len(ch.sessions) > 0 {
		maps.DeleteFunc(c.revoked, func(_ string, expires time.Time) bool { return now.Sub(expires) > revokedGrace })
		next.revoked = maps.Clone(c.revoked)
	}
	if ch.all || len(ch.issuers) > 0 {
		next.issuers = c.composeIssuers(prev)
	}
	if ch.all || len(ch.cutoffs) > 0 {
		next.cutoffs = indexCutoffs(slices.Collect(maps.Values(c.cutoffs)))
	}
	clusters := c.changedClusters(ch)
	if ch.all || len(clusters) > 0 {
		c.composeClusters(&next, prev, ch, clusters)
	}
	keys := c.changedKeys(ch, clusters)
	if ch.all || len(keys) > 0 {
		c.composeKeys(&next, prev, ch, keys)
	}
	return &next, clusters
}

// changedClusters returns the clusters that must be composed again: their own row, their tenant or their plan changed.
func (c *catalogue) changedClusters(ch *changes) map[uuid.UUID]bool {
	set := setOf(ch.clusters)
	if ch.all || len(ch.tenants) > 0 || len(ch.plans) > 0 {
		tenants, plans := setOf(ch.tenants), setOf(ch.plans)
		for id, row := range c.clusters {
			if ch.all || tenants[row.tenant] || plans[row.plan] {
				set[id] = true
			}
		}
	}
	return set
}

// changedKeys returns the keys that must be composed again: their own row or their cluster changed.
func (c *catalogue) changedKeys(ch *changes, clusters map[uuid.UUID]bool) map[uuid.UUID]bool {
	set := setOf(ch.keys)
	if len(clusters) > 0 {
		for id, row := range c.keys {
			if clusters[row.cluster] {
				set[id] = true
			}
		}
	}
	return set
}

func setOf[T comparable](ids []T) map[T]bool {
	set := make(map[T]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

func (c *catalogue) composeClusters(next, prev *Snapshot, ch *changes, changed map[uuid.UUID]bool) {
	if ch.all {
		prev = &Snapshot{}
		next.byID = make(map[uuid.UUID]*Cluster, len(c.clusters))
		next.bySlug = make(map[string]*Cluster, len(c.clusters))
	} else {
		next.byID, next.bySlug = maps.Clone(prev.byID), maps.Clone(prev.bySlug)
	}
	next.ordered = make([]*Cluster, 0, len(c.clusters))
	for _, cluster := range prev.ordered {
		if changed[cluster.ID] {
			delete(next.byID, cluster.ID)
			delete(next.bySlug, cluster.Slug)
		} else {
			next.ordered = append(next.ordered, cluster)
		}
	}
	// Only after all old names are gone: two clusters may have swapped theirs.
	for id := range changed {
		if cluster := c.cluster(id); cluster != nil {
			next.byID[id], next.bySlug[cluster.Slug] = cluster, cluster
			next.ordered = append(next.ordered, cluster)
		}
	}
	sortClusters(next.ordered)
}

// cluster composes one cluster, or nil when there is none. References cannot dangle in one database snapshot; should
// one all the same, nobody is let in through it.
func (c *catalogue) cluster(id uuid.UUID) *Cluster {
	row, ok := c.clusters[id]
	if !ok {
		return nil
	}
	tenant, ok := c.tenants[row.tenant]
	plan := c.plans[row.plan]
	if !ok || plan == nil {
		return nil
	}
	limits := Merge(plan.Limits, row.overrides, row.modes)
	row.policies.settle(&limits, tenant.zone)
	return &Cluster{
		ID: id, Slug: row.slug, TenantID: row.tenant, Tenant: tenant.slug, BrokerTenant: row.brokerTenant,
		Cell: row.cell, Spread: row.spread, PlanCode: row.plan, Status: max(row.status, tenant.status),
		Limits: limits, Features: plan.Features,
	}
}

func (c *catalogue) composeKeys(next, prev *Snapshot, ch *changes, changed map[uuid.UUID]bool) {
	if ch.all {
		prev = &Snapshot{}
		next.keys = make(map[uuid.UUID]*Key, len(c.keys))
		next.byHash = make(map[[sha256.Size]byte]*Key, len(c.keys))
	} else {
		next.keys, next.byHash = maps.Clone(prev.keys), maps.Clone(prev.byHash)
	}
	for id := range changed {
		if key := prev.keys[id]; key != nil {
			delete(next.keys, id)
			delete(next.byHash, key.Hash)
		}
	}
	for id := range changed {
		row, ok := c.keys[id]
		if cluster := next.byID[row.cluster]; ok && cluster != nil {
			key := row.key
			key.Cluster = cluster
			next.keys[id], next.byHash[key.Hash] = &key, &key
		}
	}
}

// composeIssuers groups the issuers by tenant. One that is as it was stays the same value, also when all was read again:
// what is remembered of its tokens and its keys hangs on it.
func (c *catalogue) composeIssuers(prev *Snapshot) map[uuid.UUID][]*Issuer {
	known := map[uuid.UUID]*Issuer{}
	for _, is := range prev.issuers {
		for _, i := range is {
			known[i.ID] = i
		}
	}
	next := map[uuid.UUID][]*Issuer{}
	for id, i := range c.issuers {
		if old := known[id]; old != nil && old.equal(i) {
			i = old
		}
		next[i.Tenant] = append(next[i.Tenant], i)
	}
	for _, is := range next {
		slices.SortFunc(is, func(a, b *Issuer) int { return cmp.Compare(a.Name, b.Name) })
	}
	return next
}
