package broker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

// TestAParkedPollKeepsNoGoroutine counts them: not one per poll, whether it is its first request or a later one.
func TestAParkedPollKeepsNoGoroutine(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("polls are detached on Linux only")
	}
	w := setup(t, nil)
	const crowd = 500
	idle := runtime.NumGoroutine()
	for i := range crowd {
		c := w.dialPoll(fmt.Sprintf("q%d?wait=true&timeout=60000", i%10))
		defer c.Close()
	}
	w.until("parked", func() bool { return w.b.park.Waiting() == crowd })
	w.until("without goroutines", func() bool { return runtime.NumGoroutine() < idle+crowd/10 })
	if n := w.b.metrics.inFlight.Load(); n != crowd {
		t.Errorf("%d requests in flight, want the %d that wait", n, crowd)
	}
}

// TestDetachedPollsAreServedOnceEach pushes one message at a time to a crowd of polls on connections that live on; each
// message arrives at one of them, and every answer is one of a poll.
func TestDetachedPollsAreServedOnceEach(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	const crowd, messages = 8, 200
	var mu sync.Mutex
	seen := map[string]int{}
	var wg sync.WaitGroup
	for range crowd {
		wg.Go(func() {
			c, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			br := bufio.NewReader(c)
			for {
				if _, err := io.WriteString(c, "GET /api/v1/pop/queue/q?wait=true&timeout=30000&autoAck=true HTTP/1.1\r\nHost: q\r\n\r\n"); err != nil {
					t.Error(err)
					return
				}
				r, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Error(err)
					return
				}
				text, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
					return
				}
				if r.StatusCode == 204 {
					if !r.Close {
						t.Errorf("an empty answer before the drain: %v", r.Header)
					}
					return
				}
				mu.Lock()
				for _, m := range decode[popped](t, answer{status: r.StatusCode, body: string(text)}).Messages {
					seen[m.TransactionID]++
				}
				mu.Unlock()
			}
		})
	}
	w.until("parked", func() bool { return w.b.park.Waiting() == crowd })
	for i := range messages {
		w.one("q", fmt.Sprint(i))
	}
	w.until("all delivered", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) == messages
	})
	w.until("all parked again", func() bool { return w.b.park.Waiting() == crowd })
	w.stop() // which ends them in 204
	wg.Wait()
	for id, n := range seen {
		if n != 1 {
			t.Errorf("message %s was delivered %d times", id, n)
		}
	}
	if n := w.b.detached.Load() + w.b.metrics.inFlight.Load(); n != 0 {
		t.Errorf("%d polls are still counted", n)
	}
}

func TestRequestsBehindAWaitingPopAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	get := func(path, id string) string {
		return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: q\r\nX-Queen-Request-Id: %s\r\n\r\n", path, id)
	}
	pop := "/api/v1/pop/queue/q?wait=true&timeout=30000&autoAck=true"
	if _, err := io.WriteString(c, get(pop, "first")+get("/livez", "second")+get(pop, "third")); err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(c)
	for _, want := range []struct{ id, push string }{{"first", "a"}, {"second", ""}, {"third", "b"}} {
		if want.push != "" {
			w.until("parked", func() bool { return w.b.park.Waiting() == 1 })
			w.one("q", want.push)
		}
		r, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != 200 || r.Header.Get("X-Queen-Request-Id") != want.id {
			t.Errorf("answer %s: %d, id %q", want.id, r.StatusCode, r.Header.Get("X-Queen-Request-Id"))
		}
	}
}

// counter counts statements.
type counter struct {
	mu  sync.Mutex
	sql []string
}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sql = append(c.sql, d.SQL)
	return ctx
}

func (*counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *counter) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	sql := c.sql
	c.sql = nil
	return sql
}

// TestWhatAnIdleBrokerAsksDoesNotGrow has a broker without its loops meet 1,000 queues, parks 1,000 polls, and then takes
// the turns of the loops by hand. The sum per second is that of the shortest rhythms: it must stay below two.
func TestWhatAnIdleBrokerAsksDoesNotGrow(t *testing.T) {
	t.Parallel()
	cfg := pgtest.New(t, migrations.Broker).Config().Copy()
	sql := &counter{}
	cfg.ConnConfig.Tracer = sql
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w := still(t, pool)
	const queues = 1000
	body := `{"items":[`
	for i := range queues {
		if i > 0 {
			body += ","
		}
		body += fmt.Sprintf(`{"queue":"q%d","payload":1}`, i)
	}
	w.fuse()
	w.push(body + `]}`)
	for i := range queues {
		c := w.dialPoll(fmt.Sprintf("q%d?wait=true&timeout=300000&consumerGroup=g", i)) // from now on: it waits
		t.Cleanup(func() { c.Close() })
	}
	w.until("parked", func() bool { return w.b.park.Waiting() == queues })

	ctx, r := t.Context(), &rounds{heard: time.Now()}
	w.b.feedRound(ctx, r, time.Now()) // folds the ledger and sweeps for once
	if err := w.b.janitor.Turn(ctx); err != nil {
		t.Fatal(err)
	}
	sql.take()
	perSecond := 0.0
	for _, loop := range []struct {
		name  string
		every time.Duration
		turn  func()
	}{
		{"feed", feedEvery, func() { w.b.feedRound(ctx, r, time.Now()) }},
		{"readiness, while the feed runs", time.Second, func() { w.do("GET", "/readyz", "").want(t, 200) }},
		{"janitor, as it is set by default", 5 * time.Second, func() {
			if err := w.b.janitor.Turn(ctx); err != nil {
				t.Error(err)
			}
		}},
		{"redrives", redriveLook, func() {
			if _, err := w.b.db.ClaimRedrive(ctx, "x"); err != nil {
				t.Error(err)
			}
		}},
		{"history", historyEvery, func() { w.b.flushHistory(ctx, time.Now()) }},
	} {
		const turns = 5
		for range turns {
			loop.turn()
		}
		asked := sql.take()
		if len(asked) > turns {
			t.Errorf("%s: %d statements in %d turns: %q", loop.name, len(asked), turns, asked)
		}
		perSecond += float64(len(asked)) / turns / loop.every.Seconds()
	}
	if perSecond > 2 {
		t.Errorf("%.1f statements per second, want at most 2", perSecond)
	}
}

// still is a broker that serves and whose loops do not run.
func still(t *testing.T, pool *pgxpool.Pool) *world {
	t.Helper()
	w := assemble(t, pool, Deps{Store: store.New(pool)}, nil)
	served := make(chan error, 1)
	go func() { served <- w.b.server.Serve(w.listener) }()
	t.Cleanup(func() {
		w.client.CloseIdleConnections()
		if err := errors.Join(w.b.drain(context.Background(), []net.Listener{w.listener}), <-served); err != nil {
			t.Errorf("stop: %v", err)
		}
		w.b.park.Close()
	})
	return w
}

// fuse lets a broker whose loops do not run take pushes.
func (w *world) fuse() {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.b.fuser.Run(ctx) }()
	w.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			w.t.Errorf("fuser: %v", err)
		}
	})
}
