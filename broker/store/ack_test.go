package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/wire"
)

// ackCase is one row of the decision table: a partition of ten messages, 0 to 4 and 5 to 9 by segment, of which the
// group holds the first `out` under a lease.
type ackCase struct {
	name string

	out       int    // 0: nothing is out, but the group has a cursor
	at        int64  // the cursor before the call is at-1
	retries   int    // charged before the call
	limit     int    // retryLimit; 0 means the default of 3, -1 means 0
	flagsOff  bool   // neither DLQ flag is set
	expired   bool   // the lease has run out
	lease     string // "" the holder's, "none", "other", or literally what is sent
	unseeded  bool   // the group never popped the partition
	byHash    bool   // a caller that knows the offset gets another answer
	retention int64  // segments below this offset are gone, and so are sidecar rows

	say string // status letter and offset: c completed, r retry, f failed, d dlq; offset 99 was never pushed

	want      string // per item: ok, dlq, noop, or the first word of the error
	committed int64
	held      bool   // the batch is still out
	ended     bool   // leaseReleased
	charged   int    // retries after the call
	attempts  string // "kept", "moved" to the first uncommitted message, or "" for reset
	filed     int64  // offset of the dead letter; 0 for none (no row files offset 0 and expects it here)
}

func ackTable() []ackCase {
	return []ackCase{
		// No signal.
		{name: "all completed ends the batch", out: 4, say: "c0 c1 c2 c3", want: "ok ok ok ok", committed: 3, ended: true},
		{name: "completing the last message completes all before it", out: 4, say: "c3", want: "ok", committed: 3, ended: true},
		{name: "a partial ack keeps the lease and moves the attempt", out: 4, say: "c1", want: "ok", committed: 1, held: true, attempts: "moved"},
		{name: "a complete batch resets the retries", out: 4, retries: 2, say: "c3", want: "ok", committed: 3, ended: true},
		{name: "partial progress does not reset the retries", out: 4, retries: 2, say: "c1", want: "ok", committed: 1, held: true, charged: 2, attempts: "moved"},
		{name: "order inside a call does not matter", out: 4, say: "c3 c0", want: "ok ok", committed: 3, ended: true},

		// Retry.
		{name: "retry releases and charges nothing", out: 4, retries: 1, say: "r2", want: "ok", committed: -1, ended: true, charged: 1, attempts: "kept"},
		{name: "retry keeps the completed prefix", out: 4, say: "c0 c1 r2", want: "ok ok ok", committed: 1, ended: true, attempts: "kept"},
		{name: "completions above a retry come back", out: 4, say: "r1 c3", want: "ok ok", committed: 0, ended: true, attempts: "kept"},

		// Failed with retries left.
		{name: "failed charges one and releases", out: 4, say: "f0", want: "ok", committed: -1, ended: true, charged: 1, attempts: "kept"},
		{name: "failed is charged once per call, not per message", out: 4, say: "f0 f1 f2", want: "ok ok ok", committed: -1, ended: true, charged: 1, attempts: "kept"},
		{name: "the cursor stops below the lowest signal", out: 6, say: "c0 c1 f2 c3 c5", want: "ok ok ok ok ok", committed: 1, ended: true, charged: 1, attempts: "kept"},
		{name: "positions below the highest completion are implicitly done up to the signal", out: 6, say: "f4 c5", want: "ok ok", committed: 3, ended: true, charged: 1, attempts: "kept"},
		{name: "without a completion nothing below the signal is done", out: 6, say: "f4", want: "ok", committed: -1, ended: true, charged: 1, attempts: "kept"},
		{name: "the third failure redelivers under a limit of three", out: 4, retries: 2, say: "f0", want: "ok", committed: -1, ended: true, charged: 3, attempts: "kept"},

		// Failed, spent.
		{name: "the fourth failure is filed under a limit of three", out: 4, retries: 3, say: "f1", want: "dlq", committed: 1, ended: true, filed: 1},
		{name: "a limit of zero files at once", out: 4, limit: -1, say: "f1", want: "dlq", committed: 1, ended: true, filed: 1},
		{name: "filing takes exactly one message", out: 4, retries: 3, say: "c0 f1 f2", want: "ok dlq ok", committed: 1, ended: true, filed: 1},
		{name: "both flags off drops the message", out: 4, retries: 3, flagsOff: true, say: "f1", want: "ok", committed: 1, ended: true},

		// Dead letter now.
		{name: "dlq bypasses the retries", out: 4, say: "d1", want: "dlq", committed: 1, ended: true, filed: 1},
		{name: "dlq resets the retries", out: 4, retries: 2, say: "d1", want: "dlq", committed: 1, ended: true, filed: 1},
		{name: "dlq files with both flags off", out: 4, flagsOff: true, say: "d1", want: "dlq", committed: 1, ended: true, filed: 1},
		{name: "dlq of the last message ends the batch", out: 4, say: "c0 c1 c2 d3", want: "ok ok ok dlq", committed: 3, ended: true, filed: 3},
		{name: "dlq in the second segment", out: 9, say: "d7", want: "dlq", committed: 7, ended: true, filed: 7},

		// Which signal counts.
		{name: "the lowest signal decides: retry below failed", out: 6, say: "f3 r1", want: "ok ok", committed: -1, ended: true, attempts: "kept"},
		{name: "the lowest signal decides: failed below dlq", out: 6, say: "d3 f1", want: "ok ok", committed: -1, ended: true, charged: 1, attempts: "kept"},
		{name: "at one offset dlq beats failed beats retry", out: 6, say: "r2 f2 d2", want: "dlq dlq dlq", committed: 2, ended: true, filed: 2},
		{name: "at one offset failed beats retry", out: 6, say: "r2 f2", want: "ok ok", committed: -1, ended: true, charged: 1, attempts: "kept"},
		{name: "a signal beats a completion of the same message", out: 4, say: "c2 r2", want: "ok ok", committed: 1, ended: true, attempts: "kept"},

		// Late, unknown, foreign.
		{name: "completed behind the cursor is a noop", out: 4, at: 3, say: "c0", want: "noop", committed: 2, held: true, attempts: "unchanged"},
		{name: "a signal behind the cursor came too late", out: 4, at: 3, say: "f0 r1 d2", want: "already already already", committed: 2, held: true, attempts: "unchanged"},
		{name: "a late item does not disturb the others", out: 4, at: 3, say: "f0 c5", want: "already ok", committed: 5, held: true, attempts: "moved"},
		{name: "a hash that is nowhere is unresolvable", out: 4, say: "c99 c1", want: "unresolvable: ok", committed: 1, held: true, attempts: "moved"},
		{name: "a message beyond the batch is unresolvable", out: 4, say: "c6", want: "unresolvable:", committed: -1, held: true, attempts: "unchanged"},
		{name: "a signal beyond the batch does nothing", out: 4, say: "f6", want: "unresolvable:", committed: -1, held: true, attempts: "unchanged"},
		{name: "a hash that was purged is unresolvable", byHash: true, out: 6, retention: 5, say: "c2 c5", want: "unresolvable: ok", committed: 5, ended: true},
		{name: "a group without a cursor", unseeded: true, say: "c0", want: "consumer", committed: -1},

		// The lease.
		{name: "another lease id moves nothing", out: 4, lease: "other", say: "c0 f1", want: "invalid invalid", committed: -1, held: true, attempts: "unchanged"},
		{name: "a malformed lease id moves nothing", out: 4, lease: "lease-7", say: "c0", want: "invalid", committed: -1, held: true, attempts: "unchanged"},
		{name: "an expired lease moves nothing", out: 4, expired: true, say: "c0", want: "invalid", committed: -1, held: true, attempts: "unchanged"},
		{name: "a lease that was released moves nothing", lease: "other", say: "c0", want: "invalid", committed: -1, attempts: "unchanged"},
		{name: "without a lease id the cursor moves", out: 4, lease: "none", say: "c3", want: "ok", committed: 3, ended: true},
		{name: "without a lease id an expired batch can land late", out: 4, expired: true, lease: "none", say: "c3", want: "ok", committed: 3},
		{name: "without a lease id a signal acts on an expired batch", out: 4, expired: true, lease: "none", say: "f0", want: "ok", committed: -1, charged: 1, attempts: "kept"},

		// Nothing is out.
		{name: "completed without a batch moves the cursor past what was never delivered", lease: "none", say: "c6", want: "ok", committed: 6, attempts: "unchanged"},
		{name: "failed without a batch does nothing", lease: "none", say: "f2", want: "ok", committed: -1, attempts: "unchanged"},
		{name: "dlq without a batch does nothing", lease: "none", say: "d2", want: "ok", committed: -1, attempts: "unchanged"},
		{name: "the clamp holds without a batch", lease: "none", say: "f2 c6", want: "ok ok", committed: 1, attempts: "unchanged"},
		{name: "nothing to resolve without a batch", lease: "none", say: "c99", want: "unresolvable:", committed: -1, attempts: "unchanged"},
	}
}

func TestAckDecisionTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	forms := map[string]func(int64, wire.AckStatus) AckItem{"by offset": known, "by hash": said}
	for form, item := range forms {
		for _, c := range ackTable() {
			if c.byHash && form != "by hash" {
				continue
			}
			t.Run(c.name+" "+form, func(t *testing.T) {
				t.Parallel()
				w := *w
				w.t = t
				w.run(c, item)
			})
		}
	}
}

// stage brings a partition of a queue of its own into the state of the case and returns the lease id to be sent.
func (w *world) stage(c ackCase) (queue int64, l lane, lease string) {
	t := w.t
	t.Helper()
	queue = w.newQueue(w.tenant, uuid.NewString())
	limit := map[int]int{0: 3, -1: 0}[c.limit]
	w.exec("UPDATE queen.queues SET retry_limit = $2, dead_letter_queue = $3, dlq_after_max_retries = $3 WHERE id = $1", queue, limit, !c.flagsOff)
	l = w.laneOf(queue, "Default")
	w.push(l, 5, 5)
	holder := uuid.Nil
	if !c.unseeded {
		if err := w.store.seedCursors(w.ctx, []int64{l.id}, []string{wire.QueueModeGroup}); err != nil {
			t.Fatal(err)
		}
		w.exec("UPDATE queen.log_consumers SET committed = $2 - 1, batch_retry_count = $3 WHERE partition_id = $1", l.id, c.at, c.retries)
	}
	if c.out > 0 {
		lease, _ := w.lease(l, c.out)
		holder = uuid.MustParse(lease)
	}
	if c.expired {
		w.exec("UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() WHERE partition_id = $1", l.id)
	}
	if c.retention > 0 {
		w.exec("DELETE FROM queen.log_segments WHERE partition_id = $1 AND end_offset < $2", l.id, c.retention)
		w.exec("DELETE FROM queen.log_txns WHERE partition_id = $1 AND end_offset < $2", l.id, c.retention)
		w.exec("UPDATE queen.log_partitions SET log_start = $2, txns_start = $2 WHERE id = $1", l.id, c.retention)
	}
	switch lease = c.lease; lease {
	case "":
		lease = holder.String()
	case "none":
		lease = ""
	case "other":
		lease = uuid.NewString()
	}
	return queue, l, lease
}

func (w *world) run(c ackCase, item func(int64, wire.AckStatus) AckItem) {
	t := w.t
	t.Helper()
	queue, l, lease := w.stage(c)
	var before cursor
	if !c.unseeded {
		before = w.cursor(l, wire.QueueModeGroup)
	}
	v := w.ack(w.group(l, lease, parseSay(c.say, item)...))[0]

	if got := describe(v.Items); got != c.want {
		t.Errorf("verdicts %q, want %q", got, c.want)
	}
	if v.LeaseReleased != c.ended {
		t.Errorf("lease released %v, want %v", v.LeaseReleased, c.ended)
	}
	w.checkLetters(l, c)
	if c.unseeded {
		return
	}
	after := w.cursor(l, wire.QueueModeGroup)
	if after.Committed != c.committed || v.Committed != c.committed {
		t.Errorf("cursor %d, verdict %d, want %d", after.Committed, v.Committed, c.committed)
	}
	if crossed := after.Committed - before.Committed; v.Advanced != crossed || after.Consumed-before.Consumed != crossed {
		t.Errorf("crossed %d, verdict says %d and the row %d", crossed, v.Advanced, after.Consumed-before.Consumed)
	}
	if (after.BatchEnd != nil) != c.held || (after.Worker != nil) != c.held || (after.Expires != nil) != c.held {
		t.Errorf("batch out %v, want %v: %v", after.BatchEnd != nil, c.held, after)
	}
	want := cursor{Committed: after.Committed, BatchEnd: after.BatchEnd, Worker: after.Worker, Expires: after.Expires, Consumed: after.Consumed, Retries: c.charged}
	switch c.attempts {
	case "kept", "unchanged":
		want.AttemptOffset, want.Attempts = before.AttemptOffset, before.Attempts
	case "moved":
		want.AttemptOffset, want.Attempts = ptr(after.Committed+1), before.Attempts
	}
	if diff := cmp.Diff(want, after); diff != "" {
		t.Errorf("cursor row (-want +got):\n%s", diff)
	}
	if v.PartitionID != l.id || v.QueueID != queue || v.LastOffset != 9 {
		t.Errorf("the verdict is about %+v", v)
	}
}

func (w *world) checkLetters(l lane, c ackCase) {
	w.t.Helper()
	rows, err := w.pool.Query(w.ctx, `SELECT offset_, transaction_id, convert_from(payload, 'UTF8'), retry_count, consumer_group, message_id, created_at
FROM queen.log_dlq WHERE partition_id = $1`, l.id)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		n++
		var offset int64
		var name, body, group string
		var retries int
		var message uuid.UUID
		var created time.Time
		if err := rows.Scan(&offset, &name, &body, &retries, &group, &message, &created); err != nil {
			w.t.Fatal(err)
		}
		if offset != c.filed || name != txn(offset) || body != payload(name) || retries != c.retries || group != wire.QueueModeGroup ||
			message != segment.MessageID(created, offset, l.id) {
			w.t.Errorf("dead letter %d %s %s retries %d group %s id %s, want offset %d", offset, name, body, retries, group, message, c.filed)
		}
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	want := 0
	if c.filed > 0 {
		want = 1
	}
	if n != want {
		w.t.Errorf("%d dead letters, want %d", n, want)
	}
}

func parseSay(text string, item func(int64, wire.AckStatus) AckItem) (items []AckItem) {
	statuses := map[byte]wire.AckStatus{'c': wire.AckCompleted, 'r': wire.AckRetry, 'f': wire.AckFailed, 'd': wire.AckDLQ}
	for f := range strings.FieldsSeq(text) {
		var at int64
		if _, err := fmt.Sscan(f[1:], &at); err != nil {
			panic(err)
		}
		it := item(at, statuses[f[0]])
		if at == 99 {
			it.Offset = -1 // no lease ever held it
		}
		items = append(items, it)
	}
	return items
}

func describe(items []AckItemVerdict) string {
	words := make([]string, len(items))
	for i, v := range items {
		switch {
		case v.Noop:
			words[i] = "noop"
		case v.DLQ:
			words[i] = "dlq"
		case v.Success:
			words[i] = "ok"
		default:
			words[i], _, _ = strings.Cut(v.Error, " ")
		}
		if v.Success != (v.Error == "") {
			words[i] += "?"
		}
	}
	return strings.Join(words, " ")
}
