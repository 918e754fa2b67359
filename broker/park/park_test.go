package park

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

var (
	tenant = uuid.MustParse("11111111-1111-1111-1111-111111111111")
	key    = Key{Tenant: tenant, Queue: "orders", Group: "g"}
)

// bubble runs f in a synctest bubble with a registry of its own.
func bubble(t *testing.T, f func(t *testing.T, reg *Registry)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := New(100)
		f(t, reg)
		synctest.Wait()
		if n := reg.Waiting(); n != 0 {
			t.Errorf("%d polls still count as parked", n)
		}
		reg.Close()
	})
}

// poll waits in the background and reports how its wait ended and what it was given.
type poll struct {
	ticket *Ticket
	done   chan struct{}
	wake   Wake
	ids    []int64
	ended  time.Time
}

func (p *poll) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func start(reg *Registry, k Key, pin Pin, timeout time.Duration, gone <-chan struct{}) *poll {
	p := &poll{ticket: reg.Join(k, pin), done: make(chan struct{})}
	until := time.Now().Add(timeout)
	go func() {
		defer close(p.done)
		p.wake = p.ticket.Wait(until, gone)
		p.ended = time.Now()
		p.ids = p.ticket.Take(1)
	}()
	synctest.Wait()
	return p
}

func want(t *testing.T, p *poll, w Wake, ids ...int64) {
	t.Helper()
	synctest.Wait()
	if !p.over() {
		t.Fatal("the poll still waits")
	}
	if p.wake != w || fmt.Sprint(p.ids) != fmt.Sprint(ids) {
		t.Errorf("woken by %v with %v, want %v with %v", p.wake, p.ids, w, ids)
	}
}

func TestAPushBetweenClaimAndWaitIsNotMissed(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		tk := reg.Join(key, Pin{})
		defer tk.Leave()
		if ids := tk.Take(1); ids != nil {
			t.Fatalf("took %v from an empty ring", ids)
		}
		reg.Mark(tenant, "orders", 7, 0, 0) // before the wait
		if w := tk.Wait(time.Now().Add(time.Hour), nil); w != Ready {
			t.Fatalf("woken by %v, want Ready", w)
		}
		ids := tk.Take(1)
		if len(ids) != 1 || ids[0] != 7 {
			t.Fatalf("took %v, want [7]", ids)
		}
		// A mark while the claim runs that the claim cannot have seen makes the partition ready again.
		reg.Mark(tenant, "orders", 7, 3, 0)
		tk.Report([]Outcome{{Kind: Empty, Last: 0}})
		if ids := tk.Take(1); len(ids) != 1 {
			t.Error("the mark during the claim is lost")
		}
		tk.Report([]Outcome{{Kind: Acked, Last: 3, Through: 3}})
		reg.Mark(tenant, "orders", 7, 3, 0) // late news of the same offset
		if ids := tk.Take(1); ids != nil {
			t.Errorf("took %v for an offset that was consumed", ids)
		}
	})
}

func TestReadyPartitionsWakeAsManyWaitersInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		var polls []*poll
		for range 5 {
			polls = append(polls, start(reg, key, Pin{}, time.Hour, nil))
		}
		for id := int64(1); id <= 3; id++ {
			reg.Mark(tenant, "orders", id, 0, 0)
		}
		synctest.Wait()
		for i, p := range polls {
			if p.over() != (i < 3) {
				t.Errorf("poll %d woken: %v", i, p.over())
			}
		}
		for i := range 3 {
			want(t, polls[i], Ready, int64(i+1))
		}
		reg.Mark(tenant, "orders", 4, 0, 0)
		want(t, polls[3], Ready, 4)
		if n := reg.Wakes(); n != 4 {
			t.Errorf("%d wakes, want 4", n)
		}
		reg.Drain()
		want(t, polls[4], Drained)
		for _, p := range polls {
			p.ticket.Leave()
		}
	})
}

func TestEveryGroupIsWoken(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		a := start(reg, Key{tenant, "orders", "a"}, Pin{}, time.Hour, nil)
		b := start(reg, Key{tenant, "orders", "b"}, Pin{}, time.Hour, nil)
		foreign := start(reg, Key{uuid.New(), "orders", "a"}, Pin{}, time.Minute, nil)
		reg.Mark(tenant, "orders", 1, 0, 0)
		want(t, a, Ready, 1)
		want(t, b, Ready, 1)
		time.Sleep(time.Minute)
		want(t, foreign, Deadline)
	})
}

func TestDeadlineEndsAPollOnTime(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		begin := time.Now()
		late := start(reg, key, Pin{}, 9*time.Second, nil)
		soon := start(reg, key, Pin{}, 3*time.Second, nil)
		time.Sleep(10 * time.Second)
		want(t, late, Deadline)
		want(t, soon, Deadline)
		if d := soon.ended.Sub(begin); d != 3*time.Second {
			t.Errorf("ended after %v, want 3s", d)
		}
		if d := late.ended.Sub(begin); d != 9*time.Second {
			t.Errorf("ended after %v, want 9s", d)
		}
		if w := late.ticket.Wait(time.Now(), nil); w != Deadline {
			t.Errorf("a wait without time: %v, want Deadline", w)
		}
	})
}

func TestAPollThatGoesHandsOnWhatItWasGiven(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		gone := make(chan struct{})
		first := reg.Join(key, Pin{})
		ended := make(chan Wake, 1)
		go func() { ended <- first.Wait(time.Now().Add(time.Hour), gone) }()
		synctest.Wait()
		second := start(reg, key, Pin{}, time.Hour, nil)
		close(gone)
		synctest.Wait()
		if w := <-ended; w != Gone {
			t.Fatalf("woken by %v, want Gone", w)
		}
		first.Leave()
		reg.Mark(tenant, "orders", 1, 0, 0)
		want(t, second, Ready, 1)
		second.ticket.Leave() // with the partition in its hand
		third := start(reg, key, Pin{}, time.Hour, nil)
		want(t, third, Ready, 1)
		third.ticket.Leave()
	})
}

func TestALeaseThatExpiresWakes(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		tk := reg.Join(key, Pin{})
		reg.Mark(tenant, "orders", 1, 4, 0)
		tk.Take(1)
		tk.Report([]Outcome{{Kind: Leased, Until: time.Now().Add(30 * time.Second), Last: 4, Through: 4}})
		tk.Leave()
		begin := time.Now()
		p := start(reg, key, Pin{}, time.Hour, nil)
		reg.Mark(tenant, "orders", 1, 9, 0) // more behind a lease wakes nobody
		synctest.Wait()
		if p.over() {
			t.Fatal("woken by a mark behind a live lease")
		}
		reg.Extend(key, 1, begin.Add(40*time.Second))
		time.Sleep(time.Minute)
		want(t, p, Ready, 1)
		if d := p.ended.Sub(begin); d != 40*time.Second {
			t.Errorf("woken after %v, want when the extended lease ends", d)
		}
		p.ticket.Leave()
	})
}

func TestAReleasedLeaseWakesOnlyWhenMoreIsPending(t *testing.T) {
	for name, c := range map[string]struct {
		committed int64
		woken     bool
	}{
		"everything acknowledged":  {4, false},
		"negative acknowledgement": {1, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, reg *Registry) {
				tk := reg.Join(key, Pin{})
				reg.Mark(tenant, "orders", 1, 4, 0)
				tk.Take(1)
				tk.Report([]Outcome{{Kind: Leased, Until: time.Now().Add(time.Hour), Last: 4, Through: 4}})
				tk.Leave()
				p := start(reg, key, Pin{}, time.Minute, nil)
				reg.Release(key, 1, c.committed, 4)
				synctest.Wait()
				if p.over() != c.woken {
					t.Errorf("woken: %v, want %v", p.over(), c.woken)
				}
				time.Sleep(2 * time.Minute)
				p.ticket.Leave()
			})
		})
	}
}

func TestDelayedMessagesWakeWhenTheyBecomeVisible(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		tk := reg.Join(key, Pin{})
		reg.Mark(tenant, "orders", 1, 0, 0)
		tk.Take(1)
		begin := time.Now()
		tk.Report([]Outcome{{Kind: Empty, Last: 0, Until: begin.Add(5 * time.Second)}})
		tk.Leave()
		p := start(reg, key, Pin{}, time.Hour, nil)
		time.Sleep(6 * time.Second)
		want(t, p, Ready, 1)
		if d := p.ended.Sub(begin); d != 5*time.Second {
			t.Errorf("woken after %v, want 5s", d)
		}
		p.ticket.Leave()
	})
}

func TestWhatGathersIsOfferedWhenItIsFull(t *testing.T) {
	for name, c := range map[string]struct {
		seen, meanwhile, later int64 // last offset: as the claim saw it, when it reports, and marked afterwards
		full                   int64
		woken                  bool
	}{
		"a mark fills it":                     {7, 7, 9, 5, true},
		"a mark does not fill it":             {7, 7, 8, 5, false},
		"a mark during the claim has":         {7, 9, 9, 5, true},
		"full for the claim: something else":  {9, 9, 20, 5, false},
		"nothing but time ends it: no number": {7, 7, 99, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, reg *Registry) {
				tk := reg.Join(key, Pin{})
				reg.Mark(tenant, "orders", 1, c.seen, 0)
				tk.Take(1)
				reg.Mark(tenant, "orders", 1, c.meanwhile, 0)
				tk.Report([]Outcome{{Kind: Empty, Last: c.seen, Through: 4, Full: c.full, Until: time.Now().Add(time.Minute)}})
				tk.Leave()
				p := start(reg, key, Pin{}, time.Hour, nil)
				reg.Mark(tenant, "orders", 1, c.later, 0)
				synctest.Wait()
				if p.over() != c.woken {
					t.Errorf("woken: %v, want %v", p.over(), c.woken)
				}
				time.Sleep(2 * time.Minute)
				want(t, p, Ready, 1) // its time has come in any case
				p.ticket.Leave()
			})
		})
	}
}

func TestAClockThatIsAheadDoesNotSpin(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		tk := reg.Join(key, Pin{})
		defer tk.Leave()
		reg.Mark(tenant, "orders", 1, 0, 0)
		begin := time.Now()
		for range 10 {
			if tk.Wait(begin.Add(time.Hour), nil) != Ready || len(tk.Take(1)) != 1 {
				t.Fatal("not handed the partition")
			}
			tk.Report([]Outcome{{Kind: Foreign, Until: time.Now().Add(-time.Second)}})
		}
		if d := time.Since(begin); d < 9*earliestRevisit {
			t.Errorf("ten looks in %v", d)
		}
	})
}

func TestPinnedPollsWaitForTheirPartitionAlone(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		look := func(id int64) *poll {
			p := &poll{ticket: reg.Join(key, Pin{Name: "p"}), done: make(chan struct{})}
			if err := p.ticket.Lookup(func() (int64, error) { return id, nil }); err != nil {
				t.Fatal(err)
			}
			go func() {
				defer close(p.done)
				p.wake = p.ticket.Wait(time.Now().Add(time.Hour), nil)
				p.ids = p.ticket.Take(1)
			}()
			synctest.Wait()
			return p
		}
		two := look(2)
		any := start(reg, key, Pin{}, time.Hour, nil)
		reg.Mark(tenant, "orders", 1, 0, 0)
		want(t, any, Ready, 1)
		if two.over() {
			t.Fatal("a pinned poll was woken by another partition")
		}
		reg.Mark(tenant, "orders", 2, 0, 0)
		want(t, two, Ready, 2)
		two.ticket.Leave()
		any.ticket.Leave()
	})
}

func TestAPartitionThatAppearsWakesWhoWaitsForItsName(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		wait := func(during func()) (*Ticket, chan Wake) {
			tk := reg.Join(key, Pin{Name: "p"})
			if err := tk.Lookup(func() (int64, error) { during(); return 0, nil }); err != nil {
				t.Fatal(err)
			}
			c := make(chan Wake, 1)
			go func() { c <- tk.Wait(time.Now().Add(time.Hour), nil) }()
			synctest.Wait()
			return tk, c
		}
		a, woken := wait(func() {})
		if len(woken) != 0 {
			t.Fatal("woken although nothing appeared")
		}
		reg.Mark(tenant, "orders", 5, 0, 0)
		if s := reg.Strangers(); len(s) != 1 || len(s[0].Partitions) != 1 || s[0].Partitions[0] != "p" {
			t.Fatalf("strangers: %+v", s)
		}
		if s := reg.Strangers(); s != nil {
			t.Errorf("asked twice: %+v", s)
		}
		reg.Named(tenant, "orders", "p", 5)
		if w := <-woken; w != Ready {
			t.Errorf("woken by %v", w)
		}
		a.Leave()
		b, woken := wait(func() { reg.Named(tenant, "orders", "p", 5) })
		if w := <-woken; w != Ready {
			t.Errorf("an appearance during the look-up: woken by %v", w)
		}
		b.Leave()
	})
}

func TestMarksDuringTheFirstScanAreKept(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		tk := reg.Join(key, Pin{})
		defer tk.Leave()
		scans := 0
		scan := func() ([]Pending, error) {
			scans++
			reg.Mark(tenant, "orders", 1, 0, 0)
			return []Pending{
				{Partition: 2, Last: 3, Committed: -1},
				{Partition: 3, Last: 3, Committed: 1, LeasedUntil: time.Now().Add(time.Minute)},
				{Partition: 4, Last: 3, Committed: 1, VisibleAt: time.Now().Add(2 * time.Minute)},
			}, nil
		}
		if err := tk.Ring().Prepare(1, func() ([]Pending, error) { return nil, fmt.Errorf("away") }); err == nil {
			t.Fatal("a failed scan is reported as done")
		}
		for range 2 {
			if err := tk.Ring().Prepare(1, scan); err != nil {
				t.Fatal(err)
			}
		}
		if scans != 1 {
			t.Errorf("%d scans, want 1", scans)
		}
		if ids := tk.Take(9); fmt.Sprint(ids) != "[1 2]" {
			t.Errorf("took %v, want [1 2]", ids)
		}
		time.Sleep(3 * time.Minute)
		if ids := tk.Take(9); fmt.Sprint(ids) != "[1 2 3 4]" {
			t.Errorf("took %v, want [1 2 3 4]", ids)
		}
		// Another incarnation: what the old one held is void, even in a hand.
		if err := tk.Ring().Prepare(2, func() ([]Pending, error) { return []Pending{{Partition: 9}}, nil }); err != nil {
			t.Fatal(err)
		}
		if ids := tk.Take(9); fmt.Sprint(ids) != "[9]" {
			t.Errorf("took %v, want [9]", ids)
		}
	})
}

func TestHoldWaitsForAFullBatch(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		tk := reg.Join(key, Pin{})
		defer tk.Leave()
		scan := []Pending{{Partition: 1, Last: 1, Committed: -1}}
		if err := tk.Ring().Prepare(1, func() ([]Pending, error) { return scan, nil }); err != nil {
			t.Fatal(err)
		}
		tk.Take(2)
		begin := time.Now()
		woken := make(chan Wake, 1)
		hold := func(until time.Duration) {
			go func() { woken <- tk.Hold(10, 2, begin.Add(until), nil) }()
			synctest.Wait()
		}
		hold(5 * time.Second)
		reg.Mark(tenant, "orders", 1, 7, 0)
		synctest.Wait()
		if len(woken) != 0 {
			t.Fatal("woken with 8 of 10 messages")
		}
		if w := <-woken; w != Deadline || time.Since(begin) != 5*time.Second {
			t.Errorf("woken by %v after %v, want Deadline after 5s", w, time.Since(begin))
		}
		hold(time.Hour)
		reg.Mark(tenant, "orders", 1, 9, 0)
		if w := <-woken; w != Ready || time.Since(begin) != 5*time.Second {
			t.Errorf("woken by %v after %v, want Ready at once", w, time.Since(begin))
		}
	})
}

func TestSuspectsAreProbedAndSettled(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		tk := reg.Join(key, Pin{})
		hour := time.Now().Add(time.Hour)
		for id := int64(1); id <= 3; id++ {
			reg.Mark(tenant, "orders", id, 0, 0)
		}
		tk.Take(3)
		tk.Report([]Outcome{{Kind: Foreign, Until: hour}, {Kind: Foreign, Until: hour}, {Kind: Leased, Until: hour}})
		if s := reg.Suspects(10); len(s) != 2 {
			t.Fatalf("%d suspects, want the 2 foreign leases: a fresh one of our own is believed", len(s))
		}
		time.Sleep(ownLeaseRest)
		all := reg.Suspects(10)
		if len(all) != 3 {
			t.Fatalf("%d suspects, want 3", len(all))
		}
		if s := reg.Suspects(1); len(s) != 1 {
			t.Errorf("%d suspects, want 1", len(s))
		}
		p := start(reg, key, Pin{}, time.Minute, nil)
		for _, s := range all {
			switch s.Partition {
			case 1: // its holder has acknowledged everything
				reg.Probed(s, nil)
			case 2: // its holder has let it go
				reg.Probed(s, &Pending{Partition: 2, Last: 0, Committed: -1})
			case 3: // still leased
				reg.Probed(s, &Pending{Partition: 3, Last: 0, Committed: -1, LeasedUntil: hour})
			}
		}
		want(t, p, Ready, 2)
		if s := reg.Suspects(10); len(s) != 1 || s[0].Partition != 3 {
			t.Errorf("suspects left: %+v, want partition 3", s)
		}
		p.ticket.Leave()
		tk.Leave()
		time.Sleep(2 * activeFor)
		if s := reg.Suspects(10); s != nil {
			t.Errorf("suspects of a ring nobody reads: %+v", s)
		}
	})
}

func TestIdleRingsAreDropped(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		tk := reg.Join(key, Pin{})
		reg.Mark(tenant, "orders", 1, 0, 0)
		time.Sleep(time.Hour)
		reg.Sweep(time.Now().Add(-time.Minute))
		if ids := tk.Take(1); len(ids) != 1 {
			t.Fatal("a ring somebody stands in was emptied")
		}
		tk.Leave()
		reg.Sweep(time.Now().Add(-time.Minute))
		if reg.Boards() != 1 {
			t.Error("a ring used just now was dropped")
		}
		time.Sleep(time.Hour)
		reg.Sweep(time.Now().Add(-time.Minute))
		if reg.Boards() != 0 {
			t.Error("an idle ring was kept")
		}
	})
}

func TestTooManyPolls(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		for range 100 {
			start(reg, key, Pin{}, time.Minute, nil)
		}
		if p := start(reg, key, Pin{}, time.Minute, nil); p.wake != Full || !p.over() {
			t.Errorf("poll 101 of 100: %v", p.wake)
		}
		time.Sleep(time.Minute)
	})
}

func TestAwayRestOffersNothing(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		tk := reg.Join(key, Pin{})
		reg.Mark(tenant, "orders", 1, 0, 0)
		tk.Take(1)
		tk.Return(time.Second)
		begin := time.Now()
		if w := tk.Rest(time.Second/2, begin.Add(time.Hour), nil); w != Deadline || time.Since(begin) != time.Second/2 {
			t.Errorf("rested %v, %v", time.Since(begin), w)
		}
		if ids := tk.Take(1); ids != nil {
			t.Errorf("took %v during the pause", ids)
		}
		if w := tk.Wait(begin.Add(time.Hour), nil); w != Ready || time.Since(begin) != time.Second {
			t.Errorf("offered again after %v, %v", time.Since(begin), w)
		}
		tk.Leave()
		reg.Drain()
		if w := reg.Join(key, Pin{}).Rest(time.Hour, begin.Add(time.Hour), nil); w != Drained {
			t.Errorf("rest while draining: %v", w)
		}
	})
}

// TestNoWakeIsLost runs pushers and consumers against each other, with clients that give up at random: whatever is
// pushed must be consumed although every consumer only ever waits.
func TestNoWakeIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, reg *Registry) {
		const partitions, pushes, consumers = 7, 400, 20
		var last, committed [partitions]atomic.Int64
		for i := range partitions {
			last[i].Store(-1)
			committed[i].Store(-1)
		}
		var left atomic.Int64
		left.Store(pushes)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range consumers {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					tk := reg.Join(key, Pin{})
					gone := make(chan struct{})
					timer := time.AfterFunc(rand.N(20*time.Millisecond), func() { close(gone) })
					switch tk.Wait(time.Now().Add(rand.N(40*time.Millisecond)), gone) {
					case Ready:
						ids := tk.Take(1 + rand.IntN(3))
						if rand.IntN(4) == 0 {
							break // gone before the claim
						}
						out := make([]Outcome, len(ids))
						for i, id := range ids {
							through := last[id].Load()
							left.Add(committed[id].Swap(through) - through)
							out[i] = Outcome{Kind: Acked, Last: through, Through: through}
							time.Sleep(rand.N(time.Millisecond))
						}
						tk.Report(out)
					}
					timer.Stop()
					tk.Leave()
				}
			})
		}
		for range pushes {
			id := rand.Int64N(partitions)
			at := last[id].Add(1)
			reg.Mark(tenant, "orders", id, at, 0)
			time.Sleep(rand.N(2 * time.Millisecond))
		}
		time.Sleep(time.Minute)
		if n := left.Load(); n != 0 {
			t.Errorf("%d messages were never consumed", n)
		}
		close(stop)
		wg.Wait()
	})
}
