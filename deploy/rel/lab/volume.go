package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// volumeBytes is the size of a spool's file system, of which the file system itself takes a part.
const volumeBytes = 64 << 20

// Volume is where a broker keeps its spool: an ext4 file system in a file, or, where nothing can be mounted, a plain
// folder, which knows no full disk and no power cut.
type Volume struct {
	dir    string // mount point, or the folder itself
	image  string // file that holds the file system, "" for a plain folder
	cuts   int
	mounts bool
}

// CanMount reports whether file systems in files can be mounted here, and if not, why.
var CanMount = sync.OnceValue(func() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can mount a volume")
	}
	dir, err := os.MkdirTemp("", "rel-volume-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	v, err := newVolume(filepath.Join(dir, "v"), true)
	if err != nil {
		return err
	}
	return v.free()
})

func newVolume(dir string, mounted bool) (*Volume, error) {
	v := &Volume{dir: dir}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if !mounted {
		return v, nil
	}
	v.image = dir + ".img"
	f, err := os.Create(v.image)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(volumeBytes), f.Close()); err != nil {
		return nil, err
	}
	if err := shell("mkfs.ext4", "-q", "-m", "0", v.image); err != nil {
		return nil, err
	}
	return v, v.mount()
}

// Path is the folder of the spool.
func (v *Volume) Path() string { return filepath.Join(v.dir, "spool") }

// Mounted reports whether the volume is a file system of its own.
func (v *Volume) Mounted() bool { return v.image != "" }

// mount mounts the image. The journal is written every 300 s only, so that what nobody synced stays in memory, as on a
// machine whose power fails right away.
func (v *Volume) mount() error {
	if err := shell("mount", "-o", "loop,commit=300", v.image, v.dir); err != nil {
		return err
	}
	v.mounts = true
	return nil
}

func (v *Volume) unmount() error {
	if !v.mounts {
		return nil
	}
	if err := shell("umount", v.dir); err != nil {
		return err
	}
	v.mounts = false
	return nil
}

// Cut lets the power of the volume fail: while the process that writes to it stands still, the disk is copied as it is,
// without what the kernel has not written; kill then ends the process, and the copy takes the place of the disk.
// It returns how many bytes the disk held.
//
// The process must be stopped (SIGSTOP) before the call, and is not started again.
func (v *Volume) Cut(kill func() error) (int64, error) {
	v.cuts++
	after := fmt.Sprintf("%s.%d", strings.TrimSuffix(v.image, filepath.Ext(v.image)), v.cuts)
	n, err := copyStill(after, v.image)
	if err := errors.Join(err, kill()); err != nil {
		return n, err
	}
	if err := v.unmount(); err != nil {
		return n, err
	}
	if err := os.Remove(v.image); err != nil {
		return n, err
	}
	v.image = after
	return n, v.mount()
}

// copyStill copies a file as it was at one moment: it begins again when the file was written meanwhile.
func copyStill(to, from string) (int64, error) {
	for range 20 {
		before, err := os.Stat(from)
		if err != nil {
			return 0, err
		}
		n, err := copySparse(to, from)
		if err != nil {
			return 0, err
		}
		after, err := os.Stat(from)
		if err != nil {
			return 0, err
		}
		if after.ModTime().Equal(before.ModTime()) {
			return n, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return 0, fmt.Errorf("%s is written all the time", from)
}

// copySparse copies a file and leaves out blocks of zeros, and returns how many bytes were none.
func copySparse(to, from string) (n int64, err error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := out.Truncate(volumeBytes); err != nil {
		return 0, err
	}
	block, zeros := make([]byte, 256<<10), make([]byte, 256<<10)
	for at := int64(0); ; at += int64(len(block)) {
		k, err := io.ReadFull(in, block)
		if k > 0 && string(block[:k]) != string(zeros[:k]) {
			if _, err := out.WriteAt(block[:k], at); err != nil {
				return n, err
			}
			n += int64(k)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

// ballast is the file that fills a volume.
func (v *Volume) ballast() string { return filepath.Join(v.dir, "ballast") }

// Fill leaves less than a page of the volume free.
func (v *Volume) Fill() error {
	f, err := os.Create(v.ballast())
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for size := int64(volumeBytes); size >= 4096; {
		at, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		err = syscall.Fallocate(int(f.Fd()), 0, at, size)
		switch {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			return fmt.Errorf("fill %s: %w", v.dir, err)
		}
	}
	return nil
}

// Empty takes the ballast out again.
func (v *Volume) Empty() error { return os.Remove(v.ballast()) }

// Files lists the files of the spool with records, oldest name first.
func (v *Volume) Files() ([]string, error) {
	entries, err := os.ReadDir(v.Path())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if e.Type().IsRegular() && filepath.Ext(e.Name()) == ".spool" {
			files = append(files, filepath.Join(v.Path(), e.Name()))
		}
	}
	return files, nil
}

// Quarantined lists what the spool has put aside.
func (v *Volume) Quarantined() ([]string, error) {
	return filepath.Glob(filepath.Join(v.Path(), "quarantine", "*"))
}

// free lets the volume go; a plain folder stays for who wants to look into it.
func (v *Volume) free() error {
	if v.image == "" {
		return nil
	}
	return errors.Join(v.unmount(), os.Remove(v.image))
}

func shell(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// FreeBytes is how much of the volume is free.
func (v *Volume) FreeBytes() (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(v.dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * s.Bsize, nil
}
