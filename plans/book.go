package plans

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pg"
)

// Channel is the one on which the database announces changes. A notification is a reason to look, nothing more.
const Channel = "queengate_inval"

const (
	// defaultPoll keeps a revocation whose notification was lost within a second: half of it passes until the next look, at
	// most, and the look itself takes milliseconds. A look without news is one look-up by primary key, whatever a gateway
	// follows.
	defaultPoll = 500 * time.Millisecond
	// maxChanges is how many rows of the change log are followed one by one; beyond it a whole reload is cheaper.
	maxChanges = 2000
	// refreshTimeout bounds one look at the database. The reads can be cancelled at will.
	refreshTimeout = 20 * time.Second

	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
	// askPause lies between two looks that CatchUp asks for: whoever sends keys that nobody knows costs the database ten
	// look-ups a second, and no more.
	askPause = 100 * time.Millisecond
	// patience is how long a start with a good file waits for the database.
	patience = 500 * time.Millisecond

	pingInterval = 15 * time.Second // finds a listening connection whose other end vanished silently
)

// Book keeps the current Snapshot: loaded at Load, then following NOTIFY, with the change sequence polled so that a
// lost notification is repaired.
//
// A change costs the rows it names and a copy of the maps it touches. At 10,000 clusters with 20,000 keys a key costs 3
// ms, a cluster 10 ms, an edit of the plan they all have 65 ms, a whole load 210 ms, a look without news 0.1 ms
// (BenchmarkBook, 2 shared cores, 2026-11). Changes that come while one is followed are followed together.
//
// What it knows is in force for so long after the database was last heard of, and no longer (WithMaxAge), and with a
// file it survives the process (WithFile).
type Book struct {
	log     *slog.Logger
	pool    *pgxpool.Pool
	poll    time.Duration
	maxAge  time.Duration
	keeper  *keeper // nil: there is no file
	hooks   []func(old, new *Snapshot)
	current atomic.Pointer[Snapshot]
	synced  atomic.Int64  // Unix nanoseconds of the last successful look
	away    atomic.Bool   // the last look failed, and that was said
	askC    chan struct{} // capacity 1: somebody waits for a look

	lookedMu sync.Mutex    // guards looked
	looked   chan struct{} // closed after the next look, and replaced

	mu     sync.Mutex // one look at a time; guards what follows
	rows   *catalogue // what current was composed of; nil when current is empty
	anchor anchor     // zero: what is known is not from the log
}

// anchor is the row of the change log that was seen last. If the log no longer holds exactly this row, it was pruned or
// the database was restored or lost its last commits in a failover: then nothing may be concluded from numbers, and
// everything is read again.
type anchor struct {
	seq int64
	at  time.Time
}

// DefaultMaxAge is how long a Book is in force after the database was last heard of, unless it is told otherwise.
const DefaultMaxAge = 24 * time.Hour

// Option is a part of a Book that not every one has.
type Option func(*Book)

// WithMaxAge sets how long after the database was last heard of the book is in force, from memory or from its file;
// more than 0.
func WithMaxAge(d time.Duration) Option { return func(b *Book) { b.maxAge = d } }

// WithFile has the book keep what it knows in a file, and start from that while the database is away.
func WithFile(f File) Option { return func(b *Book) { b.keeper = newKeeper(b.log, f) } }

// NewBook returns a Book on pool; it does no I/O. poll is the interval of the sequence poll (default 0.5 s).
func NewBook(log *slog.Logger, pool *pgxpool.Pool, poll time.Duration, with ...Option) *Book {
	if poll <= 0 {
		poll = defaultPoll
	}
	b := &Book{
		log: log, pool: pool, poll: poll, maxAge: DefaultMaxAge, askC: make(chan struct{}, 1), looked: make(chan struct{}),
	}
	for _, o := range with {
		o(b)
	}
	return b
}

// Load reads the first snapshot: from the database or, when that does not answer within half a second and there is a
// file that is good, from the file; then Run replaces it as soon as the database answers. Errors are database faults,
// with what is wrong with the file; it may be called again. What waiting does not cure, such as a wrong password, is an
// error whatever the file says.
func (b *Book) Load(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keeper == nil {
		return b.reload(ctx)
	}
	kept, rows, unusable := b.keeper.open(b.maxAge, time.Now())
	if kept != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	err := b.reload(ctx)
	switch {
	case err == nil && unusable != nil && !errors.Is(unusable, os.ErrNotExist):
		b.log.Warn("the last-known-good file was of no use and is replaced", "file", b.keeper.Path, "reason", unusable)
		return nil
	case err == nil:
		return nil
	case unusable != nil:
		return fmt.Errorf("%w; nor can %s be used instead: %w", err, b.keeper.Path, unusable)
	case !pg.Away(err):
		return err
	}
	b.away.Store(true)
	b.rows = rows
	b.publish(&changes{all: true}, kept.Seq, kept.Synced)
	b.log.Warn("control database cannot be read: this gateway starts with what it knew last", "file", b.keeper.Path,
		"age_s", int64(time.Since(kept.Synced).Seconds()), "clusters", len(b.Snapshot().Clusters()), "err", err)
	return nil
}

// Snapshot returns the current snapshot; never nil after Load.
func (b *Book) Snapshot() *Snapshot { return b.current.Load() }

// Synced returns when the snapshot was last known to be the database's state; zero before Load.
func (b *Book) Synced() time.Time {
	if ns := b.synced.Load(); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// CatchUp waits until the snapshot is the database's state as of at, or a later one, and reports whether it is. It asks
// for a look instead of waiting for news; those who wait share it. While the database is away it fails at once; ctx
// bounds the wait for it. The Book must run. Safe for concurrent use.
func (b *Book) CatchUp(ctx context.Context, at time.Time) bool {
	for {
		b.lookedMu.Lock()
		looked := b.looked
		b.lookedMu.Unlock()
		switch {
		case !b.Synced().Before(at):
			return true
		case b.away.Load():
			return false
		}
		select {
		case b.askC <- struct{}{}:
		default: // a look is asked for already
		}
		select {
		case <-looked:
		case <-ctx.Done():
			return false
		}
	}
}

// OnChange registers f to be called after each swap with the old and the new snapshot; the old one is empty at Load. Calls
// are serial and hold up the next look at the database, nothing else. Before Run only.
func (b *Book) OnChange(f func(old, new *Snapshot)) { b.hooks = append(b.hooks, f) }

// Run follows the database until ctx ends. A database that is away leaves the last snapshot in force until that is too
// old; then the snapshot is empty, until the database is back.
func (b *Book) Run(ctx context.Context) error {
	wakeC := make(chan struct{}, 1)
	var others sync.WaitGroup
	defer others.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	others.Go(func() { b.listen(ctx, wakeC) })
	if b.keeper != nil {
		others.Go(func() { b.keep(ctx) })
	}

	tick := time.NewTicker(b.poll)
	defer tick.Stop()
	askC := b.askC // nil: it is too early for another look that was asked for
	var calm <-chan time.Time
	for {
		b.look(ctx)
		b.lookedMu.Lock()
		close(b.looked)
		b.looked = make(chan struct{})
		b.lookedMu.Unlock()
		for due := false; !due; {
			due = true
			select {
			case <-ctx.Done():
				return nil
			case <-wakeC:
			case <-tick.C:
			case <-b.expiry():
			case <-askC:
				askC, calm = nil, time.After(askPause)
			case <-calm:
				askC, calm, due = b.askC, nil, false
			}
		}
	}
}

// left is how long the book is still in force if the database says nothing more.
func (b *Book) left() time.Duration { return b.maxAge - time.Since(b.Synced()) }

// expiry fires when a book without a database comes to its end.
func (b *Book) expiry() <-chan time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.away.Load() || b.rows == nil {
		return nil
	}
	return time.After(b.left())
}

// look brings the snapshot up to date, and says once when that becomes impossible and when it is possible again.
func (b *Book) look(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	limit := refreshTimeout
	if left := b.left(); b.rows != nil && left < limit {
		limit = left
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := b.refresh(bounded)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && b.away.CompareAndSwap(false, true):
		b.log.Warn("control database cannot be read: the last snapshot stays in force", "for_s", int64(b.left().Seconds()), "err", err)
	case err == nil && b.away.CompareAndSwap(true, false):
		b.log.Info("control database is read again", "seq", b.anchor.seq)
	}
	if err != nil && b.rows != nil && b.left() <= 0 {
		b.rows, b.anchor = nil, anchor{}
		b.log.Error("control database was away for too long: what was known of it is in force no more", "max_age", b.maxAge.String(), "err", err)
		b.exchange(&Snapshot{})
	}
}

// refresh follows the change log from the anchor. The usual answer is the anchor alone: one round trip, no change.
func (b *Book) refresh(ctx context.Context) error {
	if b.rows == nil || b.anchor == (anchor{}) {
		return b.reload(ctx)
	}
	began := time.Now()
	news, err := readChanges(ctx, b.pool, b.anchor, 2)
	if err != nil {
		return err
	}
	if news.intact && news.count == 0 {
		b.synced.Store(began.UnixNano())
		return nil
	}
	if !news.intact {
		return b.reload(ctx)
	}
	var found *catalogue
	err = b.inSnapshot(ctx, func(tx pgx.Tx) error {
		if news, err = readChanges(ctx, tx, b.anchor, maxChanges+2); err != nil {
			return err
		}
		if news.intact && news.count <= maxChanges && !news.changes.all {
			found, err = fetch(ctx, tx, &news.changes, b.keeper != nil)
		}
		return err
	})
	if err != nil {
		return err
	}
	if found == nil {
		return b.reload(ctx)
	}
	b.swap(&news.changes, found, news.newest, began)
	return nil
}

// reload reads everything. mu is held.
func (b *Book) reload(ctx context.Context) error {
	began := time.Now()
	all := &changes{all: true}
	var newest anchor
	var found *catalogue
	err := b.inSnapshot(ctx, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, sqlNewest).Scan(&newest.seq, &newest.at)
		if err != nil {
			return fmt.Errorf("read change log: %w", err)
		}
		found, err = fetch(ctx, tx, all, b.keeper != nil)
		return err
	})
	if err != nil {
		return err
	}
	b.swap(all, found, newest, began)
	return nil
}

// inSnapshot runs f in one read-only snapshot of the database, so that the log and the rows agree.
func (b *Book) inSnapshot(ctx context.Context, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, b.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// swap publishes what was found by a look that began then. Nothing of the book has changed before it, so a failed look
// leaves no trace. mu is held.
func (b *Book) swap(ch *changes, found *catalogue, newest anchor, began time.Time) {
	if b.keeper != nil {
		b.keeper.note(ch, found.raw)
		found.raw = nil
	}
	if b.rows == nil {
		b.rows = &catalogue{}
	}
	b.rows.apply(ch, found)
	b.anchor = newest
	b.publish(ch, newest.seq, began)
}

// publish makes the snapshot of the rows the current one, as of the instant at which they were the database's. mu is held.
func (b *Book) publish(ch *changes, seq int64, synced time.Time) {
	old := b.current.Load()
	if old == nil {
		old = &Snapshot{}
	}
	next, composed := b.rows.snapshot(old, ch, seq, time.Now())
	b.synced.Store(synced.UnixNano())
	b.exchange(next)
	for id := range composed {
		b.judge(next.byID[id])
	}
}

// exchange makes next the current snapshot and tells the hooks. mu is held.
func (b *Book) exchange(next *Snapshot) {
	old := b.current.Swap(next)
	if old == nil {
		old = &Snapshot{}
	}
	for _, f := range b.hooks {
		f(old, next)
	}
}

// judge warns of a cluster whose overrides contradict its plan, such as a batch that fits no burst. The database allows
// it, since an operator may mean it for a while. Plans without overrides were judged when they were written.
func (b *Book) judge(c *Cluster) {
	if c == nil || len(b.rows.clusters[c.ID].overrides) == 0 {
		return
	}
	if err := c.Limits.Validate(); err != nil {
		b.log.Warn("limits of a cluster contradict each other", "cluster", c.Slug, "plan", c.PlanCode, "err", err)
	}
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// logTail is what the change log holds after the anchor.
type logTail struct {
	intact  bool // the anchor is still in the log; otherwise the rest means nothing
	count   int
	changes changes
	newest  anchor
}

// readChanges reads at most limit rows of the log, the anchor included.
func readChanges(ctx context.Context, q querier, from anchor, limit int) (logTail, error) {
	n := logTail{newest: from}
	rows, err := q.Query(ctx, sqlChanges, from.seq, limit)
	if err != nil {
		return n, fmt.Errorf("read change log: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var row anchor
		var kind, id string
		if err := rows.Scan(&row.seq, &row.at, &kind, &id); err != nil {
			return n, fmt.Errorf("read change log: %w", err)
		}
		if !n.intact {
			if n.intact = row.seq == from.seq && row.at.Equal(from.at); !n.intact {
				break
			}
			continue
		}
		n.count++
		n.newest = row
		n.changes.note(kind, id)
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return n, fmt.Errorf("read change log: %w", err)
	}
	return n, nil
}

// listen wakes the book at every notification, and after every (re)connect, since what was announced meanwhile is lost.
// It uses a connection of its own: one of the pool would lose its subscription.
func (b *Book) listen(ctx context.Context, wakeC chan<- struct{}) {
	backoff := minBackoff
	for ctx.Err() == nil {
		healthy, err := b.listenOnce(ctx, wakeC)
		if ctx.Err() != nil {
			return
		}
		if healthy {
			backoff = minBackoff
		}
		b.log.Debug("listening for changes was interrupted: the poll stands in", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(backoff/2 + rand.N(backoff)):
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// listenOnce listens on one connection until it fails; healthy reports that it was subscribed.
func (b *Book) listenOnce(ctx context.Context, wakeC chan<- struct{}) (healthy bool, err error) {
	cfg := b.pool.Config().ConnConfig
	cfg.RuntimeParams["application_name"] = "queengate listen"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	// The end of ctx must not cut the farewell short, nor may a dead server hold it up.
	defer func() {
		farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		// The connection is given up whatever this says.
		_ = conn.Close(farewell)
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+Channel); err != nil {
		return false, fmt.Errorf("listen: %w", err)
	}
	for {
		select {
		case wakeC <- struct{}{}:
		default: // a look is due already
		}
		if err := b.awaitNotification(ctx, conn); err != nil {
			return true, err
		}
	}
}

// awaitNotification returns at a notification, or with an error when the connection no longer answers.
func (b *Book) awaitNotification(ctx context.Context, conn *pgx.Conn) error {
	for {
		quiet, cancel := context.WithTimeout(ctx, pingInterval)
		_, err := conn.WaitForNotification(quiet)
		timedOut := quiet.Err() != nil
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || !timedOut || conn.IsClosed() {
			return fmt.Errorf("wait for notification: %w", err)
		}
		answer, cancel := context.WithTimeout(ctx, pingInterval)
		err = conn.Ping(answer)
		cancel()
		if err != nil {
			return fmt.Errorf("ping: %w", err)
		}
	}
}
