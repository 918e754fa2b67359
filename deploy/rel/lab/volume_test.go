package lab

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// mounted makes a volume, or skips with the reason why it cannot.
func mounted(t *testing.T) *Volume {
	t.Helper()
	if err := CanMount(); err != nil {
		t.Skip(err)
	}
	v, err := newVolume(filepath.Join(t.TempDir(), "v"), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.free(); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(v.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	return v
}

// What was synced is there after a power cut, and what was not is gone: without both, N16 proves nothing.
func TestAPowerCutKeepsWhatWasSyncedAndNothingElse(t *testing.T) {
	t.Parallel()
	v := mounted(t)
	put := func(name string, sync bool) {
		f, err := os.Create(filepath.Join(v.Path(), name))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if _, err := f.Write(bytes.Repeat([]byte(name), 1000)); err != nil {
			t.Fatal(err)
		}
		if sync {
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("synced.spool", true)
	put("forgotten.spool", false)
	killed := false
	if _, err := v.Cut(func() error { killed = true; return nil }); err != nil || !killed {
		t.Fatalf("killed %v, %v", killed, err)
	}
	if b, err := os.ReadFile(filepath.Join(v.Path(), "synced.spool")); err != nil || len(b) != 12_000 {
		t.Errorf("of what was synced %d bytes are left, %v", len(b), err)
	}
	if b, _ := os.ReadFile(filepath.Join(v.Path(), "forgotten.spool")); len(b) > 0 {
		t.Errorf("%d bytes that nobody synced have survived", len(b))
	}
}

func TestAFullVolumeTakesNothing(t *testing.T) {
	t.Parallel()
	v := mounted(t)
	if err := v.Fill(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(v.Path(), "x")
	if err := os.WriteFile(path, make([]byte, 64<<10), 0o600); err == nil {
		t.Error("a full volume takes 64 KiB")
	}
	if err := v.Empty(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, 64<<10), 0o600); err != nil {
		t.Errorf("emptied, it takes nothing: %v", err)
	}
}
