package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

// segmentOf is a segment of messages with these transaction ids that probes the whole window of an hour.
func (w *world) segmentOf(l lane, names ...string) Segment {
	frames := make([]segment.Frame, len(names))
	s := Segment{PartitionID: l.id, Tenant: w.tenant, Count: len(names), DedupWindow: time.Hour}
	for i, name := range names {
		frames[i] = segment.Frame{TransactionID: name, Payload: []byte(payload(name))}
		s.RawBytes += int64(len(frames[i].Payload))
	}
	s.Blob, s.Hashes = segment.Encode(nil, frames), segment.AppendHashes(nil, frames)
	return s
}

func (w *world) transact(t Transaction) TransactionVerdict {
	w.t.Helper()
	t.Tenant = w.tenant
	v, err := w.store.Transact(w.ctx, &t)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// state is all that a transaction can change, as text.
func (w *world) state() string {
	w.t.Helper()
	var b strings.Builder
	for _, q := range []string{
		`SELECT p.id || ' last ' || p.last_offset || ' bytes ' || p.retained_bytes || ' segments ' || p.segments FROM queen.log_partitions p ORDER BY p.id`,
		`SELECT partition_id || ' segment ' || base_offset || '-' || end_offset FROM queen.log_segments ORDER BY partition_id, base_offset`,
		`SELECT partition_id || ' hashes ' || base_offset || '-' || end_offset || ' ' || encode(hashes, 'hex') FROM queen.log_txns ORDER BY partition_id, base_offset`,
		`SELECT k::text FROM queen.log_consumers k ORDER BY partition_id, consumer_group`,
		`SELECT partition_id || ' letter ' || offset_ || ' ' || error FROM queen.log_dlq ORDER BY partition_id, offset_`,
		`SELECT 'ledger ' || coalesce(sum(bytes), 0) FROM queen.retained_ledger`,
	} {
		rows, err := w.pool.Query(w.ctx, q)
		if err != nil {
			w.t.Fatal(err)
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				w.t.Fatal(err)
			}
			b.WriteString(line + "\n")
		}
		if err := rows.Err(); err != nil {
			w.t.Fatal(err)
		}
	}
	return b.String()
}

func TestATransactionCommitsAsAWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in, out, other := w.lane("in"), w.lane("out"), w.lane("other")
	w.push(in, 3)
	w.push(out, 1)
	lease, _ := w.lease(in, 3)
	v := w.transact(Transaction{
		Pushes: []Segment{w.segmentOf(other, "x"), w.segmentOf(out, "y", "z")}, // not in the order of partitions
		Acks:   []AckGroup{w.group(in, lease, said(0, wire.AckCompleted), known(2, wire.AckCompleted))},
		Fenced: true, Leases: []string{lease},
	})
	if v.Status != TransactionCommitted || v.Pushes[0].Base != 0 || v.Pushes[1].Base != 1 || v.Pushes[1].LastOffset != 2 || v.Pushes[1].CreatedAt.IsZero() {
		t.Fatalf("verdict %+v", v)
	}
	if a := v.Acks[0]; !a.LeaseReleased || a.Committed != 2 || a.Advanced != 3 || !a.Items[0].Success || !a.Items[1].Success || a.Items[0].Noop {
		t.Errorf("acks %+v", a)
	}
	if c := w.cursor(in, wire.QueueModeGroup); c.Committed != 2 || c.Worker != nil {
		t.Errorf("cursor %v", c)
	}
	if got := w.pop(w.claim("g", out, other)); len(got[0].Segments) == 0 || got[0].LastOffset != 2 {
		t.Errorf("pushed messages are delivered as %+v", got)
	}
	// The same again: what it pushes is there already.
	before := w.state()
	again := w.transact(Transaction{Pushes: []Segment{w.segmentOf(other, "x"), w.segmentOf(out, "new", "z")}})
	if again.Status != TransactionDuplicate || len(again.Pushes[1].Dups) != 1 || again.Pushes[1].Dups[0].Frame != 1 || again.Pushes[1].Dups[0].Offset != 2 ||
		len(again.Pushes[0].Dups) != 1 {
		t.Errorf("verdict %+v", again)
	}
	if d := cmp.Diff(before, w.state()); d != "" {
		t.Error(d)
	}
}

// refusal is one way to refuse a transaction. Each begins with a partition of six messages of which four are out under a
// lease of the queue-mode group, and another of which two are out; the transaction also pushes and acknowledges what is
// right.
type refusal struct {
	change func(w *world, c *refusalCase)
	want   TransactionStatus
	says   string // error of the first item without success; "lease" for a lease as such
}

type refusalCase struct {
	in, side, out    lane
	lease, sideLease string
	tx               Transaction
}

func (c *refusalCase) ack(w *world, items ...AckItem) {
	c.tx.Acks[0] = w.group(c.in, c.lease, items...)
}

var refusals = map[string]refusal{
	"a push that repeats what is stored": {func(w *world, c *refusalCase) { c.tx.Pushes = append(c.tx.Pushes, w.segmentOf(c.side, "new", txn(1))) }, TransactionDuplicate, ""},
	"a push into a deleted partition": {func(w *world, c *refusalCase) {
		c.tx.Pushes = append(c.tx.Pushes, w.segmentOf(lane{id: 1 << 40}, "new"))
	}, TransactionMissing, ""},

	"an ack of what was never pushed": {func(w *world, c *refusalCase) { c.ack(w, said(0, wire.AckCompleted), said(99, wire.AckCompleted)) }, TransactionRejected, AckUnresolvable},
	"an ack beyond the batch":         {func(w *world, c *refusalCase) { c.ack(w, said(5, wire.AckCompleted)) }, TransactionRejected, AckUnresolvable},
	"a nack behind the cursor": {func(w *world, c *refusalCase) {
		w.ack(w.group(c.in, c.lease, said(1, wire.AckCompleted)))
		c.ack(w, said(0, wire.AckRetry), said(2, wire.AckCompleted))
	}, TransactionRejected, AckPassed},
	"a stale lease": {func(w *world, c *refusalCase) {
		c.tx.Acks[0].Lease = uuid.NewString()
		c.tx.Leases = append(c.tx.Leases, c.tx.Acks[0].Lease)
	}, TransactionRejected, AckStaleLease},
	"an expired lease":             {func(w *world, c *refusalCase) { w.expire() }, TransactionRejected, AckStaleLease},
	"a lease of another partition": {func(w *world, c *refusalCase) { c.tx.Acks[0].Lease = c.sideLease }, TransactionRejected, AckStaleLease},
	"a malformed lease": {func(w *world, c *refusalCase) {
		c.tx.Acks[0].Lease = "lease"
		c.tx.Leases = append(c.tx.Leases, "lease")
	}, TransactionRejected, "lease"},
	"a holder that nobody named":         {func(w *world, c *refusalCase) { c.tx.Acks[0].Lease = ""; c.tx.Leases = []string{c.sideLease} }, TransactionRejected, AckStaleLease},
	"a required lease that nobody holds": {func(w *world, c *refusalCase) { c.tx.Leases = append(c.tx.Leases, uuid.NewString()) }, TransactionRejected, "lease"},
	"a required lease of another tenant": {func(w *world, c *refusalCase) { c.tx.Leases = append(c.tx.Leases, w.foreignLease()) }, TransactionRejected, "lease"},
	"a foreign partition":                {func(w *world, c *refusalCase) { c.tx.Acks[0].Partition = w.foreign().uid }, TransactionRejected, AckNotOwned},
	"a partition that does not exist":    {func(w *world, c *refusalCase) { c.tx.Acks[0].Partition = uuid.New() }, TransactionRejected, AckNotOwned},
	"a group that never popped":          {func(w *world, c *refusalCase) { c.tx.Acks[0].Group = "stranger" }, TransactionRejected, AckNoConsumer},
	"a group that can have no cursor":    {func(w *world, c *refusalCase) { c.tx.Acks[0].Group = "a\x00b" }, TransactionRejected, AckNoConsumer},
	"an unknown message beside a letter": {func(w *world, c *refusalCase) {
		c.ack(w, said(0, wire.AckDLQ))
		c.tx.Acks[1].Items = []AckItem{said(77, wire.AckCompleted)}
	}, TransactionRejected, AckUnresolvable},
	"a letter by offset beside a bad push": {func(w *world, c *refusalCase) {
		c.ack(w, known(1, wire.AckDLQ))
		c.tx.Pushes = append(c.tx.Pushes, w.segmentOf(c.side, txn(0)))
	}, TransactionDuplicate, ""},
}

// foreign is a partition of another tenant with messages, of which one is out.
func (w *world) foreign() lane {
	tenant := uuid.New()
	w.exec("INSERT INTO queen.tenants (tenant_id) VALUES ($1)", tenant)
	l := w.laneOf(w.newQueue(tenant, "theirs"), "p")
	w.push(l, 2)
	return l
}

func (w *world) foreignLease() string {
	lease, _ := w.lease(w.foreign(), 1)
	return lease
}

func TestARefusedTransactionLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := 0
	for name, r := range refusals {
		n++
		t.Run(name, func(t *testing.T) {
			w.t = t
			c := &refusalCase{in: w.lane(fmt.Sprint("in", n)), side: w.lane(fmt.Sprint("side", n)), out: w.lane(fmt.Sprint("out", n))}
			w.push(c.in, 3, 3)
			w.push(c.side, 2)
			c.lease, _ = w.lease(c.in, 4)
			c.sideLease, _ = w.lease(c.side, 2)
			c.tx = Transaction{
				Pushes: []Segment{w.segmentOf(c.out, "a", "b")},
				Acks: []AckGroup{
					w.group(c.in, c.lease, said(1, wire.AckCompleted)), w.group(c.side, c.sideLease, known(1, wire.AckCompleted)),
				},
				Fenced: true, Leases: []string{c.lease, c.sideLease},
			}
			r.change(w, c)
			before := w.state()
			v := w.transact(c.tx)
			if v.Status != r.want {
				t.Fatalf("status %d, want %d: %+v", v.Status, r.want, v)
			}
			said := ""
			if v.StaleLease >= 0 {
				said = "lease"
			}
			for _, a := range v.Acks {
				for _, it := range a.Items {
					if said == "" && it.Error != "" {
						said = it.Error
					}
				}
			}
			if v.Status == TransactionRejected && said != r.says {
				t.Errorf("it says %q, want %q", said, r.says)
			}
			if d := cmp.Diff(before, w.state()); d != "" {
				t.Errorf("it left something behind:\n%s", d)
			}
			// Nothing is held and no offset is lost: the next push is stored where it would have been.
			if v := w.transact(Transaction{Pushes: []Segment{w.segmentOf(c.out, "a")}}); v.Status != TransactionCommitted || v.Pushes[0].Base != 0 {
				t.Errorf("afterwards: %+v", v)
			}
		})
	}
}

// A transaction with one group does what an ack of that group does, as long as the ack is a success throughout.
func TestTransactionsObeyTheDecisionTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for form, item := range map[string]func(int64, wire.AckStatus) AckItem{"by offset": known, "by hash": said} {
		for _, c := range ackTable() {
			if c.byHash && form != "by hash" {
				continue
			}
			t.Run(c.name+" "+form, func(t *testing.T) {
				t.Parallel()
				w := *w
				w.t = t
				_, l, lease := w.stage(c)
				want := w.ack(w.group(l, lease, parseSay(c.say, item)...))[0]
				status := TransactionCommitted
				for _, it := range want.Items {
					if !it.Success {
						status = TransactionRejected
					}
				}
				_, twin, lease := w.stage(c)
				before := w.outline(twin)
				tx := Transaction{Acks: []AckGroup{w.group(twin, lease, parseSay(c.say, item)...)}}
				if lease != "" {
					tx.Fenced, tx.Leases = true, []string{lease}
				}
				got := w.transact(tx)
				if got.Status != status {
					t.Fatalf("status %d, and an ack says %+v", got.Status, want.Items)
				}
				expected := before
				if status == TransactionCommitted {
					expected = w.outline(l)
					if d := cmp.Diff(want.Items, got.Acks[0].Items); d != "" {
						t.Error(d)
					}
					if got.Acks[0].LeaseReleased != want.LeaseReleased || got.Acks[0].Committed != want.Committed || got.Acks[0].Advanced != want.Advanced {
						t.Errorf("verdict %+v, want %+v", got.Acks[0], want)
					}
				}
				if d := cmp.Diff(expected, w.outline(twin)); d != "" {
					t.Error(d)
				}
			})
		}
	}
}

// outline is what two partitions with the same history share of their state.
func (w *world) outline(l lane) string {
	w.t.Helper()
	var n int
	w.scan("SELECT count(*) FROM queen.log_consumers WHERE partition_id = $1", []any{l.id}, &n)
	if n == 0 {
		return "no cursor"
	}
	c := w.cursor(l, wire.QueueModeGroup)
	return fmt.Sprint(c.Committed, c.BatchEnd != nil, c.Worker != nil, c.Retries, c.AttemptOffset != nil, c.Attempts, c.Consumed, " ", w.letters(l))
}

func (w *world) letters(l lane) (all string) {
	w.t.Helper()
	w.scan(`SELECT coalesce(string_agg(offset_ || ' ' || transaction_id || ' ' || error || ' ' || retry_count, ','), '')
FROM queen.log_dlq WHERE partition_id = $1`, []any{l.id}, &all)
	return all
}

func TestANoopIsTolerated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l, out := w.lane("in"), w.lane("out")
	w.push(l, 5)
	lease, _ := w.lease(l, 5)
	w.ack(w.group(l, lease, said(1, wire.AckCompleted)))
	v := w.transact(Transaction{
		Pushes: []Segment{w.segmentOf(out, "a")}, Acks: []AckGroup{w.group(l, lease, said(0, wire.AckCompleted), said(3, wire.AckCompleted))},
		Fenced: true, Leases: []string{lease},
	})
	if v.Status != TransactionCommitted || !v.Acks[0].Items[0].Noop || v.Acks[0].Items[1].Noop || !v.Acks[0].Items[1].Success || v.Acks[0].Committed != 3 {
		t.Errorf("verdict %+v", v)
	}
}

func TestRequiredLeasesCoverAcksThatNameNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.lane("a"), w.lane("b")
	w.push(a, 2)
	w.push(b, 2)
	la, _ := w.lease(a, 2)
	lb, _ := w.lease(b, 2)
	v := w.transact(Transaction{
		Acks:   []AckGroup{w.group(a, "", said(1, wire.AckCompleted)), w.group(b, lb, said(1, wire.AckCompleted))},
		Fenced: true, Leases: []string{lb, la},
	})
	if v.Status != TransactionCommitted || !v.Acks[0].LeaseReleased || !v.Acks[1].LeaseReleased {
		t.Errorf("verdict %+v", v)
	}
	// A lease that covers no ack must still be held.
	w.push(a, 1)
	la, _ = w.lease(a, 1)
	if v := w.transact(Transaction{Pushes: []Segment{w.segmentOf(b, "x")}, Fenced: true, Leases: []string{la}}); v.Status != TransactionCommitted {
		t.Errorf("a push under a live lease: %+v", v)
	}
	w.expire()
	if v := w.transact(Transaction{Pushes: []Segment{w.segmentOf(b, "y")}, Fenced: true, Leases: []string{la}}); v.Status != TransactionRejected || v.StaleLease != 0 {
		t.Errorf("a push under an expired lease: %+v", v)
	}
}

func TestWithoutAnyLeaseAnAckInATransactionLandsLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("in")
	w.push(l, 4)
	w.lease(l, 2)
	w.expire()
	v := w.transact(Transaction{Acks: []AckGroup{w.group(l, "", said(1, wire.AckCompleted))}})
	if v.Status != TransactionCommitted || v.Acks[0].Committed != 1 || v.Acks[0].LeaseReleased {
		t.Errorf("verdict %+v", v)
	}
}

func TestATransactionFilesItsDeadLetters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("UPDATE queen.queues SET retry_limit = 0 WHERE id = $1", w.id)
	for name, item := range map[string]AckItem{
		"dlq by offset": known(1, wire.AckDLQ), "dlq by hash": said(1, wire.AckDLQ),
		"failed by offset": known(1, wire.AckFailed), "failed by hash": said(1, wire.AckFailed),
	} {
		l, out := w.lane("in "+name), w.lane("out "+name)
		w.push(l, 3)
		lease, _ := w.lease(l, 3)
		item.Reason = "no good"
		v := w.transact(Transaction{
			Pushes: []Segment{w.segmentOf(out, "a")}, Acks: []AckGroup{w.group(l, lease, said(0, wire.AckCompleted), item)},
			Fenced: true, Leases: []string{lease},
		})
		if v.Status != TransactionCommitted || v.Acks[0].Items[0].DLQ || !v.Acks[0].Items[1].DLQ || !v.Acks[0].LeaseReleased {
			t.Errorf("%s: %+v", name, v)
		}
		if got, want := w.letters(l), "1 t-1 no good 0"; got != want {
			t.Errorf("%s: letters %q, want %q", name, got, want)
		}
	}
}

func TestAWatermarkNarrowsTheProbeOfATransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.lane("p")
	w.pushNamed(l, time.Time{}, "old")
	s := w.segmentOf(l, "old")
	s.Verified = Watermark{0, 2} // the word of another life of the database
	if v := w.transact(Transaction{Pushes: []Segment{s}}); v.Status != TransactionDuplicate {
		t.Errorf("a watermark of another life was believed: %+v", v)
	}
	s.Verified = Watermark{0, 1} // a lie that only shows that the database was not asked
	if v := w.transact(Transaction{Pushes: []Segment{s}}); v.Status != TransactionCommitted {
		t.Errorf("probed below the watermark: %+v", v)
	}
	s.DedupWindow, s.Verified = 0, Watermark{}
	if v := w.transact(Transaction{Pushes: []Segment{s}}); v.Status != TransactionCommitted {
		t.Errorf("probed without a window: %+v", v)
	}
}

// Two sessions race for the same message and the same id: one wins, the other is told why, and nothing is half done.
func TestTwoTransactionsRace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for round := range 20 {
		in, out := w.lane(fmt.Sprint("in", round)), w.lane(fmt.Sprint("out", round))
		w.push(in, 2)
		lease, _ := w.lease(in, 2)
		var verdicts [2]TransactionVerdict
		var errs [2]error
		var both sync.WaitGroup
		for i := range 2 {
			both.Go(func() {
				verdicts[i], errs[i] = w.store.Transact(w.ctx, &Transaction{
					Tenant: w.tenant, Pushes: []Segment{w.segmentOf(out, fmt.Sprint("of", i), "same")},
					Acks: []AckGroup{w.group(in, lease, said(1, wire.AckCompleted))}, Fenced: true, Leases: []string{lease},
				})
			})
		}
		both.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		a, b := verdicts[0].Status, verdicts[1].Status
		if a != TransactionCommitted {
			a, b = b, a
		}
		if a != TransactionCommitted || b != TransactionDuplicate {
			t.Fatalf("statuses %d and %d", a, b)
		}
		var last int64
		w.scan("SELECT last_offset FROM queen.log_partitions WHERE id = $1", []any{out.id}, &last)
		if last != 1 {
			t.Fatalf("last offset %d", last)
		}
	}
}

// A crowd of transactions, pushes, acks and claims on few partitions: no deadlock reaches a caller, and in the end every
// offset is there once, every id once, and no cursor is beyond its log.
func TestNoDeadlockReachesAClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const lanes, workers = 6, 8
	groups := []string{wire.QueueModeGroup, "g", "h"}
	all := make([]lane, lanes)
	for i := range all {
		all[i] = w.lane(fmt.Sprint("p", i))
		w.push(all[i], 5)
	}
	var serial, committed, refused atomic.Int64
	var crowd sync.WaitGroup
	for who := range workers {
		crowd.Go(func() {
			rng := rand.New(rand.NewPCG(11, uint64(who)))
			some := func() []lane {
				picked := append([]lane(nil), all...)
				rng.Shuffle(lanes, func(i, j int) { picked[i], picked[j] = picked[j], picked[i] })
				return picked[:1+rng.IntN(lanes)]
			}
			segments := func(at []lane) (segs []Segment) {
				for _, l := range at {
					names := make([]string, 1+rng.IntN(3))
					for i := range names {
						names[i] = fmt.Sprint("id", serial.Add(1)-int64(rng.IntN(2)*20)) // now and then one that is there
					}
					if len(names) > 1 && names[0] == names[1] {
						names = names[:1]
					}
					segs = append(segs, w.segmentOf(l, names[0]))
				}
				return segs
			}
			for committed.Load() < 200 || refused.Load() < 10 { // as much as it takes to show something
				group := groups[rng.IntN(len(groups))]
				c := w.claim(group, some()...)
				c.Budget, c.Lease = 1+rng.IntN(8), 200*time.Millisecond
				got, err := w.store.ClaimBundle(w.ctx, []Claim{c})
				if err != nil {
					t.Error(err)
					return
				}
				var acks []AckGroup
				var leases []string
				for _, p := range got[0] {
					if p.Status != ClaimTook {
						continue
					}
					for _, l := range all {
						if l.id == p.PartitionID {
							g := w.group(l, c.Worker.String(), AckItem{Hash: w.hashOfOffset(p, p.Through), Status: wire.AckStatus(rng.IntN(4)), Offset: -1})
							g.Group = group
							acks = append(acks, g)
							leases = []string{c.Worker.String()}
						}
					}
				}
				switch rng.IntN(4) {
				case 0:
					if _, err := w.store.AckBundle(w.ctx, acks); err != nil {
						t.Error(err)
						return
					}
				case 1:
					if _, err := w.store.PushBundleWait(w.ctx, segments(some())); err != nil && !pg.Retryable(err) {
						t.Error(err)
						return
					}
				default:
					v, err := w.store.Transact(w.ctx, &Transaction{Tenant: w.tenant, Pushes: segments(some()), Acks: acks, Fenced: leases != nil, Leases: leases})
					if err != nil {
						t.Error(err)
						return
					}
					if v.Status == TransactionCommitted {
						committed.Add(1)
					} else {
						refused.Add(1)
					}
				}
			}
		})
	}
	crowd.Wait()
	t.Logf("%d transactions committed, %d refused", committed.Load(), refused.Load())
	var deadlocks, holes, twice, beyond int
	w.scan("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()", nil, &deadlocks)
	w.scan(`SELECT count(*) FROM (SELECT s.base_offset, lag(s.end_offset, 1, -1::bigint) OVER (PARTITION BY s.partition_id ORDER BY s.base_offset) AS before
		FROM queen.log_segments s) s WHERE base_offset <> before + 1`, nil, &holes)
	w.scan(`SELECT count(*) FROM (SELECT t.partition_id, substring(t.hashes FROM 16 * x.i + 1 FOR 16) AS hash FROM queen.log_txns t
		CROSS JOIN LATERAL generate_series(0, (t.end_offset - t.base_offset)::integer) AS x (i) GROUP BY 1, 2 HAVING count(*) > 1) d`, nil, &twice)
	w.scan("SELECT count(*) FROM queen.log_consumers k JOIN queen.log_partitions p ON p.id = k.partition_id WHERE k.committed > p.last_offset", nil, &beyond)
	if deadlocks != 0 || holes != 0 || twice != 0 || beyond != 0 {
		t.Errorf("%d deadlocks, %d holes, %d ids stored twice, %d cursors beyond their log", deadlocks, holes, twice, beyond)
	}
}

// hashOfOffset is the identity of a message as a consumer would learn it: from the segment it got.
func (w *world) hashOfOffset(p Claimed, offset int64) Hash {
	for _, s := range p.Segments {
		if s.Base <= offset && offset <= s.End {
			r, err := segment.Open(s.Blob)
			if err != nil {
				panic(err)
			}
			return segment.HashID(r.Frame(int(offset - s.Base)).TransactionID)
		}
	}
	return Hash{}
}
