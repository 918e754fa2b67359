package contract

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/internal/spool"
	"github.com/queengate/queengate/migrations"
)

// generations are the rows of spec/broker-http.md 4 by number: what the generations of clients and brokers differ in, and
// the one behaviour that serves all of them. On configure, and wherever else it differs, design.md decides.
var generations = []struct {
	topic string
	test  func(*testing.T, *service)
}{
	1:  {"a pop without batch takes 200", testRowBatch},
	2:  {"a named group starts by the setting, new by default", testRowSubscription},
	3:  {"new-only is new", testRowNewOnly},
	4:  {"an unqualified pop works by namespace or task, and is 400 without either", testRowDiscovery},
	5:  {"a push result has the base five keys and the offset", testPushResultOrder},
	6:  {"a push in maintenance is buffered in the uniform shape, or refused whole without a spool", testRowMaintenance},
	7:  {"seven keys in every ack item", testAckShape},
	8:  {"an ack without ids fails alone, in a 200", testRowMissingIDs},
	9:  {"an unknown ack status is a failure", testRowUnknownStatus},
	10: {"a lease extension answers an object", testExtend},
	11: {"a lost lease is 200 success:false", testRowLostLease},
	12: {"noop and what lies below the cursor are said", testRowBelowCursor},
	13: {"configure replaces unless mode is merge", testConfigure},
	14: {"configure answers partitionId null", testRowPartitionID},
	15: {"both dead letter flags are on by default", testRowDeadLetterFlags},
	16: {"a queue made by a push has a lease of 60 s, a configured one of 300", testRowPushedLease},
	17: {"a missing queue's detail is 404", testRowMissingQueue},
	18: {"deleting an unknown queue is 200", testDeleteMissingQueue},
	19: {"a message retry is a move under dlq:<id>", testRowRetry},
	20: {"dead letters are filtered by partition, from and to", testRowLetterFilters},
	21: {"a seek with {} goes to the end", testRowSeekEmpty},
	22: {"the subscription fields of a group are real", testRowGroupFields},
	23: {"messages carry deliveryAttempt", testRowDeliveryAttempt},
	24: {"leases of a transaction on the ack, beside it, or both", testRowTransactionLeases},
	25: {"a transaction mints the ids it is not given", testRowMintedIDs},
	26: {"a traceId on a push never refuses it", testRowTraceID},
	27: {"no CORS", testRowCORS},
	28: {"write-only may push", testRoles},
	29: {"errors are JSON whatever they quote", testRowErrorJSON},
	30: {"health has its four keys", testUnknownRouteAndHealth},
	31: {"routes of the rows engine are 404", testRowGoneRoutes},
	32: {"the message plane never answers 429", testRowNo429},
	33: {"conflation is echoed whenever it was asked for", testRowConflation},
	34: {"autopilot is accepted and echoed", testRowAutopilot},
	35: {"KV check and locks are 404", testRowLocks},
}

func TestGenerations(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	for n, row := range generations[1:] {
		t.Run(fmt.Sprintf("%d %s", n+1, row.topic), func(t *testing.T) {
			t.Parallel()
			row.test(t, s.of(t))
		})
	}
}

func testRowBatch(t *testing.T, s *service) {
	s.push("r1", "Default", txns("t", 250)...)
	if n := len(s.some("r1").Messages); n != 200 {
		t.Errorf("%d messages", n)
	}
	s.push("r1-one", "Default", "a", "b")
	if n := len(s.some("r1-one?batch=0").Messages); n != 1 {
		t.Errorf("batch 0: %d messages", n)
	}
}

func testRowSubscription(t *testing.T, s *service) {
	old := serve(t, all)
	for _, c := range []struct {
		s    *service
		want string
	}{{s, ""}, {old, "history"}} {
		c.s.push("r2", "Default", "history")
		if got := c.s.of(t).pop("r2?consumerGroup=g").ids(); got != c.want {
			t.Errorf("read %q, want %q", got, c.want)
		}
	}
}

func testRowNewOnly(t *testing.T, s *service) {
	s.push("r3", "Default", "history")
	for _, mode := range []string{"new", "new-only"} {
		if got := s.pop("r3?consumerGroup=" + mode + "&subscriptionMode=" + mode).ids(); got != "" {
			t.Errorf("%s read %q", mode, got)
		}
		if g := s.group(mode, "r3"); g["subscriptionMode"] != "new" {
			t.Errorf("%s is registered as %v", mode, g["subscriptionMode"])
		}
	}
	s.push("r3", "Default", "news")
	if got := s.pop("r3?consumerGroup=new-only").ids(); got != "news" {
		t.Errorf("then %q", got)
	}
}

func testRowDiscovery(t *testing.T, s *service) {
	s.push("r4space.r4task.x", "Default", "a") // a dotted name is its namespace and task
	for _, query := range []string{"namespace=r4space", "task=r4task", "namespace=r4space&task=r4task"} {
		r := s.do("GET", "/api/v1/pop?subscriptionMode=all&consumerGroup="+uuid.NewString()+"&"+query, "").want(t, 200)
		if p := decode[popped](t, r); p.ids() != "a" || p.Queue != "" || p.Messages[0].Queue != "r4space.r4task.x" {
			t.Errorf("%s: %s", query, r.body)
		}
	}
	for _, query := range []string{"", "?", "?batch=1&namespace=&task="} {
		o := decode[m](t, s.do("GET", "/api/v1/pop"+query, "").want(t, 400))
		if o["success"] != false || o["error"] != "namespace or task is required" || len(o["messages"].([]any)) != 0 {
			t.Errorf("%q: %v", query, o)
		}
	}
	s.do("GET", "/api/v1/pop?namespace=nowhere", "").want(t, 204)
}

func testRowMaintenance(t *testing.T, _ *service) {
	t.Run("with a spool", testBuffered)
	s := serve(t, nil)
	s.push("r6", "Default", "before")
	s.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`).want(t, 200)
	r := s.do("POST", "/api/v1/push", `{"items":[{"queue":"r6","transactionId":"during","payload":1}]}`).want(t, 503)
	if o := decode[m](t, r); o["code"] != "maintenance" || o["outcome"] != "none" || o["retryable"] != true || r.header.Get("Retry-After") == "" {
		t.Errorf("%s", r.body)
	}
	if got := s.some("r6").ids(); got != "before" {
		t.Errorf("pops go on and give %q", got)
	}
	s.do("POST", "/api/v1/system/maintenance", `{"enabled":false}`).want(t, 200)
	if r := s.push("r6", "Default", "during")[0]; r.Status != "queued" {
		t.Errorf("%+v", r)
	}
}

func testBuffered(t *testing.T) {
	pool := pgtest.New(t, migrations.Broker)
	disk, err := spool.Open(slog.New(slog.DiscardHandler), spool.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the broker's end
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
	s := listen(t, broker.Deps{Store: store.New(pool), Ping: pool.Ping, Spool: disk}, nil)
	s.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`).want(t, 200)
	r := s.do("POST", "/api/v1/push", `{"items":[{"queue":"r6","transactionId":"during","payload":1}]}`).want(t, 201)
	items := decode[[]m](t, r)
	if len(items) != 1 || items[0]["status"] != "buffered" || items[0]["transaction_id"] != "during" || items[0]["queueName"] != "r6" ||
		items[0]["index"] != 0.0 || items[0]["message_id"] == nil || items[0]["offset"] != nil {
		t.Errorf("%s", r.body)
	}
	s.do("POST", "/api/v1/system/maintenance", `{"enabled":false}`).want(t, 200)
	until := time.Now().Add(patience)
	for {
		got := s.do("GET", "/api/v1/pop/queue/r6?wait=true&timeout=2000&autoAck=true", "")
		if got.status == 200 && strings.Contains(got.body, `"during"`) {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("a buffered message does not come: %d %s", got.status, got.body)
		}
	}
}

func testRowMissingIDs(t *testing.T, s *service) {
	for _, body := range []string{`{}`, `{"transactionId":"t"}`, fmt.Sprintf(`{"partitionId":%q}`, uuid.NewString()), `{"transactionId":"t","partitionId":"Default"}`} {
		if r := decode[[]acked](t, s.do("POST", "/api/v1/ack", body).want(t, 200)); len(r) != 1 || r[0].Success || r[0].Error == nil {
			t.Errorf("%s: %+v", body, r)
		}
	}
}

func testRowUnknownStatus(t *testing.T, s *service) {
	s.do("POST", "/api/v1/configure", `{"queue":"r9","options":{"retryLimit":0}}`).want(t, 200)
	s.push("r9", "Default", "a", "b")
	if r := s.ack("Completed", s.some("r9?batch=1").Messages...)[0]; !r.Success || !r.DLQ {
		t.Errorf("a status in another case: %+v", r)
	}
	for _, status := range []string{"completed", "success", "acked", "ok"} {
		s.push("r9-good", "Default", status)
		if r := s.ack(status, s.some("r9-good").Messages...)[0]; !r.Success || r.DLQ {
			t.Errorf("%s: %+v", status, r)
		}
	}
}

func testRowLostLease(t *testing.T, s *service) {
	s.push("r11", "Default", "a")
	old := s.some("r11?leaseSeconds=1")
	s.some("r11?wait=true&timeout=30000")
	if o := decode[m](t, s.do("POST", "/api/v1/lease/"+old.LeaseID+"/extend", "").want(t, 200)); o["success"] != false || o["renewed"] != 0.0 || o["newExpiresAt"] != nil {
		t.Errorf("%v", o)
	}
}

func testRowBelowCursor(t *testing.T, s *service) {
	s.push("r12", "Default", "a")
	g := s.some("r12").Messages[0]
	s.ack("completed", g)
	g.LeaseID = ""
	if r := s.ack("completed", g)[0]; !r.Success || !r.Noop {
		t.Errorf("completed again: %+v", r)
	}
	for _, status := range []string{"failed", "retry", "dlq"} {
		if r := s.ack(status, g)[0]; r.Success || !strings.HasPrefix(r.reason(), "already committed") {
			t.Errorf("%s afterwards: %+v %s", status, r, r.reason())
		}
	}
}

func testRowPartitionID(t *testing.T, s *service) {
	o := decode[m](t, s.do("POST", "/api/v1/configure", `{"queue":"r14","namespace":null,"task":null}`).want(t, 200))
	if id, there := o["partitionId"]; id != nil || !there || o["queueId"] == "" {
		t.Errorf("%v", o)
	}
}

func testRowDeadLetterFlags(t *testing.T, s *service) {
	s.push("r15", "Default", "a")
	s.do("POST", "/api/v1/configure", `{"queue":"r15c"}`).want(t, 200)
	for _, queue := range []string{"r15", "r15c"} {
		if o := s.options(queue); o["deadLetterQueue"] != true || o["dlqAfterMaxRetries"] != true {
			t.Errorf("%s: %v", queue, o)
		}
	}
}

func testRowPushedLease(t *testing.T, s *service) {
	s.push("r16", "Default", "a")
	s.do("POST", "/api/v1/configure", `{"queue":"r16c"}`).want(t, 200)
	if pushed, configured := s.options("r16")["leaseTime"], s.options("r16c")["leaseTime"]; pushed != 60.0 || configured != 300.0 {
		t.Errorf("pushed %v, configured %v", pushed, configured)
	}
}

func testRowMissingQueue(t *testing.T, s *service) {
	for _, path := range []string{"/api/v1/resources/queues/nowhere", "/api/v1/status/queues/nowhere"} {
		if o := decode[m](t, s.do("GET", path, "").want(t, 404)); o["error"] != "Queue not found" {
			t.Errorf("%s: %v", path, o)
		}
	}
}

func testRowRetry(t *testing.T, s *service) {
	g := s.bury("r19", "a", "g")
	s.some("r19?consumerGroup=other&subscriptionMode=all")
	id := s.letters("queue=r19")[0]["id"].(string)
	path := "/api/v1/messages/" + g.PartitionID + "/" + g.TransactionID + "/retry"
	o := decode[m](t, s.do("POST", path, "").want(t, 200))
	has(t, o, "success", "result", "queue", "partition", "consumerGroup", "dlqId", "originalTransactionId", "replayedAs", "dlqRowRemoved")
	as := o["replayedAs"].(m)
	has(t, as, "index", "message_id", "transaction_id", "queueName", "status", "offset")
	if o["result"] != "moved" || o["dlqId"] != id || o["originalTransactionId"] != "a" || o["dlqRowRemoved"] != true || as["transaction_id"] != "dlq:"+id {
		t.Errorf("%v", o)
	}
	if got := s.some("r19?consumerGroup=g").ids(); got != "dlq:"+id {
		t.Errorf("at the tail: %q", got)
	}
	if o := decode[m](t, s.do("POST", path, `{}`).want(t, 404)); o["success"] != false || o["error"] == "" {
		t.Errorf("again: %v", o)
	}
}

func testRowLetterFilters(t *testing.T, s *service) {
	s.bury("r20", "a", "g")
	s.push("r20", "other", "b")
	s.ack("dlq", s.some("r20/partition/other?consumerGroup=g").Messages[0])
	stamp := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
	for query, want := range map[string]int{
		"": 2, "&partition=other": 1, "&consumerGroup=g": 2, "&consumerGroup=h": 0, "&limit=1": 1, "&offset=1": 1,
		"&from=" + stamp(-time.Hour): 2, "&from=" + stamp(time.Hour): 0, "&to=" + stamp(-time.Hour): 0, "&to=" + stamp(time.Hour): 2,
	} {
		r := s.do("GET", "/api/v1/dlq?queue=r20"+query, "").want(t, 200)
		page := decode[struct {
			Messages []m
			Total    int
		}](t, r)
		if len(page.Messages) != want || page.Total != want && query != "&limit=1" && query != "&offset=1" {
			t.Errorf("%s: %s", query, r.body)
		}
		for _, l := range page.Messages {
			has(t, l, "id", "transactionId", "partitionId", "queue", "partition", "consumerGroup", "errorMessage", "retryCount", "data", "createdAt", "failedAt", "producerSub")
		}
	}
}

func testRowSeekEmpty(t *testing.T, s *service) {
	s.push("r21", "Default", "a", "b")
	for _, c := range []struct{ group, path, body string }{
		{"g1", "", `{}`}, {"g2", "", ``}, {"g3", "/partitions/Default", `{}`}, {"g4", "/partitions/Default", ``}, {"g5", "", `{"toEnd":null}`},
	} {
		o := decode[m](t, s.do("POST", "/api/v1/consumer-groups/"+c.group+"/queues/r21"+c.path+"/seek", c.body).want(t, 200))
		if o["success"] != true || o["seekToEnd"] != true {
			t.Errorf("%+v: %v", c, o)
		}
		if got := s.pop("r21?subscriptionMode=all&consumerGroup=" + c.group).ids(); got != "" {
			t.Errorf("%+v: read %q", c, got)
		}
	}
	s.do("POST", "/api/v1/consumer-groups/g1/queues/r21/seek", `{"toEnd":false}`).want(t, 400)
	s.do("POST", "/api/v1/consumer-groups/g1/queues/r21/seek", `{"timestamp":"2020-01-01T00:00:00.000Z"}`).want(t, 200)
	if got := s.pop("r21?consumerGroup=g1").ids(); got != "a b" {
		t.Errorf("back in time: %q", got)
	}
}

func testRowGroupFields(t *testing.T, s *service) {
	s.push("r22", "Default", "a")
	s.pop("r22?consumerGroup=all&subscriptionMode=all")
	s.pop("r22?consumerGroup=since&subscriptionFrom=2026-01-01T00:00:00.000Z")
	for name, mode := range map[string]string{"all": "all", "since": "timestamp"} {
		g := s.group(name, "r22")
		if created, err := time.Parse(time.RFC3339, fmt.Sprint(g["subscriptionCreatedAt"])); g["subscriptionMode"] != mode || err != nil || time.Since(created) > time.Hour {
			t.Errorf("%s: %v", name, g)
		}
	}
	if at := s.group("since", "r22")["subscriptionTimestamp"]; at != "2026-01-01T00:00:00.000Z" {
		t.Errorf("since %v", at)
	}
}

func testRowDeliveryAttempt(t *testing.T, s *service) {
	s.push("r23", "Default", "a", "b", "c")
	got := s.some("r23").Messages
	s.settle(nil, ackBody(got[0], "completed"), ackBody(got[1], "failed"))
	again := s.some("r23").Messages
	if got[0].DeliveryAttempt != 1 || again[0].TransactionID != "b" || again[0].DeliveryAttempt != 1 {
		t.Errorf("the head has moved, so counting begins anew: %+v", again)
	}
	s.ack("failed", again[0])
	if third := s.some("r23").Messages; third[0].DeliveryAttempt != 2 {
		t.Errorf("the same head again: %+v", third)
	}
}

func testRowTransactionLeases(t *testing.T, s *service) {
	s.push("r24", "Default", txns("a", 6)...)
	got := s.some("r24").Messages
	ack := func(i int, more m) m {
		o := m{"type": "ack", "transactionId": got[i].TransactionID, "partitionId": got[i].PartitionID}
		for k, v := range more {
			o[k] = v
		}
		return o
	}
	lease, other := got[0].LeaseID, uuid.NewString()
	s.push("r24-other", "Default", "x")
	second := s.some("r24-other").LeaseID
	for i, c := range []struct {
		what string
		body m
		want bool
	}{
		{"beside", m{"operations": []m{ack(0, nil)}, "requiredLeases": []string{lease}}, true},
		{"on the ack", m{"operations": []m{ack(1, m{"leaseId": lease})}}, true},
		{"both", m{"operations": []m{ack(2, m{"leaseId": lease})}, "requiredLeases": []string{lease}}, true},
		{"another one beside, which is held", m{"operations": []m{ack(3, m{"leaseId": lease})}, "requiredLeases": []string{lease, second}}, true},
		{"none", m{"operations": []m{ack(4, nil)}, "requiredLeases": nil}, true},
		{"a foreign one", m{"operations": []m{ack(5, nil)}, "requiredLeases": []string{other}}, false},
	} {
		if o := s.transact(c.body); o["success"] != c.want {
			t.Errorf("%d %s: %v", i, c.what, o)
		}
	}
}

func testRowMintedIDs(t *testing.T, s *service) {
	o := s.transact(m{"operations": []m{
		{"type": "push", "items": []m{{"queue": "r25", "payload": 1}, {"queue": "r25", "data": 2, "transactionId": ""}}}, {"type": "push", "queue": "r25", "payload": 3},
	}})
	var ids []string
	for _, r := range o["results"].([]any) {
		id := r.(m)["transactionId"].(string)
		if u, err := uuid.Parse(id); err != nil || u.Version() != 7 || slices.Contains(ids, id) {
			t.Errorf("%q after %v", id, ids)
		}
		ids = append(ids, id)
	}
	if got := s.some("r25"); got.ids() != strings.Join(ids, " ") || string(got.Messages[1].Data) != "2" {
		t.Errorf("%+v", got)
	}
}

func testRowTraceID(t *testing.T, s *service) {
	for i, trace := range []string{`"not a uuid"`, `null`, `7`, `"` + uuid.NewString() + `"`, `{}`} {
		body := fmt.Sprintf(`{"items":[{"queue":"r26","transactionId":"t%d","payload":1,"traceId":%s}]}`, i, trace)
		s.do("POST", "/api/v1/push", body).want(t, 201)
	}
	if r := s.do("GET", "/api/v1/pop/queue/r26", "").want(t, 200); strings.Count(r.body, `"traceId":null`) != 5 {
		t.Errorf("%s", r.body)
	}
}

func testRowCORS(t *testing.T, s *service) {
	r := s.do("OPTIONS", "/api/v1/push", "", "Origin", "https://example.com", "Access-Control-Request-Method", "POST").want(t, 405)
	if r.header.Get("Allow") != "POST" {
		t.Errorf("Allow %q", r.header.Get("Allow"))
	}
	r2 := s.do("GET", "/health", "", "Origin", "https://example.com")
	for _, h := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Methods"} {
		if v := r.header.Get(h) + r2.header.Get(h); v != "" {
			t.Errorf("%s: %s", h, v)
		}
	}
}

func testRowErrorJSON(t *testing.T, s *service) {
	for _, c := range [][3]string{
		{"POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1,"payload":"\"quoted\"\\"}]}`},
		{"POST", "/api/v1/push", "{\"items\":\"\x01\x02\"}"},
		{"POST", "/api/v1/configure", `{"queue":"q","mode":"\"\u0007\\"}`},
		{"GET", "/api/v1/pop/queue/q?batch=%22abc%22", ""},
		{"GET", "/api/v1/pop/queue/q?wait=1", ""},
		{"GET", "/api/v1/pop/queue/q?timeout=-1", ""},
		{"GET", "/api/v1/resources/queues/%22%5C%3Cscript%3E", ""},
		{"GET", "/api/v1/%22nope%22", ""},
		{"PUT", "/api/v1/push", `{}`},
	} {
		r := s.do(c[0], c[1], c[2])
		if e := decode[m](t, r); r.status < 400 || r.status >= 500 || e["error"] == "" || r.header.Get("Content-Type") != "application/json" {
			t.Errorf("%v: %d %s", c, r.status, r.body)
		}
		for _, word := range []string{"timeout", "timed out", "connection", "deadline exceeded"} {
			if strings.Contains(strings.ToLower(r.body), word) {
				t.Errorf("%v: old clients poll on without pause when they read %q: %s", c, word, r.body)
			}
		}
	}
}

func testRowGoneRoutes(t *testing.T, s *service) {
	absent(t, s, [3]string{"GET", "/api/v1/status/queues/q/messages", ""}, [3]string{"POST", "/api/v1/migration/start", `{}`}, [3]string{"GET", "/api/v1/migration/status", ""})
}

func testRowNo429(t *testing.T, s *service) {
	for i := range 300 {
		s.push("r32", "Default", fmt.Sprint("t", i)) // fails on anything but 201
	}
	if doc := s.do("GET", "/openapi.json", "").want(t, 200); strings.Contains(doc.body, `"429":`) {
		t.Error("the broker says that it answers 429")
	}
}

func testRowConflation(t *testing.T, s *service) {
	s.push("r33", "Default", "a", "b", "c")
	if p := s.some("r33?consumerGroup=c&conflation=true&subscriptionMode=all"); !p.Conflation || p.ids() != "c" {
		t.Errorf("%+v", p)
	}
	s.pop("r33?consumerGroup=plain&subscriptionMode=all")
	for what, query := range map[string]string{"empty": "consumerGroup=c", "empty, waiting": "consumerGroup=c&wait=true&timeout=300", "a conflict": "consumerGroup=plain"} {
		r := s.do("GET", "/api/v1/pop/queue/r33?conflation=true&"+query, "").want(t, 200)
		if o := decode[m](t, r); o["conflation"] != true || o["messages"] == nil || o["conflationConflict"] == true != (what == "a conflict") {
			t.Errorf("%s: %s", what, r.body)
		}
	}
	for _, query := range []string{"", "consumerGroup=c&autoAck=true"} {
		r := s.do("GET", "/api/v1/pop/queue/r33?conflation=true&"+query, "").want(t, 400)
		if o := decode[m](t, r); o["success"] != false || !strings.HasPrefix(o["error"].(string), "conflation ") || len(o["messages"].([]any)) != 0 {
			t.Errorf("%q: %s", query, r.body)
		}
	}
}

func testRowAutopilot(t *testing.T, s *service) {
	s.push("r34", "one", "a")
	s.push("r34", "two", "b")
	r := s.do("GET", "/api/v1/pop/queue/r34?autopilot=true&batch=10&consumerGroup=g&subscriptionMode=all&wait=true&timeout=20000", "").want(t, 200)
	o := decode[m](t, r)
	pilot, _ := o["autopilot"].(m)
	if o["partitionsClaimed"] != 1.0 || pilot["batch"] != 10.0 || pilot["partitions"] == nil || pilot["waitMs"] == nil {
		t.Errorf("a chosen batch stays, and with it one partition: %s", r.body)
	}
}

func testRowLocks(t *testing.T, s *service) {
	absent(t, s, [3]string{"POST", "/api/v1/kv", `{"operations":[{"op":"check","ns":"n","key":"k"}]}`}, [3]string{"POST", "/api/v1/locks", `{"operations":[]}`})
}
