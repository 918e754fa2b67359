package plans

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/datadir"
)

func TestAFileThatIsNoGoodIsRefused(t *testing.T) {
	t.Parallel()
	f := setup(t, time.Hour)
	file := testFile(t)
	good := f.written(file)
	sealed, err := os.ReadFile(file.Path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(sealed), "acme") {
		t.Error("the file names a tenant in the clear")
	}
	resealed := func(change func(*document)) []byte {
		d, err := unseal(sealed, file.Secret)
		if err != nil {
			t.Fatal(err)
		}
		change(d)
		text, err := d.seal(file.Secret)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	flipped := func(at int) []byte {
		text := append([]byte(nil), sealed...)
		text[at] ^= 1
		return text
	}
	otherSecret := func(f *File) { f.Secret = []byte("another secret") }
	for rule, c := range map[string]struct {
		content []byte
		as      func(*File)
		want    error
		says    string
	}{
		"of another cell key":                 {sealed, otherSecret, errForeignSeal, ""},
		"of another region":                   {sealed, func(f *File) { f.Origin = "db:5432/other" }, errOtherOrigin, ""},
		"empty":                               {nil, nil, errNotSealed, ""},
		"a part of the beginning":             {sealed[:20], nil, errNotSealed, ""},
		"truncated behind the beginning":      {sealed[:len(sealedMagic)+saltSize], nil, errForeignSeal, ""},
		"truncated in the middle":             {sealed[:len(sealed)/2], nil, errForeignSeal, ""},
		"truncated by a byte":                 {sealed[:len(sealed)-1], nil, errForeignSeal, ""},
		"longer by a byte":                    {append(append([]byte(nil), sealed...), 0), nil, errForeignSeal, ""},
		"a bit of the magic is another":       {flipped(3), nil, errNotSealed, ""},
		"a bit of the salt is another":        {flipped(len(sealedMagic) + 5), nil, errForeignSeal, ""},
		"a bit of the rows is another":        {flipped(len(sealed) / 2), nil, errForeignSeal, ""},
		"a bit of the tag is another":         {flipped(len(sealed) - 1), nil, errForeignSeal, ""},
		"no file of ours":                     {[]byte(strings.Repeat("x", 500)), nil, errNotSealed, ""},
		"older than the limit":                {resealed(func(d *document) { d.Synced = d.Synced.Add(-25 * time.Hour) }), nil, nil, "25h0m"},
		"from the future":                     {resealed(func(d *document) { d.Synced = d.Synced.Add(time.Hour) }), nil, errFuture, ""},
		"a table is missing":                  {resealed(func(d *document) { delete(d.Rows, sqlRevoked) }), nil, errOtherVersion, ""},
		"a row has a column less":             {resealed(func(d *document) { d.Rows[sqlOperators] = map[string][]byte{"x": {0}} }), nil, errOtherVersion, ""},
		"a row is torn, though it was sealed": {resealed(func(d *document) { d.Rows[sqlOperators] = map[string][]byte{"x": {1, 2}} }), nil, errTornRow, ""},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			bad := testFile(t)
			if c.as != nil {
				c.as(&bad)
			}
			if err := os.WriteFile(bad.Path, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
			away := NewBook(quiet, f.over(&line{cut: true}), time.Hour, WithFile(bad))
			err := away.Load(t.Context())
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), bad.Path) {
				t.Errorf("without the database: got %v, want %v %s", err, c.want, c.says)
			}
			if away.Snapshot() != nil {
				t.Error("something of it is in force")
			}
			// With the database it is replaced, and not left for a next time.
			there := NewBook(quiet, f.over(&line{}), time.Hour, WithFile(bad))
			if err := there.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(bad.Path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a file of which nothing is known is still there: %v", err)
			}
			if err := there.store(); err != nil {
				t.Fatal(err)
			}
			again := NewBook(quiet, f.over(&line{cut: true}), time.Hour, WithFile(bad))
			if err := again.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			sameSnapshot(t, again.Snapshot(), good.Snapshot())
		})
	}
}

// writerFile has this test binary write the file named by it without end, and say each time which one is in its place.
const writerFile = "QUEENGATE_PLANS_TEST_WRITER"

func writeWithoutEnd(path string) {
	f := File{Path: path, Secret: []byte("s"), Origin: "o"}
	k := newKeeper(quiet, f)
	rows := rawRows{sqlTenants: {"x": make([]byte, 1<<20)}}
	for n := int64(1); ; n++ {
		d := &document{Origin: f.Origin, Synced: time.Now(), Seq: n, Rows: rows}
		sealed, err := d.seal(f.Secret)
		if err == nil {
			var draft *datadir.Draft
			if draft, err = datadir.NewDraft(path, sealed, 0o600); err == nil {
				err = k.place(draft, 0, d.Synced)
			}
		}
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

// TestAKillDuringAWriteLeavesAWholeFile kills a process that does nothing but write.
func TestAKillDuringAWriteLeavesAWholeFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "control.book")
	for round := range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), writerFile+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, said := bufio.NewScanner(out), int64(0)
		for range 3 + round {
			if !lines.Scan() {
				t.Fatal("the writer ended")
			}
			if said, err = strconv.ParseInt(lines.Text(), 10, 64); err != nil {
				t.Fatal(lines.Text())
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		d, err := unseal(file, []byte("s"))
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if d.Seq < said {
			t.Errorf("the file is number %d, and %d was in its place", d.Seq, said)
		}
	}
	if err := datadir.RemoveDrafts(path); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("drafts are left: %v, %v", entries, err)
	}
}
