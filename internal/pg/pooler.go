package pg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrPooled says that the address leads to a pooler that gives the server's sessions to others between our statements.
// Settings, prepared statements and the life of a session would then be somebody else's.
var ErrPooled = errors.New("a pooler in front of PostgreSQL shares sessions by transaction or statement: want its session mode (PgBouncer: pool_mode = session)")

// poolers finds out how a pooler shares sessions, since none says: once for each life of the database behind it.
//
// It plays two clients. While the first is idle, the second is in a transaction. A pooler that lends sessions by the
// transaction gives the second the server session that the first has just used, or gives the first another one than
// before: the former when it keeps one or prefers the one used last (PgBouncer's default), the latter when it takes turns.
// Both are seen in the first round if nobody else is about, and under load in one of a few. A pooler that is out of
// sessions lets the second client wait, and not the first, which has one; that is what session mode is.
type poolers struct {
	config *pgconn.Config // of the pool, without the fence

	mu    sync.Mutex // guards known; held while one is looked at
	known map[identity]bool
}

const (
	poolerRounds = 4
	poolerWait   = time.Second // for a server session; one that is there is given at once
)

// backend names the server session that answers.
const backend = `SELECT pid || '@' || backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()`

// check returns ErrPooled when the session of first may not be first's alone.
func (p *poolers) check(ctx context.Context, first *pgconn.PgConn, id identity) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known[id] {
		return nil
	}
	config := p.config.Copy()
	address := first.Conn().RemoteAddr().String()
	config.ValidateConnect = func(_ context.Context, c *pgconn.PgConn) error {
		if at := c.Conn().RemoteAddr().String(); at != address {
			return fmt.Errorf("%s is not the host that is looked at", at)
		}
		return nil
	}
	second, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("see how the pooler shares sessions: %w", err)
	}
	defer second.Close(ctx)
	if err := (&clients{first: first, second: second}).watch(ctx); err != nil {
		return err
	}
	if p.known == nil {
		p.known = map[identity]bool{}
	}
	p.known[id] = true
	return nil
}

// clients is the two clients.
type clients struct {
	first, second *pgconn.PgConn
	own           string // the server session of first
}

func (p *clients) watch(ctx context.Context) error {
	for range poolerRounds {
		// Twice: a pooler that takes turns between two gives every other statement the same one.
		for range 2 {
			if err := p.stays(ctx); err != nil {
				return err
			}
		}
		waiting, err := p.borrow(ctx)
		if waiting {
			return p.stays(ctx)
		}
		if err != nil {
			return err
		}
		if err := p.stays(ctx); err != nil {
			return err
		}
		if _, err := p.second.Exec(ctx, "ROLLBACK").ReadAll(); err != nil {
			return fmt.Errorf("see how the pooler shares sessions: %w", err)
		}
	}
	return nil
}

// stays checks that first has the server session it had.
func (p *clients) stays(ctx context.Context) error {
	row, err := only(ctx, p.first, backend)
	if err != nil {
		return fmt.Errorf("see how the pooler shares sessions: %w", err)
	}
	if now := string(row[0]); p.own == "" {
		p.own = now
	} else if p.own != now {
		return ErrPooled
	}
	return nil
}

// borrow lets second begin a transaction, and checks that it is not on the server session of first. waiting says that
// there is no session to be had.
func (p *clients) borrow(ctx context.Context) (waiting bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, poolerWait)
	defer cancel()
	_, err = p.second.Exec(ctx, "BEGIN").ReadAll()
	switch {
	case State(err) == "08P01":
		return false, ErrPooled // statement mode knows no transactions
	case err != nil && ctx.Err() != nil:
		return true, nil
	case err != nil:
		return false, fmt.Errorf("see how the pooler shares sessions: %w", err)
	}
	row, err := only(ctx, p.second, backend)
	if err != nil {
		return false, fmt.Errorf("see how the pooler shares sessions: %w", err)
	}
	if string(row[0]) == p.own {
		return false, ErrPooled
	}
	return false, nil
}
