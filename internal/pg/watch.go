package pg

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Watch looks at a database from beside the pool that is made with it (Config.Watch): it asks on a session of its own, which
// no statement of the pool keeps busy, and can give up what a server that stands still will not answer. Such a server keeps
// its connections and says nothing; its statement_timeout stands still with it. Safe for concurrent use.
type Watch struct {
	fence  *fence
	config *pgconn.Config

	mu   sync.Mutex // guards conn; held during a round trip
	conn *pgconn.PgConn
}

// secondLook is how long Cut looks again: a process that was stopped itself finds answers waiting that it has not read.
const secondLook = 100 * time.Millisecond

// Ping is a round trip. It does not wait for the pool: one whose sessions are all busy says nothing about the database.
func (w *Watch) Ping(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := w.conn != nil
	err := w.ask(ctx)
	if err != nil && kept && ctx.Err() == nil {
		return w.ask(ctx) // the session was over, as after a restart of the server
	}
	return err
}

func (w *Watch) ask(ctx context.Context) error {
	if w.conn != nil && sessionOf(w.conn).replaced.Load() {
		w.closeLocked()
	}
	if w.conn == nil {
		config := w.config.Copy()
		w.fence.lay(config)
		conn, err := pgconn.ConnectConfig(ctx, config)
		if err != nil {
			return err
		}
		w.conn = conn
	}
	// The context cuts the line and does not reach pgx, which would dial the server again to have the question cancelled.
	stop := context.AfterFunc(ctx, sessionOf(w.conn).line.cut)
	err := w.conn.Ping(context.WithoutCancel(ctx))
	stop()
	if err != nil {
		w.closeLocked()
		err = errors.Join(ctx.Err(), err)
	}
	return err
}

// Close ends the session. A later Ping makes another one.
func (w *Watch) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil {
		w.closeLocked()
	}
}

func (w *Watch) closeLocked() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.conn.Close(ctx) // it is given up, whatever it says
	w.conn = nil
}

// Cut ends the sessions of the pool that wait for an answer, if the server has been silent for quiet at least: nobody has
// heard a byte of it, neither since a question was put to it at asked that had no answer, nor since the oldest statement
// that waits was sent. What a server does that is only slow is left alone. It returns how many were cut, and
// whether the server was so silent, though nobody may have waited.
//
// The outcome of their statements is unknown, and they may be carried out later: what the server has received it will
// read when it goes on. No cancel request is sent after them.
func (w *Watch) Cut(asked time.Time, quiet time.Duration) (cut int, still bool) {
	if w.fence.silence(asked) < quiet {
		return 0, false
	}
	time.Sleep(secondLook)
	if w.fence.silence(asked) < quiet {
		return 0, false
	}
	for _, l := range w.fence.waiting() {
		l.cut()
		cut++
	}
	return cut, true
}

// line is the connection of one session, as seen from here.
type line struct {
	net.Conn
	fence *fence
	since atomic.Int64 // when the read under way began; 0: none is. pgx reads only while it waits for an answer

	mu     sync.Mutex // guards below
	begun  bool       // its session has
	gone   bool       // cut
	cancel net.Conn   // by which pgx asks the server to cancel the statement
}

// epoch is what stamps count from.
var epoch = time.Now()

func stamp(t time.Time) int64 { return max(int64(t.Sub(epoch)), 1) }

func (l *line) Read(b []byte) (int, error) {
	l.since.Store(stamp(time.Now()))
	n, err := l.Conn.Read(b)
	if n > 0 {
		l.fence.heard.Store(stamp(time.Now()))
	}
	l.since.Store(0)
	return n, err
}

// SyscallConn makes the line as good as its socket to whoever looks at the options of that.
func (l *line) SyscallConn() (syscall.RawConn, error) {
	c, ok := l.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return c.SyscallConn()
}

// cut closes the line: whoever waits for an answer on it has an error at once.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
	// Their holder finds them broken, which is all there is to say.
	_ = l.Conn.Close()
	if l.cancel != nil {
		_ = l.cancel.Close()
	}
}

// errCut refuses the cancel request that pgx sends after a session that broke: the server does not answer that either, and the
// session would keep its place in the pool meanwhile.
var errCut = errors.New("the session was cut: nobody is asked to cancel its statement")

// lay makes the session that begins with c go over a line.
func (f *fence) lay(c *pgconn.Config) {
	dial := c.DialFunc
	var l *line // of the host tried last
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if l != nil && l.over() {
			return nil, errCut
		}
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if l != nil && l.canceller(conn) {
			return conn, nil
		}
		l = &line{Conn: conn, fence: f}
		return l, nil
	}
}

func (l *line) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone
}

// canceller notes what conn is for, if the session has begun.
func (l *line) canceller(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		_ = conn.Close() // cut while it was dialled
	}
	l.cancel = conn
	return l.begun
}

func (l *line) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = true
}

// silence is for how long the server owes an answer without a byte of it: since asked, or longer if a statement waits for
// longer.
func (f *fence) silence(asked time.Time) time.Duration {
	from := stamp(asked)
	for _, l := range f.waiting() {
		if since := l.since.Load(); since != 0 {
			from = min(from, since)
		}
	}
	return time.Since(epoch) - time.Duration(max(from, f.heard.Load()))
}

// waiting returns the lines of the sessions that wait for an answer.
func (f *fence) waiting() (all []*line) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.links {
		if s.line != nil && s.line.since.Load() != 0 {
			all = append(all, s.line)
		}
	}
	return all
}
