package wire

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

var update = flag.Bool("update", false, "rewrite the golden wire files")

// golden compares each text with the file of its name, or rewrites the files.
func golden(t *testing.T, files map[string][]byte) {
	t.Helper()
	for name, got := range files {
		if !json.Valid(got) {
			t.Errorf("%s is not JSON: %s", name, got)
		}
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, append(got, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got)+"\n" != string(want) {
			t.Errorf("%s\ngot  %s\nwant %s", name, got, want)
		}
	}
}

// TestGolden pins the bytes of every answer. Clients and dashboards read the same files.
func TestGolden(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("0198f000-0000-7000-8000-000000000001")
	at := time.Date(2026, 9, 1, 10, 11, 12, 123456000, time.UTC)
	lease := "0198f000-0000-7000-8000-0000000000aa"
	files := map[string][]byte{
		"push_results.json": AppendPushResults(nil, []PushResult{
			{0, id, "ord-1", "orders", Queued, 41, "", ""},
			{1, id, "ord-1", "orders", Duplicate, 41, "", ""},
			{2, uuid.Nil, "ord-2", "orders", Failed, -1, "the database is away", OutcomeUnknown},
			{3, id, "ord-3", "orders", Buffered, -1, "", ""},
		}),
		"push_empty.json": AppendPushResults(nil, nil),
		"pop_leased.json": AppendPopAnswer(nil, &PopAnswer{Queue: "orders", Partition: "c-17", PartitionID: id, LeaseID: lease, LeaseExpiresAt: at.Add(time.Minute), Group: "billing", PartitionsClaimed: 1, Messages: []Message{
			{ID: id, TransactionID: "ord-991", Data: []byte(`{"n":1}`), CreatedAt: at, PartitionID: id, Partition: "c-17", Queue: "orders", Offset: 41, DeliveryAttempt: 1},
			{ID: id, TransactionID: "q\"\u2028", TraceID: id.String(), ProducerSub: "k1", Data: []byte("null"), CreatedAt: at.Truncate(time.Second), PartitionID: id, Partition: "c-17", Queue: "orders", Offset: 42, DeliveryAttempt: 2},
		}}),
		"pop_autoack.json": AppendPopAnswer(nil, &PopAnswer{Queue: "orders", Partition: "Default", PartitionID: id, Group: QueueModeGroup, PartitionsClaimed: 1, Messages: []Message{
			{ID: id, TransactionID: "t", Data: []byte("[1]"), CreatedAt: at, PartitionID: id, Partition: "Default", Queue: "orders"},
		}}),
		"pop_conflated.json":       AppendPopAnswer(nil, &PopAnswer{Partition: "c-17", PartitionID: id, LeaseID: lease, LeaseExpiresAt: at, Group: "g", PartitionsClaimed: 1, Conflation: true, Conflict: true, Autopilot: &Autopilot{4, 100, 50 * time.Millisecond}, Messages: []Message{}}),
		"pop_conflated_empty.json": AppendEmptyPop(nil, "g", false, true),
		"ack_results.json": AppendAckResults(nil, []AckResult{
			{Index: 0, TransactionID: "a", Success: true, LeaseReleased: true},
			{Index: 1, TransactionID: "b", Error: "invalid or expired lease (invalid_lease)"},
			{Index: 2, TransactionID: "c", Success: true, DLQ: true},
			{Index: 3, TransactionID: "d", Success: true, Noop: true},
			{Index: 4, TransactionID: "e", Success: true, LeaseReleased: true, Conflated: 7},
			{Index: 5, TransactionID: "f", Error: "ack flush failed; lease will expire and redeliver", Outcome: OutcomeUnknown},
		}),
		"extend_renewed.json": AppendExtendResult(nil, ExtendResult{lease, 2, FormatMillis(at)}),
		"extend_lost.json":    AppendExtendResult(nil, ExtendResult{lease, 0, ""}),
		"options.json":        AppendOptions(nil, DefaultOptions()),
	}
	golden(t, files)
}

func TestAppendStringIsJSON(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "plain", "\"\\\n\r\t\x00\x1f\x7f", "é😀", "a\xffb"} {
		var back string
		if err := json.Unmarshal(AppendString(nil, s), &back); err != nil {
			t.Errorf("%q: %v", s, err)
		}
		want := string([]rune(s)) // invalid bytes become U+FFFD
		if back != want {
			t.Errorf("%q came back as %q", s, back)
		}
	}
}

func BenchmarkScanPush(b *testing.B) {
	item := func(size int) string {
		payload := `{"order":"0123456789","lines":[{"sku":"abc-123","qty":3,"price":12.5}],"note":"`
		return `{"queue":"orders","partition":"c-17","transactionId":"0198f000-0000-7000-8000-0000000000aa","payload":` +
			payload + strings.Repeat("n", size-len(payload)-2) + `"}}`
	}
	for name, body := range map[string]string{
		"1KB":      `{"items":[` + item(1000) + `]}`,
		"100x256B": `{"items":[` + strings.Repeat(item(256)+",", 99) + item(256) + `]}`,
	} {
		b.Run(name, func(b *testing.B) {
			text := []byte(body)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if err := ScanPush(text, func(int, PushItem) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
