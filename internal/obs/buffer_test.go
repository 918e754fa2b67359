package obs

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type recorder struct {
	mu     sync.Mutex // guards writes
	writes []string
	err    error
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes = append(r.writes, string(p))
	return len(p), r.err
}

// read returns what was written so far, a text per system call.
func (r *recorder) read() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.writes)
}

// fail makes every further write fail.
func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func TestBufferGathersLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		b := NewBuffer(r)
		for _, line := range []string{"one\n", "two\n"} {
			if _, err := b.Write([]byte(line)); err != nil {
				t.Fatal(err)
			}
		}
		if got := r.read(); len(got) != 0 {
			t.Fatalf("written at once: %q", got)
		}
		time.Sleep(bufferTime)
		synctest.Wait()
		if got := r.read(); len(got) != 1 || got[0] != "one\ntwo\n" {
			t.Errorf("got %q, want both lines in one write", got)
		}
	})
}

func TestBufferIsBoundedAndFlushed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		b := NewBuffer(r)
		big := strings.Repeat("x", bufferSize)
		if _, err := b.Write([]byte(big)); err != nil || len(r.read()) != 1 {
			t.Errorf("a full buffer waits: %d writes, %v", len(r.read()), err)
		}
		if _, err := b.Write([]byte("last\n")); err != nil {
			t.Fatal(err)
		}
		full := errors.New("disk full")
		r.fail(full)
		if err := b.Flush(); !errors.Is(err, full) {
			t.Errorf("Flush hides the error of its write: %v", err)
		}
		if got := r.read(); got[len(got)-1] != "last\n" {
			t.Errorf("got %q, want the last line last", got)
		}
		if err := b.Flush(); err != nil {
			t.Errorf("an error is told twice: %v", err)
		}
		time.Sleep(bufferTime) // the timer of the first line finds nothing to do
	})
}
