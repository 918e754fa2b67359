package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/conf"
	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/internal/embedpg"
	"github.com/queengate/queengate/internal/httpkit"
	"github.com/queengate/queengate/internal/memory"
	"github.com/queengate/queengate/internal/obs"
	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/run"
	"github.com/queengate/queengate/proxy"
	"github.com/queengate/queengate/tls"
	"github.com/queengate/queengate/wire"
)

// demoCell is the cell of `up`: its one broker and its one database.
const demoCell = "local"

// demoCluster is the cluster of its demo tenant.
const demoCluster = "demo"

// readyBudget bounds the time between the start of the parts and the first moment all of them are healthy.
const readyBudget = 30 * time.Second

// up is the whole system in one process.
type up struct {
	in    *invocation
	c     *config
	dir   *datadir.Dir
	log   *slog.Logger
	group *run.Group
	creds *credentials

	private   bool // the database is this system's own
	listeners listeners
}

type listeners struct{ http, https, ops, broker, socket net.Listener }

// runUp runs everything on this machine until ctx ends.
func runUp(ctx context.Context, in *invocation) (err error) {
	began := time.Now()
	c, err := in.load(nil)
	if err != nil {
		return err
	}
	u := &up{in: in, c: c}
	if u.dir, err = datadir.Open(c.dataDir()); err != nil {
		return err
	}
	defer u.dir.Close()
	closeLog, err := u.openLog()
	if err != nil {
		return err
	}
	defer closeLog()
	c.warn(u.log)
	checkDescriptors(u.log, slog.LevelInfo, "gateway.max_conns", c.Gateway.MaxConns) // a machine to try things on
	if u.creds, err = readCredentials(u.dir); err != nil {
		return err
	}
	// Ports first: a port that is taken is the commonest reason not to start, and costs nothing to find out.
	if err := u.listen(ctx); err != nil {
		return err
	}
	u.group = run.New(u.log, stopBudget)
	stopPostgres, err := u.startPostgres(ctx)
	if err != nil {
		return err
	}
	// After a run it has been stopped in its turn, and this does nothing.
	defer func() { err = errors.Join(err, stopPostgres()) }()
	for _, s := range c.schemas() {
		if err := s.apply(ctx); err != nil {
			return err
		}
	}
	return u.serve(ctx, began)
}

// listen opens all ports.
func (u *up) listen(ctx context.Context) error {
	if u.c.HTTP == "" || u.c.Broker.Addr == "" {
		return usageError{errors.New("http = off or broker.addr = off: `up` needs both")}
	}
	var errs []error
	for _, l := range []struct {
		key, addr string
		ln        *net.Listener
	}{
		{"http", u.c.HTTP, &u.listeners.http},
		{"https", u.c.HTTPS, &u.listeners.https},
		{"ops", u.c.Ops, &u.listeners.ops},
		{"broker.addr", u.c.Broker.Addr, &u.listeners.broker},
	} {
		var err error
		*l.ln, err = listen(ctx, l.key, l.addr)
		errs = append(errs, err)
	}
	errs = append(errs, u.listenSocket(ctx))
	return errors.Join(errs...)
}

// listenSocket opens the socket on which the gateway reaches the broker. A data folder whose path is too long for one, or
// cannot stand in a list of addresses, has none by default, and the loopback is taken.
func (u *up) listenSocket(ctx context.Context) error {
	c := u.c
	path := c.Broker.Socket
	if path == "" {
		path = u.dir.Path("broker.sock")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("broker.socket: %w", err)
	}
	if c.Broker.Socket == "" && (len(path) > maxSocketPath || strings.ContainsAny(path, ", ")) {
		return nil
	}
	if u.listeners.socket, err = listenSocket(ctx, "broker.socket", path); err != nil {
		return err
	}
	c.Gateway.Brokers = []string{demoCell + "=unix:" + path}
	return nil
}

// startPostgres starts the private PostgreSQL unless an address was given, and returns what stops it.
func (u *up) startPostgres(ctx context.Context) (stop func() error, err error) {
	if u.c.Postgres.DSN != "" {
		return func() error { return nil }, nil
	}
	u.private = true
	server := embedpg.New(u.log.With("part", "postgres"), u.dir)
	if err := server.Start(ctx); err != nil {
		return nil, err
	}
	u.c.Postgres.DSN = conf.Secret(server.DSN())
	u.group.Add("postgres", server)
	return server.Stop, nil
}

// minds refuses a database that was given and serves others: this broker would be put in the place of theirs.
func (u *up) minds(ctx context.Context, control *pgxpool.Pool, brokerURL string) error {
	if u.private {
		return nil
	}
	var at string
	var others int
	err := control.QueryRow(ctx, `SELECT c.base_url, (SELECT count(*) FROM queengate.clusters k WHERE k.cell = c.slug AND k.slug <> $2)
		FROM queengate.cells c WHERE c.slug = $1`, demoCell, demoCluster).Scan(&at, &others)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("read cell %s: %w", demoCell, err)
	case others > 0 && at != brokerURL && !deserted(ctx, at):
		return fmt.Errorf("postgres.dsn: cell %q of this database serves %d other clusters with the brokers at %s, which would be cut off; "+
			"unset it, or run `queengate broker` and `queengate gateway`", demoCell, others, at)
	}
	return nil
}

// deserted reports whether surely nobody serves at the addresses of a cell's brokers, as after a run of `up` on other ports.
func deserted(ctx context.Context, brokers string) bool {
	for one := range strings.SplitSeq(brokers, ",") {
		u, err := url.Parse(strings.TrimPrefix(one, "dns+"))
		if err != nil {
			return false
		}
		d := net.Dialer{Timeout: time.Second}
		c, err := d.DialContext(ctx, "tcp", u.Host)
		if err == nil {
			_ = c.Close() // nothing was sent
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return false
		}
	}
	return true
}

// serve makes the parts, runs them and says when they are ready.
func (u *up) serve(ctx context.Context, began time.Time) (ended error) {
	c := u.c
	key, err := u.dir.EnsureCellKey()
	if err != nil {
		return err
	}
	control, err := openPool(ctx, "postgres.control_dsn", c.control().conn(), c.ControlPool, "queengate-gateway")
	if err != nil {
		return err
	}
	defer control.Close()
	watch, at := new(pg.Watch), c.queues()
	at.Watch = watch
	queues, err := openPool(ctx, "postgres.dsn", at, c.BrokerPool, "queengate-broker")
	if err != nil {
		return err
	}
	defer queues.Close()
	defer watch.Close()
	brokerURL := "http://" + reachable(u.listeners.broker)
	if err := u.minds(ctx, control, brokerURL); err != nil {
		return err
	}
	if err := ensureDemo(ctx, control, u.creds, demoCell, brokerURL); err != nil {
		return err
	}

	c.Broker.Cell, c.Broker.Tenancy = demoCell, true
	c.Broker.JWT.Enabled = false // clients come to the gateway
	c.Broker.DrainDelay = 0      // and its only gateway has ended before it
	public := key.Public().(ed25519.PublicKey)
	reg := obs.NewRegistry()
	brokerTracer, err := c.Otel.tracer(u.log, "broker", reg)
	if err != nil {
		return err
	}
	gatewayTracer, err := c.Otel.tracer(u.log, "gateway", reg)
	if err != nil {
		return err
	}
	if c.Broker.SpoolDir == "" {
		c.Broker.SpoolDir = u.dir.Path("spool")
	}
	disk, closeSpool, err := openSpool(u.log, &c.Broker)
	if err != nil {
		return err
	}
	defer func() { ended = errors.Join(ended, closeSpool()) }()
	b, err := newBroker(&c.Broker, c.PopTimeout, brokerParts{
		log: u.log.With("part", "broker"), keys: map[string]ed25519.PublicKey{wire.KeyID(public): public},
		pool: queues, watch: watch, reg: reg, ln: u.listeners.broker, local: u.listeners.socket, spool: disk, tracer: brokerTracer,
	})
	if err != nil {
		return err
	}
	g, book, err := newGateway(ctx, u.log.With("part", "gateway"), c, key, nil, control, reg, gatewayTracer)
	if err != nil {
		return err
	}
	g.Listen(u.listeners.http)
	if err := u.secure(g); err != nil {
		return err
	}
	health := g.Health()
	maps.Copy(health, map[string]obs.Health{"database": pinged(queues), "redis": fleetHealth(g.Gate()), "control": book.Health})
	if u.listeners.ops != nil {
		u.group.Add("ops", obs.NewOps(u.log.With("part", "ops"), u.listeners.ops, reg, health))
	}
	u.group.Add("memory", memory.New(reg))
	u.group.Add("traces of the broker", brokerTracer)
	u.group.Add("traces of the gateway", gatewayTracer)
	u.group.Add("book", book)
	u.group.Add("broker", b)
	u.group.Add("quota", g.Gate())
	u.group.Add("wipe", newWiper(u.log, &c.Gateway, control, g, book, reg))
	u.group.Add("gateway", g)
	u.group.Add("announcement", run.Func(func(ctx context.Context) error {
		if err := untilHealthy(ctx, health); err != nil {
			return err
		}
		u.describe(brokerURL)
		if err := u.creds.write(u.dir); err != nil {
			return err
		}
		u.log.Info("ready", "dur_ms", time.Since(began).Milliseconds())
		printBanner(u.in.stdout, u.dir, u.creds, time.Since(began))
		<-ctx.Done()
		return nil
	}))
	err = u.group.Run(ctx)
	u.log.Info("stopped", "err", err)
	return err
}

// secure gives the gateway the HTTPS listener, with the configured certificate or one of a local authority.
func (u *up) secure(g *proxy.Gateway) error {
	if u.listeners.https == nil {
		return nil
	}
	certificate, err := u.c.certificate(u.log)
	if err != nil {
		return err
	}
	if certificate == nil {
		folder, err := u.dir.Sub("tls")
		if err != nil {
			return err
		}
		local, err := tls.OpenLocal(u.log.With("part", "tls"), folder, time.Now)
		if err != nil {
			return err
		}
		u.creds.CAFile, certificate = local.CAFile(), local.Config()
	}
	g.ListenTLS(u.listeners.https, certificate)
	return nil
}

// describe completes the credentials with addresses. They use 127.0.0.1: *.localhost does not resolve everywhere.
func (u *up) describe(brokerURL string) {
	of := func(scheme string, ln net.Listener) string {
		if ln == nil {
			return ""
		}
		return scheme + "://" + reachable(ln)
	}
	u.creds.GatewayURL = of("http", u.listeners.http)
	u.creds.GatewayHTTPSURL = of("https", u.listeners.https)
	u.creds.OpsURL = of("http", u.listeners.ops)
	u.creds.BrokerURL = brokerURL
	u.creds.PostgresDSN = u.c.Postgres.DSN.Reveal()
	u.creds.Cluster, u.creds.ClusterHost = "demo", "demo.localhost"
	if u.creds.GatewayHTTPSURL == "" || u.c.TLSCert != "" {
		u.creds.CAFile = ""
	}
}

// reachable returns the address of a listener as seen from this machine: a wildcard is no place to connect to.
func reachable(ln net.Listener) string {
	addr := ln.Addr().(*net.TCPAddr)
	if addr.IP.IsUnspecified() {
		return fmt.Sprintf("127.0.0.1:%d", addr.Port)
	}
	return addr.String()
}

// untilHealthy waits until every part says that it serves.
func untilHealthy(ctx context.Context, parts map[string]obs.Health) error {
	deadline := time.NewTimer(readyBudget)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var failing []error
		for name, health := range parts {
			if _, err := health(ctx); err != nil {
				failing = append(failing, fmt.Errorf("%s: %w", name, err))
			}
		}
		if len(failing) == 0 {
			return nil
		}
		select {
		case <-tick.C: // health has no event: it is many parts' state
		case <-ctx.Done():
			return nil
		case <-deadline.C:
			return fmt.Errorf("not ready within %s: %w", readyBudget, errors.Join(failing...))
		}
	}
}

// openLog makes the log: everything to log/queengate.log, warnings to the terminal too.
func (u *up) openLog() (closeLog func(), err error) {
	folder, err := u.dir.Sub("log")
	if err != nil {
		return nil, err
	}
	name := folder + "/queengate.log"
	const large = 64 << 20
	if st, err := os.Stat(name); err == nil && st.Size() > large {
		if err := os.Rename(name, name+".1"); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	lines := obs.NewBuffer(f)
	if u.log, err = newUpLogger(lines, u.in.stderr, u.c); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	// An error of the last write has nobody left to be told.
	return func() { _ = errors.Join(lines.Flush(), f.Close()) }, nil
}

func newUpLogger(file, terminal io.Writer, c *config) (*slog.Logger, error) {
	all, err := obs.NewLogger(file, c.LogFormat, c.LogLevel)
	if err != nil {
		return nil, usageError{err}
	}
	loud, err := obs.NewLogger(terminal, "text", "warn")
	if err != nil {
		return nil, err
	}
	return slog.New(upLog{slog.NewMultiHandler(all.Handler(), calm{loud.Handler()}), all}), nil
}

// upLog writes to the file and the terminal. Its lines of requests go to the file alone, as calm has it.
type upLog struct {
	slog.Handler // both
	file         *slog.Logger
}

func (u upLog) Begin(at time.Time, level slog.Level, msg string) *obs.Line {
	if msg != httpkit.RequestLine {
		return nil
	}
	return obs.Begin(u.file, at, level, msg)
}

func (u upLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return upLog{u.Handler.WithAttrs(attrs), slog.New(u.file.Handler().WithAttrs(attrs))}
}

func (u upLog) WithGroup(name string) slog.Handler {
	return upLog{u.Handler.WithGroup(name), u.file.WithGroup(name)}
}

// calm keeps the lines of single requests off the terminal: in an outage every one of them is a warning.
type calm struct{ slog.Handler }

func (c calm) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == httpkit.RequestLine {
		return nil
	}
	return c.Handler.Handle(ctx, r)
}

func (c calm) WithAttrs(attrs []slog.Attr) slog.Handler { return calm{c.Handler.WithAttrs(attrs)} }
func (c calm) WithGroup(name string) slog.Handler       { return calm{c.Handler.WithGroup(name)} }
