package park

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

const scopeName = "\x00n\x00"

func TestAScopeHearsWhatItsQueuesAreTold(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		scope := Key{tenant, scopeName, "g"}
		reg.Cover(tenant, scopeName, []string{"a", "b"})
		p := start(reg, scope, Pin{}, time.Hour, nil)
		reg.Mark(tenant, "c", 9, 0, 0)
		synctest.Wait()
		if p.over() {
			t.Fatal("woken by a queue of no concern")
		}
		reg.Mark(tenant, "b", 7, 4, 0)
		want(t, p, Ready, 7)
		if q := p.ticket.Hand(); len(q) != 1 || q[0] != "b" {
			t.Errorf("the hand is of %v", q)
		}
		p.ticket.Report([]Outcome{{Kind: Leased, Until: time.Now().Add(time.Minute), Last: 4, Through: 2}})
		// The ack is told to the ring of the queue, which need not exist.
		next := start(reg, scope, Pin{}, time.Hour, nil)
		reg.Release(Key{tenant, "b", "g"}, 7, 2, 4)
		want(t, next, Ready, 7)
		next.ticket.Report([]Outcome{{Kind: Acked, Last: 4, Through: 4}})
		reg.Cover(tenant, scopeName, []string{"a"})
		last := start(reg, scope, Pin{}, time.Minute, nil)
		reg.Mark(tenant, "b", 7, 5, 0)
		time.Sleep(time.Minute)
		want(t, last, Deadline)
		reg.Cover(tenant, scopeName, nil)
		if len(reg.covers) != 0 {
			t.Errorf("%d queues are still covered", len(reg.covers))
		}
		for _, tk := range []*Ticket{p.ticket, next.ticket, last.ticket} {
			tk.Leave()
		}
	})
}

func TestARingGrowsOncePerGeneration(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		tk := reg.Join(Key{tenant, scopeName, "g"}, Pin{})
		defer tk.Leave()
		ring := tk.Ring()
		scans := 0
		scan := func() ([]Pending, error) {
			scans++
			return []Pending{{Queue: "a", Partition: int64(scans), Last: 1, Committed: -1}}, nil
		}
		if err := ring.Grow(1, scan); err != nil || scans != 0 {
			t.Fatalf("grew before it was prepared: %d scans, %v", scans, err)
		}
		if err := ring.Prepare(1, func() ([]Pending, error) { ring.Grown(1); return scan() }); err != nil {
			t.Fatal(err)
		}
		away := errors.New("away")
		if err := ring.Grow(2, func() ([]Pending, error) { return nil, away }); err != away {
			t.Fatalf("a failed scan: %v", err)
		}
		for range 2 {
			for _, generation := range []int64{1, 2} {
				if generation == 2 || ring.grown.Load() == 1 {
					if err := ring.Grow(generation, scan); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if ids := tk.Take(9); scans != 2 || len(ids) != 2 {
			t.Errorf("%d scans, took %v", scans, ids)
		}
	})
}

func TestAWatchHearsOfItsPartitions(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		w := reg.Watch(tenant, []Interest{{"q", 1}, {"q", 1}, {"r", 0}})
		wait := func() (Wake, time.Duration) {
			begin := time.Now()
			return w.Wait(begin.Add(time.Minute), nil), time.Since(begin)
		}
		go func() {
			time.Sleep(time.Second)
			reg.Mark(tenant, "q", 2, 0, 0) // of no concern
			time.Sleep(time.Second)
			reg.Mark(tenant, "q", 1, 0, 0)
		}()
		if got, d := wait(); got != Ready || d != 2*time.Second {
			t.Errorf("%v after %v", got, d)
		}
		reg.Mark(tenant, "r", 99, 0, 0) // before the wait
		if got, d := wait(); got != Ready || d != 0 {
			t.Errorf("news before the wait: %v after %v", got, d)
		}
		if got, d := wait(); got != Deadline || d != time.Minute {
			t.Errorf("no news: %v after %v", got, d)
		}
		gone := make(chan struct{})
		close(gone)
		if got := w.Wait(time.Now().Add(time.Hour), gone); got != Gone {
			t.Errorf("a client that is gone: %v", got)
		}
		reg.Sweep(time.Now().Add(time.Hour))
		if reg.Boards() == 0 {
			t.Error("boards that are watched were dropped")
		}
		reg.Drain()
		if got, _ := wait(); got != Drained {
			t.Errorf("draining: %v", got)
		}
		w.Leave()
		reg.Sweep(time.Now().Add(time.Hour))
		if n := reg.Boards(); n != 0 {
			t.Errorf("%d boards are left", n)
		}
	})
}
