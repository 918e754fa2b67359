package embedpg

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/datadir"
)

// folder returns a path for a data folder that an unprivileged PostgreSQL can reach even when the tests run as root:
// the folders of t.TempDir are their owner's alone.
func folder(t *testing.T, names ...string) string {
	t.Helper()
	base, err := os.MkdirTemp("", "embedpg")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(base, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	return filepath.Join(append([]string{base}, names...)...)
}

func open(t *testing.T, path string) *datadir.Dir {
	t.Helper()
	d, err := datadir.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func start(t *testing.T, d *datadir.Dir) *Server {
	t.Helper()
	s := New(slog.New(slog.NewTextHandler(t.Output(), nil)), d)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func mustExec(t *testing.T, s *Server, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, s *Server) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM kept").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDataSurvivesEveryWayToEnd(t *testing.T) {
	t.Parallel()
	// Deep and with spaces: the socket must not lie in the folder, and no argument may be split.
	d := open(t, folder(t, "a folder with 'spaces'", strings.Repeat("long", 40)))
	s := start(t, d)
	mustExec(t, s, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)")
	address := s.DSN()

	var fsync string
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(), "SHOW fsync").Scan(&fsync); err != nil || fsync != "on" {
		t.Errorf("fsync: got %q, %v, want on", fsync, err)
	}
	conn.Close(t.Context())

	if err := s.Stop(); err != nil {
		t.Fatalf("clean stop: %v", err)
	}
	s = start(t, d)
	if n := count(t, s); n != 1 {
		t.Fatalf("after a clean stop: got %d rows, want 1", n)
	}
	if s.DSN() != address {
		t.Errorf("address after a restart: got %s, want %s", s.DSN(), address)
	}

	mustExec(t, s, "INSERT INTO kept VALUES (2)")
	if err := syscall.Kill(s.proc.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Run starts a killed server again, and again, and stops the last one when it is asked to.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	awaitAnswer(t, address)
	cancel()
	if err := <-ended; err != nil {
		t.Fatalf("Run of a killed server: %v", err)
	}
	s = start(t, d)
	if n := count(t, s); n != 2 {
		t.Fatalf("after kill -9 of PostgreSQL: got %d rows, want 2", n)
	}

	// As if only we had been killed and the kernel's notice had been lost: the server lives on, with a session at work.
	busy, err := pgx.Connect(t.Context(), s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close(context.Background())
	if _, err := busy.Exec(t.Context(), "BEGIN; INSERT INTO kept VALUES (4)"); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s, "INSERT INTO kept VALUES (3)")
	orphan := s.proc
	s = start(t, d)
	select {
	case <-orphan.done:
	default:
		t.Error("the orphan still runs beside its successor")
	}
	if n := count(t, s); n != 3 {
		t.Fatalf("after an orphan was ended: got %d rows, want 3", n)
	}
}

// awaitAnswer connects until the server answers: a restart has no other event.
func awaitAnswer(t *testing.T, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, address)
		if err == nil {
			conn.Close(ctx)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the server was not started again: %v", err)
		}
	}
}

func TestAPidFileThatNamesAStrangerIsStale(t *testing.T) {
	t.Parallel()
	d := open(t, folder(t, "data"))
	s := start(t, d)
	mustExec(t, s, "CREATE TABLE kept (n int)")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	stranger := exec.Command("/bin/sleep", "600")
	// A program of PostgreSQL's own user: that is what PostgreSQL itself takes for its living predecessor.
	if s.account.other {
		stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(s.account.uid), Gid: uint32(s.account.gid)}}
	}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer stranger.Wait()
	defer stranger.Process.Kill()
	pid := []byte(strings.Join([]string{strconv.Itoa(stranger.Process.Pid), s.cluster, "1", "5432", s.socket, "", "", ""}, "\n"))
	if err := os.WriteFile(filepath.Join(s.cluster, "postmaster.pid"), pid, 0o644); err != nil {
		t.Fatal(err)
	}
	if n := count(t, start(t, d)); n != 0 {
		t.Fatalf("got %d rows, want 0", n)
	}
	if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the stranger was harmed: %v", err)
	}
}

func TestAnInterruptedFirstStartLeavesNothingInTheWay(t *testing.T) {
	t.Parallel()
	d := open(t, folder(t, "data"))
	if err := os.MkdirAll(d.Path("postgres.new", "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	mustExec(t, start(t, d), "CREATE TABLE kept (n int)")
}

func TestRootIsToldWhichFolderBarsTheWay(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		// Another user runs PostgreSQL as himself, so no folder of his can be in the way: there is nothing to refuse.
		a, err := unprivileged(t.TempDir())
		if err != nil || a.other {
			t.Fatalf("got %+v, %v, want the user himself", a, err)
		}
		return
	}
	base := folder(t, "it's home")
	if err := os.MkdirAll(base, 0o700); err != nil {
		t.Fatal(err)
	}
	d := open(t, filepath.Join(base, "deep", "data"))
	err := New(slog.New(slog.DiscardHandler), d).Start(t.Context())
	if err == nil {
		t.Fatal("want a refusal")
	}
	for _, want := range []string{"may not pass through " + base + ";", "chmod o+x " + quote(base), "--data /var/lib/queengate"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal lacks %q: %v", want, err)
		}
	}
	// The data folder itself is ours to open.
	if err := os.Chmod(base, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(d.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	start(t, d)
}

func TestASocketFolderOfSomebodyElseIsRefused(t *testing.T) {
	t.Parallel()
	a, err := unprivileged(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder(t), "queengate-x")
	if err := os.Symlink("/etc", path); err != nil {
		t.Fatal(err)
	}
	if err := ownDir(path, a); err == nil {
		t.Error("a symbolic link was accepted")
	}
}
