package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/embedpg"
)

// Server is a PostgreSQL of one test, for what the shared one cannot be: reconfigured, stopped, promoted, or spoken to
// over TLS. It listens on a Unix socket and on a port of 127.0.0.1, trusts everybody, and ends with the test. It belongs
// to one goroutine.
type Server struct {
	Host string // folder of the socket
	Port int

	t        testing.TB
	bins     embedpg.Binaries
	dir      string // of the cluster
	settings []string
	proc     *exec.Cmd
	ended    chan error
	log      bytes.Buffer
}

// NewServer creates a cluster and starts it with the settings, each name=value. files are put into the cluster's folder
// first, readable by the server only.
func NewServer(t testing.TB, files map[string]string, settings ...string) *Server {
	t.Helper()
	s := newServer(t, settings)
	s.run("initdb", "-D", s.dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
	for name, text := range files {
		path := filepath.Join(s.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.own(path)
	}
	s.Start()
	return s
}

func newServer(t testing.TB, settings []string) *Server {
	t.Helper()
	bins, err := embedpg.Find(0)
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: the server's user must reach it, and the path of a socket is short.
	work, err := os.MkdirTemp("/tmp", "queengate-pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(work); err != nil {
			t.Error(err)
		}
	})
	// Free for the moment, which is as much as can be had: the server binds it itself.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Host: work, Port: ln.Addr().(*net.TCPAddr).Port, t: t, bins: bins, dir: filepath.Join(work, "data"), settings: settings}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	s.own(work)
	return s
}

// Standby makes a copy of the running server that follows it.
func (s *Server) Standby(settings ...string) *Server {
	s.t.Helper()
	standby := newServer(s.t, settings)
	standby.run("pg_basebackup", "-D", standby.dir, "-h", s.Host, "-p", strconv.Itoa(s.Port), "-U", "postgres", "-X", "stream", "-R", "-c", "fast", "--no-sync")
	standby.Start()
	return standby
}

// Promote makes a standby a primary, on the next timeline, and returns when it is one.
func (s *Server) Promote() {
	s.t.Helper()
	s.Exec("SELECT pg_promote(true, 30)")
}

// Exec runs a statement in the database postgres.
func (s *Server) Exec(sql string) {
	s.t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.DSN())
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.log.Bytes())
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// DSN is the address of the database postgres over the Unix socket.
func (s *Server) DSN() string {
	return fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", s.Host, s.Port)
}

// Start starts a stopped server and returns when it answers.
func (s *Server) Start() {
	s.t.Helper()
	args := []string{
		"-D", s.dir, "-k", s.Host, "-p", strconv.Itoa(s.Port), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "shared_buffers=16MB",
		"-c", "autovacuum=off", "-c", "wal_level=replica", "-c", "max_wal_senders=4",
	}
	for _, kv := range s.settings {
		args = append(args, "-c", kv)
	}
	s.proc = s.command("postgres", args...)
	s.proc.Stdout, s.proc.Stderr = &s.log, &s.log
	if err := s.proc.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan error, 1)
	proc := s.proc
	go func() { ended <- proc.Wait() }()
	s.ended = ended
	s.t.Cleanup(s.Stop)

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.DSN())
		if err == nil {
			if err := conn.Close(ctx); err != nil {
				s.t.Fatal(err)
			}
			return
		}
		select {
		case <-tick.C: // no event says when a server takes connections
		case err := <-ended:
			s.proc = nil
			s.t.Fatalf("PostgreSQL ended: %v\n%s", err, s.log.Bytes())
		case <-ctx.Done():
			s.t.Fatalf("PostgreSQL does not answer: %v", err)
		}
	}
}

// Stop ends the server at once: nothing is sent to a standby any more. It does nothing when the server does not run.
func (s *Server) Stop() {
	if s.proc == nil {
		return
	}
	if err := s.proc.Process.Signal(syscall.SIGQUIT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Errorf("stop PostgreSQL: %v", err)
	}
	<-s.ended // SIGQUIT is not refused
	s.proc = nil
}

func (s *Server) run(program string, args ...string) {
	s.t.Helper()
	if out, err := s.command(program, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

func (s *Server) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bins.Dir, program), args...)
	cmd.Dir = s.Host
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if uid, gid, other := s.account(); other {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return cmd
}

// account is who runs the server: PostgreSQL does not run as root.
func (s *Server) account() (uid, gid int, other bool) {
	if os.Geteuid() != 0 {
		return 0, 0, false
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2); err != nil {
			s.t.Fatal(err)
		}
		return uid, gid, true
	}
	s.t.Fatal("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
	return 0, 0, false
}

// own gives a path to the account.
func (s *Server) own(path string) {
	s.t.Helper()
	uid, gid, other := s.account()
	if !other {
		return
	}
	if err := os.Chown(path, uid, gid); err != nil {
		s.t.Fatal(err)
	}
}

// AwaitReplay returns when the standby shows all that the primary has committed.
func (s *Server) AwaitReplay(primary *Server) {
	s.t.Helper()
	at := primary.ask("SELECT pg_current_wal_lsn()::text")
	s.await("SELECT (pg_last_wal_replay_lsn() >= '" + at + "')::text")
}

// AwaitDetached returns when the standby receives nothing any more.
func (s *Server) AwaitDetached() {
	s.t.Helper()
	s.await("SELECT (count(*) = 0)::text FROM pg_stat_wal_receiver")
}

func (s *Server) await(condition string) {
	s.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 3000 {
		if s.ask(condition) == "true" {
			return
		}
		<-tick.C // PostgreSQL tells nobody
	}
	s.t.Fatalf("%s does not become true", condition)
}

func (s *Server) ask(sql string) (answer string) {
	s.t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.DSN())
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.log.Bytes())
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, sql).Scan(&answer); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return answer
}
