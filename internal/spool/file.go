package spool

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A file is a head (magic, key, check of both) and records (mark, length, check, bytes). Mark and check of a record are
// keyed, numbers are little endian.
const (
	fileMagic  = "QGSPOOL1"
	keyBytes   = 16
	fileHead   = len(fileMagic) + keyBytes + 4
	recordHead = 12
)

// MaxRecord bounds a record in bytes: a broker's largest request is smaller.
const MaxRecord = 1 << 30

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	fileName   = regexp.MustCompile(`^(\d{13})-(\d{8})\.spool$`)
	errHead    = errors.New("spool: the head of the file is damaged")
)

// key frames the records of one file.
type key [keyBytes]byte

func (k key) mark() uint32 { return crc32.Checksum(k[:], castagnoli) }

func (k key) check(length uint32, data []byte) uint32 {
	var head [keyBytes + 4]byte
	copy(head[:], k[:])
	binary.LittleEndian.PutUint32(head[keyBytes:], length)
	return crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, data)
}

func (k key) appendRecord(dst, data []byte) []byte {
	n := uint32(len(data))
	dst = binary.LittleEndian.AppendUint32(dst, k.mark())
	dst = binary.LittleEndian.AppendUint32(dst, n)
	dst = binary.LittleEndian.AppendUint32(dst, k.check(n, data))
	return append(dst, data...)
}

// record returns the record at the start of b, or nil when there is none that is whole and right.
func (k key) record(b []byte) (data []byte, size int) {
	if len(b) < recordHead || binary.LittleEndian.Uint32(b) != k.mark() {
		return nil, 0
	}
	n := binary.LittleEndian.Uint32(b[4:])
	if uint64(n) > uint64(len(b)-recordHead) || n > MaxRecord {
		return nil, 0
	}
	data = b[recordHead : recordHead+int(n) : recordHead+int(n)]
	if binary.LittleEndian.Uint32(b[8:]) != k.check(n, data) {
		return nil, 0
	}
	return data, recordHead + int(n)
}

// next returns the first record at or behind the start of b, with the bytes before it that are no record. Without one,
// all of b is skipped.
func (k key) next(b []byte) (data []byte, skipped, size int) {
	if data, size = k.record(b); size > 0 {
		return data, 0, size
	}
	mark := binary.LittleEndian.AppendUint32(nil, k.mark())
	for at := 1; at < len(b); at++ {
		i := bytes.Index(b[at:], mark)
		if i < 0 {
			break
		}
		at += i
		if data, size = k.record(b[at:]); size > 0 {
			return data, at, size
		}
	}
	return nil, len(b), 0
}

func appendHead(dst []byte, k key) []byte {
	dst = append(dst, fileMagic...)
	dst = append(dst, k[:]...)
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[len(dst)-keyBytes-len(fileMagic):], castagnoli))
}

func readHead(b []byte) (k key, err error) {
	if len(b) < fileHead || string(b[:len(fileMagic)]) != fileMagic ||
		binary.LittleEndian.Uint32(b[fileHead-4:]) != crc32.Checksum(b[:fileHead-4], castagnoli) {
		return key{}, errHead
	}
	return key(b[len(fileMagic) : len(fileMagic)+keyBytes]), nil
}

// output is the file that is being written. It belongs to the writer.
type output struct {
	f      *os.File
	name   string
	key    key
	synced int64 // bytes that are on disk for certain
}

// create makes a file whose head, and whose place in the folder, are on disk.
func create(dir, name string) (*output, error) {
	o := &output{name: name}
	if _, err := rand.Read(o.key[:]); err != nil {
		return nil, fmt.Errorf("spool: make a key: %w", err)
	}
	var err error
	o.f, err = os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	if err := o.write(appendHead(nil, o.key)); err != nil {
		return nil, errors.Join(err, o.f.Close(), os.Remove(o.f.Name()))
	}
	if err := syncDir(dir); err != nil {
		return nil, errors.Join(err, o.f.Close(), os.Remove(o.f.Name()))
	}
	return o, nil
}

// write appends b and waits for the disk.
func (o *output) write(b []byte) error {
	if _, err := o.f.WriteAt(b, o.synced); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	if err := o.f.Sync(); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	o.synced += int64(len(b))
	return nil
}

// cut takes back what a failed write may have left, and reports whether it is certainly gone. The file must not be
// written again whatever comes of it: after a failed fsync nobody knows what the kernel still holds.
func (o *output) cut() bool {
	err := o.f.Truncate(o.synced)
	if err == nil {
		err = o.f.Sync()
	}
	return errors.Join(err, o.f.Close()) == nil
}

func nameOf(at time.Time, number int) string {
	return fmt.Sprintf("%013d-%08d.spool", at.UnixMilli(), number)
}

// begun returns when a file of that name was begun.
func begun(name string) time.Time {
	ms, err := strconv.ParseInt(name[:13], 10, 64)
	if err != nil {
		return time.Time{} // names were matched when they were listed
	}
	return time.UnixMilli(ms)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}
