package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// refusals is what a tenant costs that does not listen: requests that are answered 429 by their head.
func (w *world) refusals() group {
	const cost = "refusal, CPU µs: "
	of := func(s sample) float64 { return us(s.ours) }
	to := func(t func() *target, body int) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) { return t().refused(ctx, body, d) }
	}
	plain := func() *target { return w.neighbour.gateway }
	secure := func() *target { return w.neighbour.gatewayTLS }
	return group{
		name: "refuse", prepare: w.exhaust,
		cases: []kase{
			{"pop", "pops beyond the rate", to(plain, 0)},
			{"pop-tls", "the same over TLS", to(secure, 0)},
			{"push", "pushes of 1 KB beyond the rate", to(plain, 1<<10)},
			{"push-tls", "the same over TLS", to(secure, 1<<10)},
			{"announced", "pushes of 1 MB, of which not a byte is sent, on a connection each", to(plain, 1<<20)},
		},
		bounds: []bound{
			{cost + "pop", "pop", of, 50, 50},
			{cost + "pop over TLS", "pop-tls", of, 50, 50},
			{cost + "push of 1 KB", "push", of, 50, 50},
			{cost + "push of 1 KB over TLS", "push-tls", of, 50, 50},
			{cost + "body unread, with accept and close of its connection", "announced", of, 50, 50},
		},
	}
}

const refusedConns = 16

// exhaust leaves the second tenant without a request for longer than the bench takes.
func (w *world) exhaust(ctx context.Context) error {
	if err := w.moveIn(ctx); err != nil {
		return err
	}
	_, err := w.db.Exec(ctx, `SELECT queengate.set_limit_override(id, '{"max_req_per_sec":0.00001,"req_burst":1}') FROM queengate.clusters WHERE slug = 'noisy'`)
	if err != nil {
		return err
	}
	c, err := w.neighbour.gateway.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	for refused := 0; refused < 10; { // the gateway hears of it within two seconds
		status, _, err := c.do(w.neighbour.gateway.get("/api/v1/pop/queue/refused"))
		if err != nil {
			return err
		}
		if refused++; status != 429 {
			refused = 0
		}
		if err := settle(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// refused sends requests that are refused, as fast as they are. A body that is larger than a refusal waits for is
// announced only, and costs the connection.
func (t *target) refused(ctx context.Context, body int, d time.Duration) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	const waited = 64 << 10
	request := t.get("/api/v1/pop/queue/refused")
	if body > 0 {
		text := `{"items":[{"queue":"refused","payload":"` + strings.Repeat("x", body) + `"}]}`
		request = t.post("/api/v1/push", []byte(text))
		if body > waited {
			request = request[:len(request)-len(text)]
		}
	}
	conns, hangUp, err := t.connect(refusedConns)
	if err != nil {
		return sample{}, err
	}
	defer func() { hangUp() }()
	var refused atomic.Int64
	at := t.w.open()
	err = workers(refusedConns, func(i int) error {
		for ctx.Err() == nil {
			status, answer, err := conns[i].do(request)
			if err != nil {
				return err
			}
			if status != 429 {
				return fmt.Errorf("%d %s", status, answer)
			}
			refused.Add(1)
			if body > waited {
				conns[i].Close()
				if conns[i], err = t.dial(); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return at.close(refused.Load()), err
}
