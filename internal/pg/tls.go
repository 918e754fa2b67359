package pg

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// TLSMode says how sessions are protected, for addresses that do not say it themselves.
type TLSMode string

// The ways of protecting a session. The zero value leaves it to the address: its sslmode, or without one libpq's
// prefer, which takes what the server offers.
const (
	TLSOff      TLSMode = "off"      // in the clear
	TLSInsecure TLSMode = "insecure" // encrypted, whoever the server is
	TLSVerify   TLSMode = "verify"   // encrypted, with a certificate for the host's name by an authority we trust
)

// sslmodes are the modes in the words of an address.
var sslmodes = map[TLSMode]string{TLSOff: "disable", TLSInsecure: "require", TLSVerify: "verify-full"}

// protection is the TLS of one Config: what to add to its address, and how to finish what pgx makes of that.
type protection struct {
	mode  TLSMode
	roots *x509.CertPool // instead of the system's; nil: as addressed
	add   string         // the sslmode that the address lacks; ""
}

// protect composes TLS and CA with what the address says. Both may say the same; a contradiction is an error, since
// either reading of it would surprise somebody.
func (c Config) protect() (p protection, err error) {
	p.mode = c.TLS
	said := addressed(c.DSN)
	if c.CA != "" {
		if p.roots, err = Roots(c.CA); err != nil {
			return p, err
		}
		switch {
		case said["sslrootcert"] != "":
			return p, errors.New("a certificate authority is given twice: as a setting, and as sslrootcert in the address")
		case p.mode == TLSOff || p.mode == TLSInsecure:
			return p, fmt.Errorf("a certificate authority is given and tls = %s, which does not look at it: want tls = %s", p.mode, TLSVerify)
		}
		p.mode = TLSVerify
	}
	if p.mode == "" {
		return p, nil
	}
	want, known := sslmodes[p.mode]
	switch have := said["sslmode"]; {
	case !known:
		return p, fmt.Errorf("tls = %s: want %s, %s or %s", p.mode, TLSOff, TLSInsecure, TLSVerify)
	case have == "":
		p.add = want
	case have != want:
		return p, fmt.Errorf("the address says sslmode=%s and the settings say tls = %s, which is sslmode=%s: want one of them", have, p.mode, want)
	}
	return p, nil
}

// address returns dsn with the sslmode it lacks. It is otherwise untouched: several hosts stay several hosts.
func (p protection) address(dsn string) string {
	switch {
	case p.add == "":
		return dsn
	case !isURL(dsn):
		return dsn + " sslmode=" + p.add
	case strings.Contains(dsn, "?"):
		return dsn + "&sslmode=" + p.add
	}
	return dsn + "?sslmode=" + p.add
}

// finish applies the mode to every host of the address. pgx lets a root.crt in the home folder or in the environment
// turn require into a half of a verification; a mode means the same everywhere.
func (p protection) finish(c *pgconn.Config) error {
	if p.mode == "" || p.mode == TLSOff {
		return nil
	}
	hosts := slices.Concat([]*pgconn.FallbackConfig{{Host: c.Host, TLSConfig: c.TLSConfig}}, c.Fallbacks)
	for _, h := range hosts {
		if h.TLSConfig == nil {
			return fmt.Errorf("tls = %s, and %s is a Unix socket, which has none: want a host name", p.mode, h.Host)
		}
		p.harden(h.TLSConfig)
	}
	return nil
}

func (p protection) harden(t *tls.Config) {
	switch {
	case p.mode == TLSInsecure:
		t.InsecureSkipVerify, t.VerifyPeerCertificate, t.RootCAs = true, nil, nil
	case p.roots != nil:
		t.RootCAs = p.roots
	}
}

// Roots reads the certificates of authorities from PEM text. Whatever is in it must be one: text that is cut off or
// holds a key by mistake is an error, not a smaller set.
func Roots(text string) (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	rest, n := []byte(text), 0
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("the certificate authority's PEM text holds a %s: want certificates only", strings.ToLower(block.Type))
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d of the certificate authority's PEM text: %w", n+1, err)
		}
		roots.AddCert(cert)
		n++
	}
	if n == 0 || strings.Contains(string(rest), "-----BEGIN") {
		return nil, errors.New("the certificate authority's text is not PEM: want -----BEGIN CERTIFICATE----- and its end")
	}
	return roots, nil
}

func isURL(dsn string) bool {
	return strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://")
}

// pair is a keyword and its value in the key=value form of an address.
var pair = regexp.MustCompile(`([^\s=]+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s\\]|\\.)*)`)

// addressed returns what the address itself says about TLS; an address that cannot be read says nothing.
func addressed(dsn string) map[string]string {
	said := map[string]string{}
	if isURL(dsn) {
		if u, err := url.Parse(dsn); err == nil {
			for key, values := range u.Query() {
				said[key] = values[0]
			}
		}
		return said
	}
	for _, m := range pair.FindAllStringSubmatch(dsn, -1) {
		said[m[1]] = strings.Trim(m[2], "'")
	}
	return said
}
