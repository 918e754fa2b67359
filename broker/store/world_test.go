package store

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

// world is a database of a test's own with one tenant and one queue.
type world struct {
	t      testing.TB
	ctx    context.Context
	pool   *pgxpool.Pool
	store  *Store
	tenant uuid.UUID
	queue  string
	id     int64 // of the queue
}

// lane is a partition and what its messages are called.
type lane struct {
	id  int64
	uid uuid.UUID
}

func newWorld(t testing.TB, opts ...Option) *world {
	t.Helper()
	w := &world{t: t, ctx: context.Background(), pool: pgtest.New(t, migrations.Broker), tenant: uuid.New(), queue: "orders"}
	w.store = New(w.pool, opts...)
	w.exec("INSERT INTO queen.tenants (tenant_id) VALUES ($1)", w.tenant)
	w.id = w.newQueue(w.tenant, w.queue)
	return w
}

func (w *world) newQueue(tenant uuid.UUID, name string) (id int64) {
	w.t.Helper()
	w.scan("INSERT INTO queen.queues (tenant_id, name) VALUES ($1, $2) RETURNING id", []any{tenant, name}, &id)
	return id
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.ctx, sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) scan(sql string, args []any, dest ...any) {
	w.t.Helper()
	if err := w.pool.QueryRow(w.ctx, sql, args...).Scan(dest...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) lane(name string) lane { return w.laneOf(w.id, name) }

func (w *world) laneOf(queue int64, name string) (l lane) {
	w.t.Helper()
	w.scan("INSERT INTO queen.log_partitions (queue_id, name) VALUES ($1, $2) RETURNING id, uid", []any{queue, name}, &l.id, &l.uid)
	return l
}

// push stores segments of the given sizes, stamped now.
func (w *world) push(l lane, sizes ...int) {
	w.t.Helper()
	for _, n := range sizes {
		w.pushAt(l, time.Time{}, n)
	}
}

// pushAt stores one segment of n messages named after their offsets; the zero time means the database's now.
func (w *world) pushAt(l lane, at time.Time, n int) {
	w.t.Helper()
	var last int64
	w.scan("SELECT last_offset FROM queen.log_partitions WHERE id = $1", []any{l.id}, &last)
	names := make([]string, n)
	for i := range names {
		names[i] = txn(last + 1 + int64(i))
	}
	w.pushNamed(l, at, names...)
}

// pushNamed stores one segment of messages with these transaction ids.
func (w *world) pushNamed(l lane, at time.Time, names ...string) {
	w.t.Helper()
	frames := make([]segment.Frame, len(names))
	for i, name := range names {
		frames[i] = segment.Frame{TransactionID: name, Payload: []byte(payload(name))}
	}
	var stamp *time.Time
	if !at.IsZero() {
		stamp = &at
	}
	w.exec(`
WITH p AS (UPDATE queen.log_partitions SET last_offset = last_offset + $2, last_created_at = coalesce($3, clock_timestamp())
            WHERE id = $1 RETURNING id, last_offset, last_created_at),
     s AS (INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, raw_bytes, blob)
           SELECT id, last_offset - $2 + 1, last_offset, last_created_at, 1, $4 FROM p)
INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
SELECT id, last_offset - $2 + 1, last_offset, last_created_at, $5 FROM p`,
		l.id, int64(len(names)), stamp, segment.Encode(nil, frames), segment.AppendHashes(nil, frames))
}

func txn(offset int64) string    { return fmt.Sprintf("t-%d", offset) }
func payload(name string) string { return fmt.Sprintf(`{"of": %q}`, name) }
func hashAt(offset int64) Hash   { return segment.HashID(txn(offset)) }
func (w *world) now() (at time.Time) {
	w.scan("SELECT clock_timestamp()", nil, &at)
	return at
}

// readsAll makes a group that has not registered on the queues of the partitions read everything.
func (w *world) readsAll(group string, lanes ...lane) {
	w.t.Helper()
	ids := make([]int64, len(lanes))
	for i, l := range lanes {
		ids[i] = l.id
	}
	w.exec(`INSERT INTO queen.group_registrations (tenant_id, queue, consumer_group, mode, seed_from)
SELECT DISTINCT q.tenant_id, q.name, $2::text, 'all', now() FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
WHERE p.id = ANY ($1) AND $2::text <> $3 ON CONFLICT DO NOTHING`, ids, group, wire.QueueModeGroup)
}

// claim is a Claim with room for everything. A group that has not registered reads everything.
func (w *world) claim(group string, lanes ...lane) Claim {
	w.t.Helper()
	w.readsAll(group, lanes...)
	c := Claim{Group: group, Worker: uuid.Must(uuid.NewV7()), Lease: time.Minute, Budget: 1000}
	for _, l := range lanes {
		c.Candidates = append(c.Candidates, l.id)
	}
	return c
}

// pop runs one claim.
func (w *world) pop(c Claim) []Claimed {
	w.t.Helper()
	rs, err := w.store.ClaimBundle(w.ctx, []Claim{c})
	if err != nil {
		w.t.Fatal(err)
	}
	return rs[0]
}

// lease claims at most n messages of one partition for the queue-mode group and returns the lease id.
func (w *world) lease(l lane, n int) (string, Claimed) {
	w.t.Helper()
	c := w.claim(wire.QueueModeGroup, l)
	c.Budget = n
	got := w.pop(c)[0]
	if got.Status != ClaimTook {
		w.t.Fatalf("lease: %+v", got)
	}
	return c.Worker.String(), got
}

func (w *world) ack(groups ...AckGroup) []AckVerdict {
	w.t.Helper()
	vs, err := w.store.AckBundle(w.ctx, groups)
	if err != nil {
		w.t.Fatal(err)
	}
	return vs
}

// group acknowledges for the queue-mode group.
func (w *world) group(l lane, lease string, items ...AckItem) AckGroup {
	return AckGroup{Tenant: w.tenant, Partition: l.uid, Group: wire.QueueModeGroup, Lease: lease, Items: items}
}

// said is an item that knows only its transaction id.
func said(offset int64, s wire.AckStatus) AckItem {
	return AckItem{Hash: hashAt(offset), Status: s, Offset: -1, TransactionID: txn(offset)}
}

// known is an item with its offset.
func known(offset int64, s wire.AckStatus) AckItem {
	it := said(offset, s)
	it.Offset = offset
	return it
}

// cursor is the consumption state of a group, as JSON renders best in a failure.
type cursor struct {
	Committed     int64
	BatchEnd      *int64
	Worker        *uuid.UUID
	Expires       *time.Time
	Retries       int
	AttemptOffset *int64
	Attempts      int
	Consumed      int64
}

func (c cursor) String() string {
	b, err := json.Marshal(c)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (w *world) cursor(l lane, group string) (c cursor) {
	w.t.Helper()
	w.scan(`SELECT committed, batch_end, worker_id, lease_expires_at, batch_retry_count, attempt_offset, attempt_count, total_consumed
FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = $2`, []any{l.id, group},
		&c.Committed, &c.BatchEnd, &c.Worker, &c.Expires, &c.Retries, &c.AttemptOffset, &c.Attempts, &c.Consumed)
	return c
}

// expire ends every live lease.
func (w *world) expire() {
	w.t.Helper()
	w.exec("UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() - interval '1 ms' WHERE worker_id IS NOT NULL")
}

// enroll registers a group whose conflation does not matter.
func (w *world) enroll(tenant uuid.UUID, group, queue string, seed Seed) error {
	_, err := w.store.Register(w.ctx, tenant, group, queue, seed)
	return err
}
