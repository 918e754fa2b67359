package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/wire"
)

// Trace is an event that a consumer noted beside a message.
type Trace struct {
	ID            uuid.UUID
	Partition     uuid.UUID
	TransactionID string
	Hash          Hash // of TransactionID
	Group         string
	Event         string
	Worker        string // the broker that took it
	Data          []byte // JSON
	Names         []string
	Queue         string    // read: as it was called then, like PartitionName
	PartitionName string    // likewise
	Created       time.Time // read
}

// One statement: the event is stored with the names of its partition, if the tenant has such a partition.
var addTrace = statement(`WITH stored AS (
    INSERT INTO queen.message_traces (id, tenant_id, partition_id, transaction_hash, transaction_id, queue, partition_name,
        consumer_group, event_type, worker, data, names)
    SELECT $1, $2, $3, $4, $5, q.name, p.name, $6, $7, $8, $9, $10
      FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
     WHERE p.uid = $3 AND q.tenant_id = $2
    RETURNING id, tenant_id, partition_id, transaction_hash, names, created_at
), named AS (
    INSERT INTO queen.message_trace_names (tenant_id, name, created_at, trace_id, partition_id, transaction_hash)
    SELECT s.tenant_id, n.name, s.created_at, s.id, s.partition_id, s.transaction_hash
      FROM stored s CROSS JOIN LATERAL unnest(s.names) AS n (name)
)
SELECT count(*) FROM stored`)

// AddTrace stores an event in one commit. Errors: wire.NotFound when the tenant has no such partition. Whether the
// message is there is not asked: an event may outlive it.
func (s *Store) AddTrace(ctx context.Context, tenant uuid.UUID, t *Trace) error {
	var stored int
	names := t.Names
	if names == nil {
		names = []string{}
	}
	err := s.commit(ctx, "add trace", addTrace, []any{
		t.ID, tenant, t.Partition, t.Hash[:], t.TransactionID, t.Group, t.Event, t.Worker, string(t.Data), names,
	}, []any{&stored})
	if err == nil && stored == 0 {
		return wire.Errorf(wire.NotFound, "Partition not found")
	}
	return err
}

const traceColumns = `t.id, t.partition_id, t.transaction_id, t.consumer_group, t.event_type, t.worker, t.data, t.names, t.queue, t.partition_name, t.created_at`

// Index: message_traces_message.
var tracesOfMessage = statement(`SELECT ` + traceColumns + ` FROM queen.message_traces t
WHERE t.tenant_id = $1 AND t.partition_id = $2 AND t.transaction_hash = $3 ORDER BY t.created_at, t.id LIMIT $4`)

// Index: message_trace_names_pkey, backwards, then message_traces_pkey.
var tracesByName = statement(`SELECT ` + traceColumns + `
FROM (SELECT n.trace_id, n.created_at FROM queen.message_trace_names n WHERE n.tenant_id = $1 AND n.name = $2
       ORDER BY n.created_at DESC, n.trace_id DESC LIMIT $3 OFFSET $4) n
JOIN queen.message_traces t ON t.id = n.trace_id ORDER BY n.created_at DESC, n.trace_id DESC`)

var countTraces = statement(`SELECT count(*) FROM queen.message_trace_names n WHERE n.tenant_id = $1 AND n.name = $2`)

// Names are found by leaps through the index, so finding them costs by their number and not by that of the events;
// only the events of the page's names are counted.
var traceNames = statement(`WITH RECURSIVE leap AS (
    (SELECT n.name FROM queen.message_trace_names n WHERE n.tenant_id = $1 ORDER BY n.name LIMIT 1)
    UNION ALL
    SELECT (SELECT n.name FROM queen.message_trace_names n WHERE n.tenant_id = $1 AND n.name > l.name ORDER BY n.name LIMIT 1)
      FROM leap l WHERE l.name IS NOT NULL
), known AS (
    SELECT l.name, (SELECT n.created_at FROM queen.message_trace_names n WHERE n.tenant_id = $1 AND n.name = l.name
                     ORDER BY n.created_at DESC LIMIT 1) AS last_seen
      FROM leap l WHERE l.name IS NOT NULL
), page AS (
    SELECT k.name, k.last_seen, count(*) OVER () AS total FROM known k ORDER BY k.last_seen DESC, k.name LIMIT $2 OFFSET $3
)
SELECT p.name, c.traces, c.messages, p.last_seen, p.total
FROM page p
CROSS JOIN LATERAL (
    SELECT count(*) AS traces, count(DISTINCT (n.partition_id, n.transaction_hash)) AS messages
      FROM queen.message_trace_names n WHERE n.tenant_id = $1 AND n.name = p.name
) c
ORDER BY p.last_seen DESC, p.name`)

func (s *Store) traces(ctx context.Context, sql string, args ...any) (all []Trace, err error) {
	err = s.query(ctx, "traces", sql, args, func(rows pgx.Rows) error {
		var t Trace
		var data string
		err := rows.Scan(&t.ID, &t.Partition, &t.TransactionID, &t.Group, &t.Event, &t.Worker, &data, &t.Names, &t.Queue, &t.PartitionName, &t.Created)
		t.Data = []byte(data)
		all = append(all, t)
		return err
	})
	return all, err
}

// maxMessageTraces bounds the events of one message that are read.
const maxMessageTraces = 1000

// TracesOfMessage returns the events of a message in their order, at most 1,000; of an unknown one none.
func (s *Store) TracesOfMessage(ctx context.Context, tenant, partition uuid.UUID, message Hash) ([]Trace, error) {
	return s.traces(ctx, tracesOfMessage, tenant, partition, message[:], maxMessageTraces)
}

// TracesByName returns a page of the events of that name, newest first, and how many there are in all.
func (s *Store) TracesByName(ctx context.Context, tenant uuid.UUID, name string, page wire.Page) (all []Trace, total int64, err error) {
	if all, err = s.traces(ctx, tracesByName, tenant, name, page.Limit, page.Offset); err != nil {
		return nil, 0, err
	}
	err = s.query(ctx, "count traces", countTraces, []any{tenant, name}, func(rows pgx.Rows) error { return rows.Scan(&total) })
	return all, total, err
}

// TraceName is a name with what was noted under it.
type TraceName struct {
	Name             string
	Traces, Messages int64
	LastSeen         time.Time
}

// TraceNames returns a page of the tenant's trace names, those seen last first, and how many there are in all; a page
// beyond the end has no total.
func (s *Store) TraceNames(ctx context.Context, tenant uuid.UUID, page wire.Page) (all []TraceName, total int64, err error) {
	err = s.query(ctx, "trace names", traceNames, []any{tenant, page.Limit, page.Offset}, func(rows pgx.Rows) error {
		var n TraceName
		err := rows.Scan(&n.Name, &n.Traces, &n.Messages, &n.LastSeen, &total)
		all = append(all, n)
		return err
	})
	return all, total, err
}

var purgeTraces = statement(`SELECT queen.purge_traces(clock_timestamp() - $1::bigint * interval '1 second', $2)`)

// PurgeTraces deletes a bounded number of events that are older than keep, with their names, in a commit of its own, and
// returns how many; 0 means that nothing is left that another session is not deleting.
func (s *Store) PurgeTraces(ctx context.Context, keep time.Duration) (removed int64, err error) {
	err = s.commit(ctx, "purge traces", purgeTraces, []any{int64(keep.Seconds()), purgeStep}, []any{&removed})
	return removed, err
}
