package quota

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"time"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// namesPerCall bounds the names of one call to Redis: about a tenth of a millisecond of its time.
const namesPerCall = 128

// group is one queue with partitions of it, as Redis knows them: by 128 bits of SHA-256, since gateways share them and
// nobody may choose names that collide.
type group struct {
	queue, key string
	partitions []string
}

func nameHash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// unknown returns the pairs with a name that no broker has been seen to have.
func (r *registry) unknown(pairs []Pair, partitions bool) (unknown []Pair) {
	for _, p := range pairs {
		names := r.queues[r.hash(p.Queue)]
		named := partitions && p.Partition != "" && p.Partition != wire.DefaultPartition
		if names != nil && names.known {
			if !named {
				continue
			}
			if reserved, ok := names.partitions[r.hash(p.Partition)]; ok && reserved == 0 {
				continue
			}
		}
		if !named {
			p.Partition = ""
		}
		unknown = append(unknown, p)
	}
	return unknown
}

// groupPairs puts pairs together by queue; they may repeat.
func groupPairs(k *keys, pairs []Pair) (groups []group) {
	places := make(map[string]int, 1)
	seen := make(map[Pair]struct{}, len(pairs))
	for _, p := range pairs {
		if _, again := seen[p]; again {
			continue
		}
		seen[p] = struct{}{}
		i, ok := places[p.Queue]
		if !ok {
			i, places[p.Queue] = len(groups), len(groups)
			hash := nameHash(p.Queue)
			groups = append(groups, group{queue: hash, key: k.partition + hash})
		}
		if p.Partition != "" && p.Partition != wire.DefaultPartition {
			groups[i].partitions = append(groups[i].partitions, nameHash(p.Partition))
		}
	}
	return groups
}

// chunks cuts groups into parts of at most namesPerCall names.
func chunks(groups []group, each func([]group)) {
	var part []group
	room := namesPerCall
	for _, g := range groups {
		rest := g.partitions
		for first := true; first || len(rest) > 0; first = false {
			if room < 2 {
				each(part)
				part, room = nil, namesPerCall
			}
			n := min(len(rest), room-1)
			part = append(part, group{g.queue, g.key, rest[:n]})
			rest, room = rest[n:], room-1-n
		}
	}
	if len(part) > 0 {
		each(part)
	}
}

// namesCall is one call of names.lua.
func (f *fleet) namesCall(k *keys, what string, stamp int64, groups []group, now time.Time) *call {
	x := &call{script: namesScript, keys: []string{k.names, k.queues}, args: []any{f.ask(now), what, stamp, len(groups)}}
	for _, g := range groups {
		x.keys = append(x.keys, g.key)
		x.args = append(x.args, g.queue, len(g.partitions))
		for _, p := range g.partitions {
			x.args = append(x.args, p)
		}
	}
	return x
}

// endNames confirms or releases reserved names of a locked ledger. What is not said because Redis is away ends by
// itself, and the next listing counts what is there.
func (f *fleet) endNames(l *ledger, s *partaking, held []group, what string, now time.Time) {
	if !s.mirrors {
		l.listed.wanted = l.listed.wanted || what == "confirm"
		return
	}
	chunks(held, func(part []group) { f.pipe.send(s.keys.lane, f.namesCall(&s.keys, what, 0, part, now)) })
	f.pipe.push(s.keys.lane)
}

// heed takes what a call heard of the names in Redis: counts that nobody has listed are listed, and after a deletion
// elsewhere nothing is believed to exist.
func (f *fleet) heed(l *ledger, s *partaking, r *reply) {
	if !r.known {
		l.listed.wanted = true
	}
	if s.generation >= 0 && r.generation != s.generation {
		l.acc.names.forget()
	}
	s.generation = r.generation
}

// admitMany is admit for a request with more new names than one call takes: they are reserved part by part, then the
// rest is decided at once. A part that does not fit refuses the request as a whole, unless its rate does before.
func (f *fleet) admitMany(c *plans.Cluster, a *Ask, pairs []Pair, now time.Time) (*Admission, Report, *wire.Error) {
	g := f.gate
	t := g.at(now)
	var held []group
	var prior told
	l := g.open(c, t)
	s := f.join(l, c.ID, t)
	chunks(groupPairs(&s.keys, pairs), func(part []group) {
		if prior.over != 0 || !s.mirrors {
			return
		}
		e := f.begin(t, now)
		e.act = actDecide
		e.names(&l.acc, a.Cost, part)
		x := &call{script: decideScript, done: make(chan struct{})}
		e.fill(x, f, s)
		f.pipe.send(s.keys.lane, x)
		l.mu.Unlock()
		f.pipe.await(s.keys.lane, x)
		l.mu.Lock()
		l.acc.apply(&c.Limits, t)
		r, ok := e.read(x)
		if !ok {
			f.join(l, c.ID, t)
			return
		}
		f.heed(l, s, &r)
		before := prior
		prior = *e.told(&r, nil)
		if prior.queues = int(r.queues); before.mask != 0 {
			prior.queues, prior.newQueues = before.queues, before.newQueues+prior.newQueues
			prior.partitions, prior.growsTo = max(before.partitions, prior.partitions), max(before.growsTo, prior.growsTo)
		}
		if r.known && !r.denied {
			held = append(held, part...)
		}
	})
	d := &l.desk
	d.begin(&l.acc, c, *a, false, now, t)
	if !s.mirrors {
		defer l.mu.Unlock()
		f.stats.local.Inc()
		adm, report, err := g.decide(l, d, now)
		return f.keep(l, s, adm, held, now), report, err
	}
	q := f.question(d)
	q.pairs = nil
	return f.central(l, s, c, a, &q, held, &prior, now)
}

// queueDeleted tells the fleet that a queue is gone.
func (f *fleet) queueDeleted(l *ledger, c *plans.Cluster, queue string, now time.Time) {
	s := f.join(l, c.ID, f.gate.at(now))
	if !s.mirrors {
		return // the next listing counts what is there
	}
	x := f.namesCall(&s.keys, "delete", 0, groupPairs(&s.keys, []Pair{{Queue: queue}}), now)
	x.then = func(x *call) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if x.err == nil && s.generation >= 0 && x.reply[1] == s.generation+1 {
			s.generation = x.reply[1] // ours: this gateway has forgotten the queue already
		}
	}
	f.pipe.send(s.keys.lane, x)
	f.pipe.push(s.keys.lane)
}

// sharedSeeder lists the names of a cluster for this gateway and, by the way, for the fleet.
type sharedSeeder struct {
	fleet *fleet
	inner Seeder
}

// Seed implements Seeder. Whatever Redis answers, the listing is this gateway's.
func (s sharedSeeder) Seed(ctx context.Context, c *plans.Cluster, each func(Pair) error) error {
	up := upload{fleet: s.fleet, keys: s.fleet.keysOf(c.ID)}
	up.stamp = up.run("listed", nil, 0)
	err := s.inner.Seed(ctx, c, func(p Pair) error {
		if err := each(p); err != nil {
			return err
		}
		up.add(p)
		return nil
	})
	if err == nil {
		up.finish()
	}
	return err
}

// upload is a listing on its way to Redis, a chunk at a time.
type upload struct {
	fleet  *fleet
	keys   keys
	stamp  int64 // when it began, on Redis's clock; 0: Redis does not answer
	pairs  []Pair
	queues map[string]struct{}
}

// run makes one call and returns Redis's time, or 0.
func (u *upload) run(what string, groups []group, more int64) int64 {
	x := u.fleet.namesCall(&u.keys, what, u.stamp, groups, u.fleet.listingTime())
	x.done = make(chan struct{})
	u.fleet.pipe.send(u.keys.lane, x)
	u.fleet.pipe.await(u.keys.lane, x)
	if x.err != nil {
		return 0
	}
	if more == 1 {
		return x.reply[1]
	}
	return x.reply[0]
}

func (u *upload) add(p Pair) {
	if u.stamp == 0 {
		return
	}
	if u.queues == nil {
		u.queues = make(map[string]struct{})
	}
	u.queues[p.Queue] = struct{}{}
	if u.pairs = append(u.pairs, p); len(u.pairs) == namesPerCall/2 {
		u.flush()
	}
}

func (u *upload) flush() {
	groups := groupPairs(&u.keys, u.pairs)
	u.pairs = u.pairs[:0]
	if u.stamp != 0 && len(groups) > 0 && u.run("listed", groups, 0) == 0 {
		u.stamp = 0
	}
}

// finish says that the listing is complete: what it did not find goes.
func (u *upload) finish() {
	u.flush()
	for queue := range u.queues {
		if u.pairs = append(u.pairs, Pair{Queue: queue}); len(u.pairs) == namesPerCall/2 {
			u.prune()
		}
	}
	u.prune()
	for u.stamp != 0 && u.run("finish", nil, 1) == 1 {
	}
}

func (u *upload) prune() {
	groups := groupPairs(&u.keys, u.pairs)
	u.pairs = u.pairs[:0]
	if u.stamp != 0 && len(groups) > 0 && u.run("prune", groups, 0) == 0 {
		u.stamp = 0
	}
}
