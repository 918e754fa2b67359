package spool

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, cfg Config) *Spool {
	t.Helper()
	s, err := Open(slog.New(slog.DiscardHandler), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // a test that closes it looks at the error itself
	return s
}

func add(t testing.TB, s *Spool, records ...string) {
	t.Helper()
	var all [][]byte
	for _, r := range records {
		all = append(all, []byte(r))
	}
	if err := s.Append(all...); err != nil {
		t.Fatal(err)
	}
}

// read returns the next batch's records, unsure ones with a question mark.
func read(t testing.TB, s *Spool, n int) (*Batch, []string) {
	t.Helper()
	b, err := s.Next(n, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if b == nil {
		return nil, nil
	}
	var all []string
	for _, r := range b.Records {
		text := string(r.Data)
		if r.Unsure {
			text += "?"
		}
		all = append(all, text)
	}
	return b, all
}

func want(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("read %q, want %q", got, want)
	}
}

func settle(t testing.TB, b *Batch) {
	t.Helper()
	if err := b.Settle(); err != nil {
		t.Fatal(err)
	}
}

// files returns the names of the spool files in a folder.
func files(t testing.TB, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*.spool"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// crash copies a folder as it is: what a killed process leaves, since nothing is buffered beyond an answer.
func crash(t testing.TB, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestRecordsComeBackInOrderAndLeaveNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := open(t, Config{Dir: dir, FileBytes: 100})
	for i := range 20 {
		add(t, s, fmt.Sprint("r", i), fmt.Sprint("s", i))
	}
	var got []string
	for {
		b, all := read(t, s, 3)
		if b == nil {
			break
		}
		got = append(got, all...)
		settle(t, b)
	}
	if len(got) != 40 || got[0] != "r0" || got[39] != "s19" || !slices.IsSortedFunc(got[:2], strings.Compare) {
		t.Fatalf("read %q", got)
	}
	for i := range 20 {
		if got[2*i] != fmt.Sprint("r", i) || got[2*i+1] != fmt.Sprint("s", i) {
			t.Fatalf("out of order: %q", got)
		}
	}
	if st := s.Stats(); !s.Empty() || st.Files != 0 || st.Bytes != 0 || st.Appended != 40 || st.Settled != 40 || !st.Oldest.IsZero() {
		t.Errorf("left over: %+v", st)
	}
	if left := files(t, dir); len(left) > 0 {
		t.Errorf("files are left: %q", left)
	}
}

func TestAReturnedBatchComesAgain(t *testing.T) {
	t.Parallel()
	s := open(t, Config{Dir: t.TempDir()})
	add(t, s, "a", "b", "c")
	b, all := read(t, s, 2)
	want(t, all, "a", "b")
	b.Return(false)
	b, all = read(t, s, 2)
	want(t, all, "a", "b")
	b.Return(true)
	b, all = read(t, s, 3)
	want(t, all, "a?", "b?", "c")
	b.Return(false) // what was unsure stays so
	b, all = read(t, s, 1)
	want(t, all, "a?")
	settle(t, b)
	b, all = read(t, s, 5)
	want(t, all, "b?", "c")
	settle(t, b)
	if !s.Empty() {
		t.Error("the spool is not empty")
	}
}

func TestAfterACrashWhatWasHandedOutIsUnsure(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	add(t, s, "a", "b", "c", "d")
	b, _ := read(t, s, 1)
	settle(t, b)
	read(t, s, 2) // b and c are on their way
	again := open(t, Config{Dir: crash(t, dir)})
	var seen []string
	if err := again.Each(func(r []byte) { seen = append(seen, string(r)) }); err != nil {
		t.Fatal(err)
	}
	want(t, seen, "b", "c", "d")
	_, all := read(t, again, 9)
	want(t, all, "b?", "c?", "d")

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	add := open(t, Config{Dir: dir})
	_, all = read(t, add, 9)
	want(t, all, "b?", "c?", "d")
}

func TestACleanEndForgetsNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	add(t, s, "a", "b")
	b, _ := read(t, s, 1)
	settle(t, b)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Append([]byte("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("append after the end: %v", err)
	}
	s = open(t, Config{Dir: dir})
	add(t, s, "c")
	b, all := read(t, s, 9)
	want(t, all, "b")
	settle(t, b)
	_, all = read(t, s, 9)
	want(t, all, "c")
}

func TestADamagedPositionMakesTheOldestFileUnsure(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	add(t, s, "a", "b")
	read(t, s, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, stateName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, all := read(t, open(t, Config{Dir: dir}), 9)
	want(t, all, "a?", "b?")
}

func TestAFullSpoolRefusesAndHasRoomAgain(t *testing.T) {
	t.Parallel()
	s := open(t, Config{Dir: t.TempDir(), MaxBytes: 200, FileBytes: 60})
	big := strings.Repeat("x", 80)
	add(t, s, big)
	if err := s.Append([]byte(big)); !errors.Is(err, ErrFull) {
		t.Fatalf("append to a full spool: %v", err)
	}
	add(t, s, "y") // what fits is taken
	if st := s.Stats(); st.Refused != 1 || st.Bytes > 200 {
		t.Errorf("counters are %+v", st)
	}
	b, _ := read(t, s, 1)
	settle(t, b)
	add(t, s, big)
}

func TestAFolderHasOneProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open(t, Config{Dir: dir})
	if s, err := Open(slog.New(slog.DiscardHandler), Config{Dir: dir}); err == nil {
		_ = s.Close()
		t.Error("a second process may use the folder")
	}
}

func TestAFailedWritePoisonsItsFileOnly(t *testing.T) {
	t.Parallel()
	s := open(t, Config{Dir: t.TempDir()})
	add(t, s, "a")
	s.mu.Lock()
	broken := s.out.f
	s.mu.Unlock()
	if err := broken.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Append([]byte("b")); !errors.Is(err, ErrUnknown) {
		t.Fatalf("append to a broken file: %v", err)
	}
	add(t, s, "c")
	var got []string
	for b, all := read(t, s, 9); b != nil; b, all = read(t, s, 9) {
		got = append(got, all...)
		settle(t, b)
	}
	want(t, got, "a", "c")
}

func TestOnlyItsOwnFilesAreRead(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	other := open(t, Config{Dir: elsewhere})
	add(t, other, "rescued")
	file := files(t, elsewhere)[0]
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("0000000000001-00000001.spool", data)
	put("0000000000002-00000002.spool", data)           // a copy
	put("0000000000003-00000003.spool", []byte("QGSP")) // cut in its head
	put("0000000000004-00000004.spool", nil)            // empty
	put("notes.txt", []byte("not ours"))
	if err := os.Symlink(file, filepath.Join(dir, "0000000000005-00000005.spool")); err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{Dir: dir})
	b, all := read(t, s, 9)
	want(t, all, "rescued")
	settle(t, b)
	if b, all := read(t, s, 9); b != nil {
		t.Fatalf("read %q besides", all)
	}
	if st := s.Stats(); st.Damaged != 3 || st.Quarantined != 3 {
		t.Errorf("counters are %+v, want three files in quarantine", st)
	}
	kept, err := os.ReadDir(filepath.Join(dir, quarantineName))
	if err != nil || len(kept) != 3 {
		t.Errorf("%d files in quarantine, %v", len(kept), err)
	}
}

// A tenant that writes what looks like a record into its payload, or the very bytes of one, gains nothing by damage
// around it.
func TestBytesInsideARecordAreNeverOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	var forged []byte
	for range 100 {
		var k key
		for i := range k {
			k[i] = byte(rand.Uint32())
		}
		forged = k.appendRecord(forged, []byte("forged"))
	}
	if err := s.Append(forged, []byte("next")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file := files(t, dir)[0]
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[fileHead] ^= 1 // the mark of the first record
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	_, all := read(t, open(t, Config{Dir: dir}), 999)
	want(t, all, "next")
}

// Every flipped bit and every cut of a file is noticed: what comes back are records that were written, in order, each
// once, and all bytes of the rest are in quarantine.
func TestDamageIsNoticedWhereverItIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, Config{Dir: dir})
	written := []string{"first record", "", "third", strings.Repeat("long ", 40)}
	add(t, s, written...)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(files(t, dir)[0])
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, data []byte, least int) {
		t.Helper()
		k, err := readHead(data)
		if err != nil {
			return // the whole file is put aside
		}
		var got []string
		for at := fileHead; at < len(data); {
			rec, skipped, size := k.next(data[at:])
			if size > 0 {
				got = append(got, string(rec))
			}
			at += skipped + size
		}
		rest := written
		for _, g := range got {
			i := slices.Index(rest, g)
			if i < 0 {
				t.Fatalf("%s: %q was never written, or not there", what, g)
			}
			rest = rest[i+1:]
		}
		if len(got) < least {
			t.Fatalf("%s: only %q is left", what, got)
		}
	}
	for at := range whole {
		for bit := range 8 {
			data := bytes.Clone(whole)
			data[at] ^= 1 << bit
			check(fmt.Sprintf("bit %d of byte %d", bit, at), data, len(written)-1)
		}
	}
	for n := range whole {
		check(fmt.Sprintf("cut at %d", n), whole[:n], 0)
	}
}

func FuzzFile(f *testing.F) {
	k := key{1, 2, 3}
	head := appendHead(nil, k)
	f.Add(k.appendRecord(bytes.Clone(head), []byte("x")))
	f.Add(head)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := readHead(data)
		if err != nil {
			return
		}
		for at := fileHead; at < len(data); {
			rec, skipped, size := k.next(data[at:])
			if skipped+size <= 0 || at+skipped+size > len(data) {
				t.Fatalf("%d bytes skipped and %d read at %d of %d", skipped, size, at, len(data))
			}
			if size > 0 && !bytes.Equal(k.appendRecord(nil, rec), data[at+skipped:at+skipped+size]) {
				t.Fatal("a record was read that is not there")
			}
			at += skipped + size
		}
	})
}

func TestConcurrentAppendsAreWholeAndInOrder(t *testing.T) {
	t.Parallel()
	s := open(t, Config{Dir: t.TempDir(), FileBytes: 4 << 10})
	const writers, each = 8, 100
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := s.Append(fmt.Append(nil, w, " ", i, "a"), fmt.Append(nil, w, " ", i, "b")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var next [writers]int
	total := 0
	var before string
	for total < 2*writers*each {
		b, all := read(t, s, 7)
		if b == nil {
			continue // the writers have not come so far
		}
		for _, r := range all {
			var w, i int
			var half string
			if _, err := fmt.Sscanf(r, "%d %d%s", &w, &i, &half); err != nil {
				t.Fatal(err)
			}
			if i != next[w] || half == "b" && before != fmt.Sprint(w, " ", i, "a") {
				t.Fatalf("%q after %q", r, before)
			}
			if half == "b" {
				next[w]++
			}
			before = r
			total++
		}
		settle(t, b)
	}
	wg.Wait()
}

// The spool against a plain list, with crashes.
func TestTheSpoolIsAQueue(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		dir := filepath.Join(base, fmt.Sprint(run))
		cfg := Config{Dir: dir, FileBytes: int64(rapid.IntRange(fileHead, 300).Draw(rt, "file"))}
		s, err := Open(slog.New(slog.DiscardHandler), cfg)
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		type rec struct {
			text   string
			unsure bool
		}
		var model []rec
		var batch *Batch
		var last []rec // of the batch that was settled last
		serial := 0
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(rt *rapid.T) {
				var all [][]byte
				for range rapid.IntRange(1, 4).Draw(rt, "n") {
					serial++
					text := fmt.Sprint(serial, strings.Repeat(".", rapid.IntRange(0, 80).Draw(rt, "size")))
					all = append(all, []byte(text))
					model = append(model, rec{text, false})
				}
				if err := s.Append(all...); err != nil {
					rt.Fatal(err)
				}
			},
			"next": func(rt *rapid.T) {
				if batch != nil {
					rt.Skip("one batch at a time")
				}
				b, err := s.Next(rapid.IntRange(1, 6).Draw(rt, "n"), 1<<20)
				if err != nil {
					rt.Fatal(err)
				}
				if b == nil {
					if len(model) > 0 || !s.Empty() {
						rt.Fatalf("nothing comes of %v", model)
					}
					return
				}
				for i, r := range b.Records {
					if i >= len(model) || string(r.Data) != model[i].text || model[i].unsure && !r.Unsure {
						rt.Fatalf("record %d is %q, unsure %v, of %v", i, r.Data, r.Unsure, model)
					}
				}
				batch = b
			},
			"settle": func(rt *rapid.T) {
				if batch == nil {
					rt.Skip("no batch")
				}
				if err := batch.Settle(); err != nil {
					rt.Fatal(err)
				}
				last = nil
				for _, r := range model[:len(batch.Records)] {
					last = append(last, rec{r.text, true})
				}
				model = model[len(batch.Records):]
				batch = nil
			},
			"return": func(rt *rapid.T) {
				if batch == nil {
					rt.Skip("no batch")
				}
				unsure := rapid.Bool().Draw(rt, "unsure")
				batch.Return(unsure)
				for i := range batch.Records {
					model[i].unsure = model[i].unsure || unsure
				}
				batch = nil
			},
			"crash": func(rt *rapid.T) {
				run++
				copied := filepath.Join(base, fmt.Sprint(run))
				if err := os.CopyFS(copied, os.DirFS(cfg.Dir)); err != nil {
					rt.Fatal(err)
				}
				_ = s.Close() // the one that is thought dead
				cfg.Dir = copied
				if s, err = Open(slog.New(slog.DiscardHandler), cfg); err != nil {
					rt.Fatal(err)
				}
				if batch != nil {
					for i := range batch.Records {
						model[i].unsure = true
					}
				}
				batch = nil
				first := ""
				if err := s.Each(func(r []byte) {
					if first == "" {
						first = string(r)
					}
				}); err != nil {
					rt.Fatal(err)
				}
				if len(last) > 0 && first == last[0].text {
					model = append(last, model...)
				}
				last = nil
			},
		})
	})
}
