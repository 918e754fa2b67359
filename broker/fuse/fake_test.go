package fuse_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pg"
)

// fakeDB is a Pusher in memory with the exact semantics of the real one. It checks what the fuser promises on every
// call: a partition once per bundle and never in two calls at once, segments that decode to what their hashes say, and
// no frame stored that a probe of the whole window would have called a duplicate.
type fakeDB struct {
	t fatalist

	// enter runs before a call is carried out, without the lock: it may block or return the call's error.
	enter func(n int, wait bool, segs []store.Segment) error
	// lost runs after a call was carried out: its error replaces the answer.
	lost func(n int) error
	// reads runs before a sidecar read.
	reads func(partition int64) error

	mu     sync.Mutex
	clock  time.Time // of the database
	parts  map[int64]*fakePart
	busy   map[int64]int  // how many more calls find the row held
	closed map[int64]bool // take sealed segments only
	calls  []call
	flying map[int64]bool
	probed int // rows looked at by probes
	life   pg.Life
}

type fatalist interface {
	Errorf(format string, args ...any)
}

type fakePart struct {
	rows     []fakeRow
	messages []string // transaction id by offset
	stamps   []time.Time
	payloads []string
}

type fakeRow struct {
	base   int64
	at     time.Time
	hashes []store.Hash
}

type call struct {
	wait bool
	segs []offered
}

type offered struct {
	partition int64
	verified  int64
	ids       []string
}

func newFake(t fatalist, partitions ...int64) *fakeDB {
	db := &fakeDB{t: t, parts: map[int64]*fakePart{}, busy: map[int64]int{}, closed: map[int64]bool{}, flying: map[int64]bool{}, clock: time.UnixMilli(1_700_000_000_000)}
	for _, p := range partitions {
		db.parts[p] = &fakePart{}
	}
	return db
}

func (db *fakeDB) PushBundle(_ context.Context, segs []store.Segment) ([]store.PushVerdict, error) {
	return db.push(segs, false)
}

func (db *fakeDB) PushBundleWait(_ context.Context, segs []store.Segment) ([]store.PushVerdict, error) {
	return db.push(segs, true)
}

func (db *fakeDB) push(segs []store.Segment, wait bool) ([]store.PushVerdict, error) {
	db.mu.Lock()
	n := len(db.calls)
	c := call{wait: wait}
	for _, s := range segs {
		c.segs = append(c.segs, db.check(s))
	}
	db.calls = append(db.calls, c)
	db.mu.Unlock()
	defer func() {
		db.mu.Lock()
		defer db.mu.Unlock()
		for _, s := range segs {
			delete(db.flying, s.PartitionID)
		}
	}()
	if db.enter != nil {
		if err := db.enter(n, wait, segs); err != nil {
			return nil, err
		}
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	vs := make([]store.PushVerdict, len(segs))
	for i, s := range segs {
		vs[i] = db.verdict(s, wait, c.segs[i].ids)
	}
	if db.lost != nil {
		if err := db.lost(n); err != nil {
			return nil, err
		}
	}
	return vs, nil
}

// check holds a segment against the promises of the fuser.
func (db *fakeDB) check(s store.Segment) offered {
	if db.flying[s.PartitionID] {
		db.t.Errorf("partition %d is in two calls at once, or twice in one", s.PartitionID)
	}
	db.flying[s.PartitionID] = true
	o := offered{partition: s.PartitionID, verified: db.counts(s.Verified)}
	r, err := segment.Open(s.Blob)
	if err != nil || r.Len() != s.Count || len(s.Hashes) != 16*s.Count {
		db.t.Errorf("segment of partition %d: %d frames, %d hash bytes, %v", s.PartitionID, s.Count, len(s.Hashes), err)
		return o
	}
	raw, sealed := int64(0), true
	for i := range r.Len() {
		f := r.Frame(i)
		sealed = sealed && f.Encrypted
		raw += int64(len(f.Payload))
		if store.Hash(s.Hashes[16*i:]) != segment.HashID(f.TransactionID) {
			db.t.Errorf("hash %d of partition %d is not that of %q", i, s.PartitionID, f.TransactionID)
		}
		if slices.Contains(o.ids, f.TransactionID) {
			db.t.Errorf("partition %d: %q stands twice in a segment", s.PartitionID, f.TransactionID)
		}
		o.ids = append(o.ids, strings.Clone(f.TransactionID)) // the blob is reused
	}
	if raw != s.RawBytes {
		db.t.Errorf("partition %d: RawBytes %d, want %d", s.PartitionID, s.RawBytes, raw)
	}
	if sealed != s.Sealed {
		db.t.Errorf("partition %d: Sealed %v, want %v", s.PartitionID, s.Sealed, sealed)
	}
	return o
}

// counts returns what a watermark is worth in the current life of the database.
func (db *fakeDB) counts(w store.Watermark) int64 {
	if w.Life != db.life {
		return -1
	}
	return w.Offset
}

// failover begins another life of the database, in which partition p has kept its first n messages.
func (db *fakeDB) failover(p int64, n int) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.life++
	part := db.parts[p]
	part.messages, part.stamps, part.payloads = part.messages[:n], part.stamps[:n], part.payloads[:n]
	part.rows = slices.DeleteFunc(part.rows, func(r fakeRow) bool { return r.base >= int64(n) })
}

func (db *fakeDB) verdict(s store.Segment, wait bool, ids []string) (v store.PushVerdict) {
	defer func() { v.Life = db.life }()
	p := db.parts[s.PartitionID]
	if p == nil {
		return store.PushVerdict{Status: store.PushMissing}
	}
	if db.busy[s.PartitionID] > 0 && !wait {
		db.busy[s.PartitionID]--
		return store.PushVerdict{Status: store.PushBusy}
	}
	if db.closed[s.PartitionID] && !s.Sealed {
		return store.PushVerdict{Status: store.PushPlain}
	}
	stamp := p.stamp(db.clock)
	last := int64(len(p.messages)) - 1
	if s.DedupWindow > 0 {
		dups := p.probe(s.Hashes, db.counts(s.Verified), stamp.Add(-s.DedupWindow), &db.probed)
		if len(dups) > 0 {
			return store.PushVerdict{Status: store.PushDuplicate, LastOffset: last, Dups: dups}
		}
		if missed := p.probe(s.Hashes, -1, stamp.Add(-s.DedupWindow), new(int)); len(missed) > 0 {
			db.t.Errorf("partition %d: %q is stored at %d, but verified said %d (last %d)", s.PartitionID, ids[missed[0].Frame], missed[0].Offset, s.Verified.Offset, last)
		}
	}
	r, err := segment.Open(s.Blob)
	if err != nil {
		db.t.Errorf("%v", err)
		return store.PushVerdict{}
	}
	payloads := make([]string, r.Len())
	for i := range payloads {
		payloads[i] = string(r.Frame(i).Payload)
	}
	base := p.add(stamp, ids, payloads)
	return store.PushVerdict{Status: store.PushStored, Base: base, CreatedAt: stamp, LastOffset: base + int64(len(ids)) - 1}
}

func (p *fakePart) stamp(now time.Time) time.Time {
	if n := len(p.stamps); n > 0 && p.stamps[n-1].After(now) {
		return p.stamps[n-1]
	}
	return now
}

func (p *fakePart) add(at time.Time, ids, payloads []string) int64 {
	row := fakeRow{base: int64(len(p.messages)), at: at}
	for i, id := range ids {
		row.hashes = append(row.hashes, segment.HashID(id))
		p.messages, p.stamps, p.payloads = append(p.messages, id), append(p.stamps, at), append(p.payloads, payloads[i])
	}
	p.rows = append(p.rows, row)
	return row.base
}

func (p *fakePart) probe(hashes []byte, verified int64, since time.Time, looked *int) (dups []store.Dup) {
	for i := 0; i < len(hashes); i += 16 {
		h := store.Hash(hashes[i:])
		for _, r := range p.rows {
			if r.base+int64(len(r.hashes))-1 <= verified || r.at.Before(since) {
				continue
			}
			*looked++
			if k := slices.Index(r.hashes, h); k >= 0 {
				dups = append(dups, store.Dup{Frame: i / 16, Offset: r.base + int64(k), CreatedAt: r.at})
				break
			}
		}
	}
	return dups
}

func (db *fakeDB) Sidecar(ctx context.Context, partition int64, window time.Duration, after int64, each func(store.SidecarRow)) (store.Watermark, error) {
	if db.reads != nil {
		if err := db.reads(partition); err != nil {
			return store.Watermark{Offset: -1}, err
		}
	}
	db.mu.Lock()
	p := db.parts[partition]
	if p == nil {
		db.mu.Unlock()
		return store.Watermark{Offset: -1}, nil
	}
	life, rows, last, since := db.life, slices.Clone(p.rows), int64(len(p.messages))-1, db.clock.Add(-window)
	db.mu.Unlock()
	for _, r := range rows {
		end := r.base + int64(len(r.hashes)) - 1
		if end <= after || r.at.Before(since) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return store.Watermark{Offset: -1}, err
		}
		var hashes []byte
		for _, h := range r.hashes {
			hashes = append(hashes, h[:]...)
		}
		each(store.SidecarRow{Base: r.base, End: end, CreatedAt: r.at, Hashes: hashes})
		clear(hashes) // they are valid during the call only
	}
	return store.Watermark{Offset: last, Life: life}, ctx.Err()
}

// foreign stores messages as another broker would.
func (db *fakeDB) foreign(partition int64, ids ...string) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if p := db.parts[partition]; p != nil {
		p.add(p.stamp(db.clock), ids, make([]string, len(ids)))
	}
}

func (db *fakeDB) advance(d time.Duration) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.clock = db.clock.Add(d)
}

// offers returns what was offered so far, one line per call: partition@verified[ids].
func (db *fakeDB) offers() []string {
	db.mu.Lock()
	defer db.mu.Unlock()
	var lines []string
	for _, c := range db.calls {
		line := ""
		if c.wait {
			line = "wait "
		}
		for i, s := range c.segs {
			if i > 0 {
				line += " "
			}
			line += fmt.Sprintf("%d@%d%v", s.partition, s.verified, s.ids)
		}
		lines = append(lines, line)
	}
	return lines
}

// world is a running fuser over a fake database.
type world struct {
	*fuse.Fuser
	db   *fakeDB
	stop func()

	mu     sync.Mutex
	landed [][]fuse.Landed
}

func start(t testing.TB, db *fakeDB, cfg fuse.Config) *world {
	w := &world{db: db}
	w.Fuser = fuse.New(slog.New(slog.DiscardHandler), db, cfg, func(ls []fuse.Landed) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.landed = append(w.landed, ls)
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(w.stop)
	return w
}

const hour = time.Hour

var someTenant = uuid.MustParse("00000000-0000-0000-0000-000000000001")

func partition(id int64, window time.Duration) store.Partition {
	return store.Partition{ID: id, QueueID: id * 10, Tenant: someTenant, Queue: fmt.Sprint("q", id), Name: "Default", DedupWindow: window}
}

func framesOf(ids ...string) []segment.Frame {
	fs := make([]segment.Frame, len(ids))
	for i, id := range ids {
		fs[i] = segment.Frame{TransactionID: id, Payload: []byte(`{"id":"` + id + `"}`)}
	}
	return fs
}

// push pushes ids and returns the results.
func (w *world) push(p store.Partition, ids ...string) []fuse.Result {
	out := make([]fuse.Result, len(ids))
	w.Push(p, framesOf(ids...), out)
	return out
}

// begin starts a push and returns a function that waits for its results.
func (w *world) begin(p store.Partition, ids ...string) func() []fuse.Result {
	out := make([]fuse.Result, len(ids))
	doneC := make(chan struct{})
	w.Start(p, framesOf(ids...), out, func() { close(doneC) })
	return func() []fuse.Result {
		<-doneC
		return out
	}
}

// show renders results: an offset, d and the original's, missing, or code/outcome.
func show(rs []fuse.Result) string {
	var s []string
	for _, r := range rs {
		switch {
		case r.Missing:
			s = append(s, "missing")
		case r.Err != nil:
			e := wireError(r.Err)
			s = append(s, fmt.Sprintf("%s/%s", e.Code, e.Outcome))
		case r.Duplicate:
			s = append(s, fmt.Sprintf("d%d", r.Offset))
		default:
			s = append(s, fmt.Sprint(r.Offset))
		}
	}
	return fmt.Sprint(s)
}
