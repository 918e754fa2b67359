package main

import (
	"context"
	"time"
)

// Ten minutes at 1,000 messages a second, in segments of ten.
const (
	historyMessages = 600_000
	historyBatch    = 10
)

// past compares a queue that has ten minutes of history behind its cursors with a new one, by the rate of single
// acknowledgements and of transactions of one acknowledgement and one push.
func (w *world) past() group {
	old := fresh("old")
	acks := drainage{consumers: consumers, query: "batch=100", lanes: drainLanes, messages: singles, settle: func(c *consumer) error {
		for i := range c.got.messages {
			if err := c.ackOne(i); err != nil {
				return err
			}
		}
		return nil
	}}
	transactions := acks
	transactions.settle = func(c *consumer) error {
		if c.next == nil {
			c.next = newTemplate([]byte(item("next")))
		}
		for i := range c.got.messages {
			if err := c.transact(i); err != nil {
				return err
			}
		}
		return nil
	}
	on := func(r drainage) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) { return w.broker.drain(old, r)(ctx, d) }
	}
	young := func(r drainage) func(context.Context, time.Duration) (sample, error) {
		return onFresh("young", func(q string) func(context.Context, time.Duration) (sample, error) { return w.broker.drain(q, r) })
	}
	return group{
		name: "history",
		prepare: func(ctx context.Context) error {
			if err := w.broker.fillBy(old, drainLanes, historyMessages, historyBatch); err != nil {
				return err
			}
			_, err := w.broker.empty(ctx, old, drainage{consumers: consumers, query: "batch=1000", messages: historyMessages}, time.Minute)
			return err
		},
		cases: []kase{
			{"acks-new", "single acks, 16 consumers, new queue", young(acks)},
			{"acks-old", "single acks, 16 consumers, after 600,000 messages", on(acks)},
			{"transactions-new", "transactions of an ack and a push, 16 consumers, new queue", young(transactions)},
			{"transactions-old", "transactions of an ack and a push, 16 consumers, after 600,000 messages", on(transactions)},
		},
		ratios: []ratio{
			{"acks with ten minutes of history / without", "acks-old", "acks-new", 0.85, 0.95},
			{"transactions with ten minutes of history / without", "transactions-old", "transactions-new", 0.85, 0.95},
		},
	}
}
