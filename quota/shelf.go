package quota

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/queengate/queengate/quota/meter"
)

// Shelf keeps what could not be saved of months beyond the life of a gateway; *meter.File is the real one. Calls are serial.
type Shelf interface {
	Read() ([]meter.Unsaved, error)
	Write([]meter.Unsaved) error // as a whole; nothing clears it
}

// WithShelf names where a gate puts what it has counted of months while the control database is away. Without it that is
// lost when the gate stops before the database is back.
func WithShelf(s Shelf) Option { return func(g *Gate) { g.months.shelf = s } }

// recall takes from the shelf, once, what earlier lives of this gateway have left there. Until it could, nothing is put there:
// that would take the place of what was not read.
func (g *Gate) recall() error {
	ms := &g.months
	if ms.shelf == nil || ms.recalled {
		return nil
	}
	left, damaged := ms.shelf.Read()
	if damaged != nil { // then it was put aside, and the next look finds none
		var err error
		if left, err = ms.shelf.Read(); err != nil {
			return err
		}
		g.log.Error("what months had used when the gateway stopped is not known", "err", damaged)
	}
	ms.left, ms.shelved, ms.recalled = left, len(left) > 0, true
	return nil
}

// saveLeft saves what earlier lives have left, under their names: counts are whole, so one that was saved before a crash is
// not added. Months that may have been folded are given up, since a count of those would be.
func (g *Gate) saveLeft(ctx context.Context) error {
	ms := &g.months
	this, _, _ := meter.MonthOf(g.clock(), nil)
	for len(ms.left) > 0 {
		u := &ms.left[0]
		u.Counts = slices.DeleteFunc(u.Counts, func(c meter.Count) bool { return c.Month <= this-foldAfter })
		for len(u.Counts) > 0 {
			n := min(len(u.Counts), saveBatch)
			if _, err := ms.store.Save(ctx, u.Gateway, u.Counts[:n]); err != nil {
				return fmt.Errorf("save what months had used when the gateway stopped: %w", err)
			}
			u.Counts = u.Counts[n:]
		}
		ms.left = ms.left[1:]
	}
	return nil
}

// shelve puts on the shelf what is not saved, after a round that failed, and clears it after one that did not.
func (g *Gate) shelve(failed bool) error {
	ms := &g.months
	if ms.shelf == nil || !ms.recalled || !failed && !ms.shelved {
		return nil
	}
	var all []meter.Unsaved
	if failed {
		all = append(slices.Clone(ms.left), g.owed())
	}
	if err := ms.shelf.Write(all); err != nil {
		return err
	}
	ms.shelved = slices.ContainsFunc(all, func(u meter.Unsaved) bool { return len(u.Counts) > 0 })
	return nil
}

// owed is what this life has counted and not saved. Of a month of which it does not know what it goes on from it has
// counted all there is of it, unless it has forgotten the cluster before: then nobody knows what to save as a whole.
func (g *Gate) owed() meter.Unsaved {
	ms := &g.months
	ms.mu.Lock()
	due := maps.Clone(ms.dirty)
	ms.mu.Unlock()
	u := meter.Unsaved{Gateway: g.name}
	for id, l := range due {
		l.mu.Lock()
		m, first := &l.acc.month, !ms.hasForgotten(id)
		if (m.known || first) && m.own > m.saved {
			u.Counts = append(u.Counts, meter.Count{Cluster: id, Month: m.month, Messages: m.own})
		}
		if (m.pastKnown || first) && m.past.own > m.past.saved {
			u.Counts = append(u.Counts, meter.Count{Cluster: id, Month: m.past.month, Messages: m.past.own})
		}
		l.mu.Unlock()
	}
	return u
}

// forget notes that the gate gives up the ledger of a cluster of which it has counted.
func (ms *months) forget(id uuid.UUID) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.forgotten[id] = struct{}{}
}

func (ms *months) hasForgotten(id uuid.UUID) bool {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	_, ok := ms.forgotten[id]
	return ok
}
