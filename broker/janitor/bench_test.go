package janitor

import (
	"testing"
	"time"

	"github.com/queengate/queengate/broker/store"
)

// BenchmarkIdleTurn is what an idle cell pays every interval: 10,000 queues, 200,000 partitions, nothing due.
func BenchmarkIdleTurn(b *testing.B) {
	for name, rule := range map[string]string{"no rules": "false", "a rule each": "true"} {
		b.Run(name, func(b *testing.B) {
			w := newBareWorld(b)
			w.fill(10_000, 20, rule)
			for _, task := range []string{store.TaskRetention, store.TaskSidecar, store.TaskPartitions} {
				b.Run(task, func(b *testing.B) {
					for b.Loop() {
						held, err := w.ClaimTasks(b.Context(), "bench", time.Minute, []store.Task{{Name: task, Period: time.Microsecond}}, time.Hour)
						if err != nil || len(held) != 0 {
							b.Fatalf("%+v %v", held, err)
						}
					}
				})
			}
		})
	}
}

// BenchmarkStep is one step of retention on sixteen partitions, sixteen segments each, and the deletion behind it.
func BenchmarkStep(b *testing.B) {
	w := newBareWorld(b)
	w.queue("orders", `"retentionEnabled":true,"retentionSeconds":60`)
	var ids []int64
	for i := range 16 {
		ids = append(ids, w.partition("orders", string(rune('a'+i))).ID)
	}
	const lease = "UPDATE queen.maintenance_leases SET holder = 'bench', fence = 1, lease_until = now() + interval '1 hour' WHERE task = $1"
	w.exec(lease, store.TaskRetention)
	l := store.TaskLease{Task: store.TaskRetention, Holder: "bench", Fence: 1}
	for b.Loop() {
		b.StopTimer()
		w.exec(`WITH p AS (UPDATE queen.log_partitions SET last_offset = last_offset + 16, segments = segments + 16, retained_bytes = retained_bytes + 160,
				oldest_live_at = now() - interval '1 hour', last_created_at = now() WHERE name <> 'Default' RETURNING id, last_offset)
			INSERT INTO queen.log_segments SELECT p.id, p.last_offset - 15 + n, p.last_offset - 15 + n, now() - interval '1 hour', 10, 'blob'
			FROM p, generate_series(0, 15) n`)
		b.StartTimer()
		if t, err := w.Trim(b.Context(), l, ids, 1000, false); err != nil || t.Segments != 256 {
			b.Fatalf("%+v %v", t, err)
		}
		b.StopTimer()
		if n, err := w.SweepTrimmed(b.Context(), l, 1000); err != nil || n != 256 {
			b.Fatal(n, err)
		}
		b.StartTimer()
	}
}

// fill makes queues with a rule or without, and partitions that hold a young segment each.
func (w *world) fill(queues, partitions int, rule string) {
	w.t.Helper()
	w.exec("INSERT INTO queen.tenants (tenant_id) VALUES ($1)", w.tenant)
	w.exec(`INSERT INTO queen.queues (tenant_id, name, retention_enabled, retention_seconds)
		SELECT $1, 'q' || n, `+rule+`, 3600 FROM generate_series(1, $2::integer) n`, w.tenant, queues)
	w.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset, oldest_live_at, oldest_txn_at, last_created_at, last_write_at, segments)
		SELECT q.id, 'p' || n, 0, now(), now(), now(), now(), 1 FROM queen.queues q, generate_series(1, $1::integer) n`, partitions)
	w.exec(`INSERT INTO queen.log_segments SELECT id, 0, 0, last_created_at, 0, 'blob' FROM queen.log_partitions`)
	w.exec(`INSERT INTO queen.log_txns SELECT id, 0, 0, last_created_at, '0123456789abcdef' FROM queen.log_partitions`)
	w.exec("ANALYZE queen.log_partitions")
}
