package broker

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/mesh"
	"github.com/queengate/queengate/migrations"
)

// pair is two brokers on one database that hear of each other by the mesh only.
func pair(t *testing.T) (a, b *world) {
	t.Helper()
	pool := pgtest.New(t, migrations.Broker)
	lns := [2]net.Listener{}
	var peers []string
	for i := range lns {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		lns[i] = ln
		peers = append(peers, ln.Addr().String())
	}
	var both [2]*world
	for i, ln := range lns {
		cfg := mesh.Config{Addr: ln.Addr().String(), Peers: peers, Secrets: []string{"a secret that is long enough"}}
		m, err := mesh.New(slog.New(slog.NewTextHandler(logSink{t}, nil)), cfg, fmt.Sprint("broker-", i), ln)
		if err != nil {
			t.Fatal(err)
		}
		both[i] = serveWith(t, pool, Deps{Store: store.New(pool), Mesh: m}, nil)
	}
	for _, w := range both {
		w.until("the other broker", func() bool { s := w.b.deps.Mesh.Stats(); return s.Out == 1 && s.In == 1 })
	}
	return both[0], both[1]
}

func only(t *testing.T, p popped) message {
	t.Helper()
	if len(p.Messages) != 1 {
		t.Fatalf("%d messages, want 1", len(p.Messages))
	}
	return p.Messages[0]
}

func TestAPollHearsOfAPushOnAnotherBroker(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	for name, path := range map[string]string{
		"a queue that does not exist yet":     "fresh?batch=1",
		"a partition that does not exist yet": "half/partition/late?batch=1",
		"a queue that is known":               "known?batch=1",
	} {
		queue := map[string]string{"fresh?batch=1": "fresh", "half/partition/late?batch=1": "half", "known?batch=1": "known"}[path]
		if queue != "fresh" {
			first := a.one(queue, "first")
			if got := only(t, b.pop(queue+"?batch=1&autoAck=true")); got.TransactionID != first.TransactionID {
				t.Fatalf("%s: got %s", name, got.TransactionID)
			}
		}
		got := b.parks(path)
		partition := "Default"
		if queue == "half" {
			partition = "late"
		}
		a.push(fmt.Sprintf(`{"items":[{"queue":%q,"partition":%q,"transactionId":"second","payload":1}]}`, queue, partition))
		if m := only(t, b.receive(name, got)); m.TransactionID != "second" {
			t.Errorf("%s: got %s", name, m.TransactionID)
		}
	}
}

func TestAPollHearsOfAnAckAndANackOnAnotherBroker(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	a.one("q", "m1")
	a.one("q", "m2")
	first := only(t, a.pop("q?batch=1"))
	got := b.parks("q?batch=1")
	a.ack("completed", "", first)
	second := only(t, b.receive("the ack", got))
	if second.TransactionID != "m2" {
		t.Fatalf("got %s, want m2", second.TransactionID)
	}
	got = a.parks("q?batch=1")
	b.ack("failed", "", second)
	if m := only(t, a.receive("the nack", got)); m.TransactionID != "m2" || m.DeliveryAttempt != 2 {
		t.Errorf("got %s in attempt %d, want m2 in attempt 2", m.TransactionID, m.DeliveryAttempt)
	}
}

func TestAPollHearsThatALeaseOfAnotherBrokerHasRunOut(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	a.one("q", "m1")
	only(t, a.pop("q?batch=1&leaseSeconds=1"))
	if m := only(t, b.receive("the expiry", b.parks("q?batch=1"))); m.TransactionID != "m1" || m.DeliveryAttempt != 2 {
		t.Errorf("got %s in attempt %d, want m1 in attempt 2", m.TransactionID, m.DeliveryAttempt)
	}
}

func TestAPollHearsOfASeekOnAnotherBroker(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	a.one("q", "m1")
	only(t, b.pop("q?batch=1&autoAck=true&consumerGroup=g&subscriptionMode=all"))
	got := b.parks("q?batch=1&consumerGroup=g")
	a.do("POST", "/api/v1/consumer-groups/g/queues/q/seek", `{"timestamp":"2020-01-01T00:00:00Z"}`).want(t, 200)
	if m := only(t, b.receive("the seek", got)); m.TransactionID != "m1" {
		t.Errorf("got %s, want m1 again", m.TransactionID)
	}
}

func TestASwitchIsObeyedByTheOtherBroker(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	a.one("q", "m1")
	b.one("q", "m2") // b's feed listens from now on
	a.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`).want(t, 200)
	b.until("closed pushes", func() bool { return b.b.switches.push.Load() })
	a.do("POST", "/api/v1/system/maintenance", `{"enabled":false}`).want(t, 200)
	b.until("open pushes", func() bool { return !b.b.switches.push.Load() })
}

func TestHintsOfOnePartitionAreOne(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	h := newHints(r)
	b := &Broker{hints: h}
	tenant := uuid.New()
	for last := range int64(3) {
		b.hints.landed(landedAt(tenant, 7, last))
	}
	b.hints.landed(landedAt(tenant, 8, 40))
	h.mu.Lock()
	h.send(h.marks, h.freed, h.names, h.news)
	h.mu.Unlock()
	var got []mark
	for _, f := range r.frames {
		if err := readHints(f, (*fieldReader).mark, func(m mark) { got = append(got, m) }); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(got, func(a, b mark) int { return int(a.partition - b.partition) })
	want := []mark{{tenant, "q", 7, 2, 3}, {tenant, "q", 8, 40, 1}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(mark{})); d != "" {
		t.Error(d)
	}
}

func TestTooManyHintsBecomeALookAtTheFeed(t *testing.T) {
	t.Parallel()
	h := newHints(&recorder{})
	tenant := uuid.New()
	for p := range int64(maxHints + 1) {
		h.landed(landedAt(tenant, p, 1))
	}
	if len(h.marks) != maxHints || !h.news {
		t.Errorf("%d marks and news %v, want %d and true", len(h.marks), h.news, maxHints)
	}
}

// What is read is what was written, and whatever else comes is refused without a panic.
func FuzzHints(f *testing.F) {
	m := mark{uuid.New(), "orders", 7, 41, 3}
	r := freed{uuid.New(), "orders", "billing", 7, 40, 41}
	n := named{uuid.New(), "orders", "late", 9}
	f.Add(m.append(nil))
	f.Add(r.append(r.append(nil)))
	f.Add(n.append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, payload []byte) {
		again(t, payload, (*fieldReader).mark, (*mark).append)
		again(t, payload, (*fieldReader).freed, (*freed).append)
		again(t, payload, (*fieldReader).named, (*named).append)
	})
}

// again reads a payload, writes what was read, and reads that: both readings must agree.
func again[T comparable](t *testing.T, payload []byte, read func(*fieldReader) T, write func(*T, []byte) []byte) {
	var first, second []T
	if err := readHints(payload, read, func(e T) { first = append(first, e) }); err != nil {
		return
	}
	var bytes []byte
	for i := range first {
		bytes = write(&first[i], bytes)
	}
	if err := readHints(bytes, read, func(e T) { second = append(second, e) }); err != nil {
		t.Fatalf("%x does not come back: %v", bytes, err)
	}
	if !slices.Equal(first, second) {
		t.Fatalf("%v came back as %v", first, second)
	}
}

// recorder is a mesh with one peer that keeps what it is sent.
type recorder struct {
	Mesh
	frames [][]byte
}

func (r *recorder) Stats() mesh.Stats               { return mesh.Stats{Out: 1} }
func (r *recorder) Broadcast(_ mesh.Kind, p []byte) { r.frames = append(r.frames, p) }

func landedAt(tenant uuid.UUID, partition, last int64) []fuse.Landed {
	return []fuse.Landed{{Partition: partition, Tenant: tenant, Queue: "q", LastOffset: last, Count: 1}}
}
