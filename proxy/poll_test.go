package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/plans"
)

func one[T any](v T) *T { return &v }

// waiting is a poll whose own end lies far beyond patience: a wait of the test's that ends was ended by what the test did.
const waiting = "/api/v1/pop/queue/q?wait=true&timeout=80000"

// parking is a raw broker that parks every pop until its connection ends, and says so.
func parking(t *testing.T) (address string, parked, ended chan string) {
	parked, ended = make(chan string, 16), make(chan string, 16)
	address = rawBroker(t, func(c net.Conn, r *http.Request, _ string) bool {
		parked <- r.URL.String()
		var b [1]byte
		_, err := c.Read(b[:])
		ended <- fmt.Sprint(err)
		return false
	})
	return address, parked, ended
}

func TestAClientThatHangsUpGivesItsPollUp(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain", "tls"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, parked, ended := parking(t)
			w := setup(t, options{address: address, facts: func(w *world) { w.cluster.Limits.MaxParkedPops = one(int64(1)) }})
			dial := w.dial
			if name == "tls" {
				dial = w.dialTLS
			}
			c := dial()
			c.send(w.head("GET", waiting))
			await(t, parked)
			if r := w.ask(w.head("GET", waiting)); r.StatusCode != 429 {
				t.Fatalf("a second poll got %d %q", r.StatusCode, r.body)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			await(t, ended)
			until(t, "the slot", func() bool { return w.slots() == 0 })
			c = dial()
			c.send(w.head("GET", waiting))
			await(t, parked)
		})
	}
}

func TestARequestPipelinedDuringAPollIsServedAfterIt(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	parked := make(chan struct{}, 1)
	w := setup(t, options{address: rawBroker(t, func(c net.Conn, r *http.Request, _ string) bool {
		if r.Method == "GET" {
			parked <- struct{}{}
			<-release
			answerJSON(c, "200 OK", `{"messages":[]}`)
		} else {
			answerJSON(c, "201 Created", "[]")
		}
		return true
	})})
	for name, dial := range map[string]func() *wireConn{"plain": w.dial, "tls": w.dialTLS} {
		t.Run(name, func(t *testing.T) {
			c := dial()
			c.send(w.head("GET", waiting))
			await(t, parked)
			const many = 100 // more than is held back
			c.send(strings.Repeat(w.push(aPush), many))
			release <- struct{}{}
			for i := range 1 + many {
				want := 201
				if i == 0 {
					want = 200
				}
				if r := c.read(); r.StatusCode != want {
					t.Fatalf("answer %d: got %d %q, want %d", i, r.StatusCode, r.body, want)
				}
			}
		})
	}
}

// TestAHangUpBehindFurtherBytesGivesThePollUp fails when the look-out ends with the first byte that comes.
func TestAHangUpBehindFurtherBytesGivesThePollUp(t *testing.T) {
	t.Parallel()
	address, parked, ended := parking(t)
	w := setup(t, options{address: address})
	for name, dial := range map[string]func() *wireConn{"plain": w.dial, "tls": w.dialTLS} {
		for bytes, behind := range map[string]string{
			"one byte": "G", "a request": w.push(aPush), "more than is held back": strings.Repeat(w.push(aPush), 300),
		} {
			t.Run(name+" "+bytes, func(t *testing.T) {
				c := dial()
				c.send(w.head("GET", waiting))
				await(t, parked)
				c.send(behind)
				if err := c.Close(); err != nil {
					t.Fatal(err)
				}
				await(t, ended)
				until(t, "the slot", func() bool { return w.slots() == 0 })
			})
		}
	}
}

// W38: published clients give a poll up five seconds after the wait that they asked for, and take the next one for lost. By
// then a broker that is late has been answered for, a second of network included.
func TestAPollIsAnsweredBeforeItsClientGivesUp(t *testing.T) {
	t.Parallel()
	const clientsWait = 5 * time.Second
	c := Config{}.withDefaults()
	if c.LongPollGrace > clientsWait-time.Second {
		t.Errorf("a broker may be %v late, and clients wait for %v", c.LongPollGrace, clientsWait)
	}
}

func TestAPollEndsIn204WhenItsBrokerIsLate(t *testing.T) {
	t.Parallel()
	address, parked, ended := parking(t)
	w := setup(t, options{address: address, config: func(c *Config) { c.LongPollGrace = 50 * time.Millisecond }})
	c := w.dial()
	begin := time.Now()
	c.send(w.head("GET", "/api/v1/pop/queue/q?wait=true&timeout=1000"))
	target := await(t, parked)
	if !strings.Contains(target, "wait=true") || !strings.Contains(target, "timeout=") {
		t.Errorf("the broker was asked for %s", target)
	}
	r := c.read()
	if d := time.Since(begin); d < time.Second {
		t.Errorf("answered after %v", d)
	}
	emptyAnswer(t, r)
	if r.Header.Get("X-Queen-Degraded") != "upstream" {
		t.Errorf("got %v", r.Header)
	}
	await(t, ended)
	c.send(w.head("GET", "/api/v1/pop/queue/q?wait=true&timeout=1"))
	emptyAnswer(t, c.read())
}

// emptyAnswer checks the shape strict clients need.
func emptyAnswer(t *testing.T, r reply) {
	t.Helper()
	if r.StatusCode != 204 || r.body != "" {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
	for _, name := range []string{"Content-Length", "Content-Type", "Transfer-Encoding"} {
		if v, ok := r.Header[name]; ok {
			t.Errorf("got %s: %v", name, v)
		}
	}
	if r.ContentLength > 0 || len(r.TransferEncoding) > 0 {
		t.Errorf("got length %d encoding %v", r.ContentLength, r.TransferEncoding)
	}
}

func TestAnEmptyPopHasNoBody(t *testing.T) {
	t.Parallel()
	w := setup(t, options{broker: func(ctx *fasthttp.RequestCtx) { ctx.SetStatusCode(204) }})
	c := w.dial()
	for range 3 {
		c.send(w.head("GET", "/api/v1/pop/queue/q"))
		emptyAnswer(t, c.read())
	}
}

// TestAShortPollIsNotEndedByAnEarlyEmptyAnswer has a broker that drains: it answers every poll at once.
func TestAShortPollIsNotEndedByAnEarlyEmptyAnswer(t *testing.T) {
	t.Parallel()
	w := setup(t, options{broker: func(ctx *fasthttp.RequestCtx) { ctx.SetStatusCode(204) }})
	for _, ms := range []int{50, 200, 480} {
		begin := time.Now()
		emptyAnswer(t, w.ask(w.head("GET", fmt.Sprintf("/api/v1/pop/queue/q?wait=true&timeout=%d", ms))))
		if d, least := time.Since(begin), time.Duration(ms)*time.Millisecond/2; d < least {
			t.Errorf("a poll of %d ms was answered after %v, want at least %v", ms, d, least)
		}
	}
}

func TestPollsAreHeldWhileNoBrokerIsReady(t *testing.T) {
	t.Parallel()
	w := setup(t, options{broker: func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("application/json")
		ctx.SetBodyString(`{"messages":[]}`)
	}})
	w.ask(w.head("GET", "/api/v1/pop/queue/q")) // the pool exists now
	w.broker.unready.Store(true)
	p := w.gateway.pools.all()[0]
	until(t, "the probes", func() bool { return !p.any(needReady) })

	t.Run("to the end", func(t *testing.T) {
		begin := time.Now()
		r := w.ask(w.head("GET", "/api/v1/pop/queue/q?wait=true&timeout=200"))
		emptyAnswer(t, r)
		if d := time.Since(begin); d < 200*time.Millisecond || r.Header.Get("X-Queen-Degraded") == "" {
			t.Errorf("after %v: %v", d, r.Header)
		}
	})
	t.Run("acks are refused, pushes go on", func(t *testing.T) {
		ack := `{"transactionId":"a","partitionId":"b"}`
		r := w.ask(w.head("POST", "/api/v1/ack", "Content-Length: "+strconv.Itoa(len(ack))) + ack)
		if r.StatusCode != 503 || r.code() != "broker_unavailable" || r.outcome() != "none" || r.Header.Get("Retry-After") == "" {
			t.Errorf("ack: got %d %q %v", r.StatusCode, r.body, r.Header)
		}
		if r := w.ask(w.push(aPush)); r.StatusCode != 200 {
			t.Errorf("push: got %d %q", r.StatusCode, r.body)
		}
	})
	t.Run("until one is", func(t *testing.T) {
		c := w.dial()
		c.send(w.head("GET", waiting))
		until(t, "the poll", func() bool { return w.slots() == 1 })
		w.broker.unready.Store(false)
		if r := c.read(); r.StatusCode != 200 {
			t.Errorf("got %d %q", r.StatusCode, r.body)
		}
	})
}

func TestAPollIsHeldWhileBrokersRefuseTheGatewaysKey(t *testing.T) {
	t.Parallel()
	w := setup(t, options{config: func(c *Config) { c.ProbeInterval = time.Hour }, broker: func(ctx *fasthttp.RequestCtx) {
		ctx.SetBodyString(`{"messages":[]}`)
	}})
	w.ask(w.push(aPush))
	w.broker.wary.Store(true)
	c := w.dial()
	c.send(w.head("GET", waiting))
	b := w.standingOf(w.broker.address)
	until(t, "the refusal", b.refuses.Load)
	w.broker.wary.Store(false)
	if r := c.read(); r.StatusCode != 200 {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
}

func TestAPollGoesOnWhereABrokerSaysThatNothingHappened(t *testing.T) {
	t.Parallel()
	var asked int
	w := setup(t, options{address: rawBroker(t, func(c net.Conn, r *http.Request, _ string) bool {
		asked++
		switch asked {
		case 1:
			answerJSON(c, "503 Service Unavailable", `{"error":"x","code":"database_unavailable","outcome":"none"}`)
		case 2: // a broker that stops ends its polls early
			io.WriteString(c, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
			return false
		default:
			answerJSON(c, "200 OK", "{}")
		}
		return true
	})})
	if r := w.ask(w.head("GET", waiting)); r.StatusCode != 200 {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
}

func TestAPollIsNotRepeatedWhenItMayHaveLeased(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"a lost answer":     "",
		"an unknown 500":    "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 23\r\n\r\n{\"outcome\":\"unknown\"}  ",
		"half of a head":    "HTTP/1.1 200 OK\r\nContent-",
		"a broken off body": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := make(chan string, 8)
			w := setup(t, options{address: rawBroker(t, func(c net.Conn, r *http.Request, _ string) bool {
				asked <- r.URL.Path
				io.WriteString(c, answer)
				return false
			})})
			r := w.ask(w.head("GET", "/api/v1/pop/queue/q?wait=true&timeout=1500&autoAck=true"))
			emptyAnswer(t, r)
			if len(asked) != 1 {
				t.Errorf("asked %d times", len(asked))
			}
		})
	}
}

func TestARefusedPollIsAnsweredLater(t *testing.T) {
	t.Parallel()
	const hold = 200 * time.Millisecond
	address, parked, _ := parking(t)
	w := setup(t, options{
		address: address,
		config:  func(c *Config) { c.RefusalHold = hold },
		facts:   func(w *world) { w.cluster.Limits.MaxParkedPops = one(int64(1)) },
	})
	c := w.dial()
	c.send(w.head("GET", waiting))
	await(t, parked)

	begin := time.Now()
	if r := w.ask(w.head("GET", waiting)); r.StatusCode != 429 || time.Since(begin) < hold || r.Header.Get("Retry-After") == "" {
		t.Errorf("got %d after %v, %v", r.StatusCode, time.Since(begin), r.Header)
	}
	if n := w.slots(); n != 1 {
		t.Errorf("%v slots are taken, want 1", n)
	}
	w.change(func(c *plans.Cluster, _ *plans.Key) { c.Status = plans.Suspended })
	begin = time.Now()
	if r := w.ask(w.head("GET", waiting)); r.StatusCode != 403 || time.Since(begin) < hold {
		t.Errorf("a suspended cluster's poll: got %d after %v", r.StatusCode, time.Since(begin))
	}
}

// TestWhatIsNotHeldBackIsRefusedAtOnce has refusals that are held for longer than the test waits for any answer.
func TestWhatIsNotHeldBackIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	address, parked, _ := parking(t)
	w := setup(t, options{
		address: address,
		config:  func(c *Config) { c.RefusalHold, c.MaxHeldRefusals = time.Hour, 1 },
		facts:   func(w *world) { w.cluster.Limits.MaxParkedPops = one(int64(1)) },
	})
	c := w.dial()
	c.send(w.head("GET", waiting))
	await(t, parked)

	held := w.dial()
	held.send(w.head("GET", waiting))
	until(t, "the held poll", func() bool { return w.gateway.heldRefusals.Load() == 1 })
	if r := w.ask(w.head("GET", waiting)); r.StatusCode != 429 {
		t.Errorf("beyond the bound: got %d %q", r.StatusCode, r.body)
	}
	if n := w.gateway.heldRefusals.Load(); n != 1 {
		t.Errorf("%d refusals are held, want 1", n)
	}
	held.Close()
	until(t, "its end", func() bool { return w.gateway.heldRefusals.Load() == 0 })

	w.change(func(c *plans.Cluster, _ *plans.Key) { c.Status = plans.Suspended })
	if r := w.ask(w.head("GET", "/api/v1/pop/queue/q")); r.StatusCode != 403 {
		t.Errorf("a poll that does not wait: got %d %q", r.StatusCode, r.body)
	}
}

func TestAHeldRefusalTellsWhatIsLeftOfTheWait(t *testing.T) {
	t.Parallel()
	w := setup(t, options{
		config: func(c *Config) { c.RefusalHold = 1100 * time.Millisecond },
		facts: func(w *world) {
			w.cluster.Limits.RequestsPerSecond, w.cluster.Limits.RequestsBurst = one(0.02), one(1.0)
		},
	})
	w.ask(w.head("GET", "/api/v1/resources/queues"))
	r := w.ask(w.head("GET", waiting)) // to come in 50 s at the most, less the hold
	var e struct {
		RetryAfterMs int64 `json:"retry_after_ms"`
		Limit        struct {
			ResetS float64 `json:"reset_s"`
		}
	}
	if err := json.Unmarshal([]byte(r.body), &e); err != nil {
		t.Fatal(err)
	}
	after, _ := strconv.Atoi(r.Header.Get("Retry-After"))
	reset, _ := strconv.ParseFloat(r.Header.Get("X-Queen-Limit-Reset"), 64)
	if r.StatusCode != 429 || after < 1 || after > 49 || e.RetryAfterMs < 1 || e.RetryAfterMs > 48_900 || e.Limit.ResetS > 48.9 || reset > 49 {
		t.Errorf("got %d %q %v", r.StatusCode, r.body, r.Header)
	}
}

func TestDrainingEndsPollsAtOnce(t *testing.T) {
	t.Parallel()
	address, parked, ended := parking(t)
	w := setup(t, options{address: address})
	c := w.dial()
	c.send(w.head("GET", waiting))
	await(t, parked)
	w.stop()
	r := c.read()
	emptyAnswer(t, r)
	if !r.Close {
		t.Error("the connection is kept")
	}
	await(t, ended)
	if err := await(t, w.stopped); err != nil {
		t.Errorf("run: %v", err)
	}
	w.stopped <- nil
}

func TestAPollThatNamesNoWaitWaitsAsConfigured(t *testing.T) {
	t.Parallel()
	address, parked, _ := parking(t)
	w := setup(t, options{address: address, config: func(c *Config) { c.PopTimeout = 7 * time.Second }})
	c := w.dial()
	c.send(w.head("GET", "/api/v1/pop/queue/q?wait=true"))
	asked, err := url.Parse(<-parked)
	if err != nil {
		t.Fatal(err)
	}
	if ms, err := strconv.Atoi(asked.Query().Get("timeout")); err != nil || ms < 1 || ms > 7000 {
		t.Errorf("the broker is asked to wait %q ms, want at most 7000", asked.Query().Get("timeout"))
	}
}

// TestAPopNeverEndsInA5xxForItsCell: published consumers end for good after a few of them.
func TestAPopNeverEndsInA5xxForItsCell(t *testing.T) {
	t.Parallel()
	says := func(status int, body string) func(*world) {
		return func(w *world) {
			h := fasthttp.RequestHandler(func(ctx *fasthttp.RequestCtx) {
				ctx.SetStatusCode(status)
				ctx.SetContentType("application/json")
				ctx.SetBodyString(body)
			})
			w.broker.handler.Store(&h)
		}
	}
	probed := func(w *world, able func(p *pool) bool) {
		until(t, "the probes", func() bool { return !able(w.gateway.pools.all()[0]) })
	}
	for name, c := range map[string]struct {
		ail  func(w *world)
		code string
	}{
		"the database is away": {func(w *world) {
			w.broker.unready.Store(true)
			probed(w, func(p *pool) bool { return p.any(needReady) })
		}, "broker_unavailable"},
		"no broker lives": {func(w *world) {
			w.broker.silent.Store(true)
			probed(w, func(p *pool) bool { return p.any(needLive) })
		}, "broker_unavailable"},
		"the cell is unknown": {func(w *world) {
			w.facts.Cells = nil
			w.publish()
		}, "broker_unavailable"},
		"the database went away a moment ago": {says(503, `{"error":"x","code":"database_unavailable","outcome":"none"}`), "database_unavailable"},
		"the broker drains":                   {says(503, `{"error":"x","code":"draining","outcome":"none"}`), "draining"},
		"an internal error":                   {says(500, `{"error":"x","code":"internal","outcome":"unknown"}`), "internal"},
		"a 5xx of a stranger":                 {says(502, `<html>`), "broker_502"},
		"the gateway's key is refused":        {func(w *world) { w.broker.wary.Store(true) }, "bad_gateway"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, options{})
			w.ask(w.push(aPush)) // the pool exists now
			c.ail(w)
			var pops float64
			for _, query := range []string{"", "?autoAck=true", "?consumerGroup=g&conflation=true", "?wait=true&timeout=100", "?wait=true&timeout=100&autoAck=true"} {
				r := w.ask(w.head("GET", "/api/v1/pop/queue/q"+query))
				if r.Header.Get("X-Queen-Degraded") != "upstream" {
					t.Errorf("%s: got %d %q %v, which looks like an empty queue", query, r.StatusCode, r.body, r.Header)
				}
				if pops++; !strings.Contains(query, "conflation") {
					emptyAnswer(t, r)
				} else if r.StatusCode != 200 || !strings.Contains(r.body, `"conflation":true`) {
					t.Errorf("%s: got %d %q, want the word echoed", query, r.StatusCode, r.body)
				}
			}
			if n := w.counted("queengate_proxy_requests_total", "code", c.code); n != pops {
				t.Errorf("%v pops were counted as %s, want %v", n, c.code, pops)
			}
		})
	}
}

// TestPopsOfACellThatIsAwaySpendTheirRequests: nothing else slows down a client that comes back at once.
func TestPopsOfACellThatIsAwaySpendTheirRequests(t *testing.T) {
	t.Parallel()
	for name, ail := range map[string]func(w *world){
		"the cell is unknown": func(w *world) { w.facts.Cells = nil },
		"a broker's 503": func(w *world) {
			h := fasthttp.RequestHandler(func(ctx *fasthttp.RequestCtx) {
				ctx.SetStatusCode(503)
				ctx.SetBodyString(`{"error":"x","code":"database_unavailable","outcome":"none"}`)
			})
			w.broker.handler.Store(&h)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, options{facts: func(w *world) {
				w.cluster.Limits.RequestsPerSecond, w.cluster.Limits.RequestsBurst = one(0.001), one(2.0)
				ail(w)
			}})
			for i, want := range []int{204, 204, 429} {
				if r := w.ask(w.head("GET", "/api/v1/pop/queue/q")); r.StatusCode != want {
					t.Errorf("pop %d: got %d %q, want %d", i, r.StatusCode, r.body, want)
				}
			}
		})
	}
}
