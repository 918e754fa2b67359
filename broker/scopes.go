package broker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/store"
)

// scopes are what discovery pops read here: the queues of a tenant that have a namespace, a task or both. Each has a
// board of its own, which hears what its queues are told. Which queues those are is looked up at the first pop, and
// again by the change feed when the configuration has changed; so a parked pop asks the database nothing, and a queue
// that appears is read within about a second.
type scopes struct {
	version atomic.Int64 // of the configuration by which all scopes were last looked up; -1 none

	mu    sync.Mutex // guards known
	known map[store.Scope]*scope
}

type scope struct {
	store.Scope
	name       string       // of its board; no queue can have it
	generation atomic.Int64 // grows when queues join or leave; 0: never looked up
	pops       atomic.Int64 // that read it now
	used       atomic.Int64 // when the last one ended, Unix nanoseconds

	loading sync.Mutex // held while the queues are looked up for the first time

	mu       sync.Mutex                  // guards all below
	members  map[string]int64            // ids by name; the map does not change
	followed map[string]map[string]int64 // by group: the members whose pending partitions its ring has been told
}

func newScopes() *scopes {
	s := &scopes{known: map[store.Scope]*scope{}}
	s.version.Store(-1)
	return s
}

// enter returns a scope for one pop, which must leave it.
func (ss *scopes) enter(of store.Scope) *scope {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.known[of]
	if s == nil {
		s = &scope{Scope: of, name: "\x00" + of.Namespace + "\x00" + of.Task, followed: map[string]map[string]int64{}}
		ss.known[of] = s
	}
	s.pops.Add(1)
	return s
}

func (s *scope) leave() {
	s.used.Store(time.Now().UnixNano())
	s.pops.Add(-1)
}

func (ss *scopes) all() []*scope {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return slices.Collect(maps.Values(ss.known))
}

// sweepScopes forgets scopes that nobody has read since before.
func (b *Broker) sweepScopes(before time.Time) {
	ss := b.scopes
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for of, s := range ss.known {
		if s.pops.Load() == 0 && s.used.Load() < before.UnixNano() {
			b.park.Cover(s.Tenant, s.name, nil)
			delete(ss.known, of)
		}
	}
}

// openScope looks up the queues of a scope that is new here.
func (b *Broker) openScope(s *scope) error {
	if s.generation.Load() != 0 {
		return nil
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	if s.generation.Load() != 0 {
		return nil
	}
	ctx, cancel := b.database()
	defer cancel()
	found, err := b.db.ScopeQueues(ctx, []store.Scope{s.Scope})
	if err != nil {
		return err
	}
	b.adopt(s, found[0])
	return nil
}

// adopt takes the queues of a scope as the database has them. Its board hears of the new ones from here on, so that a
// scan afterwards misses nothing.
func (b *Broker) adopt(s *scope, found []store.Member) {
	members := make(map[string]int64, len(found))
	names := make([]string, 0, len(found))
	for _, m := range found {
		members[m.Name] = m.QueueID
		names = append(names, m.Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation.Load() != 0 && maps.Equal(members, s.members) {
		return
	}
	b.park.Cover(s.Tenant, s.name, names)
	s.members = members
	s.generation.Add(1)
}

// followScopes looks up the queues of all scopes again when the configuration has changed, in one statement, and tells
// the rings what is pending in those that joined. It is called once per round of the change feed.
func (b *Broker) followScopes(ctx context.Context) error {
	all := b.scopes.all()
	if len(all) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseWait)
	defer cancel()
	if version := b.names.version.Load(); version != b.scopes.version.Load() {
		of := make([]store.Scope, len(all))
		for i, s := range all {
			of[i] = s.Scope
		}
		found, err := b.db.ScopeQueues(ctx, of)
		if err != nil {
			return err
		}
		for i, s := range all {
			b.adopt(s, found[i])
		}
		b.scopes.version.Store(version)
	}
	for _, s := range all {
		for group, ring := range b.park.Rings(s.Tenant, s.name) {
			if err := b.growScope(s, ring, group, store.Seed{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// growScope brings a ring up to the scope's generation. seed counts only for a group that is not registered.
func (b *Broker) growScope(s *scope, ring *park.Ring, group string, seed store.Seed) error {
	return ring.Grow(s.generation.Load(), func() ([]park.Pending, error) {
		s.mu.Lock()
		had := s.followed[group]
		s.mu.Unlock()
		return b.scanScope(s, ring, group, seed, had)
	})
}

// scanScope registers the group on the scope and returns what is pending in its queues except those it had.
func (b *Broker) scanScope(s *scope, ring *park.Ring, group string, seed store.Seed, had map[string]int64) ([]park.Pending, error) {
	s.mu.Lock()
	members, generation := s.members, s.generation.Load()
	s.mu.Unlock()
	var ids []int64
	for name, id := range members {
		if had[name] != id {
			ids = append(ids, id)
		}
	}
	ctx, cancel := b.database()
	defer cancel()
	conflates, err := b.db.RegisterScope(ctx, s.Scope, group, seed)
	if err != nil {
		return nil, err
	}
	found, err := b.db.PendingIn(ctx, ids, group)
	if err != nil {
		return nil, err
	}
	out := make([]park.Pending, len(found))
	for i := range found {
		out[i] = b.pending(&found[i])
		out[i].Queue = found[i].Queue
	}
	ring.SetConflating(conflates)
	ring.Grown(generation)
	s.mu.Lock()
	s.followed[group] = members
	s.mu.Unlock()
	return out, nil
}

// wholeScope is the epoch of a scope's ring: a scope has no incarnations.
const wholeScope = 1

// discover is attempt for a scope.
func (p *popping) discover() (got *claimed, looked bool, err error) {
	b, s, ring := p.b, p.scope, p.ticket.Ring()
	if err := b.openScope(s); err != nil {
		return nil, false, err
	}
	group, seed := p.key.Group, p.seed()
	if err := ring.Prepare(wholeScope, func() ([]park.Pending, error) { return b.scanScope(s, ring, group, seed, nil) }); err != nil {
		return nil, false, err
	}
	if err := b.growScope(s, ring, group, seed); err != nil {
		return nil, false, err
	}
	p.settleForm()
	ids := p.ticket.Take(p.width)
	if len(ids) == 0 {
		return nil, false, nil
	}
	names := p.ticket.Hand()
	gates := make([]store.Gate, len(ids))
	for i, name := range names {
		queue, err := b.queue(p.key.Tenant, name)
		if err != nil {
			return nil, false, err
		}
		gates[i] = p.gate(queue)
	}
	return p.claim(ids, names, gates)
}
