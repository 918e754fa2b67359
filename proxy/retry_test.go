package proxy

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
)

// lives makes the tenant of the world one whose owner is the first of the brokers.
func (w *world) lives(at string, others ...string) {
	p := newPool(slog.New(slog.DiscardHandler), "c1", 0)
	p.join(append([]string{at}, others...), func(*broker) {})
	for p.owner(homeKey(w.cluster.BrokerTenant, 0)).address != at {
		w.cluster.BrokerTenant = uuid.New()
	}
}

// end is how a request ends at its client.
type end struct {
	status   int
	outcome  string // of an error
	degraded bool
	offers   int // to the other broker
}

// TestWhatIsOfferedAgain is the table of docs/design/upstream.md, cell by cell: what becomes of a request whose broker
// fails before a byte was sent, before its answer, and within it, while another broker is well.
func TestWhatIsOfferedAgain(t *testing.T) {
	t.Parallel()
	served, unknown, early := end{status: 200, offers: 1}, end{status: 502, outcome: "unknown"}, end{status: 204, degraded: true}
	const waits, acks = "&wait=true&timeout=20000", "&autoAck=true"
	ack := `{"transactionId":"a","partitionId":"` + uuid.NewString() + `"}`
	for name, c := range map[string]struct {
		method, target, body string
		unsent, sent, within end
	}{
		"push":                         {"POST", "/api/v1/push", aPush, served, unknown, unknown},
		"transaction":                  {"POST", "/api/v1/transaction", `{"operations":[{"type":"push","items":[{"queue":"q","payload":1}]}]}`, served, unknown, unknown},
		"transaction of acks":          {"POST", "/api/v1/transaction", `{"operations":[{"type":"ack","transactionId":"a","partitionId":"` + uuid.NewString() + `"}]}`, served, unknown, unknown},
		"ack":                          {"POST", "/api/v1/ack", ack, served, unknown, unknown},
		"batch ack":                    {"POST", "/api/v1/ack/batch", `{"acknowledgments":[` + ack + `]}`, served, unknown, unknown},
		"extension":                    {"POST", "/api/v1/lease/" + uuid.NewString() + "/extend", `{"seconds":30}`, served, unknown, unknown},
		"configure":                    {"POST", "/api/v1/configure", `{"queue":"q","options":{}}`, served, unknown, unknown},
		"deletion":                     {"DELETE", "/api/v1/resources/queues/q", "", served, unknown, unknown},
		"read":                         {"GET", "/api/v1/resources/queues", "", served, served, end{status: 502}},
		"fetch":                        {"POST", "/api/v1/fetch", `{"entries":[{"queue":"q","partition":"p","offset":0}]}`, served, served, end{status: 502}},
		"changed partitions":           {"POST", "/api/v1/partitions/changed", `{"entries":[{"queue":"q"}]}`, served, served, end{status: 502}},
		"pop that does not wait":       {"GET", "/api/v1/pop/queue/q?batch=1", "", served, early, early},
		"waiting pop under a lease":    {"GET", "/api/v1/pop/queue/q?batch=1" + waits, "", served, served, early},
		"waiting pop under auto ack":   {"GET", "/api/v1/pop/queue/q?batch=1" + waits + acks, "", served, early, early},
		"waiting discovery pop":        {"GET", "/api/v1/pop?namespace=n" + waits, "", served, served, early},
		"waiting pop of one partition": {"GET", "/api/v1/pop/queue/q/partition/p?batch=1" + waits, "", served, served, early},
	} {
		for fault, want := range map[string]end{"nothing was sent": c.unsent, "sent, no answer": c.sent, "within the answer": c.within} {
			t.Run(name+", "+fault, func(t *testing.T) {
				t.Parallel()
				dying := rawBroker(t, func(conn net.Conn, _ *http.Request, _ string) bool {
					if fault == "within the answer" {
						io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-")
					}
					return false
				})
				if fault == "nothing was sent" {
					dying = refusing(t)
				}
				asked := make(chan struct{}, 16)
				healthy := rawBroker(t, func(conn net.Conn, _ *http.Request, _ string) bool {
					asked <- struct{}{}
					answerJSON(conn, "200 OK", `{"messages":[1]}`)
					return true
				})
				w := setup(t, options{address: dying, config: func(c *Config) { c.SlowStart, c.ProbeInterval = -1, time.Hour }, facts: func(w *world) {
					w.facts.Cells[0].BaseURL = "http://" + dying + ",http://" + healthy
					w.lives(dying, healthy)
				}})
				head := w.head(c.method, c.target)
				if c.body != "" {
					head = w.head(c.method, c.target, "Content-Length: "+strconv.Itoa(len(c.body)))
				}
				r := w.ask(head + c.body)
				got := end{r.StatusCode, "", r.Header.Get("X-Queen-Degraded") == "upstream", len(asked)}
				if want.outcome != "" {
					got.outcome = r.outcome()
				}
				if got != want {
					t.Errorf("got %+v %q, want %+v", got, r.body, want)
				}
			})
		}
	}
}

// bound is a socket whose port nobody else gets, and its address. Nobody listens on it yet.
func bound(t *testing.T) (fd int, address string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, net.JoinHostPort("127.0.0.1", strconv.Itoa(at.(*syscall.SockaddrInet4).Port))
}

// refusing returns an address that refuses every connection. That of a listener that was closed may be another test's by
// then.
func refusing(t *testing.T) string {
	t.Helper()
	_, address := bound(t)
	return address
}

// deaf returns an address where nobody takes a connection: whoever knocks gets neither a yes nor a no, as from a host that
// is gone. It listens for the one connection that is waiting already.
func deaf(t *testing.T) string {
	t.Helper()
	fd, address := bound(t)
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := net.DialTimeout("tcp", address, 100*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = c.Close() })
	}
}

// W35: the time to connect is bounded, for itself and far below the time of a request.
func TestABrokerThatTakesNoConnectionIsGivenUp(t *testing.T) {
	t.Parallel()
	gone := deaf(t)
	healthy := newScripted(t, nil)
	w := setup(t, options{
		address: gone,
		config: func(c *Config) {
			c.SlowStart, c.ProbeInterval, c.ConnectTime, c.UpstreamTime = -1, time.Hour, 2*time.Second, time.Hour
		},
		facts: func(w *world) {
			w.facts.Cells[0].BaseURL = "http://" + gone + ",http://" + healthy.address
			w.lives(gone, healthy.address)
		},
	})
	if r := w.ask(w.push(aPush)); r.StatusCode != 201 {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
	await(t, healthy.seen)
}
