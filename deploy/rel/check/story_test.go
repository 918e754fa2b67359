package check

import (
	"iter"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queengate/queengate/deploy/rel/hist"
)

const (
	ms = int64(time.Millisecond)
	// epoch is the database's time at the start of every story.
	epoch = int64(1_780_000_000) * second
)

// story tells a history by hand: a small broker that behaves, and ways to say that it did not. Time moves only when
// something happens, a millisecond at a time.
type story struct {
	t      *testing.T
	h      hist.Header
	events []hist.Event
	now    int64
	op     int64
	lease  int
	logs   map[string][]hist.Record
	at     map[string]int64 // queue/group -> cursor
	tries  map[string]int   // queue/group/offset -> deliveries from there
}

func tell(t *testing.T, queues ...hist.Queue) *story {
	s := &story{t: t, logs: map[string][]hist.Record{}, at: map[string]int64{}, tries: map[string]int{}}
	s.h = hist.Header{Run: "story", Topology: hist.Topology{Brokers: []string{"br1"}, Mesh: true}}
	for _, q := range queues {
		if q.Partitions == nil {
			q.Partitions = []string{"p0"}
		}
		if q.LeaseMs == 0 {
			q.LeaseMs = 3000
		}
		s.h.Queues = append(s.h.Queues, q)
	}
	s.phase(hist.Load)
	return s
}

func (s *story) put(e hist.Event) {
	e.T = time.Duration(s.now)
	s.events = append(s.events, e)
	s.now += ms
}

func (s *story) phase(name string) {
	s.put(hist.Event{Kind: hist.Noted, F: hist.Phase, A: &hist.PhaseNote{Phase: name}})
}

// open is an operation that has not come back.
type open struct {
	s *story
	e hist.Event
}

func (s *story) as(client int, node string, f hist.Func, args any) *open {
	s.op++
	e := hist.Event{Kind: hist.Invoked, Op: s.op, W: "w", Client: client, Node: node, F: f, A: args}
	s.put(e)
	return &open{s, e}
}

func (s *story) begin(f hist.Func, args any) *open { return s.as(0, "br1", f, args) }

func (o *open) back(k hist.Kind, status int, answer any) {
	e := o.e
	e.Kind, e.Status, e.A, e.V = k, status, nil, answer
	o.s.put(e)
}

func (o *open) ok(answer any) { o.back(hist.OK, 200, answer) }
func (o *open) info()         { o.back(hist.Info, 0, nil) }
func (o *open) fail()         { o.back(hist.Fail, 503, nil) }

func name(q string, seq int) string {
	return hist.ID{Queue: q, Partition: "p0", Prod: "a", Seq: int64(seq)}.String()
}

func body(q string, seq int) jsontext.Value {
	return hist.Payload{ID: hist.ID{Queue: q, Partition: "p0", Prod: "a", Seq: int64(seq)}}.JSON()
}

func message(q string, seq int) hist.PushItem {
	return hist.PushItem{Queue: q, Partition: "p0", TransactionID: name(q, seq), Payload: body(q, seq)}
}

func messages(q string, seqs ...int) *hist.PushArgs {
	a := &hist.PushArgs{}
	for _, seq := range seqs {
		a.Items = append(a.Items, message(q, seq))
	}
	return a
}

// store puts a message at the end of p0 and returns its offset.
func (s *story) store(in hist.PushItem) int64 {
	k := in.Queue + "/" + in.Partition
	at := int64(len(s.logs[k]))
	s.logs[k] = append(s.logs[k], hist.Record{Offset: at, TransactionID: in.TransactionID, Payload: in.Payload, TS: time.Unix(0, epoch+s.now)})
	return at
}

func result(status string, offset int64) hist.PushResult {
	r := hist.PushResult{Status: status}
	if offset >= 0 {
		r.Offset, r.MessageID = &offset, "m"+strconv.FormatInt(offset, 10)
	}
	return r
}

// push pushes messages as it should be.
func (s *story) push(q string, seqs ...int) {
	a := messages(q, seqs...)
	o := s.begin(hist.Push, a)
	v := hist.PushAnswer{}
	for _, in := range a.Items {
		v = append(v, result("queued", s.store(in)))
	}
	o.ok(&v)
}

// verdictOf pushes one message, stores it if so, and answers a verdict without an offset.
func (s *story) verdictOf(q string, seq int, status string, stored bool) {
	o := s.begin(hist.Push, messages(q, seq))
	if stored {
		s.store(message(q, seq))
	}
	o.ok(&hist.PushAnswer{result(status, -1)})
}

// given is what a pop was given.
type given struct {
	queue, group string
	v            *hist.PopAnswer
}

func (s *story) answer(q, group string, from int64, n int, leased bool) *given {
	g := &given{queue: q, group: group, v: &hist.PopAnswer{}}
	if leased {
		s.lease++
		g.v.LeaseID = "lease" + strconv.Itoa(s.lease)
	}
	k := q + "/" + group + "/" + strconv.FormatInt(from, 10)
	s.tries[k]++
	for _, r := range s.logs[q+"/p0"][from:min(from+int64(n), int64(len(s.logs[q+"/p0"])))] {
		g.v.Messages = append(g.v.Messages, hist.Message{
			ID: "m" + strconv.FormatInt(r.Offset, 10), TransactionID: r.TransactionID, Data: r.Payload, CreatedAt: r.TS, Queue: q,
			Partition: "p0", Offset: r.Offset, DeliveryAttempt: s.tries[k],
		})
	}
	return g
}

// pop takes n messages from where the cursor is.
func (s *story) pop(q, group string, n int) *given { return s.popAt(q, group, s.at[q+"/"+group], n) }

// popAt takes n messages from any place.
func (s *story) popAt(q, group string, from int64, n int) *given {
	o := s.begin(hist.Pop, &hist.PopArgs{Queue: q, Group: group})
	g := s.answer(q, group, from, n, true)
	o.ok(g.v)
	return g
}

func (g *given) item(i int, status string) hist.AckItem {
	m := &g.v.Messages[i]
	return hist.AckItem{TransactionID: m.TransactionID, LeaseID: g.v.LeaseID, Status: status, Queue: m.Queue, Partition: m.Partition, Offset: m.Offset}
}

// acks builds an ack of the first messages of a delivery.
func (g *given) acks(statuses ...string) *hist.AckArgs {
	a := &hist.AckArgs{Group: g.group}
	for i, status := range statuses {
		a.Items = append(a.Items, g.item(i, status))
	}
	return a
}

func done(n int) *hist.AckAnswer {
	v := hist.AckAnswer{}
	for range n {
		v = append(v, hist.AckResult{Success: true})
	}
	return &v
}

// ack completes a whole delivery.
func (s *story) ack(g *given) {
	n := len(g.v.Messages)
	s.begin(hist.Ack, g.acks(slices.Repeat([]string{""}, n)...)).ok(done(n))
	s.at[g.queue+"/"+g.group] = g.v.Messages[n-1].Offset + 1
}

// consume takes and completes everything.
func (s *story) consume(q, group string, n int) {
	for s.at[q+"/"+group] < int64(len(s.logs[q+"/p0"])) {
		s.ack(s.pop(q, group, n))
	}
}

// commit sends a transaction that acknowledges the first message of a delivery and pushes.
func commit(g *given, pushes ...hist.PushItem) *hist.TransactionArgs {
	a := &hist.TransactionArgs{Pushes: pushes}
	if g != nil {
		a.Acks = []hist.TransactionAck{{AckItem: g.item(0, ""), Group: g.group}}
	}
	return a
}

// committed answers a transaction.
func committed(a *hist.TransactionArgs) *hist.TransactionAnswer {
	v := &hist.TransactionAnswer{Success: true}
	for range a.Pushes {
		v.Results = append(v.Results, hist.TransactionResult{Type: "push", Success: true})
	}
	for range a.Acks {
		v.Results = append(v.Results, hist.TransactionResult{Type: "ack", Success: true})
	}
	return v
}

// fetch reads p0 of a queue to its end.
func (s *story) fetch(q, p string) {
	r := s.logs[q+"/"+p]
	s.begin(hist.Fetch, &hist.FetchArgs{Entries: []hist.FetchEntry{{Queue: q, Partition: p}}}).ok(&hist.FetchAnswer{
		Entries: []hist.FetchResult{{Queue: q, Partition: p, Records: slices.Clone(r), HighWatermark: int64(len(r))}},
	})
}

func (s *story) fault(id int, step hist.Step, f hist.Fault) {
	f.ID, f.Step = id, step
	s.put(hist.Event{Kind: hist.Nemesis, Node: f.Target, A: &f})
}

// end reads everything and ends the run.
func (s *story) end() {
	s.phase(hist.Final)
	for _, q := range s.h.Queues {
		for _, p := range q.Partitions {
			s.fetch(q.Name, p)
		}
	}
	s.phase(hist.Done)
}

func (s *story) seq() iter.Seq2[hist.Event, error] {
	return func(yield func(hist.Event, error) bool) {
		for _, e := range s.events {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func (s *story) judge() *Report {
	s.t.Helper()
	r, err := judgeEvents(&s.h, s.seq(), nil, Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// red are the rules that a report has red, with the text of the first violation each.
func red(r *Report) (rules, texts []string) {
	for _, x := range r.Rules {
		if x.Verdict == Fail {
			rules = append(rules, x.Rule)
			texts = append(texts, x.Rule+": "+x.First[0].Text)
		}
	}
	return rules, texts
}

// queue is a queue with one group that drains it.
func queue(workload string) hist.Queue {
	return hist.Queue{Name: "q", Workload: workload, Groups: []hist.Group{{Name: "g", Drains: true}}}
}
