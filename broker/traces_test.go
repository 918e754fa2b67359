package broker

import (
	"encoding/json"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/janitor"
)

func TestTraces(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("orders", "a/b c")
	m := w.pop("orders").Messages[0]
	trace := func(txn, event, names string) {
		t.Helper()
		body := fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"data":{"step":%q,"n":12345678901234567890},"eventType":%q,"traceNames":%s}`, txn, m.PartitionID, event, event, names)
		got := decode[struct {
			Success bool
			TraceID string
		}](t, w.do("POST", "/api/v1/traces", body).want(t, 201))
		if !got.Success || uuid.Validate(got.TraceID) != nil {
			t.Fatalf("%+v", got)
		}
	}
	trace("a/b c", "one", `["checkout","all"]`)
	trace("a/b c", "two", `"checkout"`)
	trace("other", "three", `["checkout"]`)
	trace("other", "four", `null`)

	type row struct {
		ID        string          `json:"id"`
		EventType string          `json:"event_type"`
		Data      json.RawMessage `json:"data"`
		Group     string          `json:"consumer_group"`
		Worker    string          `json:"worker_id"`
		Created   string          `json:"created_at"`
		Names     []string        `json:"trace_names"`
		Txn       string          `json:"transaction_id"`
		Partition string          `json:"partition_id"`
		Queue     string          `json:"queue_name"`
		PartName  string          `json:"partition_name"`
		Payload   json.RawMessage `json:"message_payload"`
	}
	type page struct {
		Traces     []row
		Total      int
		Pagination struct{ Limit, Offset int }
	}
	of := decode[page](t, w.do("GET", "/api/v1/traces/"+m.PartitionID+"/"+url.PathEscape("a/b c"), "").want(t, 200))
	if len(of.Traces) != 2 || of.Traces[0].EventType != "one" || of.Traces[1].EventType != "two" || len(of.Traces[0].Names) != 2 {
		t.Fatalf("%+v", of)
	}
	if r := of.Traces[0]; string(r.Data) != `{"step":"one","n":12345678901234567890}` || r.Group != "__QUEUE_MODE__" || r.Worker == "" || len(r.Created) != len("2026-09-01T10:11:12.123Z") {
		t.Errorf("%+v", r)
	}
	named := decode[page](t, w.do("GET", "/api/v1/traces/by-name/checkout?limit=2", "").want(t, 200))
	if named.Total != 3 || len(named.Traces) != 2 || named.Traces[0].EventType != "three" || named.Pagination.Limit != 2 {
		t.Fatalf("%+v", named)
	}
	if r := named.Traces[0]; r.Txn != "other" || r.Partition != m.PartitionID || r.Queue != "orders" || r.PartName != "Default" || string(r.Payload) != "null" {
		t.Errorf("%+v", r)
	}
	names := decode[struct {
		Names []struct {
			Name     string `json:"trace_name"`
			Traces   int    `json:"trace_count"`
			Messages int    `json:"message_count"`
			LastSeen string `json:"last_seen"`
		} `json:"trace_names"`
		Total int
	}](t, w.do("GET", "/api/v1/traces/names", "").want(t, 200))
	if names.Total != 2 || len(names.Names) != 2 || names.Names[0].Name != "checkout" || names.Names[0].Traces != 3 || names.Names[0].Messages != 2 || names.Names[1].Traces != 1 {
		t.Errorf("%+v", names)
	}
	// Events outlive the queue; a partition that is gone takes no more of them.
	w.do("DELETE", "/api/v1/resources/queues/orders", "").want(t, 200)
	if got := decode[page](t, w.do("GET", "/api/v1/traces/by-name/checkout", "").want(t, 200)); got.Total != 3 {
		t.Errorf("%d events are left", got.Total)
	}
	w.do("POST", "/api/v1/traces", fmt.Sprintf(`{"transactionId":"t","partitionId":%q,"data":1}`, m.PartitionID)).want(t, 404)
}

func TestTracesRefuse(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for rule, c := range map[string]struct {
		method, path, body string
		status             int
	}{
		"a required key is missing":  {"POST", "/api/v1/traces", `{"partitionId":"` + uuid.NewString() + `","data":1}`, 400},
		"a partition that is no id":  {"POST", "/api/v1/traces", `{"transactionId":"t","partitionId":"p","data":1}`, 400},
		"a partition of nobody":      {"POST", "/api/v1/traces", `{"transactionId":"t","partitionId":"` + uuid.NewString() + `","data":1}`, 404},
		"a page that is too long":    {"GET", "/api/v1/traces/names?limit=100000", "", 400},
		"an offset that is negative": {"GET", "/api/v1/traces/by-name/x?offset=-1", "", 400},
	} {
		if a := w.do(c.method, c.path, c.body); a.status != c.status {
			t.Errorf("%s: %d %s", rule, a.status, a.body)
		}
	}
	for _, path := range []string{"/api/v1/traces/nonsense/t", "/api/v1/traces/" + uuid.NewString() + "/t", "/api/v1/traces/by-name/none", "/api/v1/traces/names"} {
		w.do("GET", path, "").want(t, 200)
	}
}

// Events go with the task of history once they are older than the broker keeps them.
func TestOldTracesGoWithTheHistory(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *Config) { c.TraceKeep, c.Janitor.Interval = 48*time.Hour, janitor.MinInterval })
	w.one("orders", "a")
	m := w.pop("orders?autoAck=true&subscriptionMode=all").Messages[0]
	for _, name := range []string{"old", "young"} {
		w.do("POST", "/api/v1/traces", fmt.Sprintf(`{"transactionId":"a","partitionId":%q,"data":1,"traceNames":[%q]}`, m.PartitionID, name)).want(t, 201)
	}
	for _, sql := range []string{
		"UPDATE queen.message_trace_names SET created_at = created_at - interval '49 hours' WHERE name = 'old'",
		"UPDATE queen.message_traces SET created_at = created_at - interval '49 hours' WHERE names = '{old}'",
		"UPDATE queen.maintenance_leases SET next_due_at = clock_timestamp() WHERE task = 'history'",
	} {
		if _, err := w.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	w.until("the old event is purged", func() bool { return w.rows("message_traces") == 1 })
	if n := w.rows("message_trace_names"); n != 1 {
		t.Errorf("%d names are left", n)
	}
}
