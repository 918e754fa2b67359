package broker

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

// object decodes an answer as a client without types does.
func object(t testing.TB, a answer) map[string]any { return decode[map[string]any](t, a) }

// parks starts a waiting pop and returns when it is parked.
func (w *world) parks(path string) <-chan popped {
	w.t.Helper()
	before := w.b.park.Waiting()
	got := make(chan popped, 1)
	go func() { got <- w.pop(path + "&wait=true&timeout=25000") }()
	w.until(path+" parks", func() bool { return w.b.park.Waiting() > before })
	return got
}

func (w *world) receive(what string, got <-chan popped) popped {
	w.t.Helper()
	select {
	case p := <-got:
		return p
	case <-time.After(patience):
		w.t.Fatalf("waited in vain: %s", what)
		return popped{}
	}
}

func txns(p popped) (ids []string) {
	for _, m := range p.Messages {
		ids = append(ids, m.TransactionID)
	}
	return ids
}

func TestSeekAnswers(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("orders", "a")
	w.do("POST", "/api/v1/configure", `{"queue":"empty"}`).want(t, 200)
	w.do("DELETE", "/api/v1/queues/empty/clear", "").want(t, 200)
	whole, part := "/api/v1/consumer-groups/g/queues/orders/seek", "/api/v1/consumer-groups/g/queues/orders/partitions/Default/seek"
	for name, c := range map[string]struct {
		path, body string
		status     int
		want       string // the body, or part of it when it is an error
	}{
		"to the end":                 {whole, `{"toEnd":true}`, 200, `{"success":true,"consumerGroup":"g","queueName":"orders","seekToEnd":true,"targetTimestamp":null,"partitionsUpdated":1}`},
		"to a time":                  {whole, `{"timestamp":"2026-09-01T10:00:00+02:00"}`, 200, `{"success":true,"consumerGroup":"g","queueName":"orders","seekToEnd":false,"targetTimestamp":"2026-09-01T08:00:00.000Z","partitionsUpdated":1}`},
		"one partition":              {part, `{"toEnd":true}`, 200, `{"success":true,"consumerGroup":"g","queueName":"orders","partitionName":"Default","seekToEnd":true,"targetTimestamp":null,"updated":true}`},
		"one partition, without":     {part, ``, 200, `{"success":true,"consumerGroup":"g","queueName":"orders","partitionName":"Default","seekToEnd":true,"targetTimestamp":null,"updated":true}`},
		"one partition, empty":       {part, `{}`, 200, `{"success":true,"consumerGroup":"g","queueName":"orders","partitionName":"Default","seekToEnd":true,"targetTimestamp":null,"updated":true}`},
		"the queue, empty":           {whole, `{}`, 200, `{"success":true,"consumerGroup":"g","queueName":"orders","seekToEnd":true,"targetTimestamp":null,"partitionsUpdated":1}`},
		"the queue, without":         {whole, ``, 200, `{"success":true,"consumerGroup":"g","queueName":"orders","seekToEnd":true,"targetTimestamp":null,"partitionsUpdated":1}`},
		"not to the end":             {whole, `{"toEnd":false}`, 400, "Must specify toEnd=true or a timestamp"},
		"a queue that is not there":  {"/api/v1/consumer-groups/g/queues/nowhere/seek", `{"toEnd":true}`, 404, `{"success":false,"error":"Queue not found or has no partitions"`},
		"a queue without partitions": {"/api/v1/consumer-groups/g/queues/empty/seek", `{"toEnd":true}`, 404, `{"success":false,"error":"Queue not found or has no partitions"`},
		"a partition that is not":    {"/api/v1/consumer-groups/g/queues/orders/partitions/p/seek", ``, 404, `{"success":false,"error":"Partition not found"`},
		"a bad time":                 {whole, `{"timestamp":"yesterday"}`, 400, "bad body"},
	} {
		a := w.do("POST", c.path, c.body).want(t, c.status)
		if c.status == 200 && a.body != c.want || !strings.Contains(a.body, c.want) {
			t.Errorf("%s: %s", name, a.body)
		}
	}
}

func TestASeekWakesAParkedPopAndEndsLeases(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("orders", "a")
	w.one("orders", "b")
	first := w.pop("orders?consumerGroup=g&subscriptionMode=all")
	if !slices.Equal(txns(first), []string{"a", "b"}) {
		t.Fatal(txns(first))
	}
	seek := func(body string) { w.do("POST", "/api/v1/consumer-groups/g/queues/orders/seek", body).want(t, 200) }

	// The lease is out: a parked pop gets the messages at once when the seek has ended it.
	any, pinned := w.parks("orders?consumerGroup=g"), w.parks("orders/partition/Default?consumerGroup=g")
	seek(`{"timestamp":"2020-01-01T00:00:00Z"}`)
	var again popped
	select {
	case again = <-any:
		any = pinned
	case again = <-pinned:
	case <-time.After(patience):
		t.Fatal("no parked pop was woken")
	}
	if !slices.Equal(txns(again), []string{"a", "b"}) || again.Messages[0].DeliveryAttempt != 1 {
		t.Errorf("after a seek back: %+v", again)
	}
	if r := w.ack("completed", "g", first.Messages...)[0]; r.Success || r.Error == nil || !strings.Contains(*r.Error, "invalid_lease") {
		t.Errorf("an ack under the lease that the seek ended: %+v", r)
	}
	for _, r := range w.ack("completed", "g", again.Messages...) {
		if !r.Success {
			t.Errorf("an ack under the new lease: %+v", r)
		}
	}

	// All is done, so nobody leases: back once more, past any memory of emptiness.
	seek(`{"timestamp":"2020-01-01T00:00:00Z"}`)
	if got := w.receive("the other parked pop", any); !slices.Equal(txns(got), []string{"a", "b"}) {
		t.Errorf("the second seek back: %+v", got)
	}
	seek(`{"toEnd":true}`)
	if got := w.pop("orders?consumerGroup=g"); got.Messages != nil {
		t.Errorf("after a seek to the end: %+v", got)
	}
	w.one("orders", "c")
	if got := w.pop("orders?consumerGroup=g"); !slices.Equal(txns(got), []string{"c"}) {
		t.Errorf("what came after the end: %+v", got)
	}
}

func TestASeekIsHeardOfAtOtherBrokers(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	here, there := serve(t, pool, nil), serve(t, pool, nil)
	here.one("orders", "a")
	if got := there.pop("orders?consumerGroup=g&subscriptionMode=all&autoAck=true"); len(got.Messages) != 1 {
		t.Fatal(got)
	}
	parked := there.parks("orders?consumerGroup=g")
	here.do("POST", "/api/v1/consumer-groups/g/queues/orders/seek", `{"timestamp":"2020-01-01T00:00:00Z"}`).want(t, 200)
	if got := there.receive("the pop at the other broker", parked); !slices.Equal(txns(got), []string{"a"}) {
		t.Errorf("woken with %+v", got)
	}
}

// Consumers of a group run at two brokers while it is deleted again and again: each time everything comes again, nothing
// is lost, and what was leased before is refused.
func TestAGroupIsDeletedWhileItsConsumersRun(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	brokers := []*world{serve(t, pool, nil), serve(t, pool, nil)}
	w := brokers[0]
	const partitions = 4
	for i := range partitions {
		w.push(fmt.Sprintf(`{"items":[{"queue":"orders","partition":"p%d","transactionId":"m","payload":1}]}`, i))
	}
	var seen [partitions]atomic.Int64
	var stop atomic.Bool
	var consumers sync.WaitGroup
	for _, at := range brokers {
		for range 2 {
			consumers.Go(func() {
				for !stop.Load() {
					got := at.pop("orders?consumerGroup=g&subscriptionMode=all&partitions=2&wait=true&timeout=1000")
					for _, m := range got.Messages {
						var n int
						if _, err := fmt.Sscanf(m.Partition, "p%d", &n); err != nil {
							t.Error(err)
							return
						}
						seen[n].Add(1)
					}
					if len(got.Messages) > 0 {
						at.ack("completed", "g", got.Messages...)
					}
				}
			})
		}
	}
	all := func(least int64) bool {
		for i := range seen {
			if seen[i].Load() < least {
				return false
			}
		}
		return true
	}
	w.until("the first delivery", func() bool { return all(1) })
	for range 5 {
		var before [partitions]int64
		for i := range seen {
			before[i] = seen[i].Load()
		}
		a := object(t, w.do("DELETE", "/api/v1/consumer-groups/g", "").want(t, 200))
		if a["success"] != true || a["metadataDeleted"] != true {
			t.Errorf("%v", a)
		}
		w.until("everything again", func() bool {
			for i := range seen {
				if seen[i].Load() == before[i] {
					return false
				}
			}
			return true
		})
	}
	stop.Store(true)
	consumers.Wait()
}

// By its mode a group that was deleted starts at the end, and a parked pop of it takes part in what comes then.
func TestAParkedPopOfADeletedGroupRegistersAnew(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("orders", "a")
	if _, err := w.pool.Exec(t.Context(), "UPDATE queen.log_partitions SET created_at = created_at - interval '1 hour'"); err != nil {
		t.Fatal(err) // else the partition is as young as the registration
	}
	parked := w.parks("orders?consumerGroup=g")
	w.do("DELETE", "/api/v1/consumer-groups/g/queues/orders?deleteMetadata=yes", "").want(t, 200)
	w.until("the group registers anew", func() bool { return strings.Contains(w.do("GET", "/api/v1/consumer-groups", "").body, `"name":"g"`) })
	w.one("orders", "b")
	if got := w.receive("the parked pop", parked); !slices.Equal(txns(got), []string{"b"}) {
		t.Errorf("woken with %v, want b alone", txns(got))
	}
	// With its registration kept it starts over by that: at the time it registered.
	a := object(t, w.do("DELETE", "/api/v1/consumer-groups/g?deleteMetadata=false", "").want(t, 200))
	if d := cmp.Diff(map[string]any{"success": true, "consumerGroup": "g", "deletedPartitions": 1.0, "metadataDeleted": false}, a); d != "" {
		t.Error(d)
	}
	if got := w.pop("orders?consumerGroup=g"); !slices.Equal(txns(got), []string{"b"}) {
		t.Errorf("by its registration: %v, want b alone", txns(got))
	}
	w.do("DELETE", "/api/v1/consumer-groups/g?deleteMetadata=perhaps", "").want(t, 400)
}

func TestAQueueIsDeletedWhileItsConsumersRun(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	here, there := serve(t, pool, nil), serve(t, pool, nil)
	here.one("orders", "a")
	leased := here.pop("orders?consumerGroup=held&subscriptionMode=all")
	parked := []<-chan popped{
		here.parks("orders?consumerGroup=g"), here.parks("orders/partition/Default?consumerGroup=h"), there.parks("orders?consumerGroup=i"),
	}
	here.do("DELETE", "/api/v1/resources/queues/orders", "").want(t, 200)
	if r := here.ack("completed", "held", leased.Messages...)[0]; r.Success {
		t.Errorf("an ack in a deleted queue: %+v", r)
	}
	here.until("all who wait register anew", func() bool {
		var n int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM queen.group_registrations WHERE queue = 'orders'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == len(parked)
	})
	if here.b.park.Waiting() != 2 || there.b.park.Waiting() != 1 {
		here.until("they wait on", func() bool { return here.b.park.Waiting() == 2 && there.b.park.Waiting() == 1 })
	}
	if r := here.one("orders", "a"); r.Status != "queued" || *r.Offset != 0 {
		t.Errorf("the same transaction id in the new queue: %+v", r)
	}
	for i, p := range parked {
		if got := here.receive("a parked pop", p); !slices.Equal(txns(got), []string{"a"}) {
			t.Errorf("poll %d: %v", i, txns(got))
		}
	}
}

func TestGroupsOverHTTP(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for _, path := range []string{"/api/v1/consumer-groups", "/api/v1/consumer-groups/lagging"} {
		if a := w.do("GET", path, "").want(t, 200); a.body != "[]" {
			t.Errorf("%s of nothing: %s", path, a.body)
		}
	}
	if a := w.do("GET", "/api/v1/consumer-groups/nobody", "").want(t, 200); a.body != "{}" {
		t.Errorf("an unknown group: %s", a.body)
	}
	w.push(`{"items":[{"queue":"orders","payload":1},{"queue":"orders","payload":2},{"queue":"orders","partition":"p","payload":3}]}`)
	got := w.pop("orders/partition/Default?consumerGroup=g&subscriptionMode=all&batch=1")
	w.pop("orders?autoAck=true&batch=1")
	if _, err := w.pool.Exec(t.Context(), "UPDATE queen.log_segments SET created_at = created_at - interval '2 hours'"); err != nil {
		t.Fatal(err)
	}

	list := decode[[]map[string]any](t, w.do("GET", "/api/v1/consumer-groups", "").want(t, 200))
	if len(list) != 2 || list[1]["name"] != "g" || list[0]["name"] != "__QUEUE_MODE__" {
		t.Fatalf("%v", list)
	}
	if m := lacks(list[1], `name topics queueName members partitionCursors partitionsWithLag totalLag maxTimeLag state storage
		subscriptionMode subscriptionTimestamp subscriptionCreatedAt conflation`); m != nil {
		t.Errorf("keys missing: %v", m)
	}
	g := list[1]
	if g["totalLag"] != 3.0 || g["partitionsWithLag"] != 2.0 || g["partitionCursors"] != 2.0 || g["members"] != 1.0 || g["state"] != "Lagging" ||
		g["subscriptionMode"] != "all" || g["maxTimeLag"].(float64) < 7200 || list[0]["subscriptionMode"] != nil {
		t.Errorf("%v", list)
	}

	lagging := decode[[]map[string]any](t, w.do("GET", "/api/v1/consumer-groups/lagging?minLagSeconds=60", "").want(t, 200))
	if len(lagging) < 3 {
		t.Fatalf("%v", lagging)
	}
	if m := lacks(lagging[0], `consumer_group queue_name partition_name partition_id worker_id offset_lag time_lag_seconds lag_hours
		oldest_unconsumed_at last_consumed_at`); m != nil {
		t.Errorf("keys missing: %v", m)
	}
	for _, row := range lagging {
		if row["consumer_group"] == "g" && row["partition_name"] == "Default" && (row["worker_id"] != got.LeaseID || row["offset_lag"] != 2.0 || row["lag_hours"] != 2.0) {
			t.Errorf("%v", row)
		}
	}
	w.do("GET", "/api/v1/consumer-groups/lagging?minLagSeconds=soon", "").want(t, 400)

	detail := decode[map[string]struct {
		Conflation bool
		Partitions []map[string]any
	}](t, w.do("GET", "/api/v1/consumer-groups/g", "").want(t, 200))
	parts := detail["orders"].Partitions
	if len(detail) != 1 || len(parts) != 2 {
		t.Fatalf("%v", detail)
	}
	if m := lacks(parts[0], `partition workerId lastConsumedAt totalConsumed offsetLag timeLagSeconds leaseActive`); m != nil {
		t.Errorf("keys missing: %v", m)
	}
	if parts[0]["leaseActive"] != true || parts[0]["workerId"] != got.LeaseID || parts[1]["leaseActive"] != false || parts[1]["workerId"] != nil {
		t.Errorf("%v", parts)
	}

	set := object(t, w.do("POST", "/api/v1/consumer-groups/g/subscription", `{"subscriptionTimestamp":"2026-01-02T03:04:05Z"}`).want(t, 200))
	if d := cmp.Diff(map[string]any{"success": true, "consumerGroup": "g", "newTimestamp": "2026-01-02T03:04:05.000Z", "rowsUpdated": 1.0}, set); d != "" {
		t.Error(d)
	}
	if a := w.do("POST", "/api/v1/consumer-groups/g/subscription", "").want(t, 400); !strings.Contains(a.body, "subscriptionTimestamp is required") {
		t.Error(a.body)
	}
	list = decode[[]map[string]any](t, w.do("GET", "/api/v1/consumer-groups", "").want(t, 200))
	if list[1]["subscriptionTimestamp"] != "2026-01-02T03:04:05.000Z" {
		t.Errorf("%v", list[1])
	}
}

// A pop that registers its group on a queue with more partitions than one commit can give cursors: the group is there at
// once, gets what comes, on two brokers at the same time, and none of what was.
func TestAGroupBeginsAtOnceOnALargeQueue(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	here, there := serve(t, pool, nil), serve(t, pool, nil)
	const partitions = 70 // more than a pop looks at
	items := make([]string, partitions)
	for i := range items {
		items[i] = fmt.Sprintf(`{"queue":"orders","partition":"p%d","payload":1}`, i)
	}
	here.push(`{"items":[` + strings.Join(items, ",") + `]}`)
	if _, err := pool.Exec(t.Context(), "UPDATE queen.queues SET partition_count = partition_count + 1000000"); err != nil {
		t.Fatal(err)
	}
	for _, w := range []*world{here, there} {
		if got := w.pop("orders?consumerGroup=g&subscriptionMode=new"); len(got.Messages) != 0 {
			t.Errorf("what was there before: %v", txns(got))
		}
	}
	var cursors, owed int
	if err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM queen.log_consumers),
(SELECT count(*) FROM queen.group_registrations WHERE seeded_to = '')`).Scan(&cursors, &owed); err != nil {
		t.Fatal(err)
	}
	if cursors != 0 || owed != 1 {
		t.Errorf("%d cursors, which cost an idle poll something; %d registrations owe theirs, want 1", cursors, owed)
	}
	list := decode[[]map[string]any](t, here.do("GET", "/api/v1/consumer-groups", "").want(t, 200))
	if len(list) != 1 || list[0]["state"] != "Stable" || list[0]["totalLag"] != 0.0 {
		t.Errorf("a group that has just begun: %v", list)
	}
	here.push(`{"items":[{"queue":"orders","partition":"p69","transactionId":"old lane","payload":2}]}`)
	if got := here.pop("orders?consumerGroup=g&autoAck=true&wait=true&timeout=20000"); !slices.Equal(txns(got), []string{"old lane"}) {
		t.Errorf("from a partition that was there: %v", txns(got))
	}
	here.push(`{"items":[{"queue":"orders","partition":"young","transactionId":"new lane","payload":2}]}`)
	if got := there.pop("orders?consumerGroup=g&autoAck=true&wait=true&timeout=20000"); !slices.Equal(txns(got), []string{"new lane"}) {
		t.Errorf("from a new partition: %v", txns(got))
	}
}
