package obs

import (
	"errors"
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
		if len(r.writes) != 0 {
			t.Fatalf("written at once: %q", r.writes)
		}
		time.Sleep(bufferTime)
		synctest.Wait()
		if len(r.writes) != 1 || r.writes[0] != "one\ntwo\n" {
			t.Errorf("got %q", r.writes)
		}
	})
}

func TestBufferIsBoundedAndFlushed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		b := NewBuffer(r)
		big := strings.Repeat("x", bufferSize)
		if _, err := b.Write([]byte(big)); err != nil || len(r.writes) != 1 {
			t.Errorf("a full buffer waits: %d writes, %v", len(r.writes), err)
		}
		if _, err := b.Write([]byte("last\n")); err != nil {
			t.Fatal(err)
		}
		r.err = errors.New("disk full")
		if err := b.Flush(); !errors.Is(err, r.err) {
			t.Errorf("Flush hides the error of its write: %v", err)
		}
		if r.writes[len(r.writes)-1] != "last\n" {
			t.Errorf("got %q", r.writes)
		}
		if err := b.Flush(); err != nil {
			t.Errorf("an error is told twice: %v", err)
		}
		time.Sleep(bufferTime) // the timer of the first line finds nothing to do
	})
}
