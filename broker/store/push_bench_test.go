package store

import (
	"crypto/rand"
	"fmt"
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
