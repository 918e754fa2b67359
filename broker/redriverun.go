package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/seal"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/wire"
)

// A redrive is a row of the database; brokers take turns at running it. Whoever claims it pages through the letters
// that it is to move, from old to new, and moves them in small transactions at its rate. Each moves counters and lease
// with the letters, under the fence of the claim, so a broker that dies loses no count and one that comes back from a
// pause moves nothing that is not its own.

const (
	redriveLook  = 10 * time.Second // how often a broker looks for redrives that nobody runs
	redriveSlots = 32               // run by one broker at once: most of their time they wait for their rate
	redriveBeat  = 5 * time.Second  // between signs of life of a run that moves nothing
	redriveRead  = 20 * time.Second // for a page: a rare filter may look at every letter of a queue

	redriveChunk      = 250     // letters per transaction, at most
	redriveChunkBytes = 4 << 20 // of payload per transaction, but for a single letter
	redrivePage       = 1000    // letters looked at ahead

	redriveTries = 5 // in a row that the database undoes, before the redrive is given up
)

// redrives is what a broker runs at the moment.
type redrives struct {
	holder  string
	lookC   chan struct{} // capacity 1: there may be one to claim
	mu      sync.Mutex    // guards running
	running int
}

func newRedrives() *redrives {
	return &redrives{holder: httpkit.NewUUID().String(), lookC: make(chan struct{}, 1)}
}

// look makes the loop look for a redrive to run.
func (r *redrives) look() {
	select {
	case r.lookC <- struct{}{}:
	default: // it will
	}
}

// free reports a slot to run one more.
func (r *redrives) free() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running < redriveSlots
}

func (r *redrives) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running += n
}

// runRedrives runs what nobody runs, until ctx ends; then it gives up its claims, so that another broker goes on.
func (b *Broker) runRedrives(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(redriveLook)
	defer tick.Stop()
	for {
		for b.redrives.free() {
			ask, cancel := context.WithTimeout(ctx, databaseWait)
			r, err := b.db.ClaimRedrive(ask, b.redrives.holder)
			cancel()
			if err != nil {
				if ctx.Err() == nil {
					b.log.Debug("redrives could not be claimed", "err", err)
				}
				break
			}
			if r == nil {
				break
			}
			b.redrives.add(1)
			wg.Go(func() {
				b.redrive(ctx, r)
				b.redrives.add(-1)
				b.redrives.look() // one that found no slot
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-b.redrives.lookC:
		}
	}
}

// errLost ends a run whose redrive ended or is another's.
var errLost = errors.New("the redrive is held by nobody or another broker")

// redrive runs a claimed redrive until it ends, is lost, or ctx ends.
func (b *Broker) redrive(ctx context.Context, r *store.Redrive) {
	run := &redriveRun{b: b, r: r, next: time.Now(), beat: time.Now()}
	reason, err := run.persist(ctx)
	end, cancel := b.database()
	defer cancel()
	switch {
	case errors.Is(err, errLost):
		return
	case ctx.Err() != nil:
		err = b.db.ReleaseRedrive(end, r)
	case err == nil && reason == "":
		err = b.db.FinishRedrive(end, r, store.RedriveDone, "")
	case err == nil:
		err = b.db.FinishRedrive(end, r, store.RedriveFailed, reason)
	case wire.AsError(err).Code == wire.Internal && wire.AsError(err).Outcome != wire.OutcomeNone:
		b.log.Error("a redrive failed", "redrive", r.ID, "err", err)
		err = b.db.FinishRedrive(end, r, store.RedriveFailed, wire.Internal.Text())
	default:
		// The database is away or busy. The claim runs out, and whoever takes it up goes on where this one stopped.
		b.log.Warn("a redrive is interrupted", "redrive", r.ID, "err", err)
		return
	}
	if err != nil {
		b.log.Debug("the end of a redrive was not recorded", "redrive", r.ID, "err", err)
	}
}

// redriveRun is one broker's turn at a redrive.
type redriveRun struct {
	b    *Broker
	r    *store.Redrive
	next time.Time // when the rate allows the next letter
	beat time.Time // the last sign of life
	done int       // steps that were committed

	unopened int // letters of the page that could not be decrypted; they stay
}

// persist runs all, and again when the database has undone a step: what is wrong may pass. What does not pass within a
// few tries in a row becomes the reason of a failed redrive, so that nothing is tried for ever; asking for the redrive
// again goes on where this one stopped. While the database is away there is nothing to count: that is an interruption.
func (run *redriveRun) persist(ctx context.Context) (reason string, err error) {
	pauses := run.b.cfg.redrivePause
	for tries, done := 1, 0; ; tries++ {
		reason, err = run.all(ctx)
		e := wire.AsError(err)
		if e == nil || e.Code != wire.Internal || e.Outcome != wire.OutcomeNone || errors.Is(err, errLost) {
			return reason, err
		}
		if run.done > done {
			tries, done, pauses = 1, run.done, run.b.cfg.redrivePause
		}
		run.b.log.Warn("a step of a redrive was undone", "redrive", run.r.ID, "try", tries, "err", err)
		if tries == redriveTries {
			return store.RedriveReason(err), nil
		}
		if err := pause(ctx, pauses); err != nil {
			return "", err
		}
		pauses *= 2
		if err := run.alive(ctx); err != nil {
			return "", err
		}
	}
}

// all moves everything that is left. A reason says why the redrive cannot go on.
func (run *redriveRun) all(ctx context.Context) (reason string, err error) {
	// A page holds what five seconds can move: letters that others replay meanwhile are met as gone.
	ahead := min(max(5*run.r.Rate, 10), redrivePage)
	for {
		ask, cancel := context.WithTimeout(ctx, redriveRead)
		page, err := run.b.db.RedrivePage(ask, run.r, ahead)
		cancel()
		if err != nil || len(page) == 0 {
			return "", err
		}
		failed := 0
		run.unopened = 0
		for _, lane := range run.lanes(page, &failed) {
			if reason, err := run.lane(ctx, lane); reason != "" || err != nil {
				return reason, err
			}
		}
		held, err := run.b.db.SettleRedrive(ctx, run.r, page[len(page)-1].LetterKey, failed+run.unopened)
		if err != nil {
			return "", err
		}
		if !held {
			return "", errLost
		}
		run.beat = time.Now()
		run.done++
	}
}

// alive gives a sign of life when none was given for a while.
func (run *redriveRun) alive(ctx context.Context) error {
	if time.Since(run.beat) < redriveBeat {
		return nil
	}
	held, err := run.b.db.RenewRedrive(ctx, run.r)
	if err != nil {
		return err
	}
	if !held {
		return errLost
	}
	run.beat = time.Now()
	return nil
}

// redriveLane is the part of a page that goes to one partition, in order.
type redriveLane struct {
	to    store.Pair
	items []store.RedriveItem
}

// lanes sorts a page by where its letters go, and counts those that have nothing to go.
func (run *redriveRun) lanes(page []store.RedriveItem, failed *int) (lanes []*redriveLane) {
	byName := map[store.Pair]*redriveLane{}
	for _, it := range page {
		if it.Bytes < 0 {
			*failed++
			continue
		}
		to := run.r.Destination
		if to == (store.Pair{}) {
			to = store.Pair{Queue: run.r.Filter.Queue, Partition: it.Partition}
		}
		l := byName[to]
		if l == nil {
			l = &redriveLane{to: to}
			byName[to] = l
			lanes = append(lanes, l)
		}
		l.items = append(l.items, it)
	}
	return lanes
}

func (run *redriveRun) lane(ctx context.Context, l *redriveLane) (reason string, err error) {
	if err := run.alive(ctx); err != nil {
		return "", err
	}
	ask, cancel := context.WithTimeout(ctx, databaseWait)
	found, err := run.b.db.Lookup(ask, run.r.Tenant, []store.Pair{l.to})
	cancel()
	if err != nil {
		return "", err
	}
	if found[0].ID == 0 {
		return run.missing(), nil
	}
	ids := make([]uuid.UUID, len(l.items))
	for i := range l.items {
		ids[i] = l.items[i].ID
	}
	verified, seen, err := run.b.vouch(found[0], ids)
	if err != nil {
		return "", err
	}
	if err := run.alive(ctx); err != nil {
		return "", err
	}
	for rest := l.items; len(rest) > 0; {
		n := run.chunk(rest, seen)
		chunk := rest[:n]
		rest = rest[n:]
		vouched := verified
		if seen[chunk[0].ID] {
			vouched = store.Watermark{} // the probe shall find it
		}
		if reason, err := run.move(ctx, found[0], chunk, vouched); reason != "" || err != nil {
			return reason, err
		}
	}
	return "", nil
}

// missing says what a destination that is gone means: with a partition its letters are gone too.
func (run *redriveRun) missing() (reason string) {
	if run.r.Destination == (store.Pair{}) {
		return ""
	}
	return "the destination does not exist any more"
}

// chunk returns how many of the letters go into one transaction: what a quarter of a second may move, bounded in bytes.
// One that is in the log already goes alone.
func (run *redriveRun) chunk(items []store.RedriveItem, seen map[uuid.UUID]bool) int {
	most := min(max(run.r.Rate/4, 1), redriveChunk, len(items))
	bytes := 0
	for i := range most {
		bytes += items[i].Bytes
		if i > 0 && (bytes > redriveChunkBytes || seen[items[i].ID] || seen[items[0].ID]) {
			return i
		}
	}
	return most
}

// move moves a chunk, waiting for its turn; if some of it changed meanwhile or cannot be decrypted, one by one.
func (run *redriveRun) move(ctx context.Context, to store.Partition, items []store.RedriveItem, verified store.Watermark) (reason string, err error) {
	if err := run.wait(ctx, len(items)); err != nil {
		return "", err
	}
	ids := make([]uuid.UUID, len(items))
	for i := range items {
		ids[i] = items[i].ID
	}
	ask, cancel := context.WithTimeout(ctx, databaseWait)
	letters, err := run.b.db.LettersByID(ask, run.r.Tenant, ids)
	cancel()
	if err != nil {
		return "", err
	}
	letters = inOrder(letters, ids)
	if len(letters) == 0 {
		return "", nil // others were faster
	}
	m, err := run.b.newMove(run.r.Tenant, to, run.r.Producer, letters)
	switch {
	case err == nil:
	case errors.Is(err, seal.ErrNoKey):
		return "", err // a broker with a key goes on
	case len(letters) == 1:
		run.unopened++
		run.b.log.Error("a dead letter cannot be decrypted", "redrive", run.r.ID, "letter", letters[0].ID, "err", err)
		return "", nil
	default:
		return run.each(ctx, to, items)
	}
	m.Verified, m.Redrive = verified, run.r
	v, err := run.b.move(m)
	switch {
	case err != nil:
		return "", err
	case v.Outcome == store.MoveLost:
		return "", errLost
	case v.Outcome == store.MoveMissing:
		return run.missing(), nil
	case v.Outcome == store.MovePlain:
		to.Encrypted = true // since it was looked up
		run.next = run.next.Add(-run.cost(len(items)))
		return run.move(ctx, to, items, verified)
	}
	run.beat = time.Now()
	if v.Outcome == store.MoveDone {
		run.done++
	}
	if v.Outcome == store.MoveDone || len(letters) == 1 {
		return "", nil
	}
	return run.each(ctx, to, items) // some are gone, held by another, or were in the log
}

// each moves the letters of a chunk one by one; their share of the rate is paid.
func (run *redriveRun) each(ctx context.Context, to store.Partition, items []store.RedriveItem) (reason string, err error) {
	for i := range items {
		run.next = run.next.Add(-run.cost(1))
		if reason, err := run.move(ctx, to, items[i:i+1], store.Watermark{}); reason != "" || err != nil {
			return reason, err
		}
	}
	return "", nil
}

// inOrder returns the letters in the order of ids, without those that are gone.
func inOrder(letters []store.Letter, ids []uuid.UUID) []store.Letter {
	at := make(map[uuid.UUID]int, len(letters))
	for i := range letters {
		at[letters[i].ID] = i
	}
	out := make([]store.Letter, 0, len(letters))
	for _, id := range ids {
		if i, ok := at[id]; ok && letters[i].Payload != nil {
			out = append(out, letters[i])
		}
	}
	return out
}

// cost is the time that n letters take at the redrive's rate.
func (run *redriveRun) cost(n int) time.Duration {
	return time.Duration(n) * time.Second / time.Duration(run.r.Rate)
}

// wait returns when the rate allows n more letters and no operator has stopped pushes. Time that was not used is not
// saved up.
func (run *redriveRun) wait(ctx context.Context, n int) error {
	for run.b.pushesOpen(time.Now()) != nil {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		if err := run.alive(ctx); err != nil {
			return err
		}
	}
	now := time.Now()
	if run.next.Before(now) {
		run.next = now
	}
	until := run.next.Sub(now)
	run.next = run.next.Add(run.cost(n))
	return pause(ctx, until)
}

// pause waits, or returns why it does not.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
