package store

import (
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

// BenchmarkPushBundle pushes one message into each of N partitions per call, on one connection, with the deduplication
// window on and vouched for, as a warm broker does. Beside the time of a round trip it reports the CPU that the
// database's own process spent per call, which the neighbours on the machine disturb less.
func BenchmarkPushBundle(b *testing.B) {
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			pool, err := pg.Open(b.Context(), pg.Config{DSN: pgtest.DSN(b, migrations.Broker), MaxConn: 1})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(pool.Close)
			w := &writer{Store: New(pool), t: b}
			segs := make([]Segment, n)
			for i := range segs {
				segs[i] = w.segment(w.partition("q", fmt.Sprint(i)), "x")
				segs[i].RawBytes, segs[i].Blob = 256, make([]byte, 300)
				segs[i].Verified = Watermark{1 << 60, 1}
				if _, err := rand.Read(segs[i].Blob); err != nil {
					b.Fatal(err)
				}
			}
			w.push(segs...)
			conn, err := pool.Acquire(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			pid := conn.Conn().PgConn().PID()
			conn.Release()

			b.ReportAllocs()
			before := backendCPU(pid)
			for b.Loop() {
				if vs, err := w.PushBundle(b.Context(), segs); err != nil || vs[0].Status != PushStored {
					b.Fatal(vs, err)
				}
			}
			if spent := backendCPU(pid) - before; spent > 0 {
				b.ReportMetric(float64(spent)/1000/float64(b.N), "pg-us/op")
			}
		})
	}
}

// BenchmarkPushSpread pushes one message into each of 32 partitions per call, chosen by chance of few and of many, as
// BenchmarkPushBundle does. With many each push is the first of its second in its partition. It reports the CPU of the
// database's process per message.
func BenchmarkPushSpread(b *testing.B) {
	const perCall = 32
	for _, n := range []int{1_000, 200_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			pool, err := pg.Open(b.Context(), pg.Config{DSN: pgtest.DSN(b, migrations.Broker), MaxConn: 1})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(pool.Close)
			w := &writer{Store: New(pool), t: b}
			queue := w.partition("q", "first").QueueID
			w.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset, oldest_live_at, oldest_txn_at, last_created_at, last_write_at, segments)
SELECT $1, 'p' || n, 0, now(), now(), now(), now() - interval '1 minute', 1 FROM generate_series(1, $2::integer) n`, queue, n)
			w.exec("INSERT INTO queen.log_segments SELECT id, 0, 0, last_created_at, 0, 'blob' FROM queen.log_partitions WHERE segments > 0")
			w.exec("INSERT INTO queen.log_txns SELECT id, 0, 0, last_created_at, '0123456789abcdef' FROM queen.log_partitions WHERE segments > 0")
			w.exec("VACUUM ANALYZE queen.log_partitions")
			first := w.count("SELECT min(id) FROM queen.log_partitions WHERE segments > 0")
			bundle := make([]Segment, perCall)
			for i := range bundle {
				bundle[i] = w.segment(Partition{}, "x")
				bundle[i].RawBytes, bundle[i].Blob = 256, make([]byte, 300)
				bundle[i].Verified = Watermark{1 << 60, 1}
			}
			pid := uint32(w.count("SELECT pg_backend_pid()"))

			before := backendCPU(pid)
			for b.Loop() {
				for i := range bundle {
					// One of each stripe, so that none comes twice.
					bundle[i].PartitionID = first + int64(i*n/perCall+mathrand.IntN(n/perCall))
				}
				if vs, err := w.PushBundle(b.Context(), bundle); err != nil || vs[0].Status != PushStored {
					b.Fatal(vs, err)
				}
			}
			if spent := backendCPU(pid) - before; spent > 0 {
				b.ReportMetric(float64(spent)/1000/float64(b.N*perCall), "pg-us/msg")
			}
		})
	}
}

// backendCPU returns the nanoseconds a process of this machine has run, or 0 where nobody tells.
func backendCPU(pid uint32) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0
	}
	return ns
}
