// Package store runs every SQL statement on messages, cursors and leases.
//
// A Store is a thin, typed face of the routines in schema queen: queues and partitions (provision, configure, delete,
// list), the push of many segments in one statement and one commit, the hash sidecar that makes deduplication exact,
// claims, acknowledgements, and the feeds by which brokers learn of each other's writes. Bytes of segments pass
// through unread.
//
// Ordering: offsets of a partition are gapless and their created_at never falls; both are decided under the row lock
// of the partition. Durability: a nil error means committed, and confirmed by the standby where PostgreSQL waits for one. Statements that commit are not cancelled by their
// context (design.md 5.10): a cancel could hit a commit that waits for its standby and would leave the outcome
// unknown. Their bounds are the session's statement_timeout and lock_timeout, and pg.Watch where a server stands still with its
// timeouts; the context only bounds the wait for a free connection. Reads obey their context throughout.
//
// Errors are *wire.Error: verdicts with their own code, everything else DatabaseUnavailable or Internal with an
// outcome, none or unknown.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

// Store runs every SQL statement on messages, cursors and leases. Safe for concurrent use.
type Store struct {
	pool   *pgxpool.Pool
	strays strays
	options
}

// New returns a Store on pool; it does no I/O.
func New(pool *pgxpool.Pool, opts ...Option) *Store {
	s := &Store{pool: pool, options: defaultOptions()}
	for _, o := range opts {
		o(&s.options)
	}
	return s
}

// statements are the texts that one test prepares against a migrated database.
var statements []string

// statement registers the text of a package-level SQL statement.
func statement(sql string) string {
	statements = append(statements, sql)
	return sql
}

// acquire takes a connection, waiting as long as ctx lives. Whatever goes wrong here, nothing was asked yet.
func (s *Store) acquire(ctx context.Context, op string) (*pgxpool.Conn, error) {
	conn, err := s.pool.Acquire(ctx)
	if err == nil {
		return conn, nil
	}
	err = pg.Error(op, err)
	if we, ok := errors.AsType[*wire.Error](err); ok {
		we.Outcome = wire.OutcomeNone
	}
	return nil, err
}

// commit runs one committing statement and scans its only row into dest. ctx bounds the wait for a connection.
func (s *Store) commit(ctx context.Context, op, sql string, args, dest []any) error {
	conn, err := s.acquire(ctx, op)
	if err != nil {
		return err
	}
	defer conn.Release()
	err = conn.QueryRow(context.WithoutCancel(ctx), sql, args...).Scan(dest...)
	return pg.Error(op, pg.Confirmed(conn.Conn(), err))
}

// errOtherLife says that the database is not the one any more in which the ids at hand were looked up.
func errOtherLife(op string) error {
	e := wire.Wrap(wire.DatabaseUnavailable, fmt.Errorf("%s: the ids are of another life of the database", op))
	e.Detail, e.RetryAfter, e.Outcome = "the database was replaced by another one meanwhile", time.Second, wire.OutcomeNone
	return e
}

// query runs a read and calls each for every row.
func (s *Store) query(ctx context.Context, op, sql string, args []any, each func(pgx.Rows) error) error {
	_, err := s.queryIn(ctx, 0, op, sql, args, each)
	return err
}

// queryIn is query with ids among its arguments that were looked up in the known life; 0: there are none. It returns the
// life of the database that answers, and fails when that is another one.
func (s *Store) queryIn(ctx context.Context, known Life, op, sql string, args []any, each func(pgx.Rows) error) (Life, error) {
	conn, err := s.acquire(ctx, op)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	life := pg.LifeOf(conn.Conn())
	if known != 0 && known != life {
		return life, errOtherLife(op)
	}
	return life, queryOn(ctx, conn, op, sql, args, each)
}

// queryer is a pool, or a session of one.
type queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func queryOn(ctx context.Context, on queryer, op, sql string, args []any, each func(pgx.Rows) error) error {
	rows, err := on.Query(ctx, sql, args...)
	if err != nil {
		return pg.Error(op, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return pg.Error(op, err)
		}
	}
	return pg.Error(op, rows.Err())
}
