package store

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
)

// Letter is a dead letter: a message that a group gave up on, as it was then.
type Letter struct {
	ID            uuid.UUID
	Queue         string
	PartitionID   int64
	PartitionUID  uuid.UUID
	Partition     string
	Group         string
	Offset        int64
	MessageID     uuid.UUID // Nil when Payload is nil
	TransactionID string    // "" when neither the segment nor the acknowledgement told
	Payload       []byte    // as stored: the JSON text as pushed, or an envelope of package seal; nil: retention had removed it
	Error         string
	RetryCount    int       // failed calls charged before this one
	CreatedAt     time.Time // of the message; zero when Payload is nil
	FailedAt      time.Time
}

// LetterFilter chooses dead letters of a tenant. Zero fields choose all.
type LetterFilter struct {
	Queue          string
	Group          string
	Partition      string
	ErrorPart      string    // contained in the error, byte for byte
	From, Before   time.Time // of failing; From is inclusive
	TransactionIDs []string
}

// LetterKey is a place in the order of dead letters: when it failed, then its id.
type LetterKey struct {
	FailedAt time.Time
	ID       uuid.UUID
}

const (
	letterColumns = `d.id, d.queue, d.partition_id, coalesce(p.uid, '00000000-0000-0000-0000-000000000000'),
d.partition_name, d.consumer_group, d.offset_, coalesce(d.message_id, '00000000-0000-0000-0000-000000000000'),
coalesce(d.transaction_id, ''), d.payload, d.error, d.retry_count, d.created_at, d.failed_at`

	// letterWhere takes the parameters of LetterFilter.args. The queue comes first where there is one, so that the
	// index by queue fits.
	letterWhere = `d.tenant_id = $1 AND ($2::text IS NULL OR d.consumer_group = $2) AND ($3::text IS NULL OR d.partition_name = $3)
  AND ($4::text IS NULL OR strpos(d.error, $4) > 0) AND ($5::timestamptz IS NULL OR d.failed_at >= $5)
  AND ($6::timestamptz IS NULL OR d.failed_at < $6) AND ($7::text[] IS NULL OR d.transaction_id = ANY ($7))`
	letterOfQueue = ` AND d.queue = $8`

	// A page ends before its payloads pass so many bytes more than one letter: sizes are known without reading them. One
	// letter more than the page may have is looked at, so that the last page knows that it is.
	letterPage = `
SELECT ` + letterColumns + `, w.found
FROM (
    SELECT l.id, sum(l.size) OVER (ORDER BY l.failed_at DESC, l.id DESC) - l.size AS before,
           row_number() OVER (ORDER BY l.failed_at DESC, l.id DESC) AS place, count(*) OVER () AS found
    FROM (
        SELECT d.id, d.failed_at, coalesce(octet_length(d.payload), 0) AS size
        FROM queen.log_dlq d WHERE `
	letterPageEnd = `
        ORDER BY d.failed_at DESC, d.id DESC`
	letterPageJoin = `
    ) l
) w
JOIN queen.log_dlq d ON d.id = w.id
LEFT JOIN queen.log_partitions p ON p.id = d.partition_id
WHERE w.before < `
)

// Indexes: log_dlq_tenant or log_dlq_queue, log_dlq_pkey, log_partitions_pkey. No lock.
var (
	listLetters = statement(letterPage + letterWhere + ` AND (d.failed_at, d.id) < ($8, $9)` + letterPageEnd +
		` LIMIT $10 OFFSET $11` + letterPageJoin + `$12 AND w.place < $10 ORDER BY d.failed_at DESC, d.id DESC`)
	listQueueLetters = statement(letterPage + letterWhere + letterOfQueue + ` AND (d.failed_at, d.id) < ($9, $10)` + letterPageEnd +
		` LIMIT $11 OFFSET $12` + letterPageJoin + `$13 AND w.place < $11 ORDER BY d.failed_at DESC, d.id DESC`)

	letterByID = statement(`SELECT ` + letterColumns + `
FROM queen.log_dlq d LEFT JOIN queen.log_partitions p ON p.id = d.partition_id
WHERE d.tenant_id = $1 AND d.id = $2`)
	lettersByID = statement(`SELECT ` + letterColumns + `
FROM queen.log_dlq d LEFT JOIN queen.log_partitions p ON p.id = d.partition_id
WHERE d.tenant_id = $1 AND d.id = ANY ($2)`)

	letterOfMessage = `d.tenant_id = $1
  AND hashtextextended(d.transaction_id, 0) = hashtextextended($3::text, 0) AND d.transaction_id = $3
  AND ($4::text IS NULL OR d.consumer_group = $4)`
	// Indexes: log_partitions (uid), log_dlq_transaction.
	letterAt = statement(`SELECT ` + letterColumns + `
FROM queen.log_partitions p
JOIN queen.queues q ON q.id = p.queue_id
JOIN queen.log_dlq d ON d.partition_id = p.id
WHERE p.uid = $2 AND q.tenant_id = $1 AND ` + letterOfMessage + ` ORDER BY d.failed_at DESC, d.id DESC LIMIT 1`)
	// The deletion of a partition takes its letters in an order of its own, so the two meet on the partition's row: a lock
	// that conflicts with that deletion and with nothing else.
	deleteLettersAt = statement(`WITH place AS MATERIALIZED (
    SELECT p.id FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
    WHERE p.uid = $2 AND q.tenant_id = $1 FOR KEY SHARE OF p
), gone AS (
    DELETE FROM queen.log_dlq d USING place p WHERE d.partition_id = p.id AND ` + letterOfMessage + ` RETURNING 1
) SELECT count(*) FROM gone`)

	// Letters that others hold are on their way out and skipped: this waits for nobody. Index: log_dlq_queue.
	purgeLetters = statement(`WITH gone AS (
    DELETE FROM queen.log_dlq WHERE id IN (
        SELECT d.id FROM queen.log_dlq d WHERE ` + letterWhere + letterOfQueue + `
        ORDER BY d.failed_at DESC, d.id DESC LIMIT $9 FOR UPDATE SKIP LOCKED)
    RETURNING 1
) SELECT count(*) FROM gone`)

	// The newest letters only: a queue may have millions. Index: log_dlq_queue.
	letterSignatures = statement(`SELECT left(l.error, 512), l.consumer_group, count(*), min(l.failed_at), max(l.failed_at),
    (array_agg(l.id ORDER BY l.failed_at DESC, l.id DESC))[1]
FROM (
    SELECT d.error, d.consumer_group, d.failed_at, d.id FROM queen.log_dlq d
    WHERE d.tenant_id = $1 AND d.queue = $2 ORDER BY d.failed_at DESC, d.id DESC LIMIT $3
) l
GROUP BY 1, 2 ORDER BY 3 DESC, 5 DESC, 1, 2`)
)

// fields are the destinations of letterColumns; created takes the time that may be NULL.
func (l *Letter) fields(created **time.Time) []any {
	return []any{
		&l.ID, &l.Queue, &l.PartitionID, &l.PartitionUID, &l.Partition, &l.Group, &l.Offset, &l.MessageID,
		&l.TransactionID, &l.Payload, &l.Error, &l.RetryCount, created, &l.FailedAt,
	}
}

// optional is how a statement says that a field chooses nothing.
func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// args are the first parameters of the statements that letterWhere is in.
func (f *LetterFilter) args(tenant uuid.UUID) []any {
	args := []any{
		tenant, optional(f.Group), optional(f.Partition), optional(f.ErrorPart), optional(f.From), optional(f.Before), f.TransactionIDs,
	}
	if f.Queue != "" {
		args = append(args, f.Queue)
	}
	return args
}

// firstLetter stands before every letter in the order of a listing.
var firstLetter = LetterKey{FailedAt: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}

// Letters returns a page of the tenant's dead letters, the one that failed last first: those after the key (the zero
// key: from the first on), skipping some, and whether more come after it. The page ends early when its payloads grow
// beyond maxBytes, never before its first letter. One read, no lock.
func (s *Store) Letters(ctx context.Context, tenant uuid.UUID, f LetterFilter, after LetterKey, limit, skip, maxBytes int) (page []Letter, more bool, err error) {
	if after == (LetterKey{}) {
		after = firstLetter
	}
	sql := listLetters
	if f.Queue != "" {
		sql = listQueueLetters
	}
	found := 0
	page, err = s.letters(ctx, sql, append(f.args(tenant), after.FailedAt, after.ID, limit+1, skip, maxBytes), &found)
	return page, found > len(page), err
}

// LettersByID returns those of the letters that the tenant has, in no order.
func (s *Store) LettersByID(ctx context.Context, tenant uuid.UUID, ids []uuid.UUID) ([]Letter, error) {
	return s.letters(ctx, lettersByID, []any{tenant, ids})
}

// letters reads letterColumns of every row, and into beside what stands behind them.
func (s *Store) letters(ctx context.Context, sql string, args []any, beside ...any) ([]Letter, error) {
	var all []Letter
	err := s.query(ctx, "read dead letters", sql, args, func(rows pgx.Rows) error {
		var l Letter
		var created *time.Time
		if err := rows.Scan(append(l.fields(&created), beside...)...); err != nil {
			return err
		}
		l.settle(created)
		all = append(all, l)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func (l *Letter) settle(created *time.Time) {
	if created != nil {
		l.CreatedAt = *created
	}
}

// Letter returns a dead letter of the tenant, nil when there is none.
func (s *Store) Letter(ctx context.Context, tenant, id uuid.UUID) (*Letter, error) {
	return s.letter(ctx, letterByID, tenant, id)
}

// LetterAt returns the newest dead letter of a message, of one group or of any (""); nil when there is none.
func (s *Store) LetterAt(ctx context.Context, tenant, partition uuid.UUID, transactionID, group string) (*Letter, error) {
	return s.letter(ctx, letterAt, tenant, partition, storable(transactionID), optional(group))
}

func (s *Store) letter(ctx context.Context, sql string, args ...any) (*Letter, error) {
	l, created := new(Letter), (*time.Time)(nil)
	err := s.pool.QueryRow(ctx, sql, args...).Scan(l.fields(&created)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, pg.Error("read dead letter", err)
	}
	l.settle(created)
	return l, nil
}

// DeleteLettersAt deletes the dead letters of a message, of one group or of all (""), and returns how many.
func (s *Store) DeleteLettersAt(ctx context.Context, tenant, partition uuid.UUID, transactionID, group string) (deleted int64, err error) {
	err = s.commit(ctx, "delete dead letter", deleteLettersAt, []any{tenant, partition, storable(transactionID), optional(group)}, []any{&deleted})
	return deleted, err
}

// PurgeLetters deletes at most limit dead letters, in a commit of its own, and returns how many; 0 means that nothing
// is left that another session is not moving or deleting. f.Queue must be set.
func (s *Store) PurgeLetters(ctx context.Context, tenant uuid.UUID, f LetterFilter, limit int) (deleted int64, err error) {
	err = s.commit(ctx, "purge dead letters", purgeLetters, append(f.args(tenant), limit), []any{&deleted})
	return deleted, err
}

// LetterSignature counts the letters that a group filed with the same error, cut to 512 characters.
type LetterSignature struct {
	Error       string
	Group       string
	Count       int64
	First, Last time.Time
	Newest      uuid.UUID // a letter to look at
}

// LetterSignatures groups the newest letters of a queue, at most so many, by error and group, the most frequent first.
func (s *Store) LetterSignatures(ctx context.Context, tenant uuid.UUID, queue string, newest int) ([]LetterSignature, error) {
	var all []LetterSignature
	err := s.query(ctx, "dead letter signatures", letterSignatures, []any{tenant, queue, newest}, func(rows pgx.Rows) error {
		var g LetterSignature
		err := rows.Scan(&g.Error, &g.Group, &g.Count, &g.First, &g.Last, &g.Newest)
		all = append(all, g)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
