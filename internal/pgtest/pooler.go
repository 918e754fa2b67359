package pgtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pooler is a PgBouncer of one test in front of a Server, on a port of 127.0.0.1. It trusts everybody.
type Pooler struct {
	Port int
}

// NewPooler starts PgBouncer with the settings, each name=value; pool_mode among them. The test is skipped where there
// is no PgBouncer.
func NewPooler(t testing.TB, s *Server, settings ...string) *Pooler {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program = "/usr/sbin/pgbouncer"; exec.Command(program, "--version").Run() != nil {
			t.Skip("no pgbouncer on PATH: its package has it")
		}
	}
	p := &Pooler{Port: FreePort(t)}
	users, config := filepath.Join(s.Host, fmt.Sprint("users", p.Port)), filepath.Join(s.Host, fmt.Sprint("pooler", p.Port))
	for path, text := range map[string]string{
		users: "\"postgres\" \"\"\n",
		config: fmt.Sprintf("[databases]\npostgres = host=%s port=%d dbname=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\n"+
			"auth_type = trust\nauth_file = %s\nlogfile =\n%s\n", s.Host, s.Port, p.Port, users, strings.Join(settings, "\n")),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.own(path)
	}
	cmd := s.command("postgres")
	cmd.Path, cmd.Args = program, []string{program, config}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		// One that has ended by itself has been reported, or nobody missed it.
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 3000 {
		conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(p.Port))
		if err == nil {
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			return p
		}
		select {
		case <-tick.C: // nobody tells when it listens
		case err := <-ended:
			ended <- err
			t.Fatalf("PgBouncer ended: %v\n%s", err, log.Bytes())
		}
	}
	t.Fatal("PgBouncer does not listen")
	return nil
}

// DSN is the address of the database postgres through the pooler.
func (p *Pooler) DSN() string {
	return fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres", p.Port)
}

// Ask runs a query through the pooler that answers with one text.
func (p *Pooler) Ask(t testing.TB, sql string) (answer string) {
	t.Helper()
	conn := p.connect(t)
	if err := conn.QueryRow(context.Background(), sql).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

// connect makes a session that ends with the test and prepares nothing.
func (p *Pooler) connect(t testing.TB) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(p.DSN())
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	ctx := context.Background()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) }) // the pooler may be gone by then
	return conn
}

// Busy opens n sessions through the pooler at once and leaves them idle, so that it keeps as many with the server where
// its mode allows. They end with the test.
func (p *Pooler) Busy(t testing.TB, n int) {
	t.Helper()
	ctx := context.Background()
	all := make([]*pgx.Conn, n)
	for i := range all {
		all[i] = p.connect(t)
		if _, err := all[i].Exec(ctx, "BEGIN"); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range all {
		if _, err := c.Exec(ctx, "COMMIT"); err != nil {
			t.Fatal(err)
		}
	}
}
