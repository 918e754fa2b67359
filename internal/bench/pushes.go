package main

import (
	"context"
	"time"
)

// producers is how many push at once where a case does not say otherwise: that of the targets.
const producers = 64

// pushes is group b of the targets: durable pushes with deduplication, to the broker.
func (w *world) pushes() group {
	push := func(p production) func(context.Context, time.Duration) (sample, error) { return freshPush(w.broker, p) }
	return group{
		name: "push",
		cases: []kase{
			{"pg-insert", "pgbench, one-row INSERT, 64 clients", w.pgbench(insertScript(), producers)},
			{"push-b1", "push of 1 message, 64 producers", push(production{producers: producers, batch: 1})},
			{"pg-push", "pgbench, push routine, a transaction per push, 64 clients", w.pgbench(pushScript(), producers)},
			{"push-b1-nodedup", "push of 1, deduplication off", onFresh("plain", func(q string) func(context.Context, time.Duration) (sample, error) {
				return func(ctx context.Context, d time.Duration) (sample, error) {
					if err := w.broker.configure(q, `{"dedupWindowSeconds":0}`); err != nil {
						return sample{}, err
					}
					return w.broker.push(q, production{producers: producers, batch: 1})(ctx, d)
				}
			})},
			{"store-bundle-256", "our push routine alone, bundles of 256 partitions with one message each, 1 worker", w.storeBundle(256)},
			{"push-b1-p256", "push of 1, 256 producers", push(production{producers: 256, batch: 1})},
			{"push-b1-lanes1", "push of 1, 1 partition", push(production{producers: producers, batch: 1, lanes: 1})},
			{"push-b1-lanes16", "push of 1, 16 partitions", push(production{producers: producers, batch: 1, lanes: 16})},
			{"push-b1-lanes1000", "push of 1, 1,000 partitions", push(production{producers: producers, batch: 1, lanes: 1000})},
			{"store-push-b10", "our push routine alone, 10 messages a call, 64 workers", w.storePush(producers, 10)},
			{"push-b10", "push of 10", push(production{producers: producers, batch: 10})},
			{"store-push-b100", "our push routine alone, 100 messages a call, 64 workers", w.storePush(producers, 100)},
			{"push-b100", "push of 100", push(production{producers: producers, batch: 100})},
			{"store-push-b1000", "our push routine alone, 1,000 messages a call, 64 workers", w.storePush(producers, 1000)},
			{"push-b1000", "push of 1,000", push(production{producers: producers, batch: 1000})},
		},
		ratios: []ratio{
			{"b1: push of 1 / one-row INSERT", "push-b1", "pg-insert", 0.7, 0.95},
			{"b1': push of 1 / push routine per message", "push-b1", "pg-push", 1.4, 1.9},
			{"bd: deduplication on / off", "push-b1", "push-b1-nodedup", 0.8, 0.93},
			{"b1x: 256 producers / bundles of 256 alone", "push-b1-p256", "store-bundle-256", 0.35, 0.5},
			{"1 partition / 64", "push-b1-lanes1", "push-b1", 0, 0},
			{"16 partitions / 64", "push-b1-lanes16", "push-b1", 0, 0},
			{"1,000 partitions / 64", "push-b1-lanes1000", "push-b1", 0, 0},
			{"b10: push of 10 / push routine alone", "push-b10", "store-push-b10", 0.8, 1.1},
			{"b100: push of 100 / push routine alone", "push-b100", "store-push-b100", 0.45, 0.6},
			{"push of 1,000 / push routine alone", "push-b1000", "store-push-b1000", 0, 0},
		},
		bounds: []bound{
			{"bp: p99 of a push of 1 at saturation, ms", "push-b1", func(s sample) float64 { return ms(s.p99) }, 14.9, 7.9},
			{"bc: PostgreSQL CPU of a push of 1, µs", "push-b1", func(s sample) float64 { return us(s.postgres) }, 25, 18},
			{"bc: PostgreSQL CPU per message in pushes of 100, µs", "push-b100", func(s sample) float64 { return us(s.postgres) }, 4, 3.2},
		},
	}
}

// gateways is rows a6 to a7' of the targets: the same loads directly and through the gateway.
func (w *world) gateways() group {
	one, hundred := production{producers: producers, batch: 1}, production{producers: producers, batch: 100}
	return group{
		name: "gateway",
		cases: []kase{
			{"pg-insert", "pgbench, one-row INSERT, 64 clients", w.pgbench(insertScript(), producers)},
			{"b1-direct", "push of 1, 64 producers, to the broker", freshPush(w.broker, one)},
			{"b1-gateway", "the same through the gateway", freshPush(w.gateway, one)},
			{"b1-gateway-tls", "the same through the gateway over TLS", freshPush(w.gatewayTLS, one)},
			{"b100-direct", "push of 100, 64 producers, to the broker", freshPush(w.broker, hundred)},
			{"b100-gateway", "the same through the gateway", freshPush(w.gateway, hundred)},
			{"b100-gateway-tls", "the same through the gateway over TLS", freshPush(w.gatewayTLS, hundred)},
			{"flow-direct", "push of 1, pop of 100 and ack, 64 producers, 16 consumers, to the broker", freshFlow(w.broker, saturated)},
			{"flow-gateway", "the same through the gateway", freshFlow(w.gateway, saturated)},
			{"flow-gateway-tls", "the same through the gateway over TLS", freshFlow(w.gatewayTLS, saturated)},
		},
		ratios: []ratio{
			{"a6: push of 1, gateway over TLS / direct", "b1-gateway-tls", "b1-direct", 0.50, 0.65},
			{"a7: push of 100, gateway over TLS / direct", "b100-gateway-tls", "b100-direct", 0.70, 0.82},
			{"a7': end to end, gateway over TLS / direct", "flow-gateway-tls", "flow-direct", 0.60, 0.72},
			// 8,000 a second where the INSERT makes 23,500.
			{"c5: end to end through the gateway / one-row INSERT", "flow-gateway", "pg-insert", 0.21, 0.34},
			{"push of 1, gateway / direct", "b1-gateway", "b1-direct", 0, 0},
			{"push of 100, gateway / direct", "b100-gateway", "b100-direct", 0, 0},
			{"end to end, gateway / direct", "flow-gateway", "flow-direct", 0, 0},
		},
		bounds: []bound{
			{"c5: p99 from push to pop through the gateway, ms", "flow-gateway", func(s sample) float64 { return ms(s.p99) }, 100, 100},
		},
	}
}
