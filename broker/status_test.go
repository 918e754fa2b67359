package broker

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// withKeys fails unless the JSON object at the path has all the keys.
func withKeys(t *testing.T, what string, v any, want string) map[string]any {
	t.Helper()
	m, ok := v.(map[string]any)
	if !ok {
		t.Fatalf("%s is %T", what, v)
	}
	for key := range strings.FieldsSeq(want) {
		if _, ok := m[key]; !ok {
			t.Errorf("%s has no %s: %v", what, key, m)
		}
	}
	return m
}

func firstOf(t *testing.T, what string, v any) any {
	t.Helper()
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		t.Fatalf("%s is %v", what, v)
	}
	return list[0]
}

func (w *world) object(path string) map[string]any {
	w.t.Helper()
	return decode[map[string]any](w.t, w.do("GET", path, "").want(w.t, 200))
}

func TestStatusShapes(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.do("POST", "/api/v1/configure", `{"queue":"orders","options":{"namespace":"shop","task":"bill","maxSize":7}}`).want(t, 200)
	w.work("orders")
	w.minute()

	if got := w.object("/status"); got["status"] != "ok" || got["engine"] != "postgres" || len(got) != 2 {
		t.Errorf("/status %v", got)
	}
	s := withKeys(t, "status", w.object("/api/v1/status"), "timeRange bucketMinutes pointCount throughput queues messages leases deadLetterQueue workers errors statsAge")
	row := withKeys(t, "throughput", firstOf(t, "throughput", s["throughput"]), `timestamp ingested processed popMessages ingestedPerSecond processedPerSecond popPerSecond
		avgLagMs maxLagMs avgEventLoopLagMs maxEventLoopLagMs minFreeSlots dbErrors ackFailed dlqCount queenCpuUserPct queenCpuSysPct queenRssMb dbPoolActive dbPoolIdle dbPoolSize`)
	if row["ingested"] != 5.0 || row["popMessages"] != 4.0 || row["queenRssMb"].(float64) < 1 || row["dbPoolSize"].(float64) < 1 {
		t.Errorf("%v", row)
	}
	withKeys(t, "queue", firstOf(t, "queues", s["queues"]), "id name namespace task partitions totalConsumed")
	m := withKeys(t, "messages", s["messages"], "total pending processing completed failed deadLetter requests batchEfficiency")
	if m["total"] != 5.0 || m["failed"] != 1.0 {
		t.Errorf("%v", m)
	}
	withKeys(t, "requests", m["requests"], "push pop ack")
	withKeys(t, "leases", s["leases"], "active partitionsWithLeases totalBatchSize totalAcked")
	withKeys(t, "deadLetterQueue", s["deadLetterQueue"], "totalMessages affectedPartitions topErrors")
	withKeys(t, "worker", firstOf(t, "workers", s["workers"]), "hostname workerId avgEventLoopLagMs maxEventLoopLagMs freeSlots dbConnections jobQueueSize messagesProcessed")
	withKeys(t, "errors", s["errors"], "dbErrors ackFailed dlqMessages")

	list := w.object("/api/v1/status/queues?namespace=shop&limit=1")
	q := withKeys(t, "queue", firstOf(t, "queues", list["queues"]), "id name namespace task createdAt partitions messages")
	if c := withKeys(t, "messages", q["messages"], "total pending processing completed deadLetter"); c["total"] != 5.0 || q["name"] != "orders" {
		t.Errorf("%v", q)
	}
	withKeys(t, "pagination", list["pagination"], "limit offset")
	if none := w.object("/api/v1/status/queues?task=other"); len(none["queues"].([]any)) != 0 {
		t.Errorf("%v", none)
	}

	one := w.object("/api/v1/status/queues/orders?includePartitions=true")
	head := withKeys(t, "queue", one["queue"], "id name namespace task priority createdAt config")
	if c := withKeys(t, "config", head["config"], "leaseTime retryLimit retryDelay ttl maxQueueSize deadLetterQueue"); c["maxQueueSize"] != 7.0 {
		t.Errorf("%v", c)
	}
	p := withKeys(t, "partition", firstOf(t, "partitions", one["partitions"]), "id name createdAt messages stats cursor lastActivity oldestMessage newestMessage")
	if c := withKeys(t, "cursor", p["cursor"], "totalConsumed batchesConsumed"); c["totalConsumed"] != 2.0 || p["lastActivity"] == nil {
		t.Errorf("%v", p)
	}
	withKeys(t, "totals", one["totals"], "messages")
	if r := decode[refusal](t, w.do("GET", "/api/v1/status/queues/none", "").want(t, 404)); r.Code != wire.NotFound || r.Error != "Queue not found" {
		t.Errorf("%+v", r)
	}

	if got := w.object("/api/v1/status/buffers"); got["pending"] != 0.0 || got["failed"] != 0.0 || got["dbHealthy"] != true || got["worker"] != 0.0 {
		t.Errorf("%v", got)
	}
}

func TestSystemShapes(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.work("orders")
	w.minute()

	system := withKeys(t, "system-metrics", w.object("/api/v1/analytics/system-metrics"), "timeRange replicas replicaCount bucketMinutes pointCount")
	replica := withKeys(t, "replica", firstOf(t, "replicas", system["replicas"]), "hostname port workerId timeSeries")
	sample := withKeys(t, "sample", firstOf(t, "timeSeries", replica["timeSeries"]), "timestamp sampleCount metrics")
	if m := withKeys(t, "metrics", sample["metrics"], "cpuUserPct rssBytes dbPoolSize requests"); m["requests"].(float64) < 9 || m["rssBytes"].(float64) < 1<<20 || replica["port"].(float64) < 1 {
		t.Errorf("%v", sample)
	}
	worker := withKeys(t, "worker-metrics", w.object("/api/v1/analytics/worker-metrics"), "timeRange bucketMinutes pointCount timeSeries workers queues summary")
	if sum := withKeys(t, "summary", worker["summary"], "pushMessages popMessages ackSuccess"); sum["pushMessages"] != 5.0 {
		t.Errorf("%v", sum)
	}
	db := withKeys(t, "postgres-stats", w.object("/api/v1/analytics/postgres-stats"), "version databaseBytes connections pool cacheHitRatio tables")
	withKeys(t, "table", firstOf(t, "tables", db["tables"]), "name totalBytes liveRows lastAutovacuum")
	fresh := decode[map[string]any](t, w.do("POST", "/api/v1/stats/refresh", "").want(t, 200))
	if fresh["engine"] != "postgres" || fresh["segPartitions"] != 2.0 {
		t.Errorf("%v", fresh)
	}
	j := withKeys(t, "metrics", w.object("/metrics"), "uptime requests messages database memory cpu")
	withKeys(t, "requests", j["requests"], "total rate")
	withKeys(t, "database", j["database"], "poolSize idleConnections waitingRequests")
	if m := withKeys(t, "memory", j["memory"], "rss heapTotal heapUsed external arrayBuffers"); m["heapUsed"].(float64) > m["heapTotal"].(float64) || m["rss"].(float64) < 1<<20 {
		t.Errorf("%v", m)
	}
	withKeys(t, "cpu", j["cpu"], "user system")
}

func TestPrometheusFamilies(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.work("orders")
	w.minute()
	text := w.do("GET", "/metrics/prometheus", "").want(t, 200).body
	for _, line := range []string{
		"queen_process_push_messages_total 6", `queen_cluster_push_messages_total{scope="cluster"} 5`, `queen_cluster_ack_total{result="failed",scope="cluster"} 1`,
		"queen_maintenance_mode_enabled 0", "queen_file_buffer_pending 0", "queen_file_buffer_db_healthy 1", `queen_batches_fired_total{op="pop"}`,
		`queen_batches_fired_total{op="push"}`, `queen_batch_rtt_milliseconds{op="pop",quantile="0.5"}`, `queen_fusion_items_per_batch{op="push"}`, "queen_pop_wildcard_total 3", "queen_pop_targeted_total 0",
		"queen_db_pool_size ", "queen_process_resident_memory_bytes ", "queen_event_loop_lag_avg_milliseconds ", "queen_uptime_seconds ", "queen_parked_long_polls 0",
	} {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("there is no line %q", line)
		}
	}
	if strings.Contains(text, "orders") || strings.Contains(text, DefaultTenant.String()) {
		t.Error("a family names a queue or a tenant")
	}
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`).want(t, 200)
	if text := w.do("GET", "/metrics/prometheus", "").want(t, 200).body; !strings.Contains(text, "\nqueen_maintenance_mode_enabled 1\n") {
		t.Error("the switch does not show")
	}
}

func TestReadsRefuseBadQueries(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for _, path := range []string{
		"/api/v1/status?from=yesterday", "/api/v1/analytics/queue-ops?from=2026-09-02T00:00:00Z&to=2026-09-01T00:00:00Z",
		"/api/v1/analytics/queue-lag?from=2020-09-01T00:00:00Z", "/api/v1/status/analytics?interval=week", "/api/v1/analytics/workload?limit=0",
		"/api/v1/status/analytics?interval=minute&from=2026-08-01T00:00:00Z&to=2026-09-01T00:00:00Z", "/api/v1/status/queues?limit=x", "/api/v1/status/queues?limit=1&limit=1",
	} {
		if r := decode[refusal](t, w.do("GET", path, "").want(t, 400)); r.Code != wire.InvalidRequest {
			t.Errorf("%s: %+v", path, r)
		}
	}
}

func TestOpenAPIIsServed(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	a := w.do("GET", "/openapi.json", "").want(t, 200)
	if !json.Valid([]byte(a.body)) || !strings.Contains(a.body, `"/api/v1/push"`) || !strings.Contains(a.body, `"/api/v1/system/maintenance"`) {
		t.Errorf("%.200s", a.body)
	}
	if b := w.do("GET", "/openapi.json", "").want(t, 200); b.body != a.body {
		t.Error("two answers differ")
	}
}

func TestThroughputJoinsActivityAndProcesses(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 9, 1, 10, 0, 0, 0, time.UTC)
	span := store.Span{From: at, To: at.Add(2 * bucketWidth(0)), Width: bucketWidth(0)}
	rows := throughput(span, []store.Point{{Bucket: at, Activity: store.Activity{PushMessages: 120, PopMessages: 2, LagMs: 10, LagMaxMs: 9}}}, []store.ProcessPoint{
		{Bucket: at, Process: store.Process{PoolIdle: 4, SchedLagMs: 1, RSSBytes: 1 << 20}},
		{Bucket: at.Add(span.Width), Process: store.Process{PoolIdle: 7}},
		{Bucket: at, Process: store.Process{PoolIdle: 2, SchedLagMs: 3, RSSBytes: 2 << 20}},
	}, at.Add(span.Width*5))
	if len(rows) != 2 {
		t.Fatalf("%+v", rows)
	}
	if r := rows[0]; r.Ingested != 120 || r.IngestedPerSecond != 2 || r.AvgLagMs != 5 || r.MinFreeSlots != 2 || r.AvgEventLoopLagMs != 2 || r.RSSMb != 3 {
		t.Errorf("%+v", r)
	}
	if rows[1].MinFreeSlots != 7 || rows[1].Ingested != 0 {
		t.Errorf("%+v", rows[1])
	}
}
