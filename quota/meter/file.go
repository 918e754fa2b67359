package meter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/datadir"
)

// Unsaved is what one life of a gateway has counted and could not save: each count as a whole, so that saving it twice
// changes nothing.
type Unsaved struct {
	Gateway string // its name in that life
	Counts  []Count
}

// File keeps on disk what could not be saved, until the control database has it. Not safe for concurrent use.
type File struct{ path string }

// NewFile returns the file at path. It does no I/O.
func NewFile(path string) *File { return &File{path} }

// entry is a count as the file has it: one line of JSON each, after one with the CRC-32 of the rest.
type entry struct {
	Gateway  string    `json:"gateway"`
	Cluster  uuid.UUID `json:"cluster"`
	Month    string    `json:"month"`
	Messages int64     `json:"messages"`
}

const (
	fileHead  = "unsaved months, crc32 %08x\n"
	monthForm = "2006-01"
)

// Read returns what the file has; nothing when there is none. One that is damaged is put aside, as the error says.
func (f *File) Read() ([]Unsaved, error) {
	text, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read unsaved months: %w", err)
	}
	all, err := parseFile(text)
	if err != nil {
		aside := f.path + ".damaged"
		return nil, fmt.Errorf("%s is put aside as %s: %w", f.path, aside, errors.Join(err, os.Rename(f.path, aside)))
	}
	return all, nil
}

func parseFile(text []byte) (all []Unsaved, err error) {
	head, rest, _ := bytes.Cut(text, []byte("\n"))
	if string(head)+"\n" != fmt.Sprintf(fileHead, crc32.ChecksumIEEE(rest)) {
		return nil, errors.New("it is damaged")
	}
	for line := range bytes.Lines(rest) {
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		at, err := time.Parse(monthForm, e.Month)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		if n := len(all); n == 0 || all[n-1].Gateway != e.Gateway {
			all = append(all, Unsaved{Gateway: e.Gateway})
		}
		u := &all[len(all)-1]
		u.Counts = append(u.Counts, Count{e.Cluster, month(at.Year(), at.Month()), e.Messages})
	}
	return all, nil
}

// Write replaces what the file has; without counts it removes the file. A crash leaves the old or the new content, and what
// was written survives a power cut.
func (f *File) Write(all []Unsaved) error {
	var rest bytes.Buffer
	lines := json.NewEncoder(&rest)
	for _, u := range all {
		for _, c := range u.Counts {
			if err := lines.Encode(entry{u.Gateway, c.Cluster, c.Month.first().Format(monthForm), c.Messages}); err != nil {
				return fmt.Errorf("write unsaved months: %w", err)
			}
		}
	}
	var err error
	if rest.Len() == 0 {
		if err = os.Remove(f.path); err == nil {
			err = datadir.SyncDir(filepath.Dir(f.path))
		} else if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	} else {
		head := fmt.Sprintf(fileHead, crc32.ChecksumIEEE(rest.Bytes()))
		err = datadir.WriteFile(f.path, append([]byte(head), rest.Bytes()...), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write unsaved months: %w", err)
	}
	return nil
}
