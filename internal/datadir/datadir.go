// Package datadir owns the folder in which `queengate up` and a gateway keep what must survive: it creates the folder,
// holds it exclusively while the process lives, and writes small files so that a crash leaves the old or the new
// content and never a mixture.
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is a folder that this process holds. It is made by Open only, so holding a *Dir means holding the folder.
type Dir struct {
	path string // absolute
	lock *os.File
	name string // of the lock file
}

// ErrBusy means that another living process holds the folder.
var ErrBusy = errors.New("the data folder is in use by another queengate")

const lockName = "lock"

// Open creates the folder at path if needed (with its parents) and takes it. It does not wait: a folder held by another
// process is ErrBusy, which names the holder's process id. The lock dies with the process, however it dies, and is
// not inherited by its children.
func Open(path string) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	// 0711: an unprivileged PostgreSQL must pass through; what is secret inside has its own mode.
	if err := os.MkdirAll(abs, 0o711); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	d := &Dir{path: abs, name: filepath.Join(abs, lockName)}
	f, err := os.OpenFile(d.name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := make([]byte, 32)
		n, _ := f.Read(holder) // an unreadable id only makes the message shorter
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s (process %s)", ErrBusy, abs, strings.TrimSpace(string(holder[:n])))
		}
		return nil, fmt.Errorf("lock %s: %w", d.name, err)
	}
	d.lock = f
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close gives the folder back. The lock file stays: removing it would let two processes lock two files of one name.
func (d *Dir) Close() error { return d.lock.Close() }

// Path returns the absolute path of the named entry; without names, of the folder itself.
func (d *Dir) Path(names ...string) string {
	return filepath.Join(append([]string{d.path}, names...)...)
}

// Sub creates the named folder, readable by its owner only, and returns its path.
func (d *Dir) Sub(name string) (string, error) {
	path := d.Path(name)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", fmt.Errorf("data folder: %w", err)
	}
	return path, nil
}

// WriteFile replaces the named file with data, readable by its owner only.
func (d *Dir) WriteFile(name string, data []byte) error { return WriteFile(d.Path(name), data, 0o600) }

// WriteFile replaces the file at path: a reader, or a start after a power cut, sees the old or the new content.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	d, err := NewDraft(path, data, perm)
	if err != nil {
		return err
	}
	if err := d.Place(); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Draft is a file that is whole and safe on the disk, and not in its place yet. Either Place or Discard ends it; one that
// a crash ended is left in the folder for RemoveDrafts. It belongs to one goroutine.
type Draft struct{ temporary, path string }

// NewDraft writes the draft of the file at path, into the same folder.
func NewDraft(path string, data []byte, perm fs.FileMode) (*Draft, error) {
	f, err := os.CreateTemp(filepath.Dir(path), draftPrefix(path)+"*")
	if err != nil {
		return nil, err
	}
	d := &Draft{f.Name(), path}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(perm)
	}
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		d.Discard()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return d, nil
}

// draftPrefix begins the names of all drafts of the file at path.
func draftPrefix(path string) string { return "." + filepath.Base(path) + "." }

// Place puts the draft in its place, whatever stands there. A power cut may undo that until SyncDir.
func (d *Draft) Place() error {
	err := os.Rename(d.temporary, d.path)
	if err != nil {
		d.Discard()
	}
	return err
}

// Discard removes the draft.
func (d *Draft) Discard() {
	// What is left of it is nobody's file, and RemoveDrafts finds it.
	_ = os.Remove(d.temporary)
}

// RemoveDrafts removes what crashes left of drafts of the file at path, when nobody writes one.
func RemoveDrafts(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), draftPrefix(path)) {
			errs = append(errs, os.Remove(filepath.Join(filepath.Dir(path), e.Name())))
		}
	}
	return errors.Join(append(errs, err)...)
}

// SyncDir makes renames and creations inside the folder survive a power cut.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
