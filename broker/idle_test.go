package broker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
)

func TestSegmentsThatNobodyReadsAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSegmentCache(1 << 20)
		blob := segment.Encode(nil, []segment.Frame{{TransactionID: "a", Payload: []byte("1")}})
		for base := range int64(2) {
			if _, err := c.open(1, &store.StoredSegment{Base: base, Blob: blob, Life: 1}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		c.cached(segmentKey{1, 1, 0})
		c.sweep(time.Now().Add(-time.Second))
		if c.cached(segmentKey{1, 1, 0}) == nil || c.cached(segmentKey{1, 1, 1}) != nil {
			t.Errorf("kept: the one in use %v, the other %v", c.cached(segmentKey{1, 1, 0}) != nil, c.cached(segmentKey{1, 1, 1}) != nil)
		}
		c.sweep(time.Now().Add(time.Second))
		if len(c.items) != 0 || c.bytes != 0 {
			t.Errorf("%d segments of %d bytes are left", len(c.items), c.bytes)
		}
	})
}

// TestTheFeedVouchesForTheDatabase holds readiness to the age of the last answer, whoever got it.
func TestTheFeedVouchesForTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, away := 0, errors.New("away")
		p := &pinger{ping: func(context.Context) error { asked++; return away }}
		p.heard.Store(time.Now().UnixNano())
		if err := p.check(readyShared); err != nil || asked != 0 {
			t.Errorf("just after the feed: %v, asked %d times", err, asked)
		}
		time.Sleep(readyShared)
		for range 3 {
			if err := p.check(readyShared); !errors.Is(err, away) || asked != 1 {
				t.Errorf("long after the feed: %v, asked %d times", err, asked)
			}
		}
		time.Sleep(pingShared)
		if err := p.check(pingShared); !errors.Is(err, away) || asked != 2 {
			t.Errorf("asked for a fresher answer: %v, asked %d times", err, asked)
		}
	})
}

func TestAWrittenMinuteIsLetGo(t *testing.T) {
	t.Parallel()
	h := newHistory("host")
	h.waiting = []*store.Minute{{Queues: []store.QueueMinute{{Tenant: uuid.New()}}}, {}}
	h.rows = 3
	kept := h.waiting
	h.dropFirstLocked()
	if kept[0] != nil || len(h.waiting) != 1 || h.rows != 1 {
		t.Errorf("the first minute is still held: %v; %d wait with %d rows", kept[0], len(h.waiting), h.rows)
	}
}
