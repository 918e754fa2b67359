package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/queengate/queengate/broker/janitor"
	"github.com/queengate/queengate/broker/seal"
	"github.com/queengate/queengate/internal/conf"
	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/plans"
)

// config is every setting of the program. A command reads the sections that name it.
type config struct {
	Data string

	HTTP, HTTPS, Ops string

	LogLevel, LogFormat string

	Postgres         databaseConfig
	Control          databaseConfig
	BrokerPool       int32
	ControlPool      int32
	StatementTimeout time.Duration
	PopTimeout       time.Duration
	Redis            conf.Secret
	Quota            quotaConfig

	TLSCert, TLSKey string

	Gateway gatewayConfig
	Broker  brokerConfig
	Mesh    meshConfig
	Otel    otelConfig

	inert []conf.Inert // variables that are set for nothing
}

// databaseConfig is how to reach a PostgreSQL.
type databaseConfig struct {
	DSN conf.Secret
	TLS string // a pg.TLSMode, or tlsAddressed
	CA  string
}

// tlsAddressed leaves TLS to the sslmode of the address.
const tlsAddressed = "address"

type gatewayConfig struct {
	CellKey      conf.Secret
	Domains      []string
	SharedHosts  []string
	MaxBodyBytes int64
	MaxConns     int
	MaxInFlight  int
	LongPollMax  time.Duration
	BookMaxAge   time.Duration
	Brokers      []string
	DrainDelay   time.Duration
	DrainTime    time.Duration
	WipeSettle   time.Duration
	JWTIssuer    string
	JWTAudience  string
	JWTSecret    conf.Secret
	JWTPublicKey string
	JWTKeys      []string

	IssuerNetworks []string
	IssuerRefresh  time.Duration
	IssuerMaxAge   time.Duration
}

type brokerConfig struct {
	Addr             string
	Socket           string
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
	Migrate          bool
	TimelineFile     string
	Name             string
	DrainDelay       time.Duration
	DrainTime        time.Duration

	Autopilot          string
	AutopilotBatch     int
	AutopilotDwellPops int

	BundlePartitions int
	SpoolDir         string
	SpoolMaxBytes    int64
	DedupCacheMB     int
	LeaseCacheMB     int
	SegmentCacheMB   int

	RetentionInterval    time.Duration
	RetentionBatch       int
	RetentionParallelism int
	CleanupDays          int
	CleanupPartitions    bool
	HistoryDays          int
	TraceDays            int

	JWT jwtConfig
}

// defaults are the values in force when no source names another.
func defaults() *config {
	return &config{
		HTTP: "127.0.0.1:8080", HTTPS: "127.0.0.1:8443", Ops: "127.0.0.1:9090",
		LogLevel: "info", LogFormat: "json", BrokerPool: 32, ControlPool: 8,
		Postgres: databaseConfig{TLS: tlsAddressed}, Control: databaseConfig{TLS: tlsAddressed},
		StatementTimeout: 30 * time.Second, PopTimeout: 30 * time.Second,
		Quota: quotaConfig{Mode: modeAuto, Budget: 25 * time.Millisecond, Fleet: 1},
		Gateway: gatewayConfig{
			SharedHosts: []string{"localhost", "127.0.0.1", "::1"}, MaxBodyBytes: 16 << 20, MaxConns: 50_000, MaxInFlight: 1024,
			LongPollMax: 90 * time.Second, DrainTime: 25 * time.Second, IssuerRefresh: 15 * time.Minute, IssuerMaxAge: 24 * time.Hour,
			BookMaxAge: plans.DefaultMaxAge, WipeSettle: 3 * time.Minute,
		},
		Broker: brokerConfig{
			Addr: "127.0.0.1:6632", Cell: "local", Tenancy: true, MaxBodyBytes: 64 << 20, MaxParked: 50_000,
			MaxPendingBytes: 256 << 20, WindowBatch: 100,
			ConfigureMode: "replace", SubscriptionMode: "new", DrainDelay: 2 * time.Second, DrainTime: 20 * time.Second,
			Autopilot: "on", AutopilotBatch: 100, AutopilotDwellPops: 16,
			SpoolMaxBytes: 1 << 30, BundlePartitions: 256, DedupCacheMB: 512, LeaseCacheMB: 64, SegmentCacheMB: 64,
			RetentionInterval: 5 * time.Second, RetentionBatch: 1000, RetentionParallelism: 1, CleanupDays: 30, CleanupPartitions: true, HistoryDays: 90, TraceDays: 90,
			JWT: defaultJWT(),
		},
		Otel: defaultOtel(),
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

	s.Section("", "State.", "up", "gateway", "operator-token")
	s.String(&c.Data, "data", "Data folder; without one ./data, or /var/lib/queengate for root. `gateway` has none without this setting; in it a gateway of its own keeps what it starts with while the control database or Redis is away.", conf.Flag("data"))

	s.Section("", "Client addresses.", "up", "gateway")
	s.Addr(&c.HTTP, "http", "Listen address for plain HTTP.", conf.Flag("http"), address("QUEEN_PROXY_PORT", "QUEEN_PROXY_BIND_ADDR", "6711"))
	s.Addr(&c.HTTPS, "https", "Listen address for HTTPS; `gateway` uses it once it has a certificate.", conf.Flag("https"))

	s.Section("", "Operators' port. It serves /metrics, /livez, /readyz and /healthz without credentials: for a private network only.", "up", "gateway", "broker")
	s.Addr(&c.Ops, "ops", "Listen address of the operators' port.", conf.Flag("ops"))

	s.Section("log", "Log.", "up", "gateway", "broker")
	s.Enum(&c.LogLevel, "level", "Least level that is written; info has one line per request. `up` writes it to log/queengate.log in the data folder, and warnings to the terminal too. Lines below warn are gathered for up to 50 ms: a kill loses those.",
		[]string{"debug", "info", "warn", "error"}, conf.EnvFunc(logLevel, "LOG_LEVEL"))
	s.Enum(&c.LogFormat, "format", "Form of the lines.", []string{"json", "text"}, conf.EnvFunc(logFormat, "QUEEN_LOG_JSON"))

	s.Section("postgres", "Databases.", "up", "gateway", "broker", "migrate", "bootstrap")
	s.Secret(&c.Postgres.DSN, "dsn", "Address of PostgreSQL, as a URL or key=value text; several hosts are tried in order, and only a primary is taken. `up` starts a private one without it.", conf.Flag("postgres"), existingBroker.address())
	tlsModes := []string{tlsAddressed, string(pg.TLSOff), string(pg.TLSInsecure), string(pg.TLSVerify)}
	const tlsMeaning = "TLS of its sessions: what sslmode in the address says, none, with whatever certificate, or with one for the host's name by an authority we trust. A contradiction to the address is refused."
	s.Enum(&c.Postgres.TLS, "tls", tlsMeaning, tlsModes, existingBroker.tls())
	s.Text(&c.Postgres.CA, "tls_ca", "Certificates of the authorities to trust instead of the system's, as PEM text; with it tls is verify.", conf.Env("PG_SSL_ROOT_CERT"))
	s.Secret(&c.Control.DSN, "control_dsn", "Address of the control database (tenants, plans, keys) when it is another than postgres.dsn.", existingControl.address())
	s.Enum(&c.Control.TLS, "control_tls", "postgres.tls for the control database, when that is another.", tlsModes, existingControl.tls())
	s.Text(&c.Control.CA, "control_tls_ca", "postgres.tls_ca for the control database, when that is another.", conf.Env("PXDB_SSL_ROOT_CERT"))
	s.Duration(&c.StatementTimeout, "statement_timeout", "When the database ends a statement of a broker; statement_timeout in the address wins.", time.Second, 10*time.Minute, milliseconds("QUEEN_STMT_TIMEOUT_MS", time.Second))
	conf.Int(s, &c.BrokerPool, "broker_pool", "Connections of a broker, besides one that asks whether the database answers.", 4, 1000, conf.Env("DB_POOL_SIZE"))
	conf.Int(s, &c.ControlPool, "control_pool", "Connections of a gateway to the control database.", 2, 1000, conf.Env("PXDB_POOL_SIZE"))
	s.Check(func() error { return c.Postgres.check("") })
	s.Check(func() error { return c.Control.check("control_") })

	s.Section("pop", "Polls.", "up", "gateway", "broker")
	s.Duration(&c.PopTimeout, "timeout", "How long a waiting pop that does not say it waits.", time.Millisecond, 10*time.Minute, milliseconds("POP_DEFAULT_TIMEOUT_MS", time.Millisecond), milliseconds("DEFAULT_TIMEOUT", time.Millisecond))

	c.declareQuota(s)

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
	c.Otel.declare(s)
	return s
}

func (c *gatewayConfig) declare(s *conf.Set) {
	s.Section("gateway", "Gateway.", "up", "gateway")
	s.List(&c.Domains, "domains", "Suffixes under which the first label of a host names a cluster; without one, any suffix.")
	s.List(&c.SharedHosts, "shared_hosts", "Hosts that name no cluster: it comes from the credential.", conf.Env("QUEEN_PROXY_SHARED_HOSTS"))
	conf.Int(s, &c.MaxBodyBytes, "max_body_bytes", "Largest request body, whatever the plan says.", 1<<10, 1<<30, conf.Env("QUEEN_PROXY_MAX_BODY_BYTES"))
	conf.Int(s, &c.MaxConns, "max_conns", "Open client connections.", 16, 1_000_000, conf.Env("QUEEN_EDGE_MAX_CONNS"))
	conf.Int(s, &c.MaxInFlight, "max_in_flight", "Requests at brokers at a time, but for those that wait for messages. Beyond it acknowledgements go before pops and pops before pushes, and tenants take turns by the request rates of their plans.", 1, 1_000_000)
	s.Duration(&c.LongPollMax, "long_poll_max", "Longest wait of a poll.", time.Second, 10*time.Minute, milliseconds("QUEEN_PROXY_LONGPOLL_MAX_MS", 0))
	s.Duration(&c.BookMaxAge, "book_max_age", "How long a gateway serves the clusters, plans and keys that it knows after the control database was last heard of, from memory or, after a restart, from its data folder. Then it refuses all until the database is back.", time.Minute, plans.DefaultMaxAge)
	s.Duration(&c.DrainDelay, "drain_delay", "How long readiness is red before the drain begins, for load balancers.", 0, 5*time.Minute)
	s.Duration(&c.DrainTime, "drain_time", "For requests under way when service ends.", time.Second, drainBudget, milliseconds("QUEEN_PROXY_SHUTDOWN_DRAIN_MS", 0))
	s.Check(func() error { return drains("gateway", c.DrainDelay, c.DrainTime) })
	s.Duration(&c.WipeSettle, "wipe_settle", "How long after a cell has said that nothing of a deleted cluster is left it is asked once more: brokers write what they had in memory down within two minutes.", 0, 24*time.Hour)
	s.String(&c.JWTIssuer, "jwt_issuer", "Issuer of session tokens; needed with a key.", conf.Env("QUEEN_PROXY_JWT_ISS"))
	s.String(&c.JWTAudience, "jwt_audience", "Audience that session tokens must name; without one, any.", conf.Env("QUEEN_PROXY_JWT_AUD"))
	s.Secret(&c.JWTSecret, "jwt_secret", "HS256 secret of session tokens, at least 32 bytes.", conf.Env("QUEEN_PROXY_JWT_SECRET"))
	s.String(&c.JWTPublicKey, "jwt_public_key", "Public key of session tokens without a key id, as PEM text: Ed25519 (EdDSA) or RSA (RS256).", conf.Env("QUEEN_PROXY_JWT_ED25519_PUB_PEM"))
	s.List(&c.JWTKeys, "jwt_keys", "Public keys of session tokens by their key id, as KID=FILE: PEM of Ed25519 (EdDSA) or RSA (RS256); two during a rotation.")

	s.Section("gateway", "Gateway: issuers of tenants. Their keys are fetched from public addresses by https.", "up", "gateway")
	s.List(&c.IssuerNetworks, "issuer_networks", "Networks (CIDR) where issuers may be although they are not public, also by http. Whoever sets a tenant's issuers reaches them.")
	s.Duration(&c.IssuerRefresh, "issuer_refresh", "How often the keys of an issuer in use are fetched.", time.Minute, 24*time.Hour)
	s.Duration(&c.IssuerMaxAge, "issuer_max_age", "How long keys are used while they cannot be fetched.", time.Minute, 30*24*time.Hour)
	s.Check(func() error {
		_, err := c.foreign()
		return err
	})

	s.Section("gateway", "Gateway: upstream. The control database says where the brokers of a cell are (`bootstrap --base-url`).", "gateway")
	s.List(&c.Brokers, "brokers", "Other addresses of a cell's brokers, as seen from this gateway: CELL=http://host:port, once per broker, CELL=dns+http://host:port for all addresses of a name, or CELL=unix:PATH for the socket of a broker on this machine.")
	s.Check(func() error {
		_, err := c.brokers()
		return err
	})

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
	s.Addr(&c.Addr, "addr", "Listen address.", conf.Flag("broker"), address("PORT", "QUEEN_BIND_ADDR", "6632"))
	s.String(&c.Socket, "socket", "Path of a Unix socket to listen on as well: gateways on the same machine reach it as unix:PATH, for about three fifths of the cost of the loopback. `up` uses broker.sock in the data folder.")
	conf.Int(s, &c.MaxBodyBytes, "max_body_bytes", "Largest request body.", 1<<10, 1<<30, conf.Env("QUEEN_MAX_BODY_BYTES"))
	conf.Int(s, &c.MaxParked, "max_parked", "Waiting polls.", 1, 10_000_000)
	conf.Int(s, &c.MaxPendingBytes, "max_pending_bytes", "Bytes of pushes that wait for the database. A tenant may hold as much as is free: alone half, with another a third each.", 1<<20, 1<<40)
	conf.Int(s, &c.WindowBatch, "window_batch", "Messages in a partition that end the windowBuffer of its queue before its time.", 1, 1_000_000, conf.Env("QUEEN_HOTLIST_WINDOW_BATCH"))
	s.Enum(&c.ConfigureMode, "configure_mode", "What a configure call without a mode does to the options it omits.", []string{"replace", "merge"}, conf.Env("QUEENGATE_CONFIGURE_MODE"))
	s.Enum(&c.SubscriptionMode, "subscription_mode", "Where a consumer group starts that does not say: what is new, or all that is retained.", []string{"new", "all"}, conf.EnvFunc(subscriptionMode, "DEFAULT_SUBSCRIPTION_MODE"))
	s.Bool(&c.LeaseAsync, "lease_async_commit", "Grant leases without waiting for the disk: faster, but a crash of the database may let two workers overlap on a batch.", conf.Env("QUEENGATE_LEASE_ASYNC_COMMIT"))
	s.String(&c.Name, "name", "Name of this broker in the history of metrics; without one the machine's.", conf.Env("QUEEN_SERVER_ID"))
	s.Bool(&c.Migrate, "migrate", "Bring the schema of the database up to date at the start; `up` always does.", conf.Env("QUEEN_APPLY_SCHEMA"))
	s.Duration(&c.DrainTime, "drain_time", "For requests in flight when service ends.", time.Second, drainBudget)
	s.Check(func() error { return drains("broker", c.DrainDelay, c.DrainTime) })

	s.Section("broker", "Broker: encryption at rest. Queues with `encryptionEnabled` store their payloads encrypted; without a key, pushes to them are refused.", "up", "broker")
	s.Secret(&c.EncryptionKey, "encryption_key", "Key that encrypts, 64 hexadecimal digits (openssl rand -hex 32). It decrypts too.", conf.Env("QUEEN_ENCRYPTION_KEY"))
	s.Secret(&c.ReadKeys, "encryption_read_keys", "Further keys that decrypt only, separated by commas or white space: those from before a rotation, and the next one while it is handed out.")
	s.Check(func() error { _, err := c.encryption(); return err })

	s.Section("broker", "Broker: pops that leave the choice.", "up", "broker")
	s.Enum(&c.Autopilot, "autopilot", "Whether the broker chooses batch and partitions for a pop that asks it to; shadow only counts what it would choose.", []string{"on", "shadow", "off"}, conf.EnvFunc(autopilot, "QUEEN_POP_AUTOPILOT"))
	conf.Int(s, &c.AutopilotBatch, "autopilot_batch", "The batch it chooses.", 1, 10_000, conf.Env("QUEEN_POP_AUTOPILOT_BATCH"))
	conf.Int(s, &c.AutopilotDwellPops, "autopilot_dwell_pops", "Claims of a group that are watched before it chooses more than one partition.", 1, 1_000_000, conf.Env("QUEEN_POP_AUTOPILOT_DWELL_POPS"))

	s.Section("broker", "Broker: spool. Pushes wait there, on disk, while the database is away or an operator has stopped pushes.", "up", "broker")
	s.String(&c.SpoolDir, "spool_dir", "Folder of the spool, this broker's own and on a disk that stays with it; without one pushes are refused while the database is away. `up` uses spool in the data folder.", conf.Env("FILE_BUFFER_DIR"))
	conf.Int(s, &c.SpoolMaxBytes, "spool_max_bytes", "Size of the spool; pushes beyond it fail.", 1<<20, 1<<50)

	s.Section("broker", "Broker: memory.", "up", "broker")
	conf.Int(s, &c.BundlePartitions, "bundle_partitions", "Partitions that share one statement of pushes.", 1, 4096, conf.Env("QUEEN_V2_BUNDLE_MAX"))
	conf.Int(s, &c.DedupCacheMB, "dedup_cache_mb", "MiB of known transaction ids, which spare the database a look; 0 is none, and it always looks.", 0, 1<<20, bounded("QUEEN_DEDUP_CACHE", "QUEEN_DEDUP_CACHE_MB"))
	conf.Int(s, &c.LeaseCacheMB, "lease_cache_mb", "MiB of what was delivered under which lease, which spares an ack a search; 0 is none.", 0, 1<<20, bounded("QUEEN_ACK_REGISTRY", "QUEEN_ACK_REGISTRY_MB"))
	conf.Int(s, &c.SegmentCacheMB, "segment_cache_mb", "MiB of opened segments, for groups that read the same; 0 is none.", 0, 1<<20)

	s.Section("broker", "Broker: retention. One broker of a cell at a time does it.", "up", "broker")
	s.Duration(&c.RetentionInterval, "retention_interval", "How often it is looked for what a queue's options let go.", janitor.MinInterval, janitor.MaxInterval, milliseconds("RETENTION_INTERVAL", janitor.MinInterval))
	conf.Int(s, &c.RetentionBatch, "retention_batch_size", "Rows that one step removes of a partition.", 1, janitor.MaxBatchSize, conf.Env("RETENTION_BATCH_SIZE"))
	conf.Int(s, &c.RetentionParallelism, "retention_parallelism", "Steps at the same time; each uses a connection.", 1, janitor.MaxParallelism, conf.Env("RETENTION_PARALLELISM"))
	s.Bool(&c.CleanupPartitions, "partition_cleanup", "Delete empty partitions that nobody comes to.", conf.Env("QUEEN_PARTITION_CLEANUP_ENABLED"))
	conf.Int(s, &c.CleanupDays, "partition_cleanup_days", "After so many days.", 1, janitor.MaxDays, conf.Env("PARTITION_CLEANUP_DAYS"))
	conf.Int(s, &c.HistoryDays, "history_days", "Days that the minutes of throughput are kept; retention's own history as long.", 2, janitor.MaxDays, atLeast("METRICS_RETENTION_DAYS", 2))
	conf.Int(s, &c.TraceDays, "trace_days", "Days that trace events beside messages are kept.", 1, janitor.MaxDays)

	declareInert(s)

	s.Section("broker", "Broker: one of several.", "broker")
	s.Duration(&c.DrainDelay, "drain_delay", "How long readiness is red before the drain begins: gateways notice within a second and a half, and send what comes next to another broker.", 0, 5*time.Minute)

	s.Section("broker", "Broker: trust. `up` sees to it by itself.", "broker")
	s.Bool(&c.Tenancy, "tenancy", "Take the tenant of a request from the gateway's signed token. Off, there is one tenant, and no credential unless broker.jwt_enabled: for a private network only.")
	s.String(&c.Cell, "cell", "Slug of the broker's cell.")
	s.List(&c.CellKeys, "cell_keys", "PEM files with the Ed25519 public keys of the gateways (openssl pkey -pubout); two during a rotation.")
	s.String(&c.TimelineFile, "timeline_file", "File that keeps the highest timeline of the database that was seen, so that a broker that starts again refuses a primary that was replaced meanwhile; without one, timelines in the folder of the spool, and without a spool it is known as long as the process lives.")
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

// timelines returns the file of timelines; "" is none.
func (c *brokerConfig) timelines() string {
	if c.TimelineFile == "" && c.SpoolDir != "" {
		return filepath.Join(c.SpoolDir, "timelines")
	}
	return c.TimelineFile
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

// queues describes the pool of a broker.
func (c *config) queues() pg.Config {
	at := c.Postgres.conn()
	at.StatementTimeout = c.StatementTimeout
	return at
}

// conn describes a database with its TLS.
func (a databaseConfig) conn() pg.Config {
	c := pg.Config{DSN: a.DSN.Reveal(), CA: a.CA}
	if a.TLS != tlsAddressed {
		c.TLS = pg.TLSMode(a.TLS)
	}
	return c
}

// check reports what is wrong with a database whose settings begin with key, without quoting its address.
func (a databaseConfig) check(key string) error {
	if a.DSN == "" {
		if a.TLS != tlsAddressed || a.CA != "" {
			return fmt.Errorf("postgres.%stls and postgres.%[1]stls_ca say how to reach a database: want postgres.%[1]sdsn too", key)
		}
		return nil
	}
	switch _, err := pg.Parse(a.conn()); {
	case errors.Is(err, pg.ErrAddress):
		return fmt.Errorf("postgres.%sdsn = redacted: want postgres://user:password@host:port/database or key=value text", key)
	case err != nil:
		return fmt.Errorf("postgres.%sdsn, postgres.%[1]stls: %w", key, err)
	}
	return nil
}
