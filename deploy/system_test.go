package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/queengate/queengate/internal/pgtest"
)

// part is a running broker or gateway.
type part struct{ addr, ops string }

// cell is two brokers with a mesh behind a gateway, as the files here would run them, after some traffic.
type cell struct {
	brokers [2]part
	gateway part
}

// start runs a command of the program until the test ends and returns once it is ready.
func start(t *testing.T, env []string, command, ops string) {
	t.Helper()
	cmd := exec.Command(bin, command, "--ops", ops)
	cmd.Env = append([]string{"HOME=/nonexistent"}, env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		// An error means that it has ended already, which the next line tells.
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil {
			t.Errorf("%s: %v\n%s", command, err, out.String())
		}
	})
	for {
		if status, _ := get("http://" + ops + "/readyz"); status == http.StatusOK {
			return
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%s ended before it was ready: %v\n%s", command, err, out.String())
		case <-time.After(10 * time.Millisecond): // being ready is many parts' state and has no event
		}
	}
}

// get returns the status and the body of an answer, 0 when there was none.
func get(url string) (int, string) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, ""
	}
	return resp.StatusCode, string(body)
}

// freeAddrs returns loopback addresses that nobody listens on.
func freeAddrs(t *testing.T, n int) []string {
	t.Helper()
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = net.JoinHostPort("127.0.0.1", strconv.Itoa(pgtest.FreePort(t)))
	}
	return addrs
}

// newCell goes the way of docs/operations: migrate, bootstrap with both brokers, the parts.
func newCell(t *testing.T) *cell {
	t.Helper()
	dsn, dir := pgtest.DSN(t), samples(t)
	a := freeAddrs(t, 8)
	c := &cell{brokers: [2]part{{a[0], a[1]}, {a[2], a[3]}}, gateway: part{a[4], a[5]}}
	database := []string{"QUEENGATE_POSTGRES_DSN=" + dsn}
	if _, err := run(database, "migrate"); err != nil {
		t.Fatal(err)
	}
	out, err := run(database, "bootstrap", "--cell=local", "--base-url=http://"+a[0]+",http://"+a[2], "--tenant=demo", "--cluster=demo", "--plan=pro")
	if err != nil {
		t.Fatal(err)
	}
	var made struct{ Keys []struct{ Name, Key string } }
	if err := json.Unmarshal([]byte(out), &made); err != nil || len(made.Keys) == 0 {
		t.Fatalf("bootstrap printed %s: %v", out, err)
	}
	for i, b := range c.brokers {
		env := append([]string{
			"QUEENGATE_BROKER_ADDR=" + b.addr, "QUEENGATE_BROKER_CELL_KEYS=" + filepath.Join(dir, "QUEENGATE_BROKER_CELL_KEYS"),
			"QUEENGATE_MESH_ADDR=" + a[6+i], "QUEENGATE_MESH_PEERS=" + a[6] + "," + a[7],
			"QUEENGATE_MESH_SECRET_FILE=" + filepath.Join(dir, "QUEENGATE_MESH_SECRET_FILE"),
			"QUEENGATE_BROKER_SPOOL_DIR=" + filepath.Join(dir, fmt.Sprintf("spool-%d", i)),
		}, database...)
		start(t, env, "broker", b.ops)
	}
	start(t, []string{
		"QUEENGATE_HTTP=" + c.gateway.addr, "QUEENGATE_HTTPS=off", "QUEENGATE_POSTGRES_CONTROL_DSN=" + dsn,
		"QUEENGATE_GATEWAY_CELL_KEY_FILE=" + filepath.Join(dir, "QUEENGATE_GATEWAY_CELL_KEY_FILE"), "QUEENGATE_DATA=" + filepath.Join(dir, "gateway"),
	}, "gateway", c.gateway.ops)
	c.talk(t, made.Keys[len(made.Keys)-1].Key)
	return c
}

// talk pushes a message, claims and acknowledges it, and asks once without a key.
func (c *cell) talk(t *testing.T, key string) {
	t.Helper()
	ask := func(want int, method, path, key, body string) string {
		t.Helper()
		r, err := http.NewRequest(method, "http://"+c.gateway.addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != want {
			t.Fatalf("%s %s: got %d %s, %v, want %d", method, path, resp.StatusCode, text, err, want)
		}
		return string(text)
	}
	ask(http.StatusCreated, "POST", "/api/v1/push", key, `{"items":[{"queue":"q","payload":1}]}`)
	popped := ask(http.StatusOK, "GET", "/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all&wait=true&timeout=5000", key, "")
	var answer struct {
		Messages []struct{ TransactionID, PartitionID, LeaseID string }
	}
	if err := json.Unmarshal([]byte(popped), &answer); err != nil || len(answer.Messages) != 1 {
		t.Fatalf("popped %s: %v", popped, err)
	}
	m := answer.Messages[0]
	ask(http.StatusOK, "POST", "/api/v1/ack", key, fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"consumerGroup":"g"}`,
		m.TransactionID, m.PartitionID, m.LeaseID))
	ask(http.StatusUnauthorized, "GET", "/api/v1/resources/queues", "nobody", "")
}

// probed are the paths that files here may ask for.
var probed = []string{"/livez", "/readyz", "/healthz", "/health", "/metrics", "/metrics/prometheus", "/openapi.json"}

// observation is what a cell showed while it lived: the metrics of all its parts, and which paths each of its ports serves,
// as "broker ops /livez".
type observation struct {
	families families
	serves   map[string]bool
}

var (
	once sync.Once
	seen *observation
)

// observed runs a cell in the first test that asks, and gives all of them what it showed.
func observed(t *testing.T) *observation {
	t.Helper()
	once.Do(func() {
		c := newCell(t)
		o := &observation{families: families{}, serves: map[string]bool{}}
		for port, addr := range map[string]string{
			"broker http": c.brokers[0].addr, "broker ops": c.brokers[0].ops, "gateway http": c.gateway.addr, "gateway ops": c.gateway.ops,
		} {
			for _, path := range probed {
				status, _ := get("http://" + addr + path)
				o.serves[port+" "+path] = status == http.StatusOK
			}
		}
		for _, p := range []part{c.brokers[0], c.brokers[1], c.gateway} {
			status, text := get("http://" + p.ops + "/metrics")
			if status != http.StatusOK {
				t.Fatalf("/metrics: status %d", status)
			}
			if err := o.families.read(text); err != nil {
				t.Fatal(err)
			}
		}
		seen = o
	})
	if seen == nil {
		t.Fatal("the cell did not come to life: the test that began it says why")
	}
	return seen
}

// families are metrics by the name of their series, with the labels that they have.
type families map[string]map[string]bool

// read adds what a scrape says.
func (f families) read(text string) error {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	scraped, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return fmt.Errorf("read metrics: %w", err)
	}
	for name, family := range scraped {
		kind := family.GetType().String()
		for _, m := range family.GetMetric() {
			labels := map[string]bool{"job": true, "instance": true} // which Prometheus adds
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
			}
			f.add(name, labels)
			switch kind {
			case "HISTOGRAM":
				f.add(name+"_sum", labels)
				f.add(name+"_count", labels)
				labels = maps.Clone(labels)
				labels["le"] = true
				f.add(name+"_bucket", labels)
			case "SUMMARY":
				f.add(name+"_sum", labels)
				f.add(name+"_count", labels)
			}
		}
	}
	return nil
}

func (f families) add(name string, labels map[string]bool) {
	if f[name] == nil {
		f[name] = map[string]bool{}
	}
	maps.Copy(f[name], labels)
}

// TestTheCellOfTheFilesServes pins what the probes of all files rest on.
func TestTheCellOfTheFilesServes(t *testing.T) {
	t.Parallel()
	o := observed(t)
	for what, want := range map[string]bool{
		"broker http /livez": true, "broker http /readyz": true, "broker ops /metrics": true,
		"gateway ops /livez": true, "gateway ops /readyz": true, "gateway ops /metrics": true,
		// Clients of a gateway get no probe.
		"gateway http /readyz": false,
	} {
		if o.serves[what] != want {
			t.Errorf("%s: served %v, want %v", what, o.serves[what], want)
		}
	}
	for _, name := range []string{"queengate_proxy_requests_total", "queengate_broker_parked_polls", "queengate_mesh_peers", "queen_cluster_dlq_total"} {
		if o.families[name] == nil {
			t.Errorf("no part shows %s", name)
		}
	}
}
