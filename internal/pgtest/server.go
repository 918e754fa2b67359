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
	"strings"
	"sync/atomic"
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
	s.run("initdb", "-D", s.dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions",
		"--data-checksums") // Rewind needs them
	s.configure(common)
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

// common are the settings of all servers. They stand in the cluster's own file, since pg_rewind starts the server by
// itself; it also needs the log from before the fork.
const common = "fsync = off\nshared_buffers = 16MB\nautovacuum = off\nwal_level = replica\nwal_keep_size = 128MB\n"

// configure adds lines to the settings of the cluster.
func (s *Server) configure(lines string) {
	s.t.Helper()
	f, err := os.OpenFile(filepath.Join(s.dir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(lines)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		s.t.Fatal(err)
	}
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
	s := &Server{Host: work, Port: FreePort(t), t: t, bins: bins, dir: filepath.Join(work, "data"), settings: settings}
	s.own(work)
	return s
}

// FreePort returns a port of 127.0.0.1 that nobody listens on, for a process that must be told. It is below those that the
// system hands out to connections, of which a test under load makes many.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := 10_000 + int(ports.Add(1)+int64(os.Getpid())*37)%20_000
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
		return port
	}
	t.Fatal("no port is free")
	return 0
}

var ports atomic.Int64

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
	args := []string{"-D", s.dir, "-k", s.Host, "-p", strconv.Itoa(s.Port), "-c", "listen_addresses=127.0.0.1"}
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
func (s *Server) Stop() { s.end(syscall.SIGQUIT) }

// Kill is Stop without a chance to say good-bye to anybody: kill -9 of all its processes, as when the machine is lost.
func (s *Server) Kill() {
	s.t.Helper()
	if s.proc == nil {
		return
	}
	children := s.children()
	s.end(syscall.SIGKILL)
	for _, pid := range children {
		// One that has ended by itself is not there any more.
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for _, pid := range children {
		for syscall.Kill(pid, 0) == nil {
			<-tick.C // they are nobody's children now, so nobody is told
		}
	}
}

// Freeze stops all processes of the server without ending them, until Thaw: it keeps its sockets and says nothing.
func (s *Server) Freeze() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
	s.t.Cleanup(func() {
		if s.proc != nil {
			s.Thaw() // a frozen server does not stop
		}
	})
}

// Thaw lets a frozen server go on.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	// The parent first: a frozen one makes no children, and a child that is thawed first is not missed.
	for _, pid := range append([]int{s.proc.Process.Pid}, s.children()...) {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			s.t.Fatal(err)
		}
	}
}

// children are the process ids below the server's.
func (s *Server) children() (all []int) {
	s.t.Helper()
	pid := s.proc.Process.Pid
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, field := range strings.Fields(string(text)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, child)
	}
	return all
}

func (s *Server) end(how syscall.Signal) {
	if s.proc == nil {
		return
	}
	if err := s.proc.Process.Signal(how); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Errorf("end PostgreSQL: %v", err)
	}
	<-s.ended // neither signal is refused
	s.proc = nil
}

// Set changes a setting of the running server, and returns when its sessions go by it.
func (s *Server) Set(name, value string) {
	s.t.Helper()
	s.Exec(fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value))
	s.Exec("SELECT pg_reload_conf()")
	s.await(fmt.Sprintf("SELECT (current_setting('%s') = '%s')::text", name, value))
}

// Ask runs a query in the database postgres that answers with one text.
func (s *Server) Ask(sql string) string {
	s.t.Helper()
	return s.ask(sql)
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
