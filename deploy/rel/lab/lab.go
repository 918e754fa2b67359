package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// Standby says whether PostgreSQL has a streaming standby, and whether a commit waits for it.
type Standby string

// The kinds of standby.
const (
	NoStandby    Standby = ""
	SyncStandby  Standby = "sync"
	AsyncStandby Standby = "async"
)

// Config says what is put up.
type Config struct {
	Dir      string // folder of the run, which exists; everything is in it
	Binary   string // the product; see Build
	Brokers  int
	Gateways int
	Quota    string // who decides over a fleet's limits: local (there is no Redis then), exact, leased, or "" for the product's choice
	Standby  Standby
	Mesh     bool              // brokers hear each other
	Spool    bool              // brokers have a spool: the product must know the setting; see HasSpool
	Volume   bool              // spools lie on volumes of their own; see CanMount
	Postgres map[string]string // more settings of PostgreSQL
	Settings map[string]string // more settings of gateways, by the names of their variables
	Far      time.Duration     // how far away gateways are from brokers, each way
}

// Lab is a system that runs. Its methods are for one goroutine, the links and processes in it for any.
type Lab struct {
	Primary  *Postgres // the server that was the primary at the start
	Standby  *Postgres // nil without one
	Brokers  []*Broker
	Gateways []*Gateway
	Redis    *Redis // nil when gateways have none

	cfg   Config
	dir   string
	pgbin string
	rec   *hist.Writer

	replication *Link                    // standby to primary, nil without a standby
	cell        *cell                    // nil without gateways
	before      map[string]hist.RestNote // what processes held before a storm; see AtRest
	promoted    bool                     // the standby is the primary
	idle        chan session             // see control

	mu     sync.Mutex // guards broken
	broken error
	fail   context.CancelCauseFunc
}

// Up puts a system up and returns when every part answers. The context it returns ends when a part ends on its own,
// with that as its cause. Down must be called whatever Up returned.
func Up(ctx context.Context, rec *hist.Writer, cfg Config) (*Lab, context.Context, error) {
	ctx, fail := context.WithCancelCause(ctx)
	l := &Lab{cfg: cfg, dir: cfg.Dir, rec: rec, fail: fail, idle: make(chan session, sessions)}
	return l, ctx, l.up(ctx)
}

func (l *Lab) up(ctx context.Context) (err error) {
	if l.pgbin, err = binaries(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(l.dir, "log"), 0o755); err != nil {
		return err
	}
	if err := l.postgres(ctx); err != nil {
		return err
	}
	if err := l.migrate(ctx); err != nil {
		return err
	}
	if l.cfg.Gateways > 0 {
		if l.cell, err = newCell(l.dir); err != nil {
			return err
		}
	}
	if err := l.brokers(ctx); err != nil {
		return err
	}
	return l.gateways(ctx)
}

// postgres starts the primary and, if wanted, its standby.
func (l *Lab) postgres(ctx context.Context) (err error) {
	if l.Primary, err = l.newPostgres("pg1"); err != nil {
		return err
	}
	if err := l.Primary.Init(ctx); err != nil {
		return err
	}
	if err := l.Primary.Start(ctx); err != nil {
		return err
	}
	if l.cfg.Standby == NoStandby {
		return nil
	}
	if l.replication, err = newLink("replication", l.Primary.addr()); err != nil {
		return err
	}
	if l.Standby, err = l.newPostgres("pg2"); err != nil {
		return err
	}
	if err := l.Standby.Clone(ctx, l.Primary); err != nil {
		return err
	}
	if err := l.Standby.Start(ctx); err != nil {
		return err
	}
	if l.cfg.Standby == AsyncStandby {
		return nil
	}
	// Only now: with nobody to wait for, every commit would hang.
	return l.Primary.Exec(ctx, "ALTER SYSTEM SET synchronous_standby_names = 'pg2'", "SELECT pg_reload_conf()")
}

// Exec runs statements in the database postgres, past all links.
func (p *Postgres) Exec(ctx context.Context, statements ...string) error {
	c, err := p.Connect(ctx, "postgres")
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	for _, s := range statements {
		if _, err := c.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s on %s: %w", s, p.Name, err)
		}
	}
	return nil
}

func (p *Postgres) addr() string { return fmt.Sprintf("127.0.0.1:%d", p.Port) }

// dsn is the address of the database by given host ports: several name alternatives, of which the writable one counts.
func dsn(ports ...int) string {
	hosts := make([]string, len(ports))
	for i, p := range ports {
		hosts[i] = fmt.Sprintf("127.0.0.1:%d", p)
	}
	s := fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable&connect_timeout=3", database, strings.Join(hosts, ","), database)
	if len(ports) > 1 {
		s += "&target_session_attrs=read-write"
	}
	return s
}

// migrate makes the database and its schema.
func (l *Lab) migrate(ctx context.Context) error {
	if err := l.Primary.Exec(ctx, "CREATE DATABASE "+database); err != nil {
		return err
	}
	return l.once(ctx, "migrate", []string{"QUEENGATE_POSTGRES_DSN=" + dsn(l.Primary.Port)}, "migrate")
}

// once runs the product's binary to its end.
func (l *Lab) once(ctx context.Context, name string, env []string, args ...string) error {
	cmd := l.product(env, args...)
	p, err := l.start(name, cmd)
	if err != nil {
		return err
	}
	p.Expect()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := p.wait(ctx); err != nil {
		return errors.Join(err, p.stop(syscall.SIGKILL, time.Second))
	}
	if p.code != 0 {
		return fmt.Errorf("%s ended with code %d; see %s", name, p.code, filepath.Join(l.dir, "log", name+".log"))
	}
	return nil
}

// broke notes that the run is over: something ended that nobody had stopped.
func (l *Lab) broke(err error) {
	l.mu.Lock()
	l.broken = errors.Join(l.broken, err)
	l.mu.Unlock()
	l.fail(err)
}

// Broken is what ended on its own, nil if nothing did.
func (l *Lab) Broken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

// Down stops everything, clients first, and gives each part its time to do so in order.
func (l *Lab) Down() error {
	var all sync.WaitGroup
	errs := make(chan error, len(l.Gateways)+len(l.Brokers))
	for _, g := range l.Gateways {
		all.Go(func() { errs <- g.stop(syscall.SIGTERM, 15*time.Second) })
	}
	all.Wait()
	for _, b := range l.Brokers {
		all.Go(func() { errs <- b.down() })
	}
	all.Wait()
	close(errs)
	var err error
	for e := range errs {
		err = errors.Join(err, e)
	}
	if l.Redis != nil {
		err = errors.Join(err, l.Redis.stop(syscall.SIGTERM, 5*time.Second))
	}
	for _, p := range []*Postgres{l.Standby, l.Primary} {
		if p != nil {
			err = errors.Join(err, p.stop(syscall.SIGINT, 15*time.Second))
		}
	}
	if l.replication != nil {
		l.replication.close()
	}
	for _, g := range l.Gateways {
		g.free()
	}
	for _, b := range l.Brokers {
		err = errors.Join(err, b.free())
	}
	l.fail(nil)
	return err
}

// The ports of processes lie below those that the kernel gives to outgoing connections, one of which could otherwise have
// the port of a broker that starts again.
const (
	lowestPort  = 10_000
	highestPort = 32_000
)

// freePort returns a port that nobody listens on now, in an order that another lab on this machine will not have.
func freePort() (int, error) {
	var err error
	for range 100 {
		var ln net.Listener
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		if ln, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, ln.Close()
		}
	}
	return 0, fmt.Errorf("find a port: %w", err)
}
