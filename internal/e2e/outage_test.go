package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/launch"
	"github.com/queengate/queengate/internal/pgtest"
)

// outageVariable says how long the cell's database stays away; half a minute is for a machine with time.
const outageVariable = "QUEENGATE_TEST_OUTAGE"

func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(outageVariable)
	if text == "" {
		return 4 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// crowd is producers and consumers that go on whatever happens, as published clients do, and what they were told.
type crowd struct {
	f       *fleet
	down    chan struct{} // closed before the database goes: outcomes may be unknown from then on
	produce context.Context
	consume context.Context
	open    [2]atomic.Int64 // requests without an answer: begun before down was closed, and after

	mu       sync.Mutex // guards all below
	stored   map[string]bool
	settled  map[string]bool
	buffered int
	refused  int
}

func (c *crowd) isDown() bool {
	select {
	case <-c.down:
		return true
	default:
		return false
	}
}

// call sends a request through gateway n.
func (c *crowd) call(ctx context.Context, n int, method, path string, body any) (reply, error) {
	open := &c.open[0]
	if c.isDown() {
		open = &c.open[1]
	}
	open.Add(1)
	defer open.Add(-1)
	return c.f.call(ctx, n, method, path, body)
}

// write repeats a write until it succeeds: after 503 with outcome none, and after an unknown outcome once the database
// has gone; doubtful says that an attempt before the last one may have done it. Anything else is an error of the test.
func (c *crowd) write(n int, path string, body any) (_ reply, doubtful, ok bool) {
	for c.f.t.Context().Err() == nil {
		r, err := c.call(context.Background(), n, "POST", path, body)
		if err != nil {
			c.f.t.Errorf("%s: %v", path, err)
			return r, doubtful, false
		}
		if r.status < 300 {
			return r, doubtful, true
		}
		var e errorBody
		if err := json.Unmarshal(r.body, &e); err != nil || r.status < 500 || e.Outcome != "none" && (e.Outcome != "unknown" || !c.isDown()) {
			c.f.t.Errorf("%s ended so that it cannot be repeated: %d %s", path, r.status, r.body)
			return r, doubtful, false
		}
		doubtful = doubtful || e.Outcome == "unknown"
		c.mu.Lock()
		c.refused++
		c.mu.Unlock()
		time.Sleep(50 * time.Millisecond) // as a client would
	}
	return reply{}, doubtful, false
}

func (c *crowd) producer(n int) {
	queue := fmt.Sprint("load", n)
	for i := 0; c.produce.Err() == nil && !c.f.t.Failed(); i++ {
		r, _, ok := c.write(n, "/api/v1/push", items(queue, fmt.Sprint("p", i%2), fmt.Sprintf("w%d-%d", n, i), 2))
		if !ok {
			return
		}
		c.mu.Lock()
		for _, res := range decode[[]pushResult](c.f.t, r.body) {
			switch res.Status {
			case "buffered":
				c.buffered++
			case "queued", "duplicate":
			default:
				c.f.t.Errorf("a push ended as %+v", res)
			}
			c.stored[queue+"/"+res.TransactionID] = true
		}
		c.mu.Unlock()
		time.Sleep(10 * time.Millisecond) // a load, not a benchmark
	}
}

func (c *crowd) consumer(n int) {
	queue := fmt.Sprint("load", n)
	for c.consume.Err() == nil && !c.f.t.Failed() {
		r, err := c.call(c.consume, n, "GET", "/api/v1/pop/queue/"+queue+"?wait=true&timeout=1000&batch=50&partitions=2&consumerGroup=g&subscriptionMode=all", nil)
		if err != nil {
			if c.consume.Err() == nil {
				c.f.t.Errorf("pop: %v", err)
			}
			return
		}
		switch r.status {
		case http.StatusNoContent:
			continue
		case http.StatusOK:
		default:
			c.f.t.Errorf("a waiting pop ended in %d %s", r.status, r.body)
			return
		}
		var acks []m
		for _, msg := range decode[popAnswer](c.f.t, r.body).Messages {
			acks = append(acks, ackOf(msg, "completed"))
		}
		if r, doubtful, ok := c.write(n, "/api/v1/ack/batch", m{"acknowledgments": acks, "consumerGroup": "g"}); ok {
			c.mu.Lock()
			for _, res := range decode[[]ackResult](c.f.t, r.body) {
				// A lease that is over after a lost answer was ended by that ack, or its messages come again.
				if res.Success || doubtful {
					c.settled[queue+"/"+res.TransactionID] = true
				}
			}
			c.mu.Unlock()
		}
	}
}

func (c *crowd) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.stored)
}

func (c *crowd) outstanding() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.stored {
		if !c.settled[id] {
			n++
		}
	}
	return n
}

// TestTheCellsDatabaseStopsUnderLoad: while PostgreSQL of the cell is away pushes are buffered, pops end in 204, waiting
// ones with their time, acks, extensions and transactions are 503 with outcome none, and gateways stay ready. Then everything
// goes on by itself, nothing is lost and nothing is stored twice.
func TestTheCellsDatabaseStopsUnderLoad(t *testing.T) {
	t.Parallel()
	underLoad(t, (*pgtest.Server).Stop, (*pgtest.Server).Start)
}

// TestTheCellsDatabaseStandsStillUnderLoad is the same for one that keeps its connections and says nothing, as when its
// machine is frozen or the network drops all: no statement of those that wait fails by itself.
func TestTheCellsDatabaseStandsStillUnderLoad(t *testing.T) {
	t.Parallel()
	underLoad(t, (*pgtest.Server).Freeze, (*pgtest.Server).Thaw)
}

func underLoad(t *testing.T, goes, comes func(*pgtest.Server)) {
	cell := pgtest.NewServer(t, nil)
	f := startFleetApart(t, cell.DSN(), pgtest.DSN(t), 8)
	const clients = 4
	for n := range clients {
		if _, err := f.call(t.Context(), n, "POST", "/api/v1/configure", m{"queue": fmt.Sprint("load", n), "options": m{"leaseTime": 3}}); err != nil {
			t.Fatal(err)
		}
	}
	c := &crowd{f: f, down: make(chan struct{}), stored: map[string]bool{}, settled: map[string]bool{}}
	var stopProducing, stopConsuming context.CancelFunc
	c.produce, stopProducing = context.WithCancel(t.Context())
	c.consume, stopConsuming = context.WithCancel(t.Context())
	defer stopProducing()
	defer stopConsuming()
	var producers, consumers sync.WaitGroup
	for n := range clients {
		producers.Go(func() { c.producer(n) })
		consumers.Go(func() { c.consumer(n) })
	}
	more := func(what string) {
		t.Helper()
		n := c.count()
		eventually(t, 30*time.Second, what, func() bool { return t.Failed() || c.count() > n+40 })
	}
	more("load")

	// One batch is held over the outage, for acks and extensions.
	held := func() popAnswer {
		if _, _, ok := c.write(0, "/api/v1/push", items("held", "p", "h", 1)); !ok {
			t.FailNow()
		}
		r, err := f.call(t.Context(), 0, "GET", "/api/v1/pop/queue/held?wait=true&timeout=20000&consumerGroup=g&subscriptionMode=all", nil)
		if err != nil || r.status != http.StatusOK {
			t.Fatalf("pop: %v %d %s", err, r.status, r.body)
		}
		return decode[popAnswer](t, r.body)
	}()

	close(c.down)
	stopped := time.Now()
	goes(cell)
	for _, g := range f.gateways {
		eventually(t, 20*time.Second, "the gateways to know that no broker is ready", func() bool {
			return metric(t, "http://"+g.ops+"/metrics", "queengate_proxy_broker_up", `probe="readyz"`) == 0
		})
	}
	// Before the database is back, however it is away: its statement_timeout stands still with it.
	eventually(t, 20*time.Second, "what was in flight to be answered", func() bool { return c.open[0].Load() == 0 })
	f.duringOutage(held)
	more("pushes into the spools")
	for ready := true; ready && time.Since(stopped) < outage(t); {
		for _, g := range f.gateways {
			ready = ready && answersOK("http://"+g.ops+"/readyz")
		}
		if !ready {
			t.Error("a gateway is not ready: its balancer would leave nobody to buffer pushes")
		}
		time.Sleep(100 * time.Millisecond) // the outage takes its time
	}
	c.mu.Lock()
	buffered := c.buffered
	c.mu.Unlock()
	if buffered == 0 {
		t.Error("no push of the load was buffered: the test proves nothing")
	}

	comes(cell)
	for _, b := range f.brokers {
		eventually(t, 30*time.Second, "the spools to be empty", func() bool {
			return metric(t, "http://"+b.ops+"/metrics", "queengate_spool_messages") == 0
		})
	}
	more("load after the outage")
	stopProducing()
	producers.Wait()
	eventually(t, time.Minute, "everything to be settled", func() bool { return t.Failed() || c.outstanding() == 0 })
	for n := range clients {
		f.consumed(fmt.Sprint("load", n), "g")
	}
	stopConsuming()
	consumers.Wait()
	if t.Failed() {
		return // what follows would only repeat it
	}
	stored := map[string]int{}
	for n := range clients {
		queue := fmt.Sprint("load", n)
		for id, n := range f.stored(queue) {
			stored[queue+"/"+id] = n
		}
	}
	for id := range c.stored {
		if stored[id] != 1 {
			t.Errorf("%s was acknowledged and is stored %d times", id, stored[id])
		}
	}
	for id := range stored {
		if !c.stored[id] {
			t.Errorf("%s is stored and was never acknowledged", id)
		}
	}
	t.Logf("%d messages, %d of them buffered, %d writes were told to come again", len(stored), buffered, c.refused)
}

// duringOutage holds what single requests are answered, through either gateway, while the cell has no database.
func (f *fleet) duringOutage(held popAnswer) {
	t := f.t
	t.Helper()
	msg := held.Messages[0]
	for n := range f.gateways {
		r, err := f.call(t.Context(), n, "POST", "/api/v1/push", items("quiet", "p", fmt.Sprint("q", n), 2))
		if err != nil || r.status != http.StatusCreated {
			t.Fatalf("push: %v %d %s", err, r.status, r.body)
		}
		for _, res := range decode[[]pushResult](t, r.body) {
			if res.Status != "buffered" {
				t.Errorf("a push ended as %q", res.Status)
			}
		}

		r, err = f.call(t.Context(), n, "GET", "/api/v1/pop/queue/quiet?consumerGroup=g", nil)
		if err != nil || r.status != http.StatusNoContent || len(r.body) != 0 || r.header.Get("X-Queen-Degraded") == "" {
			t.Errorf("pop that does not wait: %v %d %q %v", err, r.status, r.body, r.header)
		}
		r, err = f.call(t.Context(), n, "GET", "/api/v1/pop/queue/quiet?consumerGroup=newest&conflation=true", nil)
		if err != nil || r.status != http.StatusOK || r.header.Get("X-Queen-Degraded") == "" || len(decode[popAnswer](t, r.body).Messages) != 0 {
			t.Errorf("pop of conflated messages: %v %d %q %v", err, r.status, r.body, r.header)
		}

		const wait = 1500 * time.Millisecond
		begin := time.Now()
		r, err = f.call(t.Context(), n, "GET", fmt.Sprintf("/api/v1/pop/queue/quiet?wait=true&timeout=%d&consumerGroup=g", wait.Milliseconds()), nil)
		if err != nil || r.status != http.StatusNoContent || len(r.body) != 0 {
			t.Errorf("waiting pop: %v %d %q", err, r.status, r.body)
		}
		// Brokers and gateways answer a little before the time, so that the answer is there in time.
		if took := time.Since(begin); took < wait*3/4 {
			t.Errorf("a waiting pop of %v ended after %v: its client would come back at once", wait, took)
		}

		for path, body := range map[string]any{
			"/api/v1/ack":       merge(ackOf(msg, "completed"), m{"consumerGroup": "g"}),
			"/api/v1/ack/batch": m{"acknowledgments": []m{ackOf(msg, "completed")}, "consumerGroup": "g"},
			"/api/v1/transaction": m{"operations": []m{
				{"type": "push", "items": []m{{"queue": "quiet", "partition": "p", "transactionId": "never", "payload": 1}}},
			}},
			"/api/v1/lease/" + held.LeaseID + "/extend": m{"seconds": 30},
		} {
			r, err := f.call(t.Context(), n, "POST", path, body)
			if err != nil {
				t.Fatal(err)
			}
			if e := r.refusal(t); r.status != http.StatusServiceUnavailable || e.Outcome != "none" || !e.Retryable || r.header.Get("Retry-After") == "" {
				t.Errorf("%s: got %d %s, want 503 with outcome none", path, r.status, r.body)
			}
		}
	}
}

func merge(a, b m) m {
	for k, v := range b {
		a[k] = v
	}
	return a
}

// TestTheControlDatabaseStops: gateways serve what they know from memory and, killed and started again, from their file;
// whom they do not know they refuse. What they counted of a month is not lost. A gateway that never knew anything says why
// it does not start. When the database is back it is followed again.
func TestTheControlDatabaseStops(t *testing.T) {
	t.Parallel()
	control := pgtest.NewServer(t, nil)
	f := startFleetApart(t, pgtest.DSN(t), control.DSN(), 1)
	var pushed int64
	push := func(n int, what string) (limit string) {
		t.Helper()
		r, err := f.call(t.Context(), n, "POST", "/api/v1/push", items("q", "p", what+fmt.Sprint(n), 1))
		if err != nil || r.status != http.StatusCreated {
			t.Errorf("%s, gateway %d: %v %d %s", what, n, err, r.status, r.body)
			return ""
		}
		pushed++
		return r.header.Get("X-Queen-Limit-Name")
	}
	serves := func(what string) {
		t.Helper()
		for n := range f.gateways {
			push(n, what)
		}
	}
	if _, err := f.db.Exec(t.Context(), "SELECT queengate.set_limit_override($1::uuid, $2)", f.cluster,
		strings.Replace(unlimited, `"monthly_msgs_quota":null`, `"monthly_msgs_quota":1000`, 1)); err != nil {
		t.Fatal(err)
	}
	for n := range f.gateways {
		tries := 0
		eventually(t, 20*time.Second, "the allowance", func() bool {
			tries++
			return push(n, fmt.Sprint("allowance", tries)) == "month"
		})
	}
	away := func(want float64) {
		t.Helper()
		for _, g := range f.gateways {
			eventually(t, 60*time.Second, fmt.Sprintf("the control database to be away: %v", want), func() bool {
				return metric(t, "http://"+g.ops+"/metrics", "queengate_control_database_away") == want
			})
		}
	}
	serves("before")
	away(0)
	written := func(file string) {
		t.Helper()
		for _, g := range f.gateways {
			eventually(t, 60*time.Second, file, func() bool {
				_, err := os.Stat(filepath.Join(g.args[len(g.args)-1], file))
				return err == nil
			})
		}
	}
	written("control.book")
	f.db.Reset()
	control.Stop()
	away(1)
	serves("from memory")

	written("months.unsaved")
	began := time.Now()
	for _, g := range f.gateways {
		g.Kill()
		f.start(g)
	}
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("both were killed and ready again within %v", time.Since(began))
	serves("from the file")
	away(1)
	for _, g := range f.gateways {
		if out := g.Output(); !strings.Contains(out, "this gateway starts with what it knew last") {
			t.Errorf("the start says nothing about the outage:\n%s", out)
		}
		for _, path := range []string{"/readyz", "/healthz"} {
			if text := read(t, "http://"+g.ops+path); !strings.Contains(text, "away since ") {
				t.Errorf("%s says nothing about the outage: %s", path, text)
			}
		}
		if age := metric(t, "http://"+g.ops+"/metrics", "queengate_control_book_age_seconds"); age <= 0 {
			t.Errorf("age of the book: %v", age)
		}
	}
	known := f.key
	f.key = "qk_live_" + strings.Repeat("A", 43)
	if r, err := f.call(t.Context(), 0, "POST", "/api/v1/push", items("q", "p", "x", 1)); err != nil || r.status != http.StatusUnauthorized {
		t.Errorf("an unknown key: %v %d %s", err, r.status, r.body)
	}
	f.key = known

	for rule, data := range map[string]string{"no data folder": "", "a new data folder": t.TempDir()} {
		ctx, cancel := launch.Deadline(time.Minute)
		defer cancel()
		p, err := launch.Part(ctx, bin, freeAddr(t), f.env, "gateway", "--http", freeAddr(t), "--https", "off", "--data", data)
		if err == nil {
			p.Kill()
			t.Errorf("%s: the gateway started", rule)
		} else if !strings.Contains(err.Error(), "postgres.control_dsn") || !strings.Contains(err.Error(), "ended before it was ready") {
			t.Errorf("%s: %v", rule, err)
		}
	}

	control.Start()
	away(0)
	serves("again")
	eventually(t, 20*time.Second, "the month to be saved, of every life", func() bool {
		var saved int64
		if err := f.db.QueryRow(t.Context(), "SELECT coalesce(sum(messages), 0)::bigint FROM queengate.usage_months").Scan(&saved); err != nil {
			t.Fatal(err)
		}
		if saved > pushed {
			t.Fatalf("%d messages were saved, and %d were pushed", saved, pushed)
		}
		return saved == pushed
	})
	if _, err := f.db.Exec(t.Context(), "SELECT queengate.revoke_api_key(cluster_id, id) FROM queengate.api_keys"); err != nil {
		t.Fatal(err)
	}
	for n := range f.gateways {
		eventually(t, 20*time.Second, "the revocation", func() bool {
			r, err := f.call(t.Context(), n, "POST", "/api/v1/push", items("q", "p", "y", 1))
			return err == nil && r.status == http.StatusUnauthorized
		})
	}
	// And the file does not revive it.
	control.Stop()
	f.gateways[0].Kill()
	ctx, cancel := launch.Deadline(time.Minute)
	defer cancel()
	g := f.gateways[0]
	p, err := launch.Part(ctx, bin, g.ops, f.env, g.args...)
	if err != nil {
		// It was killed before the file without the key was written: there is none then.
		if !strings.Contains(err.Error(), "no such file") {
			t.Error(err)
		}
		return
	}
	defer f.stop(p)
	if r, err := f.call(t.Context(), 0, "POST", "/api/v1/push", items("q", "p", "z", 1)); err != nil || r.status != http.StatusUnauthorized {
		t.Errorf("the file revived a revoked key: %v %d %s", err, r.status, r.body)
	}
}

// read returns what a URL answers.
func read(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
