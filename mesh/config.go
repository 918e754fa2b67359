package mesh

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// DefaultPort is the port of a peer that names none.
const DefaultPort = "6633"

// minSecret is the least length of a shared secret in bytes. A secret is not a password: 32 random bytes are usual.
const minSecret = 16

// Config says where a mesh listens, whom it dials and whom it trusts. Zero durations take the defaults named.
type Config struct {
	Addr  string   // listen address, "127.0.0.1:6633"
	Peers []string // host[:port] of every broker of the cell; this one may be among them

	// Secrets are shared by all nodes. The first signs, all are accepted; to rotate, add the new one behind the old
	// everywhere, then swap them everywhere, then remove the old.
	Secrets []string
	// CertFile, KeyFile and CAFile (PEM) are the other way to trust; all three, and no secrets then. They are read
	// again with every connection, so replaced files need no restart.
	CertFile, KeyFile, CAFile string

	Heartbeat time.Duration // between two of them, 1 s
	Dead      time.Duration // silence after which a connection is given up, 5 s
	Resolve   time.Duration // between two look-ups of the peers' names, 5 s
	Queue     int           // frames that wait for one peer; beyond it they are dropped; 1024
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&c.Heartbeat, time.Second}, {&c.Dead, 5 * time.Second}, {&c.Resolve, 5 * time.Second}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if c.Queue == 0 {
		c.Queue = 1024
	}
	return c
}

// Enabled reports that there is somebody to talk to: a mesh without peers is not run.
func (c Config) Enabled() bool { return len(c.Peers) > 0 }

// Validate reports every problem of the values, joined. It reads no file and resolves no name.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	files := []string{c.CertFile, c.KeyFile, c.CAFile}
	some := slices.ContainsFunc(files, func(f string) bool { return f != "" })
	check(!some || !slices.Contains(files, ""), "mesh: cert_file, key_file and ca_file belong together")
	check(!some || len(c.Secrets) == 0, "mesh: either secrets or certificate files, not both")
	for i, s := range c.Secrets {
		check(len(s) >= minSecret, "mesh.secrets: number %d has %d bytes, want at least %d", i+1, len(s), minSecret)
	}
	host, _, err := net.SplitHostPort(c.Addr)
	check(err == nil, "mesh.addr = %q: want host:port", c.Addr)
	open := !some && len(c.Secrets) == 0
	check(err != nil || !open || loopback(host), "mesh.addr = %q: without secrets or certificates a mesh listens on a loopback address only", c.Addr)
	for _, p := range c.Peers {
		host, port, err := splitPeer(p)
		check(err == nil && host != "" && port != "", "mesh.peers: %q: want host or host:port", p)
		check(err != nil || !open || loopback(host), "mesh.peers: %q: without secrets or certificates a peer is on a loopback address", p)
	}
	check(c.Heartbeat > 0 && c.Dead > c.Heartbeat, "mesh: heartbeat %v must be shorter than dead %v", c.Heartbeat, c.Dead)
	check(c.Resolve > 0, "mesh.resolve = %v: want more than 0", c.Resolve)
	check(c.Queue >= 1, "mesh.queue = %d: want at least 1", c.Queue)
	return errors.Join(errs...)
}

// loopback reports that a host is this machine whatever a resolver says; an empty host is every interface.
func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// splitPeer splits host[:port]; a bare IPv6 address needs no brackets.
func splitPeer(peer string) (host, port string, err error) {
	if ip, err := netip.ParseAddr(strings.Trim(peer, "[]")); err == nil {
		return ip.String(), DefaultPort, nil
	}
	if !strings.Contains(peer, ":") {
		return peer, DefaultPort, nil
	}
	return net.SplitHostPort(peer)
}
