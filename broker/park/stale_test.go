package park

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A reset reaches everybody: who is parked, who is about to park, and who is reading the database at that moment.
func TestAResetIsMissedByNobody(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		scans := 0
		scan := func() ([]Pending, error) { scans++; return nil, nil }
		other := start(reg, Key{Tenant: tenant, Queue: "orders", Group: "other"}, Pin{}, time.Minute, nil)
		polls := []*poll{
			start(reg, key, Pin{}, time.Minute, nil),
			start(reg, key, Pin{ID: 7}, time.Minute, nil),
			start(reg, key, Pin{Name: "later"}, time.Minute, nil),
		}
		tk := reg.Join(key, Pin{})
		defer tk.Leave()
		if err := tk.Ring().Prepare(1, scan); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		reg.ResetGroup(key)
		synctest.Wait()
		for i, p := range polls {
			if !p.over() || p.wake != Ready {
				t.Errorf("poll %d: over %v, woken by %v", i, p.over(), p.wake)
			}
			p.ticket.Leave()
		}
		if other.over() {
			t.Error("a poll of another group was woken")
		}
		// Between its look at the database and its wait.
		if w := tk.Wait(time.Now().Add(time.Minute), nil); w != Ready {
			t.Errorf("about to park: %v", w)
		}
		// A failed look must not make it forget.
		away := errors.New("away")
		if err := tk.Ring().Prepare(1, func() ([]Pending, error) { return nil, away }); !errors.Is(err, away) {
			t.Error(err)
		}
		if w := tk.Wait(time.Now().Add(time.Minute), nil); w != Ready {
			t.Errorf("after a failed look: %v", w)
		}
		// While the database is being read.
		resets := 0
		if err := tk.Ring().Prepare(1, func() ([]Pending, error) {
			if resets++; resets == 1 {
				reg.ResetGroup(key)
				return []Pending{{Partition: 1, Last: 1, Committed: -1}}, nil
			}
			return []Pending{{Partition: 2, Last: 1, Committed: -1}}, nil
		}); err != nil || resets != 2 {
			t.Errorf("%d looks, want 2 (%v)", resets, err)
		}
		if ids := tk.Take(9); fmt.Sprint(ids) != "[2]" {
			t.Errorf("took %v, want what the second look found", ids)
		}
		// The queue as a whole.
		reg.Forget(tenant, "orders")
		synctest.Wait()
		if !other.over() {
			t.Error("a poll of a deleted queue was not woken to register anew")
		}
		other.ticket.Leave()
		if err := tk.Ring().Prepare(1, scan); err != nil || scans != 2 {
			t.Errorf("%d scans, want 2 (%v)", scans, err)
		}
		if w := tk.Wait(time.Now().Add(time.Second), nil); w != Deadline {
			t.Errorf("when all is good again: %v", w)
		}
	})
}
