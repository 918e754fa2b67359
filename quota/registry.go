package quota

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/queengate/queengate/wire"
)

// maxNames bounds what one cluster may cost in memory (about 20 bytes a name). Beyond it the gateway stops counting
// and the broker alone decides.
const maxNames = 1 << 20

// maxJournal bounds the changes remembered during one listing; beyond it the listing is worthless and dropped.
const maxJournal = 1 << 16

// registry knows the queues and partitions of a cluster, by keyed 64-bit hashes of their names: the key is chosen at
// start, so nobody can send names that collide. Two names that do collide count as one, which lets a name through
// that the broker then counts exactly; it never refuses one wrongly.
//
// A name is known (0) or reserved by so many open admissions (> 0). The Default partition is free and never stands
// here. Not safe for concurrent use.
type registry struct {
	seed   maphash.Seed
	queues map[uint64]*queueNames
	names  int // queues plus partitions, against maxNames

	queuesKnown     bool // queues is complete
	partitionsKnown bool // and so are the partitions

	listing bool // a listing is under way: changes are kept in journal
	journal []change
}

type queueNames struct {
	known      bool
	reserved   int32
	partitions map[uint64]int32
}

// hold is one reservation of an open admission: a queue or a named partition of it.
type hold struct {
	queue, partition uint64
	named            bool // a partition; otherwise the queue itself
	fresh            bool // nobody else holds or knows it: it counts against the cap
}

func (h hold) compare(o hold) int {
	if c := cmp.Compare(h.queue, o.queue); c != 0 || h.named == o.named {
		return cmp.Or(c, cmp.Compare(h.partition, o.partition))
	}
	if h.named {
		return 1
	}
	return -1
}

// change is what happened to a name during a listing.
type change struct {
	hold
	deleted bool // the queue with all its partitions; otherwise the name was confirmed
}

// survey is what a request would do to the counts.
type survey struct {
	holds      []hold // what it must reserve; nil for known names
	queues     int    // that there are
	newQueues  int
	partitions int  // of the fullest queue it touches, with the new ones
	grows      bool // some queue gets a new named partition
	growsTo    int  // the fullest of those queues, with the new ones
}

func (r *registry) hash(name string) uint64 { return maphash.String(r.seed, name) }

// survey looks up the pairs, in scratch's memory if it suffices, and changes nothing. Partitions are ignored unless
// the plan counts them.
func (r *registry) survey(pairs []Pair, partitions bool, scratch []hold) survey {
	s := survey{holds: scratch[:0], queues: len(r.queues)}
	for i := range pairs {
		p := &pairs[i]
		q := r.hash(p.Queue)
		names := r.queues[q]
		if names == nil || !names.known {
			s.holds = append(s.holds, hold{queue: q, fresh: names == nil})
		}
		if !partitions || p.Partition == "" || p.Partition == wire.DefaultPartition {
			continue
		}
		part := r.hash(p.Partition)
		if names == nil {
			s.holds = append(s.holds, hold{queue: q, partition: part, named: true, fresh: true})
			continue
		}
		s.partitions = max(s.partitions, len(names.partitions))
		if reserved, ok := names.partitions[part]; !ok || reserved > 0 {
			s.holds = append(s.holds, hold{queue: q, partition: part, named: true, fresh: !ok})
		}
	}
	if len(s.holds) == 0 {
		return s
	}
	slices.SortFunc(s.holds, hold.compare)
	s.holds = slices.Compact(s.holds)
	s.count(r)
	return s
}

// count adds up the fresh holds, which stand together by queue.
func (s *survey) count(r *registry) {
	for i := 0; i < len(s.holds); {
		queue, fresh := s.holds[i].queue, 0
		for ; i < len(s.holds) && s.holds[i].queue == queue; i++ {
			switch h := s.holds[i]; {
			case h.fresh && h.named:
				fresh++
			case h.fresh:
				s.newQueues++
			}
		}
		if fresh == 0 {
			continue
		}
		if names := r.queues[queue]; names != nil {
			fresh += len(names.partitions)
		}
		s.grows, s.growsTo = true, max(s.growsTo, fresh)
		s.partitions = max(s.partitions, fresh)
	}
}

// reserve takes the holds of an admission.
func (r *registry) reserve(holds []hold) {
	for _, h := range holds {
		names := r.entry(h.queue)
		if !h.named {
			names.reserved++
			continue
		}
		if _, ok := names.partitions[h.partition]; !ok {
			r.names++
		}
		names.partitions[h.partition]++
	}
	if r.names > maxNames {
		r.forget()
	}
}

// entry returns the queue's names, making room for them.
func (r *registry) entry(queue uint64) *queueNames {
	names := r.queues[queue]
	if names == nil {
		if r.queues == nil {
			r.queues = make(map[uint64]*queueNames)
		}
		names = &queueNames{partitions: make(map[uint64]int32)}
		r.queues[queue] = names
		r.names++
	}
	return names
}

// confirm makes held names known: the broker has stored to them. It holds even when the queue was deleted meanwhile,
// since the store may have come after; a name too many is put right by the next listing, which every refusal on
// counts may ask for.
func (r *registry) confirm(holds []hold) {
	for _, h := range holds {
		names := r.entry(h.queue)
		names.known, names.reserved = true, 0
		if h.named {
			if _, ok := names.partitions[h.partition]; !ok {
				r.names++
			}
			names.partitions[h.partition] = 0
		}
		r.note(change{hold: h})
	}
	if r.names > maxNames {
		r.forget()
	}
}

// release gives held names back that were not stored to. What another admission has confirmed stays.
func (r *registry) release(holds []hold) {
	for _, h := range holds {
		names := r.queues[h.queue]
		if names == nil {
			continue
		}
		if !h.named {
			names.reserved = max(0, names.reserved-1)
		} else if n := names.partitions[h.partition]; n > 1 {
			names.partitions[h.partition] = n - 1
		} else if n == 1 {
			delete(names.partitions, h.partition)
			r.names--
		}
		r.drop(h.queue, names)
	}
}

// drop removes a queue that nobody knows or holds.
func (r *registry) drop(queue uint64, names *queueNames) {
	if !names.known && names.reserved == 0 && len(names.partitions) == 0 {
		delete(r.queues, queue)
		r.names--
	}
}

// deleteQueue frees a queue and its known partitions at once. What is in flight keeps its holds.
func (r *registry) deleteQueue(name string) {
	queue := r.hash(name)
	r.note(change{hold: hold{queue: queue}, deleted: true})
	names := r.queues[queue]
	if names == nil {
		return
	}
	names.known = false
	for part, reserved := range names.partitions {
		if reserved == 0 {
			delete(names.partitions, part)
			r.names--
		}
	}
	r.drop(queue, names)
}

// note keeps a change for the listing under way.
func (r *registry) note(c change) {
	if r.listing && len(r.journal) <= maxJournal {
		r.journal = append(r.journal, c)
	}
}

// forget drops all names; the counts are unknown until the next listing. Open holds end as if they had never been.
func (r *registry) forget() {
	r.queues, r.names = nil, 0
	r.queuesKnown, r.partitionsKnown = false, false
}

// begin starts a listing and returns where it is to be collected.
func (r *registry) begin() *registry {
	r.listing, r.journal = true, nil
	return &registry{seed: r.seed}
}

// add collects one pair of a listing; false means that the cluster has more names than a gateway counts.
func (r *registry) add(p Pair, partitions bool) bool {
	names := r.entry(r.hash(p.Queue))
	names.known = true
	if partitions && p.Partition != "" && p.Partition != wire.DefaultPartition {
		part := r.hash(p.Partition)
		if _, ok := names.partitions[part]; !ok {
			r.names++
			names.partitions[part] = 0
		}
	}
	return r.names <= maxNames
}

// abandon ends a listing without a result.
func (r *registry) abandon() { r.listing, r.journal = false, nil }

// adopt ends a listing: its names, with what was confirmed and deleted meanwhile and what is still held, replace the
// old ones. When too much happened meanwhile the old names stay.
func (r *registry) adopt(listed *registry, partitions bool) error {
	journal := r.journal
	r.abandon()
	if len(journal) > maxJournal {
		return errTooManyChanges
	}
	for _, c := range journal {
		if c.deleted {
			delete(listed.queues, c.queue)
			continue
		}
		names := listed.entry(c.queue)
		names.known = true
		if c.named {
			names.partitions[c.partition] = 0
		}
	}
	for queue, old := range r.queues {
		for part, reserved := range old.partitions {
			if reserved == 0 {
				continue
			}
			names := listed.entry(queue)
			if _, ok := names.partitions[part]; !ok {
				names.partitions[part] = reserved
			}
		}
		if old.reserved > 0 {
			if names := listed.entry(queue); !names.known {
				names.reserved = old.reserved
			}
		}
	}
	r.queues, r.names = listed.queues, 0
	for _, names := range r.queues {
		r.names += 1 + len(names.partitions)
	}
	r.queuesKnown, r.partitionsKnown = true, partitions
	if r.names > maxNames {
		r.forget()
		return errTooManyNames
	}
	return nil
}
