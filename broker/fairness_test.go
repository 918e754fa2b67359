package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

// turnstile stands before a store, notes for whom each bundle is and can hold bundles up.
type turnstile struct {
	Store

	mu      sync.Mutex
	held    chan struct{} // lets one bundle pass per value, and all when it is closed; nil: they pass
	bundles [][]string    // since the last hold
}

func (s *turnstile) pass(n int, who func(int) string) {
	of := make([]string, n)
	for i := range of {
		of[i] = who(i)
	}
	s.mu.Lock()
	s.bundles = append(s.bundles, of)
	held := s.held
	s.mu.Unlock()
	if held != nil {
		<-held
	}
}

func (s *turnstile) PushBundle(ctx context.Context, segs []store.Segment) ([]store.PushVerdict, error) {
	s.pass(len(segs), func(i int) string { return segs[i].Tenant.String() })
	return s.Store.PushBundle(ctx, segs)
}

func (s *turnstile) ClaimBundle(ctx context.Context, claims []store.Claim) ([][]store.Claimed, error) {
	s.pass(len(claims), func(i int) string { return claims[i].Group })
	return s.Store.ClaimBundle(ctx, claims)
}

func (s *turnstile) AckBundle(ctx context.Context, groups []store.AckGroup) ([]store.AckVerdict, error) {
	s.pass(len(groups), func(i int) string { return groups[i].Tenant.String() })
	return s.Store.AckBundle(ctx, groups)
}

func (s *turnstile) seen() [][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bundles
}

// hold holds bundles up until it has all that may fly at a time, made by calling one with 0, 1, …. Opened, it keeps all
// but one in flight until the next bundle has come: of two that are made at the same time the later may come first.
func (s *turnstile) hold(w *world, one func(int)) (open func()) {
	s.mu.Lock()
	held := make(chan struct{})
	s.held, s.bundles = held, nil
	s.mu.Unlock()
	var wg sync.WaitGroup
	for i := range maxFlights {
		wg.Go(func() { one(i) })
		w.until("a bundle in flight", func() bool { return len(s.seen()) == i+1 })
	}
	return func() {
		s.mu.Lock()
		s.held, s.bundles = nil, nil
		s.mu.Unlock()
		held <- struct{}{}
		w.until("the next bundle", func() bool { return len(s.seen()) > 0 })
		close(held)
		wg.Wait()
	}
}

// TestATenantThatOffersFiftyTimesAsMuchDelaysItsNeighbourByABundle counts bundles: whatever one tenant has waiting, all
// of its neighbour's work is in the very next one.
func TestATenantThatOffersFiftyTimesAsMuchDelaysItsNeighbourByABundle(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	pool := pgtest.New(t, migrations.Broker)
	db := &turnstile{Store: store.New(pool)}
	w := serveFrom(t, pool, db, m.tenancy)
	flood, lone := m.headers(tenantA, wire.AccessReadWrite), m.headers(tenantB, wire.AccessReadWrite)
	call := func(headers []string, method, path, body string) {
		if a, err := w.try(method, path, body, headers...); err != nil || a.status/100 != 2 {
			t.Errorf("%s %.80s: %d %.200s, %v", method, path, a.status, a.body, err)
		}
	}
	items := func(first, n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(`{"queue":"q","partition":"p%d","payload":%d}`, first+i, i)
		}
		return `{"items":[` + strings.Join(all, ",") + `]}`
	}
	// next says where in the bundles that follow the neighbour's work is, once all of it waits.
	next := func(t *testing.T, who string, want int) {
		t.Helper()
		bundles := db.seen()
		served := 0
		for i, of := range bundles {
			for _, owner := range of {
				if owner == who {
					served++
				}
			}
			if served > 0 {
				if i > 0 || served != want {
					t.Errorf("%d of %d are served in bundle %d of %d", served, want, i+1, len(bundles))
				}
				return
			}
		}
		t.Errorf("nothing of %s in %d bundles", who, len(bundles))
	}

	const few, many = 6, 300
	t.Run("push", func(t *testing.T) {
		call(flood, "POST", "/api/v1/push", items(0, many)) // the partitions are there from now on
		call(lone, "POST", "/api/v1/push", items(0, few))
		open := db.hold(w, func(i int) { call(flood, "POST", "/api/v1/push", items(many+i, 1)) })
		var wg sync.WaitGroup
		wg.Go(func() { call(flood, "POST", "/api/v1/push", items(0, many)) })
		w.until("the flood waits", func() bool { return w.b.fuser.Stats().Pending == many+maxFlights })
		wg.Go(func() { call(lone, "POST", "/api/v1/push", items(0, few)) })
		w.until("the neighbour waits", func() bool { return w.b.fuser.Stats().Pending == many+few+maxFlights })
		open()
		wg.Wait()
		next(t, tenantB.String(), few)
	})

	pop := func(headers []string, group string, i int) {
		call(headers, "GET", fmt.Sprintf("/api/v1/pop/queue/q/partition/p%d?consumerGroup=%s&subscriptionMode=all", i, group), "")
	}
	t.Run("pop", func(t *testing.T) {
		const few, many = 3, 150
		pop(flood, "flood", many) // the groups are registered from now on
		pop(lone, "lone", many)
		open := db.hold(w, func(i int) { pop(flood, "flood", many+1+i) })
		var wg sync.WaitGroup
		for i := range many {
			wg.Go(func() { pop(flood, "flood", i) })
		}
		w.until("the flood waits", func() bool { return w.b.claims.waiting() == many })
		for i := range few {
			wg.Go(func() { pop(lone, "lone", i) })
		}
		w.until("the neighbour waits", func() bool { return w.b.claims.waiting() == many+few })
		open()
		wg.Wait()
		next(t, "lone", few)
	})

	t.Run("ack", func(t *testing.T) {
		leased := func(headers []string) string {
			var acks []map[string]string
			for {
				got := w.pop("q?consumerGroup=acks&subscriptionMode=all&partitions=0&batch=1000", headers...)
				if len(got.Messages) == 0 {
					break
				}
				for _, m := range got.Messages {
					acks = append(acks, map[string]string{"transactionId": m.TransactionID, "partitionId": m.PartitionID, "leaseId": m.LeaseID})
				}
			}
			body, err := json.Marshal(map[string]any{"acknowledgments": acks, "consumerGroup": "acks"})
			if err != nil {
				t.Fatal(err)
			}
			return string(body)
		}
		big, small := leased(flood), leased(lone)
		ack := func(headers []string, body string) { call(headers, "POST", "/api/v1/ack/batch", body) }
		open := db.hold(w, func(i int) {
			ack(flood, `{"consumerGroup":"acks","acknowledgments":[{"transactionId":"x","partitionId":"00000000-0000-0000-0000-000000000000"}]}`)
		})
		var wg sync.WaitGroup
		wg.Go(func() { ack(flood, big) })
		w.until("the flood waits", func() bool { return w.b.acks.waiting() > maxAcksPerBundle })
		before := w.b.acks.waiting()
		wg.Go(func() { ack(lone, small) })
		w.until("the neighbour waits", func() bool { return w.b.acks.waiting() == before+few })
		open()
		wg.Wait()
		next(t, tenantB.String(), few)
	})
}
