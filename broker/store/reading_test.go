package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/queengate/queengate/wire"
)

// TestABytesBudgetEndsABatch: what a pop takes weighs no more than its budget, except that the first message always
// goes out; a segment that does not fit whole is cut where its share does.
func TestABytesBudgetEndsABatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.lane("a"), w.lane("b")
	w.push(a, 4, 4, 4)
	w.push(b, 4)
	const weight = 4 * 100
	w.exec("UPDATE queen.log_segments SET raw_bytes = 100 * (end_offset - base_offset + 1)")
	w.exec("UPDATE queen.log_partitions SET retained_bytes = 100 * (last_offset + 1)")
	pop := func(group string, bytes int64, partitions int) (through []int64) {
		c := w.claim(group, a, b)
		c.Bytes, c.MaxPartitions = bytes, partitions
		for _, v := range w.pop(c) {
			if v.Status == ClaimTook {
				through = append(through, v.Through)
			} else {
				through = append(through, -1)
			}
		}
		return through
	}
	for name, c := range map[string]struct {
		bytes      int64
		partitions int
		want       string
	}{
		"one partition, all of it":         {weight * 3, 1, "[11 -1]"},
		"two segments and a half":          {weight*2 + weight/2 + 1, 1, "[9 -1]"},
		"less than a message":              {1, 1, "[0 -1]"},
		"nothing is left for the second":   {weight * 3, 2, "[11 -1]"},
		"half of the second":               {weight*3 + weight/2 + 1, 2, "[11 1]"},
		"room for everything":              {weight * 100, 2, "[11 3]"},
		"without a bound":                  {0, 2, "[11 3]"},
		"less than a message, two allowed": {1, 2, "[0 -1]"},
	} {
		if got := fmt.Sprint(pop(name, c.bytes, c.partitions)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestAConflatingPopTakesTheNewest: all that is visible is leased, the newest message is delivered, and its ack
// commits the span.
func TestAConflatingPopTakesTheNewest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.lane("a"), w.lane("b")
	w.push(a, 3, 4)
	w.push(b, 1)
	c := w.claim("g", a, b)
	c.Conflate, c.Budget, c.MaxPartitions = true, 2, 0
	got := w.pop(c)
	for i, want := range []struct{ after, through, skipped, base int64 }{{5, 6, 6, 3}, {-1, 0, 0, 0}} {
		v := got[i]
		if v.Status != ClaimTook || v.After != want.after || v.Through != want.through || v.Skipped != want.skipped || len(v.Segments) != 1 || v.Segments[0].Base != want.base {
			t.Errorf("partition %d: %+v, want %+v", i, v, want)
		}
	}
	// Pushed meanwhile: behind the lease.
	w.push(a, 1)
	ack := w.ack(AckGroup{Tenant: w.tenant, Partition: a.uid, Group: "g", Lease: c.Worker.String(), Items: []AckItem{{Hash: hashAt(6), Offset: -1}}})[0]
	if !ack.LeaseReleased || ack.Committed != 6 || ack.Conflated != 6 || ack.LastOffset != 7 {
		t.Errorf("acknowledged by its id: %+v", ack)
	}
	ack = w.ack(AckGroup{Tenant: w.tenant, Partition: b.uid, Group: "g", Lease: c.Worker.String(), Items: []AckItem{{Hash: hashAt(0), Status: wire.AckFailed, Offset: 0}}})[0]
	if !ack.LeaseReleased || ack.Committed != -1 || ack.Conflated != 0 {
		t.Errorf("refused: %+v", ack)
	}
	// A budget of one message is one partition; a redelivery counts as one.
	w.push(b, 2)
	c = w.claim("g", b, a)
	c.Conflate, c.Budget = true, 1
	got = w.pop(c)
	if got[0].Status != ClaimTook || got[0].Through != 2 || got[0].Skipped != 2 || got[0].Attempt != 2 || got[1].Status != ClaimSkipped {
		t.Errorf("the second delivery: %+v", got)
	}
	// The same lease in the common form is not conflated any more.
	w.ack(AckGroup{Tenant: w.tenant, Partition: b.uid, Group: "g", Lease: c.Worker.String(), Items: []AckItem{{Hash: hashAt(2), Status: wire.AckRetry, Offset: 2}}})
	plain := w.claim("g", b)
	plain.MaxPartitions = 1
	w.pop(plain)
	ack = w.ack(AckGroup{Tenant: w.tenant, Partition: b.uid, Group: "g", Lease: plain.Worker.String(), Items: []AckItem{{Hash: hashAt(2), Offset: 2}}})[0]
	if ack.Committed != 2 || ack.Conflated != 0 {
		t.Errorf("a plain batch: %+v", ack)
	}
}

// TestAConflatingPopObeysTheDelay: the newest message that is visible, not the newest.
func TestAConflatingPopObeysTheDelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("a")
	w.push(l, 2, 2, 2)
	w.exec("UPDATE queen.log_segments SET created_at = created_at - interval '1 hour' WHERE partition_id = $1 AND base_offset < 4", l.id)
	c := w.claim("g", l)
	c.Conflate, c.Gates = true, []Gate{{Lease: time.Minute, Delay: 10 * time.Minute}}
	got := w.pop(c)[0]
	if got.Status != ClaimTook || got.Through != 3 || got.Skipped != 3 || len(got.Segments) != 1 || got.Segments[0].Base != 2 {
		t.Errorf("%+v", got)
	}
}
