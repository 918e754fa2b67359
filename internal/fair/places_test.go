package fair_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queengate/queengate/internal/fair"
)

func TestPlacesAreTakenByTheOwnersInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fair.NewPlaces[string](1, 1, 100, nil)
		if !p.Enter("a", 0, 0, nil) {
			t.Fatal("no place in an empty house")
		}
		var wg sync.WaitGroup
		var order []string
		begin := func(name string, i int) {
			wg.Go(func() {
				if !p.Enter(name, 0, time.Minute, nil) {
					t.Errorf("%s%d has no place", name, i)
					return
				}
				order = append(order, fmt.Sprint(name, i)) // one at a time: there is one place
				p.Leave()
			})
			synctest.Wait()
		}
		for i := range 50 {
			begin("a", i)
		}
		begin("b", 0)
		begin("b", 1)
		p.Leave()
		wg.Wait()
		if got := fmt.Sprint(order[:6]); got != "[b0 a0 b1 a1 a2 a3]" {
			t.Errorf("order %s", got)
		}
		if s := p.Stats(); s.Waiting != 0 || s.Owners != 0 || s.Free != 1 {
			t.Errorf("at rest: %+v", s)
		}
	})
}

func TestWhoGivesUpWaitingForAPlaceIsPassedOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fair.NewPlaces[string](1, 1, 100, nil)
		p.Enter("a", 0, 0, nil)
		if p.Enter("a", 0, time.Second, nil) {
			t.Fatal("two have the one place")
		}
		entered := make(chan bool, 1)
		go func() { entered <- p.Enter("b", 0, time.Minute, nil) }()
		synctest.Wait()
		p.Leave()
		if !<-entered {
			t.Error("the place went to nobody")
		}
		p.Leave()
		if s := p.Stats(); s.Waiting != 0 || s.Free != 1 {
			t.Errorf("at rest: %+v", s)
		}
	})
}

func TestWhoQuitsIsPassedOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fair.NewPlaces[string](1, 1, 100, nil)
		p.Enter("a", 0, 0, nil)
		quit := make(chan struct{})
		entered := make(chan bool, 2)
		go func() { entered <- p.Enter("a", 0, time.Minute, quit) }()
		synctest.Wait()
		begin := time.Now()
		close(quit)
		if <-entered || time.Since(begin) > 0 {
			t.Error("who quits has waited, or has a place")
		}
		p.Leave()
		if s := p.Stats(); s.Waiting != 0 || s.Free != 1 {
			t.Errorf("at rest: %+v", s)
		}
	})
}

// TestClassesGoInTheirOrder: a later class waits while one before it does, whoever comes.
func TestClassesGoInTheirOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fair.NewPlaces[string](1, 3, 100, nil)
		p.Enter("x", 0, 0, nil)
		var wg sync.WaitGroup
		var order []string
		for _, class := range []int{2, 1, 2, 0, 1, 0} {
			wg.Go(func() {
				if !p.Enter("a", class, time.Minute, nil) {
					t.Errorf("class %d has no place", class)
					return
				}
				order = append(order, fmt.Sprint(class))
				p.Leave()
			})
			synctest.Wait()
		}
		p.Leave()
		wg.Wait()
		if got := fmt.Sprint(order); got != "[0 0 1 1 2 2]" {
			t.Errorf("order %s", got)
		}
	})
}

// TestAFloodOfAClassLeavesRoomInTheOthers: what an owner has waiting in one class takes nothing from it in another.
func TestAFloodOfAClassLeavesRoomInTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fair.NewPlaces[string](1, 2, 10, nil)
		p.Enter("a", 0, 0, nil)
		var wg sync.WaitGroup
		let := make([]bool, 8)
		for i := range let {
			class := 1
			if i == len(let)-1 {
				class = 0
			}
			wg.Go(func() {
				if let[i] = p.Enter("a", class, time.Minute, nil); let[i] {
					p.Leave()
				}
			})
			synctest.Wait()
		}
		p.Leave()
		wg.Wait()
		if got := fmt.Sprint(let); got != "[true true true true true false false true]" {
			t.Errorf("let in: %s", got)
		}
		if s := p.Stats(); s.Refused != 2 || s.Waiting != 0 || s.Free != 1 {
			t.Errorf("at rest: %+v", s)
		}
	})
}
