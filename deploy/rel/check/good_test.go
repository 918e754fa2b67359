package check

import (
	"slices"
	"strings"
	"testing"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// goodHistories are runs of every workload that keep all promises, with the rules that must have been tested.
var goodHistories = []struct {
	name   string
	queues []hist.Queue
	tell   func(*story)
	tests  []Rule
}{
	{"W1: pushes, readers, transactions", []hist.Queue{{Name: "q", Workload: "W1"}}, func(s *story) {
		s.push("q", 1, 2, 3)
		s.fetch("q", "p0")
		a := commit(nil, message("q", 4), message("q", 5))
		o := s.begin(hist.Transaction, a)
		s.store(a.Pushes[0])
		s.store(a.Pushes[1])
		o.ok(committed(a))
		lost := s.begin(hist.Push, messages("q", 6))
		s.store(message("q", 6))
		lost.info()
		s.begin(hist.Push, messages("q", 7)).fail()
		s.begin(hist.Push, messages("q", 8)) // never comes back, and never happened
		s.push("q", 9)
		s.fetch("q", "p0")
	}, []Rule{D2, D3, T1, T3}},
	{"W2: leases that expire, are extended, and fenced", []hist.Queue{queue("W2")}, func(s *story) {
		s.push("q", 1, 2, 3, 4, 5)
		zombie := s.pop("q", "g", 2)
		s.now += 4 * second
		next := s.pop("q", "g", 2)
		s.begin(hist.Ack, zombie.acks("", "")).ok(&hist.AckAnswer{{Error: "invalid or expired lease"}, {Error: "invalid or expired lease"}})
		s.begin(hist.Extend, &hist.ExtendArgs{LeaseID: next.v.LeaseID, Seconds: 10}).ok(&hist.ExtendAnswer{Success: true, Renewed: 1})
		s.now += 8 * second
		s.ack(next)
		lost := s.begin(hist.Ack, s.pop("q", "g", 1).acks(""))
		lost.info() // it took effect
		s.at["q/g"] = 3
		s.begin(hist.Pop, &hist.PopArgs{Queue: "q", Group: "g"}).info() // it holds a lease that nobody knows
		s.now += 4 * second
		s.tries["q/g/3"]++
		s.consume("q", "g", 2)
		s.begin(hist.Ack, zombie.acks("")).ok(&hist.AckAnswer{{Success: true, Noop: true}})
	}, []Rule{L2, A3, LIN}},
	{"W2: mixed acks and retries", []hist.Queue{queue("W2")}, func(s *story) {
		s.push("q", 1, 2, 3, 4)
		g := s.pop("q", "g", 4)
		s.begin(hist.Ack, g.acks("", "retry", "", "failed")).ok(done(4))
		s.at["q/g"] = 1
		s.consume("q", "g", 4)
	}, []Rule{A4}},
	{"W2: a seek", []hist.Queue{queue("W2")}, func(s *story) {
		s.push("q", 1, 2, 3)
		s.consume("q", "g", 3)
		s.begin(hist.Seek, &hist.SeekArgs{Queue: "q", Group: "g"}).ok(nil)
		s.at["q/g"] = 1
		s.tries["q/g/1"] = 0
		s.consume("q", "g", 1)
	}, nil},
	{"W2: autoAck with a lost answer", one(queue("W2"), func(q *hist.Queue) {
		q.Groups = append(q.Groups, hist.Group{Name: "auto", AutoAck: true, Drains: true})
	}), func(s *story) {
		s.push("q", 1, 2, 3)
		for _, at := range []int64{0, 2} {
			o := s.begin(hist.Pop, &hist.PopArgs{Queue: "q", Group: "auto", AutoAck: true})
			o.ok(s.answer("q", "auto", at, 1, false).v)
			if at == 0 {
				s.begin(hist.Pop, &hist.PopArgs{Queue: "q", Group: "auto", AutoAck: true}).info()
			}
		}
		s.pop("q", "g", 1)
		s.now += 4 * second
		s.consume("q", "g", 2)
	}, []Rule{A5}},
	{"W5: transactions, one of them lost and there", pipeline, func(s *story) {
		s.push("q", 1, 2, 3)
		for seq := 1; seq <= 3; seq++ {
			a := commit(s.pop("q", "g", 1), message("out", seq), to("p1", message("out", seq)))
			o := s.begin(hist.Transaction, a)
			s.store(a.Pushes[0])
			s.store(a.Pushes[1])
			s.at["q/g"]++
			if seq == 2 {
				o.info()
				continue
			}
			o.ok(committed(a))
		}
		s.fetch("out", "p0")
	}, []Rule{T1, T2, T3, LIN}},
	{"W6: duplicates inside and outside of the window", window, func(s *story) {
		s.push("q", 1)
		s.begin(hist.Push, messages("q", 1)).ok(&hist.PushAnswer{result("duplicate", 0)})
		s.now += 3 * second
		s.push("q", 1)
		twice := s.begin(hist.Push, messages("q", 2, 2))
		at := s.store(message("q", 2))
		twice.ok(&hist.PushAnswer{result("queued", at), result("duplicate", at)})
		lost := s.begin(hist.Push, messages("q", 3))
		s.store(message("q", 3))
		lost.info()
		s.begin(hist.Push, messages("q", 3)).ok(&hist.PushAnswer{result("duplicate", 3)})
	}, []Rule{X3}},
	{"W7: failures, dead letters, a replay", letterQueue, func(s *story) {
		s.push("q", 1, 2)
		for n := range 3 { // two failures are allowed
			v := done(1)
			(*v)[0].DLQ = n == 2
			s.begin(hist.Ack, s.pop("q", "g", 1).acks("failed")).ok(v)
		}
		s.at["q/g"] = 1
		s.ack(s.pop("q", "g", 1))
		s.letters(letterOf("l1", 1, 0))
		in := message("q", 1)
		in.TransactionID = "dlq:l1"
		o := s.begin(hist.Replay, &hist.ReplayArgs{ID: "l1", TransactionID: name("q", 1), Queue: "q", Partition: "p0", Group: "g"})
		s.store(in)
		o.ok(&hist.ReplayAnswer{Success: true, Result: "moved", ReplayedAs: "dlq:l1"})
		v := done(1)
		(*v)[0].DLQ = true
		s.begin(hist.Ack, s.pop("q", "g", 1).acks("dlq")).ok(v)
		s.phase(hist.Final)
		l := letterOf("l2", 1, 2)
		l.TransactionID = "dlq:l1"
		s.letters(l)
	}, []Rule{Q7}},
	{"W8: completed retention behind the cursor", one(queue("W8"), func(q *hist.Queue) { q.CompletedRetentionMs = 1000 }), func(s *story) {
		s.push("q", 1, 2, 3)
		s.fetch("q", "p0")
		s.consume("q", "g", 2)
		s.now += 10 * second
		s.deleted("q", 2)
		s.phase(hist.Final)
		s.begin(hist.Fetch, &hist.FetchArgs{Entries: []hist.FetchEntry{{Queue: "q", Partition: "p0", Offset: 2}}}).ok(&hist.FetchAnswer{
			Entries: []hist.FetchResult{{Queue: "q", Partition: "p0", HighWatermark: 3, LogStartOffset: 2, Records: s.logs["q/p0"][2:]}},
		})
		s.phase(hist.Done)
	}, nil},
	{"W11: a pop is woken across brokers", []hist.Queue{queue("W11")}, func(s *story) { s.wake(5 * ms) }, []Rule{V1, V2}},
	{"W13: an outage", []hist.Queue{queue("W13")}, func(s *story) {
		s.push("q", 1)
		g := s.pop("q", "g", 1)
		s.fault(1, hist.FaultBegins, outage)
		s.begin(hist.Push, messages("q", 2)).info()
		s.fault(1, hist.FaultObserved, outage)
		s.verdictOf("q", 3, "buffered", false)
		s.verdictOf("q", 4, "buffered", false)
		s.verdictOf("q", 5, "failed", false)
		s.begin(hist.Health, &hist.HealthArgs{}).back(hist.Fail, 503, nil)
		s.begin(hist.Ack, g.acks("")).fail()
		s.begin(hist.Pop, &hist.PopArgs{Queue: "q", Group: "g", Wait: true, TimeoutMs: 100}).ok(&hist.PopAnswer{})
		open := s.begin(hist.Push, messages("q", 6)) // held over the end of the outage
		s.fault(1, hist.FaultRepairs, outage)
		s.fault(1, hist.FaultEnds, outage)
		open.ok(&hist.PushAnswer{result("queued", s.store(message("q", 6)))})
		s.store(message("q", 3))
		s.store(message("q", 4))
		s.now += 4 * second
		s.consume("q", "g", 2)
	}, []Rule{B1, B2, D4, V1}},
}

func TestAGoodHistoryPasses(t *testing.T) {
	t.Parallel()
	for _, g := range goodHistories {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			s := tell(t, g.queues...)
			g.tell(s)
			if e := s.events[len(s.events)-1]; e.F != hist.Phase {
				s.end()
			}
			r := s.judge()
			if r.Verdict != Pass {
				t.Errorf("%s:\n%s", r.Verdict, strings.Join(r.Reasons, "\n"))
			}
			for _, rule := range g.tests {
				i := slices.IndexFunc(r.Rules, func(x RuleReport) bool { return x.Rule == rule.String() })
				if r.Rules[i].Checked == 0 {
					t.Errorf("%s was not tested", rule)
				}
			}
		})
	}
}
