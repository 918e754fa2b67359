// Package small has a map for keys of which there are mostly one or two: the partitions of a queue, its groups. A Go map
// takes 150 to 250 bytes for its first entry; ten thousand idle queues have several such maps each.
package small

import "iter"

// few is up to how many entries are kept in a slice: looking through them is then no slower than hashing.
const few = 4

// Map is a map from K to V. The zero Map is empty and ready to use. Not safe for concurrent use.
type Map[K comparable, V any] struct {
	list []entry[K, V] // exactly as long as it has entries: append would make room for more
	many map[K]V       // instead of list, once there were more than few
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

// Len returns the number of entries.
func (m *Map[K, V]) Len() int { return len(m.list) + len(m.many) }

// Get returns the value of k.
func (m *Map[K, V]) Get(k K) (v V, ok bool) {
	if m.many != nil {
		v, ok = m.many[k]
		return v, ok
	}
	for i := range m.list {
		if m.list[i].key == k {
			return m.list[i].value, true
		}
	}
	return v, false
}

// At returns the value of k, or the zero one.
func (m *Map[K, V]) At(k K) V {
	v, _ := m.Get(k)
	return v
}

// Put adds or replaces the value of k and reports whether k is new.
func (m *Map[K, V]) Put(k K, v V) (added bool) {
	for i := range m.list {
		if m.list[i].key == k {
			m.list[i].value = v
			return false
		}
	}
	switch {
	case m.many == nil && len(m.list) < few:
		list := make([]entry[K, V], len(m.list)+1)
		copy(list, m.list)
		list[len(m.list)] = entry[K, V]{k, v}
		m.list = list
		return true
	case m.many == nil:
		m.many = make(map[K]V, 2*few)
		for i := range m.list {
			m.many[m.list[i].key] = m.list[i].value
		}
		m.list = nil
	}
	before := len(m.many)
	m.many[k] = v
	return len(m.many) > before
}

// Delete removes k, if it is there. A map that was large stays one until it is empty.
func (m *Map[K, V]) Delete(k K) {
	if m.many != nil {
		if delete(m.many, k); len(m.many) == 0 {
			m.many = nil
		}
		return
	}
	for i := range m.list {
		if m.list[i].key != k {
			continue
		}
		last := len(m.list) - 1
		m.list[i] = m.list[last]
		m.list[last] = entry[K, V]{}
		if m.list = m.list[:last]; last == 0 {
			m.list = nil
		}
		return
	}
}

// All yields the entries in no order. The loop may replace or delete the entry at hand, and change nothing else.
func (m *Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if m.many != nil {
			for k, v := range m.many {
				if !yield(k, v) {
					return
				}
			}
			return
		}
		// From the end: a deletion puts the last one in its place, which was visited.
		for i := len(m.list) - 1; i >= 0; i-- {
			if e := m.list[i]; !yield(e.key, e.value) {
				return
			}
		}
	}
}
