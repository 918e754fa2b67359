package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/queengate/queengate/internal/conf"
	"github.com/queengate/queengate/internal/pgtest"
)

// existingVariables are the names that the existing broker reads, and those of the proxy's database.
const existingVariables = `
PORT QUEEN_BIND_ADDR QUEEN_MAX_BODY_BYTES QUEEN_SERVER_ID QUEEN_APPLY_SCHEMA QUEEN_TENANCY_HEADER QUEEN_KV_TRUSTED_PROXY QUEEN_ENCRYPTION_KEY
PG_HOST PG_PORT PG_USER PG_PASSWORD PG_DATABASE PG_DB DB_POOL_SIZE PG_USE_SSL PG_SSL_REJECT_UNAUTHORIZED PG_SSL_ROOT_CERT QUEEN_STMT_TIMEOUT_MS
PXDB_HOST PXDB_PORT PXDB_USER PXDB_PASSWORD PXDB_DB PXDB_POOL_SIZE PXDB_USE_SSL PXDB_SSL_REJECT_UNAUTHORIZED PXDB_SSL_ROOT_CERT
QUEEN_SYNC_ENABLED QUEEN_MESH_PEERS QUEEN_UDP_PEERS QUEEN_MESH_PORT QUEEN_UDP_NOTIFY_PORT QUEEN_MESH_BIND_ADDR QUEEN_MESH_ADVERTISE_HOST
QUEEN_SYNC_SECRET QUEEN_SYNC_HEARTBEAT_MS QUEEN_SYNC_DEAD_THRESHOLD_MS QUEEN_CACHE_REFRESH_INTERVAL_MS
DEFAULT_TIMEOUT POP_DEFAULT_TIMEOUT_MS DEFAULT_SUBSCRIPTION_MODE
POP_WAIT_INITIAL_INTERVAL_MS POP_WAIT_BACKOFF_THRESHOLD POP_WAIT_BACKOFF_MULTIPLIER POP_WAIT_MAX_INTERVAL_MS
QUEEN_POP_PENDING_GATE QUEEN_POP_FUSION QUEEN_POP_FUSION_SHARDS QUEEN_POP_FUSION_HOLD_MS QUEEN_POP_FUSION_MAX_JOBS QUEEN_POP_FUSION_CONCURRENCY
QUEEN_POP_AUTOPILOT QUEEN_POP_AUTOPILOT_BATCH QUEEN_POP_AUTOPILOT_TARGET_AGE_MS QUEEN_POP_AUTOPILOT_DWELL_MS QUEEN_POP_AUTOPILOT_DWELL_POPS
QUEEN_POP_AUTOPILOT_MAX_LANES QUEEN_POP_AUTOPILOT_BURST_CAP
QUEEN_V2_FUSION_SHARDS QUEEN_V2_FUSION_HOLD_MS QUEEN_V2_FUSION_FRAMES QUEEN_V2_BUNDLE_MAX QUEEN_V2_FUSION_MAX_INFLIGHT QUEEN_V2_FUSION_MIN_FRAMES
QUEEN_V2_FUSION_MIN_WAIT_MS QUEEN_V2_ZSTD_LEVEL QUEEN_V2_BUNDLE_LOG
QUEEN_ACK_FUSION QUEEN_ACK_FUSION_SHARDS QUEEN_ACK_FUSION_HOLD_MS QUEEN_ACK_REGISTRY QUEEN_ACK_REGISTRY_MB QUEEN_DEDUP_CACHE QUEEN_DEDUP_CACHE_MB
QUEEN_HOTLIST QUEEN_HOTLIST_SHARDS QUEEN_HOTLIST_WINDOW_BATCH QUEEN_HOTLIST_RESEED_MS QUEEN_HOTLIST_RESEED_FULL_MS QUEEN_HOTLIST_RESEED_WINDOW_MS
QUEEN_HOTLIST_IDLE_SWEEP_MS QUEEN_HOTLIST_UNSERVED_TRIM_MS QUEEN_HOTLIST_TRACE
QUEEN_ADMISSION_INIT QUEEN_ADMISSION_MIN QUEEN_ADMISSION_MAX QUEEN_ADMISSION_POOL_RESERVE QUEEN_ADMISSION_NOSYNC_BUDGET QUEEN_ADMISSION_SHARE_PUSH
QUEEN_ADMISSION_SHARE_POP QUEEN_ADMISSION_SHARE_ACK QUEEN_ADMISSION_SHARE_MAINT QUEEN_ADMISSION_TICK_MS QUEEN_ADMISSION_TRAIN_GAP_US QUEEN_ADMISSION_TRACE
RETENTION_INTERVAL RETENTION_BATCH_SIZE RETENTION_PARALLELISM QUEEN_RETENTION_DUE_CAP QUEEN_RETENTION_SAFETY_WALK_MS
PARTITION_CLEANUP_DAYS QUEEN_PARTITION_CLEANUP_ENABLED STATS_INTERVAL_MS RETAINED_BYTES_INTERVAL_MS METRICS_FLUSH_MS METRICS_RETENTION_DAYS
FILE_BUFFER_DIR FILE_BUFFER_FLUSH_MS FILE_BUFFER_MAX_BATCH FILE_BUFFER_EVENTS_PER_FILE
QUEEN_KV_POOL_SIZE QUEEN_KV_MAX_VALUE_BYTES QUEEN_KV_MAX_KEY_BYTES QUEEN_KV_MAX_OPS_PER_CALL QUEEN_KV_MAX_KEYS_PER_CALL QUEEN_KV_MAX_READ_BYTES
QUEEN_KV_PREFIX_LIMIT QUEEN_KV_REQUIRE_GRANT QUEEN_KV_READ_RATE QUEEN_KV_READ_BURST QUEEN_KV_WRITE_RATE QUEEN_KV_WRITE_BURST QUEEN_KV_CELL_RATE
QUEEN_KV_MAX_TENANTS QUEEN_KV_USAGE_EVERY_MS QUEEN_KV_QUOTA_REFRESH_MS QUEEN_KV_QUOTA_RELEASE_PERCENT QUEEN_KV_QUOTA_HOT_PERCENT
QUEEN_KV_STANDALONE_SHED_AFTER QUEEN_KV_EXPIRE_EVERY_MS QUEEN_KV_EXPIRE_BATCH
QUEEN_TIMERS_MAX_PAYLOAD_BYTES QUEEN_TIMERS_MAX_HORIZON_S QUEEN_TIMERS_MAX_OPS_PER_CALL
QUEEN_SWEEPER QUEEN_SWEEPER_MIN_SLEEP_MS QUEEN_SWEEPER_MAX_SLEEP_MS QUEEN_SWEEPER_IDLE_MAX_SLEEP_MS QUEEN_SWEEPER_IDLE_AFTER_CYCLES
QUEEN_SWEEPER_LEASE_MS QUEEN_SWEEPER_CLAIM_BATCH QUEEN_SWEEPER_CYCLE_MAX_ROWS QUEEN_SWEEPER_DUE_CAP QUEEN_SWEEPER_MAX_FIRE_BYTES
QUEEN_SWEEPER_MAX_ATTEMPTS QUEEN_SWEEPER_PARALLELISM QUEEN_SWEEPER_ISOLATE_ON_PERMANENT QUEEN_SWEEPER_FIRE_RATE_PER_TENANT
QUEEN_SWEEPER_BACKOFF_MIN_MS QUEEN_SWEEPER_BACKOFF_MAX_MS QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS
QUEEN_EPHEMERAL_MAX_BYTES QUEEN_EPHEMERAL_QUEUE_MAX_BYTES QUEEN_EPHEMERAL_QUEUE_MAX_LENGTH QUEEN_EPHEMERAL_LEASE_S QUEEN_EPHEMERAL_RETRY_LIMIT
QUEEN_EPHEMERAL_IMPLICIT_IDLE_S QUEEN_EPHEMERAL_REQUIRE_GRANT QUEEN_EPHEMERAL_RATE QUEEN_EPHEMERAL_BURST
JWT_ENABLED JWT_ALGORITHM JWT_SECRET JWT_PUBLIC_KEY JWT_JWKS_URL JWT_JWKS_REFRESH_INTERVAL JWT_JWKS_TIMEOUT_MS JWT_ISSUER JWT_AUDIENCE JWT_CLOCK_SKEW
JWT_ROLES_CLAIM JWT_ROLES_ARRAY_CLAIM JWT_ROLE_ADMIN JWT_ROLE_READ_WRITE JWT_ROLE_READ_ONLY JWT_ROLE_WRITE_ONLY JWT_SKIP_PATHS
LOG_LEVEL RUST_LOG QUEEN_LOG_JSON QUEEN_LOG_RATES_MS QUEEN_LOG_TOPN_QUEUES
QUEEN_KAFKA_EMBEDDED QUEEN_SQS_EMBEDDED QUEEN_S3_EMBEDDED
QUEEN_SEG_PUSH_MAX QUEEN_SEG_POP_X QUEEN_VEGAS_ALPHA QUEEN_KV_ENABLED QUEEN_TIMERS_ENABLED`

// loadBroker loads the settings of a broker with the variables.
func loadBroker(env ...string) (*config, *conf.Set, conf.Request, error) {
	c := defaults()
	set := settings(c)
	req, err := set.Load("broker", nil, append(env, "QUEENGATE_BROKER_CELL_KEYS=key.pem"), io.Discard, nil)
	return c, set, req, err
}

func TestNoVariableOfTheExistingBrokerIsIgnoredInSilence(t *testing.T) {
	t.Parallel()
	for name := range strings.FieldsSeq(existingVariables) {
		_, set, req, err := loadBroker(name + "=no value of anything")
		var printed bytes.Buffer
		if err := set.Print(&printed, ""); err != nil {
			t.Fatal(err)
		}
		warned := slices.ContainsFunc(req.Inert, func(v conf.Inert) bool { return v.Name == name && v.Instead != "" })
		taken := strings.Contains(printed.String(), name)
		refused := err != nil && strings.Contains(err.Error(), name)
		if n := map[bool]int{true: 1}; n[warned]+n[taken || refused] != 1 {
			t.Errorf("%s: taken %v, refused %v, warned of %v: want it taken or refused, or warned of", name, taken, refused, warned)
		}
		if refused && !strings.Contains(err.Error(), "no value of anything") && !strings.HasPrefix(name, "PG_") && !strings.HasPrefix(name, "PXDB_") {
			t.Errorf("%s: %v does not say what is wrong", name, err)
		}
	}
}

func TestSwitchesOfTheExistingBroker(t *testing.T) {
	t.Parallel()
	for name, shown := range map[string]func(c *config) bool{
		"PG_USE_SSL":                      func(c *config) bool { return c.Postgres.TLS == "verify" },
		"QUEEN_APPLY_SCHEMA":              func(c *config) bool { return c.Broker.Migrate },
		"QUEEN_DEDUP_CACHE":               func(c *config) bool { return c.Broker.DedupCacheMB > 0 },
		"QUEEN_ACK_REGISTRY":              func(c *config) bool { return c.Broker.LeaseCacheMB > 0 },
		"QUEEN_PARTITION_CLEANUP_ENABLED": func(c *config) bool { return c.Broker.CleanupPartitions },
		"QUEEN_LOG_JSON":                  func(c *config) bool { return c.LogFormat == "json" },
		"QUEEN_POP_AUTOPILOT":             func(c *config) bool { return c.Broker.Autopilot == "on" },
	} {
		for text, want := range map[string]bool{
			"true": true, "TRUE": true, " 1 ": true, "Yes": true, "on": true, "false": false, "0": false, "no": false, "OFF": false,
		} {
			if c, _, _, err := loadBroker(name+"="+text, "PG_HOST=h"); err != nil || shown(c) != want {
				t.Errorf("%s=%q: got %v, %v, want %v", name, text, shown(c), err, want)
			}
		}
		if _, _, _, err := loadBroker(name + "=2"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=2: got %v, want a problem that names it", name, err)
		}
	}
}

func TestNumbersOfTheExistingBrokerMustBeNumbers(t *testing.T) {
	t.Parallel()
	for name := range strings.FieldsSeq(`PORT QUEEN_MAX_BODY_BYTES PG_PORT PXDB_PORT DB_POOL_SIZE PXDB_POOL_SIZE QUEEN_STMT_TIMEOUT_MS DEFAULT_TIMEOUT
		POP_DEFAULT_TIMEOUT_MS QUEEN_POP_AUTOPILOT_BATCH QUEEN_POP_AUTOPILOT_DWELL_POPS QUEEN_V2_BUNDLE_MAX QUEEN_HOTLIST_WINDOW_BATCH QUEEN_ACK_REGISTRY_MB QUEEN_DEDUP_CACHE_MB
		JWT_JWKS_REFRESH_INTERVAL JWT_JWKS_TIMEOUT_MS JWT_CLOCK_SKEW QUEEN_MESH_PORT QUEEN_SYNC_HEARTBEAT_MS
		RETENTION_INTERVAL RETENTION_BATCH_SIZE RETENTION_PARALLELISM PARTITION_CLEANUP_DAYS METRICS_RETENTION_DAYS`) {
		for _, text := range []string{"12x", "1.5", "5s", "-", "99999999999999999999"} {
			if _, _, _, err := loadBroker(name+"="+text, "PXDB_HOST=h"); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s=%s: got %v, want a problem that names it", name, text, err)
			}
		}
	}
}

func TestVariablesOfTheExistingBrokerMeanWhatTheyMeant(t *testing.T) {
	t.Parallel()
	for rule, tc := range map[string]struct {
		env  string // several, separated by spaces
		got  func(c *config) any
		want any
	}{
		"a port":                                 {"PORT=7000", func(c *config) any { return c.Broker.Addr }, "0.0.0.0:7000"},
		"a host alone":                           {"QUEEN_BIND_ADDR=10.0.0.1", func(c *config) any { return c.Broker.Addr }, "10.0.0.1:6632"},
		"an IPv6 host":                           {"QUEEN_BIND_ADDR=::1 PORT=7", func(c *config) any { return c.Broker.Addr }, "[::1]:7"},
		"an IPv6 host in brackets":               {"QUEEN_BIND_ADDR=[::1] PORT=7", func(c *config) any { return c.Broker.Addr }, "[::1]:7"},
		"DEFAULT_TIMEOUT before its other name":  {"DEFAULT_TIMEOUT=1000 POP_DEFAULT_TIMEOUT_MS=2000", func(c *config) any { return c.PopTimeout.String() }, "1s"},
		"its other name":                         {"POP_DEFAULT_TIMEOUT_MS=2000", func(c *config) any { return c.PopTimeout.String() }, "2s"},
		"the sweep, down to 200 ms":              {"RETENTION_INTERVAL=200", func(c *config) any { return c.Broker.RetentionInterval.String() }, "200ms"},
		"the sweep, not below":                   {"RETENTION_INTERVAL=1", func(c *config) any { return c.Broker.RetentionInterval.String() }, "200ms"},
		"the history, at least two days":         {"METRICS_RETENTION_DAYS=1", func(c *config) any { return c.Broker.HistoryDays }, 2},
		"a bound of a statement":                 {"QUEEN_STMT_TIMEOUT_MS=1500", func(c *config) any { return c.queues().StatementTimeout.String() }, "1.5s"},
		"a name":                                 {"QUEEN_SERVER_ID=b7", func(c *config) any { return c.Broker.Name }, "b7"},
		"a cache":                                {"QUEEN_DEDUP_CACHE_MB=7", func(c *config) any { return c.Broker.DedupCacheMB }, 7},
		"a cache that is off, whatever its size": {"QUEEN_DEDUP_CACHE=off QUEEN_DEDUP_CACHE_MB=7", func(c *config) any { return c.Broker.DedupCacheMB }, 0},
		"the autopilot in shadow":                {"QUEEN_POP_AUTOPILOT=Shadow QUEEN_POP_AUTOPILOT_BATCH=9", func(c *config) any { return fmt.Sprint(c.Broker.Autopilot, c.Broker.AutopilotBatch) }, "shadow9"},
		"a level in capitals":                    {"LOG_LEVEL=WARNING", func(c *config) any { return c.LogLevel }, "warn"},
		"a level we do not have":                 {"LOG_LEVEL=trace", func(c *config) any { return c.LogLevel }, "debug"},
		"the other word for new":                 {"DEFAULT_SUBSCRIPTION_MODE=new-only", func(c *config) any { return c.Broker.SubscriptionMode }, "new"},
		"a database, all by default": {
			"PG_USER=u", func(c *config) any { return c.Postgres.DSN.Reveal() },
			"postgres://u:postgres@localhost:5432/postgres?sslmode=disable",
		},
		"the first name of a database": {
			"PG_HOST=h PG_DB=b PG_DATABASE=a", func(c *config) any { return c.Postgres.DSN.Reveal() },
			"postgres://postgres:postgres@h:5432/a?sslmode=disable",
		},
		"several hosts": {
			"PG_HOST=a,b PG_PORT=6000", func(c *config) any { return c.Postgres.DSN.Reveal() },
			"postgres://postgres:postgres@a:6000,b:6000/postgres?sslmode=disable",
		},
		"a socket": {
			"PG_HOST=/run/pg", func(c *config) any { return c.Postgres.DSN.Reveal() },
			"postgres://postgres:postgres@/postgres?host=%2Frun%2Fpg&port=5432&sslmode=disable",
		},
		"a mesh that is switched off": {"QUEEN_SYNC_ENABLED=no QUEEN_MESH_PEERS=a,b QUEEN_SYNC_SECRET=0123456789abcdef", func(c *config) any { return len(c.Mesh.Peers) }, 0},
		"a mesh":                      {"QUEEN_UDP_PEERS=a,b QUEEN_SYNC_SECRET=0123456789abcdef", func(c *config) any { return len(c.Mesh.Peers) }, 2},
		"the mesh's older port":       {"QUEEN_UDP_NOTIFY_PORT=7 QUEEN_MESH_BIND_ADDR=::1", func(c *config) any { return c.Mesh.Addr }, "[::1]:7"},
		"TLS":                         {"PG_HOST=h PG_USE_SSL=true", func(c *config) any { return c.Postgres.TLS }, "verify"},
		"TLS with whoever":            {"PG_HOST=h PG_USE_SSL=1 PG_SSL_REJECT_UNAUTHORIZED=no", func(c *config) any { return c.Postgres.TLS }, "insecure"},
		"no TLS":                      {"PG_HOST=h PG_USE_SSL=0 PG_SSL_REJECT_UNAUTHORIZED=yes", func(c *config) any { return c.Postgres.TLS }, "off"},
		"TLS of the control database": {"PXDB_HOST=h PXDB_USE_SSL=1", func(c *config) any { return c.Control.TLS }, "verify"},
		"TLS beside an address of ours": {"QUEENGATE_POSTGRES_DSN=postgres://u@h/d PG_USE_SSL=1", func(c *config) any {
			return c.queues().TLS
		}, "verify"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			c, _, _, err := loadBroker(strings.Fields(tc.env)...)
			if err != nil {
				t.Fatal(err)
			}
			if got := tc.got(c); fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestContradictionsOfTheExistingVariablesStopTheStart(t *testing.T) {
	t.Parallel()
	for rule, tc := range map[string]struct {
		env  []string
		want string
	}{
		"a host with a port":              {[]string{"QUEEN_BIND_ADDR=1.2.3.4:80"}, "want a host without a port"},
		"a name with a port":              {[]string{"QUEEN_BIND_ADDR=host:80"}, "want a host without a port"},
		"a bad authority":                 {[]string{"PG_HOST=h", "PG_USE_SSL=true", "PG_SSL_ROOT_CERT=/etc/ca.pem"}, "is not PEM"},
		"an authority without TLS":        {[]string{"PG_HOST=h", "PG_SSL_ROOT_CERT=" + testCA}, "PG_SSL_ROOT_CERT is set without PG_USE_SSL"},
		"an authority, and TLS off":       {[]string{"PG_HOST=h", "PG_USE_SSL=off", "PG_SSL_ROOT_CERT=" + testCA}, "PG_SSL_ROOT_CERT is set without PG_USE_SSL"},
		"TLS twice":                       {[]string{"QUEENGATE_POSTGRES_DSN=postgres://hunter2@h/d?sslmode=disable", "PG_USE_SSL=true"}, "want one of them"},
		"TLS of no database":              {[]string{"PG_USE_SSL=true"}, "want postgres.dsn too"},
		"TLS of no control database":      {[]string{"PXDB_USE_SSL=true"}, "want postgres.control_dsn too"},
		"a control database without host": {[]string{"PXDB_USER=u"}, "PXDB_HOST is missing"},
		"an autopilot of no known mode":   {[]string{"QUEEN_POP_AUTOPILOT=maybe"}, "want one of on, shadow, off"},
		"a batch of nothing":              {[]string{"QUEEN_POP_AUTOPILOT_BATCH=0"}, "want 1..10000"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			if _, _, _, err := loadBroker(tc.env...); err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want %q and no secret", err, tc.want)
			}
		})
	}
	// An authority counts, whatever is said of verification.
	c, _, _, err := loadBroker("PG_HOST=h", "PG_USE_SSL=true", "PG_SSL_REJECT_UNAUTHORIZED=false", "PG_SSL_ROOT_CERT="+testCA)
	if err != nil || c.Postgres.TLS != "verify" || c.Postgres.CA != testCA {
		t.Errorf("got %s, %v, want verify", c.Postgres.TLS, err)
	}
}

func TestAStartWarnsOfVariablesWithoutEffect(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]bool{"broker": true, "up": true, "gateway": false} {
		c := defaults()
		req, err := settings(c).Load(command, nil, []string{
			"QUEEN_HOTLIST=true", "QUEEN_VEGAS_BETA=1", "QUEEN_SWEEPER=", "QUEENGATE_BROKER_CELL_KEYS=k", "QUEENGATE_GATEWAY_CELL_KEY=k",
		}, io.Discard, nil)
		if command != "gateway" && err != nil {
			t.Errorf("%s: %v", command, err)
		}
		if got := len(req.Inert) == 2; got != want {
			t.Errorf("%s: got %v, want warnings: %v", command, req.Inert, want)
		}
	}
	var out, errs strings.Builder
	if got := app(context.Background(), []string{"up", "--check-config"}, []string{"STATS_INTERVAL_MS=1"}, &out, &errs); got != 0 {
		t.Fatalf("status %d: %s", got, errs.String())
	}
	if want := "STATS_INTERVAL_MS has no effect: statistics are computed when they are asked for\n"; !strings.Contains(out.String(), want) {
		t.Errorf("check-config: got %q, want %q in it", out.String(), want)
	}
}

// testCA is a certificate of an authority that signs nothing.
const testCA = `-----BEGIN CERTIFICATE-----
MIIBdjCCARugAwIBAgIUSEE1w41mU+ylcyrASyU8RA6sEaQwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMzAwMTEzMjhaGA8yMTI2MTEwNjAxMTMy
OFowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABD23
fYXJuo5KRPw4iLgmPOf2QKACJZY4D3g+XLfrGHySe3GuI5ouQ62EO8pPWhdYmkBC
Y9V5kX5cMCQqNHEwWmWjUzBRMB0GA1UdDgQWBBTI4F9VqVsFJZ8mZ4BD24TmjLk1
FjAfBgNVHSMEGDAWgBTI4F9VqVsFJZ8mZ4BD24TmjLk1FjAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0kAMEYCIQCdlrzJ39PLBE9CoFl/s8MtFf945DfCAeAf
w+0X0ENWlwIhAM2KFcHnh+LRvcXA+Zeug8krnSOksy/7gqBfUCpF11g0
-----END CERTIFICATE-----
`

func TestABrokerBringsTheSchemaUpToDateWhenAskedTo(t *testing.T) {
	t.Parallel()
	addr := freeAddr(t)
	part(t, []string{
		"QUEENGATE_POSTGRES_DSN=" + pgtest.DSN(t), "QUEEN_APPLY_SCHEMA=true", "QUEENGATE_BROKER_TENANCY=off", "QUEEN_STMT_TIMEOUT_MS=20000",
	}, "broker", "--broker", addr)
	resp, err := http.Post("http://"+addr+"/api/v1/push", "application/json", strings.NewReader(`{"items":[{"queue":"q","payload":1}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); resp.StatusCode != 201 || !strings.Contains(string(text), `"queued"`) {
		t.Errorf("got %d %s, %v, want a message queued", resp.StatusCode, text, err)
	}
}
