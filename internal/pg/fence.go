package pg

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// fence admits sessions to one pool: to primaries only, and to none that a later one has replaced. A broker that saw a
// promotion therefore never writes to the old primary again, whatever the address or a balancer says. Sessions that are
// under way with the old primary are cut off: one that waits for a server that hangs would wait for ever.
//
// It does not make an old primary stop: brokers that have not seen the new one still write to it. That is for the tool
// that promotes (docs/operations/postgresql-ha.md).
type fence struct {
	settings string // statements
	admit    func(context.Context, *pgconn.PgConn) error
	memory   memory
	log      *slog.Logger
	poolers  poolers
	heard    atomic.Int64 // when the server last said something, on whatever line

	admission sync.Mutex // held while a life is looked at for the first time

	mu       sync.Mutex // guards below
	lives    map[identity]Life
	admitted map[Life]bool
	newest   map[string]uint32 // the highest timeline seen, by system
	unkept   bool              // the memory does not have it yet
	links    map[*session]link
}

// link is the line of a session, so that it can be cut by somebody who does not hold the session.
type link struct {
	line net.Conn
	done <-chan struct{} // closed when the session has ended
}

func newFence(c *Config) (*fence, error) {
	f := &fence{
		admit: c.Admit, memory: memory(c.TimelineFile), log: cmp.Or(c.Log, slog.New(slog.DiscardHandler)),
		lives: map[identity]Life{}, admitted: map[Life]bool{}, links: map[*session]link{},
	}
	var err error
	f.newest, err = f.memory.load()
	return f, err
}

// guard makes every session of pc pass the fence when it begins and whenever it is taken from the pool, and listen for
// commits that nobody confirmed. The check of a new session is the one that decides between several hosts, so a refused
// one makes pgx try the next.
func (f *fence) guard(pc *pgxpool.Config) {
	cc := pc.ConnConfig
	validate, notice, prepare, before := cc.ValidateConnect, cc.OnNotice, pc.PrepareConn, pc.BeforeConnect
	f.poolers.config = cc.Config.Copy()
	cc.ValidateConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		if validate != nil {
			if err := validate(ctx, c); err != nil {
				return err
			}
		}
		return f.meet(ctx, c)
	}
	cc.OnNotice = func(c *pgconn.PgConn, n *pgconn.Notice) {
		if s := sessionOf(c); s != nil && unawaited(n) {
			s.unconfirmed = true
		}
		if notice != nil {
			notice(c, n)
		}
	}
	pc.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		if before != nil {
			if err := before(ctx, c); err != nil {
				return err
			}
		}
		f.lay(&c.Config)
		return nil
	}
	pc.PrepareConn = func(ctx context.Context, c *pgx.Conn) (bool, error) {
		if s := sessionOf(c.PgConn()); s != nil && s.replaced.Load() {
			return false, nil
		}
		if prepare == nil {
			return true, nil
		}
		return prepare(ctx, c)
	}
}

// meet lets a new session in, or says why not. What is set for the session is set last: under a pooler that hands
// sessions around it would be set for others.
func (f *fence) meet(ctx context.Context, c *pgconn.PgConn) error {
	id, backend, direct, err := identify(ctx, c)
	if err != nil {
		return err
	}
	if !direct {
		if err := f.poolers.check(ctx, c, id); err != nil {
			return err
		}
	}
	life, err := f.pass(id)
	if err != nil {
		return err
	}
	if err := f.look(ctx, c, life); err != nil {
		return err
	}
	if _, err := c.Exec(ctx, f.settings).ReadAll(); err != nil {
		return fmt.Errorf("set up the session: %w", err)
	}
	return f.enter(c, &session{life: life, id: id, backend: backend})
}

// pass numbers the life, unless a later primary has been met. A timeline that is new is remembered before anything is
// written in it.
func (f *fence) pass(id identity) (Life, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch newest := f.newest[id.system]; {
	case id.timeline < newest:
		return 0, f.memory.replaced(id.timeline, newest)
	case id.timeline > newest:
		f.newest[id.system] = id.timeline
		f.cutLocked(id)
		f.unkept = true
	}
	if f.unkept { // new, or not kept when it was: each session tries once more
		if err := f.memory.store(f.newest); err != nil {
			f.log.Error("the timeline of the database could not be kept: a broker that starts again would not know that its old primary was replaced", "err", err)
		} else {
			f.unkept = false
		}
	}
	life, known := f.lives[id]
	if !known {
		life = Life(len(f.lives) + 1)
		f.lives[id] = life
	}
	return life, nil
}

// cutLocked ends the sessions with the servers that id has replaced.
func (f *fence) cutLocked(id identity) {
	cut := 0
	for s, l := range f.links {
		if s.id.system != id.system || s.id.timeline >= id.timeline {
			continue
		}
		s.replaced.Store(true)
		delete(f.links, s)
		// The session's holder finds it broken, which is all there is to say.
		_ = l.line.Close()
		cut++
	}
	if len(f.lives) > 0 {
		f.log.Warn("a later primary has replaced the one before", "timeline", id.timeline, "sessions_cut", cut)
	}
}

// look shows a life to Admit, once.
func (f *fence) look(ctx context.Context, c *pgconn.PgConn, life Life) error {
	if f.admit == nil {
		return nil
	}
	f.admission.Lock()
	defer f.admission.Unlock()
	f.mu.Lock()
	done := f.admitted[life]
	f.mu.Unlock()
	if done {
		return nil
	}
	if err := f.admit(ctx, c); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.admitted[life] = true
	return nil
}

// enter notes the session, unless its server was replaced while it was looked at.
func (f *fence) enter(c *pgconn.PgConn, s *session) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if newest := f.newest[s.id.system]; s.id.timeline < newest {
		return f.memory.replaced(s.id.timeline, newest)
	}
	for s, l := range f.links {
		select {
		case <-l.done:
			delete(f.links, s)
		default:
		}
	}
	conn := c.Conn()
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn() // TLS says good-bye first, and waits for whoever is writing
	}
	if s.line, _ = conn.(*line); s.line != nil {
		s.line.begin()
	}
	f.links[s] = link{conn, c.CleanupDone()}
	c.CustomData()[sessionKey] = s
	return nil
}
