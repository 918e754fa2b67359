package broker

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

// churn is consumers of one group at two brokers, and a record of what they were given and what was accepted of them.
type churn struct {
	brokers []*world
	nack    func(m message) bool // whether a delivery is reported as a dead letter; nil: none is
	stop    atomic.Bool
	running sync.WaitGroup

	mu        sync.Mutex     // guards below
	delivered map[string]int // by partition and transaction id
	accepted  map[string]int
	order     map[string][]*settling // by partition, as the acks were sent
}

// settling is an ack on its way. It stands in the record before it is sent: once it is answered, another consumer may
// have settled the next message before this one writes anything down.
type settling struct {
	transactionID string
	accepted      bool
}

func startChurn(t *testing.T, nack func(message) bool) *churn {
	t.Helper()
	pool := pgtest.New(t, migrations.Broker)
	c := &churn{
		brokers: []*world{serve(t, pool, nil), serve(t, pool, nil)}, nack: nack,
		delivered: map[string]int{}, accepted: map[string]int{}, order: map[string][]*settling{},
	}
	for _, at := range c.brokers {
		for range 2 {
			c.running.Go(func() {
				for !c.stop.Load() {
					c.consume(at)
				}
			})
		}
	}
	t.Cleanup(c.end)
	return c
}

func (c *churn) end() {
	c.stop.Store(true)
	c.running.Wait()
}

// consume takes one batch and settles it message by message, in order.
func (c *churn) consume(at *world) {
	got := at.pop("orders?consumerGroup=g&subscriptionMode=all&batch=3&partitions=2&wait=true&timeout=1000")
	c.note(c.delivered, got.Messages...)
	ended := map[string]bool{} // partitions whose batch a dead letter has ended: the rest of it is given back
	for _, m := range got.Messages {
		if ended[m.Partition] {
			continue
		}
		status := "completed"
		if c.nack != nil && c.nack(m) {
			status = "dlq"
		}
		s := &settling{transactionID: m.TransactionID}
		c.mu.Lock()
		c.order[m.Partition] = append(c.order[m.Partition], s)
		c.mu.Unlock()
		if r := at.ack(status, "g", m)[0]; r.Success && !r.Noop {
			c.mu.Lock()
			s.accepted = true
			c.mu.Unlock()
			c.note(c.accepted, m)
		}
		ended[m.Partition] = status == "dlq"
	}
}

func key(m message) string { return m.Partition + "/" + m.TransactionID }

func (c *churn) note(in map[string]int, messages ...message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range messages {
		in[key(m)]++
	}
}

func (c *churn) count(in map[string]int, k string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return in[k]
}

// fill pushes n messages to each of some partitions and returns their keys.
func (c *churn) fill(t *testing.T, prefix string, partitions, n int) (keys []string) {
	t.Helper()
	for i := range n {
		var items []string
		for p := range partitions {
			id := fmt.Sprint(prefix, i)
			items = append(items, fmt.Sprintf(`{"queue":"orders","partition":"p%d","transactionId":%q,"payload":1}`, p, id))
			keys = append(keys, fmt.Sprintf("p%d/%s", p, id))
		}
		for _, r := range c.brokers[i%2].push(`{"items":[` + strings.Join(items, ",") + `]}`) {
			if r.Status != "queued" {
				t.Errorf("push of %s: %+v", r.TransactionID, r)
			}
		}
	}
	return keys
}

// all waits until each of the keys was accepted at least so often.
func (c *churn) all(t *testing.T, what string, keys []string, least int) {
	t.Helper()
	c.brokers[0].until(what, func() bool {
		for _, k := range keys {
			if c.count(c.accepted, k) < least {
				return false
			}
		}
		return true
	})
}

// Cursors are moved back and on while consumers run: nothing behind the last move is lost, and nothing is completed more
// often than it was given again.
func TestSeeksWhileConsumersRun(t *testing.T) {
	t.Parallel()
	c := startChurn(t, nil)
	w := c.brokers[0]
	const partitions, back = 4, 4
	keys := c.fill(t, "a", partitions, 10)
	c.all(t, "the first round", keys, 1)
	for i := range back {
		at := c.brokers[i%2]
		if i == 1 { // one partition alone
			at.do("POST", "/api/v1/consumer-groups/g/queues/orders/partitions/p0/seek", `{"timestamp":"2020-01-01T00:00:00Z"}`).want(t, 200)
			continue
		}
		before := map[string]int{}
		for _, k := range keys {
			before[k] = c.count(c.delivered, k)
		}
		at.do("POST", "/api/v1/consumer-groups/g/queues/orders/seek", `{"timestamp":"2020-01-01T00:00:00Z"}`).want(t, 200)
		keys = append(keys, c.fill(t, fmt.Sprint("b", i, "-"), partitions, 3)...)
		w.until("everything again", func() bool {
			for k, n := range before {
				if c.count(c.delivered, k) == n {
					return false
				}
			}
			return true
		})
	}
	c.all(t, "what was pushed meanwhile", keys, 1)
	w.until("the group is through", func() bool {
		return object(t, w.do("GET", "/api/v1/resources/queues/orders/depth?group=g", "").want(t, 200))["pending"] == 0.0
	})
	c.end()
	for _, k := range keys {
		if n := c.count(c.accepted, k); n > back+1 {
			t.Errorf("%s was completed %d times, and given again %d times", k, n, back)
		}
	}
}

// Dead letters are replayed while the consumers that file them run: each comes once more for each replay, under its new
// name, and is completed once.
func TestReplaysWhileConsumersRun(t *testing.T) {
	t.Parallel()
	c := startChurn(t, func(m message) bool {
		return !strings.HasPrefix(m.TransactionID, "dlq:") && strings.HasSuffix(m.TransactionID, "3")
	})
	w := c.brokers[0]
	const partitions, n = 3, 10
	keys := c.fill(t, "m", partitions, n)
	c.all(t, "all are settled", keys, 1)
	replayed := map[string]bool{}
	for len(replayed) < partitions {
		for i, l := range w.letters("queue=orders&limit=100").Messages {
			c.brokers[i%2].do("POST", "/api/v1/dlq/"+l.ID+"/replay", "").want(t, 200)
			replayed[fmt.Sprintf("%s/dlq:%s", l.Partition, l.ID)] = true
		}
	}
	for k := range replayed {
		keys = append(keys, k)
	}
	c.all(t, "what was replayed", keys, 1)
	c.end()
	for _, k := range keys {
		if got := c.count(c.accepted, k); got != 1 {
			t.Errorf("%s was settled %d times", k, got)
		}
	}
	if left := w.letters("queue=orders&limit=100").Messages; len(left) > 0 {
		t.Errorf("%d letters are left", len(left))
	}
}

// A queue is deleted and filled again under its consumers, with the same transaction ids: its dedup keys are forgotten at
// both brokers, everything of the last one is delivered in order, and nothing of a former one is accepted afterwards.
func TestAQueueIsDeletedAndFilledWhileConsumersRun(t *testing.T) {
	t.Parallel()
	c := startChurn(t, nil)
	w := c.brokers[0]
	const partitions, n, lives = 3, 6, 4
	for life := range lives {
		keys := c.fill(t, "m", partitions, n) // checks that each is queued
		c.all(t, fmt.Sprint("life ", life), keys, life+1)
		for _, k := range keys {
			if got := c.count(c.accepted, k); got != life+1 {
				t.Errorf("life %d: %s was completed %d times", life, k, got)
			}
		}
		if life < lives-1 {
			c.brokers[life%2].do("DELETE", "/api/v1/resources/queues/orders", "").want(t, 200)
		}
	}
	c.end()
	for p, all := range c.order {
		var ids []string
		for _, s := range all {
			if s.accepted {
				ids = append(ids, s.transactionID)
			}
		}
		for i, id := range ids {
			if want := fmt.Sprint("m", i%n); id != want {
				t.Fatalf("partition %s: %v; at %d want %s", p, ids, i, want)
			}
		}
	}
	if got := w.pop("orders?consumerGroup=g"); len(got.Messages) > 0 {
		t.Errorf("delivered once more: %+v", got)
	}
}
