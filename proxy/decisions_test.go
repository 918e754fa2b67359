package proxy

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/plans"
)

// logBook keeps what is logged. Safe for concurrent use.
type logBook struct {
	// mu guards text.
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// of returns the lines of a request.
func (l *logBook) of(id string) (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, "request_id="+id+" ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// decided returns a counter of decisions by limit, mode and verdict.
func (w *world) decided(mode, verdict string) map[string]float64 {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "queengate_quota_decisions_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["mode"] == mode && labels["verdict"] == verdict {
				counts[labels["limit"]] = m.GetCounter().GetValue()
			}
		}
	}
	return counts
}

// W9: what a limit refuses is told, there, to the client alone. Here it stands in one line of the log, under the id that the
// client has, and in a counter by limit; in shadow mode as well, though the request goes through.
func TestDecisionsOfEveryLimitAreLoggedAndCounted(t *testing.T) {
	t.Parallel()
	push := func(w *world) string { return w.push(aPush) }
	named := func(w *world) string { return w.push(`{"items":[{"queue":"q","partition":"p","payload":{"n":1}}]}`) }
	pop := func(w *world) string { return w.head("GET", "/api/v1/pop/queue/q") }
	waits := func(w *world) string { return w.head("GET", "/api/v1/pop/queue/q?wait=true&timeout=2000") }
	configure := func(w *world) string {
		const body = `{"queue":"q","options":{"retentionSeconds":61}}`
		return w.head("POST", "/api/v1/configure", fmt.Sprintf("Content-Length: %d", len(body))) + body
	}
	slow, burst, none, few := one(0.001), one(1.0), one(int64(0)), one(int64(1))
	tests := map[string]struct {
		spent  bool // the first request passes, the second is refused
		change func(l *plans.Limits, k *plans.KeyLimits)
		ask    func(*world) string
		status int
	}{
		plans.LimitKeyRequests: {true, func(_ *plans.Limits, k *plans.KeyLimits) { k.RequestsPerSecond, k.RequestsBurst = slow, burst }, push, 429},
		plans.LimitRequests:    {true, func(l *plans.Limits, _ *plans.KeyLimits) { l.RequestsPerSecond, l.RequestsBurst = slow, burst }, push, 429},
		plans.LimitKeyMessages: {true, func(_ *plans.Limits, k *plans.KeyLimits) { k.MessagesPerSecond, k.MessagesBurst = slow, burst }, push, 429},
		plans.LimitMessages:    {true, func(l *plans.Limits, _ *plans.KeyLimits) { l.MessagesPerSecond, l.MessagesBurst = slow, burst }, push, 429},
		plans.LimitDelivery:    {true, func(l *plans.Limits, _ *plans.KeyLimits) { l.DeliveryPerSecond, l.DeliveryBurst = slow, burst }, pop, 429},
		plans.LimitQueues:      {false, func(l *plans.Limits, _ *plans.KeyLimits) { l.MaxQueues = none }, push, 403},
		plans.LimitPartitions:  {false, func(l *plans.Limits, _ *plans.KeyLimits) { l.MaxPartitionsPerQueue = none }, named, 403},
		plans.LimitBody:        {false, func(l *plans.Limits, _ *plans.KeyLimits) { l.MaxBodyBytes = few }, push, 413},
		plans.LimitPayload:     {false, func(l *plans.Limits, _ *plans.KeyLimits) { l.MaxPayloadBytes = few }, push, 413},
		plans.LimitBatch:       {false, func(l *plans.Limits, _ *plans.KeyLimits) { l.MaxBatchItems = none }, push, 403},
		plans.LimitRetention:   {false, func(l *plans.Limits, _ *plans.KeyLimits) { l.MaxRetentionSeconds = one(int64(60)) }, configure, 403},
		plans.LimitParked:      {false, func(l *plans.Limits, _ *plans.KeyLimits) { l.MaxParkedPops = none }, waits, 403},
		plans.LimitStorage:     {false, func(l *plans.Limits, _ *plans.KeyLimits) { l.MaxRetainedBytes = none }, push, 403},
		plans.LimitMonth:       {false, func(l *plans.Limits, _ *plans.KeyLimits) { l.MonthlyMessages = none }, push, 403},
	}
	for limit, test := range tests {
		for _, mode := range []plans.Mode{plans.Enforce, plans.Shadow} {
			t.Run(limit+", "+mode.String(), func(t *testing.T) {
				t.Parallel()
				var lines logBook
				w := setup(t, options{
					log: &lines,
					facts: func(w *world) {
						k := new(plans.KeyLimits)
						test.change(&w.cluster.Limits, k)
						w.cluster.Limits.Modes = map[string]plans.Mode{limit: mode}
						w.facts.Keys[0].Limits = k
					},
					broker: func(ctx *fasthttp.RequestCtx) {
						if strings.HasPrefix(string(ctx.Path()), "/internal/") {
							ctx.SetBodyString(`{"names":[]}`)
							return
						}
						if ctx.IsGet() {
							ctx.Response.Header.Set("X-Queen-Delivered", "1")
						}
						ctx.SetBodyString(`{"messages":[1]}`)
					},
				})
				if test.spent {
					if r := w.ask(test.ask(w)); r.StatusCode != 200 {
						t.Fatalf("the first request: %d %q", r.StatusCode, r.body)
					}
				}
				r := w.ask(test.ask(w))
				status := test.status
				want := []string{" msg=request ", " tenant=acme-inc ", " cluster=acme ", " principal=" + w.facts.Keys[0].PublicID}
				if mode == plans.Enforce {
					want = append(want, fmt.Sprintf(" status=%d ", status), " code="+r.code()+" ", " limit="+limit+" ")
				} else {
					status = 200
					want = append(want, " status=200 ", " shadow="+limit+" ")
				}
				if r.StatusCode != status {
					t.Fatalf("got %d %q, want %d", r.StatusCode, r.body, status)
				}
				id := r.Header.Get("X-Queen-Request-Id")
				told := lines.of(id)
				if len(told) != 1 {
					t.Fatalf("the log has of request %s: %q", id, told)
				}
				for _, part := range want {
					if !strings.Contains(told[0]+" ", part) {
						t.Errorf("the log says %s, without%s", told[0], part)
					}
				}
				if n := w.decided(mode.String(), "deny")[limit]; n != 1 {
					t.Errorf("%v denials are counted, want one", n)
				}
			})
		}
	}
	w := setup(t, options{})
	for limit := range w.decided("enforce", "deny") {
		if _, tested := tests[limit]; !tested && limit != "billing" && limit != "refusals" { // those two are in no plan
			t.Errorf("decisions of the limit %s are not tested", limit)
		}
	}
}
