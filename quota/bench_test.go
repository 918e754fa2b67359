package quota

import (
	"log/slog"
	"testing"
	"time"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

func benchGate(b *testing.B) (*Gate, *plans.Cluster) {
	names := new(fakeSeeder)
	names.set(Pair{"orders", "customer-17"})
	g := NewGate(slog.New(slog.DiscardHandler), WithSeeder(names))
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
		if _, err := g.AskHead(c, wire.CostMessages, now); err != nil {
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
		if _, err := g.AskHead(c, wire.CostMessages, now); err != nil {
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
		if _, err := g.AskHead(c, wire.CostRequest, now); err == nil {
			b.Fatal("admitted")
		}
	}
}
