package main

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/datadir"
	"github.com/queengate/queengate/internal/launch"
	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

// world is the running system with everything that the cases need.
type world struct {
	up         *launch.Process
	postmaster int
	db         *pgxpool.Pool // the system's own database
	anchor     *pgxpool.Pool // a database of the same server for the anchors
	anchorDSN  string
	bin        string     // queengate
	data       string     // folder of the system
	idle       *idleWorld // made by the first case that needs it
	cellDSN    string     // of the database of the cases about several brokers, once it is there
	beside     []*lone    // brokers whose CPU counts as ours

	neighbour *neighbour // made by the first group that needs it
	tenants   tenants    // of the group about proxies
	profileTo string     // file for a CPU profile of the case that runs; "": none

	broker, gateway, gatewayTLS *target
}

// anchorDatabase is the name of the database in which PostgreSQL is measured alone.
const anchorDatabase = "anchor"

func newWorld(ctx context.Context, up *launch.Process, bin, data string) (*world, error) {
	w := &world{up: up, bin: bin, data: data}
	text, err := os.ReadFile(filepath.Join(data, "postgres", "postmaster.pid"))
	if err != nil {
		return nil, err
	}
	if w.postmaster, err = strconv.Atoi(strings.SplitN(string(text), "\n", 2)[0]); err != nil {
		return nil, err
	}
	if w.db, err = pg.Open(ctx, pg.Config{DSN: up.Credentials.PostgresDSN}); err != nil {
		return nil, err
	}
	// The plan must not be what is measured.
	if _, err := w.db.Exec(ctx, `SELECT queengate.set_limit_override(id, '{"max_req_per_sec":null,"req_burst":null,
		"max_msgs_per_sec":null,"msgs_burst":null,"max_queues":null,"max_partitions_per_queue":null,"max_parked_pops":null,
		"max_payload_bytes":null,"max_batch_items":null,"max_retained_bytes":null}')
		FROM queengate.clusters WHERE slug = $1`, up.Credentials.Cluster); err != nil {
		return nil, err
	}
	if err := w.openAnchor(ctx); err != nil {
		return nil, err
	}
	return w, w.openTargets(ctx, data)
}

func (w *world) openAnchor(ctx context.Context) error {
	if _, err := w.db.Exec(ctx, "CREATE DATABASE "+anchorDatabase); err != nil {
		return err
	}
	cfg := w.db.Config().ConnConfig.Copy()
	cfg.Database = anchorDatabase
	if err := migrations.Apply(ctx, cfg, migrations.Broker); err != nil {
		return err
	}
	host, port := cfg.Host, cfg.Port
	w.anchorDSN = fmt.Sprintf("host='%s' port=%d user=%s dbname=%s", host, port, cfg.User, anchorDatabase)
	var err error
	if w.anchor, err = pg.Open(ctx, pg.Config{DSN: w.anchorDSN, MaxConn: 64}); err != nil {
		return err
	}
	_, err = w.anchor.Exec(ctx, anchorSchema)
	return err
}

// openTargets makes the three ways in. The broker believes only a token signed with the cell's key; the bench, which
// owns the data folder, signs one for the demo tenant.
func (w *world) openTargets(ctx context.Context, data string) error {
	c := w.up.Credentials
	var tenant uuid.UUID
	err := w.db.QueryRow(ctx, `SELECT broker_tenant_uuid FROM queengate.clusters WHERE slug = $1`, c.Cluster).Scan(&tenant)
	if err != nil {
		return err
	}
	token, err := cellToken(data, tenant)
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return errors.New("no certificate in the CA file")
	}
	byKey := "Authorization: Bearer " + c.APIKey + "\r\n"
	byToken := "Authorization: Bearer " + token + "\r\n" + wire.HeaderTenant + ": " + tenant.String() + "\r\n"
	if w.broker, err = newTarget(w, c.BrokerURL, nil, byToken); err != nil {
		return err
	}
	if w.gateway, err = newTarget(w, c.GatewayURL, nil, byKey); err != nil {
		return err
	}
	w.gatewayTLS, err = newTarget(w, c.GatewayHTTPSURL, &tls.Config{RootCAs: roots, ServerName: "localhost"}, byKey)
	return err
}

// cellToken signs what the gateway of this system would.
func cellToken(data string, tenant uuid.UUID) (string, error) {
	key, err := datadir.CellKey(data)
	if err != nil {
		return "", err
	}
	now := time.Now()
	return wire.SignCell(ed25519.PrivateKey(key), "local", wire.CellClaims{
		Subject: "bench", Tenant: tenant, Cluster: "demo", Access: wire.AccessReadWrite, Expires: now.Add(2 * time.Hour),
	}, now)
}

func (w *world) close() {
	if w.idle != nil {
		w.idle.db.Close()
	}
	w.anchor.Close()
	w.db.Close()
}

// window is the time over which something is measured.
type window struct {
	w              *world
	began          time.Time
	ours, postgres time.Duration
}

// open begins to measure: what a case prepares before it does not count.
func (w *world) open() *window {
	ours, postgres := w.cpu()
	return &window{w, time.Now(), ours, postgres}
}

// close ends the window, in which n messages passed.
func (x *window) close(n int64) sample {
	took := time.Since(x.began)
	ours, postgres := x.w.cpu()
	per := func(d time.Duration) time.Duration { return d / time.Duration(max(1, n)) }
	return sample{rate: float64(n) / took.Seconds(), ours: per(ours - x.ours), postgres: per(postgres - x.postgres)}
}

// commits returns the commits of the system's own database so far. A session reports them with a delay of about a
// second while it is busy, so a difference is true only between two moments of an even load.
func (w *world) commits(ctx context.Context) (n int64, err error) {
	err = w.db.QueryRow(ctx, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").Scan(&n)
	return n, err
}

// cpu reads the CPU clocks of our process and of PostgreSQL with all its backends.
func (w *world) cpu() (ours, postgres time.Duration) {
	eachProcess(func(pid int, f []string) {
		parent, _ := strconv.Atoi(f[1])
		ticks := func(from, to int) time.Duration {
			var sum time.Duration
			for _, s := range f[from:to] {
				n, _ := strconv.ParseInt(s, 10, 64)
				sum += time.Duration(n) * 10 * time.Millisecond // USER_HZ is 100 on every Linux that Go runs on
			}
			return sum
		}
		switch {
		case pid == w.up.PID(), slices.ContainsFunc(w.beside, func(b *lone) bool { return b.cmd.Process.Pid == pid }):
			ours += ticks(11, 13)
		case pid == w.postmaster:
			postgres += ticks(11, 15) // with backends that have ended
		case parent == w.postmaster:
			postgres += ticks(11, 13)
		}
	})
	return ours, postgres
}

// pgbench runs a script of one statement and returns its transactions per second.
func (w *world) pgbench(script string, clients int) func(context.Context, time.Duration) (sample, error) {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		path, err := pgbenchPath()
		if err != nil {
			return sample{}, err
		}
		file := filepath.Join(os.TempDir(), fmt.Sprintf("queengate-bench-%d.sql", os.Getpid()))
		if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
			return sample{}, err
		}
		defer os.Remove(file)
		at := w.open()
		cmd := exec.CommandContext(ctx, path, "-n", "-c", strconv.Itoa(clients), "-j", "2", "-M", "prepared",
			"-T", strconv.Itoa(max(int(d.Seconds()), 1)), "-f", file, w.anchorDSN)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return sample{}, fmt.Errorf("pgbench: %w\n%s", err, out)
		}
		m := regexp.MustCompile(`tps = ([0-9.]+)`).FindSubmatch(out)
		if m == nil {
			return sample{}, fmt.Errorf("pgbench printed no rate:\n%s", out)
		}
		rate, err := strconv.ParseFloat(string(m[1]), 64)
		s := at.close(int64(rate * time.Since(at.began).Seconds()))
		s.rate = rate
		return s, err
	}
}

func pgbenchPath() (string, error) {
	if p, err := exec.LookPath("pgbench"); err == nil {
		return p, nil
	}
	all, err := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	if err != nil || len(all) == 0 {
		return "", errors.New("pgbench is not installed: it comes with the postgresql package")
	}
	return all[len(all)-1], nil
}
