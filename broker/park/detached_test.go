package park

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAParkedTicketIsWokenOnceByWhatComesFirst(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(*Registry, *Ticket)
		want    Wake
	}{
		"a mark":    {func(reg *Registry, _ *Ticket) { reg.Mark(tenant, "orders", 1, 0, 0) }, Ready},
		"its time":  {func(*Registry, *Ticket) { time.Sleep(time.Minute) }, Deadline},
		"a hang-up": {func(_ *Registry, tk *Ticket) { tk.Abandon() }, Gone},
		"the drain": {func(reg *Registry, _ *Ticket) { reg.Drain() }, Drained},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, reg *Registry) {
				tk := reg.Join(key, Pin{})
				wakes := make(chan Wake, 2)
				if w, parked := tk.Park(time.Now().Add(time.Minute), func(w Wake) { wakes <- w }); !parked {
					t.Fatalf("not parked: %v", w)
				}
				if n := reg.Waiting(); n != 1 {
					t.Errorf("%d polls wait, want 1", n)
				}
				synctest.Wait()
				if len(wakes) != 0 {
					t.Fatal("woken by nothing")
				}
				c.happens(reg, tk)
				synctest.Wait()
				tk.Abandon() // too late to be anything
				reg.Mark(tenant, "orders", 2, 0, 0)
				time.Sleep(time.Hour)
				if len(wakes) != 1 {
					t.Fatalf("woken %d times, want once", len(wakes))
				}
				if w := <-wakes; w != c.want {
					t.Errorf("woken by %v, want %v", w, c.want)
				}
				tk.Leave()
			})
		})
	}
}

func TestATicketWithNothingToWaitForIsNotParked(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		never := func(w Wake) { t.Errorf("woken by %v", w) }
		tk := reg.Join(key, Pin{})
		defer tk.Leave()
		if w, parked := tk.Park(time.Now(), never); parked || w != Deadline {
			t.Errorf("without time: %v, %v", w, parked)
		}
		reg.Mark(tenant, "orders", 1, 0, 0)
		if w, parked := tk.Park(time.Now().Add(time.Hour), never); parked || w != Ready {
			t.Errorf("with a ready partition: %v, %v", w, parked)
		}
		reg.Drain()
		if w, parked := tk.Park(time.Now().Add(time.Hour), never); parked || w != Drained {
			t.Errorf("during the drain: %v, %v", w, parked)
		}
		synctest.Wait()
	})
}

// TestWhatAnAbandonedTicketWasHandedIsHandedOn races nothing: the hand is full when its client goes.
func TestWhatAnAbandonedTicketWasHandedIsHandedOn(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		tk := reg.Join(key, Pin{})
		woken := make(chan Wake, 1)
		tk.Park(time.Now().Add(time.Hour), func(w Wake) { woken <- w })
		reg.Mark(tenant, "orders", 1, 0, 0)
		tk.Abandon()
		if w := <-woken; w != Ready {
			t.Errorf("woken by %v", w)
		}
		next := start(reg, key, Pin{}, time.Hour, nil)
		tk.Leave()
		want(t, next, Ready, 1)
		next.ticket.Leave()
	})
}
