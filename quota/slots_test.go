package quota

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestSlotsKnowTheEarliestDeadline(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s slots
		var parked []*Admission
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			if len(parked) == 0 || rapid.IntRange(0, 2).Draw(t, "op") > 0 {
				a := &Admission{place: -1, deadline: rapid.Int64Range(0, 50).Draw(t, "deadline")}
				s.park(a)
				parked = append(parked, a)
			} else {
				i := rapid.IntRange(0, len(parked)-1).Draw(t, "who")
				a := parked[i]
				parked = slices.Delete(parked, i, i+1)
				if !s.leave(a) || s.leave(a) {
					t.Fatal("a slot is freed exactly once")
				}
			}
			if len(s) != len(parked) {
				t.Fatalf("%d slots, want %d", len(s), len(parked))
			}
			for i, a := range s {
				if int(a.place) != i {
					t.Fatalf("slot %d thinks it is %d", i, a.place)
				}
			}
			got, ok := s.earliest()
			if ok != (len(parked) > 0) {
				t.Fatalf("earliest says %v of %d", ok, len(parked))
			}
			if !ok {
				continue
			}
			want := slices.MinFunc(parked, func(a, b *Admission) int { return int(a.deadline - b.deadline) })
			if got != want.deadline {
				t.Fatalf("earliest %d, want %d", got, want.deadline)
			}
		}
	})
}
