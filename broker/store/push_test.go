package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/wire"
)

func TestPushAllocatesOffsetsFromZero(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	before := time.Now().Add(-time.Minute)
	for i, want := range []struct{ base, last int64 }{{0, 1}, {2, 2}, {3, 5}} {
		ids := []string{"x", "y", "z"}[:want.last-want.base+1]
		s := w.segment(p, ids...)
		s.DedupWindow = 0
		v := w.push(s)[0]
		if v.Status != PushStored || v.Base != want.base || v.LastOffset != want.last {
			t.Fatalf("push %d: got %+v, want base %d and last %d", i, v, want.base, want.last)
		}
		if v.CreatedAt.Before(before) || v.CreatedAt.After(time.Now().Add(time.Minute)) {
			t.Fatalf("push %d: stamped %v", i, v.CreatedAt)
		}
	}
	w.checkLog(p)
}

// Everything about a segment is read back as it was offered.
func TestPushStoresWhatItWasGiven(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	for _, size := range []int{0, 1, 3000, 3 << 20} {
		s := w.segment(p, fmt.Sprint(size), fmt.Sprint(size, "b"))
		s.Blob = make([]byte, size)
		for i := range s.Blob {
			s.Blob[i] = byte(rand.Uint32())
		}
		s.RawBytes = int64(size) + 7
		v := w.push(s)[0]
		var blob, hashes []byte
		var end, raw int64
		var segAt, txnAt time.Time
		err := w.pool.QueryRow(t.Context(), `SELECT s.blob, t.hashes, s.end_offset, s.raw_bytes, s.created_at, t.created_at
			FROM queen.log_segments s JOIN queen.log_txns t USING (partition_id, base_offset, end_offset)
			WHERE partition_id = $1 AND base_offset = $2`, p.ID, v.Base).Scan(&blob, &hashes, &end, &raw, &segAt, &txnAt)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(blob, s.Blob) || !slices.Equal(hashes, s.Hashes) || end != v.Base+1 || raw != s.RawBytes ||
			!segAt.Equal(v.CreatedAt) || !txnAt.Equal(v.CreatedAt) {
			t.Fatalf("%d bytes: read back %d bytes, end %d, raw %d, %v and %v; verdict %+v", size, len(blob), end, raw, segAt, txnAt, v)
		}
	}
}

// One segment's fate is its own: busy, missing and duplicate ones leave the rest of the bundle stored, and verdicts
// keep the order of the input whatever the order of the partitions.
func TestBundleSegmentsStandForThemselves(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	var ps []Partition
	for i := range 5 {
		ps = append(ps, w.partition("q", fmt.Sprint(i)))
	}
	gone := ps[3]
	if got, err := w.DeletePartitions(t.Context(), w.tenant, []int64{gone.ID}); err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	w.push(w.segment(ps[1], "seen"))
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) // releases the row when the test fails half-way
	if _, err := tx.Exec(t.Context(), "SELECT FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE", ps[2].ID); err != nil {
		t.Fatal(err)
	}

	vs := w.push(w.segment(ps[4], "d"), w.segment(gone, "c"), w.segment(ps[2], "b"), w.segment(ps[1], "new", "seen"), w.segment(ps[0], "a"))
	var got []PushStatus
	for _, v := range vs {
		got = append(got, v.Status)
	}
	if want := []PushStatus{PushStored, PushMissing, PushBusy, PushDuplicate, PushStored}; !slices.Equal(got, want) {
		t.Fatalf("statuses: got %v, want %v", got, want)
	}
	if d := vs[3].Dups; len(d) != 1 || d[0].Frame != 1 || d[0].Offset != 0 || vs[3].LastOffset != 0 {
		t.Fatalf("duplicate: got %+v", vs[3])
	}
	if n := w.count("SELECT count(*) FROM queen.log_segments"); n != 3 {
		t.Fatalf("segments: got %d, want 3", n)
	}
	for _, p := range []Partition{ps[0], ps[1], ps[2], ps[4]} {
		w.checkLog(p)
	}
}

func TestPushWaitTakesABusyPartitionWhenItIsFree(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "SELECT FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE", p.ID); err != nil {
		t.Fatal(err)
	}
	if v := w.push(w.segment(p, "a"))[0]; v.Status != PushBusy {
		t.Fatalf("without waiting: got %+v", v)
	}
	done := make(chan PushVerdict)
	go func() {
		vs, err := w.PushBundleWait(t.Context(), []Segment{w.segment(p, "a")})
		if err != nil {
			t.Error(err)
			vs = make([]PushVerdict, 1)
		}
		done <- vs[0]
	}()
	w.awaitLockWait()
	select {
	case v := <-done:
		t.Fatalf("did not wait: %+v", v)
	default:
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v := <-done; v.Status != PushStored || v.LastOffset != 0 {
		t.Fatalf("after the wait: got %+v", v)
	}
}

func TestPushWaitThatRunsOutIsBusy(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	cfg := w.pool.Config()
	cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SET lock_timeout = '20ms'")
		return err
	}
	impatient := New(openPool(t, cfg))
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "SELECT FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE", p.ID); err != nil {
		t.Fatal(err)
	}
	vs, err := impatient.PushBundleWait(t.Context(), []Segment{w.segment(p, "a")})
	if err != nil || vs[0].Status != PushBusy {
		t.Fatalf("got %+v, %v", vs, err)
	}
}

func TestPushRefusesWhatItCouldNotAnswer(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	short := w.segment(p, "a", "b")
	short.Hashes = short.Hashes[:16]
	for rule, segs := range map[string][]Segment{
		"a partition occurs once":        {w.segment(p, "a"), w.segment(p, "b")},
		"a hash for every frame":         {short},
		"a segment has at least a frame": {w.segment(p)},
	} {
		_, err := w.PushBundle(t.Context(), segs)
		if e := wire.AsError(err); err == nil || e.Outcome == wire.OutcomeUnknown {
			t.Errorf("%s: got %v", rule, err)
		}
	}
	if vs, err := w.PushBundle(t.Context(), nil); vs != nil || err != nil {
		t.Errorf("an empty bundle: got %v, %v", vs, err)
	}
	w.checkLog(p)
}

// A commit is not cancelled by its caller: once a connection is there, the push runs to its verdict.
func TestPushIgnoresCancelOnceItRuns(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "SELECT FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE", p.ID); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		vs, err := w.PushBundleWait(ctx, []Segment{w.segment(p, "a")})
		if err == nil && vs[0].Status != PushStored {
			err = fmt.Errorf("verdict %+v", vs[0])
		}
		done <- err
	}()
	w.awaitLockWait()
	cancel()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := w.PushBundle(ctx, []Segment{w.segment(p, "b")}); wire.AsError(err) == nil || wire.AsError(err).Outcome != wire.OutcomeNone {
		t.Fatalf("with a dead context before it begins: got %v, want outcome none", err)
	}
}

// Offsets are gapless and stamps monotone under many pushers that share partitions in different orders.
func TestConcurrentPushersKeepOffsetsGapless(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	var ps []Partition
	for i := range 6 {
		ps = append(ps, w.partition("q", fmt.Sprint(i)))
	}
	const pushers, rounds = 8, 25
	var wg sync.WaitGroup
	for g := range pushers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(g)))
			for r := range rounds {
				var segs []Segment
				for _, i := range rnd.Perm(len(ps))[:1+rnd.IntN(len(ps))] {
					var ids []string
					for k := range 1 + rnd.IntN(4) {
						ids = append(ids, fmt.Sprint(g, r, i, k))
					}
					segs = append(segs, w.segment(ps[i], ids...))
				}
				push := w.PushBundle
				for len(segs) > 0 {
					vs, err := push(t.Context(), segs)
					if err != nil {
						t.Error(err)
						return
					}
					var busy []Segment
					for i, v := range vs {
						switch v.Status {
						case PushStored:
							if v.LastOffset != v.Base+int64(segs[i].Count)-1 {
								t.Errorf("verdict %+v for %d frames", v, segs[i].Count)
							}
						case PushBusy:
							busy = append(busy, segs[i])
						default:
							t.Errorf("unexpected verdict %+v", v)
						}
					}
					segs, push = busy, w.PushBundleWait
				}
			}
		})
	}
	wg.Wait()
	for _, p := range ps {
		w.checkLog(p)
	}
	if got, want := w.usage().RetainedBytes, w.count("SELECT sum(raw_bytes)::bigint FROM queen.log_segments"); got != want {
		t.Errorf("retained bytes: got %d, want %d", got, want)
	}
}

// A clock that stepped back does not take created_at along.
func TestStampsNeverFall(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	w.push(w.segment(p, "a"))
	future := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	w.exec("UPDATE queen.log_partitions SET last_created_at = $2 WHERE id = $1", p.ID, future)
	w.exec("UPDATE queen.log_segments SET created_at = $2 WHERE partition_id = $1", p.ID, future)
	w.exec("UPDATE queen.log_txns SET created_at = $2 WHERE partition_id = $1", p.ID, future)
	if v := w.push(w.segment(p, "b"))[0]; !v.CreatedAt.Equal(future) {
		t.Fatalf("stamp: got %v, want %v", v.CreatedAt, future)
	}
	w.exec("UPDATE queen.log_partitions SET oldest_live_at = $2, oldest_txn_at = $2 WHERE id = $1", p.ID, future)
	w.checkLog(p)
}

// last_write_at moves at most once a second, and each move is logged.
func TestLastWriteMovesOncePerSecond(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	w.push(w.segment(p, "a"))
	w.push(w.segment(p, "b"))
	if n := w.count("SELECT count(*) FROM queen.log_partitions WHERE id = $1 AND last_write_at < last_created_at", p.ID); n != 1 {
		t.Error("the second push within a second moved last_write_at")
	}
	w.exec("UPDATE queen.log_partitions SET last_write_at = last_write_at - interval '1 second' WHERE id = $1", p.ID)
	w.push(w.segment(p, "c"))
	if n := w.count("SELECT count(*) FROM queen.log_partitions WHERE id = $1 AND last_write_at = last_created_at", p.ID); n != 1 {
		t.Error("a push after a second did not move last_write_at")
	}
	if n := w.count("SELECT count(*) FROM queen.log_writes"); n != 2 {
		t.Errorf("%d rows in the log of writes, want one per move", n)
	}
}

// Pushes in fresh seconds are HOT: they leave every index of the partition row alone, whatever the number of partitions.
func TestAPushOfAFreshSecondIsHOT(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	segments := func(id string) (all []Segment) {
		for n := range 8 { // their rows have room on their page
			all = append(all, w.segment(w.partition("q", fmt.Sprint(n)), id))
		}
		return all
	}
	w.push(segments("first")...)
	for _, id := range []string{"a", "b"} {
		w.exec("UPDATE queen.log_partitions SET last_write_at = last_write_at - interval '1 minute'")
		done := w.uses(func(tx pgx.Tx) { pushIn(t, tx, segments(id)) })["log_partitions"]
		if done.updated != 8 || done.hot != done.updated {
			t.Errorf("%d of %d updates of partition rows were HOT, want all of 8", done.hot, done.updated)
		}
	}
	if n := w.count("SELECT count(*) FROM queen.log_writes w, unnest(w.partitions)"); n != 24 {
		t.Errorf("%d writes are logged, want all 24", n)
	}
}

// pushIn pushes in a transaction.
func pushIn(t *testing.T, tx pgx.Tx, segs []Segment) {
	t.Helper()
	var ids, raw, verified, windows []int64
	var counts []int32
	var tenants []uuid.UUID
	var blobs, hashes [][]byte
	for i := range segs {
		s := &segs[i]
		ids, counts, raw = append(ids, s.PartitionID), append(counts, int32(s.Count)), append(raw, s.RawBytes)
		verified, windows, tenants = append(verified, -1), append(windows, s.DedupWindow.Microseconds()), append(tenants, s.Tenant)
		blobs, hashes = append(blobs, s.Blob), append(hashes, s.Hashes)
	}
	var stored int
	err := tx.QueryRow(t.Context(), "SELECT count(*) FILTER (WHERE status = 0) FROM queen.push_bundle(true, $1, $2, $3, $4, $5, $6, $7, $8)",
		ids, counts, raw, verified, windows, tenants, blobs, hashes).Scan(&stored)
	if err != nil || stored != len(segs) {
		t.Fatalf("%d of %d segments are stored, %v", stored, len(segs), err)
	}
}

// checkLog holds the invariants of a partition against its rows.
func (w *writer) checkLog(p Partition) {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context())
	var last, start, bytes, segments int64
	var oldest, oldestTxn, newest *time.Time
	err := w.pool.QueryRow(ctx, `SELECT last_offset, log_start, retained_bytes, segments, oldest_live_at, oldest_txn_at, last_created_at
		FROM queen.log_partitions WHERE id = $1`, p.ID).Scan(&last, &start, &bytes, &segments, &oldest, &oldestTxn, &newest)
	if err != nil {
		w.t.Fatal(err)
	}
	rows, err := w.pool.Query(ctx, `SELECT s.base_offset, s.end_offset, s.created_at, s.raw_bytes, length(t.hashes), t.created_at
		FROM queen.log_segments s JOIN queen.log_txns t USING (partition_id, base_offset, end_offset)
		WHERE partition_id = $1 ORDER BY base_offset`, p.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	next, sum, n := start, int64(0), int64(0)
	var at, txnAt, previous time.Time
	var base, end, raw int64
	var hashes int
	_, err = pgx.ForEachRow(rows, []any{&base, &end, &at, &raw, &hashes, &txnAt}, func() error {
		if base != next || end < base {
			w.t.Errorf("partition %d: segment [%d, %d], want base %d", p.ID, base, end, next)
		}
		if at.Before(previous) || !txnAt.Equal(at) {
			w.t.Errorf("partition %d: segment %d stamped %v after %v, its sidecar %v", p.ID, base, at, previous, txnAt)
		}
		if hashes != 16*int(end-base+1) {
			w.t.Errorf("partition %d: segment %d has %d hash bytes", p.ID, base, hashes)
		}
		if n == 0 && (oldest == nil || oldestTxn == nil || !oldest.Equal(at) || !oldestTxn.Equal(at)) {
			w.t.Errorf("partition %d: first stamp %v, oldest %v and %v", p.ID, at, oldest, oldestTxn)
		}
		next, previous, sum, n = end+1, at, sum+raw, n+1
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if last != next-1 || bytes != sum || segments != n {
		w.t.Errorf("partition %d: last offset %d, %d bytes, %d segments; the log says %d, %d, %d", p.ID, last, bytes, segments, next-1, sum, n)
	}
	if n := w.count(unloggedSQL); n != 0 {
		w.t.Errorf("%d partitions were written without a row in the log of writes", n)
	}
	if n > 0 && !newest.Equal(previous) {
		w.t.Errorf("partition %d: newest stamp %v, last segment's %v", p.ID, newest, previous)
	}
}

// awaitLockWait returns when a session of the database waits for a lock.
func (w *writer) awaitLockWait() {
	w.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); w.count(waitersSQL) == 0; {
		if time.Now().After(deadline) {
			w.t.Fatal("nobody waits for a lock")
		}
	}
}

// unloggedSQL counts the partitions whose last write, as far as the log goes back, is not in it.
const unloggedSQL = `SELECT count(*) FROM queen.log_partitions p WHERE queen.logged_since(p.last_write_at) AND NOT EXISTS (
	SELECT FROM queen.log_writes w WHERE w.written_at = p.last_write_at AND p.id = ANY (w.partitions))`

const waitersSQL = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
