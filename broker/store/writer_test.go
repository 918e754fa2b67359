package store

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

// writer is a store on a database of its own with one tenant.
type writer struct {
	*Store
	t      testing.TB
	tenant uuid.UUID
}

func newWriter(t testing.TB) *writer {
	t.Helper()
	return &writer{Store: New(pgtest.New(t, migrations.Broker)), t: t, tenant: uuid.New()}
}

// partition provisions one partition without caps.
func (w *writer) partition(queue, name string) Partition {
	w.t.Helper()
	ps, err := w.Provision(w.t.Context(), w.tenant, []Pair{{queue, name}}, Caps{})
	if err != nil {
		w.t.Fatal(err)
	}
	return ps[0]
}

// segment is one of messages with these transaction ids, probing the whole window of an hour.
func (w *writer) segment(p Partition, ids ...string) Segment {
	s := Segment{
		PartitionID: p.ID, Tenant: w.tenant, Count: len(ids), DedupWindow: time.Hour,
		Blob: fmt.Append(nil, ids),
	}
	for _, id := range ids {
		s.RawBytes += int64(len(id))
		s.Hashes = append(s.Hashes, hashOf(id)...)
	}
	return s
}

func hashOf(id string) []byte {
	sum := sha256.Sum256([]byte(id))
	return sum[:16]
}

func (w *writer) push(segs ...Segment) []PushVerdict {
	w.t.Helper()
	vs, err := w.PushBundle(w.t.Context(), segs)
	if err != nil {
		w.t.Fatal(err)
	}
	return vs
}

func (w *writer) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// count runs a query for one number.
func (w *writer) count(sql string, args ...any) (n int64) {
	w.t.Helper()
	if err := w.pool.QueryRow(w.t.Context(), sql, args...).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *writer) usage() Usage {
	w.t.Helper()
	u, err := w.Usage(w.t.Context(), []uuid.UUID{w.tenant})
	if err != nil {
		w.t.Fatal(err)
	}
	return u[0]
}

func configure(t testing.TB, body string) *wire.ConfigureRequest {
	t.Helper()
	req, err := wire.ScanConfigure([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return &req
}

func ptr[T any](v T) *T { return &v }

func openPool(t testing.TB, cfg *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
