package lab

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
)

// Gateway is one gateway process in front of the cell.
type Gateway struct {
	Name string // gw1…
	Addr string
	service
}

// cell is what a cell with gateways has and one without needs not: the key that gateways sign with, and one tenant.
type cell struct {
	key             ed25519.PrivateKey
	private, public string // files
	tenant          string // the namespace at the brokers
	api             string // the tenant's key
}

// cellName and plan are those of the lab's only cell and cluster. The plan is large enough not to be felt.
const (
	cellName = "rel"
	plan     = "dedicated-s"
)

// newCell makes the key of the cell and writes it where the product finds it.
func newCell(dir string) (*cell, error) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	c := &cell{key: private, private: filepath.Join(dir, "cell.key"), public: filepath.Join(dir, "cell.pub")}
	inner, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	outer, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return nil, err
	}
	return c, errors.Join(
		os.WriteFile(c.private, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: inner}), 0o600),
		os.WriteFile(c.public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: outer}), 0o644),
	)
}

// token is what a gateway would state to a broker of the tenant, for an hour.
func (c *cell) token(now time.Time) string {
	sum := sha256.Sum256(c.key.Public().(ed25519.PublicKey))
	head := fmt.Sprintf(`{"alg":"EdDSA","typ":"JWT","kid":%q}`, hex.EncodeToString(sum[:16]))
	claims := fmt.Sprintf(`{"iss":"queengate","aud":["broker:%s"],"sub":"rel","iat":%d,"exp":%d,"tid":%q,"cid":"rel","lvl":"admin"}`,
		cellName, now.Unix(), now.Add(time.Hour).Unix(), c.tenant)
	text := base64.RawURLEncoding.EncodeToString([]byte(head)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(c.key, []byte(text)))
}

// BrokerHeader is the header lines with which a broker is asked directly.
func (l *Lab) BrokerHeader() string {
	if l.cell == nil {
		return ""
	}
	return "Authorization: Bearer " + l.cell.token(time.Now()) + "\r\nX-Queen-Tenant: " + l.cell.tenant + "\r\n"
}

// GatewayHeader is the header line with which a gateway is asked.
func (l *Lab) GatewayHeader() string { return "Authorization: Bearer " + l.cell.api + "\r\n" }

// gateways makes the tenant and starts Redis, if there is one on this machine, and the gateways.
func (l *Lab) gateways(ctx context.Context) error {
	if l.cfg.Gateways == 0 {
		return nil
	}
	if err := l.bootstrap(ctx); err != nil {
		return err
	}
	redis, err := l.startRedis()
	if err != nil {
		return err
	}
	for i := range l.cfg.Gateways {
		port, err := freePort()
		if err != nil {
			return err
		}
		g := &Gateway{Name: fmt.Sprintf("gw%d", i+1), Addr: fmt.Sprintf("127.0.0.1:%d", port)}
		env := []string{
			"QUEENGATE_HTTP=" + g.Addr, "QUEENGATE_HTTPS=off", "QUEENGATE_OPS=off", "QUEENGATE_LOG_LEVEL=warn", "GOMAXPROCS=1",
			"QUEENGATE_POSTGRES_DSN=" + dsn(l.ports()...), "QUEENGATE_GATEWAY_CELL_KEY_FILE=" + l.cell.private,
			"QUEENGATE_GATEWAY_DRAIN_TIME=5s",
		}
		if redis != "" {
			env = append(env, "QUEENGATE_REDIS_URL="+redis)
		}
		p, err := l.start(g.Name, l.product(env, "gateway"))
		if err != nil {
			return err
		}
		g.now.Store(p)
		l.Gateways = append(l.Gateways, g)
	}
	for _, g := range l.Gateways {
		if err := g.ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ports are those of all servers, past the links of the brokers.
func (l *Lab) ports() []int {
	if l.Standby == nil {
		return []int{l.Primary.Port}
	}
	return []int{l.Primary.Port, l.Standby.Port}
}

func (g *Gateway) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		status, err := get(ctx, "http://"+g.Addr+"/openapi.json")
		if status == http.StatusOK {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-g.Done():
			return fmt.Errorf("%s ended while it started; see its log", g.Name)
		case <-ctx.Done():
			return fmt.Errorf("wait for %s (last answer %d): %w", g.Name, status, errors.Join(ctx.Err(), err))
		}
	}
}

// bootstrap makes the tenant, with a cell whose brokers are reached through links of the gateways.
func (l *Lab) bootstrap(ctx context.Context) error {
	urls := make([]string, len(l.Brokers))
	for i, b := range l.Brokers {
		link, err := newLink("gw-"+b.Name, b.Addr)
		if err != nil {
			return err
		}
		b.Gate, urls[i] = link, "http://"+link.Addr()
	}
	cmd := l.product([]string{"QUEENGATE_POSTGRES_DSN=" + dsn(l.Primary.Port)}, "bootstrap", "--tenant", "rel", "--cluster", "rel",
		"--cell", cellName, "--plan", plan, "--base-url", strings.Join(urls, ","))
	out, err := cmd.Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			return fmt.Errorf("bootstrap: %w: %s", err, failed.Stderr)
		}
		return fmt.Errorf("bootstrap: %w", err)
	}
	type key struct {
		Scopes []string `json:"scopes"`
		Key    string   `json:"key"`
	}
	var made struct {
		BrokerTenant string `json:"broker_tenant"`
		Keys         []key  `json:"keys"`
	}
	if err := json.Unmarshal(out, &made); err != nil || len(made.Keys) == 0 {
		return fmt.Errorf("bootstrap printed no keys: %w", errors.Join(err, ctx.Err()))
	}
	most := slices.MaxFunc(made.Keys, func(a, b key) int { return len(a.Scopes) - len(b.Scopes) })
	l.cell.tenant, l.cell.api = made.BrokerTenant, most.Key
	return nil
}

// startRedis starts Redis where it is installed, and returns its address, "" without one: gateways do with it or
// without.
func (l *Lab) startRedis() (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", nil
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(path, "--bind", "127.0.0.1", "--port", fmt.Sprint(port), "--save", "", "--appendonly", "no", "--dir", l.dir)
	p, err := l.start("redis", cmd)
	if err != nil {
		return "", err
	}
	l.redis.now.Store(p)
	for range 200 {
		if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = c.Close()
			return fmt.Sprintf("redis://127.0.0.1:%d/0", port), nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return "", errors.Join(errors.New("there is no answer from Redis"), p.stop(syscall.SIGKILL, time.Second))
}
