package broker

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
)

// dialPoll sends a waiting pop on a connection of its own and returns it without reading the answer.
func (w *world) dialPoll(path string) net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(c, "GET /api/v1/pop/queue/%s HTTP/1.1\r\nHost: q\r\n\r\n", path); err != nil {
		w.t.Fatal(err)
	}
	return c
}

func TestAVanishedClientReceivesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	c := w.dialPoll("q?wait=true&timeout=90000") // its own end is beyond patience
	w.until("parked", func() bool { return w.b.park.Waiting() == 1 })
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	w.until("unparked", func() bool { return w.b.park.Waiting() == 0 })
	w.one("q", "a")
	if got := w.pop("q"); len(got.Messages) != 1 || got.Messages[0].DeliveryAttempt != 1 {
		t.Errorf("the message went to a client that had gone: %+v", got)
	}
}

// TestVanishingClientsLoseNothing races hang-ups with pushes: whenever the client goes, the message is redelivered at
// once and not after its lease.
func TestVanishingClientsLoseNothing(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for i := range 40 {
		c := w.dialPoll("q?wait=true&timeout=90000")
		w.until("parked", func() bool { return w.b.park.Waiting() == 1 })
		var wg sync.WaitGroup
		wg.Go(func() { w.one("q", fmt.Sprint(i)) })
		wg.Go(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		w.until("unparked", func() bool { return w.b.park.Waiting() == 0 })
		// The answer may have been on its way before the hang-up was seen: then the lease is the client's.
		leased := func() bool {
			var n int
			if err := w.pool.QueryRow(t.Context(), "SELECT count(*) FROM queen.log_consumers WHERE batch_end IS NOT NULL").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n > 0
		}
		w.until("settled", func() bool { return w.b.metrics.inFlight.Load() == 0 })
		if leased() {
			w.do("DELETE", "/api/v1/resources/queues/q", "").want(t, 200)
			continue
		}
		got := w.pop("q?wait=true&timeout=20000&autoAck=true")
		if len(got.Messages) != 1 {
			t.Fatalf("round %d: %+v", i, got)
		}
	}
}

func TestCrowdOfVanishedPollsLeavesNothing(t *testing.T) {
	w := setup(t, nil)
	w.pop("q") // the ring, the pool's connections
	w.client.CloseIdleConnections()
	idle := runtime.NumGoroutine()
	const crowd = 2000
	conns := make([]net.Conn, crowd)
	for i := range conns {
		conns[i] = w.dialPoll(fmt.Sprintf("q%d?wait=true&timeout=60000", i%50))
	}
	w.until("all parked", func() bool { return w.b.park.Waiting() == crowd })
	for _, c := range conns {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	w.until("all unparked", func() bool { return w.b.park.Waiting() == 0 })
	w.until("all goroutines gone", func() bool {
		return runtime.NumGoroutine() <= idle+20
	})
}

func TestKeepAliveAfterAWaitingPop(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		if _, err := io.WriteString(c, "GET /api/v1/pop/queue/q?wait=true&timeout=400 HTTP/1.1\r\nHost: q\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(b[:n]); len(got) < 12 || got[9:12] != "204" {
			t.Fatalf("got %q", got)
		}
	}
}
