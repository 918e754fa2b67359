package fuse_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

func hashesOf(ids ...string) []byte { return segment.AppendHashes(nil, framesOf(ids...)) }

// write stores ids in a held partition as a transaction does, and tells the holder.
func (w *world) write(h *fuse.Held, p int64, ids ...string) {
	w.db.foreign(p, ids...)
	w.db.mu.Lock()
	row := w.db.parts[p].rows[len(w.db.parts[p].rows)-1]
	w.db.mu.Unlock()
	h.Stored(p, hashesOf(ids...), &store.PushVerdict{Base: row.base, CreatedAt: row.at, Life: w.db.life})
}

func TestPushesWaitWhileTheirPartitionIsHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1, 2)
		w := start(t, db, fuse.Config{})
		w.push(partition(1, hour), "a")
		h := w.Hold([]store.Partition{partition(1, hour)})
		waiting := w.begin(partition(1, hour), "b")
		want(t, "others flow", show(w.push(partition(2, hour), "x")), "[0]")
		synctest.Wait()
		want(t, "calls", len(db.offers()), 2)
		w.write(h, 1, "t")
		h.Release()
		h.Release()
		want(t, "after the release", show(waiting()), "[2]")
		want(t, "the last offer", db.offers()[2], "1@1[b]") // what the holder stored is vouched for
		want(t, "a repeat of what the holder stored", show(w.push(partition(1, hour), "t")), "[d1]")
		want(t, "gaps read", w.Stats().TopUps, uint64(0))
		w.stop()
	})
}

func TestAHolderKnowsWhatThePushesKnow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1, 2, 3)
		db.foreign(1, "a", "b", "c")
		db.foreign(2, "d")
		w := start(t, db, fuse.Config{})
		synctest.Wait()
		h := w.Hold([]store.Partition{partition(3, 0), partition(1, hour), partition(2, hour)})
		want(t, "reads", w.Stats().Hydrations, uint64(2))
		want(t, "new ids", h.Vouched(1, hashesOf("x", "y")).Offset, int64(2))
		want(t, "an id seen before", h.Vouched(1, hashesOf("x", "b")).Offset, int64(0))
		want(t, "the first id", h.Vouched(2, hashesOf("d")).Offset, int64(-1))
		want(t, "without a window", h.Vouched(3, hashesOf("x")).Offset, int64(-1))
		want(t, "not held", h.Vouched(77, hashesOf("x")).Offset, int64(-1))
		w.write(h, 1, "x")
		want(t, "what the holder stored", h.Vouched(1, hashesOf("x")).Offset, int64(2))
		want(t, "the watermark moves", h.Vouched(1, hashesOf("z")).Offset, int64(3))
		h.Release()
		want(t, "after the release", h.Vouched(1, hashesOf("z")).Offset, int64(-1))
		w.stop()
	})
}

func TestWhatAHolderDoesNotTellIsReadBeforeTheNextPush(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1)
		w := start(t, db, fuse.Config{})
		w.push(partition(1, hour), "a")
		h := w.Hold([]store.Partition{partition(1, hour)})
		db.foreign(1, "t") // its answer was lost
		h.Release()
		want(t, "the next push", show(w.push(partition(1, hour), "b")), "[2]")
		want(t, "its repeat", show(w.push(partition(1, hour), "t")), "[d1]")
		w.stop()
	})
}

func TestForgottenMeanwhileIsNotVouchedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1)
		w := start(t, db, fuse.Config{})
		w.push(partition(1, hour), "a")
		h := w.Hold([]store.Partition{partition(1, hour)})
		w.ForgetAll()
		want(t, "vouched", h.Vouched(1, hashesOf("x")).Offset, int64(-1))
		w.write(h, 1, "x")
		h.Release()
		want(t, "afterwards", show(w.push(partition(1, hour), "x")), "[d1]")
		w.stop()
	})
}

func TestAHolderSeesTheLogRewound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1)
		w := start(t, db, fuse.Config{})
		w.push(partition(1, hour), "a", "b")
		h := w.Hold([]store.Partition{partition(1, hour)})
		db.mu.Lock()
		db.parts[1] = &fakePart{}
		db.mu.Unlock()
		w.write(h, 1, "x")
		h.Release()
		want(t, "afterwards", show(w.push(partition(1, hour), "a", "x")), "[1 d0]")
		w.stop()
	})
}

// Holders come one after the other, and a push between two of them does not wait for both.
func TestHoldersAndPushesTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1)
		w := start(t, db, fuse.Config{})
		w.push(partition(1, hour), "a")
		var mu sync.Mutex
		var order []string
		note := func(s string) { mu.Lock(); defer mu.Unlock(); order = append(order, s) }
		first := w.Hold([]store.Partition{partition(1, hour)})
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				h := w.Hold([]store.Partition{partition(1, hour)})
				note(fmt.Sprint("holder ", i))
				time.Sleep(time.Second)
				h.Release()
			})
			synctest.Wait()
		}
		all.Go(func() {
			w.push(partition(1, hour), "b")
			note("push")
		})
		synctest.Wait()
		first.Release()
		all.Wait()
		if at := slices.Index(order, "push"); at > 1 { // it and the first of them are told at once
			t.Errorf("order %v", order)
		}
		want(t, "holders", slices.DeleteFunc(order, func(s string) bool { return s == "push" }), []string{"holder 0", "holder 1", "holder 2"})
		w.stop()
	})
}

func TestHoldersOfManyPartitionsDoNotBlockEachOther(t *testing.T) {
	t.Parallel()
	const partitions = 4
	db := newFake(t)
	for p := range int64(partitions) {
		db.parts[p] = &fakePart{}
	}
	w := start(t, db, fuse.Config{})
	w.push(partition(0, hour), "a")
	var all sync.WaitGroup
	for who := range 8 {
		all.Go(func() {
			for i := range 100 {
				a, b := int64((who+i)%partitions), int64((who*3+i+1)%partitions)
				parts := []store.Partition{partition(a, hour)}
				if a != b {
					parts = append(parts, partition(b, hour))
				}
				h := w.Hold(parts)
				w.write(h, a, fmt.Sprintf("t%d-%d", who, i))
				h.Release()
				if rs := w.push(partition(b, hour), fmt.Sprintf("p%d-%d", who, i)); rs[0].Err != nil || rs[0].Duplicate {
					t.Errorf("push: %s", show(rs))
				}
			}
		})
	}
	all.Wait()
	w.stop()
}

func TestAFuserThatDoesNotRunHoldsNothing(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	w := start(t, db, fuse.Config{})
	w.push(partition(1, hour), "a")
	w.stop()
	h := w.Hold([]store.Partition{partition(1, hour)})
	want(t, "vouched", h.Vouched(1, hashesOf("x")).Offset, int64(-1))
	h.Stored(1, hashesOf("x"), &store.PushVerdict{Base: 1, CreatedAt: time.Now()})
	h.Release()
}

// A holder that waits for the read of its partition gets it when the fuser drains.
func TestADrainDoesNotForgetHolders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t)
		open := make(chan struct{})
		db.reads = func(int64) error { <-open; return errors.New("ended") }
		for p := range int64(8) {
			db.parts[p] = &fakePart{}
			db.foreign(p, "old")
		}
		w := start(t, db, fuse.Config{})
		synctest.Wait()
		var all sync.WaitGroup
		for p := range int64(8) { // more than are read at a time
			all.Go(func() { w.Hold([]store.Partition{partition(p, hour)}).Release() })
		}
		synctest.Wait()
		go w.stop()
		synctest.Wait()
		close(open)
		all.Wait()
		w.stop()
	})
}

// A number that two lives of the database gave to different partitions: what waits for the one must not ride with the
// other, nor be vouched for by what is known of it.
func TestPartitionsWithOneNumberAreKeptApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1)
		w := start(t, db, fuse.Config{})
		before, after := partition(1, hour), partition(1, hour)
		before.UID[0], after.UID[0] = 1, 2
		w.push(before, "x")
		h := w.Hold([]store.Partition{before})
		waiting := w.begin(before, "a")
		synctest.Wait()
		if got := w.push(after, "b")[0]; wireError(got.Err).Code != wire.DatabaseUnavailable || wireError(got.Err).Outcome == wire.OutcomeUnknown {
			t.Errorf("a push to the other: got %+v, want %s and no outcome", got, wire.DatabaseUnavailable)
		}
		other := w.Hold([]store.Partition{after})
		want(t, "what vouches for the other", other.Vouched(1, hashesOf("b")).Offset, int64(-1))
		other.Release()
		h.Release()
		want(t, "the first one", show(waiting()), "[1]")
		want(t, "the other when the first has gone", show(w.push(after, "b")), "[2]")
		w.stop()
	})
}
