package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	loadQueues     = 6
	loadPartitions = 2
)

// traffic is producers and consumers on a fleet, and the ledger of what they were told.
type traffic struct {
	f       *fleet
	dying   atomic.Bool // a broker is killed: what was under way there has an unknown outcome
	produce context.Context
	consume context.Context
	refused atomic.Int64 // 503 with outcome none
	unknown atomic.Int64
	early   atomic.Int64 // pops that ended for the death of a broker
	stale   atomic.Int64 // acks of leases that were over

	mu        sync.Mutex
	stored    map[string]bool // acknowledged by a broker
	delivered map[string]int
	settled   map[string]bool
}

func (tr *traffic) count() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return len(tr.stored)
}

// write sends a write until it succeeds, as a client may: again after a refusal that says that nothing happened, and,
// since its ids make that harmless, after an outcome that is unknown.
func (tr *traffic) write(n int, method, path string, body any, success int) (reply, bool) {
	r, _, ok := tr.repeat(n, method, path, body, success)
	return r, ok
}

// repeat is write; doubtful says that an attempt before the last one may have done it.
func (tr *traffic) repeat(n int, method, path string, body any, success int) (_ reply, doubtful, ok bool) {
	t := tr.f.t
	for try := 0; ; try++ {
		r, err := tr.f.call(context.Background(), n, method, path, body)
		if err != nil {
			t.Errorf("%s %s: %v", method, path, err)
			return r, doubtful, false
		}
		if r.status == success {
			return r, doubtful, true
		}
		var e errorBody
		if err := json.Unmarshal(r.body, &e); err != nil {
			t.Errorf("%s %s: %d %q", method, path, r.status, r.body)
			return r, doubtful, false
		}
		switch {
		case r.status == http.StatusServiceUnavailable && e.Outcome == "none":
			tr.refused.Add(1)
		case r.status >= 500 && e.Outcome == "unknown" && tr.dying.Load():
			doubtful = true
			tr.unknown.Add(1)
		default:
			t.Errorf("%s %s failed so that it could not be repeated: %d %s", method, path, r.status, r.body)
			return r, doubtful, false
		}
		if try > 100 {
			t.Errorf("%s %s does not succeed: %d %s", method, path, r.status, r.body)
			return r, doubtful, false
		}
		time.Sleep(50 * time.Millisecond) // as a client would
	}
}

func (tr *traffic) producer(n int) {
	queue := fmt.Sprint("load", n%loadQueues)
	for i := 0; tr.produce.Err() == nil; i++ {
		batch := items(queue, fmt.Sprint("p", i%loadPartitions), fmt.Sprintf("w%d-%d", n, i), 3)
		r, ok := tr.write(n, "POST", "/api/v1/push", batch, http.StatusCreated)
		if !ok {
			return
		}
		results := decode[[]pushResult](tr.f.t, r.body)
		tr.mu.Lock()
		for _, res := range results {
			if res.Status != "queued" && res.Status != "duplicate" {
				tr.f.t.Errorf("a push ended as %+v", res)
			}
			tr.stored[queue+"/"+res.TransactionID] = true
		}
		tr.mu.Unlock()
		time.Sleep(5 * time.Millisecond) // a load, not a benchmark
	}
}

func (tr *traffic) consumer(n int) {
	queue := fmt.Sprint("load", n%loadQueues)
	for tr.consume.Err() == nil {
		r, err := tr.f.call(tr.consume, n, "GET", "/api/v1/pop/queue/"+queue+"?wait=true&timeout=3000&batch=20&partitions=2&consumerGroup=g&subscriptionMode=all", nil)
		if err != nil {
			if tr.consume.Err() == nil {
				tr.f.t.Errorf("pop: %v", err)
			}
			return
		}
		switch {
		case r.status == http.StatusNoContent:
			if r.header.Get("X-Queen-Degraded") != "" {
				tr.early.Add(1)
				if !tr.dying.Load() {
					tr.f.t.Error("a pop ended early although every broker left in peace")
				}
			}
			continue
		case r.status != http.StatusOK:
			tr.f.t.Errorf("pop: %d %s", r.status, r.body)
			return
		}
		got := decode[popAnswer](tr.f.t, r.body)
		acks := make([]m, len(got.Messages))
		tr.mu.Lock()
		for i, msg := range got.Messages {
			tr.delivered[queue+"/"+msg.TransactionID]++
			acks[i] = ackOf(msg, "completed")
		}
		tr.mu.Unlock()
		r, doubtful, ok := tr.repeat(n, "POST", "/api/v1/ack/batch", m{"acknowledgments": acks, "consumerGroup": "g"}, http.StatusOK)
		if !ok {
			return
		}
		tr.mu.Lock()
		for _, res := range decode[[]ackResult](tr.f.t, r.body) {
			// A lease that is over after a lost answer was ended by that ack, or its messages come again.
			if res.Success || doubtful {
				tr.settled[queue+"/"+res.TransactionID] = true
			} else {
				tr.stale.Add(1)
			}
		}
		tr.mu.Unlock()
	}
}

// outstanding counts what is stored and not settled yet.
func (tr *traffic) outstanding() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	n := 0
	for id := range tr.stored {
		if !tr.settled[id] {
			n++
		}
	}
	return n
}

// tell says what is not settled, for a test that failed.
func (tr *traffic) tell() {
	if !tr.f.t.Failed() {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	told := 0
	for id := range tr.stored {
		if !tr.settled[id] && told < 10 {
			told++
			tr.f.t.Logf("%s is not settled; it was delivered %d times", id, tr.delivered[id])
		}
	}
	tr.f.t.Logf("%d writes were told to come again, %d outcomes are unknown, %d pops ended early, %d acks came too late",
		tr.refused.Load(), tr.unknown.Load(), tr.early.Load(), tr.stale.Load())
}

// TestRollingRestartAndADeathUnderLoad restarts the three brokers of a cell one after the other and then kills one, while
// a cluster that is spread over all of them is written and read through two gateways. No write fails in a way that its
// client could not repeat, no pop sees an error, a poll that waits through all of it gets its message, nothing is lost
// and nothing is stored twice.
func TestRollingRestartAndADeathUnderLoad(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 64)
	tr := &traffic{f: f, stored: map[string]bool{}, delivered: map[string]int{}, settled: map[string]bool{}}
	var stopProducing, stopConsuming context.CancelFunc
	defer tr.tell()
	tr.produce, stopProducing = context.WithCancel(t.Context())
	tr.consume, stopConsuming = context.WithCancel(t.Context())
	defer stopProducing()
	defer stopConsuming()
	for i := range loadQueues {
		// A lease that a dead broker took along must not outlast the test.
		tr.write(i, "POST", "/api/v1/configure", m{"queue": fmt.Sprint("load", i), "options": m{"leaseTime": 3}}, http.StatusOK)
	}
	for i := range 40 { // enough names that each broker has the share of some
		tr.write(i, "POST", "/api/v1/push", items(fmt.Sprint("wide", i), "p", "t", 1), http.StatusCreated)
	}
	quiet := make(chan string, 1)
	go func() {
		r, err := f.call(t.Context(), 0, "GET", "/api/v1/pop/queue/quiet?wait=true&timeout=55000", nil)
		if err != nil || r.status != http.StatusOK {
			quiet <- fmt.Sprintf("%d %s %v", r.status, r.body, err)
			return
		}
		quiet <- ""
	}()
	var producers, consumers sync.WaitGroup
	for n := range loadQueues {
		producers.Go(func() { tr.producer(n) })
		consumers.Go(func() { tr.consumer(n) })
	}
	more := func(what string) {
		t.Helper()
		n := tr.count()
		eventually(t, 20*time.Second, what, func() bool { return t.Failed() || tr.count() > n+60 })
	}
	more("load")
	for _, b := range f.brokers {
		if metric(t, "http://"+b.ops+"/metrics", "queengate_broker_requests_total", `route="/api/v1/push"`) == 0 {
			t.Errorf("a cluster that is spread over many shares pushes nothing to %s", b.addr)
		}
	}

	for _, b := range f.brokers {
		f.stop(b.Process)
		more("load without a broker")
		f.start(b)
		f.serving(b, 1)
	}
	if n := tr.early.Load() + tr.unknown.Load() + tr.stale.Load(); n != 0 {
		t.Errorf("the restarts were noticed: %d pops ended early, %d outcomes are unknown, %d leases were over",
			tr.early.Load(), tr.unknown.Load(), tr.stale.Load())
	}
	t.Logf("restarts: %d messages, %d writes were told to come again", tr.count(), tr.refused.Load())

	tr.dying.Store(true)
	victim := f.brokers[1]
	victim.Kill()
	killed := time.Now()
	f.serving(victim, 0)
	t.Logf("both gateways had left the killed broker after %v", time.Since(killed).Round(time.Millisecond))
	more("load after the death of a broker")
	if resp, err := http.Get("http://" + f.gateways[0].ops + "/readyz"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("a gateway with two brokers left: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	f.start(victim)

	tr.write(0, "POST", "/api/v1/push", items("quiet", "p", "t", 1), http.StatusCreated)
	select {
	case problem := <-quiet:
		if problem != "" {
			t.Errorf("the poll that waited through all of it: %s", problem)
		}
	case <-time.After(20 * time.Second):
		t.Error("the poll that waited through all of it was not woken")
	}

	stopProducing()
	producers.Wait()
	t.Logf("%d messages are not settled when the producers end", tr.outstanding()) // a slow machine has a backlog
	eventually(t, time.Minute, "everything to be settled", func() bool { return t.Failed() || tr.outstanding() == 0 })
	for i := range loadQueues {
		f.consumed(fmt.Sprint("load", i), "g")
	}
	stopConsuming()
	consumers.Wait()

	if t.Failed() {
		return // what follows would only repeat it
	}

	stored := map[string]int{}
	for i := range loadQueues {
		queue := fmt.Sprint("load", i)
		for id, n := range f.stored(queue) {
			stored[queue+"/"+id] = n
		}
	}
	for id := range tr.stored {
		if stored[id] != 1 || tr.delivered[id] == 0 {
			t.Errorf("%s was acknowledged, is stored %d times and was delivered %d times", id, stored[id], tr.delivered[id])
		}
	}
	for id, n := range stored {
		if n != 1 || !tr.stored[id] {
			t.Errorf("%s is stored %d times and was acknowledged: %v", id, n, tr.stored[id])
		}
	}
	t.Logf("in all: %d messages, %d writes were told to come again, %d outcomes were unknown, %d pops ended early, %d leases were over",
		len(stored), tr.refused.Load(), tr.unknown.Load(), tr.early.Load(), tr.stale.Load())
}
