package tls

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/queengate/queengate/internal/datadir"
)

// Lifetimes of the local authority. Clients refuse server certificates of more than 825 days.
const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 365 * 24 * time.Hour
	renewAt  = 60 * 24 * time.Hour // before expiry
)

// localNames is what the leaf is for. Verifiers based on OpenSSL take no wildcard right below a top-level name, so
// demo.localhost stands beside it.
var (
	localNames = []string{"localhost", "demo.localhost", "*.localhost"}
	localIPs   = []net.IP{net.IPv4(127, 0, 0, 1).To4(), net.IPv6loopback}
)

// Local is a certificate authority of this machine and the server certificate it signs: ECDSA P-256, made at the first
// start, the leaf renewed when it nears its end. The authority is constrained to localhost names and loopback
// addresses, so trusting it opens nothing else to whoever steals its key.
type Local struct {
	log *slog.Logger
	dir string
	now func() time.Time

	mu   sync.Mutex // guards what follows
	leaf *tls.Certificate
}

// OpenLocal opens the authority in dir, creating it when there is none. now is the clock (time.Now).
func OpenLocal(log *slog.Logger, dir string, now func() time.Time) (*Local, error) {
	l := &Local{log: log, dir: dir, now: now}
	if _, err := l.certificate(nil); err != nil {
		return nil, fmt.Errorf("local certificate authority: %w", err)
	}
	return l, nil
}

// CAFile returns the file with the authority's certificate, for clients to trust.
func (l *Local) CAFile() string { return filepath.Join(l.dir, "ca.pem") }

// Config returns a server configuration with the authority's certificate.
func (l *Local) Config() *tls.Config { return config(l.certificate) }

func (l *Local) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaf != nil && l.now().Before(l.leaf.Leaf.NotAfter.Add(-renewAt)) {
		return l.leaf, nil
	}
	leaf, err := l.load()
	if err != nil && l.leaf != nil && l.now().Before(l.leaf.Leaf.NotAfter) {
		l.log.Warn("the local certificate cannot be renewed", "err", err, "not_after", l.leaf.Leaf.NotAfter)
		return l.leaf, nil
	}
	if err != nil {
		return nil, err
	}
	l.leaf = leaf
	return leaf, nil
}

// load reads authority and leaf, and makes what is missing, near its end or not of the names wanted.
func (l *Local) load() (*tls.Certificate, error) {
	ca, err := l.read("ca")
	switch {
	case errors.Is(err, os.ErrNotExist) || err == nil && l.now().After(ca.Leaf.NotAfter.Add(-leafLife)):
		if ca, err = l.makeCA(); err != nil {
			return nil, err
		}
		l.log.Info("made a local certificate authority", "file", l.CAFile(), "not_after", ca.Leaf.NotAfter)
	case err != nil:
		return nil, err
	}
	leaf, err := l.read("localhost")
	if err == nil && leaf.Leaf.CheckSignatureFrom(ca.Leaf) == nil && slices.Equal(leaf.Leaf.DNSNames, localNames) &&
		l.now().Before(leaf.Leaf.NotAfter.Add(-renewAt)) {
		return leaf, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if leaf, err = l.makeLeaf(ca); err != nil {
		return nil, err
	}
	l.log.Info("made a local server certificate", "not_after", leaf.Leaf.NotAfter)
	return leaf, nil
}

func (l *Local) makeCA() (*tls.Certificate, error) {
	now := l.now()
	host, _ := os.Hostname() // only to tell authorities apart in a trust store
	_, v4, _ := net.ParseCIDR("127.0.0.0/8")
	_, v6, _ := net.ParseCIDR("::1/128")
	return l.issue("ca", nil, &x509.Certificate{
		Subject:   pkix.Name{CommonName: "Queengate local CA " + host, Organization: []string{"Queengate"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage:                    x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{"localhost"}, PermittedIPRanges: []*net.IPNet{v4, v6},
	})
}

func (l *Local) makeLeaf(ca *tls.Certificate) (*tls.Certificate, error) {
	now := l.now()
	return l.issue("localhost", ca, &x509.Certificate{
		Subject:   pkix.Name{CommonName: "localhost", Organization: []string{"Queengate"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, DNSNames: localNames, IPAddresses: localIPs,
	})
}

// issue makes a key and a certificate signed by ca (nil: by itself) and writes both, the key first: a crash between the
// two leaves a pair that does not match, which read reports as absent.
func (l *Local) issue(name string, ca *tls.Certificate, template *x509.Certificate) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, err
	}
	parent, signer := template, any(key)
	if ca != nil {
		parent, signer = ca.Leaf, ca.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	if err := datadir.WriteFile(l.file(name, ".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600); err != nil {
		return nil, err
	}
	if err := datadir.WriteFile(l.file(name, ".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		return nil, err
	}
	return l.read(name)
}

func (l *Local) file(name, ext string) string { return filepath.Join(l.dir, name+ext) }

// read returns a stored pair; one that is missing or does not match is os.ErrNotExist.
func (l *Local) read(name string) (*tls.Certificate, error) {
	cert, err := os.ReadFile(l.file(name, ".pem"))
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(l.file(name, ".key"))
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w (%w)", l.file(name, ".pem"), err, os.ErrNotExist)
	}
	return &pair, nil
}
