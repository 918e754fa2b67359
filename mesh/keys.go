package mesh

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"os"
	"time"
)

// protocol is negotiated in the handshake, so that nodes of an incompatible version refuse each other there.
const protocol = "queengate-mesh/1"

// errStranger is a peer whose certificate nobody we trust has signed.
var errStranger = errors.New("mesh: the peer's certificate is not signed by a key of this mesh")

// authority is who this node is and whom it believes.
type authority struct {
	own     func() (*tls.Certificate, error)
	believe func(*x509.Certificate) error
}

func newAuthority(c Config) (*authority, error) {
	if c.CertFile != "" {
		return fileAuthority(c)
	}
	secrets := c.Secrets
	if len(secrets) == 0 {
		secrets = []string{""} // loopback only, as Validate sees to: whoever runs here is believed
	}
	var signers []ed25519.PrivateKey
	for _, s := range secrets {
		seed, err := hkdf.Key(sha256.New, []byte(s), nil, protocol+" signing key", ed25519.SeedSize)
		if err != nil {
			return nil, fmt.Errorf("mesh: derive a key: %w", err)
		}
		signers = append(signers, ed25519.NewKeyFromSeed(seed))
	}
	cert, err := mint(signers[0])
	if err != nil {
		return nil, err
	}
	return &authority{
		own: func() (*tls.Certificate, error) { return cert, nil },
		believe: func(leaf *x509.Certificate) error {
			for _, s := range signers {
				if leaf.SignatureAlgorithm == x509.PureEd25519 && ed25519.Verify(s.Public().(ed25519.PublicKey), leaf.RawTBSCertificate, leaf.Signature) {
					return nil
				}
			}
			return errStranger
		},
	}, nil
}

// mint makes a certificate for a key that never leaves this process. Its dates are not looked at: what ends it is the
// process, or the removal of the secret that signed it.
func mint(signer ed25519.PrivateKey) (*tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("mesh: make a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("mesh: make a serial number: %w", err)
	}
	now := time.Now()
	leaf := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "queengate mesh node"},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.AddDate(100, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
	issuer := &x509.Certificate{Subject: pkix.Name{CommonName: "queengate mesh"}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, issuer, public, signer)
	if err != nil {
		return nil, fmt.Errorf("mesh: make a certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, nil
}

// fileAuthority reads the files now, so that bad ones stop the start, and again with every connection.
func fileAuthority(c Config) (*authority, error) {
	a := &authority{
		own: func() (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("mesh.cert_file: %w", err)
			}
			return &cert, nil
		},
		believe: func(leaf *x509.Certificate) error {
			roots, err := readRoots(c.CAFile)
			if err != nil {
				return err
			}
			_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			if err != nil {
				return fmt.Errorf("%w: %w", errStranger, err)
			}
			return nil
		},
	}
	_, certErr := a.own()
	_, rootErr := readRoots(c.CAFile)
	return a, errors.Join(certErr, rootErr)
}

func readRoots(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("mesh.ca_file: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("mesh.ca_file: no certificate in %s", file)
	}
	return roots, nil
}

// config returns the TLS side of both directions.
func (a *authority) config() *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		NextProtos:           []string{protocol},
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.own() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.own() },
		ClientAuth:           tls.RequireAnyClientCert,
		// A node is believed for its signature, not for its name: VerifyConnection decides, on both sides.
		InsecureSkipVerify: true,
		// A resumed session would rest on the handshake of another connection.
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if s.NegotiatedProtocol != protocol {
				return fmt.Errorf("mesh: the peer speaks %q, not %q", s.NegotiatedProtocol, protocol)
			}
			if len(s.PeerCertificates) == 0 {
				return errStranger
			}
			return a.believe(s.PeerCertificates[0])
		},
	}
}
