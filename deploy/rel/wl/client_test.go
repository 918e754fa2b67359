package wl

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// serve answers every connection with bytes, closes it, and counts what it was asked.
func serve(t *testing.T, answer string) (Node, func() []string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 10)
	go func() {
		defer close(asked)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				asked <- req.Method + " " + req.URL.String()
			}
			_, _ = c.Write([]byte(answer))
			_ = c.Close()
		}
	}()
	return Node{Name: "br1", Addr: ln.Addr().String()}, func() (all []string) {
		_ = ln.Close()
		for s := range asked {
			all = append(all, s)
		}
		return all
	}
}

func client(t *testing.T) (*Client, func() []hist.Event) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "h.gz")
	rec, err := hist.Create(path, hist.Header{Run: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return &Client{rec: rec, w: "W2", thread: 1}, func() (all []hist.Event) {
		if err := rec.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := hist.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for e, err := range r.Events() {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
		return all
	}
}

func full(status, body string) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

// What a client saw decides what the judge may conclude; and whatever it saw, it asked once.
func TestAnAnswerIsLabelledAsItIsAndNeverAskedForTwice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer string
		kind   hist.Kind
		status int
	}{
		"a delivery":                       {full("200 OK", `{"leaseId":"l","messages":[{"offset":3,"partition":"p0","queue":"q"}]}`), hist.OK, 200},
		"nothing there":                    {"HTTP/1.1 204 No Content\r\n\r\n", hist.OK, 204},
		"a refusal":                        {full("400 Bad Request", `{"code":"invalid_request","outcome":"none"}`), hist.Fail, 400},
		"a failure that says none":         {full("503 Service Unavailable", `{"code":"draining","outcome":"none"}`), hist.Fail, 503},
		"a failure that does not know":     {full("503 Service Unavailable", `{"code":"database_unavailable","outcome":"unknown"}`), hist.Info, 503},
		"a failure without a word":         {full("502 Bad Gateway", ""), hist.Info, 502},
		"an end without an answer":         {"", hist.Info, 0},
		"half a head":                      {"HTTP/1.1 200 OK\r\nContent-", hist.Info, 0},
		"half a body":                      {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"leaseId\":", hist.Info, 0},
		"a body that is none":              {full("200 OK", `{"messages":7}`), hist.Info, 0},
		"a chunked body that breaks off":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"mes\r\n", hist.Info, 0},
		"a success that is not in the RFC": {"HTTP/1.1 200", hist.Info, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, asked := serve(t, c.answer)
			cl, events := client(t)
			_, kind := cl.Pop(t.Context(), at, hist.PopArgs{Queue: "q", Partition: "p0", Group: "a b", Batch: 2, Wait: true, TimeoutMs: 50})
			if kind != c.kind {
				t.Errorf("it is %s, want %s", kind, c.kind)
			}
			if got := asked(); len(got) != 1 || got[0] != "GET /api/v1/pop/queue/q/partition/p0?consumerGroup=a%20b&batch=2&wait=true&timeout=50" {
				t.Errorf("asked %q", got)
			}
			all := events()
			if len(all) != 2 || all[1].Kind != c.kind || all[1].Status != c.status || all[1].Op != all[0].Op {
				t.Errorf("recorded %+v", all)
			}
		})
	}
}

func TestWhatWasNeverSentHasFailed(t *testing.T) {
	t.Parallel()
	nobody := Node{Name: "br1", Addr: "127.0.0.1:1"} // a closed listener's address may be another test's by then
	cl, _ := client(t)
	if _, kind := cl.Push(t.Context(), nobody, hist.PushItem{Queue: "q", Partition: "p", TransactionID: "t", Payload: []byte("1")}); kind != hist.Fail {
		t.Errorf("it is %s", kind)
	}
}

func TestARefusalInsideOfASuccessIsAFailure(t *testing.T) {
	t.Parallel()
	at, _ := serve(t, full("200 OK", `{"success":false,"reason":"ack_rejected"}`))
	cl, _ := client(t)
	if a, kind := cl.Transact(t.Context(), at, hist.TransactionArgs{Acks: make([]hist.TransactionAck, 1)}); kind != hist.Fail || a.Reason != "ack_rejected" {
		t.Errorf("it is %s, %+v", kind, a)
	}
}

// A consumer may stop only when nothing can come any more, also not when a lease that nobody saw has ended.
func TestADrainLooksAgainBehindALease(t *testing.T) {
	t.Parallel()
	s := NewStage(nil, 1, nil, nil, 3)
	s.Drain()
	a := s.actor("W2", 1)
	looks, found := 0, 0
	a.consume(t.Context(), time.Millisecond, func(draining bool) bool {
		looks++
		if looks == 5 && draining { // hidden until the lease was over
			found++
			return true
		}
		return false
	})
	if found != 1 || looks != 8 {
		t.Errorf("%d looks, found %d", looks, found)
	}
}

func TestWorkloadsSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	for name := range all {
		w, ok := Named(name)
		if !ok || w.Name != name || len(w.Threads) == 0 || len(w.Queues)+len(w.Clusters) == 0 {
			t.Errorf("%s: %+v", name, w)
		}
		for _, c := range w.Clusters {
			if c.Workload != name || !strings.HasPrefix(c.Name, strings.ToLower(name)) {
				t.Errorf("%s: %+v", name, c)
			}
		}
		for _, q := range w.Queues {
			if q.Workload != name || q.LeaseMs < 1000 || len(q.Partitions) == 0 {
				t.Errorf("%s: %+v", name, q)
			}
		}
	}
	if _, ok := Named("W99"); ok {
		t.Error("there is W99")
	}
}
