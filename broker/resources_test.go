package broker

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestClearQueueOverHTTP(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.do("POST", "/api/v1/configure", `{"queue":"orders","options":{"leaseTime":77}}`).want(t, 200)
	w.push(`{"items":[{"queue":"orders","transactionId":"a","payload":1},{"queue":"orders","partition":"p","transactionId":"b","payload":1}]}`)
	if got := w.pop("orders?consumerGroup=g&subscriptionMode=all&partitions=0&autoAck=true"); len(got.Messages) != 2 {
		t.Fatal(got)
	}
	parked := w.parks("orders?consumerGroup=g")
	a := object(t, w.do("DELETE", "/api/v1/queues/orders/clear?partition=p", "").want(t, 200))
	want := map[string]any{"success": true, "queue": "orders", "partition": "p", "cleared": true, "deletedPartitions": 1.0, "deletedMessages": 1.0}
	if d := cmp.Diff(want, a); d != "" {
		t.Error(d)
	}
	w.do("DELETE", "/api/v1/queues/orders/clear", "").want(t, 200)
	detail := object(t, w.do("GET", "/api/v1/resources/queues/orders", "").want(t, 200))
	if len(detail["partitions"].([]any)) != 0 || detail["options"].(map[string]any)["leaseTime"] != 77.0 {
		t.Errorf("%v", detail)
	}
	if r := w.one("orders", "a"); r.Status != "queued" || *r.Offset != 0 {
		t.Errorf("the same transaction id after a clear: %+v", r)
	}
	if got := w.receive("the parked pop", parked); !slices.Equal(txns(got), []string{"a"}) {
		t.Errorf("%v", txns(got))
	}
	w.do("DELETE", "/api/v1/queues/nowhere/clear", "").want(t, 404)
}

// keys returns the names of an object in order.
func keys(o any) (names []string) {
	for k := range o.(map[string]any) {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}

// lacks reports which of the names an object does not have.
func lacks(o any, names string) (missing []string) {
	have := keys(o)
	for name := range strings.FieldsSeq(names) {
		if !slices.Contains(have, name) {
			missing = append(missing, name)
		}
	}
	return missing
}

func TestResourcesOverHTTP(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.push(`{"items":[{"queue":"shop.mail","payload":1},{"queue":"shop.mail","payload":2},{"queue":"shop.print","partition":"p","payload":3}]}`)
	w.pop("shop.mail?consumerGroup=g&subscriptionMode=all&batch=1")

	o := object(t, w.do("GET", "/api/v1/resources/overview", "").want(t, 200))
	if m := lacks(o, "queues partitions namespaces tasks messages lag throughput timestamp statsAge"); m != nil {
		t.Errorf("overview lacks %v", m)
	}
	if d := cmp.Diff(map[string]any{"total": 3.0, "pending": 3.0, "processing": 1.0, "completed": 0.0, "failed": 0.0, "deadLetter": 0.0}, o["messages"]); d != "" {
		t.Error(d)
	}
	if o["queues"] != 2.0 || o["partitions"] != 2.0 || o["namespaces"] != 1.0 || o["tasks"] != 2.0 || o["statsAge"] != 0.0 {
		t.Errorf("%v", o)
	}
	if m := lacks(o["lag"].(map[string]any)["time"], "avg median min max"); m != nil {
		t.Errorf("lag lacks %v", m)
	}
	if m := lacks(o["throughput"], "ingestedPerSecond processedPerSecond"); m != nil {
		t.Errorf("throughput lacks %v", m)
	}

	for path, want := range map[string]string{
		"/api/v1/resources/namespaces": `{"namespaces":[{"namespace":"shop","name":"shop","queues":2,"queueCount":2,"taskCount":2,"partitions":2,"messages":{"total":3,"pending":3,"processing":1}}]}`,
		"/api/v1/resources/tasks": `{"tasks":[{"task":"mail","name":"mail","queues":1,"queueCount":1,"namespaceCount":1,"partitions":1,"messages":{"total":2,"pending":2,"processing":1}},` +
			`{"task":"print","name":"print","queues":1,"queueCount":1,"namespaceCount":1,"partitions":1,"messages":{"total":1,"pending":1,"processing":0}}]}`,
		"/api/v1/resources/queues/shop.mail/depth?group=g": `{"queue":"shop.mail","group":"g","pending":2,"processing":1,"ready":1,"partitionsPending":1,"partitionsReady":1,` +
			`"conflation":false,"effectivePending":2,"effectiveReady":1,"partitions":[{"partition":"Default","pending":2,"processing":1,"ready":1}]}`,
		"/api/v1/resources/queues/shop.print/depth": `{"queue":"shop.print","group":"__QUEUE_MODE__","pending":1,"processing":0,"ready":1,"partitionsPending":1,"partitionsReady":1,` +
			`"conflation":false,"effectivePending":1,"effectiveReady":1,"partitions":[{"partition":"p","pending":1,"processing":0,"ready":1}]}`,
	} {
		if a := w.do("GET", path, "").want(t, 200); a.body != want {
			t.Errorf("%s: %s", path, cmp.Diff(want, a.body))
		}
	}
	w.do("GET", "/api/v1/resources/queues/nowhere/depth", "").want(t, 404)

	queues := object(t, w.do("GET", "/api/v1/resources/queues?stats=cached&limit=1&offset=1&namespace=shop", "").want(t, 200))["queues"].([]any)
	if len(queues) != 1 || queues[0].(map[string]any)["name"] != "shop.print" {
		t.Fatalf("%v", queues)
	}
	if m := lacks(queues[0], "id name namespace task createdAt partitions retainedBytes segments messages partitionCount priority leaseTime retryLimit maxSize encryptionEnabled"); m != nil {
		t.Errorf("queues lack %v", m)
	}
	detail := object(t, w.do("GET", "/api/v1/resources/queues/shop.mail", "").want(t, 200))
	if m := lacks(detail, "id name namespace task createdAt options partitions totals retainedBytes segments"); m != nil {
		t.Errorf("a queue lacks %v", m)
	}
	part := detail["partitions"].([]any)[0].(map[string]any)
	if m := lacks(part, "id name createdAt stats oldestMessage newestMessage"); m != nil {
		t.Errorf("a partition lacks %v", m)
	}
	stats := map[string]any{"total": 2.0, "pending": 2.0, "processing": 1.0, "completed": 0.0, "failed": nil, "deadLetter": 0.0}
	if d := cmp.Diff(stats, part["stats"]); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(stats, detail["totals"]); d != "" {
		t.Error(d)
	}

	listed := object(t, w.do("GET", "/api/v1/resources/partitions?queue=shop.mail", "").want(t, 200))
	if rows := listed["partitions"].([]any); len(rows) != 1 || listed["total"] != 1.0 || lacks(rows[0], "id name queue namespace task createdAt stats oldestMessage newestMessage retainedBytes segments") != nil {
		t.Errorf("%v", listed)
	}
	w.do("GET", "/api/v1/resources/partitions?limit=0", "").want(t, 400)
	if !json.Valid([]byte(w.do("GET", "/api/v1/resources/partitions?queue=%22", "").want(t, 200).body)) {
		t.Error("not JSON")
	}
}
