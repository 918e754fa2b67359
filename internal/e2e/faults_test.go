package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/launch"
)

// postmaster returns the process id of the private PostgreSQL of a data folder.
func postmaster(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "postgres", "postmaster.pid"))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(strings.SplitN(string(text), "\n", 2)[0]))
	return pid
}

// TestPostgresDiesUnderLoad kills PostgreSQL while producers push and polls are parked. Errors are honest about their
// outcome, parked polls survive, service resumes by itself, nothing acknowledged is lost and nothing is stored twice.
func TestPostgresDiesUnderLoad(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	s := start(t, dir)
	c := s.newCluster(t, "")
	c.push(t, items("load", "p0", "warm", 1))

	parkedUntil := make(chan string, 1)
	go func() {
		r, err := c.try(t.Context(), "GET", "/api/v1/pop/queue/quiet?wait=true&timeout=55000", nil)
		switch {
		case err != nil:
			parkedUntil <- err.Error()
		case r.status != 200:
			parkedUntil <- fmt.Sprintf("%d %s", r.status, r.body)
		default:
			parkedUntil <- ""
		}
	}()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	acked, unknown := map[string]bool{}, map[string]bool{}
	failures := 0
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				id := fmt.Sprintf("w%d-%d", w, n)
				r, err := c.try(ctx, "POST", "/api/v1/push", m{"items": []m{{"queue": "load", "partition": fmt.Sprint("p", w%4), "transactionId": id, "payload": n}}})
				mu.Lock()
				switch {
				case err != nil:
					unknown[id] = true // the test ended, or the wire broke
				case r.status == 201:
					var rs []pushResult
					if err := json.Unmarshal(r.body, &rs); err != nil || len(rs) != 1 {
						t.Errorf("a push answered %q", r.body)
					} else if rs[0].Status == "queued" || rs[0].Status == "duplicate" {
						acked[id] = true
					} else {
						failures++
						unknown[id] = true
					}
				default:
					failures++
					var e errorBody
					if err := json.Unmarshal(r.body, &e); err != nil || r.status < 500 {
						t.Errorf("a push during the outage: %d %q", r.status, r.body)
					}
					switch e.Outcome {
					case "none":
					case "unknown":
						unknown[id] = true
					default:
						t.Errorf("an error without an outcome: %s", r.body)
					}
				}
				mu.Unlock()
				if err == nil && r.status != 201 {
					select {
					case <-ctx.Done():
					case <-time.After(50 * time.Millisecond):
					}
				}
			}
		})
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(acked) }
	eventually(t, 20*time.Second, "load", func() bool { return count() > 200 })
	pid := postmaster(t, dir)
	if pid == 0 {
		t.Fatal("no postmaster.pid in the data folder")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "PostgreSQL to be started again", func() bool { p := postmaster(t, dir); return p != 0 && p != pid && acceptsConnections(c) })
	n := count()
	eventually(t, 20*time.Second, "service to resume", func() bool { return count() > n+50 })
	cancel()
	wg.Wait()
	if failures == 0 {
		t.Error("no push met the outage: the test proves nothing")
	}

	c.push(t, items("quiet", "p", "t", 1))
	select {
	case problem := <-parkedUntil:
		if problem != "" {
			t.Errorf("the parked poll ended with %s", problem)
		}
	case <-time.After(20 * time.Second):
		t.Error("the parked poll was not woken")
	}

	// An empty answer says so until the broker's feed has seen the database too.
	stored := map[string]int{}
	for {
		var got popAnswer
		eventually(t, 20*time.Second, "pops to resume", func() bool {
			r := c.call(t, "GET", "/api/v1/pop/queue/load?batch=1000&partitions=10&autoAck=true", nil)
			switch {
			case r.status == http.StatusOK:
				got = decode[popAnswer](t, r.body)
			case r.status != http.StatusNoContent:
				t.Fatalf("pop: %d %s", r.status, r.body)
			}
			return r.status == http.StatusOK || r.header.Get("X-Queen-Degraded") == ""
		})
		if len(got.Messages) == 0 {
			break
		}
		for _, msg := range got.Messages {
			stored[msg.TransactionID]++
		}
	}
	for id := range acked {
		if stored[id] != 1 {
			t.Errorf("%s was acknowledged and is stored %d times", id, stored[id])
		}
	}
	for id, n := range stored {
		if n != 1 || !acked[id] && !unknown[id] && !strings.HasPrefix(id, "warm") {
			t.Errorf("%s is stored %d times but was answered outcome none", id, n)
		}
	}
	t.Logf("%d acknowledged, %d of unknown outcome, %d refused", len(acked), len(unknown), failures)
}

func acceptsConnections(c *cluster) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return c.db.Ping(ctx) == nil
}

// TestRecovery kills the process without warning: the next start finds everything.
func TestRecovery(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{
		"a plain folder":                           "data",
		"a folder with spaces":                     "my data folder",
		"a very long folder":                       strings.Repeat("long-folder-name-", 14),
		"a folder longer than PostgreSQL can name": strings.Repeat(strings.Repeat("n", 200)+"/", 8) + "data",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(dataDir(t), dir)
			s := start(t, dir)
			c := s.newCluster(t, "")
			c.push(t, items("q", "p", "t", 3))

			// A second start on the same folder refuses clearly and harms nothing.
			ctx, cancel := launch.Deadline(30 * time.Second)
			defer cancel()
			if p, err := launch.Up(ctx, bin, dir, nil); err == nil {
				p.Kill()
				t.Error("a second start on the same folder succeeded")
			} else if !strings.Contains(err.Error(), dir) {
				t.Errorf("the refusal does not name the folder: %v", err)
			}
			if got := c.push(t, items("q", "p", "t", 1)); got[0].Status != "duplicate" {
				t.Errorf("after the refused start: %+v", got[0])
			}
			creds := s.proc.Credentials
			s.proc.Kill()
			if pid := postmaster(t, dir); pid != 0 {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
					t.Error(err)
				}
			}
			c.system = start(t, dir)
			if now := c.system.proc.Credentials; now.APIKey != creds.APIKey {
				t.Error("the demo key changed with the restart")
			}
			if got := c.pop(t, "q", "batch=10"); len(got.Messages) != 3 {
				t.Errorf("after kill -9: %d messages", len(got.Messages))
			}
			// Ctrl-C drains, stops PostgreSQL, and leaves the data.
			ctx, cancel = launch.Deadline(time.Minute)
			defer cancel()
			if err := c.system.proc.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			if pid := postmaster(t, dir); pid != 0 {
				t.Errorf("PostgreSQL still runs as %d", pid)
			}
			c.system = start(t, dir)
			if got := c.push(t, items("q", "p", "t", 3)); got[2].Status != "duplicate" {
				t.Errorf("after a clean stop: %+v", got[2])
			}
		})
	}
}

func TestCredentialsFileIsPrivate(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	s, err := startSystem(dir)
	if err != nil {
		t.Fatal(err)
	}
	s.stopAtEnd(t)
	info, err := os.Stat(filepath.Join(dir, "credentials.json"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	c := s.proc.Credentials
	for name, v := range map[string]string{
		"gateway_url": c.GatewayURL, "gateway_https_url": c.GatewayHTTPSURL, "ca_file": c.CAFile, "ops_url": c.OpsURL, "broker_url": c.BrokerURL,
		"postgres_dsn": c.PostgresDSN, "api_key": c.APIKey, "read_key": c.ReadKey, "produce_key": c.ProduceKey, "consume_key": c.ConsumeKey, "admin_key": c.AdminKey,
	} {
		if v == "" {
			t.Errorf("%s is empty", name)
		}
	}
	if c.Cluster != "demo" || c.ClusterHost != "demo.localhost" {
		t.Errorf("cluster %q on host %q", c.Cluster, c.ClusterHost)
	}
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/metrics"} {
		resp, err := http.Get(c.OpsURL + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s answers %d", path, resp.StatusCode)
		}
	}
}
