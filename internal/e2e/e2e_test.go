// Package e2e tests the whole system through its real processes: `queengate up` as it is built, real PostgreSQL, real
// sockets. It holds only tests.
package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/launch"
	"github.com/queengate/queengate/internal/pgtest"
)

// bin is the binary under test, built once with the race detector.
var bin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "queengate-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		ctx, cancel := launch.Deadline(5 * time.Minute)
		defer cancel()
		if bin, err = launch.Build(ctx, dir, "-race"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		if sharedSystem.s != nil {
			ctx, cancel := launch.Deadline(time.Minute)
			defer cancel()
			if err := sharedSystem.s.proc.Stop(ctx); err != nil {
				fmt.Fprintln(os.Stderr, "the shared system did not stop cleanly:", err)
				code = 1
			}
			if out := sharedSystem.s.proc.Output(); strings.Contains(out, "DATA RACE") {
				fmt.Fprintln(os.Stderr, out)
				code = 1
			}
			os.RemoveAll(sharedSystem.dir)
		}
		return code
	}())
}

// system is a running `queengate up` with a connection to its database.
type system struct {
	proc  *launch.Process
	db    *pgxpool.Pool
	probe *probe
}

// probe is the demo cluster, which tests use only to learn how far the gateway has followed.
type probe struct {
	once    sync.Once
	cluster string
}

var sharedSystem struct {
	once sync.Once
	s    *system
	dir  string
	err  error
}

// shared returns the one system of tests that make clusters of their own and harm nobody.
func shared(t *testing.T) *system {
	t.Helper()
	sharedSystem.once.Do(func() {
		sharedSystem.dir, sharedSystem.err = os.MkdirTemp("", "queengate-shared-")
		if sharedSystem.err == nil {
			sharedSystem.s, sharedSystem.err = startSystem(sharedSystem.dir)
		}
	})
	if sharedSystem.err != nil {
		t.Fatal(sharedSystem.err)
	}
	return sharedSystem.s
}

func startSystem(dir string, args ...string) (*system, error) { return startWith(nil, dir, args...) }

// startWith is startSystem with more environment.
func startWith(env []string, dir string, args ...string) (*system, error) {
	ctx, cancel := launch.Deadline(time.Minute)
	defer cancel()
	p, err := launch.Up(ctx, bin, dir, env, args...)
	if err != nil {
		return nil, err
	}
	db, err := pgxpool.New(ctx, p.Credentials.PostgresDSN)
	if err != nil {
		p.Kill()
		return nil, err
	}
	return &system{proc: p, db: db, probe: &probe{}}, nil
}

// start runs a system of the test's own on dir and stops it at the end.
func start(t *testing.T, dir string, args ...string) *system {
	t.Helper()
	s, err := startSystem(dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	s.stopAtEnd(t)
	return s
}

// stopAtEnd ends the system as an operator would when the test is over.
func (s *system) stopAtEnd(t *testing.T) {
	t.Cleanup(func() { s.stop(t) })
}

// stop is what stopAtEnd does, now; the system may have ended before.
func (s *system) stop(t *testing.T) {
	t.Helper()
	s.db.Close()
	select {
	case <-s.proc.Exited():
		return
	default:
	}
	ctx, cancel := launch.Deadline(time.Minute)
	defer cancel()
	if err := s.proc.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	if out := s.proc.Output(); strings.Contains(out, "DATA RACE") {
		t.Error(out)
	}
}

// dataDir is a folder of the test's own that the unprivileged PostgreSQL of a run as root may pass through, unlike
// t.TempDir.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "queengate-data-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) }) // what is left of it is in the system's temporary folder
	return dir
}

// startOnTestServer is start with a fresh database of the test server instead of a private PostgreSQL: faster, for
// tests that restart the processes but do not harm the database.
func startOnTestServer(t *testing.T) (*system, func() *system) {
	t.Helper()
	dsn, dir := pgtest.DSN(t), t.TempDir()
	again := func() *system { return start(t, dir, "--postgres", dsn) }
	return again(), again
}

// cluster is a tenant of one test with its own keys and plan.
type cluster struct {
	*system
	id, slug                            string
	full, produce, consume, admin, read string
	client                              *http.Client
}

var clusterSerial atomic.Int64

// newCluster makes a cluster whose plan is unlimited but for overrides, a JSON object of limits.
func (s *system) newCluster(t *testing.T, overrides string) *cluster {
	t.Helper()
	ctx := t.Context()
	c := &cluster{system: s, slug: fmt.Sprintf("c%d-%d", os.Getpid(), clusterSerial.Add(1))}
	s.exec(t, `SELECT queengate.create_tenant($1, $1)`, c.slug)
	err := s.db.QueryRow(ctx, `SELECT queengate.create_cluster(t.id, $1, 'dedicated-s', (SELECT slug FROM queengate.cells LIMIT 1))::text
		FROM queengate.tenants t WHERE t.slug = $1`, c.slug).Scan(&c.id)
	if err != nil {
		t.Fatal(err)
	}
	c.override(t, overrides)
	for key, scopes := range map[*string][]string{
		&c.full: {"produce", "consume", "admin", "read"}, &c.produce: {"produce"}, &c.consume: {"consume"}, &c.admin: {"admin"}, &c.read: {"read"},
	} {
		*key = s.newKey(t, c.id, scopes)
	}
	c.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 60 * time.Second}
	t.Cleanup(c.client.CloseIdleConnections)
	c.settle(t)
	return c
}

const unlimited = `{"max_req_per_sec":null,"req_burst":null,"max_msgs_per_sec":null,"msgs_burst":null,"max_queues":null,
	"max_partitions_per_queue":null,"max_parked_pops":null,"max_payload_bytes":null,"max_batch_items":null,"max_body_bytes":null,
	"max_retained_bytes":null,"max_retention_seconds":null,"monthly_msgs_quota":null}`

// override sets the limits of the cluster: unlimited but for the given ones.
func (c *cluster) override(t *testing.T, overrides string) {
	t.Helper()
	if overrides == "" {
		overrides = "{}"
	}
	c.exec(t, `SELECT queengate.set_limit_override($1::uuid, $2::jsonb || $3::jsonb)`, c.id, unlimited, overrides)
}

func (s *system) newKey(t *testing.T, cluster string, scopes []string) string {
	t.Helper()
	var secret [32]byte
	if _, err := rand.Read(secret[:]); err != nil {
		t.Fatal(err)
	}
	key := "qk_test_" + base64.RawURLEncoding.EncodeToString(secret[:])
	hash := sha256.Sum256([]byte(key))
	s.exec(t, `SELECT queengate.issue_api_key($1::uuid, $2, $3, NULL, $4)`, cluster, strings.Join(scopes, "-"), hash[:], scopes)
	return key
}

func (s *system) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := s.db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// settle waits until the gateway knows every change made so far. Changes reach it in order, so it makes one more, a key
// of another cluster, and asks with it until it is known: that costs the plan under test nothing.
func (c *cluster) settle(t *testing.T) {
	t.Helper()
	c.probe.once.Do(func() {
		err := c.db.QueryRow(t.Context(), `SELECT id::text FROM queengate.clusters WHERE slug = $1`, c.proc.Credentials.Cluster).Scan(&c.probe.cluster)
		if err != nil {
			t.Fatal(err)
		}
		c.exec(t, `SELECT queengate.set_limit_override($1::uuid, $2::jsonb)`, c.probe.cluster, unlimited)
	})
	probe := c.newKey(t, c.probe.cluster, []string{"read"})
	eventually(t, 20*time.Second, "the gateway to follow the control database", func() bool {
		r := c.call(t, "GET", "/api/v1/resources/queues", nil, key(probe))
		return r.status == http.StatusOK
	})
}

// reply is an answer, read whole.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// errorBody is the JSON of a refusal.
type errorBody struct {
	Error        string  `json:"error"`
	Code         string  `json:"code"`
	RequestID    string  `json:"request_id"`
	Retryable    bool    `json:"retryable"`
	RetryAfterMs int64   `json:"retry_after_ms"`
	Outcome      string  `json:"outcome"`
	Limit        *limits `json:"limit"`
}

type limits struct {
	Name  string  `json:"name"`
	Limit float64 `json:"limit"`
	Used  float64 `json:"used"`
	Unit  string  `json:"unit"`
	Reset float64 `json:"reset_s"`
}

func (r reply) refusal(t *testing.T) errorBody {
	t.Helper()
	var e errorBody
	if err := json.Unmarshal(r.body, &e); err != nil {
		t.Fatalf("status %d with a body that is no refusal: %q", r.status, r.body)
	}
	return e
}

type callOption func(*http.Request)

func key(k string) callOption {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+k) }
}
func host(h string) callOption { return func(r *http.Request) { r.Host = h } }
func header(name, value string) callOption {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// call sends one request through the gateway over plain HTTP with the cluster's full key unless an option says else.
// body may be nil, a string, []byte or anything that marshals to JSON.
func (c *cluster) call(t testing.TB, method, path string, body any, opts ...callOption) reply {
	t.Helper()
	r, err := c.try(t.Context(), method, path, body, opts...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return r
}

func (c *cluster) try(ctx context.Context, method, path string, body any, opts ...callOption) (reply, error) {
	var rd io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		rd = strings.NewReader(b)
	case []byte:
		rd = bytes.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return reply{}, err
		}
		rd = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.proc.Credentials.GatewayURL+path, rd)
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	key(c.full)(req)
	for _, o := range opts {
		o(req)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, text}, err
}

type m = map[string]any

// items is a push body of n messages for one partition, with deterministic transaction ids under prefix.
func items(queue, partition, prefix string, n int) m {
	list := make([]m, n)
	for i := range list {
		list[i] = m{"queue": queue, "partition": partition, "transactionId": fmt.Sprintf("%s-%d", prefix, i), "payload": m{"n": i}}
	}
	return m{"items": list}
}

type pushResult struct {
	Index         int    `json:"index"`
	MessageID     string `json:"message_id"`
	TransactionID string `json:"transaction_id"`
	QueueName     string `json:"queueName"`
	Status        string `json:"status"`
	Offset        *int64 `json:"offset"`
}

func (c *cluster) push(t testing.TB, body any, opts ...callOption) []pushResult {
	t.Helper()
	r := c.call(t, "POST", "/api/v1/push", body, opts...)
	if r.status != http.StatusCreated {
		t.Fatalf("push: %d %s", r.status, r.body)
	}
	return decode[[]pushResult](t, r.body)
}

type message struct {
	ID              string          `json:"id"`
	TransactionID   string          `json:"transactionId"`
	Data            json.RawMessage `json:"data"`
	PartitionID     string          `json:"partitionId"`
	Partition       string          `json:"partition"`
	LeaseID         string          `json:"leaseId"`
	Offset          int64           `json:"offset"`
	DeliveryAttempt int             `json:"deliveryAttempt"`
	ProducerSub     *string         `json:"producerSub"`
	CreatedAt       string          `json:"createdAt"`
}

type popAnswer struct {
	Success     bool      `json:"success"`
	Queue       string    `json:"queue"`
	PartitionID string    `json:"partitionId"`
	LeaseID     string    `json:"leaseId"`
	Messages    []message `json:"messages"`
}

// pop returns what a pop of the queue answers; 204 is an empty answer.
func (c *cluster) pop(t testing.TB, queue, query string, opts ...callOption) popAnswer {
	t.Helper()
	r := c.call(t, "GET", "/api/v1/pop/queue/"+queue+"?"+query, nil, opts...)
	switch r.status {
	case http.StatusNoContent:
		return popAnswer{}
	case http.StatusOK:
		return decode[popAnswer](t, r.body)
	}
	t.Fatalf("pop: %d %s", r.status, r.body)
	return popAnswer{}
}

// arrives waits until the first pop of a group has reached the broker: it registers the group with its queue before it
// looks for messages. How many polls a process has parked says nothing about one of them, where other tests have theirs.
func (c *cluster) arrives(t testing.TB, queue, group string) {
	t.Helper()
	eventually(t, 30*time.Second, "the poll to reach the broker", func() bool {
		var n int
		err := c.db.QueryRow(t.Context(), `SELECT count(*) FROM queen.group_registrations r JOIN queengate.clusters c ON c.broker_tenant_uuid = r.tenant_id
			WHERE c.id = $1::uuid AND r.queue = $2 AND r.consumer_group = $3`, c.id, queue, group).Scan(&n)
		return err == nil && n > 0
	})
}

type ackResult struct {
	Index         int     `json:"index"`
	TransactionID string  `json:"transactionId"`
	Success       bool    `json:"success"`
	Error         *string `json:"error"`
	LeaseReleased bool    `json:"leaseReleased"`
	DLQ           bool    `json:"dlq"`
	Noop          bool    `json:"noop"`
}

func (c *cluster) ack(t testing.TB, acks []m, group any) []ackResult {
	t.Helper()
	r := c.call(t, "POST", "/api/v1/ack/batch", m{"acknowledgments": acks, "consumerGroup": group})
	if r.status != http.StatusOK {
		t.Fatalf("ack: %d %s", r.status, r.body)
	}
	return decode[[]ackResult](t, r.body)
}

func ackOf(msg message, status string) m {
	return m{"transactionId": msg.TransactionID, "partitionId": msg.PartitionID, "leaseId": msg.LeaseID, "status": status}
}

func decode[T any](t testing.TB, text []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("decode %q: %v", text, err)
	}
	return v
}

// eventually asks ok until it holds. It is for what another process does in its own time, where no event reaches us.
func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited %v in vain for %s", within, what)
		case <-tick.C:
		}
	}
}

// metric returns the sum of a metric family of the ops or broker listener over labels that contain all of match.
func metric(t testing.TB, url, name string, match ...string) float64 {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	sum, found := 0.0, false
lines:
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || (rest[0] != ' ' && rest[0] != '{') {
			continue
		}
		for _, s := range match {
			if !strings.Contains(rest, s) {
				continue lines
			}
		}
		var v float64
		if _, err := fmt.Sscan(rest[strings.LastIndexByte(strings.TrimSpace(rest), ' ')+1:], &v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		sum += v
		found = true
	}
	if !found {
		t.Fatalf("%s has no metric %s %v", url, name, match)
	}
	return sum
}
