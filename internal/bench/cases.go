package main

import (
	"context"
	"crypto/ed25519"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/wire"
)

// Sizes of the cases, those of the targets.
const (
	producers     = 64
	consumers     = 16
	drainMessages = 200_000
	drainLanes    = 64
)

// cases are run in this order in every repetition: each product row stands beside the anchor it is divided by.
func (w *world) cases() []kase {
	// A queue of its own per measurement, so that none inherits another's history.
	on := func(prefix string, f func(queue string) func(context.Context, time.Duration) (sample, error)) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) { return f(fresh(prefix))(ctx, d) }
	}
	push := func(t *target, batch int) func(context.Context, time.Duration) (sample, error) {
		return on("push", func(q string) func(context.Context, time.Duration) (sample, error) {
			return t.push(q, producers, batch)
		})
	}
	drain := func(t *target) func(context.Context, time.Duration) (sample, error) {
		return on("drain", func(q string) func(context.Context, time.Duration) (sample, error) {
			return t.drain(q, consumers, 100, drainLanes, drainMessages)
		})
	}
	latency := func(t *target) func(context.Context, time.Duration) (sample, error) {
		return on("latency", func(q string) func(context.Context, time.Duration) (sample, error) {
			return t.latency(q, 500, 16, consumers)
		})
	}
	return []kase{
		{"pg-insert", "pgbench, one-row INSERT, 64 clients", w.pgbench(insertScript(), producers)},
		{"push-b1-direct", "push of 1 message, 64 producers, to the broker", push(w.broker, 1)},
		{"pg-push", "pgbench, push routine, a transaction per push, 64 clients", w.pgbench(pushScript(), producers)},
		{"push-b1-gateway", "the same through the gateway", push(w.gateway, 1)},
		{"push-b1-gateway-tls", "the same through the gateway over TLS", push(w.gatewayTLS, 1)},
		{"store-push-b100", "our push routine alone, 100 messages a call, 64 workers", w.storePush(producers, 100)},
		{"push-b100-direct", "push of 100 messages, 64 producers, to the broker", push(w.broker, 100)},
		{"push-b100-gateway", "the same through the gateway", push(w.gateway, 100)},
		{"push-b100-gateway-tls", "the same through the gateway over TLS", push(w.gatewayTLS, 100)},
		{"store-drain", "our claim and ack routines alone, take 100, 32 workers", w.storeDrain(32, 100, drainMessages)},
		{"drain-direct", "pop of 100 and ack, 16 consumers, to the broker", drain(w.broker)},
		{"drain-gateway", "the same through the gateway", drain(w.gateway)},
		{"latency-direct", "push to pop at 500 single messages a second, to the broker", latency(w.broker)},
		{"latency-gateway", "the same through the gateway", latency(w.gateway)},
	}
}

// cellToken signs what the gateway of this system would.
func cellToken(data string, tenant uuid.UUID) (string, error) {
	key, err := datadir.CellKey(data)
	if err != nil {
		return "", err
	}
	now := time.Now()
	return wire.SignCell(ed25519.PrivateKey(key), "local", wire.CellClaims{
		Subject: "bench", Tenant: tenant, Cluster: "demo", Access: wire.AccessReadWrite, Expires: now.Add(time.Hour),
	}, now)
}
