package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDuplicateReportsTheLowestOriginal(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	first := w.push(w.segment(p, "a", "b"))[0]
	again := w.segment(p, "c", "b")
	again.DedupWindow = 0 // no probe: "b" is stored a second time at offset 3
	w.push(again)

	v := w.push(w.segment(p, "b", "new", "c"))[0]
	want := PushVerdict{Status: PushDuplicate, LastOffset: 3, Life: 1, Dups: []Dup{
		{Frame: 0, Offset: 1, CreatedAt: first.CreatedAt},
		{Frame: 2, Offset: 2, CreatedAt: v.Dups[1].CreatedAt},
	}}
	if d := cmp.Diff(want, v); d != "" {
		t.Fatal(d)
	}
	if n := w.count("SELECT count(*) FROM queen.log_segments"); n != 2 {
		t.Fatalf("a segment with a duplicate wrote something: %d segments", n)
	}
}

func TestSameIDInAnotherPartitionIsNew(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	a, b := w.partition("q", "a"), w.partition("q", "b")
	w.push(w.segment(a, "x"))
	if v := w.push(w.segment(b, "x"))[0]; v.Status != PushStored {
		t.Fatalf("got %+v", v)
	}
}

// The window counts from the stamp the repeat would get, both ends included, to the microsecond.
func TestWindowBounds(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	for rule, c := range map[string]struct {
		age  time.Duration // of the original when the repeat is stamped
		want PushStatus
	}{
		"inside":                  {time.Hour - time.Microsecond, PushDuplicate},
		"exactly the window":      {time.Hour, PushDuplicate},
		"a microsecond too old":   {time.Hour + time.Microsecond, PushStored},
		"long ago":                {24 * time.Hour, PushStored},
		"from a clock run faster": {0, PushDuplicate},
	} {
		p := w.partition("q", rule)
		w.push(w.segment(p, "x"))
		// A newest stamp in the future fixes the stamp of the repeat.
		stamp := time.Now().Add(time.Minute).UTC().Truncate(time.Microsecond)
		w.exec("UPDATE queen.log_txns SET created_at = $2 WHERE partition_id = $1", p.ID, stamp.Add(-c.age))
		w.exec("UPDATE queen.log_partitions SET last_created_at = $2 WHERE id = $1", p.ID, stamp)
		if v := w.push(w.segment(p, "x"))[0]; v.Status != c.want {
			t.Errorf("%s: got %+v", rule, v)
		}
	}
}

// What a purge removed is forgotten, and the probe starts where the sidecar does.
func TestPurgedRowsAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	w.push(w.segment(p, "a"))
	w.push(w.segment(p, "b"))
	// Retention moves txns_start before a row is gone for every session: the bound alone must hide it.
	w.exec("UPDATE queen.log_partitions SET txns_start = 1 WHERE id = $1", p.ID)
	if v := w.push(w.segment(p, "a"))[0]; v.Status != PushStored {
		t.Errorf("below txns_start: got %+v", v)
	}
	if v := w.push(w.segment(p, "b"))[0]; v.Status != PushDuplicate {
		t.Errorf("at txns_start: got %+v", v)
	}
}

// Verified narrows the probe: rows up to it are the caller's word, rows above it are read, also when it falls inside
// a row.
func TestVerifiedNarrowsTheProbe(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	w.push(w.segment(p, "a", "b", "c")) // 0…2
	w.push(w.segment(p, "d"))           // 3
	for _, c := range []struct {
		id       string
		verified Watermark
		want     PushStatus
	}{
		{"a", Watermark{-1, 1}, PushDuplicate},
		{"c", Watermark{1, 1}, PushDuplicate}, // inside the first row
		{"d", Watermark{2, 1}, PushDuplicate},
		{"d", Watermark{3, 2}, PushDuplicate}, // the word of another life of the database counts for nothing
		{"d", Watermark{3, 0}, PushDuplicate},
		{"d", Watermark{3, 1}, PushStored}, // vouched for: the probe does not look
		{"a", Watermark{2, 1}, PushStored},
	} {
		s := w.segment(p, c.id)
		s.Verified = c.verified
		if v := w.push(s)[0]; v.Status != c.want {
			t.Errorf("%s verified to %v: got %+v", c.id, c.verified, v)
		}
	}
}

// The two-step probe: hashes read without a lock up to L, then the push probes only above L.
func TestSidecarThenPushIsExact(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	var want []byte
	for i := range 40 {
		ids := []string{fmt.Sprint(i), fmt.Sprint(i, "+")}
		if i == 20 {
			for k := range 400 { // a value kept out of line
				ids = append(ids, fmt.Sprint(i, k))
			}
		}
		s := w.segment(p, ids...)
		want = append(want, s.Hashes...)
		w.push(s)
	}
	var got []byte
	next := int64(0)
	upTo, err := w.Sidecar(t.Context(), p.ID, time.Hour, -1, func(r SidecarRow) {
		if r.Base != next || len(r.Hashes) != 16*int(r.End-r.Base+1) || r.CreatedAt.IsZero() {
			t.Errorf("row %d…%d with %d bytes, want base %d", r.Base, r.End, len(r.Hashes), next)
		}
		next = r.End + 1
		got = append(got, r.Hashes...)
	})
	if err != nil || upTo != (Watermark{479, 1}) || !slices.Equal(got, want) {
		t.Fatalf("read %d bytes up to %v, %v; want %d up to 479", len(got), upTo, err, len(want))
	}
	other := w.push(w.segment(p, "late"))[0]
	s := w.segment(p, "late", "fresh")
	s.Verified = upTo
	v := w.push(s)[0]
	if v.Status != PushDuplicate || len(v.Dups) != 1 || v.Dups[0].Offset != other.Base {
		t.Fatalf("written after the read: got %+v", v)
	}
	s = w.segment(p, "fresh")
	s.Verified = Watermark{v.LastOffset, v.Life}
	if v := w.push(s)[0]; v.Status != PushStored {
		t.Fatalf("the rest: got %+v", v)
	}
}

func TestSidecarBounds(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	for i := range 4 {
		w.push(w.segment(p, fmt.Sprint(i), fmt.Sprint(i, "+"))) // rows 0…1, 2…3, 4…5, 6…7
	}
	w.exec("UPDATE queen.log_txns SET created_at = created_at - interval '1 hour' WHERE partition_id = $1 AND base_offset < 4", p.ID)
	for rule, c := range map[string]struct {
		partition int64
		window    time.Duration
		after     int64
		bases     []int64
		upTo      int64
	}{
		"everything":                        {p.ID, 2 * time.Hour, -1, []int64{0, 2, 4, 6}, 7},
		"the window":                        {p.ID, time.Minute, -1, []int64{4, 6}, 7},
		"a top-up":                          {p.ID, 2 * time.Hour, 3, []int64{4, 6}, 7},
		"a bound inside a row gives it":     {p.ID, 2 * time.Hour, 4, []int64{4, 6}, 7},
		"nothing new":                       {p.ID, 2 * time.Hour, 7, nil, 7},
		"a partition that does not exist":   {p.ID + 1000, time.Hour, -1, nil, -1},
		"a window of nothing has 5 s slack": {p.ID, 0, -1, []int64{4, 6}, 7},
	} {
		var bases []int64
		upTo, err := w.Sidecar(t.Context(), c.partition, c.window, c.after, func(r SidecarRow) { bases = append(bases, r.Base) })
		if err != nil || upTo != (Watermark{c.upTo, 1}) || !slices.Equal(bases, c.bases) {
			t.Errorf("%s: got %v up to %v, %v; want %v up to %d", rule, bases, upTo, err, c.bases, c.upTo)
		}
	}
	empty := w.partition("q", "empty")
	if upTo, err := w.Sidecar(t.Context(), empty.ID, time.Hour, -1, func(SidecarRow) { t.Error("a row of nothing") }); upTo.Offset != -1 || err != nil {
		t.Errorf("an empty partition: got %v, %v", upTo, err)
	}
}

// Sessions race the same ids on one partition, each trusting only what it verified: every id is stored once, and every
// loser is told the winner's offset and stamp.
func TestRacingSessionsStoreEveryIDOnce(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	const sessions, ids = 4, 120
	type told struct {
		id string
		at Dup
	}
	answers := make([][]told, sessions)
	var wg sync.WaitGroup
	for g := range sessions {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(7, uint64(g)))
			mine := rnd.Perm(ids)
			for len(mine) > 0 {
				n := min(len(mine), 1+rnd.IntN(5))
				var batch []string
				for _, i := range mine[:n] {
					batch = append(batch, fmt.Sprint("tx", i))
				}
				mine = mine[n:]
				verified := Watermark{}
				for len(batch) > 0 {
					s := w.segment(p, batch...)
					s.Verified = verified
					vs, err := w.PushBundleWait(t.Context(), []Segment{s})
					if err != nil {
						t.Error(err)
						return
					}
					v := vs[0]
					// The probe saw every row up to here for all of the batch: its rest is probed above only.
					verified = Watermark{v.LastOffset, v.Life}
					switch v.Status {
					case PushStored:
						for i, id := range batch {
							answers[g] = append(answers[g], told{id, Dup{Offset: v.Base + int64(i), CreatedAt: v.CreatedAt}})
						}
						batch = nil
					case PushDuplicate:
						for _, d := range slices.Backward(v.Dups) {
							answers[g] = append(answers[g], told{batch[d.Frame], Dup{Offset: d.Offset, CreatedAt: d.CreatedAt}})
							batch = slices.Delete(batch, d.Frame, d.Frame+1)
						}
					default:
						t.Errorf("got %+v", v)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if last := w.count("SELECT last_offset FROM queen.log_partitions WHERE id = $1", p.ID); last != ids-1 {
		t.Errorf("stored %d messages, want %d", last+1, ids)
	}
	original := map[string]Dup{}
	for g := range answers {
		if len(answers[g]) != ids {
			t.Errorf("session %d: %d answers for %d ids", g, len(answers[g]), ids)
		}
		for _, a := range answers[g] {
			if was, ok := original[a.id]; ok && (was.Offset != a.at.Offset || !was.CreatedAt.Equal(a.at.CreatedAt)) {
				t.Errorf("%s: told %+v and %+v", a.id, was, a.at)
			}
			original[a.id] = a.at
		}
	}
	w.checkLog(p)
}
