package store

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

// backend is the server process of a store with one connection; it reports the CPU that process spends.
type backend struct {
	*Store
	b     *testing.B
	pid   int
	start time.Duration
}

func newBackend(b *testing.B, w *world) *backend {
	b.Helper()
	pool, err := pg.Open(w.ctx, pg.Config{DSN: w.pool.Config().ConnString(), MaxConn: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	s := &backend{Store: New(pool), b: b}
	if err := pool.QueryRow(w.ctx, "SELECT pg_backend_pid()").Scan(&s.pid); err != nil {
		b.Fatal(err)
	}
	return s
}

// cpu reads the clock ticks of the process; zero where there is no /proc or the server is elsewhere.
func (s *backend) cpu() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", s.pid))
	if err != nil {
		return 0
	}
	ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(ns)
}

func (s *backend) begin() { s.start = s.cpu() }
func (s *backend) report(parts int) {
	used := float64((s.cpu() - s.start).Microseconds())
	s.b.ReportMetric(used/float64(s.b.N), "pg-us/op")
	s.b.ReportMetric(used/float64(s.b.N*parts), "pg-us/partition")
}

var widths = []int{1, 16}

func lanes(w *world, n int) (ls []lane) {
	for i := range n {
		l := w.lane(fmt.Sprint(i))
		w.push(l, 100, 100)
		ls = append(ls, l)
	}
	return ls
}

func BenchmarkClaim(b *testing.B) {
	for _, n := range widths {
		b.Run(fmt.Sprintf("partitions=%d", n), func(b *testing.B) {
			w := newWorld(b)
			s := newBackend(b, w)
			claims := make([]Claim, n)
			for i, l := range lanes(w, n) {
				claims[i] = w.claim("g", l)
				claims[i].Budget = 100
			}
			if _, err := s.ClaimBundle(w.ctx, claims); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			s.begin()
			for b.Loop() {
				b.StopTimer()
				w.exec("UPDATE queen.log_consumers SET batch_end = NULL, worker_id = NULL, lease_expires_at = NULL")
				b.StartTimer()
				rs, err := s.ClaimBundle(context.Background(), claims)
				if err != nil {
					b.Fatal(err)
				}
				if rs[n-1][0].Status != ClaimTook {
					b.Fatalf("%+v", rs)
				}
			}
			s.report(n)
		})
	}
}

func BenchmarkAck(b *testing.B) {
	for _, how := range []struct {
		name string
		item func(int64, wire.AckStatus) AckItem
	}{{"positional", known}, {"hashed", said}} {
		for _, n := range widths {
			b.Run(fmt.Sprintf("%s/partitions=%d", how.name, n), func(b *testing.B) {
				w := newWorld(b)
				s := newBackend(b, w)
				worker := uuid.New()
				groups := make([]AckGroup, n)
				for i, l := range lanes(w, n) {
					w.lease(l, 100)
					items := make([]AckItem, 100)
					for k := range items {
						items[k] = how.item(int64(k), wire.AckCompleted)
					}
					groups[i] = w.group(l, worker.String(), items...)
				}
				b.ReportAllocs()
				s.begin()
				for b.Loop() {
					b.StopTimer()
					w.exec(`UPDATE queen.log_consumers SET committed = -1, batch_end = 99, worker_id = $1,
  lease_expires_at = clock_timestamp() + interval '1 hour'`, worker)
					b.StartTimer()
					vs, err := s.AckBundle(context.Background(), groups)
					if err != nil {
						b.Fatal(err)
					}
					if !vs[n-1].LeaseReleased {
						b.Fatalf("%+v", vs)
					}
				}
				s.report(n)
			})
		}
	}
}
