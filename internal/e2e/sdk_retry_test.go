package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// client is an SDK of a dialect that talks to the cluster.
func (c *cluster) speak(d dialect) *sdk {
	return &sdk{dialect: d, send: func(ctx context.Context, method, path string, body any) (reply, error) {
		return c.try(ctx, method, path, body)
	}}
}

// eachDialect runs a test for every dialect, each on a cluster of its own.
func eachDialect(t *testing.T, overrides string, f func(t *testing.T, c *cluster, s *sdk)) {
	t.Parallel()
	sys := shared(t)
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			c := sys.newCluster(t, overrides)
			f(t, c, c.speak(d))
		})
	}
}

// bound is a wall around what an SDK does, far beyond what it may take.
func bound(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Whoever is told to wait and waits as its SDK does, a fifth less than it was told, gets through in its ten attempts.
func TestSDKsThatAreToldToWaitSucceed(t *testing.T) {
	eachDialect(t, `{"max_req_per_sec":1,"req_burst":2}`, func(t *testing.T, c *cluster, s *sdk) {
		ctx := bound(t)
		push := func(i int) *failure {
			_, f := s.call(ctx, "POST", "/api/v1/push", items("q", "p", fmt.Sprint(i), 1), false)
			return f
		}
		refused := 0
		for i := range 6 {
			f := push(i)
			switch {
			case s.patient && f != nil:
				t.Fatalf("push %d: %v after %v", i, f, s.asked)
			case f == nil:
			case f.status != http.StatusTooManyRequests || f.code != "rate_limited" || f.retryAfter < time.Second:
				t.Fatalf("push %d: %v, told to wait %s", i, f, f.retryAfter)
			default:
				refused++ // it throws at once, and its caller has what it takes to wait
				s.sleep(ctx, f.retryAfter)
				if f := push(i); f != nil {
					t.Fatalf("push %d: %v although its caller has waited exactly as told", i, f)
				}
			}
		}
		told := 0
		for _, status := range s.asked {
			if status == http.StatusTooManyRequests {
				told++
			}
		}
		if told == 0 || !s.patient && refused == 0 {
			t.Errorf("nobody was told to wait: %v", s.asked)
		}
	})
}

// A waiting poll over the rate ends no worker that knows how to wait, and holds back the one that knows nothing.
func TestSDKWorkersOutliveARateLimit(t *testing.T) {
	eachDialect(t, `{"max_req_per_sec":2,"req_burst":2}`, func(t *testing.T, c *cluster, s *sdk) {
		ctx := bound(t)
		c.push(t, items("q", "p", "t", 3))
		begin := time.Now()
		f := s.consume(ctx, "q", time.Second, 3)
		if ends := !s.patient && !s.stubborn; ends {
			if f != nil && f.status != http.StatusTooManyRequests { // it may have been lucky
				t.Errorf("ended with %v", f)
			}
		} else if f != nil || ctx.Err() != nil {
			t.Errorf("ended with %v, %v after %v", f, ctx.Err(), s.asked)
		}
		if s.stubborn {
			held := 0
			for _, status := range s.asked {
				if status == http.StatusTooManyRequests {
					held++
				}
			}
			if took := time.Since(begin); held > 0 && took < time.Duration(held)*700*time.Millisecond {
				t.Errorf("%d refusals of polls took %s: a busy loop", held, took)
			}
		}
	})
}

// A 403 is for what needs a person: it ends a call at once and a worker too. The one that polls on is held back.
func TestSDKsEndOnA403(t *testing.T) {
	eachDialect(t, "", func(t *testing.T, c *cluster, s *sdk) {
		c.push(t, items("q", "p", "t", 1))
		c.exec(t, `SELECT queengate.set_cluster_status($1::uuid, 'suspended')`, c.id)
		c.settle(t)
		if _, f := s.call(bound(t), "POST", "/api/v1/push", items("q", "p", "u", 1), false); f == nil || f.status != 403 || f.code != "cluster_suspended" || len(s.asked) != 1 {
			t.Fatalf("push: %v after %v, want one 403", f, s.asked)
		}
		s.asked = nil
		if !s.stubborn {
			if f := s.consume(bound(t), "q", time.Second, 1); f == nil || f.status != 403 || f.code != "cluster_suspended" || len(s.asked) != 1 {
				t.Errorf("worker: %v after %v, want one 403", f, s.asked)
			}
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if f := s.consume(ctx, "q", time.Second, 1); f != nil {
			t.Errorf("worker: %v, want it to poll on", f)
		}
		if n := len(s.asked); n == 0 || n > 5 {
			t.Errorf("%d polls in 3 s of refusals, want about one a second", n)
		}
	})
}

// What can never pass is a 413 that says what could: nobody repeats it.
func TestSDKsEndOnA413(t *testing.T) {
	eachDialect(t, `{"max_msgs_per_sec":5,"msgs_burst":5,"max_payload_bytes":100}`, func(t *testing.T, c *cluster, s *sdk) {
		for what, body := range map[string]any{
			"batch_exceeds_burst": items("q", "p", "t", 6),
			"payload_too_large":   m{"items": []m{{"queue": "q", "payload": fmt.Sprintf("%0200d", 1)}}},
		} {
			s.asked = nil
			_, f := s.call(bound(t), "POST", "/api/v1/push", body, false)
			if f == nil || f.status != 413 || f.code != what || f.retryAfter >= 0 || len(s.asked) != 1 {
				t.Errorf("%s: %v after %v, want one 413 without a time", what, f, s.asked)
			}
		}
		if _, f := s.call(bound(t), "POST", "/api/v1/push", items("q", "p", "t", 5), false); f != nil {
			t.Errorf("what the refusal named as possible: %v", f)
		}
	})
}

// An empty poll is polled again, for as long as it takes.
func TestSDKsPollAgainAfterA204(t *testing.T) {
	eachDialect(t, "", func(t *testing.T, c *cluster, s *sdk) {
		polled := make(chan struct{})
		send := s.send
		s.send = func(ctx context.Context, method, path string, body any) (reply, error) {
			r, err := send(ctx, method, path, body)
			if len(s.asked) == 1 { // this is the second, so one was empty
				close(polled)
			}
			if err == nil && r.status == http.StatusNoContent && (len(r.body) > 0 || r.header.Get("Content-Length") != "" || r.header.Get("Content-Type") != "") {
				t.Errorf("a 204 with %q and %v", r.body, r.header)
			}
			return r, err
		}
		ended := make(chan *failure, 1)
		go func() { ended <- s.consume(bound(t), "q", 300*time.Millisecond, 1) }()
		select {
		case <-polled:
		case f := <-ended:
			t.Fatalf("the worker ended with %v after %v", f, s.asked)
		}
		c.push(t, items("q", "p", "t", 1))
		if f := <-ended; f != nil {
			t.Errorf("the worker ended with %v", f)
		}
		if s.asked[0] != http.StatusNoContent {
			t.Errorf("it was answered %v", s.asked)
		}
	})
}

// TestSDKWorkersOutliveABrokersDeath kills a broker, and restarts another as an operator would, under the workers and
// producers of every dialect. The gateway bridges both: no worker ends, the JS one with its three tries included, no pop
// sees a 5xx, and what was pushed arrives.
func TestSDKWorkersOutliveABrokersDeath(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 64)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	const messages = 60
	speak := func(n int, d dialect) *sdk {
		return &sdk{dialect: d, send: func(ctx context.Context, method, path string, body any) (reply, error) {
			r, err := f.call(ctx, n, method, path, body)
			if method == http.MethodGet && err == nil && r.status >= 500 {
				t.Errorf("%s: a pop ended in %d %s", d.name, r.status, r.body)
			}
			return r, err
		}}
	}
	half := make(chan struct{}, len(dialects)) // each producer tells when it is half done
	goOn := make(chan struct{})                // closed when the broker is dead
	var all sync.WaitGroup
	for n, d := range dialects {
		queue := fmt.Sprint("sdk", n)
		// A lease that a dead broker took along must not outlast the test.
		if r, err := f.call(ctx, n, "POST", "/api/v1/configure", m{"queue": queue, "options": m{"leaseTime": 3}}); err != nil || r.status != http.StatusOK {
			t.Fatalf("configure: %v %d %s", err, r.status, r.body)
		}
		all.Go(func() {
			s := speak(n, d)
			for i := range messages {
				if i == messages/2 {
					half <- struct{}{}
				}
				if i == messages*3/4 {
					<-goOn // the last ones are pushed into the death and after it
				}
				// The client's own ids make a repeat harmless.
				if _, f := s.call(ctx, "POST", "/api/v1/push", items(queue, fmt.Sprint("p", i%4), fmt.Sprint("t", i), 1), false); f != nil {
					t.Errorf("%s: push %d ended with %v after %v", d.name, i, f, s.asked[max(0, len(s.asked)-5):])
				}
			}
		})
		all.Go(func() {
			s := speak(n, d)
			if f := s.consume(ctx, queue, 5*time.Second, messages); f != nil || ctx.Err() != nil {
				t.Errorf("%s: the worker ended with %v, %v", d.name, f, ctx.Err())
			}
		})
	}
	for range dialects {
		<-half
	}
	f.brokers[0].Kill()
	f.stop(f.brokers[1].Process)
	f.start(f.brokers[1])
	close(goOn)
	all.Wait()
}
