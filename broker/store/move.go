package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

var (
	moveLetters = statement(`SELECT outcome, frame, at_offset, last_offset, created_at
FROM queen.move_letters($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`)
	deadLetterHead = statement(`SELECT outcome, partition_id, queue, head, committed, last_offset, until
FROM queen.dead_letter_head($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`)
)

// LetterPrefix begins the transaction id under which a letter returns to the log; the letter's id follows. A replay
// that is repeated therefore meets its own traces.
const LetterPrefix = "dlq:"

// Move offers dead letters to the end of one partition.
type Move struct {
	Tenant    uuid.UUID
	Letters   []uuid.UUID // in the order of the frames
	Partition Partition   // where to
	RawBytes  int64       // of the payloads
	Verified  Watermark   // as in Segment
	Blob      []byte      // the letters as one segment
	Hashes    []byte
	Sealed    bool     // every payload in Blob is encrypted
	Redrive   *Redrive // what it is a part of; nil: a replay by hand
}

// MoveOutcome is what became of a Move.
type MoveOutcome int

// The outcomes of queen.move_letters.
const (
	MoveDone      MoveOutcome = iota // the letters are gone and their messages are in the log
	MoveDuplicate                    // Dups were in the log already and their letters are gone; the others are untouched
	MoveChanged                      // nothing done: a letter is gone, or held by another session
	MoveMissing                      // nothing done: the partition is gone
	MoveLost                         // nothing done: the redrive ended, or another broker holds it
	MovePlain                        // nothing done: the partition takes encrypted messages only; look it up again
)

// MoveVerdict answers a Move.
type MoveVerdict struct {
	Outcome    MoveOutcome
	Base       int64     // first offset (MoveDone)
	CreatedAt  time.Time // MoveDone
	LastOffset int64     // of the partition (MoveDone, MoveDuplicate)
	Dups       []Dup
}

// MoveLetters puts dead letters back into the log and deletes them, all in one commit: at every moment a message is
// either dead or in the log, and a crash moves all or none. It waits for the partition, and for a lone letter that
// another session is moving; a Move of several letters does not wait for letters.
func (s *Store) MoveLetters(ctx context.Context, m *Move) (MoveVerdict, error) {
	var redrive *uuid.UUID
	var fence int64
	if m.Redrive != nil {
		redrive, fence = &m.Redrive.ID, m.Redrive.fence
	}
	const op = "move dead letters"
	conn, err := s.acquire(ctx, op)
	v := MoveVerdict{Outcome: -1}
	if err != nil {
		return v, err
	}
	defer conn.Release()
	if to := m.Partition.Life; to != 0 && to != pg.LifeOf(conn.Conn()) {
		return v, errOtherLife(op)
	}
	err = commitRows(ctx, conn.Conn(), op, moveLetters, []any{
		m.Tenant, redrive, fence, redriveLease.Milliseconds(), m.Letters, m.Partition.ID, m.RawBytes, m.Verified.in(pg.LifeOf(conn.Conn())),
		m.Partition.DedupWindow.Microseconds(), m.Blob, m.Hashes, m.Sealed,
	}, func(rows pgx.Rows) error {
		var outcome int
		var frame *int
		var at, last *int64
		var created *time.Time
		if err := rows.Scan(&outcome, &frame, &at, &last, &created); err != nil {
			return err
		}
		v.Outcome = MoveOutcome(outcome)
		switch v.Outcome {
		case MoveDone:
			v.Base, v.LastOffset, v.CreatedAt = *at, *last, *created
		case MoveDuplicate:
			v.LastOffset = *last
			v.Dups = append(v.Dups, Dup{Frame: *frame, Offset: *at, CreatedAt: *created})
		}
		return nil
	})
	if err == nil && v.Outcome < 0 {
		err = wire.Wrap(wire.Internal, fmt.Errorf("move dead letters: no verdict"))
	}
	return v, err
}

// commitRows runs one committing statement on a session that the caller holds, and calls each for every row.
func commitRows(ctx context.Context, conn *pgx.Conn, op, sql string, args []any, each func(pgx.Rows) error) error {
	rows, err := conn.Query(context.WithoutCancel(ctx), sql, args...)
	if err != nil {
		return pg.Error(op, pg.Confirmed(conn, err))
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return pg.Error(op, err)
		}
	}
	return pg.Error(op, pg.Confirmed(conn, rows.Err()))
}

// HeadOutcome is what became of a message that was to be dead-lettered by hand.
type HeadOutcome int

// The outcomes of queen.dead_letter_head. Only the first changes anything.
const (
	HeadFiled       HeadOutcome = iota // the letter is filed and the cursor has passed the message
	HeadNoPartition                    // not a partition of the tenant
	HeadNoCursor                       // the group has not read there
	HeadConsumed                       // the cursor has passed the message before
	HeadLeased                         // the group's next batch is leased
	HeadBehind                         // other messages of the group come before it
)

// HeadVerdict answers DeadLetterHead.
type HeadVerdict struct {
	Outcome     HeadOutcome
	ID          uuid.UUID // of the letter (HeadFiled)
	PartitionID int64
	Queue       string
	Head        int64     // the group's next offset
	Committed   int64     // cursor after the call
	LastOffset  int64     // of the partition
	Until       time.Time // HeadLeased
}

// DeadLetterHead files the message at offset as a dead letter of the group, if it is the group's next one and not
// leased, and moves the cursor past it, in one commit. A missing cursor is seeded by the group's registration first.
func (s *Store) DeadLetterHead(ctx context.Context, tenant uuid.UUID, m *StoredMessage, group, reason string) (HeadVerdict, error) {
	if err := s.seedCursors(ctx, []int64{m.PartitionID}, []string{group}); err != nil {
		return HeadVerdict{}, err
	}
	v := HeadVerdict{ID: uuid.Must(uuid.NewV7())}
	var partition, head, committed, last *int64
	var queue *string
	var until *time.Time
	err := s.commit(ctx, "dead-letter message", deadLetterHead, []any{
		tenant, m.PartitionUID, group, m.Offset, v.ID, segment.MessageID(m.CreatedAt, m.Offset, m.PartitionID),
		storable(m.Frame.TransactionID), m.Frame.Payload, storable(reason), m.CreatedAt,
	}, []any{&v.Outcome, &partition, &queue, &head, &committed, &last, &until})
	if err != nil {
		return HeadVerdict{}, err
	}
	if queue != nil {
		v.PartitionID, v.Queue, v.LastOffset = *partition, *queue, *last
	}
	if head != nil {
		v.Head, v.Committed = *head, *committed
	}
	if until != nil {
		v.Until = *until
	}
	return v, nil
}
