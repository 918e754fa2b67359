package broker

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/park"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
)

func span(after int64, txns ...string) delivered {
	d := delivered{partition: 1, uid: uuid.New(), after: after}
	for i, txn := range txns {
		d.add(after+1+int64(i), segment.HashID(txn))
	}
	return d
}

func TestLocateNamesOffsetsOnlyWhenTheyAreCertain(t *testing.T) {
	t.Parallel()
	txns := []string{"a", "twice", "b", "twice"}
	for i := range 20 {
		txns = append(txns, fmt.Sprint(i))
	}
	d := span(9, txns...)
	want := map[string]int64{"a": 10, "twice": -1, "b": 12, "unknown": -1, "19": 33}
	for name, padding := range map[string]int{"few items": 0, "many items": 20} {
		var items []store.AckItem
		var asked []string
		for txn := range want {
			asked = append(asked, txn)
			items = append(items, store.AckItem{Hash: segment.HashID(txn), Offset: -1})
		}
		for range padding {
			items = append(items, store.AckItem{Hash: segment.HashID("padding"), Offset: -1})
		}
		d.locate(items)
		for i, txn := range asked {
			if items[i].Offset != want[txn] {
				t.Errorf("%s: %s is at %d, want %d", name, txn, items[i].Offset, want[txn])
			}
		}
	}
}

func TestASpanWithAGapIsNotRemembered(t *testing.T) {
	t.Parallel()
	d := span(0, "a")
	d.add(5, segment.HashID("b"))
	d.add(6, segment.HashID("c"))
	items := []store.AckItem{{Hash: segment.HashID("a"), Offset: -1}, {Hash: segment.HashID("c"), Offset: -1}}
	d.locate(items)
	if items[0].Offset != -1 || items[1].Offset != -1 {
		t.Errorf("offsets %d, %d from a span with a gap", items[0].Offset, items[1].Offset)
	}
}

func TestLeasesAreForgottenByReleaseByTimeAndForRoom(t *testing.T) {
	t.Parallel()
	r := newLeaseRegistry(1000)
	key := park.Key{Tenant: uuid.New(), Queue: "q", Group: "g"}
	two := uuid.New()
	a, b := span(0, "a"), span(0, "b")
	b.partition = 2
	r.grant(two, key, time.Minute, []delivered{a, b})
	if _, parts := r.held(two.String(), uuid.New()); parts != nil {
		t.Error("another tenant learns of the lease")
	}
	_, before := r.held(two.String(), key.Tenant)
	r.released(two.String(), 1)
	if _, parts := r.held(two.String(), key.Tenant); len(parts) != 1 || parts[0].partition != 2 || before[0].partition != 1 {
		t.Errorf("after one release: %v, a reader's copy %v", parts, before)
	}
	r.released(two.String(), 2)
	if _, parts := r.held(two.String(), key.Tenant); parts != nil || len(r.byID) != 0 || r.bytes != 0 {
		t.Error("a lease without partitions is kept")
	}
	old, extended := uuid.New(), uuid.New()
	r.grant(old, key, time.Second, []delivered{a})
	r.grant(extended, key, time.Second, []delivered{a})
	r.extended(extended.String(), time.Now().Add(time.Hour))
	r.sweep(time.Now().Add(time.Minute))
	if _, parts := r.held(old.String(), key.Tenant); parts != nil {
		t.Error("an old lease is kept")
	}
	if _, parts := r.held(extended.String(), key.Tenant); parts == nil {
		t.Error("an extended lease is forgotten")
	}
	for range 10 {
		r.grant(uuid.New(), key, time.Minute, []delivered{a})
	}
	if r.bytes > 1000 || len(r.byID) == 0 {
		t.Errorf("%d bytes in %d leases, want at most 1000", r.bytes, len(r.byID))
	}
}

// TestAClaimForAClientThatHasGoneIsReleased pins that the release charges nothing and redelivers at once.
func TestAClaimForAClientThatHasGoneIsReleased(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a")
	w.one("q", "b")
	first := w.pop("q")
	v := store.Claimed{}
	if err := w.pool.QueryRow(t.Context(), "SELECT uid FROM queen.log_partitions").Scan(&v.UID); err != nil {
		t.Fatal(err)
	}
	v.After, v.Expires = -1, time.Now().Add(time.Minute)
	var s store.StoredSegment
	if err := w.pool.QueryRow(t.Context(), "SELECT base_offset, end_offset, blob FROM queen.log_segments ORDER BY base_offset LIMIT 1").Scan(
		&s.Base, &s.End, &s.Blob,
	); err != nil {
		t.Fatal(err)
	}
	v.Segments = []store.StoredSegment{s}
	p := popping{b: w.b, x: &exchange{}, key: park.Key{Tenant: DefaultTenant, Queue: "q", Group: "__QUEUE_MODE__"}}
	p.release(&claimed{worker: uuid.MustParse(first.LeaseID), verdicts: []store.Claimed{v}})
	again := w.pop("q")
	if len(again.Messages) != 2 || again.Messages[0].DeliveryAttempt != 2 {
		t.Fatalf("after the release: %+v", again)
	}
	var charged int
	if err := w.pool.QueryRow(t.Context(), "SELECT batch_retry_count FROM queen.log_consumers").Scan(&charged); err != nil || charged != 0 {
		t.Errorf("charged %d (%v), want 0", charged, err)
	}
}
