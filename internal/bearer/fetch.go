package bearer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Fetcher gets documents from addresses that strangers name, and from nowhere they should not lead us. It speaks https to
// public addresses only. The address is judged when the socket is made, after the name was resolved, so neither a name
// that answers differently the second time nor an unusual spelling gets past it; redirects are not followed, no proxy is
// asked, answers are bounded and not unpacked. Errors hold nothing of an answer. Safe for concurrent use.
type Fetcher struct{ secure, plain *http.Client }

// FetcherConfig describes a Fetcher. The zero value is the strict one.
type FetcherConfig struct {
	// Networks may be asked although they are not public; and http is spoken to them, which it is to nobody else.
	Networks []netip.Prefix
	Roots    *x509.CertPool // nil: those of the system
	Resolver *net.Resolver  // nil: that of the system
}

const (
	maxDiscoveryBytes = 64 << 10
	fetchHandshake    = 5 * time.Second // the whole is bounded by the caller's context
	maxFetchHeaders   = 16 << 10
)

// NewFetcher returns a Fetcher. It does no I/O.
func NewFetcher(cfg FetcherConfig) *Fetcher {
	client := func(admits func(netip.Addr) bool) *http.Client {
		dialer := &net.Dialer{Timeout: fetchHandshake, Resolver: cfg.Resolver, Control: func(_, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil || !admits(to.Addr()) {
				return errors.New("the address is not public")
			}
			return nil
		}}
		return &http.Client{CheckRedirect: noRedirects, Transport: &http.Transport{
			Proxy: nil, DialContext: dialer.DialContext, DisableKeepAlives: true, DisableCompression: true,
			TLSClientConfig: &tls.Config{RootCAs: cfg.Roots, MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: fetchHandshake,
			MaxResponseHeaderBytes: maxFetchHeaders,
		}}
	}
	listed := func(a netip.Addr) bool {
		a = a.Unmap().WithZone("")
		return slices.ContainsFunc(cfg.Networks, func(n netip.Prefix) bool { return n.Contains(a) })
	}
	return &Fetcher{
		secure: client(func(a netip.Addr) bool { return isPublic(a) || listed(a) }),
		plain:  client(listed),
	}
}

// KeySet returns the source of the key set at an address.
func (f *Fetcher) KeySet(address string) Source {
	return func(ctx context.Context) ([]byte, error) { return f.get(ctx, address, maxSetBytes) }
}

// Discovered returns the source of the key set that an issuer names in its discovery document (OpenID Connect Discovery
// 1.0, 4). The document must be about that issuer, to the letter. It is read again for every fetch: it may name another
// place tomorrow.
func (f *Fetcher) Discovered(issuer string) Source {
	return func(ctx context.Context) ([]byte, error) {
		body, err := f.get(ctx, strings.TrimSuffix(issuer, "/")+"/.well-known/openid-configuration", maxDiscoveryBytes)
		if err != nil {
			return nil, fmt.Errorf("discovery: %w", err)
		}
		var doc map[string]json.RawMessage // names are exact in a map
		var stated, address string
		if json.Unmarshal(body, &doc) != nil || json.Unmarshal(doc["issuer"], &stated) != nil || json.Unmarshal(doc["jwks_uri"], &address) != nil {
			return nil, errors.New("discovery: the answer is no discovery document")
		}
		if stated != issuer {
			return nil, errors.New("discovery: the document is of another issuer")
		}
		return f.get(ctx, address, maxSetBytes)
	}
}

func (f *Fetcher) get(ctx context.Context, address string, limit int64) ([]byte, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil {
		return nil, errors.New("want an address without user and password")
	}
	switch u.Scheme {
	case "https":
		return get(ctx, f.secure, address, limit)
	case "http":
		return get(ctx, f.plain, address, limit)
	}
	return nil, errors.New("want an address that begins with https://")
}

// noRedirects has a client return the redirect itself, which is no answer to anybody here.
func noRedirects(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// get reads the body of a 200, of limit bytes at most.
func get(ctx context.Context, client *http.Client, address string, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer has status %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > limit {
		return nil, fmt.Errorf("the answer is longer than %d bytes", limit)
	}
	return body, nil
}

// special are the networks within the unicast ranges that are not the public internet (the IANA special-purpose
// registries), or that hide an address of another kind: 6to4 and Teredo.
var special = func() (all []netip.Prefix) {
	for _, text := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}()

var (
	globalUnicast6 = netip.MustParsePrefix("2000::/3")
	nat64          = netip.MustParsePrefix("64:ff9b::/96") // an IPv4 address stands in the last four bytes
)

// isPublic reports whether the address is one of the public internet: not loopback, private, link-local (where clouds keep
// their metadata), shared (CGNAT), multicast, reserved or of documentation, in whatever dress.
func isPublic(a netip.Addr) bool {
	if a.Zone() != "" {
		return false
	}
	if a = a.Unmap(); nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	if !a.IsGlobalUnicast() || a.IsPrivate() || a.Is6() && !globalUnicast6.Contains(a) {
		return false
	}
	return !slices.ContainsFunc(special, func(n netip.Prefix) bool { return n.Contains(a) })
}
