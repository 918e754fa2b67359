package main

import (
	"context"
	"errors"
	"time"
)

// The numbers of partitions that are compared.
const (
	fewLanes  = 1_000
	manyLanes = 200_000
)

// scale compares a queue of many partitions with one of few: single pushes to partitions taken by chance, alone and
// with consumers. Every partition holds a message from before, and is known to the broker.
func (w *world) scale() group {
	few, many := fresh("few"), fresh("many")
	const readers = "readers"
	push := func(queue string, lanes int) func(context.Context, time.Duration) (sample, error) {
		return func(ctx context.Context, d time.Duration) (sample, error) {
			return w.broker.pushOn(ctx, queue, production{producers: producers, batch: 1, lanes: lanes}, d)
		}
	}
	flowing := func(queue string, lanes int) func(context.Context, time.Duration) (sample, error) {
		f := saturated
		f.lanes, f.groups = lanes, []string{readers}
		return w.broker.run(queue, f)
	}
	return group{
		name: "scale",
		prepare: func(ctx context.Context) error {
			for _, q := range []struct {
				name  string
				lanes int
			}{{few, fewLanes}, {many, manyLanes}} {
				if err := w.broker.fill(q.name, q.lanes, q.lanes); err != nil {
					return err
				}
				if err := w.subscribe(ctx, q.name, readers); err != nil {
					return err
				}
			}
			return nil
		},
		cases: []kase{
			{"push-few", "push of 1, 64 producers, 1,000 partitions", push(few, fewLanes)},
			{"push-many", "push of 1, 64 producers, 200,000 partitions", push(many, manyLanes)},
			{"flow-few", "push of 1, pop of 100 and ack, 1,000 partitions", flowing(few, fewLanes)},
			{"flow-many", "push of 1, pop of 100 and ack, 200,000 partitions", flowing(many, manyLanes)},
		},
		ratios: []ratio{
			{"push, 200,000 partitions / 1,000", "push-many", "push-few", 0.85, 0.85},
			{"end to end, 200,000 partitions / 1,000", "flow-many", "flow-few", 0.85, 0.85},
		},
	}
}

// subscribe registers a group that reads what comes from now on, and waits until it has a cursor in every partition: the
// broker makes those of a large queue behind the pop that registers, which would otherwise go on during the measurement.
func (w *world) subscribe(ctx context.Context, queue, group string) error {
	c, err := w.broker.consumer(queue, "subscriptionMode=new", group)
	if err != nil {
		return err
	}
	defer c.c.Close()
	if err := c.pop(); err != nil {
		return err
	}
	for end := time.Now().Add(patience); ; {
		var owed bool
		err := w.db.QueryRow(ctx, "SELECT EXISTS (SELECT FROM queen.group_registrations WHERE seeded_to IS NOT NULL)").Scan(&owed)
		if err != nil || !owed {
			return err
		}
		if time.Now().After(end) {
			return errors.New("the cursors of the group " + group + " are not made yet")
		}
		if err := sleepUntil(ctx, time.Now().Add(time.Second)); err != nil {
			return err
		}
	}
}
