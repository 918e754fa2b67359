package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/queengate/queengate/client"
	"github.com/queengate/queengate/wire"
)

// demo serves what the examples need: a queue "orders" with two messages, and refusals for a queue "full".
func demo() *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/push", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Items []struct{ Queue, TransactionID string }
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		var results []string
		for i, item := range body.Items {
			if item.Queue == "full" {
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprint(w, `{"error":"the cluster's retained bytes are used up","code":"storage_quota_exceeded","outcome":"none",
					"limit":{"name":"storage","limit":1000000,"used":1000000,"unit":"bytes","reset_s":0}}`)
				return
			}
			results = append(results, fmt.Sprintf(`{"transaction_id":%q,"queueName":%q,"status":"queued","offset":%d}`, item.TransactionID, item.Queue, i))
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "["+strings.Join(results, ",")+"]")
	})
	empty := false
	mux.HandleFunc("GET /api/v1/pop/queue/orders", func(w http.ResponseWriter, r *http.Request) {
		if empty {
			<-r.Context().Done()
			return
		}
		empty = true
		fmt.Fprintf(w, `{"messages":[
			{"transactionId":"order-1","data":{"total":12},"partitionId":"p","partition":"Default","queue":"orders","offset":0,"leaseId":"l","leaseExpiresAt":%[1]q},
			{"transactionId":"order-2","data":{"total":30},"partitionId":"p","partition":"Default","queue":"orders","offset":1,"leaseId":"l","leaseExpiresAt":%[1]q}]}`,
			time.Now().Add(time.Minute).UTC().Format(time.RFC3339))
	})
	mux.HandleFunc("POST /api/v1/ack/batch", func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Acknowledgments []any }
		_ = json.NewDecoder(r.Body).Decode(&body)
		fmt.Fprint(w, "["+strings.TrimSuffix(strings.Repeat(`{"success":true},`, len(body.Acknowledgments)), ",")+"]")
	})
	mux.HandleFunc("POST /api/v1/transaction", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"transactionId":"x","success":true,"results":[{"type":"push","transactionId":"invoice-1"},{"type":"ack","transactionId":"order-1"}]}`)
	})
	mux.HandleFunc("GET /api/v1/dlq", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"messages":[{"id":"d-1","transactionId":"order-9","errorMessage":"no such customer","retryCount":3}],"nextCursor":null}`)
	})
	mux.HandleFunc("POST /api/v1/dlq/d-1/replay", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"success":true,"replayedAs":{"transaction_id":"dlq:d-1","status":"queued"}}`)
	})
	mux.HandleFunc("POST /api/v1/configure", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"configured":true,"options":{"leaseTime":30,"retryLimit":5}}`)
	})
	return httptest.NewServer(mux)
}

// dial returns a client of the demo server; a real one is given the address of the cluster and a key of it.
func dial(url string) *client.Client {
	c, err := client.New(client.Options{URLs: []string{url}, Key: "qk_live_…"})
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// An order number as transaction id makes the push harmless to repeat, even by another process.
func ExampleClient_Push() {
	server := demo()
	defer server.Close()
	c := dial(server.URL)
	defer c.Close()

	results, err := c.Push(context.Background(),
		client.Item{Queue: "orders", Partition: "customer-7", TransactionID: "order-1", Payload: map[string]int{"total": 12}},
		client.Item{Queue: "orders", Partition: "customer-8", TransactionID: "order-2", Payload: map[string]int{"total": 30}},
	)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range results {
		fmt.Println(r.TransactionID, r.Status)
	}
	// Output:
	// order-1 queued
	// order-2 queued
}

// What a human must cure comes back at once, with the code and the limit that refused it.
func ExampleError() {
	server := demo()
	defer server.Close()
	c := dial(server.URL)
	defer c.Close()

	_, err := c.Push(context.Background(), client.Item{Queue: "full", Payload: "one more"})
	var refused *client.Error
	if errors.As(err, &refused) && refused.Code == wire.StorageQuotaExceeded {
		fmt.Printf("%d: %.0f of %.0f %s are used\n", refused.Status, refused.Limit.Used, refused.Limit.Limit, refused.Limit.Unit)
	}
	// Output: 403: 1000000 of 1000000 bytes are used
}

func ExampleBatcher() {
	server := demo()
	defer server.Close()
	c := dial(server.URL)
	defer c.Close()

	ctx := context.Background()
	b := c.NewBatcher(client.BatcherOptions{Items: 500, Linger: 5 * time.Millisecond})
	var pending []*client.Pending
	for i := range 3 {
		p, err := b.Add(ctx, client.Item{Queue: "orders", TransactionID: fmt.Sprintf("order-%d", i), Payload: i})
		if err != nil {
			log.Fatal(err)
		}
		pending = append(pending, p)
	}
	if err := b.Close(ctx); err != nil {
		log.Fatal(err)
	}
	for _, p := range pending {
		r, err := p.Wait(ctx)
		fmt.Println(r.TransactionID, r.Status, err)
	}
	// Output:
	// order-0 queued <nil>
	// order-1 queued <nil>
	// order-2 queued <nil>
}

// A consumer runs until its context ends, for instance by signal.NotifyContext, and then stops in order.
func ExampleClient_Consume() {
	server := demo()
	defer server.Close()
	c := dial(server.URL)
	defer c.Close()

	ctx, stop := context.WithCancel(context.Background())
	err := c.Consume(ctx, "orders", func(ctx context.Context, m *client.Message) error {
		var order struct{ Total int }
		if err := m.Decode(&order); err != nil {
			return client.AsRejected(err) // it will not get better
		}
		fmt.Println(m.TransactionID, order.Total)
		if m.TransactionID == "order-2" {
			stop()
		}
		return nil
	}, client.ConsumeOptions{
		PopOptions: client.PopOptions{Batch: 50},
		OnError:    func(err error) { log.Print(err) },
	})
	fmt.Println("stopped:", err)
	// Output:
	// order-1 12
	// order-2 30
	// stopped: <nil>
}

// Popping by hand: what is not acknowledged is delivered again when the lease ends.
func ExampleClient_Pop() {
	server := demo()
	defer server.Close()
	c := dial(server.URL)
	defer c.Close()

	ctx := context.Background()
	messages, err := c.Pop(ctx, "orders", client.PopOptions{Batch: 10, Wait: 20 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Ack(ctx, messages[0]); err != nil {
		log.Fatal(err)
	}
	if err := c.Nack(ctx, "no such customer", messages[1]); err != nil {
		log.Fatal(err)
	}
	fmt.Println("one done, one failed")
	// Output: one done, one failed
}

// An order becomes an invoice, exactly once.
func ExampleClient_Transaction() {
	server := demo()
	defer server.Close()
	c := dial(server.URL)
	defer c.Close()

	ctx := context.Background()
	messages, err := c.Pop(ctx, "orders", client.PopOptions{Batch: 1})
	if err != nil {
		log.Fatal(err)
	}
	done, err := c.Transaction().
		Push(client.Item{Queue: "invoices", TransactionID: "invoice-1", Payload: messages[0].Data}).
		Ack(messages[0]).
		Commit(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range done.Results {
		fmt.Println(r.Type, r.TransactionID)
	}
	// Output:
	// push invoice-1
	// ack order-1
}

func ExampleClient_DeadLetters() {
	server := demo()
	defer server.Close()
	c := dial(server.URL)
	defer c.Close()

	ctx := context.Background()
	for cursor := ""; ; {
		page, next, err := c.DeadLetters(ctx, client.DeadLetterFilter{Queue: "orders"}, 100, cursor)
		if err != nil {
			log.Fatal(err)
		}
		for _, l := range page {
			again, err := c.ReplayDeadLetter(ctx, l.ID, nil)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("%s (%s) is back as %s\n", l.TransactionID, l.Reason, again.TransactionID)
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	// Output: order-9 (no such customer) is back as dlq:d-1
}

func ExampleClient_Configure() {
	server := demo()
	defer server.Close()
	c := dial(server.URL)
	defer c.Close()

	effective, err := c.Configure(context.Background(), "orders", client.QueueOptions{
		LeaseTime:  new(30 * time.Second),
		RetryLimit: new(5),
	}, wire.ConfigureMerge)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(effective.LeaseTime, "seconds,", effective.RetryLimit, "retries")
	// Output: 30 seconds, 5 retries
}
