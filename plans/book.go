package plans

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
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

	minBackoff   = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	pingInterval = 15 * time.Second // finds a listening connection whose other end vanished silently
)

// Book keeps the current Snapshot: loaded at Load, then following NOTIFY, with the change sequence polled so that a
// lost notification is repaired.
//
// A change costs the rows it names and a copy of the maps it touches. At 10,000 clusters with 20,000 keys a key costs 3
// ms, a cluster 10 ms, an edit of the plan they all have 65 ms, a whole load 210 ms, a look without news 0.1 ms
// (BenchmarkBook, 2 shared cores, 2026-11). Changes that come while one is followed are followed together.
type Book struct {
	log     *slog.Logger
	pool    *pgxpool.Pool
	poll    time.Duration
	hooks   []func(old, new *Snapshot)
	current atomic.Pointer[Snapshot]
	synced  atomic.Int64 // Unix nanoseconds of the last successful look

	mu     sync.Mutex // one look at a time; guards what follows
	rows   *catalogue // what current was composed of
	anchor anchor
	away   bool // the last look failed, and that was said
}

// anchor is the row of the change log that was seen last. If the log no longer holds exactly this row, it was pruned or
// the database was restored or lost its last commits in a failover: then nothing may be concluded from numbers, and
// everything is read again.
type anchor struct {
	seq int64
	at  time.Time
}

// NewBook returns a Book on pool; it does no I/O. poll is the interval of the sequence poll (default 0.5 s).
func NewBook(log *slog.Logger, pool *pgxpool.Pool, poll time.Duration) *Book {
	if poll <= 0 {
		poll = defaultPoll
	}
	return &Book{log: log, pool: pool, poll: poll}
}

// Load reads the first snapshot. Errors are database faults; it may be called again.
func (b *Book) Load(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reload(ctx)
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

// OnChange registers f to be called after each swap with the old and the new snapshot; the old one is empty at Load. Calls
// are serial and hold up the next look at the database, nothing else. Before Run only.
func (b *Book) OnChange(f func(old, new *Snapshot)) { b.hooks = append(b.hooks, f) }

// Run follows the database until ctx ends. A database that is away leaves the last snapshot in force.
func (b *Book) Run(ctx context.Context) error {
	wakeC := make(chan struct{}, 1)
	var listener sync.WaitGroup
	defer listener.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	listener.Go(func() { b.listen(ctx, wakeC) })

	tick := time.NewTicker(b.poll)
	defer tick.Stop()
	for {
		b.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-wakeC:
		case <-tick.C:
		}
	}
}

// look brings the snapshot up to date, and says once when that becomes impossible and when it is possible again.
func (b *Book) look(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	err := b.refresh(bounded)
	switch {
	case ctx.Err() != nil:
	case err != nil && !b.away:
		b.away = true
		b.log.Warn("control database cannot be read: the last snapshot stays in force", "err", err)
	case err == nil && b.away:
		b.away = false
		b.log.Info("control database is read again", "seq", b.anchor.seq)
	}
}

// refresh follows the change log from the anchor. The usual answer is the anchor alone: one round trip, no change.
func (b *Book) refresh(ctx context.Context) error {
	if b.rows == nil {
		return b.reload(ctx)
	}
	news, err := readChanges(ctx, b.pool, b.anchor, 2)
	if err != nil {
		return err
	}
	if news.intact && news.count == 0 {
		b.synced.Store(time.Now().UnixNano())
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
			found, err = fetch(ctx, tx, &news.changes)
		}
		return err
	})
	if err != nil {
		return err
	}
	if found == nil {
		return b.reload(ctx)
	}
	b.swap(&news.changes, found, news.newest)
	return nil
}

// reload reads everything. mu is held.
func (b *Book) reload(ctx context.Context) error {
	all := &changes{all: true}
	var newest anchor
	var found *catalogue
	err := b.inSnapshot(ctx, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, sqlNewest).Scan(&newest.seq, &newest.at)
		if err != nil {
			return fmt.Errorf("read change log: %w", err)
		}
		found, err = fetch(ctx, tx, all)
		return err
	})
	if err != nil {
		return err
	}
	b.swap(all, found, newest)
	return nil
}

// inSnapshot runs f in one read-only snapshot of the database, so that the log and the rows agree.
func (b *Book) inSnapshot(ctx context.Context, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, b.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// swap publishes what was found. Nothing of the book has changed before it, so a failed look leaves no trace. mu is held.
func (b *Book) swap(ch *changes, found *catalogue, newest anchor) {
	now := time.Now()
	if b.rows == nil {
		b.rows = &catalogue{}
	}
	b.rows.apply(ch, found)
	b.anchor = newest
	old := b.current.Load()
	if old == nil {
		old = &Snapshot{}
	}
	next, composed := b.rows.snapshot(old, ch, newest.seq, now)
	b.current.Store(next)
	b.synced.Store(now.UnixNano())
	for _, f := range b.hooks {
		f(old, next)
	}
	for id := range composed {
		b.judge(next.byID[id])
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
