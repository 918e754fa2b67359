package quota

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/queengate/queengate/quota/meter"
)

// shelfWorld is the lives of one gateway, over one data folder.
type shelfWorld struct {
	*overtime
	path string
}

func newShelfWorld(t *testing.T) *shelfWorld {
	return &shelfWorld{
		&overtime{t: t, months: newFakeMonths(), cluster: clusterWith(allowance(1000)), now: start},
		filepath.Join(t.TempDir(), "months.unsaved"),
	}
}

// life begins another life of the gateway.
func (w *shelfWorld) life() *Gate {
	g := NewGate(slog.New(slog.DiscardHandler), WithMonths(w.months), WithClock(w.clock), WithShelf(meter.NewFile(w.path)))
	g.epoch = start.Add(-time.Hour)
	return g
}

// stop ends a life as Run does.
func (w *shelfWorld) stop(g *Gate) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	cancel()
	if err := g.saveUntil(ctx); err != nil {
		w.t.Fatal(err)
	}
}

func (w *shelfWorld) away(is bool) { w.months.set(func(f *fakeMonths) { f.away = is }) }

func (w *shelfWorld) file() bool {
	_, err := os.Stat(w.path)
	return err == nil
}

// saved checks what the control database has, all told.
func (w *shelfWorld) saved(want int64) {
	w.t.Helper()
	if got := w.months.total(w.cluster.ID, monthOf(w.now)); got != want {
		w.t.Fatalf("%d messages were saved, want %d", got, want)
	}
}

// What was counted while the control database was away is saved by the next life that finds it, once.
func TestWhatWasCountedOutlivesAStopWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	w := newShelfWorld(t)
	first := w.life()
	w.offer(first, 10, 1)
	if err := first.SaveMonths(t.Context()); err != nil || w.file() {
		t.Fatalf("saved: %v, with a file: %v", err, w.file())
	}
	w.away(true)
	w.offer(first, 20, 1)
	w.stop(first)
	second := w.life()
	w.offer(second, 5, 1) // it starts without the database, and does not know what the month has used
	w.stop(second)
	w.saved(10)

	left, err := os.ReadFile(w.path)
	if err != nil {
		t.Fatal(err)
	}
	w.away(false)
	w.months.set(func(f *fakeMonths) { f.unheard = true })
	third := w.life()
	w.offer(third, 7, 1)
	w.stop(third)
	if !w.file() {
		t.Fatal("the file is gone before the answer came")
	}
	w.months.set(func(f *fakeMonths) { f.unheard = false })
	w.stop(w.life())
	w.saved(42)
	if w.file() {
		t.Error("a file is left when all is saved")
	}
	if err := os.WriteFile(w.path, left, 0o600); err != nil { // a crash before it was removed
		t.Fatal(err)
	}
	w.stop(w.life())
	w.saved(42)
}

// A gateway that is killed in the middle of an outage loses what it counted since its last attempt to save.
func TestWhatWasCountedOutlivesAKillWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	w := newShelfWorld(t)
	first := w.life()
	w.away(true)
	w.offer(first, 20, 1)
	if err := first.SaveMonths(t.Context()); err == nil {
		t.Fatal("saved without a database")
	}
	w.offer(first, 3, 1)
	w.away(false)
	w.stop(w.life())
	w.saved(20)
}

// When the database is back before the stop, nothing is left for the next life.
func TestTheShelfIsClearedWhenTheDatabaseIsBack(t *testing.T) {
	t.Parallel()
	w := newShelfWorld(t)
	g := w.life()
	w.away(true)
	w.offer(g, 20, 1)
	if err := g.SaveMonths(t.Context()); err == nil || !w.file() {
		t.Fatalf("saved: %v, with a file: %v", err, w.file())
	}
	w.away(false)
	w.now = w.now.Add(failurePause)
	if err := g.SaveMonths(t.Context()); err != nil || w.file() {
		t.Fatalf("saved: %v, with a file: %v", err, w.file())
	}
	w.saved(20)
}

// A cluster that was forgotten has a row that nobody can add to without reading it: what comes later is not written down,
// since it would be saved as a whole in its place, or lost behind it.
func TestWhatAForgottenClusterCountsIsNotWrittenDown(t *testing.T) {
	t.Parallel()
	w := newShelfWorld(t)
	g := w.life()
	w.offer(g, 30, 1)
	if err := g.SaveMonths(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(idleAfter)
	if g.Sweep(w.now) != 1 {
		t.Fatal("the cluster is not forgotten")
	}
	w.away(true)
	w.offer(g, 40, 1)
	w.stop(g)
	if w.file() {
		t.Error("a count is written down of which nobody knows what it goes on from")
	}
	w.away(false)
	w.stop(w.life())
	w.saved(30)
}

// A file that is damaged costs what was in it, and no more.
func TestADamagedShelfIsUsedAgain(t *testing.T) {
	t.Parallel()
	w := newShelfWorld(t)
	if err := os.WriteFile(w.path, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.away(true)
	g := w.life()
	w.offer(g, 20, 1)
	w.stop(g)
	w.away(false)
	w.stop(w.life())
	w.saved(20)
}

// What cannot be read is not overwritten by what comes later.
func TestAShelfThatCannotBeReadIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newShelfWorld(t)
	w.away(true)
	g := w.life()
	w.offer(g, 20, 1)
	w.stop(g)
	away := w.path + ".away"
	if err := os.Rename(w.path, away); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(w.path, w.path); err != nil { // a circle
		t.Fatal(err)
	}
	g = w.life()
	w.offer(g, 7, 1)
	if err := g.SaveMonths(t.Context()); err == nil {
		t.Fatal("saved without a database")
	}
	if target, err := os.Readlink(w.path); err != nil || target != w.path {
		t.Fatalf("the shelf was overwritten: %q, %v", target, err)
	}
	if err := os.Rename(away, w.path); err != nil {
		t.Fatal(err)
	}
	w.away(false)
	w.now = w.now.Add(failurePause)
	w.stop(g)
	w.saved(27)
}

// What lay so long that its month may have been folded would be added to itself.
func TestAMonthThatMayHaveBeenFoldedIsGivenUp(t *testing.T) {
	t.Parallel()
	w := newShelfWorld(t)
	g := w.life()
	w.away(true)
	w.offer(g, 20, 1)
	w.stop(g)
	w.away(false)
	counted := w.now
	w.now = w.now.AddDate(0, foldAfter, 0)
	w.stop(w.life())
	if got := w.months.total(w.cluster.ID, monthOf(counted)); got != 0 || w.file() {
		t.Errorf("%d messages of %v were saved in %v; with a file: %v", got, monthOf(counted), monthOf(w.now), w.file())
	}
}
