package spool

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// job is one Append.
type job struct {
	records [][]byte
	bytes   int64
	seal    string // instead of records: the file to end, when it is the one that is written
	err     chan error
}

// maxGroup bounds the bytes that share an fsync.
const maxGroup = 32 << 20

// Append stores records, all or none of them, in their order and behind all that earlier calls have stored, and returns
// when they are on disk. It keeps nothing of records.
func (s *Spool) Append(records ...[]byte) error {
	j := &job{records: records, err: make(chan error, 1)}
	for _, r := range records {
		if len(r) > MaxRecord {
			return fmt.Errorf("spool: a record of %d bytes", len(r))
		}
		j.bytes += int64(recordHead + len(r))
	}
	if err := s.pass(j); err != nil {
		s.refused.Add(int64(len(records)))
		return err
	}
	s.appended.Add(int64(len(records)))
	return nil
}

// pass hands a job to the writer and waits for its end.
func (s *Spool) pass(j *job) error {
	s.gate.RLock()
	if s.closed {
		s.gate.RUnlock()
		return ErrClosed
	}
	s.work <- j
	s.gate.RUnlock()
	return <-j.err
}

// write serves the appends until Close: all that have come share one write and one fsync.
func (s *Spool) write() {
	defer close(s.done)
	var buf []byte
	for first := range s.work {
		group, total := []*job{first}, first.bytes
		for open := true; open && total < maxGroup; {
			select {
			case j, ok := <-s.work:
				if !ok {
					open = false
					break
				}
				group, total = append(group, j), total+j.bytes
			default:
				open = false
			}
		}
		buf = s.writeGroup(group, buf[:0])
		if cap(buf) > maxGroup {
			buf = nil
		}
	}
}

// writeGroup stores the jobs that find room and answers all. A job that ends the file comes after those it came with:
// what they are answered is then in the file for whoever asked for the end.
func (s *Spool) writeGroup(group []*job, buf []byte) []byte {
	var seals []*job
	group = slices.DeleteFunc(group, func(j *job) bool {
		if j.seal != "" {
			seals = append(seals, j)
		}
		return j.seal != ""
	})
	defer func() {
		for _, j := range seals {
			s.endFile(j.seal)
			j.err <- nil
		}
	}()
	if len(group) == 0 {
		return buf
	}
	out, err := s.output()
	if err != nil {
		for _, j := range group {
			j.err <- err
		}
		return buf
	}
	room := s.cfg.MaxBytes - s.bytes.Load()
	var stored []*job
	for _, j := range group {
		if j.bytes > room {
			j.err <- ErrFull
			continue
		}
		room -= j.bytes
		for _, r := range j.records {
			buf = out.key.appendRecord(buf, r)
		}
		stored = append(stored, j)
	}
	if len(stored) == 0 {
		return buf
	}
	// Counted before the reader can see it.
	s.bytes.Add(int64(len(buf)))
	err = out.write(buf)
	if err != nil {
		s.bytes.Add(-int64(len(buf)))
		err = s.poisoned(out, err)
	}
	for _, j := range stored {
		j.err <- err
	}
	return buf
}

// output returns the file to write to, a new one when there is none or it is full.
func (s *Spool) output() (*output, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out != nil && s.out.synced < s.cfg.FileBytes {
		return s.out, nil
	}
	s.endLocked()
	if s.bytes.Load()+int64(fileHead) > s.cfg.MaxBytes {
		return nil, ErrFull
	}
	s.number++
	at := time.Now()
	name := nameOf(at, s.number)
	// A clock that was set back must not put new records before old ones.
	if n := len(s.files); n > 0 && name <= s.files[n-1] {
		name = s.files[n-1][:13] + name[13:]
	}
	out, err := create(s.cfg.Dir, name)
	if err != nil {
		return nil, err
	}
	s.out = out
	s.files = append(s.files, name)
	s.bytes.Add(int64(fileHead))
	return out, nil
}

func (s *Spool) endFile(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out != nil && s.out.name == name {
		s.endLocked()
	}
}

func (s *Spool) endLocked() {
	if s.out == nil {
		return
	}
	if err := s.out.f.Close(); err != nil {
		s.log.Warn("a spool file could not be closed", "name", s.out.name, "err", err) // its bytes are synced
	}
	s.out = nil
}

// poisoned gives up a file whose write failed. What is on disk of it before that write stays to be read.
func (s *Spool) poisoned(out *output, cause error) error {
	gone := out.cut()
	s.log.Error("a spool file cannot be written and is given up", "name", out.name, "err", cause, "cut", gone)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = nil
	if gone {
		return cause
	}
	return errors.Join(ErrUnknown, cause)
}
