package broker

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestPlacesAreTakenByTheTenantsInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(1)
		if !p.enter(tenantA, 0) {
			t.Fatal("no place in an empty house")
		}
		var wg sync.WaitGroup
		var order []string
		begin := func(name string, i int) {
			wg.Go(func() {
				tenant := tenantA
				if name == "b" {
					tenant = tenantB
				}
				if !p.enter(tenant, time.Minute) {
					t.Errorf("%s%d has no place", name, i)
					return
				}
				order = append(order, fmt.Sprint(name, i)) // one at a time: there is one place
				p.leave()
			})
			synctest.Wait()
		}
		for i := range 50 {
			begin("a", i)
		}
		begin("b", 0)
		begin("b", 1)
		p.leave()
		wg.Wait()
		if got := fmt.Sprint(order[:6]); got != "[b0 a0 b1 a1 a2 a3]" {
			t.Errorf("order %s", got)
		}
		if s := p.backlog(); s.pending != 0 || s.tenants != 0 || p.free != 1 {
			t.Errorf("at rest: %+v, %d free", s, p.free)
		}
	})
}

func TestWhoGivesUpWaitingForAPlaceIsPassedOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(1)
		p.enter(tenantA, 0)
		if p.enter(tenantA, time.Second) {
			t.Fatal("two have the one place")
		}
		entered := make(chan bool, 1)
		go func() { entered <- p.enter(tenantB, time.Minute) }()
		synctest.Wait()
		p.leave()
		if !<-entered {
			t.Error("the place went to nobody")
		}
		p.leave()
		if s := p.backlog(); s.pending != 0 || p.free != 1 {
			t.Errorf("at rest: %+v, %d free", s, p.free)
		}
	})
}
