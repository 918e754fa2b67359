package broker

import (
	"testing"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
)

// stored is a segment of one message at offset 0.
func stored(payload string) *store.StoredSegment {
	var b segment.Builder
	b.Reset()
	b.Add(&segment.Frame{TransactionID: "t", Payload: []byte(payload)})
	return &store.StoredSegment{Blob: b.Append(nil)}
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
	for _, want := range []string{"old", "old", "new", "new"} {
		if got := payload(stored(want)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if c.cached(segmentKey{7, 0}) == nil || c.bytes <= 0 {
		t.Error("the newer one is not kept")
	}
	c.clear()
	if c.cached(segmentKey{7, 0}) != nil || c.bytes != 0 || c.order.Len() != 0 {
		t.Error("something is left after a clear")
	}
}

func TestACacheOfNothingKeepsNothing(t *testing.T) {
	t.Parallel()
	c := newSegmentCache(-1)
	if _, err := c.open(7, stored("x")); err != nil || c.bytes != 0 {
		t.Errorf("got %d bytes, %v", c.bytes, err)
	}
}
