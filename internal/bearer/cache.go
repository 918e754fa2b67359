package bearer

import (
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"
)

// Cache remembers what verified tokens state: an open table of two-way sets that is bounded by construction, takes no lock
// and forgets by overwriting. It is keyed by the whole token; the seed of the hash is secret and new in each process, so
// nobody can aim at a set. It holds at most its number of tokens, each of MaxTokenBytes at most, and never decides: a
// token that is found may have ended.
type Cache[T any] struct {
	seed  maphash.Seed
	slots []atomic.Pointer[remembered[T]]
}

type remembered[T any] struct {
	token string
	ends  time.Time // zero: never
	value T
}

// maxCached bounds a cache's slots.
const maxCached = 1 << 24

// NewCache returns a cache of size tokens, 2 or more, rounded up to a power of two.
func NewCache[T any](size int) (*Cache[T], error) {
	if size < 2 || size > maxCached {
		return nil, fmt.Errorf("remembered tokens = %d: want 2..%d", size, maxCached)
	}
	n := 2
	for n < size {
		n *= 2
	}
	return &Cache[T]{seed: maphash.MakeSeed(), slots: make([]atomic.Pointer[remembered[T]], n)}, nil
}

func (c *Cache[T]) set(hash uint64) (first, second *atomic.Pointer[remembered[T]]) {
	i := hash & uint64(len(c.slots)-1)
	return &c.slots[i], &c.slots[i^1]
}

// Get returns what is remembered of a token, nil for nothing. The value is shared and must not be changed.
func (c *Cache[T]) Get(token []byte) *T {
	first, second := c.set(maphash.Bytes(c.seed, token))
	if r := first.Load(); r != nil && r.token == string(token) {
		return &r.value
	}
	if r := second.Load(); r != nil && r.token == string(token) {
		return &r.value
	}
	return nil
}

// Put remembers a token until ends, or for good when that is zero: in place of what is remembered of it, in the freer way
// of its set, else in place of the token that ends first.
func (c *Cache[T]) Put(token string, ends time.Time, value T) {
	r := &remembered[T]{token, ends, value}
	first, second := c.set(maphash.String(c.seed, token))
	a, b := first.Load(), second.Load()
	switch {
	case a == nil || a.token == token:
		first.Store(r)
	case b == nil || b.token == token:
		second.Store(r)
	case endsBefore(a.ends, b.ends):
		first.Store(r)
	default:
		second.Store(r)
	}
}

func endsBefore(a, b time.Time) bool { return !a.IsZero() && (b.IsZero() || a.Before(b)) }

// Len returns how many tokens the cache can hold.
func (c *Cache[T]) Len() int { return len(c.slots) }
