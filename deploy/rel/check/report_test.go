package check

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// A run that breaks nothing and proves nothing is unknown, with its reason.
func TestWhatProvesNothingIsUnknown(t *testing.T) {
	t.Parallel()
	good := func(s *story) { s.push("q", 1, 2) }
	for name, c := range map[string]struct {
		tell func(*story)
		cut  error
		says string
	}{
		"a floor is not reached": {func(s *story) { s.h.Floors.Pushes = 3; good(s); s.end() }, nil, "floor: 2 pushes, want 3"},
		"no end":                 {func(s *story) { good(s); s.end(); s.events = s.events[:len(s.events)-1] }, nil, "did not come to its end"},
		"a cut file":             {func(s *story) { good(s); s.end() }, errors.New("cut behind line 7"), "cut behind line 7"},
		"a fault that nobody saw": {func(s *story) {
			s.fault(1, hist.FaultBegins, hist.Fault{Name: "N1", Action: "kill-9", Target: "br1"})
			s.fault(1, hist.FaultEnds, hist.Fault{})
			good(s)
			s.end()
		}, nil, "N1 (kill-9 br1) was never seen to work"},
		"a fault that never ended": {func(s *story) {
			s.fault(1, hist.FaultBegins, hist.Fault{Name: "N1", Action: "kill-9", Target: "br1"})
			s.fault(1, hist.FaultObserved, hist.Fault{})
			good(s)
			s.end()
		}, nil, "never ended"},
		"a broker was not read": {func(s *story) { s.h.Topology.Brokers = []string{"br1", "br2"}; good(s); s.end() }, nil, "was not read to the end on br2"},
		"the final reads end too early": {func(s *story) {
			good(s)
			s.fetch("q", "p0")
			s.logs["q/p0"] = s.logs["q/p0"][:1]
			s.end()
			s.events[len(s.events)-2].V.(*hist.FetchAnswer).Entries[0].HighWatermark = 2
		}, nil, "end at offset 1 of 2"},
		"a queue that the header does not name": {func(s *story) { good(s); s.push("other", 1); s.end() }, nil, "does not name the queue other"},
		"nothing tested a rule of a workload":   {func(s *story) { s.end() }, nil, "O2: W1 ran, and nothing of it tested this rule"},
		"a noisy machine": {func(s *story) {
			s.put(hist.Event{Kind: hist.Noted, F: hist.Noise, A: &hist.NoiseNote{TimerP99Ms: 250}})
			good(s)
			s.end()
		}, nil, "too noisy"},
		"commits that a failover lost": {func(s *story) {
			f := hist.Fault{Name: "N10", Action: "promote-async", Target: "pg", Lossy: true}
			s.fault(1, hist.FaultBegins, f)
			s.fault(1, hist.FaultObserved, f)
			s.fault(1, hist.FaultEnds, f)
			s.push("q", 1)
			s.begin(hist.Push, messages("q", 2)).ok(&hist.PushAnswer{result("queued", 1)})
			s.store(message("q", 3))
			s.begin(hist.Push, messages("q", 3)).info()
			s.end()
		}, nil, "lost commits by design"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tell(t, plain...)
			c.tell(s)
			r, err := judgeEvents(&s.h, s.seq(), func() error { return c.cut }, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if r.Verdict != Unknown || !slices.ContainsFunc(r.Reasons, func(why string) bool { return strings.Contains(why, c.says) }) {
				t.Errorf("%s, want UNKNOWN because %q:\n%s", r.Verdict, c.says, strings.Join(r.Reasons, "\n"))
			}
		})
	}
}

// A history that cannot be is an error and not a verdict.
func TestAHistoryThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	for name, tell := range map[string]func(*story){
		"back twice":          func(s *story) { o := s.begin(hist.Health, &hist.HealthArgs{}); o.fail(); o.fail() },
		"back uninvoked":      func(s *story) { (&open{s, hist.Event{Op: 9, F: hist.Push}}).fail() },
		"back as another":     func(s *story) { o := s.begin(hist.Health, &hist.HealthArgs{}); o.e.F = hist.Pop; o.fail() },
		"an answer too short": func(s *story) { s.begin(hist.Push, messages("q", 1)).ok(&hist.PushAnswer{}) },
		"ok without answer":   func(s *story) { s.begin(hist.Push, messages("q", 1)).ok(nil) },
		"no arguments":        func(s *story) { s.begin(hist.Push, nil) },
		"an unknown kind":     func(s *story) { s.put(hist.Event{Kind: "maybe"}) },
	} {
		s := story{}
		s.t, s.h.Queues = t, plain
		tell(&s)
		if _, err := judgeEvents(&s.h, s.seq(), nil, Options{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// store writes a story as a run writes it.
func store(t *testing.T, s *story, dir string) {
	t.Helper()
	w, err := hist.Create(filepath.Join(dir, HistoryFile), s.h)
	if err != nil {
		t.Fatal(err)
	}
	under := map[int64]hist.Open{}
	for _, e := range s.events {
		switch e.Kind {
		case hist.Invoked:
			under[e.Op] = w.Invoke(hist.Call{W: e.W, Client: e.Client, Node: e.Node, Tenant: e.Tenant, F: e.F}, e.A)
		case hist.Noted:
			w.Note(e.F, e.A)
		default:
			under[e.Op].Complete(e.Kind, e.Status, e.V, nil)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAStoredRunIsJudgedAgainAndAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := tell(t, plain...)
	s.h.Cmd = "rel run -seed 7"
	s.push("q", 1)
	s.store(message("q", 2)) // nobody's
	s.end()
	store(t, s, dir)
	for range 2 {
		r, err := Dir(dir, "story", Options{})
		if err != nil {
			t.Fatal(err)
		}
		if rules, _ := red(r); r.Verdict != Fail || !slices.Equal(rules, []string{"O5"}) {
			t.Errorf("%s %v", r.Verdict, rules)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, MarkdownFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# FAIL: story", "Again: `rel run -seed 7`", "| O5 | FAIL |", "nobody pushed /q/p0/a/2", `"k":"inv"`, `"f":"fetch"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the report does not say %q:\n%s", want, text)
		}
	}
	if _, err := Dir(dir, "another", Options{}); err == nil {
		t.Error("a folder of another run than the one asked for is judged")
	}
	if err := os.WriteFile(filepath.Join(dir, "pg.json"), []byte(`{"run":"another"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Dir(dir, "", Options{}); err == nil || !strings.Contains(err.Error(), `of the run "another"`) {
		t.Errorf("a folder with an artefact of another run is judged: %v", err)
	}
}

// What was late while the machine worked for others is not judged, and the report says so. Nothing else is an excuse: not
// the run's own load, not a busy moment long before or after, and not for a rule that does not go by time.
func TestWhatABusyMachineExplains(t *testing.T) {
	t.Parallel()
	others := func(part, wait float64) func(*story) {
		return func(s *story) {
			s.noted(hist.Machine, &hist.MachineNote{ForMs: 5000, LateMs: 3, Others: part, Wait: wait})
		}
	}
	calm := func(s *story) {
		for range 3 {
			s.noted(hist.Machine, &hist.MachineNote{ForMs: 1000, LateMs: 3, Wait: 0.9})
		}
		s.push("q", 7)
		s.push("q", 8)
	}
	good := func(s *story) { s.push("q", 1, 2) }
	for name, c := range map[string]struct {
		before, tell, after func(*story)
		want                Verdict
	}{
		"a late client beside others":       {calm, tooLate, others(0.5, 0.8), NotJudged},
		"a late client by itself":           {calm, tooLate, others(0, 0.9), Fail},
		"others that nobody waits for":      {calm, tooLate, others(0.5, 0.1), Fail},
		"a runner that stood still":         {calm, tooLate, func(s *story) { s.noted(hist.Machine, &hist.MachineNote{ForMs: 1000, LateMs: 300}) }, NotJudged},
		"a timer that is late all the time": {calm, tooLate, func(s *story) { s.noted(hist.Noise, &hist.NoiseNote{TimerP99Ms: 40}) }, NotJudged},
		"others long after":                 {calm, tooLate, func(s *story) { s.now += 20 * second; others(0.5, 0.8)(s) }, Fail},
		"a lost message beside others":      {calm, func(s *story) { s.push("q", 1, 2); s.logs["q/p0"] = s.logs["q/p0"][:1] }, others(0.5, 0.8), Fail},
		"a punctual client beside others":   {others(0.5, 0.8), good, others(0.5, 0.8), Pass},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tell(t, plain...)
			c.before(s)
			c.tell(s)
			c.after(s)
			s.end()
			r := s.judge()
			if r.Verdict != c.want {
				t.Errorf("%s, want %s:\n%s", r.Verdict, c.want, strings.Join(r.Reasons, "\n"))
			}
			if told := strings.Contains(strings.Join(r.Reasons, "\n"), busyMachine); told != (c.want == NotJudged) {
				t.Errorf("%s:\n%s", r.Verdict, strings.Join(r.Reasons, "\n"))
			}
		})
	}
}
