package pg_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/pgtest"
)

// Variables of the process that vanishes: this test binary, started again.
const (
	vanishAt  = "QUEENGATE_PGTEST_VANISH_AT"
	vanishHow = "QUEENGATE_PGTEST_VANISH_HOW"
)

// vanish locks a row as a broker does, says so and stays until it is killed.
func vanish(dsn, sql string) error {
	ctx := context.Background()
	pool, err := pg.Open(ctx, pg.Config{DSN: dsn, MaxConn: 1})
	if err != nil {
		return err
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return err
	}
	rows.Next()
	fmt.Println("locked")
	select {}
}

// TestMain turns into the process that vanishes when it is asked to.
func TestMain(m *testing.M) {
	if dsn := os.Getenv(vanishAt); dsn != "" {
		fmt.Println(vanish(dsn, os.Getenv(vanishHow)))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A broker that is frozen keeps its sockets, and its machine goes on acknowledging what comes: only the bounds of its
// sessions end them. The one who comes next waits for the row under a lock_timeout of five seconds, which is the promise.
func TestAVanishedBrokerHoldsARowForAtMostFiveSeconds(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, nil)
	server.Exec("CREATE TABLE partitions AS SELECT i AS id, repeat('x', 1000) AS body FROM generate_series(1, 40000) i")
	dsn := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres connect_timeout=30", server.Port)
	for rule, sql := range map[string]string{
		"between two statements":      "SELECT id, body FROM partitions WHERE id = 1 FOR UPDATE",
		"with an answer it takes not": "SELECT id, body FROM partitions FOR UPDATE",
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			broker := exec.Command(os.Args[0])
			broker.Env = append(os.Environ(), vanishAt+"="+dsn, vanishHow+"="+sql)
			out, err := broker.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := broker.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = broker.Process.Kill()
				_ = broker.Wait() // killed, as it says
			}()
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || strings.TrimSpace(line) != "locked" {
				t.Fatalf("the broker: %q, %v", line, err)
			}
			if err := broker.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			conn, err := pgx.Connect(ctx, dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if _, err := conn.Exec(ctx, "SET lock_timeout = '5s'"); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(ctx, "SELECT FROM partitions WHERE id = 1 FOR UPDATE NOWAIT"); pg.State(err) != "55P03" {
				t.Fatalf("the row is not held: %v", err)
			}
			if _, err := conn.Exec(ctx, "SELECT FROM partitions WHERE id = 1 FOR UPDATE"); err != nil {
				t.Errorf("the row is still held: %v", err)
			}
		})
	}
}
