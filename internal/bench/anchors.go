package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// anchorSchema holds what a queue in PostgreSQL alone would need: a table for one row per message, and the smallest
// routine that stores one message as our rows do: partition row, segment, hashes.
const anchorSchema = `
CREATE TABLE message (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text, partition text, txn text, created_at timestamptz DEFAULT now(), payload text);
CREATE TABLE lane (id int PRIMARY KEY, last_offset bigint NOT NULL DEFAULT -1) WITH (fillfactor = 70);
INSERT INTO lane SELECT generate_series(1, 64);
CREATE TABLE seg (lane int, base bigint, created_at timestamptz, blob bytea, PRIMARY KEY (lane, base));
CREATE TABLE sidecar (lane int, base bigint, created_at timestamptz, hashes bytea, PRIMARY KEY (lane, base));
CREATE FUNCTION push_one(p_lane int, p_blob text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v bigint;
BEGIN
	UPDATE lane SET last_offset = last_offset + 1 WHERE id = p_lane RETURNING last_offset INTO v;
	INSERT INTO seg VALUES (p_lane, v, clock_timestamp(), p_blob::bytea);
	INSERT INTO sidecar VALUES (p_lane, v, clock_timestamp(), '\x000102030405060708090a0b0c0d0e0f');
	RETURN v;
END $$;`

func insertScript() string {
	return fmt.Sprintf(`INSERT INTO message (queue, partition, txn, payload) VALUES ('orders', 'p1', 'order-0198f000-' || random(), '%s');`, payload)
}

func pushScript() string {
	return fmt.Sprintf("\\set lane random(1, 64)\nSELECT push_one(:lane, '%s');\n", payload)
}

// storePush calls the routine of our own store from workers without HTTP, fusion or deduplication: PostgreSQL's ceiling
// for the very rows that the product writes, one transaction per batch.
func (w *world) storePush(workers, batch int) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		s := store.New(w.anchor)
		tenant := uuid.New()
		pairs := make([]store.Pair, workers)
		for i := range pairs {
			pairs[i] = store.Pair{Queue: "orders", Partition: fmt.Sprint("p", i)}
		}
		parts, err := s.Provision(ctx, tenant, pairs, store.Caps{})
		if err != nil {
			return sample{}, err
		}
		blob, hashes := encoded(batch)
		return w.workersFor(ctx, d, workers, func(i int) (int, error) {
			v, err := s.PushBundle(ctx, []store.Segment{{
				PartitionID: parts[i].ID, Tenant: tenant, Count: batch,
				RawBytes: int64(batch * len(payload)), Blob: blob, Hashes: hashes,
			}})
			if err == nil && v[0].Status != store.PushStored {
				err = fmt.Errorf("status %d", v[0].Status)
			}
			return batch, err
		})
	}
}

// storeBundle calls the routine of our own store from one worker with one message for each of many partitions: what a
// fuser would reach that had nothing else to do.
func (w *world) storeBundle(partitions int) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		s := store.New(w.anchor)
		tenant := uuid.New()
		pairs := make([]store.Pair, partitions)
		for i := range pairs {
			pairs[i] = store.Pair{Queue: "orders", Partition: fmt.Sprint("p", i)}
		}
		parts, err := s.Provision(ctx, tenant, pairs, store.Caps{})
		if err != nil {
			return sample{}, err
		}
		segs := make([]store.Segment, partitions)
		for i := range segs {
			blob, hashes := encoded(1)
			segs[i] = store.Segment{PartitionID: parts[i].ID, Tenant: tenant, Count: 1, RawBytes: int64(len(payload)), Blob: blob, Hashes: hashes}
		}
		return w.workersFor(ctx, d, 1, func(int) (int, error) {
			_, err := s.PushBundle(ctx, segs)
			return partitions, err
		})
	}
}

func encoded(batch int) (blob, hashes []byte) {
	frames := make([]segment.Frame, batch)
	for i := range frames {
		frames[i] = segment.Frame{TransactionID: uuid.NewString(), Payload: []byte(payload)}
		h := segment.HashID(frames[i].TransactionID)
		hashes = append(hashes, h[:]...)
	}
	return segment.Encode(nil, frames), hashes
}

// storeDrain claims and acknowledges with our own routines from workers without HTTP or fusion, two transactions a batch.
func (w *world) storeDrain(workers, take, messages int) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		s := store.New(w.anchor)
		tenant := uuid.New()
		pairs := make([]store.Pair, workers)
		for i := range pairs {
			pairs[i] = store.Pair{Queue: "drain", Partition: fmt.Sprint("p", i)}
		}
		parts, err := s.Provision(ctx, tenant, pairs, store.Caps{})
		if err != nil {
			return sample{}, err
		}
		for range messages / workers / 100 {
			segs := make([]store.Segment, workers)
			for i := range segs {
				blob, hashes := encoded(100)
				segs[i] = store.Segment{PartitionID: parts[i].ID, Tenant: tenant, Count: 100, RawBytes: 100 * int64(len(payload)), Blob: blob, Hashes: hashes}
			}
			if _, err := s.PushBundle(ctx, segs); err != nil {
				return sample{}, err
			}
		}
		end := time.Now().Add(d)
		return w.workersUntil(ctx, workers, func(i int) (int, bool, error) {
			worker := uuid.New()
			got, err := s.ClaimBundle(ctx, []store.Claim{{
				Candidates: []int64{parts[i].ID}, Group: wire.QueueModeGroup,
				Worker: worker, Lease: time.Minute, Budget: take, MaxPartitions: 1,
			}})
			if err != nil {
				return 0, true, err
			}
			c := got[0][0]
			if c.Status != store.ClaimTook {
				return 0, true, nil
			}
			// The last message's offset is enough: an ack is an offset commit.
			r, err := segment.Open(c.Segments[len(c.Segments)-1].Blob)
			if err != nil {
				return 0, true, err
			}
			last := r.Frame(int(c.Through - c.Segments[len(c.Segments)-1].Base))
			v, err := s.AckBundle(ctx, []store.AckGroup{{
				Tenant: tenant, Partition: c.UID, Group: wire.QueueModeGroup, Lease: worker.String(),
				Items: []store.AckItem{{Hash: segment.HashID(last.TransactionID), Status: wire.AckCompleted, Offset: c.Through}},
			}})
			if err == nil && !v[0].Items[0].Success {
				err = fmt.Errorf("ack: %s", v[0].Items[0].Error)
			}
			n := int(c.Through - c.After)
			return n, time.Now().After(end), err
		})
	}
}

// workersFor runs one call after the other in each worker for d.
func (w *world) workersFor(ctx context.Context, d time.Duration, n int, call func(worker int) (int, error)) (sample, error) {
	end := time.Now().Add(d)
	return w.workersUntil(ctx, n, func(i int) (int, bool, error) {
		n, err := call(i)
		return n, time.Now().After(end), err
	})
}

func (w *world) workersUntil(ctx context.Context, n int, call func(worker int) (n int, stop bool, err error)) (sample, error) {
	var total atomic.Int64
	at := w.open()
	err := workers(n, func(i int) error {
		for ctx.Err() == nil {
			n, stop, err := call(i)
			total.Add(int64(n))
			if err != nil || stop {
				return err
			}
		}
		return nil
	})
	return at.close(total.Load()), err
}

// fresh returns a queue name that no other measurement uses.
func fresh(prefix string) string { return fmt.Sprintf("%s-%08x", prefix, rand.Uint32()) }
