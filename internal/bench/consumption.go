package main

import (
	"context"
	"fmt"
	"time"
)

// Sizes of the loads that consume, those of the targets.
const (
	consumers     = 16
	drainLanes    = 64
	drainMessages = 200_000
	// singles bounds what the cases take that settle every message by itself; they end with the time.
	singles = 60_000
)

// saturated is the end to end load of the targets.
var saturated = flow{producers: producers, lanes: producers, consumers: consumers, query: "batch=100&partitions=8&wait=true&timeout=1000"}

// consumption is the rows of group c of the targets that begin with a backlog.
func (w *world) consumption() group {
	drain := func(t *target, r drainage) func(context.Context, time.Duration) (sample, error) {
		return onFresh("drain", func(q string) func(context.Context, time.Duration) (sample, error) { return t.drain(q, r) })
	}
	hundred := drainage{consumers: consumers, query: "batch=100", lanes: drainLanes, messages: drainMessages}
	one := drainage{consumers: producers, query: "batch=1", lanes: drainLanes, messages: singles}
	return group{
		name: "consume",
		cases: []kase{
			{"store-drain", "our claim and ack routines alone, take 100, 32 workers", w.storeDrain(32, 100, drainMessages)},
			{"drain-direct", "pop of 100 and ack, 16 consumers, to the broker", drain(w.broker, hundred)},
			{"drain-gateway", "the same through the gateway", drain(w.gateway, hundred)},
			{"store-drain-one", "our claim and ack routines alone, take 1, 32 workers", w.storeDrain(32, 1, singles)},
			{"drain-one", "pop of 1 and ack, 64 consumers, to the broker", drain(w.broker, one)},
		},
		ratios: []ratio{
			{"c1: drain / claim and ack alone", "drain-direct", "store-drain", 0.18, 0.30},
			{"drain, gateway / direct", "drain-gateway", "drain-direct", 0, 0},
			{"c4: pop of 1 and ack / claim and ack alone, message by message", "drain-one", "store-drain-one", 0, 2.5},
		},
	}
}

// flows is the rows of group c of the targets that run from end to end.
func (w *world) flows() group {
	const groups = 4
	fan := saturated
	fan.consumers = consumers / groups
	fan.query += "&subscriptionMode=all"
	for i := range groups {
		fan.groups = append(fan.groups, fmt.Sprint("g", i))
	}
	paced := flow{producers: 32, lanes: producers, perSecond: 1000, consumers: consumers, query: saturated.query}
	return group{
		name: "flow",
		cases: []kase{
			{"pg-insert", "pgbench, one-row INSERT, 64 clients", w.pgbench(insertScript(), producers)},
			{"flow", "push of 1, pop of 100 and ack, 64 producers, 16 consumers", freshFlow(w.broker, saturated)},
			{"flow-1000", "the same at 1,000 messages a second", freshFlow(w.broker, paced)},
			{"fan-out", "the same as the first, to four groups with 4 consumers each; deliveries", freshFlow(w.broker, fan)},
		},
		ratios: []ratio{
			// RabbitMQ's quorum queues moved 11,400 a second where the INSERT made 23,500; the target is 1.5 of that.
			{"c2: end to end / one-row INSERT", "flow", "pg-insert", 0.49, 0.73},
			{"deliveries to four groups / to one", "fan-out", "flow", 0, 0},
		},
		bounds: []bound{
			{"c6: commits per delivered message at 1,000 a second", "flow-1000", func(s sample) float64 { return s.commits }, 2.7, 1.5},
			{"c6: commits per delivered message, saturated", "flow", func(s sample) float64 { return s.commits }, 0, 0.2},
		},
	}
}

// latencies is row c3 of the targets.
func (w *world) latencies() group {
	paced := flow{producers: 32, lanes: 16, perSecond: 500, consumers: consumers, query: "batch=100&wait=true&timeout=1000"}
	calm50, calm99 := func(s sample) float64 { return ms(s.calm50) }, func(s sample) float64 { return ms(s.calm99) }
	return group{
		name: "latency",
		cases: []kase{
			{"latency-direct", "push to pop at 500 single messages a second, to the broker", freshFlow(w.broker, paced)},
			{"latency-gateway", "the same through the gateway", freshFlow(w.gateway, paced)},
		},
		bounds: []bound{
			{"c3: p50 end to end at 500 a second, calm, ms", "latency-direct", calm50, 3.1, 2.0},
			{"c3: p99 end to end at 500 a second, calm, ms", "latency-direct", calm99, 8.25, 6.6},
		},
	}
}
