package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
)

// No lock. Indexes: those of queen.written_since, whose cost follows the partitions written in the window, and queues by key;
// LIMIT 1 keeps the planner from reading that table whole. One snapshot for all: a change that the version does not count yet
// is not among the rows either.
//
// The switches travel along, so that every broker obeys them within a second and nobody asks for them alone, and so do
// the markers of moved cursors. Index: cursor_moves (moved_at).
var changes = statement(`WITH v AS MATERIALIZED (
      SELECT sum(c.version)::bigint AS version,
             (SELECT s.value @> '{"enabled": true}' FROM queen.system_state s WHERE s.key = '` + StateMaintenance + `') AS push_off,
             (SELECT s.value @> '{"enabled": true}' FROM queen.system_state s WHERE s.key = '` + StatePopMaintenance + `') AS pop_off
        FROM queen.config_version c)
SELECT v.version, v.push_off, v.pop_off, p.id, p.queue_id, q.tenant_id, q.name, p.last_offset, NULL::bigint AS move, NULL AS consumer_group
FROM v
LEFT JOIN (queen.written_since(now() - $1::bigint * interval '1 microsecond') p
     CROSS JOIN LATERAL (SELECT q.tenant_id, q.name FROM queen.queues q WHERE q.id = p.queue_id LIMIT 1) q) ON true
UNION ALL
SELECT v.version, v.push_off, v.pop_off, NULL, NULL, m.tenant_id, m.queue, NULL, m.id, coalesce(m.consumer_group, '')
FROM v
JOIN queen.cursor_moves m ON m.moved_at >= now() - greatest($1::bigint, 60000000) * interval '1 microsecond'`)

// Index: queues (tenant_id, name), then log_partitions (queue_id, name).
var names = statement(`SELECT q.name, coalesce(p.name, 'Default')
FROM queen.queues q LEFT JOIN queen.log_partitions p ON p.queue_id = q.id
WHERE q.tenant_id = $1 AND q.name >= $2 AND ($4 OR q.name > $2 OR p.name > $3)
ORDER BY q.name, p.name LIMIT $5`)

// Changes returns the partitions written within the last window, and what brokers share: the configuration version,
// which is another number after every change of queues and of what they hold, the operator's switches, and the cursors
// moved within the window, or within a minute if that is longer. It is the one query by which a broker learns what others
// did: every ring of it is fed at once.
//
// A partition is logged at most once a second, stamped before the commit: the window must cover that second plus the
// longest push, so ask for 3 s every second and for 60 s every 20 s. Repeats are normal; LastOffset tells them. A window
// beyond the log (a quarter of an hour), or one with a gap in it (the first minutes after an upgrade), is answered by a look
// at every partition.
func (s *Store) Changes(ctx context.Context, window time.Duration) (written []Change, now Shared, err error) {
	const op = "change feed"
	conn, err := s.acquire(ctx, op)
	if err != nil {
		return nil, Shared{}, err
	}
	defer conn.Release()
	err = queryOn(ctx, conn, op, changes, []any{window.Microseconds()}, func(rows pgx.Rows) error {
		var id, queueID, last, move *int64
		var tenant *uuid.UUID
		var queue, group *string
		var pushOff, popOff *bool
		if err := rows.Scan(&now.ConfigVersion, &pushOff, &popOff, &id, &queueID, &tenant, &queue, &last, &move, &group); err != nil {
			return err
		}
		now.Switches = Switches{Push: pushOff != nil && *pushOff, Pop: popOff != nil && *popOff}
		if id != nil {
			written = append(written, Change{PartitionID: *id, QueueID: *queueID, Tenant: *tenant, Queue: *queue, LastOffset: *last})
		}
		if move != nil {
			now.Moves = append(now.Moves, CursorMove{ID: *move, Tenant: *tenant, Queue: *queue, Group: *group})
		}
		return nil
	})
	if err != nil {
		return nil, Shared{}, err
	}
	now.Life, now.Timeline = pg.LifeOf(conn.Conn()), pg.TimelineOf(conn.Conn())
	return written, now, nil
}

// Names returns the tenant's pairs in (queue, partition) order, bytewise, after the given pair, at most limit; the
// zero Pair starts at the beginning. A queue without partitions appears with Default, which counts against nothing.
// Fewer than limit means the end. limit is at least 2.
func (s *Store) Names(ctx context.Context, tenant uuid.UUID, after Pair, limit int) ([]Pair, error) {
	page := make([]Pair, 0, min(limit, 1024))
	args := []any{tenant, after.Queue, after.Partition, after == Pair{}, limit}
	err := s.query(ctx, "names", names, args, func(rows pgx.Rows) error {
		var p Pair
		if err := rows.Scan(&p.Queue, &p.Partition); err != nil {
			return err
		}
		page = append(page, p)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}
