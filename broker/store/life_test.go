package store

import (
	"testing"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

// A ring may have heard of a partition from a broker that is behind a failover. What it believes decides nothing.
func TestAPartitionOfAnotherQueueIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mine := w.lane("a")
	other := uuid.New()
	w.exec("INSERT INTO queen.tenants (tenant_id) VALUES ($1)", other)
	theirs := w.laneOf(w.newQueue(other, "secret"), "a")
	w.push(mine, 1)
	w.push(theirs, 1)
	life := w.life()
	for rule, tc := range map[string]struct {
		of   Origin
		want ClaimStatus
	}{
		"of the queue":              {Origin{w.id, life}, ClaimTook},
		"the queue of another life": {Origin{w.id, life + 1}, ClaimStale},
		"another queue's number":    {Origin{w.id + 1000, life}, ClaimMissing},
		"no queue":                  {Origin{Queue: -1}, ClaimMissing},
		"nobody says":               {Origin{}, ClaimTook},
	} {
		for _, how := range []struct {
			name string
			with func(*Claim)
		}{
			{"leased", func(*Claim) {}},
			{"leased in the short way", func(c *Claim) { c.MaxPartitions = 1 }},
			{"at most once", func(c *Claim) { c.AutoAck = true }},
			{"with gates", func(c *Claim) { c.Gates = []Gate{{c.Of, c.Lease, 0, 0}}; c.Of = Origin{} }},
		} {
			c := w.claim(rule+how.name, mine)
			c.Of = tc.of
			how.with(&c)
			if got := w.pop(c)[0]; got.Status != tc.want {
				t.Errorf("%s, %s: got %v, want %v", rule, how.name, got.Status, tc.want)
			}
		}
	}
	for _, most := range []int{0, 1} {
		c := w.claim("thief", theirs)
		c.Of, c.MaxPartitions = Origin{w.id, life}, most
		if got := w.pop(c)[0]; got.Status != ClaimMissing || len(got.Segments) > 0 {
			t.Errorf("another tenant's partition: got %+v", got)
		}
	}
	var leased bool
	w.scan("SELECT EXISTS (SELECT FROM queen.log_consumers WHERE partition_id = $1 AND worker_id IS NOT NULL)", []any{theirs.id}, &leased)
	if leased {
		t.Error("another tenant's partition is leased")
	}
}

// life is that of the world's database.
func (w *world) life() Life {
	w.t.Helper()
	conn, err := w.pool.Acquire(w.ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Release()
	return pg.LifeOf(conn.Conn())
}

// Whatever was looked up in another life is not asked for in this one: the number may be another's.
func TestIdsOfAnotherLifeAreNotUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.push(l, 1)
	life := w.life()
	frames := []segment.Frame{{TransactionID: "new", Payload: []byte("1")}}
	seg := Segment{PartitionID: l.id, Known: life + 1, Tenant: w.tenant, Count: 1, RawBytes: 1, Blob: segment.Encode(nil, frames), Hashes: segment.AppendHashes(nil, frames)}
	other := w.lane("b")
	fine := seg
	fine.PartitionID, fine.Known = other.id, life
	vs, err := w.store.PushBundle(w.ctx, []Segment{seg, fine})
	if err != nil || vs[0].Status != PushMissing || vs[1].Status != PushStored {
		t.Errorf("a push: got %+v, %v", vs, err)
	}
	if vs, err := w.store.PushBundle(w.ctx, []Segment{seg}); err != nil || vs[0].Status != PushMissing {
		t.Errorf("a push of nothing else: got %+v, %v", vs, err)
	}
	tv, err := w.store.Transact(w.ctx, &Transaction{Tenant: w.tenant, Pushes: []Segment{seg}})
	if err != nil || tv.Status != TransactionMissing || tv.Pushes[0].Status != PushMissing {
		t.Errorf("a transaction: got %+v, %v", tv, err)
	}
	for rule, err := range map[string]error{
		"bytes by key":     second(w.store.Blobs(w.ctx, life+1, []SegmentKey{{l.id, 0}})),
		"bytes by address": second(w.store.Segments(w.ctx, life+1, []SegmentAddress{{l.id, 0}})),
		"a message":        second(w.store.Message(w.ctx, &BrowseLane{ID: l.id, Life: life + 1}, txn(0))),
		"partitions":       second(w.store.QueuePartitions(w.ctx, &Queue{ID: w.id, Life: life + 1})),
		"activity":         second(w.store.QueueActivity(w.ctx, &Queue{ID: w.id, Life: life + 1})),
		"depth":            second(w.store.QueueDepth(w.ctx, &Queue{ID: w.id, Tenant: w.tenant, Name: w.queue, Life: life + 1}, "g")),
		"letters":          second(w.store.MoveLetters(w.ctx, &Move{Tenant: w.tenant, Letters: []uuid.UUID{uuid.New()}, Partition: Partition{ID: l.id, Life: life + 1}})),
	} {
		if e := wire.AsError(err); err == nil || e.Code != wire.DatabaseUnavailable || e.Outcome != wire.OutcomeNone {
			t.Errorf("%s: got %v, want %s and no outcome", rule, err, wire.DatabaseUnavailable)
		}
	}
	var last int64
	w.scan("SELECT last_offset FROM queen.log_partitions WHERE id = $1", []any{l.id}, &last)
	if last != 0 {
		t.Errorf("the partition goes on to %d", last)
	}
	for rule, got := range map[string]Life{
		"a partition": one(w.store.Lookup(w.ctx, w.tenant, []Pair{{w.queue, "a"}}))(t)[0].Life,
		"a queue":     one(w.store.LookupQueue(w.ctx, w.tenant, w.queue))(t).Life,
		"a lane":      one(w.store.Lane(w.ctx, w.tenant, l.uid))(t).Life,
		"lanes":       one(w.store.BrowseLanes(w.ctx, w.tenant, BrowseFilter{Queue: w.queue, Before: w.now()}, 10))(t)[0].Life,
		"a segment":   one(w.store.Blobs(w.ctx, life, []SegmentKey{{l.id, 0}}))(t)[0].Life,
		"segments":    one(w.store.Segments(w.ctx, life, []SegmentAddress{{l.id, 0}}))(t)[0].Life,
		"a range":     one(w.store.FetchRanges(w.ctx, w.tenant, []wire.FetchEntry{{Queue: w.queue, Partition: "a", MaxBytes: 1}}, 1, 1))(t)[0].Life,
	} {
		if got != life {
			t.Errorf("%s: got life %d, want %d", rule, got, life)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func one[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
