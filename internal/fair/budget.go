package fair

// Budget bounds what is waiting, of all owners together and of each. Use NewBudget. Not safe for concurrent use.
//
// The rule is that an owner may hold as much as is free: alone half of the limit, two at most a third each, n the
// (n+1)th part. So whoever fills its share is refused while the others are not, and the shares shrink by themselves as
// more owners come. What an owner held before it keeps until it is done; it is only not given more. A newcomer finds the
// (n+1)th part free: it may take that at once, or half of it bit by bit, until the others are down to their new share.
// (The dynamic thresholds of Choudhury and Hahne, 1998, with a factor of one.)
type Budget[K comparable] struct {
	limit   int64
	used    int64
	held    map[K]int64 // by owners that hold something
	refused uint64
}

// NewBudget returns a budget of limit in all.
func NewBudget[K comparable](limit int64) *Budget[K] {
	return &Budget[K]{limit: limit, held: map[K]int64{}}
}

// Hold gives the owner cost of the budget until Release, or refuses. While nobody holds anything it refuses nothing: what
// is larger than its share passes alone rather than never.
func (b *Budget[K]) Hold(k K, cost int64) bool {
	if own := b.held[k]; b.used > 0 && own+cost > b.limit-b.used {
		b.refused++
		return false
	}
	b.held[k] += cost
	b.used += cost
	return true
}

// Release gives back what Hold gave.
func (b *Budget[K]) Release(k K, cost int64) {
	b.used -= cost
	if left := b.held[k] - cost; left > 0 {
		b.held[k] = left
	} else {
		delete(b.held, k)
	}
}

// Used returns what all owners hold together.
func (b *Budget[K]) Used() int64 { return b.used }

// Owners returns the number of owners that hold something.
func (b *Budget[K]) Owners() int { return len(b.held) }

// Refused returns how often Hold has refused.
func (b *Budget[K]) Refused() uint64 { return b.refused }
