package broker

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
)

// minute ends the minute under way and writes it.
func (w *world) minute() {
	w.t.Helper()
	w.b.flushHistory(context.Background(), time.Now())
	w.b.history.mu.Lock()
	defer w.b.history.mu.Unlock()
	if n := len(w.b.history.waiting); n > 0 {
		w.t.Fatalf("%d minutes could not be written", n)
	}
}

func (w *world) rows(table string) (n int) {
	w.t.Helper()
	if err := w.pool.QueryRow(w.t.Context(), "SELECT count(*) FROM queen."+table).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// work pushes five messages, one of them twice, pops four and acknowledges two of them as done and one as failed.
func (w *world) work(queue string) {
	w.t.Helper()
	for i := range 5 {
		w.one(queue, fmt.Sprintf("t%d", i))
	}
	w.one(queue, "t0")
	got := w.pop(queue + "?batch=4")
	if len(got.Messages) != 4 {
		w.t.Fatalf("popped %d messages", len(got.Messages))
	}
	w.ack("completed", "", got.Messages[1])
	w.ack("failed", "", got.Messages[2])
	w.do("POST", "/api/v1/configure", `{"queue":"empty"}`).want(w.t, 200)
	w.do("GET", "/api/v1/pop/queue/empty", "").want(w.t, 204)
	w.do("GET", "/api/v1/pop/queue/absent", "").want(w.t, 204) // leaves no trace
}

func TestAMinuteSaysWhatHappened(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.work("orders")
	w.minute()
	ops := decode[struct {
		BucketMinutes int
		Series        []struct {
			opsRow
			Bucket time.Time `json:"bucket"`
		}
		Queues []string
	}](t, w.do("GET", "/api/v1/analytics/queue-ops?queue=orders", "").want(t, 200))
	if len(ops.Series) != 1 || ops.BucketMinutes != 1 || len(ops.Queues) != 1 {
		t.Fatalf("%+v", ops)
	}
	r := ops.Series[0]
	if r.PushRequests != 6 || r.PushMessages != 5 || r.PopMessages != 4 || r.AckRequests != 2 || r.AckSuccess != 1 || r.AckFailed != 1 {
		t.Errorf("%+v", r)
	}
	if r.PartitionsCreated != 1 || r.PartitionCount != 1 || r.PartitionsDeleted != nil || r.PushPerSecond <= 0 || r.PushPerSecond > 5 {
		t.Errorf("%+v", r)
	}
	lag := decode[[]struct {
		QueueName string
		PopCount  int
		AvgLagMs  float64
		MaxLagMs  float64
	}](t, w.do("GET", "/api/v1/analytics/queue-lag", "").want(t, 200))
	if len(lag) != 1 || lag[0].QueueName != "orders" || lag[0].PopCount != 4 || lag[0].MaxLagMs < lag[0].AvgLagMs || lag[0].MaxLagMs > 60_000 {
		t.Errorf("lag %+v", lag)
	}
	load := decode[struct {
		Queues []loadRow
		Totals struct{ PushMessages int }
	}](t, w.do("GET", "/api/v1/analytics/workload?limit=5", "").want(t, 200))
	if len(load.Queues) != 2 || load.Queues[0].Queue != "orders" || load.Queues[0].PushMessages != 5 || load.Totals.PushMessages != 5 || load.Queues[0].Tenant != nil {
		t.Errorf("workload %+v", load)
	}
	points := decode[struct {
		DataPoints []struct{ Messages int }
		Interval   string
	}](t, w.do("GET", "/api/v1/status/analytics?interval=day", "").want(t, 200))
	if len(points.DataPoints) != 1 || points.DataPoints[0].Messages != 5 || points.Interval != "day" {
		t.Errorf("analytics %+v", points)
	}
	totals, err := w.b.db.CellTotals(t.Context())
	if err != nil || totals.PushMessages != 5 || totals.AckFailed != 1 || totals.PopEmpty != 1 {
		t.Errorf("totals %+v %v", totals, err)
	}
}

func TestIdleQueuesWriteNothing(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for i := range 20 {
		w.one(fmt.Sprintf("q%d", i), "a")
		w.pop(fmt.Sprintf("q%d?autoAck=true", i))
	}
	w.minute()
	before := w.rows("queue_metrics")
	if before != 20 {
		t.Fatalf("%d rows", before)
	}
	poll := w.dialPoll("q3?wait=true&timeout=90000")
	w.until("parked", func() bool { return w.b.park.Waiting() == 1 })
	w.minute() // the gauge has changed
	w.minute() // and has not
	if got := w.rows("queue_metrics"); got != before+1 {
		t.Errorf("%d rows, want one more than %d: the number of waiting polls", got, before)
	}
	if err := poll.Close(); err != nil {
		t.Fatal(err)
	}
	w.until("no poll", func() bool { return w.b.park.Waiting() == 0 })
	w.minute() // the gauge is back at 0
	if got := w.rows("queue_metrics"); got != before+2 {
		t.Errorf("%d rows, want two more than %d", got, before)
	}
	process := w.rows("broker_metrics")
	w.minute() // nothing at all
	if got := w.rows("queue_metrics"); got != before+2 || w.rows("broker_metrics") != process {
		t.Errorf("an idle minute wrote: %d rows, process %d", got, w.rows("broker_metrics"))
	}
	parked := decode[struct {
		Series []struct {
			QueueName, Hostname, WorkerID string
			ParkedCount                   int
		}
		Replicas []struct{ ParkedCount int }
	}](t, w.do("GET", "/api/v1/analytics/queue-parked-replicas?queue=q3&to="+soon(), "").want(t, 200))
	if len(parked.Series) != 2 || parked.Series[0].ParkedCount != 1 || parked.Series[1].ParkedCount != 0 || parked.Series[0].Hostname == "" {
		t.Errorf("%+v", parked)
	}
	if len(parked.Replicas) != 1 || parked.Replicas[0].ParkedCount != 0 {
		t.Errorf("%+v", parked.Replicas)
	}
}

// soon is a time behind the buckets of minutes that the tests end early.
func soon() string {
	return url.QueryEscape(time.Now().Add(10 * time.Minute).UTC().Format(time.RFC3339))
}

func TestAMinuteOfUnknownOutcomeIsWrittenOnce(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a")
	h := w.b.history
	h.mu.Lock()
	m, self := w.b.takeMinuteLocked(time.Now()), h.broker
	h.mu.Unlock()
	for range 3 {
		if err := w.b.db.WriteMinute(t.Context(), self, m); err != nil {
			t.Fatal(err)
		}
	}
	totals, err := w.b.db.CellTotals(t.Context())
	if err != nil || totals.PushMessages != 1 || totals.PushRequests != 1 {
		t.Errorf("%+v %v", totals, err)
	}
	if n := w.rows("queue_metrics"); n != 1 {
		t.Errorf("%d rows", n)
	}
}

func TestHistoryIsBoundedAndNamesNoMinuteTwice(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	h := w.b.history
	h.mu.Lock()
	defer h.mu.Unlock()
	tenant := uuid.New()
	for i := range maxHistoryRows + 5000 {
		h.add(tenant, fmt.Sprint(i), store.Activity{PushMessages: 1})
	}
	if h.lost.Load() == 0 {
		t.Error("nothing was given up")
	}
	now := time.Now()
	first := w.b.takeMinuteLocked(now)
	if n := len(first.Queues); n > maxHistoryRows {
		t.Errorf("%d rows", n)
	}
	h.add(tenant, "q", store.Activity{PushMessages: 1})
	back := w.b.takeMinuteLocked(now.Add(-time.Hour))
	if !back.Bucket.After(first.Bucket) {
		t.Errorf("buckets %v and %v", first.Bucket, back.Bucket)
	}
}

func TestTenantsDoNotSeeEachOthersHistory(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.b.history.add(uuid.New(), "orders", store.Activity{PushMessages: 7})
	w.minute()
	for _, path := range []string{"/api/v1/analytics/queue-ops", "/api/v1/analytics/workload", "/api/v1/analytics/queue-lag"} {
		if a := w.do("GET", path, "").want(t, 200); len(a.body) > 200 {
			t.Errorf("%s: %s", path, a.body)
		}
	}
	cell := decode[struct{ Queues []loadRow }](t, w.do("GET", "/api/v1/analytics/worker-metrics", "").want(t, 200))
	if len(cell.Queues) != 1 || cell.Queues[0].Tenant == nil || cell.Queues[0].PushMessages != 7 {
		t.Errorf("the operator sees %+v", cell)
	}
}

func TestOldHistoryIsPurged(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	old := store.Minute{Bucket: time.Now().Add(-48 * time.Hour).Truncate(time.Minute), Queues: []store.QueueMinute{{Tenant: DefaultTenant, Queue: "q", Parked: -1}}}
	if err := w.b.db.WriteMinute(t.Context(), store.Broker{ID: uuid.New(), Hostname: "old", Started: old.Bucket}, &old); err != nil {
		t.Fatal(err)
	}
	w.one("q", "a")
	w.minute()
	removed, err := w.b.db.PurgeHistory(t.Context(), 24*time.Hour)
	if err != nil || removed != 2 || w.rows("queue_metrics") != 1 || w.rows("brokers") != 2 {
		t.Errorf("removed %d, %v; %d rows left", removed, err, w.rows("queue_metrics"))
	}
	if removed, err = w.b.db.PurgeHistory(t.Context(), 24*time.Hour); err != nil || removed != 0 {
		t.Errorf("then %d, %v", removed, err)
	}
}

func TestTheLastMinuteIsWrittenAtTheStop(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a")
	w.stop()
	if n := w.rows("queue_metrics"); n != 1 {
		t.Errorf("%d rows", n)
	}
}

func TestBucketsFollowTheSpan(t *testing.T) {
	t.Parallel()
	for span, want := range map[time.Duration]time.Duration{
		0: time.Minute, time.Hour: time.Minute, time.Hour + 1: 5 * time.Minute, 6 * time.Hour: 5 * time.Minute,
		24 * time.Hour: 15 * time.Minute, 7 * 24 * time.Hour: time.Hour, 8 * 24 * time.Hour: 6 * time.Hour,
	} {
		if got := bucketWidth(span); got != want {
			t.Errorf("%v: %v, want %v", span, got, want)
		}
	}
}

func TestParkedGaugePlaysBack(t *testing.T) {
	t.Parallel()
	a, b, start := uuid.New(), uuid.New(), time.Unix(1_000_000, 0)
	g := newParkedGauge([]store.ParkedChange{
		{At: start, Queue: "q", Broker: a, Parked: 3},
		{At: start.Add(time.Minute), Queue: "q", Broker: b, Parked: 4},
		{At: start.Add(2 * time.Minute), Queue: "q", Broker: a, Parked: 0},
	})
	for i, want := range []int{0, 3, 7, 4} {
		if got := g.until(start.Add(time.Duration(i) * time.Minute)).total("q"); got != want {
			t.Errorf("before minute %d: %d, want %d", i, got, want)
		}
	}
}
