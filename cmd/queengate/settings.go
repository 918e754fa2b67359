package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"

	"github.com/queengate/queengate/broker/janitor"
	"github.com/queengate/queengate/broker/seal"
	"github.com/queengate/queengate/internal/conf"
	"github.com/queengate/queengate/internal/pg"
)

// config is every setting of the program. A command reads the sections that name it.
type config struct {
	Data string

	HTTP, HTTPS, Ops string

	LogLevel, LogFormat string

	Postgres    conf.Secret
	Control     conf.Secret
	BrokerPool  int32
	ControlPool int32
	Redis       conf.Secret

	TLSCert, TLSKey string

	Gateway gatewayConfig
	Broker  brokerConfig
	Mesh    meshConfig
}

type gatewayConfig struct {
	CellKey      conf.Secret
	Domains      []string
	SharedHosts  []string
	MaxBodyBytes int64
	MaxConns     int
	LongPollMax  time.Duration
	DrainDelay   time.Duration
	DrainTime    time.Duration
	JWTIssuer    string
	JWTAudience  string
	JWTSecret    conf.Secret
	JWTPublicKey string
	JWTKeys      []string
}

type brokerConfig struct {
	Addr             string
	Cell             string
	CellKeys         []string
	Tenancy          bool
	MaxBodyBytes     int
	MaxParked        int
	MaxPendingBytes  int64
	WindowBatch      int
	ConfigureMode    string
	SubscriptionMode string
	LeaseAsync       bool
	EncryptionKey    conf.Secret
	ReadKeys         conf.Secret
	DrainDelay       time.Duration
	DrainTime        time.Duration

	RetentionInterval    time.Duration
	RetentionBatch       int
	RetentionParallelism int
	CleanupDays          int
	CleanupPartitions    bool
	HistoryDays          int

	JWT jwtConfig
}

// defaults are the values in force when no source names another.
func defaults() *config {
	return &config{
		HTTP: "127.0.0.1:8080", HTTPS: "127.0.0.1:8443", Ops: "127.0.0.1:9090",
		LogLevel: "info", LogFormat: "json", BrokerPool: 32, ControlPool: 8,
		Gateway: gatewayConfig{
			SharedHosts: []string{"localhost", "127.0.0.1", "::1"}, MaxBodyBytes: 16 << 20, MaxConns: 50_000,
			LongPollMax: 90 * time.Second, DrainTime: 25 * time.Second,
		},
		Broker: brokerConfig{
			Addr: "127.0.0.1:6632", Cell: "local", Tenancy: true, MaxBodyBytes: 64 << 20, MaxParked: 50_000,
			MaxPendingBytes: 256 << 20, WindowBatch: 100,
			ConfigureMode: "replace", SubscriptionMode: "new", DrainTime: 20 * time.Second,
			RetentionInterval: 5 * time.Second, RetentionBatch: 1000, RetentionParallelism: 1, CleanupDays: 30, CleanupPartitions: true, HistoryDays: 90,
			JWT: defaultJWT(),
		},
		Mesh: meshConfig{Addr: "127.0.0.1:6633", Heartbeat: time.Second, Dead: 5 * time.Second},
	}
}

// dataDir returns the data folder: named, or root's in the place for it, or one beside where the command was called.
func (c *config) dataDir() string {
	switch {
	case c.Data != "":
		return c.Data
	case os.Geteuid() == 0:
		return "/var/lib/queengate"
	}
	return "data"
}

// settings declares every setting over c.
func settings(c *config) *conf.Set {
	s := &conf.Set{}

	s.Section("", "State.", "up")
	s.String(&c.Data, "data", "Data folder; without one ./data, or /var/lib/queengate for root.", conf.Flag("data"))

	s.Section("", "Client addresses.", "up", "gateway")
	s.Addr(&c.HTTP, "http", "Listen address for plain HTTP.", conf.Flag("http"), address("QUEEN_PROXY_PORT", "QUEEN_PROXY_BIND_ADDR"))
	s.Addr(&c.HTTPS, "https", "Listen address for HTTPS; `gateway` uses it once it has a certificate.", conf.Flag("https"))

	s.Section("", "Operators' port. It serves /metrics, /livez, /readyz and /healthz without credentials: for a private network only.", "up", "gateway", "broker")
	s.Addr(&c.Ops, "ops", "Listen address of the operators' port.", conf.Flag("ops"))

	s.Section("log", "Log.", "up", "gateway", "broker")
	s.Enum(&c.LogLevel, "level", "Least level that is written; info has one line per request. `up` writes it to log/queengate.log in the data folder, and warnings to the terminal too.",
		[]string{"debug", "info", "warn", "error"}, conf.Env("LOG_LEVEL"))
	s.Enum(&c.LogFormat, "format", "Form of the lines.", []string{"json", "text"}, conf.EnvFunc(func(get func(string) string) string {
		if get("QUEEN_LOG_JSON") == "false" {
			return "text"
		}
		return "json"
	}, "QUEEN_LOG_JSON"))

	s.Section("postgres", "Databases.", "up", "gateway", "broker", "migrate", "bootstrap")
	s.Secret(&c.Postgres, "dsn", "Address of PostgreSQL, as a URL or key=value text. `up` starts a private one without it.", conf.Flag("postgres"),
		conf.EnvFunc(postgresURL("PG_", "postgres", "PG_DATABASE", "PG_DB"), "PG_HOST", "PG_PORT", "PG_USER", "PG_PASSWORD", "PG_DATABASE", "PG_DB", "PG_USE_SSL", "PG_SSL_REJECT_UNAUTHORIZED"))
	s.Secret(&c.Control, "control_dsn", "Address of the control database (tenants, plans, keys) when it is another than postgres.dsn.",
		conf.EnvFunc(postgresURL("PXDB_", "queen_proxy", "PXDB_DB"), "PXDB_HOST", "PXDB_PORT", "PXDB_USER", "PXDB_PASSWORD", "PXDB_DB", "PXDB_USE_SSL", "PXDB_SSL_REJECT_UNAUTHORIZED"))
	conf.Int(s, &c.BrokerPool, "broker_pool", "Connections of a broker.", 4, 1000, conf.Env("DB_POOL_SIZE"))
	conf.Int(s, &c.ControlPool, "control_pool", "Connections of a gateway to the control database.", 2, 1000, conf.Env("PXDB_POOL_SIZE"))
	s.Check(func() error { return validDSN("postgres.dsn", c.Postgres) })
	s.Check(func() error { return validDSN("postgres.control_dsn", c.Control) })

	s.Section("redis", "Redis. It is checked at the start and shown in /healthz; one gateway keeps its limits exactly, in memory, without it.", "up", "gateway")
	s.Secret(&c.Redis, "url", "Address, redis://[user:password@]host:port/db, rediss:// for TLS, or unix:///path.", conf.Flag("redis"))
	s.Check(func() error {
		if c.Redis == "" {
			return nil
		}
		if _, err := redis.ParseURL(c.Redis.Reveal()); err != nil {
			return errors.New("redis.url = redacted: want redis://host:port, rediss:// or unix://")
		}
		return nil
	})

	s.Section("tls", "Certificate. It serves the HTTPS address and is read again when its files change; `up` makes a local authority without it.", "up", "gateway")
	s.String(&c.TLSCert, "cert", "PEM file with the certificate and its chain.", conf.Env("QUEEN_PROXY_TLS_CERT"))
	s.String(&c.TLSKey, "key", "PEM file with the private key.", conf.Env("QUEEN_PROXY_TLS_KEY"))
	s.Check(func() error {
		if (c.TLSCert == "") != (c.TLSKey == "") {
			return errors.New("tls.cert and tls.key: want both or neither")
		}
		return nil
	})

	c.Gateway.declare(s)
	c.Broker.declare(s)
	c.Mesh.declare(s)
	return s
}

func (c *gatewayConfig) declare(s *conf.Set) {
	s.Section("gateway", "Gateway.", "up", "gateway")
	s.List(&c.Domains, "domains", "Suffixes under which the first label of a host names a cluster; without one, any suffix.")
	s.List(&c.SharedHosts, "shared_hosts", "Hosts that name no cluster: it comes from the credential.", conf.Env("QUEEN_PROXY_SHARED_HOSTS"))
	conf.Int(s, &c.MaxBodyBytes, "max_body_bytes", "Largest request body, whatever the plan says.", 1<<10, 1<<30, conf.Env("QUEEN_PROXY_MAX_BODY_BYTES"))
	conf.Int(s, &c.MaxConns, "max_conns", "Open client connections.", 16, 1_000_000, conf.Env("QUEEN_EDGE_MAX_CONNS"))
	s.Duration(&c.LongPollMax, "long_poll_max", "Longest wait of a poll.", time.Second, 10*time.Minute, milliseconds("QUEEN_PROXY_LONGPOLL_MAX_MS"))
	s.Duration(&c.DrainDelay, "drain_delay", "How long readiness is red before the drain begins, for load balancers.", 0, 5*time.Minute)
	s.Duration(&c.DrainTime, "drain_time", "For requests under way when service ends.", time.Second, 5*time.Minute, milliseconds("QUEEN_PROXY_SHUTDOWN_DRAIN_MS"))
	s.String(&c.JWTIssuer, "jwt_issuer", "Issuer of session tokens; needed with a key.", conf.Env("QUEEN_PROXY_JWT_ISS"))
	s.String(&c.JWTAudience, "jwt_audience", "Audience that session tokens must name; without one, any.", conf.Env("QUEEN_PROXY_JWT_AUD"))
	s.Secret(&c.JWTSecret, "jwt_secret", "HS256 secret of session tokens, at least 32 bytes.", conf.Env("QUEEN_PROXY_JWT_SECRET"))
	s.String(&c.JWTPublicKey, "jwt_public_key", "Public key of session tokens without a key id, as PEM text: Ed25519 (EdDSA) or RSA (RS256).", conf.Env("QUEEN_PROXY_JWT_ED25519_PUB_PEM"))
	s.List(&c.JWTKeys, "jwt_keys", "Public keys of session tokens by their key id, as KID=FILE: PEM of Ed25519 (EdDSA) or RSA (RS256); two during a rotation.")

	s.Section("gateway", "Gateway: trust. The gateway states the tenant of a request to a broker under its signature; `up` makes a key by itself.", "gateway")
	s.Secret(&c.CellKey, "cell_key", "Ed25519 private key as PEM text (openssl genpkey -algorithm ed25519): it signs what a gateway states to a broker.")
	s.Check(func() error {
		if c.CellKey == "" {
			return errors.New("gateway.cell_key is missing: want an Ed25519 private key as PEM text, or gateway.cell_key_file")
		}
		return nil
	})
}

func (c *brokerConfig) declare(s *conf.Set) {
	s.Section("broker", "Broker.", "up", "broker")
	s.Addr(&c.Addr, "addr", "Listen address.", conf.Flag("broker"), address("PORT", "QUEEN_BIND_ADDR"))
	conf.Int(s, &c.MaxBodyBytes, "max_body_bytes", "Largest request body.", 1<<10, 1<<30, conf.Env("QUEEN_MAX_BODY_BYTES"))
	conf.Int(s, &c.MaxParked, "max_parked", "Waiting polls.", 1, 10_000_000)
	conf.Int(s, &c.MaxPendingBytes, "max_pending_bytes", "Bytes of pushes that wait for the database. A tenant may hold as much as is free: alone half, with another a third each.", 1<<20, 1<<40)
	conf.Int(s, &c.WindowBatch, "window_batch", "Messages in a partition that end the windowBuffer of its queue before its time.", 1, 1_000_000, conf.Env("QUEEN_HOTLIST_WINDOW_BATCH"))
	s.Enum(&c.ConfigureMode, "configure_mode", "What a configure call without a mode does to the options it omits.", []string{"replace", "merge"}, conf.Env("QUEENGATE_CONFIGURE_MODE"))
	s.Enum(&c.SubscriptionMode, "subscription_mode", "Where a consumer group starts that does not say: what is new, or all that is retained.", []string{"new", "all"}, conf.Env("DEFAULT_SUBSCRIPTION_MODE"))
	s.Bool(&c.LeaseAsync, "lease_async_commit", "Grant leases without waiting for the disk: faster, but a crash of the database may let two workers overlap on a batch.", conf.Env("QUEENGATE_LEASE_ASYNC_COMMIT"))
	s.Duration(&c.DrainDelay, "drain_delay", "How long readiness is red before the drain begins.", 0, 5*time.Minute)
	s.Duration(&c.DrainTime, "drain_time", "For requests in flight when service ends.", time.Second, 5*time.Minute)

	s.Section("broker", "Broker: encryption at rest. Queues with `encryptionEnabled` store their payloads encrypted; without a key, pushes to them are refused.", "up", "broker")
	s.Secret(&c.EncryptionKey, "encryption_key", "Key that encrypts, 64 hexadecimal digits (openssl rand -hex 32). It decrypts too.", conf.Env("QUEEN_ENCRYPTION_KEY"))
	s.Secret(&c.ReadKeys, "encryption_read_keys", "Further keys that decrypt only, separated by commas or white space: those from before a rotation, and the next one while it is handed out.")
	s.Check(func() error { _, err := c.encryption(); return err })

	s.Section("broker", "Broker: retention. One broker of a cell at a time does it.", "up", "broker")
	s.Duration(&c.RetentionInterval, "retention_interval", "How often it is looked for what a queue's options let go.", janitor.MinInterval, janitor.MaxInterval, milliseconds("RETENTION_INTERVAL"))
	conf.Int(s, &c.RetentionBatch, "retention_batch_size", "Rows that one step removes of a partition.", 1, janitor.MaxBatchSize, conf.Env("RETENTION_BATCH_SIZE"))
	conf.Int(s, &c.RetentionParallelism, "retention_parallelism", "Steps at the same time; each uses a connection.", 1, janitor.MaxParallelism, conf.Env("RETENTION_PARALLELISM"))
	s.Bool(&c.CleanupPartitions, "partition_cleanup", "Delete empty partitions that nobody comes to.", conf.Env("QUEEN_PARTITION_CLEANUP_ENABLED"))
	conf.Int(s, &c.CleanupDays, "partition_cleanup_days", "After so many days.", 1, janitor.MaxDays, conf.Env("PARTITION_CLEANUP_DAYS"))
	conf.Int(s, &c.HistoryDays, "history_days", "Days that the minutes of throughput are kept; retention's own history as long.", 2, janitor.MaxDays, conf.Env("METRICS_RETENTION_DAYS"))

	s.Section("broker", "Broker: trust. `up` sees to it by itself.", "broker")
	s.Bool(&c.Tenancy, "tenancy", "Take the tenant of a request from the gateway's signed token. Off, there is one tenant, and no credential unless broker.jwt_enabled: for a private network only.")
	s.String(&c.Cell, "cell", "Slug of the broker's cell.")
	s.List(&c.CellKeys, "cell_keys", "PEM files with the Ed25519 public keys of the gateways (openssl pkey -pubout); two during a rotation.")
	s.Check(func() error {
		if c.Tenancy && len(c.CellKeys) == 0 {
			return errors.New("broker.cell_keys is empty: want at least one file with a public key while broker.tenancy is on")
		}
		return nil
	})
	c.JWT.declare(s)
	s.Check(func() error {
		if c.Tenancy && c.JWT.Enabled {
			return errors.New("broker.jwt_enabled and broker.tenancy exclude each other: want broker.tenancy off for clients of the broker's own, " +
				"or clients that come through a gateway, which checks their credentials")
		}
		return nil
	})
}

// encryption returns the keys of payloads at rest, nil when none is configured. Errors never quote a key.
func (c *brokerConfig) encryption() (*seal.Ring, error) {
	var errs []error
	parse := func(setting, text string) *seal.Key {
		k, err := seal.ParseKey(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s = redacted: %w", setting, err))
		}
		return k
	}
	var active *seal.Key
	if c.EncryptionKey != "" {
		active = parse("broker.encryption_key", strings.TrimSpace(c.EncryptionKey.Reveal()))
	}
	var more []*seal.Key
	for i, text := range strings.FieldsFunc(c.ReadKeys.Reveal(), func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		more = append(more, parse(fmt.Sprintf("broker.encryption_read_keys[%d]", i), text))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if active == nil && len(more) == 0 {
		return nil, nil
	}
	return seal.NewRing(active, more...), nil
}

// address reads the existing system's pair of a port and an optional host.
func address(port, host string) conf.Option {
	return conf.EnvFunc(func(get func(string) string) string {
		h := get(host)
		if h == "" {
			h = "0.0.0.0"
		}
		return net.JoinHostPort(h, get(port))
	}, port, host)
}

// milliseconds reads a variable of the existing system that counts milliseconds.
func milliseconds(name string) conf.Option {
	return conf.EnvFunc(func(get func(string) string) string { return get(name) + "ms" }, name)
}

// seconds reads a variable of the existing system that counts seconds.
func seconds(name string) conf.Option {
	return conf.EnvFunc(func(get func(string) string) string { return get(name) + "s" }, name)
}

// postgresURL makes an address of the variables with the prefix, the first set of databases naming the database.
func postgresURL(prefix, database string, databases ...string) func(get func(string) string) string {
	return func(get func(string) string) string {
		or := func(name, fallback string) string {
			if v := get(prefix + name); v != "" {
				return v
			}
			return fallback
		}
		for _, name := range databases {
			if v := get(name); v != "" {
				database = v
				break
			}
		}
		mode := "disable"
		if ssl, _ := strconv.ParseBool(or("USE_SSL", "false")); ssl {
			mode = "verify-full"
			if verify, err := strconv.ParseBool(or("SSL_REJECT_UNAUTHORIZED", "true")); err == nil && !verify {
				mode = "require"
			}
		}
		u := url.URL{
			Scheme: "postgres", User: url.UserPassword(or("USER", "postgres"), get(prefix+"PASSWORD")), Path: "/" + database,
			Host: net.JoinHostPort(get(prefix+"HOST"), or("PORT", "5432")), RawQuery: url.Values{"sslmode": {mode}}.Encode(),
		}
		return u.String()
	}
}

func validDSN(key string, dsn conf.Secret) error {
	if dsn == "" {
		return nil
	}
	if _, err := pg.Parse(pg.Config{DSN: dsn.Reveal()}); err != nil {
		return errors.New(key + " = redacted: want postgres://user:password@host:port/database or key=value text")
	}
	return nil
}
