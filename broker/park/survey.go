package park

import "github.com/google/uuid"

// Parked calls each for every queue on which somebody waits, with the number of waiting polls. each must not call back.
func (reg *Registry) Parked(each func(tenant uuid.UUID, queue string, polls int)) {
	reg.each(func(b *board) {
		polls := 0
		for _, r := range b.rings.All() {
			polls += r.waiters.len + r.holders.len
			for _, l := range r.pinned {
				polls += l.len
			}
			for _, ts := range r.unnamed {
				polls += len(ts)
			}
		}
		if polls > 0 {
			each(b.key.tenant, b.key.queue, polls)
		}
	})
}

// WakeResting ends every Rest with Ready: what they rested for is over.
func (reg *Registry) WakeResting() {
	reg.each(func(b *board) {
		for _, r := range b.rings.All() {
			for n := r.holders.front; n != nil; {
				t := n.value
				n = n.next // waking takes it out of the list
				if t.width == 0 {
					t.wakeLocked(Ready)
				}
			}
		}
	})
}
