package hist

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"runtime"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/gzip"
)

// Reader reads a history. It is for one goroutine.
type Reader struct {
	Header Header

	in    *bufio.Reader
	file  io.Closer
	cut   error
	lines int
}

// OpenFile opens a history and reads its header. The caller closes it.
func OpenFile(path string) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open a history: %w", err)
	}
	r, err := NewReader(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	r.file = f
	return r, nil
}

// NewReader reads the header of a history from in.
func NewReader(in io.Reader) (*Reader, error) {
	zip, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("no history: %w", err)
	}
	r := &Reader{in: bufio.NewReaderSize(zip, 256<<10)}
	head, err := r.in.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	r.lines = 1
	if err := json.Unmarshal(head, &r.Header); err != nil {
		return nil, fmt.Errorf("decode the header: %w", err)
	}
	if r.Header.Format != Format {
		return nil, fmt.Errorf("the history has format %d, this is for format %d", r.Header.Format, Format)
	}
	return r, nil
}

// Close closes the file of OpenFile.
func (r *Reader) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// Cut says why the history ends before its end, nil when it is whole. It is known when Events has ended. A cut history
// is what a crash of the harness leaves: what it shows did happen, but what it does not show may have.
func (r *Reader) Cut() error { return r.cut }

const (
	linesPerChunk = 512
	maxLine       = 64 << 20
)

// Events yields all events in the order of their stamps. It ends at the first error, which is one of a line that is
// whole and yet cannot be understood; a history that is cut ends without an error, see Cut.
//
// Lines are decoded by as many goroutines as there are processors; all of them have ended when the loop has.
func (r *Reader) Events() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		type decoded struct {
			events []Event
			err    error
		}
		stop := make(chan struct{})
		queue := make(chan chan decoded, runtime.GOMAXPROCS(0)+1) // bounds what is decoded ahead, and by how many
		go func() {
			defer close(queue)
			for {
				chunk, first, more := r.chunk()
				out := make(chan decoded, 1)
				select {
				case queue <- out:
				case <-stop:
					return
				}
				go func() {
					var d decoded
					d.events, d.err = parseLines(chunk, first)
					out <- d
				}()
				if !more {
					return
				}
			}
		}()
		// The order of these two: first nothing new is begun, then what is under way is waited for.
		defer func() {
			for out := range queue {
				<-out
			}
		}()
		defer close(stop)
		for out := range queue {
			d := <-out
			for i := range d.events {
				if !yield(d.events[i], nil) {
					return
				}
			}
			if d.err != nil {
				yield(Event{}, d.err)
				return
			}
		}
	}
}

// chunk reads some whole lines; first is the number of the first of them.
func (r *Reader) chunk() (lines [][]byte, first int, more bool) {
	first = r.lines + 1
	for len(lines) < linesPerChunk {
		text, err := r.in.ReadBytes('\n')
		if err == nil {
			r.lines++
			lines = append(lines, text)
			if len(text) > maxLine/linesPerChunk {
				return lines, first, true
			}
			continue
		}
		switch {
		case !errors.Is(err, io.EOF):
			r.cut = fmt.Errorf("the history is cut behind line %d: %w", r.lines, err)
		case len(text) > 0:
			r.cut = fmt.Errorf("the history is cut inside line %d", r.lines+1)
		}
		return lines, first, false
	}
	return lines, first, true
}

func parseLines(lines [][]byte, first int) ([]Event, error) {
	events := make([]Event, 0, len(lines))
	var p parser
	for i, text := range lines {
		e, err := p.parse(bytes.TrimSpace(text))
		if err != nil {
			return events, fmt.Errorf("line %d: %w", first+i, err)
		}
		events = append(events, e)
	}
	return events, nil
}

// Lines yields all lines behind the header as they are, until the history ends or is cut. A reader yields either Lines or
// Events, once.
func (r *Reader) Lines() iter.Seq2[jsontext.Value, error] {
	return func(yield func(jsontext.Value, error) bool) {
		for {
			lines, _, more := r.chunk()
			for _, text := range lines {
				if !yield(bytes.TrimSpace(text), nil) {
					return
				}
			}
			if !more {
				return
			}
		}
	}
}

// OpOf returns the operation that a line belongs to, 0 when it is none's.
func OpOf(text jsontext.Value) int64 {
	var l struct {
		Op int64 `json:"op"`
	}
	if err := json.Unmarshal(text, &l); err != nil {
		return 0
	}
	return l.Op
}
