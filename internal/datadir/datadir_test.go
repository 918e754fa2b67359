package datadir

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestAFolderHasOneHolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "deep", "a folder with spaces")
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(path)
	if !errors.Is(err, ErrBusy) {
		t.Fatalf("second holder: got %v, want ErrBusy", err)
	}
	if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("the refusal must name the folder and the holder: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d, err = Open(path)
	if err != nil {
		t.Fatalf("after the holder left: %v", err)
	}
	d.Close()
}

func TestFilesAreReplacedWholeAndPrivate(t *testing.T) {
	t.Parallel()
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, text := range []string{"a longer first version", "second"} {
		if err := d.WriteFile("credentials.json", []byte(text)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(d.Path("credentials.json"))
		if err != nil || string(got) != text {
			t.Errorf("got %q, %v, want %q", got, err, text)
		}
	}
	st, err := os.Stat(d.Path("credentials.json"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode: got %v, %v, want 0600", st.Mode(), err)
	}
	entries, err := os.ReadDir(d.Path())
	if err != nil || len(entries) != 2 {
		t.Errorf("temporary files are left behind: %v, %v", entries, err)
	}
}

func TestTheCellKeyIsMadeOnceAndReadByOthers(t *testing.T) {
	t.Parallel()
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := CellKey(d.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("before it is made: got %v, want os.ErrNotExist", err)
	}
	first, err := d.EnsureCellKey()
	if err != nil {
		t.Fatal(err)
	}
	again, err := d.EnsureCellKey()
	if err != nil || !first.Equal(again) {
		t.Errorf("the second call: got another key, %v", err)
	}
	public, err := x509.MarshalPKIXPublicKey(first.Public())
	if err != nil {
		t.Fatal(err)
	}
	read, err := ParseCellPublicKey(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
	if err != nil || !read.Equal(first.Public()) {
		t.Errorf("public key: got %v, %v", read, err)
	}
	if err := d.WriteFile(cellKeyFile, []byte("torn")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.EnsureCellKey(); err == nil {
		t.Error("a file that holds no key was replaced")
	}
}
