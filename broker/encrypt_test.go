package broker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/queengate/queengate/broker/seal"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// testKey returns the n-th key of the tests.
func testKey(t testing.TB, n byte) *seal.Key {
	t.Helper()
	k, err := seal.ParseKey(strings.Repeat("c3", 31) + fmt.Sprintf("%02x", n))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// with configures a broker with the keys, the first of which seals.
func with(keys ...*seal.Key) func(*Config) {
	return func(c *Config) {
		if len(keys) > 0 {
			c.Encryption = seal.NewRing(keys[0], keys[1:]...)
		}
	}
}

// encrypt sets or clears the flag of a queue.
func (w *world) encrypt(queue string, on bool) {
	w.t.Helper()
	w.do("POST", "/api/v1/configure", fmt.Sprintf(`{"queue":%q,"options":{"encryptionEnabled":%t}}`, queue, on)).want(w.t, 200)
}

// frames returns what is stored in a queue, in order.
func (w *world) frames(queue string) (all []segment.Frame) {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), `SELECT s.blob FROM queen.log_segments s JOIN queen.log_partitions p ON p.id = s.partition_id
JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 ORDER BY p.id, s.base_offset`, queue)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var blob []byte
		if err := rows.Scan(&blob); err != nil {
			w.t.Fatal(err)
		}
		r, err := segment.Open(bytes.Clone(blob))
		if err != nil {
			w.t.Fatal(err)
		}
		for i := range r.Len() {
			all = append(all, r.Frame(i))
		}
	}
	return all
}

// sealedOnly fails unless the queue holds n messages, all of them encrypted.
func (w *world) sealedOnly(queue string, n int) {
	w.t.Helper()
	fs := w.frames(queue)
	if len(fs) != n {
		w.t.Errorf("%d messages in %s, want %d", len(fs), queue, n)
	}
	for _, f := range fs {
		if !f.Encrypted || !seal.Is(f.Payload) || bytes.Contains(f.Payload, []byte(`"n"`)) {
			w.t.Errorf("message %s of %s is stored as %q", f.TransactionID, queue, f.Payload)
		}
	}
}

// data lists the payloads of messages.
func data(messages []message) string {
	var all []string
	for _, m := range messages {
		all = append(all, string(m.Data))
	}
	return strings.Join(all, " ")
}

func (a answer) refused(t testing.TB, code wire.Code) refusal {
	t.Helper()
	got := decode[refusal](t, a.want(t, code.Status()))
	if got.Code != code {
		t.Errorf("refused with %s, want %s: %s", got.Code, code, a.body)
	}
	return got
}

func TestAnEncryptedQueueIsTransparentAndStoresNoPlaintext(t *testing.T) {
	t.Parallel()
	w := setup(t, with(testKey(t, 1)))
	w.encrypt("q", true)
	pushed := w.push(`{"items":[{"queue":"q","transactionId":"a","payload":{"n": "secret"}},{"queue":"q","transactionId":"b","payload":null},
		{"queue":"q","transactionId":"a","payload":{"n":"again"}}]}`)
	if pushed[0].Status != "queued" || pushed[1].Status != "queued" || pushed[2].Status != "duplicate" {
		t.Fatalf("pushed %+v", pushed)
	}
	if again := w.one("q", "a"); again.Status != "duplicate" || again.MessageID != pushed[0].MessageID {
		t.Errorf("a repeat is %+v", again)
	}
	w.transact(nil, pushOp("q", "c"))
	for _, f := range w.frames("q") {
		if !f.Encrypted || bytes.Contains(f.Payload, []byte("secret")) {
			t.Errorf("stored as %q", f.Payload)
		}
	}
	var raw, sent int64
	if err := w.pool.QueryRow(t.Context(), "SELECT retained_bytes FROM queen.log_partitions WHERE name = 'Default'").Scan(&raw); err != nil {
		t.Fatal(err)
	}
	got := w.pop("q?batch=10&subscriptionMode=all").Messages
	for _, m := range got {
		sent += int64(len(m.Data))
	}
	if len(got) != 3 || string(got[0].Data) != `{"n": "secret"}` || string(got[1].Data) != "null" || got[2].TransactionID != "c" {
		t.Errorf("popped %s", data(got))
	}
	if raw != sent {
		t.Errorf("%d retained bytes, want the %d that were sent", raw, sent)
	}
	if f := w.fetch(`{"entries":[{"queue":"q","offset":0}]}`); f.ids(0) != "a b c" || string(f.Entries[0].Records[0].Payload) != `{"n": "secret"}` {
		t.Errorf("fetched %+v", f)
	}
	for _, path := range []string{"/api/v1/messages?queue=q", "/api/v1/messages/" + got[0].PartitionID + "/a"} {
		if a := w.do("GET", path, "").want(t, 200); !strings.Contains(a.body, `"payload":{"n": "secret"},"isEncrypted":true`) {
			t.Errorf("%s shows %s", path, a.body)
		}
	}
}

func TestWithoutAKeyAPushToAnEncryptedQueueIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *Config) { c.Encryption = seal.NewRing(nil, testKey(t, 1)) })
	w.encrypt("q", true)
	w.do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":{"n":1}}]}`).refused(t, wire.EncryptionKeyMissing)
	w.do("POST", "/api/v1/transaction", `{"operations":[`+pushOp("q", "b")+`]}`).refused(t, wire.EncryptionKeyMissing)
	r := w.push(`{"items":[{"queue":"q","payload":{"n":1}},{"queue":"open","payload":{"n":2}}]}`)
	if r[0].Status != "failed" || r[0].Error != wire.EncryptionKeyMissing.Text() || r[1].Status != "queued" {
		t.Errorf("of two queues: %+v", r)
	}
	w.sealedOnly("q", 0)
}

// Brokers remember queues for a moment, and a broker without a key learns of the flag last: neither may leave plaintext.
func TestTheFlagBindsBrokersThatDoNotKnowOfItYet(t *testing.T) {
	t.Parallel()
	w := setup(t, with(testKey(t, 1)))
	keyless, other := serve(t, w.pool, nil), serve(t, w.pool, with(testKey(t, 1)))
	for i := range 5 {
		queue := fmt.Sprint("q", i)
		w.one(queue, "before")
		keyless.one(queue, "before too")
		other.encrypt(queue, true)
		w.one(queue, "after")
		keyless.do("POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"payload":{"n":1}}]}`, queue)).refused(t, wire.EncryptionKeyMissing)
		if r := w.transact(nil, pushOp(queue, "in a transaction")); !r.Success {
			t.Errorf("%+v", r)
		}
		fs := w.frames(queue)
		if len(fs) != 4 || fs[0].Encrypted || fs[1].Encrypted || !fs[2].Encrypted || !fs[3].Encrypted {
			t.Fatalf("stored %+v", fs)
		}
		if got := data(w.pop(queue + "?batch=10&subscriptionMode=all").Messages[:3]); got != `{"n":"before"} {"n":"before too"} {"n":"after"}` {
			t.Errorf("popped %s", got)
		}
	}
}

func TestWhatIsStoredStaysReadableWhenTheFlagTurns(t *testing.T) {
	t.Parallel()
	w := setup(t, with(testKey(t, 1)))
	w.one("q", "a")
	w.encrypt("q", true)
	w.one("q", "b")
	w.encrypt("q", false)
	w.one("q", "c")
	fs := w.frames("q")
	if len(fs) != 3 || fs[0].Encrypted || !fs[1].Encrypted || fs[2].Encrypted {
		t.Fatalf("stored %+v", fs)
	}
	if got := data(w.pop("q?batch=10&subscriptionMode=all").Messages); got != `{"n":"a"} {"n":"b"} {"n":"c"}` {
		t.Errorf("popped %s", got)
	}
}

func TestKeysRotateWithoutAGap(t *testing.T) {
	t.Parallel()
	old, next := testKey(t, 1), testKey(t, 2)
	w := setup(t, with(old, next))
	w.encrypt("q", true)
	w.one("q", "a")
	turned := serve(t, w.pool, with(next, old))
	turned.one("q", "b")
	for name, reader := range map[string]*world{"before": w, "after": turned} {
		if got := data(reader.pop("q?batch=10&subscriptionMode=all&consumerGroup=" + name).Messages); got != `{"n":"a"} {"n":"b"}` {
			t.Errorf("a broker %s the turn reads %s", name, got)
		}
	}
	late := serve(t, w.pool, with(next))
	late.do("GET", "/api/v1/pop/queue/q?batch=10&subscriptionMode=all&consumerGroup=late", "").refused(t, wire.EncryptionKeyMissing)
}

// A message whose key is missing is neither delivered nor passed over, in whatever way it is asked for, and holds up no
// other partition.
func TestAMissingKeyLosesNothing(t *testing.T) {
	t.Parallel()
	old, next := testKey(t, 1), testKey(t, 2)
	w := setup(t, with(old))
	w.encrypt("q", true)
	w.push(`{"items":[{"queue":"q","partition":"a","transactionId":"a1","payload":{"n":1}}]}`)
	lost := serve(t, w.pool, with(next))
	lost.push(`{"items":[{"queue":"q","partition":"b","transactionId":"b1","payload":{"n":2}}]}`)
	w.push(`{"items":[{"queue":"q","partition":"b","transactionId":"b2","payload":{"n":3}}]}`)

	for _, mode := range []string{"", "&autoAck=true"} {
		group := "g" + strings.TrimPrefix(mode, "&autoAck=")
		query := "&subscriptionMode=all&batch=10&leaseSeconds=3&consumerGroup=" + group + mode
		// Alone with it a pop is told when its lease ends.
		if r := lost.do("GET", "/api/v1/pop/queue/q/partition/a?"+query[1:], ""); !slices.Contains([]string{"1", "2", "3"}, r.header.Get("Retry-After")) {
			t.Errorf("%s: Retry-After %q: %s", group, r.header.Get("Retry-After"), r.body)
		} else if told := r.refused(t, wire.EncryptionKeyMissing); !told.Retryable || told.RetryAfterMS < 1 || told.RetryAfterMS > 3000 {
			t.Errorf("%s: %s", group, r.body)
		}
		got := lost.pop("q?partitions=10" + query)
		if data(got.Messages) != `{"n":2}` || got.PartitionsClaimed != 1 || got.Messages[0].Partition != "b" {
			t.Errorf("%s: %+v", group, got)
		}
		if mode == "" {
			lost.ack("completed", group, got.Messages...)
		}
		// The second of b is leased with the first, and a on its own: both come to a broker with the key.
		var back []message
		w.until("the rest comes back", func() bool {
			back = append(back, w.pop("q?partitions=10"+query).Messages...)
			return len(back) >= 2
		})
		if all := data(back); all != `{"n":1} {"n":3}` && all != `{"n":3} {"n":1}` {
			t.Errorf("%s: the rest is %s", group, all)
		}
	}

	told := func(path string) string {
		t.Helper()
		r := lost.do("GET", path, "")
		r.refused(t, wire.EncryptionKeyMissing)
		return r.header.Get("Retry-After")
	}
	w.encrypt("q2", true)
	w.push(`{"items":[{"queue":"q2","partition":"a","payload":{"n":1}}]}`)
	const ask = "leaseSeconds=40&wait=true&timeout=30000&subscriptionMode=all&consumerGroup="
	if s := told("/api/v1/pop/queue/q2/partition/a?" + ask + "one"); s != "40" && s != "39" {
		t.Errorf("a pop of one partition is told to wait %q s for a lease of 40", s)
	}
	if s := told("/api/v1/pop/queue/q2?" + ask + "any"); s != "1" {
		t.Errorf("a pop that other partitions may serve is told to wait %q s", s)
	}

	f := lost.fetch(`{"entries":[{"queue":"q","partition":"a","offset":0},{"queue":"q","partition":"b","offset":0},{"queue":"q","partition":"b","offset":1}]}`)
	if f.Entries[0].Error != wire.KeyMissing || f.ids(1) != "b1" || f.Entries[1].Error != "" || f.Entries[2].Error != wire.KeyMissing || f.ids(2) != "" {
		t.Errorf("fetched %+v", f)
	}
	a := lost.do("GET", "/api/v1/messages?queue=q&partition=a", "").want(t, 200)
	if !strings.Contains(a.body, `"payloadAvailable":false`) || !strings.Contains(a.body, `"payload":null,"isEncrypted":true,"payloadError":"the message is encrypted with the key `+old.String()) {
		t.Errorf("browsing shows %s", a.body)
	}
}

// Who can write to the database can put one message's bytes in the place of another's, but nobody takes them for it.
func TestSwappedSegmentsAreNotDelivered(t *testing.T) {
	t.Parallel()
	w := setup(t, with(testKey(t, 1)))
	for _, queue := range []string{"q", "r"} {
		w.encrypt(queue, true)
		for _, partition := range []string{"a", "b"} {
			w.push(fmt.Sprintf(`{"items":[{"queue":%q,"partition":%q,"transactionId":"t","payload":{"n":%q}}]}`, queue, partition, queue+partition))
		}
	}
	for rule, pair := range map[string][2]string{"between partitions": {"q a", "q b"}, "between queues": {"r a", "r b"}} {
		other := pair[1]
		if rule == "between queues" {
			other = "q a"
		}
		if _, err := w.pool.Exec(t.Context(), `WITH place AS (
    SELECT q.name || ' ' || p.name AS name, p.id FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id)
UPDATE queen.log_segments s SET blob = (SELECT o.blob FROM queen.log_segments o JOIN place ON place.id = o.partition_id WHERE place.name = $2)
WHERE s.partition_id = (SELECT id FROM place WHERE name = $1)`, pair[0], other); err != nil {
			t.Fatal(err)
		}
		queue, partition, _ := strings.Cut(pair[0], " ")
		w.do("GET", "/api/v1/pop/queue/"+queue+"/partition/"+partition+"?subscriptionMode=all", "").refused(t, wire.MessageCorrupt)
		f := w.fetch(fmt.Sprintf(`{"entries":[{"queue":%q,"partition":%q,"offset":0}]}`, queue, partition))
		if f.Entries[0].Error != wire.CorruptMessage {
			t.Errorf("%s: fetched %+v", rule, f)
		}
	}
}

func TestDeadLettersStayEncrypted(t *testing.T) {
	t.Parallel()
	w := setup(t, with(testKey(t, 1)))
	w.encrypt("q", true)
	for _, txn := range []string{"a", "b", "c"} {
		w.one("q", txn)
		w.file("q", "g", "broken")
	}
	var stored, sealed int
	if err := w.pool.QueryRow(t.Context(), "SELECT count(*), count(*) FILTER (WHERE get_byte(payload, 0) = 1) FROM queen.log_dlq").Scan(&stored, &sealed); err != nil || stored != 3 || sealed != 3 {
		t.Fatalf("%d letters, %d of them sealed (%v)", stored, sealed, err)
	}
	page := w.letters("queue=q").Messages
	if shown, err := json.Marshal(page[2].Data); err != nil || string(shown) != `{"n":"a"}` {
		t.Errorf("listed as %s (%v)", shown, err)
	}

	keyless := serve(t, w.pool, nil)
	a := keyless.do("GET", "/api/v1/dlq?queue=q", "").want(t, 200)
	if strings.Count(a.body, `"data":null,"isEncrypted":true,"payloadError":`) != 3 {
		t.Errorf("without the key: %s", a.body)
	}
	r, status := keyless.replay(page[2].ID, "")
	if status != 503 || r.Code != wire.EncryptionKeyMissing || r.DLQRowRemoved == nil || *r.DLQRowRemoved {
		t.Errorf("a replay without the key: %d %+v", status, r)
	}

	// Back to where it came from, and to a queue that is not encrypted: it stays sealed, for the new place.
	if r, _ := w.replay(page[2].ID, ""); r.Result != "moved" {
		t.Errorf("%+v", r)
	}
	if r, _ := w.replay(page[1].ID, `{"queue":"open","partition":"p"}`); r.Result != "moved" {
		t.Errorf("%+v", r)
	}
	w.sealedOnly("open", 1)
	if got := data(w.pop("open?batch=10&subscriptionMode=all&autoAck=true").Messages); got != `{"n":"b"}` {
		t.Errorf("popped %s", got)
	}
	if got := data(w.pop("q?batch=10&consumerGroup=g").Messages); got != `{"n":"a"}` {
		t.Errorf("popped %s", got)
	}
	keyless.do("GET", "/api/v1/pop/queue/open?subscriptionMode=all&autoAck=true&consumerGroup=k", "").refused(t, wire.EncryptionKeyMissing)
}

// Letters that cannot be decrypted stay where they are; the others of the redrive go, sealed if their destination asks.
func TestARedriveLeavesWhatItCannotDecrypt(t *testing.T) {
	t.Parallel()
	w := setup(t, with(testKey(t, 1)))
	w.encrypt("q", true)
	w.one("q", "a")
	w.file("q", "g", "broken")
	w.encrypt("q", false)
	w.one("q", "b")
	w.file("q", "g", "broken")
	w.stop()
	other := serve(t, w.pool, with(testKey(t, 2)))
	other.encrypt("safe", true)
	r := other.ended(other.redrive(`{"queue":"q","destination":{"queue":"safe","partition":"p"}}`).ID)
	if r.State != "done" || r.Progress.Moved != 1 || r.Progress.Failed != 1 {
		t.Errorf("%+v", r)
	}
	other.sealedOnly("safe", 1)
	if got := data(other.pop("safe?subscriptionMode=all").Messages); got != `{"n":"b"}` {
		t.Errorf("popped %s", got)
	}
	if left := other.letters("queue=q").Messages; len(left) != 1 || left[0].TransactionID != "a" {
		t.Errorf("left are %+v", left)
	}
}

// The move of a letter meets the flag under the lock, as a push does.
func TestAMoveMeetsTheFlagOfItsDestination(t *testing.T) {
	t.Parallel()
	w := setup(t, with(testKey(t, 1)))
	w.one("q", "a")
	w.file("q", "g", "broken")
	found, err := w.b.db.Lookup(t.Context(), DefaultTenant, []store.Pair{{Queue: "q", Partition: "Default"}})
	if err != nil {
		t.Fatal(err)
	}
	letters, _, err := w.b.db.Letters(t.Context(), DefaultTenant, store.LetterFilter{Queue: "q"}, store.LetterKey{}, 1, 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	w.encrypt("q", true)
	m, err := w.b.newMove(DefaultTenant, found[0], "", letters)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := w.b.move(m); err != nil || v.Outcome != store.MovePlain {
		t.Fatalf("plaintext moved: %+v, %v", v, err)
	}
	if r, _ := w.replay(letters[0].ID.String(), ""); r.Result != "moved" {
		t.Errorf("%+v", r)
	}
	if fs := w.frames("q"); len(fs) != 2 || !fs[1].Encrypted {
		t.Errorf("stored %+v", fs)
	}
}
