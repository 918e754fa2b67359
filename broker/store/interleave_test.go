package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

const stageGroup = "g"

func failed(err error) verdict { return verdict{text: "error: " + err.Error()} }

// pushes stores one segment.
func pushes(names ...string) op {
	return func(s *Store, sc *scene) verdict {
		vs, err := s.PushBundle(sc.ctx, []Segment{sc.segmentOf(sc.lane, names...)})
		if err != nil {
			return failed(err)
		}
		switch v := vs[0]; v.Status {
		case PushStored:
			return verdict{fmt.Sprintf("stored at %d", v.Base), false}
		case PushDuplicate:
			return verdict{fmt.Sprintf("duplicate of %d", v.Dups[0].Offset), false}
		case PushMissing:
			return verdict{"missing", false}
		}
		return verdict{"busy", true}
	}
}

// pops leases up to two messages for a worker, or takes them under auto ack: one round of ClaimBundle, since the others
// are the same again.
func pops(worker int, auto bool) op {
	return func(s *Store, sc *scene) verdict {
		conn, err := s.acquire(sc.ctx, "claim")
		if err != nil {
			return failed(err)
		}
		defer conn.Release()
		b := newClaimBundle([]Claim{{
			Candidates: []int64{sc.lane.id}, Group: stageGroup, Worker: sc.workers[worker], Lease: wait, Budget: 2, MaxPartitions: 1, AutoAck: auto,
		}}, pg.LifeOf(conn.Conn()))
		if err := s.claimReady(sc.ctx, conn.Conn(), b); err != nil {
			return failed(err)
		}
		if b.next() {
			if err := s.claimRound(sc.ctx, conn.Conn(), b); err != nil {
				return failed(err)
			}
		}
		switch r := b.results[0][0]; r.Status {
		case ClaimTook:
			return verdict{fmt.Sprintf("took %d..%d attempt %d", r.After+1, r.Through, r.Attempt), false}
		case ClaimEmpty:
			return verdict{"empty", false}
		case ClaimMissing:
			return verdict{"missing", false}
		case ClaimUnregistered:
			return verdict{"unregistered", false}
		case ClaimLeased:
			// By a lease, or only by somebody who is at the row.
			if r.Until.After(time.Now().Add(wait / 2)) {
				return verdict{"leased", false}
			}
		}
		return verdict{"busy", true}
	}
}

// acks settles messages under the lease of a worker. Offsets are known, or found by their hashes.
func acks(worker int, status wire.AckStatus, byHash bool, offsets ...int64) op {
	return func(s *Store, sc *scene) verdict {
		g := AckGroup{Tenant: sc.tenant, Partition: sc.lane.uid, Group: stageGroup, Lease: sc.workers[worker].String()}
		for _, o := range offsets {
			it := known(o, status)
			if byHash {
				it.Offset = -1
			}
			g.Items = append(g.Items, it)
		}
		vs, err := s.AckBundle(sc.ctx, []AckGroup{g})
		if err != nil {
			return failed(err)
		}
		return verdict{fmt.Sprintf("%s released %v", describe(vs[0].Items), vs[0].LeaseReleased), false}
	}
}

// trims takes a step of retention.
func trims(s *Store, sc *scene) verdict {
	tr, err := s.Trim(sc.ctx, sc.task, []int64{sc.lane.id}, 100, false)
	if err != nil {
		return failed(err)
	}
	return verdict{fmt.Sprintf("trimmed %d", tr.Messages()), len(tr.Busy) > 0}
}

// expires makes time pass for the leases of the partition, without gates of its own.
func expires(s *Store, sc *scene) verdict {
	conn, err := s.pool.Acquire(sc.ctx)
	if err != nil {
		return failed(err)
	}
	defer conn.Release()
	var actor string
	if err := conn.QueryRow(sc.ctx, "SELECT coalesce(current_setting('stage.actor', true), '')").Scan(&actor); err != nil {
		return failed(err)
	}
	for _, sql := range []string{
		"SELECT set_config('stage.actor', '', false)",
		fmt.Sprintf("UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() - interval '1 ms' WHERE partition_id = %d AND worker_id IS NOT NULL", sc.lane.id),
		fmt.Sprintf("SELECT set_config('stage.actor', '%s', false)", actor),
	} {
		if _, err := conn.Exec(sc.ctx, sql); err != nil {
			return failed(err)
		}
	}
	return verdict{"expired", false}
}

func seeks(to wire.Seek) op {
	return func(s *Store, sc *scene) verdict {
		n, err := s.Seek(sc.ctx, sc.tenant, stageGroup, "q", "", to)
		if err != nil {
			return failed(err)
		}
		return verdict{fmt.Sprintf("moved %d", n), false}
	}
}

func deletesQueue(s *Store, sc *scene) verdict {
	existed, partitions, err := s.DeleteQueue(sc.ctx, sc.tenant, "q")
	if err != nil {
		return failed(err)
	}
	return verdict{fmt.Sprintf("deleted %v with %d partitions", existed, len(partitions)), false}
}

func deletesGroup(s *Store, sc *scene) verdict {
	d, err := s.DeleteGroup(sc.ctx, sc.tenant, stageGroup, "", true)
	if err != nil {
		return failed(err)
	}
	return verdict{fmt.Sprintf("deleted %d cursors, %d registrations", d.Cursors, d.Registrations), false}
}

// registers registers the group anew.
func registers(seed Seed) op {
	return func(s *Store, sc *scene) verdict {
		if _, err := s.Register(sc.ctx, sc.tenant, stageGroup, "q", seed); err != nil {
			return failed(err)
		}
		return verdict{"registered", false}
	}
}

// seedsOwed takes steps until nothing is owed to the group, or another session has the tenant.
func seedsOwed(s *Store, sc *scene) verdict {
	for {
		n, err := s.SeedRegistered(sc.ctx, sc.task, 2)
		if err != nil {
			return failed(err)
		}
		if n == 0 {
			return verdict{"seeded", sc.count("SELECT count(*) FROM queen.group_registrations WHERE tenant_id = $1 AND seeded_to IS NOT NULL", sc.tenant) > 0}
		}
	}
}

// strange makes the group unknown on a queue that is too large for a registration to make its cursors.
func strange(sc *scene) {
	deletesGroup(sc.store, sc)
	sc.exec("UPDATE queen.queues SET partition_count = $2 WHERE id = $1", sc.id, seedWhole)
	sc.task = sc.world.task(TaskCursors)
	sc.stored(2)
}

// small is strange on a queue that is not.
func small(sc *scene) {
	strange(sc)
	sc.exec("UPDATE queen.queues SET partition_count = 1 WHERE id = $1", sc.id)
}

// owed has registered the group, which is to begin behind what is there, and made no cursor.
func owed(sc *scene) {
	strange(sc)
	registers(Seed{Mode: wire.SeedNew})(sc.store, sc)
}

// replays moves the letter of the scene back to the end of its partition.
func replays(s *Store, sc *scene) verdict {
	m := sc.segmentOf(sc.lane, LetterPrefix+"letter")
	v, err := s.MoveLetters(sc.ctx, &Move{
		Tenant: sc.tenant, Letters: []uuid.UUID{sc.letter}, Partition: Partition{ID: sc.lane.id}, RawBytes: m.RawBytes, Blob: m.Blob, Hashes: m.Hashes,
	})
	if err != nil {
		return failed(err)
	}
	return verdict{fmt.Sprintf("outcome %d at %d", v.Outcome, v.Base), false}
}

// transacts pushes one message and completes the batch of a worker, fenced by its lease.
func transacts(worker int, through int64) op {
	return func(s *Store, sc *scene) verdict {
		lease := sc.workers[worker].String()
		g := AckGroup{Tenant: sc.tenant, Partition: sc.lane.uid, Group: stageGroup, Lease: lease, Items: []AckItem{known(through, wire.AckCompleted)}}
		v, err := s.Transact(sc.ctx, &Transaction{
			Tenant: sc.tenant, Pushes: []Segment{sc.segmentOf(sc.lane, "transacted")}, Acks: []AckGroup{g}, Fenced: true, Leases: []string{lease},
		})
		if err != nil {
			return failed(err)
		}
		return verdict{fmt.Sprintf("status %d", v.Status), false}
	}
}

// aged makes everything in the partition so much older.
func (sc *scene) aged(by time.Duration) {
	sc.t.Helper()
	for _, table := range []string{"log_segments", "log_txns"} {
		sc.exec("UPDATE queen."+table+" SET created_at = created_at - $2::interval WHERE partition_id = $1", sc.lane.id, by)
	}
	sc.exec("UPDATE queen.log_partitions SET last_created_at = last_created_at - $2::interval, oldest_live_at = oldest_live_at - $2::interval, oldest_txn_at = oldest_txn_at - $2::interval WHERE id = $1", sc.lane.id, by)
}

// stored puts messages t-0, t-1, … into the partition, two to a segment.
func (sc *scene) stored(n int) {
	sc.t.Helper()
	for i := 0; i < n; i += 2 {
		if v := pushes(txn(int64(i)), txn(int64(i+1)))(sc.store, sc); v.text != fmt.Sprintf("stored at %d", i) {
			sc.t.Fatal(v)
		}
	}
}

// leased makes worker 0 hold messages 0 and 1 of four.
func leased(sc *scene) {
	sc.stored(4)
	if v := pops(0, false)(sc.store, sc); v.text != "took 0..1 attempt 1" {
		sc.t.Fatal(v)
	}
}

// retained is a partition of two old messages, of which a rule wants to be rid.
func retained(sc *scene) {
	sc.exec("UPDATE queen.queues SET retention_enabled = true, retention_seconds = 60 WHERE id = $1", sc.id)
	sc.stored(2)
	sc.aged(time.Hour)
	sc.task = sc.world.task(TaskRetention)
}

// Two sessions at one partition, in every order of their steps: what comes of it is what comes of some order of the calls.
func TestTwoSessionsInEveryOrderOfTheirSteps(t *testing.T) {
	t.Parallel()
	back, end := wire.Seek{At: time.Unix(0, 0)}, wire.Seek{ToEnd: true}
	for name, c := range map[string]struct {
		prepare func(*scene)
		a, b    []op
	}{
		"push and push with an id in common": {func(*scene) {}, []op{pushes("x", "a")}, []op{pushes("x", "b")}},
		"push and retention":                 {retained, []op{pushes("new")}, []op{trims}},
		"retention and retention":            {retained, []op{trims}, []op{trims}},
		"pop and retention":                  {retained, []op{pops(1, false)}, []op{trims}},
		"pop and pop":                        {func(sc *scene) { sc.stored(4) }, []op{pops(1, false)}, []op{pops(2, false)}},
		"pop and push":                       {func(sc *scene) { sc.stored(2); pops(0, true)(sc.store, sc) }, []op{pops(1, false)}, []op{pushes("new")}},
		"pop and ack":                        {leased, []op{pops(1, false)}, []op{acks(0, wire.AckCompleted, false, 1)}},
		"pop and nack":                       {leased, []op{pops(1, false)}, []op{acks(0, wire.AckFailed, true, 1)}},
		"ack and dead letter":                {leased, []op{acks(0, wire.AckCompleted, true, 0)}, []op{acks(0, wire.AckDLQ, false, 1)}},
		"ack and expiry, with the next pop":  {leased, []op{acks(0, wire.AckCompleted, false, 1)}, []op{expires, pops(1, false)}},
		"nack and expiry, with the next pop": {leased, []op{acks(0, wire.AckFailed, false, 0)}, []op{expires, pops(1, false)}},
		"extend and expiry, with the next pop": {
			leased,
			[]op{func(s *Store, sc *scene) verdict {
				n, _, err := s.Extend(sc.ctx, sc.tenant, sc.workers[0].String(), int(2*wait/time.Second))
				if err != nil {
					return failed(err)
				}
				return verdict{fmt.Sprintf("extended %d", n), false}
			}},
			[]op{expires, pops(1, false)},
		},
		"seek back and pop":    {func(sc *scene) { leased(sc); expires(sc.store, sc) }, []op{seeks(back)}, []op{pops(1, false)}},
		"seek on and auto ack": {func(sc *scene) { sc.stored(4) }, []op{seeks(end)}, []op{pops(1, true)}},
		"seek and ack":         {leased, []op{seeks(back)}, []op{acks(0, wire.AckCompleted, false, 1)}},
		"delete queue and push": {
			func(sc *scene) { sc.stored(2) }, []op{deletesQueue}, []op{pushes(txn(0))},
		},
		"delete queue and ack":   {leased, []op{deletesQueue}, []op{acks(0, wire.AckCompleted, false, 1)}},
		"delete group and pop":   {func(sc *scene) { leased(sc); expires(sc.store, sc) }, []op{deletesGroup}, []op{pops(1, false)}},
		"delete group and ack":   {leased, []op{deletesGroup}, []op{acks(0, wire.AckCompleted, false, 1)}},
		"transaction and ack":    {leased, []op{transacts(0, 1)}, []op{acks(0, wire.AckCompleted, false, 1)}},
		"transaction and push":   {leased, []op{transacts(0, 1)}, []op{pushes("transacted")}},
		"transaction and expiry": {leased, []op{transacts(0, 1)}, []op{expires, pops(1, false)}},
		"register and push":      {strange, []op{registers(Seed{Mode: wire.SeedNew}), seedsOwed}, []op{pushes("new")}},
		"register and register":  {strange, []op{registers(Seed{Mode: wire.SeedNew}), seedsOwed}, []op{registers(Seed{Mode: wire.SeedAll})}},
		"register and delete":    {strange, []op{registers(Seed{Mode: wire.SeedAll}), seedsOwed}, []op{deletesGroup}},
		"seed and delete group":  {owed, []op{seedsOwed}, []op{deletesGroup}},
		"seed and push":          {owed, []op{seedsOwed}, []op{pushes("new")}},
		"seed and seed":          {owed, []op{seedsOwed}, []op{seedsOwed}},
		"seed and seek back":     {owed, []op{seedsOwed}, []op{seeks(back)}},
		"seed and a first pop": {func(sc *scene) { owed(sc); pushes("new")(sc.store, sc) }, []op{seedsOwed}, []op{func(s *Store, sc *scene) verdict {
			if err := s.seedCursors(sc.ctx, []int64{sc.lane.id}, []string{stageGroup}); err != nil {
				return failed(err)
			}
			return pops(1, false)(s, sc)
		}}},
		"small: register and push":         {small, []op{registers(Seed{Mode: wire.SeedNew})}, []op{pushes("new")}},
		"small: register and delete group": {small, []op{registers(Seed{Mode: wire.SeedAll})}, []op{deletesGroup}},
		"replay and retention":             {deadAndOld, []op{replays}, []op{trims}},
		"replay and replay":                {deadAndOld, []op{replays}, []op{replays}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newStage(t).play(c.prepare, c.a, c.b)
		})
	}
}

// deadAndOld has a dead letter whose message is about to go.
func deadAndOld(sc *scene) {
	retained(sc)
	if v := pops(0, false)(sc.store, sc); v.text != "took 0..1 attempt 1" {
		sc.t.Fatal(v)
	}
	acks(0, wire.AckDLQ, false, 0)(sc.store, sc)
	sc.scan("SELECT id FROM queen.log_dlq WHERE tenant_id = $1", []any{sc.tenant}, &sc.letter)
}
