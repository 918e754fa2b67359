package spool

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Record is one that was appended.
type Record struct {
	Data   []byte
	Unsure bool      // it was handed out before and not settled: it may have been delivered
	Since  time.Time // of an unsure one: not before this time
}

// Batch is the oldest records of the spool. Settle or Return it before the next.
type Batch struct {
	Records []Record
	s       *Spool
	end     int64
	before  int64 // how far records were handed out when it was made
}

// reader is how far the spool has been read. Besides Open and Close it belongs to whoever calls Next.
type reader struct {
	name    string // of the file in hand, "" none
	key     key
	data    []byte
	pos     int64 // settled up to here
	sent    int64 // handed out up to here, by this process or an earlier one
	since   int64 // and since when, in milliseconds; 0 while nothing is
	spoiled int64 // damage is in quarantine up to here
	place   position
	blind   bool         // the position could not be read: all of the oldest file may have been delivered
	past    map[key]bool // files that were settled
}

// position is what a crash must not forget. Records of the file between Done and Sent were handed out.
type position struct {
	Key  string `json:"key"` // of the file, hexadecimal
	Done int64  `json:"done"`
	Sent int64  `json:"sent"`
	At   int64  `json:"at"` // when the first of those was handed out, in milliseconds
}

// recall reads the position that an earlier process noted.
func (s *Spool) recall() error {
	s.reader.past = map[key]bool{}
	text, err := os.ReadFile(filepath.Join(s.cfg.Dir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	if err := json.Unmarshal(text, &s.reader.place); err != nil {
		s.log.Error("the position of the spool is damaged; its oldest file is handed out from the start", "err", err)
		s.reader.blind = true
	}
	return nil
}

// note puts the position on disk.
func (s *Spool) note(p position) error {
	if p == s.reader.place {
		return nil
	}
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	fresh := filepath.Join(s.cfg.Dir, stateName+".new")
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("spool: %w", err)
	}
	if err := keep(fresh, text); err != nil {
		return err
	}
	if err := os.Rename(fresh, filepath.Join(s.cfg.Dir, stateName)); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	if err := syncDir(s.cfg.Dir); err != nil {
		return err
	}
	s.reader.place = p
	return nil
}

// remember notes at the end of the process what was settled.
func (s *Spool) remember() error {
	r := &s.reader
	if r.name == "" {
		return nil
	}
	return s.note(r.position())
}

func (r *reader) position() position {
	return position{Key: hex.EncodeToString(r.key[:]), Done: r.pos, Sent: max(r.pos, r.sent), At: r.since}
}

// Next returns up to records records of at most bytes bytes in all, one at least; nil when the spool is empty. A file
// that is still written ends with it. An error leaves everything as it is.
func (s *Spool) Next(records int, bytes int64) (*Batch, error) {
	r := &s.reader
	for {
		if ok, err := s.load(); !ok || err != nil {
			return nil, err
		}
		b := &Batch{s: s, before: r.sent}
		at := r.pos
		for len(b.Records) < records && at < int64(len(r.data)) {
			data, skipped, size := r.key.next(r.data[at:])
			if skipped > 0 {
				if err := s.spoil(at, int64(skipped)); err != nil {
					return nil, err
				}
				at += int64(skipped)
				continue
			}
			if bytes -= int64(size); bytes < 0 && len(b.Records) > 0 {
				break
			}
			rec := Record{Data: data, Unsure: at < r.sent}
			if rec.Unsure {
				rec.Since = time.UnixMilli(r.since)
			}
			b.Records = append(b.Records, rec)
			at += int64(size)
		}
		if len(b.Records) == 0 {
			if err := s.finish(); err != nil {
				return nil, err
			}
			continue
		}
		b.end = at
		if r.sent <= r.pos || r.since == 0 {
			r.since = time.Now().UnixMilli()
		}
		r.sent = max(r.sent, at)
		return b, s.note(r.position())
	}
}

// Settle takes the batch off the spool: its records are delivered or in quarantine.
func (b *Batch) Settle() error {
	r := &b.s.reader
	r.pos = b.end
	b.s.settled.Add(int64(len(b.Records)))
	if r.pos == int64(len(r.data)) {
		return b.s.finish()
	}
	return nil
}

// Return leaves the batch to come again. unsure says that some of it may have been delivered.
func (b *Batch) Return(unsure bool) {
	if !unsure {
		b.s.reader.sent = b.before
	}
}

// load makes sure that the oldest file is in hand. It reports false when there is none.
func (s *Spool) load() (bool, error) {
	r := &s.reader
	for r.name == "" {
		s.mu.Lock()
		if len(s.files) == 0 {
			s.mu.Unlock()
			return false, nil
		}
		name := s.files[0]
		s.mu.Unlock()
		if err := s.pass(&job{seal: name, err: make(chan error, 1)}); err != nil {
			return false, err
		}
		data, err := s.readFile(name)
		if err != nil {
			return false, err
		}
		k, err := readHead(data)
		if err != nil || r.past[k] {
			if err == nil {
				err = errors.New("spool: another file with the same key was there before")
			}
			if err := s.setAside(name, int64(len(data)), err); err != nil {
				return false, err
			}
			continue
		}
		blind := r.blind
		*r = reader{name: name, key: k, data: data, pos: int64(fileHead), sent: int64(fileHead), place: r.place, past: r.past}
		if p := r.place; p.Key == hex.EncodeToString(k[:]) && p.Done >= r.pos && p.Done <= int64(len(data)) {
			r.pos, r.sent, r.since = p.Done, p.Sent, p.At
		}
		if blind {
			r.sent, r.since = int64(len(data)), begun(name).UnixMilli()
		}
		r.spoiled = r.pos
	}
	return true, nil
}

func (s *Spool) readFile(name string) ([]byte, error) {
	f, err := os.OpenFile(filepath.Join(s.cfg.Dir, name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	data := make([]byte, info.Size())
	if _, err := f.ReadAt(data, 0); err != nil && len(data) > 0 {
		return nil, fmt.Errorf("spool: %w", err)
	}
	return data, nil
}

// spoil moves a damaged stretch of the file in hand to quarantine, once.
func (s *Spool) spoil(at, n int64) error {
	r := &s.reader
	if at < r.spoiled {
		return nil
	}
	s.log.Warn("a spool file is damaged; what could not be read is in quarantine", "name", r.name, "offset", at, "bytes", n)
	s.damaged.Add(1)
	err := s.Quarantine(r.data[at:at+n], fmt.Sprintf("%s has no whole record in %d bytes from offset %d", r.name, n, at))
	if err == nil {
		r.spoiled = at + n
	}
	return err
}

// setAside moves a whole file to quarantine.
func (s *Spool) setAside(name string, size int64, cause error) error {
	s.log.Warn("a spool file is in quarantine", "name", name, "err", cause)
	s.damaged.Add(1)
	s.quarantined.Add(1)
	if err := os.Rename(filepath.Join(s.cfg.Dir, name), filepath.Join(s.cfg.Dir, quarantineName, name)); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return s.dropped(size)
}

// finish removes the file in hand, all of which is settled.
func (s *Spool) finish() error {
	r := &s.reader
	if err := os.Remove(filepath.Join(s.cfg.Dir, r.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("spool: %w", err)
	}
	if err := s.dropped(int64(len(r.data))); err != nil {
		return err
	}
	r.past[r.key] = true
	r.name, r.data = "", nil
	return nil
}

// dropped forgets the oldest file, which is out of the folder.
func (s *Spool) dropped(size int64) error {
	s.mu.Lock()
	s.files = s.files[1:]
	s.mu.Unlock()
	s.bytes.Add(-size)
	return syncDir(s.cfg.Dir)
}

// Each calls f with every record that is not settled, oldest first; f must not keep it. For the start, before anything
// is appended or read: it shows what an earlier process has left.
func (s *Spool) Each(f func(data []byte)) error {
	s.mu.Lock()
	names := append([]string(nil), s.files...)
	s.mu.Unlock()
	for _, name := range names {
		data, err := s.readFile(name)
		if err != nil {
			return err
		}
		k, err := readHead(data)
		if err != nil {
			continue // Next puts it aside
		}
		at := fileHead
		if p := s.reader.place; p.Key == hex.EncodeToString(k[:]) && p.Done >= int64(at) && p.Done <= int64(len(data)) {
			at = int(p.Done)
		}
		for at < len(data) {
			rec, skipped, size := k.next(data[at:])
			if size > 0 {
				f(rec)
			}
			at += skipped + size
		}
	}
	return nil
}
