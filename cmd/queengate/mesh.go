package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/queengate/queengate/broker"
	"github.com/queengate/queengate/internal/conf"
	"github.com/queengate/queengate/mesh"
)

// meshConfig says how a broker talks to the others of its cell.
type meshConfig struct {
	Addr                      string
	Peers                     []string
	Secret                    conf.Secret
	CertFile, KeyFile, CAFile string
	Heartbeat, Dead           time.Duration
}

func (c *meshConfig) declare(s *conf.Set) {
	s.Section("mesh", "Mesh. Brokers of one cell tell each other what is new, so that a poll on one hears at once of a push on another; without it within a second. It is used once there are peers.", "broker")
	s.Addr(&c.Addr, "addr", "Listen address; beyond loopback it needs a secret or certificates.", address("QUEEN_MESH_PORT", "QUEEN_MESH_BIND_ADDR", "6633", "QUEEN_UDP_NOTIFY_PORT"))
	s.List(&c.Peers, "peers", "The brokers of the cell as host[:port], this one may be among them; a name that stands for several addresses means all of them.",
		conf.EnvFunc(meshPeers, "QUEEN_MESH_PEERS", "QUEEN_UDP_PEERS", "QUEEN_SYNC_ENABLED"))
	s.Secret(&c.Secret, "secret", "Secret that all brokers of the cell share, at least 16 bytes. Several, separated by commas, are all accepted and the first signs: to rotate, add the new one behind the old everywhere, then swap them, then remove the old.",
		conf.Env("QUEEN_SYNC_SECRET"))
	s.String(&c.CertFile, "cert_file", "PEM file with this broker's certificate: mutual TLS with an authority of your own instead of a secret.")
	s.String(&c.KeyFile, "key_file", "PEM file with its private key.")
	s.String(&c.CAFile, "ca_file", "PEM file with the authority that has signed the certificates of all brokers, and of nobody else.")
	s.Duration(&c.Heartbeat, "heartbeat", "Between two signs of life.", 10*time.Millisecond, time.Minute, milliseconds("QUEEN_SYNC_HEARTBEAT_MS", 10*time.Millisecond))
	s.Duration(&c.Dead, "dead", "Silence after which a connection is given up.", 100*time.Millisecond, 10*time.Minute, milliseconds("QUEEN_SYNC_DEAD_THRESHOLD_MS", 100*time.Millisecond))
	s.Check(func() error {
		if cfg := c.mesh(); cfg.Enabled() {
			return cfg.Validate()
		}
		return nil
	})
}

func (c *meshConfig) mesh() mesh.Config {
	cfg := mesh.Config{
		Addr: c.Addr, Peers: c.Peers, CertFile: c.CertFile, KeyFile: c.KeyFile, CAFile: c.CAFile,
		Heartbeat: c.Heartbeat, Dead: c.Dead,
	}
	for s := range strings.SplitSeq(c.Secret.Reveal(), ",") {
		if s = strings.TrimSpace(s); s != "" {
			cfg.Secrets = append(cfg.Secrets, s)
		}
	}
	return cfg
}

// newMesh opens the mesh's port, or returns nil when there are no peers.
func newMesh(ctx context.Context, log *slog.Logger, c *meshConfig) (broker.Mesh, error) {
	cfg := c.mesh()
	if !cfg.Enabled() {
		if len(cfg.Secrets) > 0 || cfg.CertFile != "" {
			log.Warn("the mesh is off, although it has a secret or certificates: mesh.peers names nobody")
		}
		return nil, nil
	}
	ln, err := listen(ctx, "mesh.addr", cfg.Addr)
	if err != nil {
		return nil, err
	}
	name, err := os.Hostname()
	if err != nil {
		name = cfg.Addr
	}
	m, err := mesh.New(log.With("part", "mesh"), cfg, name, ln)
	if err != nil {
		return nil, usageError{errors.Join(err, closed(ln))}
	}
	return m, nil
}

func closed(ln net.Listener) error {
	if ln == nil {
		return nil
	}
	return ln.Close()
}
