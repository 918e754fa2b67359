package store

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

// encrypt sets or clears the flag of a queue.
func (w *writer) encrypt(queue string, on bool) {
	w.t.Helper()
	body := `{"queue":"` + queue + `","options":{"encryptionEnabled":false}}`
	if on {
		body = `{"queue":"` + queue + `","options":{"encryptionEnabled":true}}`
	}
	if _, err := w.Configure(w.t.Context(), w.tenant, configure(w.t, body), wire.ConfigureReplace, Caps{}); err != nil {
		w.t.Fatal(err)
	}
}

func sealedSegment(s Segment) Segment {
	s.Sealed = true
	return s
}

func statuses(vs []PushVerdict) (all []PushStatus) {
	for _, v := range vs {
		all = append(all, v.Status)
	}
	return all
}

// Of a bundle only the plaintext is refused, whether or not it is a duplicate too.
func TestPlaintextForAnEncryptedQueueIsRefusedAlone(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	open, a, b, c := w.partition("open", "a"), w.partition("q", "a"), w.partition("q", "b"), w.partition("q", "c")
	w.push(w.segment(c, "old"))
	w.encrypt("q", true)
	bundle := []Segment{w.segment(open, "1"), w.segment(a, "2"), sealedSegment(w.segment(b, "3")), w.segment(c, "old")}
	if d := cmp.Diff([]PushStatus{PushStored, PushPlain, PushStored, PushPlain}, statuses(w.push(bundle...))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if n := w.count("SELECT count(*) FROM queen.log_segments WHERE partition_id = $1", a.ID); n != 0 {
		t.Errorf("%d segments were stored", n)
	}
	vs, err := w.PushBundleWait(t.Context(), bundle[1:2])
	if err != nil || vs[0].Status != PushPlain {
		t.Errorf("waiting: %+v, %v", vs, err)
	}
	v, err := w.Transact(t.Context(), &Transaction{Tenant: w.tenant, Pushes: []Segment{w.segment(open, "4"), w.segment(a, "5")}})
	if err != nil || v.Status != TransactionMissing || v.Pushes[1].Status != PushPlain {
		t.Errorf("in a transaction: %+v, %v", v, err)
	}
	if n := w.count("SELECT count(*) FROM queen.log_segments WHERE partition_id = $1", open.ID); n != 1 {
		t.Errorf("a refused transaction left %d segments", n-1)
	}
	w.encrypt("q", false)
	if d := cmp.Diff([]PushStatus{PushStored}, statuses(w.push(w.segment(a, "2")))); d != "" {
		t.Errorf("after the flag is cleared (-want +got):\n%s", d)
	}
}

// A broker of the version before calls with one parameter less: it must be refused, not believed.
func TestACallThatDoesNotSayIsPlaintext(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	w.encrypt("q", true)
	s := w.segment(p, "1")
	const call = `SELECT status FROM queen.push_bundle(false, ARRAY[$1::bigint], ARRAY[1], ARRAY[1::bigint], ARRAY[-1::bigint], ARRAY[0::bigint], ARRAY[$2::uuid], ARRAY[$3::bytea], ARRAY[$4::bytea])`
	if got := w.count(call, p.ID, w.tenant, s.Blob, s.Hashes); PushStatus(got) != PushPlain {
		t.Errorf("status %d, want %d", got, PushPlain)
	}
}

// The flag waits for the push that holds the partition, and binds every push that comes after it.
func TestTheFlagWaitsForPushesInFlight(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "SELECT 1 FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE", p.ID); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	req := configure(t, `{"queue":"q","options":{"encryptionEnabled":true}}`)
	go func() {
		_, err := w.Configure(t.Context(), w.tenant, req, wire.ConfigureReplace, Caps{})
		done <- err
	}()
	w.awaitLockWait()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if v := w.push(w.segment(p, "1"))[0]; v.Status != PushPlain {
		t.Errorf("status %d, want %d", v.Status, PushPlain)
	}
}

func TestPartitionsAreBornWithTheFlagOfTheirQueue(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	w.encrypt("q", true)
	if p := w.partition("q", "new"); !p.Encrypted {
		t.Error("a partition of an encrypted queue is not")
	}
	w.encrypt("q", false)
	if p := w.partition("q", "newer"); p.Encrypted || w.partition("q", "new").Encrypted {
		t.Error("a partition of a plain queue is encrypted")
	}
	if n := w.count("SELECT count(*) FROM queen.log_partitions WHERE sealed AND NOT encrypted"); n != 2 { // Default and new
		t.Errorf("%d partitions may hold encrypted messages, want 2", n)
	}
}

// Under auto ack the cursor of a partition stays where it is as long as its messages might not open.
func TestAutoAckLeasesWhereMessagesMayBeEncrypted(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	plain, sealed := w.partition("q", "plain"), w.partition("q", "sealed")
	w.push(w.segment(plain, "1"), sealedSegment(w.segment(sealed, "2"))) // as a letter that is moved to a plain queue
	w.exec("INSERT INTO queen.log_consumers (partition_id, consumer_group) SELECT id, 'g' FROM queen.log_partitions")
	got, err := w.ClaimBundle(t.Context(), []Claim{{
		Candidates: []int64{plain.ID, sealed.ID}, Of: Origin{plain.QueueID, plain.Life}, Group: "g", Worker: uuid.New(), Lease: 60e9, Budget: 10, AutoAck: true,
	}})
	if err != nil {
		t.Fatal(err)
	}
	if c := got[0][0]; c.Status != ClaimTook || !c.Expires.IsZero() {
		t.Errorf("plain: %+v", c)
	}
	if c := got[0][1]; c.Status != ClaimTook || c.Expires.IsZero() || c.After != -1 || c.Through != 0 {
		t.Errorf("sealed: %+v", c)
	}
	if n := w.count("SELECT count(*) FROM queen.log_consumers WHERE committed = -1 AND worker_id IS NOT NULL"); n != 1 {
		t.Errorf("%d cursors stayed under a lease, want 1", n)
	}
}
