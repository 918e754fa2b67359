package lab

import (
	"context"
	"fmt"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// invariants are statements that count what contradicts itself in the tables of a system at rest, and show one example.
// They judge nothing that a client can see: that is done on the history.
var invariants = []struct{ name, query string }{
	{
		"segments of a partition follow each other without gap or overlap, up to its last offset",
		`SELECT count(*), min(partition_id::text || ' at ' || base_offset) FROM (
			SELECT s.partition_id, s.base_offset,
				lead(s.base_offset, 1, p.last_offset + 1) OVER (PARTITION BY s.partition_id ORDER BY s.base_offset) AS next, s.end_offset
			FROM queen.log_segments s JOIN queen.log_partitions p ON p.id = s.partition_id) x WHERE next <> end_offset + 1`,
	},
	{
		"creation times of a partition's segments do not go back",
		`SELECT count(*), min(partition_id::text || ' at ' || base_offset) FROM (
			SELECT partition_id, base_offset, created_at, lag(created_at) OVER (PARTITION BY partition_id ORDER BY base_offset) AS before
			FROM queen.log_segments) x WHERE before > created_at`,
	},
	{
		"a partition knows its first segment, their number and their bytes",
		`SELECT count(*), min(id::text) FROM (
			SELECT p.id, p.log_start, p.segments, p.retained_bytes, coalesce(min(s.base_offset), p.last_offset + 1) AS first,
				count(s.partition_id) AS n, coalesce(sum(s.raw_bytes), 0) AS bytes
			FROM queen.log_partitions p LEFT JOIN queen.log_segments s ON s.partition_id = p.id GROUP BY p.id) x
		WHERE (log_start, segments, retained_bytes) <> (first, n, bytes)`,
	},
	{
		"the last write of a partition is in the log of writes, as far as that goes back",
		`SELECT count(*), min(p.id::text) FROM queen.log_partitions p WHERE queen.logged_since(p.last_write_at) AND NOT EXISTS (
			SELECT FROM queen.log_writes w WHERE w.written_at = p.last_write_at AND p.id = ANY (w.partitions))`,
	},
	{
		"a partition that is empty was not written to since it counts as idle",
		`SELECT count(*), min(id::text) FROM queen.log_partitions WHERE oldest_live_at IS NULL AND idle_since > last_write_at`,
	},
	{
		"a tenant's retained bytes are those of its partitions",
		`SELECT count(*), min(tenant_id::text) FROM (
			SELECT t.tenant_id, t.retained_bytes + coalesce((SELECT sum(l.bytes) FROM queen.retained_ledger l WHERE l.tenant_id = t.tenant_id), 0) AS said,
				coalesce((SELECT sum(p.retained_bytes) FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.tenant_id = t.tenant_id), 0) AS counted
			FROM queen.tenants t) x WHERE said <> counted`,
	},
	{
		"the sidecar of transaction ids has 16 bytes per message and no row without a partition",
		`SELECT count(*), min(t.partition_id::text || ' at ' || t.base_offset) FROM queen.log_txns t LEFT JOIN queen.log_partitions p ON p.id = t.partition_id
		WHERE length(t.hashes) <> 16 * (t.end_offset - t.base_offset + 1) OR p.id IS NULL OR t.end_offset > p.last_offset`,
	},
	{
		"no cursor and no lease reaches past the end of its log",
		`SELECT count(*), min(c.partition_id::text || ' of ' || c.consumer_group) FROM queen.log_consumers c JOIN queen.log_partitions p ON p.id = c.partition_id
		WHERE c.committed > p.last_offset OR c.batch_end > p.last_offset`,
	},
	{
		"a queue counts its partitions, a tenant its queues",
		`SELECT count(*), min(name) FROM (
			SELECT q.name, q.partition_count AS said, (SELECT count(*) FROM queen.log_partitions p WHERE p.queue_id = q.id AND p.name <> 'Default') AS counted FROM queen.queues q
			UNION ALL SELECT t.tenant_id::text, t.queue_count, (SELECT count(*) FROM queen.queues q WHERE q.tenant_id = t.tenant_id) FROM queen.tenants t) x WHERE said <> counted`,
	},
}

// CheckTables looks into the tables of a server for contradictions, and notes what it finds of each invariant.
func (l *Lab) CheckTables(ctx context.Context, pg *Postgres) error {
	c, err := pg.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	for _, i := range invariants {
		var n int64
		var example *string
		if err := c.QueryRow(ctx, i.query).Scan(&n, &example); err != nil {
			return fmt.Errorf("check that %s: %w", i.name, err)
		}
		note := hist.InvariantNote{Name: i.name, Holds: n == 0}
		if example != nil {
			note.Detail = fmt.Sprintf("%d, one is %s", n, *example)
		}
		l.rec.Note(hist.Invariant, &note)
	}
	return nil
}
