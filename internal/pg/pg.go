// Package pg opens PostgreSQL pools with the session settings and the TLS that the product relies on, runs transactions
// and sorts database errors by what a caller may conclude from them.
//
// Sessions are with primaries, and never with one that a later primary has replaced; each knows the Life of the
// database it began in. A commit that the server did not confirm is an error here (Confirmed), and so is one on a server
// that was replaced meanwhile. A pooler between us and the server must give a session to us alone (ErrPooled).
package pg

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

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

// forced are settings that an address cannot change: without warnings, a commit that nobody confirmed looks like any
// other (Confirmed).
var forced = map[string]string{"client_min_messages": "warning"}

// pingAfter is how long a session may have been idle to be used without asking first whether it still lives. It is above
// the rhythm of what an idle process asks once a second, which would otherwise be two round trips each time.
const pingAfter = 2 * time.Second

// connectTimeout bounds the making of a session with one host, for addresses that do not say connect_timeout: a host
// that drops what is sent to it must not keep us from the next one for as long as TCP would.
const connectTimeout = 3 * time.Second

// Config describes a pool.
type Config struct {
	DSN     string // a URL or key=value text; several hosts are tried in order
	TLS     TLSMode
	CA      string // PEM text of the authorities that TLSVerify trusts instead of the system's; implies TLSVerify
	MaxConn int32
	AppName string

	StatementTimeout time.Duration // 30 s; the address's own statement_timeout wins

	// TimelineFile keeps the highest timeline that was seen of each database, so that a process that starts again still
	// refuses a primary that was replaced. It is written when a new timeline is met. "": known as long as the pool lives.
	TimelineFile string
	// Admit looks at each life of the database once, on its first session and before anything else is done in it. With
	// an error there is no session; the next one asks again.
	Admit func(context.Context, *pgconn.PgConn) error
	// Watch is made the watch over the pool's database, with a session besides MaxConn. nil: none.
	Watch *Watch
	Log   *slog.Logger // failovers, and a TimelineFile that cannot be written; nil: not said
}

// ErrAddress says that an address cannot be parsed, without quoting it.
var ErrAddress = errors.New("the PostgreSQL address cannot be parsed")

// Parse returns the pool configuration of c with our session settings; it does no I/O beyond reading the files that c
// and the address name. Its sessions are with primaries only, each with its Life. Errors quote no part of the address:
// ErrAddress, or what is wrong with TLS, CA, target_session_attrs or the TimelineFile.
func Parse(c Config) (*pgxpool.Config, error) {
	protection, err := c.protect()
	if err != nil {
		return nil, err
	}
	switch attrs := addressed(c.DSN)["target_session_attrs"]; attrs {
	case "", "any", "primary", "read-write":
	default:
		return nil, fmt.Errorf("the address says target_session_attrs=%s: want primary or read-write, since only a primary can be written to", attrs)
	}
	pc, err := pgxpool.ParseConfig(protection.address(c.DSN))
	if err != nil {
		// pgx quotes the DSN with its password masked, but a malformed one may escape the mask.
		return nil, ErrAddress
	}
	if err := protection.finish(&pc.ConnConfig.Config); err != nil {
		return nil, err
	}
	if c.MaxConn > 0 {
		pc.MaxConns = c.MaxConn
	}
	if pc.ConnConfig.ConnectTimeout == 0 {
		pc.ConnConfig.ConnectTimeout = connectTimeout
	}
	pc.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > pingAfter }
	pc.ConnConfig.DialFunc = dial
	if c.AppName != "" {
		pc.ConnConfig.RuntimeParams["application_name"] = c.AppName
	}
	f, err := newFence(&c)
	if err != nil {
		return nil, err
	}
	f.settings = c.settings(pc.ConnConfig.RuntimeParams)
	f.guard(pc)
	if c.Watch != nil {
		c.Watch.fence, c.Watch.config = f, pc.ConnConfig.Config.Copy()
	}
	return pc, nil
}

// settings takes the settings of a session that are ours out of what the address sends when it connects, and returns the
// statements that set them: a pooler knows few settings by name and refuses a session that begins with others.
func (c *Config) settings(params map[string]string) string {
	all := maps.Clone(sessionParams)
	if c.StatementTimeout > 0 {
		all["statement_timeout"] = strconv.FormatInt(c.StatementTimeout.Milliseconds(), 10)
	}
	for k := range all {
		if v, said := params[k]; said {
			all[k] = v
			delete(params, k)
		}
	}
	maps.Copy(all, forced)
	var set strings.Builder
	for _, k := range slices.Sorted(maps.Keys(all)) {
		delete(params, k)
		fmt.Fprintf(&set, "SET %s TO '%s';", k, strings.ReplaceAll(all[k], "'", "''"))
	}
	return set.String()
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
// no effects outside the transaction. ErrUnconfirmed: it is committed, perhaps not for good.
func Tx(ctx context.Context, pool *pgxpool.Pool, f func(pgx.Tx) error) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	const attempts = 5
	for range attempts {
		err = Confirmed(conn.Conn(), pgx.BeginFunc(ctx, conn, f))
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
	if errors.Is(err, ErrUnconfirmed) {
		return false // something of it was committed
	}
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
	if errors.Is(err, ErrUnconfirmed) {
		return true
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
		errors.Is(err, net.ErrClosed) || errors.Is(err, pgconn.ErrConnClosed) || pgconn.SafeToRetry(err)
}

// Away reports that no server could be asked as yet, and that waiting may cure it: no server is there, it starts, it is a
// standby or was replaced. What a server says against us is no such thing: a password, a database that does not exist,
// a pooler that shares sessions, a certificate.
func Away(err error) bool {
	var certificate *tls.CertificateVerificationError
	switch s := State(err); {
	case errors.Is(err, ErrPooled), errors.As(err, &certificate), strings.HasPrefix(s, "28"), s == "3D000", s == "42501":
		return false
	}
	return Unavailable(err)
}

// Outcome says what may have become of a statement that ended in err: none when the server is known not to have
// committed it, unknown when the answer was lost or the commit is not known to last. A server that reports an error has
// rolled back, but for these:
//   - 57P01, 57P02: it ends the session, and may do so while a committed transaction waits for its standby;
//   - class 08, 40003: it does not know either. Poolers answer with class 08 when they lose the server meanwhile.
//
// pgx calls a closed connection safe to retry, and reports one as well when the answer to a statement without parameters
// was lost, as COMMIT is: its first read fails unseen and the second finds the connection closed.
func Outcome(err error) wire.Outcome {
	if errors.Is(err, ErrUnconfirmed) || errors.Is(err, pgconn.ErrConnClosed) {
		return wire.OutcomeUnknown
	}
	var ce *pgconn.ConnectError
	if errors.As(err, &ce) || pgconn.SafeToRetry(err) {
		return wire.OutcomeNone // nothing was sent
	}
	switch s := State(err); {
	case s == "", s == "57P01", s == "57P02", s == "40003", strings.HasPrefix(s, "08"):
		return wire.OutcomeUnknown
	}
	return wire.OutcomeNone
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
