package janitor

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"))
}

// world is a database of a test's own with one tenant, a store and a janitor on it.
type world struct {
	*store.Store
	t      testing.TB
	pool   *pgxpool.Pool
	tenant uuid.UUID
	j      *Janitor
	pushes int
}

// newWorld also checks, when the test ends, that every counter and watermark is what the log says.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := newBareWorld(t)
	t.Cleanup(w.exact)
	return w
}

func newBareWorld(t testing.TB) *world {
	t.Helper()
	pool := pgtest.New(t, migrations.Broker)
	w := &world{Store: store.New(pool), t: t, pool: pool, tenant: uuid.New()}
	w.j = w.janitor(w.Store, Config{})
	return w
}

func (w *world) janitor(db Store, cfg Config) *Janitor {
	return New(slog.New(slog.DiscardHandler), db, cfg, Hooks{})
}

func (w *world) exec(sql string, args ...any) int64 {
	w.t.Helper()
	tag, err := w.pool.Exec(context.Background(), sql, args...)
	if err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return tag.RowsAffected()
}

// number runs a query for one number.
func (w *world) number(sql string, args ...any) (n int64) {
	w.t.Helper()
	if err := w.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// queue configures a queue by the options of a configure body.
func (w *world) queue(name, options string) {
	w.t.Helper()
	req, err := wire.ScanConfigure(fmt.Appendf(nil, `{"queue":%q,"options":{%s}}`, name, options))
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.Configure(w.t.Context(), w.tenant, &req, wire.ConfigureReplace, store.Caps{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) partition(queue, name string) store.Partition {
	w.t.Helper()
	ps, err := w.Provision(w.t.Context(), w.tenant, []store.Pair{{Queue: queue, Partition: name}}, store.Caps{})
	if err != nil {
		w.t.Fatal(err)
	}
	return ps[0]
}

// segment is one of n messages of ten bytes each.
func (w *world) segment(p store.Partition, n int) store.Segment {
	s := store.Segment{PartitionID: p.ID, Tenant: w.tenant, Count: n, RawBytes: 10 * int64(n), DedupWindow: time.Hour, Blob: []byte("blob")}
	for range n {
		w.pushes++
		sum := sha256.Sum256(fmt.Append(nil, w.pushes))
		s.Hashes = append(s.Hashes, sum[:16]...)
	}
	return s
}

// push stores segments of the given sizes and lets them become age old.
func (w *world) push(p store.Partition, age time.Duration, sizes ...int) {
	w.t.Helper()
	for _, n := range sizes {
		vs, err := w.PushBundle(w.t.Context(), []store.Segment{w.segment(p, n)})
		if err != nil || vs[0].Status != store.PushStored {
			w.t.Fatalf("push: %+v %v", vs, err)
		}
		if age > 0 {
			w.shift(p, vs[0].Base, age)
		}
	}
}

// shift makes a stored segment older, and the stamps of its partition as they would be.
func (w *world) shift(p store.Partition, base int64, age time.Duration) {
	w.t.Helper()
	for _, table := range []string{"log_segments", "log_txns"} {
		w.exec("UPDATE queen."+table+" SET created_at = created_at - $3::interval WHERE partition_id = $1 AND base_offset = $2", p.ID, base, age)
	}
	w.exec(`UPDATE queen.log_partitions p SET
		last_created_at = (SELECT max(created_at) FROM queen.log_segments s WHERE s.partition_id = p.id),
		oldest_live_at = (SELECT min(created_at) FROM queen.log_segments s WHERE s.partition_id = p.id AND s.base_offset >= p.log_start),
		oldest_txn_at = (SELECT min(created_at) FROM queen.log_txns s WHERE s.partition_id = p.id AND s.base_offset >= p.txns_start)
		WHERE p.id = $1`, p.ID)
}

// turn makes all tasks due and takes a turn.
func (w *world) turn() {
	w.t.Helper()
	w.due()
	if err := w.j.Turn(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	if n := w.number("SELECT count(*) FROM queen.maintenance_leases WHERE last_error IS NOT NULL"); n != 0 {
		var text string
		_ = w.pool.QueryRow(context.Background(), "SELECT string_agg(task || ': ' || last_error, '; ') FROM queen.maintenance_leases").Scan(&text)
		w.t.Fatal(text)
	}
}

func (w *world) due() { w.exec("UPDATE queen.maintenance_leases SET next_due_at = clock_timestamp()") }

// lease claims one task and fails the test without it.
func (w *world) lease(task string) store.TaskLease {
	w.t.Helper()
	w.due()
	held, err := w.ClaimTasks(w.t.Context(), uuid.NewString(), time.Minute, []store.Task{{Name: task, Period: time.Minute}}, time.Hour)
	if err != nil || len(held) != 1 {
		w.t.Fatalf("claim %s: %v %v", task, held, err)
	}
	return held[0]
}

// until waits for what another session brings about.
func (w *world) until(what string, cond func() bool) {
	w.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited in vain: %s", what)
		}
	}
}

// log is the live log of a partition as offsets of the first and behind the last message.
func (w *world) log(p store.Partition) string {
	w.t.Helper()
	return fmt.Sprintf("%d..%d",
		w.number("SELECT log_start FROM queen.log_partitions WHERE id = $1", p.ID),
		w.number("SELECT last_offset + 1 FROM queen.log_partitions WHERE id = $1", p.ID))
}

func (w *world) wantLog(p store.Partition, want string) {
	w.t.Helper()
	if got := w.log(p); got != want {
		w.t.Errorf("the log of %s is %s, want %s", p.Name, got, want)
	}
}

func (w *world) register(group, queue string) {
	w.t.Helper()
	if _, err := w.Register(w.t.Context(), w.tenant, group, queue, store.Seed{Mode: wire.SeedAll}); err != nil {
		w.t.Fatal(err)
	}
}

// commit puts the cursor of a group where it would be after an ack.
func (w *world) commit(p store.Partition, group string, offset int64) {
	w.t.Helper()
	w.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) VALUES ($1, $2, $3)
		ON CONFLICT (partition_id, consumer_group) DO UPDATE SET committed = excluded.committed`, p.ID, group, offset)
}

// exact compares what is counted with what is there.
func (w *world) exact() {
	w.t.Helper()
	const wrong = `
SELECT count(*) FROM queen.log_partitions p
 CROSS JOIN LATERAL (
    SELECT count(*) AS n, coalesce(sum(s.raw_bytes), 0) AS bytes, coalesce(min(s.base_offset), p.last_offset + 1) AS first, min(s.created_at) AS oldest
      FROM queen.log_segments s WHERE s.partition_id = p.id AND s.base_offset >= p.log_start) s
 CROSS JOIN LATERAL (
    SELECT coalesce(min(x.base_offset), p.last_offset + 1) AS first, min(x.created_at) AS oldest
      FROM queen.log_txns x WHERE x.partition_id = p.id AND x.base_offset >= p.txns_start) x
 WHERE (p.segments, p.retained_bytes, p.log_start, p.txns_start) IS DISTINCT FROM (s.n, s.bytes, s.first, x.first)
    OR p.oldest_live_at IS DISTINCT FROM s.oldest OR p.oldest_txn_at IS DISTINCT FROM x.oldest`
	if n := w.number(wrong); n != 0 {
		w.t.Errorf("%d partitions have counters or watermarks that are not those of their log", n)
	}
	// What leads to an idle partition never hides one.
	const hidden = `SELECT count(*) FROM queen.log_partitions WHERE oldest_live_at IS NULL AND idle_since > last_write_at`
	if n := w.number(hidden); n != 0 {
		w.t.Errorf("%d empty partitions are idle since later than their last write", n)
	}
	// What lies below a watermark is on the list of what is to be deleted.
	const stray = `
SELECT count(*) FROM queen.log_segments s LEFT JOIN queen.log_partitions p ON p.id = s.partition_id
 WHERE (p.id IS NULL AND NOT EXISTS (SELECT FROM queen.dropped_partitions d WHERE d.partition_id = s.partition_id))
    OR (s.base_offset < p.log_start AND NOT EXISTS (SELECT FROM queen.log_trims t
         WHERE t.partition_id = s.partition_id AND s.base_offset >= t.segments_from AND s.base_offset < t.segments_below))`
	if n := w.number(stray); n != 0 {
		w.t.Errorf("%d segments are neither live nor to be deleted", n)
	}
	used, err := w.Usage(context.Background(), []uuid.UUID{w.tenant})
	if err != nil {
		w.t.Fatal(err)
	}
	if live := w.number(`SELECT coalesce(sum(retained_bytes), 0)::bigint FROM queen.log_partitions`); used[0].RetainedBytes != live {
		w.t.Errorf("the tenant retains %d bytes, its partitions %d", used[0].RetainedBytes, live)
	}
}
