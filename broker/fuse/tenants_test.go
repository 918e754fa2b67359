package fuse_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/store"
)

var neighbour = uuid.MustParse("00000000-0000-0000-0000-000000000002")

// of is p as a partition of the tenant.
func of(tenant uuid.UUID, p store.Partition) store.Partition {
	p.Tenant = tenant
	return p
}

// heavy is an id that makes a message weigh 8 KiB and a little.
func heavy(who string, n int) string {
	return fmt.Sprintf("%s%03d%s", who, n, strings.Repeat(".", 4<<10))
}

// counts says how many messages of whom each call offered, by the letter that begins their ids.
func counts(db *fakeDB) (all []string) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, c := range db.calls {
		n := map[byte]int{}
		for _, s := range c.segs {
			for _, id := range s.ids {
				n[id[0]]++
			}
		}
		all = append(all, strings.TrimPrefix(fmt.Sprint(n), "map"))
	}
	return all
}

// A partition gives its tenant's share of a bundle in several turns, and what the others leave of it besides.
func TestABundleIsSharedByBytesAndFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1, 2, 3)
		g := newGate(db)
		w := start(t, db, fuse.Config{MaxBundleBytes: 32 * 8400})
		var waits []func() []fuse.Result
		push := func(p store.Partition, ids ...string) { waits = append(waits, w.begin(p, ids...)) }
		push(partition(3, 0), "first")
		<-g.reached
		for n := range 50 {
			push(partition(1, 0), heavy("a", n))
		}
		for n := range 20 {
			push(of(neighbour, partition(2, 0)), heavy("b", n))
		}
		close(g.open)
		for _, wait := range waits {
			wait()
		}
		want(t, "messages per bundle", counts(db), []string{
			"[102:1]",
			"[97:15 98:17]", // three pushes and then four per turn
			"[97:29 98:3]",  // the neighbour has no more
			"[97:6]",
		})
		for id, last := range map[int64]int{1: 49, 2: 19} {
			ms := db.parts[id].messages
			if len(ms) != last+1 {
				t.Fatalf("%d messages in partition %d, want %d", len(ms), id, last+1)
			}
			for n, m := range ms {
				if fmt.Sprintf("%03d", n) != m[1:4] {
					t.Fatalf("message %d of partition %d is %s", n, id, m[:4])
				}
			}
		}
		w.stop()
	})
}

func TestALoneTenantFillsItsBundles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1, 2, 3)
		g := newGate(db)
		w := start(t, db, fuse.Config{MaxBundleBytes: 32 * 8400})
		first := w.begin(partition(3, 0), "first")
		<-g.reached
		waits := []func() []fuse.Result{first}
		for n := range 64 {
			waits = append(waits, w.begin(partition(int64(1+n/40), 0), heavy("a", n)))
		}
		close(g.open)
		for _, wait := range waits {
			wait()
		}
		want(t, "messages per bundle", counts(db), []string{"[102:1]", "[97:32]", "[97:32]"})
		want(t, "turns", w.Stats().Turns, uint64(0))
		w.stop()
	})
}

func TestATenantWithItsShareOfBytesIsRefusedAndItsNeighbourIsNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake(t, 1, 2)
		g := newGate(db)
		w := start(t, db, fuse.Config{MaxPendingBytes: 10 * 8400})
		var waits []func() []fuse.Result
		waits = append(waits, w.begin(partition(1, 0), heavy("a", 0)))
		<-g.reached
		for n := range 4 {
			waits = append(waits, w.begin(partition(1, 0), heavy("a", 1+n)))
		}
		want(t, "beyond half of what there is", show(w.push(partition(1, 0), heavy("a", 5))), "[broker_overloaded/]")
		for n := range 3 {
			waits = append(waits, w.begin(of(neighbour, partition(2, 0)), heavy("b", n)))
		}
		want(t, "a neighbour beyond what is free", show(w.push(of(neighbour, partition(2, 0)), heavy("b", 3))), "[broker_overloaded/]")
		s := w.Stats()
		want(t, "stats", []int{s.Pending, s.PendingTenants, int(s.Refused)}, []int{8, 2, 2})
		close(g.open)
		for _, wait := range waits {
			for _, r := range wait() {
				want(t, "an accepted push", r.Err, nil)
			}
		}
		s = w.Stats()
		want(t, "at rest", []int64{int64(s.Pending), s.PendingBytes, int64(s.PendingTenants)}, []int64{0, 0, 0})
		w.stop()
	})
}

// Reading a partition's window may take long; a tenant that comes with many unknown partitions must not make the
// others wait for all of them.
func TestPartitionsAreReadFromTheTenantsInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ids []int64
		for id := range int64(51) {
			ids = append(ids, id)
		}
		db := newFake(t, ids...)
		open := make(chan struct{})
		var order []int64
		db.reads = func(id int64) error {
			db.mu.Lock()
			order = append(order, id)
			db.mu.Unlock()
			<-open
			return nil
		}
		for _, id := range ids {
			db.foreign(id, "old")
		}
		w := start(t, db, fuse.Config{})
		var waits []func() []fuse.Result
		for _, id := range ids[:50] {
			waits = append(waits, w.begin(partition(id, hour), "new"))
		}
		synctest.Wait() // all places of reads are taken
		waits = append(waits, w.begin(of(neighbour, partition(50, hour)), "new"))
		for range ids { // one read ends at a time, so that they begin in the order of their turns
			synctest.Wait()
			open <- struct{}{}
		}
		for _, wait := range waits {
			wait()
		}
		if i := slices.Index(order, 50); i > 5 {
			t.Errorf("the neighbour's partition is read as number %d", i+1)
		}
		want(t, "reads", len(order), 51)
		w.stop()
	})
}
