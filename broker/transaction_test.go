package broker

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

type transacted struct {
	TransactionID string `json:"transactionId"`
	Success       bool   `json:"success"`
	Reason        string `json:"reason"`
	Error         string `json:"error"`
	FailedIndex   *int   `json:"failedIndex"`
	Results       []struct {
		Index         int     `json:"index"`
		Type          string  `json:"type"`
		Success       bool    `json:"success"`
		TransactionID string  `json:"transactionId"`
		MessageID     string  `json:"messageId"`
		QueueName     string  `json:"queueName"`
		PartitionID   string  `json:"partitionId"`
		Duplicate     bool    `json:"duplicate"`
		Error         *string `json:"error"`
		DLQ           bool    `json:"dlq"`
		Noop          bool    `json:"noop"`
	} `json:"results"`
}

// transact sends operations and returns the answer, which must be 200.
func (w *world) transact(leases []string, ops ...string) transacted {
	w.t.Helper()
	body := `{"operations":[` + strings.Join(ops, ",") + `]`
	if leases != nil {
		body += `,"requiredLeases":["` + strings.Join(leases, `","`) + `"]`
	}
	a := w.do("POST", "/api/v1/transaction", body+"}").want(w.t, 200)
	r := decode[transacted](w.t, a)
	if _, err := uuid.Parse(r.TransactionID); err != nil {
		w.t.Errorf("transactionId %q", r.TransactionID)
	}
	stored := 0
	for _, e := range r.Results {
		if e.Type == "push" && !e.Duplicate {
			stored++
		}
	}
	if got := a.header.Get(wire.HeaderStored); got != fmt.Sprint(stored) {
		w.t.Errorf("it says that %q messages were stored, want %d", got, stored)
	}
	return r
}

func pushOp(queue, txn string) string {
	return fmt.Sprintf(`{"type":"push","items":[{"queue":%q,"transactionId":%q,"payload":{"n":%q}}]}`, queue, txn, txn)
}

// ackOp acknowledges as published SDKs do, without a lease on the operation.
func ackOp(m message, status, group string) string {
	return fmt.Sprintf(`{"type":"ack","transactionId":%q,"partitionId":%q,"status":%q,"consumerGroup":%q}`, m.TransactionID, m.PartitionID, status, group)
}

func TestATransactionMovesAMessage(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("in", "a")
	got := w.pop("in?consumerGroup=g&subscriptionMode=all")
	r := w.transact([]string{got.LeaseID}, ackOp(got.Messages[0], "completed", "g"),
		`{"type":"push","items":[{"queue":"out","data":{"b":1},"traceId":"0198f000-0000-7000-8000-0000000000aa"},{"queue":"out","partition":"p","transactionId":"x"}]}`,
		`{"type":"push","queue":"out","partition":"p","transactionId":"x","payload":2}`)
	if !r.Success || len(r.Results) != 4 {
		t.Fatalf("%+v", r)
	}
	for i, e := range r.Results {
		if want := map[bool]string{true: "push", false: "ack"}[i < 3]; e.Index != i || e.Type != want || !e.Success {
			t.Errorf("result %d: %+v", i, e)
		}
	}
	if a, b := r.Results[1], r.Results[2]; a.Duplicate || !b.Duplicate || a.MessageID != b.MessageID || b.QueueName != "out" || b.TransactionID != "x" {
		t.Errorf("the repeat of an item: %+v and %+v", a, b)
	}
	if e := r.Results[3]; e.TransactionID != "a" || e.Error != nil || e.DLQ || e.Noop {
		t.Errorf("the ack: %+v", e)
	}
	out := w.pop("out?partitions=0")
	if len(out.Messages) != 2 {
		t.Fatalf("delivered %+v", out)
	}
	for _, m := range out.Messages {
		want := r.Results[0]
		if m.Partition == "p" {
			want = r.Results[1]
		}
		if m.ID != want.MessageID || m.TransactionID != want.TransactionID || m.PartitionID != want.PartitionID {
			t.Errorf("delivered %+v, promised %+v", m, want)
		}
		if data := string(m.Data); m.Partition == "p" && data != "{}" || m.Partition != "p" && data != `{"b":1}` {
			t.Errorf("payload %s of partition %s", data, m.Partition)
		}
	}
	if a := w.do("GET", "/api/v1/pop/queue/out?consumerGroup=t&subscriptionMode=all&partitions=0", ""); !strings.Contains(a.body, `"traceId":"0198f000-0000-7000-8000-0000000000aa"`) {
		t.Errorf("the trace is lost: %s", a.body)
	}
	if again := w.pop("in?consumerGroup=g"); again.Messages != nil {
		t.Errorf("delivered again: %+v", again)
	}
	if n := len(w.b.leases.byID); n != 2 { // those of the two pops of out
		t.Errorf("%d leases are remembered", n)
	}
}

// The lock-step of a pipeline: what a transaction pushes wakes who waits for it, and so does the lease it ends.
func TestATransactionWakes(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("in", "a")
	w.one("in", "b")
	first := w.pop("in?batch=1")
	waiting := make(chan popped, 2)
	for _, queue := range []string{"in", "out"} {
		go func() { waiting <- w.pop(queue + "?wait=true&timeout=20000") }()
	}
	w.until("both park", func() bool { return w.b.park.Waiting() == 2 })
	if r := w.transact([]string{first.LeaseID}, ackOp(first.Messages[0], "completed", ""), pushOp("out", "x")); !r.Success {
		t.Fatalf("%+v", r)
	}
	for range 2 {
		if got := <-waiting; len(got.Messages) != 1 || got.Messages[0].TransactionID != map[string]string{"in": "b", "out": "x"}[got.Queue] {
			t.Errorf("woken with %+v", got)
		}
	}
}

// After a transaction, which does not go through the group commit of pushes, both still know all ids.
func TestPushesAndTransactionsShareTheirMemoryOfIds(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a")
	if r := w.transact(nil, pushOp("q", "b")); !r.Success {
		t.Fatalf("%+v", r)
	}
	if r := w.one("q", "b"); r.Status != "duplicate" || *r.Offset != 1 {
		t.Errorf("a push of what a transaction stored: %+v", r)
	}
	if r := w.one("q", "c"); r.Status != "queued" || *r.Offset != 2 {
		t.Errorf("the next push: %+v", r)
	}
	for _, id := range []string{"a", "b", "c"} {
		r := w.transact(nil, pushOp("q", "new"), pushOp("q", id))
		if r.Success || r.Reason != "duplicate" || !strings.HasPrefix(r.Error, "QDUP ") || *r.FailedIndex != 1 || len(r.Results) != 0 {
			t.Errorf("a transaction that repeats %s: %+v", id, r)
		}
	}
	if r := w.transact(nil, pushOp("q", "d")); !r.Success {
		t.Errorf("%+v", r)
	}
	if r := w.one("q", "e"); r.Status != "queued" || *r.Offset != 4 {
		t.Errorf("the push after it: %+v", r)
	}
	if s := w.b.fuser.Stats(); s.Hydrations != 1 || s.TopUps != 0 {
		t.Errorf("%d sidecar reads and %d of gaps, want the first one", s.Hydrations, s.TopUps)
	}
}

func TestARolledBackTransactionSaysWhy(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	unknown := fmt.Sprintf(`{"type":"ack","transactionId":"nowhere","partitionId":%q}`, uuid.NewString())
	for name, tt := range map[string]struct {
		ops    func(queue string, got popped) (leases, ops []string)
		reason string
		says   string
		index  int // -1: none
	}{
		"a duplicate": {func(q string, p popped) ([]string, []string) {
			return []string{p.LeaseID}, []string{ackOp(p.Messages[0], "completed", ""), pushOp("out-"+q, "new"), pushOp(q, "a")}
		}, "duplicate", `QDUP push of transactionId "a"`, 1},
		"an unknown message": {func(q string, p popped) ([]string, []string) {
			m := p.Messages[0]
			m.TransactionID = "nowhere"
			return []string{p.LeaseID}, []string{pushOp("out-"+q, "new"), ackOp(p.Messages[0], "completed", ""), ackOp(m, "completed", "")}
		}, "ack_rejected", `QTXN ack references unknown transactionId "nowhere"`, 2},
		"an unknown partition": {func(q string, p popped) ([]string, []string) {
			return nil, []string{pushOp("out-"+q, "new"), unknown}
		}, "ack_rejected", "QTXN ack of transactionId \"nowhere\": partition not owned", 1},
		"a partition id that is none": {func(q string, p popped) ([]string, []string) {
			m := p.Messages[0]
			m.PartitionID = "p"
			return nil, []string{pushOp("out-"+q, "new"), ackOp(m, "completed", "")}
		}, "ack_rejected", "partition not owned", 1},
		"a lease that is over": {func(q string, p popped) ([]string, []string) {
			return []string{uuid.NewString()}, []string{pushOp("out-"+q, "new"), ackOp(p.Messages[0], "completed", "")}
		}, "ack_rejected", "invalid_lease", 1},
		"a lease that nobody needs": {func(q string, p popped) ([]string, []string) {
			return []string{p.LeaseID, uuid.NewString()}, []string{pushOp("out-"+q, "new"), ackOp(p.Messages[0], "completed", "")}
		}, "ack_rejected", "QTXN required lease", -1},
		"two leases of one partition": {func(q string, p popped) ([]string, []string) {
			lease := func(s, l string) string { return s[:len(s)-1] + `,"leaseId":"` + l + `"}` }
			return nil, []string{lease(ackOp(p.Messages[0], "completed", ""), p.LeaseID), lease(ackOp(p.Messages[1], "completed", ""), uuid.NewString()), pushOp("out-"+q, "new")}
		}, "ack_rejected", "invalid_lease", 2},
		"another group": {func(q string, p popped) ([]string, []string) {
			return []string{p.LeaseID}, []string{pushOp("out-"+q, "new"), ackOp(p.Messages[0], "completed", "other")}
		}, "ack_rejected", "consumer not found", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := strings.ReplaceAll(name, " ", "-")
			w := *w
			w.t = t
			w.one(queue, "a")
			w.one(queue, "b")
			p := w.pop(queue + "?batch=2")
			leases, ops := tt.ops(queue, p)
			r := w.transact(leases, ops...)
			if r.Success || r.Reason != tt.reason || !strings.Contains(r.Error, tt.says) || r.Results == nil || len(r.Results) != 0 || !strings.HasSuffix(r.Error, "rolled back") {
				t.Errorf("%+v, want %s saying %q", r, tt.reason, tt.says)
			}
			if got := r.FailedIndex; tt.index < 0 && got != nil || tt.index >= 0 && (got == nil || *got != tt.index) {
				t.Errorf("at fault is %v, want %d", got, tt.index)
			}
			if out := w.pop("out-" + queue); out.Messages != nil {
				t.Errorf("it stored %+v", out)
			}
			if again := w.pop(queue); again.Messages != nil {
				t.Errorf("it released the lease: %+v", again)
			}
			if a := w.ack("completed", "", p.Messages...); !a[0].Success || !a[1].Success {
				t.Errorf("the messages can be acknowledged no more: %+v", a)
			}
		})
	}
}

func TestTransactionsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for _, body := range []string{``, `{}`, `{"operations":[]}`, `{"operations":[{"type":"x"}]}`, `{"operations":[],"kv":[{"op":"get"}]}`, `{"operations":[{"type":"ack","partitionId":"p"}]}`} {
		a := w.do("POST", "/api/v1/transaction", body).want(t, 400)
		r := decode[transacted](t, a)
		if r.Success || r.Reason != "bad_request" || !strings.HasPrefix(r.Error, "bad body: ") || r.Results == nil || !strings.Contains(a.body, `"code":"invalid_request"`) {
			t.Errorf("%s: %s", body, a.body)
		}
	}
	if r := w.transact(nil, `{"type":"push","items":[]}`); !r.Success || r.Results == nil || len(r.Results) != 0 {
		t.Errorf("a transaction of nothing: %+v", r)
	}
}

func TestATransactionIsUnderTheTenantsCaps(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	w := setup(t, m.tenancy)
	one, tenant := int64(1), uuid.New()
	headers := []string{wire.HeaderTenant, tenant.String(), "Authorization", m.token(wire.CellClaims{Tenant: tenant, Access: wire.AccessReadWrite, MaxQueues: &one})}
	body := func(queues ...string) string {
		var ops []string
		for _, q := range queues {
			ops = append(ops, pushOp(q, "a"))
		}
		return `{"operations":[` + strings.Join(ops, ",") + `]}`
	}
	a := w.do("POST", "/api/v1/transaction", body("x", "y"), headers...).want(t, http.StatusForbidden)
	if !strings.Contains(a.body, `"code":"quota_exceeded"`) || !strings.Contains(a.body, `"name":"queues"`) {
		t.Errorf("%s", a.body)
	}
	w.do("POST", "/api/v1/transaction", body("x"), headers...).want(t, 200)
	w.do("POST", "/api/v1/transaction", body("y"), headers...).want(t, http.StatusForbidden)
}

// A queue that is deleted between its look-up and the write is made anew, as by a push.
func TestATransactionOutlivesADeletedQueue(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a")
	if _, _, err := w.b.db.DeleteQueue(t.Context(), DefaultTenant, "q"); err != nil {
		t.Fatal(err)
	}
	if r := w.transact(nil, pushOp("q", "a")); !r.Success {
		t.Errorf("%+v", r)
	}
	if got := w.pop("q"); len(got.Messages) != 1 {
		t.Errorf("%+v", got)
	}
}

// Many transactions, pushes and acks at once through the whole broker: each message moves exactly once, whoever moves it.
func TestAPipelineOfTransactionsLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	const messages, partitions, workers = 120, 4, 6
	for i := range messages {
		w.push(fmt.Sprintf(`{"items":[{"queue":"in","partition":"p%d","transactionId":"m%d","payload":%d}]}`, i%partitions, i, i))
	}
	var mu sync.Mutex
	moved := 0
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for {
				mu.Lock()
				done := moved >= messages
				mu.Unlock()
				if done {
					return
				}
				got := w.pop("in?batch=7&partitions=2&wait=true&timeout=1000")
				if got.Messages == nil {
					continue
				}
				var ops []string
				for _, m := range got.Messages {
					ops = append(ops, ackOp(m, "completed", ""),
						fmt.Sprintf(`{"type":"push","queue":"out","partition":%q,"transactionId":"of %s","payload":%s}`, m.Partition, m.TransactionID, m.Data))
				}
				r := w.transact([]string{got.LeaseID}, ops...)
				if !r.Success {
					w.t.Errorf("%+v", r)
					return
				}
				w.push(`{"items":[{"queue":"out","partition":"p0","payload":"noise"}]}`)
				mu.Lock()
				moved += len(got.Messages)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	seen := map[string]int{}
	for {
		got := w.pop("out?partitions=0&batch=1000&autoAck=true")
		if got.Messages == nil {
			break
		}
		for _, m := range got.Messages {
			if string(m.Data) != `"noise"` {
				seen[m.TransactionID]++
			}
		}
	}
	for i := range messages {
		if n := seen[fmt.Sprintf("of m%d", i)]; n != 1 {
			t.Errorf("message %d arrived %d times", i, n)
		}
	}
}
