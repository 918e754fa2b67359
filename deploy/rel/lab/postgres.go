package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// database is the name of the database and of its superuser.
const database = "queen"

// Postgres is one server with its data folder. It runs as user postgres, or nobody, when the harness is root.
type Postgres struct {
	Name string
	Port int

	lab     *Lab
	data    string
	account *syscall.Credential // nil: as the harness
	service
}

// binaries finds the newest installation of PostgreSQL.
func binaries() (string, error) {
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/libexec/postgresql*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		slices.SortFunc(found, func(a, b string) int { return version(b) - version(a) })
		for _, dir := range found {
			if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
				return dir, nil
			}
		}
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", errors.New("there is no PostgreSQL on this machine: install its server package")
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	return filepath.Dir(path), nil
}

func version(dir string) int {
	n := 0
	for _, r := range dir {
		if r >= '0' && r <= '9' {
			n = n*10 + int(r-'0')
		}
	}
	return n
}

// unprivileged is who PostgreSQL runs as when the harness is root, nil when it is not.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(err1, err2)
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
}

// newPostgres reserves a name, a port and a folder for a server.
func (l *Lab) newPostgres(name string) (*Postgres, error) {
	account, err := unprivileged()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	home := filepath.Join(l.dir, name)
	if err := os.Mkdir(home, 0o700); err != nil {
		return nil, err
	}
	if account != nil {
		if err := os.Chown(home, int(account.Uid), int(account.Gid)); err != nil {
			return nil, err
		}
	}
	return &Postgres{Name: name, Port: port, lab: l, data: filepath.Join(home, "data"), account: account}, nil
}

// command is a program of PostgreSQL, run as the account.
func (p *Postgres) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(p.lab.pgbin, program), args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	if p.account != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.account}
	}
	return cmd
}

// run runs a program of PostgreSQL to its end.
func (p *Postgres) run(ctx context.Context, program string, args ...string) error {
	if out, err := p.command(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s of %s: %w: %s", program, p.Name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Init makes an empty cluster. Its files are not synced: only a power cut of this very moment would show that.
func (p *Postgres) Init(ctx context.Context) error {
	return p.run(ctx, "initdb", "-D", p.data, "-U", database, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
}

// settings are those of a small server that keeps every promise about its disk.
var settings = map[string]string{
	"listen_addresses":        "127.0.0.1",
	"unix_socket_directories": "",
	"max_connections":         "200",
	"shared_buffers":          "128MB",
	"fsync":                   "on",
	"synchronous_commit":      "on",
	"full_page_writes":        "on",
	"jit":                     "off",
	"wal_keep_size":           "256MB",
	"max_wal_size":            "512MB",
	"log_line_prefix":         "%m [%p] %a ",
	"log_min_messages":        "warning",
	"restart_after_crash":     "on",
}

// Start starts the server and waits until it answers.
func (p *Postgres) Start(ctx context.Context) error {
	args := []string{"-D", p.data, "-p", strconv.Itoa(p.Port)}
	for name, value := range settings {
		args = append(args, "-c", name+"="+value)
	}
	for name, value := range p.lab.cfg.Postgres {
		args = append(args, "-c", name+"="+value)
	}
	// Not bound to ctx: the server outlives it.
	proc, err := p.lab.start(p.Name, p.command(context.Background(), "postgres", args...))
	if err != nil {
		return err
	}
	p.now.Store(proc)
	return p.Ready(ctx)
}

// Ready waits until the server answers a query.
func (p *Postgres) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := p.ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(25 * time.Millisecond):
		case <-p.Done():
			return fmt.Errorf("%s ended while it started: %w", p.Name, err)
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", p.Name, errors.Join(ctx.Err(), err))
		}
	}
}

func (p *Postgres) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c, err := p.Connect(ctx, "postgres")
	if err != nil {
		return err
	}
	return c.Close(ctx)
}

// Connect opens a session with a database, past all links. The caller closes it.
func (p *Postgres) Connect(ctx context.Context, name string) (*pgx.Conn, error) {
	return pgx.Connect(ctx, fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=%s application_name=rel sslmode=disable", p.Port, database, name))
}

// Query runs a query that gives one value as text, past all links.
func (p *Postgres) Query(ctx context.Context, query string, args ...any) (string, error) {
	c, err := p.Connect(ctx, database)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	var s string
	if err := c.QueryRow(ctx, query, args...).Scan(&s); err != nil {
		return "", fmt.Errorf("query %s: %w", p.Name, err)
	}
	return s, nil
}

// Clone makes this server a streaming standby of another, which runs, and gives it its name there.
func (p *Postgres) Clone(ctx context.Context, of *Postgres) error {
	if err := p.run(ctx, "pg_basebackup", "-h", "127.0.0.1", "-p", strconv.Itoa(p.lab.replication.Port()), "-U", database,
		"-D", p.data, "-X", "stream", "-c", "fast", "--no-sync"); err != nil {
		return err
	}
	// -R would write the address of the libpq defaults; this is the link.
	conf := fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=%s application_name=%s'\n", p.lab.replication.Port(), database, p.Name)
	if err := p.write("postgresql.auto.conf", conf); err != nil {
		return err
	}
	return p.write("standby.signal", "")
}

func (p *Postgres) write(name, text string) error {
	path := filepath.Join(p.data, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	if p.account == nil {
		return nil
	}
	return os.Chown(path, int(p.account.Uid), int(p.account.Gid))
}

// Promote makes a standby a primary, on a timeline of its own.
func (p *Postgres) Promote(ctx context.Context) error {
	return p.run(ctx, "pg_ctl", "promote", "-D", p.data, "-w", "-t", "20")
}

// Backends returns the process ids of the sessions of brokers, past all links.
func (p *Postgres) Backends(ctx context.Context) ([]int, error) {
	list, err := p.Query(ctx, `SELECT coalesce(string_agg(pid::text, ' ' ORDER BY pid), '') FROM pg_stat_activity
		WHERE application_name LIKE 'queengate%' AND backend_type = 'client backend'`)
	if err != nil {
		return nil, err
	}
	var pids []int
	for f := range strings.FieldsSeq(list) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
