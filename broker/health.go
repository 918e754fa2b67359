package broker

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/wire"
)

// pinger asks the database whether it is there. Health routes are open to everybody, so callers share a round trip:
// one that comes while another is under way takes its answer, and an answer serves for a while.
type pinger struct {
	ping func(context.Context) error
	// onLost is called after each question without an answer and says whether the database stands still; nil: nothing.
	onLost func(asked time.Time) (still bool)

	heard atomic.Int64 // when the change feed or the drain last had an answer, Unix nanoseconds
	lost  atomic.Bool  // the last question had no answer, and nothing has been heard since
	still atomic.Bool  // and the database stands still

	mu    sync.Mutex // guards below; held during a round trip, so callers wait for it
	asked time.Time
	err   error
}

const (
	pingShared = 250 * time.Millisecond
	// readyShared is for the probes that every gateway and load balancer sends all the time. It is longer than the change
	// feed's second, so that while there is a feed they cost the database nothing, and without one a question a second.
	readyShared = 1500 * time.Millisecond
	pingLimit   = 2 * time.Second
)

// check asks unless there was an answer within shared.
func (p *pinger) check(shared time.Duration) error {
	if time.Since(time.Unix(0, p.heard.Load())) < shared {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.asked) < shared {
		return p.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), pingLimit)
	defer cancel()
	asked := time.Now()
	p.err = p.ping(ctx)
	p.asked = time.Now()
	p.lost.Store(p.err != nil)
	if p.err != nil && p.onLost != nil {
		p.still.Store(p.onLost(asked))
	} else {
		p.still.Store(false)
	}
	return p.err
}

// answered notes that the database has answered something else.
func (p *pinger) answered() {
	p.heard.Store(time.Now().UnixNano())
	p.lost.Store(false)
	p.still.Store(false)
}

// errUnanswered refuses what the database is not asked, since it does not answer.
var errUnanswered = &wire.Error{Code: wire.DatabaseUnavailable, RetryAfter: time.Second, Outcome: wire.OutcomeNone}

// silent is how long the database must have said nothing for what is in flight to be given up: less than the limit of the
// question that had no answer, whose clock is another.
const silent = pingLimit * 3 / 4

// lost is called when the database did not answer a question put to it at asked. What no statement has taken goes to the
// spool; what is in flight is ended if the database stands still: it would be answered when that goes on, and not before.
// A database that is slow, or that refuses, keeps what it has.
func (b *Broker) lost(asked time.Time) (still bool) {
	b.giveBack()
	if b.deps.Cut == nil {
		return false
	}
	n, still := b.deps.Cut(asked, silent)
	if n > 0 {
		b.log.Warn("the database does not answer: what waited for it is given up", "sessions", n)
	}
	return still
}

// unanswered returns an error while the database stands still: nobody else waits then until it goes on.
func (b *Broker) unanswered() error {
	if b.pinger.still.Load() {
		return errUnanswered
	}
	return nil
}

// health answers 200 or 503 after a round trip to the database.
func (b *Broker) health(x *exchange) error {
	status, word, database := fasthttp.StatusOK, "healthy", "connected"
	if err := b.pinger.check(pingShared); err != nil {
		status, word, database = fasthttp.StatusServiceUnavailable, "unhealthy", "disconnected"
	}
	x.reply(status, func(dst []byte) []byte {
		dst = append(dst, `{"status":"`+word+`","database":"`+database+`","engine":"postgres","version":`...)
		return append(wire.AppendString(dst, b.cfg.Version), '}')
	})
	return nil
}

// Serving is the broker's part in the readiness of its process: it fails while the broker drains. Safe for concurrent
// use; it asks nobody.
func (b *Broker) Serving(context.Context) (fact string, err error) {
	if b.draining.Load() {
		return "", errors.New("draining")
	}
	return "serving", nil
}

// livez answers 200 as long as the process serves.
func (b *Broker) livez(x *exchange) error {
	x.reply(fasthttp.StatusOK, func(dst []byte) []byte { return append(dst, `{"status":"alive"}`...) })
	return nil
}

// readyz answers 200 when the database answers, or did a moment ago, and the broker is not draining.
func (b *Broker) readyz(x *exchange) error {
	draining := b.draining.Load()
	ready := !draining && b.pinger.check(readyShared) == nil
	status := fasthttp.StatusOK
	if !ready {
		status = fasthttp.StatusServiceUnavailable
	}
	x.reply(status, func(dst []byte) []byte {
		dst = append(dst, `{"ready":`...)
		dst = strconv.AppendBool(dst, ready)
		dst = append(dst, `,"draining":`...)
		return append(strconv.AppendBool(dst, draining), '}')
	})
	return nil
}
