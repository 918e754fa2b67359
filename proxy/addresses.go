package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Brokers that a name stands for: how often it is looked up, and for how long at most.
const (
	resolveInterval = 5 * time.Second
	resolveTime     = 3 * time.Second
)

// manyScheme begins an address whose name stands for several brokers, each with an address of its own.
const manyScheme = "dns+"

// socketScheme begins the address of a broker on this machine: the path of its Unix socket follows.
const socketScheme = "unix:"

// endpoint is one entry of a cell's addresses.
type endpoint struct {
	host, port string
	many       bool   // every address of the name is a broker; else the entry is one, whatever its name resolves to
	socket     string // instead of all that
}

func (e endpoint) address() string {
	if e.socket != "" {
		return e.socket
	}
	return net.JoinHostPort(e.host, e.port)
}

// readEndpoints reads addresses (http://host:port, dns+http://host:port for all that a name stands for, or unix:/path),
// separated by commas or blanks. Repetitions are dropped.
func readEndpoints(list string) ([]endpoint, error) {
	var out []endpoint
	for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		if path, ok := strings.CutPrefix(s, socketScheme); ok {
			if !isSocket(path) {
				return nil, fmt.Errorf("broker address %q: want the whole path of a socket", s)
			}
			if e := (endpoint{socket: path}); !slices.Contains(out, e) {
				out = append(out, e)
			}
			continue
		}
		plain, many := strings.CutPrefix(s, manyScheme)
		u, err := url.Parse(plain)
		if err != nil {
			return nil, fmt.Errorf("broker address: %w", err)
		}
		if u.Scheme != "http" || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil {
			return nil, fmt.Errorf("broker address %q: want http://host:port, dns+http://host:port or unix:/path", s)
		}
		e := endpoint{host: u.Hostname(), port: u.Port(), many: many}
		if e.port == "" {
			e.port = "80"
		}
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no broker address")
	}
	return out, nil
}

// isSocket reports whether a broker's address is the path of a socket; host:port never begins so.
func isSocket(address string) bool { return strings.HasPrefix(address, "/") }

// hostOf returns the Host that a broker with this address is asked under.
func hostOf(address string) string {
	if isSocket(address) {
		return "localhost"
	}
	return address
}

// lookup returns the addresses of a host.
type lookup func(ctx context.Context, host string) ([]string, error)

// resolved is what the names of a pool stood for when they were last looked up.
type resolved map[endpoint][]string

// addresses lists the brokers of the endpoints, without repetition and in a stable order. A name that has not been
// looked up yet stands for itself: dialling it finds one of its brokers.
func (r resolved) addresses(endpoints []endpoint) []string {
	var out []string
	for _, e := range endpoints {
		found := r[e]
		if !e.many || len(found) == 0 {
			out = append(out, e.address())
			continue
		}
		for _, host := range found {
			out = append(out, net.JoinHostPort(host, e.port))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// resolve looks every name up that stands for several. One that cannot be looked up, or stands for nothing, keeps the
// addresses it had: a resolver that is away must not part a gateway from brokers it still reaches.
func (r resolved) resolve(ctx context.Context, endpoints []endpoint, look lookup) (_ resolved, errs error) {
	next := resolved{}
	for _, e := range endpoints {
		if !e.many {
			continue
		}
		next[e] = r[e]
		found, err := func() ([]string, error) {
			ctx, cancel := context.WithTimeout(ctx, resolveTime)
			defer cancel()
			return look(ctx, e.host)
		}()
		switch {
		case err != nil:
			errs = errors.Join(errs, err)
		case len(found) > 0:
			next[e] = found
		}
	}
	return next, errs
}
