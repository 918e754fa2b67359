package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/queengate/queengate/wire"
)

func TestConfigure(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	w.partition("pushed.task", "p")
	if _, err := w.Configure(t.Context(), w.tenant, configure(t, `{"queue":"stored","options":{"retryLimit":9,"priority":4}}`), wire.ConfigureReplace, Caps{}); err != nil {
		t.Fatal(err)
	}
	want := func(change func(*wire.QueueOptions)) wire.QueueOptions {
		o := wire.DefaultOptions()
		change(&o)
		return o
	}
	for _, c := range []struct {
		rule, body string
		want       wire.QueueOptions
	}{
		{"a new queue has the defaults of configure", `{"queue":"new"}`, want(func(*wire.QueueOptions) {})},
		{"also when it is merged", `{"queue":"new2","mode":"merge"}`, want(func(*wire.QueueOptions) {})},
		{"merge keeps what is stored", `{"queue":"stored","mode":"merge","options":{"priority":5}}`, want(func(o *wire.QueueOptions) { o.RetryLimit, o.Priority = 9, 5 })},
		{"null restores a default", `{"queue":"stored","mode":"merge","options":{"retryLimit":null}}`, want(func(o *wire.QueueOptions) { o.Priority = 5 })},
		{"replace forgets what it does not name", `{"queue":"stored","options":{"ttl":7}}`, want(func(o *wire.QueueOptions) { o.TTL = 7 })},
		{"merge keeps the lease of a push", `{"queue":"pushed.task","mode":"merge"}`, want(func(o *wire.QueueOptions) { o.LeaseTime, o.Namespace, o.Task = 60, "pushed", "task" })},
		{"every option is stored", `{"queue":"all","namespace":"n","task":"t","options":{"leaseTime":1,"retryLimit":2,"retryDelay":3,"priority":4,"maxSize":5,
			"ttl":6,"deadLetterQueue":false,"dlqAfterMaxRetries":false,"delayedProcessing":7,"windowBuffer":8,"retentionEnabled":true,"retentionSeconds":9,
			"completedRetentionSeconds":10,"maxWaitTimeSeconds":11,"minPopWaitTime":12,"encryptionEnabled":true,"dedupWindowSeconds":13,
			"retentionSinkHold":"sink","retentionSinkHoldMaxSeconds":60}}`, wire.QueueOptions{
			Namespace: "n", Task: "t", LeaseTime: 1, RetryLimit: 2, RetryDelay: 3, Priority: 4, MaxSize: 5, TTL: 6, DelayedProcessing: 7,
			WindowBuffer: 8, RetentionEnabled: true, RetentionSeconds: 9, CompletedRetentionSeconds: 10, MaxWaitTimeSeconds: 11,
			MinPopWaitTime: 12, EncryptionEnabled: true, DedupWindowSeconds: 13, RetentionSinkHold: "sink", RetentionSinkHoldMaxSeconds: 60,
		}},
	} {
		req := configure(t, c.body)
		got, err := w.Configure(t.Context(), w.tenant, req, wire.ConfigureReplace, Caps{})
		if err != nil {
			t.Fatalf("%s: %v", c.rule, err)
		}
		read, err := w.LookupQueue(t.Context(), w.tenant, req.Queue)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, read.Options); d != "" {
			t.Errorf("%s: %s", c.rule, d)
		}
		if d := cmp.Diff(read, got); d != "" {
			t.Errorf("%s: returned and stored differ: %s", c.rule, d)
		}
		if ps, err := w.Lookup(t.Context(), w.tenant, []Pair{{req.Queue, wire.DefaultPartition}}); err != nil || ps[0].ID == 0 {
			t.Errorf("%s: no Default partition: %v", c.rule, err)
		}
	}
	if p := w.partition("all", "x"); p.DedupWindow != 13*time.Second {
		t.Errorf("a partition's window: got %v", p.DedupWindow)
	}
}

func TestConfigureObeysTheCapOfQueues(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	caps := Caps{MaxQueues: ptr(int64(1)), MaxPartitions: ptr(int64(0))}
	if _, err := w.Configure(t.Context(), w.tenant, configure(t, `{"queue":"a"}`), "", caps); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Configure(t.Context(), w.tenant, configure(t, `{"queue":"a","options":{"ttl":1}}`), "", caps); err != nil {
		t.Errorf("rewriting a queue that exists: %v", err)
	}
	_, err := w.Configure(t.Context(), w.tenant, configure(t, `{"queue":"b"}`), "", caps)
	if e, ok := errors.AsType[*wire.Error](err); !ok || e.Code != wire.QuotaExceeded || e.Limit.Name != "queues" {
		t.Errorf("a second queue: got %v", err)
	}
}

// Deleting takes everything along; the same name starts anew, from offset 0 and with no memory of dedup keys.
func TestDeleteQueueForgetsEverything(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	a, b, kept := w.partition("q", "a"), w.partition("q", "b"), w.partition("kept", "a")
	w.push(w.segment(a, "x", "y"), w.segment(b, "x"), w.segment(kept, "x"))
	for _, p := range []Partition{a, kept} {
		w.exec("INSERT INTO queen.log_consumers (partition_id, consumer_group) VALUES ($1, 'g')", p.ID)
		w.exec(`INSERT INTO queen.log_dlq (id, tenant_id, queue, partition_id, partition_name, consumer_group, offset_, error, retry_count)
			VALUES (gen_random_uuid(), $1, $2, $3, $4, 'g', 0, 'e', 3)`, w.tenant, p.Queue, p.ID, p.Name)
		w.exec(`INSERT INTO queen.group_registrations (tenant_id, queue, consumer_group, mode, seed_from) VALUES ($1, $2, 'g', 'all', now())`, w.tenant, p.Queue)
	}

	existed, ids, err := w.DeleteQueue(t.Context(), w.tenant, "q")
	if err != nil || !existed || !cmp.Equal(ids, []int64{a.ID, b.ID}) {
		t.Fatalf("got %v, %v, %v", existed, ids, err)
	}
	for table, want := range map[string]int64{
		"queues": 1, "log_partitions": 1, "log_segments": 1, "log_txns": 1, "log_consumers": 1, "log_dlq": 1,
		"group_registrations": 1, "dropped_partitions": 0,
	} {
		if got := w.count("SELECT count(*) FROM queen." + table); got != want {
			t.Errorf("%s: %d rows left, want %d", table, got, want)
		}
	}
	if u := w.usage(); u.RetainedBytes != 1 || u.Queues != 1 {
		t.Errorf("usage: got %+v", u)
	}
	if v := w.push(w.segment(a, "z"))[0]; v.Status != PushMissing {
		t.Errorf("a push to the deleted partition: got %+v", v)
	}
	again := w.partition("q", "a")
	if v := w.push(w.segment(again, "x"))[0]; again.ID == a.ID || v.Status != PushStored || v.Base != 0 {
		t.Errorf("a push after the deletion: got %+v in %+v", v, again)
	}
	if existed, ids, err := w.DeleteQueue(t.Context(), w.tenant, "none"); existed || len(ids) != 0 || err != nil {
		t.Errorf("a queue that does not exist: got %v, %v, %v", existed, ids, err)
	}
	w.checkLog(kept)
}

// A log of any size is swept in bounded steps; its bytes are free at once.
func TestLargeLogsAreSweptInSteps(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	w.push(w.segment(p, "x"))
	w.exec(`INSERT INTO queen.log_segments SELECT $1, g, g, now(), 1, '' FROM generate_series(1, 5000) g`, p.ID)
	w.exec(`INSERT INTO queen.log_txns SELECT $1, g, g, now(), '' FROM generate_series(1, 5000) g`, p.ID)
	w.exec("INSERT INTO queen.retained_ledger VALUES ($1, 5000)", w.tenant)
	w.exec("UPDATE queen.log_partitions SET retained_bytes = retained_bytes + 5000 WHERE id = $1", p.ID)
	if _, _, err := w.DeleteQueue(t.Context(), w.tenant, "q"); err != nil {
		t.Fatal(err)
	}
	if got := w.usage().RetainedBytes; got != 0 {
		t.Errorf("retained bytes: got %d", got)
	}
	if left := w.count("SELECT count(*) FROM queen.log_segments"); left != 5001-sweepStep {
		t.Errorf("the request itself left %d segments", left)
	}
	steps := 0
	for {
		n, err := w.SweepDropped(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		if steps++; n > 2*sweepStep+sweepStep || steps > 10 {
			t.Fatalf("step %d removed %d rows", steps, n)
		}
	}
	if left := w.count("SELECT (SELECT count(*) FROM queen.log_segments) + (SELECT count(*) FROM queen.log_txns) + (SELECT count(*) FROM queen.dropped_partitions)"); left != 0 {
		t.Errorf("%d rows left", left)
	}
}

// A deletion waits for the push that holds the partition, and frees its bytes too.
func TestDeleteWaitsForPushesInFlight(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	p := w.partition("q", "a")
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	s := w.segment(p, "abc")
	args := []any{false, []int64{p.ID}, []int32{1}, []int64{s.RawBytes}, []int64{-1}, []int64{0}, []uuid.UUID{w.tenant}, [][]byte{s.Blob}, [][]byte{s.Hashes}, []bool{false}}
	if _, err := tx.Exec(t.Context(), pushBundle.sql, args...); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, _, err := w.DeleteQueue(t.Context(), w.tenant, "q")
		done <- err
	}()
	w.awaitLockWait()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if u, left := w.usage(), w.count("SELECT count(*) FROM queen.log_segments"); u.RetainedBytes != 0 || left != 0 {
		t.Errorf("after the deletion: %+v, %d segments", u, left)
	}
}

func TestDeletePartitionsKeepsTheCountOfTheirQueue(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	var ids []int64
	for _, name := range []string{"Default", "a", "b", "c"} {
		ids = append(ids, w.partition("q", name).ID)
	}
	deleted, err := w.DeletePartitions(t.Context(), w.tenant, []int64{ids[2], ids[0], 1 << 40})
	if err != nil || !cmp.Equal(deleted, []int64{ids[0], ids[2]}) {
		t.Fatalf("got %v, %v", deleted, err)
	}
	if n := w.count("SELECT partition_count FROM queen.queues"); n != 2 {
		t.Errorf("partitions counted: got %d, want 2", n)
	}
	caps := Caps{MaxPartitions: ptr(int64(3))}
	if _, err := w.Provision(t.Context(), w.tenant, []Pair{{"q", "d"}}, caps); err != nil {
		t.Errorf("the place of the deleted one: %v", err)
	}
}

func TestListing(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	a, b := w.partition("n.t", "a"), w.partition("n.t", "b")
	w.partition("plain", "Default")
	w.push(w.segment(a, "1", "2", "3"), w.segment(b, "1"))
	w.push(w.segment(a, "4", "5"))
	worker := uuid.New()
	w.exec("INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) VALUES ($1, 'fast', 3)", a.ID)
	w.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, batch_end, worker_id, lease_expires_at)
		VALUES ($1, 'slow', 0, 2, $2, now() + interval '1 hour')`, a.ID, worker)
	w.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, batch_end, worker_id, lease_expires_at)
		VALUES ($1, 'late', -1, 0, $2, now() - interval '1 hour')`, b.ID, worker)
	w.exec(`INSERT INTO queen.log_dlq (id, tenant_id, queue, partition_id, partition_name, consumer_group, offset_, error, retry_count)
		VALUES (gen_random_uuid(), $1, 'n.t', $2, 'a', 'g', 0, 'e', 3)`, w.tenant, a.ID)

	list, err := w.Queues(t.Context(), w.tenant, ResourceFilter{})
	if err != nil || len(list) != 2 || list[0].Name != "n.t" || list[1].Name != "plain" {
		t.Fatalf("got %+v, %v", list, err)
	}
	if d := cmp.Diff(Counts{Total: 6, Pending: 5, Processing: 2}, list[0].Counts); d != "" {
		t.Error(d)
	}
	if q := list[0]; q.Partitions != 2 || q.Segments != 3 || q.RetainedBytes != 6 || q.Options.LeaseTime != 60 {
		t.Errorf("got %+v", q)
	}
	if q := list[1]; q.Counts != (Counts{}) || q.Partitions != 1 {
		t.Errorf("an empty queue: got %+v", q)
	}

	parts, err := w.QueuePartitions(t.Context(), &list[0].Queue)
	if err != nil || len(parts) != 2 {
		t.Fatalf("got %+v, %v", parts, err)
	}
	pa := parts[0]
	if d := cmp.Diff(Counts{Total: 5, Pending: 4, Processing: 2, DeadLetter: 1}, pa.Counts); d != "" {
		t.Error(d)
	}
	if pa.ID != a.ID || pa.UID != a.UID || pa.Name != "a" || pa.Segments != 2 || pa.RetainedBytes != 5 ||
		pa.Oldest.IsZero() || !pa.Newest.After(pa.Oldest) {
		t.Errorf("got %+v", pa)
	}
	if list, err := w.Queues(t.Context(), uuid.New(), ResourceFilter{}); len(list) != 0 || err != nil {
		t.Errorf("another tenant: got %+v, %v", list, err)
	}
}

func TestNamesPageByPage(t *testing.T) {
	t.Parallel()
	w := newWriter(t)
	var want []Pair
	for _, q := range []string{"A", "a", "b", "ä"} { // bytewise
		for p := range 3 {
			want = append(want, Pair{q, fmt.Sprint(p)})
			w.partition(q, fmt.Sprint(p))
		}
	}
	w.exec("INSERT INTO queen.queues (tenant_id, name) VALUES ($1, 'c')", w.tenant)
	want = append(want[:9:9], append([]Pair{{"c", "Default"}}, want[9:]...)...)
	other := uuid.New()
	if _, err := w.Provision(t.Context(), other, []Pair{{"a", "zz"}}, Caps{}); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{2, 5, 100} {
		var got []Pair
		for after := (Pair{}); ; {
			page, err := w.Names(t.Context(), w.tenant, after, limit)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, page...)
			if len(page) < limit {
				break
			}
			after = page[len(page)-1]
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("pages of %d: %s", limit, d)
		}
	}
}
