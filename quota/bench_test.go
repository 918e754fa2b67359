package quota

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/redistest"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

func benchGate(b *testing.B, options ...Option) (*Gate, *plans.Cluster) {
	names := new(fakeSeeder)
	names.set(Pair{"orders", "customer-17"})
	g := NewGate(slog.New(slog.DiscardHandler), append(options, WithSeeder(names))...)
	c := clusterWith(limits(requestRate(1e9, 1e9), messageRate(1e9, 1e9), func(l *plans.Limits) {
		l.MaxQueues, l.MaxPartitionsPerQueue, l.MaxParkedPops = new(int64(10)), new(int64(100)), new(int64(1000))
		l.MaxPayloadBytes, l.MaxBatchItems = new(int64(1<<20)), new(int64(1000))
		l.MaxRetainedBytes, l.MonthlyMessages = new(int64(1<<60)), new(int64(1<<60))
	}))
	if err := g.EnsureSeeded(b.Context(), c); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	return g, c
}

func BenchmarkAskHead(b *testing.B) {
	g, c := benchGate(b)
	now := time.Now()
	for b.Loop() {
		if _, err := g.AskHead(c, nil, wire.CostMessages, now); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAdmitPush(b *testing.B) {
	g, c := benchGate(b)
	ask := push(1, Pair{"orders", "customer-17"})
	now := time.Now()
	for b.Loop() {
		if _, _, err := g.Admit(c, ask, now); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPush(b *testing.B) {
	g, c := benchGate(b)
	ask := push(1, Pair{"orders", "customer-17"})
	for b.Loop() {
		now := time.Now()
		if err := g.EnsureSeeded(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		if _, err := g.AskHead(c, nil, wire.CostMessages, now); err != nil {
			b.Fatal(err)
		}
		a, _, err := g.Admit(c, ask, now)
		if err != nil {
			b.Fatal(err)
		}
		g.Settle(a, Outcome{Stored: true, StoredBytes: 3}, now)
	}
}

func BenchmarkWaitingPop(b *testing.B) {
	g, c := benchGate(b)
	now := time.Now()
	ask := waitingPop(now.Add(30 * time.Second))
	for b.Loop() {
		a, _, err := g.Admit(c, ask, now)
		if err != nil {
			b.Fatal(err)
		}
		g.Settle(a, Outcome{Delivered: 1}, now)
	}
}

func BenchmarkRefusedHead(b *testing.B) {
	g, c := benchGate(b)
	c = edited(c, requestRate(1, 1))
	now := time.Now()
	if _, _, err := g.Admit(c, pop(), now); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := g.AskHead(c, nil, wire.CostRequest, now); err == nil {
			b.Fatal("admitted")
		}
	}
}

// Thirty-two requests at a time, since a fleet's decisions share round trips.
func benchFleet(b *testing.B, leases bool) {
	g, c := benchGate(b, WithFleet(FleetOptions{
		Redis: redistest.Options(b), Leases: leases, Prefix: "bench:" + uuid.NewString(), Budget: time.Second,
	}))
	ctx, stop := context.WithCancel(b.Context())
	var runs sync.WaitGroup
	runs.Go(func() { _ = g.Run(ctx) })
	defer runs.Wait()
	defer stop()
	ask := push(1, Pair{"orders", "customer-17"})
	b.SetParallelism(32 / runtime.GOMAXPROCS(0))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			a, _, err := g.Admit(c, ask, time.Now())
			if err != nil {
				b.Error(err)
				return
			}
			g.Settle(a, Outcome{Stored: true, StoredBytes: 3}, time.Now())
		}
	})
}

func BenchmarkPushExact(b *testing.B)  { benchFleet(b, false) }
func BenchmarkPushLeased(b *testing.B) { benchFleet(b, true) }
