package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

// patience bounds a wait for something that must happen.
const patience = 30 * time.Second

// world is a broker over a database of its own, serving on loopback.
type world struct {
	t        testing.TB
	pool     *pgxpool.Pool
	b        *Broker
	listener net.Listener
	addr     string
	client   *http.Client
	stop     func() // drains the broker and waits; runs at cleanup at the latest
}

func setup(t testing.TB, change func(*Config)) *world {
	t.Helper()
	return serve(t, pgtest.New(t, migrations.Broker), change)
}

// serve starts a broker on pool.
func serve(t testing.TB, pool *pgxpool.Pool, change func(*Config)) *world {
	t.Helper()
	return serveFrom(t, pool, store.New(pool), change)
}

// serveFrom is serve with a store that stands before the one on pool.
func serveFrom(t testing.TB, pool *pgxpool.Pool, db Store, change func(*Config)) *world {
	t.Helper()
	return serveWith(t, pool, Deps{Store: db}, change)
}

// assemble makes a broker on pool that does not run yet. The change feed of one with a mesh is read only when another
// broker says so: what is heard within a second without the mesh is no proof of it.
func assemble(t testing.TB, pool *pgxpool.Pool, deps Deps, change func(*Config)) *world {
	t.Helper()
	cfg := Config{Version: "test"}
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
	w := &world{t: t, pool: pool, listener: ln, addr: ln.Addr().String()}
	w.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: patience}
	t.Cleanup(w.client.CloseIdleConnections)
	if deps.Ping == nil {
		deps.Ping = pool.Ping
	}
	deps.Registry, deps.Listener = prometheus.NewRegistry(), ln
	w.b = New(slog.New(slog.NewTextHandler(logSink{t}, &slog.HandlerOptions{Level: slog.LevelWarn})), deps, cfg)
	if deps.Mesh != nil {
		w.b.feed.every = time.Hour
	}
	return w
}

// serveWith is serve with some of what a broker stands on.
func serveWith(t testing.TB, pool *pgxpool.Pool, deps Deps, change func(*Config)) *world {
	t.Helper()
	w := assemble(t, pool, deps, change)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.b.Run(ctx) }()
	stopped := false
	w.stop = func() {
		if stopped {
			return
		}
		stopped = true
		w.client.CloseIdleConnections()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the broker ended with %v", err)
			}
		case <-time.After(patience):
			t.Error("the broker does not stop")
		}
	}
	t.Cleanup(w.stop)
	return w
}

// logSink sends log lines to the test's own log.
type logSink struct{ t testing.TB }

func (s logSink) Write(p []byte) (int, error) {
	s.t.Logf("%s", bytes.TrimRight(p, "\n"))
	return len(p), nil
}

// answer is a whole HTTP answer.
type answer struct {
	status int
	header http.Header
	body   string
	close  bool // the connection ends with it
}

// do sends a request; headers come in pairs.
func (w *world) do(method, path, body string, headers ...string) answer {
	w.t.Helper()
	a, err := w.try(method, path, body, headers...)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func (w *world) try(method, path, body string, headers ...string) (answer, error) {
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, "http://"+w.addr+path, rd)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	r, err := w.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return answer{r.StatusCode, r.Header, string(b), r.Close}, err
}

func (a answer) want(t testing.TB, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

func decode[T any](t testing.TB, a answer) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return v
}

type pushed struct {
	Index         int    `json:"index"`
	MessageID     string `json:"message_id"`
	TransactionID string `json:"transaction_id"`
	Status        string `json:"status"`
	Offset        *int64 `json:"offset"`
	Error         string `json:"error"`
}

type message struct {
	ID              string          `json:"id"`
	TransactionID   string          `json:"transactionId"`
	PartitionID     string          `json:"partitionId"`
	Partition       string          `json:"partition"`
	LeaseID         string          `json:"leaseId"`
	Data            json.RawMessage `json:"data"`
	CreatedAt       time.Time       `json:"createdAt"`
	DeliveryAttempt int             `json:"deliveryAttempt"`
	ProducerSub     *string         `json:"producerSub"`
}

type popped struct {
	Queue             string    `json:"queue"`
	LeaseID           string    `json:"leaseId"`
	PartitionsClaimed int       `json:"partitionsClaimed"`
	Messages          []message `json:"messages"`
}

type acked struct {
	Index         int     `json:"index"`
	Success       bool    `json:"success"`
	Error         *string `json:"error"`
	LeaseReleased bool    `json:"leaseReleased"`
	DLQ           bool    `json:"dlq"`
	Noop          bool    `json:"noop"`
	Outcome       string  `json:"outcome"`
}

func (w *world) push(body string, headers ...string) []pushed {
	w.t.Helper()
	return decode[[]pushed](w.t, w.do("POST", "/api/v1/push", body, headers...).want(w.t, 201))
}

// one pushes one message.
func (w *world) one(queue, txn string) pushed {
	w.t.Helper()
	return w.push(fmt.Sprintf(`{"items":[{"queue":%q,"transactionId":%q,"payload":{"n":%q}}]}`, queue, txn, txn))[0]
}

// pop returns what a pop gave, nothing for a 204.
func (w *world) pop(path string, headers ...string) popped {
	w.t.Helper()
	a := w.do("GET", "/api/v1/pop/queue/"+path, "", headers...)
	if a.status == 204 {
		if a.body != "" || a.header.Get("Content-Length") != "" || a.header.Get("Content-Type") != "" {
			w.t.Errorf("a 204 with a body or its headers: %v %q", a.header, a.body)
		}
		return popped{}
	}
	return decode[popped](w.t, a.want(w.t, 200))
}

func (w *world) ack(status, group string, messages ...message) []acked {
	w.t.Helper()
	type item struct {
		TransactionID string `json:"transactionId"`
		PartitionID   string `json:"partitionId"`
		LeaseID       string `json:"leaseId"`
		Status        string `json:"status"`
	}
	var items []item
	for _, m := range messages {
		items = append(items, item{m.TransactionID, m.PartitionID, m.LeaseID, status})
	}
	body, err := json.Marshal(map[string]any{"acknowledgments": items, "consumerGroup": group})
	if err != nil {
		w.t.Fatal(err)
	}
	return decode[[]acked](w.t, w.do("POST", "/api/v1/ack/batch", string(body)).want(w.t, 200))
}

// until waits for a condition that something outside the test brings about.
func (w *world) until(what string, cond func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for tick := time.NewTicker(2 * time.Millisecond); ; <-tick.C {
		if cond() {
			tick.Stop()
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("waited in vain: %s", what)
		}
	}
}
