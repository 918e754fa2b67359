// Package contract holds the wire contract as tests: the compatibility checklist, the differences between generations of
// clients, the requests that published SDKs send with the fields they read, and the OpenAPI document against real
// answers. Everything is asked over HTTP of a broker that listens, on real PostgreSQL. It holds only tests.
package contract

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/broker"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

// patience bounds a wait for something that must happen.
const patience = 40 * time.Second

// service is a broker on a database of its own. Tests that share one use queues of their own.
type service struct {
	t      testing.TB
	addr   string
	client *http.Client
	key    ed25519.PrivateKey // signs tokens of the cell, when the broker wants tokens
}

// cell is the name that tokens are made out to.
const cell = "cell-1"

// serve starts a broker and stops it at the end of the test.
func serve(t testing.TB, change func(*broker.Config)) *service {
	t.Helper()
	pool := pgtest.New(t, migrations.Broker)
	return listen(t, broker.Deps{Store: store.New(pool), Ping: pool.Ping}, change)
}

// guarded starts a broker that believes tokens only.
func guarded(t testing.TB) *service {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, func(c *broker.Config) {
		c.Tenancy, c.Cell, c.Keys = true, cell, map[string]ed25519.PublicKey{wire.KeyID(pub): pub}
	})
	s.key = key
	return s
}

func listen(t testing.TB, deps broker.Deps, change func(*broker.Config)) *service {
	t.Helper()
	cfg := broker.Config{Version: "1.6.0-test"}
	if change != nil {
		change(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	deps.Listener, deps.Registry = ln, prometheus.NewRegistry()
	b := broker.New(slog.New(slog.DiscardHandler), deps, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the broker ended with %v", err)
			}
		case <-time.After(patience):
			t.Error("the broker does not stop")
		}
	})
	return &service{t: t, addr: ln.Addr().String(), client: &http.Client{Transport: transport, Timeout: patience}}
}

// of is the service as a subtest sees it.
func (s *service) of(t testing.TB) *service {
	c := *s
	c.t = t
	return &c
}

// token are the headers of a gateway's request for a tenant.
func (s *service) token(tenant uuid.UUID, access wire.Access) []string {
	s.t.Helper()
	now := time.Now()
	token, err := wire.SignCell(s.key, cell, wire.CellClaims{Tenant: tenant, Access: access, Subject: "key-1", Expires: now.Add(time.Hour)}, now)
	if err != nil {
		s.t.Fatal(err)
	}
	return []string{wire.HeaderTenant, tenant.String(), "Authorization", "Bearer " + token}
}

// reply is an answer, read whole.
type reply struct {
	status int
	header http.Header
	body   string
}

// do sends a request, without a content type unless headers, which come in pairs, give one: none is ever needed.
func (s *service) do(method, path, body string, headers ...string) reply {
	s.t.Helper()
	r, err := s.try(s.client, method, path, body, headers...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return r
}

func (s *service) try(client *http.Client, method, path, body string, headers ...string) (reply, error) {
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, "http://"+s.addr+path, rd)
	if err != nil {
		return reply{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	r, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return reply{r.StatusCode, r.Header, string(b)}, err
}

// raw sends bytes on a connection of its own and reads as many answers as it has requests.
func (s *service) raw(requests ...string) []reply {
	s.t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	rd := bufio.NewReader(c)
	var all []reply
	for _, text := range requests {
		if _, err := io.WriteString(c, text); err != nil {
			s.t.Fatal(err)
		}
		r, err := http.ReadResponse(rd, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil {
			s.t.Fatal(err)
		}
		all = append(all, reply{r.StatusCode, r.Header, string(b)})
	}
	return all
}

func (r reply) want(t testing.TB, status int) reply {
	t.Helper()
	if r.status != status {
		t.Fatalf("status %d, want %d: %s", r.status, status, r.body)
	}
	if kind := r.header.Get("Content-Type"); r.body != "" && kind != "application/json" && !strings.HasPrefix(kind, "text/plain") {
		t.Fatalf("content type %q of %s", kind, r.body)
	}
	return r
}

func decode[T any](t testing.TB, r reply) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(r.body), &v); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	return v
}

type m = map[string]any

// text renders a body.
func text(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// keys are the member names of an object, sorted.
func keys(o m) []string {
	var names []string
	for k := range o {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}

// has fails unless o has all the members.
func has(t testing.TB, o m, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, ok := o[n]; !ok {
			t.Errorf("no %q in %v", n, o)
		}
	}
}

type pushed struct {
	Index         int    `json:"index"`
	MessageID     string `json:"message_id"`
	TransactionID string `json:"transaction_id"`
	Queue         string `json:"queueName"`
	Status        string `json:"status"`
	Offset        *int64 `json:"offset"`
}

type message struct {
	ID              string          `json:"id"`
	TransactionID   string          `json:"transactionId"`
	PartitionID     string          `json:"partitionId"`
	Partition       string          `json:"partition"`
	Queue           string          `json:"queue"`
	LeaseID         string          `json:"leaseId"`
	Group           string          `json:"consumerGroup"`
	Data            json.RawMessage `json:"data"`
	CreatedAt       string          `json:"createdAt"`
	DeliveryAttempt int             `json:"deliveryAttempt"`
	TraceID         *string         `json:"traceId"`
}

type popped struct {
	Queue             string    `json:"queue"`
	LeaseID           string    `json:"leaseId"`
	PartitionsClaimed int       `json:"partitionsClaimed"`
	Conflation        bool      `json:"conflation"`
	Messages          []message `json:"messages"`
}

// ids are the transaction ids in order.
func (p popped) ids() string {
	var ids []string
	for _, m := range p.Messages {
		ids = append(ids, m.TransactionID)
	}
	return strings.Join(ids, " ")
}

type acked struct {
	Index         int     `json:"index"`
	TransactionID string  `json:"transactionId"`
	Success       bool    `json:"success"`
	Error         *string `json:"error"`
	LeaseReleased bool    `json:"leaseReleased"`
	DLQ           bool    `json:"dlq"`
	Noop          bool    `json:"noop"`
}

func (a acked) reason() string {
	if a.Error == nil {
		return ""
	}
	return *a.Error
}

// push stores messages with these transaction ids in one partition, each with {"n":i}.
func (s *service) push(queue, partition string, txns ...string) []pushed {
	s.t.Helper()
	var items []m
	for i, txn := range txns {
		items = append(items, m{"queue": queue, "partition": partition, "transactionId": txn, "payload": m{"n": i}})
	}
	return decode[[]pushed](s.t, s.do("POST", "/api/v1/push", text(s.t, m{"items": items})).want(s.t, 201))
}

// pop asks for messages; 204 is none.
func (s *service) pop(path string) popped {
	s.t.Helper()
	r := s.do("GET", "/api/v1/pop/queue/"+path, "")
	if r.status == 204 {
		return popped{}
	}
	return decode[popped](s.t, r.want(s.t, 200))
}

// some is pop, and fails when there is none.
func (s *service) some(path string) popped {
	s.t.Helper()
	p := s.pop(path)
	if len(p.Messages) == 0 {
		s.t.Fatalf("%s gave nothing", path)
	}
	return p
}

// ackBody is how a client names a message of a pop.
func ackBody(g message, status string) m {
	return m{"transactionId": g.TransactionID, "partitionId": g.PartitionID, "leaseId": g.LeaseID, "status": status}
}

// ack settles messages in one call for the group they were claimed for.
func (s *service) ack(status string, messages ...message) []acked {
	s.t.Helper()
	var items []m
	for _, g := range messages {
		items = append(items, ackBody(g, status))
	}
	return s.settle(messages[0].Group, items...)
}

func (s *service) settle(group any, items ...m) []acked {
	s.t.Helper()
	r := s.do("POST", "/api/v1/ack/batch", text(s.t, m{"acknowledgments": items, "consumerGroup": group})).want(s.t, 200)
	return decode[[]acked](s.t, r)
}

// bury pushes a message and makes it a dead letter of a group.
func (s *service) bury(queue, txn, group string) message {
	s.t.Helper()
	s.push(queue, "Default", txn)
	g := s.some(queue + "?subscriptionMode=all&consumerGroup=" + group)
	last := g.Messages[len(g.Messages)-1]
	if r := s.settle(group, m{"transactionId": last.TransactionID, "partitionId": last.PartitionID, "leaseId": last.LeaseID, "status": "dlq", "error": "boom"}); !r[0].DLQ {
		s.t.Fatalf("%+v", r)
	}
	return last
}

// letters lists dead letters.
func (s *service) letters(query string) []m {
	s.t.Helper()
	return decode[struct{ Messages []m }](s.t, s.do("GET", "/api/v1/dlq?"+query, "").want(s.t, 200)).Messages
}

// transact sends a transaction, whose verdict is a 200.
func (s *service) transact(body m) m {
	s.t.Helper()
	return decode[m](s.t, s.do("POST", "/api/v1/transaction", text(s.t, body)).want(s.t, 200))
}

// options are the effective options of a queue.
func (s *service) options(queue string) m {
	s.t.Helper()
	return decode[m](s.t, s.do("GET", "/api/v1/resources/queues/"+queue, "").want(s.t, 200))["options"].(m)
}

// group is the entry of a group on a queue.
func (s *service) group(name, queue string) m {
	s.t.Helper()
	for _, g := range decode[[]m](s.t, s.do("GET", "/api/v1/consumer-groups", "").want(s.t, 200)) {
		if g["name"] == name && g["queueName"] == queue {
			return g
		}
	}
	s.t.Fatalf("no group %s of %s", name, queue)
	return nil
}

// until waits for what another process or goroutine brings about, where no event reaches us.
func (s *service) until(what string, ok func() bool) {
	s.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			s.t.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

// txns are n transaction ids under a prefix.
func txns(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s-%d", prefix, i))
	}
	return all
}
