package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/queengate/queengate/client"
	"github.com/queengate/queengate/wire"
)

// sdk returns a Go client of the cluster.
func (c *cluster) sdk(t *testing.T, key string) *client.Client {
	t.Helper()
	s, err := client.New(client.Options{URLs: []string{c.proc.Credentials.GatewayURL}, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// TestClientAgainstTheSystem walks through the Go SDK: what it sends is understood, and what it reads is there.
func TestClientAgainstTheSystem(t *testing.T) {
	t.Parallel()
	cl := shared(t).newCluster(t, "")
	c := cl.sdk(t, cl.full)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	options, err := c.Configure(ctx, "orders", client.QueueOptions{LeaseTime: new(20 * time.Second), RetryLimit: new(0)}, wire.ConfigureMerge)
	if err != nil || options.LeaseTime != 20 || options.RetryLimit != 0 || options.DedupWindowSeconds != 3600 {
		t.Fatalf("configure: %+v, %v", options, err)
	}

	// Push: through a batcher, in order, and again without harm.
	b := c.NewBatcher(client.BatcherOptions{Items: 7})
	const n = 20
	for range 2 {
		var pending []*client.Pending
		for i := range n {
			p, err := b.Add(ctx, client.Item{Queue: "orders", Partition: "p", TransactionID: fmt.Sprintf("t-%d", i), Payload: i})
			if err != nil {
				t.Fatal(err)
			}
			pending = append(pending, p)
		}
		for i, p := range pending {
			if r, err := p.Wait(ctx); err != nil || r.Offset != int64(i) {
				t.Fatalf("item %d: %+v, %v", i, r, err)
			}
		}
	}
	if err := b.Close(ctx); err != nil {
		t.Fatal(err)
	}

	// Consume: in order, with a failure that becomes a dead letter, and stop in order.
	consuming, stop := context.WithCancel(ctx)
	var mu sync.Mutex
	var got []int
	err = c.Consume(consuming, "orders", func(_ context.Context, m *client.Message) error {
		var v int
		if err := m.Decode(&v); err != nil {
			return err
		}
		if v == 3 {
			return errors.New("three is no order")
		}
		mu.Lock()
		defer mu.Unlock()
		if got = append(got, v); len(got) == n-1 {
			stop()
		}
		return nil
	}, client.ConsumeOptions{PopOptions: client.PopOptions{Group: "billing", SubscriptionMode: client.FromAll, Batch: 6}, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(got) || len(got) != n-1 || ctx.Err() != nil {
		t.Fatalf("consumed %v", got)
	}

	// Dead letters: found, and back at the end of the partition.
	letters, _, err := c.DeadLetters(ctx, client.DeadLetterFilter{Queue: "orders", Group: "billing"}, 0, "")
	if err != nil || len(letters) != 1 || letters[0].TransactionID != "t-3" || letters[0].Reason != "three is no order" || string(letters[0].Data) != "3" {
		t.Fatalf("dead letters %+v, %v", letters, err)
	}
	withheld, _, err := cl.sdk(t, cl.read).DeadLetters(ctx, client.DeadLetterFilter{Queue: "orders", Group: "billing"}, 0, "")
	if err != nil || len(withheld) != 1 || !withheld[0].Withheld || string(withheld[0].Data) != "null" || letters[0].Withheld {
		t.Fatalf("a read key is shown %+v, %v", withheld, err)
	}
	if r, err := c.ReplayDeadLetter(ctx, letters[0].ID, nil); err != nil || r.Offset != n {
		t.Fatalf("replayed as %+v, %v", r, err)
	}
	messages, err := c.Pop(ctx, "orders", client.PopOptions{Group: "billing", Wait: 10 * time.Second})
	if err != nil || len(messages) != 1 || string(messages[0].Data) != "3" {
		t.Fatalf("popped %v, %v", messages, err)
	}
	in := messages[0]
	if ends, err := c.Extend(ctx, in.LeaseID, time.Minute); err != nil || !ends.After(in.LeaseExpiresAt) {
		t.Fatalf("extended to %s, %v", ends, err)
	}

	// Transactions: hand on in one commit; then the lease is gone, and a second one is undone.
	tx := func() (client.TransactionResult, error) {
		return c.Transaction().Push(client.Item{Queue: "invoices", TransactionID: "i-1", Payload: in.Data}).Ack(in).Commit(ctx)
	}
	if r, err := tx(); err != nil || len(r.Results) != 2 || r.Results[0].MessageID == "" || r.Results[1].TransactionID != in.TransactionID {
		t.Fatalf("committed %+v, %v", r, err)
	}
	var undone *client.TransactionError
	if _, err := tx(); !errors.As(err, &undone) || undone.Unsure {
		t.Fatalf("committed twice: %v", err)
	}
	if err := c.Nack(ctx, "late", in); !errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("a nack without a lease: %v", err)
	}
	if messages, err = c.Pop(ctx, "invoices", client.PopOptions{AutoAck: true}); err != nil || len(messages) != 1 || messages[0].TransactionID != "i-1" {
		t.Errorf("invoices: %v, %v", messages, err)
	}

	// Administration.
	if err := c.Seek(ctx, "billing", "orders", "p", client.Position{Time: time.Unix(0, 0)}); err != nil {
		t.Error(err)
	}
	if groups, err := c.Groups(ctx); err != nil || !slices.ContainsFunc(groups, func(g client.Group) bool { return g.Name == "billing" && g.Lag == n+1 }) {
		t.Errorf("groups %+v, %v", groups, err)
	}
	if q, err := c.Queue(ctx, "orders"); err != nil || q.Options.LeaseTime != 20 || q.Totals.Total != n+1 ||
		!slices.ContainsFunc(q.Partitions, func(p client.Partition) bool { return p.Name == "p" && p.Stats.Total == n+1 }) {
		t.Errorf("queue %+v, %v", q, err)
	}
	if r, err := c.Redrive(ctx, client.RedriveRequest{DeadLetterFilter: client.DeadLetterFilter{Queue: "orders"}, DryRun: true}); err != nil || r.Progress.Matched != 0 {
		t.Errorf("redrive %+v, %v", r, err)
	}
	if deleted, err := c.PurgeDeadLetters(ctx, "orders", "", ""); err != nil || deleted != 0 {
		t.Errorf("purged %d, %v", deleted, err)
	}
	if existed, err := c.DeleteQueue(ctx, "orders"); err != nil || !existed {
		t.Errorf("deleted %v, %v", existed, err)
	}
	if queues, err := c.Queues(ctx); err != nil || len(queues) != 1 || queues[0].Name != "invoices" {
		t.Errorf("queues %+v, %v", queues, err)
	}
}

// TestClientUnderAPlan meets real refusals: one that time cures, and two that it does not.
func TestClientUnderAPlan(t *testing.T) {
	t.Parallel()
	cl := shared(t).newCluster(t, `{"max_req_per_sec":5,"req_burst":1,"max_payload_bytes":1000}`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := cl.sdk(t, cl.produce)
	begin := time.Now()
	for i := range 4 {
		if _, err := c.Push(ctx, client.Item{Queue: "q", Payload: i}); err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(begin); d < 400*time.Millisecond {
		t.Errorf("four pushes at five a second took %s", d)
	}
	var e *client.Error
	if _, err := c.Push(ctx, client.Item{Queue: "q", Payload: string(make([]byte, 2000))}); !errors.As(err, &e) || e.Code != wire.PayloadTooLarge || e.Outcome != wire.OutcomeNone || e.Limit == nil || e.Limit.Limit != 1000 {
		t.Errorf("a payload over the cap: %v", err)
	}
	if err := c.Consume(ctx, "q", nil, client.ConsumeOptions{}); !errors.As(err, &e) || e.Status != 403 || e.Code != wire.Forbidden {
		t.Errorf("a consumer with a producer's key: %v", err)
	}
}
