package check

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// sim is a broker in memory with clients that overlap, lose answers, sleep past their leases and retry: what a run looks
// like. It keeps all promises, unless a mutant is set.
type sim struct {
	*story
	rnd    *rand.Rand
	mutant string
	todo   agenda
	lanes  map[string]*simLane
	leases int
	seq    int64
	ends   int64 // when clients stop
}

type simLane struct {
	queue, partition string
	log              []hist.Record
	ids              map[string]int64
	committed        int64 // of the group g
	lease            string
	end, expires     int64
	first            int64
	attempt          int
}

// plan is something that happens at a time.
type plan struct {
	at, n int64
	do    func()
}

type agenda []plan

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].n < a[j].n
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(plan)) }
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

func (s *sim) after(d int64, do func()) {
	s.seq++
	heap.Push(&s.todo, plan{s.now + d, s.seq, do})
}

func (s *sim) run() {
	for s.todo.Len() > 0 {
		p := heap.Pop(&s.todo).(plan)
		s.now = max(s.now, p.at)
		p.do()
	}
}

func (s *sim) chance(percent int) bool { return s.rnd.IntN(100) < percent }

// request sends an operation: effect happens between there and back, or, when the answer is lost, perhaps. then is told
// whether the answer came.
func (s *sim) request(client int, f hist.Func, args any, effect func() (hist.Kind, any), then func(answered bool, v any)) {
	o := s.as(client, "br1", f, args)
	load := s.now < s.ends
	there, back := s.rnd.Int64N(20*ms)+1, s.rnd.Int64N(20*ms)+1
	switch {
	case load && s.chance(2):
		s.after(there+back, func() { o.fail(); then(false, nil) })
	case load && s.chance(4):
		if s.chance(50) {
			s.after(there, func() { effect() })
		}
		s.after(back, func() { o.info(); then(false, nil) })
	default:
		s.after(there, func() {
			kind, v := effect()
			s.after(back, func() { o.back(kind, 200, v); then(true, v) })
		})
	}
}

func (s *sim) lane(q, p string) *simLane {
	l := s.lanes[q+"/"+p]
	if l == nil {
		l = &simLane{queue: q, partition: p, ids: map[string]int64{}, committed: -1, first: -1}
		s.lanes[q+"/"+p] = l
	}
	return l
}

func (s *sim) append(in hist.PushItem) hist.PushResult {
	l := s.lane(in.Queue, in.Partition)
	if at, ok := l.ids[in.TransactionID]; ok && (s.mutant != "dedup forgets" || !s.chance(10)) {
		return result("duplicate", at)
	}
	at := int64(len(l.log))
	created := time.Unix(0, epoch+s.now)
	if s.mutant == "clock unclamped" && s.chance(5) {
		created = created.Add(-time.Second)
	}
	if s.mutant == "lost commits" && s.chance(1) {
		return result("queued", at)
	}
	l.log = append(l.log, hist.Record{Offset: at, TransactionID: in.TransactionID, Payload: in.Payload, TS: created})
	l.ids[in.TransactionID] = at
	return result("queued", at)
}

func (s *sim) message(client int, q, p string) hist.PushItem {
	s.seq++
	id := hist.ID{Queue: q, Partition: p, Prod: strconv.Itoa(client), Seq: s.seq}
	in := hist.PushItem{Queue: q, Partition: p, Payload: hist.Payload{ID: id}.JSON()}
	if q == "q" && s.chance(10) {
		id.Prod, id.Seq = hist.PoolProducer, s.rnd.Int64N(40)
	}
	in.TransactionID = id.String()
	return in
}

func (s *sim) producer(client int) {
	if s.now >= s.ends {
		return
	}
	q := []string{"q", "q", "in"}[s.rnd.IntN(3)]
	a := &hist.PushArgs{}
	for range 1 + s.rnd.IntN(3) {
		a.Items = append(a.Items, s.message(client, q, "p"+strconv.Itoa(s.rnd.IntN(2))))
	}
	s.request(client, hist.Push, a, func() (hist.Kind, any) {
		v := make(hist.PushAnswer, len(a.Items))
		for i := range a.Items {
			v[i] = s.append(a.Items[i])
		}
		if s.mutant == "answers shuffled" && len(v) > 1 && a.Items[0].Partition == a.Items[1].Partition {
			v[0], v[1] = v[1], v[0]
		}
		return hist.OK, &v
	}, func(bool, any) { s.after(s.rnd.Int64N(30*ms), func() { s.producer(client) }) })
}

func (s *sim) reader(client int, from map[string]int64) {
	if s.now >= s.ends {
		return
	}
	p := "p" + strconv.Itoa(s.rnd.IntN(2))
	at := from[p]
	s.request(client, hist.Fetch, &hist.FetchArgs{Entries: []hist.FetchEntry{{Queue: "q", Partition: p, Offset: at}}}, func() (hist.Kind, any) {
		log := s.lane("q", p).log
		return hist.OK, &hist.FetchAnswer{Entries: []hist.FetchResult{{
			Queue: "q", Partition: p, Records: slices.Clone(log[at:]), HighWatermark: int64(len(log)),
		}}}
	}, func(ok bool, v any) {
		if ok {
			from[p] += int64(len(v.(*hist.FetchAnswer).Entries[0].Records))
		}
		s.after(s.rnd.Int64N(50*ms), func() { s.reader(client, from) })
	})
}

// claim is what a broker does with a pop.
func (s *sim) claim(l *simLane, batch int) *hist.PopAnswer {
	v := &hist.PopAnswer{}
	free := l.lease == "" || s.now >= l.expires || s.mutant == "two leases" && s.chance(20)
	if l.committed+1 >= int64(len(l.log)) || !free {
		return v
	}
	s.leases++
	from := l.committed + 1
	if l.first == from {
		l.attempt++
	} else {
		l.first, l.attempt = from, 1
	}
	if s.mutant == "attempts stay" {
		l.attempt = 1
	}
	to := min(from+int64(batch), int64(len(l.log)))
	l.lease, l.end, l.expires = "lease"+strconv.Itoa(s.leases), to-1, s.now+3*second
	v.LeaseID = l.lease
	for _, r := range l.log[from:to] {
		v.Messages = append(v.Messages, hist.Message{
			ID: "m" + strconv.FormatInt(r.Offset, 10), TransactionID: r.TransactionID, Data: r.Payload, CreatedAt: r.TS, Queue: l.queue,
			Partition: l.partition, Offset: r.Offset, DeliveryAttempt: l.attempt,
		})
	}
	return v
}

// settle is what a broker does with acks of one partition and lease; accepted is false when the lease is not held.
func (s *sim) settle(l *simLane, items []hist.AckItem) (accepted bool) {
	held := l.lease == items[0].LeaseID && s.now < l.expires
	if !held && s.mutant != "lease ignored" {
		return false
	}
	low, high := never, l.committed
	for _, it := range items {
		if signalOf(it.Status) != completed {
			low = min(low, it.Offset)
		} else {
			high = max(high, it.Offset)
		}
	}
	to := min(high, low-1)
	if s.mutant == "clamps at the highest" {
		to = high
	}
	l.committed = max(l.committed, to)
	if low != never || l.committed >= l.end {
		l.lease = ""
	}
	return true
}

func (s *sim) consumer(client, idle int) {
	if s.now >= s.ends && idle > 60 {
		return
	}
	q := []string{"q", "q", "in"}[s.rnd.IntN(3)]
	p := "p" + strconv.Itoa(s.rnd.IntN(2))
	batch := 1 + s.rnd.IntN(4)
	if q == "in" {
		batch = 1
	}
	s.request(client, hist.Pop, &hist.PopArgs{Queue: q, Partition: p, Group: "g", Batch: batch}, func() (hist.Kind, any) {
		return hist.OK, s.claim(s.lane(q, p), batch)
	}, func(ok bool, v any) {
		next := func(bool, any) { s.after(s.rnd.Int64N(20*ms), func() { s.consumer(client, 0) }) }
		if !ok || len(v.(*hist.PopAnswer).Messages) == 0 {
			s.after(100*ms, func() { s.consumer(client, idle+1) })
			return
		}
		g := &given{q, "g", v.(*hist.PopAnswer)}
		load := s.now < s.ends
		switch {
		case load && s.chance(5):
			next(false, nil) // gives up
		case load && s.chance(8):
			s.after(3*second+s.rnd.Int64N(second), func() { s.acknowledge(client, g, next) }) // sleeps past its lease
		case load && s.chance(5):
			s.request(client, hist.Extend, &hist.ExtendArgs{LeaseID: g.v.LeaseID, Seconds: 5}, func() (hist.Kind, any) {
				l := s.lane(q, p)
				if l.lease != g.v.LeaseID || s.now >= l.expires {
					return hist.Fail, &hist.ExtendAnswer{}
				}
				l.expires = max(l.expires, s.now+5*second)
				return hist.OK, &hist.ExtendAnswer{Success: true, Renewed: 1}
			}, func(bool, any) { s.after(4*second, func() { s.acknowledge(client, g, next) }) })
		default:
			s.after(s.rnd.Int64N(30*ms), func() { s.acknowledge(client, g, next) })
		}
	})
}

func (s *sim) acknowledge(client int, g *given, next func(bool, any)) {
	l := s.lane(g.queue, g.v.Messages[0].Partition)
	if g.queue == "in" {
		s.transact(client, g, l, next)
		return
	}
	var statuses []string
	for range g.v.Messages {
		status := ""
		if s.now < s.ends && s.chance(8) {
			status = "retry"
		}
		statuses = append(statuses, status)
	}
	a := g.acks(statuses...)
	if s.now < s.ends && s.chance(10) {
		a.Items = a.Items[:1] // a part of the batch
	}
	s.request(client, hist.Ack, a, func() (hist.Kind, any) {
		v := make(hist.AckAnswer, len(a.Items))
		ok := s.settle(l, a.Items)
		for i := range v {
			v[i].Success = ok
		}
		return hist.OK, &v
	}, next)
}

func (s *sim) transact(client int, g *given, l *simLane, next func(bool, any)) {
	a := commit(g, s.message(client, "out", "p0"), s.message(client, "out", "p1"))
	s.request(client, hist.Transaction, a, func() (hist.Kind, any) {
		if !s.settle(l, []hist.AckItem{a.Acks[0].AckItem}) {
			return hist.Fail, &hist.TransactionAnswer{Reason: "ack_rejected"}
		}
		s.append(a.Pushes[0])
		if s.mutant != "half transactions" || !s.chance(5) {
			s.append(a.Pushes[1])
		}
		return hist.OK, committed(a)
	}, next)
}

// simulate runs the clients for some seconds, lets them drain, and reads everything.
func simulate(t *testing.T, seed uint64, mutant string) *Report {
	t.Helper()
	two := []string{"p0", "p1"}
	drains := []hist.Group{{Name: "g", Drains: true}}
	s := &sim{
		story: tell(t,
			hist.Queue{Name: "q", Workload: "W2", Partitions: two, DedupMs: 3_600_000, Groups: drains},
			hist.Queue{Name: "in", Workload: "W5", Partitions: two, Groups: drains},
			hist.Queue{Name: "out", Workload: "W5", Partitions: two},
		),
		rnd: rand.New(rand.NewPCG(seed, 0)), mutant: mutant, lanes: map[string]*simLane{}, ends: 20 * second,
	}
	for c := range 3 {
		s.after(int64(c), func() { s.producer(c) })
		s.after(int64(c), func() { s.consumer(10+c, 0) })
	}
	s.after(0, func() { s.reader(20, map[string]int64{}) })
	s.run()
	for k, l := range s.lanes {
		s.logs[k] = l.log
	}
	s.end()
	return s.judge()
}

// Whatever overlaps, is lost or comes late: what keeps the promises passes.
func TestAnHonestBrokerPasses(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		r := simulate(t, seed, "")
		if r.Verdict != Pass {
			t.Errorf("seed %d: %s:\n%s", seed, r.Verdict, strings.Join(r.Reasons, "\n"))
		}
		for _, x := range r.Rules {
			if slices.Contains([]string{"L1", "L2", "A1", "A2", "A3", "A4", "A6", "LIN", "T1", "T2", "T3", "X1", "X2", "O4", "O6", "D3"}, x.Rule) && x.Checked == 0 {
				t.Errorf("seed %d: nothing tested %s", seed, x.Rule)
			}
		}
	}
}

// Each fault of a broker turns the rule red that is there for it.
func TestAMutantIsFound(t *testing.T) {
	t.Parallel()
	for mutant, rule := range map[string]Rule{
		"dedup forgets":         X1,
		"clock unclamped":       O3,
		"lost commits":          D1,
		"answers shuffled":      O4,
		"two leases":            L1,
		"attempts stay":         A6,
		"lease ignored":         L2,
		"clamps at the highest": A4,
		"half transactions":     T1,
	} {
		t.Run(mutant, func(t *testing.T) {
			t.Parallel()
			rules, texts := red(simulate(t, 1, mutant))
			if !slices.Contains(rules, rule.String()) {
				t.Errorf("%s is not red, but %s", rule, strings.Join(texts, "\n"))
			}
		})
	}
}
