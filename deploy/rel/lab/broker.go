package lab

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Broker is one of the cell's brokers: the process, which may end and start again, and all that leads to and from it.
type Broker struct {
	Name    string  // br1…
	Addr    string  // where it serves
	PG      []*Link // to the primary and, if there is one, to the standby
	Mesh    []*Link // to every other broker, in their order
	Gate    *Link   // from the gateways, nil without any
	Spool   *Volume // where it keeps what PostgreSQL cannot take; nil without one
	service         // the process

	lab      *Lab
	meshAddr string
}

// brokers makes all brokers with their links, and starts them.
func (l *Lab) brokers(ctx context.Context) error {
	for i := range l.cfg.Brokers {
		b := &Broker{Name: fmt.Sprintf("br%d", i+1), lab: l}
		l.Brokers = append(l.Brokers, b)
		if err := b.place(); err != nil {
			return fmt.Errorf("place %s: %w", b.Name, err)
		}
	}
	if l.cfg.Mesh {
		for _, b := range l.Brokers {
			for _, other := range l.Brokers {
				if b == other {
					continue
				}
				link, err := newLink(b.Name+"-"+other.Name, other.meshAddr)
				if err != nil {
					return err
				}
				b.Mesh = append(b.Mesh, link)
			}
		}
	}
	for _, b := range l.Brokers {
		if err := b.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// place gives the broker its ports, its links to the database and its spool.
func (b *Broker) place() error {
	port, err := freePort()
	if err != nil {
		return err
	}
	b.Addr = fmt.Sprintf("127.0.0.1:%d", port)
	if port, err = freePort(); err != nil {
		return err
	}
	b.meshAddr = fmt.Sprintf("127.0.0.1:%d", port)
	for _, pg := range []*Postgres{b.lab.Primary, b.lab.Standby} {
		if pg == nil {
			continue
		}
		link, err := newLink(b.Name+"-"+pg.Name, pg.addr())
		if err != nil {
			return err
		}
		b.PG = append(b.PG, link)
	}
	if !b.lab.cfg.Spool {
		return nil
	}
	b.Spool, err = newVolume(filepath.Join(b.lab.dir, b.Name+"-spool"), b.lab.cfg.Volume)
	return err
}

// environment is the broker's. Nothing of ours reaches it but the path.
func (b *Broker) environment() []string {
	ports := make([]int, len(b.PG))
	for i, l := range b.PG {
		ports[i] = l.Port()
	}
	vars := map[string]string{
		"QUEENGATE_POSTGRES_DSN":              dsn(ports...),
		"QUEENGATE_POSTGRES_BROKER_POOL":      "12",
		"QUEENGATE_BROKER_ADDR":               b.Addr,
		"QUEENGATE_BROKER_TENANCY":            "false",
		"QUEENGATE_BROKER_RETENTION_INTERVAL": "200ms",
		"QUEENGATE_BROKER_DRAIN_TIME":         "5s",
		"QUEENGATE_OPS":                       "off",
		"QUEENGATE_LOG_LEVEL":                 "warn",
		"GOMAXPROCS":                          "1",
	}
	if len(b.Mesh) > 0 {
		peers := make([]string, len(b.Mesh))
		for i, l := range b.Mesh {
			peers[i] = l.Addr()
		}
		vars["QUEENGATE_MESH_ADDR"] = b.meshAddr
		vars["QUEENGATE_MESH_PEERS"] = strings.Join(peers, ",")
		vars["QUEENGATE_MESH_SECRET"] = "the secret of a cell that lives for minutes"
		vars["QUEENGATE_MESH_HEARTBEAT"] = "200ms"
		vars["QUEENGATE_MESH_DEAD"] = "1s"
	}
	if b.Spool != nil {
		vars["QUEENGATE_BROKER_SPOOL_DIR"] = b.Spool.Path()
	}
	if b.lab.cell != nil {
		vars["QUEENGATE_BROKER_TENANCY"] = "true"
		vars["QUEENGATE_BROKER_CELL"] = cellName
		vars["QUEENGATE_BROKER_CELL_KEYS"] = b.lab.cell.public
	}
	env := make([]string, 0, len(vars))
	for name, value := range vars {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

// product is a command of the product's binary.
func (l *Lab) product(env []string, args ...string) *exec.Cmd {
	cmd := exec.Command(l.cfg.Binary, args...)
	cmd.Dir = l.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TZ=UTC", "GOTRACEBACK=all"}, env...)
	return cmd
}

// Start starts the broker's process and waits until it is ready.
func (b *Broker) Start(ctx context.Context) error {
	if err := b.Launch(); err != nil {
		return err
	}
	return b.Ready(ctx)
}

// Restart starts the broker again, if it is not there, and waits until it is ready.
func (b *Broker) Restart(ctx context.Context) error {
	if b.Alive() {
		return b.Ready(ctx)
	}
	return b.Start(ctx)
}

// Launch starts the process and does not wait.
func (b *Broker) Launch() error {
	p, err := b.lab.start(b.Name, b.lab.product(b.environment(), "broker"))
	if err != nil {
		return err
	}
	b.now.Store(p)
	return nil
}

// Ready waits until the broker says that it serves, which it does once it has its database.
func (b *Broker) Ready(ctx context.Context) error {
	return b.await(ctx, b.Name, "http://"+b.Addr+"/readyz")
}

// Get asks the broker for a page, outside of the history, and returns the status.
func (b *Broker) Get(ctx context.Context, path string) (int, error) {
	return get(ctx, "http://"+b.Addr+path)
}

func get(ctx context.Context, url string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// SeesDatabase reports what the broker says of its database: false with a reason when it is out of its reach.
func (b *Broker) SeesDatabase(ctx context.Context) (bool, string) {
	status, err := b.Get(ctx, "/health")
	if err != nil {
		return false, err.Error()
	}
	return status == http.StatusOK, fmt.Sprintf("/health answers %d", status)
}

// Weather sets that of the broker's links to PostgreSQL.
func (b *Broker) Weather(w Weather) {
	for _, l := range b.PG {
		l.Set(w)
	}
}

// down stops the process, so that it may finish what is under way.
func (b *Broker) down() error { return b.stop(syscall.SIGTERM, 20*time.Second) }

// free lets the links and the volume go.
func (b *Broker) free() error {
	for _, l := range slices.Concat(b.PG, b.Mesh) {
		l.close()
	}
	if b.Gate != nil {
		b.Gate.close()
	}
	if b.Spool == nil {
		return nil
	}
	return b.Spool.free()
}
