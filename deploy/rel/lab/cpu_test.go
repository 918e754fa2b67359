package lab

import (
	"os"
	"os/exec"
	"testing"
)

// What a child spends is the family's, while it runs and when it is gone; what nobody of it has spent is not.
func TestWhatAFamilySpends(t *testing.T) {
	t.Parallel()
	before := spent(os.Getpid())
	if before.all == 0 {
		t.Skip("this kernel does not say what is spent")
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	child := cmd.Process.Pid
	const some = 20
	for family(child) < some {
		if t.Context().Err() != nil {
			t.Fatal("the child spends nothing")
		}
	}
	if own := family(os.Getpid()); own < before.own+some {
		t.Errorf("the family has spent %d, %d before its child began, which has spent %d", own, before.own, some)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	now := spent(os.Getpid())
	if now.own < before.own+some {
		t.Errorf("the family has spent %d when its child is gone, and %d before", now.own, before.own)
	}
	if family(child) != 0 {
		t.Error("a process that is gone has a family")
	}
}

func TestWhatOthersSpend(t *testing.T) {
	t.Parallel()
	before := spending{all: 1000, idle: 400, used: 500, own: 100}
	for name, x := range map[string]struct {
		now          spending
		others, busy float64
	}{
		"others":                     {spending{all: 1200, idle: 500, used: 600, own: 140}, 0.3, 0.5},
		"nobody but us":              {spending{all: 1200, idle: 500, used: 600, own: 205}, 0, 0.5}, // counted a moment later
		"a kernel that says nothing": {before, 0, 0},
	} {
		if got := x.now.others(before); got != x.others {
			t.Errorf("%s: others have %v, want %v", name, got, x.others)
		}
		if got := x.now.busy(before); got != x.busy {
			t.Errorf("%s: busy %v, want %v", name, got, x.busy)
		}
	}
}
