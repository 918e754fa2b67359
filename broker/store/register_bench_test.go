package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/queengate/queengate/wire"
)

// BenchmarkRegister is what a group's first pop asks of the database on a queue with that many partitions of one message
// each, for a group that reads what comes from then on: the registration, and what is pending. Behind it, without anybody
// waiting, are the steps that make its cursors, which "step" is one of.
func BenchmarkRegister(b *testing.B) {
	for _, partitions := range []int{1_000, 200_000} {
		w := newWorld(b)
		w.exec(`WITH p AS (INSERT INTO queen.log_partitions (queue_id, name, last_offset, last_created_at)
SELECT $1, 'p' || i, 0, now() FROM generate_series(1, $2::int) i RETURNING id)
INSERT INTO queen.log_segments SELECT id, 0, 0, now(), 1, '' FROM p`, w.id, partitions)
		w.exec("UPDATE queen.queues SET partition_count = $2 WHERE id = $1", w.id, partitions)
		w.exec("VACUUM ANALYZE queen.log_partitions")
		n := 0
		register := func(b *testing.B) string {
			n++
			group := fmt.Sprint("g", n)
			if err := w.enroll(w.tenant, group, w.queue, Seed{Mode: wire.SeedNew}); err != nil {
				b.Fatal(err)
			}
			return group
		}
		b.Run(fmt.Sprintf("partitions=%d/register", partitions), func(b *testing.B) {
			for b.Loop() {
				register(b)
			}
		})
		b.Run(fmt.Sprintf("partitions=%d/pending", partitions), func(b *testing.B) {
			group := register(b)
			for b.Loop() {
				if found, err := w.store.Pending(w.ctx, w.id, group, time.Duration(0)); err != nil || len(found) != 0 {
					b.Fatal(len(found), err)
				}
			}
		})
		if partitions > seedWhole {
			w.exec("DELETE FROM queen.group_registrations")
			register(b)
			l := w.task(TaskCursors)
			b.Run(fmt.Sprintf("partitions=%d/step", partitions), func(b *testing.B) {
				for b.Loop() {
					if k, err := w.store.SeedRegistered(w.ctx, l, seedWhole); err != nil {
						b.Fatal(err)
					} else if k < seedWhole {
						b.StopTimer()
						register(b)
						b.StartTimer()
					}
				}
			})
		}
	}
}
