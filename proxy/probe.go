package proxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/wire"
)

// How long the answer to a probe may take. The first is short, since a broker that hangs must be out within 2.5 s: one
// interval and a tenth, an answer that does not come, a quarter of an interval, another one. The second covers a round
// trip to a database that is slow, which is not the broker's death.
const (
	livezTime  = 500 * time.Millisecond
	readyzTime = 2 * time.Second
)

const (
	// kickGap is the least time between two probes of a broker that faults call for, as a part of the interval.
	kickGap = 20
	// keyInterval lies between two signed questions to a broker that believes the gateway's key.
	keyInterval = 10 * time.Second
)

// prober asks a broker a probe.
type prober func(b *broker, which probe) verdict

// watch asks one broker one question until ctx ends: once per interval, give or take a tenth, four times as often while
// the answers disagree with what was known or are bad, and at once after a fault.
func (ps *pools) watch(ctx context.Context, b *broker, which probe) {
	var last time.Time
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.kicks[which]:
			if early := ps.interval/kickGap - time.Since(last); early > 0 {
				pause.Reset(early)
				continue
			}
		case <-pause.C:
		}
		seen := b.seenFaults()
		v := ps.ask(b, which)
		last = time.Now()
		next := ps.interval
		if !b.probed(which, v, seen, last) {
			next /= 4
		}
		pause.Reset(next*9/10 + rand.N(next/5+1)) // gateways must not ask in step
	}
}

// watchKey asks a ready broker, now and then, something that it answers only to a gateway whose key it believes: for
// the names of nobody. Without it a gateway with a wrong key would look well until its first client comes.
func (ps *pools) watchKey(ctx context.Context, b *broker) {
	tick := time.NewTicker(ps.interval)
	defer tick.Stop()
	var asked time.Time
	for {
		if now := time.Now(); b.able(needReady) && (b.refuses.Load() || now.Sub(asked) >= keyInterval) {
			asked = now
			ps.askKey(b)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// askSigned asks a broker for the names of nobody.
func (ps *pools) askSigned(b *broker) {
	now := time.Now()
	self := &b.pool.self
	tok, err := ps.tokens.of(self, wire.AccessInternal, subjectGateway, false, now)
	if err != nil {
		ps.log.Error("the gateway cannot sign", "cell", b.pool.cell, "err", err)
		return
	}
	req := fmt.Appendf(nil, "GET /internal/v1/tenants/%s/names?limit=2 HTTP/1.1\r\nHost: %s\r\n%s%s: %s\r\n\r\n",
		self.BrokerTenant, b.host, tok.lines, wire.HeaderRequestID, httpkit.NewRequestID())
	a, _, err := ps.dialer.doOn(&b.asking, b, nil, req, nil, now.Add(readyzTime))
	if err != nil {
		return // the plain probes tell what is wrong
	}
	b.answered(a)
	a.discard()
}

// asks is the prober of real brokers.
func (ps *pools) asks(b *broker, which probe) verdict {
	path := "/livez"
	if which == readyz {
		path = "/readyz"
	}
	req := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: broker\r\n\r\n", path)
	a, _, err := ps.dialer.doOn(&b.asking, b, nil, req, nil, time.Now().Add(ps.limits[which]))
	if err != nil {
		return verdict{silent: unreachable(err) || cutOff(err)}
	}
	v := verdict{answered: true, ok: a.status() >= 200 && a.status() < 300, draining: a.draining()}
	a.discard()
	return v
}
