package lab

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
)

// Gateway is one gateway process in front of the cell.
type Gateway struct {
	Name    string  // gw1…
	Addr    string  // where it serves
	Secure  string  // and over TLS
	Control []*Link // to the control database, which is that of the cell
	Redis   *Link   // nil without Redis
	service         // the process

	lab    *Lab
	ops    string // the operators' port
	starts atomic.Int32
}

// cell is what a cell with gateways has and one without needs not: the key that gateways sign with, and one tenant.
type cell struct {
	key             ed25519.PrivateKey
	private, public string // files
	cert, certKey   string // files: what gateways show to who comes over TLS
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
	if err := c.certify(dir, private); err != nil {
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
	if l.cfg.Quota != "local" {
		if err := l.placeRedis(ctx); err != nil {
			return err
		}
	}
	for i := range l.cfg.Gateways {
		g := &Gateway{Name: fmt.Sprintf("gw%d", i+1), lab: l}
		l.Gateways = append(l.Gateways, g)
		if err := g.place(); err != nil {
			return fmt.Errorf("place %s: %w", g.Name, err)
		}
		if err := g.Launch(); err != nil {
			return err
		}
	}
	for _, g := range l.Gateways {
		if err := g.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// place gives the gateway its ports and its links.
func (g *Gateway) place() error {
	for _, addr := range []*string{&g.Addr, &g.Secure, &g.ops} {
		port, err := freePort()
		if err != nil {
			return err
		}
		*addr = fmt.Sprintf("127.0.0.1:%d", port)
	}
	for _, port := range g.lab.ports() {
		link, err := newLink(g.Name+"-control", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		g.Control = append(g.Control, link)
	}
	if g.lab.Redis == nil {
		return nil
	}
	var err error
	g.Redis, err = newLink(g.Name+"-redis", g.lab.Redis.addr())
	return err
}

// environment is the gateway's.
func (g *Gateway) environment() []string {
	ports := make([]int, len(g.Control))
	for i, l := range g.Control {
		ports[i] = l.Port()
	}
	env := []string{
		"QUEENGATE_HTTP=" + g.Addr, "QUEENGATE_HTTPS=" + g.Secure, "QUEENGATE_OPS=" + g.ops,
		"QUEENGATE_TLS_CERT=" + g.lab.cell.cert, "QUEENGATE_TLS_KEY=" + g.lab.cell.certKey, "QUEENGATE_DATA=" + filepath.Join(g.lab.dir, g.Name+"-data"),
		"QUEENGATE_LOG_LEVEL=warn", "GOMAXPROCS=1",
		"QUEENGATE_POSTGRES_DSN=" + dsn(ports...), "QUEENGATE_GATEWAY_CELL_KEY_FILE=" + g.lab.cell.private,
		"QUEENGATE_GATEWAY_DRAIN_TIME=5s", fmt.Sprintf("QUEENGATE_QUOTA_FLEET_SIZE=%d", g.lab.cfg.Gateways),
		"QUEENGATE_GATEWAY_JWT_ISSUER=" + sessionIssuer, "QUEENGATE_GATEWAY_JWT_SECRET=" + sessionSecret,
	}
	if g.lab.cfg.Quota != "" {
		env = append(env, "QUEENGATE_QUOTA_MODE="+g.lab.cfg.Quota)
	}
	if g.Redis != nil {
		// On a machine that is shared an answer of Redis may take longer than the 25 ms that are a fault elsewhere.
		env = append(env, "QUEENGATE_REDIS_URL=redis://"+g.Redis.Addr()+"/0", "QUEENGATE_REDIS_BUDGET=150ms")
	}
	for _, name := range slices.Sorted(maps.Keys(g.lab.cfg.Settings)) {
		env = append(env, name+"="+g.lab.cfg.Settings[name])
	}
	return env
}

// Launch starts the process and does not wait.
func (g *Gateway) Launch() error {
	g.starts.Add(1)
	p, err := g.lab.start(g.Name, g.lab.product(g.environment(), "gateway"))
	if err != nil {
		return err
	}
	g.now.Store(p)
	return nil
}

// Restart starts the gateway again, if it is not there, and waits until it serves.
func (g *Gateway) Restart(ctx context.Context) error {
	if !g.Alive() {
		if err := g.Launch(); err != nil {
			return err
		}
	}
	return g.Ready(ctx)
}

// GatewaysDied reports whether a gateway has been started more than once.
func (l *Lab) GatewaysDied() bool {
	return slices.ContainsFunc(l.Gateways, func(g *Gateway) bool { return g.starts.Load() > 1 })
}

// certify makes the certificate that gateways show, and that nobody is asked to believe.
func (c *cell) certify(dir string, key ed25519.PrivateKey) error {
	about := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(24 * time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		return err
	}
	inner, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	c.cert, c.certKey = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	return errors.Join(
		os.WriteFile(c.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o644),
		os.WriteFile(c.certKey, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: inner}), 0o600),
	)
}

// Weather sets that of the gateway's links to the control database.
func (g *Gateway) Weather(w Weather) {
	for _, l := range g.Control {
		l.Set(w)
	}
}

// free lets the links go.
func (g *Gateway) free() {
	for _, l := range g.Control {
		l.close()
	}
	if g.Redis != nil {
		g.Redis.close()
	}
}

// ports are those of all servers, past the links of the brokers.
func (l *Lab) ports() []int {
	if l.Standby == nil {
		return []int{l.Primary.Port}
	}
	return []int{l.Primary.Port, l.Standby.Port}
}

// Ready waits until the gateway says that it serves.
func (g *Gateway) Ready(ctx context.Context) error {
	return g.await(ctx, g.Name, "http://"+g.ops+"/readyz")
}

// bootstrap makes the tenant, with a cell whose brokers are reached through links of the gateways.
func (l *Lab) bootstrap(ctx context.Context) error {
	urls := make([]string, len(l.Brokers))
	for i, b := range l.Brokers {
		link, err := newFarLink("gw-"+b.Name, b.Addr, l.cfg.Far)
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
