package park

import (
	"slices"

	"github.com/google/uuid"
)

// A scope is a board that stands for several queues of a tenant: what one of them is told, the scope is told too. It has
// a name that no queue can have, and is joined like a queue. A partition may be ready in the ring of its queue and in
// those of scopes at once; the claim decides who gets it.

// Cover says which queues a scope has from now on.
func (reg *Registry) Cover(tenant uuid.UUID, scope string, queues []string) {
	s := boardKey{tenant, scope}
	want := make(map[boardKey]struct{}, len(queues))
	for _, q := range queues {
		want[boardKey{tenant, q}] = struct{}{}
	}
	reg.mu.Lock()
	defer reg.mu.Unlock()
	for q, scopes := range reg.covers {
		if _, stays := want[q]; q.tenant != tenant || stays || !slices.Contains(scopes, s) {
			continue
		}
		rest := slices.DeleteFunc(slices.Clone(scopes), func(k boardKey) bool { return k == s })
		if len(rest) == 0 {
			delete(reg.covers, q)
		} else {
			reg.covers[q] = rest
		}
	}
	for q := range want {
		if scopes := reg.covers[q]; !slices.Contains(scopes, s) {
			reg.covers[q] = append(slices.Clone(scopes), s)
		}
	}
}

// told calls f with the board of a queue and the boards of its scopes, each with its mutex held.
func (reg *Registry) told(k boardKey, f func(*board)) {
	reg.mu.RLock()
	own, scopes := reg.boards[k], reg.covers[k]
	var more []*board
	for _, s := range scopes {
		if b := reg.boards[s]; b != nil {
			more = append(more, b)
		}
	}
	reg.mu.RUnlock()
	if own != nil {
		own.mu.Lock()
		f(own)
		own.mu.Unlock()
	}
	for _, b := range more {
		b.mu.Lock()
		f(b)
		b.mu.Unlock()
	}
}

// Grow makes a prepared ring good for a newer generation of its scope, at most once: scan, called without a lock,
// registers the group on the queues that have joined and returns what is pending there. The scope covers them already,
// so partitions marked meanwhile are kept. A ring that must be prepared anew is left to that.
func (r *Ring) Grow(generation int64, scan func() ([]Pending, error)) error {
	if r.grown.Load() == generation {
		return nil
	}
	r.prepare.Lock()
	defer r.prepare.Unlock()
	if r.grown.Load() == generation || r.epoch.Load() == 0 {
		return nil
	}
	pending, err := scan()
	if err != nil {
		return err
	}
	r.add(pending)
	r.grown.Store(generation)
	return nil
}

// Grown notes, inside the scan of a Prepare, which generation of the scope the scan is of.
func (r *Ring) Grown(generation int64) { r.grown.Store(generation) }

// Rings returns the groups that read the board and the ring of each.
func (reg *Registry) Rings(tenant uuid.UUID, name string) map[string]*Ring {
	b := reg.find(boardKey{tenant, name})
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	rings := make(map[string]*Ring, b.rings.Len())
	for group, r := range b.rings.All() {
		rings[group] = r
	}
	return rings
}
