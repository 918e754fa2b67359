package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

func TestPushSendsWhatWasGiven(t *testing.T) {
	t.Parallel()
	c, s := start(t, func(_ int, r request) answer { return queued(r) })
	results, err := c.Push(t.Context(),
		Item{Queue: "q", Partition: "p", TransactionID: "t-1", Payload: map[string]any{"html": "<b>&"}},
		Item{Queue: "q", TransactionID: "t-2"},
		Item{Queue: "q", Payload: json.RawMessage(`1e400`)},
	)
	if err != nil {
		t.Fatal(err)
	}
	id := results[2].TransactionID
	if u, err := uuid.Parse(id); err != nil || u.Version() != 7 {
		t.Errorf("minted id %q", id)
	}
	want := `{"items":[{"queue":"q","partition":"p","transactionId":"t-1","payload":{"html":"<b>&"}},{"queue":"q","transactionId":"t-2","payload":null},` +
		`{"queue":"q","transactionId":"` + id + `","payload":1e400}]}`
	if got := s.seen()[0].body; got != want {
		t.Errorf("sent %s, want %s", got, want)
	}
	if got, err := c.Push(t.Context()); err != nil || len(got) != 0 || len(s.seen()) != 1 {
		t.Errorf("an empty push: %v, %v", got, err)
	}
	if _, err := c.Push(t.Context(), Item{Queue: "q", Payload: make(chan int)}); err == nil || len(s.seen()) != 1 {
		t.Errorf("a channel was pushed: %v", err)
	}
}

// golden reads an answer as package wire renders it.
func golden(t *testing.T, name string) answer {
	t.Helper()
	text, err := os.ReadFile("../wire/testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return answer{status: 200, body: string(text)}
}

func TestPushResultsByItem(t *testing.T) {
	t.Parallel()
	c, _ := start(t, script(t, golden(t, "push_results")))
	results, err := c.Push(t.Context(), Item{}, Item{}, Item{}, Item{})
	var e *PushError
	if !errors.As(err, &e) || e.Error() != "1 of 4 messages were not stored: the database is away" {
		t.Errorf("got %v", err)
	}
	var got []string
	for _, r := range results {
		got = append(got, fmt.Sprintf("%s %s %d %v", r.TransactionID, r.Status, r.Offset, r.Stored()))
	}
	want := []string{"ord-1 queued 41 true", "ord-1 duplicate 41 true", "ord-2 failed -1 false", "ord-3 buffered -1 true"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// sent are the transaction ids of each push that the server saw, joined.
func sent(t *testing.T, s *server) (batches []string) {
	t.Helper()
	for _, r := range s.seen() {
		var body struct{ Items []item }
		if err := json.Unmarshal([]byte(r.body), &body); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, i := range body.Items {
			ids = append(ids, i.TransactionID)
		}
		batches = append(batches, strings.Join(ids, " "))
	}
	return batches
}

func TestBatcherGathers(t *testing.T) {
	t.Parallel()
	small, large := Item{Queue: "q", Payload: 1}, Item{Queue: "q", Payload: strings.Repeat("x", 98)} // of 1 and of 100 bytes
	tests := map[string]struct {
		o     BatcherOptions
		items []Item
		want  []string
		at    time.Duration // of the first push
	}{
		"what comes within the linger time":      {o: BatcherOptions{Linger: time.Second}, items: []Item{small, small, small}, want: []string{"0 1 2"}, at: time.Second},
		"up to so many items":                    {o: BatcherOptions{Linger: time.Second, Items: 2}, items: []Item{small, small, small}, want: []string{"0 1", "2"}},
		"up to so many bytes":                    {o: BatcherOptions{Linger: time.Second, Bytes: 200}, items: []Item{large, large, large}, want: []string{"0 1", "2"}},
		"an item that is larger goes alone":      {o: BatcherOptions{Linger: time.Second, Bytes: 50}, items: []Item{small, large, small}, want: []string{"0", "1", "2"}},
		"ten milliseconds unless told otherwise": {items: []Item{small}, want: []string{"0"}, at: 10 * time.Millisecond},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, s := start(t, func(_ int, r request) answer { a := queued(r); a.after = time.Millisecond; return a })
				b := c.NewBatcher(tt.o)
				var pending []*Pending
				for i, it := range tt.items {
					it.TransactionID = fmt.Sprint(i)
					p, err := b.Add(t.Context(), it)
					if err != nil {
						t.Fatal(err)
					}
					pending = append(pending, p)
				}
				for i, p := range pending {
					if r, err := p.Wait(t.Context()); err != nil || r.TransactionID != fmt.Sprint(i) || r.Status != wire.Queued {
						t.Errorf("item %d: %+v, %v", i, r, err)
					}
				}
				if err := b.Close(t.Context()); err != nil {
					t.Error(err)
				}
				if d := cmp.Diff(tt.want, sent(t, s)); d != "" {
					t.Error(d)
				}
				between(t, "first push", s.seen()[0].at, tt.at, tt.at)
			})
		})
	}
}

func addAll(t *testing.T, b *Batcher, n int) (pending []*Pending) {
	t.Helper()
	for i := range n {
		p, err := b.Add(t.Context(), Item{Queue: "q", TransactionID: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		pending = append(pending, p)
	}
	return pending
}

func TestBatcherHalvesWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	c, s := start(t, func(_ int, r request) answer {
		if strings.Count(r.body, "transactionId") > 2 || strings.Contains(r.body, `"3"`) {
			return refused(413, "batch_exceeds_burst", "none")
		}
		return queued(r)
	})
	b := c.NewBatcher(BatcherOptions{Items: 5})
	pending := addAll(t, b, 5)
	for i, p := range pending {
		switch _, err := p.Wait(t.Context()); {
		case i == 3 && as(t, err).Code != wire.BatchExceedsBurst, i != 3 && err != nil:
			t.Errorf("item %d: %v", i, err)
		}
	}
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
	want := []string{"0 1 2 3 4", "0 1", "2 3 4", "2", "3 4", "3", "4"}
	if d := cmp.Diff(want, sent(t, s)); d != "" {
		t.Error(d)
	}
}

func TestBatcherWaitsForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := start(t, func(_ int, r request) answer { a := queued(r); a.after = time.Minute; return a }, func(o *Options) { o.Timeout = time.Hour })
		b := c.NewBatcher(BatcherOptions{Items: 2, Buffer: 2})
		addAll(t, b, 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Add(ctx, Item{Queue: "q"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a third item: %v", err)
		}
		begin := time.Now()
		if _, err := b.Add(t.Context(), Item{Queue: "q"}); err != nil {
			t.Error(err)
		}
		between(t, "waited for room", time.Since(begin), 59*time.Second, 59*time.Second)
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := b.Add(t.Context(), Item{Queue: "q"}); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestBatcherFlush(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, s := start(t, func(_ int, r request) answer { a := queued(r); a.after = time.Second; return a })
		b := c.NewBatcher(BatcherOptions{Linger: time.Hour, Items: 2})
		if err := b.Flush(t.Context()); err != nil || len(s.seen()) != 0 {
			t.Errorf("nothing to flush: %v", err)
		}
		addAll(t, b, 5)
		if err := b.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if d := cmp.Diff([]string{"0 1", "2 3", "4"}, sent(t, s)); d != "" {
			t.Error(d)
		}
		between(t, "flushed", time.Since(s.begin), 3*time.Second, 3*time.Second)
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestBatcherFailures(t *testing.T) {
	t.Parallel()
	t.Run("a refused batch fails its items and the next goes on", func(t *testing.T) {
		t.Parallel()
		c, _ := start(t, func(n int, r request) answer {
			if n == 0 {
				return refused(403, "quota_exceeded", "none")
			}
			return queued(r)
		})
		b := c.NewBatcher(BatcherOptions{Items: 2, Linger: time.Hour})
		pending := addAll(t, b, 4)
		for i, p := range pending {
			_, err := p.Wait(t.Context())
			if i < 2 && as(t, err).Code != wire.QuotaExceeded || i >= 2 && err != nil {
				t.Errorf("item %d: %v", i, err)
			}
		}
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("an item that was not stored fails alone", func(t *testing.T) {
		t.Parallel()
		c, _ := start(t, script(t, golden(t, "push_results")))
		b := c.NewBatcher(BatcherOptions{Items: 4, Linger: time.Hour})
		for i, p := range addAll(t, b, 4) {
			_, err := p.Wait(t.Context())
			var e *PushError
			if failed := errors.As(err, &e); failed != (i == 2) {
				t.Errorf("item %d: %v", i, err)
			}
		}
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("Close gives up when its context ends", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c, _ := start(t, func(int, request) answer { return answer{status: 429, retryAfter: "60"} })
			b := c.NewBatcher(BatcherOptions{Items: 2})
			pending := addAll(t, b, 4)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Close: %v", err)
			}
			for i, p := range pending {
				if _, err := p.Wait(t.Context()); err == nil {
					t.Errorf("item %d was stored", i)
				}
			}
		})
	})
}
