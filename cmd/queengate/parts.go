package main

import (
	"context"
	"crypto/ed25519"
	cryptotls "crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/queengate/queengate/broker"
	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/janitor"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/internal/obs"
	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/spool"
	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/proxy"
	"github.com/queengate/queengate/proxy/auth"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/quota/meter"
	"github.com/queengate/queengate/tls"
	"github.com/queengate/queengate/wire"
)

// stopBudget is for everything together: the longest drains, the checkpoint of a private PostgreSQL, and some.
const stopBudget = 90 * time.Second

// drainBudget is what a drain may take of it.
const drainBudget = stopBudget - 10*time.Second

// drains reports a drain that the end of the process would cut short; part is the section of the settings.
func drains(part string, delay, drain time.Duration) error {
	if delay+drain > drainBudget {
		return fmt.Errorf("%s.drain_delay + %[1]s.drain_time = %v: want at most %v, the process ends soon after", part, delay+drain, drainBudget)
	}
	return nil
}

// listen opens a port, or nothing for an empty address.
func listen(ctx context.Context, key, addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: another program listens on %s: stop it or choose another address", key, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return ln, nil
}

// maxSocketPath is what an address of a Unix socket has room for, without its closing NUL.
const maxSocketPath = 107

// listenSocket opens a Unix socket for those who may use the files of this user or group, or nothing for an empty path. A
// socket that a killed process has left behind is replaced.
func listenSocket(ctx context.Context, key, path string) (net.Listener, error) {
	if path == "" {
		return nil, nil
	}
	of := func(err error) error { return fmt.Errorf("%s: %w", key, err) }
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("%s: %s has %d bytes: the system wants at most %d", key, path, len(path), maxSocketPath)
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if st, statErr := os.Lstat(path); statErr != nil || st.Mode().Type() != os.ModeSocket {
			return nil, errors.Join(of(err), statErr) // a file is refused a connection too, and is not ours to remove
		}
		c, dialled := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if dialled == nil {
			return nil, errors.Join(fmt.Errorf("%s: another program listens on %s: stop it or choose another path", key, path), c.Close())
		}
		if !errors.Is(dialled, syscall.ECONNREFUSED) {
			return nil, of(err)
		}
		if err := os.Remove(path); err != nil {
			return nil, of(err)
		}
		ln, err = (&net.ListenConfig{}).Listen(ctx, "unix", path)
	}
	if err != nil {
		return nil, of(err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(of(err), ln.Close())
	}
	return ln, nil
}

// brokerParts is what a broker is assembled of.
type brokerParts struct {
	log   *slog.Logger
	keys  map[string]ed25519.PublicKey // of the gateways
	pool  *pgxpool.Pool
	watch *pg.Watch // over the database of pool
	reg   *prometheus.Registry
	ln    net.Listener
	local net.Listener // nil: no socket
	mesh  broker.Mesh
	spool broker.Spool

	tracer *tracing.Tracer
}

// newBroker assembles a broker; pops is the wait of a pop that names none.
func newBroker(c *brokerConfig, pops time.Duration, with brokerParts) (*broker.Broker, error) {
	log := with.log
	clients, err := c.JWT.build(log)
	if err != nil {
		return nil, usageError{err}
	}
	keyring, err := c.encryption()
	if err != nil {
		return nil, usageError{err}
	}
	cfg := broker.Config{
		Version: obs.Version(), Tenancy: c.Tenancy, Cell: c.Cell, Keys: with.keys, JWT: clients,
		MaxBodyBytes: c.MaxBodyBytes, MaxParked: c.MaxParked, DrainDelay: c.DrainDelay, DrainTimeout: c.DrainTime,
		ConfigureMode: wire.ConfigureMode(c.ConfigureMode), SubscriptionMode: c.SubscriptionMode,
		WindowFull: c.WindowBatch, PopTimeout: pops, Hostname: c.Name,
		Autopilot: c.Autopilot, AutopilotBatch: c.AutopilotBatch, AutopilotDwellPops: c.AutopilotDwellPops,
		Fuse:            fuse.Config{MaxPendingBytes: c.MaxPendingBytes, MaxBundlePartitions: c.BundlePartitions, DedupCacheBytes: mebibytes(c.DedupCacheMB)},
		LeaseCacheBytes: mebibytes(c.LeaseCacheMB), SegmentCacheBytes: mebibytes(c.SegmentCacheMB),
		HistoryKeep: time.Duration(c.HistoryDays) * 24 * time.Hour, TraceKeep: time.Duration(c.TraceDays) * 24 * time.Hour,
		Encryption: keyring,
		Janitor: janitor.Config{
			Interval: c.RetentionInterval, BatchSize: c.RetentionBatch, Parallelism: c.RetentionParallelism,
			CleanupDays: c.CleanupDays, KeepPartitions: !c.CleanupPartitions,
		},
	}
	if err := cfg.Validate(); err != nil {
		return nil, usageError{err}
	}
	return broker.New(log, broker.Deps{
		Store: store.New(with.pool, store.LeaseAsyncCommit(c.LeaseAsync)), Ping: with.watch.Ping, Cut: with.watch.Cut, Registry: with.reg, Listener: with.ln, Socket: with.local,
		Mesh: with.mesh, Spool: with.spool, Tracer: with.tracer,
	}, cfg), nil
}

// openSpool opens the broker's spool, or nothing without a folder. close is never nil.
func openSpool(log *slog.Logger, c *brokerConfig) (s broker.Spool, close func() error, err error) {
	if c.SpoolDir == "" {
		log.Warn("there is no broker.spool_dir: pushes are refused while the database is away")
		return nil, func() error { return nil }, nil
	}
	disk, err := spool.Open(log.With("part", "spool"), spool.Config{Dir: c.SpoolDir, MaxBytes: c.SpoolMaxBytes})
	if err != nil {
		return nil, nil, fmt.Errorf("broker.spool_dir: %w", err)
	}
	return disk, disk.Close, nil
}

// mebibytes returns the bound of a cache; below 0 there is none of it.
func mebibytes(n int) int64 {
	if n == 0 {
		return -1
	}
	return int64(n) << 20
}

// newGateway assembles a gateway and the book it decides with, which is loaded: from the control database or, while that
// is away, from its file in the data folder dir, which may be nil. The size of the fleet is kept there too, and what could
// not be saved of months.
func newGateway(ctx context.Context, log *slog.Logger, all *config, key ed25519.PrivateKey, dir *datadir.Dir, pool *pgxpool.Pool, reg *prometheus.Registry, tracer *tracing.Tracer) (*proxy.Gateway, *plans.Book, error) {
	c := &all.Gateway
	keys, err := c.verifier()
	if err != nil {
		return nil, nil, usageError{err}
	}
	fleet, err := all.fleet()
	if err != nil {
		return nil, nil, usageError{err}
	}
	if keys.Foreign, err = c.foreign(); err != nil {
		return nil, nil, usageError{err}
	}
	keys.Foreign.Log, keys.Foreign.Metrics = log.With("part", "auth"), reg
	if fleet != nil && dir != nil {
		rememberFleet(fleet, dir, log)
	}
	verifier, err := auth.New(keys)
	if err != nil {
		return nil, nil, usageError{err}
	}
	brokers, err := c.brokers()
	if err != nil {
		return nil, nil, usageError{err}
	}
	options := []plans.Option{plans.WithMaxAge(c.BookMaxAge)}
	if dir != nil {
		options = append(options, plans.WithFile(plans.File{Path: dir.Path("control.book"), Secret: key.Seed(), Origin: origin(pool)}))
	}
	book := plans.NewBook(log.With("part", "book"), pool, 0, options...)
	reg.MustRegister(book)
	var shelf quota.Shelf
	if dir != nil {
		shelf = meter.NewFile(dir.Path("months.unsaved"))
	}
	store := meter.NewStore(pool)
	if fleet != nil {
		fleet.Absences = store
	}
	g, err := proxy.New(proxy.Options{
		Log: log, Book: book, Verifier: verifier, Metrics: reg, Fleet: fleet, Months: store, Shelf: shelf, Tracer: tracer,
		Config: proxy.Config{
			Domains: c.Domains, SharedHosts: c.SharedHosts, MaxBodyBytes: c.MaxBodyBytes, MaxConns: c.MaxConns, MaxInFlight: c.MaxInFlight,
			LongPollMax: c.LongPollMax, PopTimeout: all.PopTimeout, DrainDelay: c.DrainDelay, DrainTime: c.DrainTime, CellKey: key, Brokers: brokers,
		},
	})
	if err != nil {
		return nil, nil, usageError{err}
	}
	book.OnChange(func(old, new *plans.Snapshot) {
		for _, cluster := range old.Clusters() {
			if new.ClusterByID(cluster.ID) == nil {
				g.Gate().Forget(cluster.ID)
			}
		}
	})
	ctx, cancel := context.WithTimeout(ctx, databaseLook)
	defer cancel()
	if err := book.Load(ctx); err != nil {
		return nil, nil, fmt.Errorf("postgres.control_dsn: %w", err)
	}
	return g, book, nil
}

// origin names the database of a pool by where it is, without the account.
func origin(pool *pgxpool.Pool) string {
	at := pool.Config().ConnConfig
	hosts := []string{net.JoinHostPort(at.Host, strconv.Itoa(int(at.Port)))}
	for _, other := range at.Fallbacks {
		hosts = append(hosts, net.JoinHostPort(other.Host, strconv.Itoa(int(other.Port))))
	}
	slices.Sort(hosts)
	return strings.Join(slices.Compact(hosts), ",") + "/" + at.Database
}

// brokers returns the configured addresses of brokers by their cell.
func (c *gatewayConfig) brokers() (map[string][]string, error) {
	byCell := map[string][]string{}
	var errs []error
	for _, entry := range c.Brokers {
		cell, url, ok := strings.Cut(entry, "=")
		if !ok || cell == "" || url == "" {
			errs = append(errs, fmt.Errorf("gateway.brokers: %q: want CELL=http://host:port", entry))
			continue
		}
		byCell[cell] = append(byCell[cell], url)
	}
	return byCell, errors.Join(errs...)
}

// verifier returns the session tokens that are believed: those of the configured issuer's keys.
func (c *gatewayConfig) verifier() (auth.Config, error) {
	a := auth.Config{Issuer: c.JWTIssuer, Audience: c.JWTAudience}
	if c.JWTSecret != "" {
		a.Keys = append(a.Keys, auth.KeyConfig{Alg: "HS256", Secret: c.JWTSecret.Reveal()})
	}
	var errs []error
	public := func(setting, kid, text string) {
		k, err := auth.PublicKey(kid, text)
		if err != nil {
			errs = append(errs, fmt.Errorf("gateway.%s: %w", setting, err))
		}
		a.Keys = append(a.Keys, k)
	}
	if c.JWTPublicKey != "" {
		public("jwt_public_key", "", c.JWTPublicKey)
	}
	for _, entry := range c.JWTKeys {
		kid, file, ok := strings.Cut(entry, "=")
		if !ok || kid == "" {
			errs = append(errs, fmt.Errorf("gateway.jwt_keys: %q: want KID=FILE", entry))
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, fmt.Errorf("gateway.jwt_keys: %w", err))
			continue
		}
		public("jwt_keys", kid, string(text))
	}
	return a, errors.Join(errs...)
}

// foreign returns how the keys of tenants' issuers are fetched.
func (c *gatewayConfig) foreign() (*auth.ForeignConfig, error) {
	var errs []error
	var networks []netip.Prefix
	for _, text := range c.IssuerNetworks {
		network, err := netip.ParsePrefix(text)
		if err != nil || network != network.Masked() {
			errs = append(errs, fmt.Errorf("gateway.issuer_networks: %q: want a network such as 10.0.0.0/8 or fd00::/8", text))
			continue
		}
		networks = append(networks, network)
	}
	if c.IssuerMaxAge < c.IssuerRefresh {
		errs = append(errs, fmt.Errorf("gateway.issuer_max_age = %v: want at least gateway.issuer_refresh = %v", c.IssuerMaxAge, c.IssuerRefresh))
	}
	return &auth.ForeignConfig{
		Fetcher: bearer.NewFetcher(bearer.FetcherConfig{Networks: networks}), Refresh: c.IssuerRefresh, MaxAge: c.IssuerMaxAge,
	}, errors.Join(errs...)
}

// certificate returns the TLS configuration of the files, nil when none are configured.
func (c *config) certificate(log *slog.Logger) (*cryptotls.Config, error) {
	if c.TLSCert == "" {
		return nil, nil
	}
	f, err := tls.OpenFiles(log, c.TLSCert, c.TLSKey, time.Now)
	if err != nil {
		return nil, err
	}
	return f.Config(), nil
}

// stderrLogger is the log of a part that runs by itself; flush writes out its last lines.
func (in *invocation) stderrLogger(c *config) (log *slog.Logger, flush func(), err error) {
	lines := obs.NewBuffer(in.stderr)
	if log, err = obs.NewLogger(lines, c.LogFormat, c.LogLevel); err != nil {
		return nil, nil, usageError{err}
	}
	c.warn(log)
	// An error of the last write has nobody left to be told.
	return log, func() { _ = lines.Flush() }, nil
}

// warn names the variables of the existing system that are set for nothing.
func (c *config) warn(log *slog.Logger) {
	for _, v := range c.inert {
		log.Warn("a variable of the existing system has no effect here", "variable", v.Name, "instead", v.Instead)
	}
}

// readPublicKeys reads the files with the gateways' public keys, by key id.
func readPublicKeys(files []string, parse func([]byte) (ed25519.PublicKey, error)) (map[string]ed25519.PublicKey, error) {
	keys := map[string]ed25519.PublicKey{}
	var errs []error
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("broker.cell_keys: %w", err))
			continue
		}
		key, err := parse(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("broker.cell_keys: %s: %w", name, err))
			continue
		}
		keys[wire.KeyID(key)] = key
	}
	return keys, errors.Join(errs...)
}
