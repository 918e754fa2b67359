package fair

// Queue holds the items of many owners and hands them out by deficit round robin. Use New. Not safe for concurrent use.
//
// A round over the queue is Next, which says whose turn it is, followed by Spend for a part of that item's work or by
// Take for all of it.
type Queue[K comparable, T any] struct {
	quantum int64
	need    func(T) int64
	weigh   func(K) Weight
	owners  map[K]*owner[K, T] // those with something waiting
	turn    *owner[K, T]       // whose turn it is; nil when nothing waits
	spare   *owner[K, T]       // of owners that left, linked by next
	spares  int
	n       int
	turns   uint64
}

// owner is somebody with items waiting. All of them stand in a ring, in the order of their turns.
type owner[K comparable, T any] struct {
	key        K
	items      ring[T]
	credit     int64 // in parts: the unit of costs divided by Usual
	prev, next *owner[K, T]
}

// alone reports that nobody else has anything waiting.
func (o *owner[K, T]) alone() bool { return o.next == o }

// Limits of what is kept for reuse: owners that left, and the places for items of each.
const (
	maxSpares      = 1024
	maxSparePlaces = 64
)

// NoLimit is the credit of an owner that is alone: it takes from nobody.
const NoLimit = int64(1) << 62

// New returns a queue. quantum is what an owner of the usual weight may spend per turn. need is the least that must be
// spent on an item when its turn comes, at least 1: an owner waits for so much credit. weigh is asked at every turn what
// the owner weighs; nil: all weigh the same.
func New[K comparable, T any](quantum int64, need func(T) int64, weigh func(K) Weight) *Queue[K, T] {
	if weigh == nil {
		weigh = func(K) Weight { return Usual }
	}
	return &Queue[K, T]{quantum: quantum, need: need, weigh: weigh, owners: map[K]*owner[K, T]{}}
}

// Len returns the number of items waiting.
func (q *Queue[K, T]) Len() int { return q.n }

// Owners returns the number of owners that have something waiting.
func (q *Queue[K, T]) Owners() int { return len(q.owners) }

// Turns returns how often the turn has passed from one owner to another.
func (q *Queue[K, T]) Turns() uint64 { return q.turns }

// Push adds an item behind the others of its owner. An owner that had none gets its turn after all who have.
func (q *Queue[K, T]) Push(k K, item T) {
	o := q.owners[k]
	if o == nil {
		o = q.arrive(k)
	}
	o.items.push(item)
	q.n++
}

// Next returns the first item of the owner whose turn it is, and how much may be spent on it: NoLimit while the owner is
// alone. It reports false when nothing waits. Until Spend or Take it returns the same.
func (q *Queue[K, T]) Next() (item T, credit int64, ok bool) {
	if q.turn == nil {
		return item, 0, false
	}
	for {
		o := q.turn
		item = o.items.front()
		if o.alone() {
			return item, NoLimit, true
		}
		if q.need(item)*int64(Usual) <= o.credit {
			return item, o.credit / int64(Usual), true
		}
		q.pass()
	}
}

// Spend charges the owner whose turn it is, by at most its credit, for a part of its first item, which stays.
func (q *Queue[K, T]) Spend(cost int64) {
	if o := q.turn; !o.alone() {
		o.credit -= cost * int64(Usual)
	}
}

// Take removes the item that Next returned and charges its owner by at most its credit.
func (q *Queue[K, T]) Take(cost int64) {
	q.Spend(cost)
	q.drop(q.turn)
}

// Drop removes the first item of an owner that has one: what was spent on it is all it is worth.
func (q *Queue[K, T]) Drop(k K) { q.drop(q.owners[k]) }

func (q *Queue[K, T]) drop(o *owner[K, T]) {
	o.items.pop()
	q.n--
	if o.items.n == 0 {
		q.leave(o)
	}
}

// pass ends a turn and begins the next.
func (q *Queue[K, T]) pass() {
	q.turn = q.turn.next
	q.turn.credit += q.quantum * int64(q.weigh(q.turn.key))
	q.turns++
}

// arrive puts a new owner at the end of the round, which is just before the turn it is.
func (q *Queue[K, T]) arrive(k K) *owner[K, T] {
	o := q.spare
	if o == nil {
		o = new(owner[K, T])
	} else {
		q.spare, o.next = o.next, nil
		q.spares--
	}
	o.key = k
	q.owners[k] = o
	if q.turn == nil {
		o.prev, o.next = o, o
		q.turn = o
		return o
	}
	if q.turn.alone() {
		q.turn.credit = 0 // what it had left was from a time when others were there
	}
	o.prev, o.next = q.turn.prev, q.turn
	o.prev.next, o.next.prev = o, o
	return o
}

// leave takes an owner without items out of the round, and its credit with it.
func (q *Queue[K, T]) leave(o *owner[K, T]) {
	delete(q.owners, o.key)
	switch {
	case o.alone():
		q.turn = nil
	case q.turn == o:
		q.pass()
		fallthrough
	default:
		o.prev.next, o.next.prev = o.next, o.prev
	}
	*o = owner[K, T]{items: o.items}
	if q.spares < maxSpares && len(o.items.places) <= maxSparePlaces {
		o.next, q.spare = q.spare, o
		q.spares++
	}
}

// ring is a first-in, first-out queue that grows.
type ring[T any] struct {
	places  []T // length is a power of two
	head, n int
}

func (r *ring[T]) push(item T) {
	if r.n == len(r.places) {
		bigger := make([]T, max(4, 2*len(r.places)))
		for i := range r.n {
			bigger[i] = r.places[(r.head+i)&(len(r.places)-1)]
		}
		r.places, r.head = bigger, 0
	}
	r.places[(r.head+r.n)&(len(r.places)-1)] = item
	r.n++
}

func (r *ring[T]) front() T { return r.places[r.head] }

func (r *ring[T]) pop() {
	var zero T
	r.places[r.head] = zero
	r.head = (r.head + 1) & (len(r.places) - 1)
	r.n--
}
