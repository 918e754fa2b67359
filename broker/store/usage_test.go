package store

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// The sum is exact through pushes, deletions and folds, at every moment and at the end.
func TestUsageIsExact(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(3, uint64(g)))
			for r := range 30 {
				p, err := w.Provision(t.Context(), w.tenant, []Pair{{fmt.Sprint("q", rnd.IntN(3)), fmt.Sprint(g)}}, Caps{})
				if err != nil {
					t.Error(err)
					return
				}
				s := w.segment(p[0], fmt.Sprint(g, r))
				s.RawBytes = rnd.Int64N(1 << 40)
				if _, err := w.PushBundleWait(t.Context(), []Segment{s}); err != nil {
					t.Error(err)
				}
				if rnd.IntN(6) == 0 {
					if _, _, err := w.DeleteQueue(t.Context(), w.tenant, fmt.Sprint("q", rnd.IntN(3))); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	stop := make(chan struct{})
	var folder sync.WaitGroup
	var folded int64
	folder.Go(func() {
		for {
			n, err := w.FoldUsage(t.Context())
			if err != nil {
				t.Error(err)
			}
			folded += n
			select {
			case <-stop:
				return
			default:
			}
			// One snapshot: what the log holds and what the tenant is said to hold agree in the middle of it all.
			if d := w.count(`SELECT ((SELECT coalesce(sum(retained_bytes), 0) FROM queen.log_partitions)
				- (SELECT coalesce(sum(retained_bytes), 0) FROM queen.tenants) - (SELECT coalesce(sum(bytes), 0) FROM queen.retained_ledger))::bigint`); d != 0 {
				t.Errorf("off by %d bytes", d)
				return
			}
		}
	})
	wg.Wait()
	close(stop)
	folder.Wait()
	if folded == 0 {
		t.Error("nothing was folded")
	}
	want := w.count("SELECT coalesce(sum(raw_bytes), 0)::bigint FROM queen.log_segments s JOIN queen.log_partitions p ON p.id = s.partition_id")
	if got := w.usage(); got.RetainedBytes != want || got.Queues != w.count("SELECT count(*) FROM queen.queues") {
		t.Errorf("got %+v, want %d bytes", got, want)
	}
	if _, err := w.FoldUsage(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, left := w.usage().RetainedBytes, w.count("SELECT count(*) FROM queen.retained_ledger"); got != want || left != 0 {
		t.Errorf("after the last fold: %d bytes with %d ledger rows, want %d", got, left, want)
	}
	if n, err := w.FoldUsage(t.Context()); n != 0 || err != nil {
		t.Errorf("an empty ledger: folded %d, %v", n, err)
	}
}

// A tenant that is being provisioned does not hold up the fold of the others.
func TestFoldSkipsABusyTenant(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	other := &writer{Store: w.Store, t: t, tenant: uuid.New()}
	w.push(w.segment(w.partition("q", "a"), "mine"))
	w.push(other.segment(other.partition("q", "a"), "their"))
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT queen.lock_tenant($1)", w.tenant); err != nil {
		t.Fatal(err)
	}
	if n, err := w.FoldUsage(t.Context()); n != 1 || err != nil {
		t.Errorf("folded %d, %v; want the other tenant's row", n, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := w.FoldUsage(t.Context()); n != 1 || err != nil {
		t.Errorf("folded %d, %v; want the rest", n, err)
	}
	if a, b := w.usage().RetainedBytes, other.usage().RetainedBytes; a != 4 || b != 5 {
		t.Errorf("got %d and %d bytes", a, b)
	}
}

func TestUsageAnswersInInputOrder(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	w.push(w.segment(w.partition("q", "a"), "four"))
	unknown := uuid.New()
	got, err := w.Usage(t.Context(), []uuid.UUID{unknown, w.tenant})
	if err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	if got[0].Tenant != unknown || got[0].RetainedBytes != 0 || got[0].Queues != 0 {
		t.Errorf("an unknown tenant: got %+v", got[0])
	}
	if got[1].Tenant != w.tenant || got[1].RetainedBytes != 4 || got[1].Queues != 1 || time.Since(got[1].ComputedAt) > time.Hour {
		t.Errorf("got %+v", got[1])
	}
	all, err := w.Usage(t.Context(), nil)
	if err != nil || len(all) != 1 || all[0].RetainedBytes != 4 {
		t.Errorf("everybody: got %+v, %v", all, err)
	}
}
