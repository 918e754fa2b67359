package pg

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Life numbers the lives of a database in the order in which a pool met them, from 1. A life ends when its server does:
// after a failover, a restore or a restart the database may lack what a session of the life before was told, so what
// was learned in one life holds in that life only. 0 is none, and equal to no other.
//
// A session lives in one life: PostgreSQL changes its timeline only while it recovers, and a session that began during
// recovery is refused. So the life is asked for once, when the session begins, and carried along with what is learned
// on it. That is the cheapest check that cannot be late: a comparison of two numbers on the session that a statement
// is about to use, instead of a parameter that the database compares on every call, or a loop that notices a failover
// some time after it.
type Life uint64

// identity tells lives apart. The timeline alone would not: a volume restored from a snapshot has the old one, and two
// standbys promoted apart have the same.
type identity struct {
	system   string // pg_control_system: which cluster, copies included
	timeline uint32
	started  string // when the server process began
}

// whoami is answered in text. pg_walfile_name names the timeline that is written to now; pg_control_checkpoint would
// name the one before until a promoted server has made its first checkpoint.
const whoami = `SELECT system_identifier, extract(epoch FROM pg_postmaster_start_time()),
CASE WHEN NOT pg_is_in_recovery() THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END,
pg_backend_pid(), (SELECT ` + BackendName + ` FROM pg_stat_activity WHERE pid = pg_backend_pid())
FROM pg_control_system()`

// session is what we remember of a connection. It belongs to whoever holds the connection, but for replaced.
type session struct {
	life        Life
	id          identity
	unconfirmed bool        // a commit was not confirmed by the standby: see Confirmed
	replaced    atomic.Bool // a later primary has been met
	backend     string      // see BackendOf
	line        *line       // nil: of a connection that was dialled past us
}

const sessionKey = "queengate.session"

func sessionOf(c *pgconn.PgConn) *session {
	s, _ := c.CustomData()[sessionKey].(*session)
	return s
}

// LifeOf returns the life of the database in which the session of conn began; 0 for a connection that Parse did not
// configure.
func LifeOf(conn *pgx.Conn) Life {
	if s := sessionOf(conn.PgConn()); s != nil {
		return s.life
	}
	return 0
}

// TimelineOf returns the timeline that the server of conn writes; 0 for a connection that Parse did not configure.
func TimelineOf(conn *pgx.Conn) uint32 {
	if s := sessionOf(conn.PgConn()); s != nil {
		return s.id.timeline
	}
	return 0
}

// BackendOf names the process of the server that the session of conn has, as backends of pg_stat_activity are named by
// BackendName; "" for a connection that Parse did not configure.
func BackendOf(conn *pgx.Conn) string {
	if s := sessionOf(conn.PgConn()); s != nil {
		return s.backend
	}
	return ""
}

// BackendName is the SQL of a name for a row of pg_stat_activity that no other process of the same life has.
const BackendName = `pid || '@' || coalesce(extract(epoch FROM backend_start)::text, '')`

// identify asks a new session whose it is, which process of the server it has, and whether it goes to the server itself or to
// a pooler: those make up the process id that a session is told when it begins.
func identify(ctx context.Context, c *pgconn.PgConn) (id identity, backend string, direct bool, err error) {
	row, err := only(ctx, c, whoami)
	if err != nil {
		return id, "", false, fmt.Errorf("ask for the timeline: %w", err)
	}
	if row[2] == nil {
		return id, "", false, errors.New("the server is a standby")
	}
	timeline, err := strconv.ParseUint(string(row[2]), 10, 32)
	if err != nil {
		return id, "", false, fmt.Errorf("ask for the timeline: %w", err)
	}
	id = identity{system: string(row[0]), started: string(row[1]), timeline: uint32(timeline)}
	return id, string(row[4]), string(row[3]) == strconv.FormatUint(uint64(c.PID()), 10), nil
}

// only runs a statement that answers with one row of text.
func only(ctx context.Context, c *pgconn.PgConn, sql string) ([][]byte, error) {
	results, err := c.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return nil, errors.New("no answer")
	}
	return results[0].Rows[0], nil
}

// ErrUnconfirmed says that a commit stands in the log of a server and may not last: the server was made to stop waiting
// for the standby that guards it, or a later primary has replaced the server meanwhile.
var ErrUnconfirmed = errors.New("the commit was not confirmed by the standby")

// unawaited recognises the warning of a cancelled wait for the synchronous standby. Its text follows lc_messages and its
// state is that of any warning; the routine that raises it is the same everywhere.
func unawaited(n *pgconn.Notice) bool { return n.Routine == "SyncRepWaitForLSN" }

// Confirmed returns the error of a committing statement that ran on conn and ended in err: ErrUnconfirmed, joined with
// err, when the server warned that it did not wait for its standby, or is not the primary any more. To PostgreSQL such a
// commit is a success; to a caller its durability is unknown.
func Confirmed(conn *pgx.Conn, err error) error {
	s := sessionOf(conn.PgConn())
	switch {
	case s == nil:
		return err
	case s.unconfirmed:
		s.unconfirmed = false
		return errors.Join(ErrUnconfirmed, err)
	case s.replaced.Load():
		return errors.Join(fmt.Errorf("%w: its server was replaced by a later primary", ErrUnconfirmed), err)
	}
	return err
}
