package e2e

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/internal/redistest"
)

// tenantOfFleet is a tenant of a fleet with something of everything.
type tenantOfFleet struct {
	*fleet
	id       string // of the tenant
	broker   string // of it, at the brokers
	buffered int    // messages in the spools
	stored   int    // messages of the same partition that were not
}

// ask sends one request through some gateway and wants a status.
func (o *tenantOfFleet) ask(method, path string, body any, want int) reply {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), 30*time.Second)
	defer cancel()
	r, err := o.call(ctx, 0, method, path, body)
	if err != nil || r.status != want {
		o.t.Fatalf("%s %s: %d %s %v, want %d", method, path, r.status, r.body, err, want)
	}
	return r
}

// another makes a second tenant with a cluster and a key.
func (f *fleet) another(slug string) *fleet {
	f.t.Helper()
	other := *f
	var secret [32]byte
	if _, err := rand.Read(secret[:]); err != nil {
		f.t.Fatal(err)
	}
	other.key = "qk_test_" + base64.RawURLEncoding.EncodeToString(secret[:])
	hash := sha256.Sum256([]byte(other.key))
	err := f.db.QueryRow(f.t.Context(), `SELECT queengate.create_cluster(queengate.create_tenant($1), $1, 'dedicated-s', 'local')::text`, slug).Scan(&other.cluster)
	if err == nil {
		_, err = f.db.Exec(f.t.Context(), `SELECT queengate.issue_api_key($1::uuid, 'k', $2, NULL, '{produce,consume,admin,read}'),
			queengate.set_limit_override($1::uuid, $3)`, other.cluster, hash[:], unlimited)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	eventually(f.t, 20*time.Second, "the gateways to know "+slug, func() bool {
		for n := range f.gateways {
			if r, err := other.call(f.t.Context(), n, "GET", "/api/v1/resources/queues", nil); err != nil || r.status != http.StatusOK {
				return false
			}
		}
		return true
	})
	return &other
}

// fill gives the tenant of a cluster something of everything that the product keeps for one, but for the spool.
func fill(f *fleet) *tenantOfFleet {
	f.t.Helper()
	o := &tenantOfFleet{fleet: f}
	err := f.db.QueryRow(f.t.Context(), `SELECT tenant_id::text, broker_tenant_uuid::text FROM queengate.clusters WHERE id = $1::uuid`, f.cluster).Scan(&o.id, &o.broker)
	if err != nil {
		f.t.Fatal(err)
	}
	o.ask("POST", "/api/v1/configure", m{"queue": "orders", "options": m{"dedupWindowSeconds": 3600, "retryLimit": 3}}, 200)
	for _, lane := range []string{"a", "b", "c"} {
		o.ask("POST", "/api/v1/push", items("orders", lane, lane, 20), 201)
		o.ask("POST", "/api/v1/push", items("sales.events", lane, lane, 20), 201)
	}
	popped := decode[popAnswer](f.t, o.ask("GET", "/api/v1/pop/queue/orders/partition/a?batch=4&consumerGroup=g&subscriptionMode=all", nil, 200).body)
	var acks []m
	for i, msg := range popped.Messages {
		a := ackOf(msg, []string{"dlq", "completed"}[i%2])
		a["leaseId"] = popped.LeaseID
		acks = append(acks, a)
	}
	o.ask("POST", "/api/v1/ack/batch", m{"acknowledgments": acks, "consumerGroup": "g"}, 200)
	o.ask("POST", "/api/v1/traces", m{"transactionId": "a-1", "partitionId": popped.Messages[0].PartitionID, "data": m{"step": 1}, "traceNames": []string{"import"}}, 201)
	o.ask("POST", "/api/v1/consumer-groups/g/queues/orders/partitions/b/seek", m{"toEnd": true}, 200)
	o.ask("POST", "/api/v1/dlq/redrive", m{"queue": "orders", "filter": m{"transactionIds": []string{"a-0"}}, "destination": m{"queue": "orders", "partition": "back"}}, 202)
	eventually(f.t, 30*time.Second, "the redrive to end", func() bool {
		var open int
		err := f.db.QueryRow(f.t.Context(), `SELECT count(*) FROM queen.redrives WHERE tenant_id = $1::uuid AND state IN ('pending', 'running')`, o.broker).Scan(&open)
		return err == nil && open == 0
	})
	return o
}

// restless are tables in which brokers write by themselves: what happened in a minute, and sums that are folded together.
var restless = map[string]bool{"queue_metrics": true, "retained_ledger": true, "tenants": true, "retention_history": true}

// digests is what the database of the cell holds of a tenant, by table, and the rows that the control database has of it.
func (o *tenantOfFleet) digests(partitions []int64) map[string]string {
	o.t.Helper()
	found := map[string]string{}
	rows, err := o.db.Query(o.t.Context(), `SELECT c.table_name::text, max(CASE c.column_name WHEN 'tenant_id' THEN 'tenant_id = $1::uuid AND $2::bigint[] IS NOT NULL'
			WHEN 'partition_id' THEN 'partition_id = ANY ($2) AND $1::uuid IS NOT NULL' END)
		FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
		WHERE c.table_schema = 'queen' AND t.table_type = 'BASE TABLE' AND (c.column_name, c.data_type) IN (('tenant_id', 'uuid'), ('partition_id', 'bigint')) GROUP BY 1`)
	if err != nil {
		o.t.Fatal(err)
	}
	where := map[string]string{"log_partitions": "id = ANY ($2) AND $1::uuid IS NOT NULL"}
	for rows.Next() {
		var table, condition string
		if err := rows.Scan(&table, &condition); err != nil {
			o.t.Fatal(err)
		}
		where[table] = condition
	}
	if err := rows.Err(); err != nil {
		o.t.Fatal(err)
	}
	for table, condition := range where {
		var n int
		var digest string
		err := o.db.QueryRow(o.t.Context(), "SELECT count(*), md5(coalesce(string_agg(r::text, ' ' ORDER BY r::text), '')) FROM queen."+table+" r WHERE "+condition,
			o.broker, partitions).Scan(&n, &digest)
		if err != nil {
			o.t.Fatal(err)
		}
		if n > 0 {
			found[table] = fmt.Sprintf("%d rows %s", n, digest)
		}
	}
	for table, condition := range map[string]string{"tenants": "id", "clusters": "tenant_id", "users": "tenant_id", "cluster_roles": "tenant_id"} {
		var text string
		err := o.db.QueryRow(o.t.Context(), "SELECT coalesce(string_agg(r::text, ' ' ORDER BY r::text), '') FROM queengate."+table+" r WHERE "+condition+" = $1::uuid", o.id).Scan(&text)
		if err != nil {
			o.t.Fatal(err)
		}
		if text != "" {
			found["control "+table] = text
		}
	}
	return found
}

// spooledLane is the partition whose messages go to the spools. Some may be stored before the test lets them, since a broker
// that starts learns of the maintenance a moment later.
const spooledLane = "late"

// lanesOf are the ids of the tenant's partitions, without that one.
func (o *tenantOfFleet) lanesOf() (ids []int64) {
	o.t.Helper()
	err := o.db.QueryRow(o.t.Context(), `SELECT array_agg(p.id) FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.tenant_id = $1::uuid AND p.name <> $2`, o.broker, spooledLane).Scan(&ids)
	if err != nil {
		o.t.Fatal(err)
	}
	return ids
}

// maintenance switches the pushes of the cell to the spools, or back.
func (f *fleet) maintenance(cellKey string, on bool) {
	f.t.Helper()
	req, err := http.NewRequest("POST", "http://"+f.brokers[0].addr+"/api/v1/system/maintenance", strings.NewReader(fmt.Sprintf(`{"enabled":%t}`, on)))
	if err != nil {
		f.t.Fatal(err)
	}
	for line := range strings.Lines(string(f.once("operator-token", "--cell-key", cellKey))) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		req.Header.Set(name, value)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		f.t.Fatalf("maintenance: %d %s %v", resp.StatusCode, text, err)
	}
}

// Two tenants with something of everything, in the database, in Redis and in the spools. One is deleted, every process is
// killed in the middle of it, and all are started again: of the one nothing is left, of the other nothing has changed.
func TestATenantIsWipedThroughAKillOfEverything(t *testing.T) {
	t.Parallel()
	server := redistest.New(t)
	f := startFleetOn(t, pgtest.DSN(t), 1, "QUEENGATE_GATEWAY_WIPE_SETTLE=0s", "QUEENGATE_REDIS_URL=unix://"+server.Options().Addr)
	var cellKey string
	for _, e := range f.env {
		if v, ok := strings.CutPrefix(e, "QUEENGATE_GATEWAY_CELL_KEY_FILE="); ok {
			cellKey = v
		}
	}
	// Limits that nobody reaches, so that Redis has something of both.
	zeta := f.another("zeta")
	if _, err := f.db.Exec(t.Context(), `SELECT queengate.set_limit_override(id, $1::jsonb || '{"max_req_per_sec":1e6,"max_msgs_per_sec":1e6,"max_queues":1000,"max_partitions_per_queue":1000}')
		FROM queengate.clusters`, unlimited); err != nil {
		t.Fatal(err)
	}
	gone, stays := fill(f), fill(zeta)
	for _, o := range []*tenantOfFleet{gone, stays} {
		o.ask("POST", "/api/v1/push", items("orders", spooledLane, "before", 1), 201)
		o.stored++
	}
	f.maintenance(cellKey, true)
	for _, o := range []*tenantOfFleet{gone, stays} {
		eventually(t, 20*time.Second, "every broker to spool", func() bool {
			r := o.ask("POST", "/api/v1/push", items("orders", spooledLane, fmt.Sprint("late", time.Now().UnixNano()), 2), 201)
			buffered := 0
			for _, v := range decode[[]pushResult](t, r.body) {
				if v.Status == "buffered" {
					buffered++
				}
			}
			o.buffered += buffered
			o.stored += 2 - buffered
			return buffered == 2
		})
	}
	goneLanes, staysLanes := gone.lanesOf(), stays.lanesOf()
	before := stays.digests(staysLanes)
	for _, o := range []*tenantOfFleet{gone, stays} {
		if n := len(o.digests(o.lanesOf())); n < 10 {
			t.Fatalf("only %d tables have something of the tenant: %v", n, o.digests(o.lanesOf()))
		}
	}

	// A registration that somebody else holds stops the wipe where messages and queues are gone and the rest is there.
	obstacle, err := f.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := obstacle.Exec(t.Context(), `SELECT FROM queen.group_registrations WHERE tenant_id = $1::uuid FOR UPDATE`, gone.broker); err != nil {
		t.Fatal(err)
	}
	if _, err := f.db.Exec(t.Context(), `SELECT queengate.set_tenant_status($1::uuid, 'deleting')`, gone.id); err != nil {
		t.Fatal(err)
	}
	left := func(sql string) (n int) {
		if err := f.db.QueryRow(t.Context(), sql, gone.broker).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const queues, registrations = `SELECT count(*) FROM queen.queues WHERE tenant_id = $1::uuid`, `SELECT count(*) FROM queen.group_registrations WHERE tenant_id = $1::uuid`
	eventually(t, 30*time.Second, "half a wipe", func() bool { return left(queues) == 0 })
	if left(registrations) == 0 {
		t.Fatal("the wipe was not stopped in the middle")
	}
	if r, err := gone.call(t.Context(), 0, "GET", "/api/v1/resources/queues", nil); err != nil || r.status != http.StatusForbidden {
		t.Errorf("a tenant that is being removed is answered %d %s %v", r.status, r.body, err)
	}
	for _, p := range append(append([]*part(nil), f.gateways...), f.brokers...) {
		p.Kill()
	}
	if err := obstacle.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The dead gateway's lease would be over in a minute; the test makes that minute short.
	if _, err := f.db.Exec(t.Context(), `UPDATE queengate.leases SET until = '-infinity'`); err != nil {
		t.Fatal(err)
	}
	var starting sync.WaitGroup
	for _, p := range append(append([]*part(nil), f.brokers...), f.gateways...) {
		starting.Go(func() { f.start(p) })
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	eventually(t, 60*time.Second, "the end of the tenant", func() bool {
		var there bool
		err := f.db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM queengate.tenants WHERE id = $1::uuid)`, gone.id).Scan(&there)
		return err == nil && !there
	})
	if n := len(gone.digests(goneLanes)); n > 0 {
		t.Errorf("left of it: %v", gone.digests(goneLanes))
	}
	same := func(when string) {
		t.Helper()
		after := stays.digests(staysLanes)
		for table := range restless {
			delete(before, table)
			delete(after, table)
		}
		if d := cmp.Diff(before, after); d != "" {
			t.Errorf("%s the other tenant has changed (-before +after):\n%s", when, d)
		}
	}
	same("after the wipe")

	// The spools come last: what they hold of the tenant is dropped, what they hold of the other is stored.
	f.maintenance(cellKey, false)
	var dropped, waiting float64
	eventually(t, 30*time.Second, "empty spools", func() bool {
		dropped, waiting = 0, 0
		for _, b := range f.brokers {
			dropped += metric(t, "http://"+b.ops+"/metrics", "queengate_spool_dropped_total")
			waiting += metric(t, "http://"+b.ops+"/metrics", "queengate_spool_messages")
		}
		return waiting == 0
	})
	if int(dropped) != gone.buffered {
		t.Errorf("%v buffered messages were dropped, want %d", dropped, gone.buffered)
	}
	if d := gone.digests(goneLanes); len(d) > 0 {
		t.Errorf("the spools brought it back: %v", d)
	}
	popped := decode[popAnswer](t, stays.ask("GET", "/api/v1/pop/queue/orders/partition/"+spooledLane+"?batch=100&consumerGroup=judge&subscriptionMode=all", nil, 200).body)
	if len(popped.Messages) != stays.buffered+stays.stored {
		t.Errorf("the other tenant pops %d messages of the spooled partition, want %d", len(popped.Messages), stays.buffered+stays.stored)
	}

	client := redis.NewClient(server.Options())
	defer client.Close()
	keys := func(cluster string) (found []string) {
		all, err := client.Keys(t.Context(), "*"+cluster+"*").Result()
		if err != nil {
			t.Fatal(err)
		}
		sort.Strings(all)
		return all
	}
	eventually(t, 20*time.Second, "Redis to hold nothing of it", func() bool { return len(keys(gone.cluster)) == 0 })
	if len(keys(stays.cluster)) == 0 {
		t.Error("Redis holds nothing of the other tenant: the test cannot see what a wipe takes there")
	}
	if r, err := gone.call(t.Context(), 1, "GET", "/api/v1/resources/queues", nil); err != nil || r.status != http.StatusUnauthorized {
		t.Errorf("the key of the removed tenant is answered %d %s %v", r.status, r.body, err)
	}
	var audit string
	err = f.db.QueryRow(t.Context(), `SELECT string_agg(action, ' ' ORDER BY at) FROM queengate.operations WHERE tenant_id = $1::uuid AND (action LIKE '%\_deleted' OR action = 'wipe_begun')`, gone.id).Scan(&audit)
	if err != nil || audit != "wipe_begun cluster_deleted tenant_deleted" {
		t.Errorf("the audit says %q, %v", audit, err)
	}
}
