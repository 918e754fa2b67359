package store

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

// RedriveState is how far a redrive is.
type RedriveState string

// The states of a redrive; all but the first are final.
const (
	RedriveRunning   RedriveState = "running"
	RedriveDone      RedriveState = "done"
	RedriveCancelled RedriveState = "cancelled"
	RedriveFailed    RedriveState = "failed"
)

// Redrive is long work: dead letters of a queue that return to the log at a rate. It is a row of the database, so it
// survives the broker that runs it.
type Redrive struct {
	ID          uuid.UUID
	Tenant      uuid.UUID
	Filter      LetterFilter // Queue is set, Before is at most the time of the request
	Listed      int          // how many ids Filter.TransactionIDs has, which a list leaves out; -1: any. Read only
	Limit       int          // how many at most, the ones that failed first; 0: all
	Destination Pair         // zero: back to where each letter came from
	Rate        int          // messages per second
	Producer    string       // who asked

	State     RedriveState
	Matched   int64 // letters when it began
	Moved     int64
	Duplicate int64 // were in the log already; the letters are gone
	Failed    int64 // could not be moved; the letters stay
	Error     string
	Created   time.Time
	Finished  time.Time // zero while it runs

	after LetterKey // letters up to it are settled
	fence int64     // of the claim
}

const (
	// redriveLease is how long a claim holds without a sign of life: what a crash costs.
	redriveLease = 30 * time.Second
	// maxRedrives bounds what a tenant may have running.
	maxRedrives = 4
	// redriveMemory is how long a finished redrive can be asked about.
	redriveMemory = 7 * 24 * time.Hour
)

const (
	redriveColumns = redriveHead + `r.transaction_ids` + redriveTail
	redriveBrief   = redriveHead + `NULL::text[]` + redriveTail // ten thousand ids are not read to be counted

	redriveHead = `r.id, r.tenant_id, r.queue, coalesce(r.consumer_group, ''), coalesce(r.partition_name, ''),
coalesce(r.error_part, ''), r.failed_from, r.failed_before, `
	redriveTail = `, coalesce(cardinality(r.transaction_ids), -1), coalesce(r.max_letters, 0), coalesce(r.to_queue, ''),
coalesce(r.to_partition, ''), r.rate, r.producer, r.state, r.matched, r.moved, r.duplicate, r.failed,
coalesce(r.error, ''), r.created_at, r.finished_at, r.after_failed_at, coalesce(r.after_id, '00000000-0000-0000-0000-000000000000'), r.fence`
)

// redrivable leaves out what can never return to the log.
const redrivable = ` AND d.consumer_group <> '` + wire.TimerGroup + `'`

var (
	countLetters = statement(`SELECT count(*) FROM (
    SELECT 1 FROM queen.log_dlq d WHERE ` + letterWhere + letterOfQueue + redrivable + ` LIMIT $9::bigint) l`)

	// The tenant's row keeps the count of running ones exact.
	lockTenant   = statement(`SELECT queen.lock_tenant($1)`)
	databaseTime = statement(`SELECT clock_timestamp()`)
	// With how many there are goes how long the one that ends first has left at its rate. Index: redrives_tenant.
	runningOf = statement(`SELECT count(*), coalesce(min((r.matched - r.moved - r.duplicate - r.failed)::float8 / r.rate), 0)
FROM queen.redrives r WHERE r.tenant_id = $1 AND r.state = 'running'`)
	forgetRedrives = statement(`DELETE FROM queen.redrives
WHERE tenant_id = $1 AND state <> 'running' AND finished_at < clock_timestamp() - $2::bigint * interval '1 ms'`)
	insertRedrive = statement(`INSERT INTO queen.redrives AS r (id, tenant_id, queue, consumer_group, partition_name, error_part,
    failed_from, failed_before, transaction_ids, to_queue, to_partition, rate, producer, matched, max_letters)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) RETURNING ` + redriveColumns)
	// Index: redrives_tenant, backwards.
	listRedrives = statement(`SELECT ` + redriveBrief + ` FROM queen.redrives r
WHERE r.tenant_id = $1 AND ($2::text IS NULL OR r.queue = $2) AND ($3::text IS NULL OR r.state = $3)
ORDER BY r.created_at DESC, r.id DESC LIMIT $4`)
	redriveByID   = statement(`SELECT ` + redriveColumns + ` FROM queen.redrives r WHERE r.tenant_id = $1 AND r.id = $2`)
	cancelRedrive = statement(`UPDATE queen.redrives r SET
    state = CASE WHEN r.state = 'running' THEN 'cancelled' ELSE r.state END,
    finished_at = coalesce(r.finished_at, clock_timestamp()), holder = NULL, lease_until = NULL
WHERE r.tenant_id = $1 AND r.id = $2 RETURNING ` + redriveColumns)

	// Index: redrives_running.
	claimRedrive = statement(`UPDATE queen.redrives r SET holder = $1, fence = r.fence + 1,
    lease_until = clock_timestamp() + $2::bigint * interval '1 ms'
WHERE r.id = (
    SELECT n.id FROM queen.redrives n
    WHERE n.state = 'running' AND (n.lease_until IS NULL OR n.lease_until < clock_timestamp())
    ORDER BY n.created_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING ` + redriveColumns)

	redriveHeld = `r.id = $1 AND r.fence = $2 AND r.state = 'running'`
	// The page of a redrive goes from old to new. Index: log_dlq_queue, backwards.
	redrivePage = statement(`SELECT d.id, d.failed_at, d.partition_id, d.partition_name, coalesce(octet_length(d.payload), -1)
FROM queen.log_dlq d WHERE ` + letterWhere + letterOfQueue + redrivable + ` AND (d.failed_at, d.id) > ($9, $10)
ORDER BY d.failed_at, d.id LIMIT $11`)
	redriveLeft   = statement(`SELECT r.max_letters - r.moved - r.duplicate - r.failed FROM queen.redrives r WHERE r.id = $1`)
	settleRedrive = statement(`UPDATE queen.redrives r SET after_failed_at = $3, after_id = $4, failed = r.failed + $5,
    lease_until = clock_timestamp() + $6::bigint * interval '1 ms'
WHERE ` + redriveHeld)
	renewRedrive   = statement(`UPDATE queen.redrives r SET lease_until = clock_timestamp() + $3::bigint * interval '1 ms' WHERE ` + redriveHeld)
	releaseRedrive = statement(`UPDATE queen.redrives r SET holder = NULL, lease_until = NULL WHERE ` + redriveHeld)
	finishRedrive  = statement(`UPDATE queen.redrives r SET state = $3, error = $4, finished_at = clock_timestamp(),
    holder = NULL, lease_until = NULL WHERE ` + redriveHeld)
)

func scanRedrive(row pgx.Row) (*Redrive, error) {
	r := new(Redrive)
	var from, finished, after *time.Time
	f := &r.Filter
	if err := row.Scan(&r.ID, &r.Tenant, &f.Queue, &f.Group, &f.Partition, &f.ErrorPart, &from, &f.Before, &f.TransactionIDs,
		&r.Listed, &r.Limit, &r.Destination.Queue, &r.Destination.Partition, &r.Rate, &r.Producer, &r.State, &r.Matched, &r.Moved, &r.Duplicate,
		&r.Failed, &r.Error, &r.Created, &finished, &after, &r.after.ID, &r.fence); err != nil {
		return nil, err
	}
	if from != nil {
		f.From = *from
	}
	if finished != nil {
		r.Finished = *finished
	}
	if after != nil {
		r.after.FailedAt = *after
	}
	return r, nil
}

// CountLetters returns how many letters a redrive with this filter would find now; it counts no further than limit (0: to
// the end). f.Queue must be set.
func (s *Store) CountLetters(ctx context.Context, tenant uuid.UUID, f LetterFilter, limit int) (n int64, err error) {
	err = s.query(ctx, "count dead letters", countLetters, append(f.args(tenant), optional(limit)), func(rows pgx.Rows) error { return rows.Scan(&n) })
	return n, err
}

// StartRedrive records a redrive and returns it with its id and what it will find. Letters that fail from now on are
// none of its business, so that one which fails again does not come round for ever. Redrives that ended a week ago are
// forgotten. Error: wire.RateLimited when the tenant has 4 running, with the time until one of them ends at its rate.
func (s *Store) StartRedrive(ctx context.Context, r *Redrive) (*Redrive, error) {
	f := r.Filter
	var now time.Time
	if err := s.pool.QueryRow(ctx, databaseTime).Scan(&now); err != nil {
		return nil, pg.Error("start redrive", err)
	}
	if f.Before.IsZero() || f.Before.After(now) {
		f.Before = now
	}
	// Counted before the tenant is locked: it may take seconds.
	matched, err := s.CountLetters(ctx, r.Tenant, f, r.Limit)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // it commits
	var started *Redrive
	err = pg.Tx(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockTenant, r.Tenant); err != nil {
			return err
		}
		var running int
		var seconds float64
		if err := tx.QueryRow(ctx, runningOf, r.Tenant).Scan(&running, &seconds); err != nil {
			return err
		}
		if running >= maxRedrives {
			return tooManyRedrives(running, seconds)
		}
		if _, err := tx.Exec(ctx, forgetRedrives, r.Tenant, redriveMemory.Milliseconds()); err != nil {
			return err
		}
		var err error
		started, err = scanRedrive(tx.QueryRow(ctx, insertRedrive, uuid.Must(uuid.NewV7()), r.Tenant, f.Queue, optional(f.Group),
			optional(f.Partition), optional(f.ErrorPart), optional(f.From), f.Before, f.TransactionIDs,
			optional(r.Destination.Queue), optional(r.Destination.Partition), r.Rate, r.Producer, matched, optional(r.Limit)))
		return err
	})
	if err != nil {
		return nil, pg.Error("start redrive", err)
	}
	return started, nil
}

// maxRedriveWait bounds what a refusal says of the time until a redrive ends: somebody may cancel one.
const maxRedriveWait = time.Hour

// tooManyRedrives refuses one more while so many run, of which one ends in so many seconds. Time cures it, so it is no
// matter of the plan.
func tooManyRedrives(running int, seconds float64) error {
	wait := min(max(time.Duration(seconds*float64(time.Second)), time.Second), maxRedriveWait)
	return &wire.Error{
		Code: wire.RateLimited, Detail: "so many redrives are running already; wait for one or cancel it", RetryAfter: wait,
		Limit: &wire.Limit{Name: "redrives", Limit: maxRedrives, Used: float64(running), Unit: "redrives", ResetSeconds: wait.Seconds()},
	}
}

// Redrives returns the redrives of the tenant, of one queue and in one state if they are not "", at most limit, the newest
// first. Filter.TransactionIDs is left out. One read, no lock.
func (s *Store) Redrives(ctx context.Context, tenant uuid.UUID, queue string, state RedriveState, limit int) (all []*Redrive, err error) {
	args := []any{tenant, optional(queue), optional(string(state)), limit}
	err = s.query(ctx, "list redrives", listRedrives, args, func(rows pgx.Rows) error {
		r, err := scanRedrive(rows)
		all = append(all, r)
		return err
	})
	return all, err
}

// Redrive returns a redrive of the tenant, nil when there is none.
func (s *Store) Redrive(ctx context.Context, tenant, id uuid.UUID) (*Redrive, error) {
	r, err := scanRedrive(s.pool.QueryRow(ctx, redriveByID, tenant, id))
	return orNone(r, "read redrive", err)
}

func orNone(r *Redrive, op string, err error) (*Redrive, error) {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return r, pg.Error(op, err)
}

// RedriveReason says, to the one who asked for a redrive, which error of the database ended it.
func RedriveReason(err error) string {
	if state := pg.State(err); state != "" {
		return "the database undid every attempt to go on (SQLSTATE " + state + "); ask again to go on with what is left"
	}
	return "every attempt to go on failed without effect; ask again to go on with what is left"
}

// CancelRedrive ends a redrive that runs and returns it, or nil when there is none. What it has moved stays moved; one
// that has ended stays as it is.
func (s *Store) CancelRedrive(ctx context.Context, tenant, id uuid.UUID) (*Redrive, error) {
	return s.redriveCommit(ctx, "cancel redrive", cancelRedrive, tenant, id)
}

// ClaimRedrive takes over a redrive that nobody runs, the oldest first, or returns nil. The claim holds 30 seconds from
// the last sign of life; who claims it next makes the former holder's moves fail.
func (s *Store) ClaimRedrive(ctx context.Context, holder string) (*Redrive, error) {
	return s.redriveCommit(ctx, "claim redrive", claimRedrive, holder, redriveLease.Milliseconds())
}

func (s *Store) redriveCommit(ctx context.Context, op, sql string, args ...any) (*Redrive, error) {
	conn, err := s.acquire(ctx, op)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	r, err := scanRedrive(conn.QueryRow(context.WithoutCancel(ctx), sql, args...))
	return orNone(r, op, pg.Confirmed(conn.Conn(), err))
}

// RedriveItem is a letter that a redrive has to settle.
type RedriveItem struct {
	LetterKey
	PartitionID int64
	Partition   string
	Bytes       int // of the payload; -1: retention had removed it
}

// RedrivePage returns the next letters that a claimed redrive has to settle, the one that failed first first; none
// means that it is done. Letters that others took meanwhile do not count against the redrive's limit. Payloads are not
// read.
func (s *Store) RedrivePage(ctx context.Context, r *Redrive, limit int) ([]RedriveItem, error) {
	if r.Limit > 0 {
		// Only the holder moves the counters, so they stand still until the page is worked off.
		var left int
		if err := s.pool.QueryRow(ctx, redriveLeft, r.ID).Scan(&left); err != nil {
			return nil, pg.Error("read redrive", err)
		}
		if limit = min(limit, left); limit <= 0 {
			return nil, nil
		}
	}
	var items []RedriveItem
	after := r.after
	args := append(r.Filter.args(r.Tenant), after.FailedAt, after.ID, limit)
	err := s.query(ctx, "read redrive page", redrivePage, args, func(rows pgx.Rows) error {
		var it RedriveItem
		err := rows.Scan(&it.ID, &it.FailedAt, &it.PartitionID, &it.Partition, &it.Bytes)
		items = append(items, it)
		return err
	})
	if err != nil {
		return nil, err
	}
	return items, nil
}

// SettleRedrive records that every letter up to key was looked at and failed of them stay dead. It reports whether the
// claim still holds.
func (s *Store) SettleRedrive(ctx context.Context, r *Redrive, upTo LetterKey, failed int) (held bool, err error) {
	held, err = s.held(ctx, "settle redrive", settleRedrive, r.ID, r.fence, upTo.FailedAt, upTo.ID, failed, redriveLease.Milliseconds())
	if held {
		r.after = upTo
	}
	return held, err
}

// RenewRedrive prolongs a claim and reports whether it still holds.
func (s *Store) RenewRedrive(ctx context.Context, r *Redrive) (held bool, err error) {
	return s.held(ctx, "renew redrive", renewRedrive, r.ID, r.fence, redriveLease.Milliseconds())
}

// ReleaseRedrive gives a claim up, so that another broker may go on at once.
func (s *Store) ReleaseRedrive(ctx context.Context, r *Redrive) error {
	_, err := s.held(ctx, "release redrive", releaseRedrive, r.ID, r.fence)
	return err
}

// FinishRedrive ends a claimed redrive; reason says why it failed. One that is not held any more stays as it is.
func (s *Store) FinishRedrive(ctx context.Context, r *Redrive, state RedriveState, reason string) error {
	_, err := s.held(ctx, "finish redrive", finishRedrive, r.ID, r.fence, string(state), optional(reason))
	return err
}

func (s *Store) held(ctx context.Context, op, sql string, args ...any) (bool, error) {
	conn, err := s.acquire(ctx, op)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	tag, err := conn.Exec(context.WithoutCancel(ctx), sql, args...)
	return tag.RowsAffected() == 1, pg.Error(op, pg.Confirmed(conn.Conn(), err))
}
