package e2e

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/internal/launch"
	"github.com/queengate/queengate/internal/pgtest"
)

// fleet is three brokers with a mesh on one database, and two gateways in front of them, each a process.
type fleet struct {
	t        *testing.T
	db       *pgxpool.Pool
	env      []string
	brokers  []*part
	gateways []*part
	cluster  string
	key      string
	client   *http.Client
}

// part is a process that can be started again at the same addresses.
type part struct {
	*launch.Process
	addr, ops string
	env, args []string
}

// freeAddr returns a loopback address that nobody listened on a moment ago. It must be known before its process starts,
// and be the same after a restart.
func freeAddr(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(pgtest.FreePort(t)))
}

func startFleet(t *testing.T, spread int) *fleet {
	t.Helper()
	return startFleetOn(t, pgtest.DSN(t), spread)
}

// startFleetOn is startFleet on an empty database of the test's own, with more environment.
func startFleetOn(t *testing.T, dsn string, spread int, env ...string) *fleet {
	t.Helper()
	return startFleetApart(t, dsn, dsn, spread, env...)
}

// startFleetApart is startFleetOn with the control database in another place than the cell's. Gateways have a data folder
// of their own each.
func startFleetApart(t *testing.T, cell, control string, spread int, env ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 60 * time.Second}}
	t.Cleanup(f.client.CloseIdleConnections)
	dir, err := datadir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	key, err := dir.EnsureCellKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.WriteFile("cell.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})); err != nil {
		t.Fatal(err)
	}
	f.env = []string{
		"QUEENGATE_POSTGRES_DSN=" + cell, "QUEENGATE_POSTGRES_CONTROL_DSN=" + control, "QUEENGATE_BROKER_CELL_KEYS=" + dir.Path("cell.pub"),
		"QUEENGATE_GATEWAY_CELL_KEY_FILE=" + dir.Path("keys", "cell.key"), "QUEENGATE_MESH_SECRET=a secret of the test's own",
		"QUEENGATE_POSTGRES_BROKER_POOL=6", "QUEENGATE_POSTGRES_CONTROL_POOL=2", "QUEENGATE_LOG_LEVEL=warn",
	}
	f.env = append(f.env, env...)
	var urls, peers []string
	for range 3 {
		p := &part{addr: freeAddr(t), ops: freeAddr(t)}
		mesh := freeAddr(t)
		p.args, p.env = []string{"broker", "--broker", p.addr}, []string{"QUEENGATE_MESH_ADDR=" + mesh, "QUEENGATE_BROKER_SPOOL_DIR=" + t.TempDir()}
		f.brokers = append(f.brokers, p)
		urls, peers = append(urls, "http://"+p.addr), append(peers, mesh)
	}
	f.env = append(f.env, "QUEENGATE_MESH_PEERS="+strings.Join(peers, ","))
	f.once("migrate")
	var made struct {
		ClusterID string `json:"cluster_id"`
		Keys      []struct{ Name, Key string }
	}
	out := f.once("bootstrap", "--tenant", "acme", "--cluster", "orders", "--cell", "local", "--base-url", strings.Join(urls, ","), "--plan", "dedicated-s")
	if err := json.Unmarshal(out, &made); err != nil {
		t.Fatal(err)
	}
	f.cluster, f.key = made.ClusterID, made.Keys[len(made.Keys)-1].Key
	if f.db, err = pgxpool.New(t.Context(), control); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.db.Close)
	if _, err := f.db.Exec(t.Context(), `SELECT queengate.set_limit_override($1::uuid, $2), queengate.set_cluster_spread($1::uuid, $3)`, f.cluster, unlimited, spread); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p := &part{addr: freeAddr(t), ops: freeAddr(t)}
		p.args = []string{"gateway", "--http", p.addr, "--https", "off", "--data", t.TempDir()}
		f.gateways = append(f.gateways, p)
	}
	var starting sync.WaitGroup
	for _, p := range append(append([]*part(nil), f.brokers...), f.gateways...) {
		starting.Go(func() { f.start(p) })
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return f
}

// once runs a command to its end.
func (f *fleet) once(args ...string) []byte {
	f.t.Helper()
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), f.env...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		f.t.Fatalf("%s: %v\n%s", args[0], err, errs.Bytes())
	}
	return out
}

// start starts a part, which the end of the test stops as an operator would.
func (f *fleet) start(p *part) {
	f.t.Helper()
	ctx, cancel := launch.Deadline(time.Minute)
	defer cancel()
	proc, err := launch.Part(ctx, bin, p.ops, append(append([]string(nil), f.env...), p.env...), p.args...)
	if err != nil {
		f.t.Error(err)
		return
	}
	p.Process = proc
	f.t.Cleanup(func() { f.stop(proc) })
}

// stop ends a process as an operator would, unless it has ended: in its budget, with status 0.
func (f *fleet) stop(p *launch.Process) {
	f.t.Helper()
	select {
	case <-p.Exited():
		return
	default:
	}
	ctx, cancel := launch.Deadline(30 * time.Second) // the brokers' drain: 2 s and 20 s; the gateways': 25 s
	defer cancel()
	if err := p.End(ctx, syscall.SIGTERM); err != nil {
		f.t.Errorf("stop: %v", err)
	}
	if out := p.Output(); strings.Contains(out, "DATA RACE") {
		f.t.Error(out)
	}
}

// serving waits until both gateways say whether they send new requests to a broker.
func (f *fleet) serving(b *part, want float64) {
	f.t.Helper()
	for _, g := range f.gateways {
		eventually(f.t, 20*time.Second, fmt.Sprintf("%s to be serving: %v", b.addr, want), func() bool {
			return metric(f.t, "http://"+g.ops+"/metrics", "queengate_proxy_broker_up", `broker="`+b.addr+`"`, `probe="serving"`) == want
		})
	}
}

// consumed waits until a group has nothing left of a queue: what counts is where its cursors stand, whatever became of
// the answers to its acks.
func (f *fleet) consumed(queue, group string) {
	f.t.Helper()
	eventually(f.t, time.Minute, "the group to have all of "+queue, func() bool {
		r, err := f.call(f.t.Context(), 0, "GET", "/api/v1/resources/queues/"+queue+"/depth?group="+group, nil)
		if err != nil || r.status != http.StatusOK {
			f.t.Fatalf("depth: %v %d %s", err, r.status, r.body)
		}
		return decode[struct{ Pending int }](f.t, r.body).Pending == 0
	})
}

// stored reads a queue to its end, as a group that has never read it, and counts its transaction ids.
func (f *fleet) stored(queue string) map[string]int {
	f.t.Helper()
	found := map[string]int{}
	for {
		r, err := f.call(f.t.Context(), 0, "GET", "/api/v1/pop/queue/"+queue+"?batch=1000&partitions=10&autoAck=true&consumerGroup=audit&subscriptionMode=all", nil)
		if err != nil || r.status >= 300 || r.header.Get("X-Queen-Degraded") != "" {
			f.t.Fatalf("audit: %v %d %v %s", err, r.status, r.header, r.body)
		}
		if r.status == http.StatusNoContent {
			return found
		}
		for _, msg := range decode[popAnswer](f.t, r.body).Messages {
			found[msg.TransactionID]++
		}
	}
}

// call sends one request through gateway n.
func (f *fleet) call(ctx context.Context, n int, method, path string, body any) (reply, error) {
	var rd io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return reply{}, err
		}
		rd = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+f.gateways[n%len(f.gateways)].addr+path, rd)
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+f.key)
	resp, err := f.client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, text}, err
}
