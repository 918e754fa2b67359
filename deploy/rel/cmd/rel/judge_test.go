package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queengate/queengate/deploy/rel/check"
	"github.com/queengate/queengate/deploy/rel/hist"
)

func TestExitCodesOfJudge(t *testing.T) {
	t.Parallel()
	run := func(notes ...func(*hist.Writer)) string {
		dir := t.TempDir()
		w, err := hist.Create(filepath.Join(dir, check.HistoryFile), hist.Header{Run: "r1", Cmd: "rel run"})
		if err != nil {
			t.Fatal(err)
		}
		for _, note := range notes {
			note(w)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	done := func(w *hist.Writer) {
		w.Invoke(hist.Call{F: hist.Health}, &hist.HealthArgs{}).Complete(hist.OK, 200, &hist.HealthAnswer{}, nil)
		w.Phase(hist.Done)
	}
	panicked := func(w *hist.Writer) { w.Note(hist.Log, &hist.LogNote{Process: "br1", Line: "panic: boom"}) }
	late := func(w *hist.Writer) {
		w.Note(hist.Rest, &hist.RestNote{Process: "gw1", PID: 7})
		w.Note(hist.Rest, &hist.RestNote{Process: "gw1", PID: 7, After: true, Goroutines: 999})
		w.Note(hist.Machine, &hist.MachineNote{ForMs: 1000, Others: 0.5, Wait: 0.5})
	}
	for name, c := range map[string]struct {
		args []string
		want int
		says string
	}{
		"a pass":              {[]string{"judge", run(done)}, exitPass, "# PASS: r1"},
		"a failure":           {[]string{"judge", run(panicked, done)}, exitFail, "panic: boom"},
		"unknown":             {[]string{"judge", run()}, exitUnknown, "did not come to its end"},
		"not judged":          {[]string{"judge", run(late, done)}, exitUnknown, "# NOT JUDGED: r1"},
		"unknown, forgiven":   {[]string{"judge", "-strict=false", run()}, exitPass, "# UNKNOWN"},
		"another run":         {[]string{"judge", "-run", "r2", run(done)}, exitUsage, `of the run "r1", not of "r2"`},
		"no history":          {[]string{"judge", t.TempDir()}, exitUsage, "history.jsonl.gz"},
		"no folder":           {[]string{"judge"}, exitUsage, "usage: rel judge"},
		"no command":          {nil, exitUsage, "rel judge"},
		"an unknown command":  {[]string{"jugde"}, exitUsage, "rel judge"},
		"an unknown argument": {[]string{"judge", "-x"}, exitUsage, "-x"},
	} {
		var out bytes.Buffer
		if got := app(t.Context(), c.args, &out, &out); got != c.want || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: exit %d, want %d; said:\n%s", name, got, c.want, out.String())
		}
	}
}
