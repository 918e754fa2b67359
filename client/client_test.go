package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queengate/queengate/wire"
)

// The calls of the tables below by what a repeat of them would do.
var (
	push = func(ctx context.Context, c *Client) error { _, err := c.Push(ctx, Item{Queue: "q"}); return err }
	take = func(ctx context.Context, c *Client) error {
		_, err := c.Pop(ctx, "q", PopOptions{AutoAck: true})
		return err
	}
	lease = func(ctx context.Context, c *Client) error { _, err := c.Pop(ctx, "q", PopOptions{}); return err }
	wait  = func(ctx context.Context, c *Client) error {
		_, err := c.Pop(ctx, "q", PopOptions{Wait: time.Second})
		return err
	}
	redrive  = func(ctx context.Context, c *Client) error { _, err := c.Redrive(ctx, RedriveRequest{}); return err }
	leaseOf  = Message{TransactionID: "t", PartitionID: "p", LeaseID: "l"}
	nack     = func(ctx context.Context, c *Client) error { return c.Nack(ctx, "", leaseOf) }
	nackBare = func(ctx context.Context, c *Client) error { return c.Nack(ctx, "", Message{TransactionID: "t"}) }
	ackBare  = func(ctx context.Context, c *Client) error { return c.Ack(ctx, Message{TransactionID: "t"}) }
)

func times[T any](n int, a T, then ...T) []T {
	var l []T
	for range n {
		l = append(l, a)
	}
	return append(l, then...)
}

func TestRetry(t *testing.T) {
	t.Parallel()
	stored := answer{status: 201, body: `[{"transaction_id":"t","queueName":"q","status":"queued","offset":0}]`}
	settledOne := answer{status: 200, body: `[{"transactionId":"t","success":true}]`}
	none := answer{status: 204}
	limited := answer{status: 429, retryAfter: "1"}
	away, unsure := refused(503, "database_unavailable", "none"), refused(502, "bad_gateway", "unknown")
	cut, degraded := answer{err: errBroken}, answer{status: 204, degraded: true}
	tests := map[string]struct {
		call    func(context.Context, *Client) error
		answers []answer
		retry   Retry
		// waited is the least time all pauses take together; they take at most most, or a fifth more.
		waited, most time.Duration
		status       int // of the error; 0 with an outcome: no answer came
		outcome      wire.Outcome
	}{
		"429 waits for as long as it says, a little longer":    {call: push, answers: times(3, limited, stored), waited: 3 * time.Second},
		"429 in a pop that takes":                              {call: take, answers: []answer{limited, none}, waited: time.Second},
		"429 without Retry-After backs off":                    {call: push, answers: []answer{{status: 429}, {status: 429}, stored}, waited: 375 * time.Millisecond, most: 750 * time.Millisecond},
		"a date in Retry-After is waited for":                  {call: push, answers: []answer{{status: 429, retryAfter: "Sat, 01 Jan 2000 00:00:03 GMT"}, stored}, waited: 3 * time.Second},
		"a date that is over is nothing said":                  {call: push, answers: []answer{{status: 429, retryAfter: "Fri, 31 Dec 1999 23:59:59 GMT"}, stored}, waited: 125 * time.Millisecond, most: 250 * time.Millisecond},
		"so is one that is years away":                         {call: push, answers: []answer{{status: 429, retryAfter: "Wed, 21 Oct 2026 07:28:00 GMT"}, stored}, waited: 125 * time.Millisecond, most: 250 * time.Millisecond},
		"the milliseconds of the body are exact":               {call: push, answers: []answer{{status: 429, retryAfter: "2", body: `{"retry_after_ms":1100}`}, stored}, waited: 1100 * time.Millisecond},
		"milliseconds that contradict the header are not":      {call: push, answers: []answer{{status: 429, retryAfter: "2", body: `{"retry_after_ms":1}`}, stored}, waited: 2 * time.Second},
		"429 ends after ten requests":                          {call: push, answers: times(10, limited), waited: 9 * time.Second, status: 429, outcome: wire.OutcomeNone},
		"429 ends after as many requests as configured":        {call: push, answers: times(2, limited), retry: Retry{Refusals: 2}, waited: time.Second, status: 429, outcome: wire.OutcomeNone},
		"429 goes on without end if configured":                {call: push, answers: times(30, limited, stored), retry: Retry{Refusals: -1}, waited: 30 * time.Second},
		"a waiting pop waits out any number of 429":            {call: wait, answers: times(30, limited, none), waited: 30 * time.Second},
		"a wait beyond MaxWait is left to the caller":          {call: push, answers: []answer{{status: 429, retryAfter: "3600"}}, status: 429, outcome: wire.OutcomeNone},
		"but for a waiting pop":                                {call: wait, answers: []answer{{status: 429, retryAfter: "3600"}, none}, waited: time.Hour},
		"403 ends at once":                                     {call: push, answers: []answer{refused(403, "cluster_suspended", "none")}, status: 403, outcome: wire.OutcomeNone},
		"413 ends at once":                                     {call: push, answers: []answer{{status: 413, body: "too large"}}, status: 413, outcome: wire.OutcomeNone},
		"400 ends at once":                                     {call: push, answers: []answer{refused(400, "invalid_request", "none")}, status: 400, outcome: wire.OutcomeNone},
		"a redirect ends at once":                              {call: push, answers: []answer{{status: 307}}, status: 307, outcome: wire.OutcomeNone},
		"5xx backs off":                                        {call: push, answers: times(3, unsure, stored), waited: 875 * time.Millisecond, most: 1750 * time.Millisecond},
		"5xx waits for as long as it says":                     {call: push, answers: []answer{{status: 503, retryAfter: "5"}, stored}, waited: 5 * time.Second},
		"5xx ends after four requests":                         {call: push, answers: times(4, unsure), waited: 875 * time.Millisecond, most: 1750 * time.Millisecond, status: 502, outcome: wire.OutcomeUnknown},
		"5xx ends at once if configured":                       {call: push, answers: times(1, unsure), retry: Retry{Attempts: 1}, status: 502, outcome: wire.OutcomeUnknown},
		"5xx without a word is of unknown outcome":             {call: take, answers: []answer{{status: 500, body: "<html>"}}, status: 500, outcome: wire.OutcomeUnknown},
		"a cut connection is tried again":                      {call: push, answers: []answer{cut, stored}, waited: 125 * time.Millisecond, most: 250 * time.Millisecond},
		"a pop under a lease is repeated":                      {call: lease, answers: []answer{cut, unsure, none}, waited: 375 * time.Millisecond, most: 750 * time.Millisecond},
		"a pop that takes is not repeated after a cut":         {call: take, answers: []answer{cut}, outcome: wire.OutcomeUnknown},
		"nor after an unknown outcome":                         {call: take, answers: []answer{unsure}, status: 502, outcome: wire.OutcomeUnknown},
		"but after none":                                       {call: take, answers: []answer{away, none}, waited: 125 * time.Millisecond, most: 250 * time.Millisecond},
		"a degraded pop under a lease is no empty queue":       {call: lease, answers: []answer{degraded, none}, waited: 125 * time.Millisecond, most: 250 * time.Millisecond},
		"nor is one that does not end":                         {call: lease, answers: times(4, degraded), waited: 875 * time.Millisecond, most: 1750 * time.Millisecond, status: 204, outcome: wire.OutcomeUnknown},
		"one that takes is not repeated":                       {call: take, answers: []answer{degraded}, status: 204, outcome: wire.OutcomeUnknown},
		"one that waits has waited in vain":                    {call: wait, answers: []answer{degraded}},
		"nor is a redrive":                                     {call: redrive, answers: []answer{unsure}, status: 502, outcome: wire.OutcomeUnknown},
		"a failure under a lease is reported again":            {call: nack, answers: []answer{cut, settledOne}, waited: 125 * time.Millisecond, most: 250 * time.Millisecond},
		"a failure without a lease is not":                     {call: nackBare, answers: []answer{cut}, outcome: wire.OutcomeUnknown},
		"a completion without a lease is":                      {call: ackBare, answers: []answer{cut, settledOne}, waited: 125 * time.Millisecond, most: 250 * time.Millisecond},
		"an unknown outcome is not forgotten at a refusal":     {call: push, answers: []answer{unsure, refused(403, "push_blocked", "none")}, waited: 125 * time.Millisecond, most: 250 * time.Millisecond, status: 403, outcome: wire.OutcomeUnknown},
		"an answer that cannot be read is not asked for again": {call: push, answers: []answer{{status: 200, body: "<html>"}}, status: 200, outcome: wire.OutcomeUnknown},
		"nor one of the wrong length":                          {call: push, answers: []answer{{status: 201, body: "[]"}}, status: 201, outcome: wire.OutcomeUnknown},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, s := start(t, script(t, tt.answers...), func(o *Options) { o.Retry = tt.retry })
				err := tt.call(t.Context(), c)
				if tt.most == 0 {
					tt.most = tt.waited * 6 / 5
				}
				between(t, "waited", time.Since(s.begin), tt.waited, tt.most)
				requests := s.seen()
				if len(requests) != len(tt.answers) {
					t.Errorf("%d requests, want %d", len(requests), len(tt.answers))
				}
				for _, r := range requests {
					if r.body != requests[0].body || r.line != requests[0].line {
						t.Errorf("a repeat differs: %v, first %v", r, requests[0])
					}
				}
				if tt.outcome == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				e := as(t, err)
				if errors.Is(e, ErrDegraded) != (e.Status == 204) {
					t.Errorf("got %v", e)
				}
				if e.Status != tt.status || e.Outcome != tt.outcome {
					t.Errorf("got status %d, outcome %s, want %d, %s: %v", e.Status, e.Outcome, tt.status, tt.outcome, e)
				}
				if want := len(tt.answers); tt.status != 200 && tt.status != 201 && e.Attempts != want {
					t.Errorf("%d attempts, want %d", e.Attempts, want)
				}
			})
		})
	}
}

func TestDeadlineEndsWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, s := start(t, script(t, answer{status: 429, retryAfter: "30"}))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		e := as(t, push(ctx, c))
		if e.Status != 429 || e.RetryAfter != 30*time.Second {
			t.Errorf("got %v", e)
		}
		between(t, "waited although it was in vain", time.Since(s.begin), 0, 0)
	})
	synctest.Test(t, func(t *testing.T) {
		c, s := start(t, script(t, answer{status: 429, retryAfter: "30"}))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if e := as(t, push(ctx, c)); e.Status != 429 {
			t.Errorf("got %v", e)
		}
		between(t, "waited", time.Since(s.begin), time.Second, time.Second)
	})
}

// TestSilence pins the time limits: of an ordinary request, of a pop that waits, and of the caller.
func TestSilence(t *testing.T) {
	t.Parallel()
	never := answer{after: 24 * time.Hour}
	tests := map[string]struct {
		call   func(context.Context, *Client) error
		within time.Duration // of the caller, 0 for none
		want   time.Duration
	}{
		"an ordinary request": {call: take, want: 30 * time.Second},
		"a pop that waits":    {call: wait, want: 11 * time.Second},
		"a caller in a hurry": {call: push, within: 3 * time.Second, want: 3 * time.Second},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, s := start(t, func(int, request) answer { return never }, func(o *Options) { o.Retry.Attempts = 1 })
				ctx := t.Context()
				if tt.within > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.within)
					defer cancel()
				}
				e := as(t, tt.call(ctx, c))
				if !errors.Is(e, context.DeadlineExceeded) || e.Outcome != wire.OutcomeUnknown {
					t.Errorf("got %v, outcome %s", e, e.Outcome)
				}
				between(t, "waited", time.Since(s.begin), tt.want, tt.want)
			})
		})
	}
}

func TestErrorCarriesTheRefusal(t *testing.T) {
	t.Parallel()
	c, _ := start(t, script(t, answer{status: 403, retryAfter: "", body: `{"error":"the cluster's retained bytes are used up","code":"storage_quota_exceeded","request_id":"r-7",
		"retryable":false,"retry_after_ms":0,"outcome":"none","limit":{"name":"storage","limit":1000,"used":1001,"unit":"bytes","reset_s":0}}`}))
	e := as(t, push(t.Context(), c))
	want := &Error{
		Status: 403, Code: wire.StorageQuotaExceeded, Message: "the cluster's retained bytes are used up", RequestID: "r-7", Outcome: wire.OutcomeNone,
		Limit: &wire.Limit{Name: "storage", Limit: 1000, Used: 1001, Unit: "bytes"}, Attempts: 1,
	}
	if d := cmp.Diff(want, e, cmp.AllowUnexported(Error{})); d != "" {
		t.Error(d)
	}
	const text = "403 storage_quota_exceeded: the cluster's retained bytes are used up (limit storage: 1001 of 1000 bytes) [request r-7]"
	if e.Error() != text {
		t.Errorf("got %q, want %q", e.Error(), text)
	}
	if e.Temporary() {
		t.Error("a 403 is temporary")
	}
}

func TestADateInRetryAfterIsMeasuredByTheAnswersOwnClock(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 10, 21, 7, 28, 0, 0, time.UTC)
	h := http.Header{"Retry-After": {at.Format(http.TimeFormat)}, "Date": {at.Add(-5 * time.Second).Format(http.TimeFormat)}}
	if got := retryAfter(h, 0, at.Add(time.Hour)); got != 5*time.Second {
		t.Errorf("got %v, want 5s", got)
	}
}

// TestEveryCodeOfTheCatalogueIsUnderstood renders each as both sides do.
func TestEveryCodeOfTheCatalogueIsUnderstood(t *testing.T) {
	t.Parallel()
	for _, code := range wire.Codes() {
		in := &wire.Error{Code: code, RetryAfter: 1500 * time.Millisecond, Limit: &wire.Limit{Name: "req", Limit: 5, Used: 6, Unit: "requests_per_second", ResetSeconds: 1.5}}
		h := http.Header{}
		if in.RetryAfterSeconds() > 0 {
			h.Set("Retry-After", "2")
		}
		e := refusal(code.Status(), h, in.AppendJSON(nil, "r-1"))
		if e.Code != code || e.Outcome != wire.OutcomeNone || e.RequestID != "r-1" || e.Message != code.Text() || cmp.Diff(in.Limit, e.Limit) != "" {
			t.Errorf("%s: got %+v", code, e)
		}
		if again := code.Retry() != wire.Never; e.Temporary() != again {
			t.Errorf("%s: temporary is %v", code, e.Temporary())
		}
		if timed := code.Retry() == wire.RetryAfter; timed != (e.RetryAfter == 1500*time.Millisecond) {
			t.Errorf("%s: retry after %s", code, e.RetryAfter)
		}
	}
}

// two returns a client of the URLs a and b, of which it prefers a.
func two(t *testing.T, f func(n int, r request) answer) (*Client, *server) {
	c, s := start(t, f, func(o *Options) { o.URLs = []string{"http://a", "http://b/"} })
	c.endpoints.urls = []string{"http://a", "http://b"}
	return c, s
}

func TestSeveralURLs(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		call  func(context.Context, *Client) error
		a     answer
		hosts string // asked by three calls, the third 5 seconds after the second
		ok    bool   // the calls succeed
	}{
		"the first is kept":                          {call: push, hosts: "a a a", ok: true},
		"5xx goes on at once and stays away for 5 s": {call: push, a: refused(503, "draining", "none"), hosts: "ab b ab", ok: true},
		"so does a cut connection":                   {call: push, a: answer{err: errBroken}, hosts: "ab b ab", ok: true},
		"what may have been done is not done again":  {call: take, a: answer{err: errBroken}, hosts: "a b a"},
		"a refusal is not taken elsewhere":           {call: push, a: refused(403, "forbidden", "none"), hosts: "a a a"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, s := two(t, func(_ int, r request) answer {
					switch {
					case r.host == "a" && (tt.a.status != 0 || tt.a.err != nil):
						return tt.a
					case strings.HasPrefix(r.line, "GET"):
						return answer{status: 204}
					}
					return queued(r)
				})
				var hosts []string
				for i := range 3 {
					if i == 2 {
						time.Sleep(5 * time.Second) // of the bubble
					}
					before, begin := len(s.seen()), time.Now()
					err := tt.call(t.Context(), c)
					if tt.ok && err != nil {
						t.Error(err)
					}
					between(t, "paused", time.Since(begin), 0, 0)
					asked := ""
					for _, r := range s.seen()[before:] {
						asked += r.host
					}
					hosts = append(hosts, asked)
				}
				if got := strings.Join(hosts, " "); got != tt.hosts {
					t.Errorf("asked %q, want %q", got, tt.hosts)
				}
			})
		})
	}
	t.Run("when all fail, the one that failed longest ago is asked after a pause", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c, s := two(t, func(int, request) answer { return answer{err: errBroken} })
			as(t, push(t.Context(), c))
			asked := ""
			for _, r := range s.seen() {
				asked += r.host
			}
			if asked != "abab" {
				t.Errorf("asked %s", asked)
			}
			between(t, "waited", time.Since(s.begin), 750*time.Millisecond, 1500*time.Millisecond)
		})
	})
}

// gateway is a real server that lets f do with connections what it wants, and counts requests. It reads a request whole
// before f.
func gateway(t *testing.T, f func(n int, w http.ResponseWriter, r *http.Request, body string)) (url string, count func() int) {
	var mu sync.Mutex
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mu.Lock()
		at := n
		n++
		mu.Unlock()
		f(at, w, r, string(body))
	}))
	t.Cleanup(s.Close)
	return s.URL, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

func hangUp(w http.ResponseWriter, say string) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	_, _ = io.WriteString(conn, say) // the other side may be gone
	conn.Close()
}

func connect(t *testing.T, urls ...string) *Client {
	t.Helper()
	c, err := New(Options{URLs: urls, Key: "k", Retry: Retry{MinPause: time.Millisecond, MaxPause: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	c.endpoints.urls = urls
	t.Cleanup(c.Close)
	return c
}

// TestBrokenConnections uses real sockets: what net/http does on its own counts too.
func TestBrokenConnections(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		call func(context.Context, *Client) error
		say  string // before the second request's connection is closed
		want int    // requests the server sees, after a first one that warms a connection
		ok   bool
	}{
		"a push is repeated":                            {call: push, want: 2, ok: true},
		"a push whose answer breaks off is repeated":    {call: push, say: "HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n[{", want: 2, ok: true},
		"a leased pop is repeated":                      {call: lease, want: 2, ok: true},
		"a pop that takes is not, on a kept connection": {call: take, want: 1},
		"nor if its answer breaks off":                  {call: take, say: "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", want: 1},
		"a refusal counts although its text breaks off": {call: push, say: "HTTP/1.1 403 Forbidden\r\nContent-Length: 100\r\n\r\n{", want: 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, count := gateway(t, func(n int, w http.ResponseWriter, r *http.Request, body string) {
				switch {
				case n == 1:
					hangUp(w, tt.say)
				case r.Method == "GET":
					w.WriteHeader(204)
				default:
					a := queued(request{body: body})
					w.WriteHeader(a.status)
					_, _ = io.WriteString(w, a.body)
				}
			})
			c := connect(t, url)
			if err := lease(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			err := tt.call(t.Context(), c)
			if tt.ok != (err == nil) {
				t.Errorf("got %v", err)
			}
			if got := count() - 1; got != tt.want {
				t.Errorf("the server saw %d requests, want %d", got, tt.want)
			}
		})
	}
}

func TestRefusedConnectionsHaveNoOutcome(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := "http://" + l.Addr().String()
	l.Close()
	url, count := gateway(t, func(_ int, w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(204) })
	if e := as(t, take(t.Context(), connect(t, dead))); e.Outcome != wire.OutcomeNone || e.Attempts != 4 || e.Status != 0 {
		t.Errorf("got %+v", e)
	}
	if err := take(t.Context(), connect(t, dead, url)); err != nil || count() != 1 {
		t.Errorf("the other URL was not asked: %v, %d requests", err, count())
	}
}

func TestRequestsCarryKeyAndHost(t *testing.T) {
	t.Parallel()
	url, _ := gateway(t, func(_ int, w http.ResponseWriter, r *http.Request, _ string) {
		if r.Host != "orders.example.com" || r.Header.Get("Authorization") != "Bearer k" || r.ContentLength != 0 {
			t.Errorf("host %q, authorization %q, length %d", r.Host, r.Header.Get("Authorization"), r.ContentLength)
		}
		w.WriteHeader(204)
	})
	c := connect(t, url)
	c.host = "orders.example.com"
	for _, call := range []func(context.Context, *Client) error{take, lease} {
		if err := call(t.Context(), c); err != nil {
			t.Error(err)
		}
	}
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, urls := range [][]string{nil, {""}, {"example.com"}, {"ftp://example.com"}, {"http://"}, {"http://h/path"}, {"http://h?q"}, {"http://user:secret@h"}, {"http://h\x00"}} {
		_, err := New(Options{URLs: urls})
		if err == nil || !strings.Contains(err.Error(), "URLs") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: got %v", urls, err)
		}
	}
	if c, err := New(Options{URLs: []string{"http://h:80/"}}); err != nil || c.endpoints.urls[0] != "http://h:80" {
		t.Errorf("got %v", err)
	}
}
