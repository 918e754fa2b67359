package fuse

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
)

// What the cache has not seen inside the window must be new, and find must never point behind a sighting.
func TestAnEntryForgetsNothingInsideItsWindow(t *testing.T) {
	t.Parallel()
	type stored struct {
		offset int64
		at     time.Time
	}
	rapid.Check(t, func(t *rapid.T) {
		window := time.Duration(rapid.Int64Range(1, 7200).Draw(t, "window")) * time.Second
		e := &entry{}
		e.reset(window)
		now := time.UnixMilli(1_700_000_000_000)
		model := map[store.Hash][]stored{}
		offset := int64(0)
		steps := rapid.IntRange(1, 60).Draw(t, "steps")
		for range steps {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(window)/4).Draw(t, "elapsed")))
			for range rapid.IntRange(0, 80).Draw(t, "burst") {
				h := segment.HashID(fmt.Sprint(rapid.IntRange(0, 3000).Draw(t, "id")))
				e.add(&h, offset, now)
				model[h] = append(model[h], stored{offset, now})
				offset++
			}
			since := now.Add(-window)
			for h, all := range model {
				got, ok := e.find(&h)
				for _, s := range all {
					if s.at.Before(since) {
						continue
					}
					if !ok || got > s.offset {
						t.Fatalf("find = %d, %v; stored at %d, %v inside the window", got, ok, s.offset, now.Sub(s.at))
					}
					break
				}
				if ok && got > all[len(all)-1].offset {
					t.Fatalf("find = %d, but it was never stored behind %d", got, all[len(all)-1].offset)
				}
			}
			var bytes int64
			for _, s := range e.slices {
				bytes += sliceBytes + s.table.bytes()
			}
			if bytes != e.bytes {
				t.Fatalf("%d bytes accounted, %d held", e.bytes, bytes)
			}
		}
	})
}

func TestAnEntryStaysSmall(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		every    time.Duration
		maxBytes int64 // after some windows
	}{
		"one message per minute":      {time.Minute, 4_000},
		"one message per ten minutes": {10 * time.Minute, 1_000},
		"one message per two windows": {2 * time.Hour, 300},
		"ten messages per second":     {100 * time.Millisecond, 45_000 * 36}, // 36000 in the window, 45 B each at worst
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := &entry{}
			e.reset(time.Hour)
			now := time.UnixMilli(1_700_000_000_000)
			end := now.Add(max(3*time.Hour, 10*tt.every))
			for offset := int64(0); now.Before(end); offset++ {
				h := segment.HashID(fmt.Sprint(offset))
				e.add(&h, offset, now)
				now = now.Add(tt.every)
			}
			t.Logf("%d bytes in %d slices", e.bytes, len(e.slices))
			if e.bytes > tt.maxBytes {
				t.Errorf("%d bytes, want at most %d", e.bytes, tt.maxBytes)
			}
		})
	}
}

func TestEqualFingerprintsKeepTheEarliestOffset(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 500} {
		var tb table
		for i := range n {
			tb.add(uint64(i)%7+1, uint32(i+10))
		}
		for fp := uint64(1); fp <= min(7, uint64(n)); fp++ {
			if off, ok := tb.find(fp); !ok || off != uint32(fp-1)+10 {
				t.Errorf("of %d: find(%d) = %d, %v", n, fp, off, ok)
			}
		}
		if _, ok := tb.find(99); ok {
			t.Errorf("of %d: found what was never added", n)
		}
	}
}

func BenchmarkEntryFind(b *testing.B) {
	e := &entry{}
	e.reset(time.Hour)
	now := time.UnixMilli(1_700_000_000_000)
	const n = 1 << 20
	for i := range int64(n) {
		h := segment.HashID(fmt.Sprint(i))
		e.add(&h, i, now.Add(time.Duration(i)*time.Hour/n))
	}
	b.Logf("%.1f bytes per id", float64(e.bytes)/n)
	hashes := make([]store.Hash, 4096)
	for i := range hashes {
		hashes[i] = segment.HashID(fmt.Sprint("new", i))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		e.find(&hashes[i&4095])
		i++
	}
}
