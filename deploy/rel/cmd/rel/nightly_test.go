package main

import (
	"path/filepath"
	"testing"

	"github.com/queengate/queengate/deploy/rel/check"
)

func TestANightThatWasBrokenOffGoesOn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), stateFile)
	if done, seed, err := readState(path, 7); err != nil || len(done) != 0 || seed != 7 {
		t.Fatalf("a new night: %v %d %v", done, seed, err)
	}
	cells := matrix(7)
	for i, v := range []check.Verdict{check.Pass, check.Fail} {
		if err := appendState(path, cells[i], v); err != nil {
			t.Fatal(err)
		}
	}
	done, seed, err := readState(path, 99)
	if err != nil || seed != 7 || len(done) != 2 || done[cells[0].name()] != check.Pass || done[cells[1].name()] != check.Fail {
		t.Errorf("the night goes on with %v, seed %d, %v", done, seed, err)
	}
}

func TestCellsOfANightHaveNamesAndSeedsOfTheirOwn(t *testing.T) {
	t.Parallel()
	names, seeds := map[string]bool{}, map[uint64]bool{}
	for _, c := range matrix(1) {
		if names[c.name()] || seeds[c.Seed] {
			t.Errorf("%s with seed %d comes twice", c.name(), c.Seed)
		}
		names[c.name()], seeds[c.Seed] = true, true
	}
}

// What a run prints must make the same run.
func TestTheCommandOfARunMakesItAgain(t *testing.T) {
	t.Parallel()
	var gated []cell
	for _, lanes := range gateRounds() {
		for _, l := range lanes {
			gated = append(gated, l...)
		}
	}
	for _, c := range append(append(matrix(5), gated...), smoke) {
		f := newRunFlags(t.Output())
		if err := f.Parse(c.args()); err != nil {
			t.Fatal(err)
		}
		if got, want := f.cell.command(), c.command(); got != want {
			t.Errorf("%s\nmakes\n%s", want, got)
		}
	}
}
