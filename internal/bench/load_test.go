package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

func TestATemplateIsAPushWhoseMessagesDiffer(t *testing.T) {
	t.Parallel()
	target := &target{head: "Host: h\r\n"}
	m := target.pushRequest("orders", 3)
	for i := range m.lanes {
		m.lane(i, 41+i)
	}
	at := time.Unix(1_800_000_000, 123_456_789)
	request := m.next(at)
	head, body, _ := bytes.Cut(request, []byte("\r\n\r\n"))
	if want := fmt.Sprintf("Content-Length: %d", len(body)); !bytes.Contains(head, []byte(want)) {
		t.Errorf("head is %q, want %s in it", head, want)
	}
	seen := map[string]bool{}
	n := 0
	err := wire.ScanPush(body, func(i int, item wire.PushItem) error {
		n++
		seen[string(item.TransactionID)] = true
		if want := fmt.Sprintf("p%06d", 41+i); item.Queue != "orders" || item.Partition != want {
			t.Errorf("item %d goes to %s/%s, want orders/%s", i, item.Queue, item.Partition, want)
		}
		if len(item.Payload) != payloadBytes {
			t.Errorf("payload of %d bytes, want %d", len(item.Payload), payloadBytes)
		}
		var p struct{ At int64 }
		if err := json.Unmarshal(item.Payload, &p); err != nil || p.At != at.UnixNano() {
			t.Errorf("payload says %d, want %d: %v", p.At, at.UnixNano(), err)
		}
		return nil
	})
	if err != nil || n != 3 || len(seen) != 3 {
		t.Errorf("%d items with %d ids, want 3 of each: %v", n, len(seen), err)
	}
	before := string(request)
	if string(m.next(at)) == before {
		t.Error("the next request has the same transaction ids")
	}
}

func TestADeliveryIsReadAsTheWireWritesIt(t *testing.T) {
	t.Parallel()
	part := uuid.MustParse("11111111-2222-3333-4444-555555555555")
	answer := wire.PopAnswer{Queue: "orders", PartitionID: part, LeaseID: "lease", Group: "g", PartitionsClaimed: 1}
	for i := range 3 {
		answer.Messages = append(answer.Messages, wire.Message{
			TransactionID: fmt.Sprint("t", i), Data: []byte(payload), PartitionID: part, Queue: "orders", CreatedAt: time.Now(),
		})
	}
	var d delivery
	if err := d.read(wire.AppendPopAnswer(nil, &answer)); err != nil {
		t.Fatal(err)
	}
	if string(d.lease) != "lease" || len(d.messages) != 3 {
		t.Fatalf("lease %q with %d messages, want lease with 3", d.lease, len(d.messages))
	}
	if m := d.messages[2]; string(m.txn) != "t2" || string(m.partition) != part.String() || m.sent != 1_111_111_111_111_111_111 {
		t.Errorf("the last message is %q in %q of %d", m.txn, m.partition, m.sent)
	}
	batch, err := wire.ScanAck(d.appendAckBatch(nil, "g"), true)
	if err != nil || len(batch.Items) != 3 || batch.Group != "g" || batch.Items[2].LeaseID != "lease" {
		t.Errorf("the acknowledgement reads as %+v: %v", batch, err)
	}
	if err := d.read(nil); err != nil || len(d.messages) != 0 {
		t.Errorf("an empty answer has %d messages: %v", len(d.messages), err)
	}
	for name, text := range map[string]string{
		"no lease":     `{"messages":[]}`,
		"no partition": `{"leaseId":"l","messages":[{"transactionId":"t","data":` + payload + `}]}`,
		"no stamp":     `{"leaseId":"l","messages":[{"transactionId":"t","data":{"x":1}}]}`,
	} {
		if err := d.read([]byte(text)); err == nil {
			t.Errorf("%s: read without an error", name)
		}
	}
}

func TestAConnectionReadsAnswersHoweverTheyAreCut(t *testing.T) {
	t.Parallel()
	answers := "HTTP/1.1 201 Created\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("a", 5000) +
		"HTTP/1.1 204 No Content\r\n\r\n" + "HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 2\r\n\r\nok" +
		"HTTP/1.1 429 No\r\ncontent-length: 3\r\n\r\nyes"
	for _, size := range []int{1, 7, 4096, len(answers)} {
		c := &conn{Conn: &cut{strings.NewReader(answers), size}, in: make([]byte, 0, 64)}
		for i, want := range []struct {
			status int
			body   string
		}{{201, strings.Repeat("a", 5000)}, {204, ""}, {200, "ok"}, {429, "yes"}} {
			status, body, err := c.do([]byte("GET / HTTP/1.1\r\n\r\n"))
			if err != nil || status != want.status || string(body) != want.body {
				t.Fatalf("pieces of %d, answer %d: %d with %d bytes, want %d with %d: %v", size, i, status, len(body), want.status, len(want.body), err)
			}
		}
	}
}

// cut is a connection that says what it was given in pieces.
type cut struct {
	from *strings.Reader
	size int
}

func (c *cut) Read(p []byte) (int, error)       { return c.from.Read(p[:min(len(p), c.size)]) }
func (c *cut) Write(p []byte) (int, error)      { return len(p), nil }
func (c *cut) Close() error                     { return nil }
func (c *cut) LocalAddr() net.Addr              { return nil }
func (c *cut) RemoteAddr() net.Addr             { return nil }
func (c *cut) SetDeadline(time.Time) error      { return nil }
func (c *cut) SetReadDeadline(time.Time) error  { return nil }
func (c *cut) SetWriteDeadline(time.Time) error { return nil }

func TestEveryComparisonNamesCasesOfItsGroup(t *testing.T) {
	t.Parallel()
	groups := (&world{}).groups()
	if len(groups) != len(groupNames) {
		t.Fatalf("%d groups, %d names", len(groups), len(groupNames))
	}
	for i, g := range groups {
		if g.name != groupNames[i] {
			t.Errorf("group %d is %s, listed as %s", i, g.name, groupNames[i])
		}
		known := map[string]bool{}
		for _, c := range g.cases {
			if known[c.name] {
				t.Errorf("%s: two cases are called %s", g.name, c.name)
			}
			known[c.name] = true
		}
		for _, r := range g.ratios {
			if !known[r.over] || !known[r.under] {
				t.Errorf("%s: %q compares %s with %s", g.name, r.name, r.over, r.under)
			}
		}
		for _, b := range g.bounds {
			if !known[b.kase] {
				t.Errorf("%s: %q is about %s", g.name, b.name, b.kase)
			}
		}
		for _, c := range g.comparisons {
			for _, name := range c.cases {
				if !known[name] {
					t.Errorf("%s: %q is about %s", g.name, c.name, name)
				}
			}
		}
	}
}

func TestTheReportHasMediansRatiosAndBounds(t *testing.T) {
	t.Parallel()
	g := group{
		name:   "push",
		cases:  []kase{{name: "a", what: "one"}, {name: "b", what: "other"}, {name: "c", what: "not run"}},
		ratios: []ratio{{"a to b", "a", "b", 0.5, 0.9}, {"a to c", "a", "c", 1, 1}},
		bounds: []bound{{"p99", "a", func(s sample) float64 { return ms(s.p99) }, 10, 5}, {"of c", "c", func(sample) float64 { return 0 }, 1, 1}},
		results: map[string][]sample{
			"a": {{rate: 10, p99: 4 * time.Millisecond}, {rate: 30, p99: 6 * time.Millisecond}, {rate: 20, p99: 5 * time.Millisecond}},
			"b": {{rate: 20}, {rate: 30}, {rate: 40}},
		},
	}
	text := report([]group{g, {name: "skipped"}}, settings{reps: 3, seconds: time.Second})
	for _, want := range []string{"## push", "| a: one | 20 [10–30] |", "| a to b | 0.50 [0.50–1.00] | 0.50 | 0.90 |", "| p99 | 5.00 [4.00–6.00] | 10.00 | 5.00 |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	for _, not := range []string{"skipped", "not run", "a to c", "of c"} {
		if strings.Contains(text, not) {
			t.Errorf("the report has %q:\n%s", not, text)
		}
	}
}

func TestTheReportComparesRequestsAndLeavesOutWhatIsNotInstalled(t *testing.T) {
	t.Parallel()
	rep := 0
	ours := func(_ context.Context, d time.Duration) (sample, error) {
		rep++
		return sample{rate: 100, ours: time.Duration(10*rep) * time.Microsecond, upstream: 7 * time.Microsecond, loader: 5 * time.Microsecond, p50: 3 * d}, nil
	}
	g := group{
		name: "proxies", requests: true, alone: true, about: func() string { return "Beside others." },
		cases: []kase{
			{"a", "one", ours},
			{"b", "other", func(_ context.Context, d time.Duration) (sample, error) {
				return sample{rate: 50, ours: 10 * time.Microsecond, p50: d}, nil
			}},
			{"c", "who is not there", func(context.Context, time.Duration) (sample, error) {
				return sample{}, fmt.Errorf("c %w", errNotInstalled)
			}},
			{"d", "memory", func(context.Context, time.Duration) (sample, error) {
				return sample{figures: []figure{{"bytes", "KB", 21.5, 0, 0}}}, nil
			}},
		},
		comparisons: []comparison{
			times("CPU of a, of b", "a", "b", func(s sample) float64 { return us(s.ours) }, 1.5, 1.1),
			{"added by a", []string{"a", "b"}, func(s []sample) float64 { return ms(s[0].p50 - s[1].p50) }, 5, 4},
			single("of c", "c", func(sample) float64 { return 1 }, 1, 1),
			times("of a and c", "a", "c", func(sample) float64 { return 1 }, 1, 1),
		},
	}
	s := settings{reps: 3, seconds: time.Millisecond}
	if err := (&world{}).runGroup(t.Context(), s, &g); err != nil {
		t.Fatal(err)
	}
	text := report([]group{g}, s)
	for _, want := range []string{
		"Beside others.", "| case | requests/s | p50 ms | p99 ms | proxy CPU µs/request |", "| a: one | 100 [100–100] | 3.00 | – | 20.0 | 7.0 | 5.0 | – |",
		"| **d**: memory |", "| bytes | KB | 21.5 [21.5–21.5] |", "| CPU of a, of b | 2.00 [1.00–3.00] | 1.50 | 1.10 |", "| added by a | 2.00 [2.00–2.00] | 5.00 | 4.00 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	for _, not := range []string{"who is not there", "of c", "of a and c", "| d: memory"} {
		if strings.Contains(text, not) {
			t.Errorf("the report has %q:\n%s", not, text)
		}
	}
}
