package store

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

var (
	seekGroup       = statement(`SELECT queen.seek_group($1, $2, $3, $4, $5)`)
	deleteGroup     = statement(`SELECT cursors, registrations, queues FROM queen.delete_group($1, $2, $3, $4)`)
	setSubscription = statement(`SELECT queen.set_subscription($1, $2, $3)`)
	clearQueue      = statement(`SELECT existed, partitions, messages FROM queen.clear_queue($1, $2, $3)`)
)

// Seek moves the cursors of a group on all partitions of a queue, or on the one named, and returns how many; 0 means
// that nothing of that name exists. A time means the first segment stamped at or after it.
//
// Leases on the cursors end: their acknowledgements are refused from then on. Counts of retries and attempts begin
// anew, and missing cursors are made. All in one commit, which other brokers hear of through Changes.
func (s *Store) Seek(ctx context.Context, tenant uuid.UUID, group, queue, partition string, to wire.Seek) (moved int64, err error) {
	from := &to.At
	if to.ToEnd {
		from = nil
	}
	err = s.commit(ctx, "seek", seekGroup, []any{tenant, group, queue, orNull(partition), from}, []any{&moved})
	return moved, err
}

// DeletedGroup is what DeleteGroup removed.
type DeletedGroup struct {
	Cursors, Registrations int64
	Queues                 []string // that had either
}

// DeleteGroup removes the cursors of a group on a queue, or with queue "" on all, and its registrations there too if
// asked. The next pop of the group starts by its registration, kept or new. Consumers may be running: what they hold
// leased is refused at its acknowledgement and delivered again by that rule.
func (s *Store) DeleteGroup(ctx context.Context, tenant uuid.UUID, group, queue string, registrations bool) (d DeletedGroup, err error) {
	err = s.commit(ctx, "delete group", deleteGroup, []any{tenant, group, orNull(queue), registrations},
		[]any{&d.Cursors, &d.Registrations, &d.Queues})
	return d, err
}

// SetSubscription makes every registration of a group start from a time and returns how many there are. It moves no
// cursor: only partitions that the group has not read yet are seeded by it.
func (s *Store) SetSubscription(ctx context.Context, tenant uuid.UUID, group string, from time.Time) (registrations int64, err error) {
	err = s.commit(ctx, "set subscription", setSubscription, []any{tenant, group, from}, []any{&registrations})
	return registrations, err
}

// Cleared is what ClearQueue removed.
type Cleared struct {
	Existed    bool    // the queue
	Partitions []int64 // ids that caches must forget
	Messages   int64   // that were retained
}

// ClearQueue removes all partitions of a queue, or the one named, as DeleteQueue does; the queue with its options stays,
// and so do the registrations of its groups.
func (s *Store) ClearQueue(ctx context.Context, tenant uuid.UUID, queue, partition string) (c Cleared, err error) {
	if err := s.commit(ctx, "clear queue", clearQueue, []any{tenant, queue, orNull(partition)},
		[]any{&c.Existed, &c.Partitions, &c.Messages}); err != nil {
		return Cleared{}, err
	}
	if len(c.Partitions) > 0 {
		// The deletion stands whatever becomes of this step: what it leaves is swept later.
		_, _ = s.SweepDropped(ctx)
	}
	return c, nil
}

// orNull passes an empty text as NULL.
func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
