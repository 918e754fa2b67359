package meter

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

type world struct {
	*Store
	t       *testing.T
	pool    *pgxpool.Pool
	cluster uuid.UUID
}

func setup(t *testing.T) *world {
	t.Helper()
	pool := pgtest.New(t, migrations.Gateway)
	w := &world{Store: NewStore(pool), t: t, pool: pool}
	if _, err := pool.Exec(t.Context(), `SELECT queengate.create_cell('c1', 'http://h:1')`); err != nil {
		t.Fatal(err)
	}
	w.cluster = scan[uuid.UUID](w, `SELECT (queengate.bootstrap_tenant('acme', 'Acme', 'acme', 'free', 'c1') ->> 'cluster_id')::uuid`)
	return w
}

func scan[T any](w *world, sql string, args ...any) (v T) {
	w.t.Helper()
	if err := w.pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (w *world) save(gateway string, counts ...Count) []int64 {
	w.t.Helper()
	totals, err := w.Save(w.t.Context(), gateway, counts)
	if err != nil {
		w.t.Fatal(err)
	}
	return totals
}

const may = Month(2025*12 + 4)

// A count is written as a whole: a batch that comes twice, or late, or in pieces, is never counted twice.
func TestCountsAddUpAndAreNeverDoubled(t *testing.T) {
	t.Parallel()
	w := setup(t)
	one := Count{w.cluster, may, 10}
	for step, c := range []struct {
		gateway string
		counts  []Count
		want    []int64
	}{
		{"g1", []Count{one}, []int64{10}},
		{"g1", []Count{one}, []int64{10}},
		{"g2", []Count{{w.cluster, may, 5}, {w.cluster, may + 1, 7}}, []int64{15, 7}},
		{"g1", []Count{{w.cluster, may, 30}}, []int64{35}},
		{"g1", []Count{one}, []int64{35}},
		{"g2", []Count{{uuid.New(), may, 4}, {w.cluster, may, 5}}, []int64{0, 35}},
		{"g2", nil, nil},
	} {
		if d := cmp.Diff(c.want, w.save(c.gateway, c.counts...)); d != "" {
			t.Errorf("step %d: %s", step, d)
		}
	}
	got, err := w.Load(t.Context(), w.cluster, may)
	if d := cmp.Diff(map[string]int64{"g1": 30, "g2": 5}, got); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	if got, err := w.Load(t.Context(), uuid.New(), may); len(got) != 0 || err != nil {
		t.Errorf("an unknown cluster has %v, %v", got, err)
	}
}

// Gateways save at the same time, in whatever order their clusters come.
func TestGatewaysSaveSideBySide(t *testing.T) {
	t.Parallel()
	w := setup(t)
	clusters := []uuid.UUID{w.cluster}
	for i := range 5 {
		clusters = append(clusters, scan[uuid.UUID](w, `SELECT queengate.create_cluster((SELECT id FROM queengate.tenants), $1, 'free', 'c1')`, fmt.Sprint("more-", i)))
	}
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for n := range int64(10) {
				var counts []Count
				for i := range clusters {
					counts = append(counts, Count{clusters[(i+g)%len(clusters)], may, n + 1})
				}
				if _, err := w.Save(t.Context(), fmt.Sprint(g), counts); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := scan[int64](w, `SELECT sum(messages)::bigint FROM queengate.usage_months`); got != 4*10*6 {
		t.Errorf("%d are counted, want %d", got, 4*10*6)
	}
}

func TestAWarningIsToldOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	warning := Warning{Cluster: w.cluster, Month: may, Percent: 80, Messages: 81, Allowance: 100}
	var firsts sync.Map
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			first, err := w.Warn(t.Context(), warning)
			if err != nil {
				t.Error(err)
			}
			if first {
				firsts.Store(g, true)
			}
		})
	}
	all.Wait()
	n := 0
	firsts.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d were told that they are the first", n)
	}
	next := warning
	next.Month++
	if first, err := w.Warn(t.Context(), next); !first || err != nil {
		t.Errorf("the next month: %v, %v", first, err)
	}
	if first, err := w.Warn(t.Context(), Warning{Cluster: uuid.New(), Month: may, Percent: 80}); first || err != nil {
		t.Errorf("a cluster that is gone: %v, %v", first, err)
	}
	got := scan[string](w, `SELECT string_agg(concat_ws(' ', kind, payload ->> 'cluster', payload ->> 'month', payload ->> 'percent', payload ->> 'messages'), ', '
		ORDER BY payload ->> 'month') FROM queengate.outbox WHERE kind = 'monthly_allowance'`)
	if want := "monthly_allowance acme 2025-05 80 81, monthly_allowance acme 2025-06 80 81"; got != want {
		t.Errorf("the outbox has %q, want %q", got, want)
	}
}

// Folding changes no sum, and what gateways still count into is left alone.
func TestOldMonthsAreFolded(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for i, m := range []Month{may - 2, may - 1, may} {
		w.save("g1", Count{w.cluster, m, int64(10 * (i + 1))})
		w.save("g2", Count{w.cluster, m, 1})
	}
	var moved []int64
	for {
		n, err := w.Fold(t.Context(), may, 3)
		if err != nil {
			t.Fatal(err)
		}
		if moved = append(moved, n); n < 3 {
			break
		}
	}
	if d := cmp.Diff([]int64{3, 1}, moved); d != "" {
		t.Error(d)
	}
	got := scan[string](w, `SELECT string_agg(concat_ws(' ', month, '"' || gateway || '"', messages), ', ' ORDER BY month, gateway) FROM queengate.usage_months`)
	if want := `2025-03-01 "" 11, 2025-04-01 "" 21, 2025-05-01 "g1" 30, 2025-05-01 "g2" 1`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestADeletedTenantLeavesNoCounts(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.save("g1", Count{w.cluster, may, 10})
	if _, err := w.Warn(t.Context(), Warning{w.cluster, may, 80, 10, 12}); err != nil {
		t.Fatal(err)
	}
	scan[string](w, `SELECT queengate.delete_tenant((SELECT id FROM queengate.tenants), true)::text`)
	if n := scan[int64](w, `SELECT (SELECT count(*) FROM queengate.usage_months) + (SELECT count(*) FROM queengate.usage_warnings)`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}
