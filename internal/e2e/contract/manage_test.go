package contract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

func testConfigure(t *testing.T, s *service) {
	configure := func(body string) m {
		o := decode[m](t, s.do("POST", "/api/v1/configure", body).want(t, 200))
		if o["configured"] != true || o["error"] != nil || o["storage"] != "segments" {
			t.Errorf("%v", o)
		}
		return o["options"].(m)
	}
	for _, c := range []struct {
		what, body         string
		lease, retry, wait float64
	}{
		{"the first", `{"queue":"conf","options":{"leaseTime":10,"retryLimit":7,"maxWaitTimeSeconds":99}}`, 10, 7, 99},
		{"one key replaces the rest", `{"queue":"conf","options":{"leaseTime":20}}`, 20, 3, 0},
		{"mode replace says so", `{"queue":"conf","mode":"replace","options":{"retryLimit":5,"maxWaitTimeSeconds":9}}`, 300, 5, 9},
		{"mode merge keeps the rest", `{"queue":"conf","mode":"merge","options":{"leaseTime":30}}`, 30, 5, 9},
		{"null resets one", `{"queue":"conf","mode":"merge","options":{"retryLimit":null}}`, 30, 3, 9},
		{"options at top level", `{"queue":"conf","leaseTime":40,"mode":null}`, 40, 3, 0},
		{"no options at all", `{"queue":"conf"}`, 300, 3, 0},
	} {
		if o := configure(c.body); o["leaseTime"] != c.lease || o["retryLimit"] != c.retry || o["maxWaitTimeSeconds"] != c.wait || len(o) != 21 {
			t.Errorf("%s: %v", c.what, o)
		}
	}
	if r := s.do("POST", "/api/v1/configure", `{"queue":"conf","mode":"patch"}`).want(t, 400); !strings.Contains(r.body, "mode must be") {
		t.Errorf("another mode: %s", r.body)
	}
}

func testDeleteMissingQueue(t *testing.T, s *service) {
	o := decode[m](t, s.do("DELETE", "/api/v1/resources/queues/nowhere", "").want(t, 200))
	if o["deleted"] != false || o["existed"] != false || o["queue"] != "nowhere" || o["error"] != nil || o["message"] == nil {
		t.Errorf("%v", o)
	}
	s.push("somewhere", "Default", "a")
	o = decode[m](t, s.do("DELETE", "/api/v1/resources/queues/somewhere", "").want(t, 200))
	if o["deleted"] != true || o["existed"] != true || o["error"] != nil {
		t.Errorf("%v", o)
	}
	if r := s.push("somewhere", "Default", "a")[0]; r.Status != "queued" {
		t.Errorf("a deleted queue remembers: %+v", r)
	}
}

func testSubscriptions(t *testing.T, s *service) {
	s.push("subs", "old", "before")
	if p := s.pop("subs?consumerGroup=fresh&partitions=0"); len(p.Messages) > 0 {
		t.Fatalf("a new group reads history: %q", p.ids())
	}
	s.push("subs", "old", "after")
	s.push("subs", "late", "first")
	got := map[string]bool{}
	for range 2 { // the first contact with a partition may be left to the next pop
		for _, g := range s.pop("subs?consumerGroup=fresh&partitions=0").Messages {
			got[g.TransactionID] = true
		}
	}
	if len(got) != 2 || !got["after"] || !got["first"] {
		t.Errorf("a new group read %v, want what came after and a later partition from its start", got)
	}
	for _, query := range []string{"consumerGroup=history&subscriptionMode=all", "subscriptionMode=new"} { // queue mode ignores it
		if p := s.some("subs?partitions=0&" + query); len(p.Messages) != 3 {
			t.Errorf("%s read %q", query, p.ids())
		}
	}
}

func testGroupLists(t *testing.T, s *service) {
	s.push("lists", "Default", "a")
	s.pop("lists?consumerGroup=lagging&subscriptionMode=all")
	for _, path := range []string{"/api/v1/consumer-groups", "/api/v1/consumer-groups/lagging?minLagSeconds=0"} {
		var ours m
		for _, row := range decode[[]m](t, s.do("GET", path, "").want(t, 200)) {
			if row["name"] == "lagging" || row["consumer_group"] == "lagging" {
				ours = row
			}
		}
		if ours == nil {
			t.Fatalf("%s does not have the group", path)
		}
		if strings.Contains(path, "min") {
			has(t, ours, "consumer_group", "queue_name", "partition_name", "partition_id", "worker_id", "offset_lag", "time_lag_seconds", "lag_hours", "oldest_unconsumed_at", "last_consumed_at")
			continue
		}
		has(t, ours, "name", "topics", "queueName", "members", "partitionCursors", "partitionsWithLag", "totalLag", "maxTimeLag", "state", "storage", "subscriptionMode", "subscriptionTimestamp", "subscriptionCreatedAt", "conflation")
	}
	if o := decode[m](t, s.do("GET", "/api/v1/consumer-groups/nobody", "").want(t, 200)); len(o) > 0 {
		t.Errorf("an unknown group: %v", o)
	}
}

func testDeleteGroup(t *testing.T, s *service) {
	s.push("regroup", "Default", "a", "b")
	pop := func() string { return s.pop("regroup?consumerGroup=doomed&subscriptionMode=all").ids() }
	if pop() != "a b" || pop() != "" {
		t.Fatal("the group cannot be prepared")
	}
	for _, path := range []string{"/api/v1/consumer-groups/doomed/queues/regroup", "/api/v1/consumer-groups/doomed"} {
		o := decode[m](t, s.do("DELETE", path+"?deleteMetadata=true", "").want(t, 200))
		if o["success"] != true || o["consumerGroup"] != "doomed" || o["deletedPartitions"] != 1.0 || o["metadataDeleted"] != true {
			t.Errorf("%s: %v", path, o)
		}
		if got := pop(); got != "a b" {
			t.Errorf("the same group afterwards read %q", got)
		}
	}
	s.do("DELETE", "/api/v1/consumer-groups/never-was", "").want(t, 200)
}

func absent(t *testing.T, s *service, calls ...[3]string) {
	t.Helper()
	for _, c := range calls {
		if o := decode[m](t, s.do(c[0], c[1], c[2]).want(t, 404)); o["error"] != "Not Found" || o["code"] != "no_such_route" {
			t.Errorf("%s %s: %v", c[0], c[1], o)
		}
	}
}

func testNoKV(t *testing.T, s *service) {
	absent(t, s, [3]string{"POST", "/api/v1/kv", `{"operations":[]}`}, [3]string{"GET", "/api/v1/kv/ns/key", ""},
		[3]string{"GET", "/api/v1/resources/kv/namespaces", ""}, [3]string{"POST", "/api/v1/timers", `[]`}, [3]string{"POST", "/api/v1/ephemeral/push", `{}`})
}

func testNoStreams(t *testing.T, s *service) {
	absent(t, s, [3]string{"POST", "/streams/v1/queries", `{"name":"n"}`}, [3]string{"POST", "/streams/v1/cycle", `{}`}, [3]string{"POST", "/api/v1/stream/poll", `{}`})
}

func testRoles(t *testing.T, _ *service) {
	s := guarded(t)
	tenant := uuid.New()
	const push = `{"items":[{"queue":"q","payload":1}]}`
	for _, c := range []struct {
		access       wire.Access
		method, path string
		body         string
		want         int
	}{
		{wire.AccessWriteOnly, "POST", "/api/v1/push", push, 201},
		{wire.AccessWriteOnly, "POST", "/api/v1/timers", `[]`, 404},
		{wire.AccessWriteOnly, "GET", "/api/v1/pop/queue/q", "", 403},
		{wire.AccessReadOnly, "GET", "/api/v1/pop/queue/q", "", 403},
		{wire.AccessReadOnly, "POST", "/api/v1/push", push, 403},
		{wire.AccessReadOnly, "GET", "/api/v1/resources/queues", "", 200},
		{wire.AccessReadOnly, "POST", "/api/v1/fetch", `{"entries":[]}`, 200},
		{wire.AccessReadWrite, "GET", "/api/v1/pop/queue/q", "", 200},
		{wire.AccessReadWrite, "DELETE", "/api/v1/resources/queues/q", "", 403},
		{wire.AccessReadWrite, "DELETE", "/api/v1/consumer-groups/g", "", 403},
		{wire.AccessReadWrite, "DELETE", "/api/v1/dlq?queue=q", "", 403},
		{wire.AccessReadWrite, "POST", "/api/v1/system/maintenance", `{"enabled":false}`, 403},
		{wire.AccessAdmin, "DELETE", "/api/v1/resources/queues/q", "", 200},
	} {
		r := s.do(c.method, c.path, c.body, s.token(tenant, c.access)...)
		if r.status != c.want || c.want == 403 && decode[m](t, r)["error"] != "Insufficient permissions" {
			t.Errorf("%s %s by %s: %d %s, want %d", c.method, c.path, c.access, r.status, r.body, c.want)
		}
	}
	s.do("GET", "/api/v1/resources/queues", "", wire.HeaderTenant, tenant.String()).want(t, 401)
	s.do("GET", "/health", "").want(t, 200)
}

func testUnknownRouteAndHealth(t *testing.T, s *service) {
	absent(t, s, [3]string{"GET", "/api/v1/nope", ""}, [3]string{"DELETE", "/nothing", ""})
	o := decode[m](t, s.do("GET", "/health", "").want(t, 200))
	if o["status"] != "healthy" || o["database"] != "connected" || o["engine"] == "" || o["version"] == "" {
		t.Errorf("%v", o)
	}
	pool := pgtest.New(t, migrations.Broker)
	lost := listen(t, broker.Deps{Store: store.New(pool), Ping: func(context.Context) error { return errors.New("gone") }}, nil)
	if o := decode[m](t, lost.do("GET", "/health", "").want(t, 503)); o["status"] != "unhealthy" || o["database"] != "disconnected" {
		t.Errorf("without a database: %v", o)
	}
}

func testBodyBounds(t *testing.T, s *service) {
	r := s.raw(fmt.Sprintf("POST /api/v1/push HTTP/1.1\r\nHost: broker\r\nContent-Length: %d\r\n\r\n", 64<<20+1))[0]
	if o := decode[m](t, r.want(t, 413)); o["code"] != "payload_too_large" {
		t.Errorf("%v", o)
	}
	for _, body := range []string{"{\"items\":[{\"queue\":\"q\",\"payload\":\"\xff\"}]}", "{\"items\":[{\"queue\":\"\xc3\",\"payload\":1}]}"} {
		s.do("POST", "/api/v1/push", body).want(t, 400)
	}
	// With the Expect of curl and of the size itself: what is allowed is taken.
	payload := `"` + strings.Repeat("x", 1<<20) + `"`
	s.do("POST", "/api/v1/push", `{"items":[{"queue":"large","payload":`+payload+`}]}`, "Expect", "100-continue").want(t, 201)
	if p := s.some("large"); string(p.Messages[0].Data) != payload {
		t.Errorf("a payload of 1 MiB came back with %d bytes", len(p.Messages[0].Data))
	}
}

func testUnknownKeys(t *testing.T, s *service) {
	s.push("extra", "Default", txns("a", 3)...)
	got := s.some("extra?unknown=1&wait=false&sdk=py&")
	ids := fmt.Sprintf(`"transactionId":%q,"partitionId":%q,"leaseId":%q`, got.Messages[0].TransactionID, got.Messages[0].PartitionID, got.LeaseID)
	const x = `"x":{"y":[1,{"z":null}]},"queueId":7`
	for _, c := range []struct {
		path, body string
		want       int
	}{
		{"/api/v1/push", `{` + x + `,"items":[{"queue":"extra","payload":1,"traceId":"no uuid","producerSub":"me",` + x + `}]}`, 201},
		{"/api/v1/ack", `{` + ids + `,` + x + `}`, 200},
		{"/api/v1/ack/batch", `{` + x + `,"acknowledgments":[{` + ids + `,"consumerGroup":"ignored",` + x + `}]}`, 200},
		{"/api/v1/lease/" + got.LeaseID + "/extend", `{"seconds":90,` + x + `}`, 200},
		{"/api/v1/transaction", `{` + x + `,"operations":[{"type":"push","queue":"extra","payload":1,` + x + `}],"kv":null,"timers":null}`, 200},
		{"/api/v1/configure", `{"queue":"extra",` + x + `,"options":{"leaseTime":5,` + x + `}}`, 200},
		{"/api/v1/fetch", `{` + x + `,"entries":[{"queue":"extra","offset":0,` + x + `}]}`, 200},
		{"/api/v1/partitions/changed", `{` + x + `,"entries":[{"queue":"extra",` + x + `}]}`, 200},
		{"/api/v1/consumer-groups/g/queues/extra/seek", `{"toEnd":true,` + x + `}`, 200},
		{"/api/v1/consumer-groups/g/subscription", `{"subscriptionTimestamp":"2026-09-01T00:00:00Z",` + x + `}`, 200},
		{"/api/v1/traces", `{` + ids + `,"data":{},` + x + `}`, 201},
		// But not where the key may have been meant to spare something: what a redrive moves is moved.
		{"/api/v1/dlq/redrive", `{"queue":"extra","dryRun":true,` + x + `}`, 400},
		{"/api/v1/dlq/redrive", `{"queue":"extra","dryRun":true,"filter":{` + x + `}}`, 400},
		{"/api/v1/dlq/" + uuid.NewString() + "/replay", `{` + x + `}`, 404},
		{"/api/v1/messages/" + uuid.NewString() + "/t/retry", `{` + x + `}`, 404},
		{"/api/v1/messages/" + uuid.NewString() + "/t/dlq", `{` + x + `}`, 404},
	} {
		r := s.do("POST", c.path, c.body).want(t, c.want)
		if o := r.body; c.want < 300 && strings.HasPrefix(o, "{") && !slices.Contains([]any{nil, ""}, decode[m](t, r)["error"]) {
			t.Errorf("%s: %s", c.path, o)
		}
	}
}
