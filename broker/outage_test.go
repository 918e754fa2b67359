package broker

import (
	"context"
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
		return conn, err
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

func TestAnOutageIsSurvivedAndSaidHonestly(t *testing.T) {
	t.Parallel()
	pool, cable := plug(t)
	w := serve(t, pool, nil)
	w.one("q", "before")
	leased := w.pop("q")
	parked := make(chan popped, 2)
	go func() { parked <- w.pop("q?wait=true&timeout=30000&consumerGroup=known") }()
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
	go func() { parked <- w.pop("q?wait=true&timeout=30000&consumerGroup=fresh&subscriptionMode=all") }()
	w.until("both held", func() bool { return w.b.park.Waiting() == 2 })

	cable.plugIn()
	back := time.Now()
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
	if d := time.Since(back); d > 5*time.Second {
		t.Errorf("everything works %v after the database came back, want under 5 s", d)
	}
	if r := w.ack("completed", "", leased.Messages...)[0]; !r.Success {
		t.Errorf("ack of a lease from before: %+v", r)
	}
	w.until("healthy", func() bool { return w.do("GET", "/health", "").status == 200 })
}
