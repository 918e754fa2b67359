package fuse_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

func wireError(err error) *wire.Error {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return &wire.Error{Code: "not a wire error"}
	}
	return e
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// gate holds the first call until it is opened and tells when that call has come.
type gate struct{ reached, open chan struct{} }

func newGate(db *fakeDB) gate {
	g := gate{make(chan struct{}), make(chan struct{})}
	db.enter = func(n int, _ bool, _ []store.Segment) error {
		if n == 0 {
			close(g.reached)
			<-g.open
		}
		return nil
	}
	return g
}

func TestALonePushIsStored(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	w := start(t, db, fuse.Config{})
	rs := w.push(partition(1, hour), "a", "b")
	want(t, "results", show(rs), "[0 1]")
	if !rs[1].CreatedAt.Equal(db.clock) {
		t.Errorf("created at %v, want %v", rs[1].CreatedAt, db.clock)
	}
	want(t, "announcement", w.landed, [][]fuse.Landed{{{Partition: 1, QueueID: 10, Tenant: someTenant, Queue: "q1", LastOffset: 1, Count: 2}}})
	w.push(partition(1, hour))
}

func TestWhatArrivesDuringAFlushSharesTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1, 2, 3)
		g := newGate(db)
		w := start(t, db, fuse.Config{})
		first := w.begin(partition(1, 0), "a")
		<-g.reached
		var rest []func() []fuse.Result
		for i, id := range []string{"b", "c", "d", "e"} {
			rest = append(rest, w.begin(partition(int64(i%3)+1, 0), id))
		}
		close(g.open)
		want(t, "first", show(first()), "[0]")
		got := ""
		for _, r := range rest {
			got += show(r())
		}
		want(t, "verdicts", got, "[1][0][0][2]")
		want(t, "offers", db.offers(), []string{"1@-1[a]", "2@-1[c] 3@-1[d] 1@-1[b e]"})
		want(t, "announcements", len(w.landed), 2)
		w.stop()
	})
}

func TestWhatNoFlushHasTakenIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1, 2, 3)
		g := newGate(db)
		w := start(t, db, fuse.Config{})
		flying := w.begin(partition(1, 0), "a")
		<-g.reached
		away := &wire.Error{Code: wire.DatabaseUnavailable, Outcome: wire.OutcomeNone}
		for range 2 { // lanes that were emptied are of use again
			other := partition(3, 0)
			other.Tenant = uuid.New()
			behind := []func() []fuse.Result{w.begin(partition(1, 0), "b"), w.begin(partition(2, 0), "c", "d"), w.begin(other, "e")}
			w.GiveBack(away)
			for i, r := range behind {
				for _, v := range r() {
					if v.Err != error(away) {
						t.Errorf("push %d behind the flush: %+v", i, v)
					}
				}
			}
		}
		after := w.begin(partition(2, 0), "f")
		close(g.open)
		want(t, "in flight", show(flying()), "[0]")
		want(t, "afterwards", show(after()), "[0]")
		want(t, "the lane that was emptied", show(w.push(partition(1, 0), "g")), "[1]")
		want(t, "offers", db.offers(), []string{"1@-1[a]", "2@-1[f]", "1@-1[g]"})
		if s := w.Stats(); s.Pending != 0 || s.PendingBytes != 0 {
			t.Errorf("%d pushes and %d bytes are pending in the end", s.Pending, s.PendingBytes)
		}
		w.stop()
	})
}

func TestBundlesAreBounded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		cfg  fuse.Config
		want []string
	}{
		"by partitions":               {fuse.Config{MaxBundlePartitions: 2}, []string{"9@-1[a]", "1@-1[b] 2@-1[c]", "3@-1[d]"}},
		"by bytes":                    {fuse.Config{MaxBundleBytes: 200}, []string{"9@-1[a]", "1@-1[b] 2@-1[c]", "3@-1[d]"}},
		"a push larger than a bundle": {fuse.Config{MaxBundleBytes: 1}, []string{"9@-1[a]", "1@-1[b]", "2@-1[c]", "3@-1[d]"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := newFake(t, 1, 2, 3, 9)
				g := newGate(db)
				w := start(t, db, tt.cfg)
				waits := []func() []fuse.Result{w.begin(partition(9, 0), "a")}
				<-g.reached
				for i, id := range []string{"b", "c", "d"} {
					waits = append(waits, w.begin(partition(int64(i)+1, 0), id))
				}
				close(g.open)
				for _, wait := range waits {
					wait()
				}
				want(t, "offers", db.offers(), tt.want)
				w.stop()
			})
		})
	}
}

func TestASecondFlushLeavesOnlyWhenTheFirstIsSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1, 2)
		db.enter = func(n int, _ bool, segs []store.Segment) error {
			switch {
			case n < 40:
				time.Sleep(2 * time.Millisecond) // the usual round trip
			case segs[0].PartitionID == 1:
				time.Sleep(10 * time.Second)
			}
			return nil
		}
		w := start(t, db, fuse.Config{})
		for i := range 40 {
			w.push(partition(1, 0), fmt.Sprint(i))
		}
		began := time.Now()
		slow := w.begin(partition(1, 0), "slow")
		synctest.Wait()
		w.push(partition(2, 0), "quick")
		took := time.Since(began)
		if took < 4*time.Millisecond || took > 100*time.Millisecond {
			t.Errorf("the second flush left after %v: want several times the usual 2ms, and not the 10s of the first", took)
		}
		want(t, "seconds", w.Stats().Seconds, uint64(1))
		w.push(partition(2, 0), "quick again") // the slow one is still in flight
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("the third push took %v", took)
		}
		slow()
		w.stop()
	})
}

func TestRepeatsInOneSegmentInherit(t *testing.T) {
	t.Parallel()
	const unknown = "database_unavailable/unknown"
	for name, tt := range map[string]struct {
		prepare func(db *fakeDB)
		a, b    string
	}{
		"a stored leader":                   {func(*fakeDB) {}, "[0 1 d0]", "[d1 2]"},
		"a leader that was stored before":   {func(db *fakeDB) { db.foreign(1, "w", "x") }, "[d1 2 d1]", "[d2 3]"},
		"a leader whose partition vanished": {func(db *fakeDB) { delete(db.parts, 1) }, "[missing missing missing]", "[missing missing]"},
		"a leader that must not be plain":   {func(db *fakeDB) { db.closed[1] = true }, "[missing missing missing]", "[missing missing]"},
		"a leader that fails": {func(db *fakeDB) {
			db.lost = func(n int) error {
				if n == 1 {
					return io.ErrUnexpectedEOF
				}
				return nil
			}
		}, "[" + unknown + " " + unknown + " " + unknown + "]", "[" + unknown + " " + unknown + "]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := newFake(t, 1, 2)
				tt.prepare(db)
				g := newGate(db)
				w := start(t, db, fuse.Config{DedupCacheBytes: -1})
				first := w.begin(partition(2, 0), "first")
				<-g.reached
				a := w.begin(partition(1, hour), "x", "y", "x")
				b := w.begin(partition(1, hour), "y", "z")
				close(g.open)
				first()
				want(t, "the first request", show(a()), tt.a)
				want(t, "the second request", show(b()), tt.b)
				w.stop()
			})
		})
	}
}

func TestManyRepeatsInOneSegment(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	w := start(t, db, fuse.Config{})
	var ids []string
	for i := range 3000 {
		ids = append(ids, fmt.Sprint(i%1000))
	}
	rs := w.push(partition(1, 0), ids...)
	for i, r := range rs {
		if r.Offset != int64(i%1000) || r.Duplicate != (i >= 1000) {
			t.Fatalf("frame %d: %+v", i, r)
		}
	}
	want(t, "followers", w.Stats().Followers, uint64(2000))
}

func TestSurvivorsOfADuplicateVerdictAreSentAgain(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	db.foreign(1, "a", "b", "c")
	w := start(t, db, fuse.Config{DedupCacheBytes: -1})
	want(t, "results", show(w.push(partition(1, hour), "new", "b", "newer", "a")), "[3 d1 4 d0]")
	want(t, "offers", db.offers(), []string{"1@-1[new b newer a]", "1@2[new newer]"})
	want(t, "only duplicates need no second call", show(w.push(partition(1, hour), "a", "new")), "[d0 d3]")
	want(t, "calls", len(db.offers()), 3)
}

func TestABusyPartitionRidesAlongAndThenWaitsAlone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		busy int
		want []string
	}{
		"busy once":     {1, []string{"1@-1[a]", "1@-1[a]"}},
		"busy twice":    {2, []string{"1@-1[a]", "1@-1[a]", "1@-1[a]"}},
		"busy for long": {9, []string{"1@-1[a]", "1@-1[a]", "1@-1[a]", "wait 1@-1[a]"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newFake(t, 1)
			db.busy[1] = tt.busy
			w := start(t, db, fuse.Config{})
			want(t, "results", show(w.push(partition(1, 0), "a")), "[0]")
			want(t, "offers", db.offers(), tt.want)
		})
	}
}

func TestNobodyWaitsWithALaneThatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1, 2)
		db.busy[1] = 3
		open := make(chan struct{})
		db.enter = func(_ int, wait bool, _ []store.Segment) error {
			if wait {
				<-open
			}
			return nil
		}
		w := start(t, db, fuse.Config{})
		held := w.begin(partition(1, 0), "a")
		synctest.Wait()
		behind := w.begin(partition(1, 0), "b")
		want(t, "the other partition", show(w.push(partition(2, 0), "c")), "[0]")
		close(open)
		want(t, "held", show(held()), "[0]")
		want(t, "behind it", show(behind()), "[1]")
		w.stop()
	})
}

func TestWaitingInVainIsOnlyADelay(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	db.busy[1] = 3
	db.enter = func(_ int, wait bool, _ []store.Segment) error {
		if wait {
			return &pgconn.PgError{Code: "55P03"}
		}
		return nil
	}
	w := start(t, db, fuse.Config{})
	rs := w.push(partition(1, 0), "a")
	want(t, "results", show(rs), "[database_unavailable/none]")
	if e := wireError(rs[0].Err); e.RetryAfter <= 0 {
		t.Errorf("no Retry-After: %v", e)
	}
	want(t, "afterwards", show(w.push(partition(1, 0), "a")), "[0]")
}

func TestOnlyTheCulpritOfAPermanentErrorFails(t *testing.T) {
	t.Parallel()
	poison := func(segs []store.Segment) error {
		for _, s := range segs {
			r, err := segment.Open(s.Blob)
			if err != nil {
				return err
			}
			for i := range r.Len() {
				if strings.HasPrefix(r.Frame(i).TransactionID, "poison") {
					return &pgconn.PgError{Code: "22023"}
				}
			}
		}
		return nil
	}
	for name, tt := range map[string]struct {
		pushes map[int64][][]string
		want   map[int64][]string
	}{
		"among partitions": {
			map[int64][][]string{1: {{"a"}}, 2: {{"poison"}}, 3: {{"b", "c"}}, 4: {{"d"}}, 5: {{"e"}}},
			map[int64][]string{1: {"[0]"}, 2: {"[internal/none]"}, 3: {"[0 1]"}, 4: {"[0]"}, 5: {"[0]"}},
		},
		"among the requests of one partition": {
			map[int64][][]string{1: {{"a", "b"}, {"poison", "c"}, {"d"}, {"e"}}},
			map[int64][]string{1: {"[0 1]", "[internal/none internal/none]", "[2]", "[3]"}},
		},
		"two in different partitions": {
			map[int64][][]string{1: {{"poison1"}, {"a"}}, 2: {{"b"}}, 3: {{"c"}, {"poison2"}}},
			map[int64][]string{1: {"[internal/none]", "[0]"}, 2: {"[0]"}, 3: {"[0]", "[internal/none]"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := newFake(t, 1, 2, 3, 4, 5, 99)
				g := newGate(db)
				enter := db.enter
				db.enter = func(n int, wait bool, segs []store.Segment) error {
					return errors.Join(enter(n, wait, segs), poison(segs))
				}
				w := start(t, db, fuse.Config{})
				first := w.begin(partition(99, 0), "first")
				<-g.reached
				waits := map[int64][]func() []fuse.Result{}
				for p, pushes := range tt.pushes {
					for _, ids := range pushes {
						waits[p] = append(waits[p], w.begin(partition(p, 0), ids...))
					}
				}
				close(g.open)
				first()
				got := map[int64][]string{}
				for p, ws := range waits {
					for _, wait := range ws {
						got[p] = append(got[p], show(wait()))
					}
				}
				want(t, "results", got, tt.want)
				w.stop()
			})
		})
	}
}

func TestASystemicErrorIsNotSearchedForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 99)
		g := newGate(db)
		enter := db.enter
		db.enter = func(n int, wait bool, segs []store.Segment) error {
			if n > 0 {
				return &pgconn.PgError{Code: "42883"}
			}
			return enter(n, wait, segs)
		}
		w := start(t, db, fuse.Config{})
		waits := []func() []fuse.Result{w.begin(partition(99, 0), "first")}
		<-g.reached
		for p := range int64(200) {
			waits = append(waits, w.begin(partition(p, 0), "a"))
		}
		close(g.open)
		for i, wait := range waits {
			if got := show(wait()); i > 0 && got != "[internal/none]" {
				t.Errorf("push %d: %s", i, got)
			}
		}
		if n := len(db.offers()); n > 100 {
			t.Errorf("%d calls for 200 partitions", n)
		}
		w.stop()
	})
}

func TestErrorsOfAWholeBundle(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		errs []error // of the first calls
		want string
		n    int
	}{
		"a lost answer is unknown and not repeated":  {[]error{io.ErrUnexpectedEOF}, "[database_unavailable/unknown]", 1},
		"a refused dial is none and not repeated":    {[]error{&pgconn.ConnectError{}}, "[database_unavailable/none]", 1},
		"a starting server is none and not repeated": {[]error{&pgconn.PgError{Code: "57P03"}}, "[database_unavailable/none]", 1},
		"a terminated session is unknown":            {[]error{&pgconn.PgError{Code: "57P01"}}, "[database_unavailable/unknown]", 1},
		"a deadlock is repeated":                     {[]error{&pgconn.PgError{Code: "40P01"}, &pgconn.PgError{Code: "40001"}}, "[0]", 3},
		"a deadlock is not repeated for ever":        {slices.Repeat([]error{&pgconn.PgError{Code: "40P01"}}, 9), "[internal/none]", 4},
		"a statement over its bound has another try": {[]error{&pgconn.PgError{Code: "57014"}}, "[0]", 2},
		"a statement over its bound has no third":    {slices.Repeat([]error{&pgconn.PgError{Code: "57014"}}, 3), "[database_unavailable/none]", 2},
		"a verdict of the store is passed on":        {[]error{wire.Errorf(wire.PushBlocked, "no")}, "[push_blocked/]", 1},
		"an error nobody knows is unknown":           {[]error{errors.New("?")}, "[internal/unknown]", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newFake(t, 1)
			db.enter = func(n int, _ bool, _ []store.Segment) error {
				if n < len(tt.errs) {
					return tt.errs[n]
				}
				return nil
			}
			w := start(t, db, fuse.Config{})
			want(t, "results", show(w.push(partition(1, 0), "a")), tt.want)
			want(t, "calls", len(db.offers()), tt.n)
		})
	}
}

func TestAWholeProbeThatRanOutOfTimeGoesAlone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		errs int
		want string
	}{
		"and has all the time there is": {1, "[0]"},
		"and fails alone":               {2, "[database_unavailable/none]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := newFake(t, 1, 2, 3)
				g := newGate(db)
				enter := db.enter
				failed := 0
				db.enter = func(n int, wait bool, segs []store.Segment) error {
					if failed < tt.errs && slices.ContainsFunc(segs, func(s store.Segment) bool { return s.PartitionID == 1 }) {
						failed++
						return &pgconn.PgError{Code: "57014"}
					}
					return enter(n, wait, segs)
				}
				w := start(t, db, fuse.Config{DedupCacheBytes: -1})
				first := w.begin(partition(3, 0), "first")
				<-g.reached
				heavy, light := w.begin(partition(1, hour), "a"), w.begin(partition(2, 0), "b")
				close(g.open)
				first()
				want(t, "heavy", show(heavy()), tt.want)
				want(t, "light", show(light()), "[0]")
				if offers := db.offers(); offers[1] != "1@-1[a] 2@-1[b]" || !slices.Contains(offers[2:], "wait 1@-1[a]") || !slices.Contains(offers[2:], "2@-1[b]") {
					t.Errorf("offers %q", offers)
				}
				w.stop()
			})
		})
	}
}

func TestAPanickingDatabaseFailsThePushesOnly(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	db.enter = func(n int, _ bool, _ []store.Segment) error {
		if n == 0 {
			panic("boom")
		}
		return nil
	}
	w := start(t, db, fuse.Config{})
	want(t, "results", show(w.push(partition(1, 0), "a", "b", "a")), "[internal/unknown internal/unknown internal/unknown]")
	want(t, "afterwards", show(w.push(partition(1, 0), "a")), "[0]")
}

func TestVerdictsThatMakeNoSenseFail(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		verdicts []store.PushVerdict
		want     string
	}{
		"too few":                        {nil, "[internal/unknown]"},
		"a status from the future":       {[]store.PushVerdict{{Status: 77}}, "[internal/unknown]"},
		"a duplicate without a frame":    {[]store.PushVerdict{{Status: store.PushDuplicate}}, "[internal/none]"},
		"a duplicate of another segment": {[]store.PushVerdict{{Status: store.PushDuplicate, Dups: []store.Dup{{Frame: 5}, {Frame: -1}}}}, "[internal/none]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{Fuser: fuse.New(slog.New(slog.DiscardHandler), answering(tt.verdicts), fuse.Config{}, func([]fuse.Landed) {})}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- w.Run(ctx) }()
			want(t, "results", show(w.push(partition(1, 0), "a")), tt.want)
			cancel()
			<-ended
		})
	}
}

type answering []store.PushVerdict

func (a answering) PushBundle(context.Context, []store.Segment) ([]store.PushVerdict, error) {
	return a, nil
}

func (a answering) PushBundleWait(context.Context, []store.Segment) ([]store.PushVerdict, error) {
	return a, nil
}

func (answering) Sidecar(context.Context, int64, time.Duration, int64, func(store.SidecarRow)) (store.Watermark, error) {
	return store.Watermark{Offset: -1}, nil
}

func TestPendingBytesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1)
		g := newGate(db)
		w := start(t, db, fuse.Config{MaxPendingBytes: 500})
		first := w.begin(partition(1, 0), "a")
		<-g.reached
		second := w.begin(partition(1, 0), "b", "c")
		rs := w.push(partition(1, 0), "d", "e")
		want(t, "over the bound", show(rs), "[broker_overloaded/ broker_overloaded/]")
		if e := wireError(rs[0].Err); e.RetryAfter <= 0 {
			t.Errorf("no Retry-After: %v", e)
		}
		close(g.open)
		first()
		second()
		big := make([]string, 50)
		for i := range big {
			big[i] = fmt.Sprint("big", i)
		}
		rs = w.push(partition(1, 0), big...)
		want(t, "a push that is too big for the bound passes alone", rs[49].Err, nil)
		want(t, "pending bytes at rest", w.Stats().PendingBytes, int64(0))
		w.stop()
	})
}

func TestFramesThatNoSegmentCanHoldAreRefused(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1)
	w := start(t, db, fuse.Config{})
	want(t, "results", show(w.push(partition(1, 0), "a", strings.Repeat("x", 1<<16))), "[invalid_request/ invalid_request/]")
	want(t, "calls", len(db.offers()), 0)
}

func TestTheEndOfRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1, 2)
		g := newGate(db)
		w := start(t, db, fuse.Config{})
		before := w.begin(partition(1, 0), "a")
		<-g.reached
		queued := w.begin(partition(2, 0), "b")
		stopped := make(chan struct{})
		go func() { w.stop(); close(stopped) }()
		synctest.Wait()
		want(t, "a push after the end", show(w.push(partition(1, 0), "late")), "[draining/]")
		select {
		case <-stopped:
			t.Error("Run returned before accepted pushes were answered")
		default:
		}
		close(g.open)
		want(t, "in flight", show(before()), "[0]")
		want(t, "accepted", show(queued()), "[0]")
		<-stopped
		want(t, "a push after Run", show(w.push(partition(1, 0), "late")), "[draining/]")
		if err := w.Run(context.Background()); err == nil {
			t.Error("a second Run returned nil")
		}
	})
}

func TestPushesBeforeRunAreAnsweredOnceItRuns(t *testing.T) {
	t.Parallel()
	db := newFake(t, 1, 2)
	f := fuse.New(slog.New(slog.DiscardHandler), db, fuse.Config{}, func([]fuse.Landed) {})
	w := &world{Fuser: f}
	a, b := w.begin(partition(1, 0), "a"), w.begin(partition(2, hour), "b")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.Run(ctx) }()
	want(t, "without a window", show(a()), "[0]")
	want(t, "with a window", show(b()), "[0]")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
