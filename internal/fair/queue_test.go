package fair_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/queengate/queengate/internal/fair"
)

// job is an item of a test. What is left of it may be taken in parts.
type job struct {
	owner, number int
	cost          int64 // left
	part          int64 // the least that may be taken of it
}

func (j *job) need() int64 { return min(j.part, j.cost) }

// TestQueue runs owners who come, wait and leave against what the package promises: order within an owner, an answer
// while anything waits, nobody passed over, and a bound on what two owners that both wait get apart.
func TestQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		quantum := rapid.Int64Range(1, 40).Draw(t, "quantum")
		largest := rapid.Int64Range(1, 100).Draw(t, "largest")
		owners := rapid.IntRange(1, 5).Draw(t, "owners")
		m := &model{
			t: t, quantum: quantum, largest: largest, queue: fair.New[int](quantum, (*job).need, nil),
			waiting: make([][]*job, owners), served: make([]int64, owners), since: map[[2]int]stretch{},
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				cost := rapid.Int64Range(1, largest).Draw(t, "cost")
				m.push(rapid.IntRange(0, owners-1).Draw(t, "owner"), cost, rapid.Int64Range(1, cost).Draw(t, "part"))
			},
			"flood": func(t *rapid.T) {
				k := rapid.IntRange(0, owners-1).Draw(t, "owner")
				for range rapid.IntRange(1, 50).Draw(t, "items") {
					m.push(k, largest, largest)
				}
			},
			"serve": func(t *rapid.T) {
				for range rapid.IntRange(1, 60).Draw(t, "times") {
					m.serve(rapid.Bool().Draw(t, "whole"))
				}
			},
			"drop": func(t *rapid.T) {
				if k := rapid.IntRange(0, owners-1).Draw(t, "owner"); len(m.waiting[k]) > 0 {
					m.queue.Drop(k)
					m.left(k)
				}
			},
			"": func(*rapid.T) { m.check() },
		})
		for m.queue.Len() > 0 {
			m.serve(true)
		}
		m.check()
	})
}

// model is what a queue must do.
type model struct {
	t       *rapid.T
	quantum int64
	largest int64
	queue   *fair.Queue[int, *job]
	waiting [][]*job // by owner
	served  []int64  // by owner, cost in all
	pushed  int
	since   map[[2]int]stretch // by pair of owners that both wait
}

// stretch is a time in which two owners both wait: the range of the difference of what they were served.
type stretch struct {
	first, low, high int64
	fresh            bool // it began with the arrival of both at a queue that owed neither
}

func (m *model) push(k int, cost, part int64) {
	j := &job{owner: k, number: m.pushed, cost: cost, part: part}
	m.pushed++
	m.queue.Push(k, j)
	m.waiting[k] = append(m.waiting[k], j)
	if len(m.waiting[k]) > 1 {
		return
	}
	for other := range m.waiting {
		if other == k || len(m.waiting[other]) == 0 {
			continue
		}
		d := m.apart(pair(k, other))
		// Whoever was alone owes nothing and is owed nothing.
		m.since[pair(k, other)] = stretch{first: d, low: d, high: d, fresh: m.queue.Owners() == 2}
	}
}

func (m *model) serve(whole bool) {
	j, credit, ok := m.queue.Next()
	if ok != (m.queue.Len() > 0) {
		m.t.Fatalf("Next says %v of %d items", ok, m.queue.Len())
	}
	if !ok {
		return
	}
	if j != m.waiting[j.owner][0] {
		m.t.Fatalf("item %d of owner %d comes before %d", j.number, j.owner, m.waiting[j.owner][0].number)
	}
	if credit < j.need() {
		m.t.Fatalf("credit %d for an item that needs %d", credit, j.need())
	}
	if alone := m.queue.Owners() == 1; (credit == fair.NoLimit) != alone {
		m.t.Fatalf("credit %d, alone %v", credit, alone)
	}
	cost := min(credit, j.cost)
	if !whole {
		cost = j.need()
	}
	m.served[j.owner] += cost
	if j.cost -= cost; j.cost > 0 {
		m.queue.Spend(cost)
	} else {
		m.queue.Take(cost)
		m.left(j.owner)
	}
	for p, s := range m.since {
		d := m.apart(p)
		s.low, s.high = min(s.low, d), max(s.high, d)
		m.since[p] = s
		if most := m.quantum + 2*m.largest; s.high-s.low > most {
			m.t.Fatalf("owners %v came %d apart while both waited, want at most %d", p, s.high-s.low, most)
		}
		if most := m.quantum + m.largest; s.fresh && max(s.high-s.first, s.first-s.low) > most {
			m.t.Fatalf("owners %v came %d and %d apart since both arrived, want at most %d", p, s.high-s.first, s.first-s.low, most)
		}
	}
}

// left notes that the first item of an owner is gone.
func (m *model) left(k int) {
	m.waiting[k] = m.waiting[k][1:]
	if len(m.waiting[k]) > 0 {
		return
	}
	for p := range m.since {
		if p[0] == k || p[1] == k {
			delete(m.since, p)
		}
	}
}

func (m *model) check() {
	items, owners := 0, 0
	for _, js := range m.waiting {
		items += len(js)
		if len(js) > 0 {
			owners++
		}
	}
	if m.queue.Len() != items || m.queue.Owners() != owners {
		m.t.Fatalf("%d items of %d owners, want %d of %d", m.queue.Len(), m.queue.Owners(), items, owners)
	}
}

func (m *model) apart(p [2]int) int64 { return m.served[p[0]] - m.served[p[1]] }

func pair(a, b int) [2]int { return [2]int{min(a, b), max(a, b)} }

// TestAnArrivalWaitsOneTurnOfEachPerQuantum is the bound on how long a newcomer waits, in cost served to others.
func TestAnArrivalWaitsOneTurnOfEachPerQuantum(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		quantum := rapid.Int64Range(1, 20).Draw(t, "quantum")
		floods := rapid.IntRange(1, 6).Draw(t, "floods")
		cost := rapid.Int64Range(1, 50).Draw(t, "cost")
		largest := rapid.Int64Range(1, 30).Draw(t, "largest")
		q := fair.New[int](quantum, (*job).need, nil)
		flood := func(k int) { q.Push(k, &job{owner: k, cost: largest, part: largest}) }
		for range 100 {
			for k := range floods {
				flood(k)
			}
		}
		for range rapid.IntRange(0, 100).Draw(t, "served before") {
			j, _, _ := q.Next()
			q.Take(j.cost)
			flood(j.owner)
		}
		q.Push(floods, &job{owner: floods, cost: cost, part: cost})
		turns := (cost + quantum - 1) / quantum
		before := make([]int64, floods)
		for {
			j, _, _ := q.Next()
			if j.owner == floods {
				return
			}
			q.Take(j.cost)
			flood(j.owner)
			// What an owner has left of earlier turns is less than a largest item, and is part of its first turn here.
			if before[j.owner] += j.cost; before[j.owner] > (turns+1)*quantum+largest {
				t.Fatalf("owner %d was served %d while somebody waited for %d turns of %d", j.owner, before[j.owner], turns, quantum)
			}
		}
	})
}

// TestIdlingLeavesNothing: who goes idle keeps no credit, and the queue no memory of it.
func TestIdlingLeavesNothing(t *testing.T) {
	t.Parallel()
	q := fair.New[int](10, (*job).need, nil)
	take := func() int {
		j, _, _ := q.Next()
		q.Take(j.cost)
		return j.owner
	}
	push := func(k, n int) {
		for range n {
			q.Push(k, &job{owner: k, cost: 10, part: 10})
		}
	}
	push(0, 50)
	q.Push(1, &job{owner: 1, cost: 1000, part: 1000})
	for range 40 { // owner 1 saves up for what it will never be given
		if take() != 0 {
			t.Fatal("an item is served that its owner cannot pay for")
		}
	}
	q.Drop(1)
	push(1, 4)
	var order []int
	for q.Len() > 0 {
		order = append(order, take())
	}
	if got := fmt.Sprint(order[:8]); got != "[1 0 1 0 1 0 1 0]" {
		t.Errorf("order %s", got)
	}
	if q.Owners() != 0 {
		t.Errorf("%d owners at rest", q.Owners())
	}
}

// TestAFloodSharesWithALoneCall: fifty items of one and one of the other, for a reader who must see the behaviour.
func TestAFloodSharesWithALoneCall(t *testing.T) {
	t.Parallel()
	q := fair.New[string](3, func(string) int64 { return 1 }, nil)
	for range 50 {
		q.Push("flood", "flood")
	}
	q.Push("lone", "lone")
	q.Push("lone", "lone")
	var order []string
	for q.Len() > 0 {
		who, _, _ := q.Next()
		q.Take(1)
		order = append(order, who)
	}
	if i := slices.Index(order, "lone"); i > 3 {
		t.Errorf("the lone owner is served after %d items", i)
	}
}

func TestASteadyStateAllocatesNothing(t *testing.T) {
	q := fair.New[int](3, func(int) int64 { return 1 }, nil)
	b := fair.NewBudget[int](1000)
	round := func() {
		for k := range 20 {
			for range 5 {
				b.Hold(k, 1)
				q.Push(k, k)
			}
		}
		for q.Len() > 0 {
			k, _, _ := q.Next()
			q.Take(1)
			b.Release(k, 1)
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n > 0 {
		t.Errorf("%v allocations per round", n)
	}
}

// BenchmarkQueue is the cost of one item in and out, with so many owners waiting.
func BenchmarkQueue(b *testing.B) {
	for _, owners := range []int{1, 10, 10_000} {
		b.Run(fmt.Sprintf("owners=%d", owners), func(b *testing.B) {
			q := fair.New[int](4, func(int) int64 { return 1 }, nil)
			for k := range owners {
				for range 8 {
					q.Push(k, k)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				k, _, _ := q.Next()
				q.Take(1)
				q.Push(k, k)
			}
		})
	}
}
