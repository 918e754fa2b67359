package fuse_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/store"
)

func TestTheWatermarkSparesTheProbe(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	db.foreign(1, "old1", "old2")
	w := start(t, db, fuse.Config{})
	w.push(partition(1, hour), "a")
	w.push(partition(1, hour), "b", "c")
	w.push(partition(1, hour), "d")
	want(t, "offers", db.offers(), []string{"1@1[a]", "1@2[b c]", "1@4[d]"})
	want(t, "rows probed", db.probed, 0)
	want(t, "hydrations", w.Stats().Hydrations, uint64(1))
}

func TestDuplicatesOfTheCacheGoApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1, 2)
		w := start(t, db, fuse.Config{})
		w.push(partition(1, hour), "a", "b", "c")
		began := make(chan struct{})
		open := make(chan struct{})
		db.enter = func(n int, _ bool, _ []store.Segment) error {
			if n == 1 {
				close(began)
				<-open
			}
			return nil
		}
		first := w.begin(partition(2, 0), "first")
		<-began
		clean1 := w.begin(partition(1, hour), "d")
		dirty := w.begin(partition(1, hour), "e", "b", "f")
		clean2 := w.begin(partition(1, hour), "g")
		close(open)
		first()
		want(t, "clean", show(clean1())+show(clean2()), "[3][4]")
		want(t, "dirty", show(dirty()), "[5 d1 6]")
		want(t, "a lone duplicate needs one call", show(w.push(partition(1, hour), "c")), "[d2]")
		want(t, "offers", db.offers()[2:], []string{
			"1@2[d g]",   // clean traffic does not wait
			"1@0[e b f]", // the probe begins before the sighting of b, at 1
			"1@4[e f]",   // what is new in it is behind the last offset seen
			"1@1[c]",     // and the watermark has moved on
		})
		want(t, "set apart", w.Stats().CacheHits, uint64(2))
		w.stop()
	})
}

func TestAGapLeftByAnotherBrokerIsReadBeforeTheNextPush(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	w := start(t, db, fuse.Config{})
	w.push(partition(1, hour), "a")
	db.foreign(1, "x", "y")
	want(t, "behind a gap", show(w.push(partition(1, hour), "b")), "[3]")
	want(t, "of the gap", show(w.push(partition(1, hour), "x")), "[d1]")
	want(t, "after it", show(w.push(partition(1, hour), "c")), "[4]")
	want(t, "offers", db.offers(), []string{"1@-1[a]", "1@0[b]", "1@0[x]", "1@3[c]"})
	want(t, "reads", []uint64{w.Stats().Hydrations, w.Stats().TopUps}, []uint64{1, 1})
}

func TestADuplicateOfAnotherBrokerIsSeenByTheDatabase(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	w := start(t, db, fuse.Config{})
	w.push(partition(1, hour), "a")
	db.foreign(1, "x")
	want(t, "results", show(w.push(partition(1, hour), "b", "x")), "[2 d1]")
	want(t, "then the gap is known", show(w.push(partition(1, hour), "c")), "[3]")
	want(t, "offers", db.offers(), []string{"1@-1[a]", "1@0[b x]", "1@1[b]", "1@2[c]"})
}

func TestAFailedReadCostsWholeProbesOnly(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	db.foreign(1, "old")
	db.reads = func(int64) error { return errors.New("no") }
	w := start(t, db, fuse.Config{})
	want(t, "results", show(w.push(partition(1, hour), "a", "old")), "[1 d0]")
	want(t, "offers", db.offers(), []string{"1@-1[a old]", "1@0[a]"})
	want(t, "read errors", w.Stats().ReadErrors, uint64(1))
}

func TestAPartitionWithoutMessagesIsBornKnown(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	db.reads = func(int64) error { return errors.New("no") }
	w := start(t, db, fuse.Config{})
	w.push(partition(1, hour), "a")
	want(t, "duplicate", show(w.push(partition(1, hour), "a")), "[d0]")
	w.push(partition(1, hour), "b")
	want(t, "offers", db.offers(), []string{"1@-1[a]", "1@-1[a]", "1@0[b]"})
}

func TestAWindowThatGrowsIsReadAgain(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	db.foreign(1, "old")
	db.advance(2 * time.Minute)
	w := start(t, db, fuse.Config{})
	w.push(partition(1, time.Minute), "a")
	want(t, "outside the window", show(w.push(partition(1, time.Minute), "old")), "[2]")
	db.foreign(1, "older")
	want(t, "a longer window", show(w.push(partition(1, time.Hour), "b", "old")), "[4 d0]")
	want(t, "a shorter one", show(w.push(partition(1, time.Minute), "c")), "[5]")
	want(t, "reads", w.Stats().Hydrations, uint64(2))
}

func TestForgottenPartitionsAreReadAgain(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(*world){
		"one": func(w *world) { w.Forget([]int64{1, 77}) },
		"all": func(w *world) { w.ForgetAll() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newFake(t, 1)
			w := start(t, db, fuse.Config{})
			w.push(partition(1, hour), "a")
			forget(w)
			want(t, "cache", []int64{int64(w.Stats().CachePartitions), w.Stats().CacheBytes}, []int64{0, 0})
			w.push(partition(1, hour), "b")
			want(t, "hydrations", w.Stats().Hydrations, uint64(2))
		})
	}
}

func TestForgettingReachesWhatWaitsToBeSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1)
		w := start(t, db, fuse.Config{})
		w.push(partition(1, hour), "a")
		db.busy[1] = 1
		db.enter = func(n int, _ bool, _ []store.Segment) error {
			if n == 1 {
				w.ForgetAll()
			}
			return nil
		}
		w.push(partition(1, hour), "b")
		want(t, "offers", db.offers(), []string{"1@-1[a]", "1@0[b]", "1@-1[b]"})
		w.stop()
	})
}

func TestARewoundDatabaseEmptiesTheCache(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1, 2)
	w := start(t, db, fuse.Config{})
	w.push(partition(1, hour), "a", "b", "c")
	w.push(partition(2, hour), "a")
	db.mu.Lock()
	db.parts[1] = &fakePart{} // a standby that had not received it was promoted
	db.mu.Unlock()
	want(t, "after the loss", show(w.push(partition(1, hour), "d")), "[0]")
	w.push(partition(1, hour), "a")
	w.push(partition(2, hour), "b")
	want(t, "hydrations", w.Stats().Hydrations, uint64(4))
}

func TestOthersFlowWhileAPartitionIsRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t)
		var reading, most atomic.Int32
		open := make(chan struct{})
		db.reads = func(p int64) error {
			if p == 0 {
				return nil
			}
			n := reading.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			<-open
			reading.Add(-1)
			return nil
		}
		for p := range int64(20) {
			db.parts[p] = &fakePart{}
		}
		w := start(t, db, fuse.Config{})
		w.push(partition(0, hour), "a")
		var waits []func() []fuse.Result
		for p := int64(1); p < 20; p++ {
			waits = append(waits, w.begin(partition(p, hour), "a"))
		}
		want(t, "a known partition", show(w.push(partition(0, hour), "b")), "[1]")
		synctest.Wait()
		want(t, "reading", w.Stats().Reading, 19)
		close(open)
		for _, wait := range waits {
			wait()
		}
		if m := most.Load(); m > 4 {
			t.Errorf("%d reads at once", m)
		}
		w.stop()
	})
}

func TestTheCacheStaysWithinItsBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 100_000
		db := newFake(t)
		for p := range int64(40) {
			db.parts[p] = &fakePart{}
		}
		w := start(t, db, fuse.Config{DedupCacheBytes: limit})
		n := 0
		for round := range 6 {
			for p := range int64(40) {
				ids := make([]string, 50)
				for i := range ids {
					n++
					ids[i] = fmt.Sprint(n)
				}
				if rs := w.push(partition(p, hour), ids...); rs[0].Duplicate || rs[0].Err != nil {
					t.Fatalf("partition %d: %s", p, show(rs))
				}
				if b := w.Stats().CacheBytes; b > limit {
					t.Fatalf("the cache has %d bytes after round %d", b, round)
				}
			}
			time.Sleep(10 * time.Second)
		}
		s := w.Stats()
		if s.Evictions == 0 || s.CachePartitions == 0 {
			t.Errorf("evictions %d, partitions %d: want the least recently used to make room", s.Evictions, s.CachePartitions)
		}
		w.stop()
	})
}

func TestAPartitionLargerThanTheCacheIsProbedWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1)
		var ids []string
		for i := range 60_000 {
			ids = append(ids, fmt.Sprint(i))
			if len(ids) == 1000 {
				db.foreign(1, ids...)
				ids = nil
			}
		}
		w := start(t, db, fuse.Config{DedupCacheBytes: 300_000})
		for i := range 3 {
			w.push(partition(1, hour), fmt.Sprint("new", i))
		}
		want(t, "a duplicate", show(w.push(partition(1, hour), "7")), "[d7]")
		for _, o := range db.offers() {
			if !strings.HasPrefix(o, "1@-1") {
				t.Errorf("offer %s vouches for rows that did not fit", o)
			}
		}
		want(t, "one attempt per pause", w.Stats().ReadErrors, uint64(1))
		if b := w.Stats().CacheBytes; b > 300_000 {
			t.Errorf("the cache has %d bytes", b)
		}
		time.Sleep(31 * time.Second)
		w.push(partition(1, hour), "later")
		want(t, "another attempt after the pause", w.Stats().ReadErrors, uint64(2))
		w.stop()
	})
}

func TestAReadDoesNotHoldUpTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t)
		for p := range int64(10) {
			db.parts[p] = &fakePart{}
		}
		open := make(chan struct{})
		db.reads = func(int64) error { <-open; return nil }
		for p := range int64(10) {
			db.foreign(p, "old")
		}
		w := start(t, db, fuse.Config{})
		var waits []func() []fuse.Result
		for p := range int64(10) {
			waits = append(waits, w.begin(partition(p, hour), "a", "old"))
		}
		synctest.Wait()
		stopped := make(chan struct{})
		go func() { w.stop(); close(stopped) }()
		synctest.Wait()
		close(open) // the context of the reads has ended
		for _, wait := range waits {
			want(t, "results", show(wait()), "[1 d0]")
		}
		<-stopped
	})
}

// The half of a segment that was put off has not been probed by the call that found duplicates in the other half.
func TestADuplicateInOneHalfSaysNothingOfTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1, 2)
		db.foreign(1, "x", "y")
		g := newGate(db)
		enter := db.enter
		db.enter = func(n int, wait bool, segs []store.Segment) error {
			if n == 1 {
				return &pgconn.PgError{Code: "22023"}
			}
			return enter(n, wait, segs)
		}
		w := start(t, db, fuse.Config{DedupCacheBytes: -1})
		first := w.begin(partition(2, 0), "first")
		<-g.reached
		a, b := w.begin(partition(1, hour), "x", "new"), w.begin(partition(1, hour), "y", "newer")
		close(g.open)
		first()
		want(t, "results", show(a())+show(b()), "[d0 2][d1 3]")
		want(t, "offers", db.offers()[1:], []string{"1@-1[x new y newer]", "1@-1[x new]", "1@-1[new y newer]", "1@1[new newer]"})
		w.stop()
	})
}

// busyLane makes a push of clean frames arrive during each of the first n calls, so that the lane never rests.
func busyLane(db *fakeDB, w **world, n, frames int) {
	db.enter = func(call int, _ bool, _ []store.Segment) error {
		if call < n {
			ids := make([]string, frames)
			for i := range ids {
				ids[i] = fmt.Sprint("call", call, "/", i)
			}
			(*w).begin(partition(1, hour), ids...)
		}
		return nil
	}
}

func TestSuspectsHaveTheirTurnOnABusyLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1)
		var w *world
		busyLane(db, &w, 50, 1)
		// The duplicate arrives during a call, not after an answer: how far a busy lane has come by then is the
		// scheduler's choice.
		var duplicate func() []fuse.Result
		enter := db.enter
		db.enter = func(call int, wait bool, segs []store.Segment) error {
			if call == 1 {
				duplicate = w.begin(partition(1, hour), "a")
			}
			return enter(call, wait, segs)
		}
		w = start(t, db, fuse.Config{})
		w.push(partition(1, hour), "a")
		synctest.Wait()
		want(t, "a duplicate", show(duplicate()), "[d0]")
		offers := db.offers()
		want(t, "the calls that kept the lane busy", len(offers) > 50, true)
		turn := 1 + slices.IndexFunc(offers[1:], func(o string) bool { return strings.HasSuffix(o, "[a]") })
		if turn > 5 {
			t.Errorf("its turn was call %d of %v", turn, offers)
		}
		w.stop()
	})
}

func TestALaneThatNeverRestsIsCharged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 30_000
		db := newFake(t, 1)
		var w *world
		busyLane(db, &w, 40, 100)
		enter := db.enter
		db.enter = func(call int, wait bool, segs []store.Segment) error {
			if s := w.Stats(); s.CacheBytes > limit || call == 39 && s.Evictions == 0 {
				t.Errorf("after %d messages: %d evictions, %d bytes", s.Stored, s.Evictions, s.CacheBytes)
			}
			return enter(call, wait, segs)
		}
		w = start(t, db, fuse.Config{DedupCacheBytes: limit})
		w.push(partition(1, hour), "a")
		synctest.Wait()
		want(t, "stored", w.Stats().Stored, uint64(40*100+1))
		w.stop()
	})
}

// A standby that lacked a suffix was promoted, and another broker has written as many messages since: the watermark of
// the life before stands at the very last offset and would spare the probe that finds a duplicate.
func TestAWatermarkOfAnotherLifeOfTheDatabaseVouchesForNothing(t *testing.T) {
	t.Parallel()
	for way, repeat := range map[string]func(w *world) string{
		"a push":                  func(w *world) string { return show(w.push(partition(1, hour), "y")) },
		"a push beside a new one": func(w *world) string { return show(w.push(partition(1, hour), "new", "y")) },
		"a transaction": func(w *world) string {
			h := w.Hold([]store.Partition{partition(1, hour)})
			defer h.Release()
			return fmt.Sprint(w.db.counts(h.Vouched(1, hashesOf("y"))))
		},
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			db := newFake(t, 1)
			w := start(t, db, fuse.Config{})
			w.push(partition(1, hour), "a", "b", "c")
			db.failover(1, 1)
			db.foreign(1, "x", "y")
			want(t, "y again", repeat(w), map[string]string{"a push": "[d2]", "a push beside a new one": "[3 d2]", "a transaction": "-1"}[way])
			w.push(partition(1, hour), "d")
			w.push(partition(1, hour), "e")
			offers := db.offers()
			want(t, "known anew", strings.HasPrefix(offers[len(offers)-1], "1@-1"), false)
		})
	}
}

// A row was written behind the watermark, and the gap is read in another life than the rest was learned in.
func TestAGapReadInAnotherLifeStartsTheCacheOver(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	w := start(t, db, fuse.Config{})
	w.push(partition(1, hour), "a")
	db.foreign(1, "x")
	var once sync.Once
	db.reads = func(int64) error {
		once.Do(func() { db.failover(1, 1); db.foreign(1, "y", "z") })
		return nil
	}
	w.push(partition(1, hour), "b") // behind a gap: it is read next
	want(t, "z again", show(w.push(partition(1, hour), "z")), "[d2]")
	want(t, "x, which was lost", show(w.push(partition(1, hour), "x")), "[3]")
}
