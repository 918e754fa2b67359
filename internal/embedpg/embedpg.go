// Package embedpg runs the private PostgreSQL of `queengate up`: the system's binaries on a cluster inside the data
// folder, reachable through a Unix socket only.
//
// Promises: fsync is on and nothing committed is lost by any way the processes may die; a start after kill -9 of this
// process, of PostgreSQL, or of both recovers by itself; started by root, PostgreSQL runs as an unprivileged user. The
// caller holds the data folder (package datadir), which is what makes it safe to end an orphan found on the cluster.
//
// It does not upgrade a cluster from one major version to the next and never touches an outside PostgreSQL.
package embedpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/queengate/queengate/internal/datadir"
)

const (
	superuser = "queengate" // the one role; the socket's folder is open to its owner only
	database  = "queengate"

	startBudget = 5 * time.Minute  // crash recovery of a large WAL takes its time; a dead server ends the wait at once
	stopBudget  = 20 * time.Second // of a fast shutdown with its checkpoint, before an immediate one

	restartPause    = 500 * time.Millisecond // after a start that failed, doubled each time up to
	restartPauseMax = 10 * time.Second
)

// Server is a private PostgreSQL. Start it, then Run it (or Stop it); both from one goroutine.
type Server struct {
	log     *slog.Logger
	dir     *datadir.Dir
	bins    Binaries
	account account
	cluster string // the PostgreSQL data directory
	socket  string // the folder of the socket
	short   string // a path to cluster that PostgreSQL can use
	proc    *process
}

// New returns a server whose cluster lies in dir. It does no I/O.
func New(log *slog.Logger, dir *datadir.Dir) *Server {
	return &Server{log: log, dir: dir, cluster: dir.Path("postgres")}
}

// Start finds the binaries, creates the cluster at the first start, ends what an earlier crash left behind, starts the
// server and waits until it answers. Errors say what to do: install a package, move the folder, read the log.
func (s *Server) Start(ctx context.Context) (err error) {
	if s.account, err = unprivileged(s.cluster); err != nil {
		return err
	}
	if err := s.account.mustReach(s.dir.Path()); err != nil {
		return err
	}
	major, err := clusterVersion(s.cluster)
	if err != nil {
		return err
	}
	if s.bins, err = Find(major); err != nil {
		return err
	}
	if s.socket, err = socketDir(s.dir.Path(), s.account); err != nil {
		return err
	}
	if major == 0 {
		err = s.create(ctx)
	} else {
		err = s.endOrphans()
	}
	if err != nil {
		return err
	}
	return s.launch(ctx)
}

// launch starts the server on an existing cluster and waits until it answers.
func (s *Server) launch(ctx context.Context) error {
	logFile, err := s.openLog()
	if err != nil {
		return err
	}
	defer logFile.Close() // the child has its own descriptor
	if s.short, err = s.shorten(s.cluster, "data"); err != nil {
		return err
	}
	s.log.Info("starting PostgreSQL", "version", s.bins.Version, "dir", s.cluster, "socket", s.socket)
	s.proc, err = startProcess(s.bins.path("postgres"), s.arguments(), s.account, logFile)
	if err != nil {
		s.proc = nil
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	if err := s.awaitReady(ctx); err != nil {
		return errors.Join(err, s.Stop())
	}
	return nil
}

// DSN returns the address of the product's database as a URL that pgx, libpq and psql understand. It is stable over
// restarts and usable by the user who started the server (and by root). Valid after Start.
func (s *Server) DSN() string { return s.dsn(database) }

func (s *Server) dsn(name string) string {
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + name, RawQuery: url.Values{"host": {s.socket}}.Encode()}
	return u.String()
}

// Run blocks until ctx ends, then stops the server. A server that dies before is started again: at once, and after a
// growing pause when that fails, for as long as it takes. Everything above answers honestly meanwhile, which a process
// that gave up could not.
func (s *Server) Run(ctx context.Context) error {
	for pause := restartPause; ; {
		select {
		case <-ctx.Done():
			return s.Stop()
		case <-s.done():
		}
		if s.proc != nil {
			s.log.Error("PostgreSQL ended, starting it again", "err", s.died())
			s.proc = nil
		}
		err := s.restart(ctx)
		if err == nil {
			pause = restartPause
			continue
		}
		if ctx.Err() != nil {
			return s.Stop()
		}
		s.log.Error("PostgreSQL does not start", "err", err, "again_in", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, restartPauseMax)
	}
}

// done is closed when no server runs.
func (s *Server) done() <-chan struct{} {
	if s.proc != nil {
		return s.proc.done
	}
	none := make(chan struct{})
	close(none)
	return none
}

func (s *Server) restart(ctx context.Context) error {
	if err := s.endOrphans(); err != nil {
		return err
	}
	// Stop removes the folder of the socket when a start fails half-way.
	var err error
	if s.socket, err = socketDir(s.dir.Path(), s.account); err != nil {
		return err
	}
	return s.launch(ctx)
}

// Stop ends the server: a fast shutdown (sessions are cut, a checkpoint is written), and an immediate one if that takes
// too long, which only makes the next start recover. It does nothing when the server does not run.
func (s *Server) Stop() error {
	if s.proc == nil {
		return nil
	}
	if err := s.proc.end(stopBudget); err != nil {
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	s.proc = nil
	// The folder is made again at the next start; one that still holds a file is left alone.
	_ = os.Remove(filepath.Join(s.socket, "data"))
	_ = os.Remove(s.socket)
	return nil
}

// maxClusterPath is well below the 1024 bytes into which PostgreSQL writes the paths of its files, cutting off what is
// longer.
const maxClusterPath = 800

// shorten returns a path to the folder that PostgreSQL can use: the folder's own, or that of a link beside the socket.
func (s *Server) shorten(path, name string) (string, error) {
	if len(path) <= maxClusterPath {
		return path, nil
	}
	link := filepath.Join(s.socket, name)
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	return link, os.Symlink(path, link)
}

// create makes the cluster beside its final place and moves it there, so that a crash leaves none or a whole one.
func (s *Server) create(ctx context.Context) error {
	began := time.Now()
	building := s.cluster + ".new"
	short, err := s.shorten(building, "new")
	if err != nil {
		return fmt.Errorf("create the database: %w", err)
	}
	if err := os.RemoveAll(building); err != nil {
		return fmt.Errorf("create the database: %w", err)
	}
	if err := s.account.mkdir(building); err != nil {
		return fmt.Errorf("create the database: %w", err)
	}
	cmd := s.account.command(ctx, s.bins.path("initdb"), "--pgdata="+short, "--username="+superuser, "--auth-local=trust",
		"--auth-host=reject", "--encoding=UTF8", "--locale=C", "--data-checksums", "--no-instructions", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, tail(out))
	}
	// initdb would sync a thousand files one by one.
	if err := syncFilesystem(building); err != nil {
		return fmt.Errorf("create the database: %w", err)
	}
	if err := os.Rename(building, s.cluster); err != nil {
		return fmt.Errorf("create the database: %w", err)
	}
	if err := datadir.SyncDir(s.dir.Path()); err != nil {
		return fmt.Errorf("create the database: %w", err)
	}
	if short != building {
		_ = os.Remove(short) // a link that leads nowhere now; the next one replaces it
	}
	s.log.Info("created the database", "dir", s.cluster, "version", s.bins.Version, "dur_ms", time.Since(began).Milliseconds())
	return nil
}

// syncFilesystem writes out everything on the file system of the folder.
func syncFilesystem(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// awaitReady connects until the server takes connections, and makes the database at the first start.
func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startBudget, fmt.Errorf("PostgreSQL was not ready within %s", startBudget))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.dsn("postgres"))
		if err == nil {
			defer conn.Close(context.WithoutCancel(ctx))
			return ensureDatabase(ctx, conn)
		}
		select {
		case <-tick.C: // starting up or recovering; no event says when it is over
		case <-s.proc.done:
			return s.died()
		case <-ctx.Done():
			return fmt.Errorf("start PostgreSQL: %w (last answer: %w)", context.Cause(ctx), err)
		}
	}
}

func ensureDatabase(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "CREATE DATABASE "+database)
	var pe *pgconn.PgError
	if errors.As(err, &pe) && pe.Code == "42P04" { // exists
		return nil
	}
	if err != nil {
		return fmt.Errorf("create the database: %w", err)
	}
	return nil
}

func (s *Server) died() error {
	return fmt.Errorf("PostgreSQL ended: %w\n%s", s.proc.err, s.logTail())
}

// openLog opens log/postgres.log for appending; one that has grown large becomes postgres.log.1 first.
func (s *Server) openLog() (*os.File, error) {
	const large = 16 << 20
	if _, err := s.dir.Sub("log"); err != nil {
		return nil, err
	}
	name := s.logName()
	if st, err := os.Stat(name); err == nil && st.Size() > large {
		if err := os.Rename(name, name+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

func (s *Server) logName() string { return filepath.Join(s.dir.Path("log"), "postgres.log") }

func (s *Server) logTail() string {
	text, err := os.ReadFile(s.logName())
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("the end of %s:\n%s", s.logName(), tail(text))
}

// tail returns the last lines of a program's output: where it says why it gave up.
func tail(text []byte) []byte {
	const keep = 2 << 10
	if len(text) <= keep {
		return text
	}
	return text[len(text)-keep:]
}
