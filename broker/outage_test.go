package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

// cable is the way to the database; it can be cut.
type cable struct {
	mu    sync.Mutex
	cut   bool
	mute  bool // answers are lost: of what the server says, nothing arrives
	left  int  // answers that arrive before that
	conns map[net.Conn]bool
	dial  func(ctx context.Context, network, addr string) (net.Conn, error)
}

func plug(t testing.TB) (*pgxpool.Pool, *cable) {
	t.Helper()
	cfg, err := pg.Parse(pg.Config{DSN: pgtest.DSN(t, migrations.Broker), MaxConn: 8})
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{conns: map[net.Conn]bool{}, dial: cfg.ConnConfig.DialFunc}
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.cut {
			return nil, &net.OpError{Op: "dial", Net: network, Err: net.ErrClosed}
		}
		conn, err := c.dial(ctx, network, addr)
		if err == nil {
			c.conns[conn] = true
		}
		return &wired{conn, c}, err
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, c
}

func (c *cable) pull() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
	for conn := range c.conns {
		conn.Close()
		delete(c.conns, conn)
	}
}

func (c *cable) plugIn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = false
}

// wired is one connection through the cable.
type wired struct {
	net.Conn
	cable *cable
}

// Read waits for what the server says, which it does when it is done, and may then lose it with the connection.
func (w *wired) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.cable.mu.Lock()
	defer w.cable.mu.Unlock()
	if w.cable.mute && n > 0 {
		if w.cable.left--; w.cable.left >= 0 {
			return n, err
		}
		return 0, errors.Join(net.ErrClosed, w.Close())
	}
	return n, err
}

// lose makes answers get lost, or not, but for the first so many.
func (c *cable) lose(answers bool, but int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mute, c.left = answers, but
}

// What a pop with autoAck has taken is consumed. If the answer of the database is lost, so may messages be, and 204 would
// be a lie.
func TestALostClaimThatAcknowledgesByItselfIsSaid(t *testing.T) {
	t.Parallel()
	pool, cable := plug(t)
	w := still(t, pool) // its loops might lose the sessions before the pop has one
	w.fuse()
	w.one("q", "first")
	if got := w.pop("q?autoAck=true"); len(got.Messages) != 1 { // the ring is prepared, and nothing but claims is asked from here on
		t.Fatalf("%+v", got)
	}
	w.one("q", "second")
	cable.lose(true, 0)
	a := w.do("GET", "/api/v1/pop/queue/q?autoAck=true&wait=true&timeout=20000", "")
	if a.status != 503 || !strings.Contains(a.body, `"outcome":"unknown"`) {
		t.Errorf("the pop that lost its messages says %d %s", a.status, a.body)
	}
	cable.lose(false, 0)
	w.until("the database is back", func() bool { return w.do("GET", "/health", "").status == 200 })
	w.one("q", "third")
	if got := w.pop("q?autoAck=true&wait=true&timeout=20000"); len(got.Messages) != 1 || got.Messages[0].TransactionID != "third" {
		t.Errorf("delivered %+v: want what comes behind the lost one", got)
	}
}

// An ack that takes several statements may lose the answer to any of them. Whichever it is, what is said to have failed has
// not happened.
func TestAnAckThatLostAnAnswerDoesNotSayThatNothingHappened(t *testing.T) {
	t.Parallel()
	pool, cable := plug(t)
	w := serve(t, pool, nil)
	other := serve(t, pool, nil) // it does not know the lease, so it must look for the message
	lost := 0
	for but := range 8 {
		id := fmt.Sprint("m", but)
		w.one("q", id)
		got := w.pop("q?wait=true&timeout=20000")
		if len(got.Messages) != 1 || got.Messages[0].TransactionID != id {
			t.Fatalf("%s: delivered %+v", id, got)
		}
		cable.lose(true, but)
		a := other.do("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"dlq","error":"x"}`,
			id, got.Messages[0].PartitionID, got.LeaseID))
		cable.lose(false, 0)
		w.until("the database is back", func() bool {
			return w.do("GET", "/health", "").status == 200 && other.do("GET", "/health", "").status == 200
		})
		dead := strings.Contains(w.do("GET", "/api/v1/dlq?queue=q", "").want(t, 200).body, `"transactionId":"`+id+`"`)
		switch failed := a.status == 200 && !strings.Contains(a.body, `"success":true`) || strings.Contains(a.body, `"outcome":"none"`); {
		case failed && dead:
			t.Errorf("after %d answers: the message is dead, and the ack says %d %s", but, a.status, a.body)
		case a.status != 200:
			lost++
		}
		if !dead { // clear the way for the next message
			w.until("the message is done", func() bool {
				a := w.do("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q}`, id, got.Messages[0].PartitionID, got.LeaseID))
				return a.status == 200 && strings.Contains(a.body, `"success":true`)
			})
		}
	}
	if lost == 0 {
		t.Error("no ack has lost an answer: the test proves nothing")
	}
}

func TestAnOutageIsSurvivedAndSaidHonestly(t *testing.T) {
	t.Parallel()
	pool, cable := plug(t)
	w := serve(t, pool, nil)
	w.client.Timeout = 4 * patience // of the polls, which end by themselves after all that the test waits for
	w.one("q", "before")
	leased := w.pop("q")
	parked := make(chan popped, 2)
	go func() { parked <- w.pop("q?wait=true&timeout=90000&consumerGroup=known") }()
	w.until("parked", func() bool { return w.b.park.Waiting() == 1 })
	cable.pull()

	for name, a := range map[string]answer{
		"push to a known queue": w.do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`),
		"push to a new queue":   w.do("POST", "/api/v1/push", `{"items":[{"queue":"new","payload":1}]}`),
		"ack":                   w.do("POST", "/api/v1/ack", `{"transactionId":"before","partitionId":"`+leased.Messages[0].PartitionID+`","leaseId":"`+leased.LeaseID+`"}`),
		"extend":                w.do("POST", "/api/v1/lease/"+leased.LeaseID+"/extend", ""),
		"configure":             w.do("POST", "/api/v1/configure", `{"queue":"q"}`),
		"pop that cannot wait":  w.do("GET", "/api/v1/pop/queue/other", ""),
	} {
		if a.status != 503 || !strings.Contains(a.body, `"code":"database_unavailable"`) || !strings.Contains(a.body, `"outcome":`) || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if a := w.do("GET", "/api/v1/pop/queue/held?wait=true&timeout=1500", ""); a.status != 204 {
		t.Errorf("a waiting pop is not held: %d %s", a.status, a.body)
	}
	w.until("unhealthy", func() bool { return w.do("GET", "/health", "").status == 503 })
	w.do("GET", "/livez", "").want(t, 200)
	w.until("an empty pop says that it may be behind", func() bool { return w.do("GET", "/api/v1/pop/queue/q", "").status == 503 })
	go func() { parked <- w.pop("q?wait=true&timeout=90000&consumerGroup=fresh&subscriptionMode=all") }()
	w.until("both held", func() bool { return w.b.park.Waiting() == 2 })

	cable.plugIn()
	w.until("pushes are taken", func() bool {
		a := w.do("POST", "/api/v1/push", `{"items":[{"queue":"q","transactionId":"after","payload":1}]}`)
		return a.status == 201
	})
	for range 2 {
		select {
		case got := <-parked:
			if len(got.Messages) == 0 {
				t.Errorf("a poll that was held got nothing")
			}
		case <-time.After(patience):
			t.Fatal("a poll that was held never came back")
		}
	}
	if r := w.ack("completed", "", leased.Messages...)[0]; !r.Success {
		t.Errorf("ack of a lease from before: %+v", r)
	}
	w.until("healthy", func() bool { return w.do("GET", "/health", "").status == 200 })
}
