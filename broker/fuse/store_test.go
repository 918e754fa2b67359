package fuse_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

var _ fuse.Pusher = (*store.Store)(nil)

// provision creates n partitions of a queue and returns them with the dedup window.
func provision(t testing.TB, pool *pgxpool.Pool, n int, window time.Duration) (*store.Store, []store.Partition) {
	t.Helper()
	s := store.New(pool)
	pairs := make([]store.Pair, n)
	for i := range pairs {
		pairs[i] = store.Pair{Queue: "orders", Partition: fmt.Sprint("p", i)}
	}
	ps, err := s.Provision(t.Context(), uuid.New(), pairs, store.Caps{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range ps {
		ps[i].DedupWindow = window
	}
	return s, ps
}

func startReal(t testing.TB, s *store.Store) *fuse.Fuser {
	f := fuse.New(slog.New(slog.DiscardHandler), s, fuse.Config{}, func([]fuse.Landed) {})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return f
}

// Two brokers push ids from a small pool into the same partitions: each id is stored once, and everybody is told where.
func TestTwoFusersOnOneDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	s, ps := provision(t, pool, 4, time.Hour)
	fusers := []*fuse.Fuser{startReal(t, s), startReal(t, s)}

	type key struct {
		partition int64
		id        string
	}
	var mu sync.Mutex
	first := map[key]int64{}
	placed := map[key][]fuse.Result{}
	var producers sync.WaitGroup
	for who := range 16 {
		producers.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(who)))
			for range 25 {
				p := ps[rng.IntN(len(ps))]
				ids := make([]string, 1+rng.IntN(5))
				for i := range ids {
					ids[i] = fmt.Sprint("id", rng.IntN(200))
				}
				out := make([]fuse.Result, len(ids))
				fusers[who%2].Push(p, framesOf(ids...), out)
				mu.Lock()
				for i, r := range out {
					k := key{p.ID, ids[i]}
					if r.Err != nil || r.Missing {
						t.Errorf("%v: %+v", k, r)
						continue
					}
					if at, seen := first[k]; seen && at != r.Offset {
						t.Errorf("%v is at %d and at %d", k, at, r.Offset)
					}
					first[k] = r.Offset
					placed[k] = append(placed[k], r)
				}
				mu.Unlock()
			}
		})
	}
	producers.Wait()

	stored := map[key]int64{}
	rows, err := pool.Query(t.Context(), `SELECT partition_id, base_offset, created_at, blob FROM queen.log_segments ORDER BY partition_id, base_offset`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	next := map[int64]int64{}
	stamps := map[key]time.Time{}
	for rows.Next() {
		var partition, base int64
		var at time.Time
		var blob []byte
		if err := rows.Scan(&partition, &base, &at, &blob); err != nil {
			t.Fatal(err)
		}
		r, err := segment.Open(blob)
		if err != nil {
			t.Fatal(err)
		}
		if base != next[partition] {
			t.Errorf("partition %d: a segment begins at %d, want %d", partition, base, next[partition])
		}
		next[partition] = base + int64(r.Len())
		for i := range r.Len() {
			k := key{partition, r.Frame(i).TransactionID}
			if at, twice := stored[k]; twice {
				t.Errorf("%v is stored at %d and %d", k, at, base+int64(i))
			}
			stored[k], stamps[k] = base+int64(i), at
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	want(t, "where everything is", first, stored)
	for k, rs := range placed {
		winners := 0
		for _, r := range rs {
			if !r.Duplicate {
				winners++
			}
			if !r.CreatedAt.Equal(stamps[k]) {
				t.Errorf("%v was created at %v, told %v", k, stamps[k], r.CreatedAt)
			}
		}
		if winners != 1 {
			t.Errorf("%v: %d of %d pushes were told that theirs is stored", k, winners, len(rs))
		}
	}
	t.Logf("%+v", fusers[0].Stats())
}

func TestARowHeldByAnotherSessionIsWaitedFor(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	s, ps := provision(t, pool, 2, 0)
	f := startReal(t, s)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM queen.log_partitions WHERE id = $1 FOR UPDATE`, ps[0].ID); err != nil {
		t.Fatal(err)
	}
	w := &world{Fuser: f}
	held := w.begin(ps[0], "held")
	want(t, "the other partition", show(w.push(ps[1], "free")), "[0]")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "the held one", show(held()), "[0]")
}

func TestAVanishedPartitionIsMissing(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	s, ps := provision(t, pool, 2, time.Hour)
	w := &world{Fuser: startReal(t, s)}
	want(t, "before", show(w.push(ps[0], "a")), "[0]")
	if _, _, err := s.DeleteQueue(t.Context(), ps[0].Tenant, "orders"); err != nil {
		t.Fatal(err)
	}
	want(t, "known to the cache", show(w.push(ps[0], "b", "a")), "[missing missing]")
	want(t, "never seen", show(w.push(ps[1], "a")), "[missing]")
}

func BenchmarkReal(b *testing.B) {
	for _, batch := range []int{1, 100} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			pool := pgtest.New(b, migrations.Broker)
			s, ps := provision(b, pool, 64, time.Hour)
			f := startReal(b, s)
			b.ReportAllocs()
			b.ResetTimer()
			var producers sync.WaitGroup
			for who := range 64 {
				producers.Go(func() {
					frames := make([]segment.Frame, batch)
					out := make([]fuse.Result, batch)
					for n := range max(1, b.N/64) {
						for i := range frames {
							frames[i] = segment.Frame{TransactionID: fmt.Sprintf("%d-%d-%d", who, n, i), Payload: make([]byte, 256)}
						}
						f.Push(ps[who], frames, out)
						if out[0].Err != nil || out[0].Duplicate {
							b.Errorf("%+v", out[0])
						}
					}
				})
			}
			producers.Wait()
			b.StopTimer()
			st := f.Stats()
			b.ReportMetric(float64(st.Stored)/b.Elapsed().Seconds(), "msgs/s")
			b.ReportMetric(float64(st.Stored)/float64(st.Flushes), "msgs/flush")
			b.ReportMetric(float64(st.Seconds), "seconds")
		})
	}
}
