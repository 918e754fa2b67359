// Package pg opens PostgreSQL pools with the session settings the product relies on, runs transactions and sorts
// database errors by what a caller may conclude from them.
package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/wire"
)

// Settings of every session (design.md 5.10): a vanished process must not hold a partition for more than five
// seconds, and a committing statement is bounded by the server, never by a cancel from our side.
var sessionParams = map[string]string{
	"timezone":                            "UTC",
	"statement_timeout":                   "30s",
	"lock_timeout":                        "5s",
	"idle_in_transaction_session_timeout": "4s",
	"client_connection_check_interval":    "2s",
	"tcp_keepalives_idle":                 "2",
	"tcp_keepalives_interval":             "1",
	"tcp_keepalives_count":                "2",
	"tcp_user_timeout":                    "4s",
}

// Config describes a pool.
type Config struct {
	DSN     string
	MaxConn int32
	AppName string
}

// Parse returns the pool configuration of c with our session settings; it does no I/O.
func Parse(c Config) (*pgxpool.Config, error) {
	pc, err := pgxpool.ParseConfig(c.DSN)
	if err != nil {
		// pgx quotes the DSN with its password masked, but a malformed one may escape the mask.
		return nil, errors.New("the PostgreSQL address cannot be parsed")
	}
	if c.MaxConn > 0 {
		pc.MaxConns = c.MaxConn
	}
	for k, v := range sessionParams {
		if _, set := pc.ConnConfig.RuntimeParams[k]; !set {
			pc.ConnConfig.RuntimeParams[k] = v
		}
	}
	if c.AppName != "" {
		pc.ConnConfig.RuntimeParams["application_name"] = c.AppName
	}
	return pc, nil
}

// Open returns a pool. Connections are made when they are needed, so an absent database is not an error here.
func Open(ctx context.Context, c Config) (*pgxpool.Pool, error) {
	pc, err := Parse(c)
	if err != nil {
		return nil, err
	}
	return pgxpool.NewWithConfig(ctx, pc)
}

// Tx runs f in a transaction and commits, running it again after a serialization failure or a deadlock: f must have
// no effects outside the transaction.
func Tx(ctx context.Context, pool *pgxpool.Pool, f func(pgx.Tx) error) error {
	const attempts = 5
	var err error
	for range attempts {
		err = pgx.BeginFunc(ctx, pool, f)
		if !Retryable(err) {
			return err
		}
	}
	return err
}

// State returns the SQLSTATE of err, or "".
func State(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return ""
}

// Retryable reports a transaction that the server rolled back only because of others.
func Retryable(err error) bool {
	switch State(err) {
	case "40001", "40P01":
		return true
	}
	return false
}

// Unavailable reports that the database could not be asked: it is away, starting, stopping or full.
func Unavailable(err error) bool {
	if err == nil {
		return false
	}
	if s := State(err); s != "" {
		switch s[:2] {
		case "08", "53", "57", "58":
			return s != "57014" // a statement over its own bound is a verdict on the statement
		}
		return false
	}
	var ne net.Error
	var ce *pgconn.ConnectError
	return errors.As(err, &ce) || errors.As(err, &ne) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || pgconn.SafeToRetry(err) || isConnClosed(err)
}

func isConnClosed(err error) bool { return err != nil && err.Error() == "conn closed" }

// Outcome says what may have become of a statement that ended in err: none when the server is known not to have
// committed it, unknown when the answer was lost.
func Outcome(err error) wire.Outcome {
	if State(err) != "" || pgconn.SafeToRetry(err) {
		// 57P01 (terminated by an administrator) may hit a backend that waits for its standby after the commit.
		if s := State(err); s == "57P01" || s == "57P02" {
			return wire.OutcomeUnknown
		}
		return wire.OutcomeNone
	}
	var ce *pgconn.ConnectError
	if errors.As(err, &ce) {
		return wire.OutcomeNone
	}
	return wire.OutcomeUnknown
}

// Error turns a database failure into what a caller may know: DatabaseUnavailable or Internal, with its outcome.
func Error(op string, err error) error {
	if err == nil {
		return nil
	}
	var we *wire.Error
	if errors.As(err, &we) {
		return err
	}
	wrapped := fmt.Errorf("%s: %w", op, err)
	code := wire.Internal
	if Unavailable(err) {
		code = wire.DatabaseUnavailable
	}
	e := wire.Wrap(code, wrapped)
	e.Outcome = Outcome(err)
	return e
}
