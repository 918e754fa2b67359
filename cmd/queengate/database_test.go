package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

// answers returns the status of a GET, 0 when nobody answers.
func answers(t *testing.T, url string) int {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// until asks ok again until it holds: what a process does in its own time has no event here.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 6000 {
		if ok() {
			return
		}
		<-tick.C
	}
	t.Fatalf("waited in vain for %s", what)
}

func TestABrokerStartsWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	for rule, migrate := range map[string]bool{"the schema is there": false, "the schema is to be made": true} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			server := pgtest.NewServer(t, nil)
			environ := []string{"QUEENGATE_POSTGRES_DSN=" + server.DSN(), "QUEENGATE_BROKER_TENANCY=off", fmt.Sprint("QUEENGATE_BROKER_MIGRATE=", migrate), "QUEENGATE_BROKER_SPOOL_DIR=" + t.TempDir()}
			if !migrate {
				if got := app(t.Context(), []string{"migrate", "--set", "broker"}, environ, io.Discard, io.Discard); got != 0 {
					t.Fatalf("migrate: status %d", got)
				}
			}
			server.Stop()
			addr, ops := freeAddr(t), freeAddr(t)
			ctx, cancel := context.WithCancel(context.Background())
			out := &watch{seen: make(chan struct{}), want: "the database is away"}
			ended := make(chan int, 1)
			go func() {
				ended <- app(ctx, []string{"broker", "--broker", addr, "--ops", ops}, environ, out, out)
			}()
			t.Cleanup(func() {
				cancel()
				if status := <-ended; status != 0 {
					t.Errorf("got status %d, want 0\n%s", status, out)
				}
			})
			select {
			case <-out.seen:
			case status := <-ended:
				ended <- status
				t.Fatalf("it ended with status %d\n%s", status, out)
			}
			until(t, "a sign of life", func() bool { return answers(t, "http://"+addr+"/livez") == 200 })
			for _, url := range []string{"http://" + addr + "/readyz", "http://" + addr + "/health", "http://" + ops + "/readyz"} {
				if got := answers(t, url); got != 503 {
					t.Errorf("%s without a database: %d, want 503", url, got)
				}
			}
			push := func(want string) {
				t.Helper()
				resp, err := http.Post("http://"+addr+"/api/v1/push", "application/json", strings.NewReader(fmt.Sprintf(`{"items":[{"queue":"q","partition":%q,"payload":1}]}`, want)))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if text, _ := io.ReadAll(resp.Body); resp.StatusCode != 201 || !strings.Contains(string(text), want) {
					t.Errorf("a push: got %d %s, want it %s", resp.StatusCode, text, want)
				}
			}
			push("buffered")
			server.Start()
			until(t, "readiness", func() bool {
				return answers(t, "http://"+addr+"/readyz") == 200 && answers(t, "http://"+ops+"/readyz") == 200
			})
			until(t, "what was buffered", func() bool {
				return server.Ask("SELECT count(*)::text FROM queen.log_segments") == "1"
			})
			push("queued")
		})
	}
}

// What no waiting cures ends the start, and says what is wrong.
func TestABrokerDoesNotStartOnAWrongDatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, map[string]string{"pg_hba.conf": "local all mallory reject\nlocal all all trust\nhost all all 127.0.0.1/32 trust\n"})
	server.Exec("CREATE ROLE mallory LOGIN")
	for rule, tc := range map[string]struct {
		dsn  func(t *testing.T) string
		want string
	}{
		"no schema":                     {func(*testing.T) string { return server.DSN() }, "there is none; run `queengate migrate` first"},
		"no such database":              {func(*testing.T) string { return server.DSN() + " dbname=nowhere" }, "nowhere"},
		"no entrance":                   {func(*testing.T) string { return server.DSN() + " user=mallory" }, "mallory"},
		"a pooler that shares sessions": {func(t *testing.T) string { return pgtest.NewPooler(t, server, "pool_mode = transaction").DSN() }, "pool_mode = session"},
		"an address for readers":        {func(*testing.T) string { return server.DSN() + " target_session_attrs=standby" }, "want primary or read-write"},
		"a schema of an older release":  {func(t *testing.T) string { return outdated(t) }, "is needed; run `queengate migrate` first"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			var errs strings.Builder
			environ := []string{"QUEENGATE_POSTGRES_DSN=" + tc.dsn(t), "QUEENGATE_BROKER_TENANCY=off"}
			if got := app(t.Context(), []string{"broker", "--broker", "127.0.0.1:0", "--ops", "off"}, environ, io.Discard, &errs); got == 0 || !strings.Contains(errs.String(), tc.want) {
				t.Errorf("got status %d, %s, want %q", got, errs.String(), tc.want)
			}
		})
	}
}

// outdated returns the address of a database whose schema lacks a migration.
func outdated(t *testing.T) string {
	t.Helper()
	pool := pgtest.New(t, migrations.Broker)
	if _, err := pool.Exec(t.Context(), "DELETE FROM public.queengate_broker_version WHERE version_id > 1"); err != nil {
		t.Fatal(err)
	}
	return pool.Config().ConnString()
}
