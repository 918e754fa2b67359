package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queengate/queengate/wire"
)

// broker answers a consumer: pops in turn by pops, then as if the queue were empty; acks and extensions as if all were well,
// unless the test says otherwise.
type broker struct {
	pops    []answer
	onAck   func(request) answer
	onLease func(n int) answer
	extends int
	polls   int
}

func (b *broker) answer(_ int, r request) answer {
	switch {
	case strings.Contains(r.line, "/ack/batch"):
		if b.onAck != nil {
			return b.onAck(r)
		}
		return acked(r)
	case strings.Contains(r.line, "/extend"):
		b.extends++
		if b.onLease != nil {
			return b.onLease(b.extends)
		}
		return answer{status: 200, body: `{"success":true,"renewed":1,"expiresAt":"2026-09-01T10:11:12.123Z"}`}
	}
	b.polls++
	if b.polls <= len(b.pops) {
		return b.pops[b.polls-1]
	}
	return answer{status: 204, after: 29750 * time.Millisecond}
}

// settlements are what the server was told, one string per request: id status reason, joined.
func settlements(t *testing.T, s *server) (calls []string) {
	t.Helper()
	for _, r := range s.seen() {
		if !strings.Contains(r.line, "/ack/batch") {
			continue
		}
		var body struct{ Acknowledgments []ack }
		if err := json.Unmarshal([]byte(r.body), &body); err != nil {
			t.Fatal(err)
		}
		var items []string
		for _, a := range body.Acknowledgments {
			items = append(items, strings.TrimSpace(fmt.Sprint(a.TransactionID, " ", a.Status, " ", a.Error)))
		}
		calls = append(calls, strings.Join(items, ", "))
	}
	return calls
}

// complaints gathers what OnError is told.
type complaints struct {
	mu   sync.Mutex // guards errs
	errs []error
}

func (c *complaints) add(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, err)
}

func (c *complaints) texts() (l []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range c.errs {
		l = append(l, err.Error())
	}
	return l
}

var errBad = errors.New("bad")

func TestConsumeSettles(t *testing.T) {
	t.Parallel()
	run := []string{"a/1", "a/2", "a/3", "b/4", "b/5"}
	fail := func(id string, err error) Handler {
		return func(_ context.Context, m *Message) error {
			if m.TransactionID == id {
				return err
			}
			return nil
		}
	}
	tests := map[string]struct {
		h      Handler
		whole  BatchHandler
		want   []string
		errors []string
	}{
		"what is done": {
			h: fail("", nil), want: []string{"1 completed, 2 completed, 3 completed, 4 completed, 5 completed"},
		},
		"a failure with its text, and skips the rest of its partition": {
			h: fail("2", errBad), want: []string{"1 completed, 2 failed bad, 4 completed, 5 completed"}, errors: []string{"bad"},
		},
		"a failure that is not charged": {
			h: fail("4", fmt.Errorf("later: %w", AsReleased(errBad))), errors: []string{"later: bad"},
			want: []string{"1 completed, 2 completed, 3 completed, 4 retry later: bad"},
		},
		"a failure that shall not come back": {
			h: fail("1", AsRejected(errBad)), want: []string{"1 dlq bad, 4 completed, 5 completed"}, errors: []string{"bad"},
		},
		"a panic as a failure": {
			h: func(_ context.Context, m *Message) error { panic("oh " + m.TransactionID) }, errors: []string{"panic: oh 1", "panic: oh 4"},
			want: []string{"1 failed panic: oh 1, 4 failed panic: oh 4"},
		},
		"long work about every second": {
			h:    func(_ context.Context, m *Message) error { time.Sleep(600 * time.Millisecond); return nil },
			want: []string{"1 completed, 2 completed", "3 completed, 4 completed", "5 completed"},
		},
		"a batch as a whole": {
			whole: func(_ context.Context, m []Message) error { return nil },
			want:  []string{"1 completed, 2 completed, 3 completed, 4 completed, 5 completed"},
		},
		"a failed batch as a whole": {
			whole: func(_ context.Context, m []Message) error { return errBad }, errors: []string{"bad"},
			want: []string{"1 failed bad, 2 failed bad, 3 failed bad, 4 failed bad, 5 failed bad"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &broker{pops: []answer{delivered(30*time.Second, run...)}}
				c, s := start(t, b.answer)
				var told complaints
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				o := ConsumeOptions{PopOptions: PopOptions{Group: "billing", Partitions: 2}, OnError: told.add}
				var err error
				if tt.whole != nil {
					err = c.ConsumeBatch(ctx, "orders", tt.whole, o)
				} else {
					err = c.Consume(ctx, "orders", tt.h, o)
				}
				if err != nil {
					t.Error(err)
				}
				if d := cmp.Diff(tt.want, settlements(t, s)); d != "" {
					t.Error(d)
				}
				if d := cmp.Diff(tt.errors, told.texts()); d != "" {
					t.Error(d)
				}
				if want := "GET /api/v1/pop/queue/orders?partitions=2&wait=true&timeout=30000&consumerGroup=billing"; s.lines()[0] != want {
					t.Errorf("popped by %s, want %s", s.lines()[0], want)
				}
			})
		})
	}
}

func TestConsumeRenewsAtAThirdOfTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &broker{pops: []answer{delivered(30*time.Second, "a/1")}}
		c, s := start(t, b.answer)
		ctx, cancel := context.WithCancel(t.Context())
		err := c.Consume(ctx, "orders", func(ctx context.Context, m *Message) error {
			time.Sleep(95 * time.Second)
			cancel()
			return ctx.Err()
		}, ConsumeOptions{StopTimeout: time.Minute})
		if err != nil {
			t.Error(err)
		}
		var at []time.Duration
		for _, r := range s.seen() {
			if r.line == "POST /api/v1/lease/lease-1/extend" {
				at = append(at, r.at)
				if r.body != `{"seconds":30}` {
					t.Errorf("asked for %s", r.body)
				}
			}
		}
		if len(at) != 9 || at[0] != 10*time.Second || at[8] != 90*time.Second {
			t.Errorf("renewed at %v", at)
		}
		if d := cmp.Diff([]string{"1 completed"}, settlements(t, s)); d != "" {
			t.Error(d)
		}
	})
}

func TestConsumeALostLease(t *testing.T) {
	t.Parallel()
	gone := answer{status: 200, body: `{"success":false,"renewed":0,"expiresAt":null}`}
	tests := map[string]struct {
		onLease func(n int) answer
		want    time.Duration // when the handler is told
		told    int
	}{
		"told by the broker":         {onLease: func(int) answer { return gone }, want: 10 * time.Second, told: 2},
		"not renewed before its end": {onLease: func(int) answer { return refused(400, "invalid_request", "none") }, want: 30 * time.Second, told: 4},
		"an answer that comes in time saves it": {onLease: func(n int) answer {
			if n == 1 {
				return answer{err: errBroken}
			}
			return answer{status: 200, body: `{"success":true,"expiresAt":"2026-09-01T10:11:12.123Z"}`}
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &broker{pops: []answer{delivered(30*time.Second, "a/1", "a/2", "b/3")}, onLease: tt.onLease}
				c, s := start(t, b.answer)
				var told complaints
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				handled := 0
				err := c.Consume(ctx, "orders", func(ctx context.Context, m *Message) error {
					if handled++; handled > 1 {
						return nil
					}
					select {
					case <-ctx.Done():
						if !errors.Is(context.Cause(ctx), ErrLeaseLost) {
							t.Errorf("the cause is %v", context.Cause(ctx))
						}
						between(t, "told", time.Since(s.begin), tt.want, tt.want)
						return ctx.Err()
					case <-time.After(100 * time.Second):
						if tt.want != 0 {
							t.Error("not told")
						}
						return nil
					}
				}, ConsumeOptions{OnError: told.add})
				if err != nil {
					t.Error(err)
				}
				if tt.want == 0 {
					if len(settlements(t, s)) == 0 || handled != 3 {
						t.Errorf("handled %d, settled %v", handled, settlements(t, s))
					}
					return
				}
				if got := settlements(t, s); len(got) != 0 || handled != 1 {
					t.Errorf("handled %d, settled %v without a lease", handled, got)
				}
				if got := told.texts(); len(got) != tt.told {
					t.Errorf("told %q", got)
				}
			})
		})
	}
}

func TestConsumeStops(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		work time.Duration // of the handler, during which the consumer is stopped
		deaf bool          // it does not look at its context
		took time.Duration // until Consume returns
		want []string
	}{
		"finishes what is in hand and gives back the rest": {
			work: 10 * time.Second, deaf: true, took: 10 * time.Second, want: []string{"1 completed, 2 retry, 3 retry"},
		},
		"ends the contexts of handlers after StopTimeout": {
			work: time.Hour, took: 31 * time.Second, want: []string{"1 retry context canceled, 3 retry"},
		},
		"gives back polls at once": {},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &broker{}
				if tt.work > 0 {
					b.pops = []answer{delivered(5*time.Minute, "a/1", "a/2", "b/3")}
				}
				c, s := start(t, b.answer)
				ctx, cancel := context.WithCancel(t.Context())
				stopped := time.AfterFunc(time.Second, cancel)
				defer stopped.Stop()
				err := c.Consume(ctx, "orders", func(ctx context.Context, m *Message) error {
					if tt.deaf {
						time.Sleep(tt.work)
						return nil
					}
					<-ctx.Done()
					return ctx.Err()
				}, ConsumeOptions{})
				if err != nil {
					t.Error(err)
				}
				want := max(tt.took, time.Second)
				between(t, "returned", time.Since(s.begin), want, want)
				if d := cmp.Diff(tt.want, settlements(t, s)); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

func TestConsumeEndsWithWhatNoRepeatCures(t *testing.T) {
	t.Parallel()
	for status, code := range map[int]wire.Code{403: wire.ClusterSuspended, 401: wire.Unauthorized, 404: wire.RouteBlocked, 400: wire.InvalidRequest} {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &broker{pops: []answer{delivered(time.Minute, "a/1", "a/2"), refused(status, string(code), "none")}}
				c, s := start(t, b.answer)
				err := c.Consume(t.Context(), "orders", func(context.Context, *Message) error {
					time.Sleep(3 * time.Second)
					return nil
				}, ConsumeOptions{Workers: 2})
				if e := as(t, err); e.Code != code {
					t.Errorf("got %v", e)
				}
				// The other worker finishes its message.
				if d := cmp.Diff([]string{"1 completed, 2 retry"}, settlements(t, s)); d != "" {
					t.Error(d)
				}
			})
		})
	}
	c, _ := start(t, script(t))
	if err := c.Consume(t.Context(), "orders", nil, ConsumeOptions{PopOptions: PopOptions{AutoAck: true}}); err == nil {
		t.Error("AutoAck was taken")
	}
}

func TestConsumeSurvives(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		pops []answer
		took time.Duration // until the message is handled, at least
		most time.Duration
		told int
	}{
		"429":                        {pops: times(20, answer{status: 429, retryAfter: "2"}), took: 40 * time.Second, most: 48 * time.Second},
		"5xx":                        {pops: times(12, answer{status: 503, body: "x"}), took: 4 * time.Second, most: 10 * time.Second, told: 3},
		"broken connections":         {pops: times(8, answer{err: errBroken}), took: 2 * time.Second, most: 6 * time.Second, told: 2},
		"answers that make no sense": {pops: times(3, answer{status: 200, body: "<html>"}), took: 875 * time.Millisecond, most: 1750 * time.Millisecond, told: 3},
		"empty answers that come at once, without a busy loop": {pops: times(20, answer{status: 204}), took: 30 * time.Second, most: 40 * time.Second},
		"empty answers that come late, without a pause": {
			pops: times(3, answer{status: 204, after: 29750 * time.Millisecond}), took: 89250 * time.Millisecond, most: 89250 * time.Millisecond,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &broker{pops: append(tt.pops, delivered(time.Hour, "a/1"))}
				c, s := start(t, b.answer)
				var told complaints
				ctx, cancel := context.WithCancel(t.Context())
				err := c.Consume(ctx, "orders", func(context.Context, *Message) error {
					between(t, "handled", time.Since(s.begin), tt.took, tt.most)
					cancel()
					return nil
				}, ConsumeOptions{OnError: told.add})
				if err != nil {
					t.Error(err)
				}
				if got := told.texts(); len(got) != tt.told {
					t.Errorf("told %q", got)
				}
			})
		})
	}
}

func TestConsumeTellsOfSettlementsThatFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &broker{pops: []answer{delivered(time.Minute, "a/1")}, onAck: func(request) answer { return refused(403, "forbidden", "none") }}
		c, _ := start(t, b.answer)
		var told complaints
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Consume(ctx, "orders", func(context.Context, *Message) error { return nil }, ConsumeOptions{OnError: told.add}); err != nil {
			t.Error(err)
		}
		if d := cmp.Diff([]string{"settle 1 messages of orders: 403 forbidden: no [request req-9]"}, told.texts()); d != "" {
			t.Error(d)
		}
	})
}

func TestConsumeWorkersRunSideBySide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &broker{pops: []answer{delivered(time.Hour, "a/1"), delivered(time.Hour, "b/2"), delivered(time.Hour, "c/3")}}
		c, s := start(t, b.answer)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Add(3)
		err := c.Consume(ctx, "orders", func(context.Context, *Message) error {
			all.Done()
			all.Wait() // would be a deadlock if they took turns
			cancel()
			return nil
		}, ConsumeOptions{Workers: 3})
		if err != nil || len(settlements(t, s)) != 3 {
			t.Errorf("got %v, settled %v", err, settlements(t, s))
		}
	})
}

// A lease can end in one partition alone, by a seek: what else is in hand goes on.
func TestConsumeALeaseLostInOnePartition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &broker{pops: []answer{delivered(time.Hour, "a/1", "a/2", "b/3")}}
		b.onAck = func(r request) answer {
			if strings.Contains(r.body, `"id-a"`) {
				return answer{status: 200, body: `[{"transactionId":"1","success":false,"error":"invalid or expired lease (invalid_lease)"}]`}
			}
			return acked(r)
		}
		c, s := start(t, b.answer)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var told complaints
		err := c.Consume(ctx, "orders", func(context.Context, *Message) error {
			time.Sleep(2 * time.Second)
			return nil
		}, ConsumeOptions{OnError: told.add})
		if err != nil {
			t.Error(err)
		}
		if d := cmp.Diff([]string{"1 completed", "3 completed"}, settlements(t, s)); d != "" {
			t.Error(d)
		}
		if len(told.errs) != 1 || !errors.Is(told.errs[0], ErrLeaseLost) {
			t.Errorf("told %q", told.texts())
		}
	})
}
