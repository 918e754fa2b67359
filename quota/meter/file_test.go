package meter

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

func TestWhatIsUnsavedSurvivesOnDisk(t *testing.T) {
	t.Parallel()
	f := NewFile(filepath.Join(t.TempDir(), "unsaved"))
	one, other := uuid.New(), uuid.New()
	all := []Unsaved{
		{"11", []Count{{one, may, 10}, {other, may - 1, 1 << 60}}},
		{"12", []Count{{one, may, 3}}},
	}
	for step, want := range [][]Unsaved{nil, all, all[1:], nil, nil} {
		if err := f.Write(want); err != nil {
			t.Fatal(err)
		}
		got, err := f.Read()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("step %d: want -, got +:\n%s", step, diff)
		}
		if _, err := os.Stat(f.path); (err == nil) != (want != nil) {
			t.Errorf("step %d: a file is there: %v, want %v", step, err == nil, want != nil)
		}
	}
	if err := f.Write([]Unsaved{{"13", nil}}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(f.path); err == nil {
		t.Error("a file without counts")
	}
}

// A file that is not what was written is not believed, and not overwritten either.
func TestADamagedFileIsPutAside(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "unsaved")
	f := NewFile(path)
	if err := f.Write([]Unsaved{{"11", []Count{{uuid.New(), may, 10}}}}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for damage, text := range map[string]string{
		"cut short":    string(whole[:len(whole)-1]),
		"another byte": strings.Replace(string(whole), `:10}`, `:90}`, 1),
		"empty":        "",
		"no head":      "{}\n",
	} {
		if text == string(whole) {
			t.Fatalf("%s: the file is as it was", damage)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Read(); err == nil || got != nil {
			t.Errorf("%s: read %v, %v", damage, got, err)
		}
		if aside, err := os.ReadFile(path + ".damaged"); err != nil || string(aside) != text {
			t.Errorf("%s: put aside %q, %v", damage, aside, err)
		}
		if got, err := f.Read(); err != nil || got != nil {
			t.Errorf("%s: after that read %v, %v", damage, got, err)
		}
	}
}
