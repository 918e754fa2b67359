package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

// No lock. Indexes: queues (tenant_id, name), log_partitions (queue_id, name).
var lookup = statement(`SELECT w.ordinal::integer, p.id, p.uid, q.id, q.dedup_window_seconds, p.encrypted
FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS w (queue, name, ordinal)
JOIN queen.queues q ON q.tenant_id = $1 AND q.name = w.queue
JOIN queen.log_partitions p ON p.queue_id = q.id AND p.name = w.name`)

var provision = statement(`SELECT refused, refused_queue, used, queues_created, partitions_created
FROM queen.provision($1, $2, $3, $4, $5, $6, $7)`)

// Lookup resolves pairs without creating anything, in input order; a missing one has ID 0. One read, no lock.
func (s *Store) Lookup(ctx context.Context, tenant uuid.UUID, pairs []Pair) ([]Partition, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	queues, names := split(pairs)
	found := make([]Partition, len(pairs))
	for i, p := range pairs {
		found[i] = Partition{Tenant: tenant, Queue: p.Queue, Name: p.Partition}
	}
	life, err := s.queryIn(ctx, 0, "look up partitions", lookup, []any{tenant, queues, names}, func(rows pgx.Rows) error {
		var ordinal, window int32
		var id, queue int64
		var uid uuid.UUID
		var encrypted bool
		if err := rows.Scan(&ordinal, &id, &uid, &queue, &window, &encrypted); err != nil {
			return err
		}
		p := &found[ordinal-1]
		p.ID, p.UID, p.QueueID, p.DedupWindow, p.Encrypted = id, uid, queue, time.Duration(window)*time.Second, encrypted
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i].Life = life
	}
	return found, nil
}

// Provision resolves pairs in input order, creating the queues and partitions that are missing in one statement under
// the tenant's row lock. All or nothing: over a cap it creates nothing and returns wire.QuotaExceeded with Limit
// queues, partitions or, when the plan refuses queues without retention, retention. Counts are exact under concurrency;
// Default partitions are free. Pairs that exist cost one read and no lock, and caps do not apply to them. A tenant that was
// removed gets wire.ClusterSuspended: see CloseTenant.
func (s *Store) Provision(ctx context.Context, tenant uuid.UUID, pairs []Pair, caps Caps) ([]Partition, error) {
	// A queue deleted between creation and the second look-up costs another round; it takes a hostile neighbour to
	// lose several.
	const rounds = 4
	for range rounds {
		found, err := s.Lookup(ctx, tenant, pairs)
		if err != nil {
			return nil, err
		}
		var missing []Pair
		for i := range found {
			if found[i].ID == 0 {
				missing = append(missing, pairs[i])
			}
		}
		if len(missing) == 0 {
			return found, nil
		}
		if err := s.create(ctx, tenant, missing, caps); err != nil {
			return nil, err
		}
	}
	return nil, wire.Errorf(wire.NotFound, "the queue is being deleted")
}

// create provisions pairs in a transaction of its own.
func (s *Store) create(ctx context.Context, tenant uuid.UUID, pairs []Pair, caps Caps) error {
	conn, err := s.acquire(ctx, "provision")
	if err != nil {
		return err
	}
	defer conn.Release()
	_, err = provisionOn(context.WithoutCancel(ctx), conn, tenant, pairs, caps)
	return pg.Error("provision", pg.Confirmed(conn.Conn(), err))
}

// rowQuerier is a connection or a transaction on one.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// provisionOn runs the routine and turns its refusal into an error. queues is the number of queues it created.
func provisionOn(ctx context.Context, db rowQuerier, tenant uuid.UUID, pairs []Pair, caps Caps) (queues int64, err error) {
	names, partitions := split(pairs)
	var refused, queue *string
	var used, created *int64
	err = db.QueryRow(ctx, provision, tenant, names, partitions, caps.MaxQueues, caps.MaxPartitions,
		caps.Unbounded.seconds(), caps.Unbounded.Refuse).
		Scan(&refused, &queue, &used, &queues, &created)
	switch {
	case pg.State(err) == stateClosed:
		return 0, errClosed.Because(err)
	case err != nil:
		return 0, pg.Error("provision", err)
	case refused == nil:
		return queues, nil
	case *refused == "queues":
		return 0, overCap("queues", *caps.MaxQueues, *used, "the plan's number of queues is reached")
	case *refused == "retention":
		return 0, caps.Unbounded.refuse(*queue)
	}
	return 0, overCap("partitions", *caps.MaxPartitions, *used, fmt.Sprintf("the plan's number of partitions is reached in queue %q", *queue))
}

func overCap(name string, limit, used int64, detail string) error {
	return &wire.Error{
		Code: wire.QuotaExceeded, Detail: detail,
		Limit: &wire.Limit{Name: name, Limit: float64(limit), Used: float64(used), Unit: name},
	}
}

func split(pairs []Pair) (queues, partitions []string) {
	queues, partitions = make([]string, len(pairs)), make([]string, len(pairs))
	for i, p := range pairs {
		queues[i], partitions[i] = p.Queue, p.Partition
	}
	return queues, partitions
}
