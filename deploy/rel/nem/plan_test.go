package nem

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queengate/queengate/deploy/rel/lab"
)

func TestAScheduleFollowsFromItsSeed(t *testing.T) {
	t.Parallel()
	names := []string{"N1", "N5", "N8"}
	a, b := Schedule(7, names, Shape{Load: 2 * time.Minute, Quiet: 2 * time.Second, Brokers: 3}), Schedule(7, names, Shape{Load: 2 * time.Minute, Quiet: 2 * time.Second, Brokers: 3})
	if d := cmp.Diff(a, b); d != "" {
		t.Errorf("one seed, two schedules:\n%s", d)
	}
	if cmp.Equal(a, Schedule(8, names, Shape{Load: 2 * time.Minute, Quiet: 2 * time.Second, Brokers: 3})) {
		t.Error("two seeds, one schedule")
	}
	if len(a) < 6 {
		t.Fatalf("%d faults in two minutes", len(a))
	}
	for i, p := range a {
		if p.Name != names[i%3] {
			t.Errorf("fault %d is %s", i, p.Name)
		}
		if end := p.At + p.For + settle; end > 2*time.Minute || i > 0 && p.At < a[i-1].At+a[i-1].For+settle {
			t.Errorf("%s does not leave the system its time", p)
		}
		if i >= 3 && p.Action == a[i-3].Action {
			t.Errorf("%s comes twice in a row", p)
		}
	}
}

func TestEveryActionHasItsTurn(t *testing.T) {
	t.Parallel()
	for name, k := range kinds {
		seen := map[string]bool{}
		for _, p := range Schedule(1, []string{name}, Shape{Load: 10 * time.Minute, Brokers: 3, Gateways: 3}) {
			seen[p.Action] = true
		}
		if len(seen) != len(k.actions) {
			t.Errorf("%s: of %v came %v", name, k.actions, seen)
		}
	}
}

func TestOneActionMayBeAskedFor(t *testing.T) {
	t.Parallel()
	plan := Schedule(1, []string{"N8:immediate", "N1"}, Shape{Once: true, Brokers: 3})
	if len(plan) != 2 || plan[0].Action != "immediate" || plan[0].Target != "pg" || Length(plan) < plan[1].At+plan[1].For {
		t.Errorf("%v lasts %s", plan, Length(plan))
	}
}

func TestWhatCannotBeHadIsSaid(t *testing.T) {
	t.Parallel()
	if ok, _ := Known("N99", &lab.Config{}); ok {
		t.Error("there is N99")
	}
	for _, name := range []string{"N6", "N10", "N14", "N16", "N17"} {
		if ok, why := Known(name, &lab.Config{}); !ok || why == "" {
			t.Errorf("%s is there in a lab that has nothing: %v %q", name, ok, why)
		}
	}
}

// What is put into a spool must look like files of it, and leave those that are there whole.
func TestLitterKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old, newest := filepath.Join(dir, "1700000000000-00000001.spool"), filepath.Join(dir, "1700000000000-00000009.spool")
	for _, f := range []string{old, newest} {
		if err := os.WriteFile(f, []byte("records of "+f), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made, err := litter([]string{old, newest}, rand.New(rand.NewPCG(1, 2)))
	if err != nil || made != 6 {
		t.Fatalf("%d files, %v", made, err)
	}
	if b, err := os.ReadFile(newest); err != nil || len(b) <= len("records of "+newest) || string(b[:11+len(newest)]) != "records of "+newest {
		t.Errorf("the newest file reads %q, %v", b, err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.spool"))
	if err != nil || len(names) != 8 || !slices.Contains(names, filepath.Join(dir, "1700000000000-00000015.spool")) {
		t.Errorf("there are %v, %v", names, err)
	}
}
