package spool

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Config bounds a spool. Zero sizes take the defaults named.
type Config struct {
	Dir       string // made with mode 0700 when it is not there
	MaxBytes  int64  // of all files; beyond it Append answers ErrFull; 1 GiB
	FileBytes int64  // where a new file is begun, 16 MiB
}

// Errors of Append. After any of them nothing of the call is in the spool, but after ErrUnknown, where something may be.
var (
	ErrFull    = errors.New("spool: it is full")
	ErrClosed  = errors.New("spool: it is closed")
	ErrUnknown = errors.New("spool: the disk failed and may hold the records or not")
)

const (
	lockName       = "lock"
	stateName      = "position"
	quarantineName = "quarantine"
)

// Spool is an open folder. Append, Each, Stats and Quarantine may be called concurrently; Next and the Batch it returns
// belong to one goroutine.
type Spool struct {
	log  *slog.Logger
	cfg  Config
	lock *os.File

	gate   sync.RWMutex // held shared while a job is handed to the writer; guards closed
	closed bool
	work   chan *job // to the writer
	done   chan struct{}

	bytes       atomic.Int64 // of all files
	quarantined atomic.Int64
	damaged     atomic.Int64
	appended    atomic.Int64
	settled     atomic.Int64
	refused     atomic.Int64

	mu     sync.Mutex // guards all below
	files  []string   // in order; those that are written no more, then out's
	out    *output
	number int

	reader reader
}

// Open takes the folder. What an earlier process left in it is there to be read.
func Open(log *slog.Logger, cfg Config) (*Spool, error) {
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 1 << 30
	}
	if cfg.FileBytes == 0 {
		cfg.FileBytes = 16 << 20
	}
	s := &Spool{log: log, cfg: cfg, work: make(chan *job, 256), done: make(chan struct{})}
	if err := os.MkdirAll(filepath.Join(cfg.Dir, quarantineName), 0o700); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	if err := s.take(); err != nil {
		return nil, err
	}
	if err := s.find(); err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}
	if err := s.recall(); err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}
	go s.write()
	return s, nil
}

// take locks the folder for this process.
func (s *Spool) take() error {
	f, err := os.OpenFile(filepath.Join(s.cfg.Dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("spool: another process uses %s: %w", s.cfg.Dir, err), f.Close())
	}
	s.lock = f
	return nil
}

// find lists the files of the folder. Names it does not make, and what is no regular file, are none of its business.
func (s *Spool) find() error {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	for _, e := range entries {
		m := fileName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return fmt.Errorf("spool: %w", err)
		}
		if !info.Mode().IsRegular() {
			s.log.Warn("a spool file is no regular file and is left alone", "name", e.Name(), "mode", info.Mode().String())
			continue
		}
		n, err := strconv.Atoi(strings.TrimLeft(m[2][:len(m[2])-1], "0") + m[2][len(m[2])-1:])
		if err != nil {
			return fmt.Errorf("spool: %s: %w", e.Name(), err)
		}
		s.number = max(s.number, n)
		s.bytes.Add(info.Size())
		s.files = append(s.files, e.Name())
	}
	slices.Sort(s.files)
	return nil
}

// Close ends the spool after the appends under way; what it holds stays on disk.
func (s *Spool) Close() error {
	s.gate.Lock()
	if s.closed {
		s.gate.Unlock()
		<-s.done
		return nil
	}
	s.closed = true
	close(s.work)
	s.gate.Unlock()
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.remember()
	if s.out != nil {
		err = errors.Join(err, s.out.f.Close())
		s.out = nil
	}
	return errors.Join(err, s.lock.Close())
}

// Stats is a reading of a spool.
type Stats struct {
	Files       int
	Bytes       int64     // of the files
	Oldest      time.Time // when the oldest file was begun; zero when there is none
	Appended    int64     // records since the start
	Settled     int64     // records that left by way of a batch
	Refused     int64     // records that found no room or whose write failed
	Quarantined int64     // records and damaged stretches in quarantine, found or put there since the start
	Damaged     int64     // damaged stretches among them
}

// Stats returns the counters.
func (s *Spool) Stats() Stats {
	st := Stats{
		Bytes: s.bytes.Load(), Appended: s.appended.Load(), Settled: s.settled.Load(), Refused: s.refused.Load(),
		Quarantined: s.quarantined.Load(), Damaged: s.damaged.Load(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Files = len(s.files)
	if len(s.files) > 0 {
		st.Oldest = begun(s.files[0])
	}
	return st
}

// Empty reports that there is no file: everything that was appended has been settled.
func (s *Spool) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.files) == 0
}

// Quarantine keeps a record that cannot be delivered, with the reason in its name's second file, for a person to look
// at. It never follows anything the record says.
func (s *Spool) Quarantine(data []byte, reason string) error {
	n := s.quarantined.Add(1)
	name := filepath.Join(s.cfg.Dir, quarantineName, fmt.Sprintf("%013d-%08d", time.Now().UnixMilli(), n))
	if err := errors.Join(keep(name+".record", data), keep(name+".reason", []byte(reason+"\n")), syncDir(filepath.Dir(name))); err != nil {
		return err
	}
	return nil
}

// keep writes a file and waits for the disk.
func keep(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	_, err = f.Write(data)
	err = cmp.Or(err, f.Sync())
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}
