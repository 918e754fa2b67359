package pg_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/wire"
)

// towards returns a pool whose new sessions go to the server that to points at: a balancer, as it were.
func towards(t *testing.T, to *atomic.Pointer[pgtest.Server], c pg.Config) *pgxpool.Pool {
	t.Helper()
	c.DSN, c.MaxConn = to.Load().DSN(), 4
	pc, err := pg.Parse(c)
	if err != nil {
		t.Fatal(err)
	}
	pc.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.Host, c.Port = to.Load().Host, uint16(to.Load().Port)
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Two primaries at once: the old one was never stopped. A commit that is under way with it when the new one is met, and
// one whose answer comes later, have no ok.
func TestNoCommitOnAReplacedPrimaryIsASuccess(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	old := pgtest.NewServer(t, nil)
	old.Exec("CREATE TABLE t (v int)")
	next := old.Standby()
	next.AwaitReplay(old)
	var to atomic.Pointer[pgtest.Server]
	to.Store(old)
	pool := towards(t, &to, pg.Config{})
	waits, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	answered, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := answered.Exec(ctx, "INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := waits.Exec(context.Background(), "INSERT INTO t SELECT 2 FROM pg_sleep(600)")
		done <- pg.Confirmed(waits.Conn(), err)
	}()
	for old.Ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "0" {
	}
	next.Promote()
	to.Store(next)
	if got := lifeOf(t, pool); got != 2 {
		t.Fatalf("got life %d, want 2", got)
	}
	for rule, err := range map[string]error{"under way": <-done, "answered just now": pg.Confirmed(answered.Conn(), nil)} {
		if !errors.Is(err, pg.ErrUnconfirmed) || pg.Outcome(err) != wire.OutcomeUnknown || !pg.Unavailable(err) {
			t.Errorf("%s: got %v (%v), want an unknown outcome", rule, err, pg.Outcome(err))
		}
	}
	waits.Release()
	answered.Release()
}

// The primary hangs, as a machine does whose disk does: nothing is closed, nothing answers.
func TestAFrozenPrimaryIsLeftForTheOneThatReplacedIt(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	old := pgtest.NewServer(t, nil)
	next := old.Standby()
	hosts := fmt.Sprintf("host=127.0.0.1,127.0.0.1 port=%d,%d user=postgres dbname=postgres target_session_attrs=read-write", old.Port, next.Port)
	pool := open(t, pg.Config{DSN: hosts, MaxConn: 2})
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "SELECT 1"); err != nil { // prepared, so that it is sent below
		t.Fatal(err)
	}
	old.Freeze()
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT 1")
		done <- err
	}()
	next.Promote()
	if got := lifeOf(t, pool); got != 2 {
		t.Errorf("got life %d, want 2", got)
	}
	if err := <-done; pg.Outcome(err) != wire.OutcomeUnknown {
		t.Errorf("the statement that waited: got %v (%v), want an unknown outcome", err, pg.Outcome(err))
	}
	conn.Release()
}

func TestAProcessThatStartsAgainKnowsWhatWasReplaced(t *testing.T) {
	t.Parallel()
	old := pgtest.NewServer(t, nil)
	next := old.Standby()
	next.Promote()
	file := filepath.Join(t.TempDir(), "a folder that is yet to be made", "timelines")
	if got := lifeOf(t, open(t, pg.Config{DSN: next.DSN(), TimelineFile: file, MaxConn: 1})); got != 1 {
		t.Fatalf("got life %d, want 1", got)
	}
	again := open(t, pg.Config{DSN: old.DSN(), TimelineFile: file, MaxConn: 1})
	refused(t, again, "was replaced by one on timeline 2")
	refused(t, again, "remove "+file)
	if got := lifeOf(t, open(t, pg.Config{DSN: old.DSN(), MaxConn: 1})); got != 1 {
		t.Errorf("without the file: got life %d, want 1", got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := lifeOf(t, open(t, pg.Config{DSN: old.DSN(), TimelineFile: file, MaxConn: 1})); got != 1 {
		t.Errorf("with the file removed: got life %d, want 1", got)
	}
}

func TestTheFileOfTimelinesIsSharedAndReadWhole(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, nil)
	file := filepath.Join(t.TempDir(), "timelines")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := open(t, pg.Config{DSN: server.DSN(), TimelineFile: file, MaxConn: 1})
	write("1 9\n") // by another process, since the pool was opened
	if got := lifeOf(t, pool); got != 1 {
		t.Fatalf("got life %d, want 1", got)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := "1 9\n" + server.Ask("SELECT system_identifier::text FROM pg_control_system()") + " 1\n"; string(text) != want {
		t.Errorf("got %q, want %q", text, want)
	}
	write("1 9\n1\n")
	if _, err := pg.Parse(pg.Config{DSN: server.DSN(), TimelineFile: file}); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a torn file: got %v", err)
	}
	var log bytes.Buffer
	folder := filepath.Join(t.TempDir(), "folder")
	lost := filepath.Join(folder, "timelines")
	if err := os.Symlink("nowhere", folder); err != nil { // in the way of the folder
		t.Fatal(err)
	}
	pool = open(t, pg.Config{DSN: server.DSN(), TimelineFile: lost, MaxConn: 1, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if got := lifeOf(t, pool); got != 1 {
		t.Errorf("with no folder for the file: got life %d, want 1", got)
	}
	if !strings.Contains(log.String(), "could not be kept") {
		t.Errorf("a file that cannot be written is not said: %q", log.String())
	}
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	pool.Reset() // the next session tries again
	if got := lifeOf(t, pool); got != 1 {
		t.Errorf("got life %d, want 1", got)
	}
	if _, err := os.Stat(lost); err != nil {
		t.Errorf("what could not be kept at first is not kept later: %v", err)
	}
}

// Each life is looked at once, and one that is refused again and again until it is not.
func TestEachLifeIsAdmittedOnce(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, nil)
	var asked atomic.Int64
	var refuse atomic.Bool
	refuse.Store(true)
	pool := open(t, pg.Config{DSN: server.DSN(), MaxConn: 3, Admit: func(ctx context.Context, c *pgconn.PgConn) error {
		asked.Add(1)
		if refuse.Load() {
			return errors.New("not as it should be")
		}
		return nil
	}})
	refused(t, pool, "not as it should be")
	refused(t, pool, "not as it should be")
	if got := asked.Load(); got != 2 {
		t.Errorf("asked %d times, want 2", got)
	}
	refuse.Store(false)
	var held []*pgxpool.Conn
	for range 3 {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	for _, c := range held {
		c.Release()
	}
	if got := asked.Load(); got != 3 {
		t.Errorf("asked %d times for three sessions of one life, want once more", got-2)
	}
	server.Stop()
	server.Start()
	pool.Reset()
	if got := lifeOf(t, pool); got != 2 || asked.Load() != 4 {
		t.Errorf("after a restart: life %d, asked %d times in all, want 2 and 4", got, asked.Load())
	}
}

func TestOnlyAddressesOfPrimariesAreTaken(t *testing.T) {
	t.Parallel()
	for attrs, ok := range map[string]bool{"": true, "any": true, "primary": true, "read-write": true, "standby": false, "read-only": false, "prefer-standby": false} {
		for _, dsn := range []string{"host=a,b user=u target_session_attrs=" + attrs, "postgres://u@a,b/d?target_session_attrs=" + attrs} {
			if attrs == "" {
				dsn, _, _ = strings.Cut(dsn, " target_session_attrs") // pgx takes no empty value
				dsn, _, _ = strings.Cut(dsn, "?")
			}
			if _, err := pg.Parse(pg.Config{DSN: dsn}); (err == nil) != ok {
				t.Errorf("%s: got %v", dsn, err)
			}
		}
	}
}

// A primary that takes no writes is passed over where the address says so.
func TestReadWriteMeansWritable(t *testing.T) {
	t.Parallel()
	frozen, writable := pgtest.NewServer(t, nil, "default_transaction_read_only=on"), pgtest.NewServer(t, nil)
	pool := open(t, pg.Config{DSN: fmt.Sprintf("host=%s,%s port=%d,%d user=postgres dbname=postgres target_session_attrs=read-write", frozen.Host, writable.Host, frozen.Port, writable.Port), MaxConn: 1})
	var port string
	if err := pool.QueryRow(t.Context(), "SHOW port").Scan(&port); err != nil || port != fmt.Sprint(writable.Port) {
		t.Errorf("got port %s, %v, want %d", port, err, writable.Port)
	}
}

func TestEverySessionHasItsBounds(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, nil)
	tcp := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres", server.Port)
	want := map[string]string{
		"TimeZone": "UTC", "statement_timeout": "30s", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "4s",
		"client_connection_check_interval": "2s", "tcp_keepalives_idle": "2", "tcp_keepalives_interval": "1", "tcp_keepalives_count": "2",
		"tcp_user_timeout": "4000", "client_min_messages": "warning",
	}
	for rule, tc := range map[string]struct {
		c    pg.Config
		name string
		is   string
	}{
		"as they are":                     {pg.Config{DSN: tcp}, "application_name", ""},
		"the address knows better":        {pg.Config{DSN: tcp + " lock_timeout=1500"}, "lock_timeout", "1500ms"},
		"a bound of the caller":           {pg.Config{DSN: tcp, StatementTimeout: 7 * time.Second}, "statement_timeout", "7s"},
		"the address and the caller":      {pg.Config{DSN: tcp + " statement_timeout=9s", StatementTimeout: 7 * time.Second}, "statement_timeout", "9s"},
		"warnings cannot be switched off": {pg.Config{DSN: tcp + " client_min_messages=error"}, "client_min_messages", "warning"},
		"the time zone is ours":           {pg.Config{DSN: tcp + " TimeZone=Europe/Berlin"}, "TimeZone", "UTC"},
	} {
		tc.c.MaxConn = 1
		pool := open(t, tc.c)
		for name, value := range want {
			if name == tc.name {
				value = tc.is
			}
			var got string
			if err := pool.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&got); err != nil || got != value {
				t.Errorf("%s: %s = %q, %v, want %q", rule, name, got, err, value)
			}
		}
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for name, o := range map[string][3]int{
			"keepalive": {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1}, "idle": {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 2},
			"interval": {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1}, "count": {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
			"user timeout": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 5000},
		} {
			raw, err := conn.Conn().PgConn().Conn().(syscall.Conn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var got int
			var opt error
			if err := raw.Control(func(fd uintptr) { got, opt = unix.GetsockoptInt(int(fd), o[0], o[1]) }); err != nil || opt != nil || got != o[2] {
				t.Errorf("%s: our end of the line: %s = %d (%v, %v), want %d", rule, name, got, err, opt, o[2])
			}
		}
		conn.Release()
	}
}
