package meter

import (
	"slices"
	"testing"
)

// Who says that it is alone is heard of for four seconds, and what was said an hour ago is not kept.
func TestWhoIsAloneIsHeardOf(t *testing.T) {
	t.Parallel()
	w := setup(t)
	alone := func(want ...string) {
		t.Helper()
		got, err := w.Alone(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("alone: %v, want %v", got, want)
		}
	}
	say := func(gateway string) {
		t.Helper()
		if err := w.SayAlone(t.Context(), gateway); err != nil {
			t.Fatal(err)
		}
	}
	age := func(interval string) {
		t.Helper()
		if _, err := w.pool.Exec(t.Context(), `UPDATE queengate.gateways_alone SET said_at = said_at - $1::text::interval`, interval); err != nil {
			t.Fatal(err)
		}
	}
	alone()
	say("1")
	age("-1 hour") // however slow this test is
	alone("1")
	age("1 hour 4 s")
	alone()
	say("1")
	age("-1 hour")
	alone("1")
	age("2 hours 1 s")
	say("2")
	age("-1 hour")
	alone("2")
	if n := scan[int](w, `SELECT count(*) FROM queengate.gateways_alone`); n != 1 {
		t.Fatalf("%d rows, want what was said within the hour", n)
	}
}
