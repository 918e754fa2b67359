package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

func TestAnotherBrokerTakesARequestOfWhichNothingWasSent(t *testing.T) {
	t.Parallel()
	dead := refusing(t)
	var asked atomic.Int64
	alive := rawBroker(t, func(c net.Conn, _ *http.Request, _ string) bool {
		asked.Add(1)
		answerJSON(c, "201 Created", "[]")
		return true
	})
	w := setup(t, options{address: alive, config: func(c *Config) {
		c.Brokers = map[string][]string{"c1": {"http://" + dead, "http://" + alive}}
		c.ProbeInterval = time.Hour // the first probe aside, only attempts tell
	}})
	for range 5 {
		w.change(func(c *plans.Cluster, _ *plans.Key) { c.BrokerTenant = uuid.New() })
		if r := w.ask(w.push(aPush)); r.StatusCode != 201 {
			t.Fatalf("got %d %q", r.StatusCode, r.body)
		}
	}
	if n := asked.Load(); n != 5 {
		t.Errorf("%d requests arrived, want 5", n)
	}
}

func addressesOf(p *pool) []string {
	var out []string
	for _, b := range p.brokers() {
		out = append(out, b.address)
	}
	return out
}

func TestANameStandsForAllItsAddresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type finding struct {
			addresses []string
			err       error
		}
		var now atomic.Pointer[finding]
		now.Store(&finding{})
		ps := newPools(slog.New(slog.DiscardHandler), &Config{ProbeInterval: time.Second}, &upstreamDialer{}, newCellTokens(nil))
		ps.ask = func(*broker, probe) verdict { return verdict{answered: true, ok: true} }
		ps.askKey = func(*broker) {}
		ps.look = func(_ context.Context, host string) ([]string, error) {
			if host != "brokers.local" {
				t.Errorf("looked up %s", host)
			}
			f := now.Load()
			return f.addresses, f.err
		}
		facts := func(url string) *plans.Snapshot {
			return plans.Compose(plans.Facts{Cells: []*plans.Cell{{Slug: "c1", BaseURL: url}}})
		}
		snap := facts("http://10.9.9.9:1,dns+http://brokers.local:6632")
		p, err := ps.of(snap, "c1")
		if err != nil {
			t.Fatal(err)
		}
		check := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := addressesOf(p); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
		}
		check("before it is known", "10.9.9.9:1", "brokers.local:6632")
		fixed := p.brokers()[0]
		for _, step := range []struct {
			when  string
			found []string
			err   error
			want  []string
		}{
			{"two", []string{"10.0.0.2", "10.0.0.1"}, nil, []string{"10.0.0.1:6632", "10.0.0.2:6632", "10.9.9.9:1"}},
			{"the resolver is away", nil, errors.New("away"), []string{"10.0.0.1:6632", "10.0.0.2:6632", "10.9.9.9:1"}},
			{"it knows nothing", nil, nil, []string{"10.0.0.1:6632", "10.0.0.2:6632", "10.9.9.9:1"}},
			{"another one", []string{"10.0.0.2", "10.0.0.3"}, nil, []string{"10.0.0.2:6632", "10.0.0.3:6632", "10.9.9.9:1"}},
		} {
			changes := p.changes()
			before := addressesOf(p)
			now.Store(&finding{step.found, step.err})
			time.Sleep(resolveInterval)
			check(step.when, step.want...)
			select {
			case <-changes:
			default:
				if !slices.Equal(before, step.want) {
					t.Errorf("%s: nobody is told", step.when)
				}
			}
		}
		if p.brokers()[2] != fixed {
			t.Error("a broker that stays is another one")
		}
		ps.follow(nil, facts("dns+http://brokers.local:6632"))
		check("an address less", "10.0.0.2:6632", "10.0.0.3:6632")
		ps.close()
	})
}

func TestBrokerAddresses(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"http://a:1":                "a:1",
		"http://a:1/, http://b:2":   "a:1 b:2",
		"http://a http://[::1]:2":   "a:80 [::1]:2",
		"http://a:1,http://a:1":     "a:1",
		"dns+http://a:1,http://a:1": "dns a:1 a:1",
		"unix:/run/b.sock,http://a": "/run/b.sock a:80",
		"unix:/a.sock unix:/a.sock": "/a.sock",
		"unix:a.sock":               "",
		"unix:":                     "",
		"":                          "",
		"https://a:1":               "",
		"dns+https://a:1":           "",
		"http://":                   "",
		"http://a:1/path":           "",
		"http://u@a:1":              "",
		"a:1":                       "",
	} {
		endpoints, err := readEndpoints(list)
		var got []string
		for _, e := range endpoints {
			if e.many {
				got = append(got, "dns")
			}
			got = append(got, e.address())
		}
		if (err != nil) != (want == "") || strings.Join(got, " ") != want {
			t.Errorf("%q: got %v, %v", list, got, err)
		}
	}
}

// crew is a world with n scripted brokers. The tenant's home is brokers[0]; the others follow by address.
func crew(t *testing.T, n int, config func(*Config), broker fasthttp.RequestHandler) (*world, []*scripted) {
	t.Helper()
	var all []*scripted
	var urls []string
	for range n {
		b := newScripted(t, broker)
		all = append(all, b)
		urls = append(urls, "http://"+b.address)
	}
	w := setup(t, options{
		address: all[0].address,
		config: func(c *Config) {
			c.SlowStart = -1
			if config != nil {
				config(c)
			}
		},
		facts: func(w *world) { w.facts.Cells[0].BaseURL = strings.Join(urls, ",") },
	})
	p, err := w.gateway.pools.of(w.gateway.book.Snapshot(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all { // a first probe that begins later would undo what the answers of a test say
		until(t, "the first probes", func() bool { return b.probed[livez].Load() && b.probed[readyz].Load() })
	}
	home := p.owner(homeKey(w.cluster.BrokerTenant, 0)).address
	slices.SortFunc(all, func(a, b *scripted) int {
		if at := a.address == home; at != (b.address == home) {
			if at {
				return -1
			}
			return 1
		}
		return strings.Compare(a.address, b.address)
	})
	return w, all
}

// standingOf returns what the gateway knows of a broker.
func (w *world) standingOf(address string) *broker {
	for _, b := range w.gateway.pools.all()[0].brokers() {
		if b.address == address {
			return b
		}
	}
	w.t.Fatalf("no broker %s", address)
	return nil
}

func TestACellsBrokersFollowTheSnapshot(t *testing.T) {
	t.Parallel()
	w, brokers := crew(t, 2, nil, nil)
	only := func(b *scripted) {
		cell := *w.facts.Cells[0]
		cell.BaseURL = "http://" + b.address
		w.facts.Cells[0] = &cell
		w.publish()
	}
	for _, b := range []*scripted{brokers[1], brokers[0]} {
		only(b)
		if got := addressesOf(w.gateway.pools.all()[0]); !slices.Equal(got, []string{b.address}) {
			t.Fatalf("the pool is %v, want %s", got, b.address)
		}
		if r := w.ask(w.push(aPush)); r.StatusCode != 201 {
			t.Fatalf("got %d %q", r.StatusCode, r.body)
		}
		await(t, b.seen)
	}
	until(t, "the connections to a broker that is gone", func() bool { return brokers[1].conns.Load() == 0 })
}

func TestAHeldPollGoesToABrokerThatIsNew(t *testing.T) {
	t.Parallel()
	w, brokers := crew(t, 2, nil, func(ctx *fasthttp.RequestCtx) { ctx.SetBodyString(`{"messages":[]}`) })
	brokers[0].unready.Store(true)
	cell := *w.facts.Cells[0]
	both := cell.BaseURL
	cell.BaseURL = "http://" + brokers[0].address
	w.facts.Cells[0] = &cell
	w.publish()
	until(t, "the probes", func() bool { return !w.standingOf(brokers[0].address).able(needReady) })
	c := w.dial()
	c.send(w.head("GET", waiting))
	until(t, "the poll", func() bool { return w.slots() == 1 })
	again := cell
	again.BaseURL = both
	w.facts.Cells[0] = &again
	w.publish()
	if r := c.read(); r.StatusCode != 200 {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
	await(t, brokers[1].seen)
}

// TestABrokerThatStopsIsLeftAtItsFirstWord holds that one answer with the header is enough: no probe has to come.
func TestABrokerThatStopsIsLeftAtItsFirstWord(t *testing.T) {
	t.Parallel()
	w, brokers := crew(t, 2, func(c *Config) { c.ProbeInterval = time.Hour }, nil)
	stopping := fasthttp.RequestHandler(func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.Set(wire.HeaderDraining, "true")
		ctx.SetStatusCode(201)
		ctx.SetBodyString("[]")
	})
	brokers[0].handler.Store(&stopping)
	r := w.ask(w.push(aPush))
	if r.StatusCode != 201 || r.Header.Get(wire.HeaderDraining) != "" {
		t.Errorf("got %d %v", r.StatusCode, r.Header)
	}
	await(t, brokers[0].seen)
	for range 3 {
		w.ask(w.push(aPush))
		await(t, brokers[1].seen)
	}
	if n := len(brokers[0].seen); n != 0 {
		t.Errorf("%d more requests went to a broker that stops", n)
	}
	if c := w.standingOf(brokers[0].address).conns.take(nil); c != nil {
		t.Error("connections to a broker that stops are kept")
	}
	// Nobody else is there: pushes still go where they may be taken, and the rest is told to wait.
	brokers[1].handler.Store(&stopping)
	w.ask(w.push(aPush))
	if r := w.ask(w.push(aPush)); r.StatusCode != 201 {
		t.Errorf("a push without a broker that stays: got %d %q", r.StatusCode, r.body)
	}
	if r := w.ask(w.head("GET", "/api/v1/resources/queues")); r.StatusCode != 503 || r.outcome() != "none" {
		t.Errorf("a read without a broker that stays: got %d %q", r.StatusCode, r.body)
	}
}

// TestAPollOfABrokerThatStopsIsParkedElsewhere has no other end of the pause in sight than the broker's word.
func TestAPollOfABrokerThatStopsIsParkedElsewhere(t *testing.T) {
	t.Parallel()
	w, brokers := crew(t, 2, func(c *Config) { c.ProbeInterval, c.pollPause = time.Hour, time.Hour }, func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("application/json")
		ctx.SetBodyString(`{"messages":[1]}`)
	})
	stopping := fasthttp.RequestHandler(func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.Set(wire.HeaderDraining, "true")
		ctx.SetStatusCode(204)
	})
	brokers[0].handler.Store(&stopping)
	for name, query := range map[string]string{"leased": waiting, "auto ack": waiting + "&autoAck=true"} {
		if r := w.ask(w.head("GET", query)); r.StatusCode != 200 || r.body != `{"messages":[1]}` {
			t.Errorf("%s: got %d %q", name, r.StatusCode, r.body)
		}
	}
}

// hang makes a broker one that has requests and answers none, until the test is over.
func (b *scripted) hang(t *testing.T) {
	release := make(chan struct{})
	hanging := fasthttp.RequestHandler(func(*fasthttp.RequestCtx) { <-release })
	b.handler.Store(&hanging)
	t.Cleanup(func() { close(release) }) // before that of the broker, which waits for its handlers
}

// TestWhatIsUnderWayAtABrokerThatHangsIsCutOff has no other end in sight than the probes' verdict: fails when a request
// waits for its own.
func TestWhatIsUnderWayAtABrokerThatHangsIsCutOff(t *testing.T) {
	t.Parallel()
	unknown, elsewhere, early := end{status: 504, outcome: "unknown"}, end{status: 200, offers: 1}, end{status: 204, degraded: true}
	const waits = "&wait=true&timeout=600000"
	ack := `{"transactionId":"a","partitionId":"` + uuid.NewString() + `"}`
	for name, c := range map[string]struct {
		method, target, body string
		want                 end
	}{
		"push":                       {"POST", "/api/v1/push", aPush, unknown},
		"transaction":                {"POST", "/api/v1/transaction", `{"operations":[{"type":"push","items":[{"queue":"q","payload":1}]}]}`, unknown},
		"ack":                        {"POST", "/api/v1/ack", ack, unknown},
		"batch ack":                  {"POST", "/api/v1/ack/batch", `{"acknowledgments":[` + ack + `]}`, unknown},
		"extension":                  {"POST", "/api/v1/lease/" + uuid.NewString() + "/extend", `{"seconds":30}`, unknown},
		"configure":                  {"POST", "/api/v1/configure", `{"queue":"q","options":{}}`, unknown},
		"read":                       {"GET", "/api/v1/resources/queues", "", elsewhere},
		"fetch":                      {"POST", "/api/v1/fetch", `{"entries":[{"queue":"q","partition":"p","offset":0}]}`, elsewhere},
		"waiting fetch":              {"POST", "/api/v1/fetch", `{"entries":[{"queue":"q","partition":"p","offset":0}],"minBytes":1,"maxWaitMs":30000}`, elsewhere},
		"pop that does not wait":     {"GET", "/api/v1/pop/queue/q?batch=1", "", early},
		"waiting pop under a lease":  {"GET", "/api/v1/pop/queue/q?batch=1" + waits, "", elsewhere},
		"waiting pop under auto ack": {"GET", "/api/v1/pop/queue/q?batch=1" + waits + "&autoAck=true", "", early},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, brokers := crew(t, 2, func(c *Config) { c.UpstreamTime, c.LongPollMax = 10*time.Minute, 10*time.Minute },
				func(ctx *fasthttp.RequestCtx) { ctx.SetBodyString(`{"messages":[1]}`) })
			brokers[0].hang(t)
			head := w.head(c.method, c.target)
			if c.body != "" {
				head = w.head(c.method, c.target, "Content-Length: "+strconv.Itoa(len(c.body)))
			}
			conn := w.dial()
			conn.send(head + c.body)
			await(t, brokers[0].seen)
			brokers[0].silent.Store(true)
			r := conn.read()
			if got := (end{r.StatusCode, r.outcome(), r.Header.Get("X-Queen-Degraded") == "upstream", len(brokers[1].seen)}); got != c.want {
				t.Errorf("got %+v %q, want %+v", got, r.body, c.want)
			}
			if n := len(brokers[0].seen); n != 0 {
				t.Errorf("the broker that hangs is asked %d times more", n)
			}
			if c.want.outcome != "" {
				if n := w.counted("queengate_proxy_upstream_errors_total", "kind", "dead"); n != 1 {
					t.Errorf("%v attempts were counted as cut off, want 1", n)
				}
			}
		})
	}
}

// TestAnAnswerThatHangsIsCutOff: its head has come.
func TestAnAnswerThatHangsIsCutOff(t *testing.T) {
	t.Parallel()
	w, brokers := crew(t, 1, func(c *Config) { c.UpstreamTime = 10 * time.Minute }, nil)
	release := make(chan struct{})
	defer close(release)
	half := fasthttp.RequestHandler(func(ctx *fasthttp.RequestCtx) {
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
			<-release
		})
	})
	brokers[0].handler.Store(&half)
	c := w.dial()
	c.send(w.head("GET", "/api/v1/resources/queues"))
	await(t, brokers[0].seen)
	brokers[0].silent.Store(true)
	if r := c.read(); r.StatusCode != 504 {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
}

// TestWhatIsUnderWayAtABrokerThatIsAliveIsNotCutOff: it is slow, or its database is, and finishes what it has.
func TestWhatIsUnderWayAtABrokerThatIsAliveIsNotCutOff(t *testing.T) {
	t.Parallel()
	for word, ail := range map[string]func(*scripted){
		"live": func(b *scripted) { b.unready.Store(true) }, "out": func(b *scripted) { b.dead.Store(true) },
	} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			w, brokers := crew(t, 2, nil, func(ctx *fasthttp.RequestCtx) {
				<-release
				ctx.SetStatusCode(201)
				ctx.SetBodyString("[]")
			})
			c := w.dial()
			c.send(w.push(aPush))
			await(t, brokers[0].seen)
			ail(brokers[0])
			b := w.standingOf(brokers[0].address)
			until(t, "the probes", func() bool { return b.word() == word })
			b.seenFaults() // whatever the verdict asked for is done
			close(release)
			if r := c.read(); r.StatusCode != 201 {
				t.Errorf("got %d %q", r.StatusCode, r.body)
			}
		})
	}
}

// TestWhatWasCutOffStaysSpent: the broker may have stored it.
func TestWhatWasCutOffStaysSpent(t *testing.T) {
	t.Parallel()
	w, brokers := crew(t, 2, func(c *Config) { c.UpstreamTime = 10 * time.Minute }, nil)
	w.change(func(c *plans.Cluster, _ *plans.Key) {
		c.Limits.MessagesPerSecond, c.Limits.MessagesBurst = one(0.001), one(1.0)
	})
	brokers[0].hang(t)
	c := w.dial()
	c.send(w.push(aPush))
	await(t, brokers[0].seen)
	brokers[0].silent.Store(true)
	if r := c.read(); r.StatusCode != 504 {
		t.Fatalf("got %d %q", r.StatusCode, r.body)
	}
	if r := w.ask(w.push(aPush)); r.StatusCode != 429 {
		t.Errorf("the next push got %d %q, want 429", r.StatusCode, r.body)
	}
}

func TestAReadIsRepeatedOnceAndAWriteNever(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	w, brokers := crew(t, 3, func(c *Config) { c.ProbeInterval = time.Hour }, nil)
	dying := fasthttp.RequestHandler(func(ctx *fasthttp.RequestCtx) {
		asked.Add(1)
		ctx.Conn().Close()
	})
	for _, b := range brokers {
		b.handler.Store(&dying)
	}
	if r := w.ask(w.head("GET", "/api/v1/resources/queues")); r.StatusCode != 502 || asked.Load() != 2 {
		t.Errorf("a read: got %d after %d offers, want 502 after 2", r.StatusCode, asked.Load())
	}
	asked.Store(0)
	if r := w.ask(w.push(aPush)); r.StatusCode != 502 || r.outcome() != "unknown" || asked.Load() != 1 {
		t.Errorf("a push: got %d %q after %d offers, want 502 after 1", r.StatusCode, r.body, asked.Load())
	}
	asked.Store(0)
	emptyAnswer(t, w.ask(w.head("GET", "/api/v1/pop/queue/q")))
	if asked.Load() != 1 {
		t.Errorf("a pop is offered %d times, want once", asked.Load())
	}
}

func TestHealthShowsThePool(t *testing.T) {
	t.Parallel()
	w, brokers := crew(t, 3, nil, nil)
	brokers[1].unready.Store(true)
	brokers[2].dead.Store(true)
	until(t, "the probes", func() bool {
		return w.standingOf(brokers[1].address).word() == "live" && w.standingOf(brokers[2].address).word() == "out"
	})
	fact, err := w.gateway.Health()["brokers"](t.Context())
	if err != nil {
		t.Error(err)
	}
	for i, word := range []string{"ready", "live", "out"} {
		if want := fmt.Sprintf("%s %s", brokers[i].address, word); !strings.Contains(fact, want) {
			t.Errorf("%q has no %q", fact, want)
		}
	}
	families, err := w.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(families)
	for _, name := range []string{"queengate_proxy_broker_up", "queengate_proxy_broker_ejections_total", "queengate_proxy_broker_lost_answers_total", "queengate_proxy_repeats_total"} {
		if !strings.Contains(text, name) {
			t.Errorf("no series %s", name)
		}
	}
	brokers[0].dead.Store(true)
	brokers[1].dead.Store(true)
	until(t, "the probes", func() bool { return !w.gateway.pools.all()[0].any(needLive) })
	if _, err := w.gateway.Health()["brokers"](t.Context()); err == nil {
		t.Error("a pool without a live broker is well")
	}
}
