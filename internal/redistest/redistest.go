// Package redistest gives tests the shared Redis, or one of their own to pause, kill and restart. Only tests may import
// it.
package redistest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// silence is the log of the Redis client: tests provoke what it would say.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(silence{}) }

// Options returns how to reach the Redis that all tests share. Whoever uses it keeps to key names of its own.
func Options(t testing.TB) *redis.Options {
	t.Helper()
	address := os.Getenv("QUEENGATE_TEST_REDIS")
	if address == "" {
		t.Fatal("QUEENGATE_TEST_REDIS is not set: run the tests with `make test`")
	}
	o, err := redis.ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Server is a Redis of one test, on a Unix socket. It keeps nothing on disk, so a restart comes back empty, and it ends
// with the test. It belongs to one goroutine.
type Server struct {
	t      testing.TB
	socket string
	proc   *exec.Cmd
	client *redis.Client
}

// New starts a Redis.
func New(t testing.TB) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatalf("%v: run the tests with `make test`, which says what to install", err)
	}
	dir, err := os.MkdirTemp("", "qgr") // the test's own folder is too long a path for a socket
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, socket: filepath.Join(dir, "s")}
	s.client = redis.NewClient(s.Options())
	t.Cleanup(func() {
		if err := s.client.Close(); err != nil {
			t.Error(err)
		}
		if s.proc != nil {
			s.Kill()
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s.Start()
	return s
}

// Options returns how to reach it.
func (s *Server) Options() *redis.Options { return &redis.Options{Network: "unix", Addr: s.socket} }

// Start starts it, empty, and returns when it answers.
func (s *Server) Start() {
	s.t.Helper()
	s.proc = exec.Command("redis-server", "--port", "0", "--unixsocket", s.socket, "--save", "", "--appendonly", "no",
		"--dir", filepath.Dir(s.socket))
	if err := s.proc.Start(); err != nil {
		s.t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := s.client.Ping(s.t.Context()).Err()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("redis-server does not answer: %v", err)
		}
		time.Sleep(time.Millisecond) // it has no other way to say that it listens
	}
}

// Kill ends it at once, as a crash would.
func (s *Server) Kill() {
	s.t.Helper()
	s.signal(syscall.SIGCONT)
	s.signal(syscall.SIGKILL)
	_ = s.proc.Wait() // it was killed
	s.proc = nil
}

// Pause stops it where it is: connections stay, and nobody is answered.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume lets a paused one go on, with whatever was sent to it meanwhile.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.proc.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// Do runs a command on it, which must succeed.
func (s *Server) Do(args ...any) {
	s.t.Helper()
	if err := s.client.Do(s.t.Context(), args...).Err(); err != nil {
		s.t.Fatal(err)
	}
}
