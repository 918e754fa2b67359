package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/queengate/queengate/internal/conf"
)

// Variables of the existing broker and proxy that our settings are made of. What they say wrong is an error: the
// existing system took its default for a number that it could not read.

// address reads a pair of a port and an optional host, which must not bring a port of its own. older is an older name of
// the port's.
func address(port, host, usual string, older ...string) conf.Option {
	return conf.EnvFunc(func(get func(string) string) (string, error) {
		h := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(get(host)), "["), "]")
		if strings.Contains(h, ":") && net.ParseIP(h) == nil {
			return "", fmt.Errorf("%s = %s: want a host without a port, which is in %s", host, get(host), port)
		}
		p := get(port)
		for _, name := range older {
			p = or(p, get(name))
		}
		return net.JoinHostPort(or(h, "0.0.0.0"), or(strings.TrimSpace(p), usual)), nil
	}, append([]string{port, host}, older...)...)
}

// milliseconds reads a variable that counts milliseconds; less than least counts as least, as it always did.
func milliseconds(name string, least time.Duration) conf.Option {
	return counted(name, "ms", least/time.Millisecond)
}

// seconds reads a variable that counts seconds; less than least counts as least, as it always did.
func seconds(name string, least time.Duration) conf.Option {
	return counted(name, "s", least/time.Second)
}

func counted(name, unit string, least time.Duration) conf.Option {
	return conf.EnvFunc(func(get func(string) string) (string, error) {
		n, err := whole(get, name)
		return strconv.FormatInt(max(n, int64(least)), 10) + unit, err
	}, name)
}

// atLeast reads a whole number; less than least counts as least, as it always did.
func atLeast(name string, least int64) conf.Option {
	return conf.EnvFunc(func(get func(string) string) (string, error) {
		n, err := whole(get, name)
		return strconv.FormatInt(max(n, least), 10), err
	}, name)
}

func whole(get func(string) string, name string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(get(name)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s = %s: want a whole number", name, get(name))
	}
	return n, nil
}

// bounded reads a size in MiB with a switch before it: off is 0.
func bounded(on, size string) conf.Option {
	return conf.EnvFunc(func(get func(string) string) (string, error) {
		enabled, err := yes(get, on, true)
		if err != nil || enabled {
			return strings.TrimSpace(get(size)), err
		}
		return "0", nil
	}, on, size)
}

// yes reads a switch.
func yes(get func(string) string, name string, usual bool) (bool, error) {
	if get(name) == "" {
		return usual, nil
	}
	v, err := conf.ParseBool(get(name))
	if err != nil {
		return usual, fmt.Errorf("%s = %s: %w", name, get(name), err)
	}
	return v, nil
}

// logLevel reads LOG_LEVEL, which knew one level more and any case.
func logLevel(get func(string) string) (string, error) {
	level := strings.ToLower(strings.TrimSpace(get("LOG_LEVEL")))
	switch level {
	case "trace":
		return "debug", nil
	case "warning":
		return "warn", nil
	}
	return level, nil
}

// subscriptionMode reads DEFAULT_SUBSCRIPTION_MODE, which knew two words for the same.
func subscriptionMode(get func(string) string) (string, error) {
	mode := strings.ToLower(strings.TrimSpace(get("DEFAULT_SUBSCRIPTION_MODE")))
	if mode == "new-only" {
		return "new", nil
	}
	return mode, nil
}

func logFormat(get func(string) string) (string, error) {
	asJSON, err := yes(get, "QUEEN_LOG_JSON", true)
	if asJSON {
		return "json", err
	}
	return "text", err
}

func autopilot(get func(string) string) (string, error) {
	mode := strings.ToLower(strings.TrimSpace(get("QUEEN_POP_AUTOPILOT")))
	if on, err := conf.ParseBool(mode); err == nil {
		return map[bool]string{true: "on", false: "off"}[on], nil
	}
	return mode, nil
}

// meshPeers reads the peers, which a switch could make of no account.
func meshPeers(get func(string) string) (string, error) {
	enabled, err := yes(get, "QUEEN_SYNC_ENABLED", true)
	if err != nil || !enabled {
		return "", err
	}
	return or(get("QUEEN_MESH_PEERS"), get("QUEEN_UDP_PEERS")), nil
}

// database is a set of variables that describe a PostgreSQL, and the settings they become.
type database struct {
	prefix               string
	host, password, name string   // where a variable is not set
	names                []string // of the database, the first set one counting
	ownTLS, ownCA        string   // our variables that say what prefix_USE_SSL would
}

var (
	existingBroker = database{
		prefix: "PG_", host: "localhost", password: "postgres", name: "postgres", names: []string{"PG_DATABASE", "PG_DB"},
		ownTLS: "QUEENGATE_POSTGRES_TLS", ownCA: "QUEENGATE_POSTGRES_TLS_CA",
	}
	existingControl = database{
		prefix: "PXDB_", name: "queen_proxy", names: []string{"PXDB_DB"},
		ownTLS: "QUEENGATE_POSTGRES_CONTROL_TLS", ownCA: "QUEENGATE_POSTGRES_CONTROL_TLS_CA",
	}
)

func (d database) variable(name string) string { return d.prefix + name }

func (d database) address() conf.Option {
	names := []string{d.variable("HOST"), d.variable("PORT"), d.variable("USER"), d.variable("PASSWORD")}
	return conf.EnvFunc(d.dsn, append(names, d.names...)...)
}

// dsn makes an address of the variables. Without a word about TLS it is in the clear, as it always was.
func (d database) dsn(get func(string) string) (string, error) {
	host, port := or(strings.TrimSpace(get(d.variable("HOST"))), d.host), or(strings.TrimSpace(get(d.variable("PORT"))), "5432")
	if host == "" {
		return "", fmt.Errorf("%s is missing: want the host of the database beside its other variables", d.variable("HOST"))
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("%s = %s: want 1..65535", d.variable("PORT"), port)
	}
	name := d.name
	for _, v := range d.names {
		if get(v) != "" {
			name = get(v)
			break
		}
	}
	u := url.URL{
		Scheme: "postgres", Path: "/" + name,
		User: url.UserPassword(or(get(d.variable("USER")), "postgres"), or(get(d.variable("PASSWORD")), d.password)),
	}
	more := url.Values{}
	if strings.HasPrefix(host, "/") { // the folder of a socket
		more.Set("host", host)
		more.Set("port", port)
	} else {
		hosts := strings.Split(host, ",")
		for i, h := range hosts {
			hosts[i] = net.JoinHostPort(strings.TrimSpace(h), port)
		}
		u.Host = strings.Join(hosts, ",")
	}
	if get(d.variable("USE_SSL"))+get(d.ownTLS)+get(d.ownCA)+get(d.ownCA+"_FILE") == "" {
		more.Set("sslmode", "disable")
	}
	u.RawQuery = more.Encode()
	return u.String(), nil
}

func (d database) tls() conf.Option {
	return conf.EnvFunc(func(get func(string) string) (string, error) {
		use, err1 := yes(get, d.variable("USE_SSL"), false)
		verify, err2 := yes(get, d.variable("SSL_REJECT_UNAUTHORIZED"), true)
		switch err := errors.Join(err1, err2); {
		case err != nil:
			return "", err
		case !use && get(d.variable("SSL_ROOT_CERT")) != "":
			return "", fmt.Errorf("%s is set without %s = true: want TLS, or no certificate", d.variable("SSL_ROOT_CERT"), d.variable("USE_SSL"))
		case get(d.variable("USE_SSL")) == "":
			return "", nil
		case !use:
			return "off", nil
		case verify || get(d.variable("SSL_ROOT_CERT")) != "": // an authority counts, whatever else is said
			return "verify", nil
		}
		return "insecure", nil
	}, d.variable("USE_SSL"), d.variable("SSL_REJECT_UNAUTHORIZED"), d.variable("SSL_ROOT_CERT"))
}

func or(v, fallback string) string {
	if v == "" {
		return fallback
	}
	return v
}

// inertVariables are the variables of the existing broker that have no effect here, and what is there instead. A name is
// the prefix and one of the endings; a lone dash ends nothing.
var inertVariables = []struct{ instead, prefix, endings string }{
	{"a broker believes the tenant of a gateway's signed token only: broker.tenancy, broker.cell_keys", "QUEEN_", "TENANCY_HEADER KV_TRUSTED_PROXY"},
	{"the level is log.level, also by LOG_LEVEL", "RUST_LOG", "-"},
	{"rates are in /metrics and in the history of a queue", "QUEEN_LOG_", "RATES_MS TOPN_QUEUES"},
	{"brokers find each other, and themselves, among mesh.peers", "QUEEN_", "MESH_ADVERTISE_HOST"},
	{"what a broker remembers follows the database's version of it, every second", "QUEEN_", "CACHE_REFRESH_INTERVAL_MS"},

	{"a parked poll is woken and does not look by itself", "POP_WAIT_", "INITIAL_INTERVAL_MS BACKOFF_THRESHOLD BACKOFF_MULTIPLIER MAX_INTERVAL_MS"},
	{"a claim begins with what is known to be ready", "QUEEN_", "POP_PENDING_GATE"},
	{"concurrent pops always share statements, and none is held back for it", "QUEEN_POP_FUSION", "- _SHARDS _HOLD_MS _MAX_JOBS _CONCURRENCY"},
	{"concurrent acks always share statements, and none is held back for it", "QUEEN_ACK_FUSION", "- _SHARDS _HOLD_MS"},
	{"the choice follows what a group's claims yield and how many of its consumers wait", "QUEEN_POP_AUTOPILOT_", "TARGET_AGE_MS DWELL_MS MAX_LANES BURST_CAP"},

	{"a push leaves at once, or with the next statement, whose size sets itself up to broker.bundle_partitions", "QUEEN_V2_FUSION_", "SHARDS HOLD_MS FRAMES MAX_INFLIGHT MIN_FRAMES MIN_WAIT_MS"},
	{"the level of compression is fixed: the one that costs least for what it saves", "QUEEN_V2_", "ZSTD_LEVEL"},
	{"shared statements are in /metrics", "QUEEN_V2_", "BUNDLE_LOG"},
	{"ready partitions are known from pushes and from the change feed, always", "QUEEN_HOTLIST", `- _SHARDS _RESEED_MS _RESEED_FULL_MS
		_RESEED_WINDOW_MS _IDLE_SWEEP_MS _UNSERVED_TRIM_MS _TRACE`},
	{"statements are shared, and postgres.broker_pool bounds them; there is no admission to tune", "QUEEN_ADMISSION_", `INIT MIN MAX POOL_RESERVE NOSYNC_BUDGET
		SHARE_PUSH SHARE_POP SHARE_ACK SHARE_MAINT TICK_MS TRAIN_GAP_US TRACE`},

	{"what is due is found by an index; broker.retention_interval and broker.retention_batch_size pace it", "QUEEN_RETENTION_", "DUE_CAP SAFETY_WALK_MS"},
	{"statistics are computed when they are asked for", "STATS_", "INTERVAL_MS"},
	{"retained bytes are counted with every change and summed within a second", "RETAINED_BYTES_", "INTERVAL_MS"},
	{"the history has a row per minute and queue with activity, written when the minute ends", "METRICS_", "FLUSH_MS"},

	{"the spool writes and drains as fast as its disk and the database let it; broker.spool_max_bytes bounds it", "FILE_BUFFER_", "FLUSH_MS MAX_BATCH EVENTS_PER_FILE"},
	{"there is no key-value store", "QUEEN_KV_", `POOL_SIZE MAX_VALUE_BYTES MAX_KEY_BYTES MAX_OPS_PER_CALL MAX_KEYS_PER_CALL MAX_READ_BYTES PREFIX_LIMIT
		REQUIRE_GRANT READ_RATE READ_BURST WRITE_RATE WRITE_BURST CELL_RATE MAX_TENANTS USAGE_EVERY_MS QUOTA_REFRESH_MS QUOTA_RELEASE_PERCENT
		QUOTA_HOT_PERCENT STANDALONE_SHED_AFTER EXPIRE_EVERY_MS EXPIRE_BATCH`},
	{"there are no timers", "QUEEN_TIMERS_", "MAX_PAYLOAD_BYTES MAX_HORIZON_S MAX_OPS_PER_CALL"},
	{"there are no timers", "QUEEN_SWEEPER", `- _MIN_SLEEP_MS _MAX_SLEEP_MS _IDLE_MAX_SLEEP_MS _IDLE_AFTER_CYCLES _LEASE_MS _CLAIM_BATCH _CYCLE_MAX_ROWS _DUE_CAP
		_MAX_FIRE_BYTES _MAX_ATTEMPTS _PARALLELISM _ISOLATE_ON_PERMANENT _FIRE_RATE_PER_TENANT _BACKOFF_MIN_MS _BACKOFF_MAX_MS _TRANSIENT_BACKOFF_MS`},
	{"there are no ephemeral queues", "QUEEN_EPHEMERAL_", "MAX_BYTES QUEUE_MAX_BYTES QUEUE_MAX_LENGTH LEASE_S RETRY_LIMIT IMPLICIT_IDLE_S REQUIRE_GRANT RATE BURST"},
	{"there is no such facade", "QUEEN_", "KAFKA_EMBEDDED SQS_EMBEDDED S3_EMBEDDED"},
	{"it had lost its effect in the existing broker too", "QUEEN_", "SEG_PUSH_* SEG_POP_* VEGAS_* KV_ENABLED TIMERS_ENABLED"},
}

func declareInert(s *conf.Set) {
	for _, v := range inertVariables {
		var names []string
		for ending := range strings.FieldsSeq(v.endings) {
			names = append(names, v.prefix+strings.TrimPrefix(ending, "-"))
		}
		s.Inert(v.instead, names...)
	}
}
