package broker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/store"
)

// Rhythm of the loops. A partition that is written is logged at most once a second, stamped before the commit, so the
// narrow window covers the usual push and the wide one the slowest. The log goes back further than feedGap
// (queen.writes_keep).
const (
	feedEvery    = time.Second
	feedNarrow   = 3 * time.Second
	feedWide     = time.Minute
	feedWideEach = 20 * time.Second
	feedForgets  = 2 * feedWide // an offset that no window can bring up again
	feedGap      = 10 * time.Minute
	maxSuspects  = 512

	sweepEvery = time.Minute
	ringIdle   = 5 * time.Minute

	// databaseWait bounds how long a statement waits for a free session, and a read as a whole.
	databaseWait = 5 * time.Second
)

// database returns a context for one statement. Statements that commit heed it only until they have a session.
func (b *Broker) database() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), databaseWait)
}

// feed is what the broker knows of the change feed: the one query per second by which it hears of other brokers.
type feed struct {
	away  atomic.Bool               // the last round failed
	dirty atomic.Bool               // bytes landed or were freed here since the last fold
	swept atomic.Bool               // no log rows of deleted queues are left, as far as is known here
	due   chan struct{}             // one token: another broker says that there is something to read
	every time.Duration             // between two rounds that nobody asks for
	life  store.Life                // of the database in the last good round; the loop's own
	shown atomic.Pointer[shownLife] // the same for metrics; nil before the first round

	mu    sync.Mutex // guards all below
	heard map[int64]hearing
	moves map[int64]time.Time // moves of cursors that were followed, by id: when they were last seen
}

// shownLife is which database the feed was read from.
type shownLife struct {
	life     store.Life
	timeline uint32
}

// hearing is the last offset of a partition that was announced to the rings.
type hearing struct {
	last int64
	at   time.Time
}

// saw notes that a partition's offsets up to last have been announced.
func (f *feed) saw(partition, last int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noteLocked(partition, last, time.Now())
}

func (f *feed) noteLocked(partition, last int64, now time.Time) {
	if f.heard == nil {
		f.heard = map[int64]hearing{}
	}
	f.heard[partition] = hearing{max(last, f.heard[partition].last), now}
}

// news returns the changes that nobody here has heard of, and notes them.
func (f *feed) news(changes []store.Change, now time.Time) []store.Change {
	f.mu.Lock()
	defer f.mu.Unlock()
	fresh := changes[:0]
	for _, c := range changes {
		if h, ok := f.heard[c.PartitionID]; ok && h.last >= c.LastOffset {
			continue
		}
		f.noteLocked(c.PartitionID, c.LastOffset, now)
		fresh = append(fresh, c)
	}
	return fresh
}

// forget drops what no window brings up again.
func (f *feed) forget(before time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, h := range f.heard {
		if h.at.Before(before) {
			delete(f.heard, id)
		}
	}
	for id, at := range f.moves {
		if at.Before(before) {
			delete(f.moves, id)
		}
	}
}

// newMoves returns the moves that this broker has not followed yet, and notes them.
func (f *feed) newMoves(moves []store.CursorMove, now time.Time) []store.CursorMove {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.moves == nil && len(moves) > 0 {
		f.moves = map[int64]time.Time{}
	}
	fresh := moves[:0]
	for _, m := range moves {
		if _, ok := f.moves[m.ID]; !ok {
			fresh = append(fresh, m)
		}
		f.moves[m.ID] = now
	}
	return fresh
}

// nudge asks for a round now.
func (f *feed) nudge() {
	select {
	case f.due <- struct{}{}:
	default: // one is due already
	}
}

// fold asks for the ledger of retained bytes to be folded.
func (f *feed) fold() { f.dirty.Store(true) }

// runFeed asks once a second what has changed, probes doubtful leases and folds the ledger, until ctx ends. While
// nobody reads here, nothing is remembered and nothing has landed, it asks nothing.
func (b *Broker) runFeed(ctx context.Context) error {
	tick := time.NewTicker(b.feed.every)
	defer tick.Stop()
	r := rounds{heard: time.Now()}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-b.feed.due:
		}
		b.attended(func() { b.feedRound(ctx, &r, time.Now()) })
	}
}

// attended runs a round of questions and sees to it that somebody wonders when it takes long: while the database stands still
// a statement that commits ends with it, and not before.
func (b *Broker) attended(round func()) {
	done := make(chan struct{})
	timer := time.AfterFunc(readyShared, func() {
		defer close(done)
		_ = b.pinger.check(pingShared) // what it finds out it tells itself
	})
	round()
	if !timer.Stop() {
		<-done
	}
}

// rounds are the times of the last good round of the feed and of the last wide one.
type rounds struct{ heard, wide time.Time }

func (b *Broker) feedRound(ctx context.Context, r *rounds, now time.Time) {
	if b.feed.dirty.Swap(false) {
		if err := b.foldUsage(ctx); err != nil {
			b.feed.dirty.Store(true)
			b.log.Debug("retained bytes could not be folded", "err", err)
		}
	}
	if !b.feed.swept.Load() {
		b.sweepDropped(ctx)
	}
	if b.park.Boards() == 0 && b.names.empty() && !b.feed.away.Load() && !b.pinger.lost.Load() {
		// A ring made from now on asks the database itself; what it cannot know is what came before this round.
		r.heard = now
		return
	}
	window := feedNarrow
	if now.Sub(r.wide) >= feedWideEach {
		window = feedWide
	}
	window = max(window, now.Sub(r.heard)+feedNarrow)
	if err := b.readFeed(ctx, window, now); err != nil {
		if ctx.Err() == nil && !b.feed.away.Swap(true) {
			b.log.Warn("the database is away", "err", err)
		}
		b.giveBack()
		return
	}
	if window >= feedWide {
		r.wide = now
		b.feed.forget(now.Add(-feedForgets))
	}
	if b.feed.away.Load() {
		b.resume(now.Sub(r.heard))
	}
	r.heard = now
	if err := b.followScopes(ctx); err != nil && ctx.Err() == nil {
		b.log.Debug("queues of scopes could not be looked up", "err", err)
	}
	if err := b.probe(ctx); err != nil && ctx.Err() == nil {
		b.log.Debug("leases could not be probed", "err", err)
	}
}

// sweepDropped deletes one bounded step of the log of deleted queues. What a broker that died left over is found by the
// first step of the next one to start.
func (b *Broker) sweepDropped(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, databaseWait)
	defer cancel()
	// Set before the step: a deletion meanwhile clears it again.
	b.feed.swept.Store(true)
	removed, err := b.db.SweepDropped(ctx)
	if err != nil {
		b.log.Debug("deleted queues could not be swept", "err", err)
	}
	if err != nil || removed > 0 {
		b.feed.swept.Store(false)
	}
}

// readFeed reads what was written within window and tells the rings.
func (b *Broker) readFeed(ctx context.Context, window time.Duration, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, databaseWait)
	defer cancel()
	changes, shared, err := b.db.Changes(ctx, min(window, feedGap))
	if err != nil {
		return err
	}
	b.pinger.answered()
	if b.feed.life != 0 && b.feed.life != shared.Life && !b.feed.away.Load() {
		// A failover may fit between two rounds.
		b.log.Info("the database is another one")
		b.unlearn()
	}
	b.feed.life = shared.Life
	b.feed.shown.Store(&shownLife{shared.Life, shared.Timeline})
	b.names.version.Store(shared.ConfigVersion)
	b.obey(shared.Switches, now)
	for _, m := range b.feed.newMoves(shared.Moves, now) {
		b.lookAgain(m.Tenant, m.Queue, m.Group)
	}
	for _, c := range b.feed.news(changes, now) {
		b.park.Mark(c.Tenant, c.Queue, c.PartitionID, c.LastOffset, 0)
	}
	return nil
}

// resume makes everything that was believed of the database be read anew: it may be another one now, promoted with
// less than the old one had, and a feed that was silent for longer than its window may have missed a write.
func (b *Broker) resume(silent time.Duration) {
	b.log.Info("the database is back", "away_ms", silent.Milliseconds())
	b.unlearn()
	b.feed.away.Store(false)
}

// unlearn drops what was learned of the database. Offsets that it lost are given to other messages, and ids of
// partitions to other partitions.
func (b *Broker) unlearn() {
	b.fuser.ForgetAll()
	b.segments.clear()
	b.leases.clear()
	b.names.clear()
	b.scopes.version.Store(-1)
	b.feed.forget(time.Now())
	b.park.Reset()
}

// probe asks, in one statement for all of them, after leases that may have ended without our hearing of it, and after
// partitions that are awaited by name.
func (b *Broker) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, databaseWait)
	defer cancel()
	for _, u := range b.park.Strangers() {
		pairs := make([]store.Pair, len(u.Partitions))
		for i, name := range u.Partitions {
			pairs[i] = store.Pair{Queue: u.Queue, Partition: name}
		}
		version := b.names.version.Load()
		found, err := b.db.Lookup(ctx, u.Tenant, pairs)
		if err != nil {
			return err
		}
		b.names.learn(version, found)
		for _, p := range found {
			if p.ID != 0 {
				b.park.Named(p.Tenant, p.Queue, p.Name, p.ID)
			}
		}
	}
	suspects := b.park.Suspects(maxSuspects)
	if len(suspects) == 0 {
		return nil
	}
	partitions, groups := make([]int64, len(suspects)), make([]string, len(suspects))
	delays := make([]time.Duration, len(suspects))
	for i, s := range suspects {
		partitions[i], groups[i], delays[i] = s.Partition, s.Key.Group, s.Delay
	}
	found, err := b.db.PendingOf(ctx, partitions, groups, delays)
	if err != nil {
		return err
	}
	// Each partition was asked for with one group only, so its id tells whose answer it is.
	byID := make(map[int64]park.Pending, len(found))
	for i := range found {
		byID[found[i].PartitionID] = b.pending(&found[i])
	}
	for _, s := range suspects {
		if p, ok := byID[s.Partition]; ok {
			b.park.Probed(s, &p)
		} else {
			b.park.Probed(s, nil)
		}
	}
	return nil
}

func (b *Broker) foldUsage(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, databaseWait)
	defer cancel()
	_, err := b.db.FoldUsage(ctx)
	return err
}

// runSweep forgets what has not been used for long, until ctx ends.
func (b *Broker) runSweep(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			b.park.Sweep(now.Add(-ringIdle))
			b.sweepScopes(now.Add(-ringIdle))
			b.leases.sweep(now)
			b.segments.sweep(now.Add(-ringIdle))
		}
	}
}
