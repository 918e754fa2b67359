package check

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// bad is a history that breaks one promise.
type bad struct {
	name   string
	rule   Rule
	queues []hist.Queue
	tell   func(*story)
	says   string // a part of the finding
}

func one(q hist.Queue, change func(*hist.Queue)) []hist.Queue {
	change(&q)
	return []hist.Queue{q}
}

// plain is a queue that nobody consumes, without deduplication.
var plain = []hist.Queue{{Name: "q", Workload: "W1"}}

// window is one with deduplication for two seconds.
var window = []hist.Queue{{Name: "q", Workload: "W6", DedupMs: 2000}}

// pipeline is an input and an output of two partitions.
var pipeline = []hist.Queue{
	{Name: "q", Workload: "W5", Groups: []hist.Group{{Name: "g", Drains: true}}},
	{Name: "out", Workload: "W5", Partitions: []string{"p0", "p1"}},
}

func to(partition string, in hist.PushItem) hist.PushItem {
	id, err := hist.ParseID(in.TransactionID)
	if err != nil {
		panic(err)
	}
	id.Partition = partition
	in.Partition, in.TransactionID, in.Payload = partition, id.String(), hist.Payload{ID: id}.JSON()
	return in
}

var letterQueue = one(queue("W7"), func(q *hist.Queue) { q.DeadLetters, q.RetryLimit = true, 2 })

func (s *story) letters(ls ...hist.DeadLetter) {
	s.begin(hist.DeadLetters, &hist.DeadLettersArgs{Queue: "q"}).ok(&hist.DeadLettersAnswer{Messages: ls})
}

func letterOf(id string, seq int, offset int64) hist.DeadLetter {
	return hist.DeadLetter{ID: id, TransactionID: name("q", seq), Queue: "q", Partition: "p0", Group: "g", Offset: offset, Data: body("q", seq)}
}

var outage = hist.Fault{Name: "N8", Action: "pg-stop", Target: "pg", Outage: true, Effect: "refuses"}

var badHistories = []bad{
	{"an offset is missing", O1, plain, func(s *story) {
		s.push("q", 1, 2, 3)
		s.phase(hist.Final)
		r := slices.Delete(slices.Clone(s.logs["q/p0"]), 1, 2)
		s.begin(hist.Fetch, &hist.FetchArgs{Entries: []hist.FetchEntry{{Queue: "q", Partition: "p0"}}}).ok(&hist.FetchAnswer{
			Entries: []hist.FetchResult{{Queue: "q", Partition: "p0", Records: r, HighWatermark: 3}},
		})
		s.phase(hist.Done)
	}, "offset 2 is where 1 must be"},
	{"the start of a log moves though nothing may be deleted", O1, plain, func(s *story) {
		s.push("q", 1, 2)
		s.end()
		s.events[len(s.events)-2].V.(*hist.FetchAnswer).Entries[0].LogStartOffset = 1
	}, "nothing may be deleted"},
	{"an offset changes its time", O2, plain, func(s *story) {
		s.push("q", 1)
		s.fetch("q", "p0")
		s.logs["q/p0"][0].TS = s.logs["q/p0"][0].TS.Add(time.Second)
		s.end()
	}, "was created at"},
	{"an answer names the offset of another message", O2, plain, func(s *story) {
		a, b := s.begin(hist.Push, messages("q", 1)), s.as(1, "br1", hist.Push, messages("q", 2))
		a.ok(&hist.PushAnswer{result("queued", s.store(message("q", 1)))})
		s.store(message("q", 2))
		b.ok(&hist.PushAnswer{result("queued", 0)})
		s.end()
	}, "was answered to the push of"},
	{"a time goes back", O3, plain, func(s *story) {
		s.push("q", 1)
		s.push("q", 2)
		s.logs["q/p0"][1].TS = s.logs["q/p0"][0].TS.Add(-time.Millisecond)
		s.end()
	}, "before the one in front of it"},
	{"a later push overtakes", O4, plain, func(s *story) {
		a := s.begin(hist.Push, messages("q", 1))
		a.ok(&hist.PushAnswer{result("queued", 1)})
		b := s.begin(hist.Push, messages("q", 2))
		s.store(message("q", 2))
		s.store(message("q", 1))
		b.ok(&hist.PushAnswer{result("queued", 0)})
		s.end()
	}, "came back before"},
	{"items of one push change places", O4, plain, func(s *story) {
		o := s.begin(hist.Push, messages("q", 1, 2))
		s.store(message("q", 2))
		s.store(message("q", 1))
		o.ok(&hist.PushAnswer{result("queued", 1), result("queued", 0)})
		s.end()
	}, "is behind item 1"},
	{"a message that nobody pushed", O5, plain, func(s *story) {
		s.push("q", 1)
		s.store(message("q", 2))
		s.end()
	}, "nobody pushed"},
	{"a payload that nobody pushed", O5, plain, func(s *story) {
		o := s.begin(hist.Push, messages("q", 1))
		in := message("q", 1)
		in.Payload = body("q", 7)
		s.store(in)
		o.info()
		s.end()
	}, "with the payload"},
	{"the high watermark goes back", O6, plain, func(s *story) {
		s.push("q", 1, 2)
		s.fetch("q", "p0")
		all := s.logs["q/p0"]
		s.logs["q/p0"] = all[:1]
		s.fetch("q", "p0")
		s.logs["q/p0"] = all
		s.end()
	}, "was known before"},
	{"an acknowledged push is not visible to a fetch", O6, plain, func(s *story) {
		s.push("q", 1)
		all := s.logs["q/p0"]
		s.logs["q/p0"] = nil
		s.fetch("q", "p0")
		s.logs["q/p0"] = all
		s.end()
	}, "was known before"},
	{"a queued message is lost", D1, plain, func(s *story) {
		s.push("q", 1)
		s.begin(hist.Push, messages("q", 2)).ok(&hist.PushAnswer{result("queued", 1)})
		o := s.begin(hist.Push, messages("q", 3))
		s.store(message("q", 3))
		o.info()
		s.end()
	}, "is not there"},
	{"a queued message is there twice", D1, plain, func(s *story) {
		s.push("q", 1)
		s.store(message("q", 1))
		s.end()
	}, "is there 2 times"},
	{"a committed transaction is lost", D1, pipeline, func(s *story) {
		a := commit(nil, message("out", 1))
		s.begin(hist.Transaction, a).ok(committed(a))
		s.end()
	}, "none of its 1 messages"},
	{"a failed push appears", D2, plain, func(s *story) {
		s.begin(hist.Push, messages("q", 1)).fail()
		s.store(message("q", 1))
		s.end()
	}, "failed, and it is there"},
	{"a failed item appears", D2, plain, func(s *story) {
		s.verdictOf("q", 1, "failed", true)
		s.end()
	}, "failed, and it is there"},
	{"a push of unknown outcome appears twice", D3, plain, func(s *story) {
		o := s.begin(hist.Push, messages("q", 1))
		s.store(message("q", 1))
		s.store(message("q", 1))
		o.info()
		s.end()
	}, "is there 2 times"},
	{"a push that never came back appears twice", D3, plain, func(s *story) {
		s.begin(hist.Push, messages("q", 1))
		s.store(message("q", 1))
		s.store(message("q", 1))
		s.end()
	}, "is there 2 times"},
	{"a buffered message is lost", D4, plain, func(s *story) {
		s.verdictOf("q", 1, "buffered", false)
		s.end()
	}, "is not there"},
	{"a drain stores a message twice", D4, plain, func(s *story) {
		s.verdictOf("q", 1, "buffered", true)
		s.store(message("q", 1))
		s.end()
	}, "is there 2 times"},
	{"two messages of one id inside the window", X1, window, func(s *story) {
		for _, seq := range []int{1, 2} {
			in := message("q", seq)
			in.TransactionID = hist.ID{Queue: "q", Partition: "p0", Prod: hist.PoolProducer, Seq: 7}.String()
			o := s.begin(hist.Push, &hist.PushArgs{Items: []hist.PushItem{in}})
			o.ok(&hist.PushAnswer{result("queued", s.store(in))})
		}
		s.end()
	}, "less than 2s later"},
	{"a duplicate of another message", X2, window, func(s *story) {
		s.push("q", 1, 2)
		s.begin(hist.Push, messages("q", 1)).ok(&hist.PushAnswer{result("duplicate", 1)})
		s.end()
	}, "which holds"},
	{"a duplicate of nothing", X2, window, func(s *story) {
		s.begin(hist.Push, messages("q", 1)).ok(&hist.PushAnswer{result("duplicate", -1)})
		s.end()
	}, "no message has that id"},
	{"a duplicate that names another message id", X2, window, func(s *story) {
		s.push("q", 1)
		s.ack(s.pop("q", "", 1))
		r := result("duplicate", 0)
		r.MessageID = "other"
		s.begin(hist.Push, messages("q", 1)).ok(&hist.PushAnswer{r})
		s.end()
	}, "another id"},
	{"a duplicate that is stored", X2, one(window[0], func(q *hist.Queue) { q.DedupMs = 0 }), func(s *story) {
		in := message("q", 9) // another payload of the same id
		in.TransactionID = name("q", 1)
		s.push("q", 1)
		o := s.begin(hist.Push, &hist.PushArgs{Items: []hist.PushItem{in}})
		s.store(in)
		o.ok(&hist.PushAnswer{result("duplicate", 0)})
		s.end()
	}, "answered duplicate, and it is there"},
	{"a duplicate long after the window", X3, window, func(s *story) {
		s.push("q", 1)
		s.now += 10 * second
		s.begin(hist.Push, messages("q", 1)).ok(&hist.PushAnswer{result("duplicate", 0)})
		s.end()
	}, "was older than 2s"},
	{"a message in another partition", X4, []hist.Queue{{Name: "q", Workload: "W1", Partitions: []string{"p0", "p1"}}}, func(s *story) {
		s.push("q", 1)
		s.logs["q/p1"] = slices.Clone(s.logs["q/p0"])
		s.end()
	}, "belongs to q/p0"},
	{"a message of another tenant", X4, plain, func(s *story) {
		in := message("q", 1)
		in.TransactionID = hist.ID{Tenant: "b", Queue: "q", Partition: "p0", Prod: "a", Seq: 1}.String()
		s.store(in)
		s.fetch("q", "p0")
		s.logs["q/p0"] = nil
		s.events[len(s.events)-1].V.(*hist.FetchAnswer).Entries[0].HighWatermark = 1
		s.push("q", 2)
		s.end()
		// What is at 0 is the second message now; only the first reader saw the other tenant's.
	}, "belongs to b:q/p0"},
	{"two leases at once", L1, []hist.Queue{queue("W2")}, func(s *story) {
		s.push("q", 1)
		s.pop("q", "g", 1)
		s.ack(s.pop("q", "g", 1))
		s.end()
	}, "were leased to"},
	{"a superseded lease acknowledges", L2, []hist.Queue{queue("W2")}, func(s *story) {
		s.push("q", 1)
		zombie := s.pop("q", "g", 1)
		s.now += 4 * second
		s.pop("q", "g", 1)
		s.ack(zombie)
		s.end()
	}, "which was superseded"},
	{"a superseded lease commits", L2, pipeline, func(s *story) {
		s.push("q", 1)
		zombie := s.pop("q", "g", 1)
		s.now += 4 * second
		s.pop("q", "g", 1)
		a := commit(zombie, message("out", 1))
		o := s.begin(hist.Transaction, a)
		s.store(message("out", 1))
		o.ok(committed(a))
		s.end()
	}, "which was superseded"},
	{"a superseded lease is extended", L2, []hist.Queue{queue("W2")}, func(s *story) {
		s.push("q", 1)
		zombie := s.pop("q", "g", 1)
		s.now += 4 * second
		next := s.pop("q", "g", 1)
		s.begin(hist.Extend, &hist.ExtendArgs{LeaseID: zombie.v.LeaseID, Seconds: 1}).ok(&hist.ExtendAnswer{Success: true, Renewed: 1})
		s.ack(next)
		s.end()
	}, "an extension renewed"},
	{"an acknowledged message comes again", A1, []hist.Queue{queue("W2")}, func(s *story) {
		s.push("q", 1, 2)
		s.ack(s.pop("q", "g", 2))
		g := s.popAt("q", "g", 1, 1)
		s.ack(g)
		s.end()
	}, "is delivered again"},
	{"a delivery skips a message", A2, []hist.Queue{{Name: "q", Workload: "W2"}}, func(s *story) {
		s.push("q", 1, 2, 3)
		s.ack(s.pop("q", "", 1))
		s.popAt("q", "", 2, 1)
		s.end()
	}, "a delivery begins at 2"},
	{"a delivery has a hole", A2, []hist.Queue{{Name: "q", Workload: "W2"}}, func(s *story) {
		s.push("q", 1, 2, 3)
		g := s.pop("q", "", 3)
		g.v.Messages = slices.Delete(g.v.Messages, 1, 2)
		s.end()
	}, "offset 2 follows 0"},
	{"a message is never delivered", A3, []hist.Queue{queue("W2")}, func(s *story) {
		s.push("q", 1, 2)
		s.ack(s.pop("q", "g", 1))
		s.end()
	}, "offset 1 was never delivered"},
	{"a mixed ack clamps at the highest signal", A4, []hist.Queue{queue("W2")}, func(s *story) {
		s.push("q", 1, 2, 3, 4)
		g := s.pop("q", "g", 3)
		s.begin(hist.Ack, g.acks("", "retry", "")).ok(done(3))
		s.ack(s.popAt("q", "g", 3, 1))
		s.end()
	}, "behind a mixed ack"},
	{"a message dies too early", A4, letterQueue, func(s *story) {
		s.push("q", 1)
		g := s.pop("q", "g", 1)
		v := done(1)
		(*v)[0].DLQ = true
		s.begin(hist.Ack, g.acks("failed")).ok(v)
		s.phase(hist.Final)
		s.letters(letterOf("l1", 1, 0))
		s.end()
	}, "is dead after 1 failures"},
	{"a message lives too long", A4, letterQueue, func(s *story) {
		s.push("q", 1)
		for range 3 {
			s.begin(hist.Ack, s.pop("q", "g", 1).acks("failed")).ok(done(1))
		}
		s.ack(s.pop("q", "g", 1))
		s.phase(hist.Final)
		s.letters()
		s.end()
	}, "lives after 3 failures"},
	{"autoAck delivers twice", A5, one(queue("W2"), func(q *hist.Queue) { q.Groups[0] = hist.Group{Name: "g", AutoAck: true} }), func(s *story) {
		s.push("q", 1)
		for range 2 {
			o := s.begin(hist.Pop, &hist.PopArgs{Queue: "q", Group: "g", AutoAck: true})
			o.ok(s.answer("q", "g", 0, 1, false).v)
		}
		s.end()
	}, "was delivered before"},
	{"a redelivery is counted as the first", A6, []hist.Queue{queue("W2")}, func(s *story) {
		s.push("q", 1)
		s.pop("q", "g", 1)
		s.now += 4 * second
		g := s.pop("q", "g", 1)
		g.v.Messages[0].DeliveryAttempt = 1
		s.ack(g)
		s.end()
	}, "says attempt 1, want 2"},
	{"two leases that nobody can order both acknowledge", LIN, []hist.Queue{queue("W2")}, func(s *story) {
		s.push("q", 1)
		a := s.begin(hist.Pop, &hist.PopArgs{Queue: "q", Group: "g"})
		b := s.as(1, "br1", hist.Pop, &hist.PopArgs{Queue: "q", Group: "g"})
		first := s.answer("q", "g", 0, 1, true)
		a.ok(first.v)
		s.now += 4 * second
		second := s.answer("q", "g", 0, 1, true)
		b.ok(second.v)
		s.ack(first)
		s.ack(second)
		s.end()
	}, "no order"},
	{"half of a transaction is there", T1, pipeline, func(s *story) {
		a := commit(nil, message("out", 1), to("p1", message("out", 2)))
		o := s.begin(hist.Transaction, a)
		s.store(a.Pushes[0])
		o.ok(committed(a))
		s.end()
	}, "1 of the 2 messages"},
	{"half of a transaction of unknown outcome is there", T1, pipeline, func(s *story) {
		a := commit(nil, message("out", 1), to("p1", message("out", 2)))
		o := s.begin(hist.Transaction, a)
		s.store(a.Pushes[1])
		o.info()
		s.end()
	}, "1 of the 2 messages"},
	{"a reader sees half of a transaction", T1, pipeline, func(s *story) {
		a := commit(nil, message("out", 1), message("out", 2))
		o := s.begin(hist.Transaction, a)
		s.store(a.Pushes[0])
		s.fetch("out", "p0")
		s.store(a.Pushes[1])
		o.ok(committed(a))
		s.end()
	}, "between them"},
	{"a transaction's messages are there and its ack is not", T1, pipeline, func(s *story) {
		s.push("q", 1)
		g := s.pop("q", "g", 1)
		a := commit(g, message("out", 1))
		o := s.begin(hist.Transaction, a)
		s.store(message("out", 1))
		o.info()
		s.fetch("out", "p0")
		s.now += 4 * second
		s.pop("q", "g", 1)
		s.end()
	}, "is delivered again, after the messages"},
	{"a transaction's ack is there and its messages are not", T1, pipeline, func(s *story) {
		s.push("q", 1, 2)
		g := s.pop("q", "g", 1)
		s.begin(hist.Transaction, commit(g, message("out", 1))).info()
		s.at["q/g"] = 1
		a := commit(s.pop("q", "g", 1), message("out", 2))
		o := s.begin(hist.Transaction, a)
		s.store(message("out", 2))
		o.ok(committed(a))
		s.end()
	}, "no transaction consumed it"},
	{"two outputs of one input", T2, pipeline, func(s *story) {
		s.push("q", 1)
		a := commit(s.pop("q", "g", 1), message("out", 1))
		o := s.begin(hist.Transaction, a)
		s.store(message("out", 1))
		o.info()
		s.now += 4 * second
		b := commit(s.pop("q", "g", 1), message("out", 2))
		o = s.begin(hist.Transaction, b)
		s.store(message("out", 2))
		o.ok(committed(b))
		s.end()
	}, "two committed transactions"},
	{"a rolled back transaction appears", T2, pipeline, func(s *story) {
		s.begin(hist.Transaction, commit(nil, message("out", 1))).back(hist.Fail, 200, &hist.TransactionAnswer{Reason: "duplicate"})
		s.store(message("out", 1))
		s.end()
	}, "was rolled back, and it is there"},
	{"two transactions in two orders", T3, pipeline, func(s *story) {
		a := commit(nil, message("out", 1), to("p1", message("out", 1)))
		b := commit(nil, message("out", 2), to("p1", message("out", 2)))
		x, y := s.begin(hist.Transaction, a), s.as(1, "br1", hist.Transaction, b)
		s.store(a.Pushes[0])
		s.store(b.Pushes[0])
		s.store(b.Pushes[1])
		s.store(a.Pushes[1])
		x.ok(committed(a))
		y.ok(committed(b))
		s.end()
	}, "G0"},
	{"completed and dead", Q7, letterQueue, func(s *story) {
		s.push("q", 1)
		s.begin(hist.Ack, s.pop("q", "g", 1).acks("failed")).ok(done(1))
		s.ack(s.pop("q", "g", 1))
		s.phase(hist.Final)
		s.letters(letterOf("l1", 1, 0))
		s.end()
	}, "was completed and is dead"},
	{"neither completed nor dead", Q7, letterQueue, func(s *story) {
		s.push("q", 1)
		s.pop("q", "g", 1)
		s.phase(hist.Final)
		s.letters()
		s.end()
	}, "neither completed"},
	{"dead without a failure", Q7, letterQueue, func(s *story) {
		s.push("q", 1)
		s.begin(hist.Ack, s.pop("q", "g", 1).acks("retry")).ok(done(1))
		s.phase(hist.Final)
		s.letters(letterOf("l1", 1, 0))
		s.end()
	}, "nobody said that it failed"},
	{"a dead letter without its payload", Q7, letterQueue, func(s *story) {
		s.push("q", 1)
		v := done(1)
		(*v)[0].DLQ = true
		s.begin(hist.Ack, s.pop("q", "g", 1).acks("dlq")).ok(v)
		l := letterOf("l1", 1, 0)
		l.Data = body("q", 5)
		s.phase(hist.Final)
		s.letters(l)
		s.end()
	}, "has not the payload"},
	{"a replayed letter stays", Q7, letterQueue, func(s *story) {
		s.push("q", 1)
		v := done(1)
		(*v)[0].DLQ = true
		s.begin(hist.Ack, s.pop("q", "g", 1).acks("dlq")).ok(v)
		s.at["q/g"] = 1
		s.letters(letterOf("l1", 1, 0))
		in := message("q", 1)
		in.TransactionID = "dlq:l1"
		o := s.begin(hist.Replay, &hist.ReplayArgs{ID: "l1", TransactionID: name("q", 1), Queue: "q", Partition: "p0", Group: "g"})
		s.store(in)
		o.ok(&hist.ReplayAnswer{Success: true, Result: "moved", ReplayedAs: "dlq:l1"})
		s.consume("q", "g", 1)
		s.phase(hist.Final)
		s.letters(letterOf("l1", 1, 0))
		s.end()
	}, "was sent again and is still there"},
	{"retention passes the slowest cursor", R1, one(queue("W8"), func(q *hist.Queue) { q.CompletedRetentionMs = 1000 }), func(s *story) {
		s.push("q", 1, 2, 3)
		s.ack(s.pop("q", "g", 1))
		s.now += 10 * second
		s.deleted("q", 2)
		s.end()
		s.events[len(s.events)-2].V.(*hist.FetchAnswer).Entries[0].LogStartOffset = 2
	}, "cannot have acknowledged more than 0"},
	{"retention is too early", R1, one(queue("W8"), func(q *hist.Queue) { q.RetentionMs = 60_000 }), func(s *story) {
		s.push("q", 1, 2)
		s.fetch("q", "p0")
		s.now += 10 * second
		s.deleted("q", 1)
	}, "had been deleted"},
	{"a deletion leaves a hole", R2, one(queue("W8"), func(q *hist.Queue) { q.RetentionMs = 1000 }), func(s *story) {
		s.push("q", 1, 2, 3)
		s.now += 10 * second
		r := slices.Delete(slices.Clone(s.logs["q/p0"]), 1, 2)
		s.begin(hist.Fetch, &hist.FetchArgs{Entries: []hist.FetchEntry{{Queue: "q", Partition: "p0"}}}).ok(&hist.FetchAnswer{
			Entries: []hist.FetchResult{{Queue: "q", Partition: "p0", Records: r, HighWatermark: 3}},
		})
	}, "offset 2 is where 1 must be"},
	{"a pop fails while messages are evicted", R3, one(queue("W8"), func(q *hist.Queue) { q.MaxWaitMs = 1000 }), func(s *story) {
		s.begin(hist.Pop, &hist.PopArgs{Queue: "q", Group: "g"}).back(hist.Info, 500, nil)
		s.end()
	}, "ended in 500"},
	{"a push is queued without a database", B1, plain, func(s *story) {
		s.fault(1, hist.FaultBegins, outage)
		s.fault(1, hist.FaultObserved, outage)
		s.push("q", 1)
		s.fault(1, hist.FaultEnds, outage)
		s.end()
	}, "was answered queued while"},
	{"health is well without a database", B1, plain, func(s *story) {
		s.fault(1, hist.FaultBegins, outage)
		s.fault(1, hist.FaultObserved, outage)
		s.begin(hist.Health, &hist.HealthArgs{}).ok(&hist.HealthAnswer{Status: "healthy"})
		s.fault(1, hist.FaultRepairs, outage)
		s.fault(1, hist.FaultEnds, outage)
		s.end()
	}, "health succeeded"},
	{"an ack succeeds without a database", B1, []hist.Queue{queue("W13")}, func(s *story) {
		s.push("q", 1)
		g := s.pop("q", "g", 1)
		s.fault(1, hist.FaultBegins, outage)
		s.fault(1, hist.FaultObserved, outage)
		s.ack(g)
		s.fault(1, hist.FaultRepairs, outage)
		s.fault(1, hist.FaultEnds, outage)
		s.end()
	}, "ack succeeded"},
	{"a spool is drained newest first", B2, plain, func(s *story) {
		s.verdictOf("q", 1, "buffered", false)
		s.verdictOf("q", 2, "buffered", true)
		s.store(message("q", 1))
		s.end()
	}, "through its spool"},
	{"a client waits too long behind a fault", V1, plain, func(s *story) {
		tooLate(s)
		s.end()
	}, "was served 4"},
	{"a pop on another broker is not woken", V1, []hist.Queue{queue("W11")}, func(s *story) {
		s.h.Topology.Mesh = false
		s.wake(2 * second)
		s.end()
	}, "a waiting pop was answered"},
	{"the mesh wakes late", V2, []hist.Queue{queue("W11")}, func(s *story) {
		s.wake(300 * ms)
		s.end()
	}, "half of 1 pops"},
	{"a process ends by itself", EXT, nil, func(s *story) {
		s.put(hist.Event{Kind: hist.Noted, F: hist.Exit, A: &hist.ExitNote{Process: "br1", Code: 2}})
	}, "br1 ended by itself"},
	{"a log has a panic", LOG, nil, func(s *story) {
		s.put(hist.Event{Kind: hist.Noted, F: hist.Log, A: &hist.LogNote{Process: "br1", Line: "panic: boom"}})
	}, "boom"},
	{"the tables disagree", SQL, nil, func(s *story) {
		s.put(hist.Event{Kind: hist.Noted, F: hist.Invariant, A: &hist.InvariantNote{Name: "gapless", Detail: "partition 7"}})
	}, "partition 7"},
}

// wake pushes on one broker while a pop waits on another, which is answered late.
func (s *story) wake(late int64) {
	pop := s.as(1, "br2", hist.Pop, &hist.PopArgs{Queue: "q", Group: "g", Wait: true, TimeoutMs: 5000})
	s.push("q", 1)
	s.now += late
	g := s.answer("q", "g", 0, 1, true)
	pop.ok(g.v)
	s.ack(g)
}

// deleted is a fetch that learns that a log begins later.
func (s *story) deleted(q string, start int64) {
	s.begin(hist.Fetch, &hist.FetchArgs{Entries: []hist.FetchEntry{{Queue: q, Partition: "p0"}}}).ok(&hist.FetchAnswer{
		Entries: []hist.FetchResult{{Queue: q, Partition: "p0", HighWatermark: int64(len(s.logs[q+"/p0"])), LogStartOffset: start, Error: "OFFSET_OUT_OF_RANGE"}},
	})
}

func TestABadHistoryTurnsItsRuleRedAndNoOther(t *testing.T) {
	t.Parallel()
	tested := map[Rule]bool{}
	for _, b := range slices.Concat(badHistories, badGates) {
		tested[b.rule] = true
		t.Run(b.rule.String()+" "+b.name, func(t *testing.T) {
			t.Parallel()
			s := tell(t, b.queues...)
			b.tell(s)
			report := s.judge()
			rules, texts := red(report)
			if diff := cmp.Diff([]string{b.rule.String()}, rules); diff != "" {
				t.Fatalf("red rules (want -, got +):\n%s%s", diff, strings.Join(texts, "\n"))
			}
			if !strings.Contains(texts[0], b.says) {
				t.Errorf("the finding is %q, want it to say %q", texts[0], b.says)
			}
			if report.Verdict != Fail {
				t.Errorf("the run is %s", report.Verdict)
			}
		})
	}
	for r := range ruleCount {
		if !tested[r] {
			t.Errorf("no bad history turns %s red", r)
		}
	}
}

// tooLate tells of a client that was served four seconds after a broker was back.
func tooLate(s *story) {
	f := hist.Fault{Name: "N1", Action: "kill-9", Target: "br1", Effect: "gone"}
	s.fault(1, hist.FaultBegins, f)
	s.fault(1, hist.FaultObserved, f)
	s.fault(1, hist.FaultEnds, f)
	o := s.begin(hist.Push, messages("q", 1))
	s.now += 4 * second
	o.ok(&hist.PushAnswer{result("queued", s.store(message("q", 1)))})
}
