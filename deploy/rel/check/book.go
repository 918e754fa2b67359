package check

import (
	"hash/maphash"
	"maps"
	"slices"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// laneKey names a partition. All of it is strings that the harness chose.
type laneKey struct{ tenant, queue, partition string }

func (k laneKey) String() string {
	if k.tenant == "" {
		return k.queue + "/" + k.partition
	}
	return k.tenant + ":" + k.queue + "/" + k.partition
}

// txid is a transaction id, interned.
type txid uint32

// record is what is known of an offset. The first reader decides; the others must agree.
type record struct {
	hash    uint64 // of the payload
	message uint64 // hash of the message id, 0 when only fetches saw it
	created int64  // nanoseconds since 1970; whole milliseconds unless precise
	read    int64  // when the first reader had it
	op      int64  // the first reader
	tx      txid
	known   bool
	precise bool
	final   bool // read in the phase Final
	// promised: a push of it was answered queued or buffered.
	promised bool
}

// item is one message that somebody tried to push.
type item struct {
	hash     uint64
	message  uint64 // hash of the message id of the answer, 0 when there is none
	offset   int64  // as answered, -1 when there is none
	inv, ret int64
	op       int64
	tx       txid
	label    hist.Item
	bundle   bool // part of a transaction
	index    uint16
	node     uint16
	client   int32
}

// lane is everything about one partition.
type lane struct {
	key   laneKey
	queue *hist.Queue // nil when the header does not name it

	records []record // by offset
	items   []item
	groups  map[string]*cursor

	highest int64            // highest high watermark of a fetch that has come back
	highOp  int64            // and who saw it
	acked   int64            // highest offset of a push that has come back, for O6
	ackedOp int64            // and which
	starts  []start          // first offsets that are still there, as they were seen to rise
	marks   []int64          // high watermarks that were seen (T1)
	covered map[string]int64 // by broker: how far its final reads have come
	whole   bool             // the final reads of every broker cover the lane

	sorted []int32 // offsets by (tx, hash, offset), when the reading is over
}

// cursors returns the groups by name.
func (l *lane) cursors() []*cursor {
	all := make([]*cursor, 0, len(l.groups))
	for _, name := range slices.Sorted(maps.Keys(l.groups)) {
		all = append(all, l.groups[name])
	}
	return all
}

// start is a first offset of the log that somebody saw.
type start struct{ at, offset, op int64 }

// first is the highest first offset that was ever seen: everything below may have been deleted.
func (l *lane) first() int64 {
	if len(l.starts) == 0 {
		return 0
	}
	return l.starts[len(l.starts)-1].offset
}

// end is the offset behind the last one that is known to exist.
func (l *lane) end() int64 { return max(int64(len(l.records)), l.highest) }

func (l *lane) at(offset int64) *record {
	if offset < 0 || offset >= int64(len(l.records)) || !l.records[offset].known {
		return nil
	}
	return &l.records[offset]
}

// book interns names and finds partitions.
type book struct {
	header *hist.Header
	seed   maphash.Seed
	lanes  map[laneKey]*lane
	all    []*lane
	ids    map[string]txid
	names  []string // by txid
	homes  []*lane  // by txid: where it belongs, nil when the id does not say
	nodes  map[string]uint16
}

func newBook(h *hist.Header) *book {
	return &book{header: h, seed: maphash.MakeSeed(), lanes: map[laneKey]*lane{}, ids: map[string]txid{}, nodes: map[string]uint16{}}
}

func (b *book) lane(tenant, queue, partition string) *lane {
	k := laneKey{tenant, queue, partition}
	l := b.lanes[k]
	if l == nil {
		l = &lane{key: k, queue: b.header.Queue(tenant, queue), groups: map[string]*cursor{}, acked: -1, covered: map[string]int64{}}
		b.lanes[k] = l
		b.all = append(b.all, l)
	}
	return l
}

func (b *book) tx(name string) txid {
	id, ok := b.ids[name]
	if !ok {
		id = txid(len(b.names))
		b.ids[name] = id
		b.names = append(b.names, name)
		var home *lane
		if at, err := hist.ParseID(name); err == nil {
			home = b.lane(at.Tenant, at.Queue, at.Partition)
		}
		b.homes = append(b.homes, home)
	}
	return id
}

func (b *book) node(name string) uint16 {
	n, ok := b.nodes[name]
	if !ok {
		n = uint16(len(b.nodes))
		b.nodes[name] = n
	}
	return n
}

func (b *book) hash(raw []byte) uint64 { return maphash.Bytes(b.seed, raw) | 1 } // never 0, which means unknown

func (b *book) hashString(s string) uint64 {
	if s == "" || s == nilUUID {
		return 0
	}
	return maphash.String(b.seed, s) | 1
}

const nilUUID = "00000000-0000-0000-0000-000000000000"

// sortRecords orders the final records of a lane so that all of one transaction id stand together.
func (l *lane) sortRecords() {
	l.sorted = make([]int32, 0, len(l.records))
	for o := range l.records {
		if l.records[o].known {
			l.sorted = append(l.sorted, int32(o))
		}
	}
	slices.SortFunc(l.sorted, func(a, b int32) int {
		x, y := &l.records[a], &l.records[b]
		switch {
		case x.tx != y.tx:
			return compare(x.tx, y.tx)
		case x.hash != y.hash:
			return compare(x.hash, y.hash)
		}
		return compare(a, b)
	})
}

// of returns the offsets of a transaction id, by hash and offset. sortRecords must have run.
func (l *lane) of(tx txid) []int32 {
	from, _ := slices.BinarySearchFunc(l.sorted, tx, func(o int32, tx txid) int { return compare(l.records[o].tx, tx) })
	to := from
	for to < len(l.sorted) && l.records[l.sorted[to]].tx == tx {
		to++
	}
	return l.sorted[from:to]
}

// find returns the first offset of a message, -1 when it is not there. sortRecords must have run.
func (l *lane) find(tx txid, hash uint64) int64 {
	for _, o := range l.of(tx) {
		if l.records[o].hash == hash {
			return int64(o)
		}
	}
	return -1
}

func compare[T ~int32 | ~int64 | ~uint32 | ~uint64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
