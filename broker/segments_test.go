package broker

import (
	"testing"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
)

// stored is a segment of one message at offset 0, as it was in that life of the database.
func stored(life store.Life, payload string) *store.StoredSegment {
	var b segment.Builder
	b.Reset()
	b.Add(&segment.Frame{TransactionID: "t", Payload: []byte(payload)})
	return &store.StoredSegment{Blob: b.Append(nil), Life: life}
}

func TestASegmentOfAnotherLifeIsNotTakenForTheCachedOne(t *testing.T) {
	t.Parallel()
	c := newSegmentCache(1 << 20)
	payload := func(s *store.StoredSegment) string {
		r, err := c.open(7, s)
		if err != nil {
			t.Fatal(err)
		}
		return string(r.Frame(0).Payload)
	}
	for i, want := range []string{"old", "old", "new", "new", "old"} {
		life := store.Life(1)
		if want == "new" {
			life = 2
		}
		if got := payload(stored(life, want)); got != want {
			t.Errorf("%d: got %s, want %s", i, got, want)
		}
	}
	if c.cached(segmentKey{2, 7, 0}) == nil || c.bytes <= 0 {
		t.Error("the newer one is not kept")
	}
	if c.cached(segmentKey{3, 7, 0}) != nil {
		t.Error("a segment of an earlier life is found in a later one")
	}
	if payload(stored(0, "unknown")); c.cached(segmentKey{0, 7, 0}) != nil {
		t.Error("a segment of no life is kept")
	}
	c.clear()
	if c.cached(segmentKey{2, 7, 0}) != nil || c.bytes != 0 || c.order.Len() != 0 {
		t.Error("something is left after a clear")
	}
}

func TestACacheOfNothingKeepsNothing(t *testing.T) {
	t.Parallel()
	c := newSegmentCache(-1)
	if _, err := c.open(7, stored(1, "x")); err != nil || c.bytes != 0 {
		t.Errorf("got %d bytes, %v", c.bytes, err)
	}
}
