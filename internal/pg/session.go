package pg

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
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
CASE WHEN NOT pg_is_in_recovery() THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END
FROM pg_control_system()`

// session is what we remember of a connection. It belongs to whoever holds the connection.
type session struct {
	life        Life
	id          identity
	unconfirmed bool // a commit was not confirmed by the standby: see Confirmed
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

// fence admits sessions to one pool: to primaries only, and to none that a later one has replaced. A broker that saw a
// promotion therefore never writes to the old primary again, whatever the address or a balancer says.
type fence struct {
	mu     sync.Mutex // guards below
	lives  map[identity]Life
	newest map[string]uint32 // the highest timeline seen, by system
}

func newFence() *fence { return &fence{lives: map[identity]Life{}, newest: map[string]uint32{}} }

func (f *fence) admit(id identity) (Life, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if newest := f.newest[id.system]; id.timeline < newest {
		return 0, fmt.Errorf("the server is on timeline %d and was replaced by one on timeline %d: it is not written to any more", id.timeline, newest)
	}
	f.newest[id.system] = id.timeline
	life, known := f.lives[id]
	if !known {
		life = Life(len(f.lives) + 1)
		f.lives[id] = life
	}
	return life, nil
}

// holds reports whether the session's server has not been replaced since it began.
func (f *fence) holds(s *session) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return s.id.timeline >= f.newest[s.id.system]
}

// guard makes every session of pc pass the fence when it begins and whenever it is taken from the pool, and listen for
// commits that nobody confirmed. The check of a new session is the one that decides between several hosts, so a refused
// one makes pgx try the next.
func (f *fence) guard(pc *pgxpool.Config) {
	validate, notice, prepare := pc.ConnConfig.ValidateConnect, pc.ConnConfig.OnNotice, pc.PrepareConn
	pc.ConnConfig.ValidateConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		s, err := f.meet(ctx, c)
		if err != nil {
			return err
		}
		c.CustomData()[sessionKey] = s
		if validate == nil {
			return nil
		}
		return validate(ctx, c)
	}
	pc.ConnConfig.OnNotice = func(c *pgconn.PgConn, n *pgconn.Notice) {
		if s := sessionOf(c); s != nil && unawaited(n) {
			s.unconfirmed = true
		}
		if notice != nil {
			notice(c, n)
		}
	}
	pc.PrepareConn = func(ctx context.Context, c *pgx.Conn) (bool, error) {
		if s := sessionOf(c.PgConn()); s != nil && !f.holds(s) {
			return false, nil
		}
		if prepare == nil {
			return true, nil
		}
		return prepare(ctx, c)
	}
}

// meet asks a new session whose it is.
func (f *fence) meet(ctx context.Context, c *pgconn.PgConn) (*session, error) {
	results, err := c.Exec(ctx, whoami).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("ask for the timeline: %w", err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return nil, errors.New("ask for the timeline: no answer")
	}
	row := results[0].Rows[0]
	if row[2] == nil {
		return nil, errors.New("the server is a standby")
	}
	timeline, err := strconv.ParseUint(string(row[2]), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("ask for the timeline: %w", err)
	}
	id := identity{system: string(row[0]), started: string(row[1]), timeline: uint32(timeline)}
	life, err := f.admit(id)
	if err != nil {
		return nil, err
	}
	return &session{life: life, id: id}, nil
}

// ErrUnconfirmed says that a commit stands in the log of the server, and that the server was made to stop waiting for
// the standby that guards it: it is visible now, and a failover may lose it.
var ErrUnconfirmed = errors.New("the commit was not confirmed by the standby")

// unawaited recognises the warning of a cancelled wait for the synchronous standby. Its text follows lc_messages and its
// state is that of any warning; the routine that raises it is the same everywhere.
func unawaited(n *pgconn.Notice) bool { return n.Routine == "SyncRepWaitForLSN" }

// Confirmed returns the error of a committing statement that ran on conn and ended in err: ErrUnconfirmed, joined with
// err, when the server warned that it did not wait for its standby. To PostgreSQL such a commit is a success; to a
// caller its durability is unknown.
func Confirmed(conn *pgx.Conn, err error) error {
	s := sessionOf(conn.PgConn())
	if s == nil || !s.unconfirmed {
		return err
	}
	s.unconfirmed = false
	return errors.Join(ErrUnconfirmed, err)
}
