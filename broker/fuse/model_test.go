package fuse_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// weather decides by a seed what goes wrong around a fuser.
type weather struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (w *weather) chance(percent int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(100) < percent
}

func (w *weather) below(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

// TestModel runs producers with repeating ids against a database that is busy, fails, loses answers, forgets
// partitions, and is written by others, and holds every verdict against what is stored. The fake itself reports a
// watermark that vouched for too much.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		window := rapid.SampledFrom([]time.Duration{0, 50 * time.Millisecond, time.Hour}).Draw(t, "window")
		parts := rapid.Int64Range(1, 6).Draw(t, "partitions")
		pool := rapid.IntRange(2, 40).Draw(t, "ids")
		cfg := fuse.Config{
			MaxBundlePartitions: rapid.IntRange(1, 4).Draw(t, "bundle partitions"),
			MaxBundleBytes:      rapid.Int64Range(1, 2000).Draw(t, "bundle bytes"),
			DedupCacheBytes:     rapid.SampledFrom([]int64{-1, 1, 2000, 1 << 20}).Draw(t, "cache bytes"),
		}
		trouble := rapid.IntRange(0, 20).Draw(t, "trouble")
		sky := &weather{rng: rand.New(rand.NewPCG(seed, 1))}

		db := newFake(t)
		for p := range parts {
			db.parts[p] = &fakePart{}
		}
		db.enter = func(_ int, _ bool, segs []store.Segment) error {
			p := segs[sky.below(len(segs))].PartitionID
			switch {
			case sky.chance(trouble):
				db.mu.Lock()
				db.busy[p] = sky.below(5)
				db.mu.Unlock()
			case sky.chance(trouble):
				db.foreign(p, fmt.Sprint("f", sky.below(1e9)), fmt.Sprint("f", sky.below(1e9)))
			case sky.chance(trouble):
				db.advance(20 * time.Millisecond)
			case sky.chance(trouble):
				return []error{&pgconn.PgError{Code: "40P01"}, &pgconn.PgError{Code: "57014"}, &pgconn.PgError{Code: "22023"}, &pgconn.PgError{Code: "57P03"}}[sky.below(4)]
			}
			return nil
		}
		db.lost = func(int) error {
			if sky.chance(trouble / 4) {
				return io.ErrUnexpectedEOF
			}
			return nil
		}
		db.reads = func(int64) error {
			if sky.chance(trouble) {
				return io.ErrUnexpectedEOF
			}
			return nil
		}

		announced := map[int64]int64{}
		f := fuse.New(slog.New(slog.DiscardHandler), db, cfg, func(ls []fuse.Landed) {
			db.mu.Lock()
			defer db.mu.Unlock()
			for _, l := range ls {
				announced[l.Partition] += int64(l.Count)
			}
		})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()

		type verdict struct {
			partition int64
			id        string
			fuse.Result
		}
		var all []verdict
		var mu sync.Mutex
		var producers sync.WaitGroup
		for range 8 {
			producers.Go(func() {
				for range 12 {
					p := int64(sky.below(int(parts)))
					ids := make([]string, 1+sky.below(4))
					for i := range ids {
						ids[i] = fmt.Sprint("id", sky.below(pool))
					}
					if sky.chance(trouble / 4) {
						f.Forget([]int64{p})
					}
					out := make([]fuse.Result, len(ids))
					f.Push(partition(p, window), framesOf(ids...), out)
					mu.Lock()
					for i, r := range out {
						all = append(all, verdict{p, ids[i], r})
					}
					mu.Unlock()
				}
			})
		}
		producers.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}

		stored := map[int64]map[int64]bool{} // offsets answered as stored
		var unknown bool
		for _, v := range all {
			p := db.parts[v.partition]
			switch {
			case v.Missing:
				t.Fatalf("partition %d is missing", v.partition)
			case v.Err != nil:
				if e := wireError(v.Err); e.Outcome == wire.OutcomeUnknown {
					unknown = true
				} else if e.Outcome != wire.OutcomeNone {
					t.Fatalf("outcome %q of %v", e.Outcome, e)
				}
				continue
			case v.Offset < 0 || v.Offset >= int64(len(p.messages)) || p.messages[v.Offset] != v.id:
				t.Fatalf("%q was answered as %+v, which is another message", v.id, v.Result)
			case !v.CreatedAt.Equal(p.stamps[v.Offset]):
				t.Fatalf("%q at %d: created at %v, want %v", v.id, v.Offset, v.CreatedAt, p.stamps[v.Offset])
			case v.Duplicate:
				continue
			case stored[v.partition][v.Offset]:
				t.Fatalf("offset %d of partition %d was given to two messages", v.Offset, v.partition)
			}
			if stored[v.partition] == nil {
				stored[v.partition] = map[int64]bool{}
			}
			stored[v.partition][v.Offset] = true
		}
		for id, p := range db.parts {
			ours, last := int64(0), map[string]int{}
			for off, m := range p.messages {
				if p.payloads[off] == "" {
					continue // another broker's
				}
				ours++
				if before, seen := last[m]; seen && window > 0 && p.stamps[off].Sub(p.stamps[before]) < window {
					t.Fatalf("partition %d: %q is stored at %d and %d", id, m, before, off)
				}
				last[m] = off
			}
			if got := int64(len(stored[id])); got > ours || got < ours && !unknown {
				t.Fatalf("partition %d: %d messages stored, %d answered as stored", id, ours, got)
			}
			if got := announced[id]; got > ours || got < ours && !unknown {
				t.Fatalf("partition %d: %d messages stored, %d announced", id, ours, got)
			}
		}
		if s := f.Stats(); s.Pending != 0 || s.PendingBytes != 0 || s.InFlight != 0 || s.Reading != 0 {
			t.Fatalf("at rest: %+v", s)
		}
	})
}

// One producer that waits for its answers sees its messages in its order.
func TestOrderOfOneProducer(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sky := &weather{rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))}
		db := newFake(t, 1)
		db.enter = func(_ int, _ bool, segs []store.Segment) error {
			if sky.chance(30) {
				db.mu.Lock()
				db.busy[1] = sky.below(5)
				db.mu.Unlock()
			}
			if sky.chance(10) {
				return &pgconn.PgError{Code: []string{"57014", "40001"}[sky.below(2)]}
			}
			return nil
		}
		f := fuse.New(slog.New(slog.DiscardHandler), db, fuse.Config{MaxBundleBytes: 300}, func([]fuse.Landed) {})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		var producers sync.WaitGroup
		for who := range 4 {
			producers.Go(func() {
				for n := range 10 {
					f.Push(partition(1, hour), framesOf(fmt.Sprintf("%d/%02d/a", who, n), fmt.Sprintf("%d/%02d/b", who, n)), make([]fuse.Result, 2))
				}
			})
		}
		producers.Wait()
		cancel()
		<-ended
		var of [4][]string
		for _, m := range db.parts[1].messages {
			of[m[0]-'0'] = append(of[m[0]-'0'], m)
		}
		for who, ms := range of {
			if !slices.IsSorted(ms) {
				t.Fatalf("messages of producer %d are stored as %v", who, ms)
			}
		}
	})
}

// instant answers every push at once.
type instant struct {
	mu   sync.Mutex
	last map[int64]int64
	at   time.Time
}

func (db *instant) PushBundle(_ context.Context, segs []store.Segment) ([]store.PushVerdict, error) {
	vs := make([]store.PushVerdict, len(segs))
	db.mu.Lock()
	defer db.mu.Unlock()
	for i, s := range segs {
		base := db.last[s.PartitionID]
		db.last[s.PartitionID] = base + int64(s.Count)
		vs[i] = store.PushVerdict{Base: base, CreatedAt: db.at, LastOffset: base + int64(s.Count) - 1}
	}
	return vs, nil
}

func (db *instant) PushBundleWait(ctx context.Context, segs []store.Segment) ([]store.PushVerdict, error) {
	return db.PushBundle(ctx, segs)
}

func (db *instant) Sidecar(_ context.Context, p int64, _ time.Duration, _ int64, _ func(store.SidecarRow)) (store.Watermark, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	return store.Watermark{Offset: db.last[p] - 1}, nil
}

// BenchmarkFuser pushes from 64 producers through a database that costs nothing: ns/op is the fuser's own cost per
// push.
func BenchmarkFuser(b *testing.B) {
	for _, window := range []time.Duration{0, time.Hour} {
		for _, batch := range []int{1, 100} {
			for _, parts := range []int{1, 64} {
				b.Run(fmt.Sprintf("window=%v/batch=%d/partitions=%d", window, batch, parts), func(b *testing.B) {
					db := &instant{last: map[int64]int64{}, at: time.Now()}
					f := fuse.New(slog.New(slog.DiscardHandler), db, fuse.Config{}, func([]fuse.Landed) {})
					ctx, cancel := context.WithCancel(context.Background())
					ended := make(chan error, 1)
					go func() { ended <- f.Run(ctx) }()
					b.ReportAllocs()
					b.ResetTimer()
					var producers sync.WaitGroup
					for who := range 64 {
						producers.Go(func() {
							p := partition(int64(who%parts), window)
							frames := make([]segment.Frame, batch)
							ids := make([][]byte, batch)
							for i := range frames {
								ids[i] = fmt.Appendf(nil, "%02d/%03d/0000000000000000", who, i)
								frames[i].Payload = make([]byte, 256)
							}
							out := make([]fuse.Result, batch)
							for n := range b.N / 64 {
								for i := range frames {
									id := fmt.Appendf(ids[i][:7], "%016d", n)
									frames[i].TransactionID = string(id)
								}
								f.Push(p, frames, out)
							}
						})
					}
					producers.Wait()
					b.StopTimer()
					s := f.Stats()
					b.ReportMetric(float64(s.Stored)/float64(max(1, s.Flushes)), "msgs/flush")
					cancel()
					<-ended
				})
			}
		}
	}
}
