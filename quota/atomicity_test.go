package quota

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// books is everything of an account that a refused request must leave as it was: all but promises, the refusal budget
// and the time it was last touched.
type books struct {
	Requests, Messages, Delivery bucket
	Keys                         map[uuid.UUID][2]bucket
	Parked                       []int64
	Queues                       map[uint64]queueNames
	Names                        int
	QueuesKnown, PartitionsKnown bool
	Storage                      storage
	Month                        month
	Open                         int
}

func booksOf(g *Gate, c *plans.Cluster, now time.Time) books {
	l := g.open(c, g.at(now))
	defer l.mu.Unlock()
	acc := &l.acc
	acc.refill(g.at(now))
	acc.month.roll(now, "")
	b := books{
		Requests: acc.requests, Messages: acc.messages, Delivery: acc.delivery, Names: acc.names.names, Storage: acc.storage, Month: acc.month,
		QueuesKnown: acc.names.queuesKnown, PartitionsKnown: acc.names.partitionsKnown, Open: acc.open,
		Queues: make(map[uint64]queueNames), Keys: make(map[uuid.UUID][2]bucket),
	}
	promisedNothing(&b.Requests, &b.Messages, &b.Delivery)
	for id, k := range acc.keys {
		k.requests.refill(g.at(now))
		k.messages.refill(g.at(now))
		both := [2]bucket{k.requests, k.messages}
		promisedNothing(&both[0], &both[1])
		if both != [2]bucket{} { // a key that was never asked for is as good as one that has no limits
			b.Keys[id] = both
		}
	}
	for _, a := range acc.parked {
		b.Parked = append(b.Parked, a.deadline)
	}
	for q, names := range acc.names.queues {
		n := *names
		n.partitions = maps.Clone(names.partitions)
		b.Queues[q] = n
	}
	b.Storage.recent = append([]deposit(nil), acc.storage.recent...)
	return b
}

func promisedNothing(buckets ...*bucket) {
	for _, b := range buckets {
		b.line, b.settle = line{}, line{}
	}
}

func diffBooks(before, after books) string {
	return cmp.Diff(before, after, cmp.AllowUnexported(books{}, bucket{}, line{}, queueNames{}, storage{}, deposit{},
		month{}, monthCount{}))
}

// reference is what the names of a cluster are, in plain maps: what a broker would have.
type reference struct {
	stored   map[Pair]bool
	reserved map[Pair]int
}

func (r *reference) queues(with ...Pair) map[string]int {
	all := make(map[string]int)
	add := func(p Pair) {
		all[p.Queue] += 0
		if p.Partition != "" && p.Partition != wire.DefaultPartition {
			all[p.Queue]++
		}
	}
	seen := make(map[Pair]bool)
	each := func(p Pair) {
		if !seen[p] {
			seen[p] = true
			add(p)
		}
	}
	for p := range r.stored {
		each(p)
	}
	for p, n := range r.reserved {
		if n > 0 {
			each(p)
		}
	}
	for _, p := range with {
		each(p)
	}
	return all
}

// TestARefusalLeavesEverythingAsItWas plays random requests, ends and edits against one cluster. Every refusal must
// leave the books as they were, a refund must undo its admission, and the counts must be those of plain maps.
func TestARefusalLeavesEverythingAsItWas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g := NewGate(slog.New(slog.DiscardHandler))
		optional := func(name string, most int64) *int64 {
			if rapid.Bool().Draw(t, name+" set") {
				return new(rapid.Int64Range(0, most).Draw(t, name))
			}
			return nil
		}
		rateOf := func(name string) (*float64, *float64) {
			if !rapid.Bool().Draw(t, name+" set") {
				return nil, nil
			}
			return new(rapid.Float64Range(0, 20).Draw(t, name)), new(float64(rapid.IntRange(0, 30).Draw(t, name+" burst")))
		}
		plan := func(l *plans.Limits) {
			l.RequestsPerSecond, l.RequestsBurst = rateOf("requests")
			l.MessagesPerSecond, l.MessagesBurst = rateOf("messages")
			l.DeliveryPerSecond, l.DeliveryBurst = rateOf("delivery")
			l.MaxQueues = new(rapid.Int64Range(0, 4).Draw(t, "queues"))
			l.MaxPartitionsPerQueue = new(rapid.Int64Range(0, 3).Draw(t, "partitions"))
			l.MaxPayloadBytes = optional("payload", 50)
			l.MaxBatchItems = optional("batch", 10)
			l.MaxRetentionSeconds = optional("retention", 100)
			l.MaxParkedPops = optional("parked", 3)
			l.MaxRetainedBytes = optional("storage", 500)
			l.MonthlyMessages = optional("month", 200)
			l.Modes = map[string]plans.Mode{}
			for _, name := range limitNames[:limitLife] {
				if name == plans.LimitQueues || name == plans.LimitPartitions {
					continue // the reference has no opinion on shadowed counts
				}
				l.Modes[name] = rapid.SampledFrom([]plans.Mode{
					plans.Enforce, plans.Enforce, plans.Enforce, plans.Shadow, plans.Off,
				}).Draw(t, "mode "+name)
			}
		}
		limitsOfKey := func(l *plans.KeyLimits) {
			l.RequestsPerSecond, l.RequestsBurst = rateOf("requests of a key")
			l.MessagesPerSecond, l.MessagesBurst = rateOf("messages of a key")
		}
		c := clusterWith(plan)
		keys := []*plans.Key{nil, keyWith(), keyWith(limitsOfKey), keyWith(limitsOfKey)}
		ref := &reference{stored: map[Pair]bool{}, reserved: map[Pair]int{}}
		l := g.open(c, g.at(start))
		l.acc.names.queuesKnown, l.acc.names.partitionsKnown = true, true // nothing exists yet
		l.mu.Unlock()

		type opened struct {
			a   *Admission
			ask *Ask
		}
		var open []opened
		now := start
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, second).Draw(t, "dt")))
			switch rapid.SampledFrom([]string{"ask", "ask", "ask", "ask", "end", "refund at once", "delete", "edit"}).Draw(t, "step") {
			case "ask", "refund at once":
				ask := by(rapid.SampledFrom(keys).Draw(t, "key"), drawAsk(t, now))
				g.lookAt(c, ask.Key, now) // whose account is made when it is first seen
				before := booksOf(g, c, now)
				a, report, err := g.Admit(c, ask, now)
				if err != nil {
					if diff := diffBooks(before, booksOf(g, c, now)); diff != "" {
						t.Fatalf("refused with %v, but changed (-before +after):\n%s", err, diff)
					}
					if err.Limit != nil && (report.Name != err.Limit.Name || err.Limit.Name == "") {
						t.Fatalf("report names %q, error %q", report.Name, err.Limit.Name)
					}
					checkCounts(t, ref, c, ask, err)
					continue
				}
				checkCounts(t, ref, c, ask, nil)
				if rapid.Bool().Draw(t, "refund") {
					g.Refund(a, now)
					after := booksOf(g, c, now)
					if after.Requests.level != before.Requests.level || after.Messages.level != before.Messages.level {
						t.Fatalf("a refund at once left %d and %d tokens, want %d and %d", after.Requests.level,
							after.Messages.level, before.Requests.level, before.Messages.level)
					}
					// A bucket that was full loses the remainder of a millionth in between.
					after.Requests, after.Messages = before.Requests, before.Messages
					for id, was := range before.Keys {
						if is := after.Keys[id]; is[0].level != was[0].level || is[1].level != was[1].level {
							t.Fatalf("a refund at once left its key %+v, want %+v", is, was)
						}
						after.Keys[id] = was
					}
					if len(after.Parked) == len(before.Parked) {
						after.Parked = before.Parked // the heap may stand in another order
					}
					if diff := diffBooks(before, after); diff != "" {
						t.Fatalf("a refund at once changed (-before +after):\n%s", diff)
					}
					continue
				}
				open = append(open, opened{a, ask})
				for _, p := range ask.Pairs {
					ref.reserved[p]++
				}
			case "end":
				if len(open) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				o := open[i]
				open = append(open[:i], open[i+1:]...)
				stored := rapid.Bool().Draw(t, "stored")
				g.Settle(o.a, Outcome{
					Stored: stored, StoredBytes: o.ask.PayloadBytes, Delivered: rapid.IntRange(0, 40).Draw(t, "delivered"),
				}, now)
				again := booksOf(g, c, now)
				g.Settle(o.a, Outcome{Stored: true, StoredBytes: 1, Delivered: 1}, now)
				g.Refund(o.a, now)
				if diff := diffBooks(again, booksOf(g, c, now)); diff != "" {
					t.Fatalf("a second end changed (-before +after):\n%s", diff)
				}
				for _, p := range o.ask.Pairs {
					if ref.reserved[p]--; stored {
						ref.stored[p] = true
					}
				}
			case "delete":
				queue := fmt.Sprint("q", rapid.IntRange(0, 5).Draw(t, "queue"))
				if slices.ContainsFunc(open, func(o opened) bool {
					for _, p := range o.ask.Pairs {
						if p.Queue == queue {
							return true
						}
					}
					return false
				}) {
					continue // what a race of a delete with a push leaves is in the registry's own test
				}
				g.QueueDeleted(c, queue)
				for p := range ref.stored {
					if p.Queue == queue {
						delete(ref.stored, p)
					}
				}
			case "edit":
				c = edited(c, plan)
				keys[2], keys[3] = editedKey(keys[2], limitsOfKey), editedKey(keys[3])
			}
		}
		for _, o := range open {
			g.Settle(o.a, Outcome{}, now)
		}
		end := booksOf(g, c, now)
		if end.Open != 0 || len(end.Parked) != 0 || end.Storage.reserved != 0 || end.Month.reserved != 0 {
			t.Fatalf("after the last end %+v", end)
		}
		for _, q := range end.Queues {
			if q.reserved != 0 {
				t.Fatal("a queue is still reserved")
			}
			for _, n := range q.partitions {
				if n != 0 {
					t.Fatal("a partition is still reserved")
				}
			}
		}
		if g.parked.Load() != 0 {
			t.Fatalf("gauge of parked polls %d, want 0", g.parked.Load())
		}
	})
}

// lookAt makes the limits of a key count.
func (g *Gate) lookAt(c *plans.Cluster, key *plans.Key, now time.Time) {
	l := g.open(c, g.at(now))
	defer l.mu.Unlock()
	l.acc.key(key, g.at(now))
}

func drawAsk(t *rapid.T, now time.Time) *Ask {
	ask := &Ask{Cost: wire.Cost(rapid.IntRange(0, int(wire.CostConfigure)).Draw(t, "cost"))}
	queue := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("q", rapid.IntRange(0, 5).Draw(t, "q")) })
	switch ask.Cost {
	case wire.CostMessages:
		ask.Messages = rapid.IntRange(0, 12).Draw(t, "messages")
		ask.PayloadBytes = rapid.Int64Range(0, 120).Draw(t, "bytes")
		ask.LargestItem = rapid.Int64Range(0, 60).Draw(t, "item")
		ask.Pairs = rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Pair {
			return Pair{queue.Draw(t, "queue"), rapid.SampledFrom([]string{"Default", "a", "b", "c", "d"}).Draw(t, "p")}
		}), 0, min(ask.Messages, 6), rapid.ID).Draw(t, "pairs")
	case wire.CostReplay:
		ask.Messages = 1
		ask.Pairs = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Pair { return Pair{queue.Draw(t, "queue"), "a"} }), 0, 1).Draw(t, "to")
	case wire.CostConfigure:
		ask.Pairs = []Pair{{Queue: queue.Draw(t, "queue")}}
		ask.Retention = rapid.Int64Range(0, 120).Draw(t, "retention")
	case wire.CostDelivery:
		ask.Wait = rapid.Bool().Draw(t, "wait")
		ask.Deadline = now.Add(time.Duration(rapid.Int64Range(0, 60*second).Draw(t, "deadline")))
	}
	return ask
}

// checkCounts compares the verdict on queues and partitions with plain maps. Other limits may refuse before or after.
func checkCounts(t *rapid.T, ref *reference, c *plans.Cluster, ask *Ask, err *wire.Error) {
	now, then := ref.queues(), ref.queues(ask.Pairs...)
	overQueues := len(then) > len(now) && int64(len(then)) > *c.Limits.MaxQueues
	overPartitions := false
	if stores[ask.Cost] {
		for q, n := range then {
			overPartitions = overPartitions || n > now[q] && int64(n) > *c.Limits.MaxPartitionsPerQueue
		}
	}
	switch {
	case err == nil && (overQueues || overPartitions):
		t.Fatalf("admitted %v over %v with at most %d queues of %d partitions", ask.Pairs, now, *c.Limits.MaxQueues,
			*c.Limits.MaxPartitionsPerQueue)
	case err != nil && limitOf(err) == plans.LimitQueues && !overQueues,
		err != nil && limitOf(err) == plans.LimitPartitions && !overPartitions:
		t.Fatalf("refused %v over %v: %v", ask.Pairs, now, err)
	}
}
