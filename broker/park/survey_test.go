package park

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestParkedCountsEveryKindOfWait(t *testing.T) {
	t.Parallel()
	reg := New(100)
	tenant := uuid.New()
	far := time.Now().Add(time.Hour)
	ended := make(chan Wake, 8)
	wait := func(queue, group string, pin Pin, f func(*Ticket) Wake) {
		ticket := reg.Join(Key{tenant, queue, group}, pin)
		go func() {
			w := f(ticket)
			ticket.Leave()
			ended <- w
		}()
	}
	plain := func(t *Ticket) Wake { return t.Wait(far, nil) }
	rest := func(t *Ticket) Wake { return t.Rest(time.Hour, far, nil) }
	wait("q", "a", Pin{}, plain)
	wait("q", "a", Pin{ID: 7}, plain)
	wait("q", "b", Pin{Name: "not there"}, plain)
	wait("q", "b", Pin{}, rest)
	wait("other", "a", Pin{}, rest)
	counts := func() map[string]int {
		got := map[string]int{}
		reg.Parked(func(of uuid.UUID, queue string, polls int) {
			if of != tenant {
				t.Errorf("tenant %v", of)
			}
			got[queue] = polls
		})
		return got
	}
	for end := time.Now().Add(30 * time.Second); reg.Waiting() < 5; {
		if time.Now().After(end) {
			t.Fatalf("%d wait", reg.Waiting())
		}
	}
	if got := counts(); got["q"] != 4 || got["other"] != 1 || len(got) != 2 {
		t.Errorf("%v", got)
	}
	reg.WakeResting()
	for range 2 {
		if w := <-ended; w != Ready {
			t.Errorf("a rest ended with %v", w)
		}
	}
	if got := counts(); got["q"] != 3 || len(got) != 1 {
		t.Errorf("after the rests: %v", got)
	}
	reg.Drain()
	for range 3 {
		if w := <-ended; w != Drained {
			t.Errorf("a wait ended with %v", w)
		}
	}
	if got := counts(); len(got) != 0 {
		t.Errorf("in the end: %v", got)
	}
	reg.Close()
}
