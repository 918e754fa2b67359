package proxy

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

func (w *world) transaction(body string) string {
	return w.head("POST", "/api/v1/transaction", "Content-Length: "+strconv.Itoa(len(body))) + body
}

func transactionOf(pushes, acks int) string {
	var ops []string
	for i := range pushes {
		ops = append(ops, fmt.Sprintf(`{"type":"push","queue":"q%d","payload":{"n":%d}}`, i, i))
	}
	for i := range acks {
		ops = append(ops, fmt.Sprintf(`{"type":"ack","transactionId":"t%d","partitionId":"p"}`, i))
	}
	return `{"operations":[` + strings.Join(ops, ",") + `]}`
}

// answering is a broker that answers transactions with 200 and these headers.
func answering(stored ...string) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		for _, s := range stored {
			ctx.Response.Header.Set(wire.HeaderStored, s)
		}
		ctx.SetContentType("application/json")
		ctx.SetBodyString(`{"success":true}`)
	}
}

// TestATransactionIsMeasured makes each limit of a push refuse a transaction.
func TestATransactionIsMeasured(t *testing.T) {
	t.Parallel()
	big := `{"operations":[{"type":"push","items":[{"queue":"q","data":"` + strings.Repeat("x", 100) + `"}]}]}`
	for name, tt := range map[string]struct {
		limit  func(*plans.Limits)
		body   string
		status int
		code   string
		name   string
	}{
		"within all":             {func(l *plans.Limits) { l.MaxPayloadBytes, l.MaxBatchItems = one(int64(50)), one(int64(2)) }, transactionOf(2, 5), 200, "", ""},
		"messages":               {func(l *plans.Limits) { l.MessagesPerSecond, l.MessagesBurst = one(1.0), one(2.0) }, transactionOf(3, 0), 413, "batch_exceeds_burst", "msgs"},
		"batch":                  {func(l *plans.Limits) { l.MaxBatchItems = one(int64(2)) }, transactionOf(3, 0), 413, "payload_too_large", "batch"},
		"payload":                {func(l *plans.Limits) { l.MaxPayloadBytes = one(int64(50)) }, big, 413, "payload_too_large", "payload"},
		"body":                   {func(l *plans.Limits) { l.MaxBodyBytes = one(int64(50)) }, big, 413, "payload_too_large", "body"},
		"no messages at all":     {func(l *plans.Limits) { l.MessagesPerSecond, l.MessagesBurst = one(0.0), one(0.0) }, transactionOf(1, 1), 403, "quota_exceeded", "msgs"},
		"acks count no messages": {func(l *plans.Limits) { l.MessagesPerSecond, l.MessagesBurst = one(0.0), one(0.0) }, transactionOf(0, 9), 200, "", ""},
		"malformed":              {func(*plans.Limits) {}, `{"operations":[{"type":"pop"}]}`, 400, "invalid_request", ""},
		"riders":                 {func(*plans.Limits) {}, `{"operations":[],"kv":[{}]}`, 400, "invalid_request", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, options{facts: func(w *world) { tt.limit(&w.cluster.Limits) }, broker: answering("1")})
			r := w.ask(w.transaction(tt.body))
			if r.StatusCode != tt.status || r.code() != tt.code || tt.name != "" && !strings.Contains(r.body, `"limit":{"name":"`+tt.name+`"`) {
				t.Errorf("got %d %s, want %d %s of %q", r.StatusCode, r.body, tt.status, tt.code, tt.name)
			}
			if tt.status == 400 && !strings.Contains(r.body, `"success":false,"reason":"bad_request","results":[]`) {
				t.Errorf("a malformed transaction is answered %s", r.body)
			}
			if tt.status != 200 {
				return
			}
			if got := await(t, w.broker.seen); got.body != tt.body {
				t.Errorf("the broker got %q", got.body)
			}
			if r.Header.Get(wire.HeaderStored) != "" {
				t.Error("what the broker says to the gateway reached the client")
			}
		})
	}
}

// A key that may only produce pushes in a transaction; to acknowledge in one it must be able to consume.
func TestAcksInATransactionNeedTheRightToConsume(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		scopes plans.Scope
		body   string
		want   int
	}{
		"produce pushes":             {plans.ScopeProduce, transactionOf(1, 0), 200},
		"produce acknowledges":       {plans.ScopeProduce, transactionOf(1, 1), 403},
		"consume pushes":             {plans.ScopeConsume, transactionOf(1, 0), 403},
		"consume acknowledges alone": {plans.ScopeConsume, transactionOf(0, 1), 403},
		"both":                       {plans.ScopeProduce | plans.ScopeConsume, transactionOf(1, 1), 200},
		"read":                       {plans.ScopeRead, transactionOf(1, 0), 403},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, options{facts: func(w *world) { w.facts.Keys[0].Scopes = tt.scopes }, broker: answering("1")})
			r := w.ask(w.transaction(tt.body))
			if r.StatusCode != tt.want || tt.want == 403 && r.code() != "forbidden" {
				t.Errorf("got %d %s, want %d", r.StatusCode, r.body, tt.want)
			}
			if tt.want != 200 && len(w.broker.seen) > 0 {
				t.Error("a refused transaction reached the broker")
			}
		})
	}
}

// A transaction that was rolled back counts neither bytes nor messages of the month; one that was stored does, and so
// does one of a broker that does not say.
func TestOnlyWhatATransactionStoredIsCounted(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		header []string
		after  int
	}{
		"stored": {[]string{"1"}, 403}, "rolled back": {[]string{"0"}, 200}, "not said": {nil, 403},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, options{facts: func(w *world) { w.cluster.Limits.MonthlyMessages = one(int64(1)) }, broker: answering(tt.header...)})
			if r := w.ask(w.transaction(transactionOf(1, 0))); r.StatusCode != 200 {
				t.Fatalf("got %d %s", r.StatusCode, r.body)
			}
			if r := w.ask(w.transaction(transactionOf(1, 0))); r.StatusCode != tt.after {
				t.Errorf("then %d %s, want %d", r.StatusCode, r.body, tt.after)
			}
			if r := w.ask(w.transaction(transactionOf(0, 1))); r.StatusCode != 200 {
				t.Errorf("acks alone: %d %s", r.StatusCode, r.body)
			}
		})
	}
}

// A transaction that only acknowledges passes where an ack does, into the debt of the request rate; one that pushes is
// refused there, with its body read.
func TestTransactionsOfAcksPassAnEmptyRequestBucket(t *testing.T) {
	t.Parallel()
	w := setup(t, options{
		facts: func(w *world) {
			w.cluster.Limits.RequestsPerSecond, w.cluster.Limits.RequestsBurst = one(0.001), one(2.0)
		},
		broker: answering("1"),
	})
	for range 2 {
		if r := w.ask(w.transaction(transactionOf(1, 1))); r.StatusCode != 200 {
			t.Fatalf("within the burst: %d %s", r.StatusCode, r.body)
		}
	}
	if r := w.ask(w.transaction(transactionOf(1, 1))); r.StatusCode != 429 || !strings.Contains(r.body, `"limit":{"name":"req"`) || r.Close {
		t.Errorf("a push beyond it: %d %s", r.StatusCode, r.body)
	}
	for range 2 {
		if r := w.ask(w.transaction(transactionOf(0, 3))); r.StatusCode != 200 {
			t.Errorf("acks beyond it: %d %s", r.StatusCode, r.body)
		}
	}
	if r := w.ask(w.transaction(transactionOf(0, 3))); r.StatusCode != 429 {
		t.Errorf("acks beyond the debt: %d %s", r.StatusCode, r.body)
	}
}

// Replays are blocked by what blocks pushes, make their destination under the plan's counts, and count what the broker
// says has returned.
func TestReplaysStandUnderThePlan(t *testing.T) {
	t.Parallel()
	const id = "0198f000-0000-7000-8000-0000000000aa"
	replay, retry, redrive := "/api/v1/dlq/"+id+"/replay", "/api/v1/messages/"+id+"/t/retry", "/api/v1/dlq/redrive"
	const there = `{"queue":"q","partition":"p"}`
	for name, tt := range map[string]struct {
		limit  func(*world)
		stored string
		asks   []string // path and body
		want   []int
	}{
		"a billing hold":    {func(w *world) { w.cluster.Status = plans.PushBlocked }, "1", []string{replay, "", retry, "", redrive, `{"queue":"q"}`, redrive, `{"queue":"q","dryRun":true}`}, []int{403, 403, 403, 200}},
		"storage":           {func(w *world) { w.cluster.Limits.MaxRetainedBytes = one(int64(0)) }, "1", []string{replay, "", retry, "{}"}, []int{403, 403}},
		"no queues":         {func(w *world) { w.cluster.Limits.MaxQueues = one(int64(0)) }, "1", []string{replay, there, redrive, `{"queue":"q","destination":` + there + `}`, replay, ""}, []int{403, 403, 200}},
		"the month":         {func(w *world) { w.cluster.Limits.MonthlyMessages = one(int64(2)) }, "1", []string{replay, "", retry, "", replay, ""}, []int{200, 200, 403}},
		"a redrive of many": {func(w *world) { w.cluster.Limits.MonthlyMessages = one(int64(5)) }, "7", []string{redrive, `{"queue":"q"}`, replay, ""}, []int{200, 403}},
		"duplicates":        {func(w *world) { w.cluster.Limits.MonthlyMessages = one(int64(1)) }, "0", []string{replay, "", replay, "", replay, ""}, []int{200, 200, 200}},
		"no message rate": {func(w *world) {
			w.cluster.Limits.MessagesPerSecond, w.cluster.Limits.MessagesBurst = one(0.0), one(0.0)
		}, "1", []string{replay, ""}, []int{200}},
		"malformed": {func(*world) {}, "1", []string{replay, `{"queue":"q"}`, redrive, `{}`}, []int{400, 400}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, options{facts: tt.limit, broker: answering(tt.stored)})
			for i, want := range tt.want {
				path, body := tt.asks[2*i], tt.asks[2*i+1]
				r := w.ask(w.head("POST", path, "Content-Length: "+strconv.Itoa(len(body))) + body)
				if r.StatusCode != want || r.Header.Get(wire.HeaderStored) != "" {
					t.Errorf("%d %s %s: %d %s, want %d", i, path, body, r.StatusCode, r.body, want)
				}
			}
		})
	}
}
