package lab

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// shelf is a lab without a system.
func shelf(t *testing.T) (*Lab, context.Context, func() []hist.ExitNote) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "log"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "h.gz")
	rec, err := hist.Create(path, hist.Header{Run: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, fail := context.WithCancelCause(t.Context())
	return &Lab{dir: dir, rec: rec, fail: fail}, ctx, func() (notes []hist.ExitNote) {
		if err := rec.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := hist.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for e, err := range r.Events() {
			if err != nil {
				t.Fatal(err)
			}
			if n, ok := e.A.(*hist.ExitNote); ok {
				notes = append(notes, *n)
			}
		}
		return notes
	}
}

func TestAnEndThatNobodyWantedEndsTheRun(t *testing.T) {
	t.Parallel()
	l, ctx, notes := shelf(t)
	p, err := l.start("short", exec.Command("sh", "-c", "echo bye; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if cause := context.Cause(ctx); cause == nil || !strings.Contains(cause.Error(), "short ended on its own") {
		t.Errorf("the run ends for %v", cause)
	}
	if got := notes(); len(got) != 1 || got[0] != (hist.ExitNote{Process: "short", Code: 3}) {
		t.Errorf("noted: %+v", got)
	}
	if b, err := os.ReadFile(filepath.Join(l.dir, "log", "short.log")); string(b) != "bye\n" || err != nil {
		t.Errorf("its log is %q, %v", b, err)
	}
}

func TestAnEndThatWasWantedIsNoted(t *testing.T) {
	t.Parallel()
	l, ctx, notes := shelf(t)
	p, err := l.start("long", exec.Command("sleep", "1000"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := p.End(t.Context(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil || p.Alive() {
		t.Errorf("alive %v, the run: %v", p.Alive(), context.Cause(ctx))
	}
	if got := notes(); len(got) != 1 || got[0] != (hist.ExitNote{Process: "long", Code: -1, Signal: "killed", Expected: true}) {
		t.Errorf("noted: %+v", got)
	}
}
